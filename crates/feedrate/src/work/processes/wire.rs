//! What parent and worker say to each other. Numbers are little-endian; every read is checked against what is there.

use std::sync::Arc;

use feedrate_shm::{Arena, Token, View};

use super::codec::{Reader, Writer, damaged, decode_error, decode_value, encode_error, encode_value};
use crate::batch::Value;
use crate::error::{BoxError, Error};
use crate::work::BatchJob;

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
                    turn: None,
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
    /// Consumes the batch: its tensors are committed in the arena, copied into it where they lie elsewhere. Gives the message, and the
    /// tokens in it, to be taken back if it is not sent.
    pub(super) fn encode(self, arena: &Arc<Arena>) -> Result<(Vec<u8>, Vec<Token>), Error> {
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
        Ok((out.bytes, out.tokens))
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

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
