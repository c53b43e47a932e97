//! The samplers of PyTorch's C++ front end (`torch::data::samplers`), index by index.
//!
//! They are asked for batches and reset for each epoch, as in C++; [`Batches`] makes one of them the order of a
//! [`DataLoader`](crate::DataLoader). The arrangement of the distributed samplers is not that of Python's: each rank has a contiguous
//! block, and the shuffle is libstdc++'s.
//!
//! The states that [`save`](Sampler::save) gives have the names of libtorch's archives, and what is needed to refuse a wrong one.

mod distributed;
mod single;

pub use distributed::{DistributedRandomSampler, DistributedSequentialSampler};
pub use single::{RandomSampler, SequentialSampler, StreamSampler};

use crate::error::{BoxError, Error};
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

#[cfg(test)]
mod tests;
