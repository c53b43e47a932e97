"""Iterables of users as sources: read whole whatever worker reads them, also those that shard themselves or keep their place."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import feedrate
from feedrate import DataLoader, PipelineError, from_items, from_iterable
from feedrate.torch import DataLoader as TorchLoader

POOLS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 3, "multiprocessing_context": "spawn"},
    {"num_workers": 2, "workers": "thread"},
]


class Shards(torch.utils.data.IterableDataset[int]):
    """As torch's documentation has it."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for x in range(first, 48, step):
            assert (torch.utils.data.get_worker_info() is None) == (info is None)
            yield x


class Ours(feedrate.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        info = feedrate.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, 48, step)


class Keeps(Shards):
    """One pass at a time."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        while self.at < 48:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def who(x: int) -> tuple[int, bool]:
    """Steps are told of their worker, as always."""
    return x, feedrate.get_worker_info() is not None


@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("source", [Shards, Ours, Keeps])
def test_nothing_is_lost(source: Any, pool: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for loader_class in (DataLoader, TorchLoader):
            loader = loader_class(from_iterable(source()).map(who), batch_size=4, collate_fn=list, **pool)
            for _ in range(2):
                got = [item for batch in loader for item in batch]
                assert sorted(x for x, _ in got) == list(range(48))
                assert {told for _, told in got} == {bool(pool)}


def test_one_that_keeps_its_place_is_read_by_one_lane() -> None:
    assert [x for batch in DataLoader(from_iterable(Keeps()), batch_size=4) for x in batch.tolist()] == list(range(48))
    several = from_iterable(Keeps()).map(who).lanes(rows=4)
    with pytest.raises(ValueError, match="a Keeps keeps its place in itself .* 4 rows of 1 units .* use lanes"):
        iter(DataLoader(several, batch_size=4))


def test_a_cap_ends_what_has_no_good_element() -> None:
    calls: list[int] = []

    def broken(x: int) -> int:
        calls.append(x)
        raise ValueError("a bug")

    loader = DataLoader(from_items(range(100_000)).map(broken).on_error("skip", at_most=10), batch_size=8)
    with pytest.raises(PipelineError, match=r"1011 bad elements in one unit .* on_error\(\) allows at_most=10 .*a bug"):
        next(iter(loader))
    assert len(calls) == 1011


def test_no_warning_where_the_epoch_had_batches() -> None:
    def bad(x: int) -> int:
        if x % 10 == 3:
            raise ValueError(x)
        return x

    def make() -> Any:
        return DataLoader(from_items(range(100)).map(bad).on_error("skip"), batch_size=5, seed=1)

    first = make()
    iterator = iter(first)
    for _ in range(18):
        next(iterator)
    again = make()
    again.load_state_dict(first.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(again) == []


def test_messages_have_pythons_names() -> None:
    with pytest.raises(ValueError, match=r'shuffle\("all"\) behind iterable: .* use shuffle\("shards"\) and shuffle\(n\)'):
        str(from_iterable([1]).shuffle("all"))
    with pytest.raises(TypeError, match=r"found <class 'torch.Tensor'>: use feedrate.torch.DataLoader"):
        next(iter(DataLoader([torch.ones(2)])))


def test_whole_numbers_beside_others() -> None:
    for batch in (*from_items([10, 9.5]).batch(2), *from_items([9.5, 10]).batch(2)):
        assert batch.dtype == float and sorted(batch.tolist()) == [9.5, 10.0]


FORKS = """
import threading, torch
from feedrate.torch import DataLoader
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([i])
found = []
def run(): found.append(sum(len(batch) for batch in DataLoader(Rows(), batch_size=4, num_workers=1)))
for _ in range(8):
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
assert found == [8] * 24, found
"""


def test_workers_are_forked_in_several_threads_at_once() -> None:
    """NumPy loads its generators when they are first asked for: a child would wait for ever for the lock of that import."""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=120)
