"""Orders of sample indices, which can be stopped and taken up again anywhere.

Six samplers are PyTorch's, with its arguments, checks and random orders, bit for bit; importing torch is not needed for them, and none
builds a Python list of a whole order:

* :class:`SequentialSampler`, :class:`RandomSampler`, :class:`SubsetRandomSampler`, :class:`WeightedRandomSampler`,
  :class:`BatchSampler`, :class:`DistributedSampler`.

The others are what PyTorch lacks:

* :class:`ShuffleSampler`: a shuffle of any size without memory, a function of (size, seed, epoch).
* :class:`Distributed`: each rank's share of the order of any sampler, the remainder by a stated policy.
* :class:`BucketBatchSampler`: batches of samples of similar length.
* :class:`BudgetBatchSampler`: batches as large as a budget of tokens or pixels allows.
* :class:`RepeatSampler`, :class:`ConcatSampler`: orders one after the other.

>>> from feedrate.samplers import BatchSampler, Distributed, RandomSampler
>>> sampler = BatchSampler(Distributed(RandomSampler(range(10), generator=0), num_replicas=2, rank=1), 2, False)
>>> batches = iter(sampler)
>>> next(batches)
[1, 5]
>>> state = batches.state_dict()  # plain data: json.dumps takes it
>>> sampler.load_state_dict(state)
>>> list(sampler)
[[9, 8], [2]]

All have ``state_dict()`` and ``load_state_dict()``, and so have their iterators, as torchdata's loader expects. A state of other
data is refused with :class:`feedrate.ResumeError`.
"""

from feedrate.samplers._base import Cursor, Sampler
from feedrate.samplers._batch import BatchSampler
from feedrate.samplers._buckets import BucketBatchSampler
from feedrate.samplers._budget import BudgetBatchSampler, Padding
from feedrate.samplers._combine import ConcatSampler, RepeatSampler
from feedrate.samplers._plain import SequentialSampler, ShuffleSampler
from feedrate.samplers._random import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from feedrate.samplers._ranks import Distributed, DistributedSampler

__all__ = [
    "BatchSampler",
    "BucketBatchSampler",
    "BudgetBatchSampler",
    "ConcatSampler",
    "Cursor",
    "Distributed",
    "DistributedSampler",
    "Padding",
    "RandomSampler",
    "RepeatSampler",
    "Sampler",
    "SequentialSampler",
    "ShuffleSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]
