"""Constructor, attributes and `__setattr__` against the installed torch: same acceptance, same types, same messages."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Stock
from torch.utils.data import RandomSampler, SequentialSampler

from helpers import datasets as d
from helpers.canon import canon

# Stock iterators whose constructor failed complain in `__del__`; that is not what is compared here.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ATTRIBUTES = (
    "num_workers prefetch_factor pin_memory pin_memory_device timeout worker_init_fn in_order batch_size drop_last "
    "generator collate_fn persistent_workers _auto_collation _dataset_kind _IterableDataset_len_called _iterator"
).split()

VALUES: dict[str, list[Any]] = {
    "batch_size": [None, 0, -1, 1, 3, 2.0, True, "2", np.int64(2)],
    "shuffle": [None, True, False, 0, 1, 3, "yes", []],
    "sampler": [None, [0, 1], range(3), iter([1]), 5],
    "batch_sampler": [None, [[0, 1], [2]], 7],
    "num_workers": [0, 1, -1, True, 1.5, "2", None],
    "collate_fn": [None, d.identity, 5],
    "pin_memory": [False, True, "x"],
    "drop_last": [False, True, None, 0, 1, "x"],
    "timeout": [0, -1, 5, 0.5, "x", None],
    "worker_init_fn": [None, d.init_nothing, 5],
    "multiprocessing_context": [None, "fork", "spawn", "bad", "", 5, multiprocessing.get_context("fork"), b"fork"],
    "generator": [None, 5, torch.Generator()],
    "prefetch_factor": [None, 0, 1, 4, -1, 1.5, "x", True],
    "persistent_workers": [False, True, 1, None],
    "pin_memory_device": ["", "cuda", None],
    "in_order": [True, False, None, 5],
}
DATASETS: dict[str, Any] = {
    "list": [1, 2, 3, 4, 5],
    "empty": [],
    "map": d.MapDS(("int",), 7),
    "nolen": d.NoLen(("int",)),
    "iter": d.IterDS(("int",), 7),
    "sized": d.SizedIter(("int",), 7),
    "int": 5,
    "none": None,
    "str": "abc",
    "dict": {0: 1, 1: 2},
}


def observe(loader: Any, dataset: Any, args: tuple[Any, ...] = (), **kwargs: Any) -> Any:
    """What constructing gives: the error, or attributes and warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = loader(dataset, *args, **kwargs)
        except Exception as e:
            return ("error", type(e), plain(str(e), loader))
        seen: dict[str, Any] = {}
        for name in ATTRIBUTES:
            value = getattr(made, name)
            seen[name] = value if isinstance(value, (int, str, float, type(None))) else (type(value), repr(value))
        seen["sampler"] = type(made.sampler)
        seen["batch_sampler"] = type(made.batch_sampler)
        seen["index_sampler"] = type(made._index_sampler)
        seen["context"] = type(made.multiprocessing_context)
        seen["same dataset"] = made.dataset is dataset
        try:
            seen["len"] = len(made)
        except Exception as e:
            seen["len"] = (type(e), plain(str(e), loader))
        try:
            seen["bool"] = bool(made)
        except Exception as e:
            seen["bool"] = (type(e), plain(str(e), loader))
    return ("made", seen, sorted((w.category.__name__, str(w.message)) for w in caught))


def plain(text: str, loader: Any) -> str:
    """A message without what must differ: the name of the class."""
    return text.replace(f"{loader.__module__}.{loader.__qualname__}", "DataLoader")


def check(loader: Any, dataset: Any, args: tuple[Any, ...] = (), **kwargs: Any) -> None:
    stock = observe(Stock, dataset, args, **kwargs)
    ours = observe(loader, dataset, args, **kwargs)
    assert ours == stock


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("name", VALUES)
def test_one_argument(name: str, dataset: str, Loader: Any) -> None:
    for value in VALUES[name]:
        check(Loader, DATASETS[dataset], **{name: value})
        check(Loader, DATASETS[dataset], num_workers=2, **({name: value} if name != "num_workers" else {}))


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(VALUES, 2)))
def test_two_arguments(first: str, second: str, Loader: Any) -> None:
    """Every pair, which settles which check comes first."""
    for a, b in itertools.product(VALUES[first], VALUES[second]):
        for dataset in ("list", "iter"):
            check(Loader, DATASETS[dataset], **{first: a, second: b})


def test_positional_arguments(Loader: Any) -> None:
    full = (2, False, None, None, 0, d.identity, False, True, 0, None, None, None)
    for k in range(len(full) + 1):
        check(Loader, [1, 2, 3], full[:k])
    for cls in (Stock, Loader):
        with pytest.raises(TypeError):
            cls([1], *full, 1)
        with pytest.raises(TypeError):
            cls()
        with pytest.raises(TypeError):
            cls([1], no_such_argument=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_set_attribute(workers: int, Loader: Any) -> None:
    names = [*ATTRIBUTES, "batch_sampler", "sampler", "dataset", "multiprocessing_context", "something_new"]
    for name in names:
        for value in (None, 0, 3, "spawn", "bad", True):
            results = []
            for cls in (Stock, Loader):
                loader = cls([1, 2, 3], num_workers=workers)
                try:
                    setattr(loader, name, value)
                    results.append(repr(type(getattr(loader, name))))
                except Exception as e:
                    results.append(repr((type(e), str(e))))
            assert results[0] == results[1], (name, value)


def test_changed_attributes_take_effect(Loader: Any) -> None:
    results = []
    for cls in (Stock, Loader):
        loader = cls(list(range(6)), batch_size=2)
        seen = [canon(list(loader))]
        loader.collate_fn = d.as_tuple
        seen.append(canon(list(loader)))
        loader.num_workers = 2
        loader.prefetch_factor = 1
        seen.append(canon(list(loader)))
        loader.worker_init_fn = d.init_seed
        loader.multiprocessing_context = "forkserver"
        seen.append(canon(list(loader)))
        results.append(seen)
    assert results[0] == results[1]


def test_errors_at_iter(Loader: Any) -> None:
    """What the constructor lets through and `iter()` does not."""
    for kwargs in (
        {"num_workers": 1, "prefetch_factor": 0},
        {"num_workers": 1.5},
        {"timeout": 3},
        {"sampler": 5},
        {"batch_sampler": 7},
        {"generator": 5},
        {"collate_fn": 5},
        {"batch_size": None, "sampler": 5},
        {"num_workers": 1, "generator": 5},
    ):
        seen = []
        for cls in (Stock, Loader):
            loader = cls([1, 2, 3], **kwargs)
            with pytest.raises(Exception) as e:
                next(iter(loader))
            seen.append((type(e.value), str(e.value).splitlines()[0]))
        assert seen[0] == seen[1], kwargs


def test_is_a_torch_loader(Loader: Any) -> None:
    loader = Loader([1, 2, 3])
    assert isinstance(loader, Stock)
    assert isinstance(loader.sampler, SequentialSampler)
    assert isinstance(Loader([1], shuffle=True).sampler, RandomSampler)
    assert Loader[int] is not None
    assert Loader([1, 2, 3]).check_worker_number_rationality() is None


def test_subclass(Loader: Any) -> None:
    """Subclasses with their own constructor, attributes set before and after ours, and their own `__iter__`."""

    class Mine(Loader):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.before = 1
            super().__init__(*args, **kwargs)
            self.after = 2

        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield batch + 1

    loader = Mine([1, 2, 3], batch_size=2)
    assert [b.tolist() for b in loader] == [[2, 3], [4]]
    assert (loader.before, loader.after) == (1, 2)
    for name in ("batch_size", "dataset", "sampler"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after Mine is initialized"):
            setattr(loader, name, 3)


@pytest.mark.parametrize("size", [1 << 40, sys.maxsize])
def test_a_batch_size_of_everything(size: int, Loader: Any) -> None:
    """``sys.maxsize`` for one batch of all there is."""
    for settings in ({}, {"shuffle": True}, {"num_workers": 2}):
        found, expected = [], []
        for cls, into in ((Loader, found), (Stock, expected)):
            torch.manual_seed(3)
            into.extend(batch.tolist() for batch in cls(range(7), batch_size=size, **settings))
        assert found == expected, settings
    # torch makes a list of that length first.
    with pytest.warns(UserWarning, match="no batch"):
        assert list(Loader(range(7), batch_size=size, drop_last=True)) == []
    ranked = [list(Loader(range(7), batch_size=size, shuffle=False, distributed=(rank, 3))) for rank in range(3)]
    assert [[batch.tolist() for batch in batches] for batches in ranked] == [[[0, 3, 6]], [[1, 4, 0]], [[2, 5, 1]]]


@pytest.mark.parametrize("stock", [True, False])
def test_what_was_settled_cannot_be_set(stock: bool, Loader: Any) -> None:
    """Our own arguments too, and in the loader without torch what torch refuses; also in copies."""
    import feedrate

    class Mine(Loader if stock else feedrate.DataLoader):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.remainder = "set before"
            super().__init__(*args, **kwargs)

    loader = Mine([1, 2, 3], batch_size=2)
    loader.num_workers = loader.num_workers
    for twin in (loader, pickle.loads(pickle.dumps(Loader([1, 2, 3]))), copy.copy(loader)):
        for name in (
            "batch_size",
            "batch_sampler",
            "sampler",
            "drop_last",
            "dataset",
            "persistent_workers",
            "distributed",
            "remainder",
        ):
            with pytest.raises(ValueError, match=f"{name} attribute should not be set after .* is initialized"):
                setattr(twin, name, "drop" if name == "remainder" else (0, 1))


@pytest.mark.parametrize("kwargs", [{}, {"shuffle": True}, {"num_workers": 2, "persistent_workers": True}])
def test_pickle_and_copy(kwargs: dict[str, Any], Loader: Any) -> None:
    loader = Loader(d.MapDS(("int",), 9), batch_size=2, **kwargs)
    for twin in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), copy.copy(loader)):
        assert type(twin) is type(loader)
        torch.manual_seed(3)
        first = canon(list(twin))
        torch.manual_seed(3)
        assert first == canon(list(Loader(d.MapDS(("int",), 9), batch_size=2, **kwargs)))


def test_iterators_cannot_be_pickled(Loader: Any) -> None:
    for workers in (0, 1):
        errors = []
        for cls in (Stock, Loader):
            it = iter(cls([1, 2], num_workers=workers))
            with pytest.raises(NotImplementedError) as e:
                pickle.dumps(it)
            errors.append(e.value.args[0])
            assert len(e.value.args) == 2
        assert errors[0] == errors[1]


def test_too_many_workers_warns(Loader: Any) -> None:
    texts = []
    for cls in (Stock, Loader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = cls([1, 2, 3], num_workers=1000)
            loader.check_worker_number_rationality()
        texts.append([(w.category, str(w.message)) for w in caught])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2
