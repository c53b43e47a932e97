"""Lightning's Trainer and Fabric: they re-instantiate loaders, and our engine must still be at work afterwards."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from engines import Line, Numbers, counting
from torch.utils.data import DistributedSampler, SequentialSampler

pytestmark = [pytest.mark.ours, pytest.mark.watchdog(150), pytest.mark.filterwarnings("ignore")]
lightning = pytest.importorskip("lightning")

EXTRAS = {"seeding": "sample", "seed": 3, "redo": False, "items_in_flight": 2, "workers": "thread"}


class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = Line()

    def training_step(self, batch: Any, _: int) -> Any:
        return self.model(**batch)["loss"]

    def validation_step(self, batch: Any, _: int) -> Any:
        self.log("val", self.model(**batch)["loss"])

    def predict_step(self, batch: Any, _: int) -> Any:
        return batch["x"][:, 0].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def trainer(**kwargs: Any) -> Any:
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **kwargs,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_fit_and_validate(workers: int, Loader: Any) -> None:
    module = Module()
    with counting() as counts, warnings.catch_warnings():
        trainer(max_epochs=2, num_sanity_val_steps=0).fit(
            module,
            Loader(Numbers(), batch_size=8, num_workers=workers),
            Loader(Numbers(8), batch_size=8, num_workers=workers),
        )
    assert counts.stock == 0
    assert counts.ours >= 3
    training = [b for b in module.model.seen if b[0] != 0 or len(module.model.seen) > 0]
    assert training.count([float(i) for i in range(8)]) == 4  # two epochs of training and two of validation
    assert training.count([float(i) for i in range(24, 32)]) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_predict_rebuilds_the_loader_and_stays_ours(workers: int, Loader: Any) -> None:
    """predict() wraps the batch sampler to know the indices, so it re-instantiates the class of the loader."""
    loader = Loader(Numbers(20), batch_size=6, num_workers=workers)
    with counting() as counts:
        out = trainer().predict(Module(), loader)
    assert [v for b in out for v in b] == [float(i) for i in range(20)]
    assert counts.stock == 0
    assert counts.ours == 1


def test_overfit_batches_rebuilds_a_shuffled_loader(Loader: Any) -> None:
    module = Module()
    with counting() as counts:
        trainer(max_epochs=2, overfit_batches=2).fit(module, Loader(Numbers(), batch_size=4, shuffle=True))
    assert counts.stock == 0
    assert counts.ours >= 1
    assert [float(i) for i in range(4)] in module.model.seen


def test_loader_made_inside_a_hook(Loader: Any) -> None:
    """Hooks run with every DataLoader class's constructor patched."""

    class WithHook(Module):
        def train_dataloader(self) -> Any:
            return Loader(Numbers(), batch_size=8, num_workers=1, seeding="sample", seed=1)

    module = WithHook()
    with counting() as counts:
        trainer(max_epochs=1).fit(module)
    assert counts.stock == 0
    assert counts.ours == 1
    assert len(module.model.seen) == 4


def test_rebuilding_keeps_our_keywords(Loader: Any) -> None:
    from lightning.fabric.utilities.data import _update_dataloader as fabric_update
    from lightning.pytorch.utilities.data import _update_dataloader as pl_update

    for update in (pl_update, fabric_update):
        loader = Loader(Numbers(), batch_size=4, num_workers=2, prefetch_factor=3, **EXTRAS)
        sampler: Any = DistributedSampler(loader.dataset, num_replicas=2, rank=1, shuffle=False)
        again = update(loader, sampler)
        assert type(again) is Loader
        for name, value in EXTRAS.items():
            assert getattr(again, name) == value, name
        assert (again.batch_size, again.num_workers, again.prefetch_factor) == (4, 2, 3)
        assert [v for b in again for v in b["x"][:, 0].tolist()] == [float(i) for i in range(1, 32, 2)]
        plain = update(Loader(Numbers()), SequentialSampler(Numbers()))
        assert type(plain) is Loader


def test_fabric(Loader: Any) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    with counting() as counts:
        loader = fabric.setup_dataloaders(Loader(Numbers(16), batch_size=4, num_workers=2))
        seen = [v for b in loader for v in b["x"][:, 0].tolist()]
    assert seen == [float(i) for i in range(16)]
    assert (counts.stock, counts.ours) == (0, 1)


def _ddp_run(fabric: Any) -> None:
    """In each of two ranks: the sampler is replaced by a distributed one, by rebuilding the loader."""
    from feedrate.torch import DataLoader as Ours

    with counting() as counts:
        loader = fabric.setup_dataloaders(Ours(Numbers(16), batch_size=2, num_workers=1))
        seen = [v for b in loader for v in b["x"][:, 0].tolist()]
    assert seen == [float(i) for i in range(fabric.global_rank, 16, 2)], seen
    assert (counts.stock, counts.ours) == (0, 1)


def test_fabric_with_two_ranks(Loader: Any) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    fabric.launch(_ddp_run)
