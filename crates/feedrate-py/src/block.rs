//! A piece of memory that Python can see: a slot that is being written, a leased slot, or reusable memory of this process.
#![expect(unsafe_code, reason = "the buffer protocol hands out raw memory")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use feedrate_shm::{Lease, LocalArena, LocalSlot, Slot};
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::dlpack::{self, DType};

/// Memory with an owner. Dropping the last owner gives it back, from any thread, without the GIL.
pub(crate) trait Memory: Send + Sync {
    fn ptr(&self) -> *mut u8;
    fn len(&self) -> usize;
}

impl Memory for Lease {
    fn ptr(&self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn len(&self) -> usize {
        Lease::len(self)
    }
}

impl Memory for Slot {
    fn ptr(&self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn len(&self) -> usize {
        Slot::len(self)
    }
}

impl Memory for LocalSlot {
    fn ptr(&self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn len(&self) -> usize {
        LocalSlot::len(self)
    }
}

/// Writable memory with the buffer protocol. Every view keeps it.
#[pyclass(frozen, module = "feedrate._native")]
pub(crate) struct Block {
    memory: Arc<dyn Memory>,
}

impl Block {
    pub(crate) fn new(memory: Arc<dyn Memory>) -> Self {
        Self { memory }
    }
}

#[pymethods]
impl Block {
    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.memory.ptr() as usize
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    /// A DLPack capsule of a C-contiguous tensor at the start of this memory.
    fn capsule<'py>(&self, py: Python<'py>, code: u8, bits: u8, shape: Vec<i64>) -> PyResult<Bound<'py, PyAny>> {
        let mut strides = vec![1i64; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
        }
        let dtype = DType::new(code, bits);
        dlpack::capsule(py, Some(Arc::clone(&self.memory)), 0, dtype, shape, strides)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = &slf.get().memory;
        let len = ffi::Py_ssize_t::try_from(memory.len())?;
        // SAFETY: `view` is a valid Py_buffer given by Python; the memory is writable, stays where it is and is kept by `slf`,
        // which the filled-in buffer holds a reference to.
        let rc = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory.ptr().cast::<c_void>(), len, 0, flags) };
        if rc == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    #[expect(clippy::unused_self, reason = "the slot's signature")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}

/// Free memory that an [`Arena`] keeps for reuse beyond what is in use, in bytes.
const LOCAL_IDLE: usize = 64 << 20;

/// Reusable memory of this process, for batches that never leave it.
#[pyclass(frozen, module = "feedrate._native")]
pub(crate) struct Arena {
    inner: Arc<LocalArena>,
}

#[pymethods]
impl Arena {
    #[new]
    fn new() -> Self {
        Self {
            inner: LocalArena::new(LOCAL_IDLE),
        }
    }

    /// Memory of `nbytes` bytes, 64-byte aligned, with whatever was in it before.
    fn reserve(&self, nbytes: usize) -> PyResult<Block> {
        let slot = self
            .inner
            .reserve(nbytes)
            .map_err(|e| PyMemoryError::new_err(e.to_string()))?;
        Ok(Block::new(Arc::new(slot)))
    }
}
