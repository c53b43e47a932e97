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

/// A file of rows.
pub(in crate::source) trait Table: Send {
    /// All of them, before any filter.
    fn rows(&self) -> u64;

    /// Up to `most` of the rows that are wanted from `row` on, `row` being below [`rows`](Table::rows). There may be none, but `end` must be
    /// behind `row`.
    fn chunk(&mut self, row: u64, most: usize) -> Result<Chunk, SourceError>;

    /// Whether only some rows are wanted.
    fn filtered(&self) -> bool;

    /// Bytes of an average row, if the file says so.
    fn row_bytes(&self) -> u64;
}

/// Reads a table row by row, or in columns.
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

    /// Makes the chunk hold at least one row; `false` at the end.
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
            let (row, table) = (self.row, &mut self.table);
            let read = guard(&self.name, || table.chunk(row, most.max(1)));
            let chunk = read.map_err(|error| {
                let error = if error.key().is_none() {
                    error.of(format!("row {row}"))
                } else {
                    error
                };
                self.failed = Some(error.clone());
                error
            })?;
            // Whatever a decoder says, there is an end.
            self.row = chunk.end.max(row + 1);
            self.chunk = Some(chunk);
        }
        Ok(true)
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
        while passed < count && self.load(ROWS)? {
            let step = usize::try_from(count - passed).unwrap_or(usize::MAX).min(self.held());
            self.at += step;
            passed += step as u64;
            self.number += step as u64;
        }
        Ok(passed)
    }

    fn seek(&mut self, number: u64) -> Result<bool, SourceError> {
        if self.table.filtered() {
            return Ok(false);
        }
        // What is damaged in one place says nothing of another.
        self.failed = None;
        self.go(number.min(self.table.rows()));
        Ok(true)
    }

    fn columns(&mut self, rows: usize) -> Option<Result<Columns, SourceError>> {
        Some(self.block(rows))
    }
}
