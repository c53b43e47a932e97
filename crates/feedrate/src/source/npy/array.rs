//! Rows of one array.

use std::sync::Arc;

use super::header::{Header, Kind, Refused};
use crate::batch::{DType, Heap, Tensor, TensorError, Value};
use crate::source::window::Input;
use crate::source::{Fault, SourceError};

/// What a block of rows is cut to where they do not lie one after the other.
const BLOCK: usize = 1 << 20;

/// An array in a file or a member of one, by rows.
pub(in crate::source) struct Array {
    input: Input,
    name: Arc<str>,
    /// What it is called, in an archive.
    member: Option<String>,
    header: Header,
    /// Of the first element, in the input.
    base: u64,
    row: usize,
    inner: usize,
    /// Rows in Fortran order are scattered, so some of them are fetched together: the first one's number.
    block: Option<(u64, Tensor)>,
}

impl Array {
    /// The array that begins at `base` of `input` and may have `len` bytes.
    pub(in crate::source) fn open(
        mut input: Input,
        name: Arc<str>,
        member: Option<String>,
        base: u64,
        len: u64,
    ) -> Result<Self, SourceError> {
        let wrong = |fault, message: String| {
            let error = SourceError::new(fault, &*name, message).at(base);
            match &member {
                Some(member) => error.of(member.clone()),
                None => error,
            }
        };
        let available = usize::try_from(len).unwrap_or(usize::MAX);
        let mut wanted = 128;
        let header = loop {
            let head = input.some(base, wanted.min(available))?;
            match Header::read(head) {
                Ok(header) => break header,
                Err(Refused::Short(needed)) if needed > wanted && needed <= available => wanted = needed,
                Err(Refused::Short(needed)) => {
                    let found = head.len();
                    return Err(wrong(
                        Fault::Truncated,
                        format!("the array's header needs {needed} bytes, there are {found}"),
                    ));
                }
                Err(Refused::Damaged(why)) => return Err(wrong(Fault::Damaged, why)),
                Err(Refused::Unsupported(why)) => return Err(wrong(Fault::Unsupported, why)),
            }
        };
        let Some(&rows) = header.shape.first() else {
            return Err(wrong(
                Fault::Unsupported,
                "the array has no dimensions, so it has no rows".into(),
            ));
        };
        let sizes = header.inner().zip(header.row());
        let total = sizes.and_then(|(_, row)| (row as u64).checked_mul(rows as u64)?.checked_add(header.data));
        let (Some((inner, row)), Some(total)) = (sizes, total) else {
            return Err(wrong(
                Fault::Damaged,
                format!("shape {:?} is more than there can be", header.shape),
            ));
        };
        // Where there are no bytes, nothing else bounds what a header asks for.
        let values = header.values();
        if row as u64 * rows as u64 == 0 && values.is_none_or(|values| values > BLOCK) {
            return Err(wrong(
                Fault::Damaged,
                format!(
                    "shape {:?} of strings has no bytes and more than {BLOCK} values",
                    header.shape
                ),
            ));
        }
        if total > len {
            return Err(wrong(
                Fault::Truncated,
                format!(
                    "shape {:?} of {} bytes each needs {total} bytes with its header, there are {len}",
                    header.shape,
                    header.kind.size()
                ),
            ));
        }
        if header.fortran && inner > 1 && matches!(input, Input::Stream(_)) {
            return Err(wrong(
                Fault::Unsupported,
                "the array is compressed and in Fortran order, so that no row can be read without all of it: store it uncompressed or in C order"
                    .into(),
            ));
        }
        Ok(Self {
            input,
            base: base + header.data,
            row,
            inner,
            block: None,
            name,
            member,
            header,
        })
    }

    pub(in crate::source) fn rows(&self) -> u64 {
        self.header.shape.first().map_or(0, |n| *n as u64)
    }

    pub(in crate::source) fn header(&self) -> &Header {
        &self.header
    }

    fn wrong(&self, fault: Fault, row: u64, message: impl Into<String>) -> SourceError {
        let error = SourceError::new(fault, &*self.name, message).at(self.offset(row));
        match &self.member {
            Some(member) => error.of(format!("{member}, row {row}")),
            None => error.of(format!("row {row}")),
        }
    }

    /// Of a row, or of its first element.
    fn offset(&self, row: u64) -> u64 {
        let size = if self.header.fortran {
            self.header.kind.size()
        } else {
            self.row
        };
        self.base.saturating_add(row.saturating_mul(size as u64))
    }

    /// Whether a row is not one piece of the file.
    fn scattered(&self) -> bool {
        self.header.fortran && self.inner > 1
    }

    /// One row, in memory of its own.
    pub(in crate::source) fn one(&mut self, row: u64) -> Result<Value, SourceError> {
        if !self.scattered() {
            return match self.rows_at(row, 1)? {
                Value::Tensor(tensor) => tensor.get(0).map(Value::Tensor).map_err(|e| self.memory(row, &e)),
                Value::List(mut items) => Ok(items.pop().unwrap_or(Value::None)),
                other => Ok(other),
            };
        }
        let held = |block: &(u64, Tensor)| row >= block.0 && row - block.0 < block.1.shape()[0] as u64;
        if !self.block.as_ref().is_some_and(held) {
            // As much as a block, if reading goes on behind the last one; else this one row.
            let goes_on = self
                .block
                .as_ref()
                .is_some_and(|(first, t)| first + t.shape()[0] as u64 == row);
            let most = if goes_on || row == 0 {
                (BLOCK / self.row.max(1)).max(1)
            } else {
                1
            };
            let rows = (self.rows() - row).min(most as u64);
            match self.rows_at(row, usize::try_from(rows).unwrap_or(1))? {
                Value::Tensor(tensor) => self.block = Some((row, tensor)),
                Value::List(mut items) => {
                    self.block = None;
                    items.truncate(1);
                    return Ok(items.pop().unwrap_or(Value::None));
                }
                other => return Ok(other),
            }
        }
        let Some((first, block)) = &self.block else {
            return Ok(Value::None);
        };
        let at = usize::try_from(row - first).unwrap_or(usize::MAX);
        let copy = block.get(at).and_then(|view| {
            Tensor::build(&Heap, view.dtype(), view.shape(), |out| {
                view.copy_to(out);
                Ok::<_, TensorError>(())
            })
        });
        copy.map(Value::Tensor).map_err(|error| self.memory(row, &error))
    }

    fn memory(&self, row: u64, error: &TensorError) -> SourceError {
        self.wrong(Fault::TooLarge, row, error.to_string())
    }

    /// Some rows: a tensor, or a list of what is no numbers.
    pub(in crate::source) fn rows_at(&mut self, first: u64, rows: usize) -> Result<Value, SourceError> {
        let mut shape = self.header.shape.clone();
        shape[0] = rows;
        let (dtype, shape) = match self.header.kind {
            Kind::Numbers(dtype) => (dtype, shape),
            Kind::Text(_) | Kind::Bytes(_) => {
                shape.push(self.header.kind.size());
                (DType::U8, shape)
            }
        };
        let bytes = rows.saturating_mul(self.row);
        let mut failed = None;
        let built = Tensor::build(&Heap, dtype, &shape, |out| {
            let read = if self.scattered() {
                self.gather(first, rows, out)
            } else {
                self.copy(first, bytes, out)
            };
            read.map_err(|error| {
                failed = Some(error);
                TensorError::Index { index: 0, len: 0 }
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let tensor = built.map_err(|error| self.memory(first, &error))?;
        self.values(first, &tensor)
    }

    /// Rows that lie one after the other.
    fn copy(&mut self, first: u64, bytes: usize, out: &mut [u8]) -> Result<(), SourceError> {
        let at = self.offset(first);
        match &mut self.input {
            Input::File(window) => window.fill(at, out, "an array")?,
            Input::Stream(_) => {
                // In pieces, so that the stream's buffer stays small.
                let mut done = 0;
                for piece in out.chunks_mut(BLOCK) {
                    piece.copy_from_slice(self.input.exact(at + done, piece.len(), "an array")?);
                    done += piece.len() as u64;
                }
            }
        }
        debug_assert_eq!(bytes, out.len());
        if self.header.swap {
            swap(self.header.kind, out);
        }
        Ok(())
    }

    /// Rows in Fortran order: for each element of a row, those of all rows lie side by side.
    fn gather(&mut self, first: u64, rows: usize, out: &mut [u8]) -> Result<(), SourceError> {
        if out.is_empty() {
            // A row of nothing may have any number of elements.
            return Ok(());
        }
        let size = self.header.kind.size();
        let rest = &self.header.shape[1..];
        let all = self.rows();
        let mut index = vec![0_usize; rest.len()];
        let mut column = vec![0; rows * size];
        for place in 0..self.inner {
            let mut at = 0_u64;
            for (i, n) in index.iter().zip(rest).rev() {
                at = at * *n as u64 + *i as u64;
            }
            let offset = self.base + (at * all + first) * size as u64;
            match &mut self.input {
                Input::File(window) => window.fill(offset, &mut column, "an array")?,
                Input::Stream(_) => column.copy_from_slice(self.input.exact(offset, rows * size, "an array")?),
            }
            for (row, element) in column.chunks_exact(size.max(1)).enumerate() {
                out[(row * self.inner + place) * size..][..size].copy_from_slice(element);
            }
            // The last dimension moves first, as the tensor is row by row.
            for (i, n) in index.iter_mut().zip(rest).rev() {
                *i += 1;
                if *i < *n {
                    break;
                }
                *i = 0;
            }
        }
        if self.header.swap {
            swap(self.header.kind, out);
        }
        Ok(())
    }

    /// The tensor itself if it holds numbers, else lists of what its bytes are.
    fn values(&self, first: u64, tensor: &Tensor) -> Result<Value, SourceError> {
        let bytes = tensor.as_bytes().unwrap_or_default();
        match self.header.kind {
            Kind::Numbers(DType::Bool) if bytes.iter().any(|byte| *byte > 1) => {
                Err(self.wrong(Fault::Damaged, first, "a truth value is neither 0 nor 1"))
            }
            Kind::Numbers(_) => Ok(Value::Tensor(tensor.clone())),
            kind => {
                let size = kind.size();
                let element = |at: usize| {
                    let bytes = &bytes[at * size..][..size];
                    if let Kind::Text(_) = kind {
                        text(bytes).map(Value::Str)
                    } else {
                        let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                        Some(Value::Bytes(bytes[..len].to_vec()))
                    }
                };
                let shape = &tensor.shape()[..tensor.shape().len() - 1];
                let mut at = 0;
                nest(shape, &mut || {
                    at += 1;
                    element(at - 1)
                })
                .ok_or_else(|| self.wrong(Fault::Damaged, first, "a character is none"))
            }
        }
    }
}

/// Lists in lists, of this shape.
fn nest(shape: &[usize], element: &mut dyn FnMut() -> Option<Value>) -> Option<Value> {
    match shape {
        [] => element(),
        [n, rest @ ..] => (0..*n)
            .map(|_| nest(rest, element))
            .collect::<Option<_>>()
            .map(Value::List),
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    let chars = bytes
        .chunks_exact(4)
        .map(|four| four.try_into().map_or(0, u32::from_ne_bytes));
    let text = chars.map(char::from_u32).collect::<Option<String>>()?;
    Some(text.trim_end_matches('\0').to_owned())
}

fn swap(kind: Kind, bytes: &mut [u8]) {
    let width = match kind {
        Kind::Numbers(DType::Complex64) | Kind::Text(_) => 4,
        Kind::Numbers(DType::Complex128) => 8,
        Kind::Numbers(dtype) => dtype.size(),
        Kind::Bytes(_) => 1,
    };
    bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
}
