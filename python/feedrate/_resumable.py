"""What both loaders can tell about where they stand, and take up again."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterator
from typing import Any, Literal

from feedrate import _lanes, _options, _orders, _randoms
from feedrate._coordinator import AgreedSource, Coordinator
from feedrate._fetch import END
from feedrate._pipeline import Mix
from feedrate._plan import OrderPlan
from feedrate._progress import options, progress
from feedrate._ranks import Ranks, around
from feedrate._state import Epoch, draw_base_seed, fresh, is_stream, known_order, owned_generators, said_seed, settle
from feedrate._state_checks import check_state, check_whole, ordering, signed


class Resumable:
    """What both loaders can tell and take up again; their arguments beyond torch's are attributes."""

    workers: Literal["process", "thread", "auto"]
    seeding: Literal["worker", "sample"]
    redo: bool
    items_in_flight: int
    seed: int | None
    snapshot_every_n_steps: int | None
    distributed: Literal["auto"] | tuple[int, int] | None
    remainder: Literal["pad", "drop", "exact"]
    coordinator: Coordinator | None

    def __aiter__(self) -> Any:
        """``async for batch in loader``: a new epoch."""
        iterator: Any = iter(self)  # type: ignore[call-overload]
        return iterator.__aiter__()

    def try_next(self) -> Any:
        """The next batch if it is there, else ``feedrate.NOT_READY`` at once; ``feedrate.END`` at the end of the epoch, and behind that the
        next one begins. The first call begins an epoch, and so does the first one behind :meth:`load_state_dict` or :meth:`set_epoch`.
        Without workers the batch is made in the call."""
        mine = progress(self)
        if mine.asked is None:
            mine.asked = iter(self)  # type: ignore[call-overload]
        try:
            return mine.asked.try_next()
        except StopIteration:
            mine.asked = None
            return END

    @_options.Told
    def skipped(self) -> list[dict[str, Any]]:
        """The bad elements that a pipeline left out by its ``on_error()``, since the loader was made: shard, key, step and reason."""
        return progress(self).skipped

    @_options.Told
    def mixed(self) -> list[Mix]:
        """What each :func:`feedrate.mix` of the pipeline has drawn in this epoch, on this rank, the outermost one first: elements of
        each stream, and how many were to be expected by the weights. Large cursors come with every few batches only, so that behind
        large shuffle windows it lags a little until the epoch's end. ``[]`` without a mix, and before the first batch."""
        epoch = progress(self).epoch
        plan = None if epoch is None else epoch.lanes
        return [] if plan is None else plan.mixed()

    def state_dict(self) -> dict[str, Any]:
        """Where the user stands: what a loader of the same data needs to go on with the next batch.

        Counts the batches that were received, not those on their way. Plain data that JSON can hold, but for what users' own
        ``state_dict()`` methods gave, which is kept as it is. After the end of an epoch it is the start of the next one. Draws
        nothing from any random generator.
        """
        mine, _ = progress(self), options(self)
        if mine.epoch is not None and not mine.epoch.over and mine.loaded is None:
            return signed(mine.epoch.state())
        state = fresh(self, mine.epoch) if mine.loaded is None else copy.deepcopy(mine.loaded)
        if mine.skip:
            state["skip"] = state.get("skip", 0) + mine.skip
        return signed(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next ``iter()`` go on where ``state`` was taken, also with another number or kind of workers, another prefetch
        and, for orders that are known without iterating, another batch size.

        Raises :class:`feedrate.ResumeError` for what cannot go on exactly, and then changes nothing. An empty state is the start.
        """
        if state or state is None:
            state = copy.deepcopy(state)
            check_state(self, state, fresh(self, None)["plan"], said_seed(self))
            generators = owned_generators(self)
            for path, packed in state.get("generators", {}).items():
                if path in generators:
                    _randoms.check(generators[path], packed, "loader")
            check_whole(state)
            settle(self, state)
        mine = progress(self)
        mine.leave_epochs()
        # torch's own name, with persistent workers for the one iterator.
        self._iterator: Any = None
        forget_told(self)
        mine.loaded, mine.epoch = state or None, None
        mine.epochs = state["epoch"] if state else 0
        if state and "key" in state:
            mine.drawn_seed = state["key"]
        mine.pipeline_seed = state.get("pipeline seed") if state else None

    def skip(self, steps: int) -> None:
        """Makes the next ``iter()`` pass over ``steps`` batches. Those of map-style data are not loaded; a stream has to be read to
        know what is in them."""
        if steps < 0:
            raise ValueError(f"skip() takes a number of batches that is not negative, but got {steps}")
        progress(self).skip += steps

    @_options.Told
    def mask(self) -> Any:
        """Which samples of the batch that was delivered last are this rank's own, as an array of bool: with ``distributed`` and
        ``remainder="pad"`` it is ``False`` for those that fill up the last step, with ``"exact"`` it is empty for an empty batch.
        ``None`` before the first batch, and for iterable datasets without ``distributed``; with it, all or none."""
        epoch = progress(self).epoch
        return None if epoch is None else epoch.mask()

    def plan(self, epoch: int, step: int, rank: int | None = None) -> list[Any]:
        """The indices of the samples in the batch at ``step`` of ``epoch``, both from 0, for this rank or another one; ``[]`` for an
        empty batch. Nothing is loaded, and no random generator moves.

        Raises ``IndexError`` behind the last batch, and ``ValueError`` where it cannot be known: for iterable datasets, for samplers
        that have to be iterated, for epochs whose order was drawn and is gone, and for those that will be drawn from torch's
        process-wide generator.
        """
        sampler, cut = ordering(self)
        known = None if is_stream(self) else known_order(self, epoch)
        if known is None or cut is None:
            what = type(self.dataset if is_stream(self) else sampler).__name__  # type: ignore[attr-defined]
            raise ValueError(
                f"what a batch of {what} holds is not known before it is read: plan() needs a map-style dataset and an order that "
                "feedrate knows"
            )
        ranks = progress(self).ranks
        if ranks is not None and rank is not None:
            ranks = Ranks(rank, ranks.world, ranks.remainder)
        plan = OrderPlan(known, cut, None, ranks)
        if ranks is None and rank is not None:
            plan.rank = rank
        if not 0 <= plan.rank < plan.world:
            raise ValueError(f"plan() was asked for rank {rank} of {plan.world}")
        plan.use(_order_of(self, epoch, known))
        try:
            return plan.indices(step)
        except IndexError:
            raise IndexError(f"epoch {epoch} of rank {plan.rank} has no batch at step {step}") from None

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` the epoch of this number, from 0, and tells samplers and dataset that have ``set_epoch``.

        After :meth:`load_state_dict` the epoch of the state goes on where it stopped, and another one starts at its beginning. Without
        it each ``iter()`` is the next epoch; one that was left before its second batch does not count.
        """
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ValueError(f"set_epoch() takes the number of an epoch, from 0, but got {epoch}")
        mine = progress(self)
        choose(mine, epoch)
        me: Any = self
        for part in (me.dataset, *around(me).values()):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)
        forget_told(self)


def choose(mine: Any, epoch: int) -> None:
    """Makes the next epoch the one of this number; that of a state that was loaded goes on where it stopped."""
    mine.leave_epochs()
    if mine.loaded is None or mine.loaded["epoch"] != epoch:
        mine.loaded, mine.epochs = None, epoch


def forget_told(loader: Any) -> int | None:
    """The epoch that the user has told the loader's pipeline since the last one began; it does not hold any more."""
    dataset = loader.dataset
    if not _lanes.is_laned(dataset):
        return None
    told: int | None
    told, dataset._told = dataset._told, None
    return told


@contextlib.contextmanager
def beginning(loader: Any) -> Iterator[None]:
    """Around ``iter(loader)``: where it fails, the next one begins the same epoch, with the state that was loaded and what is to be
    skipped."""
    mine = progress(loader)
    before = mine.loaded, mine.skip, mine.epoch, mine.epochs
    told = forget_told(loader)
    if told is not None:
        loader.dataset._told = told
    try:
        yield
    except BaseException:
        mine.loaded, mine.skip, mine.epoch, mine.epochs = before
        if told is not None:
            loader.dataset._told = told
        raise


def begin_epoch(loader: Any) -> Epoch:
    """The next pass, called as an iterator begins."""
    mine = progress(loader)
    _options.check_ranks(loader)
    told = forget_told(loader)
    if told is not None:
        choose(mine, told)
    last, epoch = mine.epoch, Epoch(loader, mine.loaded, mine.skip + (mine.loaded or {}).get("skip", 0))
    if last is not None and loader._iterator is not None:
        epoch.follow(last)
    mine.loaded, mine.skip, mine.epoch = None, 0, epoch
    if epoch.resumed:
        mine.count(epoch)
    return epoch


def agreed(loader: Any, source: Any, epoch: Epoch, finished: Callable[[Any], Any]) -> Any:
    """Where batches come from: for a stream with ranks, from behind their agreement on its steps. Called once an epoch. ``finished``: what
    is still done in this process to a batch that was made in it."""
    mine = progress(loader)
    if epoch.lanes is not None:
        assert epoch.shape is not None
        source = _lanes.LaneSource(source, epoch.lanes, epoch.shape, loader.collate_fn, finished)
    if mine.ranks is None or not epoch.stream:
        return source
    if mine.meeting is None:
        mine.meeting = options(loader).coordinator or Coordinator()
    epoch.agreed = AgreedSource(source, mine.meeting.begin(mine.ranks), batched=loader.batch_sampler is not None)
    return epoch.agreed


def rank_batches(loader: Any) -> int | None:
    """``len()`` of a map-style loader with ranks."""
    ranks = progress(loader).ranks
    if ranks is None or is_stream(loader):
        return None
    sampler, cut = ordering(loader)
    return ranks.steps(len(sampler), 1 if cut is None else cut.step, cut is not None and cut.drop_last)


def _order_of(loader: Any, epoch: int, known: _orders.Known) -> Any:
    mine = progress(loader)
    current = mine.epoch
    if current is not None and current.number == epoch and current.order() is not None:
        return current.order()
    if known.fixed is not None or known.kind == "sequential":
        return known.draw(None)[0]
    if known.kind == "distributed":
        known.sampler = copy.copy(known.sampler)
        return known.draw(epoch)[0]
    following = mine.epochs if current is None or current.over else current.number + 1
    if epoch < following or known.global_draws() or getattr(known.sampler, "generator", 0) is None:
        raise ValueError(
            f"the order of epoch {epoch} is not known now: it is drawn from a random generator when the epoch begins, and the loader "
            f"is at epoch {mine.epochs}. With a generator of the loader's own later epochs are known, with distributed= all are"
        )
    generators = owned_generators(loader)
    before = {path: _randoms.pack(_randoms.read(g)) for path, g in generators.items()}
    order = None
    try:
        with _randoms.preserved():
            for _ in range(following, epoch + 1):
                if not (loader.num_workers > 0 and loader.persistent_workers and current is not None):
                    draw_base_seed(loader)
                order, _ = known.draw(None)
                known.finish()
    finally:
        for path, state in before.items():
            _randoms.restore(generators[path], state)
    return order
