//! Shards to samples: one file for each format.
//!
//! A [`Source`] is a list of *parts* (a file, a shard, an object in memory), each of which is read on its own, from its start or from a
//! [`Mark`] in it. Nothing is opened before a part is asked for. What a part holds comes as [`Record`]s, one after the other, and where
//! the format allows it by number. Reading never executes what it reads: no pickle, no path taken from data is opened.

#[cfg(feature = "arrow")]
mod arrow;
mod codec;
mod columns;
mod compress;
mod csv;
mod csv_record;
mod detect;
mod error;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod exhaust;
mod files;
#[cfg(any(feature = "arrow", feature = "hdf5"))]
mod guard;
#[cfg(feature = "hdf5")]
mod hdf5;
mod index;
mod indexed;
mod json;
mod jsonl;
mod lines;
mod mds;
mod memory;
#[cfg(test)]
pub(crate) mod mutate;
mod npy;
mod numbered;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
mod parquet_pages;
mod paths;
mod record;
mod shards;
mod stream;
pub mod tar;
mod tfrecord;
mod tokens;
mod window;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "arrow")]
pub use arrow::{ArrowIpc, Filter, Op};
pub use columns::interleave;
pub use compress::Codec;
pub use csv::{Csv, CsvType};
pub use detect::{Format, detect, format_of, format_of_all, open};
pub use error::{Fault, SourceError};
pub use files::Files;
#[cfg(feature = "hdf5")]
pub use hdf5::Hdf5;
pub use index::IndexAt;
pub use indexed::Indexed;
pub use json::BigInts;
pub use jsonl::JsonLines;
pub use mds::Mds;
pub use memory::{Items, Numbers};
pub use npy::Npy;
#[cfg(feature = "parquet")]
pub use parquet::Parquet;
pub use record::{Mark, Record};
pub use tar::Tar;
pub use tfrecord::{Ones, TfContent, TfRecords};
pub use tokens::{ShortWindow, Tokens, Windows};

use crate::batch::Value;
use crate::store::Blob;

/// One part of a source, as the listing knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Path, address or name; what messages and quarantine lists call it.
    pub name: String,
    /// Number of records, where it is known without reading the part.
    pub records: Option<u64>,
    /// Size in bytes of what is stored, where it is known; part of the fingerprint of the data.
    pub bytes: Option<u64>,
}

/// Shards of one format, or things in memory.
///
/// Shared by all lanes and threads.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// The format, in a word: `tar`, `parquet`, ….
    fn format(&self) -> &'static str;

    /// What it reads and how, as plain text that is equal for equal definitions: patterns, columns, options. No contents.
    fn describe(&self) -> String;

    /// The parts, in a stable order. The first call lists; it may block. Later calls give the same list.
    fn parts(&self) -> Result<Arc<[Part]>, SourceError>;

    /// Opens a part, at `from` if there is a mark (one that a reader of the same part gave). May block.
    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError>;

    /// All files that part `part` is made of: also those that say what is in it, such as an index that belongs to it, and where it may lie in
    /// one of several, each of these. None, where it lies in no file. By their sizes and times a cache sees that the part is another one.
    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError>;

    /// Whether a record is found by its number without reading what lies before. Then [`index`](Source::index) gives the number of
    /// records of each part, [`open`](Source::open) goes by a mark's number whatever its offset says, and [`Reader::skip`] is cheap.
    fn indexed(&self) -> bool {
        false
    }

    /// Writes down what part `part` holds, where its name and size do not tell: the names of its files. For fingerprints of the data,
    /// which find that it is another. Nothing, otherwise.
    fn contents(&self, part: usize, found: &mut String) {
        let _ = (part, found);
    }

    /// Whether opening at a mark is cheap: a seek, and not reading all that lies before it.
    fn seeks(&self) -> bool {
        true
    }

    /// What a part is stored in, where that is one file or blob as a whole, and in a word or two what decides where its records begin: what a
    /// stored index is tied to.
    fn stored(&self, part: usize) -> Result<Option<(Blob, String)>, SourceError> {
        let _ = part;
        Ok(None)
    }

    /// Makes [`Part::records`] known for every part, by reading indexes or footers, or by one pass over the data where the format has
    /// none. Gives the counts. May block for long.
    fn index(&self) -> Result<Arc<[u64]>, SourceError> {
        let parts = self.parts()?;
        let mut counts = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            counts.push(match part.records {
                Some(records) => records,
                None => self.open(at, None)?.skip(u64::MAX)?,
            });
        }
        Ok(counts.into())
    }
}

/// Reads one part.
///
/// Bounded: a reader holds one open file and a buffer whose size does not depend on the part's.
pub trait Reader: Send {
    /// The next record, `None` at the end. After an error whose [`SourceError::may_continue`] holds, the next call goes on behind the bad
    /// record; after another error the part cannot be read further, and every call says so again.
    fn next(&mut self) -> Result<Option<Record>, SourceError>;

    /// Where the next record begins: opening the part there gives the rest.
    fn mark(&self) -> Mark;

    /// Passes over up to `count` records without decoding them; how many there were. Bad records count as records.
    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        let mut passed = 0;
        while passed < count {
            match self.next() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if error.may_continue() => {}
                Err(error) => return Err(error),
            }
            passed += 1;
        }
        Ok(passed)
    }

    /// Goes to the record of this number, forward or back, without reading what lies between; `false`, and nothing moves, where the
    /// format cannot. A number behind the last record leads to the end.
    fn seek(&mut self, number: u64) -> Result<bool, SourceError> {
        let _ = number;
        Ok(false)
    }

    /// Goes on at a mark that a reader of the same part gave, as opening the part there would; `false`, and nothing moves, where a reader
    /// cannot.
    fn go_to(&mut self, mark: Mark) -> Result<bool, SourceError> {
        let _ = mark;
        Ok(false)
    }

    /// How the part is compressed as a whole, so that any place in it is found only by reading all that lies before.
    fn packed(&self) -> Option<&'static str> {
        None
    }

    /// Up to `rows` further records as columns (a map of tensors and lists whose first dimension is the record's), for formats that store
    /// them so; `None` where a format does not. An empty part gives `Some` with no rows at its end.
    fn columns(&mut self, rows: usize) -> Option<Result<Columns, SourceError>> {
        let _ = rows;
        None
    }
}

/// Rows as columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    /// Number of rows; the first dimension of every column.
    pub rows: usize,
    /// By name: a [`Value::Tensor`], or a [`Value::List`] for what is no numbers.
    pub fields: Vec<(String, Value)>,
    /// The first row's number in its part.
    pub first: u64,
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn format(&self) -> &'static str {
        (**self).format()
    }

    fn describe(&self) -> String {
        (**self).describe()
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        (**self).parts()
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        (**self).open(part, from)
    }

    fn indexed(&self) -> bool {
        (**self).indexed()
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        (**self).files(part)
    }

    fn contents(&self, part: usize, found: &mut String) {
        (**self).contents(part, found);
    }

    fn seeks(&self) -> bool {
        (**self).seeks()
    }

    fn stored(&self, part: usize) -> Result<Option<(Blob, String)>, SourceError> {
        (**self).stored(part)
    }

    fn index(&self) -> Result<Arc<[u64]>, SourceError> {
        (**self).index()
    }
}
