"""Running a case with one loader class and comparing two such runs."""

from __future__ import annotations

import hashlib
import random
import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from parity_generate import Case, build

from helpers.canon import canon

# Errors after which stock's answers are accidents (an unbound local in a worker whose start failed, for one).
_STARTUP_ERRORS = ("init_raise", "init_raise_second")


def _rng_states(generator: Any) -> dict[str, str]:
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()).encode(),
        "python": repr(random.getstate()).encode(),
    }
    if generator is not None:
        states["generator"] = generator.get_state().numpy().tobytes()
    return {k: hashlib.sha256(v).hexdigest()[:16] for k, v in states.items()}


def _error(e: BaseException) -> tuple[Any, ...]:
    return ("error", type(e).__name__, _text(e), _text(e.args) if not isinstance(e, ExceptionGroup) else "")


def _text(value: Any) -> str:
    text = repr(value) if isinstance(value, tuple) else str(value)
    return re.sub(r"\(pid(\(s\))? [\d, ]+\)", "(pid N)", re.sub(r"0x[0-9a-f]{6,}", "0x...", text))


def run(case: Case, loader_class: Any) -> list[Any]:
    """Everything observable, as a list of events."""
    random.seed(case.number)
    np.random.seed(case.number)
    torch.manual_seed(case.number)
    events: list[Any] = []
    loader = iterator = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loader = build(case, loader_class)
        except Exception as e:
            events.append(("constructor", *_error(e)))
        if loader is not None:
            try:
                events.append(("len", len(loader)))
            except Exception as e:
                events.append(("len", *_error(e)))
            for epoch in range(case.epochs):
                events.append(("epoch", epoch))
                iterator = _epoch(case, loader, events)
                events.append(("rng", _rng_states(loader.generator)))
            if iterator is not None and hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
        del iterator, loader
    events.append(("warnings", sorted({(w.category.__name__, _text(w.message)) for w in caught if _counts(w)})))
    return events


def _counts(w: Any) -> bool:
    text = str(w.message)
    if "is multi-threaded, use of fork()" in text:
        # From Python 3.12 on, where the stock loader has left threads of its queues; ours has none.
        return False
    # Given once a process by torch itself, so only the first of two runs would show them.
    once = ("is not writable", "sparse", "Sparse", "Implementation Note", "nested tensors are in prototype")
    return not any(mark in text for mark in once)


def _epoch(case: Case, loader: Any, events: list[Any]) -> Any:
    try:
        iterator = iter(loader)
    except Exception as e:
        events.append(("iter", *_error(e)))
        return None
    failures = ended = taken = 0
    limit = 3 if case.args.get("in_order", True) else 1000
    while failures < limit and ended < 2:
        if case.stop_after is not None and taken >= case.stop_after:
            break
        try:
            batch = next(iterator)
        except StopIteration:
            ended += 1
            events.append(("end",))
        except Exception as e:
            failures += 1
            events.append(_error(e))
            if case.init in _STARTUP_ERRORS or (case.dataset[0] == "iter" and case.dataset[-1] == "iter"):
                break
        else:
            taken += 1
            events.append(("batch", canon(batch)))
            del batch
    events.append(("yielded", getattr(iterator, "_num_yielded", None)))
    return iterator


# --- comparing --------------------------------------------------------------------------------------------------

_CAUGHT = re.compile(r"^Caught (\S+) in DataLoader worker process (\d+)\.\nOriginal ")
# Warnings that only ours gives.
_EXTRA_WARNINGS = ("This epoch had no batch: ", "DistributedSampler.epoch is ")
# Stock's in-worker collation of ragged tensors fails by an accident of its shared storage; the type is what counts.
_RAGGED = ("Trying to resize storage that is not resizable", "stack expects each tensor to be equal size")


def difference(case: Case, stock: list[Any], ours: list[Any]) -> str | None:
    """The first difference that isn't a listed one, in words; None if there is none."""
    if case.args.get("in_order") is False and case.workers > 1:
        stock, ours = _unordered(stock), _unordered(ours)
    for n, (s, o) in enumerate(zip(stock, ours, strict=False)):
        if s[0] == "warnings":
            o = ("warnings", [w for w in o[1] if w in s[1] or not w[1].startswith(_EXTRA_WARNINGS)])
        if s != o and not _same_error(case, s, o):
            if _sampler_raises(case):
                # Inside the window stock raises at once, even in `iter()`, and loses the batches before it; ours delivers
                # those and raises in its place. Listed.
                wanted = s[2:4] if s[0] == "iter" else s[1:3]
                return None if case.stop_after is not None or _has_error(ours[n:], wanted) else f"no error {wanted}"
            return f"event {n}:\n  stock: {_short(s)}\n  ours:  {_short(o)}"
    if len(stock) != len(ours):
        n = min(len(stock), len(ours))
        return f"stock has {len(stock)} events, ours {len(ours)}; next: {_short((stock[n:] or ours[n:])[0])}"
    return None


def _sampler_raises(case: Case) -> bool:
    spec = case.sampler or case.batch_sampler or ("",)
    return bool(case.workers and spec[0] == "list" and spec[2])


def _has_error(events: list[Any], wanted: Any) -> bool:
    kind, text = wanted
    return any(e[0] == "error" and e[1] == kind and (text in e[2] or [text] == e[2]) for e in events)


def _unordered(events: list[Any]) -> list[Any]:
    """Completion order is up to timing: batches and errors of an epoch are compared as a bag."""
    out: list[Any] = []
    bag: list[Any] = []
    for e in events:
        if e[0] in ("batch", "error"):
            bag.append(("error", e[1], e[2].rstrip().splitlines()[-1:]) if e[0] == "error" else e)
        else:
            out += sorted(bag, key=repr)
            bag = []
            out.append(e)
    return out


def _same_error(case: Case, s: Any, o: Any) -> bool:
    if s[0] != "error" or o[0] != "error":
        return False
    if len(s) != 4 or len(o) != 4:
        return bool(s[1] == o[1] or s[1] in ("RuntimeError", "TypeError")) and s[2] == o[2]
    _, s_type, s_text, _ = s
    _, o_type, o_text, _ = o
    if s_type == "TypeError" and "BaseExceptionGroup.__new__" in s_text:
        return bool(o_type == "ExceptionGroup")  # stock cannot rebuild one at all
    if "exited unexpectedly" in s_text:
        # An error of `iter(dataset)` in a later epoch kills stock's worker; ours reports the error itself.
        return True
    caught = _CAUGHT.match(s_text)
    if not caught:
        return s_type == o_type and o_text.startswith(s_text)
    original, last = caught[1], s_text.rstrip().splitlines()[-1]
    if s_type != o_type:
        # Where stock loses the type, ours raises the real exception.
        return s_type in ("RuntimeError", "TypeError") and o_type == original
    if o_type == original and not o_text.startswith("Caught"):
        # The real object, with its own text.
        return s_type == original and (o_text in s_text or o_text.split("\n")[0] in s_text)
    if any(mark in s_text for mark in _RAGGED):
        return o_text.startswith(caught[0])
    ours_caught = _CAUGHT.match(o_text)
    return bool(ours_caught) and ours_caught.groups() == caught.groups() and last in o_text


def _short(event: Any, limit: int = 1500) -> str:
    text = repr(event)
    return text if len(text) <= limit else text[:limit] + f"... ({len(text)} characters)"


def oracle_case(case: Case) -> Case:
    """The same case for the stock loader: by fork, which gives what the other methods give and costs less."""
    return replace(case, method="fork") if case.method else case
