"""Looking at processes, threads, descriptors and memory through /proc, and running scripts in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import TESTS


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def state(pid: int) -> str | None:
    """The one-letter state of a process (R, S, T, Z, ...), None when it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else None


def alive(pid: int) -> bool:
    """True while the process exists and isn't a zombie."""
    return state(pid) not in (None, "Z", "X")


def descendants(root: int) -> set[int]:
    """All live processes below `root`."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields and fields[0] not in "ZX":
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: set[int] = set()
    todo = [root]
    while todo:
        for pid in children.get(todo.pop(), []):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def child_pids() -> set[int]:
    """All live processes below this one."""
    return descendants(os.getpid())


def command(pid: int) -> str:
    """The command line of a process, as far as it can be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def describe(pids: Iterable[int]) -> str:
    """Process ids with their state and command, for messages."""
    return "; ".join(f"{pid} [{state(pid)}] {command(pid)[:120]}" for pid in pids)


def helper_pids() -> set[int]:
    """Processes that the multiprocessing module keeps for itself (forkserver, resource tracker)."""
    own = set()
    for pid in child_pids():
        line = command(pid)
        if "resource_tracker" in line or "forkserver" in line:
            fields = _stat(pid)
            if fields and int(fields[1]) == os.getpid():
                own.add(pid)
    return own


def shm_entries() -> set[str]:
    """Names in /dev/shm, without the semaphores that multiprocessing keeps there for whoever uses it."""
    try:
        return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}
    except FileNotFoundError:
        return set()


def new_shm_entries(before: set[str], timeout: float = 5.0) -> set[str]:
    """Names in /dev/shm that were not there before and stay, but for those that other programs have mapped."""
    new: set[str] = wait_until(lambda: shm_entries() - before, gone=True, timeout=timeout)
    if not new:
        return set()
    own = child_pids() | {os.getpid()}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in own:
            try:
                mapped = Path(f"/proc/{entry}/maps").read_text()
            except OSError:
                continue
            new = {name for name in new if f"/dev/shm/{name}" not in mapped}
    # Python's own shared_memory module, which a loader never uses.
    return {name for name in new if not name.startswith("psm_")}


def open_fds(pid: int | str = "self") -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int | str = "self") -> list[str]:
    """Names of a process's threads as the kernel knows them."""
    names = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            names.append(Path(f"/proc/{pid}/task/{task}/comm").read_text().strip())
        except FileNotFoundError:
            pass
    return sorted(names)


def pss(pids: Iterable[int]) -> int:
    """Proportional set size of the processes together, in bytes."""
    total = 0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass
    return total


def tree_pss() -> int:
    """Proportional set size of this process and everything below it, in bytes."""
    return pss({os.getpid()} | child_pids())


def wait_until(check: Callable[[], Any], *, gone: bool = False, timeout: float = 20.0, step: float = 0.01) -> Any:
    """Polls `check` until it is true (or, with `gone`, false) or `timeout` seconds are over. Gives the last value."""
    end = time.monotonic() + timeout
    while True:
        value = check()
        if bool(value) != gone or time.monotonic() > end:
            return value
        time.sleep(step)


def environment() -> dict[str, str]:
    """The environment for a script: the tests and whatever this process can import are on its path."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([TESTS, *[p for p in sys.path if p]])
    return env


def script(body: str, *args: str, timeout: float = 90.0, flags: tuple[str, ...] = (), **kwargs: Any) -> Any:
    """Runs `body` as a script file of its own and gives the completed process (stdout and stderr as text)."""
    with_file = _write(body)
    try:
        return subprocess.run(
            [sys.executable, *flags, with_file, *args],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=kwargs.pop("env", environment()),
            check=False,
            **kwargs,
        )
    finally:
        os.unlink(with_file)


def start(body: str, *args: str, flags: tuple[str, ...] = (), **kwargs: Any) -> subprocess.Popen[str]:
    """Starts `body` as a script in a session of its own. The file stays until the caller removes `proc.script`."""
    path = _write(body)
    proc = subprocess.Popen(
        [sys.executable, *flags, path, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=kwargs.pop("env", environment()),
        **kwargs,
    )
    proc.script = path  # type: ignore[attr-defined]
    return proc


def finish(proc: subprocess.Popen[str], timeout: float = 60.0) -> tuple[str, str]:
    """Waits for a started script, ends its whole session if it does not stop, and gives stdout and stderr."""
    try:
        return proc.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(proc.pid, signal.SIGKILL)
        out, err = proc.communicate()
        raise AssertionError(f"script did not end within {timeout} s\nstdout: {out}\nstderr: {err}") from None
    finally:
        os.unlink(proc.script)  # type: ignore[attr-defined]


def _write(body: str) -> str:
    import tempfile

    fd, path = tempfile.mkstemp(suffix=".py", prefix="case_")
    with os.fdopen(fd, "w") as f:
        f.write(textwrap.dedent(body))
    return path
