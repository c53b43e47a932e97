"""What a check of a loader compares, and the words for what differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from feedrate._errors import short
from feedrate._progress import progress
from feedrate._resumable import Resumable


@dataclass(frozen=True)
class Topology:
    """Where a loader runs. ``None``: as ``make_loader`` makes it."""

    workers: int | None
    world: int | None

    def __str__(self) -> str:
        parts = [] if self.workers is None else [f"num_workers={self.workers}"]
        if self.world is not None:
            parts.append(f"{self.world} rank{'s' * (self.world != 1)}")
        return ", ".join(parts) or "as made"


class Cut(NamedTuple):
    """Behind ``step`` batches of an epoch; ``when`` is "before" its ``iter()``, "at" a batch, or "over" when its end was seen."""

    epoch: int
    step: int
    when: Literal["before", "at", "over"]

    def __str__(self) -> str:
        if self.when == "before":
            return "before the first iter()"
        if self.when == "over":
            return f"at the end of epoch {self.epoch}"
        return f"behind {self.step} batch{'es' * (self.step != 1)} of epoch {self.epoch}"


class Batch(NamedTuple):
    """What was delivered: ids of all samples, and of those that are not padding."""

    ids: list[Any]
    own: list[Any]


def plain_ids(ids: Any) -> list[Any]:
    """What ``ids(batch)`` gave, as values that can be compared and counted."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__iter__"):
        ids = [ids]
    return [hashable(i.tolist() if hasattr(i, "tolist") else i) for i in ids]


def hashable(value: Any) -> Any:
    return tuple(map(hashable, value)) if isinstance(value, (list, tuple)) else value


def declared_loss(loader: Any) -> int:
    """Samples of an epoch that the options of a loader of ours allow to be left out, another number for each world size."""
    ranks = progress(loader).ranks if isinstance(loader, Resumable) else None
    if ranks is None:
        return 0
    me: Any = loader
    world = ranks.world
    if me.drop_last:
        return world * (me.batch_size or 1) - 1
    return world - 1 if ranks.remainder == "drop" else 0


def first_difference(want: list[Batch], got: list[Batch]) -> int | None:
    """The first step at which two runs differ; the shorter one's length when it is the front of the other."""
    for step, (one, two) in enumerate(zip(want, got, strict=False)):
        if one.ids != two.ids:
            return step
    return None if len(want) == len(got) else min(len(want), len(got))


def ids_at(batches: list[Batch], step: int) -> Any:
    return batches[step].ids if step < len(batches) else "the end of the epoch"


def flat(batches: list[Batch]) -> list[Any]:
    return [i for batch in batches for i in batch.own]


def of_rank(rank: int, topology: Topology) -> str:
    return "" if topology.world is None else f" on rank {rank}"


def union_difference(want: list[Batch], got: list[Batch], loss: int) -> tuple[Any, Any, str] | None:
    """What all ranks should have and what they have, each sample once; up to ``loss`` samples may be left out on both sides."""
    wanted, found = Counter(flat(want)), Counter(flat(got))
    missing, extra = wanted - found, found - wanted
    if missing.total() <= loss and extra.total() <= loss:
        return None
    parts = []
    if missing:
        parts.append(f"{missing.total()} missing: {short(sorted(missing.elements(), key=str)[:8], 200)}")
    if extra:
        parts.append(f"{extra.total()} too many: {short(sorted(extra.elements(), key=str)[:8], 200)}")
    if missing and extra:
        meaning = "samples are lost and others come again: ranks do not agree on the order, or not on where they are in it"
    elif missing:
        meaning = "samples are lost: each rank cuts off a tail, or goes on behind samples that nobody had"
    else:
        meaning = "samples come twice: ranks overlap, or fill up the last step without a mask that says so"
    return f"{wanted.total()} samples, each once", "; ".join(parts), meaning


def meaning(whole: list[Batch], start: int, got: list[Batch]) -> str | None:
    """In words, what went wrong behind a cut at ``start``; ``None`` if samples came that this epoch does not have."""
    epoch, rest = [b.ids for b in whole], [b.ids for b in got]
    want = epoch[start:]
    if rest == want[: len(rest)]:
        return f"the epoch ends {batches(len(want) - len(rest))} early"
    if rest[: len(want)] == want:
        if not want and start > 0 and rest == epoch:
            return "the epoch was over, and comes again from its start"
        return f"the epoch goes on for {batches(len(rest) - len(want))} behind its end"
    if start > 0 and rest == epoch:
        return "the epoch starts again from its first batch: the position is not in the state, or is not taken up"
    for by in range(1, len(epoch)):
        if by <= len(want) and rest == want[by:]:
            return f"{batches(by)} behind the cut did not come: the state counts batches that were not delivered, such as prefetched ones"
        if by <= start and rest == epoch[start - by :]:
            return f"{batches(by)} from before the cut came again: the state counts fewer than were delivered"
    at = next(k for k in range(len(rest) + 1) if rest[k : k + 1] != want[k : k + 1])
    if at < len(rest) and rest[:at] + rest[at + 1 :] == want:
        return "a batch came twice, or one that is none of this epoch's"
    if at < len(want) and want[:at] + want[at + 1 :] == rest:
        return "a batch was left out"
    known, found = Counter(flat(whole)), Counter(flat(got))
    if found == Counter(i for batch in whole[start:] for i in batch.own):
        return "the same samples came in another order or in other batches: the order of the epoch is not in the state"
    if found.keys() <= known.keys():
        return (
            "samples from before the cut came again and others did not come: the order of the epoch is not in the state, and was made "
            "anew (a sampler that draws it when it is iterated needs state_dict() and load_state_dict(), or a seed)"
        )
    return None


def batches(n: int) -> str:
    return f"{n} batch{'es' * (n != 1)}"


def advice(loader: Any) -> str:
    """For content that differs."""
    text = "A dataset with a hidden state needs state_dict() and load_state_dict(); "
    if isinstance(loader, Resumable):
        if getattr(loader, "seeding", "") == "worker":
            return text + (
                'random numbers drawn in it are not restored with seeding="worker": use seeding="sample" and draw from the process-wide '
                "generators or feedrate.rng(). To compare only which samples come, give ids= (--ids)"
            )
        return (
            text + "random numbers must come from the process-wide generators or feedrate.rng(), not from a generator of its own"
        )
    return text + "random numbers in it have to be in the state. To compare only which samples come, give ids= (--ids)"
