"""Image transforms: definitions in Python, carried out by native code."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from feedrate import _framework, _native
from feedrate._context import current_rng
from feedrate._image import EXTENSIONS, held

if TYPE_CHECKING:
    from typing import Self

Size = int | Sequence[int]
Span = float | tuple[float, float]
Seeds = Sequence[tuple[int, int, int]]
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
DType = Literal["uint8", "float16", "bfloat16", "float32"]

MODES = ("RGB", "L", "RGBA")


def _pair(name: str, size: Size) -> tuple[int, int]:
    """(height, width) of a size: one number for a square."""
    values = [size] if isinstance(size, int) else [int(v) for v in size]
    if len(values) not in (1, 2) or any(isinstance(v, bool) or v < 1 for v in values):
        raise ValueError(f"{name}: a size is a whole number from 1 on, or (height, width), but got {size!r}")
    return values[0], values[-1]


def _sides(padding: Size) -> tuple[int, int, int, int]:
    """(left, top, right, bottom), from one number, (left and right, top and bottom), or all four."""
    values = [padding] if isinstance(padding, int) else [int(v) for v in padding]
    if len(values) not in (1, 2, 4) or any(v < 0 for v in values):
        raise ValueError(f"padding is 1, 2 or 4 numbers from 0 on (left, top, right, bottom), but got {padding!r}")
    if len(values) == 1:
        values *= 4
    if len(values) == 2:
        values *= 2
    return values[0], values[1], values[2], values[3]


def _fill(fill: int | Sequence[int]) -> list[int]:
    values = [fill] * 4 if isinstance(fill, int) else [int(v) for v in fill]
    if len(values) == 1:
        values *= 4
    if len(values) > 4 or any(not 0 <= v <= 255 for v in values):
        raise ValueError(f"fill is a number from 0 to 255, or one for each channel, but got {fill!r}")
    return values + [0] * (4 - len(values))


def _factor(name: str, value: Span | None, center: float) -> tuple[float, float] | None:
    """The span of a factor of colour jitter, by torchvision's rules."""
    if value is None:
        return None
    if isinstance(value, (int, float)):
        if value < 0:
            raise ValueError(f"{name} is a number from 0 on, or a span, but got {value}")
        low = center - value
        span = (max(low, 0.0) if center else low, center + value)
    else:
        span = (float(value[0]), float(value[1]))
    return None if span[0] == span[1] == center else span


class Transform:
    """What becomes of an image on its way into a batch. Immutable: every method gives a new one, with one step more.

    ::

        train = (
            feedrate.image.Transform()
            .random_resized_crop(224)
            .horizontal_flip()
            .normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        )

    ``train(data)`` makes one image of the bytes of a file, a path, pixels, or a Pillow image, and ``train([...])`` a batch.
    Steps that follow each other are
    fused: what a crop leaves out is not decoded, and numbers are written where they belong. Results are bit for bit those of
        Pillow and torchvision for the
    same steps and parameters; ``docs/image-transforms.md`` has the table. The GIL is released.

    Without :meth:`to` or :meth:`normalize` the result is uint8 of the shape (height, width, channels).

    Args:
        steps: steps by name, such as ``[("random_resized_crop", 224), ("horizontal_flip",)]``: what the methods do, as a list.
        mode: what images are decoded to: ``"RGB"``, ``"L"`` (gray) or ``"RGBA"``.
        shrink: ``"exact"`` decodes every pixel that is wanted. ``"dct"`` lets the JPEG decoder give a half, a quarter or an
            eighth of the size where what is resized stays ``reducing_gap`` times as large as what comes out: quicker, and not the
            same pixels.
        reducing_gap: see ``shrink``; as Pillow's, with the default of its ``thumbnail``. At 1 more is shrunk, and the decoder's
            blocky averages show more: networks for small images have been seen to lose accuracy.
        draws: where random parameters come from. ``"keyed"``: from the key of the sample (:func:`feedrate.rng` inside of a
            loader). ``"torch"``: from torch's generator, in torchvision's order. Parameters can also be given with each call.
        pillow: whose order of a resize's two passes is taken: 13 (and newer) or 12 (and older). They differ by 1 or 2 in about
            one pixel of a hundred.
        deep: what becomes of 16 bits a channel: the ``"upper"`` 8; ``"clip"``, as in Pillow, where gray above 255 is white;
            or ``"scale"``, divided by 257 and rounded.
    """

    #: What :func:`from_torchvision` says about its translation.
    report: Any = None

    def __init__(
        self,
        steps: Sequence[Sequence[Any]] = (),
        *,
        mode: Literal["RGB", "L", "RGBA"] = "RGB",
        shrink: Literal["exact", "dct"] = "exact",
        reducing_gap: float = 2.0,
        draws: Literal["keyed", "torch"] = "keyed",
        pillow: int = 13,
        deep: Literal["upper", "clip", "scale"] = "upper",
    ) -> None:
        for name, value, allowed in (
            ("mode", mode, MODES),
            ("shrink", shrink, ("exact", "dct")),
            ("draws", draws, ("keyed", "torch")),
            ("deep", deep, ("upper", "clip", "scale")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is one of {allowed}, but got {value!r}")
        self._options: dict[str, Any] = {"mode": mode, "shrink": shrink, "draws": draws, "pillow": pillow, "deep": deep}
        self._options.update(result="numpy", reducing_gap=float(reducing_gap))
        #: Names of native steps and their arguments; what is drawn in Python is drawn by these.
        self._steps: tuple[tuple[str, tuple[Any, ...]], ...] = ()
        self._output: tuple[Any, ...] = ("uint8", "HWC", "divide", None)
        made = self
        for step in steps:
            method, arguments = step[0], list(step[1:])
            named = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            if method not in _METHODS:
                raise ValueError(f"no step {method!r}: there are {', '.join(_METHODS)}")
            made = getattr(made, method)(*arguments, **named)
        self._steps, self._output = made._steps, made._output
        # Built now, so that what cannot be is raised at the user's line.
        _ = self.native

    # -- how it is made, compared and pickled

    @functools.cached_property
    def native(self) -> Any:
        """The native definition."""
        made = _native.ImageTransform(self._options["mode"])
        for name, arguments in self._steps:
            made = getattr(made, name)(*arguments)
        dtype, layout, scale, normalize = self._output
        made = made.output(dtype, layout, scale, normalize)
        made = made.passes(self._options["pillow"]).deep(self._options["deep"])
        return made.shrink(self._options["reducing_gap"] if self._options["shrink"] == "dct" else None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "native"}

    def _changed(self, **changes: Any) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update({**self.__getstate__(), **changes})
        # Built now, so that what cannot be is raised at the user's line.
        _ = made.native
        return made

    def _then(self, name: str, *arguments: Any) -> Self:
        return self._changed(_steps=(*self._steps, (name, arguments)))

    def _with(self, **options: Any) -> Self:
        return self._changed(_options={**self._options, **options})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transform) and self.native == other.native and self._options == other._options

    def __hash__(self) -> int:
        return hash(self.native)

    def __str__(self) -> str:
        return str(self.native)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    @property
    def _step_name(self) -> str:
        """What a pipeline's definition calls it as a function: by its steps, so that caches and states tell two of them apart."""
        return f"Transform({self})"

    # -- steps

    def random_resized_crop(
        self,
        size: Size,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: Interpolation = "bilinear",
    ) -> Self:
        """A rectangle of a random share of the area and a random ratio, anywhere, resized to ``size``."""
        scale, ratio = (float(scale[0]), float(scale[1])), (float(ratio[0]), float(ratio[1]))
        return self._then("random_resized_crop", *_pair("random_resized_crop", size), scale, ratio, interpolation)

    def resize(self, size: Size, max_size: int | None = None, interpolation: Interpolation = "bilinear") -> Self:
        """One number: that becomes the shorter side, the ratio stays, and the longer side is at most ``max_size``. (height,
        width): exactly that."""
        if isinstance(size, int) or len(size) == 1:
            short = _pair("resize", size)[0]
            return self._then("resize_short", short, max_size, interpolation)
        if max_size is not None:
            raise ValueError(f"max_size={max_size} is for a resize of the shorter side, and size={size!r} says both")
        return self._then("resize", *_pair("resize", size), interpolation)

    def fit(self, size: Size, interpolation: Interpolation = "bicubic") -> Self:
        """This size, out of the largest part in the middle that has its ratio; as Pillow's ``ImageOps.fit``."""
        return self._then("fit", *_pair("fit", size), interpolation)

    def letterbox(self, size: Size, fill: int | Sequence[int] = 0, interpolation: Interpolation = "bicubic") -> Self:
        """The largest size of the same ratio within ``size``, in the middle, with bars of the colour ``fill``; as Pillow's
        ``ImageOps.pad``."""
        return self._then("letterbox", *_pair("letterbox", size), _fill(fill), interpolation)

    def center_crop(self, size: Size) -> Self:
        """The middle. An image that is smaller gets black around it first."""
        return self._then("center_crop", *_pair("center_crop", size))

    def random_crop(
        self,
        size: Size,
        padding: Size | None = None,
        pad_if_needed: bool = False,
        fill: int | Sequence[int] = 0,
        padding_mode: PaddingMode = "constant",
    ) -> Self:
        """A rectangle of this size anywhere; of the padded image if ``padding`` is given."""
        sides = None if padding is None else _sides(padding)
        return self._then("random_crop", *_pair("random_crop", size), sides, bool(pad_if_needed), padding_mode, _fill(fill))

    def pad(self, padding: Size, fill: int | Sequence[int] = 0, padding_mode: PaddingMode = "constant") -> Self:
        """More pixels around: on all sides, (left and right, top and bottom), or (left, top, right, bottom)."""
        return self._then("pad", _sides(padding), padding_mode, _fill(fill))

    def horizontal_flip(self, p: float = 0.5) -> Self:
        """Left becomes right, with this chance."""
        return self._then("horizontal_flip", float(p))

    def vertical_flip(self, p: float = 0.5) -> Self:
        """Above becomes below, with this chance."""
        return self._then("vertical_flip", float(p))

    def color_jitter(
        self, brightness: Span = 0, contrast: Span = 0, saturation: Span = 0, hue: Span = 0, *, p: float | None = None
    ) -> Self:
        """Random factors, in random order. A number ``x`` stands for the span from 1 - x to 1 + x (of the hue, from -x to x).
        ``p``: the chance that it is done at all."""
        factors = [
            _factor(name, value, center)
            for name, value, center in (
                ("brightness", brightness, 1.0),
                ("contrast", contrast, 1.0),
                ("saturation", saturation, 1.0),
                ("hue", hue, 0.0),
            )
        ]
        return self._then("color_jitter", *factors, None if p is None else float(p))

    def grayscale(self, channels: Literal[1, 3] = 1) -> Self:
        """Luma, in one channel or three times."""
        return self._then("grayscale", int(channels))

    def random_grayscale(self, p: float = 0.1) -> Self:
        """Luma in as many channels as there are, with this chance."""
        return self._then("random_grayscale", float(p))

    # -- what comes out

    def to(
        self,
        dtype: DType | None = None,
        layout: Literal["CHW", "HWC"] = "CHW",
        *,
        scale: Literal["divide", "multiply", "keep"] | None = None,
    ) -> Self:
        """The type and layout of the result. Floats lie between 0 and 1: ``scale="divide"`` divides by 255 as torchvision's
        ``ToTensor`` does, ``"multiply"`` multiplies with 1/255 as v2's ``ToDtype(scale=True)``, ``"keep"`` leaves 0 to 255."""
        before = self._output
        return self._changed(_output=(dtype or before[0], layout, scale or before[2], before[3]))

    def normalize(self, mean: float | Sequence[float], std: float | Sequence[float]) -> Self:
        """``(x - mean) / std`` for each channel, in single precision; float32 unless :meth:`to` said otherwise."""
        values = [[float(v)] if isinstance(v, (int, float)) else [float(x) for x in v] for v in (mean, std)]
        dtype, layout, scale, _ = self._output
        if dtype == "uint8":
            dtype, layout = "float32", "CHW"
        return self._changed(_output=(dtype, layout, scale, (values[0], values[1])))

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of what comes out; ``None`` where it depends on the image."""
        found: tuple[int, int] | None = self.native.fixed_size
        return found

    @property
    def dtype(self) -> str:
        """The name of the result's dtype."""
        dtype: str = self._output[0]
        return dtype

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """The shape of an array of so many rows and columns."""
        channels = self.native.channels
        return (channels, height, width) if self._output[1] == "CHW" else (height, width, channels)

    # -- carrying it out

    def open(self, items: Sequence[Any]) -> Any:
        """Reads files and headers. Not for users: the native batch, whose parameters are not drawn yet."""
        return self.native.open([_item(item, self._options["mode"]) for item in items])

    def draw(self, batch: Any, seeds: Seeds | None) -> None:
        """Not for users: draws the parameters of an opened batch, for samples of these seeds, or from where code in a loader draws."""
        if not self.native.random:
            return
        if self._options["draws"] == "torch":
            from feedrate._translate import draw

            draw(self, batch, seeds)
        elif seeds is not None:
            batch.draw([(a, b, 0, c) for a, b, c in seeds])
        elif (rng := current_rng()) is not None:
            batch.draw([rng.take_key() for _ in range(len(batch))])
        else:
            seed = _global_seed()
            batch.draw([(seed, 0, 0, k) for k in range(len(batch))])

    def __call__(
        self,
        data: Any,
        *,
        out: Any = None,
        seed: int | None = None,
        epoch: int = 0,
        position: int = 0,
        parameters: Any = None,
        threads: int = 1,
    ) -> Any:
        """One image, or for a list the images of a batch: one array where all have one size, else a list of arrays.

        Args:
            data: the bytes of a file, a path, a uint8 array (height, width, channels), or a Pillow image; or a list of those.
            out: a C-contiguous array or tensor of the right dtype and shape to write into.
            seed: draws random parameters from (seed, epoch, position), of each image in a list from the next position. Without
                it they are drawn as ``draws`` says; outside of a loader from torch's global generator, or NumPy's where torch
                is not imported.
            epoch: see ``seed``.
            position: see ``seed``.
            parameters: what would be drawn: for each image a list of numbers for each random step, as ``parameters`` of a batch.
            threads: how many work on a list.

        Raises ``ValueError`` for what is no image (which one it is stands in front), ``OSError`` for files that cannot be read.
        """
        many = isinstance(data, (list, tuple))
        batch = self.open(data if many else [data])
        if parameters is not None:
            batch.parameters = parameters if many else [parameters]
        elif seed is not None:
            mask = 0xFFFFFFFFFFFFFFFF
            batch.draw([(seed & mask, epoch, 0, position + k) for k in range(len(batch))])
        else:
            self.draw(batch, None)
        sizes = batch.outputs()
        if not many:
            (one,) = self._into([out] if out is not None else None, batch, sizes, 1)
            return one
        if out is not None:
            batch.run([flat(out, self.dtype)], threads)
            return out
        if len(set(sizes)) == 1 or (not sizes and self.size is not None):
            height, width = sizes[0] if sizes else (self.size or (0, 0))
            made = self.empty((len(sizes), *self.shape(height, width)))
            batch.run([flat(made, self.dtype)], threads)
            return made
        return self._into(None, batch, sizes, threads)

    def _into(self, outs: list[Any] | None, batch: Any, sizes: list[tuple[int, int]], threads: int) -> list[Any]:
        made = [self.empty(self.shape(*size)) for size in sizes] if outs is None else outs
        batch.run([flat(array, self.dtype) for array in made], threads)
        return made

    def empty(self, shape: tuple[int, ...]) -> Any:
        """An array, or tensor, of the result's dtype."""
        if self._options["result"] == "torch" or self.dtype == "bfloat16":
            import torch

            return torch.empty(shape, dtype=getattr(torch, self.dtype))
        return np.empty(shape, self.dtype)


_METHODS = tuple(
    name
    for name, value in vars(Transform).items()
    if callable(value) and not name.startswith("_") and name not in ("open", "draw", "empty", "shape")
)


def flat(array: Any, dtype: str) -> Any:
    """The bytes of a C-contiguous array or tensor, to be written to. Raises ``ValueError`` for another dtype."""
    found = str(array.dtype).removeprefix("torch.")
    if found != dtype:
        raise ValueError(f"out has the dtype {found}, and the transform gives {dtype}")
    if not isinstance(array, np.ndarray):
        import torch

        if not array.is_contiguous() or array.device.type != "cpu":
            raise ValueError("out has to be a contiguous tensor on the CPU")
        return array.reshape(-1).view(torch.uint8).numpy()
    if not array.flags.c_contiguous:
        raise ValueError("out has to be C-contiguous")
    return array.reshape(-1).view(np.uint8)


def _item(item: Any, mode: str) -> Any:
    """What native code takes: paths as text, Pillow images as pixels."""
    if isinstance(item, (str, bytes)):
        return item
    if isinstance(item, os.PathLike):
        return os.fspath(item)
    image = sys.modules.get("PIL.Image")
    if image is not None and isinstance(item, image.Image):
        return np.ascontiguousarray(item if item.mode == mode else item.convert(mode))
    return item


def _global_seed() -> int:
    """63 bits from torch's global generator, or NumPy's where torch is not imported, or was not when a worker was seeded."""
    torch = sys.modules.get("torch")
    if torch is not None and not _framework.torch_is_unseeded:
        return int(torch.empty((), dtype=torch.int64).random_())
    return int(np.random.randint(0, 1 << 63, dtype=np.uint64))


class ImageStep:
    """A step of a pipeline that transforms one field."""

    def __init__(self, transform: Transform, field: str | None) -> None:
        self._transform = transform
        self._field = field
        self.__qualname__ = f"image({transform}{'' if field is None else f', field={field!r}'})"

    def __call__(self, element: Any) -> Any:
        if self._field is None and not isinstance(element, dict):
            return self._transform(held(element))
        field = self._field or _only_image(element)
        if field not in element:
            raise KeyError(f"no field {field!r} with an image; there are {sorted(element)}")
        return {**element, field: self._transform(held(element[field]))}


#: Fields that hold images, by the last part of their names.
NAMES = (*EXTENSIONS, "image", "img")


def _only_image(element: dict[str, Any]) -> str:
    found = [name for name in element if name.rsplit(".", 1)[-1].lower() in NAMES]
    if len(found) != 1:
        raise ValueError(
            f"image() takes the field whose name says that it is an image ({', '.join(NAMES)}), and there are {found} among "
            f"{sorted(element)}: name one with field="
        )
    return found[0]


def pad_batch(
    images: Sequence[Any], fill: float = 0, *, multiple: int = 1, layout: Literal["CHW", "HWC"] = "CHW"
) -> tuple[Any, Any]:
    """Images of different sizes in one array, in the upper left corner each, and a mask that is ``True`` where there are pixels.

    Args:
        images: arrays, or tensors, of one dtype and one number of channels.
        fill: the value of the rest.
        multiple: heights and widths of the result are multiples of it.
        layout: of the images.

    Returns (batch, mask), arrays or tensors as the images are, of the shapes (n, channels, height, width) or (n, height,
    width, channels), and (n, height, width).
    """
    if not images:
        raise ValueError("pad_batch() takes at least one image")
    first = images[0]
    axes = (1, 2) if layout == "CHW" else (0, 1)
    for image in images:
        if image.ndim != 3 or image.dtype != first.dtype or image.shape[3 - sum(axes)] != first.shape[3 - sum(axes)]:
            raise ValueError(
                "images of one batch have three dimensions, one dtype and one number of channels: the first has "
                f"{first.dtype} {tuple(first.shape)}, and another one {image.dtype} {tuple(image.shape)}"
            )
    height, width = (-(-max(int(image.shape[axis]) for image in images) // multiple) * multiple for axis in axes)
    shape = [len(images), *first.shape]
    shape[axes[0] + 1], shape[axes[1] + 1] = height, width
    batch: Any
    mask: Any
    if isinstance(first, np.ndarray):
        batch, mask = np.full(shape, fill, first.dtype), np.zeros((len(images), height, width), np.bool_)
    else:
        import torch

        batch, mask = torch.full(shape, fill, dtype=first.dtype), torch.zeros((len(images), height, width), dtype=torch.bool)
    for k, image in enumerate(images):
        h, w = image.shape[axes[0]], image.shape[axes[1]]
        mask[k, :h, :w] = True
        if layout == "CHW":
            batch[k, :, :h, :w] = image
        else:
            batch[k, :h, :w] = image
    return batch, mask


def aspect_buckets(area: int, *, multiple: int = 64, ratio: float = 2.0, smallest: int | None = None) -> list[tuple[int, int]]:
    """Sizes (height, width) of about ``area`` pixels for images of different ratios, as diffusion models are trained on: sides
    are multiples of ``multiple``, no area is larger than ``area``, and no side longer than ``ratio`` times the other. From
    portrait to landscape; for each width the largest height."""
    if area < multiple * multiple or multiple < 1 or ratio < 1:
        raise ValueError(
            f"no size with sides of a multiple of {multiple} has at most {area} pixels and a ratio of at most {ratio}"
        )
    least = multiple if smallest is None else -(-smallest // multiple) * multiple
    found: dict[int, tuple[int, int]] = {}
    width = least
    while width * least <= area:
        height = area // width // multiple * multiple
        if max(height, width) <= ratio * min(height, width):
            # Of widths with one height the widest has the most pixels.
            found[height] = (height, width)
        width += multiple
    return sorted(found.values(), key=lambda size: size[1] / size[0])


def nearest_bucket(height: int, width: int, buckets: Sequence[tuple[int, int]]) -> int:
    """The number of the bucket whose ratio is nearest to that of an image."""
    wanted = math.log(width / height)
    return min(range(len(buckets)), key=lambda k: abs(math.log(buckets[k][1] / buckets[k][0]) - wanted))


class Buckets:
    """A function from an image to one of the nearest of several sizes: what :class:`feedrate.ImageFolder` takes as ``loader``.

    ::

        buckets = Buckets(aspect_buckets(512 * 512), Transform().to("float32"))
        dataset = feedrate.ImageFolder(root, loader=buckets)
        which = buckets.of([path for path, _ in dataset.samples])
        sampler = feedrate.samplers.BucketBatchSampler(which, 8, boundaries=range(1, len(buckets.sizes)))
        loader = feedrate.DataLoader(dataset, batch_sampler=sampler)

    Args:
        sizes: (height, width) of each bucket; see :func:`aspect_buckets`.
        transform: what is done behind the resize, and the output.
        interpolation: of the resize, a :meth:`Transform.fit`.
    """

    def __init__(
        self, sizes: Sequence[tuple[int, int]], transform: Transform | None = None, interpolation: Interpolation = "bicubic"
    ) -> None:
        if not sizes:
            raise ValueError("Buckets() takes at least one size")
        self.sizes = [(int(height), int(width)) for height, width in sizes]
        base = Transform() if transform is None else transform
        empty = base._changed(_steps=())
        #: One for each size.
        self.transforms = [
            fitted._changed(_steps=(*fitted._steps, *base._steps))
            for fitted in (empty.fit(size, interpolation) for size in self.sizes)
        ]

    def of(self, images: Sequence[Any]) -> list[int]:
        """The bucket of each image, by its header: files, bytes or pixels, a few thousand a second."""
        found: list[int] = []
        for start in range(0, len(images), 64):
            batch = self.transforms[0].open(images[start : start + 64])
            found += [nearest_bucket(height, width, self.sizes) for height, width in batch.sizes]
        return found

    def __call__(self, data: Any) -> Any:
        """The image in the size of its bucket."""
        (which,) = self.of([data])
        return self.transforms[which](data)
