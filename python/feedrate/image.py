"""Images: decoding, and transforms that native code carries out.

A :class:`Transform` says what becomes of an image; it works on files, bytes and arrays, one or many, in datasets, pipelines
and :class:`feedrate.ImageFolder`. :func:`from_torchvision` makes one of torchvision's. The guides are ``docs/images.md`` and
``docs/image-transforms.md``.
"""

from feedrate._image import Info, decode, info
from feedrate._transform import Buckets, Transform, aspect_buckets, nearest_bucket, pad_batch
from feedrate._translate import NotTranslated, Report, Split, from_torchvision

__all__ = [
    "Buckets",
    "Info",
    "NotTranslated",
    "Report",
    "Split",
    "Transform",
    "aspect_buckets",
    "decode",
    "from_torchvision",
    "info",
    "nearest_bucket",
    "pad_batch",
]
