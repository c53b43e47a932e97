"""Turns measured rows into a table, JSON and plots.

python -m benchmarks.report benchmarks/out/results.json     # prints the table of an earlier run again
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import probing

FOLDER = Path(__file__).parent
OURS = "feedrate"
SPECIAL = ("torch_io", "spdl", "spdl_io", "dali", "turbo")


def pairs(entry: dict[str, Any], engine: str, field: str, higher_is_better: bool, rival: str = "torch") -> list[float]:
    """Ratios of neighbouring measurements, ours over torch's or the other way round, so that more is always better."""
    results = entry["results"]
    if engine not in results or rival not in results:
        return []
    both = zip(results[engine][field], results[rival][field], strict=True)
    return [ours / theirs if higher_is_better else theirs / ours for ours, theirs in both]


def speed(entry: dict[str, Any], engine: str) -> list[float]:
    """How many times as good as torch an engine is in the row's own measure; for `ideal` rows, the part of the ideal."""
    results = entry["results"]
    if engine not in results:
        return []
    match entry["metric"]:
        case "ideal":
            return [r / (entry["ideal"] * entry["workers"]) for r in results[engine]["rates"]]
        case "first":
            return pairs(entry, engine, "firsts", higher_is_better=False)
        case "memory":
            return (
                [ours / theirs for ours, theirs in zip(results[engine]["psses"], results["torch"]["psses"], strict=True)]
                if "torch" in results
                else []
            )
        case _:
            return pairs(entry, engine, "rates", higher_is_better=True)


def verdict(entry: dict[str, Any]) -> str:
    """`aim`, `ok` or `BELOW`, for rows that have a target and in which we were measured."""
    values = speed(entry, OURS)
    if not values or not ("at_least" in entry or "at_most" in entry):
        return ""
    value = statistics.median(values)
    if "at_most" in entry:
        return "aim" if value <= entry["aim"] else "ok" if value <= entry["at_most"] else "BELOW"
    return "aim" if value >= entry["aim"] else "ok" if value >= entry["at_least"] else "BELOW"


def busy(entry: dict[str, Any]) -> bool:
    """Whether threads of a loader waited for a CPU for long: then other programs, not the loaders, decided the ratio."""
    return any(r.get("starved", 0) > 0.5 * max(1, entry["workers"]) for r in entry["results"].values())


def value(entry: dict[str, Any], engine: str) -> str:
    """An engine's own number in the row's unit."""
    result = entry["results"].get(engine)
    if result is None:
        return "-" if engine not in entry["refused"] else "n/a"
    if entry["metric"] == "first":
        return f"{result['first']['median']:.2f} s"
    if entry["metric"] == "memory":
        return f"{result['pss']['median'] / 2**20:.0f} MiB"
    return f"{result['rate']['median']:.4g}/s"


def times(values: list[float]) -> str:
    """A median with its range."""
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} [{min(values):.2f} {max(values):.2f}]"


def grid(head: list[str], body: list[list[str]]) -> list[str]:
    """Columns padded to their widest cell; the first is left-aligned."""
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [head, ["-" * w for w in widths], *body]
    return [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    ]


def main_table(rows: list[dict[str, Any]], others: list[str]) -> list[str]:
    """Speed: torch, ours, the ratio, the targets, then the other loaders' ratios."""
    head = ["row", "w", "torch", OURS, "ratio [low high]", "at least", "aim", "", *others]
    body = []
    for entry in rows:
        body.append(
            [
                entry["title"],
                str(entry["workers"]),
                value(entry, "torch"),
                value(entry, OURS),
                times(speed(entry, OURS)),
                str(entry.get("at_least", entry.get("at_most", ""))),
                str(entry.get("aim", "")),
                verdict(entry) + (" ?" if busy(entry) else ""),
                *(
                    "n/a" if o in entry["refused"] else f"{statistics.median(v):.2f}" if (v := speed(entry, o)) else "-"
                    for o in others
                ),
            ]
        )
    return grid(head, body)


def cost_table(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    """CPU per batch, time to the first batch, memory of the tree without mapped files."""
    head = [
        "row",
        "w",
        *(f"{n} cpu ms" for n in names),
        "cpu ratio",
        *(f"{n} 1st ms" for n in names),
        *(f"{n} MiB" for n in names),
    ]
    body = []
    for entry in rows:
        results = entry["results"]
        cpu = [f"{results[n]['cpu']['median'] * 1e3:.3g}" if n in results else "-" for n in names]
        firsts = [f"{results[n]['first_cold'] * 1e3:.0f}" if n in results and "first_cold" in results[n] else "-" for n in names]
        sizes = []
        for n in names:
            size = results.get(n, {}).get("memory")
            size = size["median"] if isinstance(size, dict) else size
            sizes.append(f"{size / 2**20:.0f}" if size else "-")
        ratio = pairs(entry, OURS, "cpus", higher_is_better=False)
        body.append(
            [
                entry["title"],
                str(entry["workers"]),
                *cpu,
                f"{1 / statistics.median(ratio):.2f}" if ratio else "-",
                *firsts,
                *sizes,
            ]
        )
    return grid(head, body)


def rivals(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str, list[float], str]]:
    """For rows that set a target against each loader: row, rival, ratios of the rates, and how they meet it."""
    found = []
    for entry in rows:
        for rival, (at_least, aim) in entry.get("rivals", {}).items():
            if values := pairs(entry, OURS, "rates", higher_is_better=True, rival=rival):
                middle = statistics.median(values)
                found.append((entry, rival, values, "aim" if middle >= aim else "ok" if middle >= at_least else "BELOW"))
    return found


def rival_table(rows: list[dict[str, Any]]) -> list[str]:
    """Ours against each rival, where the row has targets for them."""
    head = ["row", "w", "against", "its rate", "cpu ms", "ours", "cpu ms", "ratio [low high]", "at least", "aim", ""]
    body = []
    for entry, rival, values, word in rivals(rows):
        cells = []
        for result in (entry["results"][rival], entry["results"][OURS]):
            cells += [f"{result['rate']['median']:.4g}/s", f"{result['cpu']['median'] * 1e3:.3g}"]
        targets = [str(target) for target in entry["rivals"][rival]]
        where = [entry["name"], str(entry["workers"]), rival]
        body.append([*where, *cells, times(values), *targets, word + (" ?" if busy(entry) else "")])
    return grid(head, body)


def scaling_lines(rows: list[dict[str, Any]]) -> list[str]:
    """How much two workers give over one, for each engine of the rows that were measured with both."""
    lines = []
    for name in dict.fromkeys(entry["name"] for entry in rows):
        one, two = ({r["workers"]: r["results"] for r in rows if r["name"] == name}.get(w, {}) for w in (1, 2))
        both = [f"{e} {two[e]['rate']['median'] / one[e]['rate']['median']:.2f}" for e in two if e in one]
        if both:
            lines.append(f"{name}: 2 workers over 1 (not measured in turn): {', '.join(both)}")
    return lines


def step_table(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    """The from-scratch experiment: seconds per step for each number of workers."""
    head = ["workers", *(f"{n} s/step" for n in names), *(f"{n} first epoch" for n in names)]
    body = []
    for entry in rows:
        results = entry["results"]
        line = [str(entry["workers"])]
        for field in ("seconds_a_step", "seconds_a_step_cold"):
            for n in names:
                found = results.get(n, {}).get(field)
                found = found["median"] if isinstance(found, dict) else found
                line.append(f"{found:.4f}" if found else "n/a" if n in entry["refused"] else "-")
        body.append(line)
    return grid(head, body)


def losses(rows: list[dict[str, Any]], others: list[str]) -> list[str]:
    """Everything that does not speak for us, in plain words."""
    found = []
    for entry in rows:
        where = f"{entry['title']}, {entry['workers']} workers"
        if entry.get("failed"):
            found.append(f"{where}: FAILED: {entry['failed'].strip().splitlines()[-1]}")
        values = speed(entry, OURS)
        if not values:
            continue
        ours = statistics.median(values)
        target = entry.get("at_least", entry.get("at_most"))
        if verdict(entry) == "BELOW":
            found.append(f"{where}: {ours:.2f}, the target is {target}{' (machine too busy to tell)' if busy(entry) else ''}")
        lower = entry["metric"] == "memory"
        if entry["metric"] not in ("ideal",) and (ours > 1 if lower else ours < 1):
            found.append(f"{where}: {ours:.3f} of torch")
        cpu = pairs(entry, OURS, "cpus", higher_is_better=False)
        if cpu and statistics.median(cpu) < 1:
            found.append(f"{where}: {1 / statistics.median(cpu):.2f} times torch's CPU seconds a batch")
        for other in others:
            theirs = speed(entry, other)
            if theirs and (statistics.median(theirs) < ours if lower else statistics.median(theirs) > ours):
                found.append(f"{where}: {other} is better ({statistics.median(theirs):.3f} against {ours:.3f})")
    return found


def text(record: dict[str, Any]) -> str:
    """The whole report as text."""
    names = [n for n in ("torch", OURS, "stateful", "spdl") if n in record["engines"]]
    others = [n for n in names if n not in ("torch", OURS)]
    table = [r for r in record["rows"] if r["metric"] not in ("step", "probe")]
    # Rows of images have engines that no other row has.
    special = [n for n in SPECIAL if n in record["engines"]]
    images = [r for r in table if r["name"].startswith(("photos", "pixels"))]
    table = [r for r in table if r not in images]
    orders = [r for r in record["rows"] if r["metric"] == "probe"]
    steps = [r for r in record["rows"] if r["metric"] == "step"]
    about = record["machine"]
    lines = [
        f"{about['date']}  {about['cpu']}, {about['cpus']} cpus, {about['memory_mib']} MiB, Linux {about['kernel']}, Python {about['python']}, {about['libc']}",
        f"allocator: {about['allocator']}; load before the run {about['load_before']:.1f}",
        "; ".join(record["engines"].values()) + "".join(f"; {n} left out ({why})" for n, why in record["missing"].items()),
        f"Each engine at its {'best' if record['tuned'] else 'usual'} setting. Ratios are medians of neighbouring pairs of epochs, against torch with the same number of",
        "workers; more is better, but for memory, where less is. Rows with waiting give the part of the ideal rate.",
        "A ? means that threads waited long for a CPU in that row: the machine was too busy, the ratio says little.",
        "",
    ]
    if table:
        lines += [*main_table(table, others), "", *cost_table(table, names), ""]
    if images:
        lines += [*main_table(images, special), "", *cost_table(images, ["torch", OURS, *special]), ""]
        if any("rivals" in entry for entry in images):
            lines += [*rival_table(images), ""]
        lines += [*scaling_lines(images), ""]
    if steps:
        lines += [steps[0]["title"], *step_table(steps, names), ""]
    if orders:
        lines += [*probing.table(orders, grid), ""]
    lost = losses(table + steps, others) + losses(images, special)
    lost += [
        f"{entry['title']}, {entry['workers']} workers: {statistics.median(values):.2f} of {rival}, the target is {entry['rivals'][rival][0]}"
        for entry, rival, values, word in rivals(images)
        if word == "BELOW"
    ]
    lost += [line for entry in orders for line in probing.losses(entry)]
    lines += ["Where we lose or miss the target:", *(f"  {line}" for line in lost or ["nothing found"]), ""]
    refused = {(n, why) for r in record["rows"] for n, why in r["refused"].items()}
    lines += [f"n/a: {n}: {why}" for n, why in sorted(refused)]
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], folder: Path) -> None:
    """Two pictures: ratios for each row, and seconds per step over the number of workers."""
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no plots", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    colours = {"torch": "#888888", OURS: "#d1495b", "stateful": "#66a182", "spdl": "#2e4057"}
    bars = [r for r in record["rows"] if r["metric"] in ("rate", "first") and speed(r, OURS)]
    if bars:
        figure, axis = pyplot.subplots(figsize=(10, 0.42 * len(bars) + 1.6))
        names = [n for n in (OURS, "stateful", "spdl") if n in record["engines"]]
        for place, entry in enumerate(reversed(bars)):
            for shift, name in enumerate(names):
                values = speed(entry, name)
                if values:
                    axis.barh(
                        place + 0.27 - shift * 0.27,
                        statistics.median(values),
                        0.25,
                        color=colours[name],
                        label=name if place == 0 else None,
                    )
            for mark, style in (("at_least", "|"), ("aim", "D")):
                if mark in entry:
                    axis.plot(entry[mark], place + 0.27, style, color="black", markersize=9 if style == "|" else 4)
        axis.axvline(1, color=colours["torch"], linewidth=1)
        axis.set_xscale("log")
        axis.set_yticks(range(len(bars)), [f"{r['title']}, w={r['workers']}" for r in reversed(bars)], fontsize=8)
        axis.set_xlabel("times torch's DataLoader at its best setting (log scale; | at least, ◆ aim)")
        axis.legend(handles=[Patch(color=colours[name], label=name) for name in names], loc="lower right")
        figure.tight_layout()
        figure.savefig(folder / "ratios.png", dpi=110)
    steps = [r for r in record["rows"] if r["metric"] == "step"]
    if steps:
        figure, axis = pyplot.subplots(figsize=(7, 4.2))
        for name in record["engines"]:
            points = [(r["workers"], r["results"][name]["seconds_a_step"]["median"]) for r in steps if name in r["results"]]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", color=colours.get(name), label=name)
        axis.axhline(0.1, color="black", linestyle=":", linewidth=1, label="the step alone")
        axis.set_xlabel("workers")
        axis.set_ylabel("seconds per step")
        axis.set_title(steps[0]["title"], fontsize=10)
        axis.legend()
        figure.tight_layout()
        figure.savefig(folder / "scratch.png", dpi=110)


def write(record: dict[str, Any], keep: bool) -> None:
    """Prints the report and writes it; with `keep` also into the folder of records, by machine and date."""
    folders = [FOLDER / "out"]
    if keep:
        about = record["machine"]
        name = "".join(c if c.isalnum() else "-" for c in f"{about['date'][:10]} {about['cpus']}cpu {about['cpu']}".lower())
        folders.append(FOLDER / "record" / "-".join(filter(None, name.split("-"))))
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(record, indent=1) + "\n")
        (folder / "table.txt").write_text(text(record))
        plot(record, folder)
    print(text(record))
    print(f"written to {', '.join(str(f.relative_to(FOLDER.parent)) for f in folders)}")


if __name__ == "__main__":
    print(text(json.loads(Path(sys.argv[1]).read_text())), end="")
