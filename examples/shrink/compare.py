"""Whether decoding at a reduced size (`shrink="dct"`) costs accuracy.

    python examples/shrink/compare.py [--seeds 8] [--epochs 8]

Trains the same small network on random resized crops of photographs, for each seed with images by Pillow and torchvision and with
images by `feedrate.image` with `shrink="dct"`, which lets the JPEG decoder give half or a quarter of the size where what is resized
stays at least twice as large as what is trained on. Both are checked on held-out views that are decoded exactly; the second also on
views that are decoded smaller. The rate of learning falls to zero, so that the last accuracy is that of the run and not of its last
steps. Prints the accuracies, means and spread, and the mean difference to Pillow over the seeds, which share order and first weights,
with its 95 % interval (Student's t). Exits with 1 if that of the first two does not hold zero. Needs the packages of `make test`.
RESULT.txt holds what it printed where it was run last.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms

sys.path.insert(0, str(Path(__file__).parent.parent / "demo"))

import photos

from feedrate.image import Transform
from feedrate.torch import DataLoader

VIEW = 256  # pixels a side, as stored
SIZE = 32  # as trained on
STRIDE = 32
SCALE = (0.3, 1.0)  # so that most crops are at least four times as large as what comes out


def views() -> tuple[list[tuple[bytes, int]], list[tuple[bytes, int]]]:
    """JPEGs with the number of the photograph each was cut from: for training, and from the right-hand part for checking."""
    train, check = [], []
    for label, file in enumerate(photos.find()):
        photo = Image.open(file).convert("RGB")
        photo.thumbnail((720, 720))
        wall = photo.width - VIEW - 64
        for left in range(0, photo.width - VIEW + 1, STRIDE):
            for top in range(0, photo.height - VIEW + 1, STRIDE):
                stored = io.BytesIO()
                photo.crop((left, top, left + VIEW, top + VIEW)).save(stored, "JPEG", quality=90)
                (train if left < wall else check).append((stored.getvalue(), label))
    return train, check


class Views(Dataset[Any]):
    """Views through a transform that takes the bytes of a file."""

    def __init__(self, files: list[tuple[bytes, int]], transform: Any) -> None:
        self.files = files
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        data, label = self.files[index]
        return self.transform(data), label


class ByPillow:
    """torchvision's transforms on what Pillow decodes."""

    def __init__(self, *steps: Any) -> None:
        self.steps = transforms.Compose([*steps, transforms.ToTensor()])

    def __call__(self, data: bytes) -> Any:
        return self.steps(Image.open(io.BytesIO(data)).convert("RGB"))


def ways() -> dict[str, tuple[Any, dict[str, Any]]]:
    """The transforms for training, and those for checking by name."""
    quick = Transform(shrink="dct")
    pillow = ByPillow(transforms.RandomResizedCrop(SIZE, scale=SCALE), transforms.RandomHorizontalFlip())
    train = quick.random_resized_crop(SIZE, scale=SCALE).horizontal_flip().to("float32")
    exact = ByPillow(transforms.Resize(SIZE))
    return {
        "pillow": (pillow, {"pillow": exact}),
        "dct": (train, {"dct": exact, "dct, checked so": quick.resize(SIZE).to("float32")}),
    }


def network(classes: int) -> nn.Sequential:
    """Three convolutions."""
    layers: list[nn.Module] = []
    for before, after in ((3, 24), (24, 48), (48, 96)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, classes))


def train(files: Any, held_out: Any, transform: Any, checks: dict[str, Any], seed: int, epochs: int) -> dict[str, float]:
    """The accuracies on the held-out views after training."""
    torch.manual_seed(seed)
    model = network(1 + max(label for _, label in files))
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=5e-3, epochs=epochs, steps_per_epoch=-(-len(files) // 32))
    order = torch.Generator().manual_seed(seed)
    common: dict[str, Any] = {"batch_size": 32, "num_workers": 2, "persistent_workers": True}
    loader = DataLoader(Views(files, transform), shuffle=True, generator=order, **common)
    for _ in range(epochs):
        model.train()
        for images, labels in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimiser.step()
            schedule.step()
    model.eval()
    found = dict.fromkeys(checks, 0.0)
    with torch.no_grad():
        for name, check in checks.items():
            for images, labels in DataLoader(Views(held_out, check), **common):
                found[name] += int((model(images).argmax(1) == labels).sum()) / len(held_out)
    return found


def students_t(freedom: int) -> float:
    """Standard errors that the 95 % interval reaches to each side, by its expansion (Abramowitz and Stegun 26.7.5)."""
    z = 1.959964
    g1, g2 = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + g1 / freedom + g2 / freedom**2 + g3 / freedom**3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    files, held_out = views()
    print(
        f"{len(files)} views of {VIEW} x {VIEW} for training at {SIZE} x {SIZE}, {len(held_out)} held out, {options.epochs} epochs"
    )
    found: dict[str, list[float]] = {name: [] for _, checks in ways().values() for name in checks}
    took = dict.fromkeys(found, 0.0)
    for seed in range(options.seeds):
        for name, (transform, checks) in ways().items():
            started = time.perf_counter()
            for check, accuracy in train(files, held_out, transform, checks, seed, options.epochs).items():
                found[check].append(accuracy)
            took[name] += time.perf_counter() - started
    for name, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        each = " ".join(f"{value:.3f}" for value in values)
        print(f"{name:16}{statistics.mean(values):.3f} +- {spread:.3f}   ({each})   {took[name]:.0f} s")
    outside = False
    if options.seeds > 1:
        for name in list(found)[1:]:
            gaps = [a - b for a, b in zip(found[name], found["pillow"], strict=True)]
            half = students_t(len(gaps) - 1) * statistics.stdev(gaps) / len(gaps) ** 0.5
            mean = statistics.mean(gaps)
            print(f"{name} against pillow: {mean:+.4f} +- {half:.4f}")
            outside |= name == "dct" and abs(mean) > half
    return int(outside)


if __name__ == "__main__":
    np.random.seed(0)
    sys.exit(main())
