"""One rank of the runs in test_ranks.py, and how their loaders are made."""

from __future__ import annotations

import faulthandler
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import data as stock

from feedrate.torch import DataLoader


class Ids(stock.Dataset[int]):
    """Its samples are their own indices."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        if not 0 <= i < self.n:
            raise IndexError(i)
        return i


class Mine:
    """A user's sampler: an order of its own in each epoch, with repeats, and no length."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(self.epoch)
        self.epoch += 1
        for _ in range(self.n):
            yield rng.randrange(self.n)


class Growing:
    """A user's batch sampler, with batches of 1, 2, 3, 1, 2, 3, … samples."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[list[int]]:
        at, size = 0, 1
        while at < self.n:
            yield list(range(at, min(at + size, self.n)))
            at, size = at + size, size % 3 + 1


def make(case: dict[str, Any], **changed: Any) -> DataLoader[int]:
    """The loader of one case."""
    n, kind = case["n"], case.get("order", "shuffle")
    arguments: dict[str, Any] = {"batch_size": case.get("batch", 3), "distributed": "auto", "seed": case.get("seed", 5)}
    if kind == "shuffle":
        arguments["shuffle"] = True
    elif kind == "weighted":
        arguments["sampler"] = stock.WeightedRandomSampler(range(1, n + 1), n)
    elif kind == "mine":
        arguments["sampler"] = Mine(n)
    elif kind == "growing":
        arguments["batch_sampler"] = Growing(n)
        del arguments["batch_size"]
    elif kind == "stock":
        # As users have it: the sampler asks the process group for its rank.
        arguments["sampler"] = stock.distributed.DistributedSampler(Ids(n), seed=5)
        del arguments["distributed"]
    for name in ("remainder", "drop_last", "num_workers", "persistent_workers", "snapshot_every_n_steps"):
        if name in case:
            arguments[name] = case[name]
    arguments.update(changed)
    return DataLoader(Ids(n), **arguments)


def ids(batch: Any) -> list[int]:
    """The samples of a batch, or of a sample without batching."""
    found = torch.as_tensor(batch).tolist()
    return found if isinstance(found, list) else [found]


def run(case: dict[str, Any], world: int) -> dict[str, Any]:
    """All epochs of a case, with a collective in each step that finds ranks at different steps."""
    loader = make(case)
    if "state" in case:
        loader.load_state_dict(case["state"])
    result: dict[str, Any] = {"epochs": [], "len": None if case.get("order") in ("mine", "growing") else len(loader)}
    for epoch in range(case.get("epochs", 3)):
        got = []
        for step, batch in enumerate(loader):
            mask = loader.mask
            got.append([ids(batch), mask.tolist()])
            where = torch.tensor([epoch * 1000 + step, 1])
            dist.all_reduce(where)
            assert where.tolist() == [world * (epoch * 1000 + step), world], (case, epoch, step, where)
            if [epoch, step] == case.get("stop"):
                result["state"] = json.loads(json.dumps(loader.state_dict()))
                break
        result["epochs"].append(got)
        if "state" in result:
            break
    return result


def compare_with_stock(case: dict[str, Any]) -> dict[str, Any]:
    """torch's sampler, in our loader and in torch's."""
    ours = make(case, num_workers=0)
    theirs = stock.DataLoader(Ids(case["n"]), batch_size=3, sampler=stock.distributed.DistributedSampler(Ids(case["n"]), seed=5))
    got: dict[str, Any] = {"ours": [], "theirs": []}
    for epoch in range(3):
        for name, loader in (("ours", ours), ("theirs", theirs)):
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            got[name].append([ids(batch) for batch in loader])
    return got


def main(rank: int, world: int, folder: Path) -> None:
    faulthandler.enable()
    # Ranks have different process-wide generators, as they do where users seed them by rank.
    torch.manual_seed(rank)
    random.seed(rank)
    plan = json.loads((folder / "plan.json").read_text())
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    results = [compare_with_stock(case) if case.get("order") == "stock" else run(case, world) for case in plan]
    dist.barrier()
    (folder / f"result{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
