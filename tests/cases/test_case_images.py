"""Acceptance cases IMG-01 to IMG-09: what images in the field do to decoders."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageOps

import feedrate
from feedrate.image import Transform, decode, from_torchvision, info
from images import corpus

SMOOTH = np.stack(np.meshgrid(np.arange(64) * 4, np.arange(64) * 3), axis=-1).astype(np.uint8)
A = np.concatenate([SMOOTH, 255 - SMOOTH[..., :1]], axis=-1)
pytestmark = pytest.mark.ours


def pillow(data: bytes, mode: str = "RGB", frame: int = 0) -> np.ndarray[Any, Any]:
    image = Image.open(io.BytesIO(data))
    image.seek(frame)
    return np.asarray(image.convert(mode))


def test_img_01_cmyk_and_ycck() -> None:
    cmyk = corpus.saved(Image.fromarray(A).convert("CMYK"), "JPEG", quality=95)
    at = cmyk.find(b"Adobe")
    ycck = cmyk[: at + 11] + b"\x02" + cmyk[at + 12 :]
    for data in (cmyk, ycck, corpus.without_segment(cmyk, 0xEE)):
        got = decode(data)
        assert got.shape == (64, 64, 3)
        assert np.array_equal(got, pillow(data))
        # As stored: four inks, 0 without ink, whatever the marker says.
        assert np.array_equal(decode(data, None), np.asarray(Image.open(io.BytesIO(data))))
    assert abs(decode(cmyk).astype(int) - A).mean() < 4


def test_img_02_exif_orientation() -> None:
    for value in range(1, 9):
        data = corpus.exif_jpeg(value)
        image = Image.open(io.BytesIO(data))
        assert np.array_equal(decode(data, orientation=True), np.asarray(ImageOps.exif_transpose(image)))
        assert np.array_equal(decode(data), np.asarray(image))
        assert info(data).orientation == value
    data = corpus.exif_jpeg(6)
    at = data.find(b"Exif\0\0") + 6
    end = at - 6 + int.from_bytes(data[at - 8 : at - 6], "big") - 2
    for length in range(1, end - at):
        broken = data[:at] + b"\xff" * length + data[at + length :]
        assert decode(broken, orientation=True).shape in ((40, 60, 3), (60, 40, 3))


def test_img_03_sixteen_bits() -> None:
    values = np.arange(2400, dtype=np.uint16).reshape(40, 60) * 27
    for format in ("PNG", "TIFF"):
        data = corpus.saved(Image.fromarray(values), format)
        exact = decode(data, None)
        assert exact.dtype == np.uint16
        assert np.array_equal(exact, values)
        assert np.array_equal(decode(data, "RGB", deep="scale")[..., 0], np.round(values / 257).astype(np.uint8))
        for mode in ("L", "RGB", "RGBA"):
            got = decode(data, mode)
            assert np.array_equal(got if mode == "L" else got[..., 0], values >> 8), mode
        # As Pillow does, on request and where its transforms are translated.
        assert np.array_equal(decode(data, "L", deep="clip"), np.minimum(values, 255).astype(np.uint8))
        assert np.array_equal(Transform(mode="L")(data)[..., 0], values >> 8)
        assert np.array_equal(Transform(deep="scale")(data)[..., 0], np.round(values / 257).astype(np.uint8))
        translated = from_torchvision(torchvision.transforms.Compose([torchvision.transforms.ToTensor()]))
        expected = torchvision.transforms.ToTensor()(Image.open(io.BytesIO(data)).convert("RGB"))
        assert torch.equal(translated(data), expected)
        floats = Transform().to("float32")(data)
        assert 0 <= floats.min() < floats.max() <= 1
    for colour, channels in ((2, 3), (4, 2), (6, 4)):
        data = corpus.png(20, 10, 16, colour, filters=False)
        got = decode(data, None)
        assert (got.dtype, got.shape) == (np.uint16, (10, 20, channels))


def test_img_04_palettes_and_transparency() -> None:
    palette = Image.fromarray(A).quantize(16)
    data = corpus.saved(palette, "PNG", transparency=bytes([0] + [255] * 15))
    for mode in ("RGB", "RGBA", "L"):
        assert np.array_equal(decode(data, mode), pillow(data, mode))
    assert np.array_equal(decode(data, None), pillow(data, "RGBA"))  # never indices
    for bits in (1, 2, 4):
        for interlaced in (False, True):
            data = corpus.png(33, 21, bits, 3, interlaced=interlaced)
            assert np.array_equal(decode(data, None), pillow(data))


def test_img_05_animations_are_one_image_unless_asked() -> None:
    frames = [Image.new("RGB", (32, 32), (80 * k, 0, 0)) for k in range(3)]
    for format in ("GIF", "WEBP"):
        data = corpus.saved(frames[0], format, save_all=True, append_images=frames[1:])
        assert decode(data).shape == (32, 32, 3)
        every = decode(data, frame="all")
        assert every.shape == (3, 32, 32, 3)
        for k in range(3):
            assert np.array_equal(every[k], pillow(data, frame=k))
        still = corpus.saved(frames[0], format)
        assert np.stack(decode([data, still])).shape == (2, 32, 32, 3)


def test_img_06_truncated_and_slightly_corrupt(capfd: pytest.CaptureFixture[str]) -> None:
    data = corpus.saved(Image.fromarray(A), "JPEG")
    for length in (0, 2, 20, len(data) // 2, len(data) - 20):
        with pytest.raises(feedrate.ImageError):
            decode(data[:length])
    with pytest.raises(feedrate.ImageError, match=r"the file ends early: \d+ of 64 rows are whole") as error:
        decode(data[: len(data) - 60])
    assert error.value.flaw == "truncated"
    assert decode(data[: len(data) - 60], truncated="fill").shape == (64, 64, 3)
    scan = data.find(b"\xff\xda") + 40
    for odd in (data + b"trailing", data[:scan] + b"\x00\xff\xd3" + data[scan:], data[:2] + b"\xff\xff\xff" + data[2:]):
        assert np.array_equal(decode(odd), pillow(odd))
    assert capfd.readouterr() == ("", "")


def test_img_07_progressive() -> None:
    for size in ((1, 1), (17, 31), (64, 48)):
        image = corpus.as_mode("RGB", *size)
        for options in ({"progressive": True, "quality": 90}, {"progressive": True, "subsampling": "4:2:2", "optimize": True}):
            data = corpus.saved(image, "JPEG", restart_marker_rows=1, **options)
            assert np.array_equal(decode(data), pillow(data))
    data = bytearray(corpus.saved(corpus.as_mode("RGB", 64, 48), "JPEG", progressive=True))
    at = data.find(b"\xff\xc2")
    data[at + 5 : at + 9] = b"\xff\xdc\xff\xdc"
    with pytest.raises(feedrate.ImageError, match="4,290,250,000 pixels") as error:
        decode(bytes(data))
    assert error.value.flaw == "too large"


def write_tar(path: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return str(path)


def test_img_08_mixed_channels_in_one_batch(tmp_path: Path) -> None:
    modes = ("L", "LA", "RGB", "RGBA", "P", "1")
    files = {f"{mode}.png": corpus.saved(corpus.as_mode(mode, 16, 16), "PNG") for mode in modes}
    path = write_tar(tmp_path / "x.tar", files)
    (batch,) = feedrate.open(path).decode("png").batch(6)
    assert batch["png"].shape == (6, 16, 16, 3)
    for got, data in zip(np.asarray(batch["png"]), files.values(), strict=True):
        assert np.array_equal(got, pillow(data))
    with pytest.raises(feedrate.PipelineError, match=r"\$\.png, sample 1 of the batch: .*\[16, 16, 2\]"):
        list(feedrate.open(path).decode(png=lambda data: decode(data, None)).batch(6))


def test_img_09_the_content_counts_not_the_name(tmp_path: Path) -> None:
    formats = {"a.jpg": "PNG", "b.jpg": "BMP", "c.png": "JPEG", "d.jpg": "GIF", "e.jpg": "WEBP"}
    files = {name: corpus.saved(Image.fromarray(A), format) for name, format in formats.items()}
    for name, element in zip(files, feedrate.open(write_tar(tmp_path / "x.tar", files)).decode(), strict=True):
        field = name.split(".")[1]
        assert np.array_equal(element[field], pillow(files[name])), name
    html = b"<!DOCTYPE html><html><body>not found" + b" " * 1190 + b"</html>"
    assert len(html) == 1233
    with pytest.raises(feedrate.ImageError, match="it looks like HTML, 1,233 bytes"):
        decode(html)
    with pytest.raises(feedrate.ImageError, match="it looks like PDF, 12 bytes"):
        decode(b"%PDF-1.7 abc")
    path = write_tar(tmp_path / "y.tar", {"x.jpg": html})
    with pytest.raises(feedrate.ImageError, match="it looks like HTML") as error:
        list(feedrate.open(path).decode())
    assert any(note.endswith(f"{path}, x") for note in error.value.__notes__)


def test_a_decoder_never_ends_the_process() -> None:
    code = (
        "import feedrate, random\n"
        "from feedrate.image import decode\n"
        "from images import corpus\n"
        "random.seed(1)\n"
        "for data in [corpus.exif_jpeg(1), corpus.png(40, 30, 8, 2), *(corpus.saved(corpus.as_mode('RGB', 40, 30), f) for f in ('WEBP', 'GIF'))]:\n"
        "    for _ in range(300):\n"
        "        damaged = bytearray(data)\n"
        "        for _ in range(4): damaged[random.randrange(len(damaged))] = random.randrange(256)\n"
        "        try: decode(bytes(damaged), max_pixels=10**6, truncated='fill')\n"
        "        except feedrate.ImageError: pass\n"
        "print('alive')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(path).resolve()) for path in sys.path if path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
