"""feedrate.testing.assert_resumable and the command `feedrate verify`: right loaders pass, planted faults are found and named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedrate import _cli
from feedrate.testing import assert_resumable, sample_ids, verify

sys.path.insert(0, str(Path(__file__).parent))
import verified

pytestmark = pytest.mark.ours
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("make_loader", "options"),
    [
        (verified.shuffled, {"cuts": [1, 6]}),
        (verified.as_it_is, {"workers": (0,)}),
        (verified.as_it_is, {"workers": (2, 0), "cuts": [2]}),
        (verified.ranks, {"worlds": (1, 2, 3), "workers": (0,)}),
        (verified.ranks, {"worlds": (1, 2), "cuts": [2], "epochs": 1}),
        (verified.ranks_exact, {"workers": (0,), "worlds": (2, 3)}),
        (verified.ranks_drop, {"workers": None, "worlds": (1, 2, 4)}),
        (verified.without_torch, {"cuts": [5], "epochs": 1}),
        (verified.stream, {"workers": (0,)}),
        (verified.stream, {"workers": (2,), "cuts": [0, 3]}),
        (verified.noisy, {"ids": verified.index_of, "cuts": [2], "epochs": 1}),
        (verified.noisy_by_position, {"cuts": [2]}),
        (verified.Own, {"workers": None}),
        (verified.shuffled, {"workers": (0,), "steps": 3}),
    ],
)
def test_right_loaders_pass(make_loader: Any, options: dict[str, Any]) -> None:
    before = torch.default_generator.get_state(), np.random.get_state()[1].tolist()
    report = assert_resumable(make_loader, **options)
    assert report.restores > report.cuts > 2
    assert "EXACT" in str(report)
    assert torch.equal(torch.default_generator.get_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_how_much_is_tried() -> None:
    """22 samples in batches of 4 are 6 batches: 7 cuts in each epoch, one before and one between them."""
    seen: list[tuple[int, int]] = []
    report = verify(verified.as_it_is, workers=(0,), progress=lambda done, total, text: seen.append((done, total)))
    assert (report.cuts, report.restores) == (16, 32)
    assert seen[0] == (0, 32)
    assert seen[-1] == (32, 32)


FAULTS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "a sampler that forgets its order": (verified.sampler_forgets, {}, ("does not repeat itself", "in no state")),
    "a state without the order": (
        verified.state_without_the_order,
        {},
        ("epoch 0 differs at step", "order of the epoch is not in the state"),
    ),
    "a dataset with a hidden state": (verified.hidden_state, {}, ("epoch 0 differs at step 1", "hidden state")),
    "a state that counts one too many": (verified.TooFar, {}, ("differs at step", "1 batch behind the cut did not come")),
    "a state that counts one too few": (verified.TooShort, {}, ("differs at step 1", "again")),
    "a batch that comes twice": (verified.Again, {}, ("differs at step 2", "a batch came twice")),
    "a tail lost in another world": (
        verified.tail_lost,
        {"worlds": (1, 2)},
        ("do not give the rest of epoch 0", "missing", "lost"),
    ),
    "uneven ranks": (verified.Uneven, {"worlds": (2,)}, ("different numbers of steps", "hang")),
    "a state that goes on changing": (verified.Shared, {}, ("a state changes after it was taken", "return a copy")),
    "a state that draws": (verified.Drawing, {}, ("asking for state_dict() changes what comes",)),
    "an end that is forgotten": (verified.EndForgotten, {}, ("epoch 1 differs at step 0", "at the end of epoch 0")),
    "an error without words": (verified.Broken, {}, ("an error came instead of a batch", "AssertionError", "did not say so")),
    "randomness of the worker": (
        verified.noisy,
        {"workers": (0, 2)},
        ("between num_workers=0 and num_workers=2, without any restore", 'seeding="sample"'),
    ),
    "randomness of the worker, restored": (
        verified.noisy,
        {"workers": (2,), "cuts": [3]},
        ("differs at step 3", 'seeding="sample"'),
    ),
    "a stream with other workers": (
        verified.stream,
        {"workers": (1, 2)},
        ("without any restore", "order depends on the number of workers"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str) -> None:
    make_loader, options, words = FAULTS[fault]
    with pytest.raises(AssertionError) as caught:
        assert_resumable(make_loader, **{"workers": None, **options})
    for word in ("WRONG", *words):
        assert word in str(caught.value)


def test_both_values_of_the_first_difference_are_told() -> None:
    difference = verify(verified.TooFar, workers=None, cuts=[2]).difference
    assert difference is not None
    order = verified.Own()._order()
    assert difference.expected == order[0:4]
    assert difference.got == order[4:8]
    assert "before the first iter()" in difference.saved


def test_a_refusal_is_told_from_a_fault() -> None:
    """What another number of workers cannot take up is refused with a reason; the caller says whether that is allowed."""

    class Remembers(verified.Hidden):
        def state_dict(self) -> dict[str, int]:
            return {"asked": self.asked}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.asked = state["asked"]

    def make_loader(num_workers: int = 0) -> Any:
        return verified.DataLoader(Remembers(), 4, num_workers=num_workers)

    options: dict[str, Any] = {"workers": (1, 2), "cuts": [2], "ids": lambda batch: batch // 1000}
    report = verify(make_loader, **options)
    assert report.difference is not None
    assert "REFUSED" in str(report)
    assert "num_workers=2" in str(report)
    report = verify(make_loader, **options, allow_refused=True)
    assert report.ok
    assert len(report.refusals) == 2
    assert "states of the dataset" in str(report)


def test_arguments_that_cannot_be() -> None:
    for make_loader, options, error, words in (
        (3, {}, TypeError, "must be a function"),
        (verified.not_a_loader, {"workers": None}, TypeError, "no state_dict()"),
        (verified.Own, {"workers": (0, 2)}, ValueError, "no parameter num_workers"),
        (verified.shuffled, {"worlds": (2,)}, ValueError, "no parameters rank and world"),
        (verified.shuffled, {"cuts": [-1]}, ValueError, "cuts should be"),
        (verified.shuffled, {"workers": "02"}, ValueError, "workers should be"),
        (verified.shuffled, {"epochs": 0}, ValueError, "epochs=0"),
        (verified.no_batches, {"workers": (0,)}, ValueError, "no batch"),
    ):
        with pytest.warns() if make_loader is verified.no_batches else pytest.raises(error):  # type: ignore[attr-defined]
            with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)")):
                verify(make_loader, **options)  # type: ignore[arg-type]
            if make_loader is not verified.no_batches:
                raise error


def test_torchdatas_loader() -> None:
    """Another library's loader: exact with 2 workers; with none its second epoch has another order (its own issue 1437)."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make_loader(num_workers: int) -> Any:
        return stateful.StatefulDataLoader(verified.Numbers(), 4, num_workers=num_workers)

    report = verify(make_loader, workers=(2,), cuts=[1, 4], epochs=1)
    assert report.ok, str(report)
    report = verify(make_loader, workers=(2, 1), cuts=[1], epochs=1)
    assert report.difference is not None
    assert "AssertionError" in str(report)


# -- ids


def test_ids_of_samples() -> None:
    assert sample_ids(torch.arange(3)) == [0, 1, 2]
    assert sample_ids([torch.arange(2), torch.tensor([0.5, float("nan")])]) == [(0, 0.5), (1, "nan")]
    assert sample_ids({"x": np.array([4, 5]), "name": ["a", "b"], "epoch": 7}) == [(4, "a", 7), (5, "b", 7)]
    assert sample_ids(torch.tensor(5)) == [5]
    assert sample_ids([]) == []
    assert sample_ids(torch.zeros(0, 3)) == []
    wide = torch.arange(12.0).reshape(3, 4)
    ids = sample_ids(wide)
    assert len(set(ids)) == 3
    assert all(isinstance(i, str) for i in ids)
    assert sample_ids(wide.clone()) == ids
    assert sample_ids([wide, wide])[0] == sample_ids([wide, wide.clone()])[0]
    assert sample_ids(wide.bfloat16()) != ids
    assert sample_ids(wide.double()) != ids
    ragged = sample_ids([torch.zeros(2), torch.zeros(3)])
    assert len(ragged) == 2
    assert ragged[0] != ragged[1]
    assert sample_ids([b"x" * 100, {1, 2}]) == sample_ids([b"x" * 100, {1, 2}])
    with pytest.raises(TypeError, match="give ids="):
        sample_ids([lambda: 1])


# -- the command


def run(*arguments: str, capsys: Any) -> tuple[int, str, str]:
    try:
        code = _cli.main(["verify", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_command_says_exact(capsys: Any) -> None:
    code, out, err = run("verified:shuffled", "--cuts", "1,4", "--workers", "0,2", capsys=capsys)
    assert code == 0
    assert out.startswith("EXACT: ")
    assert "2 epochs, num_workers 0, 2" in out
    assert " restores; done" in err
    code, out, err = run("verified:noisy", "--ids", "verified:index_of", "--quiet", "--workers", "0", capsys=capsys)
    assert (code, err) == (0, "")


def test_command_finds_a_fault(capsys: Any) -> None:
    code, out, _ = run("verified:TooFar", capsys=capsys)
    assert code == 1
    assert out.startswith("WRONG")
    assert "1 batch behind the cut did not come" in out
    code, out, _ = run("verified:tail_lost", "--worlds", "1,2", "--epochs", "1", capsys=capsys)
    assert code == 1
    assert "do not give the rest" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verified"], "MODULE:FUNCTION"),
        (["no_such_module:f"], "no module 'no_such_module'"),
        (["nothing.py:f"], "no file nothing.py"),
        (["verified:nothing"], "verified has no nothing"),
        (["verified:NOT_A_FUNCTION"], "no function"),
        (["verified:not_a_loader"], "no state_dict()"),
        (["verified:shuffled", "--cuts", "1,x"], "whole numbers from 0"),
        (["verified:shuffled", "--worlds", "0"], "whole numbers from 1"),
        (["verified:shuffled", "--epochs", "0"], "whole number from 1"),
        (["verified:Own", "--workers", "0,2"], "no parameter num_workers"),
    ],
)
def test_command_explains_bad_arguments(arguments: list[str], words: str, capsys: Any) -> None:
    code, out, err = run(*arguments, capsys=capsys)
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_command_shows_the_users_own_error(capsys: Any) -> None:
    """With its traceback; and not with the exit code of a difference."""
    code, out, err = run("verified:fails", "--workers", "own", capsys=capsys)
    assert (code, out) == (2, "")
    assert err.startswith("Traceback")
    assert "in fails" in err
    assert err.splitlines()[-1].startswith("feedrate verify: nothing could be compared: ValueError: no such file")


@pytest.mark.nocheck
def test_command_from_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text((Path(__file__).parent / "verified.py").read_text())
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    for target, code, word in (("train:as_it_is", 0, "EXACT"), (f"{script}:TooShort", 1, "WRONG")):
        done = subprocess.run(
            [sys.executable, "-m", "feedrate", "verify", target, "--cuts", "2"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == code, done.stderr
        assert word in done.stdout
