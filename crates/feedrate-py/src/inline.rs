//! The pool without workers: tasks run where the batch is asked for.

use std::collections::VecDeque;
use std::time::Duration;

use feedrate::plan::Task;
use feedrate::work::{Event, Pool};
use pyo3::prelude::*;

use crate::pool::{Job, Output};

/// Runs `fetch(index, epoch, position)` on the calling thread. `fetch` returns `end` when a stream has ended.
pub(crate) struct Inline {
    fetch: Py<PyAny>,
    end: Py<PyAny>,
    waiting: VecDeque<Task<Job>>,
}

impl Inline {
    /// The function that makes batches.
    pub(crate) fn fetch(&self) -> &Py<PyAny> {
        &self.fetch
    }

    pub(crate) fn new(fetch: Py<PyAny>, end: Py<PyAny>) -> Self {
        Self {
            fetch,
            end,
            waiting: VecDeque::new(),
        }
    }
}

impl Pool for Inline {
    type Job = Job;
    type Output = Output;
    type Error = PyErr;

    fn workers(&self) -> usize {
        1
    }

    fn submit(&mut self, _worker: usize, task: &Task<Job>) -> PyResult<()> {
        self.waiting.push_back(task.clone());
        Ok(())
    }

    fn wait(&mut self, _timeout: Option<Duration>, events: &mut Vec<Event<Output>>) -> PyResult<()> {
        let Some(task) = self.waiting.pop_front() else {
            return Ok(());
        };
        let (worker, epoch, position) = (0, task.epoch, task.position);
        let event = Python::attach(|py| {
            let output = match self.fetch.bind(py).call1((&task.job.index, epoch, position)) {
                Ok(batch) if batch.is(&self.end) => {
                    return Event::Exhausted {
                        worker,
                        epoch,
                        position,
                    };
                }
                Ok(batch) => Output::Object(batch.unbind()),
                Err(error) => Output::Raised(error),
            };
            Event::Done {
                worker,
                epoch,
                position,
                output,
            }
        });
        events.push(event);
        Ok(())
    }

    fn begin_epoch(&mut self, _epoch: u64) -> PyResult<()> {
        self.waiting.clear();
        Ok(())
    }

    fn revive(&mut self, _worker: usize, _epoch: u64, _completed: Option<(u64, u64)>) -> PyResult<()> {
        Ok(())
    }

    fn retire(&mut self, _worker: usize) -> PyResult<()> {
        Ok(())
    }
}
