"""Bytes of fields to objects, by the field's extension."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from feedrate._errors import annotate
from feedrate._image import EXTENSIONS, decode, held
from feedrate._pipeline import _name as name_of


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _whole(data: bytes) -> int:
    return int(data)


def _array(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _arrays(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def _picture(data: bytes) -> Any:
    return decode(data)


#: By the last part of a field's name, as WebDataset's default decoders take them. Nothing here unpickles.
BY_EXTENSION: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _whole),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "jsonl": _lines,
    "npy": _array,
    "npz": _arrays,
    # By content, whatever the extension says: RGB of uint8, height, width, channels.
    **dict.fromkeys(EXTENSIONS, _picture),
}


#: Those that are decoded where they are named, or hold a column of images: records also call raw pixels so.
BY_NAME: dict[str, Callable[[bytes], Any]] = {**BY_EXTENSION, "image": _picture, "img": _picture}


class Decoder:
    """A step that decodes fields."""

    def __init__(self, fields: tuple[str, ...], decoders: dict[str, Callable[[bytes], Any]]) -> None:
        for field in fields:
            if field not in decoders and _ending(field) not in BY_NAME:
                raise ValueError(
                    f"decode() knows no decoder for the field {field!r}: give one, as in decode({field}=function). Known extensions: "
                    f"{', '.join(sorted(BY_NAME))}"
                )
        self._fields = fields
        self._decoders = decoders
        called = [f"{field}={name_of(decoder)}" for field, decoder in decoders.items()]
        self.__qualname__ = f"decode({', '.join([*fields, *called])})"

    def __call__(self, element: Any) -> Any:
        found = dict(element)
        named = (*self._fields, *self._decoders)
        for field in named or list(found):
            if field not in found:
                raise KeyError(f"no field {field!r} to decode; there are {sorted(found)}")
            try:
                data = held(found[field])
                known = BY_NAME if named or data is not found[field] else BY_EXTENSION
                decoder = self._decoders.get(field) or known.get(_ending(field))
                if decoder is None:
                    continue
                if data is not found[field] and decoder is not _picture and field not in self._decoders:
                    # A path is followed in columns of images only, as the documentation says.
                    continue
                if isinstance(data, str) and data is not found[field]:
                    with open(data, "rb") as file:
                        data = file.read()
                if isinstance(data, (bytes, bytearray)):
                    found[field] = decoder(bytes(data))
            except Exception as error:
                annotate(error, f"feedrate: while the field {field!r} was decoded")
                raise
        return found


def _ending(field: str) -> str:
    return field.rsplit(".", 1)[-1].lower()
