//! What a reader gives, and where it stands.

use crate::batch::Value;

/// A place in a part, from which reading goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mark {
    /// Records before it.
    pub number: u64,
    /// Where it lies, in the unit that the format seeks by: for most the byte offset in the uncompressed part; 0 where `number`
    /// is all that is needed.
    pub offset: u64,
}

/// One sample as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its fields, as a map for every format.
    pub value: Value,
    /// Where it begins.
    pub mark: Mark,
    /// What the format calls it, if it does: a WebDataset key, a path.
    pub key: Option<String>,
}
