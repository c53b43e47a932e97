"""Runs a script in a process for each rank, under a watchdog."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: Seconds for a whole run. It only turns a hang into a report.
WATCHDOG = 200.0 * float(os.environ.get("FEEDRATE_WATCHDOG_SCALE", "1"))


def launch(script: Path, world: int, plan: Any, folder: Path, killed: set[int] | None = None) -> list[Any]:
    """What each rank wrote as its result. The script is called with its rank, the number of ranks, a folder that all share (it holds
    ``plan.json``), and writes ``result{rank}.json`` there. Ranks in ``killed`` end by SIGKILL and have no result."""
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    environment["OMP_NUM_THREADS"] = "1"
    logs = [(folder / f"log{rank}.txt").open("w+") for rank in range(world)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(world), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        for rank, log in enumerate(logs)
    ]
    try:
        deadline = time.monotonic() + WATCHDOG
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            if any(p.poll() not in (None, 0) and rank not in (killed or ()) for rank, p in enumerate(processes)):
                # One has failed: the others may wait for it as long as their process group does.
                deadline = min(deadline, time.monotonic() + 10)
            time.sleep(0.05)
    finally:
        hung = [rank for rank, process in enumerate(processes) if process.poll() is None]
        for rank in hung:
            processes[rank].send_signal(signal.SIGABRT)  # faulthandler writes its stacks
        for rank in hung:
            try:
                processes[rank].wait(10)
            except subprocess.TimeoutExpired:
                processes[rank].kill()
                processes[rank].wait()
    for rank, process in enumerate(processes):
        logs[rank].seek(0)
        text = logs[rank].read()[-6000:]
        logs[rank].close()
        want = -signal.SIGKILL if rank in (killed or ()) else 0
        assert process.returncode == want, f"rank {rank} of {world} ended with {process.returncode} (hung: {hung}):\n{text}"
    results = [folder / f"result{rank}.json" for rank in range(world)]
    return [None if rank in (killed or ()) else json.loads(path.read_text()) for rank, path in enumerate(results)]
