"""Real photographs, from packages that the tests have anyway, and files made of them."""

from __future__ import annotations

import functools
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


@functools.cache
def photographs() -> list[Image.Image]:
    """Those of scikit-learn and scikit-image, in RGB."""

    def folder(package: str) -> Path:
        # Found, not imported, which takes a second.
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parent

    names = [folder("sklearn") / "datasets/images" / name for name in ("china.jpg", "flower.jpg")]
    names += sorted(
        path
        for path in (folder("skimage") / "data").glob("*")
        if path.suffix in (".jpg", ".png") and path.stat().st_size > 20_000
    )
    found = []
    for name in names:
        image = Image.open(name)
        if image.mode in ("RGB", "L", "RGBA"):
            found.append(image.convert("RGB"))
    assert len(found) >= 3
    return found


def jpeg(image: Any, **options: Any) -> bytes:
    """A JPEG of an image or array."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 92, **options})
    return file.getvalue()


def crops(count: int, width: int = 500, height: int = 375, seed: int = 0) -> list[Image.Image]:
    """Crops of the photographs, shrunk or grown to this size."""
    rng = np.random.default_rng(seed)
    photos = photographs()
    found = []
    for k in range(count):
        photo = photos[k % len(photos)]
        scale = rng.uniform(0.5, 1.0) * min(photo.width / width, photo.height / height)
        w, h = int(width * scale), int(height * scale)
        x, y = rng.integers(0, photo.width - w + 1), rng.integers(0, photo.height - h + 1)
        found.append(photo.crop((x, y, x + w, y + h)).resize((width, height), Image.Resampling.BICUBIC))
    return found
