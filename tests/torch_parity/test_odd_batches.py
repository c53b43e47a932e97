"""What batches may hold, and who may have a hand in making them: torch's loader on the same thing is the oracle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torch.utils.data._utils.collate as stock_collate
from torch.autograd import forward_ad
from torch.utils.data import default_collate

import feedrate
from feedrate.torch import DataLoader
from helpers.procs import script

Stock: Any = torch.utils.data.DataLoader
POOLS: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 2, "workers": "thread"}]


class Sub(torch.Tensor):
    pass


class Made:
    """Samples by a function."""

    def __init__(self, make: Callable[[int], Any], count: int = 6) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def first(batch: list[Any]) -> Any:
    return batch[0]


def filled(index: int, size: int = 20_000) -> torch.Tensor:
    return torch.full((size,), float(index + 1))


def beside_gradient(index: int) -> Any:
    tensor = filled(index)
    return tensor.numpy(), tensor.requires_grad_()


def beside_subclass(index: int) -> Any:
    tensor = filled(index, 1 << 20)
    return tensor.numpy(), tensor.as_subclass(Sub)


def beside_parameter(index: int) -> Any:
    tensor = filled(index)
    return tensor.numpy(), torch.nn.Parameter(tensor), torch.zeros(100_000)


def beside_part_of_large(index: int) -> Any:
    """The storage is not copied for so small a part of it."""
    large = filled(index, 1 << 20)
    return large.numpy()[:1000], large[10:20].as_subclass(Sub), large[:2000]


def two_parameters_of_one(index: int) -> Any:
    tensor = filled(index, 100)
    return torch.nn.Parameter(tensor[:50]), torch.nn.Parameter(tensor[50:]), tensor


def sums(batch: Any) -> list[float]:
    return [float(part.sum()) for part in batch]


@pytest.mark.parametrize(
    "make", [beside_gradient, beside_subclass, beside_parameter, beside_part_of_large, two_parameters_of_one]
)
def test_memory_that_torch_would_move(make: Any) -> None:
    """An array of it was read where it had been: torch puts the storage into shared memory while it pickles the tensor."""
    found = [
        [
            (sums(batch), [type(part) for part in batch])
            for batch in loader(Made(make), batch_size=1, collate_fn=first, num_workers=1)
        ]
        for loader in (Stock, DataLoader)
    ]
    assert found[0] == found[1]


ODD: dict[str, Callable[[], torch.Tensor]] = {
    "gradient": lambda: torch.zeros(1 << 16, requires_grad=True),
    "float8": lambda: torch.zeros(1 << 16).to(torch.float8_e4m3fn),
    "conj": lambda: torch.zeros(1 << 16, dtype=torch.complex64).conj(),
    "sparse": lambda: torch.eye(200).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(1 << 16), 0.1, 0, torch.qint8),
    "subclass": lambda: torch.ones(1 << 16).as_subclass(Sub),
}


@pytest.mark.parametrize("kind", ODD)
def test_nothing_is_held_for_batches_that_nobody_takes(kind: str) -> None:
    """A persistent worker kept a descriptor and the memory of each."""
    loader = DataLoader(
        Made(lambda _: ODD[kind](), 64), collate_fn=first, num_workers=1, prefetch_factor=8, persistent_workers=True
    )
    held = []
    for _ in range(4):
        batches = iter(loader)
        next(batches)
        held.append(len(os.listdir(f"/proc/{batches._workers[0].pid}/fd")))
    assert held[-1] <= held[1]


@pytest.mark.parametrize("kind", ODD)
def test_batches_of_a_dead_worker_arrive(kind: str) -> None:
    """Those that it had sent were lost with it, since torch fetches descriptors from their sender."""
    loader = DataLoader(Made(lambda i: (i, ODD[kind]()), 8), collate_fn=first, num_workers=1, prefetch_factor=4, redo=True)
    batches = iter(loader)
    found = [next(batches)[0]]
    time.sleep(0.5)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    found += [batch[0] for batch in batches]
    assert found == list(range(8))


def test_arrays_do_not_share_what_tensors_do() -> None:
    def overlapping(_: int) -> Any:
        base = np.zeros(2000)
        return base[:1000], base[:2000], torch.from_numpy(base)[500:600], base[1900:]

    for loader in (Stock, DataLoader):
        one, two, tensor, three = next(iter(loader(Made(overlapping), collate_fn=first, num_workers=1)))
        tensor.fill_(7)
        one[0] = three[0] = 5
        assert (one.sum(), two.sum(), three.sum()) == (5, 0, 5), loader


def test_batches_of_very_many_arrays() -> None:
    def many(index: int) -> Any:
        return [np.full(64, float(index)) for _ in range(35_000)] + [np.full(10_000, float(index))] * 2

    for batch in DataLoader(Made(many, 4), batch_size=2, collate_fn=list, num_workers=1):
        assert [len(sample) for sample in batch] == [35_002, 35_002]
        assert all(array[0] == sample[0][0] and array.dtype == np.float64 for sample in batch for array in sample)
        assert batch[0][0][0] + 1 == batch[1][0][0]


@pytest.mark.parametrize("pool", POOLS)
def test_another_default_collate(pool: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was passed over where the loader collates into memory of its own."""
    monkeypatch.setattr(stock_collate, "default_collate", lambda batch: ("mine", default_collate(batch)))
    for kind, batch in DataLoader(list(range(4)), batch_size=2, **pool):
        assert (kind, batch.shape) == ("mine", (2,))


class Box:
    def __init__(self, value: float) -> None:
        self.value = value


class Registers:
    """Says how its samples are collated when the first one is made, as a module does that is imported then."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Box:
        stock_collate.default_collate_fn_map[Box] = lambda batch, *, collate_fn_map: [box.value for box in batch]
        return Box(index)


@pytest.mark.parametrize("pool", POOLS)
def test_types_that_are_made_known_during_the_epoch(pool: dict[str, Any]) -> None:
    try:
        assert list(DataLoader(Registers(), batch_size=2, **pool)) == [[0, 1], [2, 3]]
    finally:
        stock_collate.default_collate_fn_map.pop(Box, None)


def test_collation_of_tensors_that_is_changed_during_the_epoch() -> None:
    before = stock_collate.default_collate_fn_map[torch.Tensor]
    batches = iter(DataLoader(torch.arange(4.0), batch_size=2))
    try:
        assert next(batches).dtype == torch.float32
        stock_collate.default_collate_fn_map[torch.Tensor] = lambda batch, *, collate_fn_map: before(batch).half()
        assert next(batches).dtype == torch.float16
    finally:
        stock_collate.default_collate_fn_map[torch.Tensor] = before


class Reused:
    """Fills the same object again for each batch."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        batch = self.make()
        for at in range(4):
            batch[0], batch[1] = 2 * at, 2 * at + 1
            yield batch


@pytest.mark.parametrize("make", [lambda: [0, 0], lambda: np.zeros(2, int), lambda: torch.zeros(2, dtype=torch.int64)])
@pytest.mark.parametrize("pool", [*POOLS, {"num_workers": 2, "workers": "thread", "items_in_flight": 2}])
@pytest.mark.parametrize("Loader", [DataLoader, feedrate.DataLoader])
def test_samplers_may_use_a_batch_again(make: Any, pool: dict[str, Any], Loader: Any) -> None:
    if isinstance(make(), torch.Tensor) and Loader is not DataLoader:
        pytest.skip("torch's")
    found = [np.asarray(batch).tolist() for batch in Loader(range(8), batch_sampler=Reused(make), **pool)]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]]


def in_a_fork(batch: list[Any]) -> Any:
    """Collates in a child, as one does with a decoder that may crash."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(write, f"{default_collate(batch).sum():.0f}".encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.parametrize("make", [torch.ones, np.ones])
def test_collation_in_a_fork_of_a_worker(make: Any) -> None:
    assert list(DataLoader([make(1000)] * 4, batch_size=2, collate_fn=in_a_fork, num_workers=1)) == ["2000", "2000"]


@pytest.mark.parametrize("make", [torch.ones, np.ones])
def test_large_batches_go_torchs_way_under_its_modes(make: Any) -> None:
    sample = make(5 << 20)
    for loader in (Stock, DataLoader):
        batches = iter(loader([sample] * 4, batch_size=2))
        with torch.device("meta"):
            assert next(batches).device.type == ("meta" if isinstance(sample, np.ndarray) else "cpu"), loader
        assert next(batches).device.type == "cpu"


def test_large_batches_keep_forward_derivatives() -> None:
    with forward_ad.dual_level():
        samples = [forward_ad.make_dual(torch.ones(5 << 20), torch.full((5 << 20,), 2.0)) for _ in range(2)]
        batch = next(iter(DataLoader(samples, batch_size=2)))
        assert float(forward_ad.unpack_dual(batch).tangent.mean()) == 2.0


@pytest.mark.parametrize("batch", [[1.0, 1j], [np.array([1.0]), np.array(["a"])], [np.array([1.0]), np.array([None])]])
def test_numbers_beside_something_else_are_refused(batch: list[Any]) -> None:
    """The imaginary part was dropped, and numbers became strings."""
    with pytest.raises(TypeError, match="of one kind: sample 0 is"):
        feedrate.default_collate(batch)


@pytest.mark.parametrize("second", [lambda: 1, lambda: np.ones(2), lambda: torch.ones(3)])
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_cannot_be_stacked(workers: int, second: Any) -> None:
    batch = [torch.ones(2), second()]
    found = []
    for loader in (Stock, DataLoader):
        with pytest.raises(Exception) as error:
            next(iter(loader(batch, batch_size=2, num_workers=workers)))
        found.append(error)
    last = str(found[0].value).strip().splitlines()[-1]
    assert found[1].type is found[0].type
    assert last in str(found[1].value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_has_become_empty(workers: int) -> None:
    data: list[int] = [1, 2]
    for loader in (Stock, DataLoader):
        for generator in (None, torch.Generator()):
            made = loader(data, shuffle=True, num_workers=workers, generator=generator)
            data.clear()
            with pytest.raises(ZeroDivisionError):
                list(made)
            data += [1, 2]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "generator": torch.Generator()},
        {"num_workers": 1},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        {"num_workers": 1, "persistent_workers": True},
    ],
)
def test_loops_that_are_compiled(settings: dict[str, Any]) -> None:
    def epoch(loader: Any) -> Any:
        total = 0
        for batch in loader:
            total = total + batch.sum() * len(loader)
        return total

    def one(batches: Any) -> Any:
        return next(batches) + 1

    found = []
    for loader in (Stock, DataLoader):
        torch._dynamo.reset()
        if "generator" in settings:
            settings["generator"].manual_seed(3)
        torch.manual_seed(3)
        made = loader(torch.arange(9.0), batch_size=3, **settings)
        compiled, compiled_one = torch.compile(epoch, backend="eager"), torch.compile(one, backend="eager")
        found.append([float(compiled(made)), float(compiled(made)), compiled_one(iter(made)).tolist()])
    assert found[0] == found[1]


def test_loops_of_the_plain_loader_that_are_compiled() -> None:
    def epoch(loader: Any) -> Any:
        total = 0
        for batch in loader:
            total = total + int(np.asarray(batch).sum())
        return total

    pipeline = feedrate.from_items(range(9))
    for loader in (feedrate.DataLoader(range(9), batch_size=3), feedrate.DataLoader(pipeline, batch_size=3), pipeline):
        torch._dynamo.reset()
        assert torch.compile(epoch, backend="eager")(loader) == 36


def read_only(index: int) -> Any:
    array = np.full((256, 64, 64), index, np.float64)
    array.flags.writeable = False
    return array


READ_ONLY = """
import sys, torch, torch.utils.data, feedrate.torch
from torch_parity.test_odd_batches import Made, read_only

kind, workers, always = sys.argv[1:]
torch.set_warn_always(always == "always")
real = torch.as_tensor

def counted(*args):
    print("as_tensor", file=sys.stderr)
    return real(*args)

torch.as_tensor = counted
module = torch.utils.data if kind == "stock" else feedrate.torch
loader = module.DataLoader(Made(read_only, 8), batch_size=2, num_workers=int(workers), multiprocessing_context="fork" if int(workers) else None)
for at, batch in enumerate(loader):
    assert batch.shape == (2, 256, 64, 64)
    assert batch.mean((1, 2, 3)).tolist() == [2 * at, 2 * at + 1]
"""


@pytest.mark.parametrize("always", ["once", "always"])
@pytest.mark.parametrize("workers", ["0", "1"])
def test_arrays_that_cannot_be_written_to(workers: str, always: str) -> None:
    said = {}
    for kind in ("stock", "ours"):
        run = script(READ_ONLY, kind, workers, always)
        assert run.returncode == 0, run.stderr
        said[kind] = run.stderr
    warnings = [text.count("UserWarning: The given NumPy array is not writable") for text in said.values()]
    # Python itself shows a warning of one place once.
    assert warnings == [1, 1], said
    # Torch's way is for what torch says something to.
    assert said["stock"].count("as_tensor\n") == 8
    assert said["ours"].count("as_tensor\n") == (2 if always == "once" else 8)
