//! HDF5.

mod chunks;
mod file;
mod filters;
mod rows;
mod types;

use std::path::PathBuf;
use std::sync::Arc;

use self::chunks::Known;
use self::file::File;
use self::rows::Column;
use super::guard::guard;
use super::numbered::{Fields, Numbered};
use super::paths::Paths;
use super::{Fault, Mark, Part, Reader, Source, SourceError};
use crate::batch::Value;

/// Most bytes that are given as columns at a time, but at least one row.
const GIVEN: usize = 256 << 20;

/// HDF5 files, each a part: a row has one element of the first dimension of every dataset, in a field that is called by the dataset's path.
///
/// | type | of a row | as a column |
/// | --- | --- | --- |
/// | integers of 1, 2, 4 and 8 bytes; `float16`, `bfloat16`, `float32`, `float64`; h5py's bools and complex numbers | tensor of their type | the same |
/// | enumerations | tensor of their numbers | the same |
/// | arrays of those as elements | tensor with dimensions more | the same |
/// | strings: UTF-8 | string (of a dataset with more dimensions: lists) | list |
/// | strings: ASCII | bytes | list |
/// | sequences of numbers of any length | tensor | list |
///
/// Both byte orders are read. Compounds, opaque bytes, bit fields, times, references and floats of other layouts are refused, as are virtual
/// datasets and values in other files; no link to another file is followed. Chunks may be packed by deflate (gzip), shuffle, Fletcher's checksum, LZF, szip,
/// N-bit, and scale and offset.
///
/// Rows are found by number. Memory: for each dataset in chunks 32 bytes for each chunk, once for all readers, and some 100 while they are looked up.
/// For each reader: 1 MiB of the file's headers and indexes; for each dataset in chunks, the rows that are decoded: those of one chunk, of all chunks that share them, if that is not
/// more than 64 MiB, else as many as fit, so that chunks that are deep and narrow are decoded several times; for each dataset of
/// strings or sequences, 64 MiB of those that were read last.
#[derive(Debug)]
pub struct Hdf5 {
    shards: Paths,
    columns: Option<Vec<String>>,
    known: Arc<Known>,
}

impl Hdf5 {
    /// Of these files, in this order: all datasets of each, in the order of their names.
    pub fn new(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            shards: Paths::new(paths),
            columns: None,
            known: Arc::default(),
        }
    }

    /// Only the datasets of these paths (`train/images`), in this order. The others may be of any type and length.
    #[must_use]
    pub fn columns(mut self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.columns = Some(paths.into_iter().map(Into::into).collect());
        self
    }

    fn reader(&self, part: usize) -> Result<Hdf5Reader, SourceError> {
        let (path, name) = self.shards.path(part)?;
        guard(&Arc::clone(&name), || {
            let file = File::open(path, Arc::clone(&name), part, Arc::clone(&self.known))?;
            let paths = match &self.columns {
                Some(paths) => paths.clone(),
                None => file.datasets()?,
            };
            let columns: Vec<Column> = paths
                .iter()
                .map(|path| Column::open(&file, path).map_err(|error| error.of(format!("dataset {path}"))))
                .collect::<Result<_, _>>()?;
            let Some(first) = columns.first() else {
                let message = "there is no dataset in it, so there are no rows";
                return Err(SourceError::new(Fault::Absent, &*name, message));
            };
            let rows = first.rows();
            if let Some(other) = columns.iter().find(|column| column.rows() != rows) {
                let message = format!(
                    "the datasets {:?} and {:?} have {rows} and {} rows: choose datasets of one length by columns=",
                    first.path,
                    other.path,
                    other.rows()
                );
                return Err(SourceError::new(Fault::Unsupported, &*name, message));
            }
            Ok(Hdf5Reader {
                name: Arc::clone(&name),
                columns,
                rows,
            })
        })
    }
}

impl Source for Hdf5 {
    fn format(&self) -> &'static str {
        "hdf5"
    }

    fn describe(&self) -> String {
        format!("{} (columns {:?})", self.shards.describe(), self.columns)
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

struct Hdf5Reader {
    name: Arc<str>,
    columns: Vec<Column>,
    rows: u64,
}

impl Hdf5Reader {
    /// A field of each dataset.
    fn fields(
        &mut self,
        mut read: impl FnMut(&mut Column) -> Result<Value, SourceError>,
    ) -> Result<Vec<(String, Value)>, SourceError> {
        let columns = &mut self.columns;
        guard(&self.name, || {
            columns
                .iter_mut()
                .map(|column| Ok((column.path.clone(), read(column)?)))
                .collect()
        })
    }
}

impl Numbered for Hdf5Reader {
    fn count(&self) -> u64 {
        self.rows
    }

    fn record(&mut self, number: u64) -> Result<Value, SourceError> {
        self.fields(|column| column.one(number)).map(Value::Map)
    }

    fn columns(&mut self, first: u64, rows: usize) -> Option<Result<(usize, Fields), SourceError>> {
        let row = self
            .columns
            .iter()
            .fold(1_usize, |sum, column| sum.saturating_add(column.row_bytes()));
        let rows = rows.min((GIVEN / row).max(1));
        let fields = self.fields(|column| column.many(first, rows));
        Some(fields.map(|fields| (rows, fields)))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
