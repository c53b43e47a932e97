//! PyTorch's distributed order.

use super::{Order, Sampler, must_be, must_have, restored_position, skip_to};
use crate::error::{BoxError, Error};
use crate::state::State;

/// The order of `torch.utils.data.DistributedSampler`: one rank's strided share of a permutation by `seed + epoch`, or of 0, 1, 2, ….
///
/// All ranks have the same number: the first indices of the order are repeated, or with [`drop_last`](Distributed::drop_last) the last
/// ones left out. For other orders, and without repetition, see [`Ranks`](super::Ranks).
///
/// ```
/// use feedrate::sampler::{Distributed, Sampler};
///
/// // list(DistributedSampler(range(10), num_replicas=3, rank=0)) after set_epoch(3)
/// let mut sampler = Distributed::new(10, 3, 0)?;
/// sampler.begin(3)?;
/// let order: Vec<_> = std::iter::from_fn(|| sampler.next().transpose()).collect::<Result<_, _>>()?;
/// assert_eq!(order, [6, 7, 1, 4]);
/// # Ok::<(), feedrate::BoxError>(())
/// ```
#[derive(Debug)]
pub struct Distributed {
    samples: usize,
    replicas: usize,
    rank: usize,
    shuffle: bool,
    seed: u64,
    drop_last: bool,
    epoch: u64,
    /// Made when the first index of the epoch is wanted.
    order: Option<Order>,
    next: usize,
}

impl Distributed {
    /// The share of `rank` among `replicas`, shuffled with seed 0.
    pub fn new(samples: usize, replicas: usize, rank: usize) -> Result<Self, Error> {
        if rank >= replicas {
            return Err(Error::config(format!(
                "rank {rank} of {replicas} replicas: ranks count from 0, so it must be below"
            )));
        }
        Ok(Self {
            samples,
            replicas,
            rank,
            shuffle: true,
            seed: 0,
            drop_last: false,
            epoch: 0,
            order: None,
            next: 0,
        })
    }

    /// Whether to shuffle (the default).
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Must be the same on all ranks; the epoch is added to it.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Leaves out the last indices where they are too few for all ranks, instead of repeating the first ones.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    fn share(&self) -> usize {
        if self.drop_last {
            self.samples / self.replicas
        } else {
            self.samples.div_ceil(self.replicas)
        }
    }
}

impl Sampler for Distributed {
    type Item = usize;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        (self.epoch, self.order, self.next) = (epoch, None, 0);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<usize>, BoxError> {
        if self.next >= self.share() {
            return Ok(None);
        }
        if self.order.is_none() {
            let seed = self.seed.wrapping_add(self.epoch);
            let from = (self.rank + self.next * self.replicas) as u64;
            self.order = Some(Order::distributed_from(self.samples as u64, seed, self.shuffle, from)?);
        }
        // Beyond the end the order begins again, as often as needed.
        let position = (self.rank + self.next * self.replicas) % self.samples;
        let index = self.order.as_ref().and_then(|order| order.at(position as u64));
        self.next += 1;
        Ok(index.map(usize::try_from).transpose()?)
    }

    fn len(&self) -> Option<usize> {
        Some(self.share())
    }

    fn state(&self) -> Option<State> {
        Some(State::map([
            ("sampler", "distributed".into()),
            ("samples", self.samples.into()),
            ("replicas", self.replicas.into()),
            ("rank", self.rank.into()),
            ("shuffle", self.shuffle.into()),
            ("seed", self.seed.into()),
            ("drop_last", self.drop_last.into()),
            ("epoch", self.epoch.into()),
            ("position", self.next.into()),
        ]))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "distributed")?;
        must_have(state, self.samples)?;
        let fix = "resume with the same, or share out another sampler with `Ranks`";
        state.must_be("replicas", self.replicas, "replicas", fix)?;
        state.must_be("shuffle", self.shuffle, "shuffle", "choose the same")?;
        state.must_be("seed", self.seed, "seed", "give the same")?;
        state.must_be("drop_last", self.drop_last, "drop_last", "choose the same")?;
        let position = restored_position(state, self.share())?;
        (self.epoch, self.order, self.next) = (state.number("epoch")?, None, position);
        Ok(())
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        let share = self.share();
        Ok(skip_to(&mut self.next, share, count))
    }
}
