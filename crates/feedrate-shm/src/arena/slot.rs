//! The writer's handle of a reserved slot.

use std::fmt;
use std::sync::Arc;

use super::commit;
use crate::error::Result;
use crate::fork::{Since, Stamp};
use crate::segment::Segment;
use crate::slots::Holder;
use crate::token::Token;

/// The right of the writing process to use a reserved slot.
///
/// `Send` and `Sync`, not `Clone`: share it in an `Arc`. The memory is reused only when this handle is gone *and* the slot was
/// never sent or the reader has released it. Dropping it without sending aborts the reservation. Dropping is lock-free, allowed
/// on any thread, and makes no system call, unless it is the last user of a segment that was given back (then it unmaps it).
pub struct Slot {
    segment: Arc<Segment>,
    index: u32,
    generation: u32,
    len: usize,
    stamp: Stamp,
}

impl Slot {
    pub(super) fn new(segment: Arc<Segment>, index: u32, generation: u32, len: usize) -> Self {
        Self {
            segment,
            index,
            generation,
            len,
            stamp: Stamp::now(),
        }
    }

    /// The first byte. Valid for reads and writes of [`len`](Slot::len) bytes while this handle lives; after a send the reader
    /// may do both, too.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.segment.slot_ptr(self.index)
    }

    /// The address of the first byte.
    pub fn addr(&self) -> usize {
        self.as_mut_ptr().addr()
    }

    /// Bytes reserved.
    #[expect(clippy::len_without_is_empty, reason = "a slot has at least one byte")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Commits the slot, as [`Arena::send`](super::Arena::send) does, without a lock. The arena's announcements must reach the
    /// reader before the token.
    pub fn send(&self) -> Result<Token> {
        self.stamp.same_process()?;
        commit(&self.segment, self.index, self.generation, self.len)
    }

    /// Ends this handle as the death of its process would: in the table it stays in use for ever.
    #[cfg(feature = "testing")]
    pub fn abandon(mut self) {
        self.stamp = Stamp::foreign();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let retire = match self.stamp.since() {
            Since::Nothing => false,
            Since::Forked => true,
            Since::Child => return, // the parent's handle is still there
        };
        let done = self
            .segment
            .table()
            .release(self.index, self.generation, Holder::Local, retire);
        debug_assert!(done.is_ok(), "a local handle is released once: {done:?}");
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("segment", &self.segment.id())
            .field("slot", &self.index)
            .field("generation", &self.generation)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
