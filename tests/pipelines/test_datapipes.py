"""PyTorch's functional datapipes and what stands for each here: the table of `docs/pipelines.md`, run side by side with torch's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import steps
import torch
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

import feedrate
from feedrate import DataLoader, Pipeline, from_items

DOCS = Path(__file__).parents[2] / "docs" / "pipelines.md"
N = 23


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def theirs() -> Any:
    return IterableWrapper(range(N))


def ours() -> Pipeline:
    return from_items(range(N))


def lists(pipeline: Any) -> list[Any]:
    return [x.tolist() if hasattr(x, "tolist") else x for x in pipeline]


def pairs(batch: list[int]) -> Any:
    return {"x": batch, "n": len(batch)}


#: The name of torch's function, what torch gives, and what we give. Each entry is a row of the table.
SAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "map": (lambda: theirs().map(steps.thrice), lambda: ours().map(steps.thrice)),
    "filter": (lambda: theirs().filter(steps.two_of_three), lambda: ours().filter(steps.two_of_three)),
    "batch": (lambda: theirs().batch(4), lambda: ours().batch(4)),
    "unbatch": (lambda: theirs().batch(4).unbatch(), lambda: ours().batch(4).unbatch()),
    "collate": (lambda: theirs().batch(4).collate(pairs), lambda: ours().batch(4, collate=pairs)),
    "concat": (lambda: theirs().concat(theirs()), lambda: ours().concat(ours())),
    "zip": (lambda: map(list, theirs().zip(theirs().map(steps.thrice))), lambda: ours().zip(ours().map(steps.thrice))),
    "mux": (
        lambda: theirs().mux(IterableWrapper(range(100, 105))),
        lambda: ours().zip(from_items(range(100, 105))).flat_map(list),
    ),
    "fork": (
        lambda: [list(branch) for branch in theirs().fork(2)],
        lambda: [list(branch) for branch in ours().fork(2)],
    ),
    "demux": (
        lambda: [list(branch) for branch in theirs().demux(2, lambda x: x % 2)],
        lambda: [list(branch) for branch in ours().route(lambda x: x % 2, [0, 1])],
    ),
    "groupby": (
        lambda: sorted(theirs().groupby(steps.by_residue, group_size=3)),
        lambda: sorted(lists(ours().bucket_batch(steps.by_residue, [1, 2, 3, 4], 3))),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_elements(name: str) -> None:
    torchs, feedrates = SAME[name]
    expected = list(torchs())
    if name in ("batch", "groupby"):
        expected = [list(batch) for batch in expected]
    assert lists(feedrates()) == expected


def test_shuffle_and_shards() -> None:
    assert sorted(ours().shuffle(7)) == sorted(theirs().shuffle(buffer_size=7)) == list(range(N))
    # `sharding_filter` is a step that is forgotten; here lanes are cut by the loader.
    loader = DataLoader(ours().filter(steps.two_of_three), batch_size=4, num_workers=2, workers="thread")
    stock = torch.utils.data.DataLoader(theirs().sharding_filter().filter(steps.two_of_three), batch_size=4, num_workers=2)
    found, expected = (sorted(x for batch in each for x in batch.tolist()) for each in (loader, stock))
    assert found == expected


def test_files_and_decoding(tmp_path: Path) -> None:
    from torch.utils.data.datapipes.utils.decoder import basichandlers

    for number in range(4):
        (tmp_path / f"{number}.json").write_text(f'{{"n": {number}}}')
    stock = IterableWrapper([str(tmp_path)]).list_files("*.json").open_files(mode="rb").read_from_stream()
    found = feedrate.open(str(tmp_path / "*.json"), format="files")
    assert [next(v for k, v in s.items() if isinstance(v, bytes)) for s in found] == [data for _, data in sorted(stock)]
    opened = IterableWrapper([str(tmp_path)]).list_files("*.json").open_files(mode="rb")
    decoded = sorted(opened.routed_decode(basichandlers), key=lambda pair: pair[0])
    field = next(k for k, v in next(iter(found)).items() if isinstance(v, bytes))
    import json

    assert [s[field] for s in found.decode(**{field: json.loads})] == [value for _, value in decoded]


def test_map_style() -> None:
    stock = SequenceWrapper(range(N))
    mine = ours()
    assert [stock.map(steps.thrice)[i] for i in range(N)] == [mine.map(steps.thrice)[i] for i in range(N)]
    assert sorted(stock.shuffle()) == sorted(mine.shuffle("all")) == list(range(N))
    assert len(mine.shuffle("all")) == N
    assert list(map(list, stock.batch(4))) == lists(mine.batch(4))
    assert list(stock.concat(SequenceWrapper(range(3)))) == list(mine.concat(from_items(range(3))))
    assert [list(pair) for pair in stock.zip(stock)] == list(mine.zip(mine))


def test_the_table_names_each_functional_datapipe() -> None:
    section = DOCS.read_text().split("### PyTorch's datapipes")[1].split("\n## ")[0]
    for name in {*IterDataPipe.functions, *MapDataPipe.functions}:
        if not name.startswith("_"):
            assert f"`{name}`" in section, f"docs/pipelines.md says nothing of the datapipe {name}"
