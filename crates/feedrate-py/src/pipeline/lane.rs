//! A lane that runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use feedrate::pipeline::{self, Failure, Interrupt, asking};
use feedrate::source::SourceError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyList, PyString};

use super::function::Raised;
use super::value::{Arrays, Maker};
use crate::enter::{compute, quiet};
use crate::error::PipelineError;
use crate::state;

/// One lane of a pipeline. Used by one thread at a time; others wait.
#[pyclass(frozen, module = "feedrate._native")]
pub(crate) struct Lane {
    inner: Mutex<Inner>,
    /// The thread that holds it, or 0.
    holder: AtomicU64,
    arrays: Arrays,
}

thread_local! {
    /// A number of this thread, from 1.
    static ME: u64 = {
        static THREADS: AtomicU64 = AtomicU64::new(1);
        THREADS.fetch_add(1, Ordering::Relaxed)
    };
}

/// What is in a lane, for one thread.
struct Held<'a> {
    inner: MutexGuard<'a, Inner>,
    holder: &'a AtomicU64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
    }
}

struct Inner {
    lane: pipeline::Lane,
    /// Elements of the unit at hand that were there when a later one failed.
    waiting: Vec<pipeline::Sample>,
    over: bool,
    maker: Maker,
}

impl Lane {
    pub(crate) fn new(lane: pipeline::Lane, arrays: Arrays) -> Self {
        Self {
            inner: Mutex::new(Inner {
                lane,
                waiting: Vec::new(),
                over: false,
                maker: Maker::default(),
            }),
            holder: AtomicU64::new(0),
            arrays,
        }
    }

    /// Waits for other threads. Refuses a thread that is in it already: a signal handler or a function of the pipeline that uses the
    /// iterator, which would wait for itself.
    fn hold(&self, py: Python<'_>) -> PyResult<Held<'_>> {
        let me = ME.with(|me| *me);
        if self.holder.load(Ordering::Relaxed) == me {
            return Err(PyRuntimeError::new_err(
                "this iterator is in the middle of an element, which a signal handler or a function of its own pipeline interrupts: \
                 use it between elements. A handler may set a flag, and the loop save the state",
            ));
        }
        let inner = self.inner.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        self.holder.store(me, Ordering::Relaxed);
        let holder = &self.holder;
        Ok(Held { inner, holder })
    }
}

impl Inner {
    /// Has `count` elements wait, or fewer at the end.
    fn read(&mut self, py: Python<'_>, count: usize) -> PyResult<()> {
        let found = compute(py, |go_on| {
            asking(quiet, || {
                while !self.over && self.waiting.len() < count && go_on() {
                    match self.lane.next() {
                        Ok(Some(sample)) => self.waiting.push(sample),
                        Ok(None) => self.over = true,
                        Err(failure) => return Err(failure),
                    }
                }
                Ok(())
            })
        })?;
        found.map_err(|failure| raise(py, failure))
    }
}

#[pymethods]
impl Lane {
    /// Up to `count` further elements as a list; fewer at the end. Raises what a step raised: elements that were there before it come
    /// with the next call, which goes on behind the bad one. Blocks without the GIL while no Python function runs.
    fn take<'py>(&self, py: Python<'py>, count: usize) -> PyResult<Bound<'py, PyList>> {
        let mut held = self.hold(py)?;
        let inner = &mut *held.inner;
        inner.read(py, count)?;
        let ready = inner.waiting.len().min(count);
        let values = inner.waiting.drain(..ready).map(|sample| sample.value);
        inner.maker.list(py, values, self.arrays)
    }

    /// The next element. Raises `StopIteration` at the end.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut held = self.hold(py)?;
        let inner = &mut *held.inner;
        inner.read(py, 1)?;
        if inner.waiting.is_empty() {
            return Ok(None);
        }
        let value = inner.waiting.remove(0).value;
        inner.maker.one(py, value, self.arrays).map(Some)
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Where the next element is made from, as plain data. Elements that wait behind a failure are not counted as given: refused then.
    fn cursor<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut held = self.hold(py)?;
        let inner = &mut *held.inner;
        if !inner.waiting.is_empty() {
            return Err(PyRuntimeError::new_err("a lane has no cursor in the middle of a unit"));
        }
        // Without the GIL: a thread that runs ahead may be calling a function, and is waited for.
        let lane = &mut inner.lane;
        let cursor = py.detach(move || lane.cursor());
        state::to_python(py, &cursor)
    }

    /// Whether the end was seen.
    #[getter]
    fn over(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.hold(py)?.inner.over)
    }
}

/// The exception for a failure: the user's own with a note, or a `PipelineError`. Both have `step`, `shard`, `key` and `may_continue`.
pub(crate) fn raise(py: Python<'_>, failure: Failure) -> PyErr {
    let text = failure.to_string();
    let alone = failure.alone();
    let Failure {
        step,
        shard,
        key,
        may_continue,
        source,
    } = failure;
    let mut place = format!("in {step}");
    for part in [&shard, &key].into_iter().flatten() {
        place.push_str(", ");
        place.push_str(part);
    }
    let source = match source.downcast::<Interrupt>() {
        Ok(interrupt) => interrupt.0,
        Err(source) => source,
    };
    let error = match source.downcast::<Raised>() {
        Ok(raised) => {
            let _ = raised.0.value(py).call_method1("add_note", (place,));
            raised.0
        }
        Err(source) => match source.downcast::<SourceError>() {
            Ok(error) => match error.cause().and_then(|cause| cause.downcast_ref::<Raised>()) {
                Some(raised) => {
                    let raised = raised.0.clone_ref(py);
                    let _ = raised.value(py).call_method1("add_note", (place,));
                    raised
                }
                None => PipelineError::new_err(text),
            },
            Err(_) => PipelineError::new_err(text),
        },
    };
    let value = error.value(py);
    let name = |text: Option<String>| text.map(|text| PyString::new(py, &text));
    // An exception without attributes of its own goes without.
    let _ = value.setattr("step", step);
    let _ = value.setattr("shard", name(shard));
    let _ = value.setattr("key", name(key));
    let _ = value.setattr("may_continue", may_continue);
    if alone {
        // Nothing against the element: not told before, and not to be passed over.
        let _ = value.setattr("of_the_moment", true);
    }
    error
}
