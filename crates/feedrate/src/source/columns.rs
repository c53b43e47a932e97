//! Columns side by side in one tensor.

use super::Columns;
use crate::batch::{Allocator, Tensor, TensorError, Value};

/// Rows that are written column by column before the next ones: they stay in the cache.
const ROWS: usize = 256;

impl Columns {
    /// The column of this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }
}

/// Writes columns side by side: from tensors of `rows` or `rows × k` elements of one type, one tensor of `rows × width`, row by row, in
/// memory of `allocator`.
///
/// ```
/// use feedrate::batch::{Heap, Tensor};
/// use feedrate::source::interleave;
///
/// let a = Tensor::from_vec(vec![1_i64, 2], &[2])?;
/// let b = Tensor::from_vec(vec![3_i64, 4, 5, 6], &[2, 2])?;
/// let both = interleave(&[&a, &b], &Heap)?;
/// assert_eq!(both.shape(), [2, 3]);
/// assert_eq!(both.as_slice::<i64>()?, [1, 3, 4, 2, 5, 6]);
/// # Ok::<(), feedrate::batch::TensorError>(())
/// ```
pub fn interleave(columns: &[&Tensor], allocator: &dyn Allocator) -> Result<Tensor, TensorError> {
    let Some(first) = columns.first() else {
        return Err(TensorError::Index { index: 0, len: 0 });
    };
    let (dtype, rows) = (first.dtype(), first.shape().first().copied().unwrap_or(0));
    let size = dtype.size();
    let mut width = 0_usize;
    let mut parts = Vec::with_capacity(columns.len());
    for column in columns {
        if column.dtype() != dtype {
            return Err(TensorError::Type {
                wanted: dtype,
                found: column.dtype(),
            });
        }
        let inner = match column.shape() {
            [n] if *n == rows => 1,
            [n, inner] if *n == rows => *inner,
            _ => {
                return Err(TensorError::Size {
                    shape: vec![rows],
                    wanted: rows,
                    found: column.elements(),
                });
            }
        };
        parts.push((column.contiguous(allocator)?, inner, width * size));
        width += inner;
    }
    let pieces: Vec<(&[u8], usize, usize)> = parts
        .iter()
        .map(|(column, inner, at)| Ok((column.as_bytes()?, inner * size, *at)))
        .collect::<Result<_, TensorError>>()?;
    let row = width * size;
    Tensor::build(allocator, dtype, &[rows, width], |out| {
        if row == 0 {
            return Ok(());
        }
        for (block, out) in out.chunks_mut(ROWS * row).enumerate() {
            for (bytes, len, at) in &pieces {
                let from = bytes.get(block * ROWS * len..).unwrap_or_default();
                match len {
                    0 => {}
                    4 => scatter::<4>(from, out, row, *at),
                    8 => scatter::<8>(from, out, row, *at),
                    len => {
                        for (from, out) in from.chunks_exact(*len).zip(out.chunks_exact_mut(row)) {
                            out[*at..at + len].copy_from_slice(from);
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

/// Elements of a width that the compiler knows.
fn scatter<const N: usize>(from: &[u8], out: &mut [u8], row: usize, at: usize) {
    let (elements, _) = from.as_chunks::<N>();
    for (from, out) in elements.iter().zip(out.chunks_exact_mut(row)) {
        if let Some(place) = out.get_mut(at..at + N) {
            place.copy_from_slice(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Heap;

    #[test]
    fn what_does_not_fit_is_refused() {
        let a = Tensor::from_vec((0..600_i32).collect(), &[600]).unwrap();
        let b = Tensor::from_vec((0..1200_i32).collect(), &[600, 2]).unwrap();
        let c = Tensor::from_vec((0..1800_i32).collect(), &[600, 3]).unwrap();
        let all = interleave(&[&a, &b, &a, &c], &Heap).unwrap();
        assert_eq!(all.shape(), [600, 7]);
        let row = all.get(599).unwrap().to_vec::<i32>().unwrap();
        assert_eq!(row, [599, 1198, 1199, 599, 1797, 1798, 1799]);
        assert!(interleave(&[], &Heap).is_err());
        assert!(interleave(&[&a, &a.narrow(0, 5).unwrap()], &Heap).is_err());
        let bytes = Tensor::from_vec(vec![0_u8; 600], &[600]).unwrap();
        assert!(interleave(&[&a, &bytes], &Heap).is_err());
        let mixed = interleave(&[&bytes, &bytes], &Heap).unwrap();
        assert_eq!(mixed.shape(), [600, 2]);
    }
}
