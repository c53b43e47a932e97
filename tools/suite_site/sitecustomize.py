"""Puts the class under test in the place of torch's or torchdata's loader, in this and every child process.

``tools/suite_runner.py`` puts this folder on ``PYTHONPATH``; Python runs the file at start. Spawned workers and
``python -c`` children of the tests inherit it. As soon as both the stock loader's package and the module of the class
have been imported completely, every module that holds the stock class gets the other one. The package of the class
itself keeps the stock class, which it may subclass.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
from typing import Any

_module, _, _name = os.environ.get("FEEDRATE_SUITE_CLASS", "").partition(":")
_stock_module, _, _stock_name = os.environ.get("FEEDRATE_SUITE_REPLACES", "").partition(":")
# torch's loader is there as soon as torch is; torchdata's is a module of its own.
_awaited = "torch" if _stock_module.startswith("torch.") else _stock_module


class _Swap(importlib.abc.MetaPathFinder):
    """Watches two imports, and swaps the classes when both are done."""

    def __init__(self) -> None:
        self.complete: set[str] = set()
        self.swapped: list[str] | None = None
        self.busy = False

    def find_spec(self, fullname: str, _path: Any = None, _target: Any = None) -> Any:
        if fullname not in {_awaited, _module} or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.busy = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self.complete.add(fullname)
            self.swap()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def swap(self) -> None:
        if self.swapped is not None or _awaited not in self.complete:
            return
        if _module not in self.complete:
            if _module not in sys.modules:
                importlib.import_module(_module)
            if _module != _stock_module:
                return  # done by the nested call, or still being imported further up
        stock = getattr(importlib.import_module(_stock_module), _stock_name)
        mine = getattr(sys.modules[_module], _name)
        self.swapped = []
        # Other defaults of the class's own keyword arguments, so that a variant needs no class (nor a package) of its own.
        if defaults := os.environ.get("FEEDRATE_SUITE_DEFAULTS"):
            mine.__init__.__kwdefaults__.update(json.loads(defaults))
        if mine is stock:
            return
        own = _module.partition(".")[0]
        for module_name, module in list(sys.modules.items()):
            if module_name.partition(".")[0] == own:
                continue
            for key, value in list(getattr(module, "__dict__", {}).items()):
                if value is stock:
                    setattr(module, key, mine)
                    self.swapped.append(f"{module_name}.{key}")


if _name:
    sys.meta_path.insert(0, _Swap())
