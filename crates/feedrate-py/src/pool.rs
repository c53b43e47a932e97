//! The pools behind one type, as the delivery sees them.

use std::sync::OnceLock;
use std::time::Duration;

use feedrate::plan::Task;
use feedrate::work::{Event, Pool};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::inline::Inline;
use crate::message::Message;
use crate::processes::ProcessPool;
use crate::threads::ThreadPool;

/// One task's work: what the sampler gave, and its pickled form once it was needed.
pub(crate) struct Job {
    pub(crate) index: Py<PyAny>,
    pickled: OnceLock<Py<PyBytes>>,
}

impl Job {
    pub(crate) fn new(index: Py<PyAny>) -> Self {
        Self {
            index,
            pickled: OnceLock::new(),
        }
    }

    /// The pickled index; made once, also when the task is sent again.
    pub(crate) fn pickled<'a>(&'a self, py: Python<'a>, dumps: &Py<PyAny>) -> PyResult<&'a [u8]> {
        if let Some(bytes) = self.pickled.get() {
            return Ok(bytes.as_bytes(py));
        }
        let bytes = dumps.bind(py).call1((&self.index,))?.cast_into::<PyBytes>()?.unbind();
        Ok(self.pickled.get_or_init(|| bytes).as_bytes(py))
    }
}

/// Refuses a fork's child, which has neither the worker processes nor the threads of the process `owner`.
pub(crate) fn check_owner(owner: u32) -> PyResult<()> {
    let here = std::process::id();
    if owner == here {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "this iterator's workers belong to process {owner}, this is process {here}: make a new iterator here"
    )))
}

/// What a task gave.
pub(crate) enum Output {
    /// A batch of this process.
    Object(Py<PyAny>),
    /// The user's code raised, in this process.
    Raised(PyErr),
    /// A batch or an error from another process, not yet unpacked.
    Message(Message),
}

pub(crate) enum AnyPool {
    Inline(Inline),
    Threads(ThreadPool),
    Processes(ProcessPool),
}

macro_rules! each {
    ($self:ident, $pool:ident => $call:expr) => {
        match $self {
            AnyPool::Inline($pool) => $call,
            AnyPool::Threads($pool) => $call,
            AnyPool::Processes($pool) => $call,
        }
    };
}

impl Pool for AnyPool {
    type Job = Job;
    type Output = Output;
    type Error = PyErr;

    fn workers(&self) -> usize {
        each!(self, pool => pool.workers())
    }

    fn submit(&mut self, worker: usize, task: &Task<Job>) -> PyResult<()> {
        each!(self, pool => pool.submit(worker, task))
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<Output>>) -> PyResult<()> {
        each!(self, pool => pool.wait(timeout, events))
    }

    fn begin_epoch(&mut self, epoch: u64) -> PyResult<()> {
        each!(self, pool => pool.begin_epoch(epoch))
    }

    fn revive(&mut self, worker: usize, epoch: u64, completed: Option<(u64, u64)>) -> PyResult<()> {
        each!(self, pool => pool.revive(worker, epoch, completed))
    }

    fn retire(&mut self, worker: usize) -> PyResult<()> {
        each!(self, pool => pool.retire(worker))
    }
}
