//! Samples that are in memory already.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::numbered::Numbered;
use super::{Mark, Part, Reader, Source, SourceError};
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

    fn files(&self, _: usize) -> Result<Vec<PathBuf>, SourceError> {
        Ok(Vec::new())
    }

    fn open(&self, _: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(Arc::clone(&self.items).in_order(from))
    }

    fn indexed(&self) -> bool {
        true
    }
}

impl Numbered for Arc<[Value]> {
    fn count(&self) -> u64 {
        self.len() as u64
    }

    fn record(&mut self, number: u64) -> Result<Value, SourceError> {
        let found = usize::try_from(number).ok().and_then(|at| self.get(at));
        Ok(found.cloned().unwrap_or(Value::None))
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

    fn files(&self, _: usize) -> Result<Vec<PathBuf>, SourceError> {
        Ok(Vec::new())
    }

    fn open(&self, _: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(Below(self.count).in_order(from))
    }

    fn indexed(&self) -> bool {
        true
    }
}

struct Below(u64);

impl Numbered for Below {
    fn count(&self) -> u64 {
        self.0
    }

    fn record(&mut self, number: u64) -> Result<Value, SourceError> {
        Ok(Value::Int(number.cast_signed()))
    }
}
