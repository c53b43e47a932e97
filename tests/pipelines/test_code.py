"""Files of a cache are known by what the functions before it do, and not by their names alone."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedrate import from_items
from feedrate._code import code_hash

BASE = """
from functools import partial
import numpy as np
SIZE, NAMES, WORDS, made = 4, ("a", "b"), {"x", "y", "z"}, [0]
count = 0

def helper(x): return x * 2

def function(x, scale=3):
    global count
    count += 1
    made.append(x)
    inner = lambda y: helper(y) + SIZE
    return inner(x) * scale if x in {"p", "q", "r"} or NAMES else None

class Mean:
    bias = 1
    def __init__(self): self.mean, self.seen, self.also = [0.5, 0.25], np.zeros(3), {"k": {"u", "v"}}
    def __call__(self, x): return self._of(x)
    def _of(self, x): return x - self.mean[0]

class Both:
    def __init__(self, *parts): self.parts = list(parts)
    def __call__(self, x): return [part(x) for part in self.parts]

class Data:
    root = "folder"
    def __len__(self): return 3
    def __getitem__(self, i): return helper(i)

def closing(n):
    calls = []
    total = 0
    def inner(x):
        nonlocal total
        total += 1
        calls.append(x)
        return x + n
    return inner

THINGS = {
    "function": function, "object": Mean(), "parts": Both(Mean(), function), "method": Mean()._of, "partial": partial(function, scale=2),
    "closure": closing(5), "lambda": lambda x: x + 1, "data": Data(), "builtin": len,
}
"""

#: A change, and whose hashes change with it.
CHANGES: list[tuple[str, str, set[str]]] = [
    ("x * 2", "x * 3", {"function", "parts", "partial", "data"}),
    ("= 4, (", "= 5, (", {"function", "parts", "partial"}),
    ('("a", "b")', '("a", "c")', {"function", "parts", "partial"}),
    ("scale=3", "scale=4", {"function", "parts", "partial"}),
    ("scale=2", "scale=4", {"partial"}),
    ('{"p", "q", "r"}', '{"p", "q", "s"}', {"function", "parts", "partial"}),
    ('"z"}, [0]', '"w"}, [1]', set()),
    ("count = 0", "count = 100", set()),
    ("[0.5, 0.25]", "[0.5, 0.75]", {"object", "parts", "method"}),
    ('{"u", "v"}', '{"u", "w"}', {"object", "parts", "method"}),
    ("bias = 1", "bias = 2", {"object", "parts", "method"}),
    ("x - self", "x + self", {"object", "parts", "method"}),
    ("Both(Mean(), function)", "Both(function, Mean())", {"parts"}),
    ("closing(5)", "closing(6)", {"closure"}),
    ("total = 0", "total = 7", set()),
    ("lambda x: x + 1", "lambda x: x + 2", {"lambda"}),
    ('root = "folder"', 'root = "other"', {"data"}),
    ("import numpy as np\n", "import numpy as np\n\n# a line more\n", set()),
    ('"builtin": len', '"builtin": min', {"builtin"}),
]


def hashes(source: str, module: str = "users") -> dict[str, str]:
    names: dict[str, Any] = {"__name__": module}
    exec(compile(source, "file.py", "exec"), names)
    return {name: code_hash([thing]) for name, thing in names["THINGS"].items()}


@pytest.mark.parametrize(("before", "behind", "changed"), CHANGES, ids=[before for before, _, _ in CHANGES])
def test_what_changes_a_hash(before: str, behind: str, changed: set[str]) -> None:
    assert before in BASE
    one, other = hashes(BASE), hashes(BASE.replace(before, behind))
    assert {name for name in one if one[name] != other[name]} == changed
    assert len(set(one.values())) == len(one)


def test_the_same_in_each_process_and_after_calls() -> None:
    script = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, sys.argv[2])
        import test_code
        print(sorted(test_code.hashes(test_code.BASE, sys.argv[1]).items()))
        """
    )
    expected = f"{sorted(hashes(BASE).items())}\n"
    main = f"{sorted(hashes(BASE, '__main__').items())}\n"
    for seed, module, found in (("1", "users", expected), ("2", "users", expected), ("3", "__mp_main__", main)):
        command = [sys.executable, "-c", script, module, str(Path(__file__).parent)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={"PYTHONHASHSEED": seed}, timeout=100)
        assert ran.stdout == found
    names: dict[str, Any] = {"__name__": "users"}
    exec(compile(BASE, "file.py", "exec"), names)
    things = {name: thing for name, thing in names["THINGS"].items() if name not in ("builtin", "data")}
    first = {name: code_hash([thing]) for name, thing in things.items()}
    for thing in things.values():
        thing(2)
    assert first == {name: code_hash([thing]) for name, thing in things.items()}


def test_odd_things_have_hashes() -> None:
    """Cycles, classes without attributes, and modules with more than is looked into."""

    class Slots:
        __slots__ = ("x",)

        def __call__(self, x: Any) -> Any:
            return x

    class Cycle(Slots):
        def __init__(self) -> None:
            self.me, self.all = self, [self]

    def itself(x: Any) -> Any:
        return itself(x)

    many = [functools.partial(itself, n) for n in range(1000)]
    kinds = [Slots(), Cycle(), itself, Cycle, functools.cache(itself), print, "".join, subprocess.run, many, object()]
    found = [code_hash([kind]) for kind in kinds]
    assert found == [code_hash([kind]) for kind in kinds]
    assert all(len(text) == 16 for text in found)


def plus(n: int) -> Callable[[int], int]:
    return lambda x: x + n


@pytest.mark.parametrize("loader_class", ["none", "loader"])
def test_a_cache_serves_no_other_functions_elements(tmp_path: Path, loader_class: str) -> None:
    """Lambdas are called alike, all of them."""
    from feedrate import DataLoader

    def run(function: Callable[[int], int]) -> list[int]:
        pipeline = from_items(range(4)).map(function).cache(tmp_path)
        if loader_class == "none":
            return list(pipeline)
        return [int(x) for batch in DataLoader(pipeline, batch_size=2, num_workers=1, seed=1) for x in batch]

    assert run(lambda x: x + 1) == [1, 2, 3, 4]
    assert run(lambda x: x * 10) == [0, 10, 20, 30]
    assert [run(plus(n)) for n in (2, 3)] == [[2, 3, 4, 5], [3, 4, 5, 6]]
    files = len(list(tmp_path.iterdir()))
    assert run(lambda x: x * 10) == [0, 10, 20, 30]
    assert len(list(tmp_path.iterdir())) == files, "the same again has no file of its own"
