//! Records by number in formats that have no index of their own.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::index::{Index, IndexAt, Known, find_or_make};
use super::shards::{counted, no_part};
use super::{Columns, Fault, Mark, Part, Reader, Record, Source, SourceError};
use crate::store::Blob;

/// A source whose records are found by number, through an index that one pass over each shard makes: for JSON Lines, CSV and TFRecord, whose
/// readers go on at any mark. Shards that are compressed as a whole are refused, since any place in them is found only by reading
/// all that lies before.
///
/// ```
/// use feedrate::source::{IndexAt, Indexed, JsonLines, Mark, Source};
/// use feedrate::store::Blob;
///
/// let lines = JsonLines::of([Blob::memory("three", *b"{\"a\": 1}\n\n{\"a\": 2}\n{\"a\": 3}\n")]);
/// let source = Indexed::new(lines, IndexAt::Memory);
/// assert_eq!(*source.index()?, [3]);
/// let third = Mark { number: 2, offset: 0 };
/// assert_eq!(source.open(0, Some(third))?.next()?.unwrap().value.get("a"), Some(&3_i64.into()));
/// # Ok::<(), feedrate::source::SourceError>(())
/// ```
pub struct Indexed {
    inner: Arc<dyn Source>,
    at: IndexAt,
    indexes: OnceLock<Box<[OnceLock<Known>]>>,
    counted: OnceLock<Arc<[Part]>>,
}

impl Indexed {
    /// Over this source. Nothing is read yet.
    pub fn new(source: impl Source, at: IndexAt) -> Self {
        Self {
            inner: Arc::new(source),
            at,
            indexes: OnceLock::new(),
            counted: OnceLock::new(),
        }
    }

    /// The index of a part: as it is in memory, as it is stored, or made.
    fn index_of(&self, part: usize) -> Result<Arc<Index>, SourceError> {
        let parts = self.inner.parts()?.len();
        let slots = self
            .indexes
            .get_or_init(|| (0..parts).map(|_| OnceLock::new()).collect());
        let slot = slots.get(part).ok_or_else(|| no_part(part, parts))?;
        let stored = self.inner.stored(part)?;
        let blob = stored.as_ref().map(|(blob, _)| blob);
        if let Some(known) = slot.get() {
            return known.of(blob);
        }
        let known = Known::new(blob, || match &stored {
            Some((blob, layout)) => find_or_make(&self.at, blob, layout, || self.make(part)),
            None => self.make(part),
        })?;
        slot.get_or_init(|| known).of(blob)
    }

    /// By one pass.
    fn make(&self, part: usize) -> Result<Index, SourceError> {
        let mut reader = self.inner.open(part, None)?;
        if let Some(codec) = reader.packed() {
            let name = self.inner.parts()?.get(part).map(|part| part.name.clone());
            let message = format!(
                "it is compressed with {codec}, in which records cannot be found by number: decompress the shard, or read it in order, \
                 without an index"
            );
            return Err(SourceError::new(Fault::Unsupported, name.unwrap_or_default(), message));
        }
        let mut offsets = Vec::new();
        loop {
            SourceError::unless_interrupted("")?;
            offsets.push(reader.mark().offset);
            if reader.skip(1)? == 0 {
                return Ok(Index {
                    offsets,
                    firsts: Vec::new(),
                });
            }
        }
    }
}

impl fmt::Debug for Indexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Indexed({:?})", self.inner)
    }
}

impl Source for Indexed {
    fn format(&self) -> &'static str {
        self.inner.format()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        match self.counted.get() {
            Some(parts) => Ok(Arc::clone(parts)),
            None => self.inner.parts(),
        }
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        self.inner.files(part)
    }

    fn contents(&self, part: usize, found: &mut String) {
        self.inner.contents(part, found);
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        let index = self.index_of(part)?;
        let from = from.filter(|mark| mark.number > 0).map(|mark| at(&index, mark.number));
        Ok(Box::new(ByNumber {
            reader: self.inner.open(part, from)?,
            source: Arc::clone(&self.inner),
            part,
            index,
        }))
    }

    fn indexed(&self) -> bool {
        true
    }

    fn stored(&self, part: usize) -> Result<Option<(Blob, String)>, SourceError> {
        self.inner.stored(part)
    }

    fn index(&self) -> Result<Arc<[u64]>, SourceError> {
        let parts = self.inner.parts()?;
        let counts: Arc<[u64]> = (0..parts.len())
            .map(|part| self.index_of(part).map(|index| index.len()))
            .collect::<Result<_, _>>()?;
        self.counted.get_or_init(|| counted(&parts, &counts));
        Ok(counts)
    }
}

/// The mark of a record, or of the end.
fn at(index: &Index, number: u64) -> Mark {
    let number = number.min(index.len());
    Mark {
        number,
        offset: index.offset(number),
    }
}

/// A reader that goes to any record.
struct ByNumber {
    reader: Box<dyn Reader>,
    source: Arc<dyn Source>,
    part: usize,
    index: Arc<Index>,
}

impl Reader for ByNumber {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        self.reader.next()
    }

    fn mark(&self) -> Mark {
        self.reader.mark()
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        let before = self.reader.mark().number;
        let to = before.saturating_add(count).min(self.index.len());
        self.seek(to)?;
        Ok(to.saturating_sub(before))
    }

    fn seek(&mut self, number: u64) -> Result<bool, SourceError> {
        let mark = at(&self.index, number);
        if self.reader.mark().number != mark.number && !self.reader.go_to(mark)? {
            let from = (mark.number > 0).then_some(mark);
            self.reader = self.source.open(self.part, from)?;
        }
        Ok(true)
    }

    fn go_to(&mut self, mark: Mark) -> Result<bool, SourceError> {
        self.seek(mark.number)
    }

    fn columns(&mut self, rows: usize) -> Option<Result<Columns, SourceError>> {
        self.reader.columns(rows)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::source::{Csv, JsonLines};

    /// What a reader says of the next record.
    fn told(reader: &mut dyn Reader) -> String {
        match reader.next() {
            Ok(None) => "end".to_owned(),
            Ok(Some(record)) => format!("{:?} {:?}", record.mark.number, record.value),
            // The line is known to who has read all lines before it.
            Err(error) => format!("{:?}", error.fault()),
        }
    }

    fn check(source: impl Source, jumps: &[usize]) {
        let source = Arc::new(source);
        let mut whole = Vec::new();
        let mut reader = source.open(0, None).unwrap();
        loop {
            let text = told(&mut *reader);
            whole.push(text.clone());
            if text == "end" {
                break;
            }
        }
        let indexed = Indexed::new(source, IndexAt::Memory);
        assert_eq!(*indexed.index().unwrap(), [whole.len() as u64 - 1]);
        let mut going = indexed.open(0, None).unwrap();
        for jump in jumps {
            let at = jump % whole.len();
            let mark = Mark {
                number: at as u64,
                offset: 0,
            };
            assert!(going.seek(at as u64).unwrap());
            assert_eq!(going.mark().number, at as u64);
            for reader in [&mut going, &mut indexed.open(0, Some(mark)).unwrap()] {
                assert_eq!(told(&mut **reader), whole[at], "{at}");
                if at + 1 < whole.len() {
                    assert_eq!(told(&mut **reader), whole[at + 1], "behind {at}");
                }
            }
        }
        let mut reader = indexed.open(0, None).unwrap();
        assert_eq!(reader.skip(u64::MAX).unwrap(), whole.len() as u64 - 1);
        assert!(reader.next().unwrap().is_none());
    }

    #[test]
    fn an_index_is_given_up_when_asked_and_made_later() {
        let text = "{}\n".repeat(3000);
        let source = Indexed::new(
            Arc::new(JsonLines::of([Blob::memory("t", text.into_bytes())])),
            IndexAt::Memory,
        );
        let error = crate::asking::asking(|| false, || source.index()).unwrap_err();
        assert_eq!(error.fault(), crate::source::Fault::Interrupted);
        assert_eq!(*source.index().unwrap(), [3000]);
    }

    proptest! {
        #[test]
        fn any_record_of_lines(kinds in proptest::collection::vec(0_u8..6, 0..30), jumps in proptest::collection::vec(any::<usize>(), 1..20)) {
            let line = |(at, kind): (usize, &u8)| match kind {
                0 => "\n  \n".to_owned(),
                1 => "not json\n".to_owned(),
                2 => format!("{{\"a\": \"{}\"}}\r\n", "x".repeat(at * 100)),
                _ => format!("{{\"a\": {at}}}\n"),
            };
            let mark = if kinds.len() % 2 == 0 { "\u{feff}" } else { "" };
            let lines: String = kinds.iter().enumerate().map(line).collect();
            let text = format!("{mark}{lines}");
            check(JsonLines::of([Blob::memory("t", text.into_bytes())]), &jumps);
        }

        #[test]
        fn any_record_of_csv(kinds in proptest::collection::vec(0_u8..5, 0..30), jumps in proptest::collection::vec(any::<usize>(), 1..20)) {
            let row = |(at, kind): (usize, &u8)| match kind {
                0 => "one\n".to_owned(),
                1 => format!("\"{at}\n\n,\"\"\",2\n"),
                2 => format!("{at},\"{}\"\r\n", "y".repeat(at * 50)),
                _ => format!("{at},x\n"),
            };
            let rows: String = kinds.iter().enumerate().map(row).collect();
            let text = format!("a,b\n{rows}");
            check(Csv::of([Blob::memory("t", text.into_bytes())]), &jumps);
        }
    }

    #[test]
    fn compressed_shards_are_refused() {
        let mut packed = Vec::new();
        let mut encoder = flate2::GzBuilder::new().write(&mut packed, flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, b"{\"a\": 1}\n").unwrap();
        drop(encoder);
        let source = Indexed::new(JsonLines::of([Blob::memory("t.jsonl.gz", packed)]), IndexAt::Memory);
        let error = source.index().unwrap_err().to_string();
        assert!(error.contains("t.jsonl.gz") && error.contains("gzip"), "{error}");
    }
}
