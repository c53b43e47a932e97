//! Directories of a TIFF: tags and their values.

use super::{damaged, short};
use crate::decode::ImageError;

/// Byte order and the width of offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) big: bool,
    /// BigTIFF: offsets of 8 bytes.
    wide: bool,
}

impl Order {
    pub(super) fn u16(self, two: [u8; 2]) -> u16 {
        if self.big {
            u16::from_be_bytes(two)
        } else {
            u16::from_le_bytes(two)
        }
    }

    pub(super) fn u32(self, four: [u8; 4]) -> u32 {
        if self.big {
            u32::from_be_bytes(four)
        } else {
            u32::from_le_bytes(four)
        }
    }

    /// A number of `size` bytes at `at`.
    fn number(self, bytes: &[u8], at: usize, size: usize) -> Option<u64> {
        let slice = bytes.get(at..at.checked_add(size)?)?;
        let mut eight = [0; 8];
        if self.big {
            eight[8 - size..].copy_from_slice(slice);
            Some(u64::from_be_bytes(eight))
        } else {
            eight[..size].copy_from_slice(slice);
            Some(u64::from_le_bytes(eight))
        }
    }

    fn offset(self, bytes: &[u8], at: usize) -> Option<usize> {
        usize::try_from(self.number(bytes, at, if self.wide { 8 } else { 4 })?).ok()
    }
}

/// One directory: one page.
#[derive(Debug)]
pub(super) struct Directory<'a> {
    bytes: &'a [u8],
    pub(super) order: Order,
    /// Where the entries begin, and how many there are.
    entries: usize,
    count: usize,
}

impl<'a> Directory<'a> {
    /// Page `wanted`, or the last there is; with how many pages were seen.
    pub(super) fn find(bytes: &'a [u8], wanted: u32) -> Result<(Self, u32), ImageError> {
        let order = Order {
            big: bytes.starts_with(b"MM"),
            wide: bytes[2..4].contains(&43),
        };
        let mut seen = std::collections::HashSet::new();
        let first = if order.wide { 8 } else { 4 };
        let mut at = order.offset(bytes, first).ok_or_else(short)?;
        let mut pages = 0_u32;
        loop {
            let (count, head) = if order.wide {
                (order.number(bytes, at, 8), 8)
            } else {
                (order.number(bytes, at, 2), 2)
            };
            let count = count.and_then(|n| usize::try_from(n).ok()).ok_or_else(short)?;
            let entry = if order.wide { 20 } else { 12 };
            let entries = at + head;
            let end = count
                .checked_mul(entry)
                .and_then(|len| len.checked_add(entries))
                .ok_or_else(short)?;
            if end > bytes.len() {
                return Err(short());
            }
            let found = Self {
                bytes,
                order,
                entries,
                count,
            };
            seen.insert(at);
            let next = order.offset(bytes, end).unwrap_or(0);
            pages += 1;
            // A directory that was seen before is the end, as in Pillow; so is one that is not there.
            let over = next == 0 || seen.contains(&next) || next >= bytes.len();
            if over || pages > wanted {
                return Ok((found, pages));
            }
            at = next;
        }
    }

    /// How many pages there are.
    pub(super) fn pages(bytes: &[u8]) -> Result<u32, ImageError> {
        Directory::find(bytes, u32::MAX - 1).map(|(_, pages)| pages)
    }

    /// The values of a tag: none where it is not there, or is not of whole numbers.
    pub(super) fn values(&self, tag: u16) -> Result<Vec<u64>, ImageError> {
        let wide = self.order.wide;
        let entry = if wide { 20 } else { 12 };
        for i in 0..self.count {
            let at = self.entries + i * entry;
            let number = |offset, size| self.order.number(self.bytes, at + offset, size).ok_or_else(short);
            if number(0, 2)? != u64::from(tag) {
                continue;
            }
            let size = match number(2, 2)? {
                1 | 2 | 6 | 7 => 1,
                3 | 8 => 2,
                4 | 9 | 13 => 4,
                16..=18 => 8,
                _ => return Ok(Vec::new()),
            };
            let (count, inline) = if wide { (number(4, 8)?, 8) } else { (number(4, 4)?, 4) };
            let count = usize::try_from(count).map_err(|_| short())?;
            let len = count.checked_mul(size).filter(|len| *len <= self.bytes.len());
            let len = len.ok_or_else(|| damaged(format!("tag {tag} says that it has {count} values")))?;
            let value = at + if wide { 12 } else { 8 };
            let from = if len <= inline {
                value
            } else {
                self.order.offset(self.bytes, value).ok_or_else(short)?
            };
            return (0..count)
                .map(|i| self.order.number(self.bytes, from.checked_add(i * size)?, size))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(short);
        }
        Ok(Vec::new())
    }

    /// The first value of a tag.
    pub(super) fn value(&self, tag: u16) -> Result<Option<u64>, ImageError> {
        Ok(self.values(tag)?.first().copied())
    }

    /// Bytes of a tag that holds some.
    pub(super) fn bytes(&self, tag: u16) -> Result<Vec<u8>, ImageError> {
        Ok(self
            .values(tag)?
            .into_iter()
            .filter_map(|value| u8::try_from(value).ok())
            .collect())
    }
}
