"""Pairs stay pairs and batches batches, whatever fails, is interrupted, or lies in between."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import feedrate
from feedrate import Coordinator, DataLoader, from_items


def bad_at_3(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x


def pairs_of(pipeline: Any) -> list[tuple[int, ...]]:
    return [tuple(map(int, pair)) for pair in pipeline]


def test_a_bad_element_before_a_fork_is_one_of_all_branches() -> None:
    left, right = from_items(range(8)).map(bad_at_3).fork()
    pipeline = left.zip(right).on_error("skip")
    expected = [(x, x) for x in range(8) if x != 3]
    assert pairs_of(pipeline) == expected
    loader = DataLoader(pipeline, batch_size=2, collate_fn=list, num_workers=2)
    assert [tuple(map(int, pair)) for batch in loader for pair in batch] == expected
    assert [entry["reason"] for entry in loader.skipped] == ["ValueError: three"]


@pytest.mark.parametrize("cut", range(16))
def test_branches_resume_beside_a_bad_element(cut: int) -> None:
    """One branch is ahead of the other, and has heard of it: a state says so."""

    def make() -> Any:
        left, right = from_items(range(8)).map(bad_at_3).fork()
        return left.interleave(right.map(negative), block=3).on_error("skip")

    whole = [int(x) for x in make()]
    assert sorted(whole) == sorted([x for x in range(8) if x != 3] + [-x for x in range(8) if x != 3])
    begun = iter(make())
    before = [int(x) for x in itertools.islice(begun, cut)]
    state = json.loads(json.dumps(begun.state_dict()))
    again = iter(make())
    again.load_state_dict(state)
    assert before + [int(x) for x in again] == whole


def negative(x: int) -> int:
    return -x


def slow(x: int) -> int:
    time.sleep(0.3)
    return x


def test_an_interrupt_takes_no_element_out_of_a_pair() -> None:
    def hit(*_: Any) -> None:
        raise KeyboardInterrupt

    def make() -> Any:
        return from_items(range(8)).zip(from_items(range(8)).map(slow).prefetch(1))

    begun = iter(make())
    found = pairs_of([next(begun)])
    before = signal.signal(signal.SIGALRM, hit)
    states = []
    try:
        while len(found) < 4:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                found += pairs_of([next(begun)])
            except KeyboardInterrupt:
                states.append((len(found), json.loads(json.dumps(begun.state_dict()))))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert states
    assert found + pairs_of(begun) == [(x, x) for x in range(8)]
    count, state = states[0]
    again = iter(make())
    again.load_state_dict(state)
    assert pairs_of(again) == [(x, x) for x in range(count, 8)]


PAIRS = [(x, 10 * x) for x in range(1, 9)]


@pytest.mark.parametrize(
    "between",
    [
        lambda p: p.prefetch(1),
        lambda p: p + p,
        lambda p: p.interleave(p),
        lambda p: feedrate.mix(p, p, weights=[0.5, 0.5], replacement=False),
        lambda p: p.take(2) + p.skip(2),
        lambda p: p.fork()[0],
    ],
)
def test_batches_are_taken_apart_behind_steps_that_keep_them(between: Callable[[Any], Any]) -> None:
    """A batch of pairs is two columns; behind these steps the columns were given in place of the pairs."""
    found = pairs_of(between(from_items(PAIRS).batch(2)).unbatch())
    assert set(found) == set(PAIRS)
    assert len(found) % 8 == 0


def test_fields_of_batches_that_are_taken_apart() -> None:
    items = [{"box": [x, x + 1], "name": str(x)} for x in range(6)]
    found = [list(map(int, e["box"])) for e in from_items(items).batch(4).select("box").unbatch()]
    assert found == [[x, x + 1] for x in range(6)]


def test_ranks_take_batches_apart_as_one_does() -> None:
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.HashStore()
    pipeline = from_items(PAIRS * 4).batch(2).take(8).unbatch()

    def of(**options: Any) -> list[tuple[int, ...]]:
        loader = DataLoader(pipeline, batch_size=2, collate_fn=list, seed=1, **options)
        return [tuple(map(int, pair)) for batch in loader for pair in batch]

    def rank(number: int) -> list[tuple[int, ...]]:
        return of(distributed=(number, 2), coordinator=Coordinator(store, timeout=60, name="t"))

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(rank, range(2))
    assert sorted(first + second) == sorted(of())


def odd(x: int) -> int:
    return x % 2


def of_131(xs: list[int]) -> list[int]:
    if 131 in xs:
        raise ValueError("bad")
    return list(xs)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_last_batch_that_fails_counts(workers: int) -> None:
    """A later state gave the batch behind it a second time."""

    def make() -> Any:
        return DataLoader(from_items(range(160)).filter(odd), 4, collate_fn=of_131, num_workers=workers)

    loader = make()
    batches = iter(loader)
    found: list[Any] = []
    states = []
    while True:
        try:
            found.append(next(batches))
        except ValueError:
            found.append(None)
        except StopIteration:
            break
        states.append((len(found), loader.state_dict()))
    assert found.count(None) == 1
    for count, state in states:
        again = make()
        again.load_state_dict(json.loads(json.dumps(state)))
        rest: list[Any] = []
        batches = iter(again)
        while True:
            try:
                rest.append(next(batches))
            except ValueError:
                rest.append(None)
            except StopIteration:
                break
        assert found[:count] + rest == found, count


@pytest.mark.parametrize("join", ["concat", "interleave", "mix"])
def test_lists_that_nobody_collated_are_taken_apart_as_they_are(join: str) -> None:
    a = from_items([(0, 10), (1, 11)]).batch(2)
    b = from_items([(2, 12), (3, 13)]).batch(2, collate=list)
    joined = {"concat": a.concat(b), "interleave": a.interleave(b), "mix": feedrate.mix(a, b, weights=[0.5, 0.5])}[join]
    assert sorted(pairs_of(joined.unbatch())) == [(0, 10), (1, 11), (2, 12), (3, 13)]
