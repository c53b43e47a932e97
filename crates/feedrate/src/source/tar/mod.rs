//! Tar archives, as WebDataset packs them.
//!
//! Reads the formats v7, ustar, GNU and pax, with long names, numbers in base 256, and files with holes (old GNU; pax 0.0, 0.1 and 1.0; holes
//! come as zeros). Headers are checked by their sums. What is no ordinary file is passed over, and so is what names hide; [`Notes`] counts it.
//! A leading `./` or `/` of a name is dropped; names are never opened as paths. Global pax headers are read past, unless they change names or
//! sizes, which is refused.

mod header;
mod index;
mod members;
mod name;
mod notes;
mod options;
mod pax;
mod reader;
mod sparse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

pub use super::index::IndexAt;
use members::Members;
pub use name::{Names, Split, name_bytes};
use notes::Counters;
pub use notes::Notes;
pub use options::{Duplicates, EndMark, Grouping, Missing};
use options::{Field, Options};
use reader::TarReader;

use super::index::{Index, Known, find_or_make};
use super::shards::{Shards, counted, no_part};
use super::stream::Stream;
use super::{Fault, Mark, Part, Reader, Source, SourceError};
use crate::store::Blob;

/// Shards in tar format, plain or compressed.
///
/// A sample is a map of `__key__` and `__url__` (both text) and of a field for each member, under its extension in lower case, as bytes. What
/// lies together under one key is one sample, unless [`grouping`](Tar::grouping) says otherwise; a shard's end ends a sample.
///
/// A reader holds one open file, up to 256 KiB of read-ahead, the sample that it builds (see [`max_sample_bytes`](Tar::max_sample_bytes)) and
/// 16 bytes for each key that it saw, up to a million. Compressed shards are decompressed while they are read; a jump in them reads what lies
/// between.
///
/// ```no_run
/// use feedrate::source::{Source, Tar};
///
/// let tar = Tar::new(["shards/train-{0000..0099}.tar"]).fields(["image=jpg;jpeg;png", "cls"]);
/// let mut reader = tar.open(0, None)?;
/// while let Some(sample) = reader.next()? {
///     assert!(sample.value.get("image").is_some());
/// }
/// # Ok::<(), feedrate::source::SourceError>(())
/// ```
pub struct Tar {
    shards: Shards,
    options: Arc<Options>,
    index_at: Option<IndexAt>,
    counters: Arc<Counters>,
    indexes: OnceLock<Box<[OnceLock<Known>]>>,
    counted: OnceLock<Arc<[Part]>>,
}

impl Tar {
    /// The shards that these paths and patterns stand for; see [`find`](crate::store::find). Nothing is looked for yet.
    pub fn new<S: Into<String>>(patterns: impl IntoIterator<Item = S>) -> Self {
        Self::over(Shards::matching(patterns))
    }

    /// These shards.
    pub fn of(shards: impl IntoIterator<Item = Blob>) -> Self {
        Self::over(Shards::of(shards))
    }

    fn over(shards: Shards) -> Self {
        Self {
            shards,
            options: Arc::new(Options::default()),
            index_at: None,
            counters: Arc::new(Counters::default()),
            indexes: OnceLock::new(),
            counted: OnceLock::new(),
        }
    }

    fn set(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(Arc::make_mut(&mut self.options));
        self
    }

    /// Which members make one sample. Default: [`Grouping::Consecutive`].
    #[must_use]
    pub fn grouping(self, grouping: Grouping) -> Self {
        self.set(|options| options.grouping = grouping)
    }

    /// Where names are split into key and field. Default: [`Split::FirstDot`].
    #[must_use]
    pub fn split(self, split: Split) -> Self {
        self.set(|options| options.split = split)
    }

    /// How names that are not UTF-8 become text. Default: [`Names::Utf8`].
    #[must_use]
    pub fn names(self, names: Names) -> Self {
        self.set(|options| options.names = names)
    }

    /// What becomes of a field that comes twice. Default: [`Duplicates::Error`].
    #[must_use]
    pub fn duplicates(self, duplicates: Duplicates) -> Self {
        self.set(|options| options.duplicates = duplicates)
    }

    /// Only these fields: the bodies of others are not read. Each is an extension (`cls`), some of which any will do, the first in the
    /// sample's order (`jpg;jpeg;png`), or such a choice under a name of its own (`image=jpg;jpeg;png`). Case does not matter.
    #[must_use]
    pub fn fields<S: AsRef<str>>(self, fields: impl IntoIterator<Item = S>) -> Self {
        let fields = fields.into_iter().map(|field| Field::parse(field.as_ref())).collect();
        self.set(|options| options.fields = Some(fields))
    }

    /// What becomes of a sample without a field that was asked for. Default: [`Missing::Error`].
    #[must_use]
    pub fn missing(self, missing: Missing) -> Self {
        self.set(|options| options.missing = missing)
    }

    /// When an archive without zeros at its end is cut off. Default: [`EndMark::Checked`].
    #[must_use]
    pub fn end_mark(self, end: EndMark) -> Self {
        self.set(|options| options.end = end)
    }

    /// Whether a key may come again, with others between, as a sample of its own. Default: no. A reader sees repeats among the first million
    /// samples that it reads itself: one that began in the middle does not know what was before.
    #[must_use]
    pub fn repeats(self, allowed: bool) -> Self {
        self.set(|options| options.repeats = allowed)
    }

    /// Whether files count that are none of the data by their names. Default: no. Hidden are those whose base name begins with a dot
    /// (`._a.jpg`, `.DS_Store`), whose first folder or name is written `__so__`, and all in folders called `__MACOSX`.
    #[must_use]
    pub fn hidden(self, read: bool) -> Self {
        self.set(|options| options.hidden = read)
    }

    /// Whether reading goes on behind the zeros that end an archive, for archives that were put one behind the other. Default: no, as in tar.
    #[must_use]
    pub fn past_end(self, on: bool) -> Self {
        self.set(|options| options.past_end = on)
    }

    /// Whether samples have `__url__`. Default: yes.
    #[must_use]
    pub fn url(self, on: bool) -> Self {
        self.set(|options| options.url = on)
    }

    /// Whether members whose names end in `.gz`, `.zst`, `.lz4`, `.xz` or `.bz2`, and that are such, are decompressed. Their fields keep their
    /// names (`json.gz`). Default: no, they come as they are.
    #[must_use]
    pub fn decompress(self, on: bool) -> Self {
        self.set(|options| options.decompress = on)
    }

    /// Bytes that the members of one sample may have, with their holes and decompressed. A sample with more is an error; the next can be
    /// read. Default: 1 GiB.
    #[must_use]
    pub fn max_sample_bytes(self, bytes: u64) -> Self {
        self.set(|options| options.max_sample_bytes = bytes)
    }

    /// Makes samples found by number, through an index that one pass over the headers of each shard makes. Refused for compressed shards.
    #[must_use]
    pub fn with_index(mut self, at: IndexAt) -> Self {
        self.index_at = Some(at);
        self
    }

    /// What was passed over so far.
    pub fn notes(&self) -> Notes {
        self.counters.notes()
    }

    fn reader(&self, blob: Blob, index: Option<Arc<Index>>) -> Result<TarReader, SourceError> {
        let stream = Stream::open(&blob)?;
        let jumps = self.index_at.is_some() || self.options.grouping == Grouping::Scattered;
        if let Some(codec) = stream.codec().filter(|_| jumps) {
            let message = format!(
                "it is compressed with {}, in which samples cannot be found by number: decompress the shard, or read it in order, \
                 without an index and with files of a sample that lie together",
                codec.name()
            );
            return Err(SourceError::new(Fault::Unsupported, blob.name(), message));
        }
        let members = Members::new(stream, self.options.past_end);
        let (options, counters) = (Arc::clone(&self.options), Arc::clone(&self.counters));
        Ok(TarReader::new(members, blob, options, counters, index))
    }

    fn slots(&self) -> Result<&[OnceLock<Known>], SourceError> {
        let parts = self.shards.parts()?.len();
        let slots = self
            .indexes
            .get_or_init(|| (0..parts).map(|_| OnceLock::new()).collect());
        Ok(slots)
    }

    /// The index of a part: as it is in memory, as it is stored, or made.
    fn index_of(&self, part: usize) -> Result<Arc<Index>, SourceError> {
        let slots = self.slots()?;
        let slot = slots.get(part).ok_or_else(|| no_part(part, slots.len()))?;
        let blob = self.shards.blob(part)?;
        if let Some(known) = slot.get() {
            return known.of(Some(&blob));
        }
        let make = || {
            let mut reader = self.reader(blob.clone(), None)?;
            if self.options.grouping == Grouping::Scattered {
                index::scattered(&mut reader)
            } else {
                index::consecutive(&mut reader)
            }
        };
        let at = self.index_at.clone().unwrap_or_default();
        let known = Known::new(Some(&blob), || find_or_make(&at, &blob, &self.options.layout(), make))?;
        slot.get_or_init(|| known).of(Some(&blob))
    }

    fn has_indexes(&self) -> bool {
        self.index_at.is_some() || self.options.grouping == Grouping::Scattered
    }
}

impl fmt::Debug for Tar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tar({})", self.shards.describe())
    }
}

impl Source for Tar {
    fn format(&self) -> &'static str {
        "tar"
    }

    fn describe(&self) -> String {
        format!("tar {} {}", self.shards.describe(), self.options.describe())
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        match self.counted.get() {
            Some(parts) => Ok(Arc::clone(parts)),
            None => self.shards.parts(),
        }
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        self.shards.files(part)
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        let blob = self.shards.blob(part)?;
        // With an index, by the number whatever the offset says.
        let number = from
            .map(|mark| mark.number)
            .filter(|number| self.has_indexes() && *number > 0);
        let index = if number.is_some() || self.options.grouping == Grouping::Scattered {
            Some(self.index_of(part)?)
        } else {
            let known = self.slots()?.get(part).and_then(OnceLock::get);
            known.map(|known| known.of(Some(&blob))).transpose()?
        };
        let mut reader = self.reader(blob, index)?;
        if let Some(number) = number {
            reader.seek(number)?;
        } else if let Some(mark) = from {
            reader.go_to(mark)?;
        }
        Ok(Box::new(reader))
    }

    fn indexed(&self) -> bool {
        self.has_indexes()
    }

    fn index(&self) -> Result<Arc<[u64]>, SourceError> {
        let parts = self.shards.parts()?;
        let count = |part: usize| {
            if self.has_indexes() {
                return Ok(self.index_of(part)?.len());
            }
            self.open(part, None)?.skip(u64::MAX)
        };
        let counts = (0..parts.len()).map(count).collect::<Result<Arc<[u64]>, _>>()?;
        self.counted.get_or_init(|| counted(&parts, &counts));
        Ok(counts)
    }
}

/// Whether bytes begin as a tar archive does.
pub(super) fn begins(head: &[u8]) -> bool {
    let block = head.first_chunk::<{ header::BLOCK }>();
    block.is_some_and(|block| block[0] != 0 && header::Header::parse(block).is_ok())
}
