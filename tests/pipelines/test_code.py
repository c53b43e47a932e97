"""Files of a cache are known by what the functions before it do, and not by their names alone."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import importlib.util
import operator
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torchvision
from torchvision.transforms import v2 as T

from feedrate import from_items
from feedrate._code import code_hash
from feedrate._decode import Decoder

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


class Slotted:
    __slots__ = ("n",)

    def __init__(self, n: Any) -> None:
        self.n = n

    def __call__(self, x: Any) -> Any:
        return self.n


@dataclasses.dataclass(frozen=True)
class Settings:
    size: Any


class Held(Slotted):
    """With attributes too."""

    def __init__(self, n: Any, *parts: Any) -> None:
        super().__init__(n)
        self.parts = list(parts)


class Tone(enum.Enum):
    HIGH = 1
    LOW = 2


class Cached:
    def __init__(self, function: Any) -> None:
        type(self).kept = functools.cached_property(function)  # type: ignore[attr-defined]

    def __call__(self, x: Any) -> Any:
        return x


def reads(value: Any) -> Any:
    return lambda x: (value, x)


def foreign(function: Any) -> Any:
    """As a package's own wrapper would be: code of another file, the user's function in its closure."""
    names: dict[str, Any] = {}
    exec(
        compile("def make(f):\n    def inner(x): return f(x)\n    return inner", sysconfig.get_path("stdlib") + "/x.py", "exec"),
        names,
    )
    return names["make"](function)


#: Two of a kind that do different things.
PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "lambdas in transforms": lambda: (T.Compose([T.Lambda(lambda x: x * 1)]), T.Compose([T.Lambda(lambda x: x * 2)])),
    "lambdas in a cache": lambda: (functools.lru_cache(lambda x: x * 1), functools.lru_cache(lambda x: x * 2)),
    "lambdas in a wrapper": lambda: (foreign(lambda x: x * 1), foreign(lambda x: x * 2)),
    "lambdas in ours": lambda: (Decoder((), {"x": lambda x: x * 1}), Decoder((), {"x": lambda x: x * 2})),
    "patterns": lambda: (reads(re.compile("a")), reads(re.compile("b"))),
    "flags": lambda: (reads(re.compile("a")), reads(re.compile("a", re.IGNORECASE))),
    "arguments": lambda: (reads(argparse.Namespace(x=1)), reads(argparse.Namespace(x=2))),
    "lists of arguments": lambda: (reads(argparse.Namespace(x=[1])), reads(argparse.Namespace(x=[2]))),
    "getters": lambda: (operator.itemgetter("a"), operator.itemgetter("b")),
    "methods of dicts": lambda: ({1: 2}.get, {1: 3}.get),
    "slots": lambda: (Slotted(1), Slotted(2)),
    "slots of a base": lambda: (Held(1), Held(2)),
    "parts": lambda: (Held(1, lambda x: x * 1), Held(1, lambda x: x * 2)),
    "dataclasses": lambda: (reads(Settings(1)), reads(Settings(2))),
    "enumerations": lambda: (reads(Tone.HIGH), reads(Tone.LOW)),
    "numbers of NumPy": lambda: (Slotted(np.float32(1)), Slotted(np.float32(2))),
    "types of NumPy": lambda: (reads(np.dtype("f4")), reads(np.dtype("f2"))),
    "types of torch": lambda: (reads(torch.float32), reads(torch.float16)),
    "modes": lambda: (reads(T.InterpolationMode.BILINEAR), reads(T.InterpolationMode.BICUBIC)),
    "methods of text": lambda: (reads(str.lower), reads(str.upper)),
    "cached properties": lambda: (type("C", (Cached,), {})(lambda s: 1), type("C", (Cached,), {})(lambda s: 2)),
    "paths": lambda: (reads(Path("a")), reads(Path("b"))),
    "long text": lambda: (reads("a" * 3_000_000), reads("a" * 2_999_999 + "b")),
    "long tuples": lambda: (reads((*range(5000), 1)), reads((*range(5000), 2))),
    "huge numbers": lambda: (reads(10**5000), reads(10**5000 + 1)),
    "sets": lambda: (reads(frozenset({1, 2})), reads(frozenset({1, 3}))),
    "nested": lambda: (reads((1, (2, (3, [4])))), reads((1, (2, (4, [4]))))),
    "methods": lambda: (Slotted(1).__call__, Slotted(2).__call__),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_what_tells_functions_apart(kind: str) -> None:
    one, other = PAIRS[kind]()
    assert code_hash([one]) != code_hash([other])
    assert code_hash([one]) == code_hash([one])
    # Behind something large, too.
    big = [[f"a{i}", {"k": [1]}, (1, [2])] for i in range(3000)]
    for large in (Held(1, big), Held(1, torchvision.models.resnet18(weights=None))):
        assert code_hash([large, one]) != code_hash([large, other])


class Attributes(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Proxy:
    """Knows nothing before it is connected."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("not connected")

    @__class__.setter
    def __class__(self, kind: Any) -> None: ...

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("not connected")

    def __call__(self) -> None: ...


class Cloud:
    def __fspath__(self) -> str:
        raise OSError("offline")

    def __repr__(self) -> str:
        raise OSError("offline")


class Odd:
    config = Attributes(a=1)
    proxy = Proxy()

    def __init__(self) -> None:
        self.cloud, self.other = Cloud(), [Proxy(), Attributes(b=2)]

    def __call__(self, x: Any) -> Any:
        return x


def test_nothing_of_users_is_run() -> None:
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    names: dict[str, Any] = {}
    exec("def f0(x): return x\n" + "".join(f"def f{i}(x): return f{i - 1}(x)\n" for i in range(1, 2000)), names)
    lazy = importlib.util.find_spec("xmlrpc.client")
    assert lazy is not None and lazy.loader is not None
    lazy.loader = importlib.util.LazyLoader(lazy.loader)  # type: ignore[arg-type]
    module = importlib.util.module_from_spec(lazy)
    lazy.loader.exec_module(module)
    names["lazy"] = module
    exec("def asks(x): return lazy.Fault(x)", names)
    nested: Any = None
    for _ in range(2000):
        nested = reads(nested)
    for thing in (
        Odd(),
        Proxy(),
        Cloud(),
        reads(Proxy()),
        reads(Odd()),
        deep,
        names["f1999"],
        names["asks"],
        nested,
        mock.MagicMock(),
    ):
        assert code_hash([thing]) == code_hash([thing])
    assert type(module).__name__ == "_LazyModule"
    last = code_hash([names["f1999"]])
    exec("def f0(x): return x + 1", names)
    assert code_hash([names["f1999"]]) != last


def test_functions_of_other_modules(tmp_path: Path) -> None:
    """Beside a script, in its package, and in an installed one, which goes by names."""
    package = tmp_path / "pkg"
    installed = tmp_path / "site-packages"
    for folder in (package, installed):
        folder.mkdir()
    (package / "__init__.py").write_text("")
    (installed / "library.py").write_text("def far(x): return x * SCALE\nSCALE = 1\n")
    (package / "inner.py").write_text(
        "from . import near\nimport library\ndef go(x): return near.deep.clean(x) + library.far(x)\n"
    )
    (package / "near.py").write_text("from . import deep\n")
    (package / "deep.py").write_text("SIZE = 1\ndef clean(x): return x * SIZE\n")
    (tmp_path / "script.py").write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import beside, pkg.inner\nfrom beside import taken\nfrom feedrate._code import code_hash\n"
        "print(*(code_hash([f]) for f in (lambda x: beside.go(x), lambda x: taken(x), pkg.inner.go, lambda x: pkg.inner.go(x))))\n"
    )
    (tmp_path / "beside.py").write_text("def go(x): return x * 1\ndef taken(x): return x * 1\n")

    def run() -> list[str]:
        for cached in tmp_path.rglob("__pycache__"):
            shutil.rmtree(cached)
        command = [sys.executable, str(tmp_path / "script.py"), str(installed)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=100).stdout.split()

    first = run()
    assert len(set(first)) == 4
    for file, before, behind, changed in [
        ("beside.py", "def go(x): return x * 1", "def go(x): return x * 2", {0}),
        ("beside.py", "def taken(x): return x * 1", "def taken(x): return x * 2", {1}),
        ("pkg/deep.py", "SIZE = 1", "SIZE = 2", {2, 3}),
        ("site-packages/library.py", "x * SCALE", "x + SCALE", set()),
    ]:
        path = tmp_path / file
        text = path.read_text()
        path.write_text(text.replace(before, behind))
        assert {k for k, (one, other) in enumerate(zip(first, run(), strict=True)) if one != other} == changed, file
        path.write_text(text)


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
