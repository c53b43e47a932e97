//! Where records begin, in memory and stored.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Fault, SourceError};
use crate::store::{Blob, INDEX};

const MAGIC: &[u8; 16] = b"feedrate index 1";

/// Where indexes are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum IndexAt {
    /// In memory: 8 bytes a record (of a tar whose members lie apart 8 more for each member), made again by each process.
    #[default]
    Memory,
    /// Also beside each shard, as `<shard>.feedrate-index`. Where that cannot be written, in memory only.
    Beside,
    /// Also in this folder, which is made when it is missing, under names that are made of the shard's whole path.
    Folder(PathBuf),
}

/// Offsets of a shard's records.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Index {
    /// Of each record, and of the end; or of each member of each record.
    pub(super) offsets: Vec<u64>,
    /// Where the members of each record begin in `offsets`, and of the end; empty where there is one offset for each.
    pub(super) firsts: Vec<u64>,
}

impl Index {
    /// Number of records.
    pub(super) fn len(&self) -> u64 {
        let entries = if self.firsts.is_empty() {
            &self.offsets
        } else {
            &self.firsts
        };
        (entries.len() as u64).saturating_sub(1)
    }

    /// Where a record begins, or the shard ends.
    pub(super) fn offset(&self, number: u64) -> u64 {
        let at = usize::try_from(number).ok().and_then(|at| self.offsets.get(at));
        at.or(self.offsets.last()).copied().unwrap_or_default()
    }

    /// Offsets of the record's members.
    pub(super) fn members(&self, number: u64) -> Option<&[u64]> {
        let at = usize::try_from(number).ok()?;
        let (from, to) = (*self.firsts.get(at)?, *self.firsts.get(at + 1)?);
        self.offsets.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
    }

    fn bytes(&self, stamp: Stamp) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let counts = [self.offsets.len() as u64, self.firsts.len() as u64];
        let numbers = stamp.0.iter().chain(&counts).chain(&self.offsets).chain(&self.firsts);
        numbers.for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        let sum = sum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// What was stored, if it is whole and of this shard.
    fn parse(bytes: &[u8], stamp: Stamp) -> Option<Self> {
        let (bytes, stored) = bytes.split_last_chunk::<4>()?;
        if sum(bytes) != u32::from_le_bytes(*stored) {
            return None;
        }
        let mut numbers = bytes.strip_prefix(MAGIC)?.chunks_exact(8);
        let mut next = || {
            let chunk = numbers.next()?.first_chunk::<8>()?;
            Some(u64::from_le_bytes(*chunk))
        };
        if Stamp([next()?, next()?, next()?]) != stamp {
            return None;
        }
        let counts = [next()?, next()?].map(usize::try_from);
        let (Ok(count), Ok(samples)) = (counts[0], counts[1]) else {
            return None;
        };
        let all: Vec<u64> = std::iter::from_fn(next).collect();
        if count.checked_add(samples)? != all.len() || bytes.len() % 8 != 0 {
            return None;
        }
        let (offsets, firsts) = all.split_at(count);
        let (offsets, firsts) = (offsets.to_vec(), firsts.to_vec());
        let ordered = firsts.is_sorted() && firsts.last().is_none_or(|last| *last == count as u64);
        ordered.then_some(Self { offsets, firsts })
    }
}

fn sum(bytes: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(bytes);
    sum.sum()
}

/// What an index is tied to: size and time of the shard, and a hash of the choices that decide where records begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([u64; 3]);

impl Stamp {
    fn of(blob: &Blob, layout: &str) -> Option<Self> {
        let (size, time) = blob.stamp()?;
        Some(Self([size, time, hash(layout.as_bytes())]))
    }
}

/// Stored in files, so that it must not change: FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Where a shard's index is stored, if it is.
fn path(at: &IndexAt, blob: &Blob) -> Option<PathBuf> {
    let shard = blob.path()?;
    match at {
        IndexAt::Memory => None,
        IndexAt::Beside => {
            let mut name = shard.file_name()?.to_owned();
            name.push(INDEX);
            Some(shard.with_file_name(name))
        }
        IndexAt::Folder(folder) => {
            // The whole path, so that shards of the same name in different folders have different indexes.
            let whole = std::path::absolute(shard).ok()?;
            let mut name = shard.file_name()?.to_owned();
            name.push(format!(".{:016x}{INDEX}", hash(whole.as_os_str().as_encoded_bytes())));
            Some(folder.join(name))
        }
    }
}

/// An index in memory, with what the shard was when it was indexed.
#[derive(Debug)]
pub(super) struct Known {
    index: Arc<Index>,
    stamp: Option<(u64, u64)>,
}

impl Known {
    /// Finds or makes one.
    pub(super) fn new(
        blob: Option<&Blob>,
        index: impl FnOnce() -> Result<Index, SourceError>,
    ) -> Result<Self, SourceError> {
        // Before it is read: what is written meanwhile counts as a change.
        let stamp = blob.and_then(Blob::stamp);
        let index = Arc::new(index()?);
        Ok(Self { index, stamp })
    }

    /// The index, as long as it is that of the shard. One that is gone is told by opening it.
    pub(super) fn of(&self, blob: Option<&Blob>) -> Result<Arc<Index>, SourceError> {
        if let Some(((size, time), (now, later))) = self.stamp.zip(blob.and_then(Blob::stamp))
            && (size, time) != (now, later)
            && let Some(blob) = blob
        {
            let now = if size == now {
                "as many, of another time".to_owned()
            } else {
                now.to_string()
            };
            let message = format!(
                "it has changed since it was indexed: it had {size} bytes, and has {now} now, in which the index finds no records. Open the \
                 pipeline anew"
            );
            return Err(SourceError::new(Fault::Damaged, blob.name(), message));
        }
        Ok(Arc::clone(&self.index))
    }
}

/// The index of a shard: as it is stored, or made and then stored.
pub(super) fn find_or_make<E>(
    at: &IndexAt,
    blob: &Blob,
    layout: &str,
    make: impl FnOnce() -> Result<Index, E>,
) -> Result<Index, E> {
    let stored = path(at, blob).zip(Stamp::of(blob, layout));
    if let Some((path, stamp)) = &stored
        && let Some(index) = load(path, *stamp)
    {
        return Ok(index);
    }
    let index = make()?;
    if let Some((path, stamp)) = &stored {
        store(path, *stamp, &index);
    }
    Ok(index)
}

/// What is stored, if it is whole and fits.
fn load(path: &Path, stamp: Stamp) -> Option<Index> {
    Index::parse(&fs::read(path).ok()?, stamp)
}

/// Stores it whole or not at all. That it cannot be stored is no error: it is in memory.
fn store(path: &Path, stamp: Stamp, index: &Index) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{number}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let write = || -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = fs::File::create_new(&beside)?;
        file.write_all(&index.bytes(stamp))?;
        file.sync_data()?;
        fs::rename(&beside, path)
    };
    if write().is_err() {
        let _ = fs::remove_file(&beside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_indexes_are_read_again_or_refused() {
        let stamp = Stamp([1, 2, 3]);
        let index = Index {
            offsets: vec![0, 1024, 4096],
            firsts: Vec::new(),
        };
        let bytes = index.bytes(stamp);
        assert_eq!(Index::parse(&bytes, stamp), Some(index));
        assert_eq!(Index::parse(&bytes, Stamp([1, 2, 4])), None);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(Index::parse(&bad, stamp), None);
            assert_eq!(Index::parse(&bytes[..at], stamp), None);
        }
        let index = Index {
            offsets: vec![0, 2048, 1024],
            firsts: vec![0, 2, 3],
        };
        let again = Index::parse(&index.bytes(stamp), stamp).unwrap();
        assert_eq!(
            (again.len(), again.members(0), again.members(2)),
            (2, Some(&[0, 2048][..]), None)
        );
    }
}
