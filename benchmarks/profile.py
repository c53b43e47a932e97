"""Where a batch's time goes: CPU of the training process and of the workers, per batch, and the Python functions behind it.

    python -m benchmarks.profile [--rows ints,1mb-tensors] [--workers 1] [--engines torch,feedrate] [--functions 12]

`inline` is the floor: fetching and collating in one process with torch's own functions, no loader at all. What a loader adds
to it, over all processes, is its overhead. Times are microseconds per batch; `wait` is what next() takes in wall time.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, default_collate

from benchmarks import definitions, engines, procs, workloads
from benchmarks.client import ROOT

EPOCHS = 4


class Profiled(Dataset[Any]):
    """A dataset that profiles the worker it is in, and at the end of each epoch writes what it has into one file a worker."""

    def __init__(self, inner: Any, batch_size: int, workers: int, folder: str) -> None:
        self.inner = inner
        self.folder = folder
        starts = range(0, len(inner), batch_size)
        self.dump_at = set(starts[-max(workers, 1) :])  # each worker has one of the last batches
        self.profile: cProfile.Profile | None = None

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if self.profile is None:
            self.profile = cProfile.Profile()
            self.profile.enable()
        if index in self.dump_at:
            self.profile.dump_stats(os.path.join(self.folder, f"{os.getpid()}.prof"))
            self.profile.enable()
        return self.inner[index]


def process_numbers(pid: int) -> dict[str, float]:
    """User and system seconds, faults and context switches of one process so far."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    switched = [int(line.split()[1]) for line in status.splitlines() if "voluntary_ctxt_switches" in line]
    return {
        "cpu": time.clock_gettime((~pid << 3) | 2),
        "user": int(stat[11]) / procs.TICK,
        "sys": int(stat[12]) / procs.TICK,
        "faults": float(stat[7]),
        "voluntary": float(switched[0]),
        "involuntary": float(switched[1]),
    }


def snapshot(pids: list[int]) -> dict[str, float]:
    """The sums over some processes."""
    sums: dict[str, float] = {}
    for pid in pids:
        for name, value in process_numbers(pid).items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def show(name: str, before: dict[str, float], after: dict[str, float], batches: int, extra: str = "") -> None:
    """One line of the table."""
    d = {k: (after[k] - before[k]) / batches for k in after}
    share = d["sys"] / max(d["user"] + d["sys"], 1e-12)
    print(
        f"  {name:18} {d['cpu'] * 1e6:9.1f} us cpu ({share:4.0%} system)  {d['faults']:7.2f} faults  "
        f"{d['voluntary']:5.2f} + {d['involuntary']:5.2f} switches{extra}"
    )


def floor(case: workloads.Case) -> None:
    """Fetch and collate without a loader."""
    me = [os.getpid()]
    count = len(case.dataset) // case.batch_size  # type: ignore[arg-type]
    for warm in (True, False):
        before = snapshot(me)
        for _ in range(1 if warm else EPOCHS):
            for start in range(0, count * case.batch_size, case.batch_size):
                default_collate([case.dataset[i] for i in range(start, start + case.batch_size)])
    show("inline", before, snapshot(me), count * EPOCHS)


def one(name: str, case: workloads.Case, row: dict[str, Any], workers: int) -> None:
    """CPU of the parent and of the workers for one engine."""
    engine = engines.load(name)
    loader = engine.open(case, workers, engine.settings(row, workers)[0])
    for _ in loader:
        pass
    me = os.getpid()
    others = [pid for pid in procs.tree(me) if pid != me]
    mine, theirs = snapshot([me]), snapshot(others)
    waited, count = 0.0, 0
    started = time.perf_counter()
    for _ in range(EPOCHS):
        iterator = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(iterator, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            count += 1
    total = time.perf_counter() - started
    show(f"{name} parent", mine, snapshot([me]), count, f"  {waited / count * 1e6:8.1f} us wait, {count / total:8.0f} batches/s")
    if others:
        show(f"{name} workers", theirs, snapshot(others), count)
    del loader, iterator


def functions(name: str, case: workloads.Case, row: dict[str, Any], workers: int, lines: int) -> None:
    """The Python functions of the parent and of the workers that take the most time of their own."""
    engine = engines.load(name)
    with tempfile.TemporaryDirectory() as folder:
        case.dataset = Profiled(case.dataset, case.batch_size, workers, folder)
        loader = engine.open(case, workers, engine.settings(row, workers)[0])
        for _ in loader:
            pass
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(EPOCHS):
            for _ in loader:
                pass
        profile.disable()
        found = [("parent", pstats.Stats(profile))]
        files = [str(file) for file in Path(folder).glob("*.prof")]
        if files:
            found.append(("workers (with the profiler's own cost; the dataset's functions among them)", pstats.Stats(*files)))
        for title, stats in found:
            print(f"  -- {name}, {title}")
            stats.strip_dirs().sort_stats("tottime").print_stats(lines)
        del loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="ints,1mb-tensors")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--engines", default="torch,feedrate")
    parser.add_argument("--functions", type=int, default=0, help="also list this many Python functions of each process")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "python"))
    import torch

    torch.set_num_threads(1)
    rows = {row["name"]: row for row in definitions.read(test=False)}
    for name in options.rows.split(","):
        row = rows[name]
        print(f"{row['title']}, {options.workers} workers, per batch:")
        floor(workloads.build(row))
        for engine in options.engines.split(","):
            one(engine, workloads.build(row), row, options.workers)
        if options.functions:
            functions("feedrate", workloads.build(row), row, options.workers, options.functions)


if __name__ == "__main__":
    main()
