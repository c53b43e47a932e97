"""One seeded storm: two loaders read in turn while their workers are killed or stopped at random moments.

Every batch is verified against what it must be, so that a batch that is lost, doubled, out of order, mixed up or
overwritten while it is held is found at once.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset

from helpers import procs

SIDE = 24


class Marked(Dataset[Any]):
    """Sample i: a tensor full of a number made from i, its index, and an object; sizes vary with i."""

    def __init__(self, n: int, salt: int, pause: float = 0.0) -> None:
        self.n, self.salt, self.pause = n, salt, pause

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if self.pause:
            time.sleep(self.pause * (1 + i % 3))
        return {
            "x": torch.full((SIDE, SIDE), float(i * 7 + self.salt)),
            "i": i,
            "s": f"{self.salt}:{i}",
            "n": torch.arange(5) + i,
        }

    def check(self, batch: Any, indices: list[int]) -> None:
        """Raises unless the batch is exactly the one of these indices."""
        assert batch["i"].tolist() == indices, (batch["i"].tolist(), indices)
        assert batch["s"] == [f"{self.salt}:{i}" for i in indices]
        expected = torch.tensor([float(i * 7 + self.salt) for i in indices])
        assert batch["x"].shape == (len(indices), SIDE, SIDE)
        assert bool((batch["x"] == expected[:, None, None]).all()), indices
        assert bool((batch["n"] == torch.arange(5) + torch.tensor(indices)[:, None]).all()), indices


@dataclass
class Storm:
    """What to do to whom. All choices come from `seed`."""

    loader: Any
    method: str
    seed: int
    epochs: int
    n: int = 96
    batch_size: int = 4
    workers: int = 2
    persistent: bool = True
    kills: bool = True
    stops: bool = False
    shuffle: bool = True
    fork: bool = True
    kwargs: dict[str, Any] = field(default_factory=dict)
    killed: int = 0
    stopped: int = 0
    timeouts: int = 0

    def run(self) -> None:
        """All epochs; raises at the first wrong batch."""
        rng = random.Random(self.seed)
        child = self._own_fork() if self.fork else None
        try:
            data = [Marked(self.n, salt, pause=0.0005) for salt in (1, 100_000)]
            loaders = [
                self.loader(
                    d,
                    batch_sampler=Plan(self.n, self.batch_size, self.seed + k, self.shuffle),
                    num_workers=self.workers,
                    persistent_workers=self.persistent,
                    multiprocessing_context=self.method,
                    timeout=0.4 if self.stops else 0,
                    **self.kwargs,
                )
                for k, d in enumerate(data)
            ]
            for _ in range(self.epochs):
                self._epoch(rng, data, loaders)
            del loaders
        finally:
            if child is not None:
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)

    def _own_fork(self) -> int:
        """A child of the user's own that inherits whatever is open and lives through the storm."""
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(600)
            os._exit(0)
        return pid

    def _epoch(self, rng: random.Random, data: list[Marked], loaders: list[Any]) -> None:
        plans = [loader.batch_sampler.order() for loader in loaders]
        iterators = [iter(loader) for loader in loaders]
        held: list[tuple[Marked, Any, list[int]]] = []
        position = [0, 0]
        # A fork of the user's own in mid-epoch, with batches held on both sides.
        child = self._own_fork() if self.fork and rng.random() < 0.3 else None
        while position != [len(p) for p in plans]:
            k = rng.randrange(2)
            if position[k] == len(plans[k]):
                k = 1 - k
            batch = self._next(iterators[k])
            indices = plans[k][position[k]]
            data[k].check(batch, indices)
            position[k] += 1
            if rng.random() < 0.3:
                held.append((data[k], batch, indices))
            elif rng.random() < 0.3:
                batch["x"].fill_(-1)  # our own copy: nobody else may see this
            if rng.random() < 0.2 and held:
                held.pop(rng.randrange(len(held)))
            self._strike(rng, rng.choice(iterators))
        for k in (0, 1):
            try:
                extra = self._next(iterators[k])
            except StopIteration:
                continue
            raise AssertionError(f"a batch too many: {extra['i'].tolist()}")
        for d, batch, indices in held:
            d.check(batch, indices)
        if child is not None:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)

    def _next(self, iterator: Any) -> Any:
        for _ in range(60):
            try:
                return next(iterator)
            except RuntimeError as e:
                if not self.stops or "timed out" not in str(e):
                    raise
                self.timeouts += 1
        raise AssertionError("sixty timeouts in a row")

    def _strike(self, rng: random.Random, iterator: Any) -> None:
        roll = rng.random()
        if self.kills and roll < 0.06:
            victim = rng.choice(iterator._workers).pid
            if procs.alive(victim):
                os.kill(victim, signal.SIGKILL)
                self.killed += 1
        elif self.stops and roll > 0.96:
            victim = rng.choice(iterator._workers).pid
            if procs.alive(victim):
                os.kill(victim, signal.SIGSTOP)
                self.stopped += 1
                threading.Timer(rng.uniform(0.05, 1.2), _continue, (victim,)).start()


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


class Plan:
    """A batch sampler whose next epoch's order can be known beforehand."""

    def __init__(self, n: int, batch_size: int, seed: int, shuffle: bool) -> None:
        self.n, self.batch_size, self.seed, self.shuffle, self.epoch = n, batch_size, seed, shuffle, 0
        self.current: list[list[int]] = []

    def order(self) -> list[list[int]]:
        """Draws the order of the next epoch."""
        indices = list(range(self.n))
        if self.shuffle:
            random.Random(self.seed * 1000 + self.epoch).shuffle(indices)
        self.epoch += 1
        self.current = [indices[k : k + self.batch_size] for k in range(0, self.n, self.batch_size)]
        return self.current

    def __iter__(self) -> Any:
        return iter(self.current)

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)
