"""What Python functions do, as far as their code tells: files of a cache are named by it.

Seen are the code of a function, of the functions and classes of the same package that it names, and values among its defaults, the
variables that it closes over, the globals that it reads, and the attributes of an object that is called: numbers, text, paths, functions,
and tuples, lists, dicts and sets of these with at most 100 entries. Of variables lists, dicts and sets do not count, which functions gather
things in, nor what a function sets itself; nor do lines and names of files.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import os
import types
from collections.abc import Iterable
from typing import Any

#: Things that are looked into for one pipeline, and entries of a list; what is beyond goes by its name.
_MOST, _ENTRIES = 500, 100
#: Packages that are not looked into.
_KNOWN = ("feedrate", "torch", "numpy", "builtins")


def code_hash(things: Iterable[Any]) -> str:
    """16 hexadecimal digits, the same in each process and run of one version of Python."""
    walk = _Walk()
    for thing in things:
        walk.add(thing, None)
    return walk.digest.hexdigest()


class _Walk:
    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=8)
        #: By their addresses, and kept, so that no other thing has these.
        self._seen: dict[int, Any] = {}

    def _note(self, *words: Any) -> None:
        self.digest.update(repr(words).encode(errors="surrogatepass"))

    def _enter(self, thing: Any) -> bool:
        """Whether it is to be looked into, now that it was named."""
        if id(thing) in self._seen or len(self._seen) >= _MOST:
            return False
        self._seen[id(thing)] = thing
        return True

    def add(self, thing: Any, package: str | None) -> None:
        """A function, an object that is called, or a value. ``package``: of what names it; code of others goes by its name."""
        if _is_plain(thing):
            self._note(_plain(thing))
        elif isinstance(thing, os.PathLike):
            self._note(os.fspath(thing))
        elif isinstance(thing, (list, tuple, dict, set, frozenset)):
            self._note(type(thing).__name__, len(thing))
            if len(thing) > _ENTRIES or not self._enter(thing):
                return
            if isinstance(thing, (set, frozenset)):
                # In an order that is not the process's own.
                thing = sorted(_plain(each) if _is_plain(each) else type(each).__qualname__ for each in thing)
            for each in thing.items() if isinstance(thing, dict) else thing:
                self.add(each, package)
        elif isinstance(thing, functools.partial):
            for each in (thing.func, thing.args, thing.keywords):
                self.add(each, package)
        elif isinstance(thing, types.MethodType):
            self.add(thing.__func__, package)
            self.add(thing.__self__, package)
        elif isinstance(thing, (types.FunctionType, type)):
            self._note(thing.__qualname__)
            own = _package(thing)
            if own not in _KNOWN and package in (None, own) and self._enter(thing):
                self._class(thing) if isinstance(thing, type) else self._function(thing)
        elif isinstance(thing, (types.BuiltinFunctionType, types.ModuleType)):
            self._note(thing.__name__)
        else:
            # Where a value of another package is an attribute, its own attributes count all the same: transforms are made of such.
            self.add(type(thing), None if callable(thing) else package)
            if self._enter(thing):
                self._named(getattr(thing, "__dict__", {}), _package(type(thing)))

    def _named(self, values: Any, package: str | None, *, variables: bool = False) -> None:
        for name in sorted(map(str, values)):
            value = values.get(name)
            if _is_value(value) and not (variables and isinstance(value, (list, dict, set))):
                self._note(name)
                self.add(value, package)

    def _class(self, kind: type) -> None:
        for each in kind.__mro__:
            if _package(each) == _package(kind):
                found = {
                    name: _inside(value) for name, value in vars(each).items() if not name.startswith("__") or callable(value)
                }
                self._named(found, _package(kind))

    def _function(self, function: types.FunctionType) -> None:
        package, code = _package(function), function.__code__
        self.add(function.__defaults__, package)
        self.add(function.__kwdefaults__, package)
        read, stored = self._code(code)
        closed = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                closed[name] = cell.cell_contents
            except ValueError:
                # Not set yet.
                continue
        for names, wanted in ((closed, set(closed)), (function.__globals__, read)):
            self._named({name: names[name] for name in wanted - stored if name in names}, package, variables=True)
        self.add(getattr(function, "__wrapped__", None), package)

    def _code(self, code: types.CodeType) -> tuple[set[str], set[str]]:
        """Notes what it does. Gives the globals that it reads, and what it sets outside of itself."""
        read, stored = set[str](), set[str]()
        for step in dis.get_instructions(code):
            value = step.argval
            if step.opname == "LOAD_GLOBAL":
                read.add(str(value))
            elif step.opname in ("STORE_GLOBAL", "STORE_DEREF"):
                stored.add(str(value))
            if isinstance(value, types.CodeType):
                inner = self._code(value)
                read, stored = read | inner[0], stored | inner[1]
            self._note(step.opname, _plain(value) if _is_plain(value) else type(value).__name__)
        return read, stored


def _package(thing: Any) -> str:
    module = str(getattr(thing, "__module__", None)).partition(".")[0]
    # In a process that was spawned the main module has another name.
    return "__main__" if module == "__mp_main__" else module


def _inside(value: Any) -> Any:
    """The function in what a class holds."""
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _is_value(value: Any) -> bool:
    return _is_plain(value) or callable(value) or isinstance(value, (os.PathLike, list, tuple, dict, set, frozenset))


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return len(value) <= _ENTRIES and all(map(_is_plain, value))
    return value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str, bytes, range, slice)


def _plain(value: Any) -> str:
    if isinstance(value, (str, bytes)) and len(value) > 1000:
        raw = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        return hashlib.blake2b(raw, digest_size=8).hexdigest()
    if isinstance(value, (tuple, frozenset)):
        parts = list(map(_plain, value))
        return f"{type(value).__name__}({','.join(sorted(parts) if isinstance(value, frozenset) else parts)})"
    return repr(value)
