//! How documents are packed into sequences.

use std::fmt;

/// Which open sequence takes a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fit {
    /// The first one, in the order in which they were begun, with enough room (D. S. Johnson, 1973).
    #[default]
    First,
    /// The one in which it leaves the least room.
    Best,
}

/// What happens to a document that is longer than a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Long {
    /// It is cut into pieces of the sequence's length; each counts as a document of its own, and its positions go on.
    #[default]
    Split,
    /// Its end is left out.
    Truncate,
    /// It is an error.
    Refuse,
}

/// How documents (one-dimensional tensors, or maps of such with equal lengths) are packed into sequences of a fixed length.
///
/// A sequence is a map. For each field: its tokens, filled up with `padding`. And of the first field `segment_ids` (1 for the first
/// document in the sequence, 2 for the next, 0 for padding) and `positions` (from 0 in each document), both `int32`.
#[derive(Debug, Clone, PartialEq)]
pub struct Packing {
    /// Tokens in a sequence.
    pub length: usize,
    /// Sequences that are open at a time: more of them leave less padding, and hold more memory. A document that fits in none closes the
    /// fullest.
    pub open: usize,
    /// Which of them takes a document.
    pub fit: Fit,
    /// What happens to longer documents.
    pub long: Long,
    /// The fields to pack, the first one deciding the length; none: all.
    pub fields: Vec<String>,
    /// What fills a sequence up.
    pub padding: i64,
}

impl Packing {
    /// Into sequences of so many tokens, first fit, 64 open at a time.
    pub fn of(length: usize) -> Self {
        Self {
            length: length.max(1),
            open: 64,
            fit: Fit::First,
            long: Long::Split,
            fields: Vec::new(),
            padding: 0,
        }
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pack({}, open={}, fit={:?}, long={:?}, fields={:?}, padding={})",
            self.length, self.open, self.fit, self.long, self.fields, self.padding
        )
    }
}
