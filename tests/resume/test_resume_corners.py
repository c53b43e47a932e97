"""What else moves a loader, and what its states must not be made to say."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate.torch import DataLoader

pytestmark = pytest.mark.ours

LOADERS = pytest.mark.parametrize("loader_class", [DataLoader, feedrate.DataLoader], ids=["torch", "numpy"])


def plain(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@LOADERS
def test_an_older_iterator_does_not_move_a_loaded_loader(loader_class: Any) -> None:
    """Nor one whose epoch was set."""

    def make() -> Any:
        return loader_class(range(20), batch_size=4, shuffle=True, seed=1, distributed=(0, 1))

    loader = make()
    state = None
    for k, _ in enumerate(loader):
        if k == 1:
            state = loader.state_dict()
    epochs = [plain(loader) for _ in range(2)]
    older = iter(loader)
    next(older)
    loader.load_state_dict(state)
    next(older)
    assert len(plain(loader)) == 3
    assert plain(loader) == epochs[0]
    older = iter(loader)
    next(older)
    loader.set_epoch(2)
    next(older)
    assert plain(loader) == epochs[1]


class Interrupted:
    """Ctrl-C comes at its ninth sample, once."""

    hit = False

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> int:
        if i == 8 and not self.hit:
            self.hit = True
            raise KeyboardInterrupt
        return i


@LOADERS
@pytest.mark.parametrize("in_order", [True, False])
def test_a_batch_that_was_interrupted_counts_as_one_that_failed(loader_class: Any, in_order: bool) -> None:
    """It does not come again, neither here nor in a resumed run."""
    loader = loader_class(Interrupted(), batch_size=4, in_order=in_order)
    iterator = iter(loader)
    plain(itertools.islice(iterator, 2))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    state = loader.state_dict()
    resumed = loader_class(range(24), batch_size=4)
    resumed.load_state_dict(state)
    assert plain(resumed) == plain(iterator) == [[12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23]]


@LOADERS
def test_a_skip_that_is_to_come_is_in_the_state(loader_class: Any) -> None:
    """Before an epoch, and on top of a loaded state."""
    loader = loader_class(range(24), batch_size=4)
    loader.skip(2)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_class(range(24), batch_size=4)
    resumed.load_state_dict(state)
    resumed.skip(1)
    state = resumed.state_dict()
    assert plain(resumed) == [[12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23]]
    resumed.load_state_dict(state)
    assert next(iter(resumed)).tolist() == [12, 13, 14, 15]
    assert "skip" not in resumed.state_dict()


@LOADERS
@pytest.mark.parametrize(("state", "said"), [({"feedrate": 1}, "no 'epoch'"), ([1], "is a dict, got list")])
def test_what_is_no_state_is_refused_by_name(loader_class: Any, state: Any, said: str) -> None:
    """As a ResumeError."""
    with pytest.raises(feedrate.ResumeError, match=said):
        loader_class(range(4)).load_state_dict(state)


@LOADERS
def test_numbers_of_epochs_and_seeds(loader_class: Any) -> None:
    """A negative epoch is refused at once; NumPy's integers are integers."""
    loader = loader_class(range(4), seeding="sample", seed=np.int64(3))
    with pytest.raises(ValueError, match="from 0, but got -1"):
        loader.set_epoch(-1)
    loader.set_epoch(np.int64(1))
    list(loader)
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 2
    for seed in (True, 3.0, np.float64(3)):
        with pytest.raises(TypeError, match="seed option should be an integer"):
            loader_class(range(4), seed=seed)


@LOADERS
def test_exact_random_numbers_are_not_given_up_unsaid(loader_class: Any) -> None:
    """The other way nothing is given up: those of seeding="worker" are in no state."""
    loader = loader_class(range(4), seeding="sample", seed=3)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(feedrate.ResumeError, match='use seeding="sample"'):
        loader_class(range(4)).load_state_dict(state)
    loader_class(range(4), seeding="sample", seed=3).load_state_dict(loader_class(range(4)).state_dict())
