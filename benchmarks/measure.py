"""The measured process: one loader of one engine, told what to do by lines of JSON on standard input.

    python -m benchmarks.measure

Answers are lines of JSON on what was standard output. It imports no loader before it is told which one, so that no
engine pays for another, and it measures time only: CPU seconds and memory are read from outside.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import IO, Any


class Session:
    """A dataset, a loader, and epochs over it."""

    def __init__(self, command: dict[str, Any]) -> None:
        import torch

        from benchmarks import engines, workloads

        torch.set_num_threads(1)
        self.step: float = command["row"].get("step", 0.0)
        self.labels: bool = command["row"].get("verify") == "labels"
        engine = engines.load(command["engine"])
        case = workloads.build(command["row"])
        started = time.perf_counter()
        self.loader = engine.open(case, command["workers"], command["setting"])
        self.built = time.perf_counter() - started

    def epoch(self, verify: bool, stop_after: int | None) -> dict[str, Any]:
        """One epoch, or its first `stop_after` batches. `first` and `rest` are seconds until the first batch and after it."""
        from benchmarks import checksum

        def seen(batch: Any) -> Any:
            """What counts of a batch: where engines draw their own random numbers, not the images themselves."""
            if not self.labels:
                return batch
            images, labels = batch
            return [str(images.dtype), list(images.shape), labels]

        crc = 0
        started = time.perf_counter()
        iterator = iter(self.loader)
        batch = next(iterator)
        first = time.perf_counter() - started
        count = 1
        if verify:
            crc = checksum.update(crc, seen(batch))
        if self.step:
            time.sleep(self.step)
        if stop_after != 1:
            for batch in iterator:
                count += 1
                if verify:
                    crc = checksum.update(crc, seen(batch))
                if self.step:
                    time.sleep(self.step)
                if count == stop_after:
                    break
        total = time.perf_counter() - started
        return {
            "first": first,
            "rest": total - first,
            "count": count,
            "checksum": f"{crc:08x}" if verify else None,
            "last": f"{checksum.update(0, seen(batch)):08x}",
            "built": self.built,
        }

    def close(self) -> None:
        """Ends the workers, in the way each loader has for it."""
        close = getattr(self.loader, "close", None)
        if close is not None:
            close()
        del self.loader


def probe(command: dict[str, Any]) -> dict[str, Any]:
    """What a row about orders or states measures, or what has to be made for it beforehand."""
    import torch

    from benchmarks import probes

    torch.set_num_threads(1)
    row, engine, workers = command["row"], command["engine"], command["workers"]
    if command["do"] == "prepare":
        return {"made": probes.PREPARE[row["probe"]](engine, workers, row["params"])}
    return probes.PROBES[row["probe"]](engine, workers, row["params"], command["given"])


def serve(commands: IO[str], answers: IO[str]) -> None:
    """Obeys until told to close, or until the other side is gone."""
    session: Session | None = None
    for line in commands:
        command = json.loads(line)
        try:
            if session is not None and command["do"] in ("open", "close"):
                session.close()
                session = None
            if command["do"] == "open":
                session = Session(command)
                answer: dict[str, Any] = {"built": session.built}
            elif command["do"] == "epoch":
                assert session is not None
                answer = session.epoch(command["verify"], command.get("stop_after"))
            elif command["do"] in ("prepare", "probe"):
                answer = probe(command)
            else:
                answer = {}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
        if command["do"] == "close":
            break


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a loader prints goes to standard error
    serve(sys.stdin, output)
