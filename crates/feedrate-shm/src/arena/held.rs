//! What the writer remembers about one of its segments.

use std::sync::Arc;

use crate::segment::Segment;
use crate::slots::Fault;

pub(crate) struct Held {
    pub(crate) segment: Arc<Segment>,
    /// The class of a slab; none for a segment with one large slot.
    pub(crate) class: Option<usize>,
    /// Free slots that were used before; the last one freed is the first one reused, while its pages are warm.
    free: Vec<u32>,
    /// Slots from here on were never used.
    fresh: u32,
    /// The length asked for, for each slot below `fresh`.
    lens: Vec<usize>,
    /// Slots reserved and not yet collected.
    pub(crate) used: u32,
    /// Slots that will never be used again.
    pub(crate) retired: u32,
    /// The freed stack was found damaged: nothing of this segment is trusted any more.
    pub(crate) corrupt: bool,
    /// When a slot was last taken from here, in reservations.
    pub(crate) touched: u64,
}

impl Held {
    pub(crate) fn new(segment: Arc<Segment>, class: Option<usize>) -> Self {
        Self {
            segment,
            class,
            free: Vec::new(),
            fresh: 0,
            lens: Vec::new(),
            used: 0,
            retired: 0,
            corrupt: false,
            touched: 0,
        }
    }

    /// Takes in what was freed since the last time.
    pub(crate) fn collect(&mut self) {
        if self.corrupt || !self.segment.table().has_freed() {
            return;
        }
        let (mut freed, mut retired) = (0u32, 0u32);
        let free = &mut self.free;
        let done = self.segment.table().collect(|slot, gone| {
            freed += 1;
            if gone {
                retired += 1;
            } else {
                free.push(slot);
            }
        });
        self.retired += retired;
        match self.used.checked_sub(freed) {
            Some(used) if done.is_ok() => self.used = used,
            _ => self.corrupt = true,
        }
    }

    /// Whether slots may be taken from here. Once a slot is retired the rest of the segment only drains, so that the whole can
    /// be given back.
    pub(crate) fn usable(&self) -> bool {
        self.retired == 0 && !self.corrupt
    }

    /// Whether nobody uses any slot, so that the segment can be given back.
    pub(crate) fn idle(&self) -> bool {
        self.used == 0 && !self.corrupt
    }

    /// Takes a free slot for `len` bytes: its index and its generation. The caller has checked `usable`.
    pub(crate) fn take(&mut self, len: usize, now: u64) -> Option<(u32, u32)> {
        if self.free.is_empty() {
            self.collect();
        }
        while self.usable() {
            let slot = match self.free.pop() {
                Some(slot) => slot,
                None if self.fresh < self.segment.slots() => {
                    self.fresh += 1;
                    self.lens.push(0);
                    self.fresh - 1
                }
                None => return None,
            };
            match self.segment.table().reserve(slot) {
                Ok(generation) => {
                    self.lens[slot as usize] = len;
                    self.used += 1;
                    self.touched = now;
                    return Some((slot, generation));
                }
                Err(Fault::Exhausted) => self.retired += 1,
                Err(_) => self.corrupt = true,
            }
        }
        None
    }

    /// The length asked for when `slot` was last reserved.
    pub(crate) fn slot_len(&self, slot: u32) -> Option<usize> {
        self.lens.get(slot as usize).copied()
    }

    /// Slots that were ever used.
    pub(crate) fn seen(&self) -> u32 {
        self.fresh
    }

    /// Bytes in use, by capacity.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used as usize * self.segment.stride()
    }
}
