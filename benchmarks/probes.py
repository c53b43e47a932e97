"""What rows about orders and states measure: one function each, run in a fresh process by `benchmarks.measure`.

A probe is given the engine's name, the number of workers and the row's parameters, and gives back `value` (seconds, bytes or
whatever the row compares), `count` and `checksum` (the answer), and `peak`: by how much the process grew at its highest. A
name in `PREPARE` has something made beforehand in a process of its own, which is given to each of its probes.
"""

from __future__ import annotations

import base64
import itertools
import json
import pickle
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.sharedctypes import RawArray
from typing import Any

import torch
from torch.utils.data import Dataset, DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from benchmarks import checksum, procs, scaling, shards
from benchmarks.workloads import Indices, as_given

Params = dict[str, Any]
Answer = dict[str, Any]


class Counted(Dataset[int]):
    """Item `i` is `i`; counts the samples that were loaded, in all processes together (each has a place of its own)."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.loaded = RawArray("q", 64)

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> int:
        worker = torch.utils.data.get_worker_info()
        self.loaded[0 if worker is None else worker.id + 1] += 1
        return index


def loader_class(engine: str) -> Any:
    """The `DataLoader` of an engine with torch's signature."""
    if engine == "torch":
        return torch.utils.data.DataLoader
    if engine == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader
    from feedrate.torch import DataLoader

    return DataLoader


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_order(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """From `iter()` to the first batch of a shuffled epoch, then some more batches: seconds, and the memory that the order takes.

    The engine `randperm` is torch's bare function, with nothing around it and no list made of what it gives.
    """
    size, batch_size, batches = params["size"], params["batch_size"], params["batches"]

    def begin(size: int) -> Iterator[Any]:
        if engine == "randperm":
            return iter(torch.randperm(size, generator=seeded(20)).split(batch_size))
        data = Indices(size)
        sampler = RandomSampler(data, generator=seeded(20))
        return iter(loader_class(engine)(data, batch_size=batch_size, sampler=sampler, collate_fn=as_given, num_workers=workers))

    list(begin(3 * batch_size))  # what is imported and allocated once is not the order's
    with procs.Growth() as growth:
        started = time.perf_counter()
        iterator = begin(size)
        batch = next(iterator)
        seconds = time.perf_counter() - started
        crc = checksum.update(0, torch.as_tensor(batch))
        for batch in itertools.islice(iterator, batches - 1):
            crc = checksum.update(crc, torch.as_tensor(batch))
        del iterator
    value = growth.bytes if params["value"] == "bytes" else seconds
    return {"value": value, "count": batches, "checksum": f"{crc:08x}", "peak": growth.bytes}


def any_size(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """`feedrate.samplers.ShuffleSampler`: seconds from `iter()`, or from `load_state_dict()`, to an index; median over the places."""
    from feedrate.samplers import ShuffleSampler

    def sampler() -> Any:
        return ShuffleSampler(Indices(params["size"]), seed=5)  # type: ignore[arg-type]

    first = iter(sampler())
    next(first)
    state = first.state_dict()
    taken, found = [], []
    with procs.Growth() as growth:
        for place in range(params["places"]):
            fresh = sampler()
            position = place * (params["size"] - 1) // max(1, params["places"] - 1) if params["resume"] else 0
            started = time.perf_counter()
            if params["resume"]:
                fresh.load_state_dict({**state, "position": position})
            found.append(next(iter(fresh)))
            taken.append(time.perf_counter() - started)
    crc = checksum.update(0, torch.tensor(found))
    return {"value": statistics.median(taken), "count": len(found), "checksum": f"{crc:08x}", "peak": growth.bytes}


def resumable(engine: str, workers: int, params: Params, size: int) -> tuple[Any, Counted]:
    """A loader over counted samples, shuffled or not as a user would have it; by a keyed permutation, where the row says so and the loader can."""
    data = Counted(size)
    if params.get("keyed") and engine == "feedrate":
        from feedrate.samplers import ShuffleSampler

        order = ShuffleSampler(data, seed=21)
        return loader_class(engine)(data, batch_size=params["batch_size"], sampler=order, num_workers=workers), data
    arguments = {"batch_size": params["batch_size"], "shuffle": params["shuffle"], "num_workers": workers}
    return loader_class(engine)(data, generator=seeded(21) if params["shuffle"] else None, **arguments), data


def prepare_resume(engine: str, workers: int, params: Params) -> dict[str, Any]:
    """The state of a loader that has really come so far, and the batch that follows it there."""
    loader, _ = resumable(engine, workers, params, params["size"])
    iterator = iter(loader)
    for _ in range(params["after"]):
        next(iterator)
    state = base64.b64encode(pickle.dumps(loader.state_dict())).decode()
    return {"state": state, "next": checksum.update(0, next(iterator))}


def resume(engine: str, workers: int, params: Params, given: dict[str, Any]) -> Answer:
    """Seconds from `load_state_dict()` to the first batch, in a process in which a small loader has run already.

    Torchdata shuffles otherwise than torch, and otherwise with workers; the answer is by how much the batch differs from the one
    that came next where the state was taken. Of samples not more may be loaded than the batch, and what the workers fetch ahead.
    """
    list(resumable(engine, workers, params, 3 * params["batch_size"])[0])
    loader, data = resumable(engine, workers, params, params["size"])
    state = pickle.loads(base64.b64decode(given["state"]))
    with procs.Growth() as growth:
        started = time.perf_counter()
        loader.load_state_dict(state)
        iterator = iter(loader)
        batch = next(iterator)
        seconds = time.perf_counter() - started
    skipped = max(0, sum(data.loaded) - params["batch_size"] * (1 + 2 * workers))
    crc = checksum.update(0, batch) ^ given["next"]
    note = f"{skipped} skipped samples loaded"
    return {"value": seconds, "count": 1, "checksum": f"{crc:08x}", "peak": growth.bytes, "note": note}


def state_makers(generator: bool) -> dict[str, Callable[[Dataset[int]], dict[str, Any]]]:
    """Arguments of loaders, with a torch generator whose state has to be kept, or without one."""
    from feedrate import samplers

    weights = [1.0 + i % 3 for i in range(4000)]
    if generator:
        return {
            "shuffle": lambda data: {"shuffle": True, "generator": seeded(1)},
            "random": lambda data: {"sampler": RandomSampler(data, generator=seeded(2))},  # type: ignore[arg-type]
            "weighted": lambda data: {"sampler": WeightedRandomSampler(weights, 4000, generator=seeded(3))},
            "subset": lambda data: {"sampler": SubsetRandomSampler(range(4000), generator=seeded(4))},
            "ours": lambda data: {"sampler": samplers.RandomSampler(data, generator=seeded(5))},  # type: ignore[arg-type]
        }
    return {
        "sequential": lambda data: {},
        "shuffle": lambda data: {"shuffle": True},
        "seed": lambda data: {"shuffle": True, "seed": 6, "distributed": (0, 2)},
        "distributed": lambda data: {"sampler": DistributedSampler(data, 2, 0)},  # type: ignore[var-annotated]
        "keyed": lambda data: {"sampler": samplers.ShuffleSampler(data, seed=7)},  # type: ignore[arg-type]
        "buckets": lambda data: {
            "batch_sampler": samplers.BucketBatchSampler([1 + i % 50 for i in range(4000)], 8, num_buckets=5, seed=8)
        },
    }


def state_size(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """The largest of the states, as JSON, over orders, prefetch and workers. The answer is over the batches that follow each."""
    largest, crc, count = 0, 0, 0
    with procs.Growth() as growth:
        for (name, make), factor in itertools.product(state_makers(params["generator"]).items(), params["prefetch"]):
            torch.manual_seed(23)
            data = Indices(4000)
            batching = {} if name == "buckets" else {"batch_size": 8}
            more = {**batching, "num_workers": workers, "prefetch_factor": factor} if workers else batching
            loader = loader_class(engine)(data, **make(data), **more)
            iterator = iter(loader)
            for _ in range(50):
                next(iterator)
            written = json.dumps(loader.state_dict())
            resumed = loader_class(engine)(data, **make(data), **more)
            resumed.load_state_dict(json.loads(written))
            crc = checksum.update(crc, next(iter(resumed)))
            largest = max(largest, len(written))
            count += 1
    return {"value": largest, "count": count, "checksum": f"{crc:08x}", "peak": growth.bytes}


PREPARE: dict[str, Callable[[str, int, Params], Any]] = {"resume": prepare_resume}
PROBES: dict[str, Callable[[str, int, Params, Any], Answer]] = {
    "random-order": random_order,
    "any-size": any_size,
    "resume": resume,
    "state-size": state_size,
    **shards.PROBES,
    **scaling.PROBES,
}
