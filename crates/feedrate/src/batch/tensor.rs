//! Typed, strided views of memory.

use std::fmt;
use std::sync::Arc;

use super::allocator::{Allocator, Buffer, Heap};
use super::dtype::{DType, Element};
use crate::error::BoxError;

/// A typed, strided view of a shared [`Buffer`].
///
/// Cloning and slicing share the memory, which lives as long as any view of it. Strides count elements.
///
/// ```
/// use feedrate::batch::Tensor;
///
/// let image = Tensor::from_vec(vec![1_u8, 2, 3, 4, 5, 6], &[2, 3])?;
/// assert_eq!(image.get(1)?.as_slice::<u8>()?, [4, 5, 6]);
/// let turned = image.transpose(0, 1)?;
/// assert_eq!((turned.shape(), turned.strides()), (&[3, 2][..], &[1, 3][..]));
/// assert_eq!(turned.to_vec::<u8>()?, [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), feedrate::batch::TensorError>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    buffer: Arc<dyn Buffer>,
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    /// Of the first element, in bytes.
    offset: usize,
}

/// A view that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Too few or too many elements.
    #[error("shape {shape:?} has {wanted} elements, there are {found}")]
    Size {
        /// The shape that was asked for.
        shape: Vec<usize>,
        /// Its number of elements.
        wanted: usize,
        /// What there was.
        found: usize,
    },
    /// A shape or view that reaches beyond its memory.
    #[error("a view of shape {shape:?} with strides {strides:?} reaches beyond its {bytes} bytes of memory")]
    Bounds {
        /// The shape.
        shape: Vec<usize>,
        /// The strides.
        strides: Vec<usize>,
        /// The memory's size.
        bytes: usize,
    },
    /// Another type than asked for.
    #[error("the tensor holds {found}, not {wanted}")]
    Type {
        /// What was asked for.
        wanted: DType,
        /// What it holds.
        found: DType,
    },
    /// Not in one piece in memory; [`Tensor::to_vec`] and [`Tensor::contiguous`] copy.
    #[error("the tensor does not lie in one piece in memory (shape {shape:?}, strides {strides:?}): copy it")]
    Strided {
        /// Its shape.
        shape: Vec<usize>,
        /// Its strides.
        strides: Vec<usize>,
    },
    /// An index or dimension that does not exist.
    #[error("index {index} is out of range for {len}")]
    Index {
        /// The index.
        index: usize,
        /// One more than the largest that exists.
        len: usize,
    },
    /// Memory that does not lie as its elements need, or a `bool` that is neither 0 nor 1.
    #[error("these bytes cannot be read as {dtype}: {reason}")]
    Content {
        /// The element type.
        dtype: DType,
        /// What is wrong.
        reason: String,
    },
    /// No memory could be had.
    #[error("no memory for {bytes} bytes: {reason}")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// What the allocator said.
        reason: String,
    },
}

/// Row-major strides, in elements.
pub(crate) fn packed(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1_usize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
    }
    strides
}

fn count(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_usize, |product, n| product.checked_mul(*n))
}

impl Tensor {
    /// A view of `buffer`: elements of `dtype` from byte `offset` on, `strides` in elements.
    pub fn from_buffer(
        buffer: Arc<dyn Buffer>,
        dtype: DType,
        shape: &[usize],
        strides: &[usize],
        offset: usize,
    ) -> Result<Self, TensorError> {
        let bytes = buffer.as_bytes().len();
        let bounds = || TensorError::Bounds {
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            bytes,
        };
        let last = if count(shape).ok_or_else(bounds)? == 0 {
            None
        } else {
            let mut steps = shape.iter().zip(strides);
            let last = steps.try_fold(0_usize, |sum, (n, stride)| {
                sum.checked_add((n - 1).checked_mul(*stride)?)
            });
            Some(last.ok_or_else(bounds)?)
        };
        let elements = last.map_or(Some(0), |last| last.checked_add(1));
        let end = elements.and_then(|n| n.checked_mul(dtype.size())?.checked_add(offset));
        if shape.len() != strides.len() || end.is_none_or(|end| end > bytes) {
            return Err(bounds());
        }
        Ok(Self {
            buffer,
            dtype,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            offset,
        })
    }

    /// A new, packed tensor in memory of `allocator`, whose bytes `fill` writes. All of them must be written: the memory may hold
    /// what a former batch left.
    pub fn build<E: From<TensorError>>(
        allocator: &dyn Allocator,
        dtype: DType,
        shape: &[usize],
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let bytes = count(shape).and_then(|n| n.checked_mul(dtype.size()));
        let bytes = bytes.ok_or_else(|| TensorError::Memory {
            bytes: usize::MAX,
            reason: format!("shape {shape:?} is too large"),
        })?;
        let failed = |error: BoxError| {
            E::from(TensorError::Memory {
                bytes,
                reason: error.to_string(),
            })
        };
        let mut buffer = allocator.reserve(bytes.max(1)).map_err(failed)?;
        fill(&mut buffer.as_bytes_mut()[..bytes])?;
        Ok(Self {
            buffer: Arc::from(buffer),
            dtype,
            shape: shape.to_vec(),
            strides: packed(shape),
            offset: 0,
        })
    }

    /// Zeros, in fresh memory.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Self, TensorError> {
        Self::build(&Heap, dtype, shape, |bytes| {
            bytes.fill(0);
            Ok(())
        })
    }

    /// Copies a slice into fresh memory.
    pub fn from_slice<T: Element>(items: &[T], shape: &[usize]) -> Result<Self, TensorError> {
        let wanted = count(shape).unwrap_or(usize::MAX);
        if wanted != items.len() {
            return Err(TensorError::Size {
                shape: shape.to_vec(),
                wanted,
                found: items.len(),
            });
        }
        Self::build(&Heap, T::DTYPE, shape, |bytes| {
            bytes.copy_from_slice(bytemuck::cast_slice(items));
            Ok(())
        })
    }

    /// As [`from_slice`](Tensor::from_slice).
    #[expect(clippy::needless_pass_by_value, reason = "reads better where a vector was just made")]
    pub fn from_vec<T: Element>(items: Vec<T>, shape: &[usize]) -> Result<Self, TensorError> {
        Self::from_slice(&items, shape)
    }

    /// One element, no dimensions.
    pub fn scalar<T: Element>(item: T) -> Result<Self, TensorError> {
        Self::from_slice(&[item], &[])
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Distance in elements from one to the next, for each dimension.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        count(&self.shape).unwrap_or(0)
    }

    /// Number of bytes that its elements have.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Whether it lies in one piece, row by row.
    pub fn is_contiguous(&self) -> bool {
        let expected = packed(&self.shape);
        self.elements() == 0
            || self
                .shape
                .iter()
                .zip(self.strides.iter().zip(&expected))
                .all(|(n, (stride, expected))| *n == 1 || stride == expected)
    }

    /// Its bytes in place, if it lies in one piece.
    pub fn as_bytes(&self) -> Result<&[u8], TensorError> {
        if !self.is_contiguous() {
            return Err(self.strided());
        }
        Ok(&self.buffer.as_bytes()[self.offset..][..self.bytes()])
    }

    /// Its bytes to write, if it lies in one piece and no other view of the memory exists.
    pub fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_contiguous() {
            return None;
        }
        let (offset, len) = (self.offset, self.bytes());
        let buffer = Arc::get_mut(&mut self.buffer)?;
        Some(&mut buffer.as_bytes_mut()[offset..][..len])
    }

    /// Its elements in place, if it lies in one piece.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        if T::DTYPE != self.dtype {
            return Err(TensorError::Type {
                wanted: T::DTYPE,
                found: self.dtype,
            });
        }
        bytemuck::checked::try_cast_slice(self.as_bytes()?).map_err(|error| TensorError::Content {
            dtype: self.dtype,
            reason: format!("{error:?}"),
        })
    }

    /// A copy of its elements, row by row.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        Ok(self.contiguous(&Heap)?.as_slice()?.to_vec())
    }

    /// Itself if it lies in one piece, else a copy in memory of `allocator`.
    pub fn contiguous(&self, allocator: &dyn Allocator) -> Result<Self, TensorError> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        Self::build(allocator, self.dtype, &self.shape, |bytes| {
            self.copy_to(bytes);
            Ok(())
        })
    }

    /// Writes its elements row by row.
    ///
    /// # Panics
    /// If `out` has not [`bytes`](Tensor::bytes) bytes.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes(), "the target has not the tensor's size");
        if let Ok(bytes) = self.as_bytes() {
            out.copy_from_slice(bytes);
            return;
        }
        // The inner dimensions that lie in one piece are copied at once.
        let mut inner = self.shape.len();
        let mut run = 1;
        while inner > 0 && (self.strides[inner - 1] == run || self.shape[inner - 1] == 1) {
            inner -= 1;
            run *= self.shape[inner];
        }
        let size = self.dtype.size();
        let memory = self.buffer.as_bytes();
        let mut index = vec![0; inner];
        for chunk in out.chunks_exact_mut(run * size) {
            let at: usize = index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum();
            chunk.copy_from_slice(&memory[self.offset + at * size..][..run * size]);
            for (i, n) in index.iter_mut().zip(&self.shape).rev() {
                *i += 1;
                if *i < *n {
                    break;
                }
                *i = 0;
            }
        }
    }

    /// Element `index` of the first dimension.
    pub fn get(&self, index: usize) -> Result<Self, TensorError> {
        let len = self.shape.first().copied().unwrap_or(0);
        if index >= len {
            return Err(TensorError::Index { index, len });
        }
        let mut view = self.clone();
        view.shape.remove(0);
        view.strides.remove(0);
        view.skip(index * self.strides[0]);
        Ok(view)
    }

    /// `len` elements of the first dimension, from `start` on.
    pub fn narrow(&self, start: usize, len: usize) -> Result<Self, TensorError> {
        let found = self.shape.first().copied().unwrap_or(0);
        if start.checked_add(len).is_none_or(|end| end > found) || self.shape.is_empty() {
            return Err(TensorError::Index {
                index: start.saturating_add(len),
                len: found,
            });
        }
        let mut view = self.clone();
        view.shape[0] = len;
        view.skip(start * self.strides[0]);
        Ok(view)
    }

    /// Begins so many elements later: a view without elements has no place, and stays inside of the memory.
    fn skip(&mut self, elements: usize) {
        if self.elements() > 0 {
            self.offset += elements * self.dtype.size();
        }
    }

    /// With two dimensions exchanged.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self, TensorError> {
        let len = self.shape.len();
        if let Some(index) = [a, b].into_iter().find(|d| *d >= len) {
            return Err(TensorError::Index { index, len });
        }
        let mut view = self.clone();
        view.shape.swap(a, b);
        view.strides.swap(a, b);
        Ok(view)
    }

    /// The same elements in another shape, without a copy; it must lie in one piece.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, TensorError> {
        let wanted = count(shape).unwrap_or(usize::MAX);
        if wanted != self.elements() {
            let found = self.elements();
            return Err(TensorError::Size {
                shape: shape.to_vec(),
                wanted,
                found,
            });
        }
        if !self.is_contiguous() {
            return Err(self.strided());
        }
        let mut view = self.clone();
        view.strides = packed(shape);
        view.shape = shape.to_vec();
        Ok(view)
    }

    fn strided(&self) -> TensorError {
        TensorError::Strided {
            shape: self.shape.clone(),
            strides: self.strides.clone(),
        }
    }
}

/// Equal type, shape and bytes. (So `-0.0` and `0.0` differ, and a NaN equals itself.)
impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        if self.dtype != other.dtype || self.shape != other.shape {
            return false;
        }
        match (self.contiguous(&Heap), other.contiguous(&Heap)) {
            (Ok(a), Ok(b)) => a.as_bytes() == b.as_bytes(),
            _ => false,
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype, self.shape)
    }
}

#[cfg(test)]
#[path = "tensor_tests.rs"]
mod tests;
