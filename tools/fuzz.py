"""Fuzzes every parser: the tests that damage files at random, optimised but with all checks, in turns, with bounded memory.

    python tools/fuzz.py [--seconds 3600] [--only NAME ...] [--log benchmarks/record/fuzz.json]

The log, which is committed, holds what each parser has had; a later run goes on from there with other damage. A crash, a hang (a
file that takes 20 s) or more memory than the bound ends the run with the seed that does it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
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
    """One turn: seconds, tries, and the highest resident memory in bytes. Exits when the parser fails."""
    environment = {**os.environ, "FEEDRATE_FUZZ_SECONDS": str(seconds), "FEEDRATE_FUZZ_FROM": str(first)}
    begun = time.monotonic()
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
    return time.monotonic() - begun, tries, usage.ru_maxrss << 10


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--seconds", type=float, default=3600, help="how long each parser is fuzzed, over all runs of this log")
    parse.add_argument("--each", type=int, default=5, help="seconds for each file of a turn")
    parse.add_argument("--only", nargs="+", choices=PARSERS, default=list(PARSERS))
    parse.add_argument("--log", type=Path, default=ROOT / "benchmarks" / "record" / "fuzz.json")
    parse.add_argument("--show", action="store_true", help="print the log and end")
    given = parse.parse_args()
    had: dict[str, dict[str, float]] = json.loads(given.log.read_text()) if given.log.exists() else {}
    binaries = {} if given.show else build()
    while left := [name for name in given.only if had.get(name, {}).get("seconds", 0) < given.seconds and not given.show]:
        for name in left:
            one = had.setdefault(name, {"seconds": 0, "tries": 0, "peak_mib": 0, "turns": 0})
            binary, test = PARSERS[name]
            # Far from the seeds of earlier turns; each turn takes fewer than 2**32.
            took, tries, peak = fuzz(binaries[binary], test, given.each, int(one["turns"] + 1) << 32)
            one["seconds"] += took
            one["tries"] += tries
            one["turns"] += 1
            one["peak_mib"] = max(one["peak_mib"], peak >> 20)
            given.log.parent.mkdir(parents=True, exist_ok=True)
            given.log.write_text(json.dumps(had, indent=1))
    print(f"{'parser':<12} {'minutes':>8} {'damaged files':>14} {'peak MiB':>9}")
    for name in sorted(had):
        one = had[name]
        print(f"{name:<12} {one['seconds'] / 60:>8.1f} {one['tries']:>14,.0f} {one['peak_mib']:>9.0f}")


if __name__ == "__main__":
    main()
