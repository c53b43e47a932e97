//! Comma-separated values.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::csv_record::{Found, Records};
use super::shards::Shards;
use super::stream::Stream;
use super::{Codec, Fault, Mark, Part, Reader, Record, Source, SourceError};
use crate::batch::Value;
use crate::store::Blob;

/// What the fields of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CsvType {
    /// Text as it stands.
    Text,
    /// A whole number of 64 bits; nothing, if the field is empty.
    Int,
    /// A number, `nan` and `inf` among them; nothing, if the field is empty.
    Float,
    /// `true` or `false` in any case; nothing, if the field is empty.
    Bool,
}

impl CsvType {
    fn read(self, text: &str) -> Option<Value> {
        let trimmed = text.trim();
        match self {
            Self::Text => Some(Value::Str(text.to_owned())),
            _ if trimmed.is_empty() => Some(Value::None),
            Self::Int => trimmed.parse().ok().map(Value::Int),
            Self::Float => trimmed.parse().ok().map(Value::Float),
            Self::Bool if trimmed.eq_ignore_ascii_case("true") => Some(Value::Bool(true)),
            Self::Bool if trimmed.eq_ignore_ascii_case("false") => Some(Value::Bool(false)),
            Self::Bool => None,
        }
    }

    /// Whether reading it changes nothing: a whole number as a float may.
    fn exact(self, text: &str) -> bool {
        if self != Self::Float || text.len() < 16 {
            return true;
        }
        let digits = text.trim().trim_start_matches(['-', '+']);
        if digits.bytes().any(|byte| !byte.is_ascii_digit()) {
            return true;
        }
        let number: Result<i128, _> = digits.parse();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "that is the question"
        )]
        number.is_ok_and(|number| (number as f64) as i128 == number)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Int => "a whole number of 64 bits",
            Self::Float => "a number",
            Self::Bool => "true or false",
        }
    }
}

/// Files of comma-separated values, plain or compressed; each row is a map from the columns' names.
///
/// The first row names the columns, unless [`names`](Csv::names) does. Fields are text, unless [`types`](Csv::types) or [`infer`](Csv::infer)
/// says otherwise: no type is guessed in silence. Fields in quotes may hold delimiters, ends of lines and doubled quotes. Lines end with `\n` or
/// `\r\n`; blank lines are no rows; a mark of the byte order at the start is passed over. A row with more or fewer fields than columns,
/// a field that is not of its type, and something behind closing quotes are errors with the line's number, and the next row can be read. Quotes that
/// do not close are an error at the file's end.
///
/// A reader holds one open file and a buffer of 256 KiB, or as large as the longest row.
///
/// ```
/// use feedrate::source::{Csv, CsvType, Source};
/// use feedrate::store::Blob;
///
/// let csv = Csv::of([Blob::memory("two", *b"name,age\n\"Ann, Lee\",41\nBob,\n")]).types([("age", CsvType::Int)]);
/// let first = csv.open(0, None)?.next()?.unwrap();
/// assert_eq!(first.value.get("name"), Some(&"Ann, Lee".into()));
/// assert_eq!(first.value.get("age"), Some(&41_i64.into()));
/// # Ok::<(), feedrate::source::SourceError>(())
/// ```
pub struct Csv {
    shards: Shards,
    options: Options,
    inferred: OnceLock<Inferred>,
}

/// Files that are opened at most to infer types.
const MOST_LOOKED_AT: usize = 64;

/// What the first rows say of the columns' types.
#[derive(Debug, Default)]
struct Inferred {
    types: Vec<(String, CsvType)>,
    /// The rows that were looked at, for messages.
    from: Arc<str>,
}

/// What the values of a column are that were looked at.
struct Looked {
    name: String,
    /// Whether each of [`GUESSES`] fits them all.
    fits: [bool; GUESSES.len()],
    /// One at least was not blank.
    told: bool,
}

/// What is tried, the narrowest first; text fits all.
const GUESSES: [CsvType; 3] = [CsvType::Bool, CsvType::Int, CsvType::Float];

impl Looked {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            fits: [true; GUESSES.len()],
            told: false,
        }
    }

    fn add(&mut self, text: &str) {
        self.told |= !text.trim().is_empty();
        for (fits, guess) in self.fits.iter_mut().zip(GUESSES) {
            *fits = *fits && guess.read(text).is_some() && guess.exact(text);
        }
    }

    fn kind(&self) -> CsvType {
        let mut guesses = self.fits.iter().zip(GUESSES).filter(|(fits, _)| **fits && self.told);
        guesses.next().map_or(CsvType::Text, |(_, guess)| guess)
    }
}

#[derive(Debug, Clone)]
struct Options {
    delimiter: u8,
    quote: u8,
    names: Option<Vec<String>>,
    types: Vec<(String, CsvType)>,
    infer: usize,
    columns: Option<Vec<String>>,
    max_row_bytes: usize,
}

impl Csv {
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
                delimiter: b',',
                quote: b'"',
                names: None,
                types: Vec::new(),
                infer: 0,
                columns: None,
                max_row_bytes: 64 << 20,
            },
            inferred: OnceLock::new(),
        }
    }

    fn set(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self.inferred = OnceLock::new();
        self
    }

    /// The byte between fields. Default: `,`.
    #[must_use]
    pub fn delimiter(self, byte: u8) -> Self {
        self.set(|options| options.delimiter = byte)
    }

    /// The byte around fields that hold delimiters. Default: `"`.
    #[must_use]
    pub fn quote(self, byte: u8) -> Self {
        self.set(|options| options.quote = byte)
    }

    /// The columns' names, for files whose first row is data.
    #[must_use]
    pub fn names<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        self.set(|options| options.names = Some(names))
    }

    /// Types of columns; the others are text, or inferred.
    #[must_use]
    pub fn types<S: Into<String>>(self, types: impl IntoIterator<Item = (S, CsvType)>) -> Self {
        let types = types.into_iter().map(|(name, kind)| (name.into(), kind)).collect();
        self.set(|options| options.types = types)
    }

    /// Takes for each column without a type the narrowest that the first `rows` rows all fit: bool, int, float, text. Where the first file
    /// has fewer rows, or only blanks in a column, the next are looked at too, up to `rows` rows of each and 64 files; a column that is
    /// blank in all of them is text. A later field that does not fit is an error and changes nothing in silence; a whole number that a
    /// float would round does not fit one. Default: 0, which leaves them text.
    #[must_use]
    pub fn infer(self, rows: usize) -> Self {
        self.set(|options| options.infer = rows)
    }

    /// Only these columns, in their order. A file without one of them is an error.
    #[must_use]
    pub fn columns<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        self.set(|options| options.columns = Some(names))
    }

    /// Bytes that a row may have; more are an error, behind which the file cannot be read. Default: 64 MiB.
    #[must_use]
    pub fn max_row_bytes(self, bytes: usize) -> Self {
        self.set(|options| options.max_row_bytes = bytes)
    }

    fn records(&self, part: usize) -> Result<Records, SourceError> {
        let stream = Stream::open(&self.shards.blob(part)?)?;
        let options = &self.options;
        Records::new(stream, options.delimiter, options.quote, options.max_row_bytes)
    }

    /// The names, and the records behind them.
    fn header(&self, part: usize) -> Result<(Vec<String>, Records), SourceError> {
        let mut records = self.records(part)?;
        let names = if let Some(names) = &self.options.names {
            names.clone()
        } else {
            let Some(found) = records.find()? else {
                return Ok((Vec::new(), records));
            };
            let names = (0..records.fields()).map(|field| records.text(&found, field).map(str::to_owned));
            let names = names.collect::<Result<Vec<String>, _>>()?;
            records.done(&found);
            if names.iter().any(|name| name.contains('\r') && !name.contains('\n')) {
                let message = "lines end with \\r alone, as on old Macs, and \\n or \\r\\n is read: convert the file (tr '\\r' '\\n')";
                return Err(records.stream.error(Fault::Unsupported, message.to_owned()));
            }
            names
        };
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) {
                let message = format!("two columns are called {name:?}: give names of your own");
                return Err(records.stream.error(Fault::Damaged, message));
            }
        }
        Ok((names, records))
    }

    /// The narrowest types of the first rows.
    fn inferred(&self) -> Result<&Inferred, SourceError> {
        if let Some(inferred) = self.inferred.get() {
            return Ok(inferred);
        }
        let inferred = if self.options.infer > 0 {
            self.infer_types()?
        } else {
            Inferred::default()
        };
        Ok(self.inferred.get_or_init(|| inferred))
    }

    fn infer_types(&self) -> Result<Inferred, SourceError> {
        let mut columns: Vec<Looked> = Vec::new();
        let (mut rows, mut last) = (0, 0);
        let parts = self.shards.parts()?;
        for part in 0..parts.len().min(MOST_LOOKED_AT) {
            let open = columns.iter().any(|column| !column.told && self.infers(&column.name));
            if rows >= self.options.infer && !open {
                break;
            }
            last = part;
            match self.look(part, &mut columns, &mut rows) {
                // What is wrong with a file is said where it is read: the others can be read without it.
                Err(error) if error.fault().passing() => return Err(error),
                _ => {}
            }
        }
        let names = match (parts.first(), parts.get(last)) {
            (Some(first), Some(behind)) if last > 0 => {
                format!("{} … {} ({} files)", first.name, behind.name, last + 1)
            }
            (Some(first), _) => first.name.clone(),
            (None, _) => String::new(),
        };
        Ok(Inferred {
            types: columns
                .iter()
                .map(|column| (column.name.clone(), column.kind()))
                .collect(),
            from: format!("the first {rows} rows of {names}").into(),
        })
    }

    /// Whether a column's type is wanted and not given.
    fn infers(&self, name: &String) -> bool {
        let given = self.options.types.iter().any(|(known, _)| known == name);
        !given
            && self
                .options
                .columns
                .as_ref()
                .is_none_or(|columns| columns.contains(name))
    }

    /// Looks at the first rows of a file: as many as are left of those that should be, all again if there are none.
    fn look(&self, part: usize, columns: &mut Vec<Looked>, rows: &mut usize) -> Result<(), SourceError> {
        let (names, mut records) = self.header(part)?;
        let mut place = |name: &String| {
            columns
                .iter()
                .position(|column| column.name == *name)
                .unwrap_or_else(|| {
                    columns.push(Looked::new(name));
                    columns.len() - 1
                })
        };
        let places: Vec<usize> = names.iter().map(&mut place).collect();
        let left = self.options.infer.saturating_sub(*rows);
        let left = if left == 0 { self.options.infer } else { left };
        for _ in 0..left {
            let Some(found) = records.find()? else { break };
            for (field, place) in places.iter().enumerate().take(records.fields()) {
                // Text that is none is an error of its row.
                if let Ok(text) = records.text(&found, field) {
                    columns[*place].add(text);
                }
            }
            records.done(&found);
            *rows += 1;
        }
        Ok(())
    }
}

impl fmt::Debug for Csv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Csv({})", self.shards.describe())
    }
}

impl Source for Csv {
    fn format(&self) -> &'static str {
        "csv"
    }

    fn describe(&self) -> String {
        format!("csv {} {:?}", self.shards.describe(), self.options)
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        self.shards.parts()
    }

    fn stored(&self, part: usize) -> Result<Option<(Blob, String)>, SourceError> {
        let Options {
            delimiter,
            quote,
            names,
            ..
        } = &self.options;
        // What decides where rows begin: quotes count at the start of a field only.
        let layout = format!("csv {delimiter:?} {quote:?} {}", names.is_some());
        Ok(Some((self.shards.blob(part)?, layout)))
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        self.shards.files(part)
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        let (names, mut records) = self.header(part)?;
        let inferred = self.inferred()?;
        let kind = |name: &str| {
            let known = self
                .options
                .types
                .iter()
                .chain(&inferred.types)
                .find(|(known, _)| known == name);
            known.map_or(CsvType::Text, |(_, kind)| *kind)
        };
        let absent = |name: &str| {
            let message = format!("there is no column {name:?}; there are {}", names.join(", "));
            SourceError::new(Fault::Absent, &**records.stream.name(), message)
        };
        if let Some((name, _)) = self
            .options
            .types
            .iter()
            .find(|(name, _)| !names.is_empty() && !names.contains(name))
        {
            return Err(absent(name));
        }
        let column = |name: &String| {
            let at = names
                .iter()
                .position(|known| known == name)
                .ok_or_else(|| absent(name))?;
            let given = self.options.types.iter().any(|(known, _)| known == name);
            Ok((at, name.clone(), kind(name), given))
        };
        let wanted = self
            .options
            .columns
            .as_ref()
            .filter(|_| !names.is_empty())
            .unwrap_or(&names);
        let columns = wanted.iter().map(column).collect::<Result<Vec<_>, SourceError>>()?;
        if let Some(mark) = from.filter(|mark| mark.number > 0) {
            records.seek(mark.offset)?;
        }
        Ok(Box::new(CsvReader {
            records,
            columns,
            inferred: Arc::clone(&inferred.from),
            width: names.len(),
            number: from.map_or(0, |mark| mark.number),
            broken: None,
        }))
    }
}

struct CsvReader {
    records: Records,
    /// Place in the row, name, type, and whether the user gave the type.
    columns: Vec<(usize, String, CsvType, bool)>,
    /// What the types are from that the user did not give.
    inferred: Arc<str>,
    width: usize,
    number: u64,
    broken: Option<SourceError>,
}

impl CsvReader {
    fn find(&mut self) -> Result<Option<Found>, SourceError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let found = self.records.find();
        if let Err(error) = &found {
            self.broken = Some(error.clone());
        }
        found
    }

    fn value(&self, found: &Found) -> Result<Value, SourceError> {
        let bad = |message: String| {
            let error = SourceError::new(Fault::Record, &**self.records.stream.name(), message);
            error.at(found.offset).of(self.place(found))
        };
        if found.garbled {
            return Err(bad("there is something behind closing quotes".to_owned()));
        }
        let count = self.records.fields();
        if count != self.width {
            return Err(bad(format!(
                "the row has {count} fields where there are {} columns",
                self.width
            )));
        }
        let field = |(at, name, kind, given): &(usize, String, CsvType, bool)| {
            let text = self.records.text(found, *at)?;
            let unlike = |what: &str| {
                let mut message = format!("column {name} has {text:?}, which {what}");
                if !given {
                    let fix = "give the column a type with types (text fits all), or raise infer to look at more rows";
                    message = format!("{message}; that type was inferred from {}: {fix}", self.inferred);
                }
                bad(message)
            };
            if !given && !kind.exact(text) {
                return Err(unlike("the inferred float would round"));
            }
            let value = kind.read(text);
            let value = value.ok_or_else(|| unlike(&format!("is not {}", kind.name())))?;
            Ok((name.clone(), value))
        };
        self.columns.iter().map(field).collect::<Result<_, _>>().map(Value::Map)
    }

    fn place(&self, found: &Found) -> String {
        match found.line {
            Some(line) => format!("line {line}"),
            None => format!("row {}", self.number),
        }
    }
}

impl Reader for CsvReader {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        let Some(found) = self.find()? else { return Ok(None) };
        let value = self.value(&found);
        let mark = Mark {
            number: self.number,
            offset: found.offset,
        };
        self.records.done(&found);
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
            offset: self.records.stream.offset(),
        }
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        let mut passed = 0;
        while passed < count
            && let Some(found) = self.find()?
        {
            self.records.done(&found);
            self.number += 1;
            passed += 1;
        }
        Ok(passed)
    }

    fn go_to(&mut self, mark: Mark) -> Result<bool, SourceError> {
        if mark.number == 0 || self.broken.is_some() {
            return Ok(false);
        }
        self.records.seek(mark.offset)?;
        self.number = mark.number;
        Ok(true)
    }

    fn packed(&self) -> Option<&'static str> {
        self.records.stream.codec().map(Codec::name)
    }
}

#[cfg(test)]
#[path = "csv_tests.rs"]
mod tests;
