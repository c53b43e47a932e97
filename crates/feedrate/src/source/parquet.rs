//! Parquet.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use arrow_schema::{DataType, FieldRef, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowGroups, RowSelection, RowSelector,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::{Compression, Type as Physical};
use parquet::column::page::{Page, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::file::statistics::Statistics;

use super::arrow::{
    Chunk, Extent, Fields, Filter, Places, Range, Table, TableReader, United, cell, choose, present, unite, wrong,
};
use super::codec::Piece;
use super::guard::guard;
use super::parquet_pages::{Counted, Miscounted};
use super::paths::Paths;
use super::window::{Window, fill_at};
use super::{Fault, Mark, Part, Reader, Source, SourceError};
use crate::batch::Value;

/// Rows for which a filter is asked at a time.
const ASKED: usize = 4096;
/// Most rows of a row group that is filtered: its chosen rows are counted in 32 bits.
const GROUP: u64 = u32::MAX as u64;

/// Parquet files, each a part.
///
/// Types come as [`ArrowIpc`](super::ArrowIpc) lists them, dictionaries of bools, decimals and half floats as columns of these. Rows are found by number: the row group by the footer, the page by the page
/// index where the file has one. With a filter they are not, and marks hold the row's number beside the record's.
///
/// A filter is asked first: row groups that its statistics rule out are not read, of the others only its columns, and of the columns that are
/// wanted only the rows that passed.
///
/// Damage costs the rows that need what is damaged, by page, and each is an error of its own that names row group and column; reading goes on
/// behind them, unless a row group has other rows than the footer says. If a filter needs it, its row group's wanted rows are not known, and are
/// one error.
///
/// Memory for each reader: of each column that is read one page, compressed and not, with its dictionary; the rows that are decoded at a time
/// (1,024, or 8 MiB if that is less, or as many as [`columns`](Reader::columns) is asked for); with a filter four bytes for each chosen row of a
/// row group.
#[derive(Debug)]
pub struct Parquet {
    shards: Paths,
    columns: Option<Vec<String>>,
    filter: Option<Arc<Filter>>,
    /// Looked up once, where it is wanted.
    united: Option<OnceLock<Arc<United>>>,
}

impl Parquet {
    /// Of these files, in this order: all columns, all rows.
    pub fn new(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            shards: Paths::new(paths),
            columns: None,
            filter: None,
            united: None,
        }
    }

    /// Only these columns, in this order. A name with dots leads into structs, if no column is called so; the other fields of the struct are
    /// not read.
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

    /// Whether all rows have the columns of all files, in the order in which they are met first: null where a file has no such column. A
    /// column of nulls takes the type that it has elsewhere, integers of two widths become `int64` (`uint64` where none has a sign),
    /// floats of two, and integers with floats, become `float64`; a whole number that a float would round is an error. Other differences are an error that names both files. Opens every file once
    /// before the first row. Without it (the default) each row has the columns of its file, in the file's order.
    #[must_use]
    pub fn unify(mut self, unify: bool) -> Self {
        self.united = unify.then(OnceLock::new);
        self
    }

    fn table(&self, part: usize) -> Result<(Groups, Arc<str>), SourceError> {
        let (path, name) = self.shards.path(part)?;
        let window = Window::open(path, Arc::clone(&name))?;
        let file = Positioned {
            file: Arc::clone(window.file()),
            len: window.len(),
        };
        let table = guard(&name, || {
            let (columns, filter) = (self.columns.as_deref(), self.filter.clone());
            Groups::open(file, Arc::clone(&name), columns, filter, self.united.is_some())
        })?;
        Ok((table, name))
    }
}

impl Source for Parquet {
    fn format(&self) -> &'static str {
        "parquet"
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
        let fields = |part| self.table(part).map(|(table, name)| (table.fields, name));
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

/// A file that is read by position, so that no reader moves another one's place.
#[derive(Debug, Clone)]
struct Positioned {
    file: Arc<File>,
    len: u64,
}

impl Length for Positioned {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Positioned {
    type T = BufReader<Ending>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let piece = Piece::new(&self.file, start, self.len);
        Ok(BufReader::new(Ending { piece, over: false }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length as u64).filter(|end| *end <= self.len);
        if end.is_none() {
            let message = format!("{length} bytes at {start} do not lie in the file's {}", self.len);
            return Err(ParquetError::EOF(message));
        }
        let mut bytes = vec![0; length];
        let found = fill_at(&self.file, &mut bytes, start)?;
        if found < length {
            return Err(ParquetError::EOF(format!("the file ended at {}", start + found as u64)));
        }
        Ok(bytes.into())
    }
}

/// Tells the file's end once, and is an error then: the crate (60.1) passes over each of the two thousand million numbers that a damaged
/// header's list may say it has, without a look at whether there was anything.
struct Ending {
    piece: Piece,
    over: bool,
}

impl Read for Ending {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.piece.read(out)?;
        if read == 0 && !out.is_empty() && std::mem::replace(&mut self.over, true) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(read)
    }
}

fn failed(name: &str, error: &ParquetError) -> SourceError {
    let fault = match error {
        ParquetError::EOF(_) => Fault::Truncated,
        ParquetError::NYI(_) => Fault::Unsupported,
        ParquetError::External(inner)
            if inner
                .downcast_ref::<std::io::Error>()
                .is_some_and(|e| e.raw_os_error().is_some()) =>
        {
            Fault::Io
        }
        _ => Fault::Damaged,
    };
    SourceError::new(fault, name, error.to_string())
}

/// Which rows of a row group passed the filter, by number in it.
struct Passed {
    group: usize,
    rows: Vec<u32>,
}

/// Whether compressed pages say that they are not, as those of version 2 do that Apache Arrow wrote before its version 3 (ARROW-10353).
fn mislabelled(file: &Positioned, metadata: &ParquetMetaData) -> bool {
    let writer = metadata.file_metadata().created_by().unwrap_or_default();
    // Later ones are called parquet-cpp-arrow.
    let old = writer.starts_with("parquet-cpp version ");
    let said_plain = |column: &ColumnChunkMetaData, rows: i64| {
        if column.compression() == Compression::UNCOMPRESSED {
            return false;
        }
        let rows = usize::try_from(rows).unwrap_or(0);
        let Ok(mut pages) = SerializedPageReader::new(Arc::new(file.clone()), column, rows, None) else {
            return false;
        };
        // The first is of the dictionary, if there is one.
        let page = std::iter::from_fn(|| pages.get_next_page().ok().flatten())
            .find(|page| !matches!(page, Page::DictionaryPage { .. }));
        matches!(
            page,
            Some(Page::DataPageV2 {
                is_compressed: false,
                ..
            })
        )
    };
    let groups = metadata.row_groups();
    old && groups.first().is_some_and(|group| {
        group
            .columns()
            .iter()
            .any(|column| said_plain(column, group.num_rows()))
    })
}

/// An open file: its row groups.
struct Groups {
    file: Positioned,
    name: Arc<str>,
    metadata: ArrowReaderMetadata,
    /// What its columns are read as.
    schema: SchemaRef,
    /// Whether the page index has been looked for.
    paged: bool,
    /// First rows of the groups, and the number of rows.
    starts: Vec<u64>,
    bytes: u64,
    mask: ProjectionMask,
    /// Where the columns stand among those that are read, in the order in which they are given.
    order: Vec<usize>,
    fields: Fields,
    filter: Option<(Arc<Filter>, ProjectionMask)>,
    /// Whether a column that is not there is null everywhere.
    lenient: bool,
    passed: Option<Passed>,
    miscounted: Miscounted,
    /// An open reader, the row that it gives next (of those chosen, with a filter), and the rows that it gives at a time.
    reader: Option<(ParquetRecordBatchReader, u64, usize)>,
}

impl Groups {
    fn open(
        file: Positioned,
        name: Arc<str>,
        columns: Option<&[String]>,
        filter: Option<Arc<Filter>>,
        lenient: bool,
    ) -> Result<Self, SourceError> {
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new());
        let metadata = metadata.map_err(|error| failed(&name, &error))?;
        let mut starts = vec![0_u64];
        let (mut rows, mut bytes) = (0_u64, 0_u64);
        for group in metadata.metadata().row_groups() {
            let found = u64::try_from(group.num_rows()).ok().filter(|found| *found < 1 << 40);
            let found = found.ok_or_else(|| {
                let message = format!("a row group cannot have {} rows", group.num_rows());
                SourceError::new(Fault::Damaged, &*name, message)
            })?;
            rows += found;
            starts.push(rows);
        }
        let schema = Arc::new(decodable(metadata.schema()));
        if mislabelled(&file, metadata.metadata()) {
            let message = "it was written by Apache Arrow before version 3 with data pages of version 2, which say that they are not \
                           compressed and are: write it anew";
            return Err(SourceError::new(Fault::Unsupported, &*name, message));
        }
        let here = |names: &[String]| {
            if lenient {
                present(schema.fields(), names)
            } else {
                names.to_vec()
            }
        };
        let (mask, given) = projection(&metadata, &schema, columns.map(here).as_deref(), &name)?;
        let fields = given.iter().map(|at| Arc::clone(&schema.fields()[*at])).collect();
        // What is read keeps the order of the file.
        let mut read = given.clone();
        read.sort_unstable();
        let order = given.iter().filter_map(|at| read.binary_search(at).ok()).collect();
        for group in metadata.metadata().row_groups() {
            for (at, column) in group.columns().iter().enumerate() {
                if mask.leaf_included(at) {
                    bytes = bytes.saturating_add(u64::try_from(column.uncompressed_size()).unwrap_or(0));
                }
            }
        }
        let filter = match filter {
            None => None,
            Some(filter) => {
                let names: Vec<_> = filter.columns().into_iter().map(str::to_owned).collect();
                let roots = choose(&schema, Some(&here(&names)), &name)?;
                let mask = ProjectionMask::roots(metadata.parquet_schema(), roots);
                Some((filter, mask))
            }
        };
        Ok(Self {
            file,
            name,
            metadata,
            schema: Arc::clone(&schema),
            paged: false,
            starts,
            bytes,
            mask,
            order,
            fields: (fields, schema),
            filter,
            lenient,
            passed: None,
            miscounted: Miscounted::default(),
            reader: None,
        })
    }

    fn error(&self, error: &ParquetError) -> SourceError {
        failed(&self.name, error)
    }

    /// The group in which a row lies.
    fn group(&self, row: u64) -> usize {
        self.starts.partition_point(|start| *start <= row).saturating_sub(1)
    }

    /// Takes in the page index, so that rows in the middle of a group are found by page. Without one, pages are passed one by one.
    fn page(&mut self) {
        if self.paged {
            return;
        }
        self.paged = true;
        let options = ArrowReaderOptions::new()
            .with_column_index_policy(PageIndexPolicy::Skip)
            .with_offset_index_policy(PageIndexPolicy::Optional);
        // An index that is damaged is as good as none.
        if let Ok(metadata) = ArrowReaderMetadata::load(&self.file, options)
            && metadata.metadata().num_row_groups() + 1 == self.starts.len()
        {
            self.metadata = metadata;
        }
    }

    /// A reader of these groups and of the rows selected in them.
    fn build(
        &self,
        groups: Vec<usize>,
        selection: Option<RowSelection>,
        mask: &ProjectionMask,
        size: usize,
    ) -> Result<ParquetRecordBatchReader, SourceError> {
        let (schema, fields) = (self.metadata.parquet_schema(), self.schema.fields());
        let levels =
            parquet_to_arrow_field_levels(schema, mask.clone(), Some(fields)).map_err(|error| self.error(&error))?;
        let counted = Counted {
            file: Arc::new(self.file.clone()),
            metadata: Arc::clone(self.metadata.metadata()),
            groups,
            skips: selection.is_some(),
            miscounted: self.miscounted.clone(),
        };
        let size = size.min(counted.num_rows());
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, &counted, size, selection)
            .map_err(|error| self.error(&error))
    }

    /// Has the reader stand at a row of all.
    fn stand(&mut self, row: u64, most: usize) -> Result<(), SourceError> {
        if self
            .reader
            .as_ref()
            .is_some_and(|(_, at, size)| *at == row && *size == most)
        {
            return Ok(());
        }
        self.reader = None;
        let group = self.group(row);
        let before = row - self.starts[group];
        let selection = if before == 0 {
            None
        } else {
            self.page();
            let left = self.starts.last().copied().unwrap_or(row) - row;
            let count = |rows: u64| usize::try_from(rows).unwrap_or(usize::MAX);
            Some(vec![RowSelector::skip(count(before)), RowSelector::select(count(left))].into())
        };
        let groups = (group..self.starts.len() - 1).collect();
        let reader = self.build(groups, selection, &self.mask, most)?;
        self.reader = Some((reader, row, most));
        Ok(())
    }

    /// The next rows of the reader, at least one.
    fn read(&mut self) -> Result<arrow_array::RecordBatch, SourceError> {
        // One that fails, or panics, is not asked again.
        let Some((mut reader, at, size)) = self.reader.take() else {
            return Err(SourceError::new(Fault::Io, &*self.name, "no reader is open"));
        };
        let batch = reader.next().transpose().map_err(|error| wrong(&self.name, &error))?;
        let Some(batch) = batch.filter(|batch| batch.num_rows() > 0) else {
            self.miscounted.set(Some(0));
            let message = "the row groups have fewer rows than the footer says";
            return Err(SourceError::new(Fault::Truncated, &*self.name, message));
        };
        self.reader = Some((reader, at + batch.num_rows() as u64, size));
        batch.project(&self.order).map_err(|error| wrong(&self.name, &error))
    }

    /// Whether the reader, at its end, is not.
    fn has_more(&mut self) -> bool {
        self.reader.as_mut().is_some_and(|(reader, ..)| reader.next().is_some())
    }

    /// Rows of a group that passed the filter.
    fn pass(&mut self, filter: &Filter, mask: &ProjectionMask, group: usize) -> Result<(), SourceError> {
        if self.passed.as_ref().is_some_and(|passed| passed.group == group) {
            return Ok(());
        }
        self.reader = None;
        self.passed = None;
        let mut rows = Vec::new();
        if self.starts[group + 1] - self.starts[group] > GROUP {
            let message = format!("row group {group} has more than {GROUP} rows: it cannot be filtered");
            return Err(SourceError::new(Fault::Unsupported, &*self.name, message));
        }
        if filter.possible(&|column| self.range(column, group)) {
            let mut first = 0_u32;
            for batch in self.build(vec![group], None, mask, ASKED)? {
                let batch = batch.map_err(|error| wrong(&self.name, &error))?;
                let held = filter.mask(&batch, self.lenient);
                let held = held.map_err(|why| SourceError::new(Fault::Unsupported, &*self.name, why))?;
                rows.extend(
                    (first..)
                        .zip(held)
                        .filter(|(_, holds)| *holds == Some(true))
                        .map(|(row, _)| row),
                );
                first = first.saturating_add(u32::try_from(batch.num_rows()).unwrap_or(u32::MAX));
            }
        }
        self.passed = Some(Passed { group, rows });
        Ok(())
    }

    /// The first column that cannot be read of a row, or of its group where it is not known which rows passed the filter.
    fn culprit(&self, row: u64) -> Option<String> {
        let group = self.group(row);
        let (mask, selection, size) = match &self.filter {
            Some((_, mask)) if self.wanted(row).is_none() => (mask, None, ASKED),
            _ => {
                let before = usize::try_from(row - self.starts[group]).unwrap_or(usize::MAX);
                let one = vec![RowSelector::skip(before), RowSelector::select(1)];
                (&self.mask, Some(RowSelection::from(one)), 1)
            }
        };
        let bad = |at: &usize| {
            let mut column = ProjectionMask::roots(self.metadata.parquet_schema(), [*at]);
            column.intersect(mask);
            let read = || {
                for batch in self.build(vec![group], selection.clone(), &column, size)? {
                    batch.map_err(|error| wrong(&self.name, &error))?;
                }
                Ok(())
            };
            guard(&self.name, read).is_err()
        };
        let fields = self.schema.fields();
        let found = (0..fields.len()).find(bad);
        found.map(|at| fields[at].name().clone())
    }

    /// What the statistics say of a column in a group.
    fn range(&self, column: &str, group: usize) -> Range {
        let metadata = self.metadata.metadata();
        let rows = metadata.row_group(group);
        let known = || {
            let converter = StatisticsConverter::try_new(column, &self.schema, self.metadata.parquet_schema())
                .ok()?
                // Where a writer has not counted them, nobody knows.
                .with_missing_null_counts_as_zero(false);
            let bounds = converter.parquet_column_index().is_some_and(|at| {
                let column = rows.column(at);
                let old = column.statistics().is_some_and(Statistics::is_min_max_deprecated);
                // Old writers compared all bytes as numbers with a sign, whatever they mean.
                !old || is_signed(converter.arrow_field().data_type(), column.column_type())
            });
            let one = |array: arrow_array::ArrayRef| match cell(array.as_ref(), 0) {
                Ok(Value::None) | Err(_) => None,
                Ok(value) => Some(value),
            };
            let nulls = converter.row_group_null_counts([rows]).ok()?;
            Some(Range {
                least: converter.row_group_mins([rows]).ok().filter(|_| bounds).and_then(one),
                most: converter.row_group_maxes([rows]).ok().filter(|_| bounds).and_then(one),
                nulls: (!arrow_array::Array::is_null(&nulls, 0)).then(|| nulls.value(0)),
                rows: u64::try_from(rows.num_rows()).ok(),
            })
        };
        known().unwrap_or_default()
    }

    /// Rows that passed the filter, from a row on, out of its group.
    fn filtered_chunk(&mut self, row: u64, most: usize) -> Result<Option<Chunk>, SourceError> {
        let Some((filter, mask)) = self.filter.clone() else {
            return Ok(None);
        };
        let group = self.group(row);
        self.pass(&filter, &mask, group)?;
        let (start, end) = (self.starts[group], self.starts[group + 1]);
        let Some(passed) = &self.passed else { return Ok(None) };
        let from = passed.rows.partition_point(|found| start + u64::from(*found) < row);
        if from == passed.rows.len() {
            let batch = arrow_array::RecordBatch::new_empty(Arc::clone(&self.schema));
            let places = Places::Chosen(Vec::new());
            return Ok(Some(Chunk { batch, places, end }));
        }
        if !self
            .reader
            .as_ref()
            .is_some_and(|(_, at, size)| *at == from as u64 && *size == most)
        {
            let mut selectors = Vec::new();
            let mut next = 0_u32;
            for found in &passed.rows[from..] {
                match selectors.last_mut() {
                    Some(RowSelector { row_count, skip: false }) if *found == next => *row_count += 1,
                    _ => {
                        let gap = usize::try_from(found - next).unwrap_or(usize::MAX);
                        if gap > 0 {
                            selectors.push(RowSelector::skip(gap));
                        }
                        selectors.push(RowSelector::select(1));
                    }
                }
                next = found.saturating_add(1);
            }
            self.page();
            let reader = self.build(vec![group], Some(selectors.into()), &self.mask, most)?;
            self.reader = Some((reader, from as u64, most));
        }
        let batch = self.read()?;
        let Some(passed) = &self.passed else { return Ok(None) };
        let until = (from + batch.num_rows()).min(passed.rows.len());
        let places: Vec<u64> = passed.rows[from..until]
            .iter()
            .map(|found| start + u64::from(*found))
            .collect();
        let end = if until == passed.rows.len() {
            end
        } else {
            places.last().map_or(end, |last| last + 1)
        };
        Ok(Some(Chunk {
            batch,
            places: Places::Chosen(places),
            end,
        }))
    }
}

/// The columns as the crate (60.1) decodes them. Writers note that a column was a dictionary (pandas' categories of bools); it makes none of bools,
/// decimals and half floats, and panics or fails, while the values are stored as ever: they are read as what they are.
fn decodable(schema: &Schema) -> Schema {
    let fields: Vec<_> = schema.fields().iter().map(plain).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

fn plain(field: &FieldRef) -> FieldRef {
    use DataType::{
        Boolean, Decimal32, Decimal64, Decimal128, Decimal256, Dictionary, FixedSizeList, Float16, LargeList, List,
        Map, Struct,
    };
    let kind = match field.data_type() {
        Dictionary(_, values) => match values.as_ref() {
            kind @ (Boolean | Float16 | Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..)) => {
                kind.clone()
            }
            _ => return Arc::clone(field),
        },
        Struct(fields) => Struct(fields.iter().map(plain).collect()),
        List(item) => List(plain(item)),
        LargeList(item) => LargeList(plain(item)),
        FixedSizeList(item, size) => FixedSizeList(plain(item), *size),
        Map(entry, sorted) => Map(plain(entry), *sorted),
        _ => return Arc::clone(field),
    };
    Arc::new(field.as_ref().clone().with_data_type(kind))
}

/// Which leaves are read, and which columns are given, in order.
fn projection(
    metadata: &ArrowReaderMetadata,
    schema: &Schema,
    columns: Option<&[String]>,
    name: &str,
) -> Result<(ProjectionMask, Vec<usize>), SourceError> {
    let Some(columns) = columns else {
        let all = choose(schema, None, name)?;
        return Ok((ProjectionMask::all(), all));
    };
    let known = |column: &str| schema.fields().iter().any(|field| field.name() == column);
    let mut roots = Vec::new();
    for column in columns {
        let root = match column.split_once('.') {
            Some((root, _)) if !known(column) => root.to_owned(),
            _ => column.clone(),
        };
        if !roots.contains(&root) {
            roots.push(root);
        }
    }
    let given = choose(schema, Some(&roots), name)?;
    let leaves = metadata.parquet_schema();
    let mut mask = ProjectionMask::none(leaves.num_columns());
    for column in columns {
        if known(column) {
            let at = schema.fields().iter().position(|field| field.name() == column);
            mask.union(&ProjectionMask::roots(leaves, at));
            continue;
        }
        let part = ProjectionMask::columns(leaves, [column.as_str()]);
        if !(0..leaves.num_columns()).any(|leaf| part.leaf_included(leaf)) {
            let message = format!("there is no column {column:?}");
            return Err(SourceError::new(Fault::Absent, name, message));
        }
        mask.union(&part);
    }
    Ok((mask, given))
}

impl Table for Groups {
    fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn chunk(&mut self, row: u64, most: usize) -> Result<Chunk, SourceError> {
        self.miscounted.set(None);
        if let Some(chunk) = self.filtered_chunk(row, most)? {
            return Ok(chunk);
        }
        self.stand(row, most)?;
        let batch = self.read()?;
        let end = row + batch.num_rows() as u64;
        if end >= self.rows() && (end > self.rows() || self.has_more()) {
            self.reader = None;
            self.miscounted.set(Some(0));
            let message = "the row groups have more rows than the footer says";
            return Err(SourceError::new(Fault::Damaged, &*self.name, message));
        }
        Ok(Chunk {
            end,
            batch,
            places: Places::From(row),
        })
    }

    fn extent(&mut self, row: u64) -> Option<Extent> {
        let group = self.group(row);
        let metadata = self.metadata.metadata().row_group(group);
        // Where the footer does not say how many rows there are, nobody knows which is which.
        let lies = self.miscounted.get().is_some_and(|at| at <= group)
            || metadata
                .columns()
                .iter()
                .any(|column| column.num_values() < metadata.num_rows());
        (!lies).then(|| Extent {
            end: self.starts[group + 1],
            whole: self.wanted(row).is_none(),
        })
    }

    fn named(&mut self, row: u64, error: &SourceError) -> SourceError {
        let group = self.group(row);
        let column = self
            .culprit(row)
            .map_or_else(String::new, |column| format!(", column {column}"));
        let (first, last) = (self.starts[group], self.starts[group + 1] - 1);
        let message = format!(
            "row group {group} (rows {first} to {last}){column}: {}",
            error.message()
        );
        SourceError::new(Fault::Record, error.part(), message)
    }

    fn wanted(&self, row: u64) -> Option<u64> {
        if self.filter.is_none() {
            return Some(row);
        }
        let group = self.group(row);
        let passed = self.passed.as_ref().filter(|passed| passed.group == group)?;
        let mut rows = passed.rows.iter().map(|found| self.starts[group] + u64::from(*found));
        let from = passed
            .rows
            .partition_point(|found| self.starts[group] + u64::from(*found) < row);
        Some(rows.nth(from).unwrap_or(self.starts[group + 1]))
    }

    fn filtered(&self) -> bool {
        self.filter.is_some()
    }

    fn row_bytes(&self) -> u64 {
        self.bytes / self.rows().max(1)
    }
}

/// Whether comparing a column's bytes as numbers with a sign gives its order.
fn is_signed(logical: &DataType, stored: Physical) -> bool {
    let bytes = matches!(
        stored,
        Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY | Physical::INT96
    );
    !bytes && !logical.is_unsigned_integer()
}

#[cfg(test)]
#[path = "parquet_tests.rs"]
mod tests;
