//! Errors that Python sees.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyRuntimeError};
use pyo3::prelude::*;

create_exception!(
    feedrate,
    Error,
    PyException,
    "Base class of the errors that feedrate itself raises."
);
create_exception!(
    feedrate,
    PipelineError,
    Error,
    "An element of a pipeline could not be read or made. `step`, `shard` and `key` say which; `may_continue` whether the next element follows."
);
create_exception!(
    feedrate._native,
    WorkerDied,
    PyRuntimeError,
    "What is known of a worker that died: (worker, pid, exit_code, signal, ready, tasks, twice, delivered)."
);

/// An error of the transport.
pub(crate) fn shm(error: &feedrate_shm::Error) -> PyErr {
    PyOSError::new_err(error.to_string())
}
