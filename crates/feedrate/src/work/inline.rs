//! On the calling thread.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Event, Pool, Work};
use crate::dataset::WorkerInfo;
use crate::error::Error;
use crate::plan::Task;

/// Does each task on the thread that waits for it. One worker, which cannot die; timeouts do not apply, since nobody is there
/// to notice.
pub struct Inline<W: Work> {
    work: Arc<W>,
    worker: WorkerInfo,
    tasks: VecDeque<Task<W::Job>>,
    lane: Option<W::Lane>,
}

impl<W: Work> Inline<W> {
    /// A pool around this work.
    pub fn new(work: W) -> Self {
        Self::with_worker(work, WorkerInfo::default())
    }

    /// The only worker here, and one of several as seen from elsewhere.
    pub(crate) fn with_worker(work: W, worker: WorkerInfo) -> Self {
        Self {
            work: Arc::new(work),
            worker,
            tasks: VecDeque::new(),
            lane: None,
        }
    }
}

impl<W: Work> fmt::Debug for Inline<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inline")
            .field("tasks", &self.tasks.len())
            .finish_non_exhaustive()
    }
}

impl<W: Work> Pool for Inline<W> {
    type Job = W::Job;
    type Output = W::Output;
    type Error = Error;

    fn workers(&self) -> usize {
        1
    }

    fn submit(&mut self, _: usize, task: &Task<W::Job>) -> Result<(), Error> {
        self.tasks.push_back(task.clone());
        Ok(())
    }

    fn wait(&mut self, _: Option<Duration>, events: &mut Vec<Event<W::Output>>) -> Result<(), Error> {
        let Some(task) = self.tasks.pop_front() else {
            return Err(Error::bug("an inline pool was asked to wait with nothing to do"));
        };
        let total = self.work.parts(&task.job);
        let mut parts = Vec::with_capacity(total);
        for at in 0..total {
            let part = self.work.part(self.worker, &task, at);
            let ends = self.work.ends(&part);
            parts.push(part);
            if ends {
                break;
            }
        }
        let output = self.work.finish(self.worker, &task, parts, &mut self.lane);
        events.push(Event::of(0, &task, output));
        Ok(())
    }

    fn begin_epoch(&mut self, _: u64) -> Result<(), Error> {
        self.tasks.clear();
        self.lane = None;
        Ok(())
    }

    fn revive(&mut self, _: usize, _: u64, _: Option<(u64, u64)>) -> Result<(), Error> {
        Err(Error::bug("the calling thread was reported as dead"))
    }

    fn retire(&mut self, _: usize) -> Result<(), Error> {
        self.tasks.clear();
        self.lane = None;
        Ok(())
    }
}

impl<O> Event<O> {
    /// What a finished task is reported as; `None` when its lane has ended.
    pub(crate) fn of<J>(worker: usize, task: &Task<J>, output: Option<O>) -> Self {
        let (epoch, position) = (task.epoch, task.position);
        match output {
            Some(output) => Self::Done {
                worker,
                epoch,
                position,
                output,
            },
            None => Self::Exhausted {
                worker,
                epoch,
                position,
            },
        }
    }
}
