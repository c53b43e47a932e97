"""The photographs, and a dataset of views cut from them.

The photographs come with the packages scikit-image and scikit-learn (public domain, CC0 or CC BY). Each is cut into small
overlapping views that are kept as JPEG, as a real training set is; the label of a view is the photograph that it was cut
from. Views for validation come from the right-hand quarter of each photograph, which no training view touches.
"""

from __future__ import annotations

import importlib.util
import io
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

PHOTOS = {
    "skimage": (
        "data",
        "astronaut.png brick.png camera.png chelsea.png coffee.png coins.png grass.png gravel.png hubble_deep_field.jpg "
        "ihc.png moon.png motorcycle_left.png retina.jpg rocket.jpg",
    ),
    "sklearn": ("datasets/images", "china.jpg flower.jpg"),
}
VIEW = 128  # pixels a side, as stored
CROP = 112  # pixels a side, as trained on
STRIDE = 18


def find() -> list[Path]:
    """The files of the photographs, without importing the packages that carry them."""
    found = []
    for package, (folder, names) in PHOTOS.items():
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"the package {package}, which carries photographs, is not installed: use `make demo`")
        found += [Path(spec.submodule_search_locations[0]) / folder / name for name in names.split()]
    return found


def cut(to: Path) -> int:
    """Cuts all views and writes them to one file. Returns the number of photographs."""
    files = find()
    parts: list[bytes] = []
    about: list[tuple[int, bool]] = []
    for label, file in enumerate(files):
        photo = Image.open(file).convert("RGB")
        photo.thumbnail((640, 640))
        wall = photo.width * 3 // 4
        for left in range(0, photo.width - VIEW + 1, STRIDE):
            if wall - VIEW < left < wall and left + VIEW < photo.width:
                continue  # it would straddle the wall between training and validation
            for top in range(0, photo.height - VIEW + 1, STRIDE):
                stored = io.BytesIO()
                photo.crop((left, top, left + VIEW, top + VIEW)).save(stored, "JPEG", quality=90)
                parts.append(stored.getvalue())
                about.append((label, left + VIEW > wall))
    np.savez(
        to,
        data=np.frombuffer(b"".join(parts), dtype=np.uint8),
        ends=np.cumsum([len(part) for part in parts]),
        labels=np.array([label for label, _ in about]),
        held_out=np.array([held for _, held in about]),
    )
    return len(files)


class Views(Dataset[tuple[torch.Tensor, int]]):
    """Decodes a view with Pillow. In training it is cropped at random and mirrored half of the time."""

    def __init__(self, file: Path, train: bool) -> None:
        stored = np.load(file)
        self.data, self.ends, self.labels = stored["data"], stored["ends"], stored["labels"]
        self.chosen = np.flatnonzero(stored["held_out"] != train)
        self.train = train

    def __len__(self) -> int:
        return len(self.chosen)

    def file(self, index: int) -> tuple[bytes, int]:
        """The JPEG of a view, and its label."""
        which = self.chosen[index]
        start = self.ends[which - 1] if which else 0
        return self.data[start : self.ends[which]].tobytes(), int(self.labels[which])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        data, label = self.file(index)
        view = Image.open(io.BytesIO(data))
        left = top = (VIEW - CROP) // 2
        if self.train:
            left, top = random.randint(0, VIEW - CROP), random.randint(0, VIEW - CROP)
        pixels = np.asarray(view)[top : top + CROP, left : left + CROP]
        if self.train and random.random() < 0.5:
            pixels = pixels[:, ::-1]
        image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float().div_(255)
        return image, label


class NativeViews(Views):
    """The same views by native code, a batch at a time: with the same random numbers, the same pixels."""

    def __init__(self, file: Path, train: bool) -> None:
        from feedrate.image import Transform

        super().__init__(file, train)
        self.transform = (Transform().random_crop(CROP).horizontal_flip() if train else Transform().center_crop(CROP)).to(
            "float32"
        )

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        files, labels = zip(*(self.file(index) for index in indices), strict=True)
        drawn = None
        if self.train:
            # Left, top, mirrored: in the order in which the other dataset draws them.
            rows = [(random.randint(0, VIEW - CROP), random.randint(0, VIEW - CROP), random.random() < 0.5) for _ in indices]
            drawn = [[[top, left], [float(mirrored)]] for left, top, mirrored in rows]
        images = torch.from_numpy(self.transform(list(files), parameters=drawn))
        return list(zip(images, labels, strict=True))
