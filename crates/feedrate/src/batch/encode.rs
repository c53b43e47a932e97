//! Values as bytes, for files of our own: a tag, and little-endian numbers.

use super::{DType, Heap, Tensor, Value};
use crate::error::BoxError;

/// Values nested deeper are refused, and not believed.
const DEPTH: usize = 64;

fn damaged() -> BoxError {
    "a stored value is damaged".into()
}

/// Appends the bytes of `value`. Refuses what only its maker can look into.
pub(crate) fn encode(value: &Value, out: &mut Vec<u8>) -> Result<(), BoxError> {
    write(value, out, DEPTH)
}

fn write(value: &Value, out: &mut Vec<u8>, depth: usize) -> Result<(), BoxError> {
    if depth == 0 {
        return Err(format!("a value is nested more than {DEPTH} deep").into());
    }
    let len = |out: &mut Vec<u8>, len: usize| out.extend((len as u64).to_le_bytes());
    match value {
        Value::None => out.push(0),
        Value::Bool(x) => out.extend([1, u8::from(*x)]),
        Value::Int(x) => {
            out.push(2);
            out.extend(x.to_le_bytes());
        }
        Value::Float(x) => {
            out.push(3);
            out.extend(x.to_bits().to_le_bytes());
        }
        Value::Str(text) => {
            out.push(4);
            len(out, text.len());
            out.extend(text.as_bytes());
        }
        Value::Bytes(bytes) => {
            out.push(5);
            len(out, bytes.len());
            out.extend(bytes);
        }
        Value::Tensor(tensor) => {
            out.push(6);
            let name = tensor.dtype().name().as_bytes();
            out.push(u8::try_from(name.len())?);
            out.extend(name);
            len(out, tensor.shape().len());
            tensor.shape().iter().for_each(|size| len(out, *size));
            let start = out.len();
            out.resize(start + tensor.bytes(), 0);
            tensor.copy_to(&mut out[start..]);
        }
        Value::List(items) => {
            out.push(7);
            len(out, items.len());
            for item in items {
                write(item, out, depth - 1)?;
            }
        }
        Value::Map(pairs) => {
            out.push(8);
            len(out, pairs.len());
            for (name, value) in pairs {
                len(out, name.len());
                out.extend(name.as_bytes());
                write(value, out, depth - 1)?;
            }
        }
        Value::Other(thing) => return Err(format!("{} cannot be written", thing.kind()).into()),
    }
    Ok(())
}

/// Reads one value from the front of `bytes`.
pub(crate) fn decode(bytes: &mut &[u8]) -> Result<Value, BoxError> {
    read(bytes, DEPTH)
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], BoxError> {
    let (head, tail) = bytes.split_at_checked(count).ok_or_else(damaged)?;
    *bytes = tail;
    Ok(head)
}

fn number(bytes: &mut &[u8]) -> Result<u64, BoxError> {
    Ok(u64::from_le_bytes(take(bytes, 8)?.try_into()?))
}

/// How many entries of at least one byte follow: no more than there are bytes.
fn count(bytes: &mut &[u8]) -> Result<usize, BoxError> {
    let count = usize::try_from(number(bytes)?)?;
    if count > bytes.len() {
        return Err(damaged());
    }
    Ok(count)
}

fn text(bytes: &mut &[u8]) -> Result<String, BoxError> {
    let len = count(bytes)?;
    Ok(std::str::from_utf8(take(bytes, len)?)?.to_owned())
}

fn read(bytes: &mut &[u8], depth: usize) -> Result<Value, BoxError> {
    if depth == 0 {
        return Err(damaged());
    }
    Ok(match take(bytes, 1)?[0] {
        0 => Value::None,
        1 => Value::Bool(take(bytes, 1)?[0] != 0),
        2 => Value::Int(i64::from_le_bytes(take(bytes, 8)?.try_into()?)),
        3 => Value::Float(f64::from_bits(number(bytes)?)),
        4 => Value::Str(text(bytes)?),
        5 => {
            let len = count(bytes)?;
            Value::Bytes(take(bytes, len)?.to_vec())
        }
        6 => tensor(bytes)?,
        7 => {
            let items: Result<_, BoxError> = (0..count(bytes)?).map(|_| read(bytes, depth - 1)).collect();
            Value::List(items?)
        }
        8 => {
            let entry = |bytes: &mut &[u8]| Ok::<_, BoxError>((text(bytes)?, read(bytes, depth - 1)?));
            let pairs: Result<_, BoxError> = (0..count(bytes)?).map(|_| entry(bytes)).collect();
            Value::Map(pairs?)
        }
        _ => return Err(damaged()),
    })
}

fn tensor(bytes: &mut &[u8]) -> Result<Value, BoxError> {
    let len = usize::from(take(bytes, 1)?[0]);
    let dtype = DType::from_name(std::str::from_utf8(take(bytes, len)?)?).ok_or_else(damaged)?;
    let shape: Result<Vec<usize>, BoxError> = (0..number(bytes)?.min(64))
        .map(|_| Ok(usize::try_from(number(bytes)?)?))
        .collect();
    let shape = shape?;
    let size = shape.iter().try_fold(dtype.size(), |size, len| size.checked_mul(*len));
    let data = take(bytes, size.ok_or_else(damaged)?)?;
    let tensor = Tensor::build(&Heap, dtype, &shape, |out| {
        out.copy_from_slice(data);
        Ok::<_, BoxError>(())
    });
    Ok(Value::Tensor(tensor?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::None),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(|x: f64| x.into()),
            ".{0,5}".prop_map(Value::from),
            prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::Bytes),
            prop::collection::vec(any::<i16>(), 0..7)
                .prop_map(|items| Tensor::from_slice(&items, &[1, items.len()]).unwrap().into()),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                prop::collection::vec(("[a-c]{0,2}", inner), 0..4).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn bytes_and_back(value in value()) {
            let mut bytes = Vec::new();
            encode(&value, &mut bytes).unwrap();
            let mut rest = &bytes[..];
            prop_assert_eq!(decode(&mut rest).unwrap(), value);
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_read_or_refused(value in value(), cut in any::<usize>(), at in any::<usize>(), byte in any::<u8>()) {
            let mut bytes = Vec::new();
            encode(&value, &mut bytes).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = decode(&mut &bytes[..cut % (bytes.len() + 1)]);
            let _ = decode(&mut &bytes[..]);
        }
    }
}
