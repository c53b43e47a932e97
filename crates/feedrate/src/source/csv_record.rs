//! Rows and fields of comma-separated values.

use std::ops::Range;

use memchr::{memchr, memchr2};

use super::stream::Stream;
use super::{Fault, SourceError};

/// A row that was found; its bytes are the first that are buffered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Where it begins.
    pub(super) offset: u64,
    /// Its first line, where that is known.
    pub(super) line: Option<u64>,
    /// Something stands behind closing quotes.
    pub(super) garbled: bool,
    whole: usize,
    lines: u64,
}

/// Where a field is in the row's bytes.
#[derive(Debug, Clone)]
struct Field {
    range: Range<usize>,
    /// With the doubled quotes taken out, in `plain`.
    plain: Option<Range<usize>>,
}

/// Finds rows.
pub(super) struct Records {
    pub(super) stream: Stream,
    delimiter: u8,
    quote: u8,
    limit: usize,
    fields: Vec<Field>,
    /// Fields in which quotes were doubled.
    plain: Vec<u8>,
    line: Option<u64>,
}

/// Where the search in a row stands.
struct Search {
    at: usize,
    from: usize,
    state: State,
    doubled: bool,
    garbled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the start of a field.
    Start,
    Bare,
    Quoted,
    /// Behind a quote in a quoted field: the end, or the first of two.
    Quote,
}

impl Records {
    pub(super) fn new(mut stream: Stream, delimiter: u8, quote: u8, limit: usize) -> Result<Self, SourceError> {
        if stream.at_least(3)?.starts_with(b"\xef\xbb\xbf") {
            stream.consume(3);
        }
        Ok(Self {
            stream,
            delimiter,
            quote,
            limit,
            fields: Vec::new(),
            plain: Vec::new(),
            line: Some(1),
        })
    }

    pub(super) fn seek(&mut self, to: u64) -> Result<(), SourceError> {
        self.line = None;
        self.stream.seek(to)
    }

    /// Number of fields of the row that was found last.
    pub(super) fn fields(&self) -> usize {
        self.fields.len()
    }

    /// A field of the row that was found last.
    pub(super) fn text(&self, found: &Found, field: usize) -> Result<&str, SourceError> {
        let field = &self.fields[field];
        let bytes = match &field.plain {
            Some(plain) => &self.plain[plain.clone()],
            None => &self.stream.buffered()[field.range.clone()],
        };
        std::str::from_utf8(bytes).map_err(|error| {
            let at = found.offset + (field.range.start + error.valid_up_to()) as u64;
            let error = SourceError::new(Fault::Record, &**self.stream.name(), "the row is not UTF-8");
            match found.line {
                Some(line) => error.at(at).of(format!("line {line}")),
                None => error.at(at),
            }
        })
    }

    /// Goes behind the row.
    pub(super) fn done(&mut self, found: &Found) {
        self.stream.consume(found.whole);
        self.line = self.line.map(|line| line + found.lines);
    }

    /// The next row that is not blank; it stays buffered until it is [`done`](Records::done). An error ends the file.
    pub(super) fn find(&mut self) -> Result<Option<Found>, SourceError> {
        loop {
            let Some(found) = self.row()? else { return Ok(None) };
            let blank = self.fields.len() == 1 && self.fields[0].range.is_empty() && self.fields[0].range.start == 0;
            if !blank {
                return Ok(Some(found));
            }
            self.done(&found);
        }
    }

    fn row(&mut self) -> Result<Option<Found>, SourceError> {
        self.fields.clear();
        self.plain.clear();
        let mut search = Search {
            at: 0,
            from: 0,
            state: State::Start,
            doubled: false,
            garbled: false,
        };
        loop {
            let whole = self.search(&mut search);
            let buffered = self.stream.buffered().len();
            // As of a line: without what ends it. What lies in the buffer says nothing of the limit.
            if whole.map_or(buffered, |whole| whole - 1) > self.limit {
                let message = format!(
                    "the row has more than {} bytes, which are the limit: quotes may not close; raise max_row_bytes if that is right",
                    self.limit
                );
                let error = SourceError::new(Fault::Damaged, &**self.stream.name(), message);
                return Err(self.placed(error));
            }
            if let Some(whole) = whole {
                return Ok(Some(self.found(whole, search.garbled)));
            }
            if self.stream.more()? {
                continue;
            }
            if buffered == 0 {
                return Ok(None);
            }
            if search.state == State::Quoted {
                let message = "the row has quotes that do not close";
                let error = SourceError::new(Fault::Truncated, &**self.stream.name(), message);
                return Err(self.placed(error));
            }
            self.field(&mut search, buffered);
            return Ok(Some(self.found(buffered, search.garbled)));
        }
    }

    fn placed(&self, error: SourceError) -> SourceError {
        let error = error.at(self.stream.offset());
        match self.line {
            Some(line) => error.of(format!("line {line}")),
            None => error,
        }
    }

    fn found(&self, whole: usize, garbled: bool) -> Found {
        let bytes = &self.stream.buffered()[..whole];
        let lines = if self.line.is_some() {
            memchr::memchr_iter(b'\n', bytes).count() as u64
        } else {
            0
        };
        Found {
            offset: self.stream.offset(),
            line: self.line,
            garbled,
            whole,
            lines,
        }
    }

    /// Goes on in what is buffered; the length of the row with what ends it, if it is all there.
    fn search(&mut self, search: &mut Search) -> Option<usize> {
        loop {
            let buffered = self.stream.buffered();
            let rest = buffered.get(search.at..).filter(|rest| !rest.is_empty())?;
            match search.state {
                State::Start if rest[0] == self.quote => {
                    search.state = State::Quoted;
                    search.at += 1;
                }
                State::Start => search.state = State::Bare,
                State::Quoted => {
                    if let Some(length) = memchr(self.quote, rest) {
                        search.at += length + 1;
                        search.state = State::Quote;
                    } else {
                        search.at = buffered.len();
                    }
                }
                State::Quote if rest[0] == self.quote => {
                    search.doubled = true;
                    search.state = State::Quoted;
                    search.at += 1;
                }
                State::Bare | State::Quote => {
                    let Some(length) = memchr2(self.delimiter, b'\n', rest) else {
                        if search.state == State::Bare {
                            search.at = buffered.len();
                            return None;
                        }
                        // What stands behind the quote is looked at when the field's end is known.
                        return None;
                    };
                    let end = search.at + length;
                    let ends_row = rest[length] == b'\n';
                    self.field(search, end);
                    search.at = end + 1;
                    search.from = end + 1;
                    search.state = State::Start;
                    if ends_row {
                        return Some(end + 1);
                    }
                }
            }
        }
    }

    /// Keeps the field that ends before `end`.
    fn field(&mut self, search: &mut Search, end: usize) {
        let buffered = self.stream.buffered();
        let at_line = buffered.get(end).is_none_or(|byte| *byte == b'\n');
        let mut range = search.from..end;
        if at_line && buffered[range.clone()].ends_with(b"\r") && !(search.state == State::Quote && search.at == end) {
            range.end -= 1;
        }
        let mut plain = None;
        if search.state == State::Quote {
            // `at` is behind the closing quote.
            search.garbled |= search.at < range.end;
            range = search.from + 1..search.at - 1;
            if search.doubled {
                let from = self.plain.len();
                let mut doubled = false;
                for byte in &buffered[range.clone()] {
                    doubled = *byte == self.quote && !doubled;
                    if !doubled {
                        self.plain.push(*byte);
                    }
                }
                plain = Some(from..self.plain.len());
                search.doubled = false;
            }
        }
        self.fields.push(Field { range, plain });
    }
}
