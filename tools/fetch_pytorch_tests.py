"""Fetch PyTorch's own ``test_dataloader.py`` into ``.cache``, for ``tools/pytorch_suite.py``.

The file is not part of this repository. Debian's source package ``pytorch`` holds it, and ``apt-get``
checks its signature; the package is downloaded with a private apt configuration under ``.cache``, so
that nothing of the system changes and no rights are needed. The mirror is the one that this machine's
apt already uses. Where any of that is missing, ``Unavailable`` says what and why.

``FEEDRATE_PYTORCH_TESTS`` may name a file to use instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = "trixie"
VERSION = "2.6.0"
MEMBER = "test/test_dataloader.py"
SHA256 = "c955067aa66c0d9d74bff7ddabd3f912ab81164e0b133bd12d1debad557215a3"
APT_SECONDS = 300


class Unavailable(Exception):
    """The file cannot be had here; the message is the reason."""


def mirrors(etc: Path = Path("/etc/apt")) -> list[tuple[str, str | None]]:
    """Addresses of the Debian archive that this machine's apt uses, each with its keyring."""
    found: list[tuple[str, str | None]] = []
    lists = [etc / "sources.list", *sorted(etc.glob("sources.list.d/*.list"))]
    for path in lists:
        if not path.is_file():
            continue
        for line in path.read_text().splitlines():
            entry = re.match(r"deb(?:-src)?\s+(\[[^]]*\]\s+)?(\S+)\s", line.strip())
            if entry:
                key = re.search(r"signed-by=([^\s\]]+)", entry[1] or "", re.IGNORECASE)
                found.append((entry[2], key[1] if key else None))
    for path in sorted(etc.glob("sources.list.d/*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.+)$", stanza, re.MULTILINE))
            keyring = fields.get("Signed-By")
            for uri in fields.get("URIs", "").split():
                found.append((uri, keyring if keyring and keyring.startswith("/") else None))
    archives = [(u.rstrip("/"), k) for u, k in found]
    return list(dict.fromkeys(a for a in archives if a[0].endswith("/debian")))


def _apt(config: Path, *arguments: str, cwd: Path) -> None:
    environment = dict(os.environ, APT_CONFIG=str(config), LC_ALL="C")
    try:
        done = subprocess.run(
            ["apt-get", "-qq", *arguments],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=APT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"apt-get {arguments[0]} took longer than {APT_SECONDS} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        raise Unavailable(f"apt-get {arguments[0]} failed: {' '.join(lines)[:300]}")


def _download(uri: str, keyring: str | None, work: Path) -> bytes:
    for folder in ("state/lists/partial", "cache/archives/partial", "source"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    option = f"[signed-by={keyring}] " if keyring else ""
    (work / "sources.list").write_text(f"deb-src {option}{uri} {SUITE} main\n")
    config = work / "apt.conf"
    config.write_text(
        f'Dir::State "{work}/state";\n'
        f'Dir::Cache "{work}/cache";\n'
        f'Dir::Etc::sourcelist "{work}/sources.list";\n'
        'Dir::Etc::sourceparts "/dev/null";\n'
        'Acquire::Languages "none";\n'
        'Acquire::Retries "2";\n' + ('APT::Sandbox::User "root";\n' if os.geteuid() == 0 else "")
    )
    source = work / "source"
    _apt(config, "update", cwd=source)
    _apt(config, "source", "--download-only", "--tar-only", "--only-source", "pytorch", cwd=source)
    tarballs = list(source.glob("pytorch_*.orig.tar.*"))
    if not tarballs:
        raise Unavailable("apt-get brought no source archive of pytorch")
    with tarfile.open(tarballs[0]) as archive:
        for member in archive:
            if member.isfile() and member.name.partition("/")[2] == MEMBER:
                content = archive.extractfile(member)
                if content is not None:
                    return content.read()
    raise Unavailable(f"{MEMBER} is not in {tarballs[0].name}")


def fetch() -> Path:
    """Return the path of the file, downloading it (about 40 MB, once) when it is not cached."""
    named = os.environ.get("FEEDRATE_PYTORCH_TESTS")
    if named:
        if not Path(named).is_file():
            raise Unavailable(f"FEEDRATE_PYTORCH_TESTS names {named}, which is not a file")
        return Path(named).resolve()
    target = ROOT / ".cache" / "pytorch-tests" / VERSION / "test_dataloader.py"
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == SHA256:
        return target
    if shutil.which("apt-get") is None:
        raise Unavailable("this machine has no apt-get (the file comes from Debian's sources)")
    reasons = []
    for uri, keyring in mirrors():
        work = ROOT / ".cache" / f"apt-{os.getpid()}"
        try:
            content = _download(uri, keyring, work)
        except (Unavailable, OSError, tarfile.TarError) as reason:
            reasons.append(str(reason))
            continue
        finally:
            shutil.rmtree(work, ignore_errors=True)
        digest = hashlib.sha256(content).hexdigest()
        if digest != SHA256:
            reasons.append(f"the file's SHA-256 is {digest}, expected {SHA256} (v{VERSION})")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(target)
        return target
    raise Unavailable("; ".join(dict.fromkeys(reasons)) or "apt's configuration names no Debian archive")


if __name__ == "__main__":
    try:
        print(fetch())
    except Unavailable as reason:
        sys.exit(f"PyTorch's test_dataloader.py cannot be had here: {reason}")
