//! Compressed bytes, found by what they begin with.

use std::io::{self, BufRead, BufReader, Read, SeekFrom};

use zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;

use crate::store::Raw;

/// Memory that an xz stream may ask for, in bytes: what `xz -9` needs four times over.
const XZ_MEMORY: u64 = 256 << 20;
/// Compressed bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// Bytes behind the end that are counted for a message.
const MOST_COUNTED: u64 = 1 << 20;
/// Frames to be skipped that are gone through for the first other one.
const MOST_SKIPPED: usize = 1024;
/// What LZ4's frames begin with.
const LZ4: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

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
    /// By the first bytes, of which six are enough; `None` if they are none of these. Zstandard and LZ4 have the same frames that are to be
    /// skipped: behind those it takes the first bytes of another, and is taken for Zstandard without them.
    pub fn find(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Self::Lz4),
            // A frame to be skipped, which tools for parallel Zstandard put first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                let mut rest = head;
                while let Some(length) = skipped(rest) {
                    let behind = usize::try_from(length).ok().and_then(|length| rest.get(length..));
                    rest = behind.unwrap_or_default();
                }
                Some(if rest.starts_with(&LZ4) { Self::Lz4 } else { Self::Zstd })
            }
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31 | 0x17, 0x41 | 0x72, ..] => Some(Self::Bzip2),
            _ => None,
        }
    }

    /// What [`find`](Codec::find) found, or what lies behind frames to be skipped that were longer than the bytes it was given. Moves `raw`.
    pub(super) fn behind_skipped(self, raw: &mut dyn Raw) -> io::Result<Self> {
        let mut at = 0_u64;
        for _ in 0..MOST_SKIPPED {
            let mut head = Vec::with_capacity(8);
            raw.seek(SeekFrom::Start(at))?;
            raw.take(8).read_to_end(&mut head)?;
            match skipped(&head) {
                Some(length) => at += length,
                None if head.starts_with(&LZ4) => return Ok(Self::Lz4),
                None => break,
            }
        }
        Ok(self)
    }

    /// What each frame begins with, of codecs whose frames are gone through here.
    fn magic(self) -> &'static [u8] {
        match self {
            Self::Gzip => &[0x1f, 0x8b],
            Self::Lz4 => &LZ4,
            Self::Bzip2 => b"BZh",
            Self::Zstd | Self::Xz => &[],
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
    /// Errors when read: `UnexpectedEof` if the bytes end early, `InvalidData` for a checksum or header that is wrong and for bytes behind
    /// the end, `Unsupported` for a window that is too large.
    pub fn decode(self, raw: Box<dyn Raw>) -> io::Result<Box<dyn Read + Send>> {
        let raw = BufReader::with_capacity(CHUNK, raw);
        let frames: Box<dyn Read + Send> = match self {
            Self::Gzip => gzip(raw),
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

/// All members of gzip.
pub(super) fn gzip(raw: impl BufRead + Send + 'static) -> Box<dyn Read + Send> {
    Box::new(Frames::new(raw, Codec::Gzip, |raw| {
        Ok(flate2::bufread::GzDecoder::new(raw))
    }))
}

/// Length of a frame to be skipped with its header, if the bytes begin with one.
pub(super) fn skipped(head: &[u8]) -> Option<u64> {
    match head.first_chunk::<8>()? {
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, length @ ..] => Some(u64::from(u32::from_le_bytes(*length)) + 8),
        _ => None,
    }
}

/// That Zstandard's window is larger than what is set aside for one: the decoder's own limit, which is that of the tool.
pub(super) fn too_wide(error: &io::Error) -> Option<&'static str> {
    let error: &zstd::Error = error.get_ref()?.downcast_ref()?;
    let wide = error.is(ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge);
    wide.then_some("its window is larger than 128 MiB, which are the limit: compress it again with --long=27 or less")
}

/// Errors of decoders as the kinds that are promised.
struct Told(Box<dyn Read + Send>);

impl Read for Told {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::Interrupted => error,
            _ if error.raw_os_error().is_some() => error,
            _ => match too_wide(&error) {
                Some(message) => io::Error::new(io::ErrorKind::Unsupported, message),
                None => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
            },
        })
    }
}

/// A decoder of one frame that gives back what it reads from.
trait Frame: Read + Send {
    type Raw: BufRead + Send;

    fn raw(self) -> Self::Raw;
}

/// Lets the next bytes be looked at, which may lie in two of the buffer's fills.
struct Ahead<R> {
    raw: R,
    head: [u8; 8],
    start: usize,
    end: usize,
}

impl<R: BufRead> Ahead<R> {
    /// Takes the next eight bytes, or what is left.
    fn look(&mut self) -> io::Result<()> {
        self.head.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        while self.end < self.head.len() {
            match self.raw.read(&mut self.head[self.end..]) {
                Ok(0) => break,
                Ok(length) => self.end += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What was looked at and not read.
    fn head(&self) -> &[u8] {
        &self.head[self.start..self.end]
    }
}

impl<R: BufRead> Read for Ahead<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            return self.raw.read(into);
        }
        let length = into.len().min(self.end - self.start);
        into[..length].copy_from_slice(&self.head()[..length]);
        self.start += length;
        Ok(length)
    }
}

impl<R: BufRead> BufRead for Ahead<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            return self.raw.fill_buf();
        }
        Ok(&self.head[self.start..self.end])
    }

    fn consume(&mut self, count: usize) {
        if self.start == self.end {
            self.raw.consume(count);
        } else {
            self.start += count;
        }
    }
}

/// Frames one behind the other, to the end of the bytes.
struct Frames<R, F, M> {
    frame: Option<F>,
    raw: Option<Ahead<R>>,
    codec: Codec,
    make: M,
    began: bool,
}

impl<R, F, M> Frames<R, F, M>
where
    R: BufRead + Send,
    F: Frame<Raw = Ahead<R>>,
    M: Fn(Ahead<R>) -> io::Result<F> + Send,
{
    fn new(raw: R, codec: Codec, make: M) -> Self {
        let raw = Ahead {
            raw,
            head: [0; 8],
            start: 0,
            end: 0,
        };
        Self {
            frame: None,
            raw: Some(raw),
            codec,
            make,
            began: false,
        }
    }

    /// Opens the next frame; false at the end.
    fn advance(&mut self) -> io::Result<bool> {
        let Some(raw) = &mut self.raw else { return Ok(false) };
        raw.look()?;
        while let Some(length) = skipped(raw.head()).filter(|_| self.codec == Codec::Lz4) {
            if io::copy(&mut raw.take(length), &mut io::sink())? < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            raw.look()?;
        }
        // Of bytes that end in its first ones, the decoder says that they do.
        let begins = raw
            .head()
            .iter()
            .zip(self.codec.magic())
            .all(|(one, other)| one == other);
        if raw.head().is_empty() {
            return Ok(false);
        }
        if self.began && !begins {
            return self.behind().map(|()| false);
        }
        self.began = true;
        self.frame = self.raw.take().map(&self.make).transpose()?;
        Ok(self.frame.is_some())
    }

    /// What is behind the last frame may be zeros, as tapes and block devices pad with.
    fn behind(&mut self) -> io::Result<()> {
        let Some(mut raw) = self.raw.take() else { return Ok(()) };
        let (mut count, mut zeros) = (0, self.codec != Codec::Lz4);
        while zeros || count <= MOST_COUNTED {
            let length = match raw.fill_buf() {
                Ok([]) => break,
                Ok(buffered) => {
                    zeros &= buffered.iter().all(|byte| *byte == 0);
                    buffered.len()
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            raw.consume(length);
            count += length as u64;
        }
        if zeros {
            return Ok(());
        }
        let count = if count > MOST_COUNTED {
            format!("more than {MOST_COUNTED}")
        } else {
            count.to_string()
        };
        let message = format!(
            "there are {count} bytes behind the end of the {} data",
            self.codec.name()
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}

impl<R, F, M> Read for Frames<R, F, M>
where
    R: BufRead + Send,
    F: Frame<Raw = Ahead<R>>,
    M: Fn(Ahead<R>) -> io::Result<F> + Send,
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::source::{Fault, JsonLines, Source, SourceError};
    use crate::store::Blob;

    const TEXT: &[u8] = b"{\"a\":1}\n{\"a\":2}\n";
    /// A frame of Zstandard with a window of 2 GiB, as of `--long=31`.
    const LONG: &[u8] = b"\x28\xb5\x2f\xfd\0\xa8\x29\0\0hello";

    fn packed(codec: Codec) -> Vec<u8> {
        match codec {
            Codec::Gzip => {
                let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                to.write_all(TEXT).unwrap();
                to.finish().unwrap()
            }
            Codec::Lz4 => {
                let mut to = lz4_flex::frame::FrameEncoder::new(Vec::new());
                to.write_all(TEXT).unwrap();
                to.finish().unwrap()
            }
            Codec::Bzip2 => {
                let mut to = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
                to.write_all(TEXT).unwrap();
                to.finish().unwrap()
            }
            Codec::Zstd => zstd::encode_all(TEXT, 1).unwrap(),
            Codec::Xz => unreachable!("not asked for"),
        }
    }

    /// A frame to be skipped.
    fn skip(length: usize) -> Vec<u8> {
        let size = u32::try_from(length).unwrap().to_le_bytes();
        [&[0x53, 0x2a, 0x4d, 0x18], &size[..], &vec![7; length]].concat()
    }

    fn count(bytes: &[u8]) -> Result<u64, SourceError> {
        JsonLines::of([Blob::memory("t", bytes)]).open(0, None)?.skip(u64::MAX)
    }

    #[test]
    fn what_lies_behind_the_end_is_told() {
        for codec in [Codec::Gzip, Codec::Bzip2, Codec::Lz4] {
            let one = packed(codec);
            let said = |behind: &[u8]| {
                let error = count(&[&one[..], behind].concat()).unwrap_err();
                assert_eq!(error.fault(), Fault::Damaged, "{error}");
                error.message().to_owned()
            };
            let name = codec.name();
            for length in [1, 7, 100, 100_000] {
                let right = format!("there are {length} bytes behind the end of the {name} data");
                assert!(said(&vec![b'g'; length]).ends_with(&right), "{name} {length}");
            }
            assert!(said(&vec![b'g'; 3 << 20]).contains("more than 1048576 bytes"));
            assert!(said(b"\0\0\0x").contains("there are 4 bytes behind"));
            // Padding, which LZ4 does not have.
            for length in [1, 9, 3 << 20] {
                let padded = count(&[&one[..], &vec![0; length]].concat());
                assert_eq!(padded.is_ok(), codec != Codec::Lz4, "{name} {length}");
            }
            assert_eq!(count(&[&one[..], &one].concat()).unwrap(), 4);
            // What begins as a frame and ends in it is cut.
            let error = count(&[&one[..], &one[..2]].concat()).unwrap_err();
            assert_eq!(error.fault(), Fault::Truncated, "{error}");
        }
    }

    /// Frames whose first bytes lie in two fills of the buffer.
    #[test]
    fn frames_at_the_borders_of_the_buffer() {
        let frame = |extra: usize| {
            let head = flate2::GzBuilder::new().extra(vec![0; extra]);
            let mut to = head.write(Vec::new(), flate2::Compression::none());
            to.write_all(&vec![b' '; 30_000]).unwrap();
            to.finish().unwrap()
        };
        let beside = frame(0).len();
        let tail = packed(Codec::Gzip);
        for length in CHUNK - 12..CHUNK + 2 {
            let bytes = [&frame(length - beside)[..], &tail].concat();
            assert_eq!(bytes.len(), length + tail.len());
            assert_eq!(count(&bytes).unwrap(), 2, "{length}");
        }
    }

    #[test]
    fn frames_to_be_skipped_do_not_decide() {
        for codec in [Codec::Lz4, Codec::Zstd] {
            let one = packed(codec);
            for before in [vec![5], vec![0, 3], vec![100_000], vec![10, 400_000, 0]] {
                let before: Vec<u8> = before.into_iter().flat_map(skip).collect();
                let bytes = [&before[..], &one, &before, &one, &skip(9)].concat();
                assert_eq!(Codec::find(&bytes), Some(codec));
                assert_eq!(count(&bytes).unwrap(), 4, "{codec:?}");
            }
        }
        let cut = [&packed(Codec::Lz4)[..], &skip(50)[..40]].concat();
        assert_eq!(count(&cut).unwrap_err().fault(), Fault::Truncated);
        assert_eq!(Codec::find(&skip(50)), Some(Codec::Zstd));
    }

    #[test]
    fn a_window_that_is_too_large_is_no_damage() {
        let error = count(LONG).unwrap_err();
        assert_eq!(error.fault(), Fault::Unsupported);
        assert!(
            error.message().contains("128 MiB") && error.message().contains("--long=27"),
            "{error}"
        );
    }
}
