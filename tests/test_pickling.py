"""What may travel between worker and parent: any picklable batch, with tensors and arrays wherever they are."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
import types
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Stock

from helpers import START_METHODS
from helpers.canon import canon


class Colour(enum.Enum):
    RED = 1


class Slots:
    __slots__ = ("a", "t")

    def __init__(self, a: Any, t: torch.Tensor) -> None:
        self.a, self.t = a, t


class Custom:
    """Has its own reduce, with a tensor in its state."""

    def __init__(self, t: torch.Tensor) -> None:
        self.t = t
        self.cycle: Any = self

    def __reduce__(self) -> Any:
        return (Custom, (self.t,))


@dataclass
class Box:
    name: str
    value: Any


def batches(i: int) -> list[Any]:
    """Batches of many kinds, as functions of a number."""
    t = torch.arange(12.0).reshape(3, 4) + i
    big = torch.full((300, 300), float(i))
    return [
        None,
        i,
        10**40 + i,
        "text" * i,
        "x" * 100_000,
        b"\0" * 50_000,
        t,
        big,
        [t, t, t[1], t.t(), t[:, ::2]],
        {"deep": [({"er": (big, np.full((100, 100), i))},)]},
        np.arange(5),
        np.arange(60_000),
        np.float32(2.5),
        np.array(["a", None, 3], dtype=object),
        np.array(["abc", "d"]),
        np.zeros(3, dtype=[("a", "i4"), ("b", "f8", (2,))]),
        Box("b", t),
        Box("arr", np.ones((4, 4), order="F")),
        Colour.RED,
        datetime.datetime(2026, 1, 1, 12, i),
        decimal.Decimal("1.5"),
        fractions.Fraction(1, 3),
        pathlib.PurePosixPath("/a/b"),
        uuid.UUID(int=i),
        {1, 2, 3},
        frozenset("ab"),
        OrderedDict(a=t, b=1),
        deque([t, 1], maxlen=5),
        types.SimpleNamespace(a=t, b=[np.arange(3)]),
        torch.Size([1, 2]),
        torch.float16,
        torch.device("cpu"),
        t.to(torch.bfloat16),
        t.bool(),
        torch.tensor(3),
        torch.zeros(0, 5),
        torch.zeros(3, 0),
        torch.nn.Parameter(t.clone()),
        t.clone().requires_grad_(True),
        torch.eye(3).to_sparse(),
        torch.complex(t, t).conj(),
        t[:0],
        t.expand(2, 3, 4),
        torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        slice(1, 2),
        range(3),
        ValueError("a value, not raised"),
    ]


class Any_(torch.utils.data.Dataset[Any]):
    """Item k is the k-th kind of batch."""

    def __len__(self) -> int:
        return len(batches(3))

    def __getitem__(self, i: int) -> Any:
        return batches(3)[i]


def first(batch: Any) -> Any:
    return batch[0]


@pytest.mark.parametrize("method", START_METHODS)
def test_any_picklable_batch(method: str, Loader: Any) -> None:
    ds = Any_()
    stock = [canon(b) for b in Stock(ds, batch_size=1, collate_fn=first, num_workers=1)]
    ours = [canon(b) for b in Loader(ds, batch_size=1, collate_fn=first, num_workers=2, multiprocessing_context=method)]
    for k, (a, b) in enumerate(zip(stock, ours, strict=True)):
        assert a == b, (k, batches(3)[k])


class Objects(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        t = torch.full((1000,), float(i))
        shared = [1, 2]
        return {"slots": Slots(i, t), "custom": Custom(t), "t": t, "a": shared, "b": shared, "arr": t.numpy()}


def test_identity_and_aliases_inside_one_batch(Loader: Any) -> None:
    kept = list(Loader(Objects(), batch_size=None, num_workers=2, collate_fn=same))
    for i, b in enumerate(kept):
        assert b["a"] is b["b"]
        assert bool((b["slots"].t == i).all())
        assert b["custom"].cycle is b["custom"]
        b["t"].fill_(77)
        assert bool((b["slots"].t == 77).all())
        assert bool((b["custom"].t == 77).all())
    assert bool((kept[0]["t"] == 77).all())


def same(x: Any) -> Any:
    return x


class ManyTensors(torch.utils.data.Dataset[Any]):
    """More tensors than one small message can describe."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        return [torch.full((k % 50 + 1,), float(i)) for k in range(1500)]


@pytest.mark.parametrize("method", START_METHODS)
def test_a_batch_of_thousands_of_tensors(method: str, Loader: Any) -> None:
    for i, b in enumerate(Loader(ManyTensors(), batch_size=None, num_workers=2, multiprocessing_context=method)):
        assert len(b) == 1500
        assert all(bool((t == i).all()) and len(t) == k % 50 + 1 for k, t in enumerate(b))


class Sampler:
    """Batches of indices far above one message."""

    def __iter__(self) -> Any:
        for k in range(4):
            yield [(k, j, "x" * 20) for j in range(5000)]

    def __len__(self) -> int:
        return 4


class Echo(torch.utils.data.Dataset[Any]):
    def __getitem__(self, key: Any) -> Any:
        return key[0] * 10_000 + key[1] + len(key[2])


def test_tasks_larger_than_a_message(Loader: Any) -> None:
    for k, b in enumerate(Loader(Echo(), batch_sampler=Sampler(), num_workers=2)):
        assert b.tolist() == [k * 10_000 + j + 20 for j in range(5000)]


class TensorIndices:
    """Tensors as batches of indices travel to the worker."""

    def __iter__(self) -> Any:
        for k in range(3):
            yield torch.arange(k, k + 3)

    def __len__(self) -> int:
        return 3


class Types(torch.utils.data.Dataset[Any]):
    def __getitem__(self, key: Any) -> Any:
        return f"{type(key).__name__} {key}"


def test_index_objects_arrive_unconverted(Loader: Any) -> None:
    kwargs: dict[str, Any] = {"batch_sampler": TensorIndices()}
    stock = list(Stock(Types(), num_workers=1, **kwargs))
    assert list(Loader(Types(), num_workers=1, **kwargs)) == stock
    for values in ([np.int64(3)], ["a"], [(1, 2)], [None], [slice(0, 2)], [2.5], [torch.tensor(1)]):
        stock = list(Stock(Types(), num_workers=1, sampler=values))
        assert list(Loader(Types(), num_workers=1, sampler=values)) == stock


class SharedTensors(torch.utils.data.Dataset[Any]):
    """Already in torch's shared memory: writes in a worker are seen by the parent, as with the stock loader."""

    def __init__(self) -> None:
        self.counter = torch.zeros(4).share_memory_()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        self.counter[i] += 1
        return i


@pytest.mark.parametrize("method", START_METHODS)
def test_shared_tensors_of_the_dataset_stay_shared(method: str, Loader: Any) -> None:
    ds = SharedTensors()
    list(Loader(ds, num_workers=2, multiprocessing_context=method))
    assert ds.counter.tolist() == [1, 1, 1, 1]


class WithQueue(torch.utils.data.Dataset[Any]):
    """Holds things that can be pickled only while a process is started."""

    def __init__(self, ctx: Any) -> None:
        self.value = ctx.Value("i", 0)
        self.lock = ctx.Lock()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> int:
        with self.lock:
            self.value.value += 1
        return i


@pytest.mark.parametrize("method", START_METHODS)
def test_locks_and_values_of_multiprocessing_in_the_dataset(method: str, Loader: Any) -> None:
    import multiprocessing

    ctx = multiprocessing.get_context(method)
    ds = WithQueue(ctx)
    loader = Loader(ds, num_workers=2, multiprocessing_context=ctx)
    assert [int(b) for b in loader] == list(range(6))
    assert ds.value.value == 6
