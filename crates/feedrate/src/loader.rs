//! The front door.

mod builder;
mod source;

use std::fmt;
use std::iter::FusedIterator;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use builder::Builder;
pub use source::{MapSource, Samples, StreamSource};

use crate::dataset::{Dataset, IterableDataset};
use crate::deliver::{Delivery, Failure, Lost, Options};
use crate::error::{Error, WorkerDeath};
use crate::plan::Task;
use crate::sampler::Sampler;
use crate::stats::Counters;
use crate::work::{BatchJob, Pool, catch};

/// Any pool of a loader.
type AnyPool<B> = Box<dyn Pool<Job = BatchJob, Output = Result<B, Error>, Error = Error> + Send>;

/// Starts the workers.
type MakePool<B> = Box<dyn FnOnce() -> Result<AnyPool<B>, Error> + Send>;

/// Batches of a dataset, epoch by epoch.
///
/// Made by [`builder`](DataLoader::builder) or [`stream`](DataLoader::stream). Nothing runs before the first
/// [`iter`](DataLoader::iter), which starts the workers; they live until the loader is dropped. Dropping it waits for what user
/// code does at that moment in threads, and ends processes at once.
pub struct DataLoader<B> {
    pool: State<B>,
    jobs: Jobs,
    options: Options,
    timeout: Option<Duration>,
    seed: u64,
    /// Of the next `iter`.
    epoch: u64,
    len: Option<usize>,
}

enum State<B> {
    /// Not started; `None` when that failed.
    Planned(Option<MakePool<B>>),
    Running(Box<Delivery<EpochPlan, AnyPool<B>>>),
}

/// Where jobs come from.
#[derive(Clone)]
enum Jobs {
    /// Batches of indices.
    Indices(Arc<Mutex<Box<dyn Sampler<Item = Vec<usize>>>>>),
    /// So many samples of a worker's stream, again and again.
    Stream(usize),
}

/// What a builder hands over.
struct Parts<B> {
    pool: MakePool<B>,
    jobs: Jobs,
    options: Options,
    timeout: Option<Duration>,
    seed: u64,
    len: Option<usize>,
}

impl DataLoader<()> {
    /// Begins a loader for samples by index.
    pub fn builder<D: Dataset>(dataset: D) -> Builder<MapSource<D>, Vec<D::Item>> {
        Builder::over(MapSource::new(dataset))
    }

    /// Begins a loader for samples that come one after the other.
    pub fn stream<D: IterableDataset>(dataset: D) -> Builder<StreamSource<D>, Vec<D::Item>> {
        Builder::over(StreamSource::new(dataset))
    }
}

impl<B: Send + 'static> DataLoader<B> {
    fn new(parts: Parts<B>) -> Self {
        let Parts {
            pool,
            jobs,
            options,
            timeout,
            seed,
            len,
        } = parts;
        Self {
            pool: State::Planned(Some(pool)),
            jobs,
            options,
            timeout,
            seed,
            epoch: 0,
            len,
        }
    }

    /// Starts the next epoch: the first call starts the workers, and what is left of an epoch before is abandoned. Fails when the
    /// workers cannot be started.
    #[expect(clippy::iter_not_returning_iterator, reason = "starting workers may fail")]
    pub fn iter(&mut self) -> Result<Epoch<'_, B>, Error> {
        if let State::Planned(make) = &mut self.pool {
            let Some(make) = make.take() else {
                return Err(Error::config(
                    "the workers could not be started before: build a new loader",
                ));
            };
            let delivery = Delivery::new(make()?, self.options);
            self.pool = State::Running(Box::new(delivery));
        }
        let State::Running(delivery) = &mut self.pool else {
            return Err(Error::bug("a loader has no pool"));
        };
        let plan = EpochPlan {
            jobs: self.jobs.clone(),
            epoch: self.epoch,
            first: 0,
            begun: false,
        };
        self.epoch += 1;
        delivery.begin(plan).map_err(|failure| explain(failure, self.timeout))?;
        Ok(Epoch {
            delivery: &mut **delivery,
            timeout: self.timeout,
            left: self.len,
            ended: false,
        })
    }

    /// Chooses the epoch of the next [`iter`](DataLoader::iter), from 0; later ones count on.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// The epoch of the next [`iter`](DataLoader::iter).
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The seed: the one given, or one drawn when the loader was built.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Batches of one epoch, where that is known: not for streams, nor for samplers that do not say.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a length, where one is known, is all there is"
    )]
    pub fn len(&self) -> Option<usize> {
        self.len
    }

    /// What was counted since the workers were started.
    pub fn counters(&self) -> Counters {
        match &self.pool {
            State::Planned(_) => Counters::default(),
            State::Running(delivery) => delivery.counters().clone(),
        }
    }
}

impl<B> fmt::Debug for DataLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoader")
            .field("options", &self.options)
            .field("seed", &self.seed)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// The batches of one epoch; from [`DataLoader::iter`].
///
/// `next` blocks until the batch is there. After an error for which [`Error::may_continue`] holds, it gives the next batch; after
/// any other it gives `None`. Dropping the iterator leaves the rest of the epoch undone.
#[must_use = "an epoch gives nothing until it is iterated"]
pub struct Epoch<'a, B> {
    delivery: &'a mut Delivery<EpochPlan, AnyPool<B>>,
    timeout: Option<Duration>,
    left: Option<usize>,
    ended: bool,
}

impl<B> Epoch<'_, B> {
    /// Batches handed over so far.
    pub fn delivered(&self) -> u64 {
        self.delivery.delivered()
    }
}

impl<B> Iterator for Epoch<'_, B> {
    type Item = Result<B, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let result = match self.delivery.next(self.timeout) {
            None => {
                self.ended = true;
                return None;
            }
            Some(Ok(delivered)) => delivered.output,
            Some(Err(failure)) => Err(explain(failure, self.timeout)),
        };
        match &result {
            Ok(_) => self.left = self.left.map(|left| left.saturating_sub(1)),
            Err(Error::Timeout { .. }) => {}
            Err(error) if error.may_continue() => {
                self.left = self.left.map(|left| left.saturating_sub(1));
            }
            Err(_) => self.ended = true,
        }
        Some(result)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.left {
            // Errors of a sampler come on top.
            Some(left) if !self.ended => (left, None),
            _ => (0, self.ended.then_some(0)),
        }
    }
}

impl<B> FusedIterator for Epoch<'_, B> {}

impl<B> fmt::Debug for Epoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch")
            .field("delivered", &self.delivered())
            .finish_non_exhaustive()
    }
}

/// The jobs of one epoch.
struct EpochPlan {
    jobs: Jobs,
    epoch: u64,
    /// Samples planned so far.
    first: u64,
    begun: bool,
}

impl Iterator for EpochPlan {
    type Item = Result<BatchJob, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let (epoch, first) = (self.epoch, self.first);
        let sampler = match &self.jobs {
            Jobs::Stream(count) => {
                return Some(Ok(BatchJob {
                    epoch,
                    first,
                    indices: Vec::new(),
                    count: *count,
                }));
            }
            Jobs::Indices(sampler) => sampler,
        };
        let mut sampler = sampler.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = self.begun;
        let next = catch(|| {
            if !begun {
                sampler.begin(epoch)?;
                self.begun = true;
            }
            sampler.next()
        });
        match next {
            Ok(None) => None,
            Ok(Some(indices)) => {
                let count = indices.len();
                self.first += count as u64;
                Some(Ok(BatchJob {
                    epoch,
                    first,
                    indices,
                    count,
                }))
            }
            Err((panic, source)) => Some(Err(Error::Sampler { panic, source })),
        }
    }
}

/// What the delivery reports, in terms of samples.
fn explain(failure: Failure<BatchJob, Error, Error>, timeout: Option<Duration>) -> Error {
    let first = |tasks: &[Task<BatchJob>]| tasks.first().map(|task| task.job.indices.clone()).unwrap_or_default();
    match failure {
        Failure::Plan(error) | Failure::Pool(error) => error,
        Failure::TimedOut { worker, tasks } => Error::Timeout {
            worker,
            indices: first(&tasks),
            after: timeout.unwrap_or_default(),
        },
        Failure::Lost(Lost {
            worker,
            death,
            tasks,
            twice,
            delivered,
        }) => Error::WorkerDied(Box::new(WorkerDeath {
            worker,
            pid: death.pid,
            exit_code: death.exit_code,
            signal: death.signal,
            indices: if death.ready { first(&tasks) } else { Vec::new() },
            ready: death.ready,
            twice,
            delivered,
            note: note(death.signal),
        })),
    }
}

/// A hint at the likely cause: the kernel kills with this signal when memory is short.
fn note(signal: Option<i32>) -> Option<String> {
    const SIGKILL: i32 = 9;
    if signal != Some(SIGKILL) {
        return None;
    }
    #[cfg(target_os = "linux")]
    if let (Some(limit), Some(kills)) = (feedrate_shm::memory_limit(), feedrate_shm::oom_kills())
        && kills > 0
    {
        return Some(format!(
            "The memory limit here is {} MiB, and the kernel has killed {kills} processes for want of memory: \
             use fewer workers, a smaller prefetch, or raise the limit.",
            limit >> 20
        ));
    }
    Some("If nobody killed it, memory may have run out (see the kernel's log).".to_owned())
}
