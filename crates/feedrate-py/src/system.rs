//! Small questions to the system.
#![expect(unsafe_code, reason = "CPython's exceptions in other threads have no safe interface")]

use std::ffi::c_long;

use pyo3::{ffi, prelude::*};

/// The memory limit of this process's control group in bytes, None when there is none.
#[pyfunction]
pub(crate) fn memory_limit() -> Option<u64> {
    feedrate_shm::memory_limit()
}

/// How many processes of this control group the kernel has killed for lack of memory; None when it does not say.
#[pyfunction]
pub(crate) fn oom_kills() -> Option<u64> {
    feedrate_shm::oom_kills()
}

/// The state letter of a process (`T`: stopped), None when there is no such process.
#[pyfunction]
pub(crate) fn process_state(pid: i32) -> Option<char> {
    feedrate_shm::process_state(pid)
}

/// Names the calling thread, as seen in `ps` and debuggers; at most 15 bytes.
#[pyfunction]
pub(crate) fn set_thread_name(name: &str) {
    feedrate_shm::set_thread_name(name);
}

/// The calling thread as Python numbers it, None when it does not say.
pub(crate) fn this_thread(py: Python<'_>) -> Option<c_long> {
    let ident = py.import("threading").ok()?.call_method0("get_ident").ok()?;
    // Addresses, on Linux: below 2^63. CPython's interface takes an unsigned long, which PyO3 calls signed.
    ident.extract().ok()
}

/// Has `SystemExit` raised in a thread, at its next step of Python. Nothing happens where there is no such thread.
#[pyfunction]
pub(crate) fn exit_thread(_py: Python<'_>, ident: c_long) {
    // SAFETY: the GIL is held; the exception's type is a static object of the interpreter, and CPython takes a reference of its own. Any
    // number may be asked for.
    unsafe { ffi::PyThreadState_SetAsyncExc(ident, ffi::PyExc_SystemExit) };
}
