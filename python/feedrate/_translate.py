"""torchvision's transforms as ours, and its way of drawing random numbers."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from feedrate._context import current_rng
from feedrate._transform import Seeds, Transform

_ATTEMPTS = 10


class Drawing:
    """Draws the parameters of one image after the other as torchvision does: the same calls, in the same order."""

    def __init__(self, generator: Any) -> None:
        import torch

        self.generator = generator
        self._torch = torch
        # One tensor for all draws: to make one takes longer than to draw.
        self._one = torch.empty(1)
        self._whole = torch.empty(1, dtype=torch.int64)
        self._spans: dict[Any, tuple[float, float]] = {}

    def _logs(self, ratio: tuple[float, float]) -> tuple[float, float]:
        """As torchvision takes them, in single precision."""
        if ratio not in self._spans:
            low, high = self._torch.log(self._torch.tensor(ratio)).tolist()
            self._spans[ratio] = low, high
        return self._spans[ratio]

    def uniform(self, a: float, b: float) -> float:
        """``torch.empty(1).uniform_(a, b)``."""
        return float(self._one.uniform_(a, b, generator=self.generator).item())

    def below(self, limit: int) -> int:
        """``torch.randint(0, limit, (1,))``."""
        return int(self._whole.random_(0, limit, generator=self.generator).item())

    def happens(self, p: float) -> bool:
        """``torch.rand(1) < p``: the comparison is made in single precision."""
        return bool(self._one.uniform_(0.0, 1.0, generator=self.generator) < p)

    def random_resized_crop(self, size: tuple[int, int], arguments: tuple[Any, ...]) -> list[float]:
        torch = self._torch
        height, width = size
        _, _, scale, ratio, _ = arguments
        low, high = self._logs(ratio)
        one = self._one
        for _ in range(_ATTEMPTS):
            area = height * width * self.uniform(scale[0], scale[1])
            aspect = torch.exp(one.uniform_(low, high, generator=self.generator)).item()
            w = round(math.sqrt(area * aspect))
            h = round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                top = self.below(height - h + 1)
                return [top, self.below(width - w + 1), h, w]
        w, h = width, height
        if width / height < ratio[0]:
            h = min(max(round(w / ratio[0]), 1), height)
        elif width / height > ratio[1]:
            w = min(max(round(h * ratio[1]), 1), width)
        return [(height - h) // 2, (width - w) // 2, h, w]

    def random_crop(self, size: tuple[int, int], arguments: tuple[Any, ...], each: bool) -> list[float]:
        down, right = size[0] - arguments[0], size[1] - arguments[1]
        if down == 0 and right == 0:
            return [0, 0]
        # v2 draws nothing for a direction in which there is no choice.
        top = 0 if each and down == 0 else self.below(down + 1)
        return [top, 0 if each and right == 0 else self.below(right + 1)]

    def color_jitter(self, arguments: tuple[Any, ...]) -> list[float]:
        *spans, p = arguments
        if p is not None and not self.happens(p):
            return [0]
        order = self._torch.randperm(4, generator=self.generator).tolist()
        factors = [math.nan if span is None else self.uniform(*span) for span in spans]
        return [1, *order, *factors]


def draw(transform: Transform, batch: Any, seeds: Seeds | None) -> None:
    """The parameters of an opened batch, in torchvision's order: from a generator of each sample's seeds, else from the one of
    :func:`feedrate.rng`, else from torch's global one."""
    import torch

    rng = current_rng()
    if seeds is not None:
        generator = torch.Generator()
    else:
        generator = torch.default_generator if rng is None else rng.torch
    drawing = Drawing(generator)
    each = bool(transform._options.get("each_direction"))
    random = [(name, arguments) for name, arguments in transform._steps if name in _RANDOM]
    parameters = []
    for k, sizes in enumerate(batch.choices()):
        if seeds is not None:
            generator.manual_seed(seeds[k][2])
        image = []
        for (name, arguments), size in zip(random, sizes, strict=True):
            if name == "random_resized_crop":
                image.append(drawing.random_resized_crop(size, arguments))
            elif name == "random_crop":
                image.append(drawing.random_crop(size, arguments, each))
            elif name == "color_jitter":
                image.append(drawing.color_jitter(arguments))
            else:
                image.append([float(drawing.happens(arguments[0]))])
        parameters.append(image)
    batch.parameters = parameters


_RANDOM = frozenset(
    {"random_resized_crop", "random_crop", "horizontal_flip", "vertical_flip", "color_jitter", "random_grayscale"}
)


class NotTranslated(ValueError):
    """Some of torchvision's transforms have no native counterpart. ``report`` says which, and why."""

    def __init__(self, report: Report) -> None:
        super().__init__(
            "these transforms cannot be translated:\n"
            + "\n".join(f"  {number}: {name}: {reason}" for number, name, reason in report.left)
            + '\nLeave them out, or use rest="python", which runs the first of them and all behind it in Python.'
        )
        self.report = report


@dataclass
class Report:
    """What became of each of torchvision's transforms."""

    #: Number, text, and the native step.
    translated: list[tuple[int, str, str]] = field(default_factory=list)
    #: Number, text, and the reason.
    left: list[tuple[int, str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"  {number}: {name} -> {step}" for number, name, step in self.translated]
        lines += [f"  {number}: {name}: not translated: {reason}" for number, name, reason in self.left]
        return "\n".join(lines)


class Split:
    """A native transform, and torchvision's own for the rest: a callable, and not a :class:`Transform`."""

    def __init__(self, head: Transform, tail: Sequence[Callable[[Any], Any]], report: Report) -> None:
        self.head = head
        self.tail = list(tail)
        self.report = report

    def __call__(self, data: Any) -> Any:
        made = self.head(data)
        if isinstance(data, (list, tuple)):
            return [self._rest(one) for one in made]
        return self._rest(made)

    def _rest(self, made: Any) -> Any:
        if self.head.dtype == "uint8" and self.head._output[1] == "HWC":
            # Behind a native prefix without tensors comes what takes a Pillow image.
            from PIL import Image

            made = made.numpy()
            made = Image.fromarray(made[:, :, 0] if made.shape[2] == 1 else made)
        for transform in self.tail:
            made = transform(made)
        return made

    def __repr__(self) -> str:
        return f"<Split: {self.head} | {' | '.join(map(repr, self.tail))}>"


class _Untranslatable(Exception):
    """Why one transform stays as it is."""


class _Translator:
    """Takes torchvision's transforms one after the other."""

    def __init__(self, v2: bool, on_tensors: str) -> None:
        pillow = int(importlib.metadata.version("pillow").split(".", 1)[0])
        self.made = Transform(draws="torch", pillow=pillow, deep="clip")._with(result="torch", each_direction=v2)
        self._on_tensors = on_tensors
        #: "image", "bytes" (a uint8 tensor) or "float".
        self.kind = "image"

    def take(self, transform: Any) -> None:
        name = type(transform).__name__
        if not type(transform).__module__.startswith("torchvision.transforms"):
            raise _Untranslatable("it is not torchvision's")
        method = getattr(self, f"_{name}", None)
        if method is None:
            raise _Untranslatable("there is no native step for it")
        method(transform)

    # -- pixels

    def _pixels(self) -> None:
        if self.kind == "float":
            raise _Untranslatable("behind the conversion to floats, torchvision computes with floats")
        if self.kind == "bytes" and self._on_tensors != "pillow":
            raise _Untranslatable(
                "behind the conversion to a tensor, torchvision computes with other rounding than Pillow: put it in front of that, or use "
                'on_tensors="pillow", which takes Pillow\'s pixels'
            )

    def _interpolation(self, transform: Any) -> str:
        value = transform.interpolation
        name = str(getattr(value, "value", value)).lower()
        numbers = {"0": "nearest", "1": "lanczos", "2": "bilinear", "3": "bicubic", "4": "box", "5": "hamming"}
        name = numbers.get(name, name)
        if name not in ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"):
            raise _Untranslatable(f"its interpolation is {value!r}")
        return name

    def _step(self, name: str, *arguments: Any, **named: Any) -> None:
        self._pixels()
        self.made = getattr(self.made, name)(*arguments, **named)

    def _RandomResizedCrop(self, t: Any) -> None:
        self._ascending(t.scale, t.ratio)
        self._step("random_resized_crop", tuple(t.size), tuple(t.scale), tuple(t.ratio), self._interpolation(t))

    @staticmethod
    def _ascending(*spans: Any) -> None:
        for low, high in spans:
            if low > high:
                raise _Untranslatable(f"the span {low}, {high} goes down")

    def _Resize(self, t: Any) -> None:
        size = t.size
        if size is None:
            raise _Untranslatable("a resize by max_size alone")
        if not isinstance(size, int) and len(size) == 1:
            size = size[0]
        self._step("resize", size if isinstance(size, int) else tuple(size), t.max_size, self._interpolation(t))

    def _CenterCrop(self, t: Any) -> None:
        self._step("center_crop", tuple(t.size))

    @staticmethod
    def _colour(fill: Any) -> Any:
        if fill is None:
            return 0
        if isinstance(fill, dict):
            raise _Untranslatable("its fill is a dict")
        values = [fill] if isinstance(fill, (int, float)) else list(fill)
        if any(not 0 <= int(value) <= 255 for value in values):
            raise _Untranslatable(f"its fill {fill!r} is no colour")
        return tuple(int(value) for value in values)

    @staticmethod
    def _sides(padding: Any) -> Any:
        values = [padding] if isinstance(padding, int) else list(padding)
        if any(value < 0 for value in values):
            raise _Untranslatable("its padding is negative, which crops")
        return tuple(values)

    def _RandomCrop(self, t: Any) -> None:
        padding = t.padding
        if padding is not None and type(t).__module__.startswith("torchvision.transforms.v2"):
            # Parsed by v2: left, right, top, bottom.
            left, right, top, bottom = padding
            padding = (left, top, right, bottom)
        if t.pad_if_needed and t.padding_mode != "constant":
            raise _Untranslatable("it pads if needed, and by another mode than constant")
        sides = None if padding is None else self._sides(padding)
        self._step("random_crop", tuple(t.size), sides, t.pad_if_needed, self._colour(t.fill), t.padding_mode)

    def _Pad(self, t: Any) -> None:
        self._step("pad", self._sides(t.padding), self._colour(t.fill), t.padding_mode)

    def _RandomHorizontalFlip(self, t: Any) -> None:
        self._step("horizontal_flip", t.p)

    def _RandomVerticalFlip(self, t: Any) -> None:
        self._step("vertical_flip", t.p)

    def _ColorJitter(self, t: Any, p: float | None = None) -> None:
        spans = [
            None if span is None else (float(span[0]), float(span[1])) for span in (t.brightness, t.contrast, t.saturation, t.hue)
        ]
        self._pixels()
        self.made = self.made._then("color_jitter", *spans, p)

    def _RandomApply(self, t: Any) -> None:
        inner = list(t.transforms)
        if len(inner) != 1 or type(inner[0]).__name__ != "ColorJitter":
            raise _Untranslatable("of RandomApply, only that of one ColorJitter is known")
        self._ColorJitter(inner[0], float(t.p))

    def _Grayscale(self, t: Any) -> None:
        self._step("grayscale", t.num_output_channels)

    def _RandomGrayscale(self, t: Any) -> None:
        self._step("random_grayscale", t.p)

    def _RGB(self, _: Any) -> None:
        if self.made.native.channels != 3:
            raise _Untranslatable("it makes RGB of gray")

    def _Identity(self, _: Any) -> None:
        """Nothing."""

    # -- numbers

    def _tensor(self) -> None:
        if self.kind != "image":
            raise _Untranslatable("it is a tensor already")

    def _ToTensor(self, _: Any) -> None:
        import torch

        self._tensor()
        if torch.get_default_dtype() is not torch.float32:
            raise _Untranslatable(f"torch's default dtype is {torch.get_default_dtype()}")
        self.made = self.made.to("float32", scale="divide")
        self.kind = "float"

    def _PILToTensor(self, _: Any) -> None:
        self._tensor()
        self.made = self.made.to("uint8")
        self.kind = "bytes"

    _ToImage = _PILToTensor

    def _ToPureTensor(self, _: Any) -> None:
        """Tensors are pure already."""

    def _ConvertImageDtype(self, t: Any) -> None:
        # v1 divides, v2 multiplies.
        v2 = type(t).__module__.startswith("torchvision.transforms.v2")
        self._dtype(t.dtype, "multiply" if v2 else "divide")

    def _ToDtype(self, t: Any) -> None:
        if isinstance(t.dtype, dict):
            raise _Untranslatable("its dtype is a dict")
        self._dtype(t.dtype, "multiply" if t.scale else "keep")

    def _dtype(self, dtype: Any, scale: str) -> None:
        name = str(dtype).removeprefix("torch.")
        if self.kind == "image":
            raise _Untranslatable("it has no effect on a Pillow image")
        if self.kind == "float":
            if name not in ("float16", "bfloat16", "float32"):
                raise _Untranslatable(f"{name} behind floats")
            if self.made.dtype != "float32" and name != self.made.dtype:
                raise _Untranslatable("floats that were narrowed are widened again")
            self.made = self.made.to(name)  # type: ignore[arg-type]
        elif name == "float32":
            self.made = self.made.to("float32", scale=scale)  # type: ignore[arg-type]
            self.kind = "float"
        elif name != "uint8":
            raise _Untranslatable(f"torchvision computes with {name} then: convert to float32 first, and to {name} at the end")

    def _Normalize(self, t: Any) -> None:
        if self.kind != "float":
            raise _Untranslatable("it takes floats")
        if self.made.dtype != "float32" or self.made._output[3] is not None:
            raise _Untranslatable("only float32 is normalised, and once")
        self.made = self.made.normalize(t.mean, t.std)


def from_torchvision(
    transform: Any,
    *,
    rest: Literal["error", "python"] = "error",
    on_tensors: Literal["error", "pillow"] = "error",
) -> Any:
    """torchvision's transforms (v1 or v2: a ``Compose``, a list, ``nn.Sequential``, or one of them) as a :class:`Transform`
    that gives the same tensors bit for bit as they do on a Pillow image in RGB, and draws from torch's generator in the same order.

    Args:
        transform: what is translated.
        rest: what happens to transforms that have no native counterpart. ``"error"`` raises :class:`NotTranslated`, which
            names each and says why. ``"python"`` gives a callable that runs those in front of the first of them natively and
            the others as they are (:class:`Split`).
        on_tensors: v2 pipelines often crop and resize behind ``ToImage()``, where torchvision computes on tensors and gives
            other pixels than Pillow, by 1 or 2 here and there. ``"pillow"`` translates those too, to Pillow's pixels.

    The result's ``report`` says what became of each.
    """
    steps = _flat(transform)
    v2 = any(type(step).__module__.startswith("torchvision.transforms.v2") for step in steps)
    translator = _Translator(v2, on_tensors)
    report = Report()
    first: int | None = None
    for number, step in enumerate(steps):
        text = " ".join(repr(step).split())
        try:
            if rest == "python" and first is not None:
                raise _Untranslatable("it comes behind one that is not translated")
            before = translator.made
            translator.take(step)
            new = translator.made._steps[len(before._steps) :]
            report.translated.append(
                (number, text, new[0][0] if new else "the output" if translator.made != before else "nothing")
            )
        except _Untranslatable as error:
            report.left.append((number, text, str(error)))
            first = number if first is None else first
        except ValueError as error:
            report.left.append((number, text, str(error)))
            first = number if first is None else first
    if first is not None and rest == "error":
        raise NotTranslated(report)
    if first is not None:
        return Split(translator.made, steps[first:], report)
    made = translator.made
    made.report = report
    return made


def _flat(transform: Any) -> list[Any]:
    """The transforms of a Compose, within others or not."""
    if isinstance(transform, (list, tuple)) or type(transform).__name__ in ("Sequential", "ModuleList"):
        return [inner for one in transform for inner in _flat(one)]
    if type(transform).__name__ == "Compose":
        return _flat(list(transform.transforms))
    return [transform]
