//! Where tasks run: inline, in threads, in processes.
//!
//! A pool turns a [`Task`] into an output, *whole, in one place*. The delivery tells it which worker gets
//! which task and asks it what has happened; the pool knows nothing of order, retries or epochs.

mod fetch;
mod inline;
#[cfg(all(feature = "processes", target_os = "linux"))]
pub mod processes;
mod threads;
mod turn;

use std::time::Duration;

pub use fetch::{BatchJob, Collate, Draw, Fetch, Stream};
pub(crate) use fetch::{Common, catch};
pub use inline::Inline;
#[cfg(all(feature = "processes", target_os = "linux"))]
pub use processes::{Launch, Processes, Workers};
pub(crate) use threads::STACK;
pub use threads::{Team, Threads};
pub use turn::Turn;
pub(crate) use turn::{Done, Unit};

use crate::dataset::WorkerInfo;
use crate::plan::Task;

/// How a worker ended without being asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// Process id, if the worker was a process.
    pub pid: Option<u32>,
    /// Exit code, if it exited.
    pub exit_code: Option<i32>,
    /// Signal number, if it was killed by one.
    pub signal: Option<i32>,
    /// Whether it had reported that it was ready before it died; if not, its start is to blame and not a task.
    pub ready: bool,
}

/// What a pool reports.
#[derive(Debug)]
pub enum Event<O> {
    /// A task is done; user errors are part of the output.
    Done {
        /// The worker that did it.
        worker: usize,
        /// Epoch of the task.
        epoch: u64,
        /// Position of the task.
        position: u64,
        /// Its result.
        output: O,
    },
    /// A worker's private stream (an opaque iterable) has ended; the task brought nothing. Whatever the worker did before was
    /// reported before.
    Exhausted {
        /// The worker whose stream ended.
        worker: usize,
        /// Epoch of the task.
        epoch: u64,
        /// Position of the task that found the end.
        position: u64,
    },
    /// A worker is gone, and with it whatever it was doing.
    Died {
        /// The worker.
        worker: usize,
        /// How it ended.
        death: Death,
    },
}

/// A set of workers.
///
/// All methods are called from one thread at a time. A worker does its tasks in the order in which it got them; the oldest task
/// that it has not completed is the one that it is working on.
pub trait Pool {
    /// What a task holds.
    type Job;
    /// What a completed task gives, including a user's error.
    type Output;
    /// What ends the pool's service: an interrupt, a worker that could not be started, a broken channel.
    type Error;

    /// Number of workers, fixed for the pool's life; at least 1.
    fn workers(&self) -> usize;

    /// Hands a task to a worker. Never blocks; a worker that has just died takes it silently, since its death will be
    /// reported by [`wait`](Pool::wait). A task that it fails for is not with the worker: it is submitted again.
    fn submit(&mut self, worker: usize, task: &Task<Self::Job>) -> Result<(), Self::Error>;

    /// Appends what has happened to `events`. Blocks until there is something, at most for `timeout` (for ever with `None`);
    /// returns without an event only when the timeout has passed.
    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<Self::Output>>) -> Result<(), Self::Error>;

    /// Tells every worker that the tasks of a new epoch follow.
    fn begin_epoch(&mut self, epoch: u64) -> Result<(), Self::Error>;

    /// Puts a new worker in the place of one that was reported as dead. `completed` is the last task of it that was
    /// received, from which state that rides with completions can be taken up.
    fn revive(&mut self, worker: usize, epoch: u64, completed: Option<(u64, u64)>) -> Result<(), Self::Error>;

    /// The worker's stream has ended: it gets no further task in this epoch, and those that it still has need not be done. A pool that
    /// will not run another epoch may end it.
    fn retire(&mut self, worker: usize) -> Result<(), Self::Error>;
}

impl<K: Pool + ?Sized> Pool for Box<K> {
    type Job = K::Job;
    type Output = K::Output;
    type Error = K::Error;

    fn workers(&self) -> usize {
        (**self).workers()
    }

    fn submit(&mut self, worker: usize, task: &Task<K::Job>) -> Result<(), K::Error> {
        (**self).submit(worker, task)
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<K::Output>>) -> Result<(), K::Error> {
        (**self).wait(timeout, events)
    }

    fn begin_epoch(&mut self, epoch: u64) -> Result<(), K::Error> {
        (**self).begin_epoch(epoch)
    }

    fn revive(&mut self, worker: usize, epoch: u64, completed: Option<(u64, u64)>) -> Result<(), K::Error> {
        (**self).revive(worker, epoch, completed)
    }

    fn retire(&mut self, worker: usize) -> Result<(), K::Error> {
        (**self).retire(worker)
    }
}

/// How a task becomes an output: what the pools of this crate run.
///
/// Either a task has parts that any threads can do in any order ([`Fetch`]: one part for each sample), or it takes the next
/// piece of a stream that its worker owns ([`Draw`]). User code runs inside; an implementation turns its errors and
/// panics into outputs. A panic that gets out of an implementation ends the pool.
pub trait Work: Send + Sync + 'static {
    /// What a task holds.
    type Job: Send + Sync + 'static;
    /// What a part gives.
    type Part: Send + 'static;
    /// What a task gives.
    type Output: Send + 'static;
    /// What a worker keeps from task to task, within one epoch.
    type Lane: Send + 'static;

    /// Whether workers own a lane. If so, tasks have no parts, and the tasks of one worker run one after the other.
    const PRIVATE: bool;

    /// Number of parts of a task; none where workers own lanes.
    fn parts(&self, job: &Self::Job) -> usize {
        let _ = job;
        0
    }

    /// Does part `at`. Parts are begun in order.
    fn part(&self, worker: WorkerInfo, task: &Task<Self::Job>, at: usize) -> Self::Part;

    /// Whether this part makes the ones behind it needless.
    fn ends(&self, part: &Self::Part) -> bool {
        let _ = part;
        false
    }

    /// Makes the output of the parts (without those behind one that [ends](Work::ends) the task). `lane` is `None` at the start of
    /// an epoch, and always for works without lanes. Gives `None` when the lane has nothing more.
    fn finish(
        &self,
        worker: WorkerInfo,
        task: &Task<Self::Job>,
        parts: Vec<Self::Part>,
        lane: &mut Option<Self::Lane>,
    ) -> Option<Self::Output>;
}
