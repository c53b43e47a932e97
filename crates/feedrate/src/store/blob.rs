//! Something that can be opened and read.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use crate::source::SourceError;

/// Bytes that can be read from any place.
pub trait Raw: Read + Seek + Send {}

impl<T: Read + Seek + Send> Raw for T {}

#[derive(Clone)]
enum Place {
    File(PathBuf),
    Memory(Arc<[u8]>),
}

/// A file, or bytes in memory. Cheap to clone; nothing is open until [`open`](Blob::open).
///
/// ```
/// use feedrate::store::Blob;
///
/// let blob = Blob::memory("three", *b"abc");
/// let mut text = String::new();
/// std::io::Read::read_to_string(&mut blob.open()?, &mut text)?;
/// assert_eq!((text.as_str(), blob.bytes()), ("abc", Some(3)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Blob {
    name: Arc<str>,
    place: Place,
}

impl Blob {
    /// The file at this path. Its name in messages is the path; bytes that are not UTF-8 are shown as replacement characters there.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            name: path.to_string_lossy().into(),
            place: Place::File(path),
        }
    }

    /// Bytes in memory, under a name for messages.
    pub fn memory(name: &str, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self {
            name: name.into(),
            place: Place::Memory(bytes.into()),
        }
    }

    /// What messages call it: the path, for files.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name, shared.
    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// The path, for files.
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::File(path) => Some(path),
            Place::Memory(_) => None,
        }
    }

    /// Its size in bytes, if the system says so now.
    pub fn bytes(&self) -> Option<u64> {
        match &self.place {
            Place::File(path) => fs::metadata(path).ok().map(|data| data.len()),
            Place::Memory(bytes) => Some(bytes.len() as u64),
        }
    }

    /// Size, and nanoseconds of the last change since 1970: what an index or a cached copy is tied to. Bytes in memory never change.
    pub(crate) fn stamp(&self) -> Option<(u64, u64)> {
        match &self.place {
            Place::File(path) => {
                let data = fs::metadata(path).ok()?;
                let since = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
                Some((data.len(), u64::try_from(since.as_nanos()).ok()?))
            }
            Place::Memory(bytes) => Some((bytes.len() as u64, 0)),
        }
    }

    /// Opens it for reading. Blocks as the file system does; a missing file and a folder are errors.
    pub fn open(&self) -> Result<Box<dyn Raw>, SourceError> {
        match &self.place {
            Place::File(path) => {
                let open = || {
                    let file = File::open(path)?;
                    if file.metadata()?.is_dir() {
                        return Err(io::Error::from(io::ErrorKind::IsADirectory));
                    }
                    Ok(file)
                };
                match open() {
                    Ok(file) => Ok(Box::new(file)),
                    Err(error) => Err(SourceError::io(&*self.name, &error)),
                }
            }
            Place::Memory(bytes) => Ok(Box::new(Cursor::new(Arc::clone(bytes)))),
        }
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({})", self.name)
    }
}

impl<P: AsRef<Path>> From<P> for Blob {
    fn from(path: P) -> Self {
        Self::file(path.as_ref())
    }
}
