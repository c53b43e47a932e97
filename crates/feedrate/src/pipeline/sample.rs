//! What flows through a pipeline: a value and where it comes from.

use crate::batch::Value;
use crate::error::Error;
use crate::source::Mark;

/// One element on its way.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// What users see.
    pub value: Value,
    /// Where it comes from, from which it can be made again.
    pub place: Place,
    /// It is a batch that [`collate`](crate::batch::collate) has made: a list in it that holds more than text has a place for each entry of
    /// the elements' lists, and not one for each element.
    pub(crate) collated: bool,
}

impl Sample {
    /// An element of this place, which is no collated batch.
    pub fn new(value: Value, place: Place) -> Self {
        Self {
            value,
            place,
            collated: false,
        }
    }

    /// The same element as one that came of its place, with a number: which one of several.
    #[must_use]
    pub(crate) fn within(self, number: u32) -> Self {
        Self {
            place: self.place.child(number),
            ..self
        }
    }

    /// The same element, of another place.
    #[must_use]
    pub(crate) fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }
}

/// Where an element comes from: enough to make it again without what lies before it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// A record of a source.
    Record {
        /// The part's number in the listing.
        part: u32,
        /// Where in the part.
        mark: Mark,
    },
    /// One of several that came of the inner one, or the inner one of one of several streams or rounds.
    Child(Box<Place>, u32),
    /// Made of all of these.
    Group(Vec<Place>),
}

impl Place {
    /// No element is of this place: in states it stands for a bad one that is still to be told.
    pub(crate) fn nowhere() -> Self {
        Self::Group(Vec::new())
    }

    /// This place with a number: which one of several.
    #[must_use]
    pub fn child(self, number: u32) -> Self {
        Self::Child(Box::new(self), number)
    }

    /// A number that belongs to this place, for keys of random streams: the FNV-1a hash (Fowler, Noll, Vo) of its encoding, without
    /// byte offsets. Two places may share one by chance; then they share random numbers.
    pub fn key(&self) -> u64 {
        fn mix(hash: u64, word: u64) -> u64 {
            word.to_le_bytes().iter().fold(hash, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            })
        }
        fn walk(place: &Place, hash: u64) -> u64 {
            match place {
                Place::Record { part, mark } => mix(mix(hash, u64::from(*part) + 1), mark.number),
                Place::Child(inner, number) => mix(walk(inner, hash), u64::from(*number)),
                Place::Group(places) => places
                    .iter()
                    .fold(mix(hash, places.len() as u64), |hash, place| walk(place, hash)),
            }
        }
        walk(self, 0xcbf2_9ce4_8422_2325)
    }

    /// Appends its bytes: a tag, and numbers of seven bits a byte.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Record { part, mark } => {
                out.push(0);
                put(out, u64::from(*part));
                put(out, mark.number);
                put(out, mark.offset);
            }
            Self::Child(inner, number) => {
                out.push(1);
                put(out, u64::from(*number));
                inner.encode(out);
            }
            Self::Group(places) => {
                out.push(2);
                put(out, places.len() as u64);
                for place in places {
                    place.encode(out);
                }
            }
        }
    }

    /// Reads one from the front of `bytes`.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Result<Self, Error> {
        Self::decode_within(bytes, DEEPEST)
    }

    fn decode_within(bytes: &mut &[u8], depth: u32) -> Result<Self, Error> {
        if depth == 0 {
            return Err(cut());
        }
        let (tag, rest) = bytes.split_first().ok_or_else(cut)?;
        *bytes = rest;
        match tag {
            0 => Ok(Self::Record {
                part: u32::try_from(take(bytes)?).map_err(|_| cut())?,
                mark: Mark {
                    number: take(bytes)?,
                    offset: take(bytes)?,
                },
            }),
            1 => {
                let number = u32::try_from(take(bytes)?).map_err(|_| cut())?;
                Ok(Self::decode_within(bytes, depth - 1)?.child(number))
            }
            2 => {
                let count = take(bytes)?;
                if count > bytes.len() as u64 {
                    return Err(cut());
                }
                let places: Result<Vec<_>, _> = (0..count).map(|_| Self::decode_within(bytes, depth - 1)).collect();
                Ok(Self::Group(places?))
            }
            _ => Err(cut()),
        }
    }
}

/// Places are nested as deep as the steps are that they come through, some of which add two levels.
const DEEPEST: u32 = 512;

fn cut() -> Error {
    Error::state("the places in a cursor are cut off, or were not made by this version".to_owned())
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or(0));
}

fn take(bytes: &mut &[u8]) -> Result<u64, Error> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or_else(cut)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(cut())
}

/// Digits of base 64 (RFC 4648, section 5), without padding.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Places as text for a state.
pub(crate) fn to_text<'a>(places: impl IntoIterator<Item = &'a Place>) -> String {
    let mut bytes = Vec::new();
    for place in places {
        place.encode(&mut bytes);
    }
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .enumerate()
            .fold(0_u32, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        for at in 0..=group.len() {
            text.push(char::from(DIGITS[(word >> (18 - 6 * at)) as usize & 63]));
        }
    }
    text
}

/// What [`to_text`] wrote.
pub(crate) fn from_text(text: &str) -> Result<Vec<Place>, Error> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut word = 0_u32;
        for (at, digit) in group.iter().enumerate() {
            let value = DIGITS.iter().position(|d| d == digit).ok_or_else(cut)?;
            word |= u32::try_from(value).map_err(|_| cut())? << (18 - 6 * at);
        }
        bytes.extend(&word.to_be_bytes()[1..group.len().max(1)]);
    }
    let mut rest = &bytes[..];
    let mut places = Vec::new();
    while !rest.is_empty() {
        places.push(Place::decode(&mut rest)?);
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = Place> {
        let record = (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(part, number, offset)| Place::Record {
            part,
            mark: Mark { number, offset },
        });
        record.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                (inner.clone(), any::<u32>()).prop_map(|(place, number)| place.child(number)),
                prop::collection::vec(inner, 0..4).prop_map(Place::Group),
            ]
        })
    }

    proptest! {
        #[test]
        fn text_and_back(places in prop::collection::vec(place(), 0..6)) {
            prop_assert_eq!(from_text(&to_text(&places)).unwrap(), places);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[A-Za-z0-9_-]{0,40}") {
            let _ = from_text(&text);
        }
    }
}
