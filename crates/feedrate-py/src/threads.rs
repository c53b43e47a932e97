//! The pool of Python threads: started by Python, fed and emptied here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use feedrate::plan::Task;
use feedrate::work::{Event, Pool};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::enter::enter;
use crate::pool::{Job, Output, check_owner};

enum Order {
    Task(Task<Job>),
    Epoch(u64),
}

impl Order {
    fn unpack(self, py: Python<'_>) -> (u64, Option<u64>, Option<Py<PyAny>>) {
        match self {
            Self::Epoch(epoch) => (epoch, None, None),
            Self::Task(task) => (task.epoch, Some(task.position), Some(task.job.index.clone_ref(py))),
        }
    }
}

pub(crate) struct ThreadPool {
    orders: Vec<Sender<Order>>,
    events: Receiver<Event<Output>>,
    /// Nobody wants what was ordered any more.
    over: Arc<AtomicBool>,
    /// The process that has the threads: a fork's child has none.
    owner: u32,
}

impl Pool for ThreadPool {
    type Job = Job;
    type Output = Output;
    type Error = PyErr;

    fn workers(&self) -> usize {
        self.orders.len()
    }

    fn submit(&mut self, worker: usize, task: &Task<Job>) -> PyResult<()> {
        check_owner(self.owner)?;
        self.orders[worker]
            .send(Order::Task(task.clone()))
            .map_err(|_| PyRuntimeError::new_err(format!("DataLoader worker thread {worker} has ended")))
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<Output>>) -> PyResult<()> {
        check_owner(self.owner)?;
        let source = &self.events;
        match source.try_recv() {
            Ok(event) => events.push(event),
            // An event is kept at once: a signal's handler may raise before this returns.
            Err(_) => drop(Python::attach(|py| {
                enter(py, timeout, |slice| match source.recv_timeout(slice) {
                    Ok(event) => {
                        events.push(event);
                        Ok(Some(()))
                    }
                    Err(RecvTimeoutError::Timeout) => Ok(None),
                    Err(RecvTimeoutError::Disconnected) => {
                        Err(PyRuntimeError::new_err("all DataLoader worker threads have ended"))
                    }
                })
            })?),
        }
        events.extend(source.try_iter());
        Ok(())
    }

    fn begin_epoch(&mut self, epoch: u64) -> PyResult<()> {
        check_owner(self.owner)?;
        for orders in &self.orders {
            // A thread that has ended is reported when a task is sent to it.
            drop(orders.send(Order::Epoch(epoch)));
        }
        Ok(())
    }

    fn revive(&mut self, _worker: usize, _epoch: u64, _completed: Option<(u64, u64)>) -> PyResult<()> {
        Ok(())
    }

    fn retire(&mut self, _worker: usize) -> PyResult<()> {
        Ok(())
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// The threads' side and ours: `Threads(n)` makes `n` ends to be served by Python threads.
#[pyclass(module = "feedrate._native")]
pub(crate) struct Threads {
    pool: Option<ThreadPool>,
}

impl Threads {
    pub(crate) fn take(&mut self) -> PyResult<ThreadPool> {
        self.pool
            .take()
            .ok_or_else(|| PyRuntimeError::new_err("these threads already serve a feed"))
    }
}

#[pymethods]
impl Threads {
    /// Returns the pool and the workers' ends.
    #[staticmethod]
    fn pair(workers: usize) -> (Self, Vec<ThreadEnd>) {
        let (done, events) = unbounded();
        let over = Arc::new(AtomicBool::new(false));
        let (orders, ends): (Vec<_>, Vec<_>) = (0..workers)
            .map(|worker| {
                let (send, orders) = unbounded();
                let events = done.clone();
                let over = Arc::clone(&over);
                (
                    send,
                    ThreadEnd {
                        worker,
                        orders,
                        events,
                        over,
                    },
                )
            })
            .unzip();
        let pool = Some(ThreadPool {
            orders,
            events,
            over,
            owner: std::process::id(),
        });
        (Self { pool }, ends)
    }
}

/// One thread's end: takes tasks, gives results.
#[pyclass(frozen, module = "feedrate._native")]
pub(crate) struct ThreadEnd {
    worker: usize,
    orders: Receiver<Order>,
    events: Sender<Event<Output>>,
    over: Arc<AtomicBool>,
}

#[pymethods]
impl ThreadEnd {
    /// Blocks (without the GIL) for the next order: `(epoch, position, index)`, with position and index None when an epoch
    /// begins; None when the pool is gone, whatever it had ordered.
    fn recv(&self, py: Python<'_>) -> Option<(u64, Option<u64>, Option<Py<PyAny>>)> {
        let order = py.detach(|| self.orders.recv()).ok()?;
        self.wanted(order, py)
    }

    /// The next order if it is there already.
    fn peek(&self, py: Python<'_>) -> Option<(u64, Option<u64>, Option<Py<PyAny>>)> {
        self.wanted(self.orders.try_recv().ok()?, py)
    }

    /// A task gave `batch`.
    fn done(&self, epoch: u64, position: u64, batch: Py<PyAny>) {
        self.report(epoch, position, Output::Object(batch));
    }

    /// A task raised `error`.
    fn raised(&self, epoch: u64, position: u64, error: Bound<'_, PyAny>) {
        self.report(epoch, position, Output::Raised(PyErr::from_value(error)));
    }

    /// The thread's stream ended at this task.
    fn exhausted(&self, epoch: u64, position: u64) {
        // The pool may be gone; then nobody wants to know.
        drop(self.events.send(Event::Exhausted {
            worker: self.worker,
            epoch,
            position,
        }));
    }
}

impl ThreadEnd {
    fn wanted(&self, order: Order, py: Python<'_>) -> Option<(u64, Option<u64>, Option<Py<PyAny>>)> {
        (!self.over.load(Ordering::Relaxed)).then(|| order.unpack(py))
    }

    fn report(&self, epoch: u64, position: u64, output: Output) {
        let event = Event::Done {
            worker: self.worker,
            epoch,
            position,
            output,
        };
        drop(self.events.send(event));
    }
}
