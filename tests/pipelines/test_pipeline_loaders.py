"""What a loader has to do for pipelines, and used to leave undone without a word: found by trying it as a new user would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedrate
import feedrate.image
from feedrate import DataLoader, ResumeError
from feedrate.torch import DataLoader as DropIn


def drawn(x: int) -> float:
    return x + float(feedrate.rng().numpy.random())


def bad(x: int) -> int:
    return 1 // (x - 2)


def values(loader: Any, epochs: int = 2) -> list[list[float]]:
    return [[float(v) for batch in loader for v in np.asarray(batch)] for _ in range(epochs)]


@pytest.mark.parametrize("Class", [DataLoader, DropIn])
def test_elements_by_number_are_drawn_anew_in_each_epoch_and_by_the_seed(Class: Any) -> None:
    pipeline = feedrate.from_items(range(6)).map(drawn)
    assert pipeline.indexed
    once = values(Class(pipeline, 2, seed=5))
    assert once[0] != once[1]
    assert once != values(Class(pipeline, 2, seed=6))
    for more in (
        {"num_workers": 2},
        {"num_workers": 2, "workers": "thread"},
        {"num_workers": 2, "persistent_workers": True},
        {"seeding": "sample"},
        {"num_workers": 2, "items_in_flight": 2},
    ):
        assert values(Class(pipeline, 2, seed=5, **more)) == once, more
    # Without a seed one is drawn, for all epochs of a loader.
    assert values(Class(pipeline, 2)) != values(Class(pipeline, 2))
    # A seed of the pipeline's own goes first.
    assert values(Class(pipeline.seed(9), 2, seed=5)) == values(Class(pipeline.seed(9), 2, seed=6))


class Wrapped:
    """A user's dataset over a pipeline."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def __len__(self) -> int:
        return len(self.pipeline)

    def __getitem__(self, index: int) -> Any:
        return self.pipeline[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_pipelines_in_subsets_and_concatenations_too(workers: int) -> None:
    pipeline = feedrate.from_items(range(6)).map(drawn)
    for dataset in (
        torch.utils.data.Subset(pipeline, [4, 1, 2]),
        torch.utils.data.ConcatDataset([pipeline, pipeline]),
        Wrapped(pipeline),
    ):  # type: ignore[arg-type, list-item]
        one, two = values(DropIn(dataset, 2, seed=5, num_workers=workers))
        assert one != two
        assert [int(v) for v in one] == [int(v) for v in two]
        assert values(DropIn(dataset, 2, seed=5, num_workers=2 - workers)) == [one, two]


@pytest.mark.parametrize("Class", [DataLoader, DropIn])
def test_a_state_holds_what_was_drawn_by(Class: Any) -> None:
    pipeline = feedrate.from_items(range(8)).map(drawn)
    for seed in (None, 5):
        loader = Class(pipeline, 2, seed=seed)
        batches = iter(loader)
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [np.asarray(batch).tolist() for batch in batches]
        again = Class(pipeline, 2, num_workers=2)
        again.load_state_dict(state)
        assert [np.asarray(batch).tolist() for batch in again] == rest
        assert values(again, 1) == values(loader, 1)
        if seed is not None:
            with pytest.raises(ResumeError, match="drew with seed=5, here it is seed=6"):
                Class(pipeline, 2, seed=6).load_state_dict(state)


@pytest.mark.parametrize("shuffled", ["all", "shards", 7])
def test_streams_refuse_another_seed(shuffled: Any) -> None:
    pipeline = feedrate.from_items(range(40)).shuffle(shuffled).filter(lambda x: True)
    loader = DataLoader(pipeline, 2, seed=1)
    batches = iter(loader)
    first = next(batches).tolist()
    state = loader.state_dict()
    for other in (DataLoader(pipeline, 2, seed=2), DataLoader(pipeline.seed(2), 2)):
        with pytest.raises(ResumeError, match="drew with seed=1, here it is seed=2"):
            other.load_state_dict(state)
    taken = DataLoader(pipeline, 2)
    taken.load_state_dict(state)
    assert sorted(first + [x for batch in taken for x in batch.tolist()]) == list(range(40))
    elements = iter(pipeline.seed(3))
    next(elements)
    with pytest.raises(ResumeError, match="seed=3, this pipeline has seed=4"):
        iter(pipeline.seed(4)).load_state_dict(elements.state_dict())


def test_bad_elements_by_number_are_left_out_by_loaders_too(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    pipeline = feedrate.from_items(range(7)).map(bad).on_error("skip", log=str(log))
    assert not pipeline.indexed
    for workers in (0, 2):
        loader = DataLoader(pipeline, 2, num_workers=workers)
        sizes = [len(batch) for batch in loader]
        assert sizes == [2, 2, 2]
        assert [entry["step"] for entry in loader.skipped] == ["map(bad)"]
    assert len(log.read_text().splitlines()) == 2
    assert feedrate.from_items(range(7)).map(bad).on_error("raise").indexed


def test_options_of_what_is_joined_hold_for_all() -> None:
    r = feedrate.from_items(range(5))
    skipping = r.map(bad).on_error("skip")
    assert len(list(r + skipping)) == len(list(skipping + r)) == 9
    assert len(list(feedrate.from_items(range(5)).zip(skipping))) == 4
    with pytest.raises(ValueError, match=r"seed=1 and seed=2: say it once"):
        r.seed(1) + r.seed(2)
    assert len(list(r.seed(1) + r.seed(1))) == 10


def test_torchs_own_loader_with_workers_is_refused() -> None:
    pipeline = feedrate.from_items(range(10)).filter(bool)
    assert len(list(torch.utils.data.DataLoader(pipeline, batch_size=None))) == 9  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"each element of a pipeline 2 times: use feedrate\.torch\.DataLoader"):
        list(torch.utils.data.DataLoader(pipeline, num_workers=2))  # type: ignore[arg-type]


def written(path: Path, first: int) -> None:
    path.write_text("".join(json.dumps({"x": x}) + "\n" for x in range(first, first + 10)))


def test_other_files_than_the_states_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "v-1.jsonl", 10)
    written(tmp_path / "v-2.jsonl", 20)

    def opened() -> feedrate.Pipeline:
        return feedrate.open(f"{tmp_path}/v-*.jsonl")

    loader = DataLoader(opened(), 2, seed=1)
    batches, elements = iter(loader), iter(opened())
    next(batches)
    next(elements)
    middle, inside = loader.state_dict(), elements.state_dict()
    list(batches)
    end = loader.state_dict()
    DataLoader(opened(), 2, seed=1).load_state_dict(middle)
    written(tmp_path / "v-0.jsonl", 0)
    with pytest.raises(ResumeError, match="saved over other data"):
        DataLoader(opened(), 2, seed=1).load_state_dict(middle)
    with pytest.raises(ResumeError, match="saved over other data"):
        iter(opened()).load_state_dict(inside)  # type: ignore[attr-defined]
    # The next epoch may have more.
    later = DataLoader(opened(), 2, seed=1)
    later.load_state_dict(end)
    assert sum(len(batch["x"]) for batch in later) == 30
    (tmp_path / "v-0.jsonl").unlink()
    with (tmp_path / "v-1.jsonl").open("a") as file:
        file.write('{"x": 9}\n')
    with pytest.raises(ResumeError, match="saved over other data"):
        DataLoader(opened(), 2, seed=1).load_state_dict(middle)


def test_generators_on_one_side_are_refused() -> None:
    def loader(own: bool) -> Any:
        return DropIn(range(12), 2, shuffle=True, generator=torch.Generator().manual_seed(1) if own else None)  # type: ignore[arg-type]

    for own in (True, False):
        made = loader(own)
        next(iter(made))
        loader(own).load_state_dict(made.state_dict())
        with pytest.raises(ResumeError, match=r"made with a generator.*made without"):
            loader(not own).load_state_dict(made.state_dict())


def test_ranks_with_another_seed_are_refused() -> None:
    def loader(seed: int) -> DataLoader:
        return DataLoader(range(20), 2, shuffle=True, distributed=(0, 1), seed=seed)

    made = loader(1)
    next(iter(made))
    with pytest.raises(ResumeError, match="seed = 1, this loader has seed = 2"):
        loader(2).load_state_dict(made.state_dict())


def test_the_seed_decides_the_order_of_the_loader_without_torch() -> None:
    def order(seed: int | None, generator: Any = None) -> list[list[int]]:
        loader = DataLoader(range(30), 30, shuffle=True, seed=seed, generator=generator)
        return [batch.tolist() for _ in range(2) for batch in loader]

    assert order(3) == order(3)
    assert order(3)[0] != order(3)[1]
    assert order(3) != order(4)
    assert order(None) != order(None)
    assert order(3, 7) == order(4, 7)


ENDLESS = """
import sys, feedrate
elements = iter(feedrate.open(sys.argv[1]).repeat().skip(10**12))
try:
    print("ready", flush=True)
    next(elements)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_is_seen_within_one_element(tmp_path: Path) -> None:
    written(tmp_path / "v.jsonl", 10)
    arguments = [sys.executable, "-c", ENDLESS, str(tmp_path / "v.jsonl")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            running.send_signal(signal.SIGINT)
            assert running.communicate(timeout=60)[0] == "interrupted\n"
        finally:
            running.kill()


def test_files_whose_names_are_no_text(tmp_path: Path) -> None:
    from PIL import Image

    name = tmp_path / "a" / b"latin\xff.png".decode("utf-8", "surrogateescape")
    name.parent.mkdir()
    Image.new("RGB", (4, 3), (1, 2, 3)).save(name)
    assert feedrate.image.Transform()(name).shape == (3, 4, 3)
    assert feedrate.ImageFolder(tmp_path)[0][0].shape == (3, 4, 3)


def test_a_folder_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    Image.new("RGB", (4, 3)).save(tmp_path / "photos" / "cat" / "1.png")
    assert feedrate.ImageFolder("~/photos").classes == ["cat"]


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_do_not_go_together_are_told_apart(workers: int) -> None:
    pipeline = feedrate.from_items([{"a": 1}, {"a": 2}, {"b": 3}]).filter(bool).lanes(rows=1)
    with pytest.raises(KeyError) as error:
        list(DataLoader(pipeline, 3, num_workers=workers))
    assert "present in sample 0, missing in sample 2" in "".join(getattr(error.value, "__notes__", [])) + str(error.value)


def test_mistakes_in_definitions_say_what_is_meant() -> None:
    r = feedrate.from_items(range(5))
    with pytest.raises(TypeError, match='all records are shuffled by "all"'):
        r.shuffle(True)
    with pytest.raises(TypeError, match="each an argument of its own"):
        feedrate.mix([r, r], weights=[1, 1])  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mix_says_what_it_has_drawn(workers: int) -> None:
    """Counted by the samples themselves; and what was to be expected, within the spread of a binomial."""
    a, b, c = (feedrate.from_items([(name, k) for k in range(5000)]) for name in "abc")
    inner = feedrate.mix(a, b, weights=[3, 1])
    pipeline = feedrate.mix(inner, c, weights=[1, 1]).take(4000).lanes(rows=1)
    loader = DataLoader(pipeline, batch_size=20, num_workers=workers, collate_fn=list)
    assert loader.mixed == []
    seen: list[str] = []
    for batch in loader:
        seen += [name for name, _ in batch]
        outer, within = loader.mixed
        assert outer.given == [seen.count("a") + seen.count("b"), seen.count("c")]
        assert within.given == [seen.count("a"), seen.count("b")]
        assert outer.expected == pytest.approx([len(seen) / 2] * 2)
    assert len(seen) == 4000
    assert outer.expected == pytest.approx([2000, 2000])
    assert within.expected == pytest.approx([0.75 * outer.given[0], 0.25 * outer.given[0]])
    for mix in (outer, within):
        total = sum(mix.given)
        for given, expected in zip(mix.given, mix.expected, strict=True):
            share = expected / total
            assert abs(given - expected) < 5 * (total * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mix_counts_over_lanes_to_the_end_and_on_after_a_resume(workers: int) -> None:
    def loader(ahead: int) -> Any:
        mixed = feedrate.mix(feedrate.from_items(range(700)), feedrate.from_items(range(333)), weights={0: [1, 1], 20: [5, 1]})
        return DataLoader(mixed.shuffle(50), batch_size=8, num_workers=ahead, collate_fn=list, seed=1)

    whole = loader(workers)
    for _ in whole:
        pass
    (end,) = whole.mixed
    assert end.given == [700, 333]
    assert sum(end.expected) == pytest.approx(1033)
    first = loader(2 - workers)
    epoch = iter(first)
    for _ in range(40):
        next(epoch)
    state = first.state_dict()
    resumed = loader(workers)
    resumed.load_state_dict(state)
    for _ in resumed:
        pass
    assert resumed.mixed == [end]
    elements = iter(feedrate.mix(feedrate.from_items(range(7)), feedrate.from_items(range(3)), weights=[1, 1]))
    assert len(list(elements)) == 10
    assert elements.mixed[0].given == [7, 3]
