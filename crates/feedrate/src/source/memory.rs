//! Samples that are in memory already.

use std::fmt;
use std::sync::Arc;

use super::{Mark, Part, Reader, Record, Source, SourceError};
use crate::batch::Value;

/// Values in memory, as one part.
///
/// ```
/// use feedrate::source::{Items, Source};
///
/// let source = Items::new("squares", (0..4_i64).map(|x| (x * x).into()));
/// let mut reader = source.open(0, None)?;
/// reader.skip(3)?;
/// assert_eq!(reader.next()?.map(|record| record.value), Some(9_i64.into()));
/// # Ok::<(), feedrate::source::SourceError>(())
/// ```
#[derive(Clone)]
pub struct Items {
    name: Arc<str>,
    items: Arc<[Value]>,
}

impl Items {
    /// Of these values. The name stands in messages and in the fingerprint.
    pub fn new(name: &str, items: impl IntoIterator<Item = Value>) -> Self {
        Self {
            name: name.into(),
            items: items.into_iter().collect(),
        }
    }
}

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Items({}: {} values)", self.name, self.items.len())
    }
}

impl Source for Items {
    fn format(&self) -> &'static str {
        "items"
    }

    fn describe(&self) -> String {
        format!("{} ({} values)", self.name, self.items.len())
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        let part = Part {
            name: self.name.to_string(),
            records: Some(self.items.len() as u64),
            bytes: None,
        };
        Ok(vec![part].into())
    }

    fn open(&self, _: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(Box::new(ItemsReader {
            items: Arc::clone(&self.items),
            next: from.map_or(0, |mark| mark.number),
        }))
    }

    fn indexed(&self) -> bool {
        true
    }
}

struct ItemsReader {
    items: Arc<[Value]>,
    next: u64,
}

impl Reader for ItemsReader {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        let found = usize::try_from(self.next).ok().and_then(|at| self.items.get(at));
        Ok(found.cloned().map(|value| {
            let mark = self.mark();
            self.next += 1;
            Record { value, mark, key: None }
        }))
    }

    fn mark(&self) -> Mark {
        Mark {
            number: self.next,
            offset: 0,
        }
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        let passed = count.min((self.items.len() as u64).saturating_sub(self.next));
        self.next += passed;
        Ok(passed)
    }

    fn seek(&mut self, number: u64) -> Result<bool, SourceError> {
        self.next = number.min(self.items.len() as u64);
        Ok(true)
    }
}

/// The whole numbers below a count, as one part: indices of something that steps look up.
#[derive(Debug, Clone)]
pub struct Numbers {
    name: Arc<str>,
    count: u64,
}

impl Numbers {
    /// Of `0..count`. The name stands in messages and in the fingerprint.
    pub fn new(name: &str, count: u64) -> Self {
        Self {
            name: name.into(),
            count,
        }
    }
}

impl Source for Numbers {
    fn format(&self) -> &'static str {
        "numbers"
    }

    fn describe(&self) -> String {
        format!("{}, {}", self.name, self.count)
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        let part = Part {
            name: self.name.to_string(),
            records: Some(self.count),
            bytes: None,
        };
        Ok(vec![part].into())
    }

    fn open(&self, _: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(Box::new(NumbersReader {
            next: from.map_or(0, |mark| mark.number),
            count: self.count,
        }))
    }

    fn indexed(&self) -> bool {
        true
    }
}

struct NumbersReader {
    next: u64,
    count: u64,
}

impl Reader for NumbersReader {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        if self.next >= self.count {
            return Ok(None);
        }
        let mark = self.mark();
        self.next += 1;
        Ok(Some(Record {
            value: Value::Int(mark.number.cast_signed()),
            mark,
            key: None,
        }))
    }

    fn mark(&self) -> Mark {
        Mark {
            number: self.next,
            offset: 0,
        }
    }

    fn seek(&mut self, number: u64) -> Result<bool, SourceError> {
        self.next = number;
        Ok(true)
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        let passed = count.min(self.count.saturating_sub(self.next));
        self.next += passed;
        Ok(passed)
    }
}
