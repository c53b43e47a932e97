//! The messages between the parent and its worker processes. Fixed little-endian headers; at most one channel message each.

use feedrate_shm::Token;

/// Bytes of [`Header`] on the wire.
pub(crate) const HEADER: usize = 32;
/// Bytes of a [`Token`] on the wire.
pub(crate) const TOKEN: usize = 24;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// To a worker: do a task; the body is the pickled index.
    Task = 1,
    /// To a worker: the tasks of a new epoch follow.
    Epoch = 2,
    /// To a worker: end.
    Stop = 3,
    /// From a worker: ready. Its one token is the page where it leaves its random states.
    Hello = 4,
    /// From a worker: a batch.
    Batch = 5,
    /// From a worker: the user's code raised.
    Error = 6,
    /// From a worker: its stream has ended.
    Exhausted = 7,
    /// From a worker: a new segment (number in `epoch`, length in `position`), with its descriptor.
    Segment = 8,
    /// From a worker: a segment that holds nothing any more (number in `epoch`).
    Gone = 9,
}

impl Kind {
    fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Task,
            2 => Self::Epoch,
            3 => Self::Stop,
            4 => Self::Hello,
            5 => Self::Batch,
            6 => Self::Error,
            7 => Self::Exhausted,
            8 => Self::Segment,
            9 => Self::Gone,
            _ => return None,
        })
    }
}

/// Where the body of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// Behind the header.
    Here = 0,
    /// In a memory file whose descriptor rides with the message.
    File = 1,
    /// In the slot whose token stands behind the header.
    Slot = 2,
}

/// The first bytes of every message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) place: Place,
    /// Tokens at the start of the body.
    pub(crate) tokens: u16,
    /// Bytes of the tensor table behind the tokens.
    pub(crate) table: u32,
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

impl Header {
    pub(crate) fn new(kind: Kind, epoch: u64, position: u64) -> Self {
        Self {
            kind,
            place: Place::Here,
            tokens: 0,
            table: 0,
            epoch,
            position,
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.kind as u8, self.place as u8]);
        out.extend_from_slice(&self.tokens.to_le_bytes());
        out.extend_from_slice(&self.table.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER);
        self.write(&mut out);
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, body) = bytes.split_at_checked(HEADER)?;
        let header = Self {
            kind: Kind::from_u8(head[0])?,
            place: match head[1] {
                0 => Place::Here,
                1 => Place::File,
                2 => Place::Slot,
                _ => return None,
            },
            tokens: u16::from_le_bytes([head[2], head[3]]),
            table: u32::from_le_bytes([head[4], head[5], head[6], head[7]]),
            epoch: u64::from_le_bytes(head[8..16].try_into().ok()?),
            position: u64::from_le_bytes(head[16..24].try_into().ok()?),
        };
        Some((header, body))
    }
}

/// The tokens at the start of a body.
pub(crate) fn tokens(count: u16, body: &[u8]) -> Option<(Vec<Token>, &[u8])> {
    let (tokens, rest) = body.split_at_checked(usize::from(count) * TOKEN)?;
    let tokens = tokens
        .chunks_exact(TOKEN)
        .map(|c| c.try_into().ok().map(Token::from_bytes));
    Some((tokens.collect::<Option<_>>()?, rest))
}

/// One tensor of a batch: which token, where in it, and its type and geometry (strides in elements).
#[derive(Clone, Debug)]
pub(crate) struct TensorEntry {
    /// Index into the message's tokens; `NO_TOKEN` for an empty tensor.
    pub(crate) token: u16,
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) offset: u64,
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Vec<i64>,
}

/// An empty tensor has no memory.
pub(crate) const NO_TOKEN: u16 = u16::MAX;

impl TensorEntry {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.token.to_le_bytes());
        let ndim = u8::try_from(self.shape.len()).unwrap_or(u8::MAX);
        out.extend_from_slice(&[self.code, self.bits, ndim]);
        out.extend_from_slice(&self.offset.to_le_bytes());
        for n in self.shape.iter().chain(&self.strides) {
            out.extend_from_slice(&n.to_le_bytes());
        }
    }

    pub(crate) fn read_all(mut table: &[u8]) -> Option<Vec<Self>> {
        let mut entries = Vec::new();
        while !table.is_empty() {
            let (head, rest) = table.split_at_checked(13)?;
            let ndim = usize::from(head[4]);
            let (geometry, rest) = rest.split_at_checked(ndim * 16)?;
            let mut numbers = geometry
                .chunks_exact(8)
                .map(|c| c.try_into().map_or(0, i64::from_le_bytes));
            entries.push(Self {
                token: u16::from_le_bytes([head[0], head[1]]),
                code: head[2],
                bits: head[3],
                offset: u64::from_le_bytes(head[5..13].try_into().ok()?),
                shape: numbers.by_ref().take(ndim).collect(),
                strides: numbers.collect(),
            });
            table = rest;
        }
        Some(entries)
    }
}
