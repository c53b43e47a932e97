//! What a loader draws from.

use std::fmt;
use std::sync::Arc;

use super::plan::{Indices, Jobs};
use crate::batch::Allocator;
use crate::dataset::{Dataset, IterableDataset};
use crate::error::Error;
use crate::sampler::{Batches, Sampler, Sequential, Shuffled};
use crate::work::{BatchJob, Collate, Draw, Fetch, Work};

mod sealed {
    #[expect(unnameable_types, reason = "that is what seals a trait")]
    pub trait Sealed {}
}

/// What a [`Builder`](super::Builder) builds over: [`MapSource`] or [`StreamSource`].
pub trait Samples: sealed::Sealed + Send + 'static {
    /// One sample.
    type Item: Send + 'static;
    /// What the workers do.
    type Work<B: Send + 'static>: Work<Job = BatchJob, Output = Result<B, Error>>;

    /// Whether workers own streams.
    #[doc(hidden)]
    const STREAM: bool;

    #[doc(hidden)]
    fn work<B: Send + 'static>(
        &self,
        collate: Collate<Self::Item, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
        drop_last: bool,
    ) -> Self::Work<B>;

    #[doc(hidden)]
    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn jobs(self, cut: &Cut, seed: u64) -> Result<Jobs, Error>;
}

/// How samples are cut into batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// As given; 1 otherwise.
    pub(super) batch_size: Option<usize>,
    pub(super) drop_last: bool,
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

    fn work<B: Send + 'static>(
        &self,
        collate: Collate<D::Item, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
        _: bool,
    ) -> Fetch<D, B> {
        Fetch::new(Arc::clone(&self.dataset), collate, allocator, seed)
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
            if cut.batch_size.is_some() || cut.drop_last || shuffle || sampler.is_some() {
                return Err(Error::config(
                    "batch_sampler decides the batches by itself: leave batch_size, drop_last, shuffle and sampler out",
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

    fn work<B: Send + 'static>(
        &self,
        collate: Collate<D::Item, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
        drop_last: bool,
    ) -> Draw<D, B> {
        Draw::new(Arc::clone(&self.dataset), collate, allocator, seed, drop_last)
    }

    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn jobs(self, cut: &Cut, _: u64) -> Result<Jobs, Error> {
        Ok(Jobs::Stream(cut.size()?))
    }
}
