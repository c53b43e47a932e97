"""Padded batches: what fills them up, lists as well as arrays, and what Python's own classes of containers become."""

from __future__ import annotations

import collections
import enum
import random
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import feedrate
from feedrate import PipelineError, from_items


def ways(pipeline: Any, size: int, padding: Any) -> Iterator[Any]:
    """All steps that pad."""
    yield pipeline.padded_batch(size, padding=padding)
    yield pipeline.bucket_batch(lambda _: 0, [], size, pad=True, padding=padding)
    yield pipeline.budget_batch(size, lambda _: 1, pad=True, padding=padding)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float16", "float32", "float64", "bool"])
@pytest.mark.parametrize("fill", [0, 1, -100, 0.5])
def test_the_same_as_pad_sequence(dtype: str, fill: float) -> None:
    r = random.Random(f"{dtype} {fill}")
    rows = [np.asarray([r.randrange(5) for _ in range(r.randrange(6))]).astype(dtype) for _ in range(12)]
    fits = {"bool": fill in (0, 1), "uint8": fill in (0, 1)}.get(dtype, fill != 0.5 or dtype.startswith("float"))
    for pipeline in ways(from_items([{"x": row} for row in rows]), 4, fill):
        if not fits:
            with pytest.raises(PipelineError, match=rf"field `x`: padding {fill} does not fit into {dtype}"):
                list(pipeline)
            continue
        for k, batch in enumerate(pipeline):
            part = rows[4 * k : 4 * k + 4]
            expected = pad_sequence([torch.from_numpy(row) for row in part], batch_first=True, padding_value=fill)
            assert (batch["x"].dtype, batch["x"].tolist()) == (np.dtype(dtype), expected.tolist())
            assert batch["x_length"].tolist() == [len(row) for row in part]


def test_padding_by_field() -> None:
    rows = from_items([{"ids": [1] * n, "labels": np.ones((n, 2), np.int32), "mask": [True] * n, "name": str(n)} for n in (1, 2)])
    for pipeline in ways(rows, 2, {"ids": 50_256, "labels": np.int64(-100)}):
        (batch,) = pipeline
        assert batch["ids"].tolist() == [[1, 50_256], [1, 1]]
        assert batch["labels"].tolist() == [[[1, 1], [-100, -100]], [[1, 1], [1, 1]]]
        assert batch["mask"].tolist() == [[True, False], [True, True]]
        assert batch["name"] == ["1", "2"]
    for pipeline in ways(rows, 2, {"idz": 1}):
        with pytest.raises(PipelineError, match='padding for the field `idz`, and the elements have .*"ids"'):
            list(pipeline)
    for given in ("0", None, {"ids": "0"}, [0]):
        with pytest.raises(TypeError, match="takes a number as padding, or a dict of numbers by field, but got"):
            rows.padded_batch(2, padding=given)
    with pytest.raises(ValueError, match="64 bits"):
        rows.padded_batch(2, padding=2**63)
    with pytest.raises(TypeError, match="takes names"):
        rows.padded_batch(2, padding={1: 2})
    # Of definitions that were there before the argument, the names stay, and so do states and files of caches.
    assert str(rows.padded_batch(2)).splitlines()[-1] == "padded_batch(2, drop_last=false)"
    others = {rows.padded_batch(2, padding=p).fingerprint for p in (0, 1, 1.5, {"ids": 1}, {"labels": 1})}
    assert len(others) == 5


@pytest.mark.parametrize(
    ("lists", "dtype"),
    [
        ([[1, 2], [3]], "int64"),
        ([[], [3]], "int64"),
        ([[], []], "int64"),
        ([[1], [2.5, 3]], "float64"),
        ([[True], [False, True]], "bool"),
        ([[], np.asarray([1, 2], np.int16)], "int16"),
        # Of equal lengths by chance: the type of a batch does not depend on it.
        ([[1, 2], [3, 4]], "int64"),
        ([[True, 2], [0.5]], "float64"),
        ([[np.int16(1), np.int16(2)], [np.int16(3)]], "int16"),
        ([[np.int16(1), 2], [3]], "int64"),
        ([[np.float32(1), 2], [3]], "float64"),
        ([np.asarray([1, 2], np.float32), [3.5]], "float32"),
        ([np.asarray([1, 2], np.float32), [3]], "float32"),
    ],
)
def test_lists_of_numbers_are_arrays(lists: Any, dtype: str) -> None:
    longest = max(len(numbers) for numbers in lists)
    for rows in (from_items([{"x": numbers} for numbers in lists]), from_items(lists)):
        (batch,) = rows.padded_batch(2)
        found = batch["x" if "x" in batch else "data"]
        assert (found.dtype, found.shape) == (np.dtype(dtype), (2, longest))
        assert [row[: len(numbers)].tolist() for row, numbers in zip(found, lists, strict=True)] == [list(n) for n in lists]


def test_lists_of_lists() -> None:
    rows = from_items([{"x": [[1, 2], [3, 4]]}, {"x": [[5, 6]]}, {"x": []}])
    (batch,) = rows.padded_batch(3, padding=-1)
    assert batch["x"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [-1, -1]], [[-1, -1], [-1, -1]]]
    assert batch["x_length"].tolist() == [2, 1, 0]
    with pytest.raises(PipelineError, match=r"field `x`: the lists in one element are of the lengths \[2\] and, at 1, \[1\]"):
        list(from_items([{"x": [[1, 2], [3]]}]).padded_batch(1))
    with pytest.raises(
        PipelineError, match=r"field `words`: at \$, sample 1 of the batch: it has 1 entries, and the first one has 2"
    ):
        list(from_items([{"words": ["a", "b"]}, {"words": ["c"]}]).padded_batch(2))
    with pytest.raises(PipelineError, match=r"field `x`: .* cannot be padded to"):
        list(from_items([{"x": [1, 2]}, {"x": [[3]]}]).padded_batch(2))


def test_padding_means_that_it_is_padded() -> None:
    rows = from_items([{"x": np.ones(n, np.float16)} for n in (1, 2)])
    for pipeline in (
        rows.bucket_batch(lambda _: 0, [], 2, padding=0.1),
        rows.budget_batch(2, lambda _: 1, padding=np.float16(0.1)),
    ):
        assert next(iter(pipeline))["x"].tolist() == [[1, np.float16(0.1)], [1, 1]]
    (batch,) = rows.padded_batch(2, padding=-np.inf)
    assert batch["x"].tolist() == [[1, -np.inf], [1, 1]]
    (flag,) = from_items([{"x": [True]}, {"x": []}]).padded_batch(2, padding=np.bool_(True))
    assert flag["x"].tolist() == [[True], [True]]
    for numbers in (1e300, 70_000):
        with pytest.raises(PipelineError, match="does not fit into float16"):
            list(rows.padded_batch(2, padding=numbers))
    r = random.Random(3)
    for _ in range(200):
        number = r.choice([1.0, -1.0]) * 2 ** r.uniform(-26, 15.9)
        (batch,) = rows.padded_batch(2, padding=number)
        assert batch["x"][0, 1] == np.float16(number), number


@pytest.mark.parametrize("element", ["text", 1, [["nested"]], [1, "mixed"], {1: 2}])
def test_what_cannot_be_padded(element: Any) -> None:
    with pytest.raises(PipelineError, match="padding needs tensors, lists of numbers, or maps of such, and an element is"):
        list(from_items([element]).padded_batch(1))


class Colour(enum.IntEnum):
    RED = 3


class Text(str): ...


class Row(collections.UserDict[str, Any]):
    """As the tokenizers of transformers give."""


class Pair(NamedTuple):
    a: int
    b: float


def defaults(pairs: dict[str, Any]) -> Any:
    return collections.defaultdict(int, pairs)


@pytest.mark.parametrize("make", [dict, collections.OrderedDict, defaults, Row, types.MappingProxyType])
def test_mappings_of_all_classes(make: Callable[[Any], Any]) -> None:
    """In the steps that look into them; ``map`` gets what the function before it gave."""
    rows = from_items(range(1, 5)).map(lambda i: make({"ids": [i] * i, "n": i}))
    assert all(type(row) is type(make({})) for row in rows)
    assert [row["n"] for row in rows.select("n")] == [1, 2, 3, 4]
    assert [batch["n"].tolist() for batch in rows.select("n").batch(2)] == [[1, 2], [3, 4]]
    assert next(iter(rows.padded_batch(2)))["ids"].tolist() == [[1, 0], [2, 2]]
    assert next(iter(rows.pack(3, fields=["ids"])))["ids"].tolist() == [1, 2, 2]
    assert [row["n"] for row in rows.without("ids").rename(n="n")] == [1, 2, 3, 4]


def test_other_classes_of_python() -> None:
    rows = from_items([{"e": Colour.RED, "t": Text("a"), "s": np.str_("b"), "y": np.bytes_(b"c")}] * 2)
    (batch,) = rows.batch(2)
    assert {name: list(column) for name, column in batch.items()} == {
        "e": [3, 3],
        "t": ["a"] * 2,
        "s": ["b"] * 2,
        "y": [b"c"] * 2,
    }
    assert batch["e"].dtype == np.int64


@pytest.mark.parametrize("element", [Pair(1, 2.0), frozenset([1]), object()])
def test_what_cannot_be_a_batch_says_its_class(element: Any) -> None:
    name = type(element).__qualname__
    with pytest.raises(PipelineError, match=rf"a Python object of the type {name}, which is not known here: make numbers"):
        list(from_items([{"x": element}]).batch(1))
    with pytest.raises(PipelineError, match=rf"the element is a Python object of the type {name}, and not a map"):
        list(from_items([element]).select("x"))
    # A function may make of it what it wants.
    assert list(from_items([element]).batch(1, collate=list)) == [[element]]
    assert feedrate.from_items([element])[0] is element
