"""Rules of the repository that no linter checks."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.nocheck  # nothing here runs a loader

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 800


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None


def test_source_files_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {lines}"
        for path in tracked()
        if path.suffix in {".rs", ".py", ".sh"} and (lines := len((text_of(path) or "").splitlines())) > MOST_LINES
    ]
    assert not long


def test_nothing_names_a_machine_or_a_registry_host() -> None:
    # Pieced together, so that this file does not hold what it looks for.
    hosts = [".".join(parts) for parts in (("deb", "debian", "org"), ("files", "pythonhosted", "org"), ("pypi", "org"))]
    homes = ["/" + place + "/" for place in ("work", "root")]
    pattern = re.compile("|".join(map(re.escape, hosts + homes)))
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked()
        if path.name != "Cargo.lock" and (match := pattern.search(text_of(path) or ""))
    ]
    assert not found


def test_no_open_ends() -> None:
    pattern = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|todo!\(|unimplemented!\(")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked()
        if path.suffix in {".rs", ".py", ".pyi", ".md", ".sh", ".toml"} and (match := pattern.search(text_of(path) or ""))
    ]
    assert not found


def test_unsafe_opts_in_only_where_architecture_says() -> None:
    opted = {
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.suffix == ".rs" and re.search(r"(?:allow|expect)\(\s*unsafe_code", text_of(path) or "")
    }
    elsewhere = {path for path in opted if not path.startswith(("crates/feedrate-shm/", "crates/feedrate-py/"))}
    decode = "crates/feedrate/src/decode"
    # What calls C, what uses vector instructions, and tests of the first.
    allowed = {
        "jpeg/ffi.rs",
        "webp/ffi.rs",
        "resample/avx2.rs",
        "transform/wide.rs",
        "transform/colour.rs",
        "fuzz.rs",
        "jpeg/tests.rs",
    }
    random = {f"crates/feedrate/src/random/{name}.rs" for name in ("ahead", "remainders")}
    assert elsewhere == {f"{decode}/{name}" for name in allowed} | random


def test_the_engine_does_not_know_what_it_moves() -> None:
    """The wall of ARCHITECTURE: plan, work and deliver use no room of pipelines and formats."""
    engine = [ROOT / "crates" / "feedrate" / "src" / room for room in ("plan", "work", "deliver")]
    rooms = re.compile(r"crate::(?:\{[^}]*\b)?(?:pipeline|source|decode|store)\b")
    files = [path for path in tracked() if path.suffix == ".rs" and any(room in path.parents for room in engine)]
    assert len(files) > 5
    assert not [path for path in files if rooms.search(text_of(path) or "")]


def test_every_package_of_the_groups_is_pinned() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    named = {entry for group in groups.values() for entry in group if isinstance(entry, str)}
    lines = (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert named <= pinned


def test_the_version_stands_once() -> None:
    manifests = [path for path in tracked() if path.name == "Cargo.toml" and path.parent != ROOT]
    own = [str(path.relative_to(ROOT)) for path in manifests if re.search(r'^version\s*=\s*"', path.read_text(), re.MULTILINE)]
    assert not own
    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
