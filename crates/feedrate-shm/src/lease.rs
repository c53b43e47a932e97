//! The right to read a slot.

use std::fmt;
use std::sync::Arc;

use crate::fork::{Since, Stamp};
use crate::segment::Segment;
use crate::slots::Holder;

/// The right of the reading process to use the contents of one slot; from [`View::lease`](crate::View::lease).
///
/// `Send` and `Sync`. It keeps the memory mapped, whatever becomes of the view and of the writer. Dropping it lets the writer
/// reuse the slot: two compare-and-swaps, legal on any thread at any time, without a lock, an allocation or a system call,
/// unless it is the last user of a segment that the view has forgotten (then it unmaps it).
///
/// When the process was forked since the lease was taken, dropping it retires the slot instead, because the child may still
/// read it. In the child, dropping it does nothing to the slot.
pub struct Lease {
    segment: Arc<Segment>,
    slot: u32,
    generation: u32,
    len: usize,
    stamp: Stamp,
}

impl Lease {
    pub(crate) fn new(segment: Arc<Segment>, slot: u32, generation: u32, len: usize, stamp: Stamp) -> Self {
        Self {
            segment,
            slot,
            generation,
            len,
            stamp,
        }
    }

    /// The first byte; valid for reads of [`len`](Lease::len) bytes while the lease lives. The writer may still write if it has
    /// kept its own handle.
    pub fn as_ptr(&self) -> *const u8 {
        self.as_mut_ptr()
    }

    /// As [`as_ptr`](Lease::as_ptr), also for writes: batches are writable. The writer sees them if it has kept its own handle.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.segment.slot_ptr(self.slot)
    }

    /// Bytes of contents.
    #[expect(clippy::len_without_is_empty, reason = "a slot has at least one byte")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies `len` bytes from `start` on; None when they are not all inside the slot.
    pub fn read(&self, start: usize, len: usize) -> Option<Vec<u8>> {
        if start.checked_add(len)? > self.len {
            return None;
        }
        let mut out = Vec::<u8>::with_capacity(len);
        // SAFETY: the source is inside the slot, which the lease keeps mapped; the destination has room for `len` bytes, and all of
        // them are written before its length says so.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr().add(start), out.as_mut_ptr(), len);
            out.set_len(len);
        }
        Some(out)
    }

    /// Ends this lease as the death of its process would: the slot stays leased for ever.
    #[cfg(feature = "testing")]
    pub fn abandon(mut self) {
        self.stamp = Stamp::foreign();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let retire = match self.stamp.since() {
            Since::Nothing => false,
            Since::Forked => true,
            Since::Child => return, // the parent's lease is still there
        };
        // An error would mean that the table was damaged from outside; there is nobody to tell, and nothing was changed.
        let _ = self
            .segment
            .table()
            .release(self.slot, self.generation, Holder::Lease, retire);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("segment", &self.segment.id())
            .field("slot", &self.slot)
            .field("generation", &self.generation)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
