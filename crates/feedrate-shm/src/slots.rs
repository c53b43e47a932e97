//! The life of a slot: one state word for each slot and one stack of freed slots for each segment.
//!
//! This is the whole lock-free core, in safe code over atomics, so that loom can run all of it. Both processes run the same
//! functions on the same memory. A word is `flags << 32 | generation`; the flags name who still holds the slot:
//!
//! | flag | held by |
//! | --- | --- |
//! | `LOCAL` | the writer's handle |
//! | `SENT` | a message on its way, nobody has taken its lease yet |
//! | `LEASED` | the reader's lease |
//!
//! Whoever takes away the last of the three marks the word `FREED` and pushes the slot on the freed stack. Pushing is a
//! compare-and-swap by any thread of either process; only the writer takes from the stack, always all of it, so there is no
//! ABA problem.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

const LOCAL: u32 = 1;
const SENT: u32 = 1 << 1;
const LEASED: u32 = 1 << 2;
/// Committed once in this generation; stays until the slot is free again.
const COMMITTED: u32 = 1 << 3;
/// On the freed stack, owned by the stack.
const FREED: u32 = 1 << 4;
/// Some other process may still see this memory: never to be reused.
const RETIRED: u32 = 1 << 5;

const HOLDERS: u32 = LOCAL | SENT | LEASED;

/// One slot's entry in the table of a segment. All zero means free and never used.
#[repr(C)]
pub(crate) struct Entry {
    word: AtomicU64,
    /// Next slot on the freed stack, plus one; zero ends it. Written by who pushes, read by who collects.
    next: AtomicU32,
    reserved: AtomicU32,
}

/// Who gives up a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The writer's handle.
    Local,
    /// The reader's lease.
    Lease,
}

/// Why an operation was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No such slot in this segment.
    Range,
    /// The slot has another generation, or is not in the state that the operation needs.
    Stale,
    /// The slot was committed before in this generation.
    Committed,
    /// All generations of this slot are used up.
    Exhausted,
    /// The freed stack holds something that no correct process can have put there.
    Corrupt,
}

/// What a slot's word says at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotState {
    flags: u32,
    pub(crate) generation: u32,
}

impl SlotState {
    /// The writer's handle is alive.
    pub(crate) fn is_local(self) -> bool {
        self.flags & LOCAL != 0
    }

    /// The reader holds a lease, or can take one.
    pub(crate) fn is_out(self) -> bool {
        self.flags & (SENT | LEASED) != 0
    }

    /// It was committed in this generation.
    pub(crate) fn is_committed(self) -> bool {
        self.flags & COMMITTED != 0
    }
}

/// The table of one segment, in whichever memory it lies.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    pub(crate) freed: &'a AtomicU32,
    pub(crate) entries: &'a [Entry],
}

fn pack(flags: u32, generation: u32) -> u64 {
    u64::from(flags) << 32 | u64::from(generation)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of the word")]
fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl<'a> Table<'a> {
    fn entry(&self, slot: u32) -> Result<&'a Entry, Fault> {
        self.entries.get(slot as usize).ok_or(Fault::Range)
    }

    /// Changes the flags of `slot` if it has this generation and `change` allows it; gives the new flags back.
    fn update(&self, slot: u32, generation: u32, change: impl Fn(u32) -> Result<u32, Fault>) -> Result<u32, Fault> {
        let entry = self.entry(slot)?;
        let mut word = entry.word.load(Ordering::Relaxed);
        loop {
            let (flags, found) = unpack(word);
            if found != generation {
                return Err(Fault::Stale);
            }
            let changed = change(flags)?;
            // AcqRel: what the previous holder wrote into the slot is seen by the next one
            match entry
                .word
                .compare_exchange_weak(word, pack(changed, generation), Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Ok(changed),
                Err(now) => word = now,
            }
        }
    }

    /// Writer only: takes a free slot into use and gives its new generation. The caller owns the free slots, so nobody else
    /// can change this word meanwhile.
    pub(crate) fn reserve(&self, slot: u32) -> Result<u32, Fault> {
        let entry = self.entry(slot)?;
        let (flags, generation) = unpack(entry.word.load(Ordering::Relaxed));
        if flags != 0 {
            return Err(Fault::Corrupt);
        }
        let next = generation.checked_add(1).ok_or(Fault::Exhausted)?;
        entry.word.store(pack(LOCAL, next), Ordering::Release);
        Ok(next)
    }

    /// Writer only: offers the slot's contents to the reader.
    pub(crate) fn commit(&self, slot: u32, generation: u32) -> Result<(), Fault> {
        self.update(slot, generation, |flags| match flags {
            _ if flags & LOCAL == 0 => Err(Fault::Stale),
            _ if flags & COMMITTED != 0 => Err(Fault::Committed),
            _ => Ok(flags | COMMITTED | SENT),
        })
        .map(drop)
    }

    /// Writer only: takes an offer back that no reader can have seen. Frees the slot when the handle is gone already.
    pub(crate) fn revoke(&self, slot: u32, generation: u32) -> Result<(), Fault> {
        let flags = self.update(slot, generation, |flags| {
            if flags & SENT == 0 {
                return Err(Fault::Stale);
            }
            Ok(freed_if_last(flags & !(SENT | COMMITTED)))
        })?;
        self.push_if_freed(slot, flags)
    }

    /// Reader only: turns the offer into a lease. An offer can be taken once.
    pub(crate) fn lease(&self, slot: u32, generation: u32) -> Result<(), Fault> {
        self.update(slot, generation, |flags| {
            if flags & SENT == 0 {
                Err(Fault::Stale)
            } else {
                Ok(flags & !SENT | LEASED)
            }
        })
        .map(drop)
    }

    /// Gives up one holder's part, from any thread; with `retire` the memory is never used again. A holder can do this once
    /// for each generation.
    pub(crate) fn release(&self, slot: u32, generation: u32, holder: Holder, retire: bool) -> Result<(), Fault> {
        let part = match holder {
            Holder::Local => LOCAL,
            Holder::Lease => LEASED,
        };
        let flags = self.update(slot, generation, |flags| {
            if flags & part == 0 {
                return Err(Fault::Stale);
            }
            Ok(freed_if_last(flags & !part | if retire { RETIRED } else { 0 }))
        })?;
        self.push_if_freed(slot, flags)
    }

    fn push_if_freed(&self, slot: u32, flags: u32) -> Result<(), Fault> {
        if flags & FREED == 0 {
            return Ok(());
        }
        let entry = self.entry(slot)?;
        let mut head = self.freed.load(Ordering::Relaxed);
        loop {
            entry.next.store(head, Ordering::Relaxed);
            match self
                .freed
                .compare_exchange_weak(head, slot + 1, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Writer only: takes every slot from the freed stack and calls `each(slot, retired)`. On [`Fault::Corrupt`] the segment
    /// must not be used any more.
    pub(crate) fn collect(&self, mut each: impl FnMut(u32, bool)) -> Result<(), Fault> {
        if self.freed.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut at = self.freed.swap(0, Ordering::Acquire);
        while let Some(slot) = at.checked_sub(1) {
            let entry = self.entry(slot).map_err(|_| Fault::Corrupt)?;
            let (flags, generation) = unpack(entry.word.load(Ordering::Acquire));
            if flags & FREED == 0 {
                return Err(Fault::Corrupt); // also ends a cycle, whose first member is no longer FREED
            }
            at = entry.next.load(Ordering::Relaxed);
            entry.word.store(pack(flags & RETIRED, generation), Ordering::Relaxed);
            each(slot, flags & RETIRED != 0);
        }
        Ok(())
    }

    /// Whether something lies on the freed stack.
    pub(crate) fn has_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed) != 0
    }

    /// The slot's state at this moment; nothing at all for a slot that does not exist.
    pub(crate) fn state(&self, slot: u32) -> SlotState {
        let Ok(entry) = self.entry(slot) else {
            return SlotState::default();
        };
        let (flags, generation) = unpack(entry.word.load(Ordering::Acquire));
        SlotState { flags, generation }
    }
}

fn freed_if_last(flags: u32) -> u32 {
    if flags & HOLDERS == 0 {
        flags & RETIRED | FREED
    } else {
        flags
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

/// A table in ordinary memory.
#[cfg(test)]
mod heap {
    use super::{AtomicU32, AtomicU64, Entry, Table};

    pub(super) struct HeapTable {
        freed: AtomicU32,
        entries: Vec<Entry>,
    }

    impl HeapTable {
        pub(super) fn new(slots: u32) -> Self {
            Self::with_generation(slots, 0)
        }

        pub(super) fn with_generation(slots: u32, generation: u32) -> Self {
            let entry = |_| Entry {
                word: AtomicU64::new(u64::from(generation)),
                next: AtomicU32::new(0),
                reserved: AtomicU32::new(0),
            };
            Self {
                freed: AtomicU32::new(0),
                entries: (0..slots).map(entry).collect(),
            }
        }

        pub(super) fn table(&self) -> Table<'_> {
            Table {
                freed: &self.freed,
                entries: &self.entries,
            }
        }
    }
}
