"""Run torchdata's own tests of its ``StatefulDataLoader`` with another class in its place.

    python tools/torchdata_suite.py FOLDER feedrate.torch:DataLoader

``FOLDER`` holds ``test/stateful_dataloader`` of a checkout of torchdata. No package registry carries those files, so
this is run by hand. They need ``parameterized`` and ``expecttest``, and ``test_hugging_face.py`` needs ``datasets``.

``tests/suite/torchdata_expected.txt`` names the tests that pass with the stock class. A name that is followed by a
reason need not pass. ``--all`` runs the others too; ``--record`` runs everything and writes the names anew, keeping
the reasons (run it with ``torchdata.stateful_dataloader:StatefulDataLoader`` on an idle machine).

Exit status: 0 when every expected test passed, 1 when one did not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from suite_runner import ROOT, Outcome, Suite

EXPECTED = ROOT / "tests" / "suite" / "torchdata_expected.txt"
STOCK = "torchdata.stateful_dataloader:StatefulDataLoader"
FILES = ["test_state_dict.py", "test_sampler.py", "test_hugging_face.py", "test_dataloader.py"]
HEADER = """\
# Tests of torchdata's test/stateful_dataloader that pass with torchdata {torchdata}'s own class under torch {torch}, on a
# machine without an accelerator: file::class::test. Made by tools/torchdata_suite.py --record.
# A name followed by "# reason" need not pass with ours.
"""


def expected() -> dict[str, str]:
    """Each name with its reason not to pass, or with an empty one."""
    found: dict[str, str] = {}
    for line in EXPECTED.read_text().splitlines():
        name, _, reason = line.partition("#")
        if name.strip():
            found[name.strip()] = reason.strip()
    return found


def judge(outcomes: dict[str, Outcome]) -> int:
    """Print what matters and return the exit status."""
    wrong, excused, surprising, passed = [], [], [], 0
    for test, reason in expected().items():
        outcome = outcomes.get(test)
        if outcome is None:
            continue
        if outcome.state == "passed":
            passed += 1
            if reason:
                surprising.append(test)
        elif reason:
            excused.append(f"{test}: {reason}")
        else:
            wrong.append(f"{test}: {outcome.state}: {outcome.why[:1500]}")
    for title, lines in (
        ("These pass with torchdata's own class and do not pass with this one", wrong),
        ("Excepted, and failed", excused),
        ("Excepted, and passed all the same", surprising),
    ):
        if lines:
            print(f"\n{title}:\n" + "\n".join(f"  {line}" for line in lines))
    print(
        f"\ntorchdata's tests, of those that pass with the stock class: {passed} passed, {len(wrong)} failed, {len(excused)} excepted"
    )
    return 1 if wrong else 0


def record(outcomes: dict[str, Outcome]) -> int:
    """Write the names of the tests that passed; of the files that ran, that is."""
    import torch
    import torchdata

    reasons = expected() if EXPECTED.exists() else {}
    ran = {test.partition("::")[0] for test in outcomes}
    kept = {test for test in reasons if test.partition("::")[0] not in ran}
    passed = sorted(kept | {test for test, outcome in outcomes.items() if outcome.state == "passed"})
    lines = [f"{test}  # {reasons[test]}" if reasons.get(test) else test for test in passed]
    header = HEADER.format(torchdata=torchdata.__version__.partition("+")[0], torch=torch.__version__.partition("+")[0])
    EXPECTED.write_text(header + "".join(f"{line}\n" for line in lines))
    print(f"recorded {len(passed) - len(kept)} of {len(outcomes)} tests")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="torchdata's test/stateful_dataloader")
    parser.add_argument("target", help=f'"module:Class"; {STOCK} is the stock one')
    parser.add_argument("--file", action="append", choices=FILES, help="only this file; may be repeated")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one test (180)")
    parser.add_argument("--total", type=float, default=7200, help="seconds for all of them (7200)")
    parser.add_argument("-k", help="only the tests that match this expression of pytest")
    parser.add_argument("--all", action="store_true", help="also tests that the stock class fails")
    parser.add_argument("--record", action="store_true", help="write the list of expected passes")
    parser.add_argument("-v", action="store_true", dest="verbose", help="one line for each test")
    arguments = parser.parse_args()

    everything = arguments.all or arguments.record
    wanted = set() if everything else set(expected())
    deadline = time.monotonic() + arguments.total
    outcomes: dict[str, Outcome] = {}
    for file in arguments.file or FILES:
        path = (arguments.folder / file).resolve()
        if not path.is_file():
            parser.error(f"{path} does not exist")
        prefix = path.stem + "::"
        of_file = {name.removeprefix(prefix) for name in wanted if name.startswith(prefix)}
        if not everything and not of_file:
            continue
        print(f"--- {file}", flush=True)
        with tempfile.TemporaryDirectory(prefix="feedrate-suite-") as scratch:
            suite = Suite(
                arguments.target,
                path,
                arguments.timeout,
                ["-k", arguments.k] if arguments.k else [],
                arguments.verbose,
                Path(scratch),
                deadline,
                None if everything else of_file,
                replaces=STOCK,
            )
            suite.run()
        outcomes.update({prefix + test: outcome for test, outcome in suite.outcomes.items()})
    return record(outcomes) if arguments.record else judge(outcomes)


if __name__ == "__main__":
    sys.exit(main())
