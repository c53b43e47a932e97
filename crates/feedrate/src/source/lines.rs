//! Lines of a part.

use memchr::memchr;

use super::SourceError;
use super::stream::Stream;

/// One line as it was found; its bytes are the first that are buffered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    /// Where it begins.
    pub(super) offset: u64,
    /// Its length without what ends it; `None` if it was longer than the limit, and is passed over already.
    pub(super) length: Option<usize>,
    /// What is to be consumed.
    whole: usize,
}

/// Finds lines, of which none is longer than a limit.
pub(super) struct Lines {
    pub(super) stream: Stream,
    limit: usize,
}

impl Lines {
    pub(super) fn new(stream: Stream, limit: usize) -> Self {
        Self { stream, limit }
    }

    /// Passes over a mark of the byte order at the start.
    pub(super) fn pass_bom(&mut self) -> Result<(), SourceError> {
        if self.stream.offset() == 0 && self.stream.at_least(3)?.starts_with(b"\xef\xbb\xbf") {
            self.stream.consume(3);
        }
        Ok(())
    }

    /// The next line, which stays buffered until it is [`done`](Lines::done); `None` at the end.
    pub(super) fn find(&mut self) -> Result<Option<Line>, SourceError> {
        let offset = self.stream.offset();
        let mut scanned = 0;
        loop {
            let buffered = self.stream.buffered();
            if let Some(length) = memchr(b'\n', &buffered[scanned..]) {
                let length = scanned + length;
                return Ok(Some(Line {
                    offset,
                    length: Some(length).filter(|length| *length <= self.limit),
                    whole: length + 1,
                }));
            }
            scanned = buffered.len();
            if scanned > self.limit {
                self.pass_line()?;
                return Ok(Some(Line {
                    offset,
                    length: None,
                    whole: 0,
                }));
            }
            if !self.stream.more()? {
                let line = Line {
                    offset,
                    length: Some(scanned),
                    whole: scanned,
                };
                return Ok((scanned > 0).then_some(line));
            }
        }
    }

    /// The bytes of a line that was just found.
    pub(super) fn bytes(&self, line: Line) -> &[u8] {
        self.stream
            .buffered()
            .get(..line.length.unwrap_or(0))
            .unwrap_or_default()
    }

    /// Goes behind the line.
    pub(super) fn done(&mut self, line: Line) {
        self.stream.consume(line.whole);
    }

    /// Goes behind the next end of a line, whatever its length.
    pub(super) fn pass_line(&mut self) -> Result<(), SourceError> {
        loop {
            let some = self.stream.some()?;
            if some.is_empty() {
                return Ok(());
            }
            let end = memchr(b'\n', some);
            let length = end.map_or(some.len(), |end| end + 1);
            self.stream.consume(length);
            if end.is_some() {
                return Ok(());
            }
        }
    }
}
