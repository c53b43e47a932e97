//! Why a pipeline has no next element.

use std::fmt;

use crate::error::{BoxError, Error};
use crate::source::{Fault, SourceError};
use crate::state::State;

/// An element that could not be made, or a pipeline that cannot go on.
#[derive(Debug)]
pub struct Failure {
    /// The step, as the definition names it: `map(decode)`.
    pub step: String,
    /// The shard, if the element comes from one.
    pub shard: Option<String>,
    /// The record's or member's name, or its number in the shard.
    pub key: Option<String>,
    /// Whether the next call goes on with the next element.
    pub may_continue: bool,
    /// What went wrong.
    pub source: BoxError,
}

impl Failure {
    /// An element that `step` could not make.
    pub(crate) fn element(step: impl Into<String>, source: BoxError) -> Self {
        Self {
            step: step.into(),
            shard: None,
            key: None,
            may_continue: true,
            source,
        }
    }

    /// A definition, or a state, that does not fit the data.
    pub(crate) fn fatal(step: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self {
            step: step.into(),
            shard: None,
            key: None,
            may_continue: false,
            source: source.into(),
        }
    }

    /// What a reader said. The stage goes on with the next record, or with the next part where this one cannot be read further.
    pub(crate) fn reading(step: impl Into<String>, error: SourceError) -> Self {
        Self {
            step: step.into(),
            shard: Some(error.part().to_owned()),
            key: error.key().map(str::to_owned),
            may_continue: (error.fault() != Fault::Missing || !error.part().is_empty())
                && error.fault() != Fault::Interrupted,
            source: error.into(),
        }
    }
}

impl Failure {
    /// The same once more, for another reader of the same stream.
    pub(crate) fn echo(&self) -> Self {
        let source = match self.source.downcast_ref::<SourceError>() {
            Some(error) => error.clone().into(),
            None => self.source.to_string().into(),
        };
        Self {
            step: self.step.clone(),
            shard: self.shard.clone(),
            key: self.key.clone(),
            may_continue: self.may_continue,
            source,
        }
    }

    /// One that waits to be reported, for a cursor: the one behind so many others. Its cause is kept as text.
    pub(crate) fn state(&self, at: usize) -> State {
        let text = |text: &Option<String>| text.as_ref().map_or(State::Null, |text| text.as_str().into());
        State::map([
            ("at", (at as u64).into()),
            ("step", self.step.as_str().into()),
            ("shard", text(&self.shard)),
            ("key", text(&self.key)),
            ("may_continue", State::Bool(self.may_continue)),
            ("message", self.source.to_string().into()),
        ])
    }

    /// What [`state`](Self::state) wrote.
    pub(crate) fn of_state(state: &State) -> Result<Self, Self> {
        let text = |key: &str| match state.get(key) {
            Some(State::Text(text)) => Some(text.clone()),
            _ => None,
        };
        Ok(Self {
            step: state.text("step")?.to_owned(),
            shard: text("shard"),
            key: text("key"),
            may_continue: state.get("may_continue") == Some(&State::Bool(true)),
            source: BoxError::from(state.text("message")?.to_owned()),
        })
    }

    /// Whether it says nothing of the element, so that other lanes do not see it: an interrupt, a failure of the system.
    pub fn alone(&self) -> bool {
        if self.source.downcast_ref::<Interrupt>().is_some() {
            return true;
        }
        let error = self.source.downcast_ref::<SourceError>();
        error.is_some_and(|error| error.fault().passing())
    }
}

/// Why a function ended that is nothing against its element: somebody has pressed Ctrl-C. As the error of a
/// [`Function`](super::Function) it is told to the user by every lane that it befalls.
#[derive(Debug)]
pub struct Interrupt(pub BoxError);

impl fmt::Display for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Interrupt {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.step)?;
        if self.source.downcast_ref::<SourceError>().is_none() {
            if let Some(shard) = &self.shard {
                write!(f, ", {shard}")?;
            }
            if let Some(key) = &self.key {
                write!(f, ", {key}")?;
            }
        }
        write!(f, ": {}", self.source)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::fatal("state", error)
    }
}
