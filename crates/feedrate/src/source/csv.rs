//! Comma-separated values.

use std::fmt;
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
    inferred: OnceLock<Vec<(String, CsvType)>>,
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

    /// Takes for each column without a type the narrowest that the first `rows` rows of the first file fit: bool, int, float, text. A
    /// later field that does not fit is an error and changes nothing in silence; a whole number that a float would round does not fit one. Default: 0, which leaves them text.
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
    fn inferred(&self) -> Result<&[(String, CsvType)], SourceError> {
        if let Some(types) = self.inferred.get() {
            return Ok(types);
        }
        let mut types = Vec::new();
        if self.options.infer > 0 {
            let (names, mut records) = self.header(0)?;
            let all = [CsvType::Bool, CsvType::Int, CsvType::Float, CsvType::Text];
            let mut fits = vec![0; names.len()];
            let mut seen = vec![false; names.len()];
            for _ in 0..self.options.infer {
                let Some(found) = records.find()? else { break };
                for field in 0..records.fields().min(names.len()) {
                    let text = records.text(&found, field)?;
                    seen[field] |= !text.trim().is_empty();
                    while all[fits[field]].read(text).is_none() || !all[fits[field]].exact(text) {
                        fits[field] += 1;
                    }
                }
                records.done(&found);
            }
            let kinds = fits
                .into_iter()
                .zip(seen)
                .map(|(fit, seen)| if seen { all[fit] } else { CsvType::Text });
            types = names.into_iter().zip(kinds).collect();
        }
        Ok(self.inferred.get_or_init(|| types))
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

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        let (names, mut records) = self.header(part)?;
        let inferred = self.inferred()?;
        let kind = |name: &str| {
            let known = self
                .options
                .types
                .iter()
                .chain(inferred)
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
            if !given && !kind.exact(text) {
                let message =
                    format!("column {name} has {text:?}, which the inferred float would round: give the column a type");
                return Err(bad(message));
            }
            let value = kind.read(text);
            let value =
                value.ok_or_else(|| bad(format!("column {name} has {text:?}, which is not {}", kind.name())))?;
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn csv(text: impl Into<Vec<u8>>) -> Csv {
        Csv::of([Blob::memory("t.csv", text.into())])
    }

    fn all(source: &Csv) -> Vec<Result<Value, String>> {
        let mut reader = match source.open(0, None) {
            Ok(reader) => reader,
            Err(error) => return vec![Err(error.to_string())],
        };
        let mut all = Vec::new();
        loop {
            match reader.next() {
                Ok(None) => return all,
                Ok(Some(record)) => all.push(Ok(record.value)),
                Err(error) => {
                    all.push(Err(error.to_string()));
                    if !error.may_continue() {
                        return all;
                    }
                }
            }
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as rows are compared")]
    fn row(a: &str, b: &str) -> Result<Value, String> {
        Ok(Value::map([("a", Value::from(a)), ("b", b.into())]))
    }

    #[test]
    fn rows() {
        let text = "\u{feff}a,b\r\n1,\"x,\"\"y\"\"\n\"\r\n\r\n\"\",z\"\n";
        assert_eq!(all(&csv(text)), [row("1", "x,\"y\"\n"), row("", "z\"")]);
        assert_eq!(all(&csv("a\tb\n1\t'2'").delimiter(b'\t').quote(b'\'')), [row("1", "2")]);
        assert_eq!(all(&csv("1,2\n").names(["a", "b"])), [row("1", "2")]);
        assert_eq!(all(&csv("")), []);
        assert_eq!(all(&csv("a,b\n")), []);
        let chosen = csv("a,b,c\n1,2,3").columns(["c", "a"]);
        assert_eq!(
            all(&chosen),
            [Ok(Value::map([("c", Value::from("3")), ("a", "1".into())]))]
        );
    }

    #[test]
    fn bad_rows_are_named() {
        let got = all(&csv("a,b\n1\n\"2\n\",3\n\"x\"y,4\n5,6\n7,\"8\n"));
        assert_eq!(
            got[0],
            Err("t.csv, line 2, byte 4: the row has 1 fields where there are 2 columns".into())
        );
        assert_eq!(got[1], row("2\n", "3"));
        assert_eq!(
            got[2],
            Err("t.csv, line 5, byte 13: there is something behind closing quotes".into())
        );
        assert_eq!(got[3], row("5", "6"));
        assert!(
            got[4]
                .as_ref()
                .is_err_and(|error| error.contains("quotes that do not close")),
            "{got:?}"
        );
        assert_eq!(got.len(), 5);
        assert!(all(&csv("a,a\n1,2"))[0].is_err());
        assert!(
            all(&csv("a,b\n1,2").columns(["c"]))[0]
                .as_ref()
                .is_err_and(|error| error.contains("there are a, b"))
        );
        let long = format!("a,b\n1,\"{}\"\n", "x".repeat(100_000));
        assert!(
            all(&csv(long).max_row_bytes(5000))[0]
                .as_ref()
                .is_err_and(|error| error.contains("5000"))
        );
    }

    #[test]
    fn the_limit_holds_for_rows_that_are_buffered() {
        let text = format!("a,b\n1,{}\n2,3\n", "x".repeat(98));
        assert_eq!(all(&csv(text.clone()).max_row_bytes(100)).len(), 2);
        let got = all(&csv(text).max_row_bytes(99));
        let error = got[0].as_ref().unwrap_err();
        assert!(
            error.starts_with("t.csv, line 2, byte 4: the row has more than 99 bytes"),
            "{error}"
        );
        assert_eq!(got.len(), 1);
        let header = all(&csv("a,b\n1,2\n").max_row_bytes(2));
        assert!(
            header[0].as_ref().is_err_and(|error| error.contains("line 1")),
            "{header:?}"
        );
    }

    #[test]
    fn types() {
        let text = "a,b,c,d\n1,1.5,true,x\n,,,\n-2,3,FALSE,7\n1.5,x,1,\n";
        let types = [("a", CsvType::Int), ("b", CsvType::Float), ("c", CsvType::Bool)];
        let given = all(&csv(text).types(types));
        assert_eq!(all(&csv(text).infer(3)), given);
        let second = given[1].as_ref().unwrap();
        assert_eq!(
            (second.get("a"), second.get("d")),
            (Some(&Value::None), Some(&"".into()))
        );
        assert_eq!(given[2].as_ref().unwrap().get("c"), Some(&Value::Bool(false)));
        let error = given[3].as_ref().unwrap_err();
        assert_eq!(
            error,
            "t.csv, line 5, byte 38: column a has \"1.5\", which is not a whole number of 64 bits"
        );
        assert!(all(&csv(text).types([("x", CsvType::Int)]))[0].is_err());
    }

    proptest! {
        #[test]
        fn what_another_writer_writes(
            rows in proptest::collection::vec(proptest::collection::vec("[ab,\"\r\n é]{0,6}", 3), 0..12),
            at in 0_usize..12,
        ) {
            let mut writer = csv::Writer::from_writer(Vec::new());
            writer.write_record(["x", "y", "z"]).unwrap();
            for row in &rows {
                writer.write_record(row).unwrap();
            }
            let source = csv(writer.into_inner().unwrap());
            let got = all(&source);
            prop_assert_eq!(got.len(), rows.len());
            for (got, row) in got.iter().zip(&rows) {
                let right = Value::map(["x", "y", "z"].into_iter().zip(row.iter().map(|text| Value::from(text.as_str()))));
                prop_assert_eq!(got, &Ok(right));
            }
            let at = at.min(rows.len());
            let mut reader = source.open(0, None).unwrap();
            prop_assert_eq!(reader.skip(at as u64).unwrap(), at as u64);
            let mut again = source.open(0, Some(reader.mark())).unwrap();
            prop_assert_eq!(again.next().unwrap().map(|record| record.value), got.get(at).map(|value| value.clone().unwrap()));
        }
    }
}
