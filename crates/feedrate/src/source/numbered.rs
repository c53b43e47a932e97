//! Reading of what is found by number.

use super::{Columns, Mark, Reader, Record, SourceError};
use crate::batch::Value;

/// The fields of some records as columns.
pub(super) type Fields = Vec<(String, Value)>;

/// Records of a part, each found by its number.
pub(super) trait Numbered: Send + 'static {
    /// How many there are.
    fn count(&self) -> u64;

    /// One of them. An error that may be continued is of this record alone.
    fn record(&mut self, number: u64) -> Result<Value, SourceError>;

    /// As columns, up to `rows` records, which are there: how many it took, and their fields. `None` where they are not stored so.
    fn columns(&mut self, first: u64, rows: usize) -> Option<Result<(usize, Fields), SourceError>> {
        let _ = (first, rows);
        None
    }

    /// Reads them in order, from a mark or the first.
    fn in_order(self, from: Option<Mark>) -> Box<dyn Reader>
    where
        Self: Sized,
    {
        let next = from.map_or(0, |mark| mark.number.min(self.count()));
        Box::new(InOrder { records: self, next })
    }
}

struct InOrder<N> {
    records: N,
    /// At most the number of records.
    next: u64,
}

impl<N: Numbered> InOrder<N> {
    fn left(&self) -> u64 {
        self.records.count() - self.next
    }
}

impl<N: Numbered> Reader for InOrder<N> {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        if self.left() == 0 {
            return Ok(None);
        }
        let mark = self.mark();
        let found = self.records.record(self.next);
        // A bad record does not hide the next one.
        self.next += u64::from(found.as_ref().err().is_none_or(SourceError::may_continue));
        found.map(|value| Some(Record { value, mark, key: None }))
    }

    fn mark(&self) -> Mark {
        Mark {
            number: self.next,
            offset: 0,
        }
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        let passed = count.min(self.left());
        self.next += passed;
        Ok(passed)
    }

    fn seek(&mut self, number: u64) -> Result<bool, SourceError> {
        self.next = number.min(self.records.count());
        Ok(true)
    }

    fn columns(&mut self, rows: usize) -> Option<Result<Columns, SourceError>> {
        let rows = usize::try_from(self.left()).unwrap_or(usize::MAX).min(rows);
        let first = self.next;
        let found = self.records.columns(first, rows)?;
        Some(found.map(|(rows, fields)| {
            self.next += rows as u64;
            Columns { rows, fields, first }
        }))
    }
}
