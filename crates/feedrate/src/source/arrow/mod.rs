//! Arrow's IPC files and streams, and Feather.

mod filter;
mod ipc;
mod table;
mod unite;
mod values;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use arrow_schema::{ArrowError, FieldRef, Schema, SchemaRef};

#[cfg(feature = "parquet")]
pub(super) use self::filter::Range;
pub use self::filter::{Filter, Op};
use self::ipc::Ipc;
pub(super) use self::table::TableReader;
#[cfg(feature = "parquet")]
pub(super) use self::table::{Chunk, Extent, Places, Table};
pub(super) use self::unite::{United, present};
#[cfg(feature = "parquet")]
pub(super) use self::values::cell;
pub(super) use self::values::readable;
use super::guard::guard;
use super::paths::Paths;
use super::window::Window;
use super::{Fault, Mark, Part, Reader, Source, SourceError};

/// Files of Arrow record batches, each a part: IPC files (Feather version 2), and IPC streams, which is told by their first bytes.
///
/// How types come, here and from Parquet:
///
/// | type | of a row | as a column |
/// | --- | --- | --- |
/// | integers, floats | numbers (an unsigned one above 2⁶³ is an error) | tensor of their type |
/// | bool | bool | `bool` tensor |
/// | dates, times, timestamps, durations | the whole number that is stored, in the column's unit; zones are not applied | tensor |
/// | decimals up to 128 bits | nearest float | `float64` tensor |
/// | text, bytes | string, bytes | list |
/// | lists | tensor if the elements are numbers or bools without nulls, else list | list |
/// | lists of a fixed size | the same | tensor with one dimension more |
/// | tensors of a fixed shape (Arrow's extension type) | tensor of that shape | tensor |
/// | structs | map | list |
/// | maps | list of pairs | list |
/// | dictionaries, runs | what they stand for | list |
/// | null | `None` | list, if the column has one |
///
/// Unions, intervals and decimals of 256 bits are refused. Rows are found by number, unless a filter makes their number unknown. Damage costs the
/// record batch in which it lies, each row of which is an error (with a filter, all of them one); with a dictionary, all that follows. Memory for
/// each reader: one record batch of the file, uncompressed, up to [`limit`](ArrowIpc::limit), and the dictionaries.
#[derive(Debug)]
pub struct ArrowIpc {
    shards: Paths,
    columns: Option<Vec<String>>,
    filter: Option<Arc<Filter>>,
    limit: u64,
    /// Looked up once, where it is wanted.
    united: Option<OnceLock<Arc<United>>>,
}

impl ArrowIpc {
    /// Of these files, in this order: all columns, all rows, record batches up to 2 GiB.
    pub fn new(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            shards: Paths::new(paths),
            columns: None,
            filter: None,
            limit: 2 << 30,
            united: None,
        }
    }

    /// Only these columns, in this order.
    #[must_use]
    pub fn columns(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.columns = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Only these rows. Its columns need not be among those that are given.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// Most bytes of one record batch, uncompressed.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Whether all rows have the columns of all files, see [`Parquet::unify`](super::Parquet::unify).
    #[must_use]
    pub fn unify(mut self, unify: bool) -> Self {
        self.united = unify.then(OnceLock::new);
        self
    }

    fn table(&self, part: usize) -> Result<(Ipc, Arc<str>), SourceError> {
        let (path, name) = self.shards.path(part)?;
        let window = Window::open(path, Arc::clone(&name))?;
        let table = guard(&name, || {
            let (columns, filter) = (self.columns.as_deref(), self.filter.clone());
            Ipc::open(window, columns, filter, self.limit, self.united.is_some())
        })?;
        Ok((table, name))
    }
}

impl Source for ArrowIpc {
    fn format(&self) -> &'static str {
        "arrow"
    }

    fn describe(&self) -> String {
        let filter = self.filter.as_ref().map_or_else(String::new, ToString::to_string);
        let unify = if self.united.is_some() { ", unified" } else { "" };
        format!(
            "{} (columns {:?}, filter {filter:?}{unify})",
            self.shards.describe(),
            self.columns
        )
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        Ok(self.shards.parts())
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        self.shards.files(part)
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        let (table, name) = self.table(part)?;
        let reader = TableReader::new(table, Arc::clone(&name), from)?;
        let Some(united) = &self.united else {
            return Ok(Box::new(reader));
        };
        let fields = |part| self.table(part).map(|(table, name)| (table.fields(), name));
        let (columns, filter) = (self.columns.as_deref(), self.filter.as_deref());
        let united = unite(united, self.shards.parts().len(), columns, filter, fields)?;
        Ok(united.reader(reader, name, self.filter.is_none()))
    }

    fn indexed(&self) -> bool {
        self.filter.is_none()
    }

    /// With a filter, all rows from the start of a row group or batch on are looked at.
    fn seeks(&self) -> bool {
        self.filter.is_none()
    }

    fn index(&self) -> Result<Arc<[u64]>, SourceError> {
        self.shards.index(|part| {
            let (table, name) = self.table(part)?;
            TableReader::new(table, name, None)?.skip(u64::MAX)
        })
    }
}

/// The columns that are given of a part, and all that there are.
pub(super) type Fields = (Vec<FieldRef>, SchemaRef);

/// The columns of all parts, which are opened for it the first time.
pub(super) fn unite(
    known: &OnceLock<Arc<United>>,
    parts: usize,
    wanted: Option<&[String]>,
    filter: Option<&Filter>,
    fields: impl Fn(usize) -> Result<(Fields, Arc<str>), SourceError>,
) -> Result<Arc<United>, SourceError> {
    if let Some(united) = known.get() {
        return Ok(Arc::clone(united));
    }
    let mut united = United::default();
    let mut asked = filter.map(Filter::columns).unwrap_or_default();
    for part in 0..parts {
        let ((given, all), name) = fields(part)?;
        united.add(&name, &given)?;
        asked.retain(|column| all.column_with_name(column).is_none());
    }
    if let Some(column) = asked.first() {
        let message = format!("there is no column {column:?} to filter by in any of {parts} files");
        return Err(SourceError::new(Fault::Absent, "all files", message));
    }
    let united = Arc::new(united.in_order(wanted, parts)?);
    Ok(Arc::clone(known.get_or_init(|| united)))
}

/// What Arrow said of a file.
pub(super) fn wrong(name: &str, error: &ArrowError) -> SourceError {
    let fault = match error {
        ArrowError::NotYetImplemented(_) => Fault::Unsupported,
        // The crate `parquet` leaves the text alone of what the system said, and of what it does not know.
        ArrowError::ParquetError(text) if text.contains("(os error ") => Fault::Io,
        ArrowError::ParquetError(text) if text.starts_with("NYI") => Fault::Unsupported,
        _ => Fault::Damaged,
    };
    SourceError::new(fault, name, error.to_string())
}

/// Where the columns that are wanted stand among those of the file.
pub(super) fn choose(schema: &Schema, wanted: Option<&[String]>, name: &str) -> Result<Vec<usize>, SourceError> {
    let fields = schema.fields();
    let chosen: Vec<usize> = match wanted {
        None => (0..fields.len()).collect(),
        Some(wanted) => {
            let find = |column: &String| {
                fields.iter().position(|field| field.name() == column).ok_or_else(|| {
                    let known: Vec<_> = fields.iter().map(|field| field.name()).take(50).collect();
                    SourceError::new(
                        Fault::Absent,
                        name,
                        format!("there is no column {column:?}, only {known:?}"),
                    )
                })
            };
            wanted.iter().map(find).collect::<Result<_, _>>()?
        }
    };
    let mut seen = HashSet::with_capacity(fields.len());
    let twice: HashSet<&String> = fields
        .iter()
        .map(|field| field.name())
        .filter(|name| !seen.insert(*name))
        .collect();
    for at in &chosen {
        let field = &fields[*at];
        if twice.contains(field.name()) {
            let message = format!(
                "several columns are called {:?}: choose others by columns, or rename them in the file",
                field.name()
            );
            return Err(SourceError::new(Fault::Unsupported, name, message));
        }
        readable(field.data_type()).map_err(|why| {
            SourceError::new(Fault::Unsupported, name, format!("{why}: leave it out"))
                .of(format!("column {}", field.name()))
        })?;
    }
    Ok(chosen)
}

#[cfg(test)]
#[path = "tests.rs"]
pub(super) mod tests;
