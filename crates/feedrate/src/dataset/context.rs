//! What user code may know about the moment in which it runs.

use std::fmt;

use crate::batch::{Allocator, Heap};
use crate::random::{Domain, Key, Keyed};

/// A worker, as its work sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerInfo {
    /// From 0. With threads it is the worker that the batch is booked on; any thread may help with its samples.
    pub id: usize,
    /// Number of workers.
    pub workers: usize,
}

impl Default for WorkerInfo {
    fn default() -> Self {
        Self { id: 0, workers: 1 }
    }
}

/// Where in the epoch a sample or a batch belongs, and what belongs to it: random numbers and memory.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The loader's seed.
    pub seed: u64,
    /// The pass over the data, from 0.
    pub epoch: u64,
    /// In [`Dataset::get`](crate::dataset::Dataset::get): the sample's place in the epoch. In a collate function: the batch's. In
    /// [`IterableDataset::iter`](crate::dataset::IterableDataset::iter): the worker's number.
    pub position: u64,
    /// The worker that does it.
    pub worker: WorkerInfo,
    pub(crate) domain: Domain,
    pub(crate) allocator: &'a dyn Allocator,
}

impl Context<'_> {
    /// Random numbers for random step `step` of this sample (or batch, or worker's stream): the same ones whichever worker does it,
    /// and however often; independent of those of other steps, places, epochs and seeds.
    ///
    /// ```
    /// use feedrate::dataset::{self, Dataset, DatasetExt as _};
    /// use feedrate::{Context, DataLoader};
    ///
    /// const JITTER: u64 = 1;
    /// let noisy = dataset::from_fn(100, |i| Ok(i as f64)).map_with(|x, cx| Ok(x + cx.rng(JITTER).uniform()));
    /// let run = |threads| {
    ///     let mut loader = DataLoader::builder(noisy.clone()).batch_size(8).seed(3).threads(threads).build()?;
    ///     loader.iter()?.collect::<Result<Vec<_>, _>>()
    /// };
    /// assert_eq!(run(1)?, run(4)?);
    /// # Ok::<(), feedrate::Error>(())
    /// ```
    pub fn rng(&self, step: u64) -> Keyed {
        self.key(step).stream()
    }

    /// The key of [`rng`](Context::rng).
    pub fn key(&self, step: u64) -> Key {
        Key {
            seed: self.seed,
            epoch: self.epoch,
            step,
            position: self.position,
            domain: self.domain,
        }
    }

    /// Memory for what the batch keeps: in a process worker the arena that the parent reads, else memory of batches that were
    /// let go.
    pub fn allocator(&self) -> &dyn Allocator {
        self.allocator
    }
}

/// The first sample of epoch 0 under seed 0, for calls outside a loader.
impl Default for Context<'_> {
    fn default() -> Self {
        Self {
            seed: 0,
            epoch: 0,
            position: 0,
            worker: WorkerInfo::default(),
            domain: Domain::Sample,
            allocator: &Heap,
        }
    }
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("seed", &self.seed)
            .field("epoch", &self.epoch)
            .field("position", &self.position)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}
