//! How values, tensors and errors are written. Numbers are little-endian; every read is checked against what is there.

use std::sync::Arc;

use feedrate_shm::{Arena, LeaseBytes, Token, View};

use crate::batch::{DType, Tensor, TensorError, Value};
use crate::error::{BoxError, Error};

/// Trees deeper than this are not sent, nor believed.
const MAX_DEPTH: usize = 64;

/// What cannot be read.
pub(super) fn damaged() -> BoxError {
    "a message between processes is damaged".into()
}

#[derive(Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
    /// Slots committed so far.
    pub(super) tokens: Vec<Token>,
}

impl Writer {
    pub(super) fn u8(&mut self, x: u8) -> &mut Self {
        self.bytes.push(x);
        self
    }

    pub(super) fn u64(&mut self, x: u64) -> &mut Self {
        self.bytes.extend(x.to_le_bytes());
        self
    }

    pub(super) fn usize(&mut self, x: usize) -> &mut Self {
        self.u64(x as u64)
    }

    pub(super) fn bytes(&mut self, x: &[u8]) -> &mut Self {
        self.usize(x.len());
        self.bytes.extend(x);
        self
    }

    pub(super) fn indices(&mut self, x: &[usize]) -> &mut Self {
        self.usize(x.len());
        for index in x {
            self.usize(*index);
        }
        self
    }
}

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], BoxError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or_else(damaged)?;
        self.0 = tail;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], BoxError> {
        self.take(N)?.try_into().map_err(|_| damaged())
    }

    pub(super) fn u8(&mut self) -> Result<u8, BoxError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn flag(&mut self) -> Result<bool, BoxError> {
        Ok(self.u8()? != 0)
    }

    pub(super) fn u64(&mut self) -> Result<u64, BoxError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn usize(&mut self) -> Result<usize, BoxError> {
        Ok(usize::try_from(self.u64()?)?)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], BoxError> {
        let len = self.usize()?;
        self.take(len)
    }

    pub(super) fn string(&mut self) -> Result<String, BoxError> {
        Ok(std::str::from_utf8(self.bytes()?)?.to_owned())
    }

    pub(super) fn indices(&mut self) -> Result<Vec<usize>, BoxError> {
        let len = self.usize()?;
        // No more is believed than can be there.
        if len > self.0.len() / 8 {
            return Err(damaged());
        }
        (0..len).map(|_| self.usize()).collect()
    }
}

pub(super) fn encode_value(out: &mut Writer, value: Value, arena: &Arc<Arena>, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        let message = format!("a batch is nested more than {MAX_DEPTH} deep: make it flatter");
        return Err(Error::config(message));
    }
    match value {
        Value::None => {
            out.u8(0);
        }
        Value::Bool(x) => {
            out.u8(1).u8(x.into());
        }
        Value::Int(x) => {
            out.u8(2).u64(x.cast_unsigned());
        }
        Value::Float(x) => {
            out.u8(3).u64(x.to_bits());
        }
        Value::Str(x) => {
            out.u8(4).bytes(x.as_bytes());
        }
        Value::Bytes(x) => {
            out.u8(5).bytes(&x);
        }
        Value::Tensor(tensor) => encode_tensor(out, tensor, arena)?,
        Value::List(items) => {
            out.u8(7).usize(items.len());
            for item in items {
                encode_value(out, item, arena, depth + 1)?;
            }
        }
        Value::Map(pairs) => {
            out.u8(8).usize(pairs.len());
            for (key, value) in pairs {
                out.bytes(key.as_bytes());
                encode_value(out, value, arena, depth + 1)?;
            }
        }
        Value::Other(thing) => {
            let value = thing.to_value().map_err(|error| failed_to_send(thing.kind(), error))?;
            if matches!(value, Value::Other(_)) {
                let message = format!(
                    "a batch holds {}, which cannot be sent to another process",
                    thing.kind()
                );
                return Err(Error::config(message));
            }
            encode_value(out, value, arena, depth + 1)?;
        }
    }
    Ok(())
}

fn failed_to_send(kind: &str, error: BoxError) -> Error {
    Error::system(format!("sending {kind} to another process"), error)
}

fn encode_tensor(out: &mut Writer, mut tensor: Tensor, arena: &Arc<Arena>) -> Result<(), Error> {
    let failed = |error: BoxError| Error::system("handing a batch to the parent", error);
    out.u8(6).u8(tensor.dtype().code()).indices(tensor.shape());
    if tensor.bytes() == 0 {
        return Ok(());
    }
    // A slot can be handed over only when nobody here goes on using it.
    let sole = tensor.as_bytes_mut().is_some();
    let here = tensor.as_bytes().ok().filter(|_| sole);
    let located = here.and_then(|bytes| arena.locate(bytes.as_ptr().addr(), bytes.len()));
    let (at, offset) = if let Some(at) = located.filter(|at| !at.already_sent) {
        (at, at.offset)
    } else {
        tensor = Tensor::build(arena, tensor.dtype(), tensor.shape(), |bytes| {
            tensor.copy_to(bytes);
            Ok::<_, TensorError>(())
        })
        .map_err(|error| failed(error.into()))?;
        let bytes = tensor.as_bytes().map_err(|error| failed(error.into()))?;
        let at = arena.locate(bytes.as_ptr().addr(), bytes.len());
        (at.ok_or_else(|| Error::bug("a new slot is not in its arena"))?, 0)
    };
    let token = arena.send(&at).map_err(|error| failed(error.into()))?;
    out.tokens.push(token);
    out.bytes.extend(token.to_bytes());
    out.usize(offset);
    // From here on the slot is the parent's.
    drop(tensor);
    Ok(())
}

pub(super) fn decode_value(from: &mut Reader<'_>, view: &Arc<View>, depth: usize) -> Result<Value, BoxError> {
    if depth > MAX_DEPTH {
        return Err(damaged());
    }
    Ok(match from.u8()? {
        0 => Value::None,
        1 => Value::Bool(from.flag()?),
        2 => Value::Int(from.u64()?.cast_signed()),
        3 => Value::Float(f64::from_bits(from.u64()?)),
        4 => Value::Str(from.string()?),
        5 => Value::Bytes(from.bytes()?.to_vec()),
        6 => Value::Tensor(decode_tensor(from, view)?),
        7 => {
            let len = from.usize()?;
            let items = (0..len).map(|_| decode_value(from, view, depth + 1));
            Value::List(items.collect::<Result<_, _>>()?)
        }
        8 => {
            let len = from.usize()?;
            let pairs = (0..len).map(|_| Ok::<_, BoxError>((from.string()?, decode_value(from, view, depth + 1)?)));
            Value::Map(pairs.collect::<Result<_, _>>()?)
        }
        _ => return Err(damaged()),
    })
}

fn decode_tensor(from: &mut Reader<'_>, view: &Arc<View>) -> Result<Tensor, BoxError> {
    let dtype = DType::from_code(from.u8()?).ok_or_else(damaged)?;
    let shape = from.indices()?;
    if shape.contains(&0) {
        return Ok(Tensor::zeros(dtype, &shape)?);
    }
    let token = Token::from_bytes(&from.array()?);
    let offset = from.usize()?;
    let lease = view.lease(token)?;
    let strides = crate::batch::packed(&shape);
    Ok(Tensor::from_buffer(
        Arc::new(LeaseBytes::from(lease)),
        dtype,
        &shape,
        &strides,
        offset,
    )?)
}

pub(super) fn encode_error(out: &mut Writer, error: &Error) {
    match error {
        Error::Sample {
            index,
            position,
            worker,
            panic,
            source,
        } => {
            out.u8(1)
                .usize(*index)
                .u64(*position)
                .usize(*worker)
                .u8((*panic).into());
            out.bytes(chain(&**source).as_bytes());
        }
        Error::Collate {
            indices,
            position,
            worker,
            panic,
            source,
        } => {
            out.u8(2)
                .indices(indices)
                .u64(*position)
                .usize(*worker)
                .u8((*panic).into());
            out.bytes(chain(&**source).as_bytes());
        }
        Error::Bug { message } => {
            out.u8(3).bytes(message.as_bytes());
        }
        Error::Config { message } => {
            out.u8(4).bytes(message.as_bytes());
        }
        other => {
            out.u8(5).bytes(chain(other).as_bytes());
        }
    }
}

pub(super) fn decode_error(from: &mut Reader<'_>) -> Result<Error, BoxError> {
    Ok(match from.u8()? {
        1 => Error::Sample {
            index: from.usize()?,
            position: from.u64()?,
            worker: from.usize()?,
            panic: from.flag()?,
            source: from.string()?.into(),
        },
        2 => Error::Collate {
            indices: from.indices()?,
            position: from.u64()?,
            worker: from.usize()?,
            panic: from.flag()?,
            source: from.string()?.into(),
        },
        3 => Error::Bug {
            message: from.string()?,
        },
        4 => Error::Config {
            message: from.string()?,
        },
        5 => Error::system("in a worker", from.string()?),
        _ => return Err(damaged()),
    })
}

/// An error and what caused it, on one line.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Many errors repeat their cause.
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
