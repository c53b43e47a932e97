//! What can be wrong with an image.

use std::fmt;

use super::Format;

/// What kind of wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flaw {
    /// The bytes are of no format that is read here.
    Unknown,
    /// They are right, and hold something that is not read here.
    Unsupported,
    /// They end before they should.
    Truncated,
    /// They say of themselves what cannot be.
    Damaged,
    /// The image has more pixels than the limit.
    TooLarge,
    /// There is no frame of this number.
    NoFrame,
    /// The decoder itself failed: memory, or a mistake in it.
    Decoder,
}

/// Why there is no image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageError {
    flaw: Flaw,
    format: Option<Format>,
    name: Option<String>,
    message: String,
}

impl ImageError {
    /// An error of this kind. `message` says what is wrong, with both values where there are two.
    pub fn new(flaw: Flaw, format: impl Into<Option<Format>>, message: impl Into<String>) -> Self {
        Self {
            flaw,
            format: format.into(),
            name: None,
            message: message.into(),
        }
    }

    /// With the name of the file or sample.
    #[must_use]
    pub fn of(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What kind of wrong.
    pub fn flaw(&self) -> Flaw {
        self.flaw
    }

    /// The format that the bytes have, if one was found.
    pub fn format(&self) -> Option<Format> {
        self.format
    }

    /// The name of the file or sample, if the caller gave one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What is wrong, without format and name.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}: ")?;
        }
        if let Some(format) = self.format {
            write!(f, "{format}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ImageError {}
