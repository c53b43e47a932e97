//! A part's bytes, uncompressed, with one bounded buffer.

use std::io::{self, Read, SeekFrom};
use std::sync::Arc;

use super::compress::{Codec, skipped};
use super::{Fault, SourceError};
use crate::store::{Blob, Raw};

/// What is read at first and after a jump; read-ahead doubles from here while reading goes on in order.
const LEAST_AHEAD: usize = 16 << 10;
/// What is read at once at most: larger brought nothing in `benches/sources.rs`, smaller costs calls.
const MOST_AHEAD: usize = 256 << 10;
/// What is passed over by a jump and not by reading.
const LEAST_JUMP: u64 = 2 * LEAST_AHEAD as u64;
/// What is read at once, and jumped over, where only headers are wanted: a call costs about as much as copying 8 KiB.
const HOP: usize = 2 << 10;
/// What is read without a stop in the buffer.
const LEAST_DIRECT: u64 = 32 << 10;
/// Memory that is set aside for what a header merely claims to be there.
const TRUST: u64 = 1 << 20;

enum Input {
    /// Stored as it is; its length when it was opened.
    Plain(Box<dyn Raw>, u64),
    Packed(Box<dyn Read + Send>, Codec),
}

/// Reads a blob in order, decompressing it where it is compressed, and jumps where it can.
pub(super) struct Stream {
    blob: Blob,
    name: Arc<str>,
    input: Input,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Where `buffer[start]` lies.
    offset: u64,
    ahead: usize,
    /// Only headers are wanted: little is read behind a jump, and smaller bodies are jumped over.
    hopping: bool,
}

impl Stream {
    /// Opens it and finds out whether it is compressed.
    pub(super) fn open(blob: &Blob) -> Result<Self, SourceError> {
        let mut stream = Self {
            blob: blob.clone(),
            name: blob.shared_name(),
            input: Input::Plain(Box::new(io::empty()), 0),
            buffer: Vec::new(),
            start: 0,
            end: 0,
            offset: 0,
            ahead: LEAST_AHEAD,
            hopping: false,
        };
        stream.restart()?;
        Ok(stream)
    }

    fn restart(&mut self) -> Result<(), SourceError> {
        let mut raw = self.blob.open()?;
        (self.start, self.end, self.offset, self.ahead) = (0, 0, 0, LEAST_AHEAD);
        let length = raw.seek(SeekFrom::End(0)).and_then(|length| {
            raw.rewind()?;
            Ok(length)
        });
        let length = length.map_err(|error| SourceError::io(&*self.name, &error))?;
        self.input = Input::Plain(raw, length);
        let head = self.at_least(8)?;
        let skips = skipped(head).is_some();
        if let Some(mut codec) = Codec::find(head) {
            let Input::Plain(mut raw, _) = std::mem::replace(&mut self.input, Input::Plain(Box::new(io::empty()), 0))
            else {
                return Ok(());
            };
            let packed = || {
                if skips {
                    codec = codec.behind_skipped(&mut *raw)?;
                }
                raw.rewind()?;
                Ok((codec.decode(raw)?, codec))
            };
            let (packed, codec) = packed().map_err(|error| SourceError::io(&*self.name, &error))?;
            self.input = Input::Packed(packed, codec);
            (self.start, self.end) = (0, 0);
        }
        Ok(())
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// How it is compressed.
    pub(super) fn codec(&self) -> Option<Codec> {
        match &self.input {
            Input::Plain(..) => None,
            Input::Packed(_, codec) => Some(*codec),
        }
    }

    /// Length in bytes, where it is known.
    pub(super) fn length(&self) -> Option<u64> {
        match &self.input {
            Input::Plain(_, length) => Some(*length),
            Input::Packed(..) => None,
        }
    }

    /// Uncompressed offset of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn error(&self, fault: Fault, message: impl Into<String>) -> SourceError {
        SourceError::new(fault, &*self.name, message).at(self.offset)
    }

    fn failed(&self, error: &io::Error) -> SourceError {
        let at = self.offset + (self.end - self.start) as u64;
        match (&self.input, error.kind()) {
            (Input::Packed(_, codec), io::ErrorKind::UnexpectedEof) => {
                let message = format!("the {} data ends too early", codec.name());
                SourceError::new(Fault::Truncated, &*self.name, message).at(at)
            }
            (Input::Packed(_, codec), io::ErrorKind::InvalidData) => {
                let message = format!("the {} data is damaged: {error}", codec.name());
                SourceError::new(Fault::Damaged, &*self.name, message).at(at)
            }
            (Input::Packed(_, codec), io::ErrorKind::Unsupported) => {
                let message = format!("the {} data is not read: {error}", codec.name());
                SourceError::new(Fault::Unsupported, &*self.name, message).at(at)
            }
            _ => SourceError::new(Fault::Io, &*self.name, error.to_string()).at(at),
        }
    }

    /// Reads once; false at the end. What is buffered stays, in one piece.
    fn fill(&mut self) -> Result<bool, SourceError> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.buffer.len() - self.end < self.ahead {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.len() < self.end + self.ahead {
            self.buffer.resize(self.end + self.ahead, 0);
        }
        let space = &mut self.buffer[self.end..self.end + self.ahead];
        let length = loop {
            let length = match &mut self.input {
                Input::Plain(raw, _) => raw.read(space),
                Input::Packed(packed, _) => packed.read(space),
            };
            match length {
                Ok(length) => break length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        };
        self.end += length;
        self.ahead = (self.ahead * 2).min(MOST_AHEAD);
        Ok(length > 0)
    }

    /// What is buffered, after reading if that was nothing; empty at the end.
    pub(super) fn some(&mut self) -> Result<&[u8], SourceError> {
        if self.start == self.end {
            self.fill()?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// What is buffered.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads once behind what is buffered, which stays in one piece; false at the end. The caller bounds what it leaves buffered.
    pub(super) fn more(&mut self) -> Result<bool, SourceError> {
        self.fill()
    }

    /// What is buffered, at least `count` bytes (few, as they have to fit into the buffer), or less at the end.
    pub(super) fn at_least(&mut self, count: usize) -> Result<&[u8], SourceError> {
        while self.end - self.start < count && self.fill()? {}
        Ok(&self.buffer[self.start..self.end])
    }

    /// Passes over bytes that are buffered.
    pub(super) fn consume(&mut self, count: usize) {
        let count = count.min(self.end - self.start);
        self.start += count;
        self.offset += count as u64;
    }

    /// Whether only headers are wanted from here on.
    pub(super) fn hop(&mut self, on: bool) {
        self.hopping = on;
        self.ahead = if on { HOP } else { LEAST_AHEAD };
    }

    /// Appends the next `count` bytes. Memory is set aside for what can be there, not for what is asked for.
    pub(super) fn take(&mut self, count: u64, into: &mut Vec<u8>) -> Result<(), SourceError> {
        let there = self.length().map_or(TRUST, |length| length.saturating_sub(self.offset));
        into.reserve(usize::try_from(count.min(there)).unwrap_or(0));
        let mut left = count;
        loop {
            let buffered = &self.buffer[self.start..self.end];
            let part = usize::try_from(left).map_or(buffered.len(), |left| left.min(buffered.len()));
            into.extend_from_slice(&buffered[..part]);
            self.consume(part);
            left -= part as u64;
            if left == 0 {
                return Ok(());
            }
            let directly = left >= LEAST_DIRECT;
            let got = if directly { self.take_directly(left, into)? } else { 0 };
            left -= got;
            if left > 0 && !self.fill()? {
                let message = format!("{count} bytes should be here, and {left} of them are not");
                return Err(self.error(Fault::Truncated, message));
            }
        }
    }

    /// Past the buffer, which is empty.
    fn take_directly(&mut self, count: u64, into: &mut Vec<u8>) -> Result<u64, SourceError> {
        let before = into.len();
        let result = match &mut self.input {
            Input::Plain(raw, _) => raw.by_ref().take(count).read_to_end(into),
            Input::Packed(packed, _) => packed.by_ref().take(count).read_to_end(into),
        };
        let got = (into.len() - before) as u64;
        self.offset += got;
        // What comes next is a header, and its body should not be read into the buffer.
        self.ahead = LEAST_AHEAD;
        result.map_err(|error| self.failed(&error))?;
        Ok(got)
    }

    /// Passes over `count` bytes; how many there were. Jumps where nothing is compressed.
    pub(super) fn pass(&mut self, count: u64) -> Result<u64, SourceError> {
        let buffered = (self.end - self.start) as u64;
        if count <= buffered {
            self.consume(usize::try_from(count).unwrap_or(usize::MAX));
            return Ok(count);
        }
        let mut passed = buffered;
        self.consume(usize::MAX);
        let (least, ahead) = if self.hopping {
            (4 * HOP as u64, HOP)
        } else {
            (LEAST_JUMP, LEAST_AHEAD)
        };
        if let Input::Plain(raw, length) = &mut self.input {
            let passing = (count - passed).min(length.saturating_sub(self.offset));
            if passing > least {
                let to = self.offset + passing;
                raw.seek(SeekFrom::Start(to))
                    .map_err(|error| SourceError::io(&*self.name, &error).at(to))?;
                self.offset = to;
                self.ahead = ahead;
                return Ok(passed + passing);
            }
        }
        while passed < count {
            let part = self.some()?.len();
            if part == 0 {
                break;
            }
            let part = part.min(usize::try_from(count - passed).unwrap_or(usize::MAX));
            self.consume(part);
            passed += part as u64;
        }
        Ok(passed)
    }

    /// Goes to an offset: by a jump, by passing over what lies between, or by beginning again. Errors: the bytes end before it.
    pub(super) fn seek(&mut self, to: u64) -> Result<(), SourceError> {
        if to < self.offset {
            match &mut self.input {
                Input::Plain(raw, length) if to <= *length => {
                    raw.seek(SeekFrom::Start(to))
                        .map_err(|error| SourceError::io(&*self.name, &error).at(to))?;
                    (self.start, self.end, self.offset, self.ahead) = (0, 0, to, LEAST_AHEAD);
                }
                _ => self.restart()?,
            }
        }
        let distance = to - self.offset;
        let passed = self.pass(distance)?;
        if passed < distance {
            let message = format!("it ends before byte {to}, from which it should be read");
            return Err(self.error(Fault::Truncated, message));
        }
        Ok(())
    }

    /// Reads what is left, so that checksums at the end of compressed data are checked.
    pub(super) fn finish(&mut self) -> Result<(), SourceError> {
        if self.codec().is_some() {
            self.pass(u64::MAX)?;
        }
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let some = self.some().map_err(io::Error::other)?;
        let length = some.len().min(into.len());
        into[..length].copy_from_slice(&some[..length]);
        self.consume(length);
        Ok(length)
    }
}
