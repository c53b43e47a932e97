//! The frame around Arrow's record batches: which lie where, checked before anything is allocated.

use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::{Block, Endianness, Message, MessageHeader, MetadataVersion, root_as_footer, root_as_message};
use arrow_schema::{FieldRef, Schema, SchemaRef};

use super::filter::Filter;
use super::table::{Chunk, Extent, Places, Table};
use super::{choose, present, wrong};
use crate::source::window::Window;
use crate::source::{Fault, SourceError};

const MAGIC: &[u8] = b"ARROW1";
/// Most bytes of a message's head, or of the footer.
const HEAD: usize = 256 << 20;

/// A message with a body.
#[derive(Debug, Clone, Copy)]
struct Entry {
    offset: u64,
    /// Of the head with what frames it, and of the body behind it.
    head: usize,
    body: usize,
    /// Rows before it; a dictionary has none of its own.
    first: u64,
    rows: u64,
    dictionary: bool,
}

/// An open file or stream.
pub(super) struct Ipc {
    window: Window,
    schema: SchemaRef,
    version: MetadataVersion,
    entries: Vec<Entry>,
    rows: u64,
    decoder: FileDecoder,
    /// Entries before this one have given their dictionaries to the decoder.
    known: usize,
    /// Read from the file, by position among its columns, each once.
    read: Vec<usize>,
    /// Given, by position among those read.
    given: Vec<usize>,
    filter: Option<Arc<Filter>>,
    /// Whether a column that is not there is null everywhere.
    lenient: bool,
    limit: u64,
    /// The record batch that was read last, and which.
    batch: Option<(usize, RecordBatch)>,
    /// Whether the last one could not be, since a dictionary cannot, as none that comes behind that.
    unknown: bool,
}

impl Ipc {
    pub(super) fn open(
        mut window: Window,
        columns: Option<&[String]>,
        filter: Option<Arc<Filter>>,
        limit: u64,
        lenient: bool,
    ) -> Result<Self, SourceError> {
        let name = Arc::clone(window.name());
        let file = window.some(0, 6)? == MAGIC;
        let (schema, version, entries) = if file { footer(&mut window)? } else { scan(&mut window)? };
        let here = |names: &[String]| {
            if lenient {
                present(schema.fields(), names)
            } else {
                names.to_vec()
            }
        };
        let given = choose(&schema, columns.map(here).as_deref(), &name)?;
        let mut read = given.clone();
        if let Some(filter) = &filter {
            let names: Vec<_> = filter.columns().into_iter().map(str::to_owned).collect();
            read.extend(choose(&schema, Some(&here(&names)), &name)?);
        }
        read.sort_unstable();
        read.dedup();
        let given = given.iter().filter_map(|at| read.binary_search(at).ok()).collect();
        let rows = entries.last().map_or(0, |entry| entry.first + entry.rows);
        let decoder = FileDecoder::new(Arc::clone(&schema), version).with_projection(read.clone());
        Ok(Self {
            window,
            schema,
            version,
            entries,
            rows,
            decoder,
            known: 0,
            read,
            given,
            filter,
            lenient,
            limit,
            batch: None,
            unknown: false,
        })
    }

    /// The columns that are given, and all that there are.
    pub(super) fn fields(&self) -> (Vec<FieldRef>, SchemaRef) {
        let field = |at: &usize| Arc::clone(&self.schema.fields()[self.read[*at]]);
        (self.given.iter().map(field).collect(), Arc::clone(&self.schema))
    }

    /// The bytes of a message.
    fn bytes(&mut self, entry: Entry) -> Result<Buffer, SourceError> {
        let name = Arc::clone(self.window.name());
        let too_large = |len: u64| {
            let message = format!(
                "a record batch has {len} bytes, the limit (max_batch_bytes) is {}: raise it if that is right",
                self.limit
            );
            // Nothing behind it is read: rows would be missing without a word.
            SourceError::new(Fault::Unsupported, &*name, message).at(entry.offset)
        };
        let len = entry.head + entry.body;
        if len as u64 > self.limit {
            return Err(too_large(len as u64));
        }
        let mut bytes = vec![0; len];
        self.window.fill(entry.offset, &mut bytes, "a record batch")?;
        // What compressed buffers say of their size must not be believed.
        let unpacked = unpacked(&bytes, entry.head).map_err(|why| damaged(&name, entry.offset, why))?;
        if unpacked > self.limit {
            return Err(too_large(unpacked));
        }
        Ok(Buffer::from_vec(bytes))
    }

    /// Has the decoder know the dictionaries that come before an entry.
    fn learn(&mut self, entry: usize) -> Result<(), SourceError> {
        if entry < self.known {
            self.decoder = FileDecoder::new(Arc::clone(&self.schema), self.version).with_projection(self.read.clone());
            self.known = 0;
        }
        while self.known < entry {
            let at = self.entries[self.known];
            if at.dictionary {
                let bytes = self.bytes(at)?;
                let read = self.decoder.read_dictionary(&block(at), &bytes);
                read.map_err(|error| wrong(self.window.name(), &error).at(at.offset))?;
            }
            self.known += 1;
        }
        Ok(())
    }

    /// The entry in which a row lies.
    fn at(&self, row: u64) -> usize {
        self.entries.partition_point(|entry| entry.first + entry.rows <= row)
    }

    /// Whether a record batch has as many rows as its first column.
    fn counts(&mut self, entry: Entry) -> bool {
        let head = self.window.exact(entry.offset, entry.head, "a record batch");
        let message = head.ok().and_then(|head| message(head).ok());
        let batch = message.and_then(|message| message.header_as_record_batch());
        let mut nodes = batch.and_then(|batch| batch.nodes()).into_iter().flatten();
        nodes
            .next()
            .is_some_and(|node| u64::try_from(node.length()) == Ok(entry.rows))
    }

    /// The record batch in which a row lies: what is left of it from there.
    fn load(&mut self, row: u64) -> Result<(RecordBatch, u64), SourceError> {
        let at = self.at(row);
        let Some(&entry) = self.entries.get(at) else {
            return Err(damaged(self.window.name(), 0, "there is no such row"));
        };
        if self.batch.as_ref().is_none_or(|(held, _)| *held != at) {
            self.batch = None;
            self.unknown = true;
            self.learn(at)?;
            self.unknown = false;
            let bytes = self.bytes(entry)?;
            let name = Arc::clone(self.window.name());
            let batch = self.decoder.read_record_batch(&block(entry), &bytes);
            let batch = batch.map_err(|error| wrong(&name, &error).at(entry.offset))?;
            let batch = batch.filter(|batch| batch.num_rows() as u64 == entry.rows);
            let batch = batch.ok_or_else(|| damaged(&name, entry.offset, "its number of rows is not what it says"))?;
            self.batch = Some((at, batch));
        }
        match &self.batch {
            Some((_, batch)) => Ok((batch.clone(), entry.first)),
            None => Err(damaged(self.window.name(), entry.offset, "no record batch was read")),
        }
    }
}

/// Rows that a filter looks at together, at least.
const WINDOW: usize = 256;

impl Table for Ipc {
    fn rows(&self) -> u64 {
        self.rows
    }

    fn chunk(&mut self, row: u64, most: usize) -> Result<Chunk, SourceError> {
        let name = Arc::clone(self.window.name());
        let (batch, first) = self.load(row)?;
        let from = usize::try_from(row - first).unwrap_or(usize::MAX);
        let left = batch.num_rows().saturating_sub(from);
        let (chosen, places, rows) = match &self.filter {
            None => {
                let rows = left.min(most);
                (batch.slice(from, rows), Places::From(row), rows)
            }
            Some(filter) => {
                // Up to `most` rows that passed: a state names a block by its place and their number.
                let mut mask: Vec<bool> = Vec::new();
                let mut passed = 0;
                while passed < most && mask.len() < left {
                    let rows = (left - mask.len()).min(most.max(WINDOW));
                    let held = filter
                        .mask(&batch.slice(from + mask.len(), rows), self.lenient)
                        .map_err(|why| SourceError::new(Fault::Unsupported, &*name, why))?;
                    for holds in held {
                        if passed < most {
                            mask.push(holds == Some(true));
                            passed += usize::from(holds == Some(true));
                        }
                    }
                }
                let rows = mask.len();
                let batch = batch.slice(from, rows);
                let places = (row..)
                    .zip(&mask)
                    .filter(|(_, holds)| **holds)
                    .map(|(row, _)| row)
                    .collect();
                let kept = arrow_select::filter::filter_record_batch(&batch, &BooleanArray::from(mask));
                (
                    kept.map_err(|error| wrong(&name, &error))?,
                    Places::Chosen(places),
                    rows,
                )
            }
        };
        let end = row + rows as u64;
        let batch = chosen.project(&self.given).map_err(|error| wrong(&name, &error))?;
        Ok(Chunk { batch, places, end })
    }

    fn extent(&mut self, row: u64) -> Option<Extent> {
        let entry = self.entries.get(self.at(row)).copied()?;
        let found = !self.unknown && self.counts(entry);
        // A batch is decoded whole.
        found.then_some(Extent {
            end: entry.first + entry.rows,
            whole: true,
        })
    }

    fn named(&mut self, row: u64, error: &SourceError) -> SourceError {
        let at = self.at(row);
        let number = self.entries.iter().take(at).filter(|entry| !entry.dictionary).count();
        let (first, last) = self.entries.get(at).map_or((row, row), |entry| {
            (entry.first, (entry.first + entry.rows).saturating_sub(1))
        });
        let message = format!("record batch {number} (rows {first} to {last}): {}", error.message());
        let named = SourceError::new(Fault::Record, error.part(), message);
        match error.offset() {
            Some(offset) => named.at(offset),
            None => named,
        }
    }

    fn wanted(&self, row: u64) -> Option<u64> {
        self.filter.is_none().then_some(row)
    }

    fn filtered(&self) -> bool {
        self.filter.is_some()
    }

    /// A batch is decoded whole, so that smaller pieces of it save nothing.
    fn row_bytes(&self) -> u64 {
        1
    }
}

fn damaged(name: &str, at: u64, message: impl Into<String>) -> SourceError {
    SourceError::new(Fault::Damaged, name, message).at(at)
}

fn block(entry: Entry) -> Block {
    let head = i32::try_from(entry.head).unwrap_or(0);
    Block::new(entry.offset.cast_signed(), head, i64::try_from(entry.body).unwrap_or(0))
}

/// The head of a message without its frame: a length, which newer writers put behind four bytes of ones.
fn framed(bytes: &[u8]) -> &[u8] {
    match bytes {
        [0xff, 0xff, 0xff, 0xff, _, _, _, _, rest @ ..] | [_, _, _, _, rest @ ..] => rest,
        _ => &[],
    }
}

fn message(bytes: &[u8]) -> Result<Message<'_>, String> {
    root_as_message(framed(bytes)).map_err(|error| format!("a message's head is none: {error}"))
}

/// Bytes of the buffers of a record batch or dictionary, uncompressed, as they say themselves.
fn unpacked(bytes: &[u8], head: usize) -> Result<u64, String> {
    let (head, body) = bytes
        .split_at_checked(head)
        .ok_or("a message is shorter than its head")?;
    let message = message(head)?;
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => message
            .header_as_dictionary_batch()
            .and_then(|dictionary| dictionary.data()),
        _ => None,
    };
    let batch = batch.ok_or("a message is neither a record batch nor a dictionary")?;
    let mut total = 0_u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let place = usize::try_from(buffer.offset())
            .ok()
            .zip(usize::try_from(buffer.length()).ok());
        let piece = place.and_then(|(at, len)| body.get(at..at.checked_add(len)?));
        let piece = piece.ok_or("a buffer does not lie in its record batch")?;
        let len = match (batch.compression(), piece.get(..8)) {
            (Some(_), Some(eight)) => {
                let len = eight.try_into().map_or(0, i64::from_le_bytes);
                u64::try_from(len).unwrap_or(piece.len() as u64)
            }
            _ => piece.len() as u64,
        };
        total = total.saturating_add(len);
    }
    Ok(total)
}

type Described = (SchemaRef, MetadataVersion, Vec<Entry>);

/// Where a file's blocks lie, by its footer; the rows of each by its head.
fn footer(window: &mut Window) -> Result<Described, SourceError> {
    let (name, size) = (Arc::clone(window.name()), window.len());
    let end = size.saturating_sub(10);
    let tail = window.exact(end, 10, "the footer")?;
    if &tail[4..] != MAGIC {
        let message = "an Arrow file ends in ARROW1, and this does not: it is cut off";
        return Err(SourceError::new(Fault::Truncated, &*name, message).at(size));
    }
    let len = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    let start = end.checked_sub(len).filter(|_| len <= HEAD as u64);
    let start = start.ok_or_else(|| damaged(&name, end, format!("the footer cannot have {len} bytes")))?;
    let bytes = window
        .exact(start, usize::try_from(len).unwrap_or(HEAD), "the footer")?
        .to_vec();
    let footer =
        root_as_footer(&bytes).map_err(|error| damaged(&name, start, format!("the footer is none: {error}")))?;
    let schema = footer
        .schema()
        .ok_or_else(|| damaged(&name, start, "the footer has no schema"))?;
    let schema = columns(schema, &name, start)?;
    let mut entries = Vec::new();
    let dictionaries = footer.dictionaries().into_iter().flatten().map(|block| (block, true));
    let batches = footer.recordBatches().into_iter().flatten().map(|block| (block, false));
    for (block, dictionary) in dictionaries.chain(batches) {
        let place = u64::try_from(block.offset()).ok();
        let head = usize::try_from(block.metaDataLength())
            .ok()
            .filter(|head| *head <= HEAD);
        let body = usize::try_from(block.bodyLength()).ok();
        let (Some(offset), Some(head), Some(body)) = (place, head, body) else {
            return Err(damaged(&name, start, "the footer has a block of an impossible size"));
        };
        let ends = offset
            .checked_add(head as u64)
            .and_then(|at| at.checked_add(body as u64));
        if ends.is_none_or(|ends| ends > size) {
            return Err(damaged(
                &name,
                start,
                format!("a block at {offset} does not end in the file's {size} bytes"),
            ));
        }
        entries.push(Entry {
            offset,
            head,
            body,
            first: 0,
            rows: 0,
            dictionary,
        });
    }
    let mut first = 0_u64;
    for entry in &mut entries {
        entry.first = first;
        if !entry.dictionary {
            let bytes = window.exact(entry.offset, entry.head, "a record batch")?;
            entry.rows = rows(bytes).map_err(|why| damaged(&name, entry.offset, why))?;
            first = first.saturating_add(entry.rows);
        }
    }
    Ok((Arc::new(schema), footer.version(), entries))
}

/// The columns. Those of the other byte order are refused: the decoder takes their bytes as they are.
fn columns(schema: arrow_ipc::Schema<'_>, name: &str, at: u64) -> Result<Schema, SourceError> {
    if schema.endianness() != Endianness::Little {
        let message = "its numbers are big-endian, and only little-endian ones are read: write it anew on a machine of this byte order";
        return Err(SourceError::new(Fault::Unsupported, name, message).at(at));
    }
    try_fb_to_schema(schema).map_err(|error| wrong(name, &error).at(at))
}

fn rows(bytes: &[u8]) -> Result<u64, String> {
    let message = message(bytes)?;
    let batch = message.header_as_record_batch().ok_or("it is no record batch")?;
    // Columns are counted in 32 bits at least once in every format, and none has more rows than that.
    match u64::try_from(batch.length()) {
        Ok(rows) if rows <= 1 << 40 => Ok(rows),
        _ => Err(format!("a record batch cannot have {} rows", batch.length())),
    }
}

/// Where a stream's messages lie, by one pass over their heads.
fn scan(window: &mut Window) -> Result<Described, SourceError> {
    let (name, size) = (Arc::clone(window.name()), window.len());
    let mut at = 0_u64;
    let mut described: Option<(SchemaRef, MetadataVersion)> = None;
    let (mut entries, mut first) = (Vec::new(), 0_u64);
    while at < size {
        let frame = window.exact(at, 4, "a message")?;
        let (framing, len) = if frame == [0xff; 4] {
            let eight = window.exact(at, 8, "a message")?;
            (8, u32::from_le_bytes([eight[4], eight[5], eight[6], eight[7]]))
        } else {
            (4, u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]))
        };
        if len == 0 {
            break;
        }
        let head = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(framing);
        if head > HEAD || (described.is_none() && head as u64 > size - at) {
            return Err(damaged(
                &name,
                at,
                format!("a message's head of {len} bytes: this is no Arrow file or stream"),
            ));
        }
        let bytes = window.exact(at, head, "a message")?;
        let message = message(bytes).map_err(|why| damaged(&name, at, why))?;
        let body = u64::try_from(message.bodyLength()).ok();
        let end = body.and_then(|body| at.checked_add(head as u64)?.checked_add(body));
        let Some((body, end)) = body.and_then(|body| usize::try_from(body).ok()).zip(end) else {
            return Err(damaged(&name, at, "a message's body has an impossible size"));
        };
        if end > size {
            let text = format!("a message ends at byte {end}, and the stream at {size}: it is cut off");
            return Err(SourceError::new(Fault::Truncated, &*name, text).at(at));
        }
        let entry = Entry {
            offset: at,
            head,
            body,
            first,
            rows: 0,
            dictionary: true,
        };
        match (message.header_type(), &described) {
            (MessageHeader::Schema, None) => {
                let schema = message.header_as_schema();
                let schema = schema.ok_or_else(|| damaged(&name, at, "the schema is none"))?;
                let schema = columns(schema, &name, at)?;
                described = Some((Arc::new(schema), message.version()));
            }
            (MessageHeader::DictionaryBatch, Some(_)) => entries.push(entry),
            (MessageHeader::RecordBatch, Some(_)) => {
                let rows = rows(bytes).map_err(|why| damaged(&name, at, why))?;
                entries.push(Entry {
                    rows,
                    dictionary: false,
                    ..entry
                });
                first = first.saturating_add(rows);
            }
            (kind, _) => {
                let text = format!("a message of type {kind:?} is not read here");
                return Err(damaged(&name, at, text));
            }
        }
        at = end;
    }
    let (schema, version) = described
        .ok_or_else(|| SourceError::new(Fault::Truncated, &*name, "there is no schema: it is cut off").at(0))?;
    Ok((schema, version, entries))
}
