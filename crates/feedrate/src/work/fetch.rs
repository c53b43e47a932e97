//! The two works of a loader: samples by index, and samples of a stream.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Work;
use super::turn::Turn;
use crate::batch::Allocator;
use crate::dataset::{Context, Dataset, Items, IterableDataset, WorkerInfo};
use crate::error::{BoxError, Error, Panic};
use crate::plan::Task;
use crate::random::Domain;

/// What one task of a loader holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchJob {
    /// The user's epoch, from 0.
    pub epoch: u64,
    /// Place of its first sample in the epoch.
    pub first: u64,
    /// Samples to fetch; empty for a stream.
    pub indices: Vec<usize>,
    /// How many samples to draw from a stream.
    pub count: usize,
    /// Units of a pipeline's lanes.
    pub turn: Option<Arc<Turn>>,
}

/// Makes a batch of samples, in the worker.
pub type Collate<T, B> = Arc<dyn Fn(Vec<T>, &Context) -> Result<B, BoxError> + Send + Sync>;

/// What all works share.
pub(crate) struct Common<T, B> {
    collate: Collate<T, B>,
    allocator: Arc<dyn Allocator>,
    seed: u64,
}

impl<T, B> Common<T, B> {
    pub(crate) fn new(collate: Collate<T, B>, allocator: Arc<dyn Allocator>, seed: u64) -> Self {
        Self {
            collate,
            allocator,
            seed,
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    fn context(&self, domain: Domain, epoch: u64, position: u64, worker: WorkerInfo) -> Context<'_> {
        Context {
            seed: self.seed,
            epoch,
            position,
            worker,
            domain,
            allocator: &*self.allocator,
        }
    }

    pub(crate) fn collate(&self, worker: WorkerInfo, task: &Task<BatchJob>, samples: Vec<T>) -> Result<B, Error> {
        let cx = self.context(Domain::Batch, task.job.epoch, task.position, worker);
        catch(|| (self.collate)(samples, &cx)).map_err(|(panic, source)| Error::Collate {
            indices: task.job.indices.clone(),
            position: task.position,
            worker: worker.id,
            panic,
            source,
        })
    }
}

/// Runs user code; an error comes with whether it was a panic.
pub(crate) fn catch<T>(user: impl FnOnce() -> Result<T, BoxError>) -> Result<T, (bool, BoxError)> {
    match catch_unwind(AssertUnwindSafe(user)) {
        Ok(result) => result.map_err(|error| (false, error)),
        Err(payload) => Err((true, Panic::from_payload(&*payload).into())),
    }
}

/// Samples by index, each a part of its task; then collation.
pub struct Fetch<D: Dataset, B> {
    dataset: Arc<D>,
    common: Common<D::Item, B>,
}

impl<D: Dataset, B> Fetch<D, B> {
    /// `seed` keys the random numbers that samples and batches find in their [`Context`].
    pub fn new(dataset: Arc<D>, collate: Collate<D::Item, B>, allocator: Arc<dyn Allocator>, seed: u64) -> Self {
        Self {
            dataset,
            common: Common::new(collate, allocator, seed),
        }
    }
}

impl<D: Dataset, B> fmt::Debug for Fetch<D, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch")
            .field("len", &self.dataset.len())
            .finish_non_exhaustive()
    }
}

impl<D: Dataset, B: Send + 'static> Work for Fetch<D, B> {
    type Job = BatchJob;
    type Part = Result<D::Item, Error>;
    type Output = Result<B, Error>;
    type Lane = ();

    const PRIVATE: bool = false;

    fn parts(&self, job: &BatchJob) -> usize {
        job.indices.len()
    }

    fn part(&self, worker: WorkerInfo, task: &Task<BatchJob>, at: usize) -> Self::Part {
        let index = task.job.indices[at];
        let place = task.job.first + at as u64;
        let cx = self.common.context(Domain::Sample, task.job.epoch, place, worker);
        catch(|| self.dataset.get(index, &cx)).map_err(|(panic, source)| Error::Sample {
            index,
            position: task.position,
            worker: worker.id,
            panic,
            source,
        })
    }

    fn ends(&self, part: &Self::Part) -> bool {
        part.is_err()
    }

    fn finish(
        &self,
        worker: WorkerInfo,
        task: &Task<BatchJob>,
        parts: Vec<Self::Part>,
        _: &mut Option<()>,
    ) -> Option<Self::Output> {
        let samples = parts.into_iter().collect::<Result<Vec<_>, _>>();
        Some(samples.and_then(|samples| self.common.collate(worker, task, samples)))
    }
}

/// The next samples of the worker's own stream; then collation.
pub struct Draw<D: IterableDataset, B> {
    dataset: Arc<D>,
    common: Common<D::Item, B>,
    drop_last: bool,
}

impl<D: IterableDataset, B> Draw<D, B> {
    /// As [`Fetch::new`]; `drop_last` leaves out a short last batch, of each worker.
    pub fn new(
        dataset: Arc<D>,
        collate: Collate<D::Item, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
        drop_last: bool,
    ) -> Self {
        Self {
            dataset,
            common: Common::new(collate, allocator, seed),
            drop_last,
        }
    }

    fn failed(index: usize, position: u64, worker: WorkerInfo, error: (bool, BoxError)) -> Error {
        let (panic, source) = error;
        Error::Sample {
            index,
            position,
            worker: worker.id,
            panic,
            source,
        }
    }
}

impl<D: IterableDataset, B> fmt::Debug for Draw<D, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draw")
            .field("drop_last", &self.drop_last)
            .finish_non_exhaustive()
    }
}

/// A worker's stream.
pub struct Stream<T> {
    /// `None` when it has ended.
    items: Option<Items<T>>,
    /// Samples that it has given.
    drawn: usize,
    /// Of the next batch, drawn before an error.
    begun: Vec<T>,
}

impl<T> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("drawn", &self.drawn)
            .finish_non_exhaustive()
    }
}

impl<D: IterableDataset, B: Send + 'static> Work for Draw<D, B> {
    type Job = BatchJob;
    type Part = ();
    type Output = Result<B, Error>;
    type Lane = Stream<D::Item>;

    const PRIVATE: bool = true;

    fn part(&self, _: WorkerInfo, _: &Task<BatchJob>, _: usize) {}

    fn finish(
        &self,
        worker: WorkerInfo,
        task: &Task<BatchJob>,
        _: Vec<()>,
        lane: &mut Option<Self::Lane>,
    ) -> Option<Self::Output> {
        let lane = if let Some(lane) = lane {
            lane
        } else {
            let cx = self
                .common
                .context(Domain::Worker, task.job.epoch, worker.id as u64, worker);
            let opened = catch(|| self.dataset.iter(&cx));
            let lane = lane.insert(Stream {
                items: None,
                drawn: 0,
                begun: Vec::new(),
            });
            match opened {
                Ok(items) => lane.items = Some(items),
                // Said once; the stream stays at its end.
                Err(error) => return Some(Err(Self::failed(0, task.position, worker, error))),
            }
            lane
        };
        while lane.begun.len() < task.job.count {
            let Some(items) = lane.items.as_mut() else { break };
            match catch(|| items.next().transpose()) {
                Ok(Some(item)) => {
                    lane.drawn += 1;
                    lane.begun.push(item);
                }
                Ok(None) => lane.items = None,
                Err(error) => {
                    if error.0 {
                        // An iterator that panicked is in no known state.
                        lane.items = None;
                    }
                    lane.drawn += 1;
                    return Some(Err(Self::failed(lane.drawn - 1, task.position, worker, error)));
                }
            }
        }
        let short = lane.begun.len() < task.job.count;
        if lane.begun.is_empty() || (short && self.drop_last) {
            return None;
        }
        let samples = std::mem::take(&mut lane.begun);
        Some(self.common.collate(worker, task, samples))
    }
}
