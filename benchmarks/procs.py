"""CPU time, context switches and memory of a process and all its descendants, read from /proc; growth of this process."""

from __future__ import annotations

import gc
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """The process and its descendants. Processes that end while it looks are left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                parent = int(_stat(int(entry))[1])
                children.setdefault(parent, []).append(int(entry))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(root: int) -> float:
    """User and system time spent so far by the whole tree, children that ended included.

    Living processes are read from their CPU clocks (nanoseconds), ended ones from their parent's account (clock ticks).
    """
    total = 0.0
    for pid in tree(root):
        with suppress(OSError):
            stat = _stat(pid)
            total += (int(stat[13]) + int(stat[14])) / TICK
            try:
                total += time.clock_gettime((~pid << 3) | 2)
            except OSError:
                total += (int(stat[11]) + int(stat[12])) / TICK
    return total


def switches(root: int) -> int:
    """Voluntary context switches of all living threads of the tree."""
    total = 0
    for pid in tree(root):
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError):
                    for line in Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines():
                        if line.startswith("voluntary_ctxt_switches"):
                            total += int(line.split()[1])
    return total


def starved_seconds(root: int) -> float:
    """Seconds that the living threads of the tree have been ready to run and were not, because of other programs or each other."""
    total = 0
    for pid in tree(root):
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError):
                    total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
    return total / 1e9


def memory(root: int) -> dict[str, int]:
    """Proportional set size of the tree in bytes: all of it, and without mapped files (what other programs cannot share)."""
    sums = {"pss": 0, "private": 0}
    for pid in tree(root):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name == "Pss":
                    sums["pss"] += int(rest.split()[0]) * 1024
                elif name in ("Pss_Anon", "Pss_Shmem"):
                    sums["private"] += int(rest.split()[0]) * 1024
    return sums


class PeakMemory:
    """Samples `memory` on a thread and keeps the highest. A context manager."""

    def __init__(self, root: int, every: float = 0.05) -> None:
        self.root = root
        self.every = every
        self.peak = {"pss": 0, "private": 0}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak-memory", daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            now = memory(self.root)
            self.peak = {name: max(value, now[name]) for name, value in self.peak.items()}
            self._stop.wait(self.every)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


class Growth:
    """By how much this process grew at its highest inside the block: `bytes`. Linux keeps the mark itself, so no peak is missed."""

    bytes = 0

    def __enter__(self) -> Growth:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from where the process stands
        self._before = _resident("VmRSS")
        return self

    def __exit__(self, *exception: object) -> None:
        self.bytes = max(0, _resident("VmHWM") - self._before)


def _resident(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) * 1024
