//! JSON, as much of it as states need.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::State;
use crate::error::Error;

/// Deeper ones are refused, so that what is read cannot exhaust the stack.
const DEPTH: usize = 512;

pub(super) fn write(state: &State, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match state {
        State::Null => f.write_str("null"),
        State::Bool(value) => write!(f, "{value}"),
        State::Number(number) => write!(f, "{number}"),
        State::Text(text) => quote(text, f),
        State::List(items) => {
            f.write_char('[')?;
            for (i, item) in items.iter().enumerate() {
                f.write_str(if i == 0 { "" } else { ", " })?;
                write(item, f)?;
            }
            f.write_char(']')
        }
        State::Map(entries) => {
            f.write_char('{')?;
            for (i, (key, value)) in entries.iter().enumerate() {
                f.write_str(if i == 0 { "" } else { ", " })?;
                quote(key, f)?;
                f.write_str(": ")?;
                write(value, f)?;
            }
            f.write_char('}')
        }
    }
}

fn quote(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            c if u32::from(c) < 0x20 => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

pub(super) fn read(text: &str) -> Result<State, Error> {
    let mut reader = Reader { text, at: 0 };
    let state = reader.value(0)?;
    match reader.peek() {
        None => Ok(state),
        Some(_) => Err(reader.wrong("nothing more")),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn wrong(&self, expected: &str) -> Error {
        Error::state(format!(
            "not a state as JSON: {expected} was expected at byte {}",
            self.at
        ))
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|b| b" \t\r\n".contains(b)).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn value(&mut self, depth: usize) -> Result<State, Error> {
        if depth > DEPTH {
            return Err(self.wrong("no deeper level"));
        }
        match self.peek() {
            Some(b'"') => self.quoted().map(State::Text),
            Some(b'0'..=b'9') => self.number(),
            Some(b'[') => self.list(depth),
            Some(b'{') => self.map(depth),
            _ => {
                let words = [
                    ("null", State::Null),
                    ("true", State::Bool(true)),
                    ("false", State::Bool(false)),
                ];
                for (word, state) in words {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(state);
                    }
                }
                Err(self.wrong("a value without sign, point or exponent"))
            }
        }
    }

    fn number(&mut self) -> Result<State, Error> {
        let rest = &self.text[self.at..];
        let len = rest.bytes().take_while(u8::is_ascii_digit).count();
        if rest.as_bytes().get(len).is_some_and(|b| b".eE".contains(b)) {
            return Err(self.wrong("a whole number"));
        }
        let number = rest[..len].parse().map_err(|_| self.wrong("a number below 2^64"))?;
        self.at += len;
        Ok(State::Number(number))
    }

    fn list(&mut self, depth: usize) -> Result<State, Error> {
        let mut items = Vec::new();
        self.at += 1;
        if self.take(b']') {
            return Ok(State::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(b']') {
                return Ok(State::List(items));
            }
            if !self.take(b',') {
                return Err(self.wrong("a comma or the end of the list"));
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<State, Error> {
        let mut entries = BTreeMap::new();
        self.at += 1;
        if self.take(b'}') {
            return Ok(State::Map(entries));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.wrong("a name in quotes"));
            }
            let key = self.quoted()?;
            if !self.take(b':') {
                return Err(self.wrong("a colon"));
            }
            let value = self.value(depth + 1)?;
            if entries.insert(key, value).is_some() {
                return Err(self.wrong("no name twice"));
            }
            if self.take(b'}') {
                return Ok(State::Map(entries));
            }
            if !self.take(b',') {
                return Err(self.wrong("a comma or the end of the map"));
            }
        }
    }

    fn quoted(&mut self) -> Result<String, Error> {
        self.at += 1;
        let mut found = String::new();
        loop {
            let Some(c) = self.text[self.at..].chars().next() else {
                return Err(self.wrong("the end of a text"));
            };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(found),
                '\\' => found.push(self.escaped()?),
                c if u32::from(c) < 0x20 => return Err(self.wrong("no control character in a text")),
                c => found.push(c),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, Error> {
        let c = self.text[self.at..].chars().next();
        self.at += c.map_or(0, char::len_utf8);
        match c {
            Some(c @ ('"' | '\\' | '/')) => Ok(c),
            Some('b') => Ok('\u{8}'),
            Some('f') => Ok('\u{c}'),
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some('u') => self.unicode(),
            _ => Err(self.wrong("an escape")),
        }
    }

    fn unicode(&mut self) -> Result<char, Error> {
        let first = self.four()?;
        let code = match first {
            0xd800..=0xdbff if self.text[self.at..].starts_with("\\u") => {
                self.at += 2;
                let second = self.four()?;
                // Anything but a low surrogate gives no character.
                let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400);
                low.map(|low| 0x1_0000 + ((first - 0xd800) << 10) + low)
            }
            code => Some(code),
        };
        code.and_then(char::from_u32).ok_or_else(|| self.wrong("a character"))
    }

    fn four(&mut self) -> Result<u32, Error> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
        let code = code.ok_or_else(|| self.wrong("four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }
}
