"""What lies beside shards, and paths that are none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate

pytestmark = pytest.mark.ours


def lines(path: Path, count: int) -> None:
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(count)))


def test_stored_indexes_are_no_shards(tmp_path: Path) -> None:
    """A second run of the same script finds what the first one found."""
    lines(tmp_path / "a.jsonl", 11)
    for place in (tmp_path, tmp_path / "*"):
        for index in ("beside", "beside", False):
            assert len(list(feedrate.open(place, index=index))) == 11
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "a.jsonl.feedrate-index"]
    assert [Path(sample["path"]).name for sample in feedrate.open(tmp_path, format="files")] == ["a.jsonl"]


@pytest.mark.parametrize("given", [{}, {"format": "jsonl"}, {"format": "tar"}, {"format": "csv"}])
def test_a_named_pipe_is_refused_and_not_waited_for(given: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(feedrate.PipelineError, match="no file but a pipe"):
        list(feedrate.open(tmp_path / "pipe", **given))


def test_shards_in_folders_of_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "day=1" / "part").mkdir(parents=True)
    lines(tmp_path / "day=1" / "part" / "a.jsonl", 3)
    with pytest.raises(feedrate.PipelineError, match=r"jsonl files in its folders, .*a\.jsonl: name them, as .*/\*\*/\*\.jsonl"):
        feedrate.open(tmp_path)
    assert len(list(feedrate.open(tmp_path / "**" / "*.jsonl"))) == 3
    # Whatever lies beside images, or in another folder.
    other = tmp_path / "images"
    other.mkdir()
    (other / "b.jpg").write_bytes(b"")
    assert len(list(feedrate.open(tmp_path))) == 2
    (other / "b.jpg").rename(tmp_path / "b.jpg")
    assert len(list(feedrate.open(tmp_path))) == 2
    (tmp_path / "b.jpg").unlink()
    with pytest.raises(feedrate.PipelineError, match="jsonl files in its folders"):
        feedrate.open(tmp_path)
    (tmp_path / "day=1" / "part" / "a.png").write_bytes(b"")
    assert len(list(feedrate.open(tmp_path))) == 2


def test_tokens_whose_type_is_known(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.arange(40, dtype=np.uint16))
    with pytest.raises(feedrate.PipelineError, match=r"a \.npy file, which says itself what its tokens are: .* int32"):
        list(feedrate.open(tmp_path / "m.npy", format="tokens", length=4, dtype="int32"))
    np.arange(40, dtype=np.int32).tofile(tmp_path / "flat.bin")
    with pytest.raises((feedrate.Error, ValueError), match=r'there is no .*flat\.idx.*dtype="uint16"'):
        feedrate.open(tmp_path / "flat.bin", format="tokens", length=4)
    assert len(list(feedrate.open(tmp_path / "flat.bin", format="tokens", length=4, dtype="int32"))) == 9
    (tmp_path / "flat.idx").write_bytes(b"")
    with pytest.raises((feedrate.Error, ValueError), match=r"flat\.idx says what the tokens beside it are: leave dtype out"):
        feedrate.open(tmp_path / "flat.bin", format="tokens", length=4, dtype="int32")


def test_arguments_that_are_none() -> None:
    for paths in (None, 3, [None]):
        with pytest.raises(TypeError, match=r"open\(\) takes a path, or several, but got"):
            feedrate.open(paths)  # type: ignore[arg-type]
    items = feedrate.from_items([{"a": 1, "b": 2}])
    with pytest.raises(TypeError, match=r"select\(\) takes names, each an argument of its own .* but got \[\'a\'\]"):
        items.select(["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"without\(\) takes names"):
        items.without(["a"])  # type: ignore[arg-type]
    with pytest.raises(feedrate.ResumeError, match="is a dict, got NoneType"):
        feedrate.DataLoader(items).load_state_dict(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="can be iterated once"):
        feedrate.DataLoader(iter([1, 2]))


def test_an_epoch_of_bad_elements_says_so() -> None:
    pipeline = feedrate.from_items(range(6)).map(str.lower).on_error("skip")
    for kind in (feedrate.DataLoader, __import__("feedrate.torch").torch.DataLoader):
        with pytest.warns(UserWarning, match=r"no batch: on_error\(\) left out 6 bad elements\. The last: .*"):
            assert list(kind(pipeline, batch_size=2)) == []


def test_ranks_that_the_environment_tells_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="WORLD_SIZE is 2 .* RANK is not set"):
        feedrate.DataLoader(range(6), distributed="auto")
