"""The loader's own ranks: equal step counts, every sample where it belongs, on any number of ranks."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_launch import launch
from rank_run import Growing, Ids, Mine, ids, make
from torch.utils import data as stock

import feedrate
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours

HERE = Path(__file__).parent
POLICIES = ("pad", "drop", "exact")
BATCH = 3
ORDERS = ("shuffle", "plain", "weighted", "mine")


def order_of(case: dict[str, Any], epochs: int = 3) -> list[list[int]]:
    """The common order of each epoch: that of one rank which gets everything."""
    loader = make({**case, "batch": 1, "num_workers": 0, "drop_last": False, "persistent_workers": False}, distributed=(0, 1))
    return [[i for batch in loader for i in ids(batch)] for _ in range(epochs)]


def check_epoch(
    case: dict[str, Any], ranks: list[list[Any]], order: list[int], *, start: int = 0, world: int | None = None
) -> None:
    """One epoch on all ranks (for each step samples and mask) against the common order."""
    world = len(ranks) if world is None else world
    batch = case.get("batch", BATCH) or 1
    span = batch * world
    remainder, drop_last = case["remainder"], case.get("drop_last", False)
    assert len({len(steps) for steps in ranks}) == 1, f"step counts differ: {[len(s) for s in ranks]}"
    left = order[start:]
    full, rest = divmod(len(left), span)
    tail = 0 if drop_last or rest == 0 or (remainder == "drop" and rest < world) else 1
    assert len(ranks[0]) == full + tail
    for step in range(full):
        piece = left[step * span : (step + 1) * span]
        for rank, steps in enumerate(ranks):
            assert steps[step] == [piece[rank::world], [True] * batch], (case, step, rank)
    if not tail:
        return
    last = [steps[full] for steps in ranks]
    piece = left[full * span :]
    real = [[i for i, own in zip(got, mask, strict=True) if own] for got, mask in last]
    if remainder == "drop":
        whole = rest // world * world
        assert real == [piece[rank:whole:world] for rank in range(world)]
        assert all(all(mask) for _, mask in last)
        return
    assert real == [piece[rank::world] for rank in range(world)]
    if remainder == "exact":
        assert all(all(mask) for _, mask in last)
    else:
        assert {len(got) for got, _ in last} == {-(-rest // world)}
        assert all(i in order for got, _ in last for i in got)
        assert sum(not own for _, mask in last for own in mask) == -(-rest // world) * world - rest


# -- real processes


def plans(world: int) -> list[dict[str, Any]]:
    span = BATCH * world
    sizes = (1, world - 1, 2 * span - 1, 2 * span, 2 * span + 1, 2 * span + world + 1)
    cases: list[dict[str, Any]] = [{"n": n, "remainder": policy} for policy in POLICIES for n in sizes]
    for policy in POLICIES:
        size = 2 * span + world + 1
        cases += [
            {"n": size, "remainder": policy, "num_workers": 2},
            {"n": size, "remainder": policy, "num_workers": 2, "persistent_workers": True},
            {"n": size, "remainder": policy, "drop_last": True},
            *({"n": size, "remainder": policy, "order": order} for order in ("plain", "weighted", "mine")),
        ]
        cases.append({"n": size, "remainder": policy, "order": "mine", "num_workers": 2, "persistent_workers": True})
        if policy != "exact":
            cases.append({"n": size, "remainder": policy, "batch": None})
    return cases


ELASTIC = [
    {"n": 50, "batch": 4, "remainder": policy, "order": order, "stop": [epoch, step], "num_workers": workers}
    for policy, order, epoch, step, workers in (
        ("exact", "shuffle", 0, 2, 0),
        ("pad", "shuffle", 1, 0, 2),
        ("drop", "shuffle", 2, 4, 0),
        ("exact", "weighted", 1, 3, 0),
        ("exact", "mine", 0, 2, 0),
        ("pad", "plain", 0, 1, 2),
    )
]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    cases = [*plans(2), *ELASTIC, {"n": 23, "order": "stock"}]
    return launch(HERE / "rank_run.py", 2, cases, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(two: list[list[Any]], tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """With the states of the run on two ranks taken up, as rank 0 alone saved them."""
    first = len(plans(2))
    taken_up = [
        {**{k: v for k, v in case.items() if k != "stop"}, "batch": 2, "state": two[0][first + k]["state"], "epochs": 2}
        for k, case in enumerate(ELASTIC)
    ]
    cases = [*plans(4), *taken_up, {"n": 23, "order": "stock"}]
    return launch(HERE / "rank_run.py", 4, cases, tmp_path_factory.mktemp("four"))


@pytest.mark.watchdog(300)
@pytest.mark.parametrize("world", [2, 4])
def test_every_policy_with_a_collective_in_each_step(world: int, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue({2: "two", 4: "four"}[world])
    for number, case in enumerate(plans(world)):
        orders = order_of(case)
        for epoch, order in enumerate(orders):
            ranks = [found[rank][number]["epochs"][epoch] for rank in range(world)]
            check_epoch(case, ranks, order)
            length = found[0][number]["len"]
            assert length is None or length == len(ranks[0]), case
        if case.get("order", "shuffle") != "plain" and case["n"] > 10:
            assert orders[0] != orders[1] != orders[2] != orders[0], f"epochs are the same: {case}"


@pytest.mark.watchdog(300)
def test_a_run_on_two_ranks_goes_on_on_four_and_on_one(two: list[list[Any]], four: list[list[Any]]) -> None:
    """The global batch stays the same: so do the global batches."""
    for k, case in enumerate(ELASTIC):
        epoch, step = case["stop"]  # type: ignore[misc]
        before = [two[rank][len(plans(2)) + k] for rank in range(2)]
        orders = order_of(case, 4)
        cut = (step + 1) * 8
        for number, order in enumerate(orders[:epoch]):
            check_epoch(case, [b["epochs"][number] for b in before], order)
        given = [[i for got, _ in b["epochs"][epoch] for i in got] for b in before]
        assert Counter(itertools.chain(*given)) == Counter(orders[epoch][:cut]), case
        after = [four[rank][len(plans(4)) + k]["epochs"] for rank in range(4)]
        wide = {**case, "batch": 2}
        check_epoch(wide, [a[0] for a in after], orders[epoch], start=cut)
        check_epoch(wide, [a[1] for a in after], orders[epoch + 1])
        alone = make({**case, "batch": 8, "num_workers": 0}, distributed=(0, 1))
        alone.load_state_dict(before[1]["state"])
        for number, start in ((epoch, cut), (epoch + 1, 0)):
            got = [[ids(batch), alone.mask.tolist()] for batch in alone]
            check_epoch({**case, "batch": 8}, [got], orders[number], start=start)


@pytest.mark.watchdog(300)
@pytest.mark.parametrize("world", [2, 4])
def test_torchs_distributed_sampler_works_as_before(world: int, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue({2: "two", 4: "four"}[world])
    for rank in range(world):
        got = found[rank][-1]
        assert got["ours"] == got["theirs"]
        assert len(got["ours"]) == 3 and got["ours"][0] != got["ours"][1]
    assert Counter(i for r in range(world) for b in found[r][-1]["ours"][0] for i in b).keys() == set(range(23))


# -- ranks of one process, in every small case


def on_ranks(case: dict[str, Any], world: int, epochs: int = 1, **changed: Any) -> list[list[Any]]:
    """By rank and epoch: samples and mask of each step."""
    found = []
    for rank in range(world):
        loader = make(case, distributed=(rank, world), **changed)
        got = []
        for _ in range(epochs):
            got.append([[ids(batch), loader.mask.tolist()] for batch in loader])
            if case.get("order", "shuffle") not in ("mine", "growing"):
                assert len(loader) == len(got[-1]), "len() is not what was delivered"
        found.append(got)
    return found


@pytest.mark.filterwarnings("ignore:This epoch had no batch")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_every_size_around_a_step(world: int, policy: str, order: str) -> None:
    for batch, drop_last in itertools.product((1, 2, 4), (False, True)):
        span = batch * world
        sizes = {1, 2, 3, span - 1, span, span + 1, 2 * span - 1, 2 * span, 2 * span + 1, 2 * span + world} - {0}
        for n in sorted(sizes):
            case = {"n": n, "batch": batch, "remainder": policy, "order": order, "drop_last": drop_last}
            orders = order_of(case, 2)
            found = on_ranks(case, world, 2)
            for epoch in range(2):
                check_epoch(case, [f[epoch] for f in found], orders[epoch])


@pytest.mark.parametrize("policy", ["pad", "drop"])
@pytest.mark.parametrize("order", ORDERS)
def test_without_batches(order: str, policy: str) -> None:
    for world, n in itertools.product((1, 2, 3, 5), (1, 4, 9, 10, 11)):
        case = {"n": n, "batch": None, "remainder": policy, "order": order}
        found = on_ranks(case, world, 2)
        for epoch, common in enumerate(order_of(case, 2)):
            check_epoch(case, [f[epoch] for f in found], common)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_users_batch_sampler(world: int, policy: str) -> None:
    """Its batches are shared out whole."""
    for n in range(1, 30):
        batches = list(Growing(n))
        found = [f[0] for f in on_ranks({"n": n, "order": "growing", "remainder": policy}, world)]
        assert len({len(steps) for steps in found}) == 1
        real = [
            [i for i, own in zip(got, mask, strict=True) if own] for step in itertools.zip_longest(*found) for got, mask in step
        ]
        real = [batch for batch in real if batch]
        whole = len(batches) // world * world
        assert real == (batches[:whole] if policy == "drop" else batches), n


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_cut_of_a_users_batch_sampler_without_a_state(n: int, policy: Any) -> None:
    """Also behind a last step that is not full."""

    def make(rank: int) -> DataLoader[Any]:
        batches: Any = [[2 * k, 2 * k + 1] for k in range(n)]
        return DataLoader(range(2 * n), batch_sampler=batches, distributed=(rank, 3), remainder=policy)  # type: ignore[arg-type]

    for rank in range(3):
        whole = [batch.tolist() for batch in make(rank)]
        for cut in range(len(whole) + 1):
            loader = make(rank)
            it = iter(loader)
            for _ in range(cut):
                next(it)
            state = json.loads(json.dumps(loader.state_dict()))
            for _ in range(2):
                resumed = make(rank)
                resumed.load_state_dict(state)
                again = iter(resumed)
                state = json.loads(json.dumps(resumed.state_dict()))
                assert [batch.tolist() for batch in again] == whole[cut:]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_workers_change_nothing(policy: str, num_workers: int) -> None:
    for order, persistent, in_order in (("shuffle", False, True), ("mine", True, True), ("weighted", True, True)):
        case = {"n": 26, "batch": 4, "remainder": policy, "order": order}
        alone = on_ranks(case, 3, 3)
        assert on_ranks(case, 3, 3, num_workers=num_workers, persistent_workers=persistent, in_order=in_order) == alone
        threads = on_ranks(case, 3, 3, num_workers=num_workers, persistent_workers=persistent, workers="thread")
        assert threads == alone


def test_workers_out_of_order_keep_the_masks_with_the_batches() -> None:
    for policy in POLICIES:
        case = {"n": 26, "batch": 4, "remainder": policy}
        plain = on_ranks(case, 3)
        mixed = on_ranks(case, 3, num_workers=2, in_order=False)
        for mine, other in zip(plain, mixed, strict=True):
            assert sorted(map(str, mine[0])) == sorted(map(str, other[0])), policy


def test_the_random_state_of_the_process_does_not_matter() -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        found.append([on_ranks({"n": 20, "remainder": "pad", "order": order}, 2, 2) for order in ("shuffle", "weighted")])
    assert found[0] == found[1]


def test_the_seed_does() -> None:
    assert on_ranks({"n": 20, "remainder": "pad", "seed": 1}, 2) != on_ranks({"n": 20, "remainder": "pad", "seed": 2}, 2)
    assert on_ranks({"n": 20, "remainder": "pad", "seed": None}, 2) == on_ranks({"n": 20, "remainder": "pad", "seed": 0}, 2)


def test_an_iterator_that_was_only_peeked_at_does_not_count() -> None:
    loader = make({"n": 20, "remainder": "pad"}, distributed=(0, 2))
    want = on_ranks({"n": 20, "remainder": "pad"}, 2, 2)[0]
    next(iter(loader))
    for epoch in range(2):
        assert [[ids(batch), loader.mask.tolist()] for batch in loader] == want[epoch]


def test_an_epoch_left_after_its_second_batch_counts() -> None:
    loader = make({"n": 20, "remainder": "pad"}, distributed=(0, 2))
    want = on_ranks({"n": 20, "remainder": "pad"}, 2, 2)[0]
    iterator = iter(loader)
    next(iterator), next(iterator)
    assert [[ids(batch), loader.mask.tolist()] for batch in loader] == want[1]


def test_one_batch_epochs_differ_too() -> None:
    """Also where nobody asks for the end, as trainers that know the length do not."""
    loader = make({"n": 16, "remainder": "pad", "batch": 8}, distributed=(0, 2))
    assert len(loader) == 1
    seen = [tuple(ids(next(iter(loader)))) for _ in range(3)]
    assert len(set(seen)) == 3


def test_set_epoch_is_the_same_as_coming_to_it() -> None:
    want = on_ranks({"n": 20, "remainder": "exact"}, 2, 4)[1]
    loader = make({"n": 20, "remainder": "exact"}, distributed=(1, 2))
    loader.set_epoch(3)
    assert [[ids(batch), loader.mask.tolist()] for batch in loader] == want[3]


@pytest.mark.parametrize("policy", POLICIES)
def test_plan_tells_what_each_rank_gets(policy: str) -> None:
    for n in (5, 12, 13, 15, 17):
        case = {"n": n, "remainder": policy, "batch": 2}
        found = on_ranks(case, 3, 2)
        loader = make(case, distributed=(1, 3))
        for epoch, rank in itertools.product(range(2), range(3)):
            steps = found[rank][epoch]
            assert [loader.plan(epoch, step, rank) for step in range(len(steps))] == [got for got, _ in steps]
            with pytest.raises(IndexError, match=f"no batch at step {len(steps)}"):
                loader.plan(epoch, len(steps), rank)


# -- who is who


def test_torchruns_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"n": 20, "remainder": "pad"}
    want = on_ranks(case, 3)
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        loader = make(case)
        assert [[ids(batch), loader.mask.tolist()] for batch in loader] == want[rank][0]
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert [ids(b) for b in make(case)] == [ids(b) for b in make(case, distributed=(0, 1))]


def test_none_looks_at_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert [ids(b) for b in DataLoader(Ids(5), batch_size=2)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("distributed", ["auto", (0, 2)])
def test_two_of_them_are_an_error(distributed: Any) -> None:
    sampler = stock.distributed.DistributedSampler(Ids(9), 2, 0)
    with pytest.raises(ValueError, match="together with DistributedSampler"):
        DataLoader(Ids(9), sampler=sampler, distributed=distributed)
    with pytest.raises(ValueError, match="together with DistributedSampler"):
        DataLoader(Ids(9), batch_sampler=stock.BatchSampler(sampler, 2, False), distributed=distributed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"distributed": (2, 2)}, r"rank should be in the interval \[0, 1\]"),
        ({"distributed": (-1, 2)}, r"rank should be in the interval \[0, 1\]"),
        ({"distributed": 3}, "distributed option should be"),
        ({"distributed": (0, 2.0)}, "distributed option should be"),
        ({"distributed": "automatic"}, "distributed option should be"),
        ({"distributed": (0, 2), "remainder": "keep"}, "remainder option should be one of"),
        ({"distributed": (0, 2), "remainder": "exact", "batch_size": None}, "with batch_size=None there are no batches"),
    ],
)
def test_what_cannot_be_meant(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(Ids(9), **arguments)


def test_the_loader_without_torch_shares_out_alike() -> None:
    for policy, shuffle in itertools.product(POLICIES, (False, True)):
        for n in (1, 11, 12, 13, 16):
            loaders = [
                feedrate.DataLoader(Ids(n), 2, shuffle, distributed=(r, 3), remainder=policy, seed=4)  # type: ignore[arg-type]
                for r in range(3)
            ]
            whole = feedrate.DataLoader(Ids(n), 1, shuffle, distributed=(0, 1), seed=4)
            for _ in range(2):
                found = [[[np.asarray(b).tolist(), loader.mask.tolist()] for b in loader] for loader in loaders]
                order = [int(i) for b in whole for i in b]
                check_epoch({"batch": 2, "remainder": policy}, found, order)
                assert [len(loader) for loader in loaders] == [len(f) for f in found]


def test_a_generator_decides_the_order_on_ranks_in_both_loaders() -> None:
    """It is drawn from at each epoch, and a state holds it."""

    def loaders(kind: Any, seed: int) -> list[Any]:
        generator = (lambda: torch.Generator().manual_seed(seed)) if kind is DataLoader else lambda: np.random.default_rng(seed)
        return [kind(Ids(12), 2, shuffle=True, generator=generator(), distributed=(r, 2)) for r in range(2)]

    def epoch(loader: Any) -> list[Any]:
        return [np.asarray(batch).tolist() for batch in loader]

    for kind in (DataLoader, feedrate.DataLoader):
        orders = []
        for seed in (7, 8):
            ranks = loaders(kind, seed)
            planned = [[ranks[0].plan(e, step) for step in range(3)] for e in range(2)]
            whole = [[epoch(rank) for _ in range(3)] for rank in ranks]
            assert whole[0][:2] == planned, "planning moves no generator"
            for e in range(3):
                assert sorted(i for rank in whole for batch in rank[e] for i in batch) == list(range(12))
            orders += whole[0]
            loader, resumed = loaders(kind, seed)[1], loaders(kind, seed)[1]
            epoch(loader)
            next(it := iter(loader))
            del it
            resumed.load_state_dict(loader.state_dict())
            assert [epoch(resumed), epoch(resumed)] == [whole[1][1][1:], whole[1][2]]
            with pytest.raises(feedrate.ResumeError, match="made with a generator"):
                kind(Ids(12), 2, shuffle=True, distributed=(1, 2)).load_state_dict(loader.state_dict())
        assert len({str(order) for order in orders}) == 6
    same = [epoch(feedrate.DataLoader(Ids(12), 2, shuffle=True, generator=7, distributed=(0, 1), seed=s)) for s in (1, 2)]
    assert same[0] == same[1]


# -- cases that have hurt others


@pytest.mark.filterwarnings("ignore:This epoch had no batch")
def test_dist_03_len_is_what_is_delivered() -> None:
    for n, batch, workers, drop_last, policy in itertools.product((1, 7, 8, 9), (1, 4, 8), (0, 1), (False, True), POLICIES):
        loader = make(
            {"n": n, "batch": batch, "drop_last": drop_last, "remainder": policy, "num_workers": workers}, distributed=(1, 2)
        )
        assert len(loader) == sum(1 for _ in loader)


def test_dist_07_tiny_data_on_many_ranks() -> None:
    for n, policy in itertools.product((1, 2, 3), POLICIES):
        found = [f[0] for f in on_ranks({"n": n, "order": "plain", "batch": 1, "remainder": policy}, 9)]
        assert {len(steps) for steps in found} == {0 if policy == "drop" else 1}
        if policy == "pad":
            assert sorted(steps[0][0][0] for steps in found) == sorted(k % n for k in range(9))
    with pytest.raises(ValueError, match="num_samples=0") as caught:
        make({"n": 0}, distributed=(0, 9))
    assert any("no samples" in note for note in caught.value.__notes__)
    assert list(make({"n": 0, "order": "plain"}, distributed=(0, 9))) == []


@pytest.mark.parametrize("policy", ["pad", "exact"])
def test_dist_08_evaluation_counts_each_sample_once(policy: str) -> None:
    for n, world in itertools.product((97, 99, 100, 128, 512), (1, 2, 3)):
        found = on_ranks({"n": n, "batch": 16, "order": "plain", "remainder": policy}, world)
        rows = [i for f in found for got, mask in f[0] for i, own in zip(got, mask, strict=True) if own]
        assert sorted(rows) == list(range(n))


@pytest.mark.parametrize("policy", ["pad", "drop"])
def test_dist_09_no_batch_is_empty(policy: str) -> None:
    found = on_ranks({"n": 10, "batch": 1, "order": "plain", "remainder": policy}, 4)
    assert {len(f[0]) for f in found} == {3 if policy == "pad" else 2}
    assert all(len(got) == 1 for f in found for got, _ in f[0])
    cut = on_ranks({"n": 10, "batch": 1, "order": "plain", "remainder": policy, "drop_last": True}, 4)
    assert {len(f[0]) for f in cut} == {2}


def test_dist_09_an_empty_batch_has_the_form_of_the_others() -> None:
    class Pairs(Ids):
        def __getitem__(self, i: int) -> Any:
            return {"x": torch.full((2, 3), float(i)), "y": i, "name": str(i)}

    for workers in (0, 2):
        loader = DataLoader(Pairs(3), batch_size=2, distributed=(3, 4), remainder="exact", num_workers=workers)
        (batch,) = list(loader)
        assert batch["x"].shape == (0, 2, 3) and batch["x"].dtype == torch.float32
        assert batch["y"].shape == (0,) and batch["y"].dtype == torch.int64
        assert batch["name"] == []
        assert loader.mask.shape == (0,) and loader.mask.dtype == np.bool_


# -- elastic, in every small case


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_cut_goes_on_on_other_ranks(order: str, policy: str) -> None:
    """Saved by each rank of one topology, taken up by another with the same global batch or another one."""
    for n in (23, 24, 25, 29):
        orders = order_of({"n": n, "order": order, "remainder": policy}, 2)
        for (world, batch), stop in itertools.product(((2, 3), (3, 2)), range(1, 5)):
            span = world * batch
            states = []
            for rank in range(world):
                loader = make({"n": n, "batch": batch, "order": order, "remainder": policy}, distributed=(rank, world))
                for step, _ in enumerate(loader, 1):
                    if step == stop:
                        break
                else:
                    break
                states.append(json.loads(json.dumps(loader.state_dict())))
            if len(states) < world or stop * span > n:
                continue
            for (other, size), state in zip(((6, 1), (1, 6), (2, 5), (4, 1)), itertools.cycle(states), strict=False):
                case = {"n": n, "batch": size, "order": order, "remainder": policy}
                after = []
                for rank in range(other):
                    loader = make(case, distributed=(rank, other))
                    loader.load_state_dict(state)
                    after.append([[[ids(b), loader.mask.tolist()] for b in loader] for _ in range(2)])
                check_epoch(case, [a[0] for a in after], orders[0], start=stop * span)
                check_epoch(case, [a[1] for a in after], orders[1])


def test_mine_is_no_order_that_is_known() -> None:
    """So that the cases above are of both kinds: drawn by us, and iterated."""
    with pytest.raises(ValueError, match="Mine"):
        DataLoader(Ids(9), sampler=Mine(9), distributed=(0, 2)).plan(0, 0)
