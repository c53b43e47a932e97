//! Compressed files, told by their first bytes.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use super::compress::gzip;
use super::window::read_at;

/// How something is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Gzip,
    Zlib,
    Deflate,
    Zstd,
}

impl Codec {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
        }
    }

    /// By the first bytes. Zlib's two are weak: ask it last.
    pub(super) fn sniff(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [cmf @ (0x08 | 0x18 | 0x28 | 0x38 | 0x48 | 0x58 | 0x68 | 0x78), flags, ..]
                if (u16::from(*cmf) << 8 | u16::from(*flags)) % 31 == 0 =>
            {
                Some(Self::Zlib)
            }
            _ => None,
        }
    }

    /// Decompresses while reading. Memory is bounded: zstd's windows up to 128 MiB are taken, as its own tools do.
    pub(super) fn decode(self, from: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::Gzip => gzip(BufReader::new(from)),
            Self::Zlib => Box::new(flate2::read::ZlibDecoder::new(from)),
            Self::Deflate => Box::new(flate2::read::DeflateDecoder::new(from)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::new(from)?),
        })
    }
}

/// A piece of a file, read in order without moving the file's own place.
#[derive(Debug)]
pub(super) struct Piece {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Piece {
    pub(super) fn new(file: &Arc<File>, at: u64, end: u64) -> Self {
        Self {
            file: Arc::clone(file),
            at,
            end,
        }
    }
}

impl Read for Piece {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let len = out.len().min(left);
        let n = read_at(&self.file, &mut out[..len], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}
