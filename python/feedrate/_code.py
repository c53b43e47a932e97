"""What Python functions do, as far as their code tells: files of a cache are named by it.

Seen are the code of users' functions and classes (not of Python's own modules and of installed packages, which go by their names), wherever
they are met: by name, as an attribute of a module, in a closure, as an argument, inside another object. And values that they read: numbers,
text, paths, enumerations, types, patterns, tuples of such, and records (dataclasses, ``argparse.Namespace``); of objects that are called,
and of records, all attributes, with lists, dicts and sets. Of variables lists, dicts and sets do not count, which functions gather things
in, nor what a function sets itself; nor do lines and names of files. Nothing of users is run.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import dis
import enum
import functools
import hashlib
import operator
import os
import pathlib
import re
import sys
import sysconfig
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

#: Things that are looked into for one pipeline, nearest first, and entries of a list; what is beyond goes by its type.
_MOST, _ENTRIES = 20_000, 10_000
#: Bytes of a text from which on its ends and its length stand for it.
_LONG = 1 << 20

_MUTABLE = (list, dict, set, bytearray, collections.deque)
_RECORDS = (argparse.Namespace, types.SimpleNamespace)
_NAMED = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_REDUCED = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(key)) + os.sep for key in ("stdlib", "platstdlib")})


def code_hash(things: Iterable[Any]) -> str:
    """16 hexadecimal digits, the same in each process and run of one version of Python."""
    walk = _Walk()
    for thing in things:
        walk.add(thing)
    walk.run()
    return walk.digest.hexdigest()


class _Walk:
    """Looks into things, those first that are nearest to the ones that were added: no large one hides the others."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=8)
        self._ahead: collections.deque[Any] = collections.deque()
        #: Numbers by address; the things are kept, so that no others have these.
        self._seen: dict[int, tuple[int, Any]] = {}

    def add(self, thing: Any) -> None:
        self._ahead.append(thing)

    def run(self) -> None:
        while self._ahead:
            thing = self._ahead.popleft()
            try:
                self._look(thing)
            except Exception:
                # Of the user's making, and nobody's fault.
                self._note(type(thing).__qualname__)

    def _note(self, *words: str | int) -> None:
        self.digest.update(repr(words).encode(errors="surrogatepass"))

    def _look(self, thing: Any) -> None:
        text = _plain(thing)
        if text is not None:
            self._note(text)
            return
        kind = type(thing)
        known = self._seen.get(id(thing))
        if known is not None or len(self._seen) >= _MOST:
            self._note(kind.__qualname__, -1 if known is None else known[0])
            return
        self._seen[id(thing)] = len(self._seen), thing
        self._note(kind.__qualname__)
        if issubclass(kind, types.FunctionType):
            self._function(thing)
        elif issubclass(kind, type):
            self._class(thing)
        elif issubclass(kind, types.MethodType):
            self._ahead.extend((thing.__func__, thing.__self__))
        elif issubclass(kind, functools.partial):
            self._ahead.extend((thing.func, thing.args, thing.keywords))
        elif issubclass(kind, _NAMED):
            self._note(thing.__qualname__)
            # A method of a value; of a function it is the module that it is in.
            owner = getattr(thing, "__self__", None)
            if owner is not None and not issubclass(type(owner), types.ModuleType):
                self.add(owner)
        elif issubclass(kind, _REDUCED):
            self._note(repr(thing))
        elif issubclass(kind, (set, frozenset)):
            # In an order that is not the process's own.
            self._note(*sorted(_plain(each) or type(each).__qualname__ for each in thing))
        elif issubclass(kind, (tuple, list, dict, collections.deque)):
            self._note(len(thing))
            if len(thing) <= _ENTRIES:
                self._ahead.extend(dict.items(thing) if issubclass(kind, dict) else thing)
        else:
            self.add(kind)
            self._attributes(thing)

    def _named(self, values: dict[str, Any]) -> None:
        for name in sorted(values):
            self._note(name)
            self.add(values[name])

    def _attributes(self, thing: Any) -> None:
        found = _dict_of(thing)
        for each in type(thing).__mro__:
            for name, slot in vars(each).items():
                if type(slot) is types.MemberDescriptorType and not _library_class(each):
                    try:
                        found[name] = slot.__get__(thing)
                    except AttributeError:
                        continue
        self._named(
            {name: value for name, value in found.items() if type(name) is str and (_counts(value) or _is_mutable(value))}
        )

    def _class(self, kind: type) -> None:
        self._note(kind.__qualname__)
        for each in kind.__mro__:
            if _library_class(each):
                continue
            held = {name: _inside(value) for name, value in vars(each).items()}
            # What Python adds itself has names of this kind, and is no function.
            self._named(
                {
                    name: value
                    for name, value in held.items()
                    if type(value) is types.FunctionType or (not name.startswith("__") and (_counts(value) or _is_mutable(value)))
                }
            )

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._note(function.__qualname__)
        own = not _library_file(code.co_filename) and _package(function) != "feedrate"
        read, chains, stored = self._code(code) if own else (set[str](), set[tuple[str, ...]](), set[str]())
        closed = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                closed[name] = cell.cell_contents
            except ValueError:
                # Not set yet.
                continue
        names = function.__globals__
        found = {**{name: names[name] for name in read if name in names}, **closed}
        self._named({name: value for name, value in found.items() if name not in stored and _counts(value)})
        self._named({".".join(chain): value for chain in chains if _counts(value := _of_module(names, chain))})
        self._ahead.extend((function.__defaults__, function.__kwdefaults__, function.__dict__.get("__wrapped__")))

    def _code(self, code: types.CodeType) -> tuple[set[str], set[tuple[str, ...]], set[str]]:
        """Notes what it does. Gives the globals that it reads, those with what of them, and what it sets outside of itself."""
        read, chains, stored = set[str](), set[tuple[str, ...]](), set[str]()
        chain: tuple[str, ...] = ()
        for step in dis.get_instructions(code):
            value = step.argval
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
                chain = (*chain, str(value))
                chains.add(chain)
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                chain = (str(value),)
                read.add(str(value))
            elif step.opname not in ("CACHE", "PRECALL", "PUSH_NULL"):
                chain = ()
            if step.opname in ("STORE_GLOBAL", "STORE_DEREF"):
                stored.add(str(value))
            if type(value) is types.CodeType:
                inner = self._code(value)
                read, chains, stored = read | inner[0], chains | inner[1], stored | inner[2]
            self._note(step.opname, _constant(value, 20))
        return read, chains, stored


def _of_module(names: dict[str, Any], chain: tuple[str, ...]) -> Any:
    """What the names of a chain stand for, where all but the last are modules, which are not loaded for that."""
    found: Any = names
    for name in chain:
        inside = found if found is names else vars(found) if type(found) is types.ModuleType else {}
        if name not in inside:
            return _NOTHING
        found = inside[name]
    return found


_NOTHING = object()


def _counts(value: Any) -> bool:
    """Whether a variable of this value is looked at."""
    kind = type(value)
    if _plain(value) is not None or issubclass(
        kind, (tuple, frozenset, type, types.FunctionType, types.MethodType, *_REDUCED, *_NAMED)
    ):
        return True
    return _is_called(kind) or _is_record(kind)


def _inside(value: Any) -> Any:
    """The function in what a class holds."""
    if type(value) in (staticmethod, classmethod):
        return value.__func__
    if type(value) is functools.cached_property:
        return value.func
    return value.fget if type(value) is property else value


def _is_called(kind: type) -> bool:
    return any("__call__" in vars(each) for each in kind.__mro__) and not issubclass(kind, types.ModuleType)


def _is_record(kind: type) -> bool:
    return issubclass(kind, _RECORDS) or (dataclasses.is_dataclass(kind) and not _is_called(kind))


def _is_mutable(value: Any) -> bool:
    return issubclass(type(value), _MUTABLE)


def _dict_of(thing: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return dict(found) if type(found) is dict else {}


@functools.cache
def _library_file(path: str) -> bool:
    """Whether a file is Python's own or of an installed package. What was typed in has none."""
    if not path.startswith(os.sep):
        return path.startswith("<frozen ")
    path = os.path.realpath(path)
    return path.startswith(_LIBRARIES) or "site-packages" in path or "dist-packages" in path


def _library_class(kind: type) -> bool:
    if _package(kind) == "feedrate":
        return True
    module = sys.modules.get(kind.__module__)
    if type(module) is not types.ModuleType or kind.__module__ in ("__main__", "__mp_main__"):
        return False
    file = vars(module).get("__file__")
    return kind.__module__ in sys.builtin_module_names if file is None else _library_file(file)


def _package(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]


def _constant(value: Any, depth: int) -> str:
    """What an instruction has."""
    if type(value) in (tuple, frozenset) and depth:
        parts = [_constant(each, depth - 1) for each in value]
        return f"{type(value).__name__}({','.join(sorted(parts) if type(value) is frozenset else parts)})"
    text = _plain(value)
    return type(value).__name__ if text is None else text


def _plain(value: Any) -> str | None:
    """A value as text, where it is one that nothing changes in place."""
    kind = type(value)
    if kind in (str, bytes):
        return repr(value) if len(value) <= 1000 else _long(value)
    if kind is int:
        return hex(value)
    if value is None or value is Ellipsis or kind in (bool, float, complex, range):
        return repr(value)
    if kind is slice:
        return f"slice({_plain(value.start)}, {_plain(value.stop)}, {_plain(value.step)})"
    if issubclass(kind, enum.Enum):
        return (
            f"{kind.__qualname__}.{object.__getattribute__(value, '_name_')}={_plain(object.__getattribute__(value, '_value_'))}"
        )
    if issubclass(kind, (np.generic, np.dtype)) or (kind.__module__ == "torch" and kind.__name__ in ("dtype", "device")):
        return f"{kind.__qualname__}({value!r})"
    if issubclass(kind, re.Pattern):
        return f"pattern({_plain(value.pattern)}, {value.flags})"
    if issubclass(kind, pathlib.PurePath) and kind.__module__.startswith("pathlib"):
        return f"path({str(value)!r})"
    return None


def _long(value: str | bytes) -> str:
    ends = [value] if len(value) <= _LONG else [value[: _LONG // 2], value[-_LONG // 2 :]]
    digest = hashlib.blake2b(digest_size=8)
    for end in ends:
        digest.update(end.encode(errors="surrogatepass") if isinstance(end, str) else end)
    return f"{type(value).__name__} of {len(value)}: {digest.hexdigest()}"
