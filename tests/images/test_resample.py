"""Resizing, bit for bit as the installed Pillow does it."""

import numpy as np
import PIL
import pytest
from PIL import Image, ImageOps

import feedrate.image
from images.photos import crops, photographs

PILLOW = int(PIL.__version__.split(".", 1)[0])
FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
MODES = ("RGB", "L", "RGBA")


def transform(mode="RGB"):
    return feedrate.image.Transform(mode=mode, pillow=PILLOW)


def pillow_filter(name):
    return Image.Resampling[name.upper()]


def some_image(rng, mode):
    height, width = rng.integers(1, 90, 2)
    channels = {"RGB": 3, "L": 1, "RGBA": 4}[mode]
    pixels = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    if rng.random() < 0.3:
        pixels = np.where(pixels > 127, 255, 0).astype(np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FILTERS)
def test_any_size_to_any_size(name, mode):
    rng = np.random.default_rng([FILTERS.index(name), MODES.index(mode)])
    for _ in range(150):
        image = some_image(rng, mode)
        height, width = (int(v) for v in rng.integers(1, 120, 2))
        expected = np.asarray(image.resize((width, height), pillow_filter(name)))
        found = transform(mode).resize((height, width), interpolation=name)(image)
        assert np.array_equal(found.reshape(expected.shape), expected), (image.size, (width, height))


@pytest.mark.parametrize("name", FILTERS)
def test_photographs(name):
    for photo in photographs()[:4]:
        for height, width in ((224, 224), (100, 300), (31, 17), (photo.height * 2, photo.width - 1), (photo.height, 64)):
            expected = np.asarray(photo.resize((width, height), pillow_filter(name)))
            found = transform().resize((height, width), interpolation=name)(photo)
            assert np.array_equal(found, expected), (photo.size, (width, height))


def test_many_rows_vanish_and_few_columns():
    """Where Pillow 13 takes the vertical pass first, and Pillow 12 does not."""
    image = crops(1, 220, 500)[0]
    ours = {pillow: feedrate.image.Transform(pillow=pillow).resize((40, 200))(image) for pillow in (12, 13)}
    assert not np.array_equal(ours[12], ours[13])
    assert np.abs(ours[12].astype(int) - ours[13]).max() <= 2
    assert np.array_equal(ours[max(12, PILLOW)], np.asarray(image.resize((200, 40), Image.Resampling.BILINEAR)))


def test_letterbox_and_fit():
    rng = np.random.default_rng(5)
    for _ in range(60):
        image = some_image(rng, "RGB")
        height, width = (int(v) for v in rng.integers(1, 80, 2))
        if min(height, width) < 20:
            # Pillow may make an image of no rows or columns; ours has one.
            continue
        expected = ImageOps.pad(image, (width, height), Image.Resampling.BICUBIC, color=(9, 8, 7))
        found = transform().letterbox((height, width), fill=(9, 8, 7))(image)
        assert np.array_equal(found, np.asarray(expected)), (image.size, (width, height))
        expected = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        found = transform().fit((height, width))(image)
        assert np.array_equal(found, np.asarray(expected)), (image.size, (width, height))


def test_pixels_of_any_stride_and_a_given_output():
    image = crops(1)[0]
    pixels = np.asarray(image)
    out = np.empty((64, 48, 3), np.uint8)
    assert transform().resize((64, 48))(pixels, out=out) is out
    assert np.array_equal(out, np.asarray(image.resize((48, 64), Image.Resampling.BILINEAR)))
    with pytest.raises(ValueError, match="ascontiguousarray|contiguous"):
        transform().resize((64, 48))(pixels[:, ::2])
    with pytest.raises(ValueError, match="dtype"):
        transform().resize((64, 48))(pixels, out=np.empty((64, 48, 3), np.int8))
    with pytest.raises(ValueError, match="bytes"):
        transform().resize((64, 48))(pixels, out=np.empty((64, 47, 3), np.uint8))


def test_wrong_values():
    with pytest.raises(ValueError, match="cubic"):
        transform().resize(5, interpolation="cubic")
    with pytest.raises(ValueError, match="size"):
        transform().resize(0)
    with pytest.raises(ValueError, match="max_size"):
        transform().resize((5, 5), max_size=9)
    with pytest.raises(ValueError, match="limit"):
        transform().resize(5, max_size=5)
