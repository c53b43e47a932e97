//! What can be wrong with a shard.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

/// What kind of wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// It is not there, or may not be read.
    Missing,
    /// The system failed while reading.
    Io,
    /// It ends before it should.
    Truncated,
    /// It says of itself what cannot be: a checksum, a length, a header.
    Damaged,
    /// One record is bad; those behind it can be read.
    Record,
    /// It is right, and holds something that is not read here.
    Unsupported,
    /// It holds more than the limits allow.
    TooLarge,
    /// What was asked for is not in it: a column, a field.
    Absent,
    /// Nothing: who asked for it has said to give up.
    Interrupted,
}

impl Fault {
    /// Whether it says nothing of what is stored, so that who reads the same elsewhere need not see it.
    pub(crate) fn passing(self) -> bool {
        matches!(self, Self::Missing | Self::Io | Self::Interrupted)
    }
}

/// Why there is no record.
#[derive(Debug, Clone)]
pub struct SourceError {
    fault: Fault,
    part: String,
    key: Option<String>,
    offset: Option<u64>,
    message: String,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl SourceError {
    /// An error in the part of this name. `message` says both values and what to do, where there is something.
    pub fn new(fault: Fault, part: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            fault,
            part: part.into(),
            key: None,
            offset: None,
            message: message.into(),
            cause: None,
        }
    }

    /// An error once [`asking`](crate::pipeline::asking) says to give up; to be called for each record that an index passes.
    pub(super) fn unless_interrupted(part: &str) -> Result<(), Self> {
        if crate::asking::go_on() {
            return Ok(());
        }
        Err(Self::new(Fault::Interrupted, part, "interrupted while it was indexed"))
    }

    /// What the system said about the part of this name.
    pub fn io(part: impl Into<String>, error: &io::Error) -> Self {
        let fault = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Fault::Missing,
            io::ErrorKind::UnexpectedEof => Fault::Truncated,
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Fault::Damaged,
            _ => Fault::Io,
        };
        Self::new(fault, part, error.to_string())
    }

    /// With the byte offset in the uncompressed part.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// With the name of the record or member.
    #[must_use]
    pub fn of(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// With what another language or library raised.
    #[must_use]
    pub fn because(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// What another language or library raised, if it did.
    pub fn cause(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.cause.as_deref()
    }

    /// What kind of wrong.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// The part's name.
    pub fn part(&self) -> &str {
        &self.part
    }

    /// The record or member, if it has a name.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Byte offset in the uncompressed part, if it is known.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the reader that said this can go on with the next record.
    pub fn may_continue(&self) -> bool {
        matches!(self.fault, Fault::Record | Fault::TooLarge | Fault::Absent)
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.part)?;
        // A file that is a record itself has its name in its path.
        let told = |key: &str| {
            let before = self.part.strip_suffix(key);
            before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        if let Some(key) = self.key.as_deref().filter(|key| !told(key)) {
            write!(f, ", {key}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", byte {offset}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Equal when they say the same.
impl PartialEq for SourceError {
    fn eq(&self, other: &Self) -> bool {
        (self.fault, &self.part, &self.key, self.offset, &self.message)
            == (other.fault, &other.part, &other.key, other.offset, &other.message)
    }
}

impl Eq for SourceError {}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| &**cause as &(dyn Error + 'static))
    }
}
