"""Decoding of images: bytes to arrays, as Pillow gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from feedrate import _native

#: How names of images end.
EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "pfm")

#: Above it an image is refused; Pillow's own limit.
MAX_PIXELS = 178_956_970

Data = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
Mode = Literal["RGB", "L", "RGBA"] | None


class Info(NamedTuple):
    """What the header of an image says."""

    #: ``"JPEG"``, ``"PNG"``, ``"WEBP"``, ``"GIF"``, ``"BMP"``, ``"TIFF"`` or ``"PPM"``.
    format: str
    #: Columns as stored, before EXIF's orientation.
    width: int
    #: Rows as stored.
    height: int
    #: The mode that Pillow gives such an image.
    mode: str
    #: Frames of an animation, pages of a TIFF.
    frames: int
    #: EXIF's orientation, 1 to 8; 1 where none is said.
    orientation: int


def held(value: Any) -> Any:
    """The bytes or the path in an element of an image column as Hugging Face's datasets write it (``bytes`` and ``path``); anything
    else as it is."""
    if not isinstance(value, dict) or value.keys() != {"bytes", "path"}:
        return value
    found = value["path"] if value["bytes"] is None else value["bytes"]
    if found is None:
        raise ValueError("an image has neither bytes nor a path")
    return found


@overload
def decode(
    data: Data,
    mode: Mode = "RGB",
    *,
    orientation: bool = False,
    frame: int | Literal["all"] = 0,
    max_pixels: int = MAX_PIXELS,
    truncated: Literal["refuse", "fill"] = "refuse",
    deep: Literal["upper", "clip", "scale"] = "upper",
    threads: int = 1,
    name: str | None = None,
) -> npt.NDArray[Any]: ...


@overload
def decode(
    data: Sequence[Data],
    mode: Mode = "RGB",
    *,
    orientation: bool = False,
    frame: int = 0,
    max_pixels: int = MAX_PIXELS,
    truncated: Literal["refuse", "fill"] = "refuse",
    deep: Literal["upper", "clip", "scale"] = "upper",
    threads: int = 1,
    name: Sequence[str] | None = None,
) -> list[npt.NDArray[Any]]: ...


def decode(
    data: Any,
    mode: Mode = "RGB",
    *,
    orientation: bool = False,
    frame: Any = 0,
    max_pixels: int = MAX_PIXELS,
    truncated: Literal["refuse", "fill"] = "refuse",
    deep: Literal["upper", "clip", "scale"] = "upper",
    threads: int = 1,
    name: Any = None,
) -> Any:
    """Decodes an image, or a list of them, to arrays.

    The format is found by content: JPEG, PNG, WebP, GIF, BMP, TIFF or PPM. Pixels are those of Pillow's ``Image.open(file).convert(mode)``,
    bit for bit. Arrays have the shape (height, width, channels), or (height, width) for one channel, and own their memory. The GIL is
    not held while pixels are decoded.

    * ``data``: bytes, or anything with the buffer protocol; a list gives a list.
    * ``mode``: ``"RGB"``, ``"L"``, ``"RGBA"``, or None for what is stored: 1, 2, 3 or 4 channels of uint8, uint16, int32 or float32. A
      palette is applied (RGB, or RGBA where it has transparency).
    * ``orientation``: apply EXIF's orientation, as Pillow's ``ImageOps.exif_transpose``. TIFF is always turned, as in Pillow.
    * ``frame``: which frame or page; ``"all"`` gives an array with a dimension for them in front.
    * ``max_pixels``: larger images are refused before memory is taken.
    * ``truncated``: ``"refuse"`` an image that ends early, or ``"fill"`` it as Pillow does under ``ImageFile.LOAD_TRUNCATED_IMAGES``.
    * ``deep``: of 16 bits made 8, the ``"upper"`` ones are taken, as Pillow does for colours; ``"clip"``: gray is clipped at 255, as
      Pillow does, which leaves nearly all of a photograph white; ``"scale"``: divided by 257 and rounded.
    * ``threads``: how many decode a list, the caller's among them.
    * ``name``: the name of the file, or a list of names, for errors.

    Raises :class:`feedrate.ImageError`, of a list for the first that is bad.
    """
    if threads < 1:
        raise ValueError(f"threads is 1 or more, not {threads}")
    if max_pixels < 0:
        raise ValueError(f"max_pixels is 0 or more, not {max_pixels}")
    many = isinstance(data, (list, tuple))
    if frame == "all":
        if many:
            raise ValueError('frame="all" takes one image, not a list')
        frames = range(info(data, name=name).frames)
    elif not isinstance(frame, int) or frame < 0:
        raise ValueError(f'frame is a number from 0 or "all", not {frame!r}')
    else:
        frames = range(frame, frame + 1)
    images = list(data) if many else [data]
    names = None if name is None else [str(one) for one in name] if many else [str(name)]
    if names is None and many:
        names = [f"image {i}" for i in range(len(images))]
    elif names is not None and len(names) != len(images):
        raise ValueError(f"there are {len(images)} images and {len(names)} names")

    def one(number: int) -> list[npt.NDArray[Any]]:
        return _native.decode_images(images, names, mode, orientation, number, max_pixels, truncated, deep, threads)

    if frame == "all":
        return np.stack([one(number)[0] for number in frames])
    arrays = one(frames[0])
    return arrays if many else arrays[0]


def info(data: Data, *, name: str | None = None) -> Info:
    """What the header of an image says, without decoding it.

    Raises :class:`feedrate.ImageError` where there is no image, or its header is damaged.
    """
    return Info(*_native.image_info(data, name))
