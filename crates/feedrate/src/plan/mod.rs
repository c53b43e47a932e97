//! What is to be done: a deterministic stream of [`Task`]s.
//!
//! A plan decides *what*, and nothing else. Order, epochs, ranks and shuffling live here; data is never touched. Whatever
//! happens later (which worker, how often, in which process) can therefore not change which samples make which batch.

use std::sync::Arc;

/// One unit of planned work: it makes one batch (or one sample when batching is off).
#[derive(Debug)]
pub struct Task<J> {
    /// Counts the passes over the data that one delivery has made; lets results of an abandoned pass be told apart.
    pub epoch: u64,
    /// Position in the epoch, from 0. Results are put back into this order.
    pub position: u64,
    /// What to do, as the pool understands it: sample indices, a lane to advance, or a pickled form of either. Shared, since
    /// the window keeps it until the batch is delivered, so that the task can be done again.
    pub job: Arc<J>,
}

impl<J> Clone for Task<J> {
    fn clone(&self) -> Self {
        Self {
            epoch: self.epoch,
            position: self.position,
            job: Arc::clone(&self.job),
        }
    }
}

/// The stream of jobs of one epoch.
///
/// Runs on the thread that asks the delivery for its next batch. `next_job` is called once for each place that becomes free
/// in the window, never ahead of that, so a plan with side effects (a sampler that draws random numbers) has them at
/// well-defined moments.
pub trait Plan {
    /// What one task holds.
    type Job;
    /// Why no further task could be planned.
    type Error;

    /// The next job, `None` at the end of the epoch. After an error the plan may be asked again.
    fn next_job(&mut self) -> Option<Result<Self::Job, Self::Error>>;

    /// Which worker a job has to go to, as a number that is taken modulo theirs; `None` for any: they take turns. Jobs that advance one
    /// lane go to one worker, which does them in order.
    fn route(&self, job: &Self::Job) -> Option<u64> {
        let _ = job;
        None
    }

    /// Whether an error of [`next_job`](Plan::next_job) is told at once, as Ctrl-C in a function of the user's is, and not behind the
    /// batches that were planned before it. Nothing is lost then: they come with the next calls.
    fn urgent(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }
}

/// Any iterator of results is a plan.
impl<I, J, E> Plan for I
where
    I: Iterator<Item = Result<J, E>>,
{
    type Job = J;
    type Error = E;

    fn next_job(&mut self) -> Option<Result<J, E>> {
        self.next()
    }
}
