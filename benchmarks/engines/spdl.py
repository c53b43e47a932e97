"""SPDL, in the three ways it offers for a torch dataset.

- process: `spdl.dataloader.get_pytorch_dataloader`, its loader for map-style datasets (starts its workers anew each epoch).
- thread: a pipeline whose stage fetches and collates a batch on threads of the training process.
- arena: such a pipeline in one subprocess, with batches passed through SPDL's shared-memory segment pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from importlib.metadata import version as package_version
from typing import Any, cast

from spdl.dataloader import get_pytorch_dataloader
from spdl.pipeline import PipelineBuilder, SharedMemorySegmentPool, run_pipeline_in_subprocess
from torch.utils.data import BatchSampler, SequentialSampler, default_collate

from benchmarks.engines import Setting
from benchmarks.workloads import Case


def version() -> str:
    return f"spdl-core {package_version('spdl-core')}"


def refuses(row: dict[str, Any], workers: int) -> str | None:
    if workers == 0:
        return "no inline mode: num_workers=0 means one worker"
    return None


def settings(row: dict[str, Any], workers: int) -> list[Setting]:
    if row["metric"] in ("first", "memory"):
        return [{"mode": "process", "prefetch": 2}]
    if row.get("items_in_flight", 1) > 1:
        return [{"mode": "thread", "prefetch": 2}]
    modes = ("process", "thread", "arena") if row.get("tune", True) else ("thread",)
    return [{"mode": mode, "prefetch": 4} for mode in modes]


def fetch(dataset: Any, collate: Callable[[list[Any]], Any], indices: list[int]) -> Any:
    """One whole batch, on one thread."""
    return collate([dataset[i] for i in indices])


def item(dataset: Any, index: int) -> Any:
    """One sample, where many are fetched at the same time."""
    return dataset[index]


class InProcess:
    """Builds the pipeline at each epoch, on threads of this process."""

    def __init__(self, make: Callable[[], PipelineBuilder[Any, Any]], threads: int) -> None:
        self.make = make
        self.threads = threads

    def __iter__(self) -> Iterator[Any]:
        pipeline = self.make().build(num_threads=self.threads)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


def builder(case: Case, workers: int, prefetch: int) -> PipelineBuilder[Any, Any]:
    """The pipeline: indices, fetch, collate, a buffer of `prefetch` batches a worker."""
    sampler: Any = case.sampler() or SequentialSampler(cast("Sized", case.dataset))
    collate = case.collate_fn or default_collate
    if case.items_in_flight > 1:
        return (
            PipelineBuilder()
            .add_source(sampler)
            .pipe(partial(item, case.dataset), concurrency=workers * case.items_in_flight, output_order="input")
            .aggregate(case.batch_size)
            .pipe(collate, output_order="input")
            .add_sink(prefetch * workers)
        )
    return (
        PipelineBuilder()
        .add_source(BatchSampler(sampler, case.batch_size, drop_last=False))
        .pipe(partial(fetch, case.dataset, collate), concurrency=workers, output_order="input")
        .add_sink(prefetch * workers)
    )


def open(case: Case, workers: int, setting: Setting) -> Iterable[Any]:
    prefetch = setting["prefetch"]
    if setting["mode"] == "process":
        return get_pytorch_dataloader(
            case.dataset,
            batch_size=case.batch_size,
            sampler=case.sampler(),
            num_workers=workers,
            collate_fn=case.collate_fn,
            multiprocessing_context=case.start_method,
            prefetch_factor=prefetch,
            in_order=True,
        )
    if setting["mode"] == "thread":
        threads = workers * case.items_in_flight + (1 if case.items_in_flight > 1 else 0)
        return InProcess(partial(builder, case, workers, prefetch), threads)
    buffered = prefetch * workers
    return run_pipeline_in_subprocess(
        builder(case, workers, prefetch).get_config(),
        num_threads=workers,
        buffer_size=buffered,
        mp_context=case.start_method or "fork",
        arena=SharedMemorySegmentPool(case.batch_bytes, buffered + 4),
    )
