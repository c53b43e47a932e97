//! Compressed bytes, found by what they begin with.

use std::io::{self, BufRead, BufReader, Read};

use crate::store::Raw;

/// Memory that an xz stream may ask for, in bytes: what `xz -9` needs four times over.
const XZ_MEMORY: u64 = 256 << 20;
/// Compressed bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// How bytes are compressed.
///
/// ```
/// use feedrate::source::Codec;
///
/// assert_eq!(Codec::find(&[0x1f, 0x8b, 8, 0]), Some(Codec::Gzip));
/// assert_eq!(Codec::find(b"plain text"), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// gzip, of one or more members; zeros behind the last are passed over.
    Gzip,
    /// Zstandard, of one or more frames with windows up to 128 MiB.
    Zstd,
    /// The frame format of LZ4, of one or more frames.
    Lz4,
    /// xz, of one or more streams that need up to 256 MiB.
    Xz,
    /// bzip2, of one or more streams.
    Bzip2,
}

impl Codec {
    /// By the first bytes, of which six are enough; `None` if they are none of these.
    pub fn find(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            // The second is a frame to be skipped, which tools for parallel Zstandard put first.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Self::Lz4),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31 | 0x17, 0x41 | 0x72, ..] => Some(Self::Bzip2),
            _ => None,
        }
    }

    /// Its name, as tools write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
            Self::Xz => "xz",
            Self::Bzip2 => "bzip2",
        }
    }

    /// The endings of file names that say so.
    pub(crate) fn endings(self) -> &'static [&'static str] {
        match self {
            Self::Gzip => &["gz", "tgz"],
            Self::Zstd => &["zst", "zstd", "tzst"],
            Self::Lz4 => &["lz4"],
            Self::Xz => &["xz", "txz"],
            Self::Bzip2 => &["bz2", "tbz2", "tbz"],
        }
    }

    /// What the bytes are, as a stream. It holds one decoder and 64 KiB of compressed bytes, and reads only as far as it is read.
    /// Errors when read: `UnexpectedEof` if the bytes end early, `InvalidData` for a checksum or header that is wrong.
    pub fn decode(self, raw: Box<dyn Raw>) -> io::Result<Box<dyn Read + Send>> {
        let raw = BufReader::with_capacity(CHUNK, raw);
        let frames: Box<dyn Read + Send> = match self {
            Self::Gzip => Box::new(Frames::new(raw, self, |raw| Ok(flate2::bufread::GzDecoder::new(raw)))),
            Self::Lz4 => Box::new(Frames::new(raw, self, |raw| Ok(Lz4::new(raw)))),
            Self::Zstd => Box::new(zstd::Decoder::with_buffer(raw)?),
            Self::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED)?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(raw, stream))
            }
            Self::Bzip2 => Box::new(Frames::new(raw, self, |raw| Ok(bzip2::bufread::BzDecoder::new(raw)))),
        };
        Ok(Box::new(Told(frames)))
    }

    /// All of some bytes in memory, which decode to `limit` at most. Errors: as [`decode`](Codec::decode), and `FileTooLarge`.
    pub fn decode_all(self, bytes: Vec<u8>, limit: u64) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        let mut stream = self.decode(Box::new(io::Cursor::new(bytes)))?;
        (&mut stream).take(limit).read_to_end(&mut plain)?;
        if plain.len() as u64 == limit && stream.read(&mut [0])? != 0 {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        Ok(plain)
    }
}

/// Errors of decoders as the two kinds that are promised.
struct Told(Box<dyn Read + Send>);

impl Read for Told {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::Interrupted => error,
            _ if error.raw_os_error().is_some() => error,
            _ => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
        })
    }
}

/// A decoder of one frame that gives back what it reads from.
trait Frame: Read + Send {
    type Raw: BufRead + Send;

    fn raw(self) -> Self::Raw;
}

/// Frames one behind the other, to the end of the bytes.
struct Frames<R, F, M> {
    frame: Option<F>,
    raw: Option<R>,
    codec: Codec,
    make: M,
}

impl<R, F, M> Frames<R, F, M>
where
    R: BufRead + Send,
    F: Frame<Raw = R>,
    M: Fn(R) -> io::Result<F> + Send,
{
    fn new(raw: R, codec: Codec, make: M) -> Self {
        Self {
            frame: None,
            raw: Some(raw),
            codec,
            make,
        }
    }

    /// Opens the next frame; false at the end.
    fn advance(&mut self) -> io::Result<bool> {
        let Some(mut raw) = self.raw.take() else {
            return Ok(false);
        };
        let head = loop {
            match raw.fill_buf() {
                Ok([]) => return Ok(false),
                Ok(bytes) => break bytes[0],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.raw = Some(raw);
                    return Err(error);
                }
            }
        };
        // Padding as tapes and block devices leave it.
        if head == 0 && self.codec != Codec::Lz4 {
            while let [_, ..] = raw.fill_buf()? {
                let buffered = raw.fill_buf()?;
                if buffered.iter().any(|byte| *byte != 0) {
                    let message = format!(
                        "there is something behind the {} data that is not {0}",
                        self.codec.name()
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                let length = buffered.len();
                raw.consume(length);
            }
            return Ok(false);
        }
        self.frame = Some((self.make)(raw)?);
        Ok(true)
    }
}

impl<R, F, M> Read for Frames<R, F, M>
where
    R: BufRead + Send,
    F: Frame<Raw = R>,
    M: Fn(R) -> io::Result<F> + Send,
{
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(frame) = &mut self.frame {
                match frame.read(into)? {
                    0 => self.raw = self.frame.take().map(Frame::raw),
                    length => return Ok(length),
                }
            } else if !self.advance()? {
                return Ok(0);
            }
        }
    }
}

impl<R: BufRead + Send> Frame for flate2::bufread::GzDecoder<R> {
    type Raw = R;

    fn raw(self) -> R {
        self.into_inner()
    }
}

impl<R: BufRead + Send> Frame for bzip2::bufread::BzDecoder<R> {
    type Raw = R;

    fn raw(self) -> R {
        self.into_inner()
    }
}

/// One frame of LZ4. The decoder reads exactly the frame and no byte of what is behind it. It takes bytes that end between two blocks for a
/// whole frame, so that the end is watched for here.
struct Lz4<R: Read>(lz4_flex::frame::FrameDecoder<Watched<R>>);

impl<R: Read> Lz4<R> {
    fn new(raw: R) -> Self {
        Self(lz4_flex::frame::FrameDecoder::new(Watched { raw, ended: false }))
    }
}

impl<R: BufRead + Send> Read for Lz4<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.0.read(into)? {
            0 if self.0.get_ref().ended => Err(io::ErrorKind::UnexpectedEof.into()),
            length => Ok(length),
        }
    }
}

impl<R: BufRead + Send> Frame for Lz4<R> {
    type Raw = R;

    fn raw(self) -> R {
        self.0.into_inner().raw
    }
}

/// Knows whether it was read beyond its end.
struct Watched<R> {
    raw: R,
    ended: bool,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.raw.read(into)?;
        self.ended |= length == 0 && !into.is_empty();
        Ok(length)
    }
}
