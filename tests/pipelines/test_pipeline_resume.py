"""Every step, and random pipelines of up to six: stopped at every batch, taken up with other workers, and on other ranks."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import steps

import feedrate
from feedrate import Coordinator, DataLoader, Pipeline
from feedrate.testing import assert_resumable


def in_threads(pipeline: Pipeline, batch_size: int | None = 4) -> Any:
    def make(num_workers: int = 0) -> DataLoader:
        return DataLoader(pipeline, batch_size=batch_size, seed=5, num_workers=num_workers, workers="thread")

    return make


@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "stream"])
@pytest.mark.parametrize("step", steps.STEPS)
def test_each_step_is_exact_at_every_cut(step: str, indexed: bool) -> None:
    pipeline = steps.STEPS[step](steps.numbers(23, indexed=indexed))
    assert_resumable(in_threads(pipeline), workers=(0, 2))


def drawn(seed: int) -> Pipeline:
    rng = random.Random(seed)
    pipeline = steps.numbers(rng.randrange(5, 40), indexed=rng.random() < 0.5)
    if rng.random() < 0.5:
        pipeline = pipeline.shuffle("shards")
    for name in rng.choices(sorted(steps.STEPS), k=rng.randrange(1, 7)):
        pipeline = steps.STEPS[name](pipeline)
        # What has grown too long for a test is cut, which is a step as well.
        length = pipeline.length()
        if length is not None and length > 60:
            pipeline = pipeline.take(60)
    if next(iter(pipeline), None) is None:
        # Nothing is left of it, and so there is nothing to compare.
        pipeline = pipeline.concat(feedrate.from_items(range(9)))
    return pipeline.lanes(rows=rng.choice([1, 2, 3, 8]))


@pytest.mark.parametrize("seed", range(40))
def test_random_pipelines_are_exact_at_every_cut(seed: int) -> None:
    pipeline = drawn(seed)
    report = assert_resumable(
        in_threads(pipeline, random.Random(seed).choice([None, 1, 3, 5])), workers=(0, 3), epochs=2, steps=25
    )
    assert report.ok, pipeline


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 400))
def test_many_random_pipelines(seed: int) -> None:
    test_random_pipelines_are_exact_at_every_cut(seed)


@pytest.mark.parametrize("step", ["filter", "shuffle", "pack", "mix"])
def test_processes_give_the_same_and_are_taken_up(step: str) -> None:
    pipeline = steps.STEPS[step](steps.numbers(40, indexed=True)).map(steps.noisy)
    inline = [batch.tolist() for batch in DataLoader(pipeline, batch_size=3, seed=5)]
    loader = DataLoader(pipeline, batch_size=3, seed=5, num_workers=2, workers="process", multiprocessing_context="fork")
    batches = iter(loader)
    begun = [next(batches).tolist() for _ in range(5)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert begun + [batch.tolist() for batch in batches] == inline
    later = DataLoader(pipeline, batch_size=3, seed=5)
    later.load_state_dict(state)
    assert [batch.tolist() for batch in later] == inline[5:]


def test_random_generators_of_the_process_are_keyed_too() -> None:
    """As random steps of a pipeline are by nature: the same in any pool, and the user's own generators are left alone."""
    pipeline = steps.numbers(12, indexed=False).map(steps.noisy_globals).lanes(rows=2)
    found = []
    for options in ({}, {"num_workers": 2, "workers": "process", "multiprocessing_context": "fork"}):
        random.seed(3)
        loader = DataLoader(pipeline, batch_size=None, seed=5, seeding="sample", **options)
        found.append([tuple(map(int, sample)) for sample in loader])
        if not options:
            after = random.random()
            random.seed(3)
            assert random.random() == after
    assert found[0] == found[1]


# -- ranks


class Run:
    """One rank, on a thread."""

    def __init__(self, rank: int, world: int, store: Any, make: Any, state: dict[str, Any] | None, steps: int | None) -> None:
        self.batches: list[list[int]] = []
        self.masks: list[Any] = []
        self.state: dict[str, Any] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(rank, world, store, make, state, steps))
        self._thread.start()

    def _run(self, rank: int, world: int, store: Any, make: Any, state: Any, count: int | None) -> None:
        try:
            loader = make((rank, world), Coordinator(store, timeout=60, name="t") if world > 1 else None)
            if state is not None:
                loader.load_state_dict(state)
            batches: Iterator[Any] = iter(loader)
            while count is None or len(self.batches) < count:
                batch = next(batches, None)
                if batch is None:
                    break
                mask = loader.mask
                own = mask is None or bool(mask.all())
                self.batches.append([int(x) for x in batch] if own else [])
            self.state = json.loads(json.dumps(loader.state_dict())) if count is not None else {}
        except BaseException as error:
            self._error = error

    def join(self) -> Run:
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self


def run_ranks(
    pipeline: Pipeline, world: int, *, remainder: Any = "exact", state: Any = None, steps: int | None = None
) -> list[Run]:
    """The global batch is 8 whatever the number of ranks."""
    dist = pytest.importorskip("torch.distributed")
    store = dist.HashStore()

    def make(distributed: tuple[int, int], coordinator: Any) -> DataLoader:
        return DataLoader(
            pipeline, batch_size=8 // world, seed=5, distributed=distributed, remainder=remainder, coordinator=coordinator
        )

    runs = [Run(rank, world, store, make, state, steps) for rank in range(world)]
    return [run.join() for run in runs]


def global_batches(runs: list[Run]) -> list[list[int]]:
    return [[x for run in runs for x in run.batches[step]] for step in range(len(runs[0].batches))]


@pytest.mark.parametrize("step", ["filter", "shuffle", "flat_map", "mix", "take"])
def test_ranks_share_all_in_equal_steps(step: str) -> None:
    pipeline = steps.STEPS[step](steps.numbers(61, indexed=True)).lanes(rows=3, units=4)
    alone = global_batches(run_ranks(pipeline, 1))
    for world in (2, 4):
        runs = run_ranks(pipeline, world)
        assert len({len(run.batches) for run in runs}) == 1
        together = global_batches(runs)
        assert sorted(x for batch in together for x in batch) == sorted(x for batch in alone for x in batch)
        # Until the first lane ends, the global batches are the same.
        full = list(itertools.takewhile(lambda batch: len(batch) == 8, alone))
        assert together[: len(full)] == full


@pytest.mark.parametrize("step", ["filter", "shuffle", "mix"])
@pytest.mark.parametrize(("saved", "taken"), [(1, 2), (2, 1), (2, 4), (4, 2)])
def test_a_state_goes_on_with_another_number_of_ranks(step: str, saved: int, taken: int) -> None:
    pipeline = steps.STEPS[step](steps.numbers(90, indexed=False)).lanes(rows=2, units=4)
    whole = global_batches(run_ranks(pipeline, 1))
    for cut in (1, 3, 4):
        begun = run_ranks(pipeline, saved, steps=cut)
        assert global_batches(begun) == whole[:cut]
        # Any rank's state will do: what it does not know of other lanes is read again.
        for run in (begun[0], begun[-1]):
            rest = global_batches(run_ranks(pipeline, taken, state=run.state))
            assert sorted(x for batch in rest for x in batch) == sorted(x for batch in whole[cut:] for x in batch)
            assert rest[:2] == whole[cut : cut + 2]


@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
def test_equal_steps_after_a_filter(remainder: str) -> None:
    pipeline = steps.numbers(50, indexed=False).filter(steps.two_of_three).lanes(rows=2, units=2)
    runs = run_ranks(pipeline, 2, remainder=remainder)
    assert len({len(run.batches) for run in runs}) == 1
    found = [x for batch in global_batches(runs) for x in batch]
    wanted = [x for x in range(50) if steps.two_of_three(x)]
    assert len(found) == len(set(found))
    if remainder == "drop":
        assert set(found) <= set(wanted)
    else:
        assert sorted(found) == wanted


@pytest.mark.parametrize("middle", [2, 4])
def test_a_state_of_a_resumed_run_does_not_bring_back_where_other_ranks_were(middle: int) -> None:
    """The first state knows all lanes; those of the other ranks have gone on since."""
    pipeline = steps.numbers(120, indexed=False).filter(steps.two_of_three).lanes(rows=2, units=4)
    whole = global_batches(run_ranks(pipeline, 1))
    first = run_ranks(pipeline, 1, steps=2)[0].state
    for run in run_ranks(pipeline, middle, state=first, steps=3):
        rest = run_ranks(pipeline, 1, state=run.state)[0].batches
        assert sorted(x for batch in rest for x in batch) == sorted(x for batch in whole[5:] for x in batch)
        assert rest[:2] == whole[5:7]


def test_a_state_of_another_rank_is_exact_or_refused_once_lanes_have_run_out(tmp_path: Any) -> None:
    """The second lane has one unit only, so that from the second round on rank 1 passes over turns that rank 0 has."""
    number = 0
    for part, size in enumerate([12, 6, 12, 12, 12, 12, 12, 12]):
        (tmp_path / f"{part}.jsonl").write_text("".join(f'{{"x": {number + k}}}\n' for k in range(size)))
        number += size
    pipeline = feedrate.open(str(tmp_path / "*.jsonl")).map(steps.x_of).lanes(rows=4, units=2)
    outcomes = []
    for cut in (1, 3, 4, 6, 9, 12):
        runs = run_ranks(pipeline, 2, steps=cut)
        seen = [x for run in runs for batch in run.batches for x in batch]
        for run in runs:
            try:
                rest = run_ranks(pipeline, 1, state=run.state)[0].batches
            except feedrate.ResumeError as error:
                assert "load the state that this rank has saved itself" in str(error)
                outcomes.append((cut, "refused"))
                continue
            assert sorted([*seen, *(x for batch in rest for x in batch)]) == list(range(number)), cut
            outcomes.append((cut, "exact"))
    assert outcomes[:2] == [(1, "exact")] * 2
    assert outcomes[-2:] == [(12, "refused")] * 2


# -- what is refused


def test_another_pipeline_is_refused_with_both() -> None:
    loader = DataLoader(steps.numbers(9, indexed=False).filter(steps.two_of_three), batch_size=2)
    next(iter(loader))
    state = loader.state_dict()
    other = DataLoader(steps.numbers(9, indexed=False).shuffle(3), batch_size=2)
    with pytest.raises(feedrate.ResumeError, match=r"fingerprint [0-9a-f]{16}, this one has [0-9a-f]{16}") as refused:
        other.load_state_dict(state)
    lines = str(refused.value).splitlines()
    assert "- filter(two_of_three)" in lines and "+ shuffle(3)" in lines
    with pytest.raises(feedrate.ResumeError, match=r"\n\+ shuffle\(3\)\n"):
        iter(other.dataset).load_state_dict(iter(loader.dataset).state_dict())
    with pytest.raises(feedrate.ResumeError, match="samples=2, this loader has 3"):
        DataLoader(loader.dataset, batch_size=3).load_state_dict(state)
    with pytest.raises(feedrate.ResumeError, match=r"rows=8, this loader has 2: build the pipeline with lanes\(rows=8\)"):
        DataLoader(loader.dataset.lanes(rows=2), batch_size=2).load_state_dict(state)


def test_states_hold_little_of_a_source_of_many_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i}.jsonl") for i in range(200)]
    for path in paths:
        Path(path).write_text("1\n")
    state = DataLoader(feedrate.open(paths), batch_size=2).state_dict()
    (step,) = state["plan"]["facts"]["steps"]
    assert step.startswith("jsonl(") and step.endswith("…") and len(step) < 400


def test_shapes_that_do_not_divide_are_refused_with_the_legal_ones() -> None:
    pipeline = steps.numbers(9, indexed=False).lanes(units=4)
    with pytest.raises(ValueError, match=r"4 units a step, and 3 ranks.*one of \[1, 2, 4\]"):
        DataLoader(pipeline, batch_size=12, distributed=(0, 3), coordinator=Coordinator(object())).state_dict()
    with pytest.raises(ValueError, match="a batch of 6 cannot be made of 4 equal units"):
        DataLoader(pipeline, batch_size=6).state_dict()


def test_a_window_of_100_000_has_a_state_under_2_mb() -> None:
    loader = DataLoader(steps.numbers(120_000, indexed=False).shuffle(100_000), batch_size=10)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 2_000_000


@pytest.mark.parametrize("kill_at", [1, 4])
def test_a_worker_that_is_killed_costs_a_retry(kill_at: int) -> None:
    """Its lanes are read again up to where its tasks were."""
    pipeline = steps.numbers(60, indexed=False).filter(steps.two_of_three).shuffle(12).map(steps.noisy)
    wanted = [batch.tolist() for batch in DataLoader(pipeline, batch_size=4, seed=5)]
    loader = DataLoader(pipeline, batch_size=4, seed=5, num_workers=2, workers="process", multiprocessing_context="fork")
    batches: Any = iter(loader)
    found = []
    for batch in batches:
        found.append(batch.tolist())
        if len(found) == kill_at:
            os.kill(batches._workers[kill_at % 2].pid, signal.SIGKILL)
    assert found == wanted


def test_a_replaced_worker_goes_on_where_the_other_was(tmp_path: Path) -> None:
    """It does not read its lanes from their starts: what is done again is what was on its way."""
    log = tmp_path / "log"

    def logged(x: int) -> int:
        with log.open("a") as file:
            file.write(f"{x}\n")
        return x

    source = feedrate.open(lines_of(tmp_path, 400)).map(lambda row: logged(row["x"])).lanes(rows=2)
    loader = DataLoader(source, batch_size=4, seed=5, num_workers=2, workers="process", multiprocessing_context="fork")
    batches: Any = iter(loader)
    found = []
    for number, batch in enumerate(batches):
        found += batch.tolist()
        if number == 80:
            os.kill(batches._workers[0].pid, signal.SIGKILL)
    assert sorted(found) == list(range(400))
    again = len(log.read_text().split()) - 400
    assert again <= 4 * 2 * (2 + 1), f"{again} elements were made again: a lane has about 160 behind it"


def lines_of(folder: Path, count: int) -> str:
    path = folder / "lines.jsonl"
    path.write_text("".join(json.dumps({"x": x}) + "\n" for x in range(count)))
    return str(path)


def test_persistent_workers_begin_a_new_epoch() -> None:
    pipeline = steps.numbers(30, indexed=False).shuffle(8)
    loader = DataLoader(
        pipeline, batch_size=4, seed=5, num_workers=2, workers="process", multiprocessing_context="fork", persistent_workers=True
    )
    epochs = [[x for batch in loader for x in batch.tolist()] for _ in range(3)]
    again = DataLoader(pipeline, batch_size=4, seed=5)
    assert epochs == [[x for batch in again for x in batch.tolist()] for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
