"""Runs the benchmark: engines take turns within each row, answers are verified, results are written three ways.

    python -m benchmarks.run [--only images,ints] [--workers 1,2] [--engines torch,feedrate] [--epochs 5] [--memory] [--record]
    python -m benchmarks.run --test          # tiny sizes, answers verified, no timing judged: for CI

Results go to benchmarks/out (JSON, the table as text, the plots); `--record` also puts them into benchmarks/record.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import definitions, engines, probing, procs
from benchmarks.client import ROOT, Failed, Measured, environment, opened
from benchmarks.definitions import Row

Result = dict[str, Any]


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?"
    )
    total = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    allocator = {
        name: value for name, value in os.environ.items() if name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"))
    }
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "allocator": allocator or "glibc malloc, default settings",
        "load_before": os.getloadavg()[0],
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def summary(turns: list[dict[str, Any]], cold: dict[str, Any], setting: dict[str, Any]) -> Result:
    """The numbers of one engine in one row. CPU is in seconds a batch."""
    return {
        "setting": setting,
        "rate": spread([t["rate"] for t in turns]),
        "rates": [t["rate"] for t in turns],
        "first_cold": cold["first"],
        "first_warm": spread([t["first"] for t in turns]),
        "cpu": spread([t["cpu"] for t in turns]),
        "cpus": [t["cpu"] for t in turns],
        "switches": statistics.median(t["switches"] for t in turns),
        "starved": statistics.median(t["starved"] for t in turns),
        "seconds_a_step": spread([t["seconds_a_step"] for t in turns]),
        "seconds_a_step_cold": (cold["first"] + cold["rest"]) / cold["count"],
    }


def turn(measured: Measured, seconds: float) -> dict[str, Any]:
    """An engine's turn: epochs until at least `seconds` have passed, added up, so that fast loaders are timed as long as slow ones."""
    epochs = [measured.epoch()]
    while sum(e["first"] + e["rest"] for e in epochs) < seconds:
        epochs.append(measured.epoch())
    if len({e["last"] for e in epochs}) > 1:
        raise Failed(f"{measured.engine}: the last batch of row {measured.row['name']} changed between epochs")
    count = sum(e["count"] for e in epochs)
    return {
        "rate": sum(e["count"] - 1 for e in epochs) / sum(e["rest"] for e in epochs),
        "first": statistics.median(e["first"] for e in epochs),
        "seconds_a_step": sum(e["first"] + e["rest"] for e in epochs) / count,
        "cpu": sum(e["cpu"] for e in epochs) / count,
        "switches": sum(e["switches"] for e in epochs) / count,
        "starved": sum(e["starved"] for e in epochs) / sum(e["first"] + e["rest"] for e in epochs),
        "last": epochs[0]["last"],
    }


def tune(row: Row, measured: list[Measured]) -> tuple[int, Result]:
    """The fastest of an engine's settings: all are warmed up, then take turns for two epochs."""
    if len(measured) == 1:
        return 0, {}
    for each in measured:
        each.epoch()
    rates: list[list[float]] = [[] for _ in measured]
    for _ in range(2):
        for each, found in zip(measured, rates, strict=True):
            found.append(turn(each, 0.5)["rate"])
    medians = [statistics.median(found) for found in rates]
    return medians.index(max(medians)), {json.dumps(m.setting): r for m, r in zip(measured, medians, strict=True)}


def steady(row: Row, names: list[str], workers: int, options: argparse.Namespace) -> dict[str, Result]:
    """Rows about throughput: the best setting of each engine is found, then come a verified warm-up epoch and epochs in turn."""
    epochs = 1 if options.test else min(options.epochs, row.get("epochs", options.epochs))
    results: dict[str, Result] = {}
    with ExitStack() as stack:
        best: dict[str, Measured] = {}
        for name in names:
            settings = engines.load(name).settings(row, workers)
            if options.test or options.no_tune:
                settings = settings[:1]
            candidates = [stack.enter_context(opened(row, name, workers, setting)) for setting in settings]
            chosen, tuning = tune(row, candidates)
            best[name] = candidates[chosen]
            results[name] = {"tuning": tuning}
            for measured in candidates:
                if measured is not best[name]:
                    measured.close()
        cold = {name: measured.epoch(verify=True) for name, measured in best.items()}
        timed: dict[str, list[dict[str, Any]]] = {name: [] for name in best}
        for _ in range(epochs):
            for name, measured in best.items():
                timed[name].append(turn(measured, 0 if options.test else 0.7))
        for name, measured in best.items():
            results[name] |= summary(timed[name], cold[name], measured.setting)
    if options.memory:
        for name in names:
            with opened(row, name, workers, best[name].setting, fresh=True) as alone:
                alone.epoch()
                with procs.PeakMemory(alone.pid, every=0.02) as peak:
                    alone.epoch()
            results[name]["memory"] = peak.peak["private"]
    return results


def first(row: Row, names: list[str], workers: int, repeats: int, fresh: bool) -> dict[str, Result]:
    """Rows about the first batch: a fresh process for each repetition, engines in turn."""
    settings = {name: engines.load(name).settings(row, workers)[0] for name in names}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for repeat in range(repeats + 1):
        for name in names:
            with opened(row, name, workers, settings[name], fresh) as measured:
                epoch = measured.epoch(verify=True, stop_after=1)
            # Pickling a dataset for the workers happens when SPDL's loader is built, and at iter() in the others.
            epoch["first"] += epoch["built"]
            if repeat or not repeats:  # the first round only warms the page cache
                found[name].append(epoch)
    return {
        name: {
            "setting": settings[name],
            "first": spread([e["first"] for e in epochs]),
            "firsts": [e["first"] for e in epochs],
            "cpu": spread([e["cpu"] for e in epochs]),
            "cpus": [e["cpu"] for e in epochs],
        }
        for name, epochs in found.items()
    }


def memory(row: Row, names: list[str], workers: int, repeats: int, fresh: bool) -> dict[str, Result]:
    """Rows about memory: a fresh process, alone, one epoch, the peak over the whole tree."""
    settings = {name: engines.load(name).settings(row, workers)[0] for name in names}
    peaks: dict[str, list[dict[str, int]]] = {name: [] for name in names}
    cpus: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            with opened(row, name, workers, settings[name], fresh) as measured:
                with procs.PeakMemory(measured.pid) as peak:
                    epoch = measured.epoch(verify=True)
            peaks[name].append(peak.peak)
            cpus[name].append(epoch["cpu"] / epoch["count"])
    return {
        name: {
            "setting": settings[name],
            "pss": spread([float(p["pss"]) for p in peaks[name]]),
            "psses": [float(p["pss"]) for p in peaks[name]],
            "memory": spread([float(p["private"]) for p in peaks[name]]),
            "cpu": spread(cpus[name]),
            "cpus": cpus[name],
        }
        for name in names
    }


def measure(row: Row, names: list[str], workers: int, options: argparse.Namespace) -> dict[str, Result]:
    """One row with one number of workers."""
    if row["metric"] == "first":
        return first(row, names, workers, 0 if options.test else options.epochs, fresh=not options.test)
    if row["metric"] == "memory":
        return memory(row, names, workers, 1 if options.test else min(options.epochs, 3), fresh=not options.test)
    if row["metric"] == "probe":
        return probing.measure(
            row, names, workers, 1 if options.test else min(options.epochs, row.get("epochs", 5)), not options.test
        )
    return steady(row, names, workers, options)


def bless(test: bool, only: list[str] | None) -> None:
    """Writes the answers of the rows, as torch's loader gives them without workers and without waiting."""
    for row in definitions.read(test):
        if only is not None and row["name"] not in only:
            continue
        if row["metric"] == "probe":
            answer = probing.answer(row)
            definitions.bless(row, test, answer["count"], answer["checksum"])
            say(f"{row['name']}: {answer['count']}, {answer['checksum']}")
            continue
        params = dict(row.get("params", {}))
        params |= {"seconds": 0.0} if "seconds" in params else {}
        inline = row | {"checksum": "", "step": 0.0, "params": params}
        with opened(inline, "torch", 0, {}) as measured:
            answer = measured.epoch(verify=True, stop_after=1 if row["metric"] == "first" else None)
        definitions.bless(row, test, answer["count"], answer["checksum"])
        say(f"{row['name']}: {answer['count']} batches, {answer['checksum']}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", action="store_true", help="tiny sizes; answers are verified, times are not judged")
    parser.add_argument("--only", help="names of rows, separated by commas")
    parser.add_argument("--workers", help="numbers of workers, separated by commas, of those the row has")
    parser.add_argument("--engines", default=",".join(engines.NAMES), help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs for each engine (default: 5)")
    parser.add_argument("--no-tune", action="store_true", help="each engine with its usual setting instead of its best one")
    parser.add_argument("--memory", action="store_true", help="also measure the memory of each engine in the rows about speed")
    parser.add_argument("--record", action="store_true", help="also write the results into benchmarks/record")
    parser.add_argument("--bless", action="store_true", help="compute the answers anew and write them into the definitions")
    return parser.parse_args()


def available(wanted: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The versions of the engines that can be imported, and the reasons for those that cannot."""
    versions, missing = {}, {}
    for name in wanted:
        try:
            versions[name] = engines.load(name).version()
        except ImportError as error:
            missing[name] = str(error)
    return versions, missing


def main() -> int:
    options = arguments()
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.update({k: v for k, v in environment().items() if k.endswith("_NUM_THREADS")})
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    # As pip does for what it installs, torch among it: otherwise each process would compile our modules anew, where bytecode is not written.
    compileall.compile_dir(ROOT / "python", quiet=1)
    versions, missing = available(options.engines.split(","))
    only = options.only.split(",") if options.only else None
    if options.bless:
        bless(False, only)
        bless(True, only)
        return 0
    for name, reason in missing.items():
        say(f"{name}: left out: {reason}")
    wanted = [int(w) for w in options.workers.split(",")] if options.workers else None
    record: dict[str, Any] = {
        "machine": machine(),
        "engines": versions,
        "missing": missing,
        "tuned": not options.no_tune,
        "rows": [],
    }
    failures = 0
    started = time.monotonic()
    rows = [row for row in definitions.read(options.test) if only is None or row["name"] in only]
    for number, row in enumerate(rows, 1):
        lacking = [name for name in row.get("needs", []) if importlib.util.find_spec(name) is None]
        if lacking:
            say(f"{row['name']}: left out: {', '.join(lacking)} not installed")
            missing |= dict.fromkeys(lacking, "not installed")
            continue
        versions |= {name: f"{name} {importlib.metadata.version(name)}" for name in row.get("needs", [])}
        for workers in row["workers"][-1:] if options.test and row["metric"] != "step" else row["workers"]:
            if wanted is not None and workers not in wanted:
                continue
            say(f"[{time.monotonic() - started:5.0f} s] {number}/{len(rows)} {row['name']}, {workers} workers")
            names = [name for name in row["engines"] if name in versions and name in engines.NAMES]
            refused = {name: reason for name in names if (reason := engines.load(name).refuses(row, workers))}
            entry: dict[str, Any] = {**{k: row[k] for k in ("name", "title", "metric")}, "workers": workers, "refused": refused}
            entry |= {k: row[k] for k in ("at_least", "at_most", "aim", "ideal", "against", "value", "rivals") if k in row}
            names = [name for name in names if name not in refused]
            try:
                entry["results"] = measure(row, names, workers, options)
            except Failed as error:
                failures += 1
                entry |= {"results": {}, "failed": str(error)}
                say(f"FAILED: {error}")
            record["rows"].append(entry)
    record["seconds"] = time.monotonic() - started
    if options.test:
        say(
            f"{len(record['rows'])} cases, {failures} failed; every answer was verified" if not failures else f"{failures} FAILED"
        )
        return 1 if failures or "torch" in missing or "feedrate" in missing else 0
    from benchmarks import report

    report.write(record, options.record)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
