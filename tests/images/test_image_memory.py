"""How much memory the fused path takes: the batch, the encoded files, and one decoded crop for each thread."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.ours
WIDTH, HEIGHT, COUNT = 2400, 1600, 24
MIB = 1 << 20

SCRIPT = """
import re, sys
import feedrate
from feedrate.image import Transform
path, threads, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def memory(field):
    with open("/proc/self/status") as file:
        return int(re.search(field + r":\\s+(\\d+) kB", file.read())[1]) * 1024
crop = Transform(draws="keyed").random_resized_crop(64, scale=(0.2, 0.3)) if kind == "crop" else Transform().resize((64, 64))
crop = crop.to("float32")
crop([path] * 2, seed=0)
open("/proc/self/clear_refs", "w").write("5")
before = memory("VmRSS")
batch = crop([path] * COUNT, seed=1, threads=threads)
print(memory("VmHWM") - before, batch.nbytes)
""".replace("COUNT", str(COUNT))


@pytest.fixture(scope="module", params=["JPEG", "PNG"])
def file(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / f"large.{request.param.lower()}"
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    pixels = np.stack([x // 10, y // 7, (x + y) // 16], axis=-1).astype(np.uint8)
    stored = io.BytesIO()
    Image.fromarray(pixels).save(stored, request.param)
    path.write_bytes(stored.getvalue())
    return path


@pytest.mark.parametrize("kind", ["resize", "crop"])
@pytest.mark.parametrize("threads", [1, 3])
def test_one_decoded_crop_for_each_thread(file: Path, threads: int, kind: str) -> None:
    """All images decoded would take 264 MiB. PNG is decoded whole also for a crop."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file), str(threads), kind], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    grown, batch = map(int, re.findall(r"\d+", done.stdout))
    decoded = WIDTH * HEIGHT * 3
    whole = file.suffix == ".png" or kind == "resize"
    crops = threads * (decoded * (1.5 if whole else 0.5))
    allowed = batch + COUNT * file.stat().st_size + crops + 8 * MIB
    assert grown <= allowed, f"{grown / MIB:.1f} MiB, and {allowed / MIB:.1f} are the batch, the files and the crops"
    assert allowed < COUNT * decoded / 2, "the bound would not notice that images are kept"
