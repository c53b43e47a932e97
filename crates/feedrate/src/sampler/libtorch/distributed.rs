//! Contiguous blocks of an order, one for each rank.

use super::{Sampler, take};
use crate::error::Error;
use crate::random::{Mt19937, libstdcxx};
use crate::state::State;

/// How samples are shared out among ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    size: usize,
    num_replicas: usize,
    rank: usize,
    allow_duplicates: bool,
}

impl Share {
    fn new(size: usize, num_replicas: usize, rank: usize, allow_duplicates: bool) -> Result<Self, Error> {
        if rank >= num_replicas {
            return Err(Error::config(format!(
                "rank {rank} of {num_replicas} replicas: ranks count from 0, so it must be below"
            )));
        }
        Ok(Self {
            size,
            num_replicas,
            rank,
            allow_duplicates,
        })
    }

    fn local(&self) -> usize {
        if self.allow_duplicates {
            self.size.div_ceil(self.num_replicas)
        } else {
            self.size / self.num_replicas
        }
    }

    /// Samples of all ranks. A single one has them all, whatever else is said.
    fn global(&self) -> usize {
        if self.num_replicas == 1 {
            self.size
        } else {
            self.local() * self.num_replicas
        }
    }

    fn begin(&self) -> usize {
        self.rank * self.local()
    }

    fn end(&self) -> usize {
        self.begin() + self.local()
    }

    fn save(&self, position: usize, epoch: Option<u64>) -> State {
        let mut entries = vec![
            ("sample_index_", position.into()),
            ("size", self.size.into()),
            ("num_replicas", self.num_replicas.into()),
            ("rank", self.rank.into()),
            ("allow_duplicates", self.allow_duplicates.into()),
        ];
        entries.extend(epoch.map(|epoch| ("epoch_", epoch.into())));
        State::map(entries)
    }

    /// The position of a state that another one with the same arguments saved.
    fn load(&self, state: &State) -> Result<usize, Error> {
        let fix = "load it into a sampler with the same arguments";
        state.must_be("size", self.size, "samples", "reset the sampler to that size first")?;
        state.must_be("num_replicas", self.num_replicas, "replicas", fix)?;
        state.must_be("rank", self.rank, "rank", fix)?;
        state.must_be("allow_duplicates", self.allow_duplicates, "duplicates allowed", fix)?;
        let position = state.count("sample_index_")?;
        if (self.begin()..=self.end()).contains(&position) {
            Ok(position)
        } else {
            Err(Error::state(format!(
                "position {position}: rank {} has {} to {}",
                self.rank,
                self.begin(),
                self.end()
            )))
        }
    }
}

/// `DistributedRandomSampler`: a contiguous block of one order for all ranks, shuffled by `std::mt19937(epoch)` when it is made
/// (for epoch 0) and at each reset. Takes 4 bytes for each sample of all ranks.
///
/// ```
/// use feedrate::sampler::libtorch::{DistributedRandomSampler, Sampler};
///
/// let mut sampler = DistributedRandomSampler::new(10, 3, 0, true)?;
/// assert_eq!((sampler.next(3), sampler.next(3)), (Some(vec![0, 2, 1]), Some(vec![5])));
/// assert_eq!(sampler.next(3), None);
/// # Ok::<(), feedrate::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DistributedRandomSampler {
    share: Share,
    epoch: u64,
    order: Vec<u32>,
    position: usize,
}

impl DistributedRandomSampler {
    /// Of `size` samples, below 2³² with what is repeated; `rank` has its share of `num_replicas`. With `allow_duplicates` the first
    /// ones are repeated so that all have the same number, otherwise the last ones of the order are left out.
    pub fn new(size: usize, num_replicas: usize, rank: usize, allow_duplicates: bool) -> Result<Self, Error> {
        let mut sampler = Self {
            share: Share::new(size, num_replicas, rank, allow_duplicates)?,
            epoch: 0,
            order: Vec::new(),
            position: 0,
        };
        sampler.reset(None)?;
        Ok(sampler)
    }

    /// Position of the next sample in the order of all ranks.
    pub fn index(&self) -> usize {
        self.position
    }

    /// The epoch of the next reset, or of the order at hand.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Sampler for DistributedRandomSampler {
    type Request = Vec<usize>;

    fn reset(&mut self, new_size: Option<usize>) -> Result<(), Error> {
        let share = Share {
            size: new_size.unwrap_or(self.share.size),
            ..self.share
        };
        let (size, all) = (share.size, share.global());
        let index = |i: usize| u32::try_from(i).map_err(|_| too_many(size));
        index(all)?;
        self.order.clear();
        self.order.reserve_exact(all);
        for i in 0..all {
            self.order.push(index(if i < size { i } else { i - size })?);
        }
        libstdcxx::shuffle(&mut Mt19937::new(self.epoch), &mut self.order);
        self.share = share;
        self.position = share.begin();
        Ok(())
    }

    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        let block = take(&mut self.position, self.share.end(), batch_size)?;
        Some(self.order[block].iter().map(|i| *i as usize).collect())
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn save(&self) -> State {
        self.share.save(self.position, Some(self.epoch))
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        let position = self.share.load(state)?;
        self.epoch = state.number("epoch_")?;
        self.reset(None)?;
        self.position = position;
        Ok(())
    }
}

/// `DistributedSequentialSampler`: a contiguous block of 0, 1, 2, …, begun again at 0 where there are too few for all ranks.
#[derive(Debug, Clone)]
pub struct DistributedSequentialSampler {
    share: Share,
    epoch: u64,
    position: usize,
}

impl DistributedSequentialSampler {
    /// The arguments are those of [`DistributedRandomSampler::new`].
    pub fn new(size: usize, num_replicas: usize, rank: usize, allow_duplicates: bool) -> Result<Self, Error> {
        let share = Share::new(size, num_replicas, rank, allow_duplicates)?;
        Ok(Self {
            share,
            epoch: 0,
            position: share.begin(),
        })
    }

    /// The epoch that was set; it changes nothing.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Position of the next sample, before it is taken modulo the number of samples.
    pub fn index(&self) -> usize {
        self.position
    }
}

impl Sampler for DistributedSequentialSampler {
    type Request = Vec<usize>;

    fn reset(&mut self, new_size: Option<usize>) -> Result<(), Error> {
        self.share.size = new_size.unwrap_or(self.share.size);
        self.position = self.share.begin();
        Ok(())
    }

    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        let block = take(&mut self.position, self.share.end(), batch_size)?;
        Some(block.map(|i| i % self.share.size).collect())
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn save(&self) -> State {
        self.share.save(self.position, None)
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        self.position = self.share.load(state)?;
        Ok(())
    }
}

fn too_many(size: usize) -> Error {
    Error::config(format!(
        "{size} samples are too many for this shuffle, which has room for 2^32 of all ranks: take a keyed permutation"
    ))
}
