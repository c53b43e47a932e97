//! The front door.

mod builder;
mod lanes;
mod plan;
mod resume;
mod source;
#[cfg(feature = "stream")]
mod stream;

use std::fmt;
use std::iter::FusedIterator;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use builder::Builder;
pub use lanes::{LaneSource, LaneWork};
pub use source::{MapSource, Samples, StreamSource};
#[cfg(feature = "stream")]
pub use stream::BatchStream;

use crate::dataset::{Dataset, IterableDataset};
use crate::deliver::{Delivered, Delivery, Failure, Lost, Options};
use crate::error::{Error, WorkerDeath};
use crate::plan::Task;
use crate::state::State as Saved;
use crate::stats::Counters;
use crate::work::{BatchJob, Pool};
use lanes::Seen;
use plan::{EpochPlan, Jobs, Progress};
use resume::Start;
use source::Tail;

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
    next: Start,
    /// Of the epoch that was begun last, which its iterator says is at its end or not.
    current: Option<(Start, Arc<Mutex<Progress>>)>,
    ended: bool,
    len: Option<usize>,
    tail: Option<Tail<B>>,
}

enum State<B> {
    /// Not started; `None` when that failed.
    Planned(Option<MakePool<B>>),
    Running(Box<Delivery<EpochPlan, AnyPool<B>>>),
}

/// What a builder hands over.
struct Parts<B> {
    pool: MakePool<B>,
    jobs: Jobs,
    options: Options,
    timeout: Option<Duration>,
    seed: u64,
    start: Start,
    tail: Option<Tail<B>>,
}

/// User code never runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
            start,
            tail,
        } = parts;
        let len = match &jobs {
            Jobs::Indices(indices) => indices.order().len(),
            Jobs::Stream(_) | Jobs::Lanes(_) => None,
        };
        Self {
            pool: State::Planned(Some(pool)),
            jobs,
            options,
            timeout,
            seed,
            next: start,
            current: None,
            ended: false,
            len,
            tail,
        }
    }

    /// Starts the workers, if they do not run yet.
    fn start(&mut self) -> Result<(), Error> {
        if let State::Planned(make) = &mut self.pool {
            let Some(make) = make.take() else {
                return Err(Error::config(
                    "the workers could not be started before: build a new loader",
                ));
            };
            let delivery = Delivery::new(make()?, self.options);
            self.pool = State::Running(Box::new(delivery));
        }
        Ok(())
    }

    /// Starts the next epoch: the first call starts the workers, and what is left of an epoch before is abandoned. Fails when the
    /// workers cannot be started.
    #[expect(clippy::iter_not_returning_iterator, reason = "starting workers may fail")]
    pub fn iter(&mut self) -> Result<Epoch<'_, B>, Error> {
        self.start()?;
        let State::Running(delivery) = &mut self.pool else {
            return Err(Error::bug("a loader has no pool"));
        };
        let start = self.next.clone();
        let progress = Progress::at(&self.jobs, start.mark, start.lanes.as_deref());
        let progress = Arc::new(Mutex::new(progress));
        let plan = EpochPlan::new(
            self.jobs.clone(),
            start.epoch,
            start.mark,
            start.trusted,
            Arc::clone(&progress),
        );
        self.current = None;
        if let Err(failure) = delivery.begin_from(plan, start.mark.batches) {
            // The next call begins the same epoch.
            let before = lock(&progress).before().cloned();
            if let (Jobs::Indices(indices), Some(before)) = (&self.jobs, before) {
                indices.order().put_back(&before);
            }
            return Err(explain(failure, self.timeout));
        }
        self.next = Start {
            epoch: start.epoch.saturating_add(1),
            ..Start::default()
        };
        self.current = Some((start.clone(), Arc::clone(&progress)));
        self.ended = false;
        let passed = usize::try_from(start.mark.batches).unwrap_or(usize::MAX);
        Ok(Epoch {
            delivery: &mut **delivery,
            timeout: self.timeout,
            left: self.len.map(|len| len.saturating_sub(passed)),
            jobs: &self.jobs,
            in_order: self.options.in_order,
            seed: self.seed,
            start,
            progress,
            delivered: 0,
            failed: false,
            ended: &mut self.ended,
            tail: self.tail.as_ref(),
        })
    }

    /// Where the loader stands, for [`Builder::resume`]: behind the last batch that was handed over, whatever the workers have done
    /// beyond it. Before the first [`iter`](DataLoader::iter) that is the start, and after the end of an epoch the start of the next.
    /// About 500 bytes, or 10 kB where a sampler has a generator. An error for streams and without order.
    ///
    /// ```
    /// use feedrate::{DataLoader, State, dataset};
    ///
    /// let build = || DataLoader::builder(dataset::range(0..10)).batch_size(2).shuffle(true).seed(1);
    /// let mut loader = build().threads(2).build()?;
    /// let mut epoch = loader.iter()?;
    /// let first: Vec<_> = epoch.by_ref().take(2).collect::<Result<_, _>>()?;
    /// let saved = epoch.state()?.to_string();
    /// let rest: Vec<_> = epoch.collect::<Result<_, _>>()?;
    ///
    /// let mut resumed = build().inline().resume(saved.parse()?).build()?;
    /// assert_eq!(resumed.iter()?.collect::<Result<Vec<_>, _>>()?, rest);
    /// assert_eq!((first.len(), rest.len()), (2, 3));
    /// # Ok::<(), feedrate::Error>(())
    /// ```
    pub fn state(&self) -> Result<Saved, Error> {
        let in_order = self.options.in_order;
        if let Some((start, progress)) = &self.current {
            return resume::state(&self.jobs, in_order, self.seed, start, progress, self.ended);
        }
        let progress = Progress::at(&self.jobs, self.next.mark, self.next.lanes.as_deref());
        let progress = Mutex::new(progress);
        resume::state(&self.jobs, in_order, self.seed, &self.next, &progress, false)
    }

    /// Chooses the epoch of the next [`iter`](DataLoader::iter), from 0; later ones count on.
    pub fn set_epoch(&mut self, epoch: u64) {
        // The one before is over.
        self.current = None;
        if epoch != self.next.epoch {
            self.next = Start {
                epoch,
                ..Start::default()
            };
        }
    }

    /// The epoch of the next [`iter`](DataLoader::iter).
    pub fn epoch(&self) -> u64 {
        self.next.epoch
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
            .field("epoch", &self.next.epoch)
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
    jobs: &'a Jobs,
    in_order: bool,
    seed: u64,
    start: Start,
    progress: Arc<Mutex<Progress>>,
    delivered: u64,
    /// No batch can come any more, though the epoch is not at its end.
    failed: bool,
    ended: &'a mut bool,
    tail: Option<&'a Tail<B>>,
}

impl<B> Epoch<'_, B> {
    /// Batches handed over so far; those that a resumed epoch passed over are not counted.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Where the loader stands; see [`DataLoader::state`].
    pub fn state(&self) -> Result<Saved, Error> {
        resume::state(
            self.jobs,
            self.in_order,
            self.seed,
            &self.start,
            &self.progress,
            *self.ended,
        )
    }

    fn over(&self) -> bool {
        self.failed || *self.ended
    }

    /// The batch at this position needs not be planned again.
    fn settle(&mut self, position: u64) {
        self.left = self.left.map(|left| left.saturating_sub(1));
        lock(&self.progress).deliver(position);
    }

    /// What the delivery gives next: turns of lanes without a batch are passed over, and what is left over of lanes comes last.
    fn deliver(&mut self, timeout: Option<Duration>) -> Found<B> {
        loop {
            let found = self.delivery.next(timeout);
            let mut progress = lock(&self.progress);
            let Some(lanes) = &mut progress.lanes else {
                return found;
            };
            match &found {
                Some(Ok(delivered)) => {
                    if matches!(lanes.seen(delivered.position), Seen::Output) {
                        return found;
                    }
                }
                Some(Err(_)) => return found,
                None => {
                    let (samples, number) = lanes.last()?;
                    drop(progress);
                    return Some(Ok(Delivered {
                        position: self.delivery.last().map_or(0, |(at, _)| at + 1),
                        worker: 0,
                        output: self.tail?(samples, self.start.epoch, number),
                    }));
                }
            }
        }
    }
}

/// What a delivery gives.
type Found<B> = Option<Result<Delivered<Result<B, Error>>, Failure<BatchJob, Error, Error>>>;

/// What [`Epoch::try_next`] finds.
#[derive(Debug)]
pub enum Asked<B> {
    /// A batch, or an error in its place.
    Batch(Result<B, Error>),
    /// The next one is not made yet.
    NotReady,
    /// The epoch is over.
    End,
}

impl<B> Epoch<'_, B> {
    /// The next batch if it is there, without waiting for it. Inline loaders make it meanwhile, so they are never not ready.
    ///
    /// ```
    /// use feedrate::{Asked, DataLoader, dataset};
    ///
    /// let mut loader = DataLoader::builder(dataset::range(0..100)).batch_size(10).threads(2).build()?;
    /// let mut epoch = loader.iter()?;
    /// let (mut batches, mut other_work) = (0, 0);
    /// loop {
    ///     match epoch.try_next() {
    ///         Asked::Batch(batch) => batches += usize::from(batch?.len() == 10),
    ///         Asked::NotReady => other_work += 1,
    ///         Asked::End => break,
    ///     }
    /// }
    /// assert_eq!(batches, 10);
    /// # let _ = other_work;
    /// # Ok::<(), feedrate::Error>(())
    /// ```
    pub fn try_next(&mut self) -> Asked<B> {
        self.ask(Some(Duration::ZERO), true)
    }

    fn ask(&mut self, timeout: Option<Duration>, trying: bool) -> Asked<B> {
        if self.over() {
            return Asked::End;
        }
        let result = match self.deliver(timeout) {
            None => {
                *self.ended = true;
                return Asked::End;
            }
            Some(Ok(delivered)) => {
                // One that cannot be handed over is made again behind a state.
                if delivered.output.as_ref().err().is_none_or(Error::may_continue) {
                    self.settle(delivered.position);
                    self.delivered += 1;
                }
                delivered.output
            }
            Some(Err(Failure::TimedOut { .. })) if trying => return Asked::NotReady,
            Some(Err(failure)) => {
                let lost = match &failure {
                    Failure::Lost(lost) => lost.tasks.first().map(|task| task.position),
                    _ => None,
                };
                let error = explain(failure, self.timeout);
                if let Some(position) = lost
                    && error.may_continue()
                {
                    self.settle(position);
                }
                Err(error)
            }
        };
        self.failed = result.as_ref().is_err_and(|error| !error.may_continue());
        Asked::Batch(result)
    }
}

impl<B> Iterator for Epoch<'_, B> {
    type Item = Result<B, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.ask(self.timeout, false) {
            Asked::Batch(result) => Some(result),
            Asked::NotReady | Asked::End => None,
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.left {
            // Errors of a sampler come on top.
            Some(left) if !self.over() => (left, None),
            _ => (0, self.over().then_some(0)),
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
