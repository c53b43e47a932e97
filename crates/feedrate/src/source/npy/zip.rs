//! As much of zip archives as `.npz` files need: the directory at the end, and members that are stored or deflated.

use std::io::{self, Read};
use std::sync::Arc;

use crate::source::codec::{Codec, Piece};
use crate::source::window::{Input, Stream, Window};
use crate::source::{Fault, SourceError};

/// The end record without its comment, and the most that comment can have.
const END: usize = 22;
const COMMENT: usize = 0xffff;
/// More members than anyone stores as arrays.
const MEMBERS: usize = 1 << 16;
/// Deflate cannot shrink more than that.
const RATIO: u64 = 1040;

/// A member, as the directory describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    method: u16,
    encrypted: bool,
    crc: u32,
    packed: u64,
    /// Bytes that it has uncompressed.
    pub(super) len: u64,
    header: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// The members of an archive, in the directory's order.
pub(super) fn members(window: &mut Window) -> Result<Vec<Member>, SourceError> {
    let (name, size) = (Arc::clone(window.name()), window.len());
    let damaged = |fault, at, message: String| SourceError::new(fault, &*name, message).at(at);
    let from = size.saturating_sub((END + COMMENT) as u64);
    let tail = window
        .some(from, usize::try_from(size - from).unwrap_or(END + COMMENT))?
        .to_vec();
    let ends = |at: usize| {
        tail[at..].starts_with(b"PK\x05\x06") && at + END + usize::from(u16_at(&tail, at + 20)) == tail.len()
    };
    let Some(end) = (0..(tail.len() + 1).saturating_sub(END)).rev().find(|at| ends(*at)) else {
        return Err(damaged(
            Fault::Truncated,
            size,
            "a zip archive has its directory at its end, and here is none: it is cut off, or no .npz".into(),
        ));
    };
    let mut len = u64::from(u32_at(&tail, end + 12));
    let mut start = u64::from(u32_at(&tail, end + 16));
    if len == 0xffff_ffff || start == 0xffff_ffff || u16_at(&tail, end + 10) == 0xffff {
        // A large archive: a locator before the end record leads to another one.
        let at = (from + end as u64).saturating_sub(20);
        let locator = window.exact(at, 20, "the archive's locator")?;
        if locator.starts_with(b"PK\x06\x07") {
            let at = u64_at(locator, 8);
            let record = window.exact(at, 56, "the archive's end record")?;
            if !record.starts_with(b"PK\x06\x06") {
                return Err(damaged(Fault::Damaged, at, "there is no zip64 end record".into()));
            }
            (len, start) = (u64_at(record, 40), u64_at(record, 48));
        }
    }
    let Some(len) = start
        .checked_add(len)
        .filter(|end| *end <= size)
        .and_then(|_| usize::try_from(len).ok())
    else {
        return Err(damaged(
            Fault::Damaged,
            start,
            format!("the directory has {len} bytes from {start} on, and the file {size}"),
        ));
    };
    let directory = window.exact(start, len, "the archive's directory")?;
    let mut members = Vec::new();
    let mut rest = directory;
    while rest.starts_with(b"PK\x01\x02") {
        let (name_len, extra_len) = (usize::from(u16_at(rest, 28)), usize::from(u16_at(rest, 30)));
        let whole = 46 + name_len + extra_len + usize::from(u16_at(rest, 32));
        if rest.len() < whole || members.len() == MEMBERS {
            return Err(damaged(
                Fault::Damaged,
                start,
                "an entry of the directory is cut off".into(),
            ));
        }
        let mut member = Member {
            name: String::from_utf8_lossy(&rest[46..46 + name_len]).into_owned(),
            method: u16_at(rest, 10),
            encrypted: u16_at(rest, 8) & 1 != 0,
            crc: u32_at(rest, 16),
            packed: u64::from(u32_at(rest, 20)),
            len: u64::from(u32_at(rest, 24)),
            header: u64::from(u32_at(rest, 42)),
        };
        member.widen(&rest[46 + name_len..][..extra_len]);
        members.push(member);
        rest = &rest[whole..];
    }
    if !rest.is_empty() {
        return Err(damaged(
            Fault::Damaged,
            start,
            "the directory has something else in it".into(),
        ));
    }
    Ok(members)
}

impl Member {
    /// Takes from the extra fields what did not fit.
    fn widen(&mut self, mut extra: &[u8]) {
        while extra.len() >= 4 {
            let (id, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
            let Some(content) = extra.get(4..4 + len) else { return };
            if id == 1 {
                let mut at = 0;
                for field in [&mut self.len, &mut self.packed, &mut self.header] {
                    if *field == 0xffff_ffff && at + 8 <= content.len() {
                        *field = u64_at(content, at);
                        at += 8;
                    }
                }
            }
            extra = &extra[4 + len..];
        }
    }

    /// What is in it: a place to read from, and where it begins there.
    pub(super) fn open(&self, window: &mut Window) -> Result<(Input, u64), SourceError> {
        let name = Arc::clone(window.name());
        let wrong = |fault, message: String| {
            SourceError::new(fault, &*name, message)
                .of(self.name.clone())
                .at(self.header)
        };
        if self.encrypted {
            return Err(wrong(Fault::Unsupported, "the member is encrypted".into()));
        }
        let local = window.exact(self.header, 30, "a member's header")?;
        if !local.starts_with(b"PK\x03\x04") {
            return Err(wrong(
                Fault::Damaged,
                "there is no member where the directory says".into(),
            ));
        }
        let start = self.header + 30 + u64::from(u16_at(local, 26)) + u64::from(u16_at(local, 28));
        let end = start.checked_add(self.packed).filter(|end| *end <= window.len());
        let Some(end) = end else {
            return Err(wrong(
                Fault::Truncated,
                format!(
                    "the member has {} bytes from {start} on, and the file {}",
                    self.packed,
                    window.len()
                ),
            ));
        };
        let codec = match self.method {
            0 if self.packed == self.len => return Ok((Input::File(window.again()), start)),
            0 => {
                return Err(wrong(
                    Fault::Damaged,
                    "the member is stored, and its two sizes differ".into(),
                ));
            }
            8 => Codec::Deflate,
            93 => Codec::Zstd,
            method => {
                return Err(wrong(
                    Fault::Unsupported,
                    format!(
                        "the member is compressed by method {method}: stored (0), deflate (8) and zstd (93) are read"
                    ),
                ));
            }
        };
        if codec == Codec::Deflate && self.len > self.packed.saturating_mul(RATIO).saturating_add(RATIO) {
            return Err(wrong(
                Fault::Damaged,
                format!("{} bytes cannot become {}", self.packed, self.len),
            ));
        }
        let (file, crc, len) = (Arc::clone(window.file()), self.crc, self.len);
        let open = Box::new(move || {
            let inner = codec.decode(Piece::new(&file, start, end))?;
            Ok(Box::new(Checked {
                inner,
                crc: flate2::Crc::new(),
                expected: crc,
                left: len,
            }) as Box<dyn Read + Send>)
        });
        Ok((Input::Stream(Stream::open(open, name)?), 0))
    }
}

/// Compares the checksum when all has been read.
struct Checked {
    inner: Box<dyn Read + Send>,
    crc: flate2::Crc,
    expected: u32,
    left: u64,
}

impl Read for Checked {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || out.is_empty() {
            return Ok(0);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let n = self.inner.read(&mut out[..most])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.crc.update(&out[..n]);
        self.left -= n as u64;
        if self.left == 0 && self.crc.sum() != self.expected {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is wrong"));
        }
        Ok(n)
    }
}
