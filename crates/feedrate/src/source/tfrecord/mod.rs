//! TFRecord files.

mod example;
mod proto;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use self::example::{One, Refused, Wanted};
#[cfg(feature = "parquet")]
pub(super) use self::proto::varint;
use super::codec::{Codec, Piece};
use super::paths::Paths;
use super::window::{Input, Stream, Window};
use super::{Fault, Mark, Part, Reader, Record, Source, SourceError};
use crate::batch::{Value, copied};
use crate::store::Blob;

/// Length, and its checksum.
const HEADER: usize = 12;
/// Checksum of the data.
const FOOTER: usize = 4;

/// What the records of a TFRecord file hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TfContent {
    /// `tf.train.Example`: a map of its features, in the order of their names.
    #[default]
    Example,
    /// `tf.train.SequenceExample`: a map of two maps, `context` and `feature_lists`. Each feature list is a list of its steps.
    SequenceExample,
    /// Anything: a map with one field, `record`, of bytes.
    Raw,
}

/// What becomes of a feature that has one value. The file does not say whether it is a number or a list of one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Ones {
    /// Numbers are always a tensor of one dimension (`int64` or `float32`); a single byte string stands for itself, any other number of
    /// them is a list. As the Python package `tfrecord` has it.
    #[default]
    Bytes,
    /// Always lists: tensors of one dimension, and lists of byte strings. As `tf.io.VarLenFeature`.
    Lists,
    /// Every single value stands for itself. What a feature becomes then depends on each record.
    Single,
    /// These features have one value, which stands for itself, and a record in which one has another number is bad: as
    /// `tf.io.FixedLenFeature([])`. All other features are lists.
    Named(Vec<String>),
}

impl Ones {
    fn of(&self, name: &str) -> One {
        match self {
            Self::Bytes => One::Bytes,
            Self::Single => One::Single,
            Self::Named(names) if names.iter().any(|known| known == name) => One::Must,
            Self::Lists | Self::Named(_) => One::List,
        }
    }
}

/// TFRecord files, each a part: plain, gzip, zlib or zstd, which is told by their first bytes.
///
/// A record is its length, a checksum of that, its bytes and a checksum of these. A wrong checksum of the bytes costs one record
/// ([`Fault::Record`]); after a wrong length nothing more can be found in the file ([`Fault::Damaged`]).
///
/// Features come as `int64` and `float32` tensors of one dimension and as bytes; see [`Ones`] for what has one value. A feature without
/// values of any kind is [`Value::None`].
///
/// Memory for each reader: a buffer of 256 KiB, the largest record so far (up to [`limit`](TfRecords::limit)), and the window of the
/// decompressor.
///
/// ```
/// use feedrate::source::{Source, TfContent, TfRecords};
///
/// let path = std::env::temp_dir().join(format!("feedrate-doc-{}.tfrecord", std::process::id()));
/// std::fs::write(&path, b"\x03\0\0\0\0\0\0\0\x3f\x3e\xee\xcbabc\x4e\x6f\x6f\x30")?;
/// let source = TfRecords::new([&path]).content(TfContent::Raw).check(false);
/// let record = source.open(0, None)?.next()?.ok_or("a record")?;
/// assert_eq!(record.value.get("record"), Some(&feedrate::batch::Value::Bytes(b"abc".to_vec())));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TfRecords {
    shards: Paths,
    content: TfContent,
    wanted: Arc<Wanted>,
    check: bool,
    limit: u64,
}

impl TfRecords {
    /// Of these files, in this order: `tf.train.Example`, all features, checksums checked, records up to 1 GiB.
    pub fn new(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            shards: Paths::new(paths),
            content: TfContent::Example,
            wanted: Arc::default(),
            check: true,
            limit: 1 << 30,
        }
    }

    /// What the records hold.
    #[must_use]
    pub fn content(mut self, content: TfContent) -> Self {
        self.content = content;
        self
    }

    /// Only these features, in this order (of a sequence: in both of its maps, by name). A record that lacks one is an error
    /// ([`Fault::Absent`]), behind which reading can go on.
    #[must_use]
    pub fn features(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Arc::make_mut(&mut self.wanted).features = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// What becomes of single values.
    #[must_use]
    pub fn ones(mut self, ones: Ones) -> Self {
        Arc::make_mut(&mut self.wanted).ones = ones;
        self
    }

    /// Whether checksums are checked. Without, damage goes unseen, or is seen as something else.
    #[must_use]
    pub fn check(mut self, check: bool) -> Self {
        self.check = check;
        self
    }

    /// Most bytes that a record may have; a larger one is passed over as [`Fault::TooLarge`].
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }
}

impl Source for TfRecords {
    fn format(&self) -> &'static str {
        "tfrecord"
    }

    fn describe(&self) -> String {
        format!(
            "{} ({:?}, {:?}, check {}, limit {})",
            self.shards.describe(),
            self.content,
            self.wanted,
            self.check,
            self.limit
        )
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        Ok(self.shards.parts())
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        self.shards.files(part)
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        let mut reader = self.reader(part)?;
        if let Some(mark) = from {
            if mark.offset == 0 {
                reader.skip(mark.number)?;
            } else if let Some(end) = reader.input.end().filter(|end| *end < mark.offset) {
                let message = format!(
                    "it has {end} bytes, and was left at {}: it is not the same",
                    mark.offset
                );
                return Err(SourceError::new(Fault::Truncated, &*reader.name, message));
            } else {
                reader.mark = mark;
            }
        }
        Ok(Box::new(reader))
    }

    fn stored(&self, part: usize) -> Result<Option<(Blob, String)>, SourceError> {
        let (path, _) = self.shards.path(part)?;
        Ok(Some((Blob::file(path), "tfrecord".to_owned())))
    }

    fn index(&self) -> Result<Arc<[u64]>, SourceError> {
        self.shards.index(|part| self.reader(part)?.skip(u64::MAX))
    }
}

impl TfRecords {
    fn reader(&self, part: usize) -> Result<TfReader, SourceError> {
        let (path, name) = self.shards.path(part)?;
        let mut window = Window::packed(path, Arc::clone(&name))?;
        let head = window.some(0, HEADER)?;
        // A length whose checksum is right is a TFRecord's, whatever its bytes look like.
        let codec = if length(head).is_some_and(|(_, right)| right) {
            None
        } else {
            Codec::sniff(head)
        };
        let input = match codec {
            None => Input::File(window),
            Some(codec) => {
                let (file, len) = (Arc::clone(window.file()), window.len());
                let start = Box::new(move || codec.decode(Piece::new(&file, 0, len)));
                Input::Stream(Stream::open(start, Arc::clone(&name))?)
            }
        };
        Ok(TfReader {
            input,
            codec,
            name,
            mark: Mark::default(),
            content: self.content,
            wanted: Arc::clone(&self.wanted),
            check: self.check,
            limit: self.limit,
            failed: None,
        })
    }
}

/// A record's length, and whether the checksum beside it agrees.
fn length(header: &[u8]) -> Option<(u64, bool)> {
    let (length, crc) = header.get(..HEADER)?.split_at(8);
    Some((
        u64::from_le_bytes(length.try_into().ok()?),
        masked(length).to_le_bytes() == crc,
    ))
}

/// The checksum as TFRecord stores it: rotated and shifted, so that a file of checksums is no trap.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

struct TfReader {
    input: Input,
    codec: Option<Codec>,
    name: Arc<str>,
    mark: Mark,
    content: TfContent,
    wanted: Arc<Wanted>,
    check: bool,
    limit: u64,
    failed: Option<SourceError>,
}

impl fmt::Debug for TfReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TfReader({}, {:?})", self.name, self.mark)
    }
}

impl TfReader {
    fn error(&self, fault: Fault, message: impl Into<String>) -> SourceError {
        SourceError::new(fault, &*self.name, message)
            .of(format!("record {}", self.mark.number))
            .at(self.mark.offset)
    }

    /// Keeps an error after which nothing more is found.
    fn fail(&mut self, error: SourceError) -> SourceError {
        if !error.may_continue() {
            self.failed = Some(error.clone());
        }
        error
    }

    /// The length of the next record.
    fn header(&mut self) -> Result<Option<u64>, SourceError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let at = self.mark.offset;
        let head = self.input.some(at, HEADER)?;
        let found = head.len();
        let Some((len, right)) = length(head) else {
            if found == 0 {
                return Ok(None);
            }
            let message = format!("the file ends {found} bytes into a record's header of {HEADER}");
            return Err(self.error(Fault::Truncated, message));
        };
        if self.check && !right {
            return Err(self.error(
                Fault::Damaged,
                format!("the checksum of the record's length ({len}) is wrong: what follows cannot be found"),
            ));
        }
        let rest = len
            .checked_add((HEADER + FOOTER) as u64)
            .and_then(|n| n.checked_add(at));
        match (rest, self.input.end()) {
            (None, _) => Err(self.error(Fault::Damaged, format!("the record says that it has {len} bytes"))),
            (Some(rest), Some(end)) if rest > end => Err(self.error(
                Fault::Truncated,
                format!(
                    "the record says that it has {len} bytes, {} are left in the file",
                    end.saturating_sub(at + HEADER as u64)
                ),
            )),
            _ => Ok(Some(len)),
        }
    }

    /// The length again, if the record is there up to its last byte. Of a file that is known already.
    fn whole(&mut self, len: u64) -> Result<u64, SourceError> {
        if self.input.end().is_none() {
            let last = self.mark.offset + len + (HEADER + FOOTER - 1) as u64;
            if self.input.some(last, 1)?.is_empty() {
                return Err(self.error(
                    Fault::Truncated,
                    format!("the file ends inside this record of {len} bytes"),
                ));
            }
        }
        Ok(len)
    }

    fn pass(&mut self, len: u64) {
        self.mark.number += 1;
        self.mark.offset += len + (HEADER + FOOTER) as u64;
    }

    /// The value of the next record, whose length is known.
    fn value(&mut self, len: u64) -> Result<Value, SourceError> {
        let size = usize::try_from(len).ok().filter(|_| len <= self.limit);
        let Some(size) = size else {
            let message = format!(
                "the record has {len} bytes, the limit (max_record_bytes) is {}: raise it if that is right",
                self.limit
            );
            return Err(self.error(Fault::TooLarge, message));
        };
        let at = self.mark.offset + HEADER as u64;
        let all = self.input.exact(at, size + FOOTER, "a record")?;
        let (bytes, crc) = all.split_at(size);
        if self.check && masked(bytes).to_le_bytes() != crc {
            return Err(self.error(
                Fault::Record,
                format!("the checksum of the record's {len} bytes is wrong: it is damaged"),
            ));
        }
        let (value, what) = match self.content {
            TfContent::Raw => return Ok(Value::map([("record", Value::Bytes(copied(bytes)))])),
            TfContent::Example => (example::example(bytes, &self.wanted), "Example"),
            TfContent::SequenceExample => (example::sequence(bytes, &self.wanted), "SequenceExample"),
        };
        value.map_err(|refused| match refused {
            Refused::Malformed(why) => self.error(Fault::Record, format!("this is no tf.train.{what}: {why}")),
            Refused::Feature(why) => self.error(Fault::Absent, why),
            Refused::Memory(why) => self.error(Fault::TooLarge, why),
        })
    }
}

impl Reader for TfReader {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        let Some(len) = self.header().map_err(|error| self.fail(error))? else {
            return Ok(None);
        };
        let mark = self.mark;
        match self.value(len) {
            Ok(value) => {
                self.pass(len);
                Ok(Some(Record { value, mark, key: None }))
            }
            Err(error) => {
                let error = self.fail(error);
                if error.may_continue() {
                    self.pass(len);
                }
                Err(error)
            }
        }
    }

    fn mark(&self) -> Mark {
        self.mark
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        for passed in 0..count {
            match self.header().and_then(|len| len.map(|len| self.whole(len)).transpose()) {
                Ok(Some(len)) => self.pass(len),
                Ok(None) => return Ok(passed),
                Err(error) => return Err(self.fail(error)),
            }
        }
        Ok(count)
    }

    fn go_to(&mut self, mark: Mark) -> Result<bool, SourceError> {
        if self.failed.is_some() || self.packed().is_some() {
            return Ok(false);
        }
        self.mark = mark;
        Ok(true)
    }

    fn packed(&self) -> Option<&'static str> {
        self.codec.map(Codec::name)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
