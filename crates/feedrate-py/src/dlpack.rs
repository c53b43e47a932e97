//! Export of memory as DLPack capsules (dlpack.h, version 0.8 layout, the one that every consumer reads).
#![expect(unsafe_code, reason = "DLPack is a C structure with a C deleter")]

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::block::Memory;

const NAME: &CStr = c"dltensor";
const CPU: i32 = 1;

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

/// `DLDataType`: type code (0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool), bits and lanes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DType {
    /// From the two bytes that travel in messages.
    pub(crate) fn new(code: u8, bits: u8) -> Self {
        Self { code, bits, lanes: 1 }
    }

    fn itemsize(self) -> usize {
        usize::from(self.bits).div_ceil(8)
    }
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A `Managed` and what its pointers point to.
struct Holder {
    managed: Managed,
    shape: Vec<i64>,
    strides: Vec<i64>,
    memory: Option<Arc<dyn Memory>>,
}

/// Frees a holder. Touches no Python object: consumers may call it without the GIL, from any thread.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: `context` is the `Box<Holder>` made in `capsule`, given up there; a deleter is called once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Holder>()) });
}

/// Called when the capsule dies: a consumer renames a capsule that it has taken.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule made in `capsule` below, whose pointer is a `Managed`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<Managed>();
            if !managed.is_null() {
                delete(managed);
            }
        }
    }
}

/// A tensor over `memory`, from `offset` bytes on; `strides` in elements. The capsule, and then its consumer, keeps the memory.
/// Without memory the tensor must be empty.
///
/// Checked: that every element lies inside the memory. 64-byte alignment is the allocator's doing.
pub(crate) fn capsule(
    py: Python<'_>,
    memory: Option<Arc<dyn Memory>>,
    offset: usize,
    dtype: DType,
    shape: Vec<i64>,
    strides: Vec<i64>,
) -> PyResult<Bound<'_, PyAny>> {
    let end = span(&shape, &strides, dtype.itemsize())
        .and_then(|span| offset.checked_add(span))
        .ok_or_else(|| {
            PyValueError::new_err(format!(
                "tensor of shape {shape:?} and strides {strides:?} is malformed"
            ))
        })?;
    let len = memory.as_ref().map_or(0, |m| m.len());
    if end > len {
        return Err(PyValueError::new_err(format!(
            "tensor of shape {shape:?} at byte {offset} ends at byte {end}, beyond its memory of {len} bytes"
        )));
    }
    let data = memory
        .as_ref()
        .map_or(std::ptr::null_mut(), |m| m.ptr().wrapping_add(offset));
    let mut holder = Box::new(Holder {
        managed: Managed {
            tensor: Tensor {
                data: data.cast(),
                device: Device { kind: CPU, id: 0 },
                ndim: i32::try_from(shape.len()).map_err(|_| PyValueError::new_err("too many dimensions"))?,
                dtype,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        shape,
        strides,
        memory,
    });
    holder.managed.tensor.shape = holder.shape.as_mut_ptr();
    holder.managed.tensor.strides = holder.strides.as_mut_ptr();
    let raw = Box::into_raw(holder);
    // SAFETY: `raw` was just made and is valid; its `managed` field lives as long as the holder does.
    unsafe {
        (*raw).managed.context = raw.cast();
        let capsule = ffi::PyCapsule_New((&raw mut (*raw).managed).cast(), NAME.as_ptr(), Some(destroy));
        if capsule.is_null() {
            drop(Box::from_raw(raw));
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr(py, capsule))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Named so that it is seen: this is where a lease ends.
        drop(self.memory.take());
    }
}

/// Bytes from the first element to the end of the last one; 0 for an empty tensor, `None` when it is malformed.
pub(crate) fn span(shape: &[i64], strides: &[i64], itemsize: usize) -> Option<usize> {
    if shape.len() != strides.len() {
        return None;
    }
    let mut last = 0usize;
    let mut empty = false;
    for (&n, &stride) in shape.iter().zip(strides) {
        let n = usize::try_from(n).ok()?;
        empty |= n == 0;
        let stride = usize::try_from(stride).ok()?;
        last = last.checked_add(n.saturating_sub(1).checked_mul(stride)?)?;
    }
    if empty {
        return Some(0);
    }
    last.checked_add(1)?.checked_mul(itemsize)
}
