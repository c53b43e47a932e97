"""Trains a small network with one of the loaders. Started by demo.py, which tells it what to do line by line.

The first two runs differ in one line: which DataLoader is imported. The third takes the dataset whose images native code makes.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from photos import NativeViews, Views
from torch import nn
from tqdm import tqdm

EPOCHS = 4
BATCH = 64
WORKERS = 2


def network(classes: int) -> nn.Sequential:
    """Three strided convolutions: small, so that the loader matters."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


class Run:
    """A network, its two loaders, and what was seen."""

    def __init__(self, loader: str, file: Path, classes: int) -> None:
        if loader == "torch":
            from torch.utils.data import DataLoader
        else:
            from feedrate.torch import DataLoader

        torch.set_num_threads(1)
        torch.manual_seed(7)
        self.name = loader
        self.model = network(classes)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        common: dict[str, Any] = {"batch_size": BATCH, "num_workers": WORKERS, "persistent_workers": True}
        views = NativeViews if loader == "native" else Views
        self.train_loader = DataLoader(
            views(file, train=True), shuffle=True, generator=torch.Generator().manual_seed(7), **common
        )
        self.check_loader = DataLoader(views(file, train=False), **common)
        self.crc = 0
        self.waited = 0.0

    def batches(self, loader: Any, title: str) -> Any:
        """The loader's batches under a progress bar, with the time spent waiting and the checksum taken."""
        with tqdm(total=len(loader), desc=title, unit="batch", leave=False, file=sys.stderr) as bar:
            iterator = iter(loader)
            while True:
                asked = time.perf_counter()
                batch = next(iterator, None)
                self.waited += time.perf_counter() - asked
                if batch is None:
                    return
                for tensor in batch:
                    self.crc = zlib.crc32(tensor.numpy().reshape(-1).view("u1").data, self.crc)
                yield batch
                bar.update()

    def train(self) -> dict[str, Any]:
        """All epochs of training with their validation."""
        started = time.perf_counter()
        seen = right = total = 0
        self.waited = 0.0
        history = []
        for epoch in range(EPOCHS):
            loss_sum, good, count = 0.0, 0, 0
            self.model.train()
            for images, labels in self.batches(self.train_loader, f"{self.name:8} epoch {epoch + 1}/{EPOCHS}"):
                self.optimiser.zero_grad()
                scores = self.model(images)
                loss = nn.functional.cross_entropy(scores, labels)
                loss.backward()
                self.optimiser.step()
                loss_sum += loss.item() * len(labels)
                good += int((scores.argmax(1) == labels).sum())
                count += len(labels)
                seen += 1
            self.model.eval()
            right = total = 0
            with torch.no_grad():
                for images, labels in self.batches(self.check_loader, f"{self.name:8} checking"):
                    right += int((self.model(images).argmax(1) == labels).sum())
                    total += len(labels)
                    seen += 1
            history.append({"loss": loss_sum / count, "train": good / count, "check": right / total})
        return {
            "seconds": time.perf_counter() - started,
            "waited": self.waited,
            "batches": seen,
            "history": history,
            "checksum": f"{self.crc:08x}",
        }

    def feed(self) -> dict[str, Any]:
        """One epoch of nothing but loading: batches per second after the first batch."""
        iterator = iter(self.train_loader)
        next(iterator)
        started = time.perf_counter()
        count = sum(1 for _ in iterator)
        return {"rate": count / (time.perf_counter() - started)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = Run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    for line in sys.stdin:
        answer = run.train() if line.strip() == "train" else run.feed()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
