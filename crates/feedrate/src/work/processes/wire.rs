//! What parent and worker say to each other. Numbers are little-endian; every read is checked against what is there.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use feedrate_shm::{Announce, Arena, Channel, LeaseBytes, SendError, Token, View, payload_fd, read_payload};

use super::serve::Stop;
use crate::batch::{DType, Tensor, TensorError, Value};
use crate::error::{BoxError, Error};
use crate::work::BatchJob;

/// Trees deeper than this are not sent, nor believed.
const MAX_DEPTH: usize = 64;

/// Says that the message proper lies in the descriptor that came along.
const IN_PAYLOAD: u8 = 0;

/// From parent to worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    Hello(Hello),
    Epoch(u64),
    Task { epoch: u64, position: u64, job: BatchJob },
    Retire,
}

/// What a worker must know to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) in_flight: usize,
    pub(super) seed: u64,
    pub(super) drop_last: bool,
    pub(super) recipe: String,
    pub(super) argument: Vec<u8>,
}

/// From worker to parent.
#[derive(Debug)]
pub(super) enum Report {
    Ready,
    /// The recipe failed.
    Refused(String),
    Segment {
        id: u32,
        len: usize,
    },
    Gone {
        id: u32,
    },
    Done {
        epoch: u64,
        position: u64,
        output: Result<Value, Error>,
    },
    Exhausted {
        epoch: u64,
        position: u64,
    },
    /// The worker's own code failed.
    Broken(String),
}

/// What cannot be read.
fn damaged() -> BoxError {
    "a message between processes is damaged".into()
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    /// Slots committed so far.
    tokens: Vec<Token>,
}

impl Writer {
    fn u8(&mut self, x: u8) -> &mut Self {
        self.bytes.push(x);
        self
    }

    fn u64(&mut self, x: u64) -> &mut Self {
        self.bytes.extend(x.to_le_bytes());
        self
    }

    fn usize(&mut self, x: usize) -> &mut Self {
        self.u64(x as u64)
    }

    fn bytes(&mut self, x: &[u8]) -> &mut Self {
        self.usize(x.len());
        self.bytes.extend(x);
        self
    }

    fn indices(&mut self, x: &[usize]) -> &mut Self {
        self.usize(x.len());
        for index in x {
            self.usize(*index);
        }
        self
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], BoxError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or_else(damaged)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BoxError> {
        self.take(N)?.try_into().map_err(|_| damaged())
    }

    fn u8(&mut self) -> Result<u8, BoxError> {
        Ok(self.array::<1>()?[0])
    }

    fn flag(&mut self) -> Result<bool, BoxError> {
        Ok(self.u8()? != 0)
    }

    fn u64(&mut self) -> Result<u64, BoxError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn usize(&mut self) -> Result<usize, BoxError> {
        Ok(usize::try_from(self.u64()?)?)
    }

    fn bytes(&mut self) -> Result<&'a [u8], BoxError> {
        let len = self.usize()?;
        self.take(len)
    }

    fn string(&mut self) -> Result<String, BoxError> {
        Ok(std::str::from_utf8(self.bytes()?)?.to_owned())
    }

    fn indices(&mut self) -> Result<Vec<usize>, BoxError> {
        let len = self.usize()?;
        // No more is believed than can be there.
        if len > self.0.len() / 8 {
            return Err(damaged());
        }
        (0..len).map(|_| self.usize()).collect()
    }
}

impl Order {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Hello(hello) => {
                out.u8(1)
                    .usize(hello.worker)
                    .usize(hello.workers)
                    .usize(hello.in_flight)
                    .u64(hello.seed);
                out.u8(hello.drop_last.into())
                    .bytes(hello.recipe.as_bytes())
                    .bytes(&hello.argument);
            }
            Self::Epoch(epoch) => {
                out.u8(2).u64(*epoch);
            }
            Self::Task { epoch, position, job } => encode_task(&mut out, *epoch, *position, job),
            Self::Retire => {
                out.u8(4);
            }
        }
        out.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, BoxError> {
        let mut from = Reader(bytes);
        Ok(match from.u8()? {
            1 => Self::Hello(Hello {
                worker: from.usize()?,
                workers: from.usize()?,
                in_flight: from.usize()?,
                seed: from.u64()?,
                drop_last: from.flag()?,
                recipe: from.string()?,
                argument: from.bytes()?.to_vec(),
            }),
            2 => Self::Epoch(from.u64()?),
            3 => Self::Task {
                epoch: from.u64()?,
                position: from.u64()?,
                job: BatchJob {
                    epoch: from.u64()?,
                    first: from.u64()?,
                    count: from.usize()?,
                    indices: from.indices()?,
                },
            },
            4 => Self::Retire,
            _ => return Err(damaged()),
        })
    }

    /// As [`encode`](Order::encode) of a task, without a copy of the job.
    pub(super) fn task(epoch: u64, position: u64, job: &BatchJob) -> Vec<u8> {
        let mut out = Writer::default();
        encode_task(&mut out, epoch, position, job);
        out.bytes
    }
}

fn encode_task(out: &mut Writer, epoch: u64, position: u64, job: &BatchJob) {
    out.u8(3)
        .u64(epoch)
        .u64(position)
        .u64(job.epoch)
        .u64(job.first)
        .usize(job.count)
        .indices(&job.indices);
}

impl Report {
    /// Consumes the batch: its tensors are committed in the arena, copied into it where they lie elsewhere.
    pub(super) fn encode(self, arena: &Arc<Arena>) -> Result<Vec<u8>, Error> {
        let mut out = Writer::default();
        match self {
            Self::Ready => {
                out.u8(1);
            }
            Self::Refused(text) => {
                out.u8(2).bytes(text.as_bytes());
            }
            Self::Segment { id, len } => {
                out.u8(3).u64(id.into()).usize(len);
            }
            Self::Gone { id } => {
                out.u8(4).u64(id.into());
            }
            Self::Done {
                epoch,
                position,
                output: Ok(value),
            } => {
                out.u8(5).u64(epoch).u64(position);
                if let Err(error) = encode_value(&mut out, value, arena, 0) {
                    // The message will not be sent: its slots must not wait for a reader.
                    for token in &out.tokens {
                        arena.unsend(token);
                    }
                    return Err(error);
                }
            }
            Self::Done {
                epoch,
                position,
                output: Err(error),
            } => {
                out.u8(6).u64(epoch).u64(position);
                encode_error(&mut out, &error);
            }
            Self::Exhausted { epoch, position } => {
                out.u8(7).u64(epoch).u64(position);
            }
            Self::Broken(text) => {
                out.u8(8).bytes(text.as_bytes());
            }
        }
        Ok(out.bytes)
    }

    pub(super) fn decode(bytes: &[u8], view: &Arc<View>) -> Result<Self, BoxError> {
        let mut from = Reader(bytes);
        Ok(match from.u8()? {
            1 => Self::Ready,
            2 => Self::Refused(from.string()?),
            3 => Self::Segment {
                id: u32::try_from(from.u64()?)?,
                len: from.usize()?,
            },
            4 => Self::Gone {
                id: u32::try_from(from.u64()?)?,
            },
            5 => Self::Done {
                epoch: from.u64()?,
                position: from.u64()?,
                output: Ok(decode_value(&mut from, view, 0)?),
            },
            6 => Self::Done {
                epoch: from.u64()?,
                position: from.u64()?,
                output: Err(decode_error(&mut from)?),
            },
            7 => Self::Exhausted {
                epoch: from.u64()?,
                position: from.u64()?,
            },
            8 => Self::Broken(from.string()?),
            _ => return Err(damaged()),
        })
    }
}

fn encode_value(out: &mut Writer, value: Value, arena: &Arc<Arena>, depth: usize) -> Result<(), Error> {
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
    }
    Ok(())
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

fn decode_value(from: &mut Reader<'_>, view: &Arc<View>, depth: usize) -> Result<Value, BoxError> {
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

fn encode_error(out: &mut Writer, error: &Error) {
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

fn decode_error(from: &mut Reader<'_>) -> Result<Error, BoxError> {
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

/// A message as it is sent: small ones as they are, large ones in a sealed file.
pub(super) struct Parcel {
    bytes: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Parcel {
    pub(super) fn new(message: Vec<u8>) -> Result<Self, Error> {
        if message.len() <= Channel::MAX {
            return Ok(Self {
                bytes: message,
                fd: None,
            });
        }
        let fd = payload_fd(&message).map_err(|error| Error::system("sending a large message", error))?;
        Ok(Self {
            bytes: vec![IN_PAYLOAD],
            fd: Some(fd),
        })
    }

    /// A message with a descriptor of its own.
    pub(super) fn with_fd(bytes: Vec<u8>, fd: OwnedFd) -> Self {
        Self { bytes, fd: Some(fd) }
    }

    pub(super) fn try_send(&self, channel: &Channel) -> Result<(), SendError> {
        use std::os::fd::AsFd as _;
        channel.try_send(&self.bytes, self.fd.as_ref().map(|fd| fd.as_fd()))
    }

    pub(super) fn send(&self, channel: &Channel) -> Result<(), SendError> {
        use std::os::fd::AsFd as _;
        channel.send(&self.bytes, self.fd.as_ref().map(|fd| fd.as_fd()))
    }
}

/// Calls `read` with the message proper, and with the descriptor if it is one of its own.
pub(super) fn open<T>(
    bytes: &[u8],
    fd: Option<OwnedFd>,
    read: impl FnOnce(&[u8], Option<OwnedFd>) -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    match (bytes, fd) {
        ([IN_PAYLOAD], Some(fd)) => read(&read_payload(fd)?, None),
        (_, fd) => read(bytes, fd),
    }
}

/// Sends what the parent must know of the arena, then the message.
pub(super) fn report(channel: &Channel, arena: &Arc<Arena>, report: Report) -> Result<(), Stop> {
    let message = report.encode(arena)?;
    announce(channel, arena)?;
    post(channel, &Parcel::new(message)?)
}

/// Sends what the parent must know of the arena.
pub(super) fn announce(channel: &Channel, arena: &Arc<Arena>) -> Result<(), Stop> {
    for announcement in arena.take_announcements() {
        let parcel = match announcement {
            Announce::New { id, len, fd } => Parcel::with_fd(Report::Segment { id, len }.encode(arena)?, fd),
            Announce::Gone { id } => Parcel::new(Report::Gone { id }.encode(arena)?)?,
        };
        post(channel, &parcel)?;
    }
    Ok(())
}

fn post(channel: &Channel, parcel: &Parcel) -> Result<(), Stop> {
    parcel.send(channel).map_err(|error| match error {
        SendError::Closed => Stop::Gone,
        error => Error::system("reporting to the parent", error).into(),
    })
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
