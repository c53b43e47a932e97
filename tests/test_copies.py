"""One copy from a worker's sample to the tensor in the parent: collation writes it into the memory that the parent reads."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from helpers import START_METHODS

SHAPE = (1 << 20,)
BATCH = 8
BYTES = 4 * BATCH * SHAPE[0]


def place(address: int) -> tuple[str, int, int]:
    """Where an address of this process lies: the mapped file's name and inode, and the position in the file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode, *name = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            return (name[0] if name else "", int(inode), int(offset, 16) + address - low)
    raise AssertionError(f"{address:#x} is not mapped")


def resident(field: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{field}:")[2].split()[0]) * 1024


def count_from_here() -> int:
    """In the worker: the resident bytes, from which the high-water mark starts now.

    Free memory that the C library keeps goes back first: what is allocated there would not show as growth.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def collate_once(_worker: int) -> None:
    """In the worker: the libraries' code that collation runs is resident from here on, and so does not count as growth."""
    default_collate([np.zeros(1, np.float32)] * 2)


def collate_and_look(samples: list[Any]) -> dict[str, Any]:
    """In the worker: torch's default collation, where its result lies, and by how much the process grew meanwhile at its highest."""
    before = count_from_here()
    batch = default_collate(samples)
    return {"x": batch, "place": place(batch.data_ptr()), "grown": resident("VmHWM") - before, "pid": os.getpid()}


class Large(torch.utils.data.Dataset):
    def __init__(self, arrays: bool) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return 6 * BATCH

    def __getitem__(self, index: int) -> Any:
        sample = np.full(SHAPE, index, dtype=np.float32)
        return sample if self.arrays else torch.from_numpy(sample)


@pytest.mark.ours
@pytest.mark.parametrize(("method", "arrays"), [*((method, False) for method in START_METHODS), ("fork", True)])
def test_a_sample_is_copied_once(method: str, arrays: bool, Loader: Any) -> None:
    loader = Loader(
        Large(arrays),
        batch_size=BATCH,
        num_workers=1,
        collate_fn=collate_and_look,
        multiprocessing_context=method,
        prefetch_factor=1,
        worker_init_fn=collate_once,
    )
    for step, batch in enumerate(loader):
        assert batch["pid"] != os.getpid()
        tensor = batch["x"]
        assert tensor.nbytes == BYTES
        assert (tensor[:, 0] == torch.arange(step * BATCH, (step + 1) * BATCH)).all()
        # The parent's tensor is the very memory that the worker's collation wrote, and still held when it was sent: the same bytes
        # of the same file.
        assert place(tensor.data_ptr()) == tuple(batch["place"])
        assert batch["place"][0].startswith("/memfd:")
        # And the worker had no second buffer of that size: at most the slot's own pages were new.
        assert batch["grown"] < 1.5 * BYTES
        del batch, tensor


@pytest.mark.ours
def test_the_default_collation_writes_into_that_memory_too(Loader: Any) -> None:
    for tensor in Loader(Large(False), batch_size=BATCH, num_workers=1):
        assert place(tensor.data_ptr())[0].startswith("/memfd:")


@pytest.mark.ours
def test_a_second_buffer_would_be_seen(Loader: Any) -> None:
    """The instrument itself: a collate function that makes a copy of its own shows as growth."""
    for batch in Loader(Large(False), batch_size=BATCH, num_workers=1, collate_fn=twice):
        assert batch["grown"] > 0.9 * BYTES


def twice(samples: list[Any]) -> dict[str, Any]:
    seen = collate_and_look(samples)
    before = count_from_here()
    seen["x"] = seen["x"].clone()
    return {**seen, "grown": resident("VmHWM") - before}
