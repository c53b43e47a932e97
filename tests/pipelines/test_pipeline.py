"""What a pipeline is: data that prints, pickles and compares; what its steps give; what happens to bad elements."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import steps

import feedrate
from feedrate import DataLoader, PipelineError, from_items, from_iterable


def test_a_definition_prints_compares_and_pickles() -> None:
    def make(window: int) -> Any:
        return from_items(range(9)).filter(steps.two_of_three).shuffle(window).batch(2)

    pipeline = make(4)
    assert str(pipeline) == "numbers(range, 9)\nmap([index])\nfilter(two_of_three)\nshuffle(4)\nbatch(2, drop_last=false)\n"
    assert pipeline.fingerprint == make(4).fingerprint != make(5).fingerprint
    again = pickle.loads(pickle.dumps(pipeline))
    assert again.fingerprint == pipeline.fingerprint
    assert [b.tolist() for b in again] == [b.tolist() for b in make(4)]


def test_an_indexed_pipeline_is_a_map_style_dataset() -> None:
    pipeline = from_items("abcdef").map(str.upper)
    assert isinstance(pipeline, feedrate.Pipeline)
    assert (len(pipeline), pipeline[1], pipeline[-1], pipeline.__getitems__([3, 0, 3])) == (6, "B", "F", ["D", "A", "D"])
    assert list(pipeline[2:4]) == ["C", "D"]
    with pytest.raises(IndexError, match="index 6 of a pipeline of 6"):
        pipeline[6]
    loader = DataLoader(pipeline, batch_size=4, shuffle=True, generator=1)
    assert sorted(x for batch in loader for x in batch) == list("ABCDEF")
    assert loader.plan(0, 1) is not None


def test_a_stream_says_why_it_has_no_index_or_length() -> None:
    stream = from_items(range(4)).filter(steps.two_of_three)
    with pytest.raises(TypeError, match="a stream has no index 2"):
        stream[2]
    with pytest.raises(TypeError, match="not known before all is read"):
        len(stream)
    assert len(from_items(range(5)).shuffle(2).batch(2)) == 3


@pytest.mark.parametrize("step", steps.STEPS)
def test_steps_against_plain_python(step: str) -> None:
    n = 23
    base = list(range(n))
    expected = {
        "map": [3 * x for x in base],
        "filter": [x for x in base if x % 3 != 1],
        "flat_map": [y for x in base for y in steps.few(x)],
        "batch": [sum(base[i : i + 3]) for i in range(0, n, 3)],
        "batch with a function": [sum(base[i : i + 3]) for i in range(0, n, 3)],
        "rebatch": [sum(base[i : i + 2]) for i in range(0, n, 2)],
        "sort_within": [x for i in range(0, n, 4) for x in sorted(base[i : i + 4], key=steps.by_residue)],
        "take": base[:17],
        "skip": base[5:],
        "repeat": base * 2,
        "concat": base + list(range(7)),
        "zip": base,
        "prefetch": base,
        "fork": [],
        "route": [x for x in base if x % 2 == 0] + [x for x in base if x % 2],
    }
    found = list(steps.STEPS[step](steps.numbers(n, indexed=True)))
    if step == "fork":
        left, right = base, [x for x in base if x % 3 != 1]
        assert sorted(found) == sorted(left + right)
        assert found[:8] == [0, 1, 0, 2, 2, 3, 3, 5]
    elif step == "cache":
        assert [x // 1000 for x in found] == base
    elif step in ("bucket_batch", "budget_batch"):
        assert sum(found) == sum(base)
    elif step in expected:
        assert found == expected[step]
    elif step == "shuffle":
        assert sorted(found) == base != found
    elif step == "interleave":
        assert found[:8] == [0, 1, 0, 1, 2, 3, 2, 3]
        assert sorted(found) == sorted(base + list(range(7)))
    elif step == "mix":
        assert sorted(found) == sorted(base + list(range(9)))
        assert [x for x in found if x >= 9] == base[9:]
    elif step == "mix again":
        assert set(found) == set(base)
    elif step == "pack":
        filled = [x for x in found if x]
        assert sorted(filled) == sorted(x for x in base for _ in range(x % 11) if x)


def test_batches_are_of_the_elements_own_types() -> None:
    rows = from_items([{"a": np.float32(i), "b": i, "s": str(i), "v": np.arange(2, dtype=np.uint8)} for i in range(3)])
    (batch,) = rows.batch(3)
    assert (batch["a"].dtype, batch["b"].dtype, batch["v"].shape, batch["s"]) == (np.float32, np.int64, (3, 2), ["0", "1", "2"])
    padded = next(iter(steps.numbers(4, indexed=True).map(steps.ragged).padded_batch(4)))
    assert padded["row"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert padded["row_length"].tolist() == [0, 1, 2, 3]
    assert list(rows.batch(2).unbatch().select("b", text="s"))[2] == {"b": 2, "text": "2"}


def test_fields() -> None:
    rows = from_items([{"a": 1, "b": 2}])
    assert next(iter(rows.rename(c="a"))) == {"c": 1, "b": 2}
    assert next(iter(rows.without("a"))) == {"b": 2}
    with pytest.raises(PipelineError, match=r"no field `z`; there are \[\"a\", \"b\"\]"):
        next(iter(rows.select("z")))
    coded = from_items([{"txt": b"hi", "cls": b"7", "json": b'{"k": [1]}', "bin": b"\0"}])
    assert next(iter(coded.decode())) == {"txt": "hi", "cls": 7, "json": {"k": [1]}, "bin": b"\0"}
    assert next(iter(coded.decode("cls", bin=len)))["bin"] == 1
    with pytest.raises(ValueError, match="knows no decoder for the field 'bin'"):
        coded.decode("bin")


def test_shuffles_differ_by_epoch_and_seed_and_not_by_anything_else() -> None:
    pipeline = from_items(range(50)).shuffle(50).seed(3)
    first, second = list(pipeline), list(pipeline)
    assert first != second
    pipeline.set_epoch(0)
    assert list(pipeline) == first
    assert list(from_items(range(50)).shuffle(50).seed(4)) != first


def test_repeating_for_ever_can_be_left() -> None:
    stream = iter(from_items(range(3)).shuffle("all").repeat())
    found = [next(stream) for _ in range(9)]
    assert [sorted(found[i : i + 3]) for i in (0, 3, 6)] == [[0, 1, 2]] * 3
    assert list(from_items([]).repeat()) == []


# -- definitions that cannot be


def test_mistakes_are_raised_where_they_are_made() -> None:
    stream = from_iterable(steps.Again(3))
    with pytest.raises(ValueError, match=r'shuffle\("all"\) behind iterable: its records cannot be read by number'):
        stream.shuffle("all")
    with pytest.raises(ValueError, match="it works on a source, with nothing but maps and filters between"):
        stream.batch(2).shuffle("shards")
    with pytest.raises(ValueError, match=r"batch\(\) takes a whole number from 1 on, but got 0"):
        stream.batch(0)
    with pytest.raises(TypeError, match=r"map\(\) takes a function, but got 3"):
        stream.map(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an iterator is used up"):
        from_iterable(iter([1]))
    with pytest.raises(TypeError, match=r"use from_iterable\(\)"):
        from_items(steps.Again(2))
    with pytest.raises(ValueError, match="a mix of 2 streams has 1 weights"):
        feedrate.mix(stream, stream, weights=[1])


# -- bad elements


def test_an_error_has_the_users_type_and_says_where() -> None:
    stream = iter(from_items(range(9)).map(steps.bad_sevens))
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3 is bad") as caught:
        next(stream)
    assert caught.value.__notes__ == ["in map(bad_sevens), range, record 3"]
    assert list(stream) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_elements_are_left_out_and_batches_stay_full(workers: int, tmp_path: Path) -> None:
    log = tmp_path / "bad.jsonl"
    pipeline = steps.numbers(40, indexed=False).map(steps.bad_sevens).on_error("skip", log=str(log)).lanes(rows=2)
    loader = DataLoader(pipeline, batch_size=5, num_workers=workers, workers="thread")
    batches = [batch.tolist() for batch in loader]
    wanted = [x for x in range(40) if x % 7 != 3]
    assert sorted(x for batch in batches for x in batch) == wanted
    assert [len(batch) for batch in batches] == [5] * (len(wanted) // 5) + ([len(wanted) % 5] if len(wanted) % 5 else [])
    assert sorted(entry["key"] for entry in loader.skipped) == sorted(f"record {x}" for x in range(40) if x % 7 == 3)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(line["reason"] for line in lines) == sorted(f"ValueError: {x} is bad" for x in range(40) if x % 7 == 3)
    assert {line["step"] for line in lines} == {"map(bad_sevens)"}


def test_too_many_bad_elements_raise_after_all() -> None:
    pipeline = steps.numbers(40, indexed=False).map(steps.bad_sevens).on_error("skip", at_most=2)
    with pytest.raises(ValueError, match="17 is bad") as caught:
        list(pipeline)
    assert any("bad element 3 of the epoch" in note and "at_most=2" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("workers", [0, 3])
def test_a_loader_counts_bad_elements_of_all_workers_together(workers: int) -> None:
    pipeline = steps.numbers(40, indexed=False).map(steps.bad_sevens).on_error("skip", at_most=2)
    batches = iter(DataLoader(pipeline, batch_size=4, num_workers=workers, workers="thread"))
    found = []
    raised = 0
    while True:
        try:
            found += next(batches).tolist()
        except PipelineError as error:
            assert "on_error() allows at_most=2" in str(error)
            raised += 1
        except StopIteration:
            break
    assert raised > 0
    assert sorted(found) == [x for x in range(40) if x % 7 != 3]


def test_a_function_decides_about_bad_elements() -> None:
    seen: list[str] = []

    def decide(error: Exception) -> bool:
        seen.append(str(error))
        return "3 is bad" in seen[-1]

    stream = iter(steps.numbers(40, indexed=False).map(steps.bad_sevens).on_error(decide))
    with pytest.raises(ValueError, match="10 is bad"):
        list(stream)
    assert seen == ["3 is bad", "10 is bad"]


def test_an_error_of_an_iterable_keeps_its_type() -> None:
    class Breaks:
        def __iter__(self) -> Any:
            yield 1
            raise KeyError("gone")

    stream = iter(from_iterable(Breaks()))
    assert next(stream) == 1
    with pytest.raises(KeyError, match="gone"):
        next(stream)


def test_stop_iteration_in_a_step_is_an_error() -> None:
    def stops(_: int) -> int:
        raise StopIteration

    with pytest.raises(RuntimeError, match="raised StopIteration. It would end the stream without a word"):
        list(from_items(range(3)).map(stops))


def test_a_cache_makes_each_element_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def costly(x: int) -> dict[str, Any]:
        calls.append(x)
        return {"x": x, "noise": feedrate.rng().python.random(), "row": np.full(3, x)}

    def epochs(pipeline: Any) -> list[list[tuple[int, float]]]:
        return [[(e["x"], e["noise"]) for e in pipeline] for _ in range(3)]

    base = from_items(range(20)).shuffle("all")
    plain = base.map(costly).cache(limit=0)
    first, second, third = epochs(plain)
    assert len(calls) == 60
    # Orders change, what a function draws does not.
    assert first != second and sorted(first) == sorted(second) == sorted(third)
    calls.clear()
    kept = base.map(costly).cache().map(lambda e: (e["row"].__iadd__(1), e)[1])
    assert epochs(kept) == [first, second, third]
    assert len(calls) == 20
    kept.set_epoch(0)
    assert all((e["row"] == e["x"] + 1).all() for e in kept)  # changed in place each time, and never in the cache
    calls.clear()
    for _ in range(2):
        assert epochs(base.map(costly).cache(tmp_path / "kept"))[1] == second
    assert len(calls) == 20
    loader = DataLoader(base.map(costly).cache(tmp_path / "kept"), batch_size=4, num_workers=2, multiprocessing_context="fork")
    assert sorted(x for batch in loader for x in batch["x"].tolist()) == list(range(20))
    with pytest.raises(PipelineError, match="the field `x` is a Python object, and a cache holds arrays"):
        list(from_items([object()]).map(lambda x: {"x": x}).cache())


def test_prefetch_runs_ahead_tells_failures_in_place_and_ends() -> None:
    made: list[int] = []

    def make(x: int) -> int:
        made.append(x)
        return steps.bad_sevens(x)

    stream = from_items(range(12)).map(make).prefetch(4).on_error("skip")
    assert list(stream) == [x for x in range(12) if x % 7 != 3]
    made.clear()
    elements = iter(from_items(range(100)).map(make).prefetch(4))
    assert next(elements) == 0
    deadline = time.monotonic() + 30
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 3 <= len(made) <= 7
    state = elements.state_dict()
    assert [next(elements), next(elements)] == [1, 2]
    with pytest.raises(ValueError, match="3 is bad"):
        next(elements)
    again = iter(from_items(range(100)).map(make).prefetch(4))
    again.load_state_dict(json.loads(json.dumps(state)))
    assert [next(again), next(again)] == [1, 2]
    with pytest.raises((ValueError, PipelineError), match="3 is bad"):
        next(again)
    assert next(again) == 4
    with pytest.raises(ValueError, match="put it before the fork"):
        from_items(range(3)).fork()[0].prefetch(2)


def test_an_interpreter_ends_while_threads_run_ahead() -> None:
    program = (
        "import feedrate, time\n"
        "def slow(x):\n"
        "    time.sleep(0.01)\n"
        "    return x\n"
        "a = iter(feedrate.from_items(range(10**6)).map(slow).prefetch(8))\n"
        "b = iter(feedrate.from_items(range(10**6)).map(slow).join(feedrate.from_items(range(10**6)).map(slow)))\n"
        "print(next(a), next(b))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0\n", "")


def test_batches_by_bucket_and_by_budget() -> None:
    lengths = from_items([np.zeros(n % 9 + 1, np.float32) for n in range(40)])
    batches = list(lengths.map(lambda row: {"row": row}).bucket_batch(lambda e: len(e["row"]), [4, 7], 5, pad=True))
    for batch in batches:
        have = batch["row_length"]
        assert len(have) <= 5 and len({int(np.digitize(n, [4, 7])) for n in have}) == 1
        assert batch["row"].shape == (len(have), have.max())
    assert sum(len(batch["row"]) for batch in batches) == 40
    budgeted = list(lengths.sort_within(20, len).budget_batch(24, len, collate=list))
    assert sum(map(len, budgeted)) == 40
    assert all(len(batch) * max(map(len, batch)) <= 24 for batch in budgeted)
    with pytest.raises(PipelineError, match="an element of 9 is larger than the budget of 8"):
        list(lengths.budget_batch(8, len, collate=list))
    assert sum(map(len, lengths.budget_batch(8, len, oversize="skip", collate=list))) == 36
    assert sum(map(len, lengths.budget_batch(8, len, oversize="alone", collate=list))) == 40
    with pytest.raises(ValueError, match="2 boundaries make 3 buckets, but there are 2 batch sizes"):
        lengths.bucket_batch(len, [1, 2], [3, 3])


def test_forks_read_once_and_routes_part() -> None:
    calls: list[int] = []
    source = from_items(range(30)).map(lambda x: (calls.append(x), {"x": x, "row": np.arange(3)})[1])
    left, right = source.fork()
    pairs = list(left.zip(right.map(lambda e: {**e, "row": e["row"].__iadd__(1)})))
    assert len(calls) == 30
    assert all(a["x"] == b["x"] and a["row"].tolist() == [0, 1, 2] and b["row"].tolist() == [1, 2, 3] for a, b in pairs)
    assert [e["x"] for e in pickle.loads(pickle.dumps(from_items(range(5)).map(steps.as_record).fork()[1]))] == list(range(5))
    small, large = from_items(range(20)).route(lambda x: "small" if x < 7 else "large", ["small", "large"])
    assert (list(small), list(large)) == (list(range(7)), list(range(7, 20)))
    assert sorted(small.interleave(large)) == list(range(20))
    lost = from_items(range(4)).route(lambda x: x, [0, 1, 2])
    with pytest.raises(KeyError, match="got the key 3 for an element, and has streams for"):
        list(lost[0].concat(*lost[1:]))
    with pytest.raises(ValueError, match="takes different keys"):
        from_items(range(3)).route(steps.parity, ["odd", "odd"])


def test_whoever_is_ready_comes_first() -> None:
    def slow(x: int) -> int:
        time.sleep(0.02)
        return x

    joined = from_items(range(10)).map(slow).join(from_items(range(100, 400)))
    elements = iter(joined)
    begun = [next(elements) for _ in range(40)]
    assert sum(x >= 100 for x in begun) > 20
    rest = iter(joined)
    rest.load_state_dict(json.loads(json.dumps(elements.state_dict())))
    assert sorted(begun + list(rest)) == [*range(10), *range(100, 400)]
    loader = DataLoader(joined, batch_size=7)
    batches = iter(loader)
    seen = [x for _ in range(5) for x in next(batches).tolist()]
    later = DataLoader(joined, batch_size=7)
    later.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert sorted(seen + [x for batch in later for x in batch.tolist()]) == [*range(10), *range(100, 400)]
    with pytest.raises(ValueError, match=r"ready\(2\) \(join\), whose order no other worker"):
        iter(DataLoader(joined, batch_size=7, num_workers=2))


@pytest.mark.parametrize(
    "name", ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
)
def test_arrays_are_the_users_own(name: str, tmp_path: Path) -> None:
    """Small ones are in memory of NumPy's, large ones in that of the engine; nobody can tell."""
    size = np.dtype(name).itemsize
    for shape in [(), (0,), (1,), (2, 3), (4096 // size,), (4096 // size + 1,), (2, 0, 3)]:
        values = np.random.default_rng(1).integers(0, 2, (3, *shape)).astype(name)
        np.save(tmp_path / "rows.npy", values)
        rows = [row["array"] for row in feedrate.open(tmp_path / "rows.npy")]
        assert [(row.dtype, row.shape) for row in rows] == [(values.dtype, shape)] * 3
        assert all(np.array_equal(row, wanted) for row, wanted in zip(rows, values, strict=True))
        for row in rows:
            assert row.flags.writeable and row.flags.aligned and row.flags.c_contiguous, shape
            row[...] = 0
        again = [row["array"] for row in feedrate.open(tmp_path / "rows.npy")]
        assert np.array_equal(np.stack(again), values)
        one, other = rows[:2]
        one[...] = 1
        assert not other.any()
