"""What the loaders are given: datasets and collate functions, made from a row's parameters.

Nothing here is random: every value is arithmetic on the index, so that a row's answer (how many batches, and the
checksum over all of them) is one constant that every loader must reach on every machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset, RandomSampler, Sampler, default_collate


def pattern(shape: tuple[int, ...], which: int) -> np.ndarray:
    """A float32 array of the given shape, different for each `which`."""
    count = int(np.prod(shape))
    ramp = (np.arange(count, dtype=np.int64) * 40503 + which * 9973) & 0xFFFF
    return (ramp.astype(np.float32) / 65536).reshape(shape)


class Fixed(Dataset[Any]):
    """Ready-made arrays or tensors: the dataset does no work, the loader does all of it.

    Item `i` is array number `i % distinct`, so a batch out of order is noticed; `label` adds the index itself.
    """

    def __init__(self, entries: int, kind: str, shape: list[int], distinct: int = 1, label: bool = False) -> None:
        arrays = [pattern(tuple(shape), which) for which in range(distinct)]
        self.items: list[Any] = [torch.from_numpy(a) for a in arrays] if kind == "tensor" else list(arrays)
        self.entries = entries
        self.label = label

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> Any:
        item = self.items[index % len(self.items)]
        return (item, index) if self.label else item


class Ints(Dataset[int]):
    """Item `i` is the number `i`: nothing but overhead."""

    def __init__(self, entries: int) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> int:
        return index


class Indices(Ints):
    """Ints that are asked for in batches, and given back as they come: what is left is the way of the indices."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class Dicts(Dataset[dict[str, Any]]):
    """Three tensors of 512 numbers, an int and a string: a tokenised text."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.ids = torch.arange(512, dtype=torch.int64)
        self.mask = torch.ones(512, dtype=torch.int64)
        self.weights = torch.from_numpy(pattern((512,), 1))

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "ids": self.ids,
            "mask": self.mask,
            "weights": self.weights,
            "label": index,
            "name": f"text-{index}",
        }


class PurePython(Dataset[int]):
    """A loop of plain Python arithmetic for each item; the interpreter is the limit, not the loader."""

    def __init__(self, entries: int, steps: int) -> None:
        self.entries = entries
        self.steps = steps

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> int:
        value = index + 1
        for _ in range(self.steps):
            value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        return value


class Waiting(Dataset[int]):
    """Each item waits, as one that is read over a network does."""

    def __init__(self, entries: int, seconds: float) -> None:
        self.entries = entries
        self.seconds = seconds

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


class Paths(Dataset[tuple[int, int]]):
    """A list of (path, label) tuples, as torchvision's ImageFolder keeps one; an item reads its tuple."""

    def __init__(self, entries: int) -> None:
        self.samples = [(f"train/n{i % 1000:08d}/n{i % 1000:08d}_{i}.jpeg", i % 1000) for i in range(entries)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, int]:
        path, label = self.samples[index]
        return len(path), label


class Scratch(Dataset[tuple[np.ndarray, int]]):
    """The data of the well-known loader-from-scratch experiment: a wait of half a millisecond, then an MNIST-sized array."""

    def __init__(self, entries: int, seconds: float) -> None:
        self.entries = entries
        self.seconds = seconds

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        time.sleep(self.seconds)
        return np.full((1, 28, 28), index % 256, dtype=np.float64), 1


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Photographs as JPEG files, with torchvision's transforms on Pillow images: what most training scripts do."""

    def __init__(self, entries: int, kind: str) -> None:
        from torchvision import transforms
        from torchvision.datasets import ImageFolder

        from benchmarks import photos

        self.root = str(photos.folder())
        self.kind = kind
        self.entries = entries
        geometry = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
        if kind == "test":
            geometry = [transforms.Resize(256), transforms.CenterCrop(224)]
        if kind == "views":
            # As SimCLR takes its views, without the blur.
            jitter = transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)
            geometry += [transforms.RandomApply([jitter], 0.8), transforms.RandomGrayscale(0.2)]
        self.transform = transforms.Compose([*geometry, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
        self.folder = ImageFolder(self.root, self.transform)

    def __len__(self) -> int:
        return self.entries

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample: tuple[torch.Tensor, int] = self.folder[index % len(self.folder)]
        return sample


class PhotosIO(Dataset[tuple[torch.Tensor, int]]):
    """The same files, decoded by torchvision and transformed as tensors by v2."""

    def __init__(self, photos: Any) -> None:
        from torchvision.transforms import v2

        self.photos = photos
        geometry = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
        if photos.kind == "test":
            geometry = [v2.Resize(256, antialias=True), v2.CenterCrop(224)]
        self.transform = v2.Compose([*geometry, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from torchvision.io import ImageReadMode, decode_image, read_file

        samples = self.photos.folder.samples
        path, label = samples[index % len(samples)]
        return self.transform(decode_image(read_file(path), ImageReadMode.RGB)), label


class Pixels(Dataset[tuple[torch.Tensor, int]]):
    """Pixels in a mapped file: a random crop of 224 and a flip, by NumPy."""

    def __init__(self, entries: int, count: int, side: int) -> None:
        from benchmarks import photos

        self.pixels = photos.pixels(count, side)
        self.entries = entries

    def __len__(self) -> int:
        return self.entries

    def image(self, index: int) -> np.ndarray:
        """The pixels of an entry."""
        return self.pixels[index % len(self.pixels)]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.image(index)
        y, x = torch.randint(0, image.shape[0] - 223, (2,)).tolist()
        crop = image[y : y + 224, x : x + 224]
        if torch.rand(1) < 0.5:
            crop = crop[:, ::-1]
        return torch.from_numpy(crop.copy()), index


def stack(samples: list[torch.Tensor]) -> torch.Tensor:
    """A user's own collate function that returns a tensor it made itself."""
    return torch.stack(samples)


def as_given(samples: Any) -> Any:
    """A collate function that does nothing."""
    return samples


def wrap(samples: list[torch.Tensor]) -> dict[str, Any]:
    """A user's own collate function that calls torch's default one and adds something."""
    return {"x": default_collate(samples), "count": len(samples)}


DATASETS: dict[str, Callable[..., Dataset[Any]]] = {
    "fixed": Fixed,
    "ints": Ints,
    "indices": Indices,
    "dicts": Dicts,
    "pure-python": PurePython,
    "waiting": Waiting,
    "paths": Paths,
    "scratch": Scratch,
    "photos": Photos,
    "pixels": Pixels,
}
COLLATE: dict[str, Callable[[list[Any]], Any]] = {"stack": stack, "wrap": wrap, "as-given": as_given}


@dataclass
class Case:
    """One row made ready for a loader. `batch_bytes` is the size of a batch, for loaders that must be told."""

    dataset: Dataset[Any]
    batch_size: int
    shuffle: bool
    collate_fn: Callable[[list[Any]], Any] | None
    start_method: str | None
    items_in_flight: int
    batch_bytes: int
    generator: torch.Generator | None = None

    def sampler(self) -> Sampler[int] | None:
        """A random sampler, whose order `reseed` begins again; None where the order is sequential.

        Its generator is its own: loaders differ in what else they draw from the generator they are given.
        """
        if not self.shuffle:
            return None
        self.generator = torch.Generator()
        self.reseed()
        return RandomSampler(cast("Sized", self.dataset), generator=self.generator)

    def reseed(self) -> None:
        """Makes the next epoch's order the first one's, so that every epoch has the same answer."""
        if self.generator is not None:
            self.generator.manual_seed(20)


def build(row: dict[str, Any]) -> Case:
    """Makes the dataset of a row of the definitions (a table as TOML gives it)."""
    entries = row.get("entries", row["batches"] * row["batch_size"])
    params = row.get("params", {})
    collate = row.get("collate")
    numbers = int(np.prod(params["shape"])) if "shape" in params else 512 * 5 if row["workload"] == "dicts" else 784 * 2
    if row["workload"] in ("photos", "pixels"):
        numbers = 3 * 224 * 224
    return Case(
        dataset=DATASETS[row["workload"]](entries, **params),
        batch_size=row["batch_size"],
        shuffle=row.get("shuffle", False),
        collate_fn=COLLATE[collate] if collate else None,
        start_method=row.get("start_method"),
        items_in_flight=row.get("items_in_flight", 1),
        batch_bytes=numbers * 4 * row["batch_size"] + 65536,
    )
