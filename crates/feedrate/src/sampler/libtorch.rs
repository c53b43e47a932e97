//! The samplers of PyTorch's C++ front end (`torch::data::samplers`), index by index.
//!
//! They are asked for batches and reset for each epoch, as in C++; [`Batches`] makes one of them the order of a
//! [`DataLoader`](crate::DataLoader). The arrangement of the distributed samplers is not that of Python's: each rank has a contiguous
//! block, and the shuffle is libstdc++'s.
//!
//! The states that [`save`](Sampler::save) gives have the names of libtorch's archives, and what is needed to refuse a wrong one.

use crate::error::{BoxError, Error};
use crate::random::{Mt19937, libstdcxx};
use crate::sampler::Order;
use crate::state::State;

/// `torch::data::samplers::Sampler`.
pub trait Sampler: Send + 'static {
    /// What is asked of the dataset: indices, or only their number.
    type Request;

    /// Goes to the start of an epoch, of a new number of samples if one is given.
    fn reset(&mut self, new_size: Option<usize>) -> Result<(), Error>;

    /// At most `batch_size` further samples, `None` at the end.
    fn next(&mut self, batch_size: usize) -> Option<Self::Request>;

    /// What `reset` is to shuffle by, where that is an epoch.
    fn set_epoch(&mut self, _epoch: u64) {}

    /// Where it stands.
    fn save(&self) -> State;

    /// Goes to where another one stood, which must have had the same arguments.
    fn load(&mut self, state: &State) -> Result<(), Error>;
}

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

/// `RandomSampler`: `torch::randperm`, drawn when the sampler is made and again at each reset.
///
/// libtorch draws from the global generator; this one has its own, which [`generator`](RandomSampler::generator) shows.
#[derive(Debug)]
pub struct RandomSampler {
    /// Before the order was drawn.
    before: Mt19937,
    generator: Mt19937,
    order: Order,
    position: usize,
}

impl RandomSampler {
    /// Of `size` samples, by a generator.
    pub fn new(size: usize, generator: Mt19937) -> Result<Self, Error> {
        let before = generator.clone();
        let mut generator = generator;
        let order = Order::randperm(size as u64, &mut generator)?;
        Ok(Self {
            before,
            generator,
            order,
            position: 0,
        })
    }

    /// How many samples were given.
    pub fn index(&self) -> usize {
        self.position
    }

    /// The generator, after the order was drawn.
    pub fn generator(&self) -> &Mt19937 {
        &self.generator
    }

    fn size(&self) -> usize {
        usize::try_from(self.order.len()).unwrap_or(usize::MAX)
    }
}

impl Sampler for RandomSampler {
    type Request = Vec<usize>;

    fn reset(&mut self, new_size: Option<usize>) -> Result<(), Error> {
        *self = Self::new(new_size.unwrap_or(self.size()), self.generator.clone())?;
        Ok(())
    }

    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        let size = self.size();
        let block = take(&mut self.position, size, batch_size)?;
        let at = |i: usize| self.order.at(i as u64).and_then(|i| usize::try_from(i).ok());
        Some(block.filter_map(at).collect())
    }

    fn save(&self) -> State {
        State::map([
            ("index", self.position.into()),
            ("size", self.size().into()),
            ("generator", State::bytes(&self.before.to_torch_state())),
        ])
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        let generator = Mt19937::from_torch_state(&state.to_bytes("generator")?);
        let generator = generator.map_err(|error| Error::state(error.to_string()))?;
        let (size, position) = (state.count("size")?, state.count("index")?);
        check(position, size)?;
        *self = Self::new(size, generator)?;
        self.position = position;
        Ok(())
    }
}

/// `SequentialSampler`: 0, 1, 2, …
#[derive(Debug, Clone)]
pub struct SequentialSampler {
    size: usize,
    position: usize,
}

impl SequentialSampler {
    /// Of `size` samples.
    pub fn new(size: usize) -> Self {
        Self { size, position: 0 }
    }

    /// How many samples were given.
    pub fn index(&self) -> usize {
        self.position
    }
}

impl Sampler for SequentialSampler {
    type Request = Vec<usize>;

    fn reset(&mut self, new_size: Option<usize>) -> Result<(), Error> {
        *self = Self::new(new_size.unwrap_or(self.size));
        Ok(())
    }

    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        take(&mut self.position, self.size, batch_size).map(Iterator::collect)
    }

    fn save(&self) -> State {
        State::map([("index", self.position.into()), ("size", self.size.into())])
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        state.must_be("size", self.size, "samples", "reset the sampler to that size first")?;
        let position = state.count("index")?;
        check(position, self.size)?;
        self.position = position;
        Ok(())
    }
}

/// `StreamSampler`: no indices, only how many samples of a stream to fetch.
#[derive(Debug, Clone)]
pub struct StreamSampler {
    epoch_size: usize,
    retrieved: usize,
}

impl StreamSampler {
    /// Ends after `epoch_size` samples.
    pub fn new(epoch_size: usize) -> Self {
        Self {
            epoch_size,
            retrieved: 0,
        }
    }

    /// How many samples were asked for.
    pub fn index(&self) -> usize {
        self.retrieved
    }
}

impl Sampler for StreamSampler {
    type Request = usize;

    fn reset(&mut self, new_size: Option<usize>) -> Result<(), Error> {
        *self = Self::new(new_size.unwrap_or(self.epoch_size));
        Ok(())
    }

    fn next(&mut self, batch_size: usize) -> Option<usize> {
        take(&mut self.retrieved, self.epoch_size, batch_size).map(|block| block.len())
    }

    fn save(&self) -> State {
        State::map([
            ("examples_retrieved_so_far", self.retrieved.into()),
            ("size", self.epoch_size.into()),
        ])
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        state.must_be(
            "size",
            self.epoch_size,
            "samples",
            "reset the sampler to that size first",
        )?;
        let retrieved = state.count("examples_retrieved_so_far")?;
        check(retrieved, self.epoch_size)?;
        self.retrieved = retrieved;
        Ok(())
    }
}

/// One of these samplers as the batches of a [`DataLoader`](crate::DataLoader): each epoch is set and the sampler reset.
///
/// ```
/// use feedrate::sampler::libtorch::{Batches, DistributedRandomSampler};
/// use feedrate::{DataLoader, dataset};
///
/// let sampler = DistributedRandomSampler::new(10, 3, 0, true)?;
/// let mut loader = DataLoader::builder(dataset::range(0..10)).batch_sampler(Batches::new(sampler, 3)?).build()?;
/// let batches: Vec<_> = loader.iter()?.collect::<Result<_, _>>()?;
/// assert_eq!(batches, [vec![0, 2, 1], vec![5]]);
/// # Ok::<(), feedrate::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Batches<S> {
    sampler: S,
    batch_size: usize,
}

impl<S: Sampler<Request = Vec<usize>>> Batches<S> {
    /// Batches of `batch_size`, at least 1.
    pub fn new(sampler: S, batch_size: usize) -> Result<Self, Error> {
        if batch_size == 0 {
            return Err(Error::config("batch_size is 0: give at least 1"));
        }
        Ok(Self { sampler, batch_size })
    }
}

impl<S: Sampler<Request = Vec<usize>>> super::Sampler for Batches<S> {
    type Item = Vec<usize>;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        self.sampler.set_epoch(epoch);
        Ok(self.sampler.reset(None)?)
    }

    fn next(&mut self) -> Result<Option<Vec<usize>>, BoxError> {
        Ok(self.sampler.next(self.batch_size))
    }

    fn len(&self) -> Option<usize> {
        None
    }

    fn state(&self) -> Option<State> {
        Some(self.sampler.save())
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        self.sampler.load(state)
    }
}

/// The next `batch_size` positions below `end`, if there are any.
fn take(position: &mut usize, end: usize, batch_size: usize) -> Option<std::ops::Range<usize>> {
    if *position >= end {
        return None;
    }
    let start = *position;
    *position = start.saturating_add(batch_size).min(end);
    Some(start..*position)
}

fn check(position: usize, size: usize) -> Result<(), Error> {
    if position <= size {
        return Ok(());
    }
    Err(Error::state(format!("position {position} of {size} samples")))
}

fn too_many(size: usize) -> Error {
    Error::config(format!(
        "{size} samples are too many for this shuffle, which has room for 2^32 of all ranks: take a keyed permutation"
    ))
}

#[cfg(test)]
#[path = "libtorch_tests.rs"]
mod tests;
