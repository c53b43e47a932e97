//! Small questions to the system.

use pyo3::prelude::*;

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
