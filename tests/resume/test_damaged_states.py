"""States that something was done to: an error that says where, and nothing else."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import feedrate
from feedrate import PipelineError, ResumeError
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours


class Sampler(torch.utils.data.Sampler[int]):
    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


class Stream(torch.utils.data.IterableDataset[int]):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 20:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = int(state["at"])


def pipeline() -> Any:
    return feedrate.from_items(range(60)).map(abs).shuffle(8).filter(lambda x: x % 5)


LOADERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: DataLoader(range(20), batch_size=3),
    "random": lambda: DataLoader(range(20), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(1)),
    "process-wide": lambda: DataLoader(range(20), batch_size=3, shuffle=True),
    "sampler": lambda: DataLoader(range(20), batch_size=3, sampler=Sampler()),
    "stream": lambda: DataLoader(Stream(), batch_size=3),
    "numpy": lambda: feedrate.DataLoader(range(20), batch_size=3, shuffle=True, seed=3),
    "ranks": lambda: feedrate.DataLoader(range(20), batch_size=3, shuffle=True, seed=3, distributed=(0, 2)),
    "pipeline": lambda: DataLoader(pipeline(), batch_size=3, seed=1),
}
GONE = object()
VALUES = [None, "x", -1, 1 << 70, 3.5, [], {}, [1, "a"], {"a": 1}, GONE]
#: What users' own functions gave, and what the pipeline's steps say, which the steps check.
THEIRS = {"dataset", "cursor"}


def paths(part: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if before:
        yield before
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, item in inner:
        if name not in THEIRS:
            yield from paths(item, (*before, name))


def damaged(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    state = copy.deepcopy(state)
    *way, last = path
    part = state
    for name in way:
        part = part[name]
    if value is GONE:
        del part[last]
    else:
        part[last] = copy.deepcopy(value)
    return state


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("steps", [3, None], ids=["in an epoch", "between epochs"])
def test_each_part_of_a_state(name: str, steps: int | None) -> None:
    loader = LOADERS[name]()
    for _ in zip(range(99 if steps is None else steps), loader, strict=False):
        pass
    state = loader.state_dict()
    draw = random.Random(name)
    refused = 0
    for path in paths(state):
        for value in draw.sample(VALUES, 5):
            again = LOADERS[name]()
            try:
                again.load_state_dict(damaged(state, path, value))
                assert len(list(again)) < 60
            except ResumeError as error:
                refused += 1
                assert str(error)
            except Exception as error:
                error.add_note(f"{path} was {'taken out' if value is GONE else value!r}")
                raise
    assert refused > 40


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("plan", "samples"), "9", r"state\['plan'\]\['samples'\] is '9', where a count belongs"),
        (("epoch",), -1, r"state\['epoch'\] is -1, where a count belongs"),
        (("plan", "kind"), GONE, r"state\['plan'\] has no 'kind'"),
        (("generators", "generator", "packed"), "AAAA", "the state of the loader's torch generator cannot be read"),
    ],
)
def test_the_error_says_where(path: tuple[Any, ...], value: Any, text: str) -> None:
    loader = LOADERS["random"]()
    next(iter(loader))
    again = LOADERS["random"]()
    with pytest.raises(ResumeError, match=text):
        again.load_state_dict(damaged(loader.state_dict(), path, value))
        iter(again)


def test_lanes_and_their_cursors() -> None:
    loader = LOADERS["pipeline"]()
    next(iter(loader))
    state = loader.state_dict()
    again = LOADERS["pipeline"]()
    with pytest.raises(ResumeError, match=r"\['lanes'\]\['0'\]\['units'\] is 9, where at most the plan's 'turns', 1, belongs"):
        again.load_state_dict(damaged(state, ("plan", "lanes", "0", "units"), 9))
    with pytest.raises(ResumeError, match=r"\['since'\] is 2, where at most its 'units', 1, belongs"):
        again.load_state_dict(damaged(state, ("plan", "lanes", "0", "since"), 2))
    again.load_state_dict(damaged(state, ("plan", "lanes", "0", "cursor"), {"input": 3}))
    with pytest.raises(PipelineError, match="the state does not fit"):
        list(again)


def test_an_iterator_that_lost_its_state() -> None:
    loader = LOADERS["stream"]()
    next(iter(loader))
    state = damaged(loader.state_dict(), ("workers", "each", 0, "state", "iterator"), {"at": 3})
    again = LOADERS["stream"]()
    again.load_state_dict(state)
    with pytest.raises(ResumeError, match="a generator has no state_dict"):
        list(again)
