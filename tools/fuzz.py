"""Fuzzes every parser with libFuzzer, which looks for inputs that reach new code, in turns.

    python tools/fuzz.py [--seconds 3600] [--jobs 2] [--only NAME ...] [--log benchmarks/record/fuzz.json]

Seeds are the files that the tests damage; what was found to reach new code is kept under target/fuzz-corpus. Our code has all its
checks on, that of other crates is as users have it. A crash, a panic that no guard of ours catches, a file that takes a minute or
more than 256 MiB on the heap ends that parser's part of the run, which fails at its end, and the file is kept. The log, which is
committed, holds what each parser has had; a later run goes on from there. Time is that of the CPU, so that a machine with other work
does not count as fuzzing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "target" / "fuzz-corpus"
FOUND = ROOT / "target" / "fuzz-found"

#: Each parser and the test whose files are its seeds.
PARSERS = {
    "tar": "sources::hostile::damaged_archives",
    "jsonl": "sources::hostile::damaged_lines",
    "csv": "sources::hostile::damaged_rows",
    "compression": "sources::hostile::damaged_compression",
    "parquet": "source::parquet::tests::damaged_files_end_in_errors",
    "arrow": "source::arrow::tests::damaged_files_end_in_errors",
    "tfrecord": "source::tfrecord::tests::damaged_files_end_in_errors",
    "npy": "source::npy::tests::damaged_files_end_in_errors",
    "mds": "source::mds::tests::damaged_files_end_in_errors",
    "tokens": "source::tokens::tests::damaged_files_end_in_errors",
    "hdf5": "source::hdf5::tests::damaged_files_end_in_errors",
    "jpeg": "decode::fuzz::jpeg",
    "png": "decode::fuzz::png",
    "webp": "decode::fuzz::webp",
    "gif": "decode::fuzz::gif",
    "bmp": "decode::fuzz::bmp",
    "pnm": "decode::fuzz::pnm",
    "tiff": "decode::fuzz::tiff",
}
#: What libFuzzer needs of the compiler, as cargo-fuzz gives it, without sanitizers, which need a nightly compiler.
INSTRUMENTED = [
    "passes=sancov-module",
    "llvm-args=-sanitizer-coverage-level=4",
    "llvm-args=-sanitizer-coverage-inline-8bit-counters",
    "llvm-args=-sanitizer-coverage-pc-table",
    "llvm-args=-sanitizer-coverage-trace-compares",
]
#: Address space of a run: for what C allocates; Rust's heap has a bound of its own.
MEMORY = 4 << 30


def cargo(*words: str, flags: str = "") -> list[str]:
    """The executables that it makes."""
    environment = {**os.environ, "RUSTFLAGS": flags} if flags else None
    run = subprocess.run(
        ["cargo", *words, "--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    messages = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return [m["executable"] for m in messages if m.get("executable")]


def build() -> str:
    """The fuzzer, for the machine's own target by name: scripts of builds are not instrumented then."""
    version = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True).stdout
    host = next(line.split()[1] for line in version.splitlines() if line.startswith("host:"))
    words = ["build", "--profile", "fuzz", "-p", "feedrate-fuzz", "--features", "engine", "--target", host]
    (fuzzer,) = cargo(*words, flags=" ".join(f"-C{flag}" for flag in INSTRUMENTED))
    return fuzzer


def seeds() -> None:
    """The files of the tests, into each parser's corpus."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FEEDRATE_FUZZ_SEEDS": folder}
        for binary in cargo("test", "-p", "feedrate", "--all-features", "--lib", "--test", "it", "--no-run"):
            command = [binary, "--exact", *PARSERS.values(), "--quiet"]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        for name, test in PARSERS.items():
            into = CORPUS / name
            into.mkdir(parents=True, exist_ok=True)
            files = list(Path(folder).glob(test.replace("::", ".") + "-*"))
            if not files:
                sys.exit(f"{name}: no seeds of {test}")
            for file in files:
                (into / file.name).write_bytes(file.read_bytes())


class Failed(Exception):
    """What a parser that failed wrote last."""


def fuzz(fuzzer: str, name: str, seconds: int, seed: int) -> dict[str, float]:
    """One turn. `Failed` when the parser does."""
    FOUND.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # As in the fuzzer: what a page of Parquet may say of its size.
        memory = 1024 + (2048 if name == "parquet" else 0)
        command = [
            fuzzer,
            str(CORPUS / name),
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            "-timeout=60",
            f"-rss_limit_mb={memory}",
        ]
        child = subprocess.Popen(
            [*command, f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1"],
            env={**os.environ, "FEEDRATE_FUZZ": name, "TMPDIR": folder, "RUST_BACKTRACE": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        resource.prlimit(child.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
        assert child.stderr is not None
        output = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)

    def number(pattern: str) -> int:
        found = re.findall(pattern, output)
        return int(found[-1]) if found else 0

    tries = number(r"stat::number_of_executed_units: +(\d+)")
    if status != 0 or tries == 0:
        again = shlex.join(["env", f"FEEDRATE_FUZZ={name}", fuzzer])
        said = [line for line in output.splitlines() if not line.startswith("#")]
        raise Failed("\n".join([*said[-60:], f"{name}: status {status}; again: {again} FILE"]))
    return {
        "seconds": usage.ru_utime + usage.ru_stime,
        "tries": tries,
        "edges": number(r" cov: (\d+)"),
        "corpus": number(r" corp: (\d+)"),
        "peak_mib": usage.ru_maxrss >> 10,
    }


class Log:
    """What each parser has had, in a file that is whole at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.had: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self.failed: list[str] = []
        self.stopped = False

    def take(self, names: list[str], seconds: float) -> tuple[str, int, float] | None:
        """Of these parsers the one that has had the least, no other job is at and is not done, its turn's number, and the seconds that it
        is to have."""
        with self._lock:
            had = {name: self.had.get(name, {}).get("seconds", 0) for name in names}
            free = [name for name in names if name not in self._taken and had[name] < seconds]
            if not free or self.stopped:
                return None
            name = min(free, key=lambda name: had[name])
            self._taken.add(name)
            return name, int(self.had.get(name, {}).get("turns", 0)) + 1, seconds - had[name]

    def give(self, name: str, turn: dict[str, float]) -> None:
        """A turn's figures: those that add up, and the highest of the others."""
        with self._lock:
            had = self.had.setdefault(name, {})
            for key in ("seconds", "tries"):
                had[key] = round(had.get(key, 0) + turn[key], 1)
            for key in ("edges", "corpus", "peak_mib"):
                had[key] = max(had.get(key, 0), turn[key])
            had["turns"] = had.get("turns", 0) + 1
            self._taken.remove(name)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self.had, indent=1) + "\n")
            new.replace(self.path)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--seconds", type=float, default=3600, help="CPU time of each parser, over all runs of this log")
    parse.add_argument("--each", type=int, default=120, help="seconds of a turn")
    parse.add_argument("--jobs", type=int, default=1, help="parsers at a time")
    parse.add_argument("--only", nargs="+", choices=PARSERS, default=list(PARSERS))
    parse.add_argument("--log", type=Path, default=ROOT / "benchmarks" / "record" / "fuzz.json")
    parse.add_argument("--show", action="store_true", help="print the log and end")
    given = parse.parse_args()
    log = Log(given.log)

    def turns(fuzzer: str) -> None:
        while turn := log.take(given.only, given.seconds):
            name, number, left = turn
            # A turn ends by the clock; with more jobs than cores that is more than it has of a core.
            each = min(given.each, max(10, math.ceil(1.5 * left)))
            try:
                log.give(name, fuzz(fuzzer, name, each, number))
            except Failed as failed:
                # It stays taken: no job tries it again.
                print(failed, flush=True)
                log.failed.append(name)

    if not given.show:
        fuzzer = build()
        seeds()
        pool = ThreadPoolExecutor(given.jobs)
        jobs = [pool.submit(turns, fuzzer) for _ in range(given.jobs)]
        try:
            for job in jobs:
                job.result()
        finally:
            log.stopped = True
            pool.shutdown()
    print(f"{'parser':<12} {'CPU minutes':>12} {'files tried':>14} {'corpus':>8} {'edges':>8} {'peak MiB':>9}")
    for name, had in sorted(log.had.items()):
        minutes, tries = had["seconds"] / 60, had["tries"]
        print(f"{name:<12} {minutes:>12.1f} {tries:>14,.0f} {had['corpus']:>8,.0f} {had['edges']:>8,.0f} {had['peak_mib']:>9.0f}")
    if log.failed:
        sys.exit(f"failed: {', '.join(log.failed)}; see {FOUND}")


if __name__ == "__main__":
    main()
