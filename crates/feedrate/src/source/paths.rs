//! The files of a source, as parts.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::{Fault, Part, SourceError};

/// One file for each part, in the order in which they were named.
#[derive(Debug)]
pub(super) struct Paths {
    files: Arc<[PathBuf]>,
    listed: OnceLock<Arc<[Part]>>,
    counted: OnceLock<Arc<[Part]>>,
}

impl Paths {
    pub(super) fn new(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            files: paths.into_iter().map(Into::into).collect(),
            listed: OnceLock::new(),
            counted: OnceLock::new(),
        }
    }

    /// The path of a part, and its name in messages.
    pub(super) fn path(&self, part: usize) -> Result<(&Path, Arc<str>), SourceError> {
        let Some(path) = self.files.get(part) else {
            let message = format!("there is no part {part}: the source has {}", self.files.len());
            return Err(SourceError::new(Fault::Absent, format!("part {part}"), message));
        };
        Ok((path, path.to_string_lossy().into()))
    }

    /// The file of a part.
    pub(super) fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        Ok(vec![self.path(part)?.0.to_owned()])
    }

    /// The parts with the sizes of their files, and their counts once [`index`](Paths::index) was called. A file that is missing
    /// is a part too: opening it says so.
    pub(super) fn parts(&self) -> Arc<[Part]> {
        if let Some(counted) = self.counted.get() {
            return Arc::clone(counted);
        }
        Arc::clone(self.listed.get_or_init(|| {
            let part = |path: &PathBuf| Part {
                name: path.to_string_lossy().into_owned(),
                records: None,
                bytes: path.metadata().ok().map(|meta| meta.len()),
            };
            self.files.iter().map(part).collect()
        }))
    }

    /// Counts every part once and keeps what was found.
    pub(super) fn index(
        &self,
        mut count: impl FnMut(usize) -> Result<u64, SourceError>,
    ) -> Result<Arc<[u64]>, SourceError> {
        let mut parts = self.parts().to_vec();
        let mut counts = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter_mut().enumerate() {
            let records = match part.records {
                Some(records) => records,
                None => count(at)?,
            };
            part.records = Some(records);
            counts.push(records);
        }
        self.counted.get_or_init(|| parts.into());
        Ok(counts.into())
    }

    /// Names for [`Source::describe`](super::Source::describe).
    pub(super) fn describe(&self) -> String {
        let names: Vec<_> = self.files.iter().map(|path| path.to_string_lossy()).collect();
        names.join(" ")
    }
}
