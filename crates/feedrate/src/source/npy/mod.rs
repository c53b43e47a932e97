//! NumPy's arrays: `.npy` and `.npz`.

mod array;
mod header;
mod zip;

use std::path::PathBuf;
use std::sync::Arc;

pub(super) use self::array::Array;
pub(super) use self::header::Kind;
use super::numbered::{Fields, Numbered};
use super::paths::Paths;
use super::window::{Input, Window};
use super::{Fault, Mark, Part, Reader, Source, SourceError};
use crate::batch::Value;

/// Files of arrays, each a part: its rows are the elements of the first dimension.
///
/// - A `.npy` file is an array; a row is a map with one field, called `array` unless [`named`](Npy::named) otherwise.
/// - A `.npz` archive is some arrays with the same first dimension; a row has a field for each. Members may be stored, which gives
///   random access, or deflated, which is read forward (going back begins again).
///
/// Bools, integers, floats and complex numbers of either byte order are tensors of their type (of a one-dimensional array: without
/// dimensions). Text (`U`) and byte strings (`S`) are strings and bytes. Objects are pickles and are refused, as are structured arrays and
/// dates. Rows are read where they lie, in C or in Fortran order: memory for each reader is a buffer of 256 KiB for each array and the
/// row itself, or a block of 1 MiB in Fortran order.
///
/// ```
/// use feedrate::source::{Npy, Source};
///
/// let path = std::env::temp_dir().join(format!("feedrate-doc-{}.npy", std::process::id()));
/// let header = format!("{:<79}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }");
/// std::fs::write(&path, [b"\x93NUMPY\x01\x00\x50\x00", header.as_bytes(), &[1, 2, 3, 4, 5, 6]].concat())?;
/// let mut reader = Npy::new([&path]).open(0, None)?;
/// reader.skip(1)?;
/// let row = reader.next()?.ok_or("a row")?.value;
/// let array = row.get("array").and_then(|value| value.as_tensor()).ok_or("a tensor")?;
/// assert_eq!(array.as_slice::<u8>()?, [4, 5, 6]);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Npy {
    shards: Paths,
    named: String,
    fields: Option<Vec<String>>,
}

impl Npy {
    /// Of these files, in this order. What a file is, is told by its first bytes.
    pub fn new(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            shards: Paths::new(paths),
            named: "array".into(),
            fields: None,
        }
    }

    /// What the field of a `.npy` file is called.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.named = name.into();
        self
    }

    /// Which arrays of an archive are read, in this order. The others may be of any kind and length.
    #[must_use]
    pub fn fields(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.fields = Some(names.into_iter().map(Into::into).collect());
        self
    }

    fn reader(&self, part: usize) -> Result<NpyReader, SourceError> {
        let (path, name) = self.shards.path(part)?;
        let mut window = Window::open(path, Arc::clone(&name))?;
        let arrays = if window.some(0, 2)? == b"PK" {
            self.archive(&mut window)?
        } else {
            let len = window.len();
            let array = Array::open(Input::File(window), Arc::clone(&name), None, 0, len)?;
            vec![(self.named.clone(), array)]
        };
        let rows = arrays.first().map_or(0, |(_, array)| array.rows());
        if let Some((other, array)) = arrays.iter().find(|(_, array)| array.rows() != rows) {
            return Err(SourceError::new(
                Fault::Unsupported,
                &*name,
                format!(
                    "the arrays {:?} and {other:?} have {rows} and {} rows: choose fields of one length",
                    arrays[0].0,
                    array.rows()
                ),
            ));
        }
        Ok(NpyReader { arrays, rows })
    }

    fn archive(&self, window: &mut Window) -> Result<Vec<(String, Array)>, SourceError> {
        let name = Arc::clone(window.name());
        let members = zip::members(window)?;
        let known: Vec<_> = members
            .iter()
            .map(|member| member.name.strip_suffix(".npy").unwrap_or(&member.name))
            .collect();
        let chosen: Vec<usize> = match &self.fields {
            None => (0..members.len()).collect(),
            Some(fields) => {
                let find = |field: &String| {
                    known.iter().rposition(|known| known == field).ok_or_else(|| {
                        SourceError::new(
                            Fault::Absent,
                            &*name,
                            format!("there is no array {field:?}, only {known:?}"),
                        )
                    })
                };
                fields.iter().map(find).collect::<Result<_, _>>()?
            }
        };
        let mut arrays = Vec::with_capacity(chosen.len());
        for at in chosen {
            let member = &members[at];
            let (input, base) = member.open(window)?;
            let called = Some(member.name.clone());
            let array = Array::open(input, Arc::clone(&name), called, base, member.len)?;
            arrays.push((known[at].to_owned(), array));
        }
        Ok(arrays)
    }
}

impl Source for Npy {
    fn format(&self) -> &'static str {
        "npy"
    }

    fn describe(&self) -> String {
        format!(
            "{} (as {}, fields {:?})",
            self.shards.describe(),
            self.named,
            self.fields
        )
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        Ok(self.shards.parts())
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        self.shards.files(part)
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(self.reader(part)?.in_order(from))
    }

    fn indexed(&self) -> bool {
        true
    }

    fn index(&self) -> Result<Arc<[u64]>, SourceError> {
        self.shards.index(|part| Ok(self.reader(part)?.rows))
    }
}

struct NpyReader {
    arrays: Vec<(String, Array)>,
    rows: u64,
}

impl Numbered for NpyReader {
    fn count(&self) -> u64 {
        self.rows
    }

    fn record(&mut self, number: u64) -> Result<Value, SourceError> {
        let fields = self.arrays.iter_mut();
        let fields: Fields = fields
            .map(|(name, array)| Ok((name.clone(), array.one(number)?)))
            .collect::<Result<_, SourceError>>()?;
        Ok(Value::Map(fields))
    }

    fn columns(&mut self, first: u64, rows: usize) -> Option<Result<(usize, Fields), SourceError>> {
        let fields = self.arrays.iter_mut();
        let fields: Result<Fields, SourceError> = fields
            .map(|(name, array)| Ok((name.clone(), array.rows_at(first, rows)?)))
            .collect();
        Some(fields.map(|fields| (rows, fields)))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
