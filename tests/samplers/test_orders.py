"""Orders without a Python list, against torch and against what they promise."""

import itertools
import json
import signal
import threading
import time

import numpy as np
import pytest

from feedrate._native import Order

torch = pytest.importorskip("torch")

SIZES = [0, 1, 2, 3, 7, 31, 32, 33, 100, 127, 128, 129, 623, 624, 625, 1000, 5003]


def generator(seed: int, drawn: int = 0) -> torch.Generator:
    made = torch.Generator().manual_seed(seed)
    if drawn:
        torch.randint(10, (drawn,), generator=made)
    return made


def state(made: torch.Generator) -> bytes:
    return made.get_state().numpy().tobytes()


@pytest.mark.parametrize("drawn", [0, 5, 624])
def test_randperm_is_torchs(drawn: int) -> None:
    for n in SIZES:
        made = generator(n + 1, drawn)
        order, after = Order.torch_randperm(n, state(made))
        assert order.take(0, n) == torch.randperm(n, generator=made).tolist()
        assert after == state(made)


def test_a_long_randperm_is_torchs() -> None:
    n = 3_000_000
    made = generator(3)
    order, after = Order.torch_randperm(n, state(made))
    assert np.array_equal(np.asarray(order.take(0, n)), torch.randperm(n, generator=made).numpy())
    assert after == state(made)
    assert order.nbytes == 4 * n


@pytest.mark.parametrize("replacement", [False, True])
def test_random_is_an_epoch_of_torchs_sampler(replacement: bool) -> None:
    for n, num_samples in itertools.product((1, 2, 31, 33, 100, 700), (None, 1, 31, 32, 33, 100, 200, 250)):
        made = generator(5)
        sampler = torch.utils.data.RandomSampler(range(n), replacement, num_samples, made)
        before = state(made)
        for _ in range(2):
            expected = list(sampler)
            order, before = Order.torch_random(n, before, replacement=replacement, num_samples=num_samples)
            assert order.take(0, len(order)) == expected
            assert before == state(made)


def test_draws_from_very_many_are_torchs() -> None:
    for high in (2**28 - 1, 2**28, 2**31, 2**32, 2**32 + 1, 2**40):
        made = generator(1)
        order, after = Order.torch_random(high, state(made), replacement=True, num_samples=70)
        expected = torch.cat([torch.randint(high, (count,), generator=made) for count in (32, 32, 6)])
        assert order.take(0, 70) == expected.tolist()
        assert after == state(made)


@pytest.mark.parametrize("kind", ["uniform", "skewed", "zeros at the end", "zeros", "tiny"])
def test_multinomial_is_torchs(kind: str) -> None:
    for n, replacement in itertools.product((1, 2, 5, 64, 65, 1000, 20_000), (False, True)):
        check_multinomial(n, kind, replacement)


def check_multinomial(n: int, kind: str, replacement: bool) -> None:
    weights = np.random.default_rng(n).random(n) + 0.01
    if kind == "skewed":
        weights **= 9
    elif kind == "zeros at the end":
        weights[n // 2 + 1 :] = 0.0
    elif kind == "zeros":
        weights[np.arange(n) % 3 > 0] = 0.0
    elif kind == "tiny":
        weights *= 1e-300
    positive = int((weights > 0).sum())
    # Without replacement, weights of zero come when the others have run out.
    for count in {1, max(positive // 2, 1), positive, n} | ({2 * n + 3} if replacement else set()):
        made = generator(count)
        order, after = Order.torch_multinomial(weights, count, replacement, state(made))
        expected = torch.multinomial(torch.as_tensor(weights), count, replacement, generator=made)
        assert order.take(0, count) == expected.tolist()
        assert after == state(made)


def test_multinomial_raises_as_torch() -> None:
    made = generator(0)
    cases = [
        ([1.0, float("nan")], 1, False),
        ([1.0, float("inf")], 1, False),
        ([1.0, -1.0], 1, False),
        ([0.0, 0.0], 1, False),
        ([0.0, 0.0], 2, True),
        ([1.0, 2.0], 3, False),
        ([1.0, 2.0], 0, True),
    ]
    for weights, count, replacement in cases:
        with pytest.raises(RuntimeError) as theirs:
            torch.multinomial(torch.tensor(weights, dtype=torch.float64), count, replacement, generator=made)
        with pytest.raises(RuntimeError) as ours:
            Order.torch_multinomial(np.array(weights), count, replacement, state(made))
        assert str(ours.value) == str(theirs.value)


def test_distributed_is_torchs() -> None:
    for shuffle, seed in itertools.product((False, True), (0, 7, 2**32, 2**63, -1)):
        order = Order.torch_distributed(50, seed, shuffle)
        shares = [torch.utils.data.DistributedSampler(range(50), 5, rank, shuffle, seed) for rank in range(5)]
        assert [order.take(rank, 50, 5) for rank in range(5)] == [list(share) for share in shares]


def test_bad_states_are_refused() -> None:
    good = state(generator(0))
    with pytest.raises(ValueError, match="5056 bytes, got 10"):
        Order.torch_randperm(5, good[:10])
    with pytest.raises(ValueError, match="never seeded"):
        Order.torch_randperm(5, bytes(len(good)))
    with pytest.raises(ValueError, match="no samples to draw from"):
        Order.torch_random(0, good, num_samples=1)


def test_of_copies_a_buffer() -> None:
    narrow = np.array([5, 0, 2**32 - 1], dtype=np.int64)
    wide = np.array([5, -1, 2**40], dtype=np.int64)
    for array, width in ((narrow, 4), (wide, 8)):
        order = Order.of(array)
        assert order.nbytes == 3 * width
        expected = array.tolist()
        array[:] = 9
        assert order.take(0, 3) == expected
        assert [order[i] for i in (0, 1, 2, -1, -3)] == [*expected, expected[-1], expected[0]]
    assert len(Order.of(np.array([], dtype=np.int64))) == 0
    for bad in (np.zeros(3, dtype=np.int32), np.zeros((2, 2), dtype=np.int64), np.zeros(6, dtype=np.int64)[::2], [1, 2]):
        with pytest.raises((TypeError, BufferError)):
            Order.of(bad)  # type: ignore[arg-type]


def test_access() -> None:
    order = Order.sequential(10)
    assert len(order) == 10
    assert list(order) == list(range(10))
    assert order.take(2, 100) == list(range(2, 10))
    assert order.take(1, 8, 3) == [1, 4, 7]
    assert order.take(20, 30) == order.take(5, 5) == order.take(6, 5) == []
    for position in (10, -11):
        with pytest.raises(IndexError, match=str(position)):
            order[position]
    with pytest.raises(ValueError, match="step is 0"):
        order.take(0, 1, 0)
    assert order.position_of(9) == 9
    assert order.position_of(10) is None
    assert order.position_of(-1) is None
    with pytest.raises(ValueError, match="sequential and keyed orders only"):
        Order.of(np.arange(3)).position_of(1)


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches(drop_last: bool) -> None:
    for n, batch_size, world in itertools.product((0, 1, 7, 8, 9, 24), (1, 3, 8), (1, 2, 3)):
        check_batches(n, batch_size, world, drop_last)
    order = Order.sequential(3)
    with pytest.raises(ValueError, match="must be at least 1"):
        order.batches(0, 0, False)
    with pytest.raises(ValueError, match="below world"):
        order.batches(0, 1, False, rank=2, world=2)


def check_batches(n: int, batch_size: int, world: int, drop_last: bool) -> None:
    order = Order.of(np.arange(n) * 10)
    for start, rank in itertools.product((0, 2, n, n + 5), range(world)):
        expected = []
        for k in itertools.count():
            positions = [start + k * batch_size * world + rank + j * world for j in range(batch_size)]
            batch = [p * 10 for p in positions if p < n]
            if not batch or (drop_last and len(batch) < batch_size):
                break
            expected.append(batch)
        assert list(order.batches(start, batch_size, drop_last, rank=rank, world=world)) == expected


def test_keyed_orders() -> None:
    order = Order.keyed(1000, 7, 0)
    assert sorted(order.take(0, 1000)) == list(range(1000))
    assert [order.position_of(index) for index in order.take(0, 1000)] == list(range(1000))
    assert order.take(0, 1000) == Order.keyed(1000, 7, 0).take(0, 1000)
    others = [Order.keyed(1000, 8, 0), Order.keyed(1000, 7, 1), Order.keyed(1000, -7, 0)]
    assert all(other.take(0, 1000) != order.take(0, 1000) for other in others)
    assert Order.keyed(1000, -1, 0).take(0, 9) == Order.keyed(1000, 2**64 - 1, 2**64).take(0, 9)


@pytest.mark.parametrize("n", [10**10, 2**63 - 1])
def test_keyed_orders_of_any_size(n: int) -> None:
    order = Order.keyed(n, 1, 2)
    assert len(order) == n
    assert order.nbytes == 0
    places = [0, 1, n // 2, n - 1]
    indices = [order[place] for place in places]
    assert len(set(indices)) == 4
    assert all(0 <= index < n for index in indices)
    assert [order.position_of(index) for index in indices] == places
    assert order[-1] == order[n - 1]
    assert next(order.batches(n - 3, 8, False)) == order.take(n - 3, n)


def test_the_largest_keyed_order() -> None:
    order = Order.keyed(2**63, 0, 0)
    assert order.position_of(order.take(2**63 - 1, 2**63)[0]) == 2**63 - 1
    with pytest.raises(OverflowError):
        len(order)
    with pytest.raises(ValueError, match=r"2\^63"):
        Order.keyed(2**63 + 1, 0, 0)


def test_frozen_orders() -> None:
    """A change here changes every user's shuffle; the Rust crate has the same values."""
    assert json.dumps({n: Order.keyed(n, 1, 2).take(0, 4) for n in (10, 2000, 10**10)}) == FROZEN


FROZEN = '{"10": [2, 9, 0, 5], "2000": [710, 1277, 1559, 1139], "10000000000": [3779034785, 2858040312, 5774626912, 2729208523]}'


def test_the_gil_is_released_while_an_order_is_drawn() -> None:
    before = state(generator(0))
    times: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            times.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.perf_counter()
    Order.torch_randperm(8_000_000, before)
    ended = time.perf_counter()
    done.set()
    thread.join()
    assert sum(begun < moment < ended for moment in times) >= 3


def test_a_signal_interrupts_a_long_draw() -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = state(generator(0))
    old = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
        with pytest.raises(Interrupted):
            Order.torch_random(10_000_000, before, num_samples=400_000_000)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)


def test_iterators_can_be_shared_by_threads() -> None:
    """Each batch goes to one of them."""
    batches = Order.sequential(40_000).batches(0, 7, False)
    found: list[list[list[int]]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(batches)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = sorted(itertools.chain.from_iterable(found))
    assert list(itertools.chain.from_iterable(everything)) == list(range(40_000))
