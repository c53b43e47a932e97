"""Pipelines: where elements come from and what is done with them, as a definition."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

from feedrate import _arguments, _native, _same
from feedrate._code import code_hash
from feedrate._compile import left_out, not_compiled
from feedrate._context import pipeline_key
from feedrate._iterate import has_state
from feedrate._makers import MAKERS, PYTHON
from feedrate._skipper import Skipper

#: Steps in a row: each is up to two levels of a state, which other things have to read too (pickle, json).
_DEEPEST = 200


def _name(function: Callable[..., Any]) -> str:
    """What a definition calls a function."""
    if isinstance(function, functools.partial):
        arguments = [_shown(a) for a in function.args] + [f"{k}={_shown(v)}" for k, v in function.keywords.items()]
        return f"{_name(function.func)}({', '.join(arguments)})" if arguments else _name(function.func)
    found = getattr(function, "_step_name", None) or getattr(function, "__qualname__", None)
    return found if isinstance(found, str) else type(function).__qualname__


def _shown(value: Any) -> str:
    """As ``repr``, but equal in every process: without addresses."""
    return _name(value) if callable(value) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _merged(parents: tuple[Pipeline, ...]) -> dict[str, Any]:
    """The options of pipelines that become one: what holds for one of them holds for all, and two that differ are refused."""
    found: dict[str, Any] = {}
    for parent in parents:
        for name, value in parent._options.items():
            if name in found and found[name] != value:
                raise ValueError(
                    f"two pipelines that are joined have {name}={found[name]!r} and {name}={value!r}: say it once, on what joins them"
                )
            found[name] = value
    return found


class Pipeline:
    """A definition of a stream of elements. Immutable; nothing is opened before it is iterated.

    Made by :func:`feedrate.open`, :func:`feedrate.from_items`, :func:`feedrate.from_iterable`; every method returns a new one. It is a
    dataset: iterate it, or give it to ``feedrate.DataLoader`` or ``feedrate.torch.DataLoader``, which cut it into lanes for ranks and
    workers. Where every element can be had by number (:attr:`indexed`) it has ``len()`` and indexing too, and a loader treats it
    as a map-style dataset.

    ``str()`` of it says what it does. Functions run where the loader's tasks run, once for each element, and must depend on the element and
    :func:`feedrate.rng` alone: what is resumed is made again.
    """

    def __init__(
        self, make: str, parents: tuple[Pipeline, ...], args: tuple[Any, ...], options: dict[str, Any] | None = None
    ) -> None:
        """Not for users: ``make`` names a constructor or a method of the native definition."""
        self._made = make, parents, args
        #: What holds for the pipeline as a whole: seed, lanes, what happens to bad elements.
        self._options: dict[str, Any] = {**_merged(parents), **(options or {})}
        self._epoch = 0
        #: An epoch that :meth:`set_epoch` has asked for, which a loader has not begun yet.
        self._told: int | None = None
        self._depth: int = 1 + max((parent._depth for parent in parents), default=0)
        if self._depth > _DEEPEST:
            raise ValueError(
                f"a pipeline has at most {_DEEPEST} steps in a row, since its states are as deep: join many streams in one step, as "
                "concat(*others) and mix() do, or do in one function what many do"
            )

    # -- how it is made, copied and pickled

    @functools.cached_property
    def _native(self) -> Any:
        make, parents, args = self._made
        try:
            return MAKERS[make](parents, args)
        except ValueError as error:
            # As the steps are called here.
            text = str(error).replace("shuffle_all()", 'shuffle("all")').replace("shuffle_parts()", 'shuffle("shards")')
            if text == str(error):
                raise
            raise ValueError(text.replace("shuffle(window)", "shuffle(n)")) from None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def _then(self, make: str, *args: Any, **options: Any) -> Pipeline:
        return _made(make, (self,), args, options)

    def __str__(self) -> str:
        return str(self._native)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {' | '.join(line.strip() for line in str(self).splitlines())}>"

    @property
    def fingerprint(self) -> str:
        """Equal for equal definitions over equally named data: 16 hexadecimal digits."""
        return f"{self._native.fingerprint:016x}"

    @functools.cached_property
    def data_fingerprint(self) -> str:
        """Equal as long as no file was added, taken away, or rewritten to another size: 16 hexadecimal digits. Lists the files."""
        return f"{self._native.data_fingerprint():016x}"

    @functools.cached_property
    def _steps(self) -> list[str]:
        """What ``print()`` shows, a line for each step, long lines and many lines cut short."""
        return _same.steps(self)

    @property
    def indexed(self) -> bool:
        """Whether every element can be had by its number: an indexed source, steps that give one element for each, and none that is left
        out by :meth:`on_error`."""
        return isinstance(self, IndexedPipeline)

    @property
    def native(self) -> bool:
        """Whether no Python code runs in it."""
        make, parents, args = self._made
        python = make in PYTHON or (make == "batch" and args[3] is not None) or (make == "branch" and args[4] is not None)
        return not python and all(parent.native for parent in parents)

    def length(self) -> int | None:
        """How many elements an epoch has, where the definition tells without reading all data, else ``None``. May read indexes."""
        found: int | None = self._native.length()
        return found

    # -- one element for each

    def map(self, function: Callable[[Any], Any]) -> Pipeline:
        """``function(element)`` for each."""
        return self._then("map", _name(function), _arguments.function("map", function))

    def select(self, *fields: str, **renamed: str) -> Pipeline:
        """Only these fields of each element; ``select("image", label="cls")`` calls ``cls`` ``label``."""
        _arguments.names("select", fields)
        if twice := set(fields) & renamed.keys():
            raise ValueError(f"select() gives two fields the name {min(twice)!r}")
        return self._then("select", [*((f, f) for f in fields), *((old, new) for new, old in renamed.items())])

    def rename(self, **names: str) -> Pipeline:
        """``rename(label="cls")`` calls the field ``cls`` ``label``; others stay. An element without it, or with both, is a bad one."""
        if len(set(names.values())) < len(names):
            raise ValueError(f"rename() gives a field two names: {names}")
        return self.map(functools.partial(_rename, {old: new for new, old in names.items()}))

    def without(self, *fields: str) -> Pipeline:
        """All fields but these."""
        _arguments.names("without", fields)
        return self._then("without", list(fields))

    def decode(self, *fields: str, **decoders: Callable[[bytes], Any]) -> Pipeline:
        """Bytes of fields to objects, by the field's extension, as WebDataset names them: text (``txt``, ``text``, ``transcript``),
        whole numbers (``cls``, ``cls2``, ``index``, ``inx``, ``id``, ``count``), ``json`` and ``jsonl``, ``npy`` and ``npz`` (without
        pickled objects), images (``jpg``, ``png``, ``webp``, ``gif``, ``bmp``, ``tif``, ``ppm``, …: by content, to RGB arrays of
        uint8, as :func:`feedrate.image.decode` gives them). ``decode(jpg=function)`` gives a function for a field. Without arguments, every
        field of a known extension, and image columns as Hugging Face's datasets write them (``bytes`` and ``path``)."""
        from feedrate import _decode

        return self.map(_decode.Decoder(fields, decoders))

    def image(self, transform: Any, field: str | None = None) -> Pipeline:
        """``transform`` (a :class:`feedrate.image.Transform`) of a field that holds an image: decoded and transformed in one
        go, without the GIL. Without ``field`` it is the one whose name ends like that of an image (``jpg``, ``png``, …).
        Random parameters are keyed by (seed, epoch, step, where the element is stored)."""
        from feedrate._transform import ImageStep, Transform

        if not isinstance(transform, Transform):
            raise TypeError(
                f"image() takes a feedrate.image.Transform, but got {type(transform).__name__}: use map() for a function"
            )
        step = ImageStep(transform, field)
        return self._then("image", _name(step), step)

    # -- fewer or more elements

    def filter(self, function: Callable[[Any], Any]) -> Pipeline:
        """Those for which ``function(element)`` is true."""
        return self._then("filter", _name(function), _arguments.function("filter", function))

    def flat_map(self, function: Callable[[Any], Iterable[Any]]) -> Pipeline:
        """Every item of ``function(element)``, one after the other. The items of one element are held in memory."""
        return self._then("flat_map", _name(function), _arguments.function("flat_map", function))

    def take(self, count: int) -> Pipeline:
        """At most the first ``count`` elements."""
        return self._then("take", _arguments.count("take", count, 0))

    def skip(self, count: int) -> Pipeline:
        """Without the first ``count`` elements."""
        return self._then("skip", _arguments.count("skip", count, 0))

    def repeat(self, times: int | None = None) -> Pipeline:
        """``times`` over (``None``: for ever), with new random orders each time."""
        return self._then("repeat", None if times is None else _arguments.count("repeat", times, 0))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.step in (None, 1) and (index.start or 0) >= 0 and (index.stop or 0) >= 0:
            start = index.start or 0
            found = self.skip(start) if start else self
            return found if index.stop is None else found.take(max(0, index.stop - start))
        if isinstance(index, slice):
            raise TypeError(f"slices go from a start to a stop, both from 0 on, in steps of 1, but got {index!r}")
        raise TypeError(
            f"a stream has no index {index!r}: its elements come in order only. Slices from a start to a stop work, and so do indices of "
            "a pipeline whose source is indexed and whose steps give one element for each"
        )

    # -- batches

    def batch(self, size: int, *, drop_last: bool = False, collate: Callable[[list[Any]], Any] | None = None) -> Pipeline:
        """Batches of ``size`` elements. Without ``collate``: numbers and arrays are stacked as arrays of their own type, text and bytes
        are listed, dicts and lists collated entry by entry; what comes as columns stays columns."""
        function = None if collate is None else (_name(collate), _arguments.function("batch", collate))
        return self._then("batch", _arguments.count("batch", size, 1), bool(drop_last), None, function)

    def padded_batch(self, size: int, *, padding: float | Mapping[str, float] = 0, drop_last: bool = False) -> Pipeline:
        """Batches in which arrays of different shapes, and lists of numbers, are filled up with ``padding`` to the largest of each
        dimension; the lengths of the first dimension come as ``<field>_length``. ``padding`` may be a dict by field, with 0 for others."""
        filled = _arguments.padding("padded_batch", padding)
        return self._then("batch", _arguments.count("padded_batch", size, 1), bool(drop_last), filled, None)

    def unbatch(self) -> Pipeline:
        """The elements of batches one by one: of lists, and of dicts of arrays and lists along their first dimension. Behind
        :meth:`batch` and steps that keep its batches as they are, those that went in: tuples come as lists."""
        return self._then("unbatch")

    def rebatch(self, size: int, *, drop_last: bool = False) -> Pipeline:
        """Batches of another size."""
        return self.unbatch().batch(size, drop_last=drop_last)

    def pack(
        self,
        length: int,
        *,
        open_sequences: int = 64,
        fit: Literal["first", "best"] = "first",
        long: Literal["split", "truncate", "error"] = "split",
        fields: Sequence[str] = (),
        padding: int = 0,
    ) -> Pipeline:
        """Documents (one-dimensional arrays or lists of whole numbers, or dicts of such) packed into sequences of ``length`` tokens.

        A sequence is a dict: each field filled up with ``padding``, ``segment_ids`` (1 for the first document, 0 for padding) and
        ``positions`` (from 0 in each document), both int32. Without ``fields`` those of the lane's first document are packed.
        ``open_sequences`` are filled at a time; a document goes to the ``"first"`` with room for it, or to the one that it fills
        ``"best"``. ``long``: what happens to documents longer than a sequence.
        """
        options = (
            _arguments.count("pack", length, 1),
            _arguments.count("pack", open_sequences, 1),
            fit,
            long,
            list(fields),
            padding,
        )
        return self._then("pack", *options)

    def bucket_batch(
        self,
        key: Callable[[Any], float],
        boundaries: Sequence[float],
        sizes: int | Sequence[int],
        *,
        pad: bool = False,
        padding: float | Mapping[str, float] | None = None,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Pipeline:
        """Batches of elements of similar ``key(element)``: their length, say. Bucket ``b`` holds keys from ``boundaries[b - 1]`` up to but
        not including ``boundaries[b]``, the first and the last one are open; a bucket with ``sizes[b]`` elements is a batch (one number:
        for all). What is left at the end comes bucket by bucket. ``pad``, and ``padding``, fill arrays up as :meth:`padded_batch` does.
        """
        if not isinstance(boundaries, Iterable):
            raise TypeError(f"bucket_batch() takes a list of boundaries, but got {boundaries!r}")
        edges = [float(edge) for edge in boundaries]
        each = sizes if isinstance(sizes, Iterable) else [sizes] * (len(edges) + 1)
        rule = {"boundaries": edges, "sizes": [_arguments.count("bucket_batch", size, 1) for size in each]}
        return self._gather("bucket_batch", key, rule, drop_last, (pad, padding), collate)

    def budget_batch(
        self,
        budget: float,
        key: Callable[[Any], float],
        *,
        padded: bool = True,
        max_samples: int | None = None,
        oversize: Literal["error", "skip", "alone"] = "error",
        pad: bool = False,
        padding: float | Mapping[str, float] | None = None,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Pipeline:
        """As many elements in a row as a budget allows: tokens or pixels. ``key(element)`` is an element's size; with ``padded`` each
        counts as much as the batch's largest, else they are added. Put :meth:`sort_within` before it, so that neighbours are of similar
        size.
        ``oversize``: an element larger than the budget is a bad element, left out, or a batch of its own. ``pad``, and ``padding``, fill
        arrays up as :meth:`padded_batch` does.
        """
        rule = {
            "budget": float(budget),
            "padded": bool(padded),
            "most": None if max_samples is None else _arguments.count("budget_batch", max_samples, 1),
            "oversize": oversize,
        }
        return self._gather("budget_batch", key, rule, drop_last, (pad, padding), collate)

    def _gather(self, step: str, key: Any, rule: Any, drop_last: bool, pad: tuple[bool, Any], collate: Any) -> Pipeline:
        function = None if collate is None else (_name(collate), _arguments.function(step, collate))
        pads, padding = pad
        filled = _arguments.padding(step, 0 if padding is None else padding) if pads or padding is not None else None
        return self._then("gather", _name(key), _arguments.function(step, key), rule, bool(drop_last), filled, function)

    # -- made once, made ahead, read once

    def cache(self, folder: str | os.PathLike[str] | None = None, *, limit: int | None = None) -> Pipeline:
        """What the steps before make is kept and given again, wherever the same element is wanted in a later epoch; so put it behind
        the expensive steps, and before those that should differ by epoch. The steps before it draw the same random numbers in every epoch,
        while orders go on changing. Elements come out as arrays, numbers, text, bytes, and dicts and lists of them.

        Without ``folder``: in the memory of each process, up to ``limit`` bytes (1 GiB); worker processes have one each, and keep it
        with ``persistent_workers=True`` only. With it: in files that all processes share and later runs find (16 GiB), of which 33 at
        most are open. Nothing is thrown out for something newer. Files are known by the steps before, by the code of their functions
        (with what that reads, as ``docs/pipelines.md`` has it) and by the shards that these read (path, size, time of the last change);
        data in memory by its name and length only. Use another folder for other items, and when a function does something else
        because of a list, an array, a file or another package.
        """
        if limit is None:
            limit = 1 << 30 if folder is None else 16 << 30
        size = _arguments.count("cache", limit, 0)
        if folder is None:
            return self._then("cache", size, None, "")
        # Hashed here, and not where it is opened: processes that work together have to agree.
        return self._then("cache", size, os.fspath(folder), code_hash(self._called()))

    def _called(self) -> Iterator[Any]:
        """The functions of all steps, and the objects whose items are read."""
        make, parents, args = self._made
        for parent in parents:
            yield from parent._called()
        if make != "open":
            for each in args:
                yield from (part for part in (each if isinstance(each, tuple) else (each,)) if callable(part))
        if make in ("items", "iterable"):
            yield args[0]

    def prefetch(self, count: int) -> Pipeline:
        """Up to ``count`` elements are made ahead by a thread, while what follows works on others. In a loader with workers each
        lane has such a thread; Python functions before and behind it share the GIL."""
        return self._then("prefetch", _arguments.count("prefetch", count, 1))

    def fork(self, count: int = 2, *, buffer: int = 1000) -> tuple[Pipeline, ...]:
        """The same stream for ``count`` readers that are joined again: ``left, right = p.fork()``, ``left.zip(right.map(f))`` reads and
        makes ``p`` once. Of what one lags behind, ``buffer`` elements are held, and what is more is made again. Readers that are not
        joined read it each for itself. Elements come out as arrays, numbers, text, bytes, and dicts and lists of them.
        """
        return self._branches(_arguments.count("fork", count, 1), buffer, None)

    def route(self, function: Callable[[Any], Any], keys: Sequence[Any], *, buffer: int = 1000) -> tuple[Pipeline, ...]:
        """A stream for each of ``keys``, of the elements for which ``function(element)`` is that key; another result is a bad element.
        Joined again, they are read once, as with :meth:`fork`."""
        keys = list(keys)
        if len(set(keys)) < len(keys) or not keys:
            raise ValueError(f"route() takes different keys, at least one, but got {keys!r}")
        route = _Route(_arguments.function("route", function), keys)
        return self._branches(len(keys), buffer, (f"{_name(function)}, {keys!r}", route))

    def _branches(self, count: int, buffer: int, by: Any) -> tuple[Pipeline, ...]:
        # Branches know one another by this number, also after they were pickled.
        number = int.from_bytes(os.urandom(8), "little")
        return tuple(self._then("branch", number, at, count, _arguments.count("fork", buffer, 0), by) for at in range(count))

    # -- order

    @overload
    def shuffle(self, window: int) -> Pipeline: ...
    @overload
    def shuffle(self, window: Literal["shards", "all"]) -> Pipeline: ...
    def shuffle(self, window: int | str) -> Pipeline:
        """Another order each epoch.

        An integer: out of a window of so many elements, each draw taking one and filling its place from behind. The lanes of a loader
        share it, but none has less than 32 of it.
        ``"shards"``: the source's shards in another order; goes behind the source, with nothing but maps and filters between. ``"all"``:
        all records, anywhere, in no memory; behind an indexed source, with nothing but maps between.
        """
        if isinstance(window, bool):
            raise TypeError(
                f'shuffle() takes the size of a window, "shards" or "all", but got {window!r}: all records are shuffled by "all"'
            )
        if window == "shards":
            return self._then("shuffle_parts")
        if window == "all":
            return self._then("shuffle_all")
        return self._then("shuffle", _arguments.count("shuffle", window, 1))

    def sort_within(self, window: int, key: Callable[[Any], float]) -> Pipeline:
        """Sorts windows of ``window`` elements by ``key(element)``, smallest first, one window after the other."""
        return self._then(
            "sort_within", _arguments.count("sort_within", window, 1), _name(key), _arguments.function("sort_within", key)
        )

    # -- several pipelines

    def zip(self, *others: Pipeline) -> Pipeline:
        """Lists of one element of each; ends with the shortest. A bad element takes those beside it along, so that the others stay side
        by side; a shard that cannot be read further ends it with that error."""
        return _made("zip", (self, *_pipelines("zip", others)), ())

    def concat(self, *others: Pipeline) -> Pipeline:
        """All of this, then all of the next."""
        return _made("concat", (self, *_pipelines("concat", others)), ())

    def __add__(self, other: Pipeline) -> Pipeline:
        """All of this, then all of the other one: a sum of many is one step."""
        if not isinstance(other, Pipeline):
            return NotImplemented
        make, parents, _ = self._made
        return _made("concat", (*parents, other) if make == "concat" else (self, other), ())

    def interleave(self, *others: Pipeline, block: int = 1) -> Pipeline:
        """``block`` elements of each in turn; what has run out is left out."""
        return _made("interleave", (self, *_pipelines("interleave", others)), (_arguments.count("interleave", block, 1),))

    def join(self, *others: Pipeline, ahead: int = 2) -> Pipeline:
        """Elements of all, of whichever has one first; a thread makes up to ``ahead`` of each. For slow sources of different speed. Each
        element comes once, and a state is exact, but the order is another one each time: loaders take it with ``num_workers=0`` and one
        rank only.
        :meth:`interleave` and :func:`mix` have an order."""
        return _made("ready", (self, *_pipelines("join", others)), (_arguments.count("join", ahead, 1),))

    # -- of the whole

    def seed(self, seed: int) -> Pipeline:
        """The seed of all random steps. Without it: a loader's ``seed``, or with ``distributed`` 0, or one that the loader draws at its
        first epoch; 0 outside of loaders."""
        return self._then("same", seed=_arguments.count("seed", seed, 0))

    def lanes(self, rows: int | None = None, units: int | None = None) -> Pipeline:
        """How a loader cuts it into lanes: a step takes ``units`` units, of which each rank gets an equal number, and the next step takes
        those of the next of ``rows`` rows, so that as many workers can read at a time. The order depends on both, and on nothing else:
        neither on workers nor on ranks. The defaults are 8 rows (1 where a step has to see all elements in one row) and a unit for each
        rank.
        """
        options = {}
        if rows is not None:
            options["rows"] = _arguments.count("lanes", rows, 1)
        if units is not None:
            options["units"] = _arguments.count("lanes", units, 1)
        return self._then("same", **options)

    def on_error(
        self,
        policy: Literal["raise", "skip"] | Callable[[Exception], Any],
        *,
        at_most: int | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> Pipeline:
        """What happens to elements that cannot be read or made: ``"raise"`` raises in their place, ``"skip"`` leaves them out and takes the
        next ones, so that batches stay full; a function is asked, and its truth means skip. More than ``at_most`` of them in an epoch
        raise after all (of each rank: none knows of the others'). Elements have no numbers then: the pipeline is a stream, for loaders
        too. ``log`` names a file to which each is appended as a line of JSON: shard, key, step and reason. A loader's ``skipped`` lists
        them too.
        """
        if policy not in ("raise", "skip") and not callable(policy):
            raise ValueError(f'on_error() takes "raise", "skip" or a function, but got {policy!r}')
        most = None if at_most is None else _arguments.count("on_error(at_most=…)", at_most, 0)
        path = None if log is None else os.fspath(log)
        return self._then("same", on_error=policy, at_most=most, log=path)

    def _keeper(self) -> str | None:
        """The class of an iterable of this pipeline that keeps its place in itself, so that only one can read it at a time."""
        make, parents, args = self._made
        if make == "iterable" and has_state(args[0]):
            return type(args[0]).__name__
        return next((found for parent in parents if (found := parent._keeper()) is not None), None)

    # -- iterating

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration the one of this number, from 0; also that of a loader over the pipeline."""
        self._epoch = self._told = epoch

    @not_compiled
    def __iter__(self) -> Iterator[Any]:
        """All elements of the next epoch, as one lane."""
        left_out()
        self._refuse_foreign_workers()
        epoch, self._epoch, self._told = self._epoch, self._epoch + 1, None
        return Elements(self, epoch)

    def _refuse_foreign_workers(self) -> None:
        """Each worker of torch's own loader would give every element."""
        data = sys.modules.get("torch.utils.data")
        info = None if data is None else data.get_worker_info()
        if info is not None and info.num_workers > 1 and info.dataset is self and type(info).__module__.startswith("torch."):
            raise RuntimeError(
                f"torch.utils.data.DataLoader with num_workers={info.num_workers} would give each element of a pipeline {info.num_workers} "
                "times: use feedrate.torch.DataLoader, which takes the same arguments and cuts the pipeline into shares"
            )


class StreamPipeline(Pipeline):
    """A pipeline whose elements come in order only: loaders cut it into lanes."""

    def __len__(self) -> int:
        """How many elements an epoch has. ``TypeError`` where that is not known before all is read."""
        found = self.length()
        if found is None:
            raise TypeError(f"the number of elements is not known before all is read: {self!r}")
        return found


class IndexedPipeline(Pipeline):
    """A pipeline whose elements can be had by number: a map-style dataset."""

    def __len__(self) -> int:
        found = self._native.length()
        assert found is not None
        return int(found)

    def __getitem__(self, index: Any) -> Any:
        """The element of this number. A slice is a pipeline."""
        if isinstance(index, slice):
            return super().__getitem__(index)
        if isinstance(index, list | tuple):
            raise TypeError("a list of indices has no element: p.__getitems__([...]) gives a list of them")
        if not hasattr(index, "__index__"):
            raise TypeError(f"an index is a whole number or a slice, but got {index!r}")
        number = index.__index__()
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise IndexError(f"index {index} of a pipeline of {len(self)} elements")
        return self.__getitems__([number])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The elements of these numbers, in this order; each shard is read once, from front to back. Steps draw by the seed and epoch of
        the loader that asks, else by those of the pipeline."""
        key = pipeline_key()
        seed, epoch = (0, self._epoch) if key is None else key
        found: list[Any] = self._native.get([i.__index__() for i in indices], self._options.get("seed", seed), epoch)
        return found


def holds_pipeline(dataset: Any) -> bool:
    """Whether samples come from map-style pipelines: the dataset is one, has one as an attribute, or in a list, tuple or dict that is
    one, or wraps some as torch's ``Subset``, ``ConcatDataset`` and ``StackDataset``."""
    ahead = [dataset]
    seen: set[int] = set()
    while ahead:
        one = ahead.pop()
        if isinstance(one, IndexedPipeline):
            return True
        if id(one) in seen or len(seen) > 100:
            continue
        seen.add(id(one))
        state = getattr(one, "__dict__", {})
        # By type: proxies look at what they stand for, which may be gone.
        if any(issubclass(type(value), IndexedPipeline) for held in state.values() for value in (held, *_members(held))):
            return True
        inner = [state.get("dataset"), *_members(state.get("datasets"))]
        ahead += [each for each in inner if each is not None]
    return False


def _members(value: Any) -> Iterable[Any]:
    """What a collection holds, or the first of it: a large one holds data."""
    if type(value) is dict:
        value = value.values()
    elif type(value) not in (list, tuple):
        return ()
    return list(itertools.islice(value, 100))


class Mix(NamedTuple):
    """What a :func:`mix` has drawn. Elements that wait in the window of a shuffle behind it count as drawn."""

    #: Elements of each stream.
    given: list[int]
    #: How many were to be expected: the sum over the draws of the stream's share in the weights, among streams that had not ended.
    expected: list[float]


def mixed(state: Any) -> list[Mix]:
    """What the mixes of a state have drawn, added up over its lanes."""
    return [Mix(*found) for found in _native.Pipeline.mixed(state)]


class Elements:
    """The elements of one epoch, one after the other. Has ``state_dict()`` and ``load_state_dict()``: positions, no data."""

    def __init__(self, pipeline: Pipeline, epoch: int) -> None:
        self._pipeline = pipeline
        self._number = epoch
        self._skipper = Skipper(pipeline._options)
        self._lane = self._open(None)

    def _open(self, cursor: Any) -> Any:
        return self._pipeline._native.lane(0, 1, 1, self._pipeline._options.get("seed", 0), self._number, cursor)

    def __iter__(self) -> Elements:
        return self

    @not_compiled
    def __next__(self) -> Any:
        while True:
            try:
                return next(self._lane)
            except StopIteration:
                raise
            except Exception as error:
                if not self._skipper.skips(error):
                    raise
                # Nobody looks them up here, and the log has them.
                self._skipper.fresh.clear()

    @property
    def mixed(self) -> list[Mix]:
        """What each :func:`mix` has drawn in this epoch, the outermost one first."""
        return mixed({"lanes": [self._lane.cursor()]})

    def state_dict(self) -> dict[str, Any]:
        """Where the next element is made from."""
        pipeline = self._pipeline
        return {
            **_same.identity(pipeline),
            "seed": pipeline._options.get("seed", 0),
            "epoch": self._number,
            "cursor": self._lane.cursor(),
            "skipped": self._skipper.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where ``state`` was taken."""
        _same.check_same(self._pipeline, state)
        seed = self._pipeline._options.get("seed", 0)
        if state["seed"] != seed:
            from feedrate._state_errors import ResumeError

            raise ResumeError(f"the state was saved with seed={state['seed']}, this pipeline has seed={seed}: use the same")
        self._number = state["epoch"]
        self._pipeline._epoch = max(self._pipeline._epoch, self._number + 1)
        self._lane = self._open(state["cursor"])
        self._skipper.count = state["skipped"]


def _rename(names: dict[str, str], element: Any) -> Any:
    for old, new in names.items():
        if old not in element:
            raise KeyError(f"no field {old!r} to rename; there are {sorted(element)}")
        if new in element and new not in names:
            raise ValueError(f"{old!r} cannot be called {new!r}, since there is a field of that name: leave one out before")
    return {names.get(name, name): value for name, value in element.items()}


def _pipelines(step: str, others: tuple[Any, ...]) -> tuple[Pipeline, ...]:
    for other in others:
        if not isinstance(other, Pipeline):
            raise TypeError(
                f"{step}() takes pipelines, each an argument of its own, but got {type(other).__name__}: from_items() or "
                "from_iterable() makes one of it"
            )
    return others


#: Steps and iteration give NumPy arrays; torch's collation and conversion make tensors of those without a copy.
ARRAYS = "numpy"


def _made(make: str, parents: tuple[Pipeline, ...], args: tuple[Any, ...], options: dict[str, Any] | None = None) -> Pipeline:
    made = StreamPipeline(make, parents, args, options)
    # Built now, so that what cannot be is raised at the user's line. Where elements may be left out, none has a number of its own.
    if not made._native.indexed or made._options.get("on_error", "raise") != "raise":
        return made
    indexed = IndexedPipeline(make, parents, args, options)
    indexed.__dict__["_native"] = made._native
    return indexed


def open(  # noqa: A001 (it opens shards as the builtin opens files)
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str = "auto",
    split: Literal["auto", "shards", "records"] = "auto",
    **options: Any,
) -> Pipeline:
    """The samples of shards: paths, patterns (``*``, ``**``, ``{0000..0099}``, ``{a,b}``) or folders. What a pattern or a folder stands for
    comes in lexical order of its names, and several paths in the order in which they are given.

    Each sample is a dict. Nothing is unpickled, and no name in the data leads outside of it; compressed files (gzip, zstd, lz4, xz,
    bz2) are found by content. ``docs/pipelines.md`` lists the formats and their options.

    Args:
        paths: one, or several. An error when nothing matches.
        format: ``"auto"`` looks at the content of the first file, then at its name. Else one of ``"tar"``, ``"files"``, ``"jsonl"``,
            ``"csv"``, ``"tsv"``, ``"parquet"``, ``"arrow"``, ``"tfrecord"``, ``"npy"``, ``"hdf5"``, ``"mds"``, ``"tokens"``.
        split: how lanes share them: whole ``"shards"``; or ``"records"``, of which every lane reads its own and passes over the rest, which
            keeps the order in which they are stored. ``"auto"`` takes shards where there are at least as many as lanes, else gives each
            lane one
            shard, which it may share with others by records.
        **options: of the format: ``columns``, ``fields``, ``where``, ….
    """
    if isinstance(paths, (set, frozenset)):
        raise TypeError("open() takes paths in an order, and a set has another one in each process: give sorted(paths)")
    try:
        given = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    except TypeError:
        raise TypeError(f"open() takes a path, or several, but got {paths!r}") from None
    return _made("open", (), (given, format, options, split, ARRAYS))


def _no_text(function: str, items: Any) -> None:
    """Refuses what was meant to be a path: text that looks like one has characters for items."""
    if isinstance(items, os.PathLike) or (isinstance(items, str) and (os.sep in items or Path(items).suffix)):
        raise TypeError(
            f"{function}() takes items, and got the {type(items).__name__} {items!r}: open() reads what a path stands for"
        )


def from_items(items: Any) -> Pipeline:
    """The items of a sequence or map-style dataset (``len()`` and ``[index]``): an indexed source. Items are fetched when they are
    wanted, in the worker."""
    _no_text("from_items", items)
    if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
        raise TypeError(
            f"from_items() takes something with len() and [index], but got {type(items).__name__}: use from_iterable()"
        )
    return _made("items", (), (items, ARRAYS))


def from_iterable(items: Iterable[Any]) -> Pipeline:
    """The items of something that can be iterated again and again (not an iterator): a stream without an index. It has to give the same
    items each time; every lane iterates it and keeps its share, so with ``lanes(rows=1)`` it is iterated once. Whatever worker iterates it,
    it is told of none (``get_worker_info()`` is ``None``), for it would give a share only. One that keeps its place in itself (with
    ``state_dict()`` and ``load_state_dict()``) is read by one lane."""
    _no_text("from_iterable", items)
    if hasattr(items, "__next__"):
        raise TypeError(
            "from_iterable() takes something that can be iterated again, and an iterator is used up: give what it comes of"
        )
    iter(items)
    return _made("iterable", (), (items, ARRAYS))


def mix(
    *pipelines: Pipeline,
    weights: Sequence[float] | dict[int, Sequence[float]],
    replacement: bool = False,
) -> Pipeline:
    """Elements of all, each drawn from one of them by weight. ``weights`` may be a schedule: ``{0: [1, 0], 5000: [1, 1]}`` changes them
    from draw 5000 on (in a loader, whose lanes draw by themselves, give or take a unit of each). Without ``replacement`` a stream that
    has run out is left out from then on; with it, it begins again, until all have run out once. ``loader.mixed``, and ``mixed`` of an
    iterator over the pipeline, say what was drawn and what was to be expected."""
    for each in pipelines:
        if not isinstance(each, Pipeline):
            raise TypeError(
                f"mix() takes pipelines, each an argument of its own (mix(a, b, weights=…)), but got a {type(each).__name__}"
            )
    schedule = sorted(weights.items()) if isinstance(weights, dict) else [(0, weights)]
    return _made("mix", pipelines, ([(int(at), [float(w) for w in ws]) for at, ws in schedule], bool(replacement)))


class _Route:
    """The number of the branch that an element is for."""

    def __init__(self, function: Callable[[Any], Any], keys: list[Any]) -> None:
        self.function = function
        self.keys = {key: at for at, key in enumerate(keys)}

    def __call__(self, element: Any) -> int:
        key = self.function(element)
        if key not in self.keys:
            raise KeyError(f"route() got the key {key!r} for an element, and has streams for {list(self.keys)}")
        return self.keys[key]
