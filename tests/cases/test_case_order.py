"""Acceptance cases ORD-01 to ORD-10, as far as the drop-in is concerned."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Stock
from torch.utils.data import Dataset, DistributedSampler, Subset

from helpers import START_METHODS, loader_import, procs


class Draws(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> Any:
        return np.random.randint(1 << 30), random.getrandbits(30), int(torch.randint(1 << 30, (1,)))


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("persistent", [True, False])
def test_ord_01_random_draws_repeat_neither_across_workers_nor_epochs(method: str, persistent: bool, Loader: Any) -> None:
    seen: list[Any] = []
    loader = Loader(Draws(), batch_size=4, num_workers=2, multiprocessing_context=method, persistent_workers=persistent)
    for _ in range(3):
        for b in loader:
            seen += zip(*[x.tolist() for x in b], strict=True)
    for k in range(3):
        assert len({s[k] for s in seen}) == len(seen)


@pytest.mark.parametrize("workers", [0, 4])
def test_ord_01_same_seed_same_draws(workers: int, Loader: Any) -> None:
    runs = []
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        runs.append([[x.tolist() for x in b] for b in Loader(Draws(), batch_size=4, num_workers=workers)])
    assert runs[0] == runs[1]


def _training_order(cls: Any, validate: bool, generator: bool) -> list[list[int]]:
    torch.manual_seed(0)
    kwargs = {"generator": torch.Generator().manual_seed(7)} if generator else {}
    train, val = cls(range(6), batch_size=1, shuffle=True, **kwargs), cls(range(3), batch_size=1)
    out = []
    for _ in range(2):
        out.append([int(x) for x in train])
        if validate:
            list(val)
    return out


def test_ord_02_validation_does_not_move_a_loader_with_a_generator(Loader: Any) -> None:
    assert _training_order(Loader, True, True) == _training_order(Loader, False, True)
    for validate in (True, False):  # without a generator: torch's behaviour
        assert _training_order(Loader, validate, False) == _training_order(Stock, validate, False)


class Epoch(Dataset[int]):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        return self.epoch * 100 + i


def test_ord_03_set_epoch_reaches_workers_that_start_anew(Loader: Any) -> None:
    ds = Epoch()
    loader = Loader(ds, batch_size=4, num_workers=2)
    for ep in range(3):
        ds.set_epoch(ep)
        assert [x for b in loader for x in b.tolist()] == [100 * ep + i for i in range(8)]


def test_ord_03_persistent_workers_are_told_the_epoch(Loader: Any) -> None:
    """The loader passes `set_epoch` on (docs/differences.md); in torch each epoch repeats the first."""
    results = []
    for cls in (Stock, Loader):
        ds = Epoch()
        loader = cls(ds, batch_size=4, num_workers=2, persistent_workers=True)
        seen = []
        for ep in range(3):
            ds.set_epoch(ep)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seen.append([x for b in loader for x in b.tolist()])
        results.append(seen)
    if Loader is not Stock:
        assert results[0] == [list(range(8))] * 3
        assert results[1] == [[100 * ep + i for i in range(8)] for ep in range(3)]


def test_ord_04_distributed_sampler_as_in_torch(Loader: Any) -> None:
    for rank in (0, 1):
        for reseed in (True, False):
            orders = []
            for cls in (Stock, Loader):
                sampler: Any = DistributedSampler(range(22), num_replicas=2, rank=rank, shuffle=True)
                loader = cls(range(22), batch_size=5, sampler=sampler, num_workers=1)
                order = []
                for ep in range(3):
                    if reseed:
                        sampler.set_epoch(ep)
                    order.append([int(x) for b in loader for x in b])
                orders.append(order)
            assert orders[0] == orders[1]
            assert (orders[1][0] != orders[1][1]) == reseed


def test_ord_06_subset_indices_under_distribution(Loader: Any) -> None:
    idx = [5, 50, 500, 777]
    got = []
    for rank in range(2):
        sampler: Any = DistributedSampler(range(len(idx)), num_replicas=2, rank=rank, shuffle=False)
        loader = Loader(Subset(range(1000), idx), batch_size=1, sampler=sampler, num_workers=2)  # type: ignore[arg-type]
        got += [x for b in loader for x in b.tolist()]
    assert sorted(got) == idx


class OwnPermutation(Dataset[int]):
    """Shuffles itself in each worker: the loader cannot repair that, so it must at least be what torch gives."""

    def __init__(self) -> None:
        self.perm: Any = None

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> int:
        if self.perm is None:
            self.perm = np.random.permutation(40)
        return int(self.perm[i])


def test_ord_07_a_self_shuffling_dataset_gives_what_torch_gives(Loader: Any) -> None:
    seen = []
    for cls in (Stock, Loader):
        torch.manual_seed(9)
        seen.append([x for b in cls(OwnPermutation(), batch_size=1, num_workers=2) for x in b.tolist()])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_ord_09_order_does_not_depend_on_workers(workers: int, Loader: Any) -> None:
    from helpers.datasets import Slow

    loader = Loader(Slow(300, 0.01, every=17), batch_size=7, num_workers=workers)
    assert [int(x) for b in loader for x in b] == list(range(300))
    torch.manual_seed(4)
    order = [int(x) for b in Loader(Slow(300), batch_size=7, num_workers=workers, shuffle=True) for x in b]
    torch.manual_seed(4)
    assert order == [int(x) for b in Stock(Slow(300), batch_size=7, shuffle=True) for x in b]


def test_ord_10_two_loaders_with_one_seed_agree_in_other_processes() -> None:
    body = f"""
        import torch
        {loader_import()}
        a = [b.tolist() for b in DataLoader(range(50), batch_size=4, shuffle=True, num_workers=2,
                                            generator=torch.Generator().manual_seed(7))]
        print(a)
        """
    outputs = set()
    for seed in ("1", "2"):
        env = procs.environment()
        env["PYTHONHASHSEED"] = seed
        done = procs.script(body, env=env)
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1
