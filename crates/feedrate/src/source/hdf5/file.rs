//! An open file: its datasets by path, and its bytes.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use hdf5_reader::error::Error;
use hdf5_reader::{BlockCacheStorage, Dataset, FilterRegistry, Hdf5File, OpenOptions, Storage, StorageBuffer};

use super::chunks::{Known, Stamp};
use super::filters;
use crate::source::window::{Window, fill_at};
use crate::source::{Fault, SourceError};

/// What is kept of headers and indexes: blocks of so many bytes, and so many of them.
const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 64;
/// Most groups and datasets that are looked at where no columns are named.
const OBJECTS: usize = 1 << 16;
/// Names that a message lists.
const NAMED: usize = 50;
/// Deflate cannot shrink more than that.
pub(super) const RATIO: u64 = 1040;
/// What a file may ask for whatever its own size is.
pub(super) const SMALL: u64 = 16 << 20;

/// A file that is read by position.
struct Positioned {
    file: Arc<std::fs::File>,
    len: u64,
}

impl Storage for Positioned {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_range(&self, offset: u64, len: usize) -> Result<StorageBuffer, Error> {
        let available = self.len.saturating_sub(offset);
        if available < len as u64 {
            return Err(Error::UnexpectedEof {
                offset,
                needed: len as u64,
                available,
            });
        }
        let mut bytes = vec![0; len];
        let found = fill_at(&self.file, &mut bytes, offset)?;
        if found < len {
            return Err(Error::UnexpectedEof {
                offset,
                needed: len as u64,
                available: found as u64,
            });
        }
        Ok(StorageBuffer::from_vec(bytes))
    }
}

/// An open file.
pub(super) struct File {
    pub(super) inner: Hdf5File,
    pub(super) window: Window,
    pub(super) name: Arc<str>,
    /// What all addresses are counted from.
    pub(super) base: u64,
    /// Which of the source's it is, and what tells whether it is still the same.
    pub(super) part: usize,
    pub(super) stamp: Stamp,
    pub(super) registry: Arc<FilterRegistry>,
    pub(super) known: Arc<Known>,
}

impl File {
    pub(super) fn open(path: &Path, name: Arc<str>, part: usize, known: Arc<Known>) -> Result<Self, SourceError> {
        let window = Window::open(path, Arc::clone(&name))?;
        let storage = Positioned {
            file: Arc::clone(window.file()),
            len: window.len(),
        };
        // Rows are read past the crate, so its own cache of chunks would hold nothing.
        let options = OpenOptions {
            chunk_cache_bytes: 0,
            ..OpenOptions::default()
        };
        let storage = Arc::new(BlockCacheStorage::new(Arc::new(storage), BLOCK, BLOCKS));
        let inner = Hdf5File::from_storage_with_options(storage, options);
        let inner = inner.map_err(|error| match error {
            Error::InvalidMagic => SourceError::new(Fault::Damaged, &*name, "it does not begin as an HDF5 file does"),
            other => failed(&name, &other),
        })?;
        let (base, end) = (inner.superblock().base_address, inner.superblock().eof_address);
        if end > window.len() {
            let message = format!(
                "the file says that it ends at {end}, and it does at {}: it is cut off, or was not closed",
                window.len()
            );
            return Err(SourceError::new(Fault::Truncated, &*name, message));
        }
        let modified = window.file().metadata().and_then(|meta| meta.modified()).ok();
        Ok(Self {
            stamp: (window.len(), modified),
            inner,
            window,
            name,
            base,
            part,
            registry: Arc::new(filters::registry()),
            known,
        })
    }

    /// The most that a part of the file can become.
    pub(super) fn most(&self) -> u64 {
        self.window.len().saturating_mul(RATIO).max(SMALL)
    }

    /// The dataset of a path.
    pub(super) fn dataset(&self, path: &str) -> Result<Dataset, SourceError> {
        self.inner.dataset(path).map_err(|error| {
            if !matches!(inner(&error), Error::DatasetNotFound(_) | Error::GroupNotFound(_)) {
                return failed(&self.name, &error).of(format!("dataset {path}"));
            }
            let known = self.datasets().map(|mut known| {
                known.truncate(NAMED);
                format!(", only {known:?}")
            });
            let known = known.unwrap_or_default();
            let message = format!("there is no dataset {path:?}{known} (links to other files are not followed)");
            SourceError::new(Fault::Absent, &*self.name, message)
        })
    }

    /// The paths of all datasets: groups one after the other, in the order of names. A dataset that is reached by several paths has the first.
    pub(super) fn datasets(&self) -> Result<Vec<String>, SourceError> {
        let wrong = |error: &Error, path: &str| {
            let error = failed(&self.name, error);
            if path.is_empty() {
                error
            } else {
                error.of(format!("group {path}"))
            }
        };
        let root = self.inner.root_group().map_err(|error| wrong(&error, ""))?;
        let mut seen = HashSet::from([root.address()]);
        let mut open = vec![(String::new(), root)];
        let mut found = Vec::new();
        while let Some((path, group)) = open.pop() {
            let (mut groups, mut datasets) = group.members().map_err(|error| wrong(&error, &path))?;
            let joined = |name: &str| {
                if path.is_empty() {
                    name.to_owned()
                } else {
                    format!("{path}/{name}")
                }
            };
            datasets.sort_by(|a, b| a.name().cmp(b.name()));
            let new = datasets.iter().filter(|dataset| seen.insert(dataset.address()));
            found.extend(new.map(|dataset| joined(dataset.name())));
            groups.sort_by(|a, b| a.name().cmp(b.name()));
            groups.retain(|group| seen.insert(group.address()));
            // The last one is taken first.
            open.extend(groups.into_iter().rev().map(|group| (joined(group.name()), group)));
            if seen.len() > OBJECTS {
                let message = format!("it has more than {OBJECTS} groups and datasets: name the columns");
                return Err(SourceError::new(Fault::Unsupported, &*self.name, message));
            }
        }
        Ok(found)
    }
}

fn inner(error: &Error) -> &Error {
    match error {
        Error::Context { source, .. } => inner(source),
        other => other,
    }
}

/// What the crate said of a file.
pub(super) fn failed(name: &str, error: &Error) -> SourceError {
    let found = inner(error);
    let (fault, message) = match found {
        Error::Io(io) => return SourceError::io(name, io),
        Error::UnexpectedEof { .. } | Error::OffsetOutOfBounds(_) => (Fault::Truncated, found.to_string()),
        Error::UnsupportedFilter(which) => {
            let id = which.rsplit(' ').next().and_then(|id| id.parse().ok());
            let called = id
                .and_then(filters::called)
                .map(|name| format!(" ({name})"))
                .unwrap_or_default();
            let message = format!(
                "it is packed by {which}{called}, which is not read: store it by gzip or lzf, as h5repack -f GZIP=4 does"
            );
            (Fault::Unsupported, message)
        }
        Error::UnsupportedLayoutClass(3) => (
            Fault::Unsupported,
            "it is virtual, so that its values lie in other datasets: open those".to_owned(),
        ),
        Error::UnsupportedSuperblockVersion(_)
        | Error::UnsupportedObjectHeaderVersion(_)
        | Error::UnsupportedDataspaceVersion(_)
        | Error::UnsupportedDatatypeClass(_)
        | Error::UnsupportedLayoutClass(_)
        | Error::UnsupportedLayoutVersion(_)
        | Error::UnsupportedFilterPipelineVersion(_)
        | Error::UnsupportedLinkType(_)
        | Error::UnsupportedChunkIndexType(_)
        | Error::UnsupportedEncoding(_) => (Fault::Unsupported, found.to_string()),
        _ => (Fault::Damaged, found.to_string()),
    };
    SourceError::new(fault, name, message)
}
