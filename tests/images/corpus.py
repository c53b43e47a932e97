"""Images of every kind, made with Pillow, or by hand where Pillow cannot write them."""

from __future__ import annotations

import importlib.util
import io
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw


@cache
def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth in places, noisy in others, with edges: RGBA."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([x * 3 + y, x + y * 5, 255 - x * 2, x * y // 7], axis=-1) % 256
    noise = rng.integers(0, 256, (height, width, 4))
    take = ((x // 16 + y // 16) % 3 == 0)[..., None]
    image = Image.fromarray(np.where(take, noise, smooth).astype(np.uint8), "RGBA")
    draw = ImageDraw.Draw(image)
    draw.line((0, 0, width, height), fill=(255, 0, 0, 128), width=2)
    return image


def as_mode(mode: str, width: int, height: int, seed: int = 0) -> Image.Image:
    image = picture(width, height, seed)
    if mode in ("I;16", "I;16B"):
        values = np.asarray(image.convert("L")).astype(np.uint16) * 251 + np.asarray(image)[..., 0]
        return Image.fromarray(values)
    if mode == "I":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.int32) * 7001 - 300_000)
    if mode == "F":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.float32) * 1.37 - 20.5)
    if mode == "LA":
        return image.convert("LA")
    if mode == "RGBA":
        return image
    return image.convert("RGB").convert(mode)


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


SIZES = [(1, 1), (3, 2), (17, 31), (97, 53)]


def jpegs() -> Iterator[tuple[str, bytes]]:
    for size in SIZES:
        for mode in ("L", "RGB", "CMYK"):
            image = as_mode(mode, *size)
            for subsampling in ("4:4:4", "4:2:2", "4:2:0") if mode != "L" else ("4:4:4",):
                for name, options in {
                    "baseline": {},
                    "progressive": {"progressive": True},
                    "optimised": {"optimize": True, "quality": 40},
                    "restart rows": {"restart_marker_rows": 1},
                    "restart blocks": {"restart_marker_blocks": 2, "progressive": True},
                    "best": {"quality": 100},
                    "worst": {"quality": 1},
                }.items():
                    yield f"jpeg {mode} {size} {subsampling} {name}", saved(image, "JPEG", subsampling=subsampling, **options)
    yield "jpeg keep_rgb", saved(as_mode("RGB", 50, 40), "JPEG", keep_rgb=True)
    photo = saved(as_mode("RGB", 50, 40), "JPEG", quality=90)
    yield "jpeg trailing bytes", photo + b"trailing" * 100
    yield "jpeg padding before a marker", photo[:2] + b"\xff\xff\xff" + photo[2:]
    cmyk = saved(as_mode("CMYK", 50, 40), "JPEG")
    yield "jpeg cmyk without Adobe's marker", without_segment(cmyk, 0xEE)
    adobe = cmyk.find(b"Adobe")
    yield "jpeg ycck", cmyk[: adobe + 11] + b"\x02" + cmyk[adobe + 12 :]
    at = photo.find(b"\xff\xda") + 40
    yield "jpeg stray restart marker", photo[: at + 60] + b"\x00\xff\xd3" + photo[at + 60 :]
    for position in range(10, len(photo) - at, 97):
        damaged = bytearray(photo)
        damaged[at + position] ^= 0x10
        yield f"jpeg damaged at {position}", bytes(damaged)


def without_segment(jpeg: bytes, marker: int) -> bytes:
    at = jpeg.find(bytes([0xFF, marker]))
    assert at > 0
    return jpeg[:at] + jpeg[at + 2 + struct.unpack(">H", jpeg[at + 2 : at + 4])[0] :]


def exif_jpeg(orientation: int, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(as_mode("RGB", 60, 40), "JPEG", exif=exif, quality=95, **options)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def png(
    width: int,
    height: int,
    bits: int,
    colour: int,
    *,
    interlaced: bool = False,
    extra: bytes = b"",
    seed: int = 0,
    split: int = 0,
    filters: bool = True,
) -> bytes:
    """A PNG of any kind: random samples, every filter in turn."""
    rng = np.random.default_rng(seed)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    most = 1 << bits
    samples = rng.integers(0, most, (height, width, channels))
    samples[:, : width // 2] = samples[:1, : width // 2]
    raw = b""
    for left, top, across, down in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        part = samples[top::down, left::across]
        if part.size:
            raw += filtered(part, bits, channels, filters)
    data = zlib.compress(raw)
    pieces = [data[i : i + split] for i in range(0, len(data), split)] if split else [data]
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, int(interlaced))
    palette = b""
    if colour == 3:
        palette = chunk(b"PLTE", rng.integers(0, 256, (min(most, 200), 3)).astype(np.uint8).tobytes())
    body = b"".join(chunk(b"IDAT", piece) for piece in pieces)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + palette + extra + body + chunk(b"IEND", b"")


def filtered(part: np.ndarray[Any, Any], bits: int, channels: int, filters: bool) -> bytes:
    height = part.shape[0]
    if bits == 16:
        rows = part.astype(">u2").reshape(height, -1).view(np.uint8)
    elif bits == 8:
        rows = part.astype(np.uint8).reshape(height, -1)
    else:
        digits = (part.reshape(height, -1)[..., None] >> np.arange(bits - 1, -1, -1)) & 1
        rows = np.packbits(digits.reshape(height, -1).astype(np.uint8), axis=1)
    back = max(1, bits * channels // 8)
    out = b""
    before = np.zeros(rows.shape[1], np.int64)
    for y, row in enumerate(rows.astype(np.int64)):
        kind = y % 5 if filters else 0
        left = np.concatenate([np.zeros(back, np.int64), row[:-back]])[: len(row)]
        corner = np.concatenate([np.zeros(back, np.int64), before[:-back]])[: len(row)]
        p = left + before - corner
        pa, pb, pc = abs(p - left), abs(p - before), abs(p - corner)
        paeth = np.where((pa <= pb) & (pa <= pc), left, np.where(pb <= pc, before, corner))
        guess = [0 * row, left, before, (left + before) // 2, paeth][kind]
        out += bytes([kind]) + ((row - guess) % 256).astype(np.uint8).tobytes()
        before = row
    return out


PNG_KINDS = (
    [(b, 0) for b in (1, 2, 4, 8, 16)] + [(8, 2), (16, 2)] + [(b, 3) for b in (1, 2, 4, 8)] + [(8, 4), (16, 4), (8, 6), (16, 6)]
)


def pngs() -> Iterator[tuple[str, bytes]]:
    for bits, colour in PNG_KINDS:
        for size in [*SIZES, (5, 200)]:
            for interlaced in (False, True):
                yield f"png {bits} bits, colour {colour}, {size}, {interlaced=}", png(*size, bits, colour, interlaced=interlaced)
        yield f"png {bits} bits, colour {colour}, many chunks", png(61, 40, bits, colour, split=7)
    for bits in (1, 2, 4, 8, 16):
        for value in (0, 1, 3, 85, 170, 255):
            yield f"png gray {bits} tRNS {value}", png(40, 30, bits, 0, extra=chunk(b"tRNS", struct.pack(">H", value)))
    yield "png rgb tRNS", png(40, 30, 8, 2, extra=chunk(b"tRNS", struct.pack(">HHH", *first_pixel(png(40, 30, 8, 2)))))
    yield "png rgb16 tRNS", png(40, 30, 16, 2, extra=chunk(b"tRNS", struct.pack(">HHH", *first_pixel(png(40, 30, 16, 2)))))
    for bits in (1, 2, 4, 8):
        for alphas in (b"\x00", b"\xff\x00\xff", b"\x00\x80\xff\x01", bytes(range(100))):
            yield f"png palette {bits} tRNS {alphas[:4]!r}", png(40, 30, bits, 3, extra=chunk(b"tRNS", alphas))
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        yield f"png saved {mode}", saved(as_mode(mode, 70, 45), "PNG")
    quantised = as_mode("RGB", 64, 64).quantize(16)
    yield "png quantised", saved(quantised, "PNG", transparency=bytes([0] + [255] * 15))
    yield "png optimised", saved(as_mode("RGB", 64, 64).quantize(4), "PNG", optimize=True)
    whole = png(40, 30, 8, 2)
    yield "png without its end", whole[:-12]
    yield "png trailing bytes", whole + b"more"


def first_pixel(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[0, 0].tolist()


def bmps() -> Iterator[tuple[str, bytes]]:
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        for size in SIZES:
            yield f"bmp {mode} {size}", saved(as_mode(mode, *size), "BMP")
    rng = np.random.default_rng(3)
    for bits in (1, 4, 8, 16, 24, 32):
        for top_first in (False, True):
            for header in (12, 40, 108, 124):
                if header == 12 and top_first:
                    continue
                yield f"bmp {bits} bits, header {header}, {top_first=}", bmp(rng, 37, 20, bits, header, top_first)
    for bits, masks in [
        (16, (0xF800, 0x7E0, 0x1F, 0)),
        (16, (0x7C00, 0x3E0, 0x1F, 0)),
        (24, (0xFF0000, 0xFF00, 0xFF, 0)),
        (32, (0xFF0000, 0xFF00, 0xFF, 0)),
        (32, (0xFF000000, 0xFF0000, 0xFF00, 0)),
        (32, (0xFF000000, 0xFF00, 0xFF, 0)),
        (32, (0xFF000000, 0xFF0000, 0xFF00, 0xFF)),
        (32, (0xFF, 0xFF00, 0xFF0000, 0xFF000000)),
        (32, (0xFF0000, 0xFF00, 0xFF, 0xFF000000)),
        (32, (0xFF000000, 0xFF00, 0xFF, 0xFF0000)),
        (32, (0, 0, 0, 0)),
    ]:
        for header in (40, 56, 124):
            yield f"bmp {bits} bits, masks {masks}, header {header}", bmp(rng, 37, 20, bits, header, False, masks)
    for bits in (4, 8):
        yield f"bmp runs of {bits}", bmp_runs(bits)


def pnms() -> Iterator[tuple[str, bytes]]:
    for mode in ("1", "L", "RGB", "I;16", "F"):
        for size in SIZES:
            yield f"pnm {mode} {size}", saved(as_mode(mode, *size), "PPM")
    rng = np.random.default_rng(5)
    for kind in b"123456":
        channels = 3 if kind in b"36" else 1
        for most in (1,) if kind in b"14" else (1, 3, 100, 254, 255, 256, 1000, 65534, 65535):
            for size in SIZES:
                values = rng.integers(0, most + 1, (size[1], size[0] * channels))
                yield f"pnm P{kind - 48} {most} {size}", pnm(chr(kind), values, size, most)
    head = b"P5 # a comment\n# and one more\r 3\t2#0 is behind it\n0 \n#2\n55\n"
    yield "pnm comments", head + bytes(range(60))
    yield "pnm plain comments", b"P2\n3 2\n99\n1 2 3# four\n4 # five\n5\f6\v7"
    yield "pnm bits without space", b"P1 3 2\n01#1\n0\n1 01"
    yield "pnm bits and more", b"P1 3 2\n0101010101 1 1"
    yield "pnm plain and more", b"P2 3 2 9 1 2 3 4 5 6 7 8 words 300"
    yield "pnm trailing bytes", b"P6 1 1 255\nabcdef"
    yield "pnm more than the largest", b"P5 3 1 100\n\x00\x64\xff"
    for scale in ("1.0", "-2.5", "1e3"):
        yield (
            f"pfm {scale}",
            f"Pf\n3 2\n{scale}\n".encode() + rng.normal(100, 50, 6).astype("<f4" if scale[0] == "-" else ">f4").tobytes(),
        )


def pnm(kind: str, values: Any, size: tuple[int, int], most: int) -> bytes:
    """A PNM of any largest value, which Pillow does not write."""
    head = f"P{kind}\n{size[0]} {size[1]}\n" + (f"{most}\n" if kind not in "14" else "")
    if kind in "123":
        return head.encode() + b"\n".join(b" ".join(b"%d" % v for v in row) for row in values) + b"\n"
    if kind == "4":
        return head.encode() + np.packbits(values.astype(np.uint8), axis=1).tobytes()
    return head.encode() + values.astype(">u2" if most > 255 else np.uint8).tobytes()


#: What both refuse.
BAD_PNMS = {
    "a largest value of 0": b"P5 2 2 0 abcd",
    "a largest value of 65536": b"P5 2 2 65536 abcd",
    "no number": b"P5 2 x 255 abcd",
    "a long number": b"P5 2 00000000002 255 abcd",
    "no pixels": b"P2 2 2 255",
    "too few": b"P2 2 2 255 1 2 3",
    "too large": b"P2 2 2 255 1 2 3 256",
    "negative": b"P2 2 2 255 1 2 3 -4",
    "words": b"P2 2 2 255 1 2 3 four",
    "no bit": b"P1 2 2 0 1 2 1",
    "few bits": b"P1 2 2 0 1 1",
    "a scale of 0": b"Pf 1 1 0 abcd",
    "an infinite scale": b"Pf 1 1 inf abcd",
    "no scale": b"Pf 1 1 x abcd",
    "the header only": b"P6 3",
    "short": b"P6 2 2 255 abcdefghijk",
    "short, scaled": b"P6 2 2 99 abcdefghijk",
    "short, 16 bits": b"P5 2 2 65535 abcdefg",
}


def bmp(rng: Any, width: int, height: int, bits: int, header: int, top_first: bool, masks: Any = None) -> bytes:
    stride = (width * bits + 31) // 32 * 4
    body = rng.integers(0, 256, stride * height).astype(np.uint8).tobytes()
    colours = 1 << bits if bits <= 8 else 0
    padding = 3 if header == 12 else 4
    palette = rng.integers(0, 256, colours * padding).astype(np.uint8).tobytes()
    rows = -height if top_first else height
    if header == 12:
        head = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        head = struct.pack("<IiiHHIIiiII", header, width, rows, 1, bits, 3 if masks else 0, len(body), 0, 0, 0, 0)
        head += struct.pack("<IIII", *masks)[: max(0, header - 40)] if masks else b""
        head += bytes(header - len(head))
        if masks and header == 40:
            palette = struct.pack("<III", *masks[:3])
    offset = 14 + header + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(body), 0, 0, offset) + head + palette + body


def bmp_runs(bits: int) -> bytes:
    """A bitmap of run lengths: runs, single pixels, steps, ends of rows."""
    width, height = 20, 9
    if bits == 8:
        rows = [b"\x14\x05", b"\x00\x05\x01\x02\x03\x04\x05\x00\x0f\x09", b"\x03\x07", b"\x05\x01\x00\x02\x02\x01\x01\x03"]
    else:
        rows = [b"\x14\x57", b"\x00\x05\x12\x34\x50\x00\x0f\x9a", b"\x03\x7f", b"\x05\x12\x00\x02\x02\x01\x01\x33"]
    body = b"".join(row + b"\x00\x00" for row in rows)
    body += b"".join(bytes([width, i]) + b"\x00\x00" for i in range(height))
    body += b"\x00\x01"
    palette = bytes((i * 7 + k * 31) % 256 for i in range(1 << bits) for k in range(4))
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 1 if bits == 8 else 2, len(body), 0, 0, 0, 0)
    offset = 54 + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(body), 0, 0, offset) + head + palette + body


def frames(count: int, width: int = 40, height: int = 30, mode: str = "RGB") -> list[Image.Image]:
    result = []
    for i in range(count):
        image = as_mode("RGBA", width, height).copy()
        draw = ImageDraw.Draw(image)
        draw.ellipse((i * 5, i * 3, i * 5 + 14, i * 3 + 12), fill=(40 * i % 256, 255 - 30 * i, 90, 255))
        result.append(image.convert(mode))
    return result


def gifs() -> Iterator[tuple[str, bytes]]:
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        for interlace in (0, 1):
            for size in SIZES:
                yield f"gif {mode} {size} {interlace=}", saved(as_mode(mode, *size), "GIF", interlace=interlace)
    for disposal in (0, 1, 2, 3, [0, 2, 1, 3, 2, 0]):
        for mode in ("RGB", "RGBA", "L", "P"):
            for transparency in (None, 3):
                options = {} if transparency is None else {"transparency": transparency}
                first, *rest = frames(6, mode=mode)
                data = saved(first, "GIF", save_all=True, append_images=rest, disposal=disposal, duration=50, **options)
                yield f"gif animated {mode}, {disposal=}, {transparency=}", data
    yield from hand_made_gifs()


def lzw(indices: bytes, bits: int) -> bytes:
    """Codes that are never longer than at first: a clear code before they would grow."""
    size = bits + 1
    clear, end = 1 << bits, (1 << bits) + 1
    codes = [clear]
    for i, index in enumerate(indices):
        if i % ((1 << bits) - 2) == 0 and i:
            codes.append(clear)
        codes.append(index)
    codes.append(end)
    number = 0
    for i, code in enumerate(codes):
        number |= code << (i * size)
    data = number.to_bytes((len(codes) * size + 7) // 8, "little")
    blocks = b"".join(bytes([len(data[i : i + 255])]) + data[i : i + 255] for i in range(0, len(data), 255))
    return bytes([bits]) + blocks + b"\x00"


def gif(width: int, height: int, parts: list[dict[str, Any]], palette: bytes | None, background: int = 0) -> bytes:
    bits = 3
    flags = (0x80 | (bits - 1)) if palette else 0
    out = b"GIF89a" + struct.pack("<HHBBB", width, height, flags, background, 0) + (palette or b"")
    for part in parts:
        transparent = part.get("transparent")
        if transparent is not None or part.get("disposal"):
            out += (
                b"!\xf9\x04" + bytes([part.get("disposal", 0) << 2 | (transparent is not None), 5, 0, transparent or 0]) + b"\x00"
            )
        x, y, w, h = part["place"]
        own = part.get("palette")
        out += b"," + struct.pack("<HHHHB", x, y, w, h, (0x80 | (bits - 1)) if own else 0) + (own or b"")
        out += lzw(part["pixels"], bits)
    return out + b";"


def hand_made_gifs() -> Iterator[tuple[str, bytes]]:
    rng = np.random.default_rng(11)

    def colours() -> bytes:
        return rng.integers(0, 256, 24).astype(np.uint8).tobytes()

    gray = bytes(v for i in range(8) for v in (i, i, i))
    for seed in range(60):
        rng = np.random.default_rng(seed)
        width, height = 12, 9
        parts = []
        for i in range(5):
            x, y = int(rng.integers(0, width - 3)), int(rng.integers(0, height - 3))
            w, h = int(rng.integers(1, width - x + 1)), int(rng.integers(1, height - y + 1))
            if i == 0 and seed % 3:
                x, y, w, h = 0, 0, width, height
            part = {
                "place": (x, y, w, h),
                "pixels": rng.integers(0, 8, w * h).astype(np.uint8).tobytes(),
                "disposal": int(rng.integers(0, 4)),
            }
            if rng.random() < 0.5:
                part["transparent"] = int(rng.integers(0, 8))
            if rng.random() < 0.4:
                part["palette"] = colours()
            parts.append(part)
        palette = gray if seed % 10 == 9 else None if seed % 10 == 8 else colours()
        yield f"gif by hand {seed}", gif(width, height, parts, palette, int(rng.integers(0, 8)))


def webps() -> Iterator[tuple[str, bytes]]:
    for mode in ("RGB", "RGBA", "L", "LA", "P"):
        for size in SIZES:
            image = as_mode(mode, *size)
            yield f"webp lossy {mode} {size}", saved(image, "WEBP", quality=70)
            yield f"webp lossless {mode} {size}", saved(image, "WEBP", lossless=True)
    for mode in ("RGB", "RGBA"):
        for lossless in (False, True):
            first, *rest = frames(5, mode=mode)
            options: dict[str, Any] = {"save_all": True, "append_images": rest, "lossless": lossless, "duration": 40}
            yield f"webp animated {mode} {lossless=}", saved(first, "WEBP", **options)
            yield (
                f"webp animated, mixed {mode} {lossless=}",
                saved(first, "WEBP", allow_mixed=True, kmax=2, minimize_size=True, **options),
            )
    exif = Image.Exif()
    exif[0x0112] = 6
    yield "webp exif", saved(as_mode("RGB", 40, 30), "WEBP", exif=exif)


def tiffs() -> Iterator[tuple[str, bytes]]:
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "LAB", "YCbCr"):
        for size in [(1, 1), (17, 31), (130, 61)]:
            image = as_mode("RGB", *size).convert("RGB") if mode == "LAB" else as_mode(mode, *size)
            if mode == "LAB":
                image = Image.merge("LAB", image.split())
            for compression in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd", "lzma"):
                if compression and mode == "YCbCr":
                    continue
                yield f"tiff {mode} {size} {compression}", saved(image, "TIFF", compression=compression)
    for mode in ("L", "RGB", "I;16", "RGBA", "I"):
        for compression in ("tiff_lzw", "tiff_adobe_deflate"):
            yield (
                f"tiff predictor {mode} {compression}",
                saved(as_mode(mode, 61, 40), "TIFF", compression=compression, tiffinfo={317: 2}),
            )
    for mode in ("L", "RGB", "CMYK"):
        for quality in (20, 90):
            yield f"tiff jpeg {mode} {quality}", saved(as_mode(mode, 61, 40), "TIFF", compression="jpeg", quality=quality)
    yield "tiff strips", saved(as_mode("RGB", 61, 40), "TIFF", compression="tiff_lzw", tiffinfo={278: 7})
    yield "tiff jpeg strips", saved(as_mode("RGB", 64, 48), "TIFF", compression="jpeg", tiffinfo={278: 16})
    pages = [as_mode(mode, 30 + i, 20) for i, mode in enumerate(("RGB", "L", "F", "1", "P"))]
    yield "tiff pages", saved(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    yield "tiff big", saved(as_mode("RGB", 30, 20), "TIFF", big_tiff=True)
    for orientation in range(1, 9):
        yield f"tiff orientation {orientation}", saved(as_mode("RGB", 30, 20), "TIFF", tiffinfo={274: orientation})
    yield from hand_made_tiffs()


def tiff(tags: dict[int, Any], body: list[bytes], big: bool = False, tiled: bool = False) -> bytes:
    """A TIFF of one page: tags of shorts and longs, strips or tiles as given."""
    order = ">" if big else "<"
    tags = dict(tags)
    at = 8
    offsets = []
    for part in body:
        offsets.append(at)
        at += len(part)
    at += at % 2
    tags[324 if tiled else 273] = offsets
    tags[325 if tiled else 279] = [len(part) for part in body]
    entries, heap = b"", b""
    heap_at = at + 2 + 12 * len(tags) + 4
    for tag, value in sorted(tags.items()):
        values = value if isinstance(value, (list, tuple)) else [value]
        short = tag not in (273, 279, 324, 325)
        data = struct.pack(f"{order}{len(values)}{'H' if short else 'I'}", *values)
        entries += struct.pack(f"{order}HHI", tag, 3 if short else 4, len(values))
        if len(data) <= 4:
            entries += data.ljust(4, b"\0")
        else:
            entries += struct.pack(f"{order}I", heap_at + len(heap))
            heap += data + b"\0" * (len(data) % 2)
    head = (b"MM\0*" if big else b"II*\0") + struct.pack(f"{order}I", at)
    pixels = b"".join(body)
    return head + pixels + b"\0" * (at - 8 - len(pixels)) + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + heap


def hand_made_tiffs() -> Iterator[tuple[str, bytes]]:
    rng = np.random.default_rng(5)

    def noise(n: int) -> bytes:
        return rng.integers(0, 256, n).astype(np.uint8).tobytes()

    width, height = 37, 22
    kinds: list[tuple[str, int, list[int], list[int], int]] = [
        ("bilevel", 1, [1], [], 1),
        ("bilevel, white is 0", 0, [1], [], 1),
        ("gray 2", 1, [2], [], 1),
        ("gray 2, white is 0", 0, [2], [], 1),
        ("gray 4", 1, [4], [], 1),
        ("gray 4, white is 0", 0, [4], [], 1),
        ("gray 8, white is 0", 0, [8], [], 1),
        ("gray 16", 1, [16], [], 1),
        ("gray 16 signed", 1, [16], [], 2),
        ("gray 32 signed", 1, [32], [], 2),
        ("float", 1, [32], [], 3),
        ("float, white is 0", 0, [32], [], 3),
        ("gray and nothing", 1, [8, 8], [0], 1),
        ("gray and alpha", 1, [8, 8], [2], 1),
        ("rgb", 2, [8] * 3, [], 1),
        ("rgb and nothing", 2, [8] * 4, [0], 1),
        ("rgb and two of nothing", 2, [8] * 5, [0, 0], 1),
        ("rgba", 2, [8] * 4, [2], 1),
        ("rgba and nothing", 2, [8] * 5, [2, 0], 1),
        ("rgba, not said", 2, [8] * 4, [], 1),
        ("rgba, multiplied", 2, [8] * 4, [1], 1),
        ("rgba, multiplied, and nothing", 2, [8] * 5, [1, 0], 1),
        ("rgb 16", 2, [16] * 3, [], 1),
        ("rgb 16 and nothing", 2, [16] * 4, [0], 1),
        ("rgba 16", 2, [16] * 4, [2], 1),
        ("rgba 16, multiplied", 2, [16] * 4, [1], 1),
        ("palette 1", 3, [1], [], 1),
        ("palette 2", 3, [2], [], 1),
        ("palette 4", 3, [4], [], 1),
        ("palette 8", 3, [8], [], 1),
        ("palette and nothing", 3, [8, 8], [0], 1),
        ("palette and alpha", 3, [8, 8], [2], 1),
        ("cmyk", 5, [8] * 4, [], 1),
        ("cmyk and nothing", 5, [8] * 5, [0], 1),
        ("cmyk 16", 5, [16] * 4, [], 1),
        ("ycbcr", 6, [8] * 3, [], 1),
        ("lab", 8, [8] * 3, [], 1),
    ]
    for big in (False, True):
        for name, photometric, bits, extra, kind in kinds:
            row = (width * sum(bits) + 7) // 8
            tags: dict[int, Any] = {
                256: width,
                257: height,
                258: bits,
                259: 1,
                262: photometric,
                277: len(bits),
                278: 5,
                339: [kind] * len(bits),
            }
            if extra:
                tags[338] = extra
            if photometric == 3:
                tags[320] = rng.integers(0, 65536, 3 << bits[0]).tolist()
            data = noise(row * height)
            if kind == 3:
                data = (rng.normal(100, 150, width * height)).astype(">f4" if big else "<f4").tobytes()
            yield f"tiff by hand: {name}, {big=}", tiff(tags, [data[i * row * 5 : (i + 1) * row * 5] for i in range(5)], big)
            if sum(bits) % 8 == 0 and photometric != 6:
                # Tiles, and the same compressed.
                tile = (16 * sum(bits) // 8) * 16
                tiles = [noise(tile) for _ in range(6)]
                tags = {**tags, 322: 16, 323: 16}
                del tags[278]
                if kind != 3:
                    yield f"tiff by hand: {name}, {big=}, tiles", tiff(tags, tiles, big, tiled=True)
                    packed = [zlib.compress(one) for one in tiles]
                    yield f"tiff by hand: {name}, {big=}, tiles, deflate", tiff({**tags, 259: 8}, packed, big, tiled=True)
    for bits, mode in ((8, "rgb"), (16, "rgb 16")):
        row = width * bits // 8
        tags = {256: width, 257: height, 258: [bits] * 3, 259: 1, 262: 2, 277: 3, 278: height, 284: 2}
        planes = [noise(row * height) for _ in range(3)]
        yield f"tiff by hand: planes, {mode}", tiff(tags, planes)
        yield f"tiff by hand: planes, {mode}, deflate", tiff({**tags, 259: 8}, [zlib.compress(plane) for plane in planes])
    for bits in (8, 16, 32):
        row = width * bits // 8
        tags = {256: width, 257: height, 258: bits, 259: 8, 262: 1, 277: 1, 278: height, 317: 2, 339: 1 if bits < 32 else 2}
        yield f"tiff by hand: differences of {bits}", tiff(tags, [zlib.compress(noise(row * height))])
        if bits != 32:
            yield f"tiff by hand: differences of {bits}, big", tiff(tags, [zlib.compress(noise(row * height))], big=True)
    tags = {256: width, 257: height, 258: 32, 259: 8, 262: 1, 277: 1, 278: height, 317: 3, 339: 3}
    yield "tiff by hand: differences of floats", tiff(tags, [zlib.compress(float_differences(rng, width, height))])
    row = (width + 7) // 8
    tags = {256: width, 257: height, 258: 1, 259: 1, 262: 1, 277: 1, 278: height, 266: 2}
    yield "tiff by hand: bits the other way", tiff(tags, [noise(row * height)])


def float_differences(rng: Any, width: int, height: int) -> bytes:
    out = b""
    for _ in range(height):
        values = rng.normal(100, 50, width).astype(">f4").view(np.uint8).reshape(width, 4)
        line = values.T.reshape(-1).astype(np.int64)
        out += np.diff(line, prepend=0).astype(np.uint8).tobytes()
    return out


def photographs() -> list[Path]:
    """Real pictures that come with the packages of the test environment."""
    found: list[Path] = []
    for package in ("skimage", "sklearn", "matplotlib", "gradio", "imageio", "scipy", "torchvision"):
        spec = importlib.util.find_spec(package)
        for root in (spec and spec.submodule_search_locations) or ():
            for pattern in ("*.jpg", "*.jpeg", "*.png", "*.gif", "*.bmp", "*.tif", "*.tiff", "*.webp"):
                found += sorted(Path(root).rglob(pattern))
    return found
