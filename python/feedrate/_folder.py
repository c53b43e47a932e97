"""Folders of images as a map-style dataset, with torchvision's class rules and native decoding."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from feedrate._transform import Seeds, Transform

#: Names that are taken for images, in lower case.
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def _pil_loader(path: str) -> Any:
    from PIL import Image

    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


#: The pixels as they are.
_PIXELS = Transform()


class ImageFolder:
    """Images in a folder for each class: ``root/dog/xxx.jpg``, ``root/cat/nsdf3.png``. A sample is ``(image, number of its class)``.

    Arguments, class rules, attributes and errors are those of ``torchvision.datasets.ImageFolder``: classes are the folders of
    ``root`` in sorted order, files are searched for in them at any depth and sorted by path, and a class without images is an
    error unless ``allow_empty``. What differs is the work: with a :class:`feedrate.image.Transform` (or a translated one,
    :func:`feedrate.image.from_torchvision`), a whole batch is read, decoded and transformed by native code without the GIL, straight
    into the memory of the batch. ``feedrate.DataLoader`` takes threads as workers then; say ``workers="thread"`` to
    ``feedrate.torch.DataLoader``.

    Random parameters are keyed by sample under ``seeding="sample"``, and drawn as the transform's ``draws`` says otherwise.

    Args:
        root: the folder.
        transform: a :class:`feedrate.image.Transform`; or any function of what ``loader`` gives, which then runs in Python.
            ``None``: the pixels as an array.
        target_transform: a function of the class number.
        loader: a function from a path to an image, in Python. ``None``: native decoding; with another function as
            ``transform``, a Pillow image in RGB.
        is_valid_file: whether a path is an image, instead of by ``extensions``.
        allow_empty: whether classes without images are allowed.
        extensions: what names of images end with, in lower case.

    Raises ``FileNotFoundError`` for a folder without classes, or with an empty one. A file that is no image raises
    ``ValueError`` with its path when it is asked for.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        loader: Callable[[str], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        extensions: Sequence[str] = IMG_EXTENSIONS,
    ) -> None:
        self.root = os.path.expanduser(os.fspath(root))  # noqa: PTH111 (a string is wanted)
        self.transform = transform
        self.target_transform = target_transform
        self.loader: Callable[[str], Any] = loader or _pil_loader
        self.extensions = None if is_valid_file is not None else tuple(extensions)
        self.classes, self.class_to_idx = self.find_classes(self.root)
        self.samples = self.make_dataset(self.root, self.class_to_idx, self.extensions, is_valid_file, allow_empty)
        self.targets = [target for _, target in self.samples]
        self.imgs = self.samples

    @staticmethod
    def find_classes(directory: str | os.PathLike[str]) -> tuple[list[str], dict[str, int]]:
        """The names of the class folders, sorted, and their numbers. Override it for other classes."""
        classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
        if not classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {os.fspath(directory)}.")
        return classes, {name: number for number, name in enumerate(classes)}

    @staticmethod
    def make_dataset(
        directory: str | os.PathLike[str],
        class_to_idx: dict[str, int],
        extensions: Sequence[str] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> list[tuple[str, int]]:
        """(path, class number) of each image."""
        ends = None if extensions is None else tuple(extensions)
        if (ends is None) == (is_valid_file is None):
            raise ValueError("Both extensions and is_valid_file cannot be None or not None at the same time")
        top = Path(directory).expanduser()
        found: list[tuple[str, int]] = []
        empty = set(class_to_idx)
        for name in sorted(class_to_idx):
            folder = top / name
            if not folder.is_dir():
                continue
            for place, _, files in sorted(os.walk(folder, followlinks=True)):
                for file in sorted(files):
                    path = os.path.join(place, file)  # noqa: PTH118 (a string is wanted)
                    if is_valid_file(path) if is_valid_file is not None else path.lower().endswith(ends or ()):
                        found.append((path, class_to_idx[name]))
                        empty.discard(name)
        if empty and not allow_empty:
            known = f" Supported extensions are: {', '.join(ends)}" if ends is not None else ""
            raise FileNotFoundError(f"Found no valid file for the classes {', '.join(sorted(empty))}.{known}")
        return found

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} images of {len(self.classes)} classes in {self.root!r}, {self.transform!r}>"

    def _target(self, index: int) -> Any:
        target = self.samples[index][1]
        return target if self.target_transform is None else self.target_transform(target)

    def _maker(self) -> Transform | None:
        """What makes images from files by native code, if the loader and the transform of now are such."""
        if self.loader is not _pil_loader:
            return None
        if self.transform is None:
            return _PIXELS
        return self.transform if isinstance(self.transform, Transform) else None

    @property
    def native(self) -> bool:
        """Whether images are made by native code."""
        return self._maker() is not None

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """(image, class number)."""
        path, maker = self.samples[index][0], self._maker()
        if maker is not None:
            image: Any = maker(path)
        else:
            image = self.loader(path)
            if self.transform is not None:
                image = self.transform(image)
        return image, self._target(index)

    # -- what loaders ask native datasets for

    @property
    def batch_shape(self) -> tuple[str, tuple[int, ...]] | None:
        """The dtype and shape of every image, where all have one and native code makes them."""
        maker = self._maker()
        size = None if maker is None else maker.size
        return None if maker is None or size is None else (maker.dtype, maker.shape(*size))

    def fill_batch(self, indices: Sequence[int], out: Any, seeds: Seeds | None) -> list[Any]:
        """Makes the images of a batch in ``out``, a writable buffer of bytes, and gives their targets. ``seeds``: of each
        sample, where randomness is keyed."""
        maker = self._maker()
        if maker is None:
            raise ValueError(f"fill_batch() of images that {self.transform!r} makes in Python: ask for samples")
        batch = maker.open([self.samples[index][0] for index in indices])
        maker.draw(batch, seeds)
        batch.run([out], 1)
        return [self._target(index) for index in indices]
