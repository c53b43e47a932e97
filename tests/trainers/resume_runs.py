"""Training runs that are killed and resumed, each in processes of its own.

A `Server` is a process that has imported one trainer and forks the ranks of each run from itself, so that a run does not
pay for the imports. What a rank's training step receives, and when a checkpoint was saved, goes to a file line by line
and so outlives the SIGKILL. Run as a script, this file is the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

SAMPLES = 42
BATCH = 4
SECONDS = 100  # for one run; a bound for hangs


@dataclass
class Job:
    """One run of a training script."""

    folder: str
    world: int = 1
    workers: int = 0
    data: str = "map"  # "map", "stream" (no length, keeps its own position), "plain" (no length, no position)
    order: str = "generator"  # whose order: "generator", "global" (torch's generator), "sampler" (distributed), "ranks" (ours)
    every: int = 4  # steps between checkpoints; 0 for one at the end of each epoch
    kill_after: int | None = None  # steps; the process dies when it is about to receive the next batch
    resume: str | None = None
    epochs: int = 3
    limit: int | None = None  # batches in an epoch
    bridge: bool = True


@dataclass
class Seen:
    """What one rank's training step received."""

    batches: list[tuple[int, list[int]]]  # (epoch, samples)
    saved: list[tuple[str, int]]  # (path, batches received before it)

    def until(self, path: str) -> list[tuple[int, list[int]]]:
        """The batches received before a checkpoint was saved."""
        return self.batches[: dict(self.saved)[path]]


class Log:
    """Where a rank writes what it sees."""

    def __init__(self, job: Job, rank: int) -> None:
        self.file = open(Path(job.folder) / f"rank-{rank}.jsonl", "ab", buffering=0)
        self.job = job
        self.rank = rank

    def received(self, epoch: int, samples: Any) -> None:
        self._write({"epoch": int(epoch), "samples": [int(x) for x in samples.flatten().tolist()]})

    def saved(self, path: Any) -> None:
        self._write({"saved": str(path)})

    def _write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line).encode() + b"\n")

    def about_to_receive(self, steps: int) -> None:
        """The first rank dies here when the job says so. (A checkpoint is whole then: each trainer's ranks have waited for it.)"""
        if self.rank == 0 and self.job.kill_after is not None and steps >= self.job.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


def read(folder: Path, rank: int) -> Seen:
    seen = Seen([], [])
    for text in (folder / f"rank-{rank}.jsonl").read_text().splitlines():
        line = json.loads(text)
        if "saved" in line:
            seen.saved.append((line["saved"], len(seen.batches)))
        else:
            seen.batches.append((line["epoch"], line["samples"]))
    return seen


class Server:
    """The process that forks the runs."""

    def __init__(self, trainer: str) -> None:
        self.wholes: dict[str, list[Seen]] = {}
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        here = Path(__file__).resolve()
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(here.parents[1]), environment.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, str(here), trainer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, folder: Path, **options: Any) -> list[Seen]:
        """What each rank received. The run must end well, or by SIGKILL when the job says so."""
        folder.mkdir(parents=True)
        job = Job(folder=str(folder), **options)
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(asdict(job)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the server died"
        statuses = json.loads(answer)
        outputs = "\n".join((folder / f"output-{rank}.txt").read_text()[-4000:] for rank in range(job.world))
        if job.kill_after is None:
            ended = not any(statuses)
        else:  # the other ranks may have noticed, and failed, before they were killed too
            ended = statuses[0] == -signal.SIGKILL and all(statuses)
        assert ended, f"ended with {statuses}:\n{outputs}"
        return [read(folder, rank) for rank in range(job.world)]

    def whole(self, folder: Path, **options: Any) -> list[Seen]:
        """A run that nobody kills. Made once for each set of options."""
        key = json.dumps(options, sort_keys=True)
        if key not in self.wholes:
            self.wholes[key] = self.run(folder, **options)
        return self.wholes[key]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


@contextlib.contextmanager
def server(trainer: str) -> Iterator[Server]:
    it = Server(trainer)
    try:
        yield it
    finally:
        it.close()


def resumed_exactly(runs: Server, folder: Path, cut: int, extra: int, **options: Any) -> None:
    """Kills a run `extra` steps after its last checkpoint, made at step `cut`, resumes it, and compares with a run that nobody killed.

    What the first run received before the checkpoint, and then all that the second received, is what the whole run received.
    """
    whole = runs.whole(folder / "whole", **options)
    killed = runs.run(folder / "killed", kill_after=cut + extra, **options)
    path, before = killed[0].saved[-1]
    assert before == cut, f"the last checkpoint is at step {before}, the test wants {cut}"
    again = runs.run(folder / "resumed", resume=path, **options)
    for rank, (a, b, c) in enumerate(zip(whole, killed, again, strict=True)):
        assert b.until(path) + c.batches == a.batches, f"rank {rank}"
        assert len(a.batches) > cut + 1


# ---- inside a run ---------------------------------------------------------------------------


def dataset(job: Job) -> Any:
    from engines import Numbers
    from resume_data import Plain, Stream

    if job.data == "map":
        return Numbers(SAMPLES)
    return Stream(SAMPLES) if job.data == "stream" else Plain(SAMPLES)


def loader(job: Job, **extra: Any) -> Any:
    import torch

    from feedrate.torch import DataLoader

    arguments: dict[str, Any] = {"batch_size": BATCH, "num_workers": job.workers, **extra}
    if job.data == "map":
        arguments["shuffle"] = True
        if job.order == "generator":
            arguments["generator"] = torch.Generator().manual_seed(11)
        elif job.order == "ranks":
            arguments["distributed"] = "auto"
    return DataLoader(dataset(job), **arguments)


def lightning_run(job: Job, rank: int, log: Log) -> None:
    import lightning
    from engines import Line
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Line()

        def training_step(self, batch: Any, _: int) -> Any:
            log.received(self.current_epoch, batch["x"])
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            import torch

            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Kill(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            log.about_to_receive(trainer.global_step)

    class Trainer(lightning.Trainer):  # type: ignore[name-defined,misc]
        def save_checkpoint(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
            super().save_checkpoint(filepath, *args, **kwargs)
            log.saved(filepath)

    when: dict[str, Any] = {"every_n_train_steps": job.every} if job.every else {"save_on_train_epoch_end": True}
    callbacks: list[Any] = [Kill(), ModelCheckpoint(job.folder, "{step}", save_top_k=-1, **when)]
    if job.bridge:
        from feedrate.lightning import ExactResume

        callbacks.append(ExactResume())
    lightning.seed_everything(5, verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        devices=job.world,
        strategy="ddp" if job.world > 1 else "auto",
        use_distributed_sampler=job.order == "sampler",
        max_epochs=job.epochs,
        limit_train_batches=job.limit,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader(job), ckpt_path=job.resume)


def accelerate_run(job: Job, rank: int, log: Log) -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed
    from engines import Line

    from feedrate.accelerate import install

    class Progress:
        """Where the user's loop is: saved and loaded by Accelerate."""

        epoch = 0
        steps = 0

        def state_dict(self) -> dict[str, int]:
            return {"epoch": self.epoch, "steps": self.steps}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.epoch, self.steps = state["epoch"], state["steps"]

    set_seed(5)
    configuration = DataLoaderConfiguration(
        use_stateful_dataloader=True,
        use_seedable_sampler=job.order == "sampler",
        dispatch_batches=(job.data != "map" and job.order == "sampler" and job.world > 1) or None,
    )
    with install():
        accelerator = Accelerator(cpu=True, dataloader_config=configuration)
        model = Line()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        model, optimizer, batches = accelerator.prepare(model, optimizer, loader(job))
        progress = Progress()
        accelerator.register_for_checkpointing(progress)
        if job.resume:
            accelerator.load_state(job.resume)

        def save(name: str) -> None:
            folder = accelerator.save_state(f"{job.folder}/{name}")
            accelerator.wait_for_everyone()
            log.saved(folder)

        for epoch in range(progress.epoch, job.epochs):
            progress.epoch = epoch
            for batch in batches:
                log.about_to_receive(progress.steps)
                log.received(epoch, batch["x"])
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
                progress.steps += 1
                if job.every and progress.steps % job.every == 0:
                    save(f"step-{progress.steps}")
            if not job.every:
                progress.epoch = epoch + 1
                save(f"epoch-{epoch}")


def transformers_run(job: Job, rank: int, log: Log) -> None:
    import torch
    import transformers
    from engines import Line

    from feedrate.accelerate import install

    steps_seen: list[int] = []

    class Model(Line):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, **rest: Any) -> dict[str, Any]:
            log.received(steps_seen[-1], x)
            return super().forward(x, labels, **rest)

    class Watch(transformers.TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps_seen.append(int(state.epoch or 0))

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            log.about_to_receive(state.global_step)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if job.world > 1:
                torch.distributed.barrier()
            log.saved(f"{args.output_dir}/checkpoint-{state.global_step}")

    arguments = transformers.TrainingArguments(
        output_dir=job.folder,
        per_device_train_batch_size=BATCH,
        num_train_epochs=job.epochs,
        max_steps=job.limit or -1,
        save_strategy="steps",
        save_steps=job.every,
        save_only_model=False,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo" if job.world > 1 else None,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=job.workers,
        seed=5,
    )
    trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=dataset(job), callbacks=[Watch()])
    with install():
        trainer.train(resume_from_checkpoint=job.resume)


# ---- the server -----------------------------------------------------------------------------


def _rank(trainer: str, job: Job, rank: int, port: int) -> NoReturn:
    status = 1
    try:
        output = os.open(Path(job.folder) / f"output-{rank}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if job.world > 1:  # what torchrun sets
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                GROUP_RANK="0",
                WORLD_SIZE=str(job.world),
                LOCAL_WORLD_SIZE=str(job.world),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                TORCHELASTIC_RUN_ID="feedrate",
                TORCHELASTIC_USE_AGENT_STORE="False",
                GLOO_SOCKET_IFNAME="lo",
            )
        import torch

        torch.set_num_threads(1)
        {"lightning": lightning_run, "accelerate": accelerate_run, "transformers": transformers_run}[trainer](
            job, rank, Log(job, rank)
        )
        if job.world > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(trainer: str, job: Job) -> list[int]:
    """Forks the ranks. When one dies, or all take too long, the others are killed as well: a node is lost."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = {}
    for rank in range(job.world):
        pid = os.fork()
        if pid == 0:
            _rank(trainer, job, rank, port)
        ranks[pid] = rank
    statuses = [0] * job.world
    deadline = time.monotonic() + SECONDS
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in ranks:
            statuses[ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() < deadline:
            time.sleep(0.01)
            continue
        if any(statuses) or time.monotonic() >= deadline:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            for other, rank in ranks.items():
                statuses[rank] = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
            ranks = {}
    return statuses


def main(trainer: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import torch._dynamo  # the first step of an optimizer imports it, which took longer than the rest of a run
    import torch.distributed  # noqa: F401

    if trainer == "lightning":
        import lightning.pytorch  # noqa: F401
    else:
        import accelerate  # noqa: F401
    if trainer == "transformers":
        import transformers

        transformers.Trainer  # noqa: B018
    import feedrate.torch  # noqa: F401

    for line in sys.stdin:
        answers.write(json.dumps(_run(trainer, Job(**json.loads(line)))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
