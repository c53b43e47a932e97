//! Rows of one dataset.

use std::sync::Arc;

use hdf5_reader::Dataset;
use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::dataspace::DataspaceType;
use hdf5_reader::messages::filter_pipeline::FilterDescription;
use hdf5_reader::messages::layout::DataLayout;

use super::chunks::{Chunks, Grid, Index};
use super::file::{File, failed};
use super::types::{Charset, Element, Kind, Padding, Refused};
use crate::batch::{DType, Heap, Tensor, TensorError, Value};
use crate::source::window::Window;
use crate::source::{Fault, SourceError};

/// More rows than a dataset has.
const ROWS: u64 = 1 << 40;

/// Where the bytes of a dataset are.
enum Stored {
    /// Nowhere: nothing was written, so that all of it is the fill value.
    Nowhere,
    /// One after the other from here on, in the file.
    Here(u64),
    /// In the header.
    Held(Vec<u8>),
    Chunked(Box<Chunks>),
}

/// An open dataset.
pub(super) struct Column {
    /// What the rows' field is called: the path.
    pub(super) path: String,
    name: Arc<str>,
    window: Window,
    dataset: Dataset,
    element: Element,
    /// Of the tensor of all rows; an element's own dimensions come last.
    shape: Vec<usize>,
    rows: u64,
    /// Bytes of one row as it is stored.
    row: usize,
    /// An element that was not written.
    empty: Vec<u8>,
    stored: Stored,
}

/// What a dataset's header says that matters here.
struct Header {
    dims: Vec<u64>,
    most: Option<Vec<u64>>,
    layout: DataLayout,
    empty: Option<Vec<u8>>,
    filters: Vec<FilterDescription>,
}

impl Header {
    fn of(messages: &[HdfMessage]) -> Result<Self, Refused> {
        let (mut space, mut layout, mut empty, mut filters) = (None, None, None, Vec::new());
        for message in messages {
            match message {
                HdfMessage::Dataspace(found) => space = Some(found),
                HdfMessage::DataLayout(found) => layout = Some(&found.layout),
                // An older message for the same may follow.
                HdfMessage::FillValue(found) if empty.is_none() => empty.clone_from(&found.value),
                HdfMessage::FilterPipeline(found) => filters.clone_from(&found.filters),
                HdfMessage::ExternalFiles(_) => {
                    let why = "its values lie in other files, which are not opened: store them in this one";
                    return Err(Refused::Unsupported(why.into()));
                }
                _ => {}
            }
        }
        let (Some(space), Some(layout)) = (space, layout) else {
            return Err(Refused::Damaged("it has no shape or no layout".into()));
        };
        if space.dataspace_type != DataspaceType::Simple || space.dims.is_empty() {
            return Err(Refused::Unsupported("it has no dimensions, so it has no rows".into()));
        }
        Ok(Self {
            dims: space.dims.clone(),
            most: space.max_dims.clone(),
            layout: layout.clone(),
            empty,
            filters,
        })
    }

    /// The tensor's shape, and the bytes of an element with its own dimensions and of a row.
    fn sizes(&self, element: &Element) -> Option<(Vec<usize>, usize, usize)> {
        let mut shape = Vec::with_capacity(self.dims.len() + element.inner.len());
        for n in &self.dims {
            shape.push(usize::try_from(*n).ok()?);
        }
        let size = element
            .inner
            .iter()
            .try_fold(element.size, |size, n| size.checked_mul(*n))?;
        let row = shape[1..].iter().try_fold(size, |row, n| row.checked_mul(*n))?;
        shape.extend_from_slice(&element.inner);
        // Elements of no bytes are counted too.
        shape[1..].iter().try_fold(1_usize, |all, n| all.checked_mul(*n))?;
        (self.dims[0] <= ROWS && (row as u64).checked_mul(self.dims[0]).is_some()).then_some((shape, size, row))
    }

    /// Where the bytes of all rows are, `all` of them.
    fn stored(self, file: &File, path: &str, header: u64, size: usize, all: u64) -> Result<Stored, SourceError> {
        let wrong =
            |fault, message: String| SourceError::new(fault, &*file.name, message).of(format!("dataset {path}"));
        let shape = &self.dims;
        match self.layout {
            DataLayout::Contiguous { address, .. } | DataLayout::Chunked { address, .. }
                if undefined(file, address) =>
            {
                Ok(Stored::Nowhere)
            }
            DataLayout::Compact { data } if data.len() as u64 >= all => Ok(Stored::Held(data)),
            DataLayout::Compact { data } => {
                let message = format!("shape {shape:?} needs {all} bytes, and it holds {}", data.len());
                Err(wrong(Fault::Damaged, message))
            }
            DataLayout::Contiguous { address, .. } => {
                let (start, len) = (file.base.saturating_add(address), file.window.len());
                if start.checked_add(all).is_none_or(|end| end > len) {
                    let message =
                        format!("shape {shape:?} needs {all} bytes from {start} on, and the file ends at {len}");
                    return Err(wrong(Fault::Truncated, message));
                }
                Ok(Stored::Here(start))
            }
            DataLayout::Chunked {
                address,
                dims,
                chunk_indexing,
                ..
            } => {
                let grid = Grid::new(shape, &dims, size).map_err(|why| wrong(Fault::Damaged, why))?;
                let index = Index {
                    address,
                    kind: chunk_indexing,
                    most: self.most,
                    header,
                };
                let chunks = Chunks::new(file, path, grid, index, self.filters);
                Ok(Stored::Chunked(Box::new(chunks)))
            }
        }
    }
}

impl Column {
    pub(super) fn open(file: &File, path: &str) -> Result<Self, SourceError> {
        let dataset = file.dataset(path)?;
        let wrong =
            |fault, message: String| SourceError::new(fault, &*file.name, message).of(format!("dataset {path}"));
        let said = |error| failed(&file.name, &error).of(format!("dataset {path}"));
        let refused = |refused| match refused {
            Refused::Damaged(why) => wrong(Fault::Damaged, why),
            Refused::Unsupported(why) => wrong(Fault::Unsupported, format!("{why}; choose others by columns=")),
        };
        let header = file.inner.get_or_parse_header(dataset.address()).map_err(said)?;
        let header = Header::of(&header.messages).map_err(refused)?;
        let description = dataset.raw_datatype().map_err(said)?;
        let element = Element::read(&description, dataset.vlen_reference_size()).map_err(refused)?;
        let rows = header.dims[0];
        let Some((shape, size, row)) = header.sizes(&element) else {
            let message = format!("shape {:?} is more than there can be", header.dims);
            return Err(wrong(Fault::Damaged, message));
        };
        if row as u64 > file.most() {
            let message = format!(
                "a row has {row} bytes, which cannot come of the file's {}",
                file.window.len()
            );
            return Err(wrong(Fault::Damaged, message));
        }
        let empty = match &header.empty {
            Some(value) if value.len() == size => value.clone(),
            Some(value) if !value.is_empty() => {
                let message = format!("its fill value has {} bytes, and an element {size}", value.len());
                return Err(wrong(Fault::Damaged, message));
            }
            _ => vec![0; size],
        };
        let stored = header.stored(file, path, dataset.address(), size, row as u64 * rows)?;
        Ok(Self {
            path: path.to_owned(),
            name: Arc::clone(&file.name),
            window: file.window.again(),
            dataset,
            element,
            shape,
            rows,
            row,
            empty,
            stored,
        })
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> usize {
        self.row
    }

    fn wrong(&self, fault: Fault, row: u64, message: impl Into<String>) -> SourceError {
        SourceError::new(fault, &*self.name, message).of(format!("dataset {}, row {row}", self.path))
    }

    /// One row.
    pub(super) fn one(&mut self, row: u64) -> Result<Value, SourceError> {
        match self.some(row, 1, false)? {
            Value::List(mut items) if !matches!(self.element.kind, Kind::Numbers(_)) => {
                Ok(items.pop().unwrap_or(Value::None))
            }
            other => Ok(other),
        }
    }

    /// Some rows: a tensor, or a list of what is no numbers.
    pub(super) fn many(&mut self, first: u64, rows: usize) -> Result<Value, SourceError> {
        self.some(first, rows, true)
    }

    /// `rows` rows, or one without the dimension of rows.
    fn some(&mut self, first: u64, rows: usize, many: bool) -> Result<Value, SourceError> {
        let mut shape = self.shape.clone();
        shape[0] = rows;
        let Kind::Numbers(dtype) = self.element.kind else {
            let mut bytes = vec![0; rows.saturating_mul(self.row)];
            self.fill(first, &mut bytes)?;
            return self.items(first, &shape, &bytes);
        };
        let mut failed = None;
        let built = Tensor::build(&Heap, dtype, &shape[usize::from(!many)..], |out| {
            let read = self.fill(first, out);
            read.map_err(|error| {
                failed = Some(error);
                TensorError::Index { index: 0, len: 0 }
            })?;
            if self.element.swap {
                swap(dtype, out);
            }
            if dtype == DType::Bool && out.iter().any(|byte| *byte > 1) {
                failed = Some(self.wrong(Fault::Damaged, first, "a truth value is neither 0 nor 1"));
                return Err(TensorError::Index { index: 0, len: 0 });
            }
            Ok(())
        });
        if let Some(error) = failed {
            return Err(error);
        }
        built
            .map(Value::Tensor)
            .map_err(|error| self.wrong(Fault::Damaged, first, error.to_string()))
    }

    /// The bytes of rows, as they are stored.
    fn fill(&mut self, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        match &mut self.stored {
            Stored::Nowhere => {
                repeat(&self.empty, out);
                Ok(())
            }
            Stored::Here(start) => {
                let at = *start + first * self.row as u64;
                self.window.fill(at, out, "a dataset")
            }
            Stored::Held(data) => {
                let at = usize::try_from(first).unwrap_or(usize::MAX).saturating_mul(self.row);
                let held = data.get(at..).and_then(|data| data.get(..out.len()));
                let held = held.ok_or_else(|| {
                    SourceError::new(
                        Fault::Damaged,
                        &*self.name,
                        format!("row {first} is not in the dataset's header"),
                    )
                })?;
                out.copy_from_slice(held);
                Ok(())
            }
            Stored::Chunked(chunks) => chunks.fill(&self.window, first, &self.empty, out),
        }
    }

    /// Elements that are no numbers, in lists of this shape.
    fn items(&self, first: u64, shape: &[usize], bytes: &[u8]) -> Result<Value, SourceError> {
        let mut elements = bytes.chunks_exact(self.element.size.max(1));
        nest(shape, &mut || {
            let bytes = elements.next().unwrap_or_default();
            self.item(bytes).map_err(|error| match error.key() {
                Some(_) => error,
                None => error.of(format!("dataset {}, in rows from {first} on", self.path)),
            })
        })
    }

    fn item(&self, bytes: &[u8]) -> Result<Value, SourceError> {
        let elsewhere = |size| {
            let found = self.dataset.resolve_vlen_reference_bytes(bytes, size);
            found.map_err(|error| failed(&self.name, &error))
        };
        match self.element.kind {
            Kind::Fixed(padding, charset) => {
                let len = match padding {
                    Padding::Ended => bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()),
                    Padding::Zeros => bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1),
                    Padding::Spaces => bytes.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1),
                };
                match charset {
                    Charset::Ascii => Ok(Value::Bytes(bytes[..len].to_vec())),
                    Charset::Utf8 => self.text(bytes[..len].to_vec()),
                }
            }
            Kind::Text(charset) => {
                let mut found = elsewhere(1)?;
                // What C wrote may have its zero counted.
                let len = found.iter().position(|byte| *byte == 0).unwrap_or(found.len());
                found.truncate(len);
                match charset {
                    Charset::Ascii => Ok(Value::Bytes(found)),
                    Charset::Utf8 => self.text(found),
                }
            }
            Kind::Ragged(dtype) => {
                let found = elsewhere(dtype.size())?;
                let tensor = Tensor::build(&Heap, dtype, &[found.len() / dtype.size()], |out| {
                    out.copy_from_slice(&found);
                    if self.element.swap {
                        swap(dtype, out);
                    }
                    Ok::<_, TensorError>(())
                });
                let tensor =
                    tensor.map_err(|error| SourceError::new(Fault::Damaged, &*self.name, error.to_string()))?;
                if dtype == DType::Bool && found.iter().any(|byte| *byte > 1) {
                    let message = "a truth value is neither 0 nor 1";
                    return Err(SourceError::new(Fault::Damaged, &*self.name, message));
                }
                Ok(Value::Tensor(tensor))
            }
            Kind::Numbers(_) => Ok(Value::None),
        }
    }

    fn text(&self, bytes: Vec<u8>) -> Result<Value, SourceError> {
        String::from_utf8(bytes).map(Value::Str).map_err(|error| {
            let message = format!("a string that should be UTF-8 is not: {error}");
            SourceError::new(Fault::Damaged, &*self.name, message)
        })
    }
}

/// Whether an address is no place: all ones, in as many bytes as the file's addresses have.
fn undefined(file: &File, address: u64) -> bool {
    let bits = u32::from(file.inner.superblock().offset_size) * 8;
    address == u64::MAX || (bits < 64 && address == (1 << bits) - 1)
}

/// Writes a value over and over.
pub(super) fn repeat(value: &[u8], out: &mut [u8]) {
    if value.iter().all(|byte| *byte == 0) {
        out.fill(0);
        return;
    }
    let mut done = value.len().min(out.len());
    out[..done].copy_from_slice(&value[..done]);
    while done < out.len() {
        let more = done.min(out.len() - done);
        out.copy_within(..more, done);
        done += more;
    }
}

fn swap(dtype: DType, bytes: &mut [u8]) {
    let width = match dtype {
        DType::Complex64 => 4,
        DType::Complex128 => 8,
        other => other.size(),
    };
    bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
}

/// Lists in lists, of this shape.
fn nest(shape: &[usize], element: &mut dyn FnMut() -> Result<Value, SourceError>) -> Result<Value, SourceError> {
    match shape {
        [] => element(),
        [n, rest @ ..] => (0..*n)
            .map(|_| nest(rest, element))
            .collect::<Result<_, _>>()
            .map(Value::List),
    }
}
