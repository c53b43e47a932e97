//! A batch that came from a worker: leases, a tensor table and a pickle, put together when the user takes the batch.

use std::cell::RefCell;
use std::sync::Arc;

use feedrate_shm::Lease;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::block::{Block, Memory};
use crate::dlpack::{self, DType};
use crate::wire::{NO_TOKEN, TensorEntry};

/// Where the pickle of a batch is.
pub(crate) enum Body {
    /// Received with the message.
    Here(Vec<u8>),
    /// In a slot, from this byte on.
    Slot(Arc<Lease>, usize),
}

/// A received batch (or error), not yet unpickled. Dropping it gives its memory back.
pub(crate) struct Message {
    pub(crate) error: bool,
    pub(crate) leases: Vec<Arc<Lease>>,
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) body: Body,
}

thread_local! {
    /// The message that is being unpickled on this thread; `tensor` and `block` are called by the unpickler.
    static CURRENT: RefCell<Option<(Vec<Arc<Lease>>, Vec<TensorEntry>)>> = const { RefCell::new(None) };
}

/// Puts the former message back, also when unpickling fails: a user's `__setstate__` may unpickle another batch.
struct Restore(Option<(Vec<Arc<Lease>>, Vec<TensorEntry>)>);

impl Drop for Restore {
    fn drop(&mut self) {
        let former = self.0.take();
        CURRENT.with(|current| *current.borrow_mut() = former);
    }
}

impl Message {
    /// The object that the worker sent.
    pub(crate) fn unpack<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let loads = LOADS.import(py, "pickle", "loads")?;
        let mine = (self.leases.clone(), self.tensors.clone());
        let _restore = Restore(CURRENT.with(|current| current.borrow_mut().replace(mine)));
        match &self.body {
            Body::Here(bytes) => loads.call1((PyBytes::new(py, bytes),)),
            Body::Slot(lease, start) => {
                let block = Bound::new(py, Block::new(Arc::clone(lease) as Arc<dyn Memory>))?;
                let view = py.import("builtins")?.getattr("memoryview")?.call1((block,))?;
                let len = view.len()?;
                let slice = pyo3::types::PySlice::new(py, isize::try_from(*start)?, isize::try_from(len)?, 1);
                loads.call1((view.get_item(slice)?,))
            }
        }
    }
}

fn current<T>(index: usize, read: impl FnOnce(&[Arc<Lease>], &TensorEntry) -> T) -> PyResult<T> {
    CURRENT.with(|current| {
        let current = current.borrow();
        let (leases, tensors) = current.as_ref().ok_or_else(|| {
            PyRuntimeError::new_err("a batch's pickle can only be read by the loader that received it")
        })?;
        let entry = tensors.get(index).ok_or_else(|| {
            PyRuntimeError::new_err(format!("batch has {} tensors, no number {index}", tensors.len()))
        })?;
        Ok(read(leases, entry))
    })
}

fn memory(leases: &[Arc<Lease>], entry: &TensorEntry) -> Option<Arc<dyn Memory>> {
    (entry.token != NO_TOKEN)
        .then(|| leases.get(usize::from(entry.token)).cloned())
        .flatten()
        .map(|lease| lease as Arc<dyn Memory>)
}

/// Tensor `index` of the batch that is being unpickled. Called by the unpickler only.
#[pyfunction]
pub(crate) fn tensor(py: Python<'_>, index: usize) -> PyResult<Bound<'_, PyAny>> {
    static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (memory, entry) = current(index, |leases, entry| (memory(leases, entry), entry.clone()))?;
    let dtype = DType::new(entry.code, entry.bits);
    let offset = usize::try_from(entry.offset)?;
    let capsule = dlpack::capsule(py, memory, offset, dtype, entry.shape, entry.strides)?;
    FROM_DLPACK.import(py, "torch._C", "_from_dlpack")?.call1((capsule,))
}

/// The memory of tensor `index` of the batch that is being unpickled. Called by the unpickler only.
#[pyfunction]
pub(crate) fn block(index: usize) -> PyResult<Block> {
    current(index, memory)?
        .map(Block::new)
        .ok_or_else(|| PyRuntimeError::new_err(format!("array {index} of this batch has no memory")))
}
