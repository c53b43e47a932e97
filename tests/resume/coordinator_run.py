"""One rank of the runs in test_coordinator.py."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from feedrate._coordinator import Coordinator, RankMissing
from feedrate._ranks import Ranks


def stream(rank: int, count: int) -> Any:
    for step in range(count):
        yield torch.tensor([rank, step])


def main(rank: int, world: int, folder: Path) -> None:
    faulthandler.enable()
    plan = json.loads((folder / "plan.json").read_text())
    plain = plan.get("plain", False)
    store: Any = None
    if plain:
        # A store of its own, on rank 0; the others find its port in the folder.
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False) if rank == 0 else None
        meeting = dist.FileStore(str(folder / "meeting"), world)
        if rank == 0:
            meeting.set("port", str(store.port))
        else:
            store = dist.TCPStore("127.0.0.1", int(meeting.get("port")), None, False, wait_for_workers=False)
        # A deadline counts from the first step: a rank that is still importing torch is not missing.
        meeting.set(f"rank {rank}", "here")
        meeting.wait([f"rank {other}" for other in range(world)])
    else:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    coordinator = Coordinator(store, timeout=plan.get("timeout", 60.0))
    result: Any = []
    for part in plan["passes"]:
        steps = coordinator.steps(stream(rank, part["counts"][rank]), Ranks(rank, world, part["remainder"]))
        got = []
        try:
            for batch in steps:
                got.append([batch.tolist(), steps.mask.tolist()])
                if rank == plan.get("victim") and len(got) == plan["at"]:
                    os.kill(os.getpid(), signal.SIGKILL)
                if not plain:
                    total = torch.ones(1)
                    dist.all_reduce(total)
                    assert total.item() == world
        except RankMissing as error:
            result = {"error": type(error).__name__, "ranks": error.ranks, "message": str(error), "steps": len(got)}
            break
        result.append(got)
    (folder / f"result{rank}.json").write_text(json.dumps(result))
    if plain and rank == 0:
        # The store goes with this process: the others need it until they have written theirs.
        others = [folder / f"result{r}.json" for r in range(1, world) if r != plan.get("victim")]
        while not all(path.exists() for path in others):
            time.sleep(0.05)
    if not plain:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
