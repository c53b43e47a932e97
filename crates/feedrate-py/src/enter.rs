//! The one door for leaving the GIL.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How often a wait comes up to look for signals. A signal that arrives in a system call interrupts it at once; this bounds the
/// other cases, below the 100 ms in which Ctrl-C is to be answered.
const SLICE: Duration = Duration::from_millis(50);

/// Whether what a thread works for goes on, for other threads to set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Going(Arc<AtomicU8>);

const CLOSED: u8 = 1;
const ENDING: u8 = 2;

thread_local! {
    /// What this thread works for.
    static GOING: RefCell<Option<Going>> = const { RefCell::new(None) };
}

impl Going {
    /// Whoever waits for it gives up; `ending`, with the interpreter, says why to nobody.
    pub(crate) fn stop(&self, ending: bool) {
        self.0.store(if ending { ENDING } else { CLOSED }, Ordering::Release);
    }

    pub(crate) fn stopped(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    pub(crate) fn ending(&self) -> bool {
        self.0.load(Ordering::Acquire) == ENDING
    }

    /// Runs `work`, in which waits end once this is stopped.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Before(Option<Going>);
        impl Drop for Before {
            fn drop(&mut self) {
                GOING.replace(self.0.take());
            }
        }
        let _before = Before(GOING.replace(Some(self.clone())));
        work()
    }
}

/// What is raised where an iterator is used that has been closed.
pub(crate) fn closed() -> PyErr {
    PyRuntimeError::new_err("this iterator has been closed")
}

/// An error once what this thread works for has been closed; for waits to ask between slices.
pub(crate) fn goes_on() -> PyResult<()> {
    if GOING.with_borrow(|going| going.as_ref().is_some_and(Going::stopped)) {
        return Err(closed());
    }
    Ok(())
}

/// Runs `wait` without the GIL, in slices, until it returns something or the time is up (`Ok(None)`). Between slices Python's
/// signal handlers run; what they raise is returned, and what was found then is dropped: `wait` keeps what nobody can find again.
/// It ends also where what the thread works for is closed ([`Going`]).
pub(crate) fn enter<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut wait: impl FnMut(Duration) -> PyResult<Option<T>> + Send,
) -> PyResult<Option<T>> {
    let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
    loop {
        let slice = deadline.map_or(SLICE, |d| d.saturating_duration_since(Instant::now()).min(SLICE));
        let found = py.detach(|| wait(slice))?;
        py.check_signals()?;
        if found.is_some() {
            return Ok(found);
        }
        goes_on()?;
        if deadline.is_some_and(|d| Instant::now() >= d) {
            return Ok(None);
        }
    }
}

thread_local! {
    /// When signals were last looked for, and what a handler raised.
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether work inside of [`compute`] is to go on on this thread: every few milliseconds, Python's signal handlers run.
pub(crate) fn quiet() -> bool {
    let now = Instant::now();
    if LOOKED.get().is_none_or(|at| now.duration_since(at) >= SLICE) {
        LOOKED.set(Some(now));
        if let Some(error) = Python::attach(|py| py.check_signals().err()) {
            RAISED.replace(Some(error));
        }
    }
    RAISED.with_borrow(Option::is_none)
}

/// Runs `work` without the GIL. It gets a function to be called every few milliseconds, in which Python's signal handlers run; when
/// that says false, the work is to be given up, and what the handler raised is returned.
pub(crate) fn compute<T: Send>(py: Python<'_>, work: impl FnOnce(&mut dyn FnMut() -> bool) -> T + Send) -> PyResult<T> {
    let result = py.detach(|| {
        LOOKED.set(Some(Instant::now()));
        work(&mut quiet)
    });
    RAISED.take().map_or(Ok(result), Err)
}
