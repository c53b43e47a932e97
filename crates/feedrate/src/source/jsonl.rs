//! JSON Lines: one object on each line.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::json::{self, BigInts};
use super::lines::{Line, Lines};
use super::shards::{Shards, no_part};
use super::stream::Stream;
use super::{Codec, Fault, Mark, Part, Reader, Record, Source, SourceError};
use crate::batch::Value;
use crate::store::Blob;

/// Files with a JSON object on each line, plain or compressed.
///
/// Values are what Python's `json.loads` gives, `NaN`, `Infinity` and the last of equal names included. What differs: a line has to be an
/// object; whole numbers beyond 64 bits follow [`BigInts`]; text with half a surrogate pair, and more than 128 containers in each other, are
/// errors. Blank lines are no records; lines end with `\n` or `\r\n`, and the last needs no end; a mark of the byte order at the start of a file
/// is passed over. A bad line is an error with its number and place, and the next can be read.
///
/// A reader holds one open file and a buffer of 256 KiB, or as large as the longest line.
///
/// ```
/// use feedrate::source::{JsonLines, Source};
/// use feedrate::store::Blob;
///
/// let lines = JsonLines::of([Blob::memory("two", *b"{\"a\": 1}\n\n{\"a\": 2, \"b\": null}")]);
/// let mut reader = lines.open(0, None)?;
/// assert_eq!(reader.skip(1)?, 1);
/// assert_eq!(reader.next()?.unwrap().value.get("a"), Some(&2_i64.into()));
/// # Ok::<(), feedrate::source::SourceError>(())
/// ```
pub struct JsonLines {
    shards: Shards,
    options: Options,
    ranges: OnceLock<Ranges>,
}

#[derive(Debug, Clone)]
struct Options {
    columns: Option<Arc<[String]>>,
    big_ints: BigInts,
    max_line_bytes: usize,
    split_bytes: Option<u64>,
}

#[derive(Debug)]
struct Ranges {
    parts: Arc<[Part]>,
    /// Shard, first byte, byte behind the last, of each part.
    ranges: Vec<(usize, u64, u64)>,
}

impl JsonLines {
    /// The files that these paths and patterns stand for; see [`find`](crate::store::find). Nothing is looked for yet.
    pub fn new<S: Into<String>>(patterns: impl IntoIterator<Item = S>) -> Self {
        Self::over(Shards::matching(patterns))
    }

    /// These files.
    pub fn of(files: impl IntoIterator<Item = Blob>) -> Self {
        Self::over(Shards::of(files))
    }

    fn over(shards: Shards) -> Self {
        Self {
            shards,
            options: Options {
                columns: None,
                big_ints: BigInts::default(),
                max_line_bytes: 64 << 20,
                split_bytes: None,
            },
            ranges: OnceLock::new(),
        }
    }

    /// Only these names of each object; what others have is passed over, and not checked. A record without one of them comes without it.
    #[must_use]
    pub fn columns<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.options.columns = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// What becomes of whole numbers beyond 64 bits. Default: [`BigInts::Error`].
    #[must_use]
    pub fn big_ints(mut self, rule: BigInts) -> Self {
        self.options.big_ints = rule;
        self
    }

    /// Bytes that a line may have. A longer one is an error; the next can be read. Default: 64 MiB.
    #[must_use]
    pub fn max_line_bytes(mut self, bytes: usize) -> Self {
        self.options.max_line_bytes = bytes;
        self
    }

    /// Cuts files into parts of about so many bytes, at least 1: a line belongs to the part in which it begins. Files have to be plain, since
    /// compressed ones cannot be read from their middle. Default: a file is a part.
    #[must_use]
    pub fn split_bytes(mut self, bytes: u64) -> Self {
        self.options.split_bytes = Some(bytes.max(1));
        self.ranges = OnceLock::new();
        self
    }

    fn ranges(&self) -> Result<&Ranges, SourceError> {
        if let Some(ranges) = self.ranges.get() {
            return Ok(ranges);
        }
        let shards = self.shards.parts()?;
        let (mut parts, mut ranges) = (Vec::new(), Vec::new());
        for (at, part) in shards.iter().enumerate() {
            let (Some(size), Some(step)) = (part.bytes, self.options.split_bytes) else {
                parts.push(part.clone());
                ranges.push((at, 0, u64::MAX));
                continue;
            };
            let count = size.div_ceil(step).max(1);
            for piece in 0..count {
                let from = piece * step;
                // What is appended later belongs to the last.
                let to = if piece + 1 == count { u64::MAX } else { from + step };
                let name = if count == 1 {
                    part.name.clone()
                } else {
                    format!("{}[{from}..{}]", part.name, to.min(size))
                };
                parts.push(Part {
                    name,
                    records: None,
                    bytes: Some(to.min(size) - from),
                });
                ranges.push((at, from, to));
            }
        }
        let parts = parts.into();
        Ok(self.ranges.get_or_init(|| Ranges { parts, ranges }))
    }
}

impl fmt::Debug for JsonLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JsonLines({})", self.shards.describe())
    }
}

impl Source for JsonLines {
    fn format(&self) -> &'static str {
        "jsonl"
    }

    fn describe(&self) -> String {
        format!("jsonl {} {:?}", self.shards.describe(), self.options)
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        Ok(Arc::clone(&self.ranges()?.parts))
    }

    fn stored(&self, part: usize) -> Result<Option<(Blob, String)>, SourceError> {
        if self.options.split_bytes.is_some() {
            return Ok(None);
        }
        Ok(Some((self.shards.blob(part)?, "jsonl".to_owned())))
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        let ranges = &self.ranges()?.ranges;
        let (shard, ..) = *ranges.get(part).ok_or_else(|| no_part(part, ranges.len()))?;
        self.shards.files(shard)
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        let ranges = &self.ranges()?.ranges;
        let (shard, begin, mut end) = *ranges.get(part).ok_or_else(|| no_part(part, ranges.len()))?;
        let stream = Stream::open(&self.shards.blob(shard)?)?;
        if let Some(codec) = stream.codec().filter(|_| end != u64::MAX || begin > 0) {
            let message = format!(
                "it is compressed with {}, and cannot be cut into parts: leave out split_bytes",
                codec.name()
            );
            return Err(stream.error(Fault::Unsupported, message));
        }
        let mut lines = Lines::new(stream, self.options.max_line_bytes);
        // Before the first record is where the part begins.
        let from = from.filter(|mark| mark.number > 0);
        if let Some(mark) = from {
            lines.stream.seek(mark.offset)?;
        } else if begin == 0 {
            lines.pass_bom()?;
            // The first line begins at the first byte, whatever stands before it.
            end = end.max(lines.stream.offset() + 1);
        } else {
            // The line that is under way belongs to the part before; if it ended just there, there is none.
            lines.stream.seek(begin - 1)?;
            lines.pass_line()?;
        }
        Ok(Box::new(JsonReader {
            lines,
            options: self.options.clone(),
            number: from.map_or(0, |mark| mark.number),
            line: (begin == 0 && from.is_none()).then_some(0),
            end,
            broken: None,
        }))
    }
}

struct JsonReader {
    lines: Lines,
    options: Options,
    number: u64,
    /// Lines before the next one, where that is known.
    line: Option<u64>,
    end: u64,
    broken: Option<SourceError>,
}

impl JsonReader {
    /// The next line that is not blank; its bytes are buffered.
    fn find(&mut self) -> Result<Option<Line>, SourceError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        loop {
            if self.lines.stream.offset() >= self.end {
                return Ok(None);
            }
            let line = match self.lines.find() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.broken = Some(error.clone());
                    return Err(error);
                }
            };
            self.line = self.line.map(|line| line + 1);
            let blank = line.length.is_some() && self.lines.bytes(line).iter().all(u8::is_ascii_whitespace);
            if !blank {
                return Ok(Some(line));
            }
            self.lines.done(line);
        }
    }

    fn place(&self) -> String {
        match self.line {
            Some(line) => format!("line {line}"),
            None => format!("record {}", self.number),
        }
    }

    fn parse(&self, line: Line) -> Result<Value, SourceError> {
        let bad = |fault, at: usize, message: String| {
            let error = SourceError::new(fault, &**self.lines.stream.name(), message);
            error.at(line.offset + at as u64).of(self.place())
        };
        if line.length.is_none() {
            let message = format!(
                "the line has more than {} bytes, which are the limit: raise max_line_bytes if that is right",
                self.options.max_line_bytes
            );
            return Err(bad(Fault::TooLarge, 0, message));
        }
        let text = std::str::from_utf8(self.lines.bytes(line)).map_err(|error| {
            bad(
                Fault::Record,
                error.valid_up_to(),
                "the line is not UTF-8 here".to_owned(),
            )
        })?;
        let pairs = json::object(text, self.options.columns.as_deref(), self.options.big_ints);
        pairs
            .map(Value::Map)
            .map_err(|error| bad(Fault::Record, error.at, error.message))
    }
}

impl Reader for JsonReader {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        let Some(line) = self.find()? else { return Ok(None) };
        let value = self.parse(line);
        let mark = Mark {
            number: self.number,
            offset: line.offset,
        };
        self.lines.done(line);
        self.number += 1;
        Ok(Some(Record {
            value: value?,
            mark,
            key: None,
        }))
    }

    fn mark(&self) -> Mark {
        Mark {
            number: self.number,
            offset: self.lines.stream.offset(),
        }
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        let mut passed = 0;
        while passed < count
            && let Some(line) = self.find()?
        {
            self.lines.done(line);
            self.number += 1;
            passed += 1;
        }
        Ok(passed)
    }

    fn go_to(&mut self, mark: Mark) -> Result<bool, SourceError> {
        // The first record is looked for from where the part begins.
        if mark.number == 0 || self.broken.is_some() {
            return Ok(false);
        }
        self.lines.stream.seek(mark.offset)?;
        (self.number, self.line) = (mark.number, None);
        Ok(true)
    }

    fn packed(&self) -> Option<&'static str> {
        self.lines.stream.codec().map(Codec::name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(text: impl Into<Vec<u8>>) -> JsonLines {
        JsonLines::of([Blob::memory("t.jsonl", text.into())])
    }

    /// `a` of each record, or what is wrong with it.
    fn all(source: &JsonLines, part: usize) -> Vec<String> {
        let mut reader = source.open(part, None).unwrap();
        let mut all = Vec::new();
        loop {
            match reader.next() {
                Ok(None) => return all,
                Ok(Some(record)) => all.push(format!("{:?}", record.value.get("a").unwrap())),
                Err(error) if error.may_continue() => all.push(error.to_string()),
                Err(error) => panic!("{error}"),
            }
        }
    }

    const MIXED: &str = "\u{feff}{\"a\":1}\r\n\r\n{\"a\":2,\"b\":{\"c\":null}}\n   \n{\"a\":3}";

    #[test]
    fn marks_of_the_byte_order_blank_lines_and_ends() {
        assert_eq!(all(&lines(MIXED), 0), ["Int(1)", "Int(2)", "Int(3)"]);
        assert_eq!(all(&lines("{\"a\":\"\u{2028}\"}\n"), 0).len(), 1);
        assert!(all(&lines(""), 0).is_empty());
        assert!(all(&lines("\n \n\r\n"), 0).is_empty());
    }

    #[test]
    fn bad_lines_are_named() {
        let source = lines(&b"{\"a\":1}\n\n{\"a\":x}\n{\"a\":\"\xff\"}\n{\"a\":4}\n"[..]);
        assert_eq!(
            all(&source, 0),
            [
                "Int(1)",
                "t.jsonl, line 3, byte 14: a value should be here, and not 'x'",
                "t.jsonl, line 4, byte 23: the line is not UTF-8 here",
                "Int(4)"
            ]
        );
        assert_eq!(source.open(0, None).unwrap().skip(9).unwrap(), 4);
        let long = format!("{{\"a\":1}}\n{{\"a\":\"{}\"}}\n{{\"a\":2}}", "x".repeat(100_000));
        let source = lines(long).max_line_bytes(50_000);
        let got = all(&source, 0);
        assert_eq!((got[0].as_str(), got[2].as_str()), ("Int(1)", "Int(2)"));
        assert_eq!(
            got[1],
            "t.jsonl, line 2, byte 8: the line has more than 50000 bytes, which are the limit: raise max_line_bytes if that is right"
        );
    }

    #[test]
    fn every_split_gives_each_line_once() {
        let right = ["Int(1)", "Int(2)", "Int(3)"];
        for step in 1..=MIXED.len() as u64 {
            let source = lines(MIXED).split_bytes(step);
            let parts = source.parts().unwrap();
            assert_eq!(
                parts.iter().map(|part| part.bytes.unwrap()).sum::<u64>(),
                MIXED.len() as u64
            );
            let got: Vec<String> = (0..parts.len()).flat_map(|part| all(&source, part)).collect();
            assert_eq!(got, right, "{step}");
        }
    }

    proptest! {
        #[test]
        fn marks_give_the_rest(sizes in proptest::collection::vec(0_usize..40, 1..20), at in 0_usize..20, blank in any::<bool>()) {
            let mut text = String::new();
            for size in &sizes {
                let word = "x".repeat(size * size);
                let ends = if blank { "\n\n" } else { "\n" };
                text = format!("{text}{{\"a\":\"{word}\"}}{ends}");
            }
            let source = lines(text);
            let whole = all(&source, 0);
            let at = at.min(sizes.len());
            let mut reader = source.open(0, None).unwrap();
            prop_assert_eq!(reader.skip(at as u64).unwrap(), at as u64);
            let mut again = source.open(0, Some(reader.mark())).unwrap();
            for right in &whole[at..] {
                for reader in [&mut reader, &mut again] {
                    let record = reader.next().unwrap().unwrap();
                    prop_assert_eq!(&format!("{:?}", record.value.get("a").unwrap()), right);
                }
            }
            prop_assert!(again.next().unwrap().is_none());
        }
    }
}
