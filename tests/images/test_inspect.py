"""The command `feedrate inspect`: listings of data sets, contact sheets of files and of batches."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedrate import _cli, _inspect
from images import corpus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    (root / "a").mkdir(parents=True)
    (root / "b").mkdir()
    photo = corpus.as_mode("RGB", 90, 60)
    for i in range(5):
        (root / "a" / f"{i}.jpg").write_bytes(corpus.saved(photo, "JPEG"))
    (root / "a" / "turned.jpg").write_bytes(corpus.exif_jpeg(6))
    (root / "b" / "gray.png").write_bytes(corpus.png(40, 30, 16, 0))
    (root / "b" / "png.jpg").write_bytes(corpus.png(40, 30, 8, 2))
    (root / "b" / "moving.gif").write_bytes(dict(corpus.gifs())["gif animated RGB, disposal=2, transparency=None"])
    (root / "b" / "half.jpg").write_bytes(corpus.saved(photo, "JPEG")[:1200])
    (root / "b" / "page.jpg").write_bytes(b"<!DOCTYPE html><html>404</html>")
    (root / "b" / "empty.png").write_bytes(b"")
    (root / "notes.txt").write_text("no image")
    return root


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = _cli.main(["inspect", "--quiet", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


LISTING = """\
formats: JPEG 6, PNG 2, GIF 1
modes: RGB 7, I;16 1, P 1
sizes: 90x60 5, 40x30 3, 60x40 1
width: 40 to 90, half of them up to 90
height: 30 to 60, half of them up to 60
megapixels: 0.0012 to 0.0054, half of them up to 0.0054
turned by EXIF: 1: decode with orientation=True to have them upright
with more than one frame: 1
named as another format: 1
"""


def test_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, str(folder))
    assert code == 1
    assert err == ""
    assert out.startswith("9 images in ")
    assert "3 damaged, 1 other files\n" in out
    assert LISTING in out
    assert f"  {folder}/b/png.jpg: is PNG\n" in out
    assert "damaged: 3\n" in out
    assert f"  {folder}/b/empty.png: no image: 0 bytes\n" in out
    assert f"  {folder}/b/half.jpg: the file ends early: " in out
    assert (
        f"  {folder}/b/page.jpg: no image of a known format (JPEG, PNG, WebP, GIF, BMP, TIFF, PPM); it looks like HTML, 31 bytes\n"
        in out
    )


def test_a_tar_and_a_pattern_say_the_same(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(folder, "set")
    code, out, _ = run(capsys, str(path))
    assert code == 1
    assert LISTING in out
    assert f"  {path}: set/b/half.jpg: the file ends early" in out
    code, out, _ = run(capsys, str(folder / "a" / "*.jpg"))
    assert code == 0
    assert out.startswith("6 images")
    code, out, _ = run(capsys, str(folder), "--limit", "3")
    assert code == 0
    assert out.startswith("3 images")
    path.write_bytes(path.read_bytes()[:5000])
    code, out, _ = run(capsys, str(path))
    assert code == 1
    assert "the archive cannot be read to its end" in out


def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, str(tmp_path / "nothing"))
    assert (code, out) == (2, "")
    assert "there is no file at" in err


def test_a_contact_sheet_of_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.png"
    _, out, _ = run(capsys, str(folder), "--sheet", str(sheet), "--columns", "4", "--size", "32", "--images", "6")
    assert f"{sheet}: the first 6 images\n" in out
    image = Image.open(sheet)
    assert (image.mode, image.size) == ("RGB", (4 * 36 + 4, 2 * 36 + 4))
    pixels = np.asarray(image).astype(int)
    # The first picture, 90 x 60 made 30 x 20, is in the middle of its square.
    first = pixels[4 + 6 : 4 + 26, 4 + 1 : 4 + 31]
    photo = np.asarray(Image.open(folder / "a" / "0.jpg")).astype(float).reshape(20, 3, 30, 3, 3).mean(axis=(1, 3))
    assert abs(first - photo).max() <= 1
    assert (pixels[:4] == 64).all()


LOADERS = """
import numpy as np
import torch

def plain():
    yield {"image": np.arange(2 * 8 * 6 * 3, dtype=np.uint8).reshape(2, 8, 6, 3), "label": [0, 1]}

def normalised():
    yield torch.zeros(3, 3, 8, 6), torch.tensor([1, 2, 3])
    yield torch.full((3, 3, 8, 6), 1.0, dtype=torch.bfloat16), torch.tensor([1, 2, 3])

def ragged():
    yield [np.zeros((4, 5, 3), np.uint8), np.zeros((7, 5, 3), np.uint8)]

def none():
    yield np.zeros(4)

def number():
    return 3
"""


def test_contact_sheets_of_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loaders_to_inspect.py"
    file.write_text(LOADERS)
    sheet = tmp_path / "sheet.png"

    def look(name: str, *more: str) -> tuple[int, str, str]:
        return run(capsys, f"{file}:{name}", "--sheet", str(sheet), "--size", "8", *more)

    code, out, _ = look("plain")
    assert code == 0
    assert "batch['image']: 2 images of uint8, (8, 6, 3); shown as they are\n" in out
    assert np.array_equal(np.asarray(Image.open(sheet))[4:12, 5:11], np.arange(144).reshape(8, 6, 3))
    code, out, _ = look("normalised", "--mean", "0.5", "--std", "0.25,0.25,0.25", "--batch", "2")
    assert "batch[0]: 3 images of float32, (3, 8, 6); shown times std plus mean\n" in out
    assert np.asarray(Image.open(sheet))[6, 7].tolist() == [191, 191, 191]
    code, out, _ = look("ragged")
    assert "batch: 2 images of uint8, (4, 5, 3), (7, 5, 3); shown as they are\n" in out
    code, _, err = look("none")
    assert code == 2
    assert "there are no images in a batch of type ndarray" in err
    code, _, err = look("number")
    assert code == 2
    assert "number gave int: it should make a loader" in err
    code, _, err = look("plain", "--batch", "3")
    assert code == 2
    assert "the loader has 1 batches, and no batch 3" in err


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (129, 128), (128, 128), (500, 375)])
def test_thumbnails_fit(shape: tuple[int, int]) -> None:
    pixels = np.full((*shape, 3), 7, np.uint8)
    small = _inspect.shrunk(pixels, 128)
    assert max(small.shape[:2]) <= 128
    assert min(small.shape[:2]) >= 1
    assert (small == 7).all()


def test_a_png_that_we_write_is_read_by_pillow(tmp_path: Path) -> None:
    pixels = np.asarray(corpus.as_mode("RGB", 77, 33))
    _inspect.write_png(str(tmp_path / "x.png"), pixels)
    image: Any = Image.open(io.BytesIO((tmp_path / "x.png").read_bytes()))
    image.load()
    assert np.array_equal(np.asarray(image), pixels)
