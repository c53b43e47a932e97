//! A delivery whose plan is a Python sampler and whose pool runs Python code.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use feedrate::deliver::{Delivered, Delivery, Failure, Lost, Next, Options};
use feedrate::plan::Plan;
use pyo3::exceptions::{PyBaseException, PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyIterator, PyList};
use pyo3::{PyTraverseError, PyVisit};

use crate::enter::{Going, closed};
use crate::error::WorkerDied;
use crate::inline::Inline;
use crate::pool::{AnyPool, Job, Output};
use crate::processes::Processes;
use crate::threads::Threads;

/// The sampler's iterator.
struct SamplerPlan {
    objects: Py<PyIterator>,
    /// Whether its objects say by their `row` which of them go to one worker.
    routed: bool,
}

/// An error of the sampler's, as the garbage collector can look into it: its frames may hold the iterator whose it is.
struct SamplerError(Py<PyBaseException>);

impl Plan for SamplerPlan {
    type Job = Job;
    type Error = SamplerError;

    fn next_job(&mut self) -> Option<Result<Job, SamplerError>> {
        Python::attach(|py| {
            let next = self.objects.bind(py).clone().next()?;
            Some(match next {
                Ok(index) => Ok(Job::new(index.unbind())),
                Err(error) => Err(SamplerError(error.into_value(py))),
            })
        })
    }

    fn route(&self, job: &Job) -> Option<u64> {
        if !self.routed {
            return None;
        }
        Python::attach(|py| job.index.bind(py).getattr("row").and_then(|row| row.extract()).ok())
    }

    fn urgent(&self, error: &SamplerError) -> bool {
        Python::attach(|py| !error.0.bind(py).is_instance_of::<PyException>())
    }
}

type PyDelivery = Delivery<SamplerPlan, AnyPool>;

/// Position and worker of what was handed over last.
type Mark = Option<(u64, usize)>;

/// What the delivery has handed over, and the user has not got yet.
struct Found {
    delivered: Delivered<Output>,
    /// The mark before it.
    before: Mark,
    /// An interrupt came into its unpacking: it is tried a second time, and no third.
    again: bool,
}

enum Asked {
    Found(Found),
    End,
    NotYet,
}

/// The engine under one iterator. Used from one thread at a time; others wait.
#[pyclass(frozen, module = "feedrate._native")]
pub(crate) struct Feed {
    /// `None` once closed.
    delivery: Mutex<Option<PyDelivery>>,
    /// Which thread is inside, to refuse re-entry (a sampler that iterates its own loader) instead of waiting for ever.
    inside: AtomicU64,
    /// Comes with the next call: what a signal's handler raised came in between.
    kept: Mutex<Option<Found>>,
    going: Going,
    /// `reraise(worker, payload)` raises what a worker sent; `timed_out(worker, indices)` raises for a timeout.
    reraise: Py<PyAny>,
    timed_out: Py<PyAny>,
    end: Py<PyAny>,
    routed: bool,
}

/// For how long closing waits for a thread that is inside: it looks every 50 ms, unless it is in a function of the user's.
const PATIENCE: Duration = Duration::from_millis(500);

/// Ends the workers.
fn shut(delivery: &mut Option<PyDelivery>) {
    if let Some(mut delivery) = delivery.take()
        && let AnyPool::Processes(pool) = delivery.pool_mut()
    {
        pool.close();
    }
}

/// Resets `inside`.
struct Leave<'a>(&'a AtomicU64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

fn thread_id() -> u64 {
    thread_local! {
        static ID: u64 = {
            static NEXT: AtomicU64 = AtomicU64::new(1);
            NEXT.fetch_add(1, Ordering::Relaxed)
        };
    }
    ID.with(|id| *id)
}

#[pymethods]
impl Feed {
    /// `pool` is a callable (inline: `pool(index, epoch, position)` gives the batch or `end`), `Threads` or `Processes`.
    #[new]
    #[pyo3(signature = (pool, *, window, in_order, redo, pinned, reraise, timed_out, end, routed=false))]
    #[expect(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "keywords in Python"
    )]
    fn new(
        pool: &Bound<'_, PyAny>,
        window: usize,
        in_order: bool,
        redo: bool,
        pinned: bool,
        reraise: Py<PyAny>,
        timed_out: Py<PyAny>,
        end: Py<PyAny>,
        routed: bool,
    ) -> PyResult<Self> {
        let (pool, ahead) = if let Ok(processes) = pool.cast::<Processes>() {
            (AnyPool::Processes(processes.borrow_mut().take()?), true)
        } else if let Ok(threads) = pool.cast::<Threads>() {
            (AnyPool::Threads(threads.borrow_mut().take()?), true)
        } else {
            (
                AnyPool::Inline(Inline::new(pool.clone().unbind(), end.clone_ref(pool.py()))),
                false,
            )
        };
        let options = Options {
            window,
            in_order,
            ahead,
            redo,
            pinned,
        };
        Ok(Self {
            delivery: Mutex::new(Some(Delivery::new(pool, options))),
            inside: AtomicU64::new(0),
            kept: Mutex::new(None),
            going: Going::default(),
            reraise,
            timed_out,
            end,
            routed,
        })
    }

    /// What the garbage collector must see to find cycles: a sampler or dataset can lead back to the loader that iterates it.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Locked: somebody is inside, so this is in use.
        if let Ok(guard) = self.delivery.try_lock()
            && let Some(delivery) = guard.as_ref()
        {
            if let Some(plan) = delivery.plan() {
                visit.call(&plan.objects)?;
            }
            for error in delivery.plan_errors() {
                visit.call(&error.0)?;
            }
            if let AnyPool::Inline(pool) = delivery.pool() {
                visit.call(pool.fetch())?;
            }
        }
        if let Ok(guard) = self.kept.try_lock()
            && let Some(Output::Object(batch)) = guard.as_ref().map(|found| &found.delivered.output)
        {
            visit.call(batch)?;
        }
        visit.call(&self.reraise)?;
        visit.call(&self.timed_out)
    }

    fn __clear__(&self) {
        if let Ok(mut guard) = self.delivery.try_lock() {
            *guard = None;
        }
        if let Ok(mut guard) = self.kept.try_lock() {
            *guard = None;
        }
    }

    /// Starts an epoch over the index objects of `sampler_iter`.
    ///
    /// `epoch_body` goes to process workers with the news of a further epoch; `first_worker` gets the first index object.
    #[pyo3(signature = (sampler_iter, epoch_body=None, first_worker=0))]
    fn begin(
        &self,
        py: Python<'_>,
        sampler_iter: &Bound<'_, PyAny>,
        epoch_body: Option<Vec<u8>>,
        first_worker: usize,
    ) -> PyResult<()> {
        let plan = SamplerPlan {
            objects: sampler_iter.try_iter()?.unbind(),
            routed: self.routed,
        };
        let left = self.kept().take();
        drop(left);
        self.with(py, |delivery| {
            if let AnyPool::Processes(pool) = delivery.pool_mut() {
                pool.epoch_body = epoch_body.unwrap_or_default();
            }
            delivery
                .begin_at(plan, first_worker)
                .map_err(|failure| self.failure(py, failure))
        })
    }

    /// The next batch, or `end`. Blocks without the GIL, at most `timeout` seconds (None: for ever); answers Ctrl-C.
    #[pyo3(signature = (timeout=None))]
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let timeout = duration(timeout)?;
        match self.asked(py, |delivery| delivery.next(timeout), false)? {
            Asked::Found(found) => self.unpack(py, found),
            Asked::End | Asked::NotYet => Ok(self.end.bind(py).clone()),
        }
    }

    /// As `next`, but the batch, or `end`, comes in a tuple, and nothing is waited for: `None` when it is not there yet.
    fn try_next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        self.packed(py, |delivery| delivery.next(Some(Duration::ZERO)), true)
    }

    /// As `next`, but the batch keeps its place in the window until `refill` is called, and comes in a tuple. With `timeout=0` it
    /// gives None when the next batch is not there yet.
    #[pyo3(signature = (timeout=None))]
    fn take<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        let timeout = duration(timeout)?;
        self.packed(py, |delivery| delivery.take(timeout), timeout == Some(Duration::ZERO))
    }

    /// A batch that `take` gave has been handed over: the next task is planned.
    fn refill(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |delivery| {
            delivery.refill().map_err(|failure| self.failure(py, failure))
        })
    }

    /// Asks all workers to end and lets go of them. Does not wait for them. A thread that waits for a batch gets an error; one that is
    /// in a function of the user's, here too if this is a signal's handler, does all this when it comes out. With `ending`, the
    /// interpreter ends: such threads, which it does not wait for, stay where they are, as it would have them, and print nothing.
    #[pyo3(signature = (ending=false))]
    fn close(&self, py: Python<'_>, ending: bool) {
        self.going.stop(ending);
        let left = self.kept().take();
        drop(left);
        let begun = Instant::now();
        loop {
            match self.delivery.try_lock() {
                Ok(mut guard) => return shut(&mut guard),
                Err(TryLockError::Poisoned(error)) => return shut(&mut error.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            if self.inside.load(Ordering::Acquire) == thread_id() || begun.elapsed() > PATIENCE {
                return;
            }
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
        }
    }

    /// `(position, worker)` of the batch, or of the error in its place, that was handed over last in this epoch.
    fn last(&self, py: Python<'_>) -> PyResult<Option<(u64, usize)>> {
        if let Some(found) = self.kept().as_ref() {
            return Ok(found.before);
        }
        self.with(py, |delivery| Ok(delivery.last()))
    }

    /// `(delivered, seconds waited, deaths, tasks redone)`, counted since this feed was made.
    fn counters(&self, py: Python<'_>) -> PyResult<(u64, f64, u64, u64)> {
        self.with(py, |delivery| {
            let c = delivery.counters();
            Ok((c.delivered, c.waited.as_secs_f64(), c.deaths, c.redone))
        })
    }
}

fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let convert = |seconds: f64| {
        // Beyond what a clock can count is for ever.
        Duration::try_from_secs_f64(seconds.min(1e12)).map_err(|e| PyValueError::new_err(e.to_string()))
    };
    seconds.map(convert).transpose()
}

impl Feed {
    /// What `ask` gives, in a tuple; `None` for a timeout where `once`.
    fn packed<'py>(
        &self,
        py: Python<'py>,
        ask: impl FnOnce(&mut PyDelivery) -> Next<SamplerPlan, AnyPool>,
        once: bool,
    ) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        Ok(match self.asked(py, ask, once)? {
            Asked::Found(found) => Some((self.unpack(py, found)?,)),
            Asked::End => Some((self.end.bind(py).clone(),)),
            Asked::NotYet => None,
        })
    }

    /// What `ask` gives, or what was kept for this call.
    fn asked(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&mut PyDelivery) -> Next<SamplerPlan, AnyPool>,
        once: bool,
    ) -> PyResult<Asked> {
        if let Some(found) = self.kept().take() {
            return Ok(Asked::Found(found));
        }
        self.with(py, |delivery| {
            let before = delivery.last();
            match ask(delivery) {
                None => Ok(Asked::End),
                Some(Ok(delivered)) => Ok(Asked::Found(Found {
                    delivered,
                    before,
                    again: false,
                })),
                Some(Err(Failure::TimedOut { .. })) if once => Ok(Asked::NotYet),
                Some(Err(failure)) => Err(self.failure(py, failure)),
            }
        })
    }

    fn kept(&self) -> MutexGuard<'_, Option<Found>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What Python gets for a delivered batch.
    fn unpack<'py>(&self, py: Python<'py>, found: Found) -> PyResult<Bound<'py, PyAny>> {
        let Found {
            delivered:
                Delivered {
                    position,
                    worker,
                    output,
                },
            before,
            again,
        } = found;
        let message = match output {
            Output::Object(batch) => return Ok(batch.into_bound(py)),
            Output::Raised(error) => return Err(error),
            Output::Message(message) => message,
        };
        let finished = |object: Bound<'py, PyAny>| {
            if message.error {
                return Err(Self::raised_by(py, &self.reraise, (worker, object)));
            }
            Ok(object)
        };
        let error = match message.unpack(py) {
            Ok(object) => return finished(object),
            Err(error) => error,
        };
        // Of the batch's making, or a signal's handler raised meanwhile: then the batch is as good as ever.
        let output = if error.is_instance_of::<PyException>(py) {
            match message.unpack(py).and_then(finished) {
                Ok(object) => Output::Object(object.unbind()),
                Err(error) => return Err(error),
            }
        } else if again {
            return Err(error);
        } else {
            Output::Message(message)
        };
        *self.kept() = Some(Found {
            delivered: Delivered {
                position,
                worker,
                output,
            },
            before,
            again: true,
        });
        Err(error)
    }

    fn with<T>(&self, py: Python<'_>, run: impl FnOnce(&mut PyDelivery) -> PyResult<T>) -> PyResult<T> {
        let me = thread_id();
        if self.inside.load(Ordering::Acquire) == me {
            return Err(PyRuntimeError::new_err(
                "this iterator is already working on its next batch further up on this thread's stack",
            ));
        }
        let mut guard = self
            .delivery
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner);
        self.inside.store(me, Ordering::Release);
        let leave = Leave(&self.inside);
        if self.going.stopped() {
            shut(&mut guard);
        }
        let Some(delivery) = guard.as_mut() else {
            return Err(closed());
        };
        let result = self.going.during(|| run(delivery));
        if self.going.stopped() {
            shut(&mut guard);
            drop(leave);
            drop(guard);
            // As CPython has its daemon threads do, a moment later.
            while self.going.ending() {
                py.detach(|| std::thread::sleep(Duration::from_secs(3600)));
            }
        }
        result
    }

    /// Calls a Python function that is to raise; returns what it raised.
    fn raised_by<'py, A>(py: Python<'py>, function: &Py<PyAny>, args: A) -> PyErr
    where
        A: pyo3::call::PyCallArgs<'py>,
    {
        match function.bind(py).call1(args) {
            Ok(_) => PyRuntimeError::new_err("a failure was reported and nothing was raised for it"),
            Err(error) => error,
        }
    }

    fn failure(&self, py: Python<'_>, failure: Failure<Job, SamplerError, PyErr>) -> PyErr {
        let indices = |tasks: &[feedrate::plan::Task<Job>]| PyList::new(py, tasks.iter().map(|t| t.job.index.bind(py)));
        match failure {
            Failure::Plan(error) => PyErr::from_value(error.0.into_bound(py).into_any()),
            Failure::Pool(error) => error,
            Failure::TimedOut { worker, tasks } => match indices(&tasks) {
                Ok(indices) => Self::raised_by(py, &self.timed_out, (worker, indices)),
                Err(error) => error,
            },
            Failure::Lost(lost) => match indices(&lost.tasks) {
                Ok(indices) => {
                    let Lost {
                        worker,
                        death,
                        twice,
                        delivered,
                        ..
                    } = lost;
                    let indices = indices.unbind();
                    WorkerDied::new_err((
                        worker,
                        death.pid,
                        death.exit_code,
                        death.signal,
                        death.ready,
                        indices,
                        twice,
                        delivered,
                    ))
                }
                Err(error) => error,
            },
        }
    }
}
