"""Rows about orders and states, seen from outside: engines in turn, each probe in a fresh process; and their table."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import probes
from benchmarks.client import Measured
from benchmarks.definitions import Row

OURS = "feedrate"
UNITS: dict[str, Callable[[float], str]] = {
    "seconds": lambda value: (
        f"{value:.3g} s" if value >= 0.1 else f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"
    ),
    "times": lambda value: f"{value:.2f} x",
    "bytes": lambda value: f"{value / 2**20:.0f} MiB" if value >= 2**20 else f"{value:.0f} B",
}


def engines_of(row: Row, names: list[str]) -> list[str]:
    """The engines that are measured: with what ours is held against, be it a loader or not."""
    against = [row["against"]] if row.get("against") and row["against"] not in names else []
    return [*against, *names]


def measure(row: Row, names: list[str], workers: int, repeats: int, fresh: bool) -> dict[str, dict[str, Any]]:
    """The values of each engine. What takes its time beforehand (`prepare`) is made once for each engine."""
    row = row | {"params": row["params"] | {"value": row["value"]}}
    names = engines_of(row, names)
    made: dict[str, Any] = {}
    for name in names:
        if row["probe"] in probes.PREPARE:
            made[name] = _in_process(name, fresh, lambda measured: measured.prepare(row, workers))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            given = made.get(name)
            found[name].append(_in_process(name, fresh, lambda measured, given=given: measured.probe(row, workers, given)))
    return {
        name: {
            "values": [a["value"] for a in answers],
            "value": statistics.median(a["value"] for a in answers),
            "cpus": [a["cpu"] for a in answers],
            "cpu": {"median": statistics.median(a["cpu"] for a in answers)},
            "peak": max(a["peak"] for a in answers),
            "note": answers[-1].get("note", ""),
        }
        for name, answers in found.items()
    }


def _in_process(name: str, fresh: bool, ask: Callable[[Measured], Any]) -> Any:
    measured = Measured(name, fresh, answer_seconds=1800)
    try:
        return ask(measured)
    finally:
        measured.close()


def answer(row: Row) -> dict[str, Any]:
    """What `--bless` writes: torch's answer, or ours where torch has none."""
    name = "torch" if "torch" in row["engines"] else OURS
    row = row | {"checksum": "", "params": row["params"] | {"value": row["value"]}}
    workers = row["workers"][0]
    given = None
    if row["probe"] in probes.PREPARE:
        given = _in_process(name, True, lambda measured: measured.prepare(row, workers))
    found: dict[str, Any] = _in_process(name, True, lambda measured: measured.probe(row, workers, given))
    return found


def ratios(entry: dict[str, Any]) -> list[float]:
    """Ours against the other engine, of neighbouring measurements: times as good where more is asked for (`at_least`), the part
    of it where less is (`at_most`). Without another engine, our values themselves."""
    results = entry["results"]
    if OURS not in results:
        return []
    ours = results[OURS]["values"]
    if not entry.get("against"):
        return list(ours)
    if entry["against"] not in results:
        return []
    both = list(zip(ours, results[entry["against"]]["values"], strict=True))
    if "at_least" in entry:
        return [theirs / max(mine, 1e-9) for mine, theirs in both]
    return [mine / max(theirs, 1e-9) for mine, theirs in both]


def misses(entry: dict[str, Any]) -> bool:
    """Whether the row is measured and below its target."""
    found = ratios(entry)
    if not found:
        return False
    value = statistics.median(found)
    return value > entry["at_most"] if "at_most" in entry else value < entry["at_least"]


def table(rows: list[dict[str, Any]], grid: Callable[[list[str], list[list[str]]], list[str]]) -> list[str]:
    """Orders and states: each engine's value, the ratio and the target, then CPU seconds and growth of the process."""
    head = ["order or state", "w", "against", "its value", OURS, "ratio [low high]", "target", "", "cpu s", "peak MiB", "others"]
    body = []
    for entry in rows:
        unit, results, found = UNITS[entry["value"]], entry["results"], ratios(entry)
        against = entry.get("against", "")
        target = f">= {entry['at_least']:g}" if "at_least" in entry else f"<= {entry['at_most']:g}"
        if found and against:
            spread = f"{statistics.median(found):.3g} [{min(found):.3g} {max(found):.3g}]"
        else:
            spread = f"[{unit(min(found))} {unit(max(found))}]" if found else "-"
            target = f">= {unit(entry['at_least'])}" if "at_least" in entry else f"<= {unit(entry['at_most'])}"
        both = [name for name in (against, OURS) if name in results]
        notes = [f"{name}: {unit(results[name]['value'])}" for name in results if name not in both]
        notes += [f"{name}: {results[name]['note']}" for name in results if results[name]["note"]]
        body.append(
            [
                entry["title"],
                str(entry["workers"]),
                against or "-",
                unit(results[against]["value"]) if against in results else "-",
                unit(results[OURS]["value"]) if OURS in results else "-",
                spread,
                target,
                ("BELOW" if misses(entry) else "ok") if found else "",
                " / ".join(f"{results[name]['cpu']['median']:.3g}" for name in both),
                " / ".join(f"{results[name]['peak'] / 2**20:.0f}" for name in both),
                "; ".join(notes),
            ]
        )
    return grid(head, body)


def losses(entry: dict[str, Any]) -> list[str]:
    """What does not speak for us in a row."""
    where = f"{entry['title']}, {entry['workers']} workers"
    found = ratios(entry)
    if entry.get("failed"):
        return [f"{where}: FAILED: {entry['failed'].strip().splitlines()[-1]}"]
    lines = []
    if misses(entry):
        target = entry.get("at_least", entry.get("at_most"))
        lines.append(f"{where}: {statistics.median(found):.3g}, the target is {target:g}")
    results = entry["results"]
    for name, other in results.items():
        if name == OURS or OURS not in results:
            continue
        if other["value"] < results[OURS]["value"]:
            unit = UNITS[entry["value"]]
            lines.append(f"{where}: {name} needs less ({unit(other['value'])} against {unit(results[OURS]['value'])})")
        if other["cpu"]["median"] < results[OURS]["cpu"]["median"]:
            lines.append(
                f"{where}: {results[OURS]['cpu']['median'] / max(other['cpu']['median'], 1e-9):.2f} times {name}'s CPU seconds"
            )
    return lines
