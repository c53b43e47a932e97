"""An ImageNet-like set of photographs, made once from those that scikit-learn and scikit-image carry: 240 crops of 500x375 at quality 95, in 8 classes."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np

COUNT, WIDTH, HEIGHT, QUALITY, CLASSES = 240, 500, 375, 95, 8
CACHE = Path(__file__).parent.parent / ".cache"


def photographs() -> list[Any]:
    """In RGB, largest first by name."""
    from PIL import Image

    names: list[Path] = []
    for package, folder in (("sklearn", "datasets/images"), ("skimage", "data")):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ImportError(f"{package} carries the photographs of this row: make setup installs it")
        names += sorted(path for path in (Path(spec.origin).parent / folder).glob("*") if path.suffix in (".jpg", ".png"))
    found = []
    for name in names:
        image = Image.open(name)
        if image.mode == "RGB" and min(image.size) >= 300:
            found.append(image.convert("RGB"))
    return found


def folder() -> Path:
    """The folder of classes; made the first time, whole or not at all."""
    target = CACHE / "bench-photos"
    if target.is_dir():
        return target
    from PIL import Image

    rng = np.random.default_rng(0)
    photos = photographs()
    made = CACHE / f"bench-photos-{os.getpid()}"
    for k in range(COUNT):
        photo = photos[k % len(photos)]
        scale = rng.uniform(0.5, 1.0) * min(photo.width / WIDTH, photo.height / HEIGHT)
        width, height = int(WIDTH * scale), int(HEIGHT * scale)
        x, y = int(rng.integers(0, photo.width - width + 1)), int(rng.integers(0, photo.height - height + 1))
        crop = photo.crop((x, y, x + width, y + height)).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        place = made / f"class{k % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        crop.save(place / f"{k:04d}.jpg", quality=QUALITY)
    try:
        made.rename(target)
    except OSError:
        # Another process was quicker.
        import shutil

        shutil.rmtree(made)
    return target


def pixels(count: int, side: int) -> np.ndarray:
    """Photographs as uint8 of the shape (count, side, side, 3), mapped from a file that is made the first time."""
    path = CACHE / f"bench-pixels-{count}-{side}.npy"
    if not path.is_file():
        from PIL import Image

        files = sorted(folder().rglob("*.jpg"))
        whole = np.stack([np.asarray(Image.open(files[k % len(files)]).resize((side, side))) for k in range(count)])
        made = path.with_name(f"{path.name}-{os.getpid()}.npy")
        np.save(made, whole)
        made.rename(path)
    mapped: np.ndarray = np.load(path, mmap_mode="r")
    return mapped
