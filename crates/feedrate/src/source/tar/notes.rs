//! What was passed over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What readers of a source passed over since it was made. Each pass over the data counts again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Notes {
    /// Members that are no ordinary files: folders, links, devices.
    pub no_files: u64,
    /// Files that are none of the data by their names; see [`Tar::hidden`](super::Tar::hidden).
    pub hidden: u64,
    /// Files whose names have no dot to split at, and so no field.
    pub unnamed: u64,
    /// Samples without a field that was asked for, where [`Missing::Skip`](super::Missing::Skip) was chosen.
    pub incomplete: u64,
    /// Files whose field looks like the rest of a title with dots in it, so that different files may have become one sample.
    pub odd_fields: u64,
    /// The first of those.
    pub odd_field: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts for all readers of a source.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) no_files: Counter,
    pub(super) hidden: Counter,
    pub(super) unnamed: Counter,
    pub(super) incomplete: Counter,
    odd: Counter,
    first_odd: Mutex<Option<String>>,
}

impl Counters {
    pub(super) fn odd_field(&self, name: &str) {
        if self.odd.get() == 0 {
            let mut first = self.first_odd.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| name.to_owned());
        }
        self.odd.add();
    }

    pub(super) fn notes(&self) -> Notes {
        Notes {
            no_files: self.no_files.get(),
            hidden: self.hidden.get(),
            unnamed: self.unnamed.get(),
            incomplete: self.incomplete.get(),
            odd_fields: self.odd.get(),
            odd_field: self.first_odd.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
