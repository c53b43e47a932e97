"""Drives measured processes: one object for each, commands sent and answered one at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from benchmarks import measure, procs
from benchmarks.definitions import Row

ROOT = Path(__file__).parent.parent


class Failed(RuntimeError):
    """The measured process reported an exception, gave a wrong answer, or ended."""


def environment() -> dict[str, str]:
    """What a measured process sees: one thread for each maths library, the package from the tree."""
    env = dict(os.environ)
    env.update({name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")})
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "python"), *filter(None, [env.get("PYTHONPATH")])])
    return env


class Measured:
    """A process holding one loader. Close it.

    `fresh` starts a new interpreter, as the rows about memory and about the first batch need; else the process is a fork of
    this one, which has the loaders' packages imported already and so starts at once.
    """

    def __init__(self, engine: str, fresh: bool, answer_seconds: float = 600) -> None:
        self.engine = engine
        self.answer_seconds = answer_seconds
        self.row: Row = {}
        self.setting: dict[str, Any] = {}
        self.messages = tempfile.TemporaryFile("w+")  # what the loader prints; shown only when it fails
        self.process: subprocess.Popen[str] | None = None
        if fresh:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.measure"],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.messages,
                text=True,
            )
            assert self.process.stdin is not None and self.process.stdout is not None
            self.pid = self.process.pid
            self.commands: IO[str] = self.process.stdin
            self.answers: IO[str] = self.process.stdout
        else:
            self.pid, self.commands, self.answers = forked(self.messages.fileno())

    def send(self, command: dict[str, Any]) -> None:
        """Sends a command; `receive` waits for its answer."""
        with suppress(BrokenPipeError):
            print(json.dumps(command), file=self.commands, flush=True)

    def receive(self) -> dict[str, Any]:
        """The answer to the last command. Raises Failed with the traceback of the other side."""
        watchdog = threading.Timer(self.answer_seconds, os.kill, (self.pid, signal.SIGKILL))
        watchdog.start()
        try:
            line = self.answers.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise Failed(f"{self.engine} {self.setting}: the measured process ended: {self.said()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(f"{self.engine} {self.setting}: {answer['error']}")
        return answer

    def begin(self, row: Row, workers: int, setting: dict[str, Any]) -> None:
        """Tells the process to make the loader of a row; `receive` waits for it."""
        self.row, self.setting = row, setting
        self.send({"do": "open", "row": row, "engine": self.engine, "workers": workers, "setting": setting})

    def said(self) -> str:
        """The last of what the measured process printed."""
        self.messages.seek(0)
        return self.messages.read()[-2000:]

    def epoch(self, verify: bool = False, stop_after: int | None = None) -> dict[str, Any]:
        """An epoch, with the CPU seconds, the seconds of waiting for a CPU and the voluntary context switches of the whole tree in it."""
        cpu, switched = procs.cpu_seconds(self.pid), procs.switches(self.pid)
        starved = procs.starved_seconds(self.pid)
        self.send({"do": "epoch", "verify": verify, "stop_after": stop_after})
        answer = self.receive()
        answer["cpu"] = procs.cpu_seconds(self.pid) - cpu
        answer["starved"] = max(0.0, procs.starved_seconds(self.pid) - starved)
        answer["switches"] = max(0, procs.switches(self.pid) - switched)
        self.check(answer, verify)
        return answer

    def probe(self, row: Row, workers: int, given: Any) -> dict[str, Any]:
        """What a row about orders or states measures, verified, with the CPU seconds of the whole tree."""
        self.row = row
        cpu = procs.cpu_seconds(self.pid)
        self.send({"do": "probe", "row": row, "engine": self.engine, "workers": workers, "given": given})
        answer = self.receive()
        answer["cpu"] = procs.cpu_seconds(self.pid) - cpu
        self.check(answer, verify=True)
        return answer

    def prepare(self, row: Row, workers: int) -> Any:
        """What is made for the probes of a row beforehand."""
        self.send({"do": "prepare", "row": row, "engine": self.engine, "workers": workers})
        return self.receive()["made"]

    def check(self, answer: dict[str, Any], verify: bool) -> None:
        """Compares an epoch's answer with the definition's."""
        row = self.row
        if not row["checksum"]:
            return
        got = (answer["count"], answer["checksum"] if verify else row["checksum"])
        if got != (row["count"], row["checksum"]):
            raise Failed(
                f"{self.engine} {self.setting}: wrong answer in row {row['name']}: "
                f"{got[0]} batches with checksum {got[1]}, expected {row['count']} with {row['checksum']}"
            )

    def close(self) -> None:
        """Asks the process to end, and after ten seconds ends it."""
        if self.messages.closed:
            return
        self.send({"do": "close"})
        with suppress(Failed):
            self.receive()
        with suppress(BrokenPipeError):
            self.commands.close()
        deadline = time.monotonic() + 10
        while not self.ended():
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        self.answers.close()
        self.messages.close()

    def ended(self) -> bool:
        """Whether the process has ended; reaps it."""
        if self.process is not None:
            return self.process.poll() is not None
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True


def forked(messages: int) -> tuple[int, IO[str], IO[str]]:
    """Forks a measured process: its pid, the pipe to it and the pipe from it."""
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(commands_read)
        os.close(answers_write)
        return pid, os.fdopen(commands_write, "w"), os.fdopen(answers_read)
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(messages, 1)
        os.dup2(messages, 2)
        low, high = sorted((commands_read, answers_write))
        os.closerange(3, low)  # the pipes of other measured processes must not stay open here
        os.closerange(low + 1, high)
        os.closerange(high + 1, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 20 else 1 << 20)
        measure.serve(os.fdopen(commands_read), os.fdopen(answers_write, "w"))
        code = 0
    finally:
        os._exit(code)


@contextmanager
def opened(row: Row, engine: str, workers: int, setting: dict[str, Any], fresh: bool = False) -> Iterator[Measured]:
    """A measured process with a row's loader made; closed at the end."""
    measured = Measured(engine, fresh)
    try:
        measured.begin(row, workers, setting)
        measured.receive()
        yield measured
    finally:
        measured.close()
