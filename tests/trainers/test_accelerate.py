"""Accelerate and transformers' Trainer: both build stock loaders by name, so a bridge is needed and tested."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from engines import Line, Numbers, counting
from torch.utils.data import DataLoader as Stock
from torch.utils.data import IterableDataset

pytestmark = [pytest.mark.ours, pytest.mark.watchdog(150), pytest.mark.filterwarnings("ignore")]
accelerate = pytest.importorskip("accelerate")

KEYWORDS = {"seeding": "sample", "seed": 3, "redo": False, "items_in_flight": 2}


class Counted(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.arange(10.0)[:, None])


def base(prepared: Any) -> Any:
    return prepared.base_dataloader


def test_without_the_bridge_accelerate_takes_the_stock_class(Loader: Any) -> None:
    """Why there is a bridge. If this fails, Accelerate keeps the class now and the bridge can go."""
    prepared = accelerate.Accelerator(cpu=True).prepare(Loader(Numbers(), batch_size=4))
    assert type(base(prepared)) is Stock


@pytest.mark.parametrize("workers", [0, 2])
def test_prepare(workers: int, Loader: Any) -> None:
    from feedrate.accelerate import install

    accelerator = accelerate.Accelerator(cpu=True)
    with install(), counting() as counts:
        prepared = accelerator.prepare(Loader(Numbers(20), batch_size=6, num_workers=workers, **KEYWORDS))
        assert type(base(prepared)) is Loader
        for name, value in KEYWORDS.items():
            assert getattr(base(prepared), name) == value, name
        for _ in range(2):
            assert [v for b in prepared for v in b["x"][:, 0].tolist()] == [float(i) for i in range(20)]
    assert (counts.stock, counts.ours) == (0, 2)


def test_install_can_be_undone() -> None:
    import accelerate.data_loader as module

    from feedrate.accelerate import install

    before, keywords = module.DataLoader, dict(module._PYTORCH_DATALOADER_KWARGS)
    with install():
        assert module.DataLoader is not before
    assert module.DataLoader is before
    assert keywords == module._PYTORCH_DATALOADER_KWARGS


def test_a_stock_loader_that_is_prepared_becomes_ours(Loader: Any) -> None:
    from feedrate.accelerate import install

    with install(), counting() as counts:
        prepared = accelerate.Accelerator(cpu=True).prepare(Stock(Numbers(8), batch_size=4))
        assert len(list(prepared)) == 2
    assert (counts.stock, counts.ours) == (0, 1)


def test_shuffled_and_iterable(Loader: Any) -> None:
    from feedrate.accelerate import install

    accelerator = accelerate.Accelerator(cpu=True)
    orders = []
    for use in (False, True):
        torch.manual_seed(3)
        loader = (Loader if use else Stock)(Numbers(12), batch_size=4, shuffle=True)
        if use:
            with install():
                prepared = accelerator.prepare(loader)
        else:
            prepared = accelerator.prepare(loader)
        orders.append([v for b in prepared for v in b["x"][:, 0].tolist()])
    assert orders[0] == orders[1]
    with install(), counting() as counts:
        prepared = accelerator.prepare(Loader(Counted(), batch_size=4))
        assert [len(b) for b in prepared] == [4, 4, 2]
    assert (counts.stock, counts.ours) == (0, 1)


def test_skip_first_batches(Loader: Any) -> None:
    from feedrate.accelerate import install

    accelerator = accelerate.Accelerator(cpu=True)
    with install(), counting() as counts:
        prepared = accelerator.prepare(Loader(Numbers(20), batch_size=4, num_workers=1))
        rest = accelerator.skip_first_batches(prepared, 2)
        assert [v for b in rest for v in b["x"][:, 0].tolist()] == [float(i) for i in range(8, 20)]
    assert (counts.stock, counts.ours) == (0, 1)


def _trainer(tmp_path: Any, train: Any, evaluate: Any, **kwargs: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        num_train_epochs=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=5,
        **kwargs,
    )
    return transformers.Trainer(model=Line(), args=args, train_dataset=train, eval_dataset=evaluate)


@pytest.mark.parametrize("workers", [0, 2])
def test_transformers_trainer(workers: int, tmp_path: Any) -> None:
    from feedrate.accelerate import install

    seen = []
    for use in (False, True):
        trainer = _trainer(
            tmp_path, Numbers(24), Numbers(8), dataloader_num_workers=workers, dataloader_persistent_workers=workers > 0
        )
        with counting() as counts:
            if use:
                with install():
                    trainer.train()
                    trainer.evaluate()
            else:
                trainer.train()
                trainer.evaluate()
        seen.append(trainer.model.seen)
        if use:
            assert counts.stock == 0
            assert counts.ours >= 2
        del trainer
        gc.collect()
    assert seen[0] == seen[1]  # the same batches in the same shuffled order
    assert len(seen[0]) == 2 * 6 + 2
