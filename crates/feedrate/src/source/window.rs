//! Bytes by position, from a file or from a stream that is decompressed as it is read.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::compress::too_wide;
use super::{Codec, Fault, SourceError};

/// Most that is read ahead.
const AHEAD: usize = 256 << 10;
/// What is read where nothing says that the reading goes on.
const FIRST: usize = 4 << 10;
/// A request larger than this is read in pieces where its size is only a claim.
const PIECE: usize = 1 << 20;

/// Reads at a position, without moving what others read.
#[cfg(unix)]
pub(super) fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, offset)
}

/// Reads at a position. The file's own place moves, which nothing here relies on.
#[cfg(windows)]
pub(super) fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, offset)
}

/// As much of `out` as there is.
pub(super) fn fill_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < out.len() {
        match read_at(file, &mut out[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A file behind a buffer: what is read in order is read ahead, what is read here and there is not.
#[derive(Debug)]
pub(super) struct Window {
    file: Arc<File>,
    name: Arc<str>,
    len: u64,
    buffer: Vec<u8>,
    /// Of the buffer.
    start: u64,
    ahead: usize,
}

impl Window {
    /// A file that is read by position as it lies there, so that it must not be compressed.
    pub(super) fn open(path: &Path, name: Arc<str>) -> Result<Self, SourceError> {
        let window = Self::packed(path, name)?;
        let ending = path
            .extension()
            .and_then(|ending| ending.to_str())
            .map(str::to_ascii_lowercase);
        let named = |codec: &Codec| {
            ending
                .as_ref()
                .is_some_and(|ending| codec.endings().contains(&ending.as_str()))
        };
        let codecs = [Codec::Gzip, Codec::Zstd, Codec::Lz4, Codec::Xz, Codec::Bzip2];
        let Some(codec) = codecs.into_iter().find(named) else {
            return Ok(window);
        };
        // The name alone may be wrong, and so may the content: tokens begin with any bytes.
        let mut head = [0; 8];
        let found = fill_at(&window.file, &mut head, 0).map_err(|error| SourceError::io(&*window.name, &error))?;
        if Codec::find(&head[..found]) != Some(codec) {
            return Ok(window);
        }
        let message = format!(
            "it is compressed with {}, and files of this format are read by position: unpack it",
            codec.name()
        );
        Err(SourceError::new(Fault::Unsupported, &*window.name, message))
    }

    /// The same of a file that may be compressed.
    pub(super) fn packed(path: &Path, name: Arc<str>) -> Result<Self, SourceError> {
        let open = || {
            let file = File::open(path)?;
            let meta = file.metadata()?;
            if meta.is_dir() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "this is a folder, not a file",
                ));
            }
            Ok((file, meta.len()))
        };
        let (file, len) = open().map_err(|error| SourceError::io(&*name, &error))?;
        Ok(Self {
            file: Arc::new(file),
            name,
            len,
            buffer: Vec::new(),
            start: 0,
            ahead: AHEAD / 4,
        })
    }

    /// Another window on the same open file.
    pub(super) fn again(&self) -> Self {
        Self {
            file: Arc::clone(&self.file),
            name: Arc::clone(&self.name),
            len: self.len,
            buffer: Vec::new(),
            start: 0,
            ahead: FIRST,
        }
    }

    /// Size of the file when it was opened.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// `len` bytes at `offset`, fewer where the file ends.
    pub(super) fn some(&mut self, offset: u64, len: usize) -> Result<&[u8], SourceError> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(left);
        let held = self.start + self.buffer.len() as u64;
        if offset < self.start || offset.saturating_add(len as u64) > held {
            let goes_on = (self.start..=held).contains(&offset);
            self.ahead = if goes_on { (self.ahead * 2).min(AHEAD) } else { FIRST };
            let wanted = len.max(self.ahead).min(left);
            if self.buffer.capacity() > 4 * AHEAD && wanted <= AHEAD {
                self.buffer = Vec::new();
            }
            // The file is that long, so this is no mere claim.
            self.buffer.resize(wanted, 0);
            let found = fill_at(&self.file, &mut self.buffer, offset);
            let found = found.map_err(|error| {
                self.buffer.clear();
                SourceError::io(&*self.name, &error).at(offset)
            })?;
            self.buffer.truncate(found);
            self.start = offset;
        }
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let held = self.buffer.get(from..).unwrap_or_default();
        Ok(&held[..len.min(held.len())])
    }

    /// Exactly `len` bytes at `offset`; `what` they are, for the message.
    pub(super) fn exact(&mut self, offset: u64, len: usize, what: &str) -> Result<&[u8], SourceError> {
        let (name, size) = (Arc::clone(&self.name), self.len);
        let bytes = self.some(offset, len)?;
        if bytes.len() < len {
            return Err(short(&name, offset, len as u64, size, what));
        }
        Ok(bytes)
    }

    /// Fills `out` from `offset` on.
    pub(super) fn fill(&mut self, offset: u64, out: &mut [u8], what: &str) -> Result<(), SourceError> {
        if out.len() <= AHEAD {
            out.copy_from_slice(self.exact(offset, out.len(), what)?);
            return Ok(());
        }
        let found =
            fill_at(&self.file, out, offset).map_err(|error| SourceError::io(&*self.name, &error).at(offset))?;
        if found < out.len() {
            return Err(short(&self.name, offset, out.len() as u64, self.len, what));
        }
        Ok(())
    }
}

fn short(name: &Arc<str>, offset: u64, len: u64, size: u64, what: &str) -> SourceError {
    let message = format!("{what} needs {len} bytes, and the file ends at {size}: it is cut off");
    SourceError::new(Fault::Truncated, &**name, message).at(offset)
}

/// Opens a stream from its start.
pub(super) type Start = Box<dyn Fn() -> io::Result<Box<dyn Read + Send>> + Send>;

/// A stream by position: forward by reading, backward by beginning again.
pub(super) struct Stream {
    start: Start,
    inner: Box<dyn Read + Send>,
    name: Arc<str>,
    buffer: Vec<u8>,
    /// Of the buffer, in the uncompressed bytes.
    offset: u64,
}

impl Stream {
    pub(super) fn open(start: Start, name: Arc<str>) -> Result<Self, SourceError> {
        let inner = start().map_err(|error| SourceError::io(&*name, &error))?;
        Ok(Self {
            start,
            inner,
            name,
            buffer: Vec::new(),
            offset: 0,
        })
    }

    /// Reads at least `wanted` bytes more into the buffer, if there are as many.
    fn grow(&mut self, wanted: usize) -> Result<(), SourceError> {
        let mut missing = wanted;
        while missing > 0 {
            let held = self.buffer.len();
            self.buffer.resize(held + missing.clamp(FIRST, PIECE), 0);
            let read = self.inner.read(&mut self.buffer[held..]);
            self.buffer.truncate(held + read.as_ref().map_or(0, |n| *n));
            match read {
                Ok(0) => break,
                Ok(n) => missing = missing.saturating_sub(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let at = self.offset + self.buffer.len() as u64;
                    return Err(decoding(&self.name, &error).at(at));
                }
            }
        }
        Ok(())
    }

    /// `len` bytes at `offset`, fewer where the stream ends.
    pub(super) fn some(&mut self, offset: u64, len: usize) -> Result<&[u8], SourceError> {
        if offset < self.offset {
            self.inner = (self.start)().map_err(|error| SourceError::io(&*self.name, &error))?;
            self.buffer.clear();
            self.offset = 0;
        }
        loop {
            let pass = usize::try_from(offset - self.offset).unwrap_or(usize::MAX);
            let pass = pass.min(self.buffer.len());
            if pass > 0 {
                // What is passed is moved out once a piece, not for each record.
                if pass == self.buffer.len() {
                    self.buffer.clear();
                } else if pass >= AHEAD || pass + len > self.buffer.len() {
                    self.buffer.drain(..pass);
                } else {
                    let held = &self.buffer[pass..];
                    return Ok(&held[..len.min(held.len())]);
                }
                self.offset += pass as u64;
            }
            if self.offset == offset {
                break;
            }
            let before = self.buffer.len();
            self.grow(FIRST.max(usize::try_from(offset - self.offset).unwrap_or(PIECE).min(AHEAD)))?;
            if self.buffer.len() == before {
                return Ok(&[]);
            }
        }
        if self.buffer.capacity() > 4 * PIECE && len <= PIECE {
            self.buffer.shrink_to(PIECE);
        }
        let missing = len.saturating_sub(self.buffer.len());
        if missing > 0 {
            self.grow(missing)?;
        }
        Ok(&self.buffer[..len.min(self.buffer.len())])
    }
}

/// What a decoder said: what the system did not say is about the data.
pub(super) fn decoding(name: &Arc<str>, error: &io::Error) -> SourceError {
    if error.raw_os_error().is_some() || error.kind() == io::ErrorKind::UnexpectedEof {
        let mut said = SourceError::io(&**name, error);
        if said.fault() == Fault::Truncated {
            said = SourceError::new(Fault::Truncated, &**name, "the compressed data is cut off");
        }
        return said;
    }
    if let Some(message) = too_wide(error) {
        return SourceError::new(
            Fault::Unsupported,
            &**name,
            format!("the zstd data is not read: {message}"),
        );
    }
    SourceError::new(
        Fault::Damaged,
        &**name,
        format!("the compressed data is damaged: {error}"),
    )
}

/// A file, or a stream out of one.
pub(super) enum Input {
    File(Window),
    Stream(Stream),
}

impl Input {
    /// `len` bytes at `offset`, fewer at the end.
    pub(super) fn some(&mut self, offset: u64, len: usize) -> Result<&[u8], SourceError> {
        match self {
            Self::File(window) => window.some(offset, len),
            Self::Stream(stream) => stream.some(offset, len),
        }
    }

    /// Where it ends, if that is known.
    pub(super) fn end(&self) -> Option<u64> {
        match self {
            Self::File(window) => Some(window.len()),
            Self::Stream(_) => None,
        }
    }

    /// Exactly `len` bytes at `offset`.
    pub(super) fn exact(&mut self, offset: u64, len: usize, what: &str) -> Result<&[u8], SourceError> {
        match self {
            Self::File(window) => window.exact(offset, len, what),
            Self::Stream(stream) => {
                let name = Arc::clone(&stream.name);
                let bytes = stream.some(offset, len)?;
                if bytes.len() < len {
                    let message = format!("{what} needs {len} bytes, there are {}: it is cut off", bytes.len());
                    return Err(SourceError::new(Fault::Truncated, &*name, message).at(offset));
                }
                Ok(bytes)
            }
        }
    }
}
