"""Run PyTorch's own ``test_dataloader.py`` with another class in the place of its ``DataLoader``.

    python tools/pytorch_suite.py feedrate.torch:DataLoader

The class replaces the stock one in every process that the tests start (``suite_site``). The tests
that pass with the stock class (``tests/suite/expected.txt``) run in one pytest process, watched from
outside: when a test hangs or takes the process down, it counts as failed and the rest goes on in a new
process. ``tests/suite/exempt.txt`` names the few that need not pass, each with its reason. ``--all``
runs the whole file; ``--record`` does so too and writes the list of expected passes (run it with
``torch.utils.data:DataLoader``, on a machine that does nothing else).

Exit status: 0 when every expected test passed, 1 when one did not, 2 when the suite could not run,
77 when PyTorch's file cannot be had on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import fetch_pytorch_tests

ROOT = Path(__file__).resolve().parent.parent
EXPECTED = ROOT / "tests" / "suite" / "expected.txt"
EXEMPT = ROOT / "tests" / "suite" / "exempt.txt"
SITE = Path(__file__).resolve().parent / "suite_site"
COLLECT_SECONDS = 300
UNAVAILABLE = 77


@dataclass
class Outcome:
    state: str
    why: str = ""
    seconds: float = 0.0


@dataclass
class Suite:
    """One run of the file, over as many pytest processes as it takes."""

    target: str
    file: Path
    seconds: float
    options: list[str]
    verbose: bool
    scratch: Path
    deadline: float
    wanted: set[str] | None
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
            FEEDRATE_SUITE_LOG=str(self.scratch / f"events-{attempt}"),
            PYTORCH_PRINT_REPRO_ON_FAILURE="0",
        )
        environment.pop("FEEDRATE_SUITE_ONLY", None)
        if self.tests or self.wanted:
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
                limit = self.seconds if running else COLLECT_SECONDS
                if now - since > limit or now > self.deadline:
                    if running is None:
                        raise SystemExit(f"pytest did not answer within {limit:.0f} s")
                    self._note(running, Outcome("failed", f"hung for {now - since:.0f} s", now - since))
                    return
                continue
            if event["kind"] == "collected":
                if event["tested"] != self._resolved() or not event["everywhere"]:
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

    def _resolved(self) -> str:
        if self.target == "torch.utils.data:DataLoader":
            return "torch.utils.data.dataloader:DataLoader"
        return self.target

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


def judge(outcomes: dict[str, Outcome], whole_file: bool) -> int:
    """Print what matters and return the exit status."""
    exempt = names(EXEMPT)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    wrong = []
    for test in names(EXPECTED):
        if any(fnmatch.fnmatch(test, pattern) for pattern in exempt):
            continue
        outcome = outcomes.get(test)
        if outcome is None and not whole_file:
            continue
        state = outcome.state if outcome else "failed"
        counts[state] += 1
        if state != "passed":
            wrong.append(f"{test}: {state}: {outcome.why if outcome else 'not in the file'}")
    if wrong:
        print("\nThese pass with torch's own class and do not pass with this one:")
        print("\n".join(f"  {line[:1500]}" for line in wrong))
    excused = [
        test for test, outcome in outcomes.items() if outcome.state == "failed" and any(fnmatch.fnmatch(test, p) for p in exempt)
    ]
    if excused:
        print("\nExempt (tests/suite/exempt.txt), and failed: " + ", ".join(excused))
    print(
        f"PyTorch's suite, of the tests that pass with the stock class:"
        f" {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    )
    return 1 if wrong else 0


def record(outcomes: dict[str, Outcome]) -> int:
    import torch

    passed = sorted(test for test, outcome in outcomes.items() if outcome.state == "passed")
    header = (
        f"# Tests of PyTorch v{fetch_pytorch_tests.VERSION}'s test_dataloader.py that pass with torch"
        f" {torch.__version__.partition('+')[0]}'s own class\n"
        "# on a machine without an accelerator. Made by tools/pytorch_suite.py --record.\n"
    )
    EXPECTED.parent.mkdir(parents=True, exist_ok=True)
    EXPECTED.write_text(header + "".join(f"{test}\n" for test in passed))
    print(f"recorded {len(passed)} of {len(outcomes)} tests")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", help='"module:Class"; torch.utils.data:DataLoader is the stock one')
    parser.add_argument("--file", type=Path, help="another version of test_dataloader.py")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one test (600)")
    parser.add_argument("--total", type=float, default=7200, help="seconds for all of them (7200)")
    parser.add_argument("-k", help="only the tests that match this expression of pytest")
    parser.add_argument("--slow", action="store_true", help="also the tests that PyTorch calls slow")
    parser.add_argument("--all", action="store_true", help="also tests that the stock class fails")
    parser.add_argument("--record", action="store_true", help="write the list of expected passes")
    parser.add_argument("-v", action="store_true", dest="verbose", help="one line for each test")
    arguments = parser.parse_args()

    try:
        file = arguments.file.resolve() if arguments.file else fetch_pytorch_tests.fetch()
    except fetch_pytorch_tests.Unavailable as reason:
        print(f"skipped: PyTorch's test_dataloader.py cannot be had here: {reason}")
        return UNAVAILABLE
    if arguments.slow:
        os.environ["PYTORCH_TEST_WITH_SLOW"] = "1"
    options = ["-k", arguments.k] if arguments.k else []
    with tempfile.TemporaryDirectory(prefix="feedrate-suite-") as scratch:
        suite = Suite(
            arguments.target,
            file,
            arguments.timeout,
            options,
            arguments.verbose,
            Path(scratch),
            time.monotonic() + arguments.total,
            None if arguments.all or arguments.record or arguments.slow else set(names(EXPECTED)),
        )
        suite.run()
    if arguments.record:
        return record(suite.outcomes)
    return judge(suite.outcomes, whole_file=not arguments.k)


if __name__ == "__main__":
    sys.exit(main())
