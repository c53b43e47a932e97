//! The jobs of an epoch, and where they stand.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::lanes::{LaneJobs, LanePlan, LaneProgress, Saved};
use super::source::Cut;
use crate::error::{BoxError, Error};
use crate::plan::Plan;
use crate::sampler::{Batches, Sampler};
use crate::state::State;
use crate::work::{BatchJob, catch};

/// Where jobs come from.
#[derive(Clone)]
pub(super) enum Jobs {
    /// Batches of indices.
    Indices(Indices),
    /// So many samples of a worker's stream, again and again.
    Stream(usize),
    /// Turns of a pipeline's lanes.
    Lanes(LaneJobs),
}

/// The order of a loader, shared with the plan of the epoch that is under way.
#[derive(Clone)]
pub(super) struct Indices {
    order: Arc<Mutex<Order>>,
    /// Samples in a batch, where the loader cuts them.
    pub(super) batch_size: Option<usize>,
    pub(super) drop_last: bool,
    /// Samples of the dataset.
    pub(super) samples: usize,
}

/// What gives batches.
pub(super) enum Order {
    Samples(Batches<Box<dyn Sampler<Item = usize>>>),
    Batches(Box<dyn Sampler<Item = Vec<usize>>>),
}

impl Indices {
    pub(super) fn of_samples(
        batches: Batches<Box<dyn Sampler<Item = usize>>>,
        cut: &Cut,
        samples: usize,
    ) -> Result<Self, Error> {
        Ok(Self {
            order: Arc::new(Mutex::new(Order::Samples(batches))),
            batch_size: Some(cut.size()?),
            drop_last: cut.drop_last,
            samples,
        })
    }

    pub(super) fn of_batches(batches: Box<dyn Sampler<Item = Vec<usize>>>, samples: usize) -> Self {
        Self {
            order: Arc::new(Mutex::new(Order::Batches(batches))),
            batch_size: None,
            drop_last: false,
            samples,
        }
    }

    pub(super) fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    fn sampler(&mut self) -> &mut dyn Sampler<Item = Vec<usize>> {
        match self {
            Self::Samples(batches) => batches,
            Self::Batches(batches) => &mut **batches,
        }
    }

    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Samples(batches) => batches.len(),
            Self::Batches(batches) => batches.len(),
        }
    }

    pub(super) fn state(&self) -> Option<State> {
        match self {
            Self::Samples(batches) => batches.state(),
            Self::Batches(batches) => batches.state(),
        }
    }

    pub(super) fn restore(&mut self, state: &State) -> Result<(), Error> {
        self.sampler().restore(state)
    }

    /// Back to where it was before an epoch that could not be begun, as far as it has states.
    pub(super) fn put_back(&mut self, before: &State) {
        if *before != State::Null {
            let _ = catch(|| self.restore(before).map_err(BoxError::from));
        }
    }

    /// Passes over what was delivered before. A sampler with states is trusted and may jump; one without is gone through, and
    /// must give what it gave. Errors in between were seen before.
    fn pass(&mut self, mark: &Mark, trusted: bool) -> Result<(), BoxError> {
        let (wanted, found) = if !trusted {
            let mut again = Mark::default();
            let mut errors = 0;
            while again.batches < mark.batches {
                match self.sampler().next() {
                    Ok(Some(indices)) => again.add(&indices),
                    Ok(None) => break,
                    Err(error) if errors == ERRORS => return Err(error),
                    Err(_) => errors += 1,
                }
            }
            if again.batches == mark.batches && again != *mark {
                return Err(Error::state(format!(
                    "the sampler gives another order than before: {} samples with hash {} in the state, {} with {} here: \
                     make its order depend on the epoch alone, or give it `state` and `restore`",
                    mark.samples, mark.hash, again.samples, again.hash
                ))
                .into());
            }
            (mark.batches, again.batches)
        } else if let Self::Samples(batches) = self {
            let found = batches.skip_samples(usize::try_from(mark.samples)?)?;
            (mark.samples, found as u64)
        } else {
            let found = self.sampler().skip(usize::try_from(mark.batches)?)?;
            (mark.batches, found as u64)
        };
        if wanted == found {
            return Ok(());
        }
        Err(Error::state(format!(
            "the sampler's epoch is shorter than before: {wanted} were delivered in the state, {found} are there: resume with the same \
             data and sampler"
        ))
        .into())
    }
}

/// Errors of a sampler that are taken for ones that were seen before.
const ERRORS: usize = 1 << 16;

fn unpassed(error: &dyn std::error::Error) -> BoxError {
    Error::state(format!(
        "what was delivered before could not be passed over, for the sampler fails there: {error}"
    ))
    .into()
}

/// How far an epoch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) batches: u64,
    pub(super) samples: u64,
    /// 64-bit FNV-1a over the indices, word by word.
    pub(super) hash: u64,
}

impl Default for Mark {
    fn default() -> Self {
        Self {
            batches: 0,
            samples: 0,
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }
}

impl Mark {
    fn add(&mut self, indices: &[usize]) {
        self.batches += 1;
        self.samples += indices.len() as u64;
        for index in indices {
            self.hash = (self.hash ^ *index as u64).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// What an epoch in progress knows of itself.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The sampler's state before the epoch, null where it has none; `None` until it is begun.
    before: Option<State>,
    /// After each batch that is planned and not delivered, the first of which has position `delivered.batches`.
    planned: VecDeque<Mark>,
    delivered: Mark,
    /// Of a pipeline.
    pub(super) lanes: Option<LaneProgress>,
}

impl Progress {
    /// At the start of what is left of an epoch.
    pub(super) fn at(jobs: &Jobs, mark: Mark, saved: Option<&Saved>) -> Self {
        let lanes = match jobs {
            Jobs::Lanes(jobs) => Some(LaneProgress::new(jobs, saved.unwrap_or(&Saved::default()))),
            _ => None,
        };
        Self {
            delivered: mark,
            lanes,
            ..Self::default()
        }
    }

    /// The batch at this position was handed over, or failed for good.
    pub(super) fn deliver(&mut self, position: u64) {
        while self.delivered.batches <= position
            && let Some(mark) = self.planned.pop_front()
        {
            self.delivered = mark;
        }
    }

    pub(super) fn delivered(&self) -> Mark {
        self.delivered
    }

    pub(super) fn before(&self) -> Option<&State> {
        self.before.as_ref()
    }
}

/// The jobs of one epoch, from where it is to begin.
pub(super) struct EpochPlan {
    jobs: Jobs,
    epoch: u64,
    /// What is planned so far.
    planned: Mark,
    /// Whether the sampler of the state had a state itself.
    trusted: bool,
    begun: bool,
    failed: bool,
    lanes: Option<LanePlan>,
    progress: Arc<Mutex<Progress>>,
}

impl EpochPlan {
    pub(super) fn new(jobs: Jobs, epoch: u64, from: Mark, trusted: bool, progress: Arc<Mutex<Progress>>) -> Self {
        let lanes = match (&jobs, &super::lock(&progress).lanes) {
            (Jobs::Lanes(jobs), Some(progress)) => Some(LanePlan::new(jobs, progress)),
            _ => None,
        };
        Self {
            lanes,
            jobs,
            epoch,
            planned: from,
            trusted,
            begun: false,
            failed: false,
            progress,
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        super::lock(&self.progress)
    }

    /// Begins the epoch, and passes over what was delivered before.
    fn begin(&mut self, order: &mut Order) -> Result<(), BoxError> {
        let mut progress = self.progress();
        if progress.before.is_none() {
            progress.before = Some(order.state().into());
        }
        drop(progress);
        order.sampler().begin(self.epoch)?;
        self.begun = true;
        if self.planned.batches > 0 || self.planned.samples > 0 {
            // What cannot be exact is not done at all.
            self.failed = true;
            let passed = catch(|| order.pass(&self.planned, self.trusted));
            passed.map_err(|(_, error)| match error.downcast::<Error>() {
                Ok(error) if error.is_state() => error,
                Ok(error) => unpassed(&*error),
                Err(error) => unpassed(&*error),
            })?;
            self.failed = false;
        }
        Ok(())
    }
}

impl Plan for EpochPlan {
    type Job = BatchJob;
    type Error = Error;

    fn route(&self, job: &BatchJob) -> Option<u64> {
        job.turn.as_ref().map(|turn| turn.row)
    }

    fn next_job(&mut self) -> Option<Result<BatchJob, Error>> {
        let epoch = self.epoch;
        let indices = match &self.jobs {
            Jobs::Lanes(_) => return Some(Ok(self.lanes.as_mut()?.next(epoch, &self.progress)?)),
            Jobs::Stream(count) => {
                return Some(Ok(BatchJob {
                    epoch,
                    first: self.planned.samples,
                    count: *count,
                    ..BatchJob::default()
                }));
            }
            Jobs::Indices(indices) => indices.clone(),
        };
        if self.failed {
            return None;
        }
        let mut order = indices.order();
        let next = catch(|| {
            if !self.begun {
                self.begin(&mut order)?;
            }
            order.sampler().next()
        });
        match next {
            Ok(None) => None,
            Ok(Some(indices)) => {
                let first = self.planned.samples;
                self.planned.add(&indices);
                let mark = self.planned;
                self.progress().planned.push_back(mark);
                Some(Ok(BatchJob {
                    epoch,
                    first,
                    count: indices.len(),
                    indices,
                    turn: None,
                }))
            }
            Err((panic, source)) => Some(Err(match source.downcast::<Error>() {
                Ok(error) if error.is_state() => *error,
                Ok(error) => Error::Sampler { panic, source: error },
                Err(source) => Error::Sampler { panic, source },
            })),
        }
    }
}
