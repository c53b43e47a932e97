//! A worker process's end: takes tasks, writes batches into its arena, sends them.
#![expect(unsafe_code, reason = "copies tensors from the addresses that Python names")]

use std::collections::HashMap;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use feedrate_shm::{
    Announce, Arena, ArenaOptions, Channel, Interest, PidFd, PollOutcome, RecvError, SendError, Slot, Token, exit_now,
    poll, read_payload, watch_parent,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::block::Block;
use crate::dlpack;
use crate::error::shm;
use crate::wire::{self, Header, Kind, NO_TOKEN, Place, TensorEntry};

/// A tensor of a batch as Python describes it: `(address, storage address, storage bytes, code, bits, shape, strides)`, strides
/// in elements.
type Described = (usize, usize, usize, u8, u8, Vec<i64>, Vec<i64>);

/// The worker's side of a channel, with the worker's arena.
#[pyclass(frozen, module = "feedrate._native")]
pub(crate) struct WorkerEnd {
    channel: Channel,
    arena: Arc<Arena>,
    /// Where the random states are left for a replacement.
    page: Slot,
}

/// Bytes of the page for random states: two records, each with room for the states of torch (5,056), NumPy (2,504) and
/// `random` (2,512), and for what they may grow to.
const PAGE: usize = 32 << 10;

/// A worker that has waited this long for an order looks after its memory.
const IDLE: Duration = Duration::from_millis(500);
/// After so many of these it keeps none for reuse.
const REST: u32 = 4;

#[pymethods]
impl WorkerEnd {
    /// Takes over descriptor `fd`. From now on this process ends when process `parent` does.
    #[new]
    fn new(fd: RawFd, parent: i32) -> PyResult<Self> {
        // SAFETY: the descriptor was made for this process by its parent, and Python gives it up here.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        match PidFd::open(parent) {
            Ok(parent) => watch_parent(parent, || exit_now(0)).map_err(|e| shm(&e))?,
            // It is gone already.
            Err(_) => exit_now(0),
        }
        let arena = Arena::new(ArenaOptions::default()).map_err(|e| shm(&e))?;
        let page = arena.reserve(PAGE).map_err(|e| shm(&e))?;
        Ok(Self {
            channel: Channel::from_fd(fd),
            arena,
            page,
        })
    }

    /// Tells the parent that this worker is ready.
    fn hello(&self, py: Python<'_>) -> PyResult<bool> {
        let token = self.token_of(self.page.as_mut_ptr() as usize, self.page.len())?;
        let mut bytes = Vec::with_capacity(wire::HEADER + wire::TOKEN);
        Header {
            tokens: 1,
            ..Header::new(Kind::Hello, 0, 0)
        }
        .write(&mut bytes);
        bytes.extend_from_slice(&token.to_bytes());
        self.send(py, &bytes)
    }

    /// Blocks (without the GIL) until an order is there, or the parent has gone.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            let outcome = py.detach(|| poll(&[(self.channel.as_fd(), Interest::READ)], None));
            py.check_signals()?;
            if let PollOutcome::Ready(_) = outcome.map_err(|e| shm(&e))? {
                return Ok(());
            }
        }
    }

    /// Blocks (without the GIL) for the next order: `(epoch, position, pickled index)`, with position and index None when an
    /// epoch begins (the third item then holds what goes with it); None when this worker is to end.
    fn recv<'py>(&self, py: Python<'py>) -> PyResult<Option<(u64, Option<u64>, Option<Bound<'py, PyBytes>>)>> {
        let mut buffer = [0u8; Channel::MAX];
        let mut idle = 0u32;
        let received = loop {
            match self.channel.try_recv(&mut buffer) {
                Err(RecvError::WouldBlock) => {}
                received => break received,
            }
            let outcome = py.detach(|| poll(&[(self.channel.as_fd(), Interest::READ)], Some(IDLE)));
            py.check_signals()?;
            if let PollOutcome::Ready(ready) = outcome.map_err(|e| shm(&e))?
                && !ready.iter().any(|r| r.any())
            {
                // Nothing to do: a good time to give memory back, all of it after a while.
                idle += 1;
                if idle < REST {
                    self.arena.balance();
                } else if idle.is_multiple_of(REST) {
                    self.arena.trim();
                }
            }
        };
        let received = match received {
            Ok(received) => received,
            Err(RecvError::FdLimit) => {
                return Err(PyOSError::new_err(
                    "too many open files in a DataLoader worker: raise `ulimit -n`",
                ));
            }
            Err(_) => return Ok(None),
        };
        let malformed = || PyOSError::new_err("a DataLoader worker received a message that cannot be read");
        let (header, body) = Header::read(&buffer[..received.len]).ok_or_else(malformed)?;
        Ok(match header.kind {
            Kind::Epoch => Some((header.epoch, None, Some(PyBytes::new(py, body)))),
            Kind::Task => {
                let index = if header.place == Place::Here {
                    PyBytes::new(py, body)
                } else {
                    let payload = read_payload(received.fd.ok_or_else(malformed)?).map_err(|e| shm(&e))?;
                    PyBytes::new(py, &payload)
                };
                Some((header.epoch, Some(header.position), Some(index)))
            }
            _ => None,
        })
    }

    /// Memory of the arena, 64-byte aligned, with whatever was in it before.
    fn reserve(&self, nbytes: usize) -> PyResult<Block> {
        let slot = self
            .arena
            .reserve(nbytes)
            .map_err(|e| PyMemoryError::new_err(e.to_string()))?;
        Ok(Block::new(Arc::new(slot)))
    }

    /// Leaves `state` for a replacement, as of the completion of this task; None: the state left by the call before. `turn` counts
    /// the calls.
    fn leave_state(&self, turn: usize, epoch: u64, position: u64, state: Option<&[u8]>) -> PyResult<()> {
        const HALF: usize = PAGE / 2;
        const HEAD: usize = 24;
        let start = self.page.as_mut_ptr().wrapping_add((turn & 1) * HALF);
        if let Some(state) = state.filter(|s| s.len() > HALF - HEAD) {
            return Err(PyValueError::new_err(format!(
                "random states of {} bytes, there is room for {}",
                state.len(),
                HALF - HEAD
            )));
        }
        let write = |at: usize, number: u64| {
            // SAFETY: inside this half of the page, which is this worker's own memory of PAGE bytes. The parent reads it only after
            // this process has ended.
            unsafe { std::ptr::copy_nonoverlapping(number.to_le_bytes().as_ptr(), start.add(at), 8) };
        };
        // Not valid while it is being written.
        write(8, 0);
        write(0, epoch);
        let (from, len) = if let Some(state) = state {
            write(16, state.len() as u64);
            (state.as_ptr(), state.len())
        } else {
            let other = self.page.as_mut_ptr().wrapping_add(((turn + 1) & 1) * HALF);
            (other.wrapping_add(16).cast_const(), HALF - 16)
        };
        let to = start.wrapping_add(if state.is_some() { HEAD } else { 16 });
        // SAFETY: source and destination are `len` bytes of a live slice or of the other half, and of this half.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        write(8, position + 1);
        Ok(())
    }

    /// Sends a batch, or with `error` what the user's code raised. Tensors that lie in this worker's arena are sent as they are,
    /// all others are copied into it once; tensors that share a storage share memory again on the other side. False when the
    /// parent has closed the channel.
    fn complete(
        &self,
        py: Python<'_>,
        epoch: u64,
        position: u64,
        error: bool,
        tensors: Vec<Described>,
        pickle: PyBuffer<u8>,
    ) -> PyResult<bool> {
        if !pickle.is_c_contiguous() {
            return Err(PyValueError::new_err("a pickle must be contiguous"));
        }
        let (start, len) = (pickle.buf_ptr().cast::<u8>().cast_const(), pickle.len_bytes());
        let mut batch = Outgoing::new(&self.arena);
        batch.place(&tensors)?;
        let kind = if error { Kind::Error } else { Kind::Batch };
        let mut table = Vec::new();
        for entry in &batch.entries {
            entry.write(&mut table);
        }
        let header = Header {
            tokens: u16::try_from(batch.tokens.len()).map_err(|_| too_many(batch.tokens.len()))?,
            table: u32::try_from(table.len()).map_err(|_| too_many(batch.tokens.len()))?,
            ..Header::new(kind, epoch, position)
        };
        let mut body = Vec::with_capacity(batch.tokens.len() * wire::TOKEN + table.len());
        for token in &batch.tokens {
            body.extend_from_slice(&token.to_bytes());
        }
        body.extend_from_slice(&table);
        let mut bytes = Vec::with_capacity(Channel::MAX);
        if wire::HEADER + body.len() + len <= Channel::MAX {
            header.write(&mut bytes);
            bytes.extend_from_slice(&body);
            // SAFETY: `pickle` holds its exporter's memory of `len` bytes in place, and Python's only writer to it is our caller.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(start, len) });
        } else {
            Header {
                place: Place::Slot,
                ..header
            }
            .write(&mut bytes);
            bytes.extend_from_slice(&batch.spill(&body, (start, len))?.to_bytes());
        }
        let sent = self.send(py, &bytes)?;
        batch.sent = true;
        Ok(sent)
    }

    /// Tells that this worker's stream has ended at this task.
    fn exhausted(&self, py: Python<'_>, epoch: u64, position: u64) -> PyResult<bool> {
        self.send(py, &Header::new(Kind::Exhausted, epoch, position).bytes())
    }

    /// `(segments, mapped bytes, leased slots, free bytes)` of this worker's arena.
    fn arena_stats(&self) -> (usize, usize, usize, usize) {
        let stats = self.arena.stats();
        (stats.segments, stats.mapped_bytes, stats.leased_slots, stats.free_bytes)
    }
}

impl WorkerEnd {
    fn token_of(&self, addr: usize, len: usize) -> PyResult<Token> {
        let at = self
            .arena
            .locate(addr, len)
            .ok_or_else(|| PyValueError::new_err("memory is not in this worker's arena"))?;
        self.arena.send(&at).map_err(|e| shm(&e))
    }

    /// Announces what the arena has mapped and given up, then sends. False when the other side has gone.
    fn send(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<bool> {
        let announced = self.arena.announce(|announce| match announce {
            Announce::New { id, len, fd } => {
                let header = Header::new(Kind::Segment, u64::from(*id), *len as u64);
                self.send_one(py, &header.bytes(), Some(fd))
            }
            Announce::Gone { id } => self.send_one(py, &Header::new(Kind::Gone, u64::from(*id), 0).bytes(), None),
        });
        match announced.and_then(|()| self.send_one(py, bytes, None)) {
            Ok(()) => Ok(true),
            Err(SendError::Closed) => Ok(false),
            Err(error) => Err(PyOSError::new_err(error.to_string())),
        }
    }

    fn send_one(&self, py: Python<'_>, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(), SendError> {
        let fd = fd.map(AsFd::as_fd);
        match self.channel.try_send(bytes, fd) {
            Err(SendError::WouldBlock) => py.detach(|| self.channel.send(bytes, fd)),
            sent => sent,
        }
    }
}

fn too_many(count: usize) -> PyErr {
    PyValueError::new_err(format!(
        "a batch of {count} tensors, at most {} can be sent",
        NO_TOKEN - 1
    ))
}

/// The tokens and the table of one message.
struct Outgoing<'a> {
    arena: &'a Arc<Arena>,
    tokens: Vec<Token>,
    entries: Vec<TensorEntry>,
    /// Which token a slot has got in this message.
    seen: HashMap<(u32, u32), u16>,
    /// The message went out, or there is nobody left to send it to.
    sent: bool,
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        if !self.sent {
            for token in &self.tokens {
                self.arena.unsend(token);
            }
        }
    }
}

/// What is smaller is copied with the gaps between its elements.
const SMALL: usize = 64 << 10;
/// A view whose elements lie this much further apart than they are large is made contiguous for the journey.
const SPREAD: usize = 4;

impl TensorEntry {
    fn itemsize(&self) -> usize {
        usize::from(self.bits).div_ceil(8)
    }

    fn span(&self) -> Option<usize> {
        dlpack::span(&self.shape, &self.strides, self.itemsize())
    }

    /// Bytes of its elements, without gaps or repetitions.
    fn used(&self) -> usize {
        let elements = self.shape.iter().zip(&self.strides).filter(|(_, stride)| **stride != 0);
        elements.fold(self.itemsize(), |bytes, (n, _)| {
            bytes.saturating_mul(usize::try_from(*n).unwrap_or(0))
        })
    }

    /// Copies the elements one by one into C order, and becomes contiguous; what is repeated (stride 0) stays so.
    fn gather(&mut self, addr: usize) -> Vec<u8> {
        let itemsize = self.itemsize();
        let numbers = |list: &[i64]| -> Vec<usize> { list.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect() };
        let (mut shape, strides) = (numbers(&self.shape), numbers(&self.strides));
        for (n, stride) in shape.iter_mut().zip(&strides) {
            if *stride == 0 {
                *n = (*n).min(1);
            }
        }
        let count: usize = shape.iter().product();
        let mut out = Vec::with_capacity(count * itemsize);
        let mut at = vec![0usize; shape.len()];
        for _ in 0..count {
            let element: usize = at.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
            // SAFETY: inside the tensor's span, which was checked against its storage; Python holds the tensor during this call.
            out.extend_from_slice(unsafe {
                std::slice::from_raw_parts((addr + element * itemsize) as *const u8, itemsize)
            });
            for dim in (0..shape.len()).rev() {
                at[dim] += 1;
                if at[dim] < shape[dim] {
                    break;
                }
                at[dim] = 0;
            }
        }
        let mut stride = 1;
        for (dim, n) in shape.iter().enumerate().rev().filter(|(dim, _)| strides[*dim] != 0) {
            self.strides[dim] = stride;
            stride *= i64::try_from(*n).unwrap_or(1).max(1);
        }
        out
    }
}

/// Tensors of one storage that lies outside of the arena, and the bytes of it that they cover.
struct Group {
    start: usize,
    end: usize,
    members: Vec<usize>,
}

impl<'a> Outgoing<'a> {
    fn new(arena: &'a Arc<Arena>) -> Self {
        Self {
            arena,
            tokens: Vec::new(),
            entries: Vec::new(),
            seen: HashMap::new(),
            sent: false,
        }
    }

    fn place(&mut self, tensors: &[Described]) -> PyResult<()> {
        let mut groups: HashMap<usize, Group> = HashMap::new();
        for (i, (addr, storage, storage_len, code, bits, shape, strides)) in tensors.iter().enumerate() {
            let span = dlpack::span(shape, strides, usize::from(*bits).div_ceil(8))
                .filter(|span| {
                    *span == 0
                        || (addr >= storage && addr.saturating_add(*span) <= storage.saturating_add(*storage_len))
                })
                .ok_or_else(|| {
                    PyValueError::new_err(format!("tensor {i} of shape {shape:?} does not fit its storage"))
                })?;
            let mut entry = TensorEntry {
                token: NO_TOKEN,
                code: *code,
                bits: *bits,
                offset: 0,
                shape: shape.clone(),
                strides: strides.clone(),
            };
            if span > 0 && !self.in_arena(*addr, span, &mut entry)? {
                let end = addr + span;
                let group = groups.entry(*storage).or_insert(Group {
                    start: *addr,
                    end,
                    members: Vec::new(),
                });
                group.start = group.start.min(*addr);
                group.end = group.end.max(end);
                group.members.push(i);
            }
            self.entries.push(entry);
        }
        for group in groups.values() {
            let used: usize = group.members.iter().map(|&i| self.entries[i].used()).sum();
            let union = group.end - group.start;
            // Views that are far apart in a large storage are copied one by one; the rest keeps its aliasing.
            if union <= SMALL || union <= used.saturating_mul(2) {
                let token = self.copy(group.start, union)?;
                for &i in &group.members {
                    self.entries[i].token = token;
                    self.entries[i].offset = (tensors[i].0 - group.start) as u64;
                }
                continue;
            }
            for &i in &group.members {
                let (addr, used) = (tensors[i].0, self.entries[i].used());
                let span = self.entries[i].span().unwrap_or(0);
                self.entries[i].token = if span <= SMALL || span <= used.saturating_mul(SPREAD) {
                    self.copy(addr, span)?
                } else {
                    let gathered = self.entries[i].gather(addr);
                    self.copy(gathered.as_ptr() as usize, gathered.len())?
                };
            }
        }
        Ok(())
    }

    /// Finds the tensor in the arena. A slot that went out with an earlier batch is not sent again: its reader may be done with it
    /// at any time.
    fn in_arena(&mut self, addr: usize, span: usize, entry: &mut TensorEntry) -> PyResult<bool> {
        let Some(at) = self.arena.locate(addr, span) else {
            return Ok(false);
        };
        let key = (at.segment, at.slot);
        let token = if let Some(token) = self.seen.get(&key) {
            *token
        } else if at.already_sent {
            return Ok(false);
        } else {
            let token = self.push(self.arena.send(&at).map_err(|e| shm(&e))?)?;
            self.seen.insert(key, token);
            token
        };
        entry.token = token;
        entry.offset = at.offset as u64;
        Ok(true)
    }

    fn copy(&mut self, addr: usize, len: usize) -> PyResult<u16> {
        let token = self.fill(&[(addr as *const u8, len)])?;
        self.push(token)
    }

    fn fill(&self, parts: &[(*const u8, usize)]) -> PyResult<Token> {
        let total = parts.iter().map(|(_, len)| len).sum();
        let slot = self
            .arena
            .reserve(total)
            .map_err(|e| PyMemoryError::new_err(e.to_string()))?;
        let mut to = slot.as_mut_ptr();
        for &(from, len) in parts {
            // SAFETY: the source is a live tensor's or buffer's memory of that length (its span was checked against its storage, and
            // Python holds the object during this call); the slot is ours alone and has room for all parts.
            unsafe {
                std::ptr::copy_nonoverlapping(from, to, len);
                to = to.add(len);
            }
        }
        let at = self
            .arena
            .locate(slot.as_mut_ptr() as usize, total)
            .ok_or_else(|| PyMemoryError::new_err("a slot is not in its own arena"))?;
        self.arena.send(&at).map_err(|e| shm(&e))
    }

    fn push(&mut self, token: Token) -> PyResult<u16> {
        let index = u16::try_from(self.tokens.len()).ok().filter(|i| *i != NO_TOKEN);
        self.tokens.push(token);
        index.ok_or_else(|| too_many(self.tokens.len()))
    }

    /// Puts a body that is too large for a message into a slot.
    fn spill(&mut self, body: &[u8], pickle: (*const u8, usize)) -> PyResult<Token> {
        self.fill(&[(body.as_ptr(), body.len()), pickle])
    }
}
