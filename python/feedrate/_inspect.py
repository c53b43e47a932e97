"""``feedrate inspect``: what is in a set of images, and what a trainer gets of it."""

from __future__ import annotations

import glob
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from feedrate import _native
from feedrate._errors import ImageError
from feedrate._image import MAX_PIXELS, decode, info

#: Extensions by which a file is said to be an image of a format.
EXTENSIONS = {
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "jpe": "JPEG",
    "jfif": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "gif": "GIF",
    "bmp": "BMP",
    "tif": "TIFF",
    "tiff": "TIFF",
    **dict.fromkeys(("ppm", "pgm", "pbm", "pnm", "pfm"), "PPM"),
}

Pixels = npt.NDArray[np.uint8]


class NothingFound(Exception):
    """There is nothing to look at; the message says where it was looked for."""


@dataclass
class Found:
    """One file."""

    name: str
    bytes: int
    format: str | None = None
    width: int = 0
    height: int = 0
    mode: str = ""
    frames: int = 1
    orientation: int = 1
    #: What is wrong, if something is.
    flaw: str | None = None
    reason: str | None = None
    thumbnail: Pixels | None = None


@dataclass
class Report:
    """What was found in all files."""

    images: list[Found] = field(default_factory=list)
    damaged: list[Found] = field(default_factory=list)
    #: Files that neither are images nor are named as if they were.
    others: int = 0

    def add(self, found: Found) -> None:
        """Counts a file."""
        if found.flaw is None:
            self.images.append(found)
        elif found.flaw == "unknown" and _extension(found.name) not in EXTENSIONS:
            self.others += 1
        else:
            self.damaged.append(found)

    def write(self, out: TextIO, most: int = 20) -> None:
        """Writes it as text; of long lists the first ``most``."""
        images = self.images
        parts = [f"{len(images):,} images in {sum(one.bytes for one in images):,} bytes", f"{len(self.damaged):,} damaged"]
        if self.others:
            parts.append(f"{self.others:,} other files")
        out.write(", ".join(parts) + "\n")
        if images:
            _counts(out, "formats", Counter(str(one.format) for one in images), most)
            _counts(out, "modes", Counter(one.mode for one in images), most)
            _counts(out, "sizes", Counter(f"{one.width}x{one.height}" for one in images), min(most, 5))
            for name, values in (
                ("width", [one.width for one in images]),
                ("height", [one.height for one in images]),
                ("megapixels", [one.width * one.height / 1e6 for one in images]),
            ):
                low, middle, high = np.percentile(values, [0, 50, 100])
                out.write(f"{name}: {low:.4g} to {high:.4g}, half of them up to {middle:.4g}\n")
            turned = sum(one.orientation != 1 for one in images)
            if turned:
                out.write(f"turned by EXIF: {turned:,}: decode with orientation=True to have them upright\n")
            moving = sum(one.frames > 1 for one in images)
            if moving:
                out.write(f"with more than one frame: {moving:,}\n")
            _names(
                out, "named as another format", [one for one in images if _misnamed(one)], most, lambda one: f"is {one.format}"
            )
        _names(out, "damaged", self.damaged, most, lambda one: str(one.reason))


def _counts(out: TextIO, title: str, counter: Counter[str], most: int) -> None:
    shown = counter.most_common(most)
    text = ", ".join(f"{name} {count:,}" for name, count in shown)
    more = len(counter) - len(shown)
    out.write(f"{title}: {text}{f' and {more:,} more' if more else ''}\n")


def _names(out: TextIO, title: str, files: list[Found], most: int, says: Any) -> None:
    if not files:
        return
    out.write(f"{title}: {len(files):,}\n")
    out.writelines(f"  {one.name}: {says(one)}\n" for one in files[:most])
    if len(files) > most:
        out.write(f"  and {len(files) - most:,} more\n")


def _extension(name: str) -> str:
    return Path(name).suffix.lstrip(".").lower()


def _misnamed(one: Found) -> bool:
    said = EXTENSIONS.get(_extension(one.name))
    return said is not None and said != one.format


def files_of(places: Iterable[str]) -> Iterator[tuple[str, bytes | ImageError]]:
    """Names and contents of what lies at the places: files, folders (with all below), tars, patterns."""
    for place in places:
        if Path(place).is_dir():
            paths = sorted(str(path) for path in Path(place).rglob("*") if path.is_file())
        elif Path(place).is_file():
            paths = [place]
        else:
            paths = sorted(path for path in glob.glob(place, recursive=True) if Path(path).is_file())  # noqa: PTH207 (absolute too)
        if not paths:
            raise NothingFound(
                f"there is no file at {place!r}: it is a file, a folder, a tar or a pattern such as 'train/**/*.jpg'"
            )
        for path in paths:
            yield from _files_in(path)


def _files_in(path: str) -> Iterator[tuple[str, bytes | ImageError]]:
    name = path.lower()
    if name.endswith((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")):
        try:
            with tarfile.open(path, "r|*") as tar:
                for member in tar:
                    content = tar.extractfile(member) if member.isfile() else None
                    if content is not None:
                        yield f"{path}: {member.name}", content.read()
        except (tarfile.TarError, EOFError, OSError) as error:
            yield path, ImageError(f"{path}: {error}", name=path, reason=f"the archive cannot be read to its end: {error}")
        return
    try:
        yield path, Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        yield path, ImageError(f"{path}: {reason}", name=path, reason=reason)


def look(name: str, data: bytes | ImageError, max_pixels: int, thumbnail: int | None) -> Found:
    """Decodes a file, and says what it is."""
    if isinstance(data, ImageError):
        return Found(name, 0, flaw="damaged", reason=data.reason)
    found = Found(name, len(data))
    try:
        said = info(data)
        found.format, found.width, found.height, found.mode, found.frames, found.orientation = said
        pixels = decode(data, "RGB", max_pixels=max_pixels, orientation=True)
    except ImageError as error:
        found.flaw, found.reason, found.format = error.flaw, error.reason, error.format
        return found
    if thumbnail is not None:
        found.thumbnail = shrunk(pixels, thumbnail)
    return found


def inspect(
    places: Iterable[str],
    *,
    threads: int,
    max_pixels: int = MAX_PIXELS,
    limit: int | None = None,
    sheet: int = 0,
    size: int = 128,
    progress: Any = None,
) -> Report:
    """Looks at all files; keeps thumbnails of the first ``sheet`` images."""
    report = Report()
    with ThreadPoolExecutor(threads) as pool:
        files = enumerate(islice(files_of(places), limit))
        while some := list(islice(files, threads * 4)):
            tasks = [pool.submit(look, name, data, max_pixels, size if i < sheet * 2 else None) for i, (name, data) in some]
            for task in tasks:
                report.add(task.result())
            if progress is not None:
                progress(some[-1][0] + 1)
    return report


def shrunk(pixels: Pixels, size: int) -> Pixels:
    """No larger than ``size`` in each direction: means of squares of pixels."""
    step = -(-max(pixels.shape[:2]) // size)
    if step <= 1:
        return pixels.copy()
    height, width = (max(1, length // step) for length in pixels.shape[:2])
    rows, columns = min(step, pixels.shape[0]), min(step, pixels.shape[1])
    cut = pixels[: height * rows, : width * columns]
    means = cut.reshape(height, rows, width, columns, -1).mean(axis=(1, 3))
    return np.asarray(means + 0.5, dtype=np.uint8)


def contact_sheet(pictures: list[Pixels], columns: int, size: int) -> Pixels:
    """Pictures side by side on gray, each in the middle of its square."""
    gap = 4
    columns = max(1, min(columns, len(pictures)))
    rows = -(-len(pictures) // columns)
    sheet = np.full((rows * (size + gap) + gap, columns * (size + gap) + gap, 3), 64, np.uint8)
    for i, picture in enumerate(pictures):
        height, width = picture.shape[:2]
        top = gap + i // columns * (size + gap) + (size - height) // 2
        left = gap + i % columns * (size + gap) + (size - width) // 2
        sheet[top : top + height, left : left + width] = picture
    return sheet


def write_png(path: str, pixels: Pixels) -> None:
    """Writes RGB pixels as a PNG."""
    height, width, channels = pixels.shape
    Path(path).write_bytes(_native.encode_png(pixels.tobytes(), width, height, channels))


# -- batches


def images_of(batch: Any, path: str = "batch") -> Iterator[tuple[str, Any]]:
    """Images within a batch, with the path to each: arrays of 4 dimensions, and lists of arrays of 3."""
    if isinstance(batch, dict):
        for key, value in batch.items():
            yield from images_of(value, f"{path}[{key!r}]")
    elif isinstance(batch, (list, tuple)):
        arrays = [_array(value) for value in batch]
        if arrays and all(one is not None and one.ndim == 3 for one in arrays):
            yield path, arrays
            return
        for i, value in enumerate(batch):
            yield from images_of(value, f"{path}[{i}]")
    else:
        array = _array(batch)
        if array is not None and array.ndim == 4 and (array.shape[1] in (1, 3, 4) or array.shape[3] in (1, 3, 4)):
            yield path, list(array)


def _array(value: Any) -> npt.NDArray[Any] | None:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if value.is_floating_point() else value.numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "buif":
        return value
    return None


def shown(
    images: list[npt.NDArray[Any]], mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> tuple[list[Pixels], str]:
    """Images of a batch as RGB, and how they were made visible."""
    rows = []
    for image in images:
        last = image if image.shape[2] in (1, 3, 4) and image.shape[0] not in (1, 3, 4) else np.moveaxis(image, 0, 2)
        rows.append(np.repeat(last, 3, axis=2) if last.shape[2] == 1 else last[..., :3])
    if all(one.dtype == np.uint8 for one in rows):
        return rows, "as they are"
    values = [one.astype(np.float64) for one in rows]
    if mean is not None or std is not None:
        scale, shift = np.array(std or (1.0,)), np.array(mean or (0.0,))
        return [_bytes((one * scale + shift) * 255) for one in values], "times std plus mean"
    low, high = min(float(np.nanmin(one)) for one in values), max(float(np.nanmax(one)) for one in values)
    if low >= 0 and high <= 1:
        return [_bytes(one * 255) for one in values], "0 to 1 as black to white"
    if low >= 0 and 1 < high <= 255:
        return [_bytes(one) for one in values], "0 to 255 as black to white"
    return [_bytes((one - low) / max(high - low, 1e-12) * 255) for one in values], f"{low:.3g} to {high:.3g} as black to white"


def _bytes(values: npt.NDArray[np.float64]) -> Pixels:
    return np.clip(np.nan_to_num(values) + 0.5, 0, 255).astype(np.uint8)
