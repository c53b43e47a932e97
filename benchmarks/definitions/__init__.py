"""Reads the definitions: TOML tables, one for each row."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
METRICS = ("rate", "ideal", "first", "memory", "step", "probe")

Row = dict[str, Any]


def read(test: bool) -> list[Row]:
    """All rows in order. With `test`, each row's `test` table replaces what it names: tiny sizes and their own answer."""
    rows: list[Row] = []
    for path in sorted(FOLDER.glob("*.toml")):
        for row in tomllib.loads(path.read_text())["row"]:
            small = row.pop("test")
            row["file"] = path.name
            if test:
                row |= small
            if row["metric"] not in METRICS:
                raise ValueError(f"{path.name}: row {row['name']}: metric {row['metric']!r} is none of {METRICS}")
            rows.append(row)
    return rows


def bless(row: Row, test: bool, count: int, checksum: str) -> None:
    """Writes a row's answer into its file, in place."""
    path = FOLDER / row["file"]
    head, name, rest = path.read_text().partition(f'name = "{row["name"]}"\n')
    body, separator, tail = rest.partition("[[row]]")
    answer, fields = (r'count = \d+, checksum = "\w*"', ", ") if test else (r'^count = \d+\nchecksum = "\w*"', "\n")
    new = f'count = {count}{fields}checksum = "{checksum}"'
    body, found = re.subn(answer, new, body, count=1, flags=re.MULTILINE)
    if not name or not found:
        raise ValueError(f"{path.name}: no place for the answer of row {row['name']}")
    path.write_text(head + name + body + separator + tail)
