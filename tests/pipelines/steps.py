"""Functions of the pipelines in these tests: at the top level, so that workers can be given them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import feedrate
from feedrate import Pipeline


def two_of_three(x: int) -> bool:
    return x % 3 != 1


def thrice(x: int) -> int:
    return 3 * x


def as_record(x: int) -> dict[str, Any]:
    return {"x": x, "name": f"n{x}"}


def noisy(x: int) -> int:
    return x * 1000 + feedrate.rng().python.randrange(1000)


def noisy_globals(x: int) -> tuple[int, int, int]:
    return x, random.randrange(1 << 30), int(np.random.randint(1 << 30))


def few(x: int) -> list[int]:
    return [x * 10 + i for i in range(x % 3)]


def by_residue(x: int) -> int:
    return x % 5


def tokens(x: int) -> dict[str, Any]:
    return {"ids": np.full(x % 11, x, np.int32)}


def tokens_of(sequence: dict[str, Any]) -> list[int]:
    found: list[int] = sequence["ids"].tolist()
    return found


def ragged(x: int) -> dict[str, Any]:
    return {"x": x, "row": np.arange(x % 4, dtype=np.float32)}


def first(pair: list[int]) -> int:
    return pair[0]


def total(batch: Any) -> int:
    return int(np.asarray(batch).sum())


def summed(batch: list[int]) -> int:
    return sum(batch)


def bad_sevens(x: int) -> int:
    if x % 7 == 3:
        raise ValueError(f"{x} is bad")
    return x


class Again:
    """An iterable that can be iterated again."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        return iter(range(self.n))


def residue(x: int) -> int:
    return x % 7


def parity(x: int) -> str:
    return "odd" if x % 2 else "even"


def ahead(pipeline: Pipeline) -> Pipeline:
    """Prefetched, where that is allowed: not behind a fork."""
    try:
        return pipeline.prefetch(3)
    except ValueError:
        return pipeline


def forked(pipeline: Pipeline) -> Pipeline:
    left, right = pipeline.fork(2, buffer=2)
    return left.interleave(right.filter(two_of_three), block=2)


def routed(pipeline: Pipeline) -> Pipeline:
    odd, even = pipeline.route(parity, ["odd", "even"], buffer=3)
    return even.concat(odd)


#: Each step, behind numbers and giving numbers.
STEPS: dict[str, Any] = {
    "map": lambda p: p.map(thrice),
    "noisy map": lambda p: p.map(noisy),
    "filter": lambda p: p.filter(two_of_three),
    "flat_map": lambda p: p.flat_map(few),
    "shuffle": lambda p: p.shuffle(9),
    "batch": lambda p: p.batch(3).map(total),
    "batch with a function": lambda p: p.batch(3, collate=summed),
    "rebatch": lambda p: p.batch(3).rebatch(2).map(total),
    "sort_within": lambda p: p.sort_within(4, by_residue),
    "take": lambda p: p.take(17),
    "skip": lambda p: p.skip(5),
    "repeat": lambda p: p.repeat(2),
    "concat": lambda p: p.concat(feedrate.from_items(range(7))),
    "interleave": lambda p: p.interleave(feedrate.from_iterable(Again(7)), block=2),
    "mix": lambda p: feedrate.mix(p, feedrate.from_items(range(9)), weights={0: [2, 1], 6: [1, 3]}),
    "mix again": lambda p: feedrate.mix(p, feedrate.from_items(range(5)), weights=[3, 1], replacement=True),
    "zip": lambda p: p.zip(feedrate.from_items(range(30))).map(first),
    "cache": lambda p: p.map(noisy).cache(),
    "prefetch": ahead,
    "bucket_batch": lambda p: p.bucket_batch(residue, [2, 5], [2, 3, 1]).map(total),
    "budget_batch": lambda p: p.budget_batch(9, residue, max_samples=4).map(total),
    "fork": forked,
    "route": routed,
    "pack": lambda p: p.map(tokens).pack(12, open_sequences=3, fit="best").flat_map(tokens_of),
}


def numbers(n: int, *, indexed: bool) -> Pipeline:
    return feedrate.from_items(range(n)) if indexed else feedrate.from_iterable(Again(n))


def x_of(row: dict[str, int]) -> int:
    return row["x"]
