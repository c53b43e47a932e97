//! `tf.train.Example` and `SequenceExample`, from their bytes straight to values.

use super::Ones;
use super::proto::{Field, Fields, Malformed, varint};
use crate::batch::{DType, Heap, Tensor, TensorError, Value, copied};

/// Why there is no value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Refused {
    /// The bytes are no such message.
    Malformed(&'static str),
    /// A feature that was asked for is not there, or not once.
    Feature(String),
    /// No memory.
    Memory(String),
}

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.0)
    }
}

impl From<TensorError> for Refused {
    fn from(error: TensorError) -> Self {
        Self::Memory(error.to_string())
    }
}

/// What is wanted of an example.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Wanted {
    /// Names of the features, in the order in which they are given; all of them, by name, if `None`.
    pub(super) features: Option<Vec<String>>,
    pub(super) ones: Ones,
}

/// An `Example` as a map.
pub(super) fn example(message: &[u8], wanted: &Wanted) -> Result<Value, Refused> {
    let mut found = Vec::new();
    let mut fields = Fields::new(message);
    while let Some((number, field)) = fields.next()? {
        if let (1, Field::Bytes(features)) = (number, field) {
            entries(features, wanted, &mut found, &|name, feature| {
                value(feature, wanted.ones.of(name), name)
            })?;
        }
    }
    Ok(Value::Map(arrange(found, wanted)?))
}

/// A `SequenceExample` as a map of `context` and `feature_lists`: each of these is a list of what its steps hold.
pub(super) fn sequence(message: &[u8], wanted: &Wanted) -> Result<Value, Refused> {
    let mut context = Vec::new();
    let mut lists = Vec::new();
    let mut fields = Fields::new(message);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(features)) => entries(features, wanted, &mut context, &|name, feature| {
                value(feature, wanted.ones.of(name), name)
            })?,
            (2, Field::Bytes(features)) => entries(features, wanted, &mut lists, &|name, list| {
                let mut steps = Vec::new();
                let mut fields = Fields::new(list);
                while let Some((number, field)) = fields.next()? {
                    if let (1, Field::Bytes(feature)) = (number, field) {
                        steps.push(value(feature, wanted.ones.of(name), name)?);
                    }
                }
                Ok(Value::List(steps))
            })?,
            _ => {}
        }
    }
    if let Some(names) = &wanted.features {
        let has = |name: &str| context.iter().chain(&lists).any(|(known, _)| known == name);
        if let Some(name) = names.iter().find(|name| !has(name)) {
            return Err(absent(
                name,
                context.iter().chain(&lists).map(|(name, _)| name.as_str()),
            ));
        }
    }
    context.sort_by(|a, b| a.0.cmp(&b.0));
    lists.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Value::map([
        ("context", Value::Map(context)),
        ("feature_lists", Value::Map(lists)),
    ]))
}

/// Makes a value of an entry's name and content.
type Read<'a, 'b> = dyn Fn(&str, &'a [u8]) -> Result<Value, Refused> + 'b;

/// The entries of a `map<string, …>` in field 1, the last of each name.
fn entries<'a>(
    message: &'a [u8],
    wanted: &Wanted,
    found: &mut Vec<(String, Value)>,
    read: &Read<'a, '_>,
) -> Result<(), Refused> {
    let mut fields = Fields::new(message);
    while let Some((number, field)) = fields.next()? {
        let (1, Field::Bytes(entry)) = (number, field) else {
            continue;
        };
        let (mut name, mut content) = (&[][..], &[][..]);
        let mut parts = Fields::new(entry);
        while let Some((number, field)) = parts.next()? {
            match (number, field) {
                (1, Field::Bytes(bytes)) => name = bytes,
                (2, Field::Bytes(bytes)) => content = bytes,
                _ => {}
            }
        }
        let name = str::from_utf8(name).map_err(|_| Malformed("a feature's name is no UTF-8"))?;
        if wanted
            .features
            .as_ref()
            .is_some_and(|names| names.iter().all(|wanted| wanted != name))
        {
            continue;
        }
        found.push((name.to_owned(), read(name, content)?));
    }
    Ok(())
}

/// By name, or as asked for.
fn arrange(mut found: Vec<(String, Value)>, wanted: &Wanted) -> Result<Vec<(String, Value)>, Refused> {
    let Some(names) = &wanted.features else {
        // Sorting keeps the order of equal names: the last one holds.
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found.reverse();
        found.dedup_by(|later, earlier| later.0 == earlier.0);
        found.reverse();
        return Ok(found);
    };
    let mut arranged = Vec::with_capacity(names.len());
    for name in names {
        let at = found.iter().rposition(|(known, _)| known == name);
        let at = at.ok_or_else(|| absent(name, found.iter().map(|(name, _)| name.as_str())))?;
        // In its place: of equal names the last one holds, here as above.
        arranged.push(found.remove(at));
    }
    Ok(arranged)
}

fn absent<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Refused {
    let known: Vec<_> = known.take(20).collect();
    Refused::Feature(format!(
        "the record has no feature {name:?} (of those asked for it has {known:?})"
    ))
}

/// A feature's list.
fn value(feature: &[u8], one: One, name: &str) -> Result<Value, Refused> {
    // One of three; the last one set holds, and one that is set in pieces is their sum.
    let (mut kind, mut list, mut more) = (0, &[][..], Vec::new());
    let mut fields = Fields::new(feature);
    while let Some((number, field)) = fields.next()? {
        let (1..=3, Field::Bytes(bytes)) = (number, field) else {
            continue;
        };
        if kind == number {
            more.push(bytes);
        } else {
            (kind, list) = (number, bytes);
            more.clear();
        }
    }
    let joined;
    if !more.is_empty() {
        more.insert(0, list);
        joined = more.concat();
        list = &joined;
    }
    match kind {
        1 => strings(list, one, name),
        2 => floats(list, one, name),
        3 => ints(list, one, name),
        _ => match one {
            One::Must => Err(count(name, 0)),
            _ => Ok(Value::None),
        },
    }
}

/// What becomes of a list with one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum One {
    /// A list as others.
    List,
    /// Bytes stand for themselves, numbers are a tensor.
    Bytes,
    /// It stands for itself.
    Single,
    /// It stands for itself, and other lengths are refused.
    Must,
}

fn count(name: &str, found: usize) -> Refused {
    Refused::Feature(format!(
        "feature {name:?} has {found} values, and was declared to have one"
    ))
}

fn strings(list: &[u8], one: One, name: &str) -> Result<Value, Refused> {
    let mut items = Vec::new();
    let mut fields = Fields::new(list);
    while let Some((number, field)) = fields.next()? {
        if let (1, Field::Bytes(bytes)) = (number, field) {
            items.push(Value::Bytes(copied(bytes)));
        }
    }
    match one {
        One::Must if items.len() != 1 => Err(count(name, items.len())),
        One::List => Ok(Value::List(items)),
        _ if items.len() == 1 => Ok(items.pop().unwrap_or(Value::None)),
        _ => Ok(Value::List(items)),
    }
}

fn floats(list: &[u8], one: One, name: &str) -> Result<Value, Refused> {
    let mut len = 0;
    let mut fields = Fields::new(list);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(packed)) if packed.len() % 4 == 0 => len += packed.len() / 4,
            (1, Field::Bytes(_)) => return Err(Malformed("packed floats are not whole").into()),
            (1, Field::Fixed32(_)) => len += 1,
            _ => {}
        }
    }
    let each = |put: &mut dyn FnMut(&[u8])| -> Result<(), Refused> {
        let mut fields = Fields::new(list);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (1, Field::Bytes(packed)) => put(packed),
                (1, Field::Fixed32(four)) => put(&four),
                _ => {}
            }
        }
        Ok(())
    };
    match one {
        One::Must if len != 1 => return Err(count(name, len)),
        One::Single | One::Must if len == 1 => {
            let mut four = [0; 4];
            each(&mut |bytes| {
                if bytes.len() == 4 {
                    four.copy_from_slice(bytes);
                }
            })?;
            return Ok(Value::Float(f32::from_le_bytes(four).into()));
        }
        _ => {}
    }
    Tensor::build(&Heap, DType::F32, &[len], |out| {
        let mut at = 0;
        each(&mut |bytes| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        })?;
        if cfg!(target_endian = "big") {
            out.chunks_exact_mut(4).for_each(<[u8]>::reverse);
        }
        Ok(())
    })
    .map(Value::Tensor)
}

fn ints(list: &[u8], one: One, name: &str) -> Result<Value, Refused> {
    let mut len = 0;
    let mut fields = Fields::new(list);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            // Each number has one byte whose upper bit is not set.
            (1, Field::Bytes(packed)) => len += packed.iter().filter(|byte| **byte < 0x80).count(),
            (1, Field::Varint(_)) => len += 1,
            _ => {}
        }
    }
    let each = |put: &mut dyn FnMut(i64)| -> Result<(), Refused> {
        let mut fields = Fields::new(list);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (1, Field::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        put(varint(&mut packed)?.cast_signed());
                    }
                }
                (1, Field::Varint(number)) => put(number.cast_signed()),
                _ => {}
            }
        }
        Ok(())
    };
    match one {
        One::Must if len != 1 => return Err(count(name, len)),
        One::Single | One::Must if len == 1 => {
            let mut found = 0;
            each(&mut |number| found = number)?;
            return Ok(Value::Int(found));
        }
        _ => {}
    }
    Tensor::build(&Heap, DType::I64, &[len], |out| {
        let mut slots = out.chunks_exact_mut(8);
        each(&mut |number| {
            if let Some(slot) = slots.next() {
                slot.copy_from_slice(&number.to_ne_bytes());
            }
        })
    })
    .map(Value::Tensor)
}
