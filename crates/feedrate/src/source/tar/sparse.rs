//! Files with holes.

use super::header::{BLOCK, number};
use super::pax::decimal;
use crate::source::stream::Stream;
use crate::source::{Fault, SourceError};

/// More pieces than this are refused.
const MOST_EXTENTS: usize = 1 << 20;

/// A piece of data in a file with holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Where the data of a file lies; between are zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) extents: Vec<Extent>,
    /// Length of the file with its holes.
    pub(super) size: u64,
}

impl Map {
    /// Checks that pieces are in order, lie in the file and are what is stored.
    pub(super) fn check(&self, stored: u64) -> Result<(), &'static str> {
        let (mut end, mut sum) = (0_u64, 0_u64);
        for extent in &self.extents {
            if extent.offset < end {
                return Err("its map of holes has pieces that overlap or are out of order");
            }
            end = extent
                .offset
                .checked_add(extent.length)
                .ok_or("its map of holes overflows")?;
            sum += extent.length;
        }
        if end > self.size {
            return Err("its map of holes reaches beyond its size");
        }
        if sum != stored {
            return Err("its map of holes does not fit the data that is stored");
        }
        Ok(())
    }

    /// Reads the pieces and puts zeros between.
    pub(super) fn expand(&self, stream: &mut Stream, into: &mut Vec<u8>) -> Result<(), SourceError> {
        let too_large =
            |stream: &Stream| stream.error(Fault::TooLarge, "a file with holes is larger than memory can be");
        for extent in &self.extents {
            let offset = usize::try_from(extent.offset).map_err(|_| too_large(stream))?;
            into.resize(offset, 0);
            stream.take(extent.length, into)?;
        }
        into.resize(usize::try_from(self.size).map_err(|_| too_large(stream))?, 0);
        Ok(())
    }
}

/// What the header of an old GNU file with holes says, and the blocks that follow where it says so. The stream stands behind the header.
pub(super) fn read_old(header: &[u8; BLOCK], stream: &mut Stream) -> Result<Map, SourceError> {
    let bad = |stream: &Stream| stream.error(Fault::Damaged, "the map of holes has something that is no number");
    let mut map = Map {
        extents: Vec::new(),
        size: number(&header[483..495]).ok_or_else(|| bad(stream))?,
    };
    let mut more = header[482] != 0 && header[482] != b'0';
    entries(&header[386..482], &mut map).ok_or_else(|| bad(stream))?;
    while more {
        if map.extents.len() > MOST_EXTENTS {
            return Err(stream.error(
                Fault::TooLarge,
                format!("the map of holes has more than {MOST_EXTENTS} pieces"),
            ));
        }
        let Some(block) = stream.at_least(BLOCK)?.first_chunk::<BLOCK>() else {
            return Err(stream.error(Fault::Truncated, "it ends in a map of holes"));
        };
        let read = entries(&block[..504], &mut map);
        more = block[504] != 0 && block[504] != b'0';
        read.ok_or_else(|| bad(stream))?;
        stream.consume(BLOCK);
    }
    Ok(map)
}

/// Pairs of numbers; an entry that is empty ends the list.
fn entries(bytes: &[u8], map: &mut Map) -> Option<()> {
    for entry in bytes.chunks_exact(24) {
        if entry[0] == 0 {
            break;
        }
        map.extents.push(Extent {
            offset: number(&entry[..12])?,
            length: number(&entry[12..])?,
        });
    }
    Some(())
}

/// The map in front of a body (version 1.0): a count, then pairs, a number on each line, padded to a block. Gives the bytes that it took.
pub(super) fn read_new(stream: &mut Stream, stored: u64, size: u64) -> Result<(Map, u64), SourceError> {
    let from = stream.offset();
    let mut map = Map {
        extents: Vec::new(),
        size,
    };
    let (mut left, mut offset): (Option<u64>, Option<u64>) = (None, None);
    let mut digits = [0; 20];
    while left != Some(0) {
        let mut length = 0;
        loop {
            let taken = stream.offset() - from;
            let byte = stream.some()?.first().copied();
            match byte {
                _ if taken >= stored => return Err(stream.error(Fault::Damaged, "the map of holes does not end")),
                None => return Err(stream.error(Fault::Truncated, "it ends in a map of holes")),
                Some(b'\n') => break,
                Some(byte) if length < digits.len() => digits[length] = byte,
                Some(_) => return Err(stream.error(Fault::Damaged, "the map of holes has a line that is too long")),
            }
            length += 1;
            stream.consume(1);
        }
        stream.consume(1);
        let Some(value) = decimal(&digits[..length]) else {
            return Err(stream.error(Fault::Damaged, "the map of holes has something that is no number"));
        };
        match (&mut left, offset.take()) {
            (None, _) if value > MOST_EXTENTS as u64 => {
                let message = format!("the map of holes has {value} pieces; {MOST_EXTENTS} are the limit");
                return Err(stream.error(Fault::TooLarge, message));
            }
            (None, _) => left = Some(value),
            (Some(_), None) => offset = Some(value),
            (Some(left), Some(offset)) => {
                map.extents.push(Extent { offset, length: value });
                *left -= 1;
            }
        }
    }
    let taken = (stream.offset() - from).next_multiple_of(BLOCK as u64);
    let padding = taken - (stream.offset() - from);
    if taken > stored || stream.pass(padding)? < padding {
        return Err(stream.error(Fault::Truncated, "it ends in a map of holes"));
    }
    Ok((map, taken))
}
