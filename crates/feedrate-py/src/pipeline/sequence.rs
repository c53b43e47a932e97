//! Python sequences and iterables as sources.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use feedrate::source::{Fault, Mark, Part, Reader, Record, Source, SourceError};
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use super::function::Raised;
use super::value::Object;

/// An iterable object: one part, read from its start each time.
pub(crate) struct Iterated {
    pub(crate) name: String,
    pub(crate) object: Py<PyAny>,
}

impl fmt::Debug for Iterated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Iterated({})", self.name)
    }
}

fn failed(name: &str, error: PyErr) -> SourceError {
    let fault = if Raised::interrupts(&error) {
        Fault::Interrupted
    } else {
        Fault::Io
    };
    SourceError::new(fault, name, error.to_string()).because(Raised(error))
}

impl Source for Iterated {
    fn format(&self) -> &'static str {
        "iterable"
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        let part = Part {
            name: self.name.clone(),
            records: None,
            bytes: None,
        };
        Ok(vec![part].into())
    }

    fn files(&self, _: usize) -> Result<Vec<PathBuf>, SourceError> {
        Ok(Vec::new())
    }

    fn open(&self, _: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        let iterator = Python::attach(|py| Ok(self.object.bind(py).try_iter()?.unbind()));
        let mut reader = Items {
            name: self.name.clone(),
            iterator: iterator.map_err(|error| failed(&self.name, error))?,
            next: 0,
            broken: None,
        };
        let wanted = from.map_or(0, |mark| mark.number);
        let passed = reader.skip(wanted)?;
        if passed < wanted {
            let message =
                format!("it gave {passed} items now, and at least {wanted} before: it has to give the same each time");
            return Err(SourceError::new(Fault::Damaged, &self.name, message));
        }
        Ok(Box::new(reader))
    }

    fn seeks(&self) -> bool {
        false
    }
}

struct Items {
    name: String,
    iterator: Py<PyIterator>,
    next: u64,
    /// What it raised: an iterator that has raised says afterwards that it is at its end.
    broken: Option<SourceError>,
}

impl Items {
    fn advance(&mut self) -> Result<Option<feedrate::batch::Value>, SourceError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let found = Python::attach(|py| {
            self.iterator
                .bind(py)
                .clone()
                .next()
                .map(|item| item.map(Object::value))
        });
        found.transpose().map_err(|error| {
            let error = failed(&self.name, error);
            self.broken = Some(error.clone());
            error
        })
    }
}

impl Reader for Items {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        let mark = self.mark();
        let found = self.advance()?;
        Ok(found.map(|value| {
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
}
