"""Ranks whose streams end at different times agree on the number of steps, while they run."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter, UserDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from rank_launch import launch

from feedrate._coordinator import AgreedSource, Coordinator, RankMissing
from feedrate._errors import Error
from feedrate._fetch import END, Stated
from feedrate._ranks import REMAINDER, Ranks

pytestmark = pytest.mark.ours

HERE = Path(__file__).parent
Pair = namedtuple("Pair", "a b")


class Memory:
    """A store in memory, that counts what is asked of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, str] = {}
        self.calls: Counter[tuple[str, str]] = Counter()

    def _count(self, what: str) -> None:
        self.calls[what, threading.current_thread().name] += 1

    def set(self, key: str, value: str) -> None:
        with self.lock:
            self._count("set")
            self.values[key] = value

    def get(self, key: str) -> str:
        with self.lock:
            self._count("get")
            return self.values[key]

    def check(self, keys: list[str]) -> bool:
        with self.lock:
            self._count("check")
            return all(key in self.values for key in keys)


class Deleting(Memory):
    """One that can delete keys, and notices a read of a key that is gone."""

    def delete_key(self, key: str) -> bool:
        with self.lock:
            return self.values.pop(key, None) is not None


class Lockstep:
    """A collective in each step: it breaks when a rank does not come."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world)

    def step(self) -> None:
        self.barrier.wait(timeout=60)


def on_ranks(world: int, work: Callable[[int], Any]) -> list[Any]:
    """Runs ``work(rank)`` on a thread for each rank; gives what they return, or the exception."""
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank{rank}") for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    return results


def batches(rank: int, count: int, jitter: random.Random | None = None) -> Iterator[np.ndarray[Any, Any]]:
    for step in range(count):
        if jitter is not None and jitter.random() < 0.3:
            time.sleep(jitter.random() * 0.003)
        yield np.array([rank, step])


def run_pass(
    rank: int, coordinator: Coordinator, ranks: Ranks, stream: Iterator[Any], lockstep: Lockstep | None
) -> list[tuple[Any, Any]]:
    steps = coordinator.steps(stream, ranks)
    got = []
    for batch in steps:
        got.append((batch.tolist(), steps.mask.tolist()))
        if lockstep is not None:
            lockstep.step()
    assert list(steps) == [], "an iterator that has ended gives more"
    return got


def wanted(rank: int, counts: tuple[int, ...], remainder: str) -> list[tuple[Any, Any]]:
    own = [([rank, step], [True, True]) for step in range(counts[rank])]
    if remainder == "drop":
        return own[: min(counts)]
    filler = ([], []) if remainder == "exact" else ([rank, counts[rank] - 1], [False, False])
    return own + [filler] * (max(counts) - counts[rank])


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("remainder", REMAINDER)
def test_every_small_case(remainder: str, ahead: int, lockstep: bool) -> None:
    """All counts of up to three batches on three ranks, as the passes of one coordinator each."""
    store = Deleting()
    cases = [c for c in itertools.product(range(4), repeat=3) if remainder == "drop" or all(c) or not any(c)]
    random.Random(ahead).shuffle(cases)
    steps = Lockstep(3)

    def work(rank: int) -> list[Any]:
        coordinator = Coordinator(store, ahead=ahead, name="x")
        jitter = random.Random(rank + 10 * ahead)
        ranks = Ranks(rank, 3, remainder)
        return [
            run_pass(rank, coordinator, ranks, batches(rank, counts[rank], jitter), steps if lockstep else None)
            for counts in cases
        ]

    for rank, got in enumerate(on_ranks(3, work)):
        assert not isinstance(got, Exception), got
        for counts, found in zip(cases, got, strict=True):
            assert found == wanted(rank, counts, remainder), counts
    # What nobody reads any more is gone, up to the last passes.
    assert len(store.values) <= 12


@pytest.mark.parametrize("remainder", REMAINDER)
def test_one_rank_needs_no_store(remainder: str) -> None:
    got = run_pass(0, Coordinator(), Ranks(0, 1, remainder), batches(0, 4), None)
    assert got == wanted(0, (4,), remainder)


@pytest.mark.parametrize("remainder", ["pad", "exact"])
def test_a_rank_with_nothing_is_named_on_all(remainder: str) -> None:
    store = Memory()

    def work(rank: int) -> Any:
        return run_pass(rank, Coordinator(store, name="x"), Ranks(rank, 3, remainder), batches(rank, [3, 0, 0][rank]), None)

    found = on_ranks(3, work)
    assert [type(e) for e in found] == [Error] * 3
    assert all("ranks 1, 2 of 3 had no batch" in str(e) and "drop" in str(e) for e in found)


@pytest.mark.parametrize("remainder", REMAINDER)
@pytest.mark.parametrize("dies_at", [0, 3])
def test_a_rank_that_dies_is_named(remainder: str, dies_at: int) -> None:
    store = Memory()
    counts = {"drop": [9, 9, 9], "pad": [4, 9, 4], "exact": [4, 9, 4]}[remainder]

    def work(rank: int) -> Any:
        coordinator = Coordinator(store, timeout=0.5, ahead=0, name="x")
        steps = coordinator.steps(batches(rank, counts[rank]), Ranks(rank, 3, remainder))
        got = 0
        if rank == 1 and dies_at == 0:
            return got
        for _ in steps:
            got += 1
            if rank == 1 and got == dies_at:
                return got
        return got

    found = on_ranks(3, work)
    assert found[1] == dies_at
    for rank in (0, 2):
        error = found[rank]
        assert isinstance(error, RankMissing) and isinstance(error, TimeoutError) and isinstance(error, Error), error
        assert error.ranks == [1]
        assert "rank 1 of 3 did not answer for 0.5 s" in str(error)
        assert ("has not begun this pass" if dies_at == 0 else "rank 1 has had 3 batches") in str(error)


def test_the_number_of_missing_ranks_is_no_limit() -> None:
    coordinator = Coordinator(Memory(), timeout=0.2, name="x")
    with pytest.raises(RankMissing, match="ranks 1, 2, 3 of 4 did not answer") as caught:
        next(coordinator.steps(batches(0, 3), Ranks(0, 4, "drop")))
    assert caught.value.ranks == [1, 2, 3]


def test_the_end_waits_on_rank_0_only_and_says_so() -> None:
    """Rank 0 holds the store for those that still ask; one that never comes to the end costs the deadline and a warning."""
    store = Memory()
    first_is_through = threading.Event()

    def work(rank: int) -> Any:
        steps = Coordinator(store, timeout=0.3, name="x").steps(batches(rank, 1 + rank), Ranks(rank, 2, "drop"))
        got = [next(steps).tolist()]
        if rank == 1:
            assert first_is_through.wait(60)
            # Rank 1 has no more to hear than was said, and waits for nobody.
            return got + list(steps)
        with pytest.warns(RuntimeWarning, match="rank 1 of 2 did not answer .* the end of pass 0"):
            got += list(steps)
        first_is_through.set()
        return got

    assert on_ranks(2, work) == [[[0, 0]], [[1, 0]]]


def test_lockstep_ranks_hear_of_a_step_before_they_come_to_it() -> None:
    """News travels ahead of need: with batches at hand, asking is no more than one look in every other step."""
    store = Memory()
    steps = Lockstep(2)

    def work(rank: int) -> int:
        return len(run_pass(rank, Coordinator(store, ahead=8, name="x"), Ranks(rank, 2, "drop"), batches(rank, 200), steps))

    assert on_ranks(2, work) == [200, 200]
    # Each rank speaks at every fourth step, after a few at the start, and at the end.
    assert store.calls["set", "rank1"] <= 200 / 4 + 10
    # A look at the other may come before it has spoken; each such is followed by a pause, so this is a generous bound.
    assert store.calls["get", "rank1"] <= 200


@pytest.mark.parametrize("remainder", ["pad", "exact"])
def test_a_rank_whose_stream_goes_on_does_not_ask(remainder: str) -> None:
    store = Memory()
    steps = Lockstep(2)
    asked: list[int] = []

    def work(rank: int) -> int:
        coordinator = Coordinator(store, name="x")
        iterator = coordinator.steps(batches(rank, 50 if rank == 0 else 10), Ranks(rank, 2, remainder))
        for step, _ in enumerate(iterator):
            if rank == 0 and step in (0, 49):
                asked.append(store.calls["get", "rank0"])
            steps.step()
        return step + 1

    assert on_ranks(2, work) == [50, 50]
    assert asked[0] > 0, "the first step is where all meet"
    assert asked[0] == asked[1]


def test_what_was_taken_ahead_and_not_agreed_on_is_not_delivered() -> None:
    taken: list[int] = []

    def stream(rank: int, count: int) -> Iterator[Any]:
        for batch in batches(rank, count):
            if rank == 0:
                taken.append(int(batch[1]))
            yield batch

    store = Memory()

    def work(rank: int) -> Any:
        return run_pass(rank, Coordinator(store, ahead=2, name="x"), Ranks(rank, 2, "drop"), stream(rank, [100, 5][rank]), None)

    found = on_ranks(2, work)
    assert [len(f) for f in found] == [5, 5]
    # Beyond what it hands over a rank holds two batches.
    assert len(taken) <= 5 + 1 + 2


def test_an_exception_comes_in_the_place_of_its_batch() -> None:
    class Broken:
        def __init__(self) -> None:
            self.at = 0

        def next(self, timeout: float | None) -> Any:
            self.at += 1
            if self.at == 3:
                raise ValueError("sample 3")
            return END if self.at > 5 else np.array([self.at])

        def mark(self) -> tuple[int, int]:
            return self.at - 1, 0

    source = AgreedSource(Broken(), Coordinator(ahead=3).begin(Ranks(0, 1, "drop")))
    assert source.mask() is None
    assert source.next(None).tolist() == [1] and source.mark() == (0, 0)
    assert source.next(None).tolist() == [2] and source.mark() == (1, 0)
    with pytest.raises(ValueError, match="sample 3"):
        source.next(None)
    assert source.mark() == (2, 0)
    assert source.next(None).tolist() == [4] and source.mark() == (3, 0)
    assert source.next(None).tolist() == [5] and source.mark() == (4, 0)
    assert source.next(None) is END and source.mark() is None
    assert source.next(None) is END
    assert source.step == 4 and source.filled == 0


def test_an_exception_of_one_rank_is_no_step_of_the_others() -> None:
    store = Memory()
    steps = Lockstep(2)

    class Source:
        def __init__(self, rank: int) -> None:
            self.rank, self.at = rank, 0

        def next(self, timeout: float | None) -> Any:
            self.at += 1
            if self.rank == 0 and self.at == 2:
                raise ValueError("bad")
            return END if self.at > 6 else np.array([self.at])

        def mark(self) -> None:
            return None

    def work(rank: int) -> list[int]:
        source = AgreedSource(Source(rank), Coordinator(store, name="x").begin(Ranks(rank, 2, "drop")))
        got = []
        while True:
            try:
                batch = source.next(None)
            except ValueError:
                continue
            if batch is END:
                return got
            got.append(int(batch[0]))
            steps.step()

    assert on_ranks(2, work) == [[1, 3, 4, 5, 6], [1, 2, 3, 4, 5]]


FORMS: dict[str, tuple[Callable[[], Any], int]] = {
    "tensor": (lambda: torch.arange(6).reshape(3, 2), 3),
    "array": (lambda: np.arange(4.0), 4),
    "dict": (lambda: {"x": torch.ones(3, 2), "y": ["a", "b", "c"]}, 3),
    "strings first": (lambda: {"y": ["a", "b"], "x": torch.ones(2)}, 2),
    "mapping": (lambda: UserDict(x=torch.ones(3, 2)), 3),
    "list": (lambda: [torch.ones(5, 2), torch.zeros(5)], 5),
    "named": (lambda: Pair(torch.ones(2), [torch.zeros(2, 3), torch.zeros(2)]), 2),
    "tuple": (lambda: (torch.ones(2), np.ones(2)), 2),
    "numbers": (lambda: [1, 2, 3], 3),
}


def lengths(value: Any) -> list[int]:
    if hasattr(value, "shape"):
        return [value.shape[0]]
    if isinstance(value, (dict, UserDict)):
        return [n for v in value.values() for n in lengths(v)]
    if value and not isinstance(value[0], (str, int)):
        return [n for v in value for n in lengths(v)]
    return [len(value)]


@pytest.mark.parametrize("remainder", ["pad", "exact"])
@pytest.mark.parametrize("form", FORMS)
def test_filling_batches_have_the_form_of_the_last_one(form: str, remainder: str) -> None:
    make, rows = FORMS[form]
    store = Memory()

    def work(rank: int) -> Any:
        steps = Coordinator(store, name="x").steps((make() for _ in range([4, 2][rank])), Ranks(rank, 2, remainder))
        got = []
        for batch in steps:
            got.append((type(batch), lengths(batch), steps.mask.tolist()))
            # As training loops do: what is taken out of one batch must not be missing in the next.
            if isinstance(batch, (dict, UserDict)):
                batch.pop("x")
            elif isinstance(batch, list):
                batch.clear()
        return got

    full, short = on_ranks(2, work)
    kind = type(make())
    sizes = lengths(make())
    assert full == [(kind, sizes, [True] * rows)] * 4
    filler = (kind, sizes, [False] * rows) if remainder == "pad" else (kind, [0] * len(sizes), [])
    assert short == [(kind, sizes, [True] * rows)] * 2 + [filler] * 2


def test_a_batch_that_cannot_be_emptied_is_refused_at_the_first_step() -> None:
    store = Memory()

    def work(rank: int) -> Any:
        return list(Coordinator(store, name="x").steps(({"n": 1} for _ in range(3)), Ranks(rank, 2, "exact")))

    for error in on_ranks(2, work):
        assert isinstance(error, Error) and "cannot be cut" in str(error)


def test_a_batch_with_a_state_is_filled_up_without_it() -> None:
    store = Memory()

    class Source:
        def __init__(self, rank: int) -> None:
            self.left = 3 - rank

        def next(self, timeout: float | None) -> Any:
            self.left -= 1
            return END if self.left < 0 else Stated(np.arange(2), b"state")

        def mark(self) -> tuple[int, int]:
            return 0, 0

    def work(rank: int) -> Any:
        source = AgreedSource(Source(rank), Coordinator(store, name="x").begin(Ranks(rank, 2, "exact")))
        got = []
        while (batch := source.next(None)) is not END:
            got.append((type(batch), source.mark(), source.mask().tolist(), source.filled))
        return got

    own = (Stated, (0, 0), [True, True], 0)
    assert on_ranks(2, work) == [[own] * 3, [own] * 2 + [(np.ndarray, None, [], 1)]]


def test_samples_without_batches_have_a_mask_of_one() -> None:
    store = Memory()

    class Source:
        def __init__(self, rank: int) -> None:
            self.left = 3 - rank

        def next(self, timeout: float | None) -> Any:
            self.left -= 1
            return END if self.left < 0 else {"text": "abc"}

        def mark(self) -> None:
            return None

    def work(rank: int) -> Any:
        agreement = Coordinator(store, name="x").begin(Ranks(rank, 2, "pad"))
        source = AgreedSource(Source(rank), agreement, batched=False)
        got = []
        while (sample := source.next(None)) is not END:
            got.append((sample, source.mask().tolist()))
        return got

    own = ({"text": "abc"}, [True])
    assert on_ranks(2, work) == [[own] * 3, [own] * 2 + [({"text": "abc"}, [False])]]


def test_ranks_that_were_told_different_things_are_an_error() -> None:
    store = Memory()

    def work(rank: int) -> Any:
        coordinator = Coordinator(store, timeout=5, name="x")
        return list(coordinator.steps(batches(rank, 3), Ranks(rank, 2, ["pad", "exact"][rank])))

    errors = on_ranks(2, work)
    assert any(isinstance(e, Error) and "remainder='pad'" in str(e) and "remainder='exact'" in str(e) for e in errors), errors
    assert all(isinstance(e, Error) for e in errors), errors


def test_passes_left_early_do_not_disturb_later_ones() -> None:
    store = Deleting()
    steps = Lockstep(2)

    def work(rank: int) -> list[int]:
        coordinator = Coordinator(store, name="x")
        ranks = Ranks(rank, 2, "drop")
        got = []
        for number in range(20):
            count = 0
            for _ in coordinator.steps(batches(rank, 5 + (rank + number) % 3), ranks):
                count += 1
                steps.step()
                if number % 2 and count == 2:
                    break
            got.append(count)
        return got

    full = [min(5 + n % 3, 5 + (n + 1) % 3) for n in range(20)]
    assert on_ranks(2, work) == [[2 if n % 2 else full[n] for n in range(20)]] * 2


def test_coordinators_of_several_loaders_share_a_store() -> None:
    store = Memory()

    def work(rank: int) -> list[int]:
        train, test = Coordinator(store, name="train"), Coordinator(store, name="test")
        ranks = Ranks(rank, 2, "drop")
        outer = train.steps(batches(rank, 3 + rank), ranks)
        return [len(list(test.steps(batches(rank, 2 - rank), ranks))) for _ in outer]

    assert on_ranks(2, work) == [[1, 1, 1]] * 2


def test_coordinators_without_names_are_numbered_as_they_are_made() -> None:
    store = Memory()
    first, second = Coordinator(store), Coordinator(store)
    assert first.name != second.name
    # A name is never taken for a number.
    assert Coordinator(store, name=first.name).name != first.name


def test_a_store_that_is_gone_says_so() -> None:
    class Gone(Memory):
        def check(self, keys: list[str]) -> bool:
            raise ConnectionError("reset by peer")

    with pytest.raises(Error, match="cannot be reached .*reset by peer.*rank 0") as caught:
        next(Coordinator(Gone(), name="x").steps(batches(0, 3), Ranks(0, 2, "drop")))
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_arguments() -> None:
    with pytest.raises(ValueError, match="timeout=0"):
        Coordinator(timeout=0)
    with pytest.raises(ValueError, match="timeout=nan"):
        Coordinator(timeout=float("nan"))
    for bad in (-1, True, 1.5):
        with pytest.raises(ValueError, match="ahead="):
            Coordinator(ahead=bad)  # type: ignore[arg-type]
    assert not torch.distributed.is_initialized()
    with pytest.raises(ValueError, match="init_process_group"):
        Coordinator().steps(batches(0, 1), Ranks(0, 2, "drop"))


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_torchs_stores(kind: str, tmp_path: Path) -> None:
    """Each of torch's stores, on three ranks; one that another rank holds as well."""
    port: list[int] = []
    ready = threading.Event()
    shared = torch.distributed.HashStore()

    def store(rank: int) -> Any:
        if kind == "hash":
            return torch.distributed.PrefixStore("mine", shared)
        if kind == "file":
            return torch.distributed.FileStore(str(tmp_path / "store"), 3)
        if rank == 0:
            server = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            port.append(server.port)
            ready.set()
            return server
        assert ready.wait(60)
        return torch.distributed.TCPStore("127.0.0.1", port[0], None, False, wait_for_workers=False)

    cases = [(3, 5, 4), (1, 1, 1), (4, 2, 2)]

    def work(rank: int) -> list[Any]:
        mine = store(rank)
        return [
            run_pass(
                rank,
                Coordinator(mine, name=f"{remainder} {counts}"),
                Ranks(rank, 3, remainder),
                batches(rank, counts[rank]),
                None,
            )
            for remainder in REMAINDER
            for counts in cases
        ]

    for rank, got in enumerate(on_ranks(3, work)):
        assert got == [wanted(rank, counts, remainder) for remainder in REMAINDER for counts in cases]


@pytest.mark.watchdog(240)
@pytest.mark.parametrize("world", [2, 4])
def test_in_processes_with_a_collective_in_each_step(world: int, tmp_path: Path) -> None:
    """With the store of the process group, whose own collectives go on in every step."""
    cases = [[3 + (r * 5 + k) % 4 for r in range(world)] for k in range(5)]
    plan = [{"remainder": remainder, "counts": counts} for remainder in REMAINDER for counts in cases]
    found = launch(HERE / "coordinator_run.py", world, {"passes": plan}, tmp_path)
    for rank in range(world):
        assert found[rank] == [[list(step) for step in wanted(rank, tuple(p["counts"]), str(p["remainder"]))] for p in plan]


@pytest.mark.watchdog(240)
def test_in_processes_a_killed_rank_is_named(tmp_path: Path) -> None:
    victim = 1
    plan = {"passes": [{"remainder": "drop", "counts": [20, 20, 20]}], "victim": victim, "at": 3, "timeout": 2.0, "plain": True}
    found = launch(HERE / "coordinator_run.py", 3, plan, tmp_path, killed={victim})
    assert found[victim] is None
    for rank in {0, 1, 2} - {victim}:
        assert found[rank]["error"] == "RankMissing"
        assert found[rank]["ranks"] == [victim]
        assert f"rank {victim} of 3" in found[rank]["message"]
        assert json.loads(json.dumps(found[rank]))["steps"] >= 3
