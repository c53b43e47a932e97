"""Whether a loader can go on exactly where a state was taken."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

from feedrate import _lanes, _orders, _sampler
from feedrate._errors import short
from feedrate._plan import Cut
from feedrate._progress import options, progress
from feedrate._state_errors import ResumeError
from feedrate._state_form import check_form

#: Of the states.
FORMAT = 1


def _is_batch_sampler(sampler: Any) -> bool:
    """One that only cuts another sampler's indices into batches."""
    data = sys.modules.get("torch.utils.data")
    return type(sampler) is _sampler.BatchSampler or (data is not None and type(sampler) is data.BatchSampler)


def _overridden(kind: type, name: str) -> bool:
    """Whether a user's class has another one of these."""
    for each in kind.__mro__:
        if name in each.__dict__:
            return not each.__module__.startswith(("feedrate.", "torch.utils.data."))
    return False


def ordering(loader: Any) -> tuple[Any, Cut | None]:
    """The sampler that decides the order, and how it is cut; ``None`` when it gives index objects itself."""
    if any(_overridden(type(loader), name) for name in ("_index_sampler", "_auto_collation")):
        return loader._index_sampler, None if loader._auto_collation else Cut(None, False)
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler, Cut(None, False)
    if _is_batch_sampler(batches):
        return batches.sampler, Cut(batches.batch_size, batches.drop_last)
    return batches, None


#: Parts of a state that are small, and its loader's own. Generators tell by themselves when they cannot be read.
_OWN = ("epoch", "batches", "seed", "key", "pipeline seed", "skip", "ahead", "ahead of", "draws", "over")


def signed(state: dict[str, Any]) -> dict[str, Any]:
    """With what tells that its parts belong together."""
    return {**state, "sum": _sum(state)}


def _sum(state: dict[str, Any]) -> str:
    plan = {name: value for name, value in state["plan"].items() if name not in ("sampler", "lanes")}
    lanes = state["plan"].get("lanes")
    parts = {name: state[name] for name in _OWN if name in state}
    text = json.dumps([parts, plan, None if lanes is None else sorted(map(str, lanes))], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_whole(state: dict[str, Any]) -> None:
    """Refuses a state in which there is something of another one."""
    if state.get("sum", found := _sum(state)) != found:
        raise ResumeError(
            "the state is not as state_dict() gave it: its parts are of two states, or one was changed. torch.distributed.checkpoint does "
            "that to a state that is a dict, for it fills in what a fresh loader's state has: save it in one piece, as "
            "pickle.dumps(loader.state_dict())"
        )


def check_state(loader: Any, state: dict[str, Any], now: dict[str, Any], said: int | None) -> None:
    """Raises :class:`ResumeError` when ``loader`` cannot go on exactly where ``state`` was taken. ``now`` is the loader's own plan,
    ``said`` the seed that the user gave to its pipeline."""
    if not isinstance(state, dict):
        raise ResumeError(f"a state of a loader is a dict, got {type(state).__name__}: load what state_dict() gave")
    if state.get("feedrate") != FORMAT:
        found = (
            f"its version is {state['feedrate']!r}"
            if "feedrate" in state
            else f"it has the keys {short(sorted(map(str, state)))}"
        )
        raise ResumeError(f"not a state of this version of feedrate's loader: {found}, this one reads version {FORMAT}")
    check_form(state)
    plan = state["plan"]
    if plan["kind"] != now["kind"]:
        raise ResumeError(
            f"the state was saved with an order of the kind {plan['kind']!r}, this loader has {now['kind']!r}: give it the same "
            "kind of dataset and sampler (shuffle, sampler, batch_sampler)"
        )
    saved_facts, facts = plan["facts"], now["facts"]
    if plan["kind"] == "lanes":
        _lanes.check_state(loader, plan, over=bool(state.get("over")))
    else:
        _orders.check_same(saved_facts, facts, "an order")
    _check_ranks(loader, plan)
    workers = state.get("workers")
    if workers is not None and max(1, workers["count"]) != max(1, loader.num_workers):
        what = "streams" if plan["kind"] == "stream" else "states of the dataset"
        raise ResumeError(
            f"the state holds the {what} of {workers['count']} workers, each with its own, this loader has "
            f"num_workers={loader.num_workers}: use num_workers={workers['count']}, or a map-style dataset "
            "without state_dict(), which any number of workers can take up"
        )
    if workers is not None and any(stand is not None and stand.get("lost") for stand in workers["each"]):
        raise ResumeError(
            "the state was saved behind an epoch that was left before its end, before each of the persistent workers had given a batch of "
            "the next one: their copies of the dataset had gone on by batches that nobody received. Take the state some batches later, or "
            "use persistent_workers=False"
        )
    key, given = state.get("key"), options(loader)
    if key is not None and given.seeding != "sample" and plan["kind"] != "lanes":
        raise ResumeError(
            'the state was saved with seeding="sample", whose random numbers go on exactly, this loader has '
            f'seeding="{given.seeding}", which would draw others: use seeding="sample"'
        )
    if key is not None and given.seed is not None and given.seed != key:
        raise ResumeError(
            f"the state was saved with seed={key}, this loader has seed={given.seed}: leave seed out, or give {key}"
        )
    seed = state.get("pipeline seed")
    if seed is not None and said is not None and said != seed:
        raise ResumeError(
            f"the state was saved by a pipeline that drew with seed={seed}, here it is seed={said}: leave it out, or give {seed}"
        )
    here, theirs = whose(loader), state.get("ahead of")
    if theirs is not None and theirs != here:
        rank, world, size = (*theirs, None, None, None)[:3]
        raise ResumeError(
            "the state was saved in the middle of deliveries out of order (in_order=False), and says which of its batches were delivered: "
            f"those of rank {rank} of {world} with batch_size={size}. This loader is rank {here[0]} of {here[1]} with "
            f"batch_size={here[2]}: load the state of the same rank, or take states with in_order=True, which any rank can take up"
        )
    if state.get("ahead") and plan["kind"] not in ("sampler", "stream") and plan.get("batch_size") != now.get("batch_size"):
        raise ResumeError(
            f"the state was saved in the middle of deliveries out of order, with batch_size={plan.get('batch_size')}, this loader has "
            f"batch_size={now.get('batch_size')}: use the same"
        )


def whose(loader: Any) -> list[Any]:
    """Which batches a loader counts: rank, number of ranks, and samples in a batch."""
    sampler, cut = ordering(loader)
    ranks = progress(loader).ranks
    known = None if ranks is not None or cut is None else _orders.known(sampler)
    rank, world = (ranks.rank, ranks.world) if ranks is not None else (0, 1) if known is None else (known.rank, known.world)
    return [rank, world, None if cut is None else cut.batch_size]


def _check_ranks(loader: Any, plan: dict[str, Any]) -> None:
    """A state of torch's DistributedSampler is taken up by another number of ranks when nothing is padded or cut."""
    saved = plan.get("ranks")
    if saved is None:
        return
    sampler = ordering(loader)[0]
    world, total, size = sampler.num_replicas, sampler.total_size, plan["facts"]["size"]
    if saved["world"] == world and saved["total"] == total:
        return
    left = size - plan["samples"]
    if saved["total"] != size or total != size or left % world:
        raise ResumeError(
            f"the state was saved by DistributedSampler with num_replicas={saved['world']} ({saved['total']} places for {size} "
            f"samples), this one has num_replicas={world} ({total} places), and {left} samples are left: they would be padded or cut "
            "differently. Use the same num_replicas, or a number that divides both, or distributed= of the loader"
        )
