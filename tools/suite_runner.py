"""Run a foreign test file with another class in the place of the one that it tests, watched from outside.

Used by ``pytorch_suite.py`` and ``torchdata_suite.py``. The tests of a file run in one pytest process; when a test
hangs or takes the process down, it counts as failed and the rest goes on in a new process. ``suite_site`` holds what
runs inside: the plugin that reports, and the ``sitecustomize`` that swaps the classes in every process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = Path(__file__).resolve().parent / "suite_site"
COLLECT_SECONDS = 300
END_SECONDS = 60
UNAVAILABLE = 77

# Where classes say they live, for those that are known by another name.
_HOMES = {
    "torch.utils.data:DataLoader": "torch.utils.data.dataloader:DataLoader",
    "torchdata.stateful_dataloader:StatefulDataLoader": "torchdata.stateful_dataloader.stateful_dataloader:StatefulDataLoader",
}


@dataclass
class Outcome:
    state: str
    why: str = ""
    seconds: float = 0.0


@dataclass
class Suite:
    """One run of a file, over as many pytest processes as it takes."""

    target: str
    file: Path
    seconds: float
    options: list[str]
    verbose: bool
    scratch: Path
    deadline: float
    wanted: set[str] | None
    replaces: str = "torch.utils.data:DataLoader"
    tests: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def run(self) -> None:
        attempt = 0
        while not self.tests or len(self.outcomes) < len(self.tests):
            if time.monotonic() > self.deadline:
                for test in self.tests:
                    self.outcomes.setdefault(test, Outcome("failed", "no time was left for it"))
                return
            done_before = len(self.outcomes)
            self._one_process(attempt)
            attempt += 1
            if len(self.outcomes) == done_before:
                raise SystemExit(self._log_tail(attempt - 1) + "\nthe suite does not advance")

    def _log_tail(self, attempt: int) -> str:
        return (self.scratch / f"output-{attempt}").read_text(errors="replace")[-4000:]

    def _environment(self, attempt: int) -> dict[str, str]:
        inherited = os.environ.get("PYTHONPATH")
        path = [str(SITE), str(ROOT / "python"), *([inherited] if inherited else [])]
        environment = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(path),
            FEEDRATE_SUITE_CLASS=self.target,
            FEEDRATE_SUITE_REPLACES=self.replaces,
            FEEDRATE_SUITE_LOG=str(self.scratch / f"events-{attempt}"),
            PYTORCH_PRINT_REPRO_ON_FAILURE="0",
        )
        environment.pop("FEEDRATE_SUITE_ONLY", None)
        if self.tests or self.wanted is not None:
            left = [name for name in self.tests or sorted(self.wanted or ()) if name not in self.outcomes]
            only = self.scratch / "only.json"
            only.write_text(json.dumps(left))
            environment["FEEDRATE_SUITE_ONLY"] = str(only)
        return environment

    def _one_process(self, attempt: int) -> None:
        command = [sys.executable, "-m", "pytest", str(self.file), "-q", "-c", os.devnull]
        command += ["--rootdir", str(self.file.parent), "-p", "feedrate_suite_plugin"]
        command += ["-p", "no:cacheprovider", "-p", "no:timeout", *self.options]
        with (self.scratch / f"output-{attempt}").open("wb") as output:
            process = subprocess.Popen(
                command,
                env=self._environment(attempt),
                cwd=self.scratch,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._watch(process, self.scratch / f"events-{attempt}", attempt)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _watch(self, process: subprocess.Popen[bytes], events: Path, attempt: int) -> None:
        running: str | None = None
        since = time.monotonic()
        for event in _lines(events, process):
            now = time.monotonic()
            if event is None:
                if self.tests and len(self.outcomes) == len(self.tests) and now - since > END_SECONDS:
                    return  # all is said; a test has left a process that pytest waits for at its end
                limit = self.seconds if running else COLLECT_SECONDS
                if now - since > limit or now > self.deadline:
                    if running is None:
                        raise SystemExit(f"pytest did not answer within {limit:.0f} s")
                    self._note(running, Outcome("failed", f"hung for {now - since:.0f} s", now - since))
                    return
                continue
            if event["kind"] == "collected":
                if event["tested"] != _HOMES.get(self.target, self.target) or not event["everywhere"]:
                    raise SystemExit(f"the class is not in place: {event['tested']} is tested")
                self.tests = self.tests or event["tests"]
            elif event["kind"] == "start":
                running = event["test"]
            else:
                self._note(event["test"], Outcome(event["state"], event["why"], now - since))
                running = None
            since = now
        code = process.wait()
        if running is not None:
            self._note(running, Outcome("failed", f"the process died (exit status {code})"))
        elif not self.tests:
            raise SystemExit(self._log_tail(attempt) + "\nno test was collected")

    def _note(self, test: str, outcome: Outcome) -> None:
        self.outcomes[test] = outcome
        if self.verbose or outcome.state == "failed":
            reason = f"  {outcome.why[:1500]}" if outcome.state == "failed" else ""
            print(f"{outcome.state:7} {outcome.seconds:6.1f} s  {test}{reason}", flush=True)


def _lines(path: Path, process: subprocess.Popen[bytes]) -> Iterator[dict | None]:
    """Yield each event once, and None while there is none; end when the process has ended."""
    position = 0
    while True:
        ended = process.poll() is not None
        text = path.read_text()[position:] if path.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        position += len(complete)
        for line in complete.splitlines():
            yield json.loads(line)
        if ended:
            return
        if not complete:
            yield None
            time.sleep(0.1)


def names(path: Path) -> list[str]:
    """The first word of each line that is not a comment."""
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [words[0] for words in lines if words]
