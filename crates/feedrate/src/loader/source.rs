//! What a loader draws from.

use std::fmt;
use std::sync::Arc;

use super::plan::{Indices, Jobs};
use crate::batch::{Allocator, Value};
use crate::dataset::{Dataset, IterableDataset};
use crate::error::Error;
use crate::sampler::{Batches, Sampler, Sequential, Shuffled};
use crate::work::{BatchJob, Collate, Draw, Fetch, Work};

pub(super) mod sealed {
    #[expect(unnameable_types, reason = "that is what seals a trait")]
    pub trait Sealed {}
}

/// What a [`Builder`](super::Builder) builds over: [`MapSource`] or [`StreamSource`].
pub trait Samples: sealed::Sealed + Send + 'static {
    /// One sample.
    type Item: Send + 'static;
    /// What the workers do.
    type Work<B: Send + 'static>: Work<Job = BatchJob, Output = Result<B, Error>>;

    /// Whether workers own streams, which nothing can repeat.
    #[doc(hidden)]
    const STREAM: bool;

    /// Whether a worker does its tasks one sample after the other.
    #[doc(hidden)]
    const SERIAL: bool = Self::STREAM;

    /// Why these samples cannot be had inline, or by workers.
    #[doc(hidden)]
    fn refuses(&self, inline: bool) -> Result<(), Error> {
        let _ = inline;
        Ok(())
    }

    #[doc(hidden)]
    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn work<B: Send + 'static>(
        &self,
        collate: Collate<Self::Item, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
        cut: &Cut,
    ) -> Result<Self::Work<B>, Error>;

    /// Makes the batches that no worker makes.
    #[doc(hidden)]
    fn tail<B: Send + 'static>(
        &self,
        collate: Collate<Self::Item, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
    ) -> Option<Tail<B>> {
        let _ = (collate, allocator, seed);
        None
    }

    #[doc(hidden)]
    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn jobs(self, cut: &Cut, seed: u64) -> Result<Jobs, Error>;
}

/// Makes a batch of samples that are left over, of their epoch and position.
pub(super) type Tail<B> = Box<dyn Fn(Vec<Value>, u64, u64) -> Result<B, Error> + Send + Sync>;

/// How samples are cut into batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// As given; 1 otherwise.
    pub(super) batch_size: Option<usize>,
    pub(super) drop_last: bool,
    /// Whether single samples are given.
    pub(super) unbatched: bool,
}

impl Cut {
    pub(super) fn size(&self) -> Result<usize, Error> {
        match self.batch_size {
            Some(0) => Err(Error::config("batch_size is 0: give at least 1")),
            Some(size) => Ok(size),
            None => Ok(1),
        }
    }
}

/// A [`Dataset`] and the order of its samples.
pub struct MapSource<D> {
    dataset: Arc<D>,
    pub(super) shuffle: bool,
    pub(super) sampler: Option<Box<dyn Sampler<Item = usize>>>,
    pub(super) batch_sampler: Option<Box<dyn Sampler<Item = Vec<usize>>>>,
}

impl<D> MapSource<D> {
    pub(super) fn new(dataset: D) -> Self {
        Self {
            dataset: Arc::new(dataset),
            shuffle: false,
            sampler: None,
            batch_sampler: None,
        }
    }
}

impl<D> fmt::Debug for MapSource<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapSource")
            .field("shuffle", &self.shuffle)
            .finish_non_exhaustive()
    }
}

impl<D> sealed::Sealed for MapSource<D> {}

impl<D: Dataset> Samples for MapSource<D> {
    type Item = D::Item;
    type Work<B: Send + 'static> = Fetch<D, B>;

    const STREAM: bool = false;

    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn work<B: Send + 'static>(
        &self,
        collate: Collate<D::Item, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
        _: &Cut,
    ) -> Result<Fetch<D, B>, Error> {
        Ok(Fetch::new(Arc::clone(&self.dataset), collate, allocator, seed))
    }

    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn jobs(self, cut: &Cut, seed: u64) -> Result<Jobs, Error> {
        let Self {
            dataset,
            shuffle,
            sampler,
            batch_sampler,
        } = self;
        if let Some(batches) = batch_sampler {
            if cut.batch_size.is_some() || cut.drop_last || cut.unbatched || shuffle || sampler.is_some() {
                return Err(Error::config(
                    "batch_sampler decides the batches by itself: leave batch_size, drop_last, unbatched, shuffle and sampler out",
                ));
            }
            return Ok(Jobs::Indices(Indices::of_batches(batches, dataset.len())));
        }
        if shuffle && sampler.is_some() {
            return Err(Error::config("sampler decides the order by itself: leave shuffle out"));
        }
        let sampler: Box<dyn Sampler<Item = usize>> = match sampler {
            Some(sampler) => sampler,
            None if shuffle => Box::new(Shuffled::new(dataset.len(), seed)?),
            None => Box::new(Sequential::new(dataset.len())),
        };
        let batches = Batches::new(sampler, cut.size()?, cut.drop_last)?;
        Ok(Jobs::Indices(Indices::of_samples(batches, cut, dataset.len())?))
    }
}

/// An [`IterableDataset`].
pub struct StreamSource<D> {
    dataset: Arc<D>,
}

impl<D> StreamSource<D> {
    pub(super) fn new(dataset: D) -> Self {
        Self {
            dataset: Arc::new(dataset),
        }
    }
}

impl<D> fmt::Debug for StreamSource<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamSource")
    }
}

impl<D> sealed::Sealed for StreamSource<D> {}

impl<D: IterableDataset> Samples for StreamSource<D> {
    type Item = D::Item;
    type Work<B: Send + 'static> = Draw<D, B>;

    const STREAM: bool = true;

    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn work<B: Send + 'static>(
        &self,
        collate: Collate<D::Item, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
        cut: &Cut,
    ) -> Result<Draw<D, B>, Error> {
        let dataset = Arc::clone(&self.dataset);
        Ok(Draw::new(dataset, collate, allocator, seed, cut.drop_last))
    }

    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn jobs(self, cut: &Cut, _: u64) -> Result<Jobs, Error> {
        Ok(Jobs::Stream(cut.size()?))
    }
}
