"""Run PyTorch's own ``test_dataloader.py`` with another class in the place of its ``DataLoader``.

    python tools/pytorch_suite.py feedrate.torch:DataLoader

The class replaces the stock one in every process that the tests start (``suite_site``). The tests
that pass with the stock class (``tests/suite/expected.txt``) run in one pytest process, watched from
outside: when a test hangs or takes the process down, it counts as failed and the rest goes on in a new
process. ``tests/suite/exempt.txt`` names the few that need not pass, each with its reason. ``--all``
runs the whole file; ``--record`` does so too and writes the list of expected passes (run it with
``torch.utils.data:DataLoader``, on a machine that does nothing else). ``--slow`` adds the two exit tests that
PyTorch calls slow; they look at what becomes of a loader without redo, so that they want ``--no-redo``.

Exit status: 0 when every expected test passed, 1 when one did not, 2 when the suite could not run,
77 when PyTorch's file cannot be had on this machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import fetch_pytorch_tests
from suite_runner import ROOT, UNAVAILABLE, Outcome, Suite, names

EXPECTED = ROOT / "tests" / "suite" / "expected.txt"
EXEMPT = ROOT / "tests" / "suite" / "exempt.txt"
# PyTorch calls these slow and skips them by default, so that the list above has not got them. They pass with the stock class.
SLOW = ["TestDataLoader::test_proper_exit", "TestDataLoaderPersistentWorkers::test_proper_exit"]


def judge(outcomes: dict[str, Outcome], whole_file: bool, slow: bool) -> int:
    """Print what matters and return the exit status."""
    exempt = names(EXEMPT)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    wrong = []
    for test in names(EXPECTED) + (SLOW if slow else []):
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
    parser.add_argument(
        "--no-redo", action="store_true", help="redo=False is the default of our class, as torch's loader behaves"
    )
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
    if arguments.no_redo:
        os.environ["FEEDRATE_SUITE_DEFAULTS"] = '{"redo": false}'
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
    return judge(suite.outcomes, whole_file=not arguments.k, slow=arguments.slow)


if __name__ == "__main__":
    sys.exit(main())
