//! Lists of files as parts, found when first asked for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::{Fault, Part, SourceError};
use crate::store::{self, Blob};

/// Blobs that are given, or patterns that stand for them.
#[derive(Debug)]
pub(super) struct Shards {
    patterns: Vec<String>,
    found: OnceLock<Found>,
}

#[derive(Debug, Clone)]
struct Found {
    blobs: Arc<[Blob]>,
    parts: Arc<[Part]>,
}

impl Shards {
    pub(super) fn matching<S: Into<String>>(patterns: impl IntoIterator<Item = S>) -> Self {
        Self {
            patterns: patterns.into_iter().map(Into::into).collect(),
            found: OnceLock::new(),
        }
    }

    pub(super) fn of(blobs: impl IntoIterator<Item = Blob>) -> Self {
        let blobs: Vec<Blob> = blobs.into_iter().collect();
        let shards = Self {
            patterns: blobs.iter().map(|blob| blob.name().to_owned()).collect(),
            found: OnceLock::new(),
        };
        shards.found.get_or_init(|| Found::new(blobs));
        shards
    }

    /// The patterns, for a description.
    pub(super) fn describe(&self) -> String {
        self.patterns.join(" ")
    }

    fn found(&self) -> Result<&Found, SourceError> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let blobs = store::find(&self.patterns)?;
        Ok(self.found.get_or_init(|| Found::new(blobs)))
    }

    pub(super) fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        Ok(Arc::clone(&self.found()?.parts))
    }

    pub(super) fn blob(&self, part: usize) -> Result<Blob, SourceError> {
        let blobs = &self.found()?.blobs;
        blobs.get(part).cloned().ok_or_else(|| no_part(part, blobs.len()))
    }

    /// The file of a part; none for bytes in memory.
    pub(super) fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        Ok(self.blob(part)?.path().map(Path::to_owned).into_iter().collect())
    }
}

/// Parts with their numbers of records.
pub(super) fn counted(parts: &[Part], counts: &[u64]) -> Arc<[Part]> {
    let both = parts.iter().zip(counts);
    let both = both.map(|(part, count)| Part {
        records: Some(*count),
        ..part.clone()
    });
    both.collect()
}

pub(super) fn no_part(part: usize, parts: usize) -> SourceError {
    let message = format!("part {part} was asked for; there are {parts}");
    SourceError::new(Fault::Missing, "", message)
}

impl Found {
    fn new(blobs: Vec<Blob>) -> Self {
        let parts = blobs.iter().map(|blob| Part {
            name: blob.name().to_owned(),
            records: None,
            bytes: blob.bytes(),
        });
        Self {
            parts: parts.collect(),
            blobs: blobs.into(),
        }
    }
}
