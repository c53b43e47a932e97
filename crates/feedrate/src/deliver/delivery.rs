//! The driver: fills the window from the plan, lets the pool work, hands batches over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::window::{Lost, Options, Window};
use crate::plan::{Plan, Task};
use crate::stats::Counters;
use crate::work::{Death, Event, Pool};

/// A batch with its place.
#[derive(Debug)]
pub struct Delivered<O> {
    /// Position in the epoch.
    pub position: u64,
    /// The worker that made it.
    pub worker: usize,
    /// What the pool made.
    pub output: O,
}

/// Why there is no batch.
#[derive(Debug)]
pub enum Failure<J, PlanError, PoolError> {
    /// The plan failed at this position; everything before it has been delivered, but for an [urgent](Plan::urgent) error.
    Plan(PlanError),
    /// The pool failed.
    Pool(PoolError),
    /// A worker is gone for good.
    Lost(Lost<J>),
    /// Nothing arrived in time. The next call waits for the same batch again.
    TimedOut {
        /// The worker that has the task which is waited for.
        worker: usize,
        /// Its tasks, the one that it is doing first.
        tasks: Vec<Task<J>>,
    },
}

/// What [`Delivery::next`] gives: a batch, why there is none, or the end.
pub type Next<P, K> = Option<Result<Delivered<<K as Pool>::Output>, FailureOf<P, K>>>;

/// How a delivery of this plan by this pool fails.
pub type FailureOf<P, K> = Failure<<P as Plan>::Job, <P as Plan>::Error, <K as Pool>::Error>;

/// A batch, or its loss, with position and worker.
type Arrived<P, K> = (u64, usize, Result<<K as Pool>::Output, Lost<<P as Plan>::Job>>);

/// What could not be handed over, for a failure that does not wait came in front of it.
type Kept<P, K> = Result<Arrived<P, K>, <P as Plan>::Error>;

/// A plan, a pool and the window between them.
///
/// Not a thread and not a queue: all of it happens inside [`next`](Delivery::next) and [`begin`](Delivery::begin), on
/// the calling thread.
#[derive(Debug)]
pub struct Delivery<P: Plan, K: Pool<Job = P::Job>> {
    plan: Option<P>,
    pool: K,
    window: Window<P::Job, K::Output>,
    options: Options,
    epoch: u64,
    delivered: u64,
    /// The plan has given its last job.
    planned_all: bool,
    /// The plan failed; reported when all that came before is delivered.
    plan_error: Option<P::Error>,
    /// Tasks of the window that their workers have not got yet. Where sending one fails, the next call sends it.
    unsent: VecDeque<(usize, Task<P::Job>)>,
    /// The next call gives it.
    kept: Option<Kept<P, K>>,
    /// A worker lost for good: the epoch cannot be completed, and every further call says so.
    broken: Option<Lost<P::Job>>,
    /// Workers that have died and could not be replaced yet, which is tried again with every call, or were not, until the next epoch.
    vacant: Vec<usize>,
    /// Batches taken whose place in the window is still theirs.
    taken: usize,
    /// Deaths of each worker during its start, in a row.
    failed_starts: Vec<u32>,
    events: Vec<Event<K::Output>>,
    counters: Counters,
    /// Position and worker of what was handed over last, also when that was a failure.
    last: Option<(u64, usize)>,
}

impl<P: Plan, K: Pool<Job = P::Job>> Delivery<P, K> {
    /// Ties a pool to a window; no task is planned before [`begin`](Delivery::begin).
    pub fn new(pool: K, options: Options) -> Self {
        let workers = pool.workers();
        Self {
            plan: None,
            window: Window::new(options, workers),
            failed_starts: vec![0; workers],
            pool,
            options,
            epoch: 0,
            delivered: 0,
            planned_all: false,
            plan_error: None,
            unsent: VecDeque::new(),
            kept: None,
            broken: None,
            vacant: Vec::new(),
            taken: 0,
            events: Vec::new(),
            counters: Counters::default(),
            last: None,
        }
    }

    /// Starts an epoch and fills the window. What is left of an epoch in progress is abandoned: workers finish what they were
    /// given and the results are dropped.
    pub fn begin(&mut self, plan: P) -> Result<(), FailureOf<P, K>> {
        self.begin_at(plan, 0)
    }

    /// As [`begin`](Delivery::begin), with `worker` as the first in turn: where private streams go on in the middle of a round.
    pub fn begin_at(&mut self, plan: P, worker: usize) -> Result<(), FailureOf<P, K>> {
        self.start(plan, worker, 0)
    }

    /// As [`begin`](Delivery::begin), in the middle of an epoch: the first job of the plan has this position.
    pub fn begin_from(&mut self, plan: P, position: u64) -> Result<(), FailureOf<P, K>> {
        self.start(plan, 0, position)
    }

    fn start(&mut self, plan: P, worker: usize, position: u64) -> Result<(), FailureOf<P, K>> {
        self.window.reset(worker, position);
        self.failed_starts.fill(0);
        self.last = None;
        self.delivered = 0;
        self.planned_all = false;
        self.plan_error = None;
        self.unsent.clear();
        self.kept = None;
        self.broken = None;
        self.taken = 0;
        self.plan = Some(plan);
        self.epoch += 1;
        self.fill_vacancies()?;
        self.pool.begin_epoch(self.epoch).map_err(Failure::Pool)?;
        if self.options.ahead { self.fill() } else { Ok(()) }
    }

    /// The next batch, `None` at the end of the epoch. Blocks until it is there, at most for `timeout` since the call.
    ///
    /// Plans the task behind it: where that fails, the batch comes with the next call.
    pub fn next(&mut self, timeout: Option<Duration>) -> Next<P, K> {
        let arrived = match self.arrive(timeout)? {
            Ok(arrived) => arrived,
            Err(failure) => return Some(Err(failure)),
        };
        if self.options.ahead
            && let Err(failure) = self.fill()
        {
            self.kept = Some(Ok(arrived));
            return Some(Err(failure));
        }
        Some(self.hand_over(arrived))
    }

    /// As [`next`](Delivery::next), but the batch keeps its place in the window until [`refill`](Delivery::refill) is called: for a
    /// step behind the pool (pinning) whose batches count as not yet delivered. When all places are with batches that were taken,
    /// nothing can come before a refill: that is a timeout at once, with no tasks.
    pub fn take(&mut self, timeout: Option<Duration>) -> Next<P, K> {
        match self.arrive(timeout)? {
            Ok(arrived) => {
                self.taken += 1;
                Some(self.hand_over(arrived))
            }
            Err(failure) => Some(Err(failure)),
        }
    }

    fn hand_over(
        &mut self,
        (position, worker, result): Arrived<P, K>,
    ) -> Result<Delivered<K::Output>, FailureOf<P, K>> {
        self.last = Some((position, worker));
        let output = result.map_err(Failure::Lost)?;
        self.delivered += 1;
        self.counters.delivered += 1;
        Ok(Delivered {
            position,
            worker,
            output,
        })
    }

    /// Waits for what is next; `None` at the end.
    fn arrive(&mut self, timeout: Option<Duration>) -> Option<Result<Arrived<P, K>, FailureOf<P, K>>> {
        if let Some(kept) = self.kept.take() {
            return Some(kept.map_err(Failure::Plan));
        }
        if !self.options.ahead
            && self.window.is_empty()
            && let Err(failure) = self.plan_one()
        {
            return Some(Err(failure));
        }
        // Looked up once it is wanted; behind what a clock can count there is none.
        let mut deadline: Option<Option<Instant>> = None;
        let mut asked = false;
        loop {
            if let Some(lost) = &self.broken {
                return Some(Err(Failure::Lost(lost.clone())));
            }
            if let Some(arrived) = self.window.take() {
                return Some(Ok(arrived));
            }
            if self.window.is_empty() {
                if self.options.ahead
                    && let Err(failure) = self.fill()
                {
                    return Some(Err(failure));
                }
                if !self.window.is_empty() {
                    continue;
                }
                if self.taken > 0 && !self.planned_all && self.plan_error.is_none() {
                    // Not the end: every place is with batches that were taken.
                    return Some(Err(Failure::TimedOut {
                        worker: 0,
                        tasks: Vec::new(),
                    }));
                }
                return self.at_end().map(Err);
            }
            let left = timeout.and_then(|timeout| {
                let deadline = *deadline.get_or_insert_with(|| Instant::now().checked_add(timeout));
                Some(deadline?.saturating_duration_since(Instant::now()))
            });
            // Even a timeout of zero looks once.
            if left == Some(Duration::ZERO)
                && asked
                && let Some((worker, _)) = self.window.awaited()
            {
                let tasks = self.window.tasks_of(worker);
                return Some(Err(Failure::TimedOut { worker, tasks }));
            }
            asked = true;
            if let Err(failure) = self.pump(left) {
                return Some(Err(failure));
            }
        }
    }

    /// One batch that was taken has been handed over: its place in the window is free, and the next task is planned.
    pub fn refill(&mut self) -> Result<(), FailureOf<P, K>> {
        self.taken = self.taken.saturating_sub(1);
        if self.options.ahead { self.fill() } else { Ok(()) }
    }

    /// The plan of this epoch, if one was begun.
    pub fn plan(&self) -> Option<&P> {
        self.plan.as_ref()
    }

    /// The plan's errors that wait for their turn.
    pub fn plan_errors(&self) -> impl Iterator<Item = &P::Error> {
        let kept = self.kept.as_ref().and_then(|kept| kept.as_ref().err());
        self.plan_error.iter().chain(kept)
    }

    /// The pool, for what only it knows.
    pub fn pool(&self) -> &K {
        &self.pool
    }

    /// The pool, for what only it can do.
    pub fn pool_mut(&mut self) -> &mut K {
        &mut self.pool
    }

    /// Position and worker of the batch, or of the failure in its place, that was handed over last in this epoch.
    pub fn last(&self) -> Option<(u64, usize)> {
        self.last
    }

    /// Batches handed over in this epoch.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// What has been counted since the delivery was made.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn at_end(&mut self) -> Option<FailureOf<P, K>> {
        let error = self.plan_error.take()?;
        // A plan may go on behind its error, as a batch behind a bad one does.
        self.planned_all = false;
        if self.options.ahead
            && let Err(failure) = self.fill()
        {
            self.kept = Some(Err(error));
            return Some(failure);
        }
        Some(Failure::Plan(error))
    }

    /// Plans and sends tasks until the window is full, the plan has no more, or no worker can take one.
    fn fill(&mut self) -> Result<(), FailureOf<P, K>> {
        loop {
            let before = self.window.next_position();
            self.plan_one()?;
            if self.window.next_position() == before {
                return Ok(());
            }
        }
    }

    /// Plans and sends one task, if there is one and room for it.
    fn plan_one(&mut self) -> Result<(), FailureOf<P, K>> {
        self.send()?;
        if self.planned_all || self.plan_error.is_some() || !self.window.has_room(self.taken) {
            return Ok(());
        }
        if !self.window.any_active() {
            // Every private stream has ended: there is no data for a further task.
            self.planned_all = true;
            return Ok(());
        }
        // Asked before the plan is, so that no job is taken from it that no worker can have yet.
        if !self.window.can_pick() {
            return Ok(());
        }
        let Some(plan) = self.plan.as_mut() else { return Ok(()) };
        match plan.next_job() {
            None => self.planned_all = true,
            Some(Err(error)) if plan.urgent(&error) => return Err(Failure::Plan(error)),
            Some(Err(error)) => self.plan_error = Some(error),
            Some(Ok(job)) => {
                let worker = match plan.route(&job) {
                    Some(route) => self.window.routed(route),
                    None => match self.window.pick() {
                        Some(worker) => worker,
                        None => return Ok(()),
                    },
                };
                let task = Task {
                    epoch: self.epoch,
                    position: self.window.next_position(),
                    job: Arc::new(job),
                };
                self.unsent.push_back((worker, task.clone()));
                self.window.sent(worker, task);
                self.send()?;
            }
        }
        Ok(())
    }

    /// Sends what is in the window and not yet with its worker.
    fn send(&mut self) -> Result<(), FailureOf<P, K>> {
        while let Some((worker, task)) = self.unsent.front() {
            self.pool.submit(*worker, task).map_err(Failure::Pool)?;
            self.unsent.pop_front();
        }
        Ok(())
    }

    /// Waits for the pool once and books what it reports.
    fn pump(&mut self, timeout: Option<Duration>) -> Result<(), FailureOf<P, K>> {
        self.fill_vacancies()?;
        self.send()?;
        let mut events = std::mem::take(&mut self.events);
        let begun = Instant::now();
        let waited = self.pool.wait(timeout, &mut events);
        self.counters.waited += begun.elapsed();
        let mut result = waited.map_err(Failure::Pool);
        for event in events.drain(..) {
            if let Err(failure) = self.book(event) {
                result = Err(failure);
            }
        }
        self.events = events;
        result
    }

    fn book(&mut self, event: Event<K::Output>) -> Result<(), FailureOf<P, K>> {
        match event {
            Event::Done {
                worker,
                epoch,
                position,
                output,
            } => {
                self.failed_starts[worker] = 0;
                if !self.window.done(worker, epoch, position, output) {
                    self.window.note_completed(worker, epoch, position);
                }
                Ok(())
            }
            Event::Exhausted {
                worker,
                epoch,
                position,
            } => {
                self.failed_starts[worker] = 0;
                if self.window.exhausted(worker, epoch, position) {
                    self.unsent.retain(|(with, _)| *with != worker);
                    self.pool.retire(worker).map_err(Failure::Pool)?;
                    return if self.options.ahead {
                        self.fill()
                    } else {
                        self.plan_one()
                    };
                }
                Ok(())
            }
            Event::Died { worker, death } => self.bury(worker, death),
        }
    }

    /// A worker died: replace it and send its tasks again, or give up what cannot be done again.
    fn bury(&mut self, worker: usize, death: Death) -> Result<(), FailureOf<P, K>> {
        self.counters.deaths += 1;
        if !self.window.is_active(worker) && death.ready {
            // Its stream had ended: nothing is lost. The next epoch finds a new worker.
            return self.replace(worker);
        }
        let (tasks, mut twice) = self.window.died(worker, death.ready);
        if !death.ready {
            self.failed_starts[worker] += 1;
            twice = self.failed_starts[worker] >= 2;
        }
        let never_started = twice && !death.ready;
        let lost = |tasks: &[Task<P::Job>], death: Death| Lost {
            worker,
            death,
            tasks: tasks.to_vec(),
            twice,
            delivered: self.delivered,
        };
        if !self.options.redo || self.options.pinned || never_started {
            self.broken = Some(lost(&tasks, death));
            self.vacant.push(worker);
            return Ok(());
        }
        if twice {
            let lost = lost(&tasks[..1], death);
            self.window.give_up(worker, lost);
        }
        self.replace(worker)
    }

    fn fill_vacancies(&mut self) -> Result<(), FailureOf<P, K>> {
        while let Some(worker) = self.vacant.pop() {
            self.replace(worker)?;
        }
        Ok(())
    }

    /// Puts a new worker in the place of one that has died, and gives it its tasks again, with those that were planned meanwhile. Where
    /// that fails, the next call tries it.
    fn replace(&mut self, worker: usize) -> Result<(), FailureOf<P, K>> {
        let completed = self.window.completed(worker);
        if let Err(error) = self.pool.revive(worker, self.epoch, completed) {
            self.vacant.push(worker);
            return Err(Failure::Pool(error));
        }
        self.unsent.retain(|(with, _)| *with != worker);
        for task in self.window.tasks_of(worker) {
            self.unsent.push_back((worker, task));
            self.counters.redone += 1;
        }
        self.send()
    }
}
