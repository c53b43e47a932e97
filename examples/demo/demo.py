"""Trains a small network on photographs: with torch's DataLoader, with Feedrate's, and with native images too; and compares.

    make demo

All runs use the same photographs, seeds and number of workers; each has a process of its own. The checksum over all batches
must come out the same, and so must the accuracies: native code makes the pixels that Pillow makes. Takes about a minute on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent.parent))

import photos  # noqa: E402
from benchmarks import procs  # noqa: E402

LOADERS = {
    "torch": "torch.utils.data.DataLoader",
    "feedrate": "feedrate.torch.DataLoader",
    "native": "feedrate.torch.DataLoader, images by feedrate.image",
}
FEEDS = 3


class Training:
    """One training process; `ask` gives it a command and returns its answer."""

    def __init__(self, loader: str, views: Path, classes: int) -> None:
        command = [sys.executable, str(FOLDER / "train.py"), loader, str(views), str(classes)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the training process ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def train(self) -> dict[str, Any]:
        """Trains, with CPU seconds and peak memory of the process and its workers measured from here."""
        before = procs.cpu_seconds(self.process.pid)
        with procs.PeakMemory(self.process.pid, every=0.1) as peak:
            answer = self.ask("train")
        answer["cpu"] = procs.cpu_seconds(self.process.pid) - before
        answer["memory"] = peak.peak["private"] / 2**20
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def table(trained: dict[str, dict[str, Any]], rates: dict[str, list[float]]) -> None:
    """The runs side by side, and how many times as good each is as torch's."""
    last = {name: result["history"][-1] for name, result in trained.items()}
    median = {name: sorted(found)[len(found) // 2] for name, found in rates.items()}
    lines = [
        ("feed rate, no training (batches/s)", median, "{:.1f}", True),
        ("feed rate while training (batches/s)", {n: r["batches"] / r["seconds"] for n, r in trained.items()}, "{:.1f}", True),
        ("training time (s)", {n: r["seconds"] for n, r in trained.items()}, "{:.1f}", False),
        ("  of it waiting for data (s)", {n: r["waited"] for n, r in trained.items()}, "{:.1f}", False),
        ("CPU seconds, all processes", {n: r["cpu"] for n, r in trained.items()}, "{:.1f}", False),
        ("peak memory, all processes (MiB)", {n: r["memory"] for n, r in trained.items()}, "{:.0f}", False),
        ("accuracy on training views (%)", {n: r["train"] * 100 for n, r in last.items()}, "{:.2f}", None),
        ("accuracy on held-out views (%)", {n: r["check"] * 100 for n, r in last.items()}, "{:.2f}", None),
        ("checksum of all batches", {n: r["checksum"] for n, r in trained.items()}, "{}", None),
    ]
    print(f"\n{'':38}" + "".join(f"{name:>12}" for name in LOADERS) + "   times as good as torch")
    for title, values, form, more_is_better in lines:
        line = f"{title:38}" + "".join(f"{form.format(values[name]):>12}" for name in LOADERS)
        if more_is_better is not None:
            theirs = values["torch"]
            better = [values[n] / theirs if more_is_better else theirs / max(values[n], 1e-9) for n in LOADERS if n != "torch"]
            line += "   " + ", ".join(f"{ratio:.2f}" for ratio in better)
        print(line)


def main() -> int:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        views = Path(folder) / "views.npz"
        classes = photos.cut(views)
        train, check = (len(photos.Views(views, train=which)) for which in (True, False))
        print(f"{classes} photographs, cut into {train} views for training and {check} held out; JPEG, decoded by Pillow")
        trained: dict[str, dict[str, Any]] = {}
        running: dict[str, Training] = {}
        for name, title in LOADERS.items():
            print(f"training with {title} ...")
            running[name] = Training(name, views, classes)
            trained[name] = running[name].train()
            for number, epoch in enumerate(trained[name]["history"], 1):
                print(
                    f"  epoch {number}: loss {epoch['loss']:.3f}, accuracy {epoch['train']:.1%} in training, "
                    f"{epoch['check']:.1%} held out"
                )
        print(f"loading only, {FEEDS} epochs each, taking turns ...")
        rates: dict[str, list[float]] = {name: [] for name in LOADERS}
        for _ in range(FEEDS):
            for name in LOADERS:
                rates[name].append(running[name].ask("feed")["rate"])
        for training in running.values():
            training.close()
    table(trained, rates)
    same = len({result["checksum"] for result in trained.values()}) == 1
    print(
        f"\nthe batches were {'the same, bit for bit' if same else 'NOT the same'}; {time.perf_counter() - started:.0f} s in all"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
