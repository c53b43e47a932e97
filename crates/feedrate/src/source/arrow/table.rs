//! Rows of a table that comes in batches.

use std::fmt;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch};

use super::values::{cell, column, reshaped, shape};
use crate::batch::Value;
use crate::source::guard::guard;
use crate::source::{Columns, Fault, Mark, Reader, Record, SourceError};

/// Rows that are decoded at a time where they are asked for one by one, at most.
pub(in crate::source) const ROWS: usize = 1024;
/// And their bytes, as far as the file says how large rows are.
const BYTES: u64 = 8 << 20;

/// Some rows.
pub(in crate::source) struct Chunk {
    pub(in crate::source) batch: RecordBatch,
    /// Their numbers in the file.
    pub(in crate::source) places: Places,
    /// The row behind the last one that was looked at.
    pub(in crate::source) end: u64,
}

/// Numbers of rows.
pub(in crate::source) enum Places {
    /// One after the other, from this one on.
    From(u64),
    /// Those that passed a filter.
    Chosen(Vec<u64>),
}

impl Places {
    fn get(&self, at: usize) -> Option<u64> {
        match self {
            Self::From(first) => Some(first + at as u64),
            Self::Chosen(rows) => rows.get(at).copied(),
        }
    }
}

/// What lies around a row that cannot be read.
pub(in crate::source) struct Extent {
    /// The row behind its row group or record batch.
    pub(in crate::source) end: u64,
    /// Whether nothing can be read up to there.
    pub(in crate::source) whole: bool,
}

/// Rows that cannot be read.
struct Bad {
    /// The row behind them.
    end: u64,
    error: SourceError,
}

/// A file of rows.
pub(in crate::source) trait Table: Send {
    /// All of them, before any filter.
    fn rows(&self) -> u64;

    /// Up to `most` of the rows that are wanted from `row` on, `row` being below [`rows`](Table::rows). There may be none, but `end` must be
    /// behind `row`.
    fn chunk(&mut self, row: u64, most: usize) -> Result<Chunk, SourceError>;

    /// Asked where `row` could not be read alone: what else cannot. `None` where nothing behind it can be found.
    fn extent(&mut self, row: u64) -> Option<Extent>;

    /// The error of a row that could not be read, with what it lies in: the row group or record batch, the column if that can be told.
    fn named(&mut self, row: u64, error: &SourceError) -> SourceError;

    /// The first row from `row` on in its row group or record batch that passed the filter, or the end of these; `None` if that is not known.
    fn wanted(&self, row: u64) -> Option<u64>;

    /// Whether only some rows are wanted.
    fn filtered(&self) -> bool;

    /// Bytes of an average row, if the file says so.
    fn row_bytes(&self) -> u64;
}

/// Reads a table row by row, or in columns.
///
/// Damage costs those rows alone that cannot be read without what is damaged, and each of them is an error of its own, with its number: as
/// where rows are asked for by number. So lanes that share the records of a file jump over bad rows of each other as over good ones, limits
/// on what may be left out count rows, and a mark between two bad rows is as good as any. Which rows these are does not depend on how many are
/// read at a time: where some cannot be read together, fewer are, down to one.
pub(in crate::source) struct TableReader<T> {
    table: T,
    name: Arc<str>,
    chunk: Option<Chunk>,
    /// The next row of the chunk.
    at: usize,
    /// The row behind the chunk.
    row: u64,
    /// Records given or passed.
    number: u64,
    /// Whether the last read was behind the one before.
    goes_on: bool,
    /// Among as many of the next records is one that cannot be read; 0 where nothing is known.
    doubt: usize,
    /// The row behind the row group or record batch in which that was found.
    edge: u64,
    bad: Option<Bad>,
    failed: Option<SourceError>,
}

impl<T> fmt::Debug for TableReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableReader({}, record {})", self.name, self.number)
    }
}

impl<T: Table> TableReader<T> {
    /// From a mark on. A mark of a filtered table holds the row's number beside that of the record.
    pub(in crate::source) fn new(table: T, name: Arc<str>, from: Option<Mark>) -> Result<Self, SourceError> {
        let mut reader = Self {
            table,
            name,
            chunk: None,
            at: 0,
            row: 0,
            number: 0,
            goes_on: from.is_none(),
            doubt: 0,
            edge: 0,
            bad: None,
            failed: None,
        };
        match from {
            Some(mark) if reader.table.filtered() && mark.offset == 0 => {
                reader.skip(mark.number)?;
            }
            Some(mark) if reader.table.filtered() => {
                (reader.number, reader.row) = (mark.number, mark.offset.min(reader.table.rows()));
            }
            Some(mark) => {
                reader.row = mark.number.min(reader.table.rows());
                reader.number = reader.row;
            }
            None => {}
        }
        Ok(reader)
    }

    /// Rows of the chunk that have not been given.
    fn held(&self) -> usize {
        self.chunk.as_ref().map_or(0, |chunk| chunk.batch.num_rows() - self.at)
    }

    /// Makes the chunk hold at least one row; `false` at the end. After an error that may be continued it is behind the bad record.
    fn load(&mut self, most: usize) -> Result<bool, SourceError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while self.held() == 0 {
            self.chunk = None;
            self.at = 0;
            if self.row >= self.table.rows() {
                return Ok(false);
            }
            if let Some(bad) = self.bad.take_if(|bad| self.row < bad.end) {
                match self.pass(bad) {
                    Some(error) => return Err(error),
                    None => continue,
                }
            }
            let (row, most) = (self.row, self.piece(most.max(1)));
            match self.chunk(row, most) {
                Ok(chunk) => {
                    // Whatever a decoder says, there is an end.
                    self.row = chunk.end.max(row + 1);
                    self.doubt = self.doubt.saturating_sub(chunk.batch.num_rows());
                    self.chunk = Some(chunk);
                }
                Err(error) => self.look(error, most)?,
            }
        }
        Ok(true)
    }

    fn chunk(&mut self, row: u64, most: usize) -> Result<Chunk, SourceError> {
        guard(&self.name, || self.table.chunk(row, most))
    }

    /// Rows that are read next: where there is a bad one, the rest of the row group or record batch, and half of it then.
    fn piece(&self, most: usize) -> usize {
        if self.doubt == 0 {
            return most;
        }
        let left = usize::try_from(self.edge.saturating_sub(self.row)).unwrap_or(usize::MAX);
        let piece = if left > 0 && left < self.doubt {
            left
        } else {
            self.doubt / 2
        };
        most.min(piece.max(1))
    }

    /// What to make of it that so many rows could not be read: an error after which nothing can be, or fewer are tried, or it is known which
    /// are bad.
    fn look(&mut self, error: SourceError, most: usize) -> Result<(), SourceError> {
        let row = self.row;
        let damaged = matches!(error.fault(), Fault::Damaged | Fault::Truncated);
        let Some(extent) = self.table.extent(row).filter(|_| damaged) else {
            let error = if error.key().is_none() {
                error.of(format!("row {row}"))
            } else {
                error
            };
            self.failed = Some(error.clone());
            return Err(error);
        };
        if most > 1 && !extent.whole {
            (self.doubt, self.edge) = (most, extent.end);
            return Ok(());
        }
        self.doubt = 0;
        let row = self.table.wanted(row).unwrap_or(row);
        let error = self.table.named(row, &error);
        // For one row alone there is no need to know how far it goes.
        let end = match (extent.whole, self.goes_on) {
            (true, _) => extent.end,
            (false, true) => self.behind(row, extent.end),
            (false, false) => row + 1,
        };
        self.bad = Some(Bad { end, error });
        Ok(())
    }

    /// The end of the rows from a bad one on that cannot be read either, `end` at most. Looking at each would take too long, since each look may
    /// unpack a page: looks go ever further until one finds a good row, and then between that and the last bad one. Good rows between two
    /// bad places could be missed, where every look meets one of these.
    fn behind(&mut self, row: u64, end: u64) -> u64 {
        let (mut bad, mut good, mut step) = (row, end, 1);
        while bad + 1 < good {
            let look = if good == end {
                (bad + step).min(end - 1)
            } else {
                u64::midpoint(bad, good)
            };
            if self.chunk(look, 1).is_ok() {
                good = look;
            } else {
                bad = look;
                step *= 2;
            }
        }
        good
    }

    /// Passes over the next record of those that cannot be read, if there is one.
    fn pass(&mut self, bad: Bad) -> Option<SourceError> {
        let (row, behind) = if self.table.filtered() {
            match self.table.wanted(self.row) {
                Some(row) if row < bad.end => (row, row + 1),
                Some(_) => {
                    self.row = bad.end;
                    return None;
                }
                // Nobody knows how many are wanted: they are one.
                None => (self.row, bad.end),
            }
        } else {
            (self.row, self.row + 1)
        };
        self.row = behind;
        self.number += 1;
        self.goes_on = true;
        let error = bad.error.clone().of(format!("row {row}"));
        self.bad = Some(bad);
        Some(error)
    }

    /// Goes to a row of a table without a filter.
    fn go(&mut self, number: u64) {
        let begin = self
            .chunk
            .as_ref()
            .and_then(|chunk| chunk.places.get(0))
            .unwrap_or(self.row);
        if number >= begin && number < self.row && self.chunk.is_some() {
            self.at = usize::try_from(number - begin).unwrap_or(usize::MAX);
        } else {
            self.chunk = None;
            self.at = 0;
            self.goes_on = number == self.row;
            self.row = number;
            self.doubt = 0;
        }
        self.number = number;
    }

    /// Rows that are decoded for one that is asked for.
    fn step(&self) -> usize {
        if !self.goes_on && !self.table.filtered() {
            return 1;
        }
        let fit = BYTES / self.table.row_bytes().max(1);
        usize::try_from(fit).unwrap_or(ROWS).clamp(1, ROWS)
    }

    fn bad(&self, row: u64, message: String) -> SourceError {
        SourceError::new(Fault::Record, &*self.name, message).of(format!("row {row}"))
    }

    fn block(&mut self, rows: usize) -> Result<Columns, SourceError> {
        let first = self.number;
        if rows == 0 || !self.load(rows)? {
            return Ok(Columns {
                rows: 0,
                fields: Vec::new(),
                first,
            });
        }
        self.goes_on = true;
        let Some(chunk) = &self.chunk else {
            return Err(self.bad(self.row, "no rows were read".into()));
        };
        let rows = rows.min(self.held());
        let batch = if self.at == 0 && rows == chunk.batch.num_rows() {
            chunk.batch.clone()
        } else {
            chunk.batch.slice(self.at, rows)
        };
        // The chunk's own hold on the memory goes first, so that what is converted in place is held once.
        let place = chunk.places.get(self.at).unwrap_or(self.row);
        self.at += rows;
        if self.held() == 0 {
            self.chunk = None;
            self.at = 0;
        }
        self.number += rows as u64;
        let name = Arc::clone(&self.name);
        let convert = || {
            let schema = batch.schema();
            let mut fields = Vec::with_capacity(batch.num_columns());
            for (field, array) in schema.fields().iter().zip(batch.columns()) {
                let value = column(array.as_ref()).map_err(|why| {
                    let error = SourceError::new(Fault::Record, &*name, why);
                    error.of(format!("column {} of row {place} and behind it", field.name()))
                })?;
                fields.push((field.name().clone(), reshaped(value, 1, shape(field).as_deref())));
            }
            Ok(Columns { rows, fields, first })
        };
        guard(&self.name, convert)
    }
}

/// A row as a map.
fn value(chunk: &Chunk, at: usize) -> Result<Value, String> {
    let schema = chunk.batch.schema_ref();
    let fields = schema.fields().iter().zip(chunk.batch.columns());
    let pair = |(field, array): (&Arc<arrow_schema::Field>, &Arc<dyn Array>)| {
        let value = cell(array.as_ref(), at)?;
        Ok((field.name().clone(), reshaped(value, 0, shape(field).as_deref())))
    };
    fields.map(pair).collect::<Result<_, String>>().map(Value::Map)
}

impl<T: Table> Reader for TableReader<T> {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        let step = self.step();
        if !self.load(step)? {
            return Ok(None);
        }
        self.goes_on = true;
        let mark = self.mark();
        let Some(chunk) = &self.chunk else { return Ok(None) };
        let read = guard(&self.name, || {
            value(chunk, self.at).map_err(|why| self.bad(chunk.places.get(self.at).unwrap_or(self.row), why))
        });
        if let Err(error) = &read
            && !error.may_continue()
        {
            self.failed = Some(error.clone());
        } else {
            self.at += 1;
            self.number += 1;
        }
        read.map(|value| Some(Record { value, mark, key: None }))
    }

    fn mark(&self) -> Mark {
        let next = self.chunk.as_ref().filter(|_| self.held() > 0);
        let row = next.and_then(|chunk| chunk.places.get(self.at)).unwrap_or(self.row);
        Mark {
            number: self.number,
            offset: row,
        }
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        if !self.table.filtered() {
            let left = self.table.rows() - self.number.min(self.table.rows());
            let passed = count.min(left);
            self.go(self.number + passed);
            self.goes_on = true;
            return Ok(passed);
        }
        let mut passed = 0;
        while passed < count {
            match self.load(ROWS) {
                Ok(true) => {
                    let step = usize::try_from(count - passed).unwrap_or(usize::MAX).min(self.held());
                    self.at += step;
                    passed += step as u64;
                    self.number += step as u64;
                }
                Ok(false) => break,
                Err(error) if error.may_continue() => passed += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(passed)
    }

    fn seek(&mut self, number: u64) -> Result<bool, SourceError> {
        if self.table.filtered() {
            return Ok(false);
        }
        // What is damaged in one place says nothing of another.
        (self.failed, self.bad) = (None, None);
        self.go(number.min(self.table.rows()));
        Ok(true)
    }

    fn columns(&mut self, rows: usize) -> Option<Result<Columns, SourceError>> {
        Some(self.block(rows))
    }
}
