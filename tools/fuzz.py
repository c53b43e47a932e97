"""Fuzzes every parser: the tests that damage files at random, optimised but with all checks, in turns, with bounded memory.

    python tools/fuzz.py [--seconds 3600] [--jobs 2] [--only NAME ...] [--log benchmarks/record/fuzz.json]

The log, which is committed, holds what each parser has had; a later run goes on from there with other damage. Time is that of the
CPU, so that a machine with other work does not count as fuzzing. A crash, a hang (a file that takes 20 s) or more memory than the
bound ends the run with the seed that does it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Each parser's test: its binary (the library's own tests, or `it`) and name.
PARSERS = {
    "tar": ("it", "sources::hostile::damaged_archives"),
    "jsonl": ("it", "sources::hostile::damaged_lines"),
    "csv": ("it", "sources::hostile::damaged_rows"),
    "compression": ("it", "sources::hostile::damaged_compression"),
    "parquet": ("feedrate", "source::parquet::tests::damaged_files_end_in_errors"),
    "arrow": ("feedrate", "source::arrow::tests::damaged_files_end_in_errors"),
    "tfrecord": ("feedrate", "source::tfrecord::tests::damaged_files_end_in_errors"),
    "npy": ("feedrate", "source::npy::tests::damaged_files_end_in_errors"),
    "mds": ("feedrate", "source::mds::tests::damaged_files_end_in_errors"),
    "tokens": ("feedrate", "source::tokens::tests::damaged_files_end_in_errors"),
    "hdf5": ("feedrate", "source::hdf5::tests::damaged_files_end_in_errors"),
    "jpeg": ("feedrate", "decode::fuzz::jpeg"),
    "png": ("feedrate", "decode::fuzz::png"),
    "webp": ("feedrate", "decode::fuzz::webp"),
    "gif": ("feedrate", "decode::fuzz::gif"),
    "bmp": ("feedrate", "decode::fuzz::bmp"),
    "pnm": ("feedrate", "decode::fuzz::pnm"),
    "tiff": ("feedrate", "decode::fuzz::tiff"),
}
#: Address space that a run may take: the largest file is some kilobytes, and limits in the tests are at most 64 MiB.
MEMORY = 2 << 30


def build() -> dict[str, str]:
    """The test binaries by target name."""
    command = ["cargo", "test", "--profile", "fuzz", "-p", "feedrate", "--all-features", "--lib", "--test", "it", "--no-run"]
    run = subprocess.run([*command, "--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {m["target"]["name"]: m["executable"] for m in messages if m.get("executable")}


def fuzz(binary: str, test: str, seconds: int, first: int) -> tuple[float, int, int]:
    """One turn: CPU seconds, tries, and the highest resident memory in bytes. Exits when the parser fails."""
    environment = {**os.environ, "FEEDRATE_FUZZ_SECONDS": str(seconds), "FEEDRATE_FUZZ_FROM": str(first)}
    child = subprocess.Popen(
        [binary, "--exact", test, "--nocapture"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # The memory blow-up that a damaged length makes is an aborted process here.
    resource.prlimit(child.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    tries = sum(int(n) for n in re.findall(r"fuzz: (\d+) tries", output))
    if status != 0 or tries == 0 or " 1 passed" not in output:
        lines = output.splitlines()
        shown = lines if len(lines) < 60 else [*lines[:20], "...", *lines[-40:]]
        sys.exit("\n".join([*shown, f"{test}: status {status}, {tries} tries, FEEDRATE_FUZZ_FROM={first}"]))
    return usage.ru_utime + usage.ru_stime, tries, usage.ru_maxrss << 10


class Log:
    """What each parser has had, in a file that is whole at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.had: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self.stopped = False

    def take(self, names: list[str], seconds: float) -> tuple[str, int] | None:
        """Of these parsers the one that has had the least, no other job is at and is not done, and its turn's number."""
        with self._lock:
            for name in names:
                self.had.setdefault(name, {"seconds": 0, "tries": 0, "peak_mib": 0, "turns": 0})
            free = [n for n in names if n not in self._taken and self.had[n]["seconds"] < seconds]
            if not free or self.stopped:
                return None
            name = min(free, key=lambda n: self.had[n]["seconds"])
            self._taken.add(name)
            return name, int(self.had[name]["turns"]) + 1

    def give(self, name: str, took: float, tries: int, peak: int) -> None:
        with self._lock:
            one = self.had[name]
            one["seconds"] = round(one["seconds"] + took, 1)
            one["tries"] += tries
            one["turns"] += 1
            one["peak_mib"] = max(one["peak_mib"], peak >> 20)
            self._taken.remove(name)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self.had, indent=1) + "\n")
            new.replace(self.path)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--seconds", type=float, default=3600, help="CPU time of each parser, over all runs of this log")
    parse.add_argument("--each", type=int, default=20, help="seconds for each file of a turn")
    parse.add_argument("--jobs", type=int, default=1, help="parsers at a time")
    parse.add_argument("--only", nargs="+", choices=PARSERS, default=list(PARSERS))
    parse.add_argument("--log", type=Path, default=ROOT / "benchmarks" / "record" / "fuzz.json")
    parse.add_argument("--show", action="store_true", help="print the log and end")
    given = parse.parse_args()
    log = Log(given.log)

    def turns(binaries: dict[str, str]) -> None:
        while turn := log.take(given.only, given.seconds):
            name, number = turn
            binary, test = PARSERS[name]
            # Far from the seeds of earlier turns; each turn takes fewer than 2**32.
            try:
                log.give(name, *fuzz(binaries[binary], test, given.each, number << 32))
            except BaseException:
                log.stopped = True
                raise

    if not given.show:
        binaries = build()
        with ThreadPoolExecutor(given.jobs) as pool:
            failed = [job.exception() for job in [pool.submit(turns, binaries) for _ in range(given.jobs)]]
        if failure := next((one for one in failed if one), None):
            raise failure
    had = log.had
    print(f"{'parser':<12} {'minutes':>8} {'damaged files':>14} {'peak MiB':>9}")
    for name in sorted(had):
        one = had[name]
        print(f"{name:<12} {one['seconds'] / 60:>8.1f} {one['tries']:>14,.0f} {one['peak_mib']:>9.0f}")


if __name__ == "__main__":
    main()
