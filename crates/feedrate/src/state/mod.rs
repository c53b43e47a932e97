//! Where a sampler or a loader stands, as a small value that can be written down.

mod json;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// A tree of numbers, texts, lists and maps; as JSON by [`Display`](fmt::Display), and back by [`FromStr`].
///
/// Numbers are whole and below 2⁶⁴: a reader of the JSON that takes them for floats loses digits.
///
/// ```
/// use feedrate::State;
///
/// let state = State::map([("position", 7.into()), ("seed", u64::MAX.into())]);
/// let text = state.to_string();
/// assert_eq!(text, r#"{"position": 7, "seed": 18446744073709551615}"#);
/// assert_eq!(text.parse::<State>()?, state);
/// assert_eq!(state.number("position")?, 7);
/// # Ok::<(), feedrate::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Nothing.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Number(u64),
    /// A text.
    Text(String),
    /// Some of them.
    List(Vec<State>),
    /// Some of them, by name.
    Map(BTreeMap<String, State>),
}

impl State {
    /// A map of these.
    pub fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, State)>) -> Self {
        Self::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// Bytes, as a text of hexadecimal digits.
    pub fn bytes(bytes: &[u8]) -> Self {
        let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
        Self::Text(bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect())
    }

    /// About how many bytes it takes when it is written down.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) | Self::Number(_) => 8,
            Self::Text(text) => text.len() + 2,
            Self::List(items) => items.iter().map(Self::weight).sum(),
            Self::Map(entries) => entries.iter().map(|(key, entry)| key.len() + 4 + entry.weight()).sum(),
        }
    }

    /// An entry of a map.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries.get(key),
            _ => None,
        }
    }

    /// An entry that must be there.
    pub fn entry(&self, key: &str) -> Result<&Self, Error> {
        self.get(key).ok_or_else(|| {
            Error::state(format!(
                "`{key}` is missing: the state was made by something else, or is cut off"
            ))
        })
    }

    /// An entry that must be a number.
    pub fn number(&self, key: &str) -> Result<u64, Error> {
        match self.entry(key)? {
            Self::Number(number) => Ok(*number),
            other => Err(wrong(key, "a number", other)),
        }
    }

    /// An entry that must be a number of things in memory.
    pub fn count(&self, key: &str) -> Result<usize, Error> {
        let number = self.number(key)?;
        usize::try_from(number).map_err(|_| Error::state(format!("`{key}` is {number}, more than memory can hold")))
    }

    /// An entry that must be a text.
    pub fn text(&self, key: &str) -> Result<&str, Error> {
        match self.entry(key)? {
            Self::Text(text) => Ok(text),
            other => Err(wrong(key, "a text", other)),
        }
    }

    /// An entry that must be a list.
    pub fn list(&self, key: &str) -> Result<&[Self], Error> {
        match self.entry(key)? {
            Self::List(list) => Ok(list),
            other => Err(wrong(key, "a list", other)),
        }
    }

    /// An entry that [`State::bytes`] made.
    pub fn to_bytes(&self, key: &str) -> Result<Vec<u8>, Error> {
        let text = self.text(key)?.as_bytes();
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some((digit(*high)? << 4) | digit(*low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.chunks(2).map(byte).collect();
        bytes.ok_or_else(|| Error::state(format!("`{key}` is not made of pairs of hexadecimal digits")))
    }

    /// Refuses a state whose entry is not what is at hand: `what` and both values are in the message, and `fix`.
    pub fn must_be(&self, key: &str, here: impl Into<Self>, what: &str, fix: &str) -> Result<(), Error> {
        let (there, here) = (self.entry(key)?, here.into());
        if *there == here {
            return Ok(());
        }
        Err(Error::state(format!(
            "{what}: {there} in the state, {here} here: {fix}"
        )))
    }
}

fn wrong(key: &str, wanted: &str, found: &State) -> Error {
    let found = match found {
        State::Null => "null",
        State::Bool(_) => "a truth value",
        State::Number(_) => "a number",
        State::Text(_) => "a text",
        State::List(_) => "a list",
        State::Map(_) => "a map",
    };
    Error::state(format!("`{key}` must be {wanted} and is {found}"))
}

impl From<u64> for State {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for State {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<i32> for State {
    /// For literals; a negative number becomes null.
    fn from(number: i32) -> Self {
        u64::try_from(number).map_or(Self::Null, Self::Number)
    }
}

impl From<bool> for State {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for State {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for State {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<State>> From<Vec<T>> for State {
    fn from(list: Vec<T>) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<State>> From<Option<T>> for State {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        json::write(self, f)
    }
}

impl FromStr for State {
    type Err = Error;

    /// Reads JSON: whole numbers only, and at most 512 levels deep.
    fn from_str(text: &str) -> Result<Self, Error> {
        json::read(text)
    }
}

#[cfg(test)]
mod tests;
