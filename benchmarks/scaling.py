"""What a second thread brings, and what this machine gives two processes that have nothing to do with each other.

The CPUs of a small machine share caches, memory and often more: two of them do less than twice as much as one. So the rows say how many
times faster two threads are than one, and note how many times more two processes with a thread each do at once. All three are measured
in turn in one process, several times, since such machines are faster in one minute than in another.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import checksum, procs, shards
from benchmarks.shards import Answer, Params


def compared(epoch: Callable[[int], Iterable[Any]], rounds: int, answer: Callable[[Any], Any]) -> Answer:
    """Two threads against one: the median of the rounds. `epoch` gives the batches of a loader with so many threads."""
    crc = count = 0
    for batch in epoch(2):
        crc = checksum.update(crc, answer(batch))
        count += 1
    for _ in epoch(1):
        pass
    times, ceilings = [], []
    with procs.Growth() as growth:
        for _ in range(rounds):
            before, two, after = (seconds(epoch, threads) for threads in (1, 2, 1))
            one = (before + after) / 2
            times.append(one / two)
            ceilings.append(2 * one / at_once(epoch))
    ceiling = statistics.median(ceilings)
    note = f"two processes at once: {ceiling:.2f} times one; two threads are {statistics.median(times) / ceiling:.0%} of that"
    return {"value": statistics.median(times), "count": count, "checksum": f"{crc:08x}", "peak": growth.bytes, "note": note}


def seconds(epoch: Callable[[int], Iterable[Any]], threads: int) -> float:
    """Of one epoch."""
    started = time.perf_counter()
    for _ in epoch(threads):
        pass
    return time.perf_counter() - started


def at_once(epoch: Callable[[int], Iterable[Any]]) -> float:
    """Seconds until each of two processes is through an epoch with one thread. Starting them is not counted."""
    (begin, go), (waiting, ready) = os.pipe(), os.pipe()
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.write(ready, b".")
                os.read(begin, 1)
                seconds(epoch, 1)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    # Only children hold it from here on: where all of them have died, there is an end.
    os.close(ready)
    for _ in children:
        os.read(waiting, 1)
    started = time.perf_counter()
    os.write(go, b"..")
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    taken = time.perf_counter() - started
    for end in (begin, go, waiting):
        os.close(end)
    if any(codes):
        raise RuntimeError(f"processes with one thread each ended with {codes}")
    return taken


def photos(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """The batches of the row photos-train."""
    import torch

    from benchmarks import workloads
    from benchmarks.engines import feedrate

    torch.set_num_threads(1)
    row = {
        "workload": "photos",
        "params": {"kind": "train"},
        **{name: params[name] for name in ("entries", "batch_size", "batches")},
    }
    case = workloads.build(row)

    def epoch(threads: int) -> Iterable[Any]:
        return feedrate.open(case, threads, feedrate.settings(row, threads)[0])

    # The crops are others each time, as torch draws its seeds.
    return compared(epoch, params["rounds"], lambda batch: batch[1])


def tar(engine: str, workers: int, params: Params, given: Any) -> Answer:
    """The batches of the row tar-threads."""
    from feedrate import open as pipeline_of

    files = shards.made("tar", {name: params[name] for name in ("samples", "shards", "size")}, shards.write_tar)
    shards.in_python(files)

    def epoch(threads: int) -> Iterable[Any]:
        return shards.in_threads(pipeline_of(files), threads)

    return compared(epoch, params["rounds"], lambda batch: [shards.of_tar(sample) for sample in batch])


PROBES: dict[str, Callable[[str, int, Params, Any], Answer]] = {"photos-threads": photos, "tar-threads": tar}
