"""The samplers of torch's C++ front end: values of libtorch 2.14.1, states, refusals."""

import json

import pytest

from feedrate import _native as libtorch


def drain(sampler, batch_size):
    batches = []
    while (batch := sampler.next(batch_size)) is not None:
        batches.append(batch)
    return batches


def test_random_blocks() -> None:
    makes = [libtorch.DistributedRandomSampler(10, 3, rank) for rank in range(3)]
    assert [drain(sampler, 3) for sampler in makes] == [[[0, 2, 1], [5]], [[9, 1, 4], [7]], [[6, 0, 3], [8]]]
    makes = [libtorch.DistributedRandomSampler(10, 3, rank, allow_duplicates=False) for rank in range(3)]
    assert [drain(sampler, 4) for sampler in makes] == [[[2, 4, 6]], [[0, 5, 1]], [[8, 3, 7]]]


def test_sequential_blocks() -> None:
    makes = [libtorch.DistributedSequentialSampler(10, 3, rank) for rank in range(3)]
    assert [drain(sampler, 3) for sampler in makes] == [[[0, 1, 2], [3]], [[4, 5, 6], [7]], [[8, 9, 0], [1]]]
    makes = [libtorch.DistributedSequentialSampler(10, 3, rank, False) for rank in range(3)]
    assert [drain(sampler, 4) for sampler in makes] == [[[0, 1, 2]], [[3, 4, 5]], [[6, 7, 8]]]


def test_epochs_and_sizes() -> None:
    sampler = libtorch.DistributedRandomSampler(10)
    assert drain(sampler, 10) == [[0, 2, 1, 5, 9, 8, 4, 7, 6, 3]]
    sampler.set_epoch(1)
    assert (sampler.epoch(), sampler.index(), sampler.next(1)) == (1, 10, None)
    sampler.reset()
    assert drain(sampler, 10) == [[9, 0, 2, 5, 7, 4, 6, 3, 1, 8]]
    sampler.reset(3)
    assert drain(sampler, 10) == [[1, 0, 2]]


def test_single_process() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(7)
    sampler = libtorch.RandomSampler(10, generator.get_state().numpy().tobytes())
    for _ in range(2):
        assert drain(sampler, 10) == [torch.randperm(10, generator=generator).tolist()]
        assert sampler.generator_state() == generator.get_state().numpy().tobytes()
        sampler.reset()
        generator.set_state(generator.get_state())
    sequential = libtorch.SequentialSampler(5)
    assert drain(sequential, 2) == [[0, 1], [2, 3], [4]]
    stream = libtorch.StreamSampler(7)
    assert drain(stream, 3) == [3, 3, 1]
    stream.reset(2)
    assert (drain(stream, 3), stream.index()) == ([2], 2)


def makes():
    torch = pytest.importorskip("torch")
    state = torch.Generator().manual_seed(3).get_state().numpy().tobytes()
    return [
        lambda: libtorch.DistributedRandomSampler(10, 3, 2),
        lambda: libtorch.DistributedSequentialSampler(10, 3, 2),
        lambda: libtorch.RandomSampler(9, state),
        lambda: libtorch.SequentialSampler(9),
        lambda: libtorch.StreamSampler(9),
    ]


@pytest.mark.parametrize("which", range(5))
def test_saved_and_loaded(which: int) -> None:
    for cut in range(5):
        check_saved_and_loaded(makes()[which], cut)


def check_saved_and_loaded(make, cut: int) -> None:
    sampler = make()
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(4)
        sampler.reset()
    for _ in range(cut):
        sampler.next(3)
    text = json.dumps(sampler.save())
    resumed = make()
    resumed.load(json.loads(text))
    assert resumed.index() == sampler.index()
    assert drain(resumed, 2) == drain(sampler, 2)
    resumed.reset()
    sampler.reset()
    assert drain(resumed, 2) == drain(sampler, 2)


def test_refusals() -> None:
    state = libtorch.DistributedRandomSampler(10, 3, 2).save()
    with pytest.raises(ValueError, match="rank: 2 in the state, 1 here"):
        libtorch.DistributedRandomSampler(10, 3, 1).load(state)
    with pytest.raises(ValueError, match="samples: 10 in the state, 12 here"):
        libtorch.DistributedRandomSampler(12, 3, 2).load(state)
    with pytest.raises(ValueError, match="`sample_index_` is missing"):
        libtorch.DistributedSequentialSampler(10, 3, 2).load({k: v for k, v in state.items() if k != "sample_index_"})
    with pytest.raises(TypeError, match="has a float"):
        libtorch.SequentialSampler(3).load({"index": 1.0, "size": 3})
    with pytest.raises(ValueError, match="position 4 of 3 samples"):
        libtorch.SequentialSampler(3).load({"index": 4, "size": 3})
    with pytest.raises(ValueError, match="rank 3 of 3 replicas"):
        libtorch.DistributedRandomSampler(10, 3, 3)
    with pytest.raises(ValueError, match="too many for this shuffle"):
        libtorch.DistributedRandomSampler(2**33)
    deep: dict = {}
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(TypeError, match="64 levels"):
        libtorch.StreamSampler(3).load(deep)
