"""Every kind of image against the installed Pillow: the same pixels, the same refusals."""

from __future__ import annotations

import io
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

import feedrate
from feedrate.image import decode, info
from images import corpus

MODES = ("RGB", "L", "RGBA")
FAILURES = (OSError, SyntaxError, ValueError, EOFError, TypeError)


def listed(make: Callable[[], Iterator[tuple[str, bytes]]]) -> Callable[[], list[tuple[str, bytes]]]:
    return cache(lambda: list(make()))


KINDS: dict[str, Callable[[], list[tuple[str, bytes]]]] = {
    "jpeg": listed(corpus.jpegs),
    "png": listed(corpus.pngs),
    "bmp": listed(corpus.bmps),
    "gif": listed(corpus.gifs),
    "webp": listed(corpus.webps),
    "tiff": listed(corpus.tiffs),
    "pnm": listed(corpus.pnms),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def opened(data: bytes, frame: int = 0) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    if frame:
        image.seek(frame)
    return image


def stored(image: Image.Image) -> np.ndarray[Any, Any]:
    """What `mode=None` is to give."""
    image.load()
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB")
    if image.format == "PPM" and image.mode == "I":
        # 16 bits, which other formats have as such.
        return np.asarray(image).astype(np.uint16)
    if image.mode == "1":
        return np.asarray(image.convert("L"))
    return np.asarray(image)


def differences(data: bytes, frame: int = 0, **options: Any) -> list[str]:
    """How what we give differs from Pillow, in every mode, with gray of 16 bits clipped as it does."""
    found = []
    options = {"deep": "clip", **options}
    for mode in (*MODES, None):
        try:
            image = opened(data, frame)
            expected = stored(image) if mode is None else np.asarray(image.convert(mode))
        except AssertionError:
            continue  # Pillow itself stumbles: a gray GIF whose later frames have colours
        except FAILURES as error:
            if "image has no palette" in str(error):
                continue  # as above
            expected = error
        try:
            got = decode(data, mode, frame=frame, **options)
        except feedrate.ImageError as error:
            got = error
        if isinstance(expected, Exception) or isinstance(got, Exception):
            if "truncated" in options and "Truncated File Read" in str(expected):
                continue  # cut within the head of a later chunk, where Pillow forgets that it is to be lenient
            if not (isinstance(expected, Exception) and isinstance(got, Exception)):
                found.append(f"{mode}: Pillow gives {summary(expected)}, we {summary(got)}")
            continue
        if mode is None and got.dtype == np.uint16 and got.ndim == 3:
            # Pillow keeps the upper halves of colours of 16 bits.
            got = (got >> 8).astype(np.uint8)
            if got.shape[2] == 2:
                got = got[..., [0, 0, 0, 1]]
        if got.dtype.newbyteorder("=") != expected.dtype.newbyteorder("=") or got.shape != expected.shape:
            found.append(f"{mode}: Pillow gives {summary(expected)}, we {summary(got)}")
        elif not np.array_equal(got, expected, equal_nan=got.dtype.kind == "f"):
            unlike = got != expected
            found.append(f"{mode}: {unlike.sum()} of {unlike.size} values differ, first at {np.argwhere(unlike)[0].tolist()}")
    return found


def summary(result: Any) -> str:
    return repr(result)[:200] if isinstance(result, Exception) else f"{result.dtype} {result.shape}"


def check(names_and_data: Iterable[tuple[str, bytes]], **options: Any) -> int:
    wrong = []
    count = 0
    for name, data in names_and_data:
        count += 1
        wrong += [f"{name}: {text}" for text in differences(data, **options)]
    assert not wrong, "\n".join([f"{len(wrong)} differences", *wrong[:40]])
    return count


#: Where Pillow reads what is not in the file: it takes what libtiff has put into the machine's order for big-endian, and takes planes of 16 bits for planes of 8.
PILLOW_IS_WRONG = ("16 signed, big=True, tiles, deflate", "32 signed, big=True, tiles, deflate", "planes, rgb 16")


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_pillow(kind: str) -> None:
    pairs = [(name, data) for name, data in KINDS[kind]() if not name.endswith(PILLOW_IS_WRONG)]
    assert check(name_and_data for name_and_data in pairs if not is_lab(name_and_data[0])) > 40
    for name, data in pairs:
        if is_lab(name):
            assert np.array_equal(decode(data, None), stored(opened(data))), name
            with pytest.raises(feedrate.ImageError, match="colour profile") as error:
                decode(data, "RGB")
            assert error.value.flaw == "unsupported"


def test_broken_pnms_are_refused_as_by_pillow() -> None:
    for name, data in corpus.BAD_PNMS.items():
        with pytest.raises(FAILURES):
            opened(data).convert("RGB")
        with pytest.raises(feedrate.ImageError) as error:
            decode(data)
        assert error.value.format == "PPM", name


def is_lab(name: str) -> bool:
    return "LAB" in name or ": lab" in name


def test_what_pillow_gets_wrong_is_right() -> None:
    found = {name: data for name, data in KINDS["tiff"]() if name.endswith(PILLOW_IS_WRONG)}
    assert len(found) == 3
    for name, data in found.items():
        if "planes" in name:
            same = next(data for other, data in KINDS["tiff"]() if other == "tiff by hand: planes, rgb 16, deflate")
            assert decode(data, None).shape == decode(same, None).shape
            at = 8
            assert decode(data, None)[0, 0, 0] == int.from_bytes(data[at : at + 2], "little")
        else:
            size = 2 if "16" in name else 4
            first = zlib.decompressobj().decompress(data[8:])[:size]
            assert decode(data, None)[0, 0] == int.from_bytes(first, "big", signed=True)


@pytest.mark.parametrize("kind", ["gif", "webp", "tiff"])
def test_frames_are_those_of_pillow(kind: str) -> None:
    seen = 0
    for name, data in KINDS[kind]():
        count = getattr(opened(data), "n_frames", 1)
        assert info(data).frames == count, name
        for frame in range(1, count):
            seen += 1
            found = differences(data, frame)
            assert not found, f"{name}, frame {frame}: {found}"
        if count > 1:
            with pytest.raises(feedrate.ImageError, match=f"no frame {count}"):
                decode(data, frame=count)
    assert seen > (3 if kind == "tiff" else 10)


def test_all_frames_at_once() -> None:
    for format in ("GIF", "WEBP"):
        first, *rest = corpus.frames(4)
        data = corpus.saved(first, format, save_all=True, append_images=rest, lossless=True)
        frames = decode(data, frame="all")
        assert frames.shape == (4, 30, 40, 3)
        for i in range(4):
            assert np.array_equal(frames[i], np.asarray(opened(data, i).convert("RGB")))


def test_headers_say_what_pillow_says() -> None:
    for pairs in KINDS.values():
        for name, data in pairs():
            try:
                image = opened(data)
            except FAILURES:
                continue
            found = info(data)
            # Pillow has two names for 16 bits, by the order of bytes, and may call a palette of grays gray.
            mode = {"I;16B": "I;16", "YCbCr": "YCbCr"}.get(image.mode, image.mode)
            if image.format == "PPM" and mode == "I":
                mode = "I;16"
            assert (found.format, (found.width, found.height), found.mode) == (image.format, image.size, mode), name


def orientation_cases() -> Iterator[tuple[str, bytes]]:
    for value in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = value
        yield f"jpeg {value}", corpus.exif_jpeg(value)
        for format in ("PNG", "WEBP"):
            yield f"{format} {value}", corpus.saved(corpus.as_mode("RGB", 60, 40), format, exif=exif, lossless=True)
        xmp = f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><r tiff:Orientation="{value}"/></x:xmpmeta>'.encode()
        yield f"jpeg xmp {value}", corpus.saved(corpus.as_mode("RGB", 60, 40), "JPEG", xmp=xmp)
    for value in (0, 9, 300):
        yield f"jpeg {value}", corpus.exif_jpeg(value)
    broken = bytearray(corpus.exif_jpeg(6))
    at = broken.find(b"Exif") + 10
    broken[at : at + 4] = b"\xff\xff\xff\xff"
    yield "jpeg broken", bytes(broken)


def test_orientation_is_applied_on_request() -> None:
    for name, data in orientation_cases():
        image = opened(data)
        try:
            value = image.getexif().get(0x0112, 1)
            turned = ImageOps.exif_transpose(image)
        except Exception:
            value, turned = 1, image  # a broken block fails no image
        assert info(data).orientation == (value if 1 <= value <= 8 else 1), name
        assert np.array_equal(decode(data, orientation=True), np.asarray(turned.convert("RGB"))), name
        assert np.array_equal(decode(data), np.asarray(opened(data).convert("RGB"))), name


@pytest.fixture
def _lenient() -> Iterator[None]:
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    yield
    ImageFile.LOAD_TRUNCATED_IMAGES = False


def whole_images() -> dict[str, bytes]:
    photo = corpus.as_mode("RGB", 130, 97)
    return {
        "jpeg": corpus.saved(photo, "JPEG", quality=80),
        "jpeg 4:4:4": corpus.saved(photo, "JPEG", quality=80, subsampling="4:4:4"),
        "jpeg gray": corpus.saved(photo.convert("L"), "JPEG", quality=80),
        "jpeg cmyk": corpus.saved(photo.convert("CMYK"), "JPEG", quality=80),
        "jpeg restarts": corpus.saved(photo, "JPEG", quality=80, restart_marker_rows=1),
        "jpeg progressive": corpus.saved(photo, "JPEG", quality=80, progressive=True),
        "jpeg exif": corpus.exif_jpeg(5),
        "png": corpus.png(61, 40, 8, 2),
        "png chunks": corpus.png(61, 40, 8, 6, split=500),
        "png palette": corpus.png(61, 80, 4, 3),
        "png interlaced": corpus.png(61, 40, 8, 2, interlaced=True),
        "png 16": corpus.png(41, 40, 16, 0),
        "bmp": corpus.saved(photo, "BMP"),
        "bmp gray": corpus.saved(photo.convert("L"), "BMP"),
        "bmp runs": corpus.bmp_runs(8),
        "gif": corpus.saved(photo, "GIF"),
        "ppm": corpus.saved(photo, "PPM"),
        "ppm plain": corpus.pnm("3", np.arange(61 * 40 * 3).reshape(40, -1) % 256, (61, 40), 255),
        "ppm scaled": corpus.pnm("6", np.arange(61 * 40 * 3).reshape(40, -1) % 100, (61, 40), 99),
        "pgm 16": corpus.pnm("5", np.arange(61 * 40).reshape(40, -1) % 1000, (61, 40), 65535),
        "pbm": corpus.saved(photo.convert("1"), "PPM"),
        "pfm": corpus.saved(photo.convert("F"), "PPM"),
        "webp": corpus.saved(photo, "WEBP", lossless=True),
        "tiff": corpus.saved(corpus.as_mode("RGB", 61, 40), "TIFF"),
        "tiff lzw": corpus.saved(corpus.as_mode("RGB", 61, 40), "TIFF", compression="tiff_lzw"),
    }


def cuts(data: bytes) -> list[int]:
    step = max(1, len(data) // 60)
    return sorted({*range(0, len(data), step), *range(max(0, len(data) - 20), len(data))})


@pytest.mark.parametrize("name", whole_images())
def test_what_ends_early_is_refused_where_pillow_refuses(name: str) -> None:
    data = whole_images()[name]
    refused = 0
    for length in cuts(data):
        found = differences(data[:length])
        assert not found, f"{name}, {length} of {len(data)} bytes: {found}"
        try:
            decode(data[:length])
        except feedrate.ImageError as error:
            refused += 1
            assert error.flaw in ("truncated", "unknown", "damaged"), error
    assert refused > 20


@pytest.mark.parametrize("name", [name for name in whole_images() if not name.startswith(("webp", "bmp runs", "tiff"))])
@pytest.mark.usefixtures("_lenient")
def test_what_ends_early_is_filled_as_pillow_fills_it(name: str) -> None:
    data = whole_images()[name]
    for length in cuts(data):
        found = differences(data[:length], truncated="fill")
        assert not found, f"{name}, {length} of {len(data)} bytes: {found}"


def test_photographs() -> None:
    photographs = corpus.photographs()
    formats = set()
    for path in photographs:
        data = path.read_bytes()
        try:
            pixels = int(np.prod(opened(data).size))
        except FAILURES:
            continue
        if pixels > 3_000_000:
            continue
        found = differences(data)
        assert not found, f"{path}: {found}"
        formats.add(opened(data).format)
    assert len(photographs) > 20
    assert formats >= {"JPEG", "PNG"}, formats


def test_every_kind_of_input() -> None:
    data = corpus.exif_jpeg(1)
    expected = decode(data)
    for given in (
        bytearray(data),
        memoryview(data),
        memoryview(bytearray(data)),
        np.frombuffer(data, np.uint8),
        np.array(list(data), np.uint8),
    ):
        assert np.array_equal(decode(given), expected)
    with pytest.raises(TypeError, match="an image is bytes"):
        decode("photo.jpg")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="an image is bytes"):
        decode(np.zeros((4, 4), np.float32))  # type: ignore[call-overload]


def test_arrays_own_their_memory_and_can_be_written() -> None:
    first = decode(corpus.exif_jpeg(1))
    copy = first.copy()
    second = decode(corpus.exif_jpeg(3))
    second[:] = 0
    assert np.array_equal(first, copy)
    assert first.flags.writeable
    assert first.flags.c_contiguous
    assert decode(corpus.png(5, 4, 8, 0), "L").shape == (4, 5)
    assert decode(corpus.png(5, 4, 16, 0), None).dtype == np.uint16


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_lists(threads: int) -> None:
    data = [data for kind in ("jpeg", "png", "webp") for _, data in KINDS[kind]()[:40]]
    arrays = decode(data, threads=threads)
    assert len(arrays) == len(data)
    for one, array in zip(data, arrays, strict=True):
        assert np.array_equal(decode(one), array)
    assert decode([]) == []
    with pytest.raises(feedrate.ImageError, match=r"^image 3: JPEG: the file ends early") as error:
        decode([*data[:3], corpus.exif_jpeg(1)[:1500], data[3], b"no image"], threads=threads)
    assert error.value.name == "image 3"
    assert error.value.format == "JPEG"
    with pytest.raises(feedrate.ImageError, match=r"^b\.png: no image"):
        decode([data[0], b"no image"], name=["a.jpg", "b.png"], threads=threads)


def test_other_threads_run_meanwhile() -> None:
    data = corpus.saved(corpus.as_mode("RGB", 900, 700), "JPEG")
    ticks = 0
    done = threading.Event()

    def decode_many() -> None:
        for _ in range(10):
            decode([data] * 4)
        done.set()

    thread = threading.Thread(target=decode_many)
    thread.start()
    while not done.is_set():
        ticks += 1
        done.wait(0.0005)
    thread.join()
    assert ticks > 3


def test_errors_can_be_pickled() -> None:
    import pickle

    with pytest.raises(feedrate.ImageError) as caught:
        decode(b"%PDF-1.4 and so on", name="x.jpg")
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, ValueError)
    assert isinstance(error, feedrate.Error)
    assert str(error) == str(caught.value)
    assert (error.name, error.format, error.flaw) == ("x.jpg", None, "unknown")
    assert error.reason == "no image of a known format (JPEG, PNG, WebP, GIF, BMP, TIFF, PPM); it looks like PDF, 18 bytes"


def test_size_limits() -> None:
    for data in (
        corpus.exif_jpeg(1),
        corpus.png(60, 40, 8, 2),
        *(corpus.saved(corpus.as_mode("RGB", 60, 40), f) for f in ("GIF", "BMP", "WEBP", "TIFF")),
    ):
        assert decode(data, max_pixels=2400).shape == (40, 60, 3)
        with pytest.raises(feedrate.ImageError, match=r"60 x 40 = 2,400 pixels are more than max_pixels = 2,399") as error:
            decode(data, max_pixels=2399)
        assert error.value.flaw == "too large"
    huge = bytearray(corpus.png(60, 40, 8, 2))
    huge[16:24] = b"\x00\x10\x00\x00" * 2
    huge[29:33] = zlib.crc32(huge[12:29]).to_bytes(4, "big")
    with pytest.raises(feedrate.ImageError, match="1,099,511,627,776 pixels"):
        decode(bytes(huge))


def test_arguments() -> None:
    data = corpus.png(5, 4, 8, 2)
    for wrong in (
        {"mode": "CMYK"},
        {"truncated": "maybe"},
        {"deep": "no"},
        {"frame": -1},
        {"threads": 0},
        {"max_pixels": -1},
        {"frame": "some"},
    ):
        with pytest.raises(ValueError):
            decode(data, **wrong)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="one image, not a list"):
        decode([data], frame="all")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="2 images and 1 names"):
        decode([data, data], name=["a"])
