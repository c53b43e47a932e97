//! Members of an archive, one after the other.

use super::header::{BLOCK, Header, Kind, until_nul};
use super::pax::Pax;
use super::sparse::{self, Map};
use crate::source::stream::Stream;
use crate::source::{Fault, SourceError};

/// Bytes of a long name, or of extended records, that are read.
const MOST_EXTENDED: u64 = 16 << 20;

/// What a member is, with its headers read.
#[derive(Debug, Default)]
pub(super) struct Member {
    /// As it stands in the archive.
    pub(super) name: Vec<u8>,
    /// Where its first header begins.
    pub(super) offset: u64,
    /// An ordinary file.
    pub(super) is_file: bool,
    /// Bytes of the body, with holes.
    pub(super) size: u64,
    /// Bytes of the body in the archive.
    stored: u64,
    map: Option<Map>,
    /// The map lies in front of the body.
    map_in_body: bool,
}

/// How an archive ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With zeros, as it should.
    Marked,
    /// Behind a member.
    Bare,
    /// Within the zeros that fill the last block of a body.
    Short,
}

/// Walks over an archive.
pub(super) struct Members {
    stream: Stream,
    /// Where the next header begins.
    next: u64,
    member: Member,
    ended: Option<End>,
    /// Zeros behind the last body are missing.
    short: bool,
    /// Whether zeros end the archive, or only what was appended so far.
    past_end: bool,
    /// What was wrong; nothing is read behind it.
    broken: Option<SourceError>,
}

impl Members {
    pub(super) fn new(stream: Stream, past_end: bool) -> Self {
        Self {
            next: stream.offset(),
            stream,
            member: Member::default(),
            ended: None,
            past_end,
            broken: None,
            short: false,
        }
    }

    /// Whether only headers are wanted from here on.
    pub(super) fn hop(&mut self, on: bool) {
        self.stream.hop(on);
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Where the next member's first header begins.
    pub(super) fn next_offset(&self) -> u64 {
        self.next
    }

    /// The member that the walk stands at.
    pub(super) fn member(&self) -> &Member {
        &self.member
    }

    /// How it ended, at the end.
    pub(super) fn end(&self) -> Option<End> {
        self.ended
    }

    /// Goes to a member's first header.
    pub(super) fn seek(&mut self, to: u64) -> Result<(), SourceError> {
        let result = self.check_broken().and_then(|()| self.stream.seek(to));
        self.next = to;
        self.ended = None;
        self.keep(result)
    }

    fn check_broken(&self) -> Result<(), SourceError> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn keep<T>(&mut self, result: Result<T, SourceError>) -> Result<T, SourceError> {
        if let Err(error) = &result {
            self.broken = Some(error.clone());
        }
        result
    }

    /// Goes on to the next member, passing over what is left of the one before; false at the end. An error is an end too.
    pub(super) fn advance(&mut self) -> Result<bool, SourceError> {
        self.check_broken()?;
        if self.ended.is_some() {
            return Ok(false);
        }
        let result = self.step();
        self.keep(result)
    }

    fn step(&mut self) -> Result<bool, SourceError> {
        let offset = self.next;
        // The padding of the last body may be missing: then nothing comes behind it, and whoever reads says what that means.
        let gap = offset.saturating_sub(self.stream.offset());
        let passed = self.stream.pass(gap)?;
        if passed + (BLOCK as u64) <= gap {
            let message = "the archive ends in the body of a member";
            return Err(self.stream.error(Fault::Truncated, message).of(self.display()));
        }
        self.short = passed < gap;
        self.member.offset = offset;
        let mut pax: Option<Pax> = None;
        let mut long: Option<Vec<u8>> = None;
        loop {
            let extended = pax.is_some() || long.is_some();
            let at = self.stream.offset();
            let Some(block) = self.block(extended)? else {
                return Ok(false);
            };
            let header = Header::parse(&block);
            let header = header.map_err(|bad| {
                let error = SourceError::new(Fault::Damaged, &**self.stream.name(), bad.to_string());
                error.at(at)
            })?;
            match header.kind {
                Kind::LongName => {
                    let mut name = self.extended(header.stored)?;
                    name.truncate(until_nul(&name).len());
                    long = Some(name);
                }
                Kind::LongLink => {
                    self.pass_body(header.stored)?;
                    long.get_or_insert_default();
                }
                Kind::Pax => {
                    let body = self.extended(header.stored)?;
                    let added = pax.get_or_insert_default().add(&body);
                    added.map_err(|what| self.bad_record(at, Fault::Damaged, what))?;
                }
                Kind::PaxGlobal => {
                    // A mark could not be read from, if what stands far before it mattered. In practice nothing does.
                    let body = self.extended(header.stored)?;
                    let mut records = Pax::default();
                    let added = records.add(&body);
                    added.map_err(|what| self.bad_record(at, Fault::Damaged, what))?;
                    if records.path.is_some() || records.size.is_some() || records.sparse.is_some() {
                        let what = "is global and changes names or sizes";
                        return Err(self.bad_record(at, Fault::Unsupported, what));
                    }
                }
                kind => {
                    header.name_into(&mut self.member.name);
                    if let Some(long) = long.filter(|long| !long.is_empty()) {
                        self.member.name = long;
                    }
                    return self.found(kind, header.stored, pax, &block).map(|()| true);
                }
            }
        }
    }

    fn bad_record(&self, at: u64, fault: Fault, what: &str) -> SourceError {
        let message = format!("a record of the extended header {what}");
        SourceError::new(fault, &**self.stream.name(), message).at(at)
    }

    /// The next block; `None` at the archive's end.
    fn block(&mut self, extended: bool) -> Result<Option<[u8; BLOCK]>, SourceError> {
        loop {
            let bytes = self.stream.at_least(BLOCK)?;
            let (block, left) = match bytes.first_chunk::<BLOCK>() {
                Some(block) => (&block[..], bytes.len()),
                None => (bytes, bytes.len()),
            };
            let zeros = block.first().is_some_and(|first| *first == 0) && block.iter().all(|byte| *byte == 0);
            if let Some(block) = block.first_chunk::<BLOCK>()
                && !zeros
            {
                let block = *block;
                self.stream.consume(BLOCK);
                return Ok(Some(block));
            }
            let length = block.len();
            if extended || (length > 0 && !zeros) {
                let message = if zeros {
                    "the archive ends behind an extended header"
                } else {
                    "the archive ends in a header"
                };
                let fault = if zeros { Fault::Damaged } else { Fault::Truncated };
                return Err(self.stream.error(fault, message));
            }
            if zeros && self.past_end && left >= BLOCK {
                self.stream.consume(BLOCK);
                self.next = self.stream.offset();
                self.member.offset = self.next;
                self.ended = Some(End::Marked);
                continue;
            }
            // With zeros passed over, the end is still a marked one.
            let bare = length == 0 && self.ended.is_none();
            self.stream.finish()?;
            self.ended = Some(match (bare, self.short) {
                (true, true) => End::Short,
                (true, false) => End::Bare,
                (false, _) => End::Marked,
            });
            return Ok(None);
        }
    }

    fn pass_body(&mut self, stored: u64) -> Result<(), SourceError> {
        let padded = stored.checked_next_multiple_of(BLOCK as u64).unwrap_or(u64::MAX);
        if self.stream.pass(padded)? < stored {
            return Err(self
                .stream
                .error(Fault::Truncated, "the archive ends in an extended header"));
        }
        Ok(())
    }

    fn extended(&mut self, stored: u64) -> Result<Vec<u8>, SourceError> {
        if stored > MOST_EXTENDED {
            let message = format!("an extended header has {stored} bytes; {MOST_EXTENDED} are the limit");
            return Err(self.stream.error(Fault::Damaged, message));
        }
        let mut body = Vec::new();
        self.stream.take(stored, &mut body)?;
        let padding = stored.next_multiple_of(BLOCK as u64) - stored;
        self.stream.pass(padding)?;
        Ok(body)
    }

    /// What the headers together say.
    fn found(&mut self, kind: Kind, stored: u64, pax: Option<Pax>, block: &[u8; BLOCK]) -> Result<(), SourceError> {
        self.ended = None;
        let Pax { path, size, sparse } = pax.unwrap_or_default();
        if let Some(path) = path {
            self.member.name = path;
        }
        let stored = if kind == Kind::NoBody {
            0
        } else {
            size.unwrap_or(stored)
        };
        self.member.map = None;
        self.member.map_in_body = false;
        if kind == Kind::OldSparse {
            self.member.map =
                Some(sparse::read_old(block, &mut self.stream).map_err(|error| error.of(self.display()))?);
        } else if let (Some(sparse), Kind::File) = (sparse, kind) {
            if let Some(name) = sparse.name {
                self.member.name = name;
            }
            let size = sparse.size.ok_or_else(|| {
                let error = self.stream.error(Fault::Damaged, "a file with holes has no size");
                error.of(self.display())
            })?;
            self.member.map = Some(Map {
                extents: sparse.map,
                size,
            });
            self.member.map_in_body = sparse.in_body;
        }
        let member = &mut self.member;
        member.is_file = matches!(kind, Kind::File | Kind::OldSparse);
        member.stored = stored;
        member.size = member.map.as_ref().map_or(stored, |map| map.size);
        let padded = stored.checked_next_multiple_of(BLOCK as u64);
        let next = padded.and_then(|padded| self.stream.offset().checked_add(padded));
        let Some(next) = next.filter(|next| i64::try_from(*next).is_ok()) else {
            let message = format!("the tar header says that the body has {stored} bytes");
            return Err(self.stream.error(Fault::Damaged, message).of(self.display()));
        };
        self.next = next;
        Ok(())
    }

    /// Reads the body of the member; once. What is wrong with a map of holes alone is the member's fault: the next one can be read.
    pub(super) fn read(&mut self, into: &mut Vec<u8>) -> Result<(), SourceError> {
        let result = self.read_body(into).map_err(|error| error.of(self.display()));
        match result {
            Err(error) if !error.may_continue() => self.keep(Err(error)),
            result => result,
        }
    }

    fn read_body(&mut self, into: &mut Vec<u8>) -> Result<(), SourceError> {
        let Some(map) = self.member.map.take() else {
            return self.stream.take(self.member.stored, into);
        };
        let (map, stored) = if self.member.map_in_body {
            let (map, taken) = sparse::read_new(&mut self.stream, self.member.stored, map.size)?;
            (map, self.member.stored - taken)
        } else {
            (map, self.member.stored)
        };
        map.check(stored)
            .map_err(|what| self.stream.error(Fault::Record, what))?;
        map.expand(&mut self.stream, into)
    }

    /// The body was passed over: whether it is there at all. Blocks behind the last one may be missing.
    pub(super) fn pass_over(&mut self) -> Result<(), SourceError> {
        let body = self.next.saturating_sub(self.stream.offset());
        let padding = self.member.stored.next_multiple_of(BLOCK as u64) - self.member.stored;
        let passed = self.stream.pass(body);
        let passed = self.keep(passed)?;
        if passed < body.saturating_sub(padding) {
            let message = format!(
                "the archive ends in the body, {} bytes too early",
                body - padding - passed
            );
            let error = self.stream.error(Fault::Truncated, message).of(self.display());
            return self.keep(Err(error));
        }
        Ok(())
    }

    /// The member's name for messages.
    pub(super) fn display(&self) -> String {
        super::name::text(&self.member.name, super::Names::Utf8).into_owned()
    }
}
