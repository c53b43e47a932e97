"""Images: decoding. ``docs/images.md`` is the guide."""

from feedrate._image import Info, decode, info

__all__ = ["Info", "decode", "info"]
