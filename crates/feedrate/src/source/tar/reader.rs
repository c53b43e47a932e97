//! Members to samples.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::members::{End, Members};
use super::name::{is_hidden, split, text, trimmed};
use super::notes::Counters;
use super::options::{Duplicates, EndMark, Field, Grouping, Missing, Options};
use crate::batch::{Value, spare};
use crate::source::compress::Codec;
use crate::source::index::Index;
use crate::source::{Fault, Mark, Reader, Record, SourceError};
use crate::store::Blob;

/// Keys that are remembered to see one that comes again: 16 to 32 MiB at most.
const MOST_KEYS: usize = 1 << 20;

/// What one group of members was.
pub(super) enum Group {
    Record(Record),
    /// A sample that was not to be built.
    Passed,
    /// A sample that is no record, by choice.
    Skipped,
}

/// Gives the samples of one archive.
pub(super) struct TarReader {
    members: Members,
    blob: Blob,
    options: Arc<Options>,
    counters: Arc<Counters>,
    index: Option<Arc<Index>>,
    /// Samples before the one that comes next.
    number: u64,
    /// Where the next sample begins.
    next: u64,
    /// The walk stands at a member that has not been used.
    pending: bool,
    key: Vec<u8>,
    field: Vec<u8>,
    /// Hashes of the keys so far.
    finished: HashSet<u64, BuildHasherDefault<Hashed>>,
    /// The key of the last whole sample, as bytes; empty before it.
    last: Vec<u8>,
    /// Memory for a key.
    spare: Vec<u8>,
    /// Of the shard's first sample, once it was seen.
    first_fields: Option<Vec<String>>,
    done: bool,
    broken: Option<SourceError>,
}

impl TarReader {
    pub(super) fn new(
        members: Members,
        blob: Blob,
        options: Arc<Options>,
        counters: Arc<Counters>,
        index: Option<Arc<Index>>,
    ) -> Self {
        Self {
            members,
            blob,
            options,
            counters,
            index,
            number: 0,
            next: 0,
            pending: false,
            key: Vec::new(),
            field: Vec::new(),
            finished: HashSet::default(),
            last: Vec::new(),
            spare: Vec::new(),
            first_fields: None,
            done: false,
            broken: None,
        }
    }

    /// Goes to a mark that a reader of the same archive gave.
    pub(super) fn go_to(&mut self, mark: Mark) -> Result<(), SourceError> {
        self.pending = false;
        if mark.number <= self.number {
            // What comes again came before.
            self.finished.clear();
        }
        self.number = mark.number;
        self.next = mark.offset;
        self.done = false;
        if self.options.grouping == Grouping::Scattered {
            return Ok(());
        }
        self.members.seek(mark.offset)
    }

    fn scattered(&self) -> Option<Arc<Index>> {
        let scattered = self.options.grouping == Grouping::Scattered;
        self.index.as_ref().filter(|_| scattered).cloned()
    }

    /// Goes on to a member that is data; false at the end.
    pub(super) fn next_member(&mut self) -> Result<bool, SourceError> {
        while self.members.advance()? {
            let member = self.members.member();
            let name = trimmed(&member.name);
            let counter = if !member.is_file {
                &self.counters.no_files
            } else if !self.options.hidden && is_hidden(name) {
                &self.counters.hidden
            } else if self.options.grouping == Grouping::Whole {
                self.key.clear();
                self.key.extend_from_slice(name);
                self.field.clear();
                let field = split(name, self.options.split).map_or(&b""[..], |(_, field)| field);
                self.field.extend_from_slice(field);
                return Ok(true);
            } else if let Some((key, field)) = split(name, self.options.split) {
                self.key.clear();
                self.key.extend_from_slice(key);
                self.field.clear();
                self.field.extend_from_slice(field);
                return Ok(true);
            } else {
                &self.counters.unnamed
            };
            counter.add();
            self.members.pass_over()?;
        }
        let nothing = self.members.next_offset() == 0 && self.members.end() == Some(End::Bare);
        if nothing && self.options.end != EndMark::Optional {
            let message = "the file is empty: an archive without members has the zeros that end it";
            return Err(self.members.stream().error(Fault::Truncated, message));
        }
        Ok(false)
    }

    /// The key of the member that the walk stands at, as bytes.
    pub(super) fn raw_key(&self) -> &[u8] {
        &self.key
    }

    /// The field of the member that the walk stands at.
    pub(super) fn raw_field(&self) -> String {
        text(&self.field, self.options.names).to_lowercase()
    }

    /// A field that was asked for and is none of these.
    fn absent(&self, seen: &[String]) -> Option<&Field> {
        let fields = self.options.fields.as_ref()?;
        fields
            .iter()
            .find(|field| !field.of.iter().any(|one| seen.contains(one)))
    }

    /// Whether a sample of these fields is passed over, which is counted.
    pub(super) fn skips(&self, seen: &[String]) -> bool {
        let skips = self.options.missing == Missing::Skip && self.absent(seen).is_some();
        if skips {
            self.counters.incomplete.add();
        }
        skips
    }

    /// Passes over samples, header by header.
    fn pass(&mut self, count: u64) -> Result<u64, SourceError> {
        let mut passed = 0;
        while passed < count {
            match self.group(false) {
                None => break,
                Some(Ok(Group::Skipped)) => {}
                Some(Err(error)) if !error.may_continue() => return Err(error),
                Some(_) => passed += 1,
            }
        }
        Ok(passed)
    }

    pub(super) fn name(&self) -> &str {
        self.blob.name()
    }

    pub(super) fn members(&mut self) -> &mut Members {
        &mut self.members
    }

    /// Where the walk stands, and where the next sample begins.
    pub(super) fn place(&self) -> Mark {
        Mark {
            number: self.number,
            offset: self.next,
        }
    }

    /// The next group, built or passed over; `None` at the end.
    pub(super) fn group(&mut self, build: bool) -> Option<Result<Group, SourceError>> {
        if let Some(error) = &self.broken {
            return Some(Err(error.clone()));
        }
        if self.done {
            return None;
        }
        let group = match self.scattered() {
            Some(index) => self.collect(&index, build),
            None => self.follow(build),
        };
        if let Some(Err(error)) = &group {
            if error.may_continue() {
                self.number += 1;
            } else {
                self.broken = Some(error.clone());
            }
        } else if group.is_none() {
            self.done = true;
        } else if let Some(Ok(Group::Record(_) | Group::Passed)) = &group {
            self.number += 1;
        } else if self.scattered().is_some() {
            // An index that was made otherwise has it: it is passed over, and not looked at for ever.
            self.number += 1;
        }
        group
    }

    /// Members that follow each other.
    fn follow(&mut self, build: bool) -> Option<Result<Group, SourceError>> {
        if !self.pending {
            match self.next_member() {
                Ok(true) => {}
                Ok(false) => {
                    self.next = self.members.next_offset();
                    return None;
                }
                Err(error) => return Some(Err(self.cut(&error, None))),
            }
        }
        self.next = self.members.member().offset;
        self.pending = false;
        let mut sample = Sample::new(self, build);
        let whole = self.options.grouping == Grouping::Whole;
        loop {
            if let Err(error) = sample.add(self) {
                return Some(Err(self.cut(&error, Some(&sample.key))));
            }
            if whole {
                break;
            }
            match self.next_member() {
                Ok(true) if self.key == sample.raw => {}
                Ok(more) => {
                    self.pending = more;
                    break;
                }
                Err(error) => return Some(Err(self.cut(&error, Some(&sample.key)))),
            }
        }
        if !whole && let Err(error) = self.check_whole(&sample) {
            return Some(Err(error));
        }
        let began = self.next;
        self.next = if self.pending {
            self.members.member().offset
        } else {
            self.members.next_offset()
        };
        if !whole && let Err(error) = self.check_repeat(&sample, began) {
            return Some(Err(error));
        }
        Some(sample.finish(self, began))
    }

    /// Members that the index knows to belong together.
    fn collect(&mut self, index: &Index, build: bool) -> Option<Result<Group, SourceError>> {
        let offsets = index.members(self.number)?;
        let mut sample: Option<Sample> = None;
        for offset in offsets {
            let there = self.members.seek(*offset).and_then(|()| self.next_member());
            match there {
                Ok(true) => {}
                Ok(false) => {
                    let message = "the archive has changed since it was indexed: a member is gone";
                    let error = SourceError::new(Fault::Damaged, self.blob.name(), message).at(*offset);
                    return Some(Err(error));
                }
                Err(error) => return Some(Err(error)),
            }
            let sample = sample.get_or_insert_with(|| Sample::new(self, build));
            if let Err(error) = sample.add(self) {
                return Some(Err(self.cut(&error, Some(&sample.key))));
            }
        }
        let began = offsets.first().copied().unwrap_or_default();
        sample.map(|sample| sample.finish(self, began))
    }

    /// An error that ends the archive, with what was whole before it.
    fn cut(&self, error: &SourceError, key: Option<&str>) -> SourceError {
        let mut message = error.message().to_owned();
        if let Some(key) = key {
            message = format!("{message}; sample {key} is not whole");
        }
        if !self.last.is_empty() {
            let last = text(&self.last, self.options.names);
            message = format!("{message}; the last whole sample is {last}");
        } else if self.number == 0 {
            message += "; there is no whole sample before it";
        }
        let mut told = SourceError::new(error.fault(), error.part(), message);
        if let Some(offset) = error.offset() {
            told = told.at(offset);
        }
        match error.key().or(key) {
            Some(key) => told.of(key),
            None => told,
        }
    }

    /// The last sample of an archive that ends without zeros may lack members.
    fn check_whole(&mut self, sample: &Sample) -> Result<(), SourceError> {
        if self.first_fields.is_none() && self.number == 0 {
            self.first_fields = Some(sample.seen.clone());
        }
        let short = self.members.end() == Some(End::Short);
        if self.pending || !(short || self.members.end() == Some(End::Bare)) || self.options.end == EndMark::Optional {
            return Ok(());
        }
        let message = if short {
            "the archive ends within the last block of a file: all that came behind it is cut off".to_owned()
        } else if self.options.end == EndMark::Required {
            "the archive ends without the zeros that should end it".to_owned()
        } else {
            let first = self.first_sample(sample)?;
            let lost: Vec<&str> = first
                .iter()
                .map(String::as_str)
                .filter(|field| !sample.has(field))
                .collect();
            if lost.is_empty() && self.number > 0 {
                return Ok(());
            }
            let mut message = "the archive ends without the zeros that should end it".to_owned();
            if lost.is_empty() {
                message += ", and has one sample";
            } else {
                message = format!("{message}, and without {} that the first sample has", lost.join(", "));
            }
            message + "; if it is whole, say so with end_mark \"optional\""
        };
        let error = self.members.stream().error(Fault::Truncated, message);
        Err(self.cut(&error, Some(&sample.key)))
    }

    /// The fields of the archive's first sample. A reader that began in the middle looks them up.
    fn first_sample(&mut self, sample: &Sample) -> Result<Vec<String>, SourceError> {
        if let Some(first) = &self.first_fields {
            return Ok(first.clone());
        }
        if self.number == 0 {
            return Ok(sample.seen.clone());
        }
        let stream = crate::source::stream::Stream::open(&self.blob)?;
        let members = Members::new(stream, self.options.past_end);
        let options = Options {
            end: EndMark::Optional,
            missing: Missing::Leave,
            ..(*self.options).clone()
        };
        let counters = Arc::new(Counters::default());
        let mut reader = Self::new(members, self.blob.clone(), Arc::new(options), counters, None);
        match reader.group(false) {
            Some(Err(error)) if !error.may_continue() => Err(error),
            _ => Ok(reader.first_fields.unwrap_or_default()),
        }
    }

    fn check_repeat(&mut self, sample: &Sample, began: u64) -> Result<(), SourceError> {
        if self.options.repeats {
            return Ok(());
        }
        let mut hasher = Hashed::default();
        hasher.write(&sample.raw);
        let hash = hasher.finish();
        if self.finished.contains(&hash) {
            let message = "the key came before, with others between: the files of a sample do not lie together; read them with \
                           grouping=\"scattered\", or allow repeats if these are different samples";
            return Err(SourceError::new(Fault::Record, self.blob.name(), message)
                .at(began)
                .of(&*sample.key));
        }
        if self.finished.len() < MOST_KEYS {
            self.finished.insert(hash);
        }
        Ok(())
    }
}

/// Mixes a key's bytes, eight at a time; a number is its own hash. Keys that are made to collide only make an error.
struct Hashed(u64);

impl Default for Hashed {
    fn default() -> Self {
        Self(0x243f_6a88_85a3_08d3)
    }
}

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        let mut mix = |word: u64| {
            let wide = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
            let halves = wide.to_le_bytes();
            let half = |at: usize| halves[at..].first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
            self.0 = half(0) ^ half(8);
        };
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        mix(u64::from_le_bytes(last));
        mix(bytes.len() as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A sample while its members are read.
struct Sample {
    raw: Vec<u8>,
    key: String,
    pairs: Vec<(String, Value)>,
    /// Pairs before the fields.
    heads: usize,
    /// All fields, also those that were not asked for.
    seen: Vec<String>,
    left: u64,
    build: bool,
    wrong: Option<SourceError>,
}

impl Sample {
    /// Of the member that the walk stands at.
    fn new(reader: &mut TarReader, build: bool) -> Self {
        let mut raw = std::mem::take(&mut reader.spare);
        raw.clone_from(&reader.key);
        let key = text(&reader.key, reader.options.names).into_owned();
        let mut pairs = Vec::new();
        if build {
            pairs.reserve(6);
            pairs.push(("__key__".to_owned(), Value::Str(key.clone())));
            if reader.options.url {
                pairs.push(("__url__".to_owned(), Value::Str(reader.blob.name().to_owned())));
            }
        }
        Self {
            raw,
            key,
            heads: pairs.len(),
            pairs,
            seen: Vec::new(),
            left: reader.options.max_sample_bytes,
            build,
            wrong: None,
        }
    }

    fn has(&self, field: &str) -> bool {
        self.seen.iter().any(|seen| seen == field)
    }

    fn fail(&mut self, reader: &TarReader, fault: Fault, message: String) {
        let error = SourceError::new(fault, reader.blob.name(), message);
        let member = reader.members.member();
        self.wrong
            .get_or_insert_with(|| error.at(member.offset).of(reader.members.display()));
    }

    /// Takes the member that the walk stands at. An error ends the archive; what is wrong with this sample alone is kept.
    fn add(&mut self, reader: &mut TarReader) -> Result<(), SourceError> {
        let field = text(&reader.field, reader.options.names).to_lowercase();
        let options = Arc::clone(&reader.options);
        let again = self.has(&field);
        let wanted = match &options.fields {
            None => Some(None),
            Some(fields) => fields
                .iter()
                .find(|wanted| wanted.of.contains(&field))
                .map(|wanted| wanted.name.as_deref()),
        };
        let name = match wanted {
            _ if options.grouping == Grouping::Whole && wanted.is_some() => "bytes",
            Some(name) => name.unwrap_or(&field),
            None => "",
        };
        if again && options.duplicates == Duplicates::Error {
            self.fail(reader, Fault::Record, format!("the sample has {field} twice"));
        }
        let taken = self.pairs[self.heads..].iter().position(|(known, _)| known == name);
        if !again && taken.is_some() && self.build {
            self.fail(reader, Fault::Record, format!("the sample has two files for {name}"));
        }
        if is_odd(&field) {
            reader.counters.odd_field(&reader.members.display());
        }
        let size = reader.members.member().size;
        let read = self.build
            && wanted.is_some()
            && self.wrong.is_none()
            && !(again && options.duplicates == Duplicates::First);
        if read && size > self.left {
            let limit = options.max_sample_bytes;
            let message = format!(
                "the sample has more than {limit} bytes, which are the limit; this member has {size}: raise max_sample_bytes if that is right"
            );
            self.fail(reader, Fault::TooLarge, message);
        } else if read {
            self.left -= size;
            let mut body = spare(usize::try_from(size).unwrap_or(usize::MAX));
            match reader.members.read(&mut body) {
                Ok(()) => {
                    let body = self.unpacked(reader, &field, body);
                    match taken {
                        Some(at) => self.pairs[self.heads + at].1 = Value::Bytes(body),
                        None => self.pairs.push((name.to_owned(), Value::Bytes(body))),
                    }
                }
                Err(error) if error.may_continue() => self.wrong = Some(error),
                Err(error) => return Err(error),
            }
        }
        reader.members.pass_over()?;
        if !again {
            self.seen.push(field);
        }
        Ok(())
    }

    fn unpacked(&mut self, reader: &TarReader, field: &str, body: Vec<u8>) -> Vec<u8> {
        if !reader.options.decompress {
            return body;
        }
        let ending = field.rsplit('.').next().unwrap_or(field);
        let codec = Codec::find(&body).filter(|codec| codec.endings().contains(&ending));
        let Some(codec) = codec else { return body };
        match codec.decode_all(body, self.left) {
            Ok(body) => {
                self.left -= body.len() as u64;
                body
            }
            Err(error) => {
                let (fault, message) = match error.kind() {
                    std::io::ErrorKind::FileTooLarge => {
                        let limit = reader.options.max_sample_bytes;
                        let message = format!(
                            "the sample has more than {limit} bytes, which are the limit, once this member is decompressed: raise \
                             max_sample_bytes if that is right"
                        );
                        (Fault::TooLarge, message)
                    }
                    _ => (Fault::Record, format!("the member cannot be decompressed: {error}")),
                };
                self.fail(reader, fault, message);
                Vec::new()
            }
        }
    }

    fn finish(self, reader: &mut TarReader, began: u64) -> Result<Group, SourceError> {
        if reader.first_fields.is_none() && reader.number == 0 {
            reader.first_fields = Some(self.seen.clone());
        }
        if reader.options.missing != Missing::Leave
            && let Some(absent) = reader.absent(&self.seen)
        {
            if reader.options.missing == Missing::Skip {
                reader.counters.incomplete.add();
                return Ok(Group::Skipped);
            }
            let message = format!(
                "there is no {}; there is {}",
                absent.of.join(" or "),
                self.seen.join(", ")
            );
            let error = SourceError::new(Fault::Absent, reader.blob.name(), message);
            return Err(error.at(began).of(self.key));
        }
        if let Some(error) = self.wrong {
            return Err(error);
        }
        reader.last.clone_from(&self.raw);
        reader.spare = self.raw;
        if !self.build {
            return Ok(Group::Passed);
        }
        Ok(Group::Record(Record {
            value: Value::Map(self.pairs),
            mark: Mark {
                number: reader.number,
                offset: began,
            },
            key: Some(self.key),
        }))
    }
}

/// Whether a field is one that a title with dots makes: `0 (live).mp3`.
fn is_odd(field: &str) -> bool {
    field
        .bytes()
        .any(|byte| matches!(byte, b' ' | b'(' | b')' | b',' | b'\''))
}

impl Reader for TarReader {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        loop {
            match self.group(true) {
                None => return Ok(None),
                Some(Err(error)) => return Err(error),
                Some(Ok(Group::Record(record))) => return Ok(Some(record)),
                Some(Ok(Group::Passed | Group::Skipped)) => {}
            }
        }
    }

    fn mark(&self) -> Mark {
        self.place()
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if let Some(index) = self
            .index
            .clone()
            .filter(|_| self.options.grouping != Grouping::Scattered)
            && count > 1
        {
            let to = self.number.saturating_add(count).min(index.len());
            let passed = to.saturating_sub(self.number);
            if passed > 0 {
                self.seek(to)?;
            }
            return Ok(passed);
        }
        if let Some(index) = self.scattered() {
            let passed = count.min(index.len().saturating_sub(self.number));
            self.number += passed;
            return Ok(passed);
        }
        self.members.hop(count > 1);
        let passed = self.pass(count);
        self.members.hop(false);
        passed
    }

    fn packed(&self) -> Option<&'static str> {
        self.members.stream().codec().map(Codec::name)
    }

    fn seek(&mut self, number: u64) -> Result<bool, SourceError> {
        // One that has failed is opened anew.
        let Some(index) = self.index.clone().filter(|_| self.broken.is_none()) else {
            return Ok(false);
        };
        let number = number.min(index.len());
        self.go_to(Mark {
            number,
            offset: index.offset(number),
        })?;
        Ok(true)
    }
}
