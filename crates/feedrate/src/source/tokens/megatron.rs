//! Megatron's index: where the sequences of a `.bin` lie, and which of them are a document.
//!
//! Nine bytes of magic, version (u64), type code (u8), number of sequences (u64) and of document bounds (u64); then the
//! sequences' lengths (i32 each) and byte offsets (i64 each), and the bounds of documents as sequence numbers (i64 each). Files of several
//! modalities have a byte for each sequence behind that, which is not read.

use std::sync::Arc;

use crate::batch::DType;
use crate::source::window::Window;
use crate::source::{Fault, SourceError};

const HEADER: u64 = 34;

/// An open index. Its tables stay in the file.
#[derive(Debug)]
pub(super) struct Megatron {
    window: Window,
    /// Each of the three tables has a read-ahead of its own.
    bounds: Window,
    pointers: Window,
    dtype: DType,
    sequences: u64,
    documents: u64,
}

impl Megatron {
    pub(super) fn open(mut window: Window) -> Result<Self, SourceError> {
        let name = Arc::clone(window.name());
        let size = window.len();
        let wrong = |fault, at, message: String| Err(SourceError::new(fault, &*name, message).at(at));
        let head = window.exact(0, 34, "the index's header")?;
        let number = |at: usize| head[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        if head[..9] != *b"MMIDIDX\0\0" {
            return wrong(
                Fault::Damaged,
                0,
                "it does not begin with MMIDIDX, as Megatron's index does".into(),
            );
        }
        let (version, code, sequences, bounds) = (number(9), head[17], number(18), number(26));
        if version != 1 {
            return wrong(
                Fault::Unsupported,
                9,
                format!("version {version} of the index: 1 is read"),
            );
        }
        let dtype = match code {
            1 => DType::U8,
            2 => DType::I8,
            3 => DType::I16,
            4 => DType::I32,
            5 => DType::I64,
            6 => DType::F64,
            7 => DType::F32,
            8 => DType::U16,
            code => return wrong(Fault::Unsupported, 17, format!("type code {code}: 1 to 8 are known")),
        };
        let needed = sequences
            .checked_mul(12)
            .and_then(|n| n.checked_add(bounds.checked_mul(8)?)?.checked_add(HEADER));
        if needed.is_none_or(|needed| needed > size) {
            return wrong(
                Fault::Truncated,
                18,
                format!(
                    "an index of {sequences} sequences and {bounds} document bounds is longer than its {size} bytes"
                ),
            );
        }
        Ok(Self {
            bounds: window.again(),
            pointers: window.again(),
            window,
            dtype,
            sequences,
            documents: bounds.saturating_sub(1),
        })
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn documents(&self) -> u64 {
        self.documents
    }

    /// Byte offsets and byte lengths of the pieces of a document, in a file of `bytes`. Neighbours are joined.
    pub(super) fn document(&mut self, number: u64, bytes: u64) -> Result<Vec<(u64, u64)>, SourceError> {
        let name = Arc::clone(self.window.name());
        let wrong = |at, message: String| {
            SourceError::new(Fault::Record, &*name, message)
                .of(format!("document {number}"))
                .at(at)
        };
        let at = HEADER + self.sequences * 12 + number * 8;
        let pair = self.bounds.exact(at, 16, "a document's bounds")?;
        let bound = |at: usize| pair[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let (first, last) = (bound(0), bound(8));
        if first > last || last > self.sequences {
            let message = format!("its sequences are {first} to {last}, and there are {}", self.sequences);
            return Err(wrong(at, message));
        }
        let size = self.dtype.size() as u64;
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        let mut total = 0;
        for sequence in first..last {
            let place = HEADER + sequence * 4;
            let four = self.window.exact(place, 4, "a sequence's length")?;
            let len = four.try_into().map_or(-1, i32::from_le_bytes);
            let pointers = HEADER + self.sequences * 4 + sequence * 8;
            let eight = self.pointers.exact(pointers, 8, "a sequence's offset")?;
            let start = eight.try_into().map_or(0, u64::from_le_bytes);
            let len = u64::try_from(len).ok().map(|len| len * size);
            let end = len.and_then(|len| start.checked_add(len)).filter(|end| *end <= bytes);
            let (Some(len), Some(_)) = (len, end) else {
                let message = format!(
                    "sequence {sequence} begins at byte {start} and does not end in the {bytes} bytes of tokens"
                );
                return Err(wrong(place, message));
            };
            total += len;
            if total > bytes {
                return Err(wrong(
                    at,
                    format!("its sequences have more than the {bytes} bytes of tokens"),
                ));
            }
            match pieces.last_mut() {
                Some((before, held)) if *before + *held == start => *held += len,
                _ => pieces.push((start, len)),
            }
        }
        Ok(pieces)
    }
}
