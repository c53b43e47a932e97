"""The documents: every Python example runs, every link and every command named exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.nocheck  # nothing here runs a loader in this process

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    document: Path
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> list[tuple[str, int, str]]:
    """The fenced blocks of a document: language, line of the fence, content."""
    text = document.read_text()
    return [(m[1], text.count("\n", 0, m.start()) + 1, m[2]) for m in FENCE.finditer(text)]


EXAMPLES = [
    Example(document, line, code) for document in DOCUMENTS for language, line, code in blocks(document) if language == "python"
]


def test_there_are_examples() -> None:
    documents = {example.document.name for example in EXAMPLES}
    assert {"README.md", "loader.md", "differences.md", "resume.md"} <= documents


@pytest.mark.ours
@pytest.mark.watchdog(180)
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_example_runs_as_a_script(example: Example, tmp_path: Path) -> None:
    # Padded with empty lines, so that a traceback names the line of the document.
    script = tmp_path / "example.py"
    script.write_text("\n" * example.line + example.code)
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, f"{example} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    prose = FENCE.sub("", document.read_text())
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = document if not path else (document.parent / path)
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def anchors(document: Path) -> set[str]:
    """The anchors of the headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_commands_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = document.read_text()
    inline = "\n".join(re.findall(r"`(make [^`]+)`", text))
    fenced = "\n".join(content for language, _, content in blocks(document) if language in {"", "text", "sh"})
    named = re.findall(r"^make (?:[A-Z]+=\S+ )*([a-z0-9-]+)", f"{inline}\n{fenced}", re.MULTILINE)
    assert set(named) <= targets


def test_python_files_and_paths_named_in_the_documents_exist() -> None:
    missing = []
    for document in DOCUMENTS:
        for path in re.findall(r"`((?:crates|python|docs|tests|tools|examples|benchmarks)/[\w./-]+)`", document.read_text()):
            if not (ROOT / path).exists():
                missing.append(f"{document.name}: {path}")
    assert not missing
