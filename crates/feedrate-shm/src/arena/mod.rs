//! The writing side: memory that is reserved, filled, sent once and reused.

mod held;
mod slot;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use slot::Slot;

use self::held::Held;
use crate::error::{Error, Result};
use crate::fork::{self, Stamp};
use crate::segment::Segment;
use crate::size::{self, CLASSES, LARGE};
use crate::slots::Fault;
use crate::token::Token;

/// How often announcements are taken before the memory bound is looked after again.
const BALANCE_EVERY: u32 = 16;

/// How an [`Arena`] is made.
#[derive(Clone, Debug)]
pub struct ArenaOptions {
    /// Seen in `/proc/<pid>/maps` as `/memfd:<name>`; at most 60 characters of it.
    pub name: String,
    /// Free memory, in bytes, that is kept for reuse before segments are given back. What is kept is at most this or the bytes
    /// in use, whichever is more. Default: 64 MiB.
    pub idle_bytes: usize,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        Self {
            name: "feedrate".to_owned(),
            idle_bytes: 64 << 20,
        }
    }
}

/// Something that the reader must be told about the arena's segments, before any token of theirs.
#[derive(Debug)]
pub enum Announce {
    /// A new segment: to be passed on with its descriptor (SCM_RIGHTS), for [`View::add`](crate::View::add).
    New {
        /// The segment's number.
        id: u32,
        /// Its length in bytes.
        len: usize,
        /// Its memory.
        fd: OwnedFd,
    },
    /// A segment that was given back: for [`View::remove`](crate::View::remove).
    Gone {
        /// The segment's number.
        id: u32,
    },
}

/// Where an address range lies in an arena; from [`Arena::locate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The segment's number.
    pub segment: u32,
    /// The slot's index in its segment.
    pub slot: u32,
    /// Which use of the slot this is.
    pub generation: u32,
    /// Bytes that were reserved: the length of the token to come.
    pub slot_len: usize,
    /// Where the range begins, in bytes from the start of the slot.
    pub offset: usize,
    /// Whether the slot was sent before, so that [`Arena::send`] would refuse.
    pub already_sent: bool,
    index: usize,
}

/// Counts of an arena at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Segments held.
    pub segments: usize,
    /// Bytes mapped. Pages that were never touched are among them and cost nothing.
    pub mapped_bytes: usize,
    /// Slots whose local handle is alive.
    pub local_slots: usize,
    /// Slots that were sent and that the reader has not let go of.
    pub leased_slots: usize,
    /// Bytes of slots in use, by capacity.
    pub used_bytes: usize,
    /// Bytes of segments in which no slot is in use.
    pub free_bytes: usize,
    /// Slots that a fork may still see; their segments are given back when the last slot in use goes.
    pub retired_slots: usize,
}

/// The memory of one worker: it reserves slots, fills them, and sends each at most once.
///
/// Owned by one process; all methods take `&self` and may be called from any of its threads. They hold a mutex for well under
/// a microsecond, save when a segment is made or given back. None of them waits for the reader. In a fork of the owner
/// [`reserve`](Arena::reserve) and [`send`](Arena::send) are refused and the rest does nothing.
pub struct Arena {
    name: String,
    idle_bytes: usize,
    stamp: Stamp,
    inner: Mutex<Inner>,
}

struct Inner {
    /// By index, which a segment keeps for its life.
    held: Vec<Option<Held>>,
    vacant: Vec<usize>,
    by_base: BTreeMap<usize, usize>,
    classes: [Vec<usize>; CLASSES],
    large: Vec<usize>,
    pending: Vec<Announce>,
    next_id: u32,
    now: u64,
    takes: u32,
}

impl Arena {
    /// An arena without a segment. Costs nothing until the first reservation.
    pub fn new(options: ArenaOptions) -> Result<Arc<Self>> {
        fork::install()?;
        Ok(Arc::new(Self {
            name: options.name,
            idle_bytes: options.idle_bytes,
            stamp: Stamp::now(),
            inner: Mutex::new(Inner {
                held: Vec::new(),
                vacant: Vec::new(),
                by_base: BTreeMap::new(),
                classes: [const { Vec::new() }; CLASSES],
                large: Vec::new(),
                pending: Vec::new(),
                next_id: 1,
                now: 0,
                takes: 0,
            }),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // nothing in here panics half-way through a change
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `len` bytes (at least 1), aligned to 64. Never waits: when nothing free fits, the arena grows. The contents are
    /// arbitrary, as those of `malloc`.
    pub fn reserve(self: &Arc<Self>, len: usize) -> Result<Slot> {
        self.stamp.same_process()?;
        let capacity = size::capacity(len)
            .filter(|_| len > 0)
            .ok_or(Error::Size { bytes: len })?;
        let mut inner = self.lock();
        inner.now += 1;
        let (index, slot, generation) = match inner.find(len) {
            Some(found) => found,
            None => inner.grow(self, len, capacity)?,
        };
        let segment = inner.held[index].as_ref().map(|held| Arc::clone(&held.segment));
        drop(inner);
        let segment = segment.ok_or(Error::NotReserved)?;
        Ok(Slot::new(segment, slot, generation, len))
    }

    /// Which slot in local use holds the `len` bytes at `addr`. None when the range is not wholly inside one, or the slot's
    /// [`Slot`] handle is gone.
    pub fn locate(&self, addr: usize, len: usize) -> Option<Located> {
        self.stamp.same_process().ok()?;
        let inner = self.lock();
        let (_, &index) = inner.by_base.range(..=addr).next_back()?;
        let held = inner.held[index].as_ref()?;
        let (slot, offset) = held.segment.slot_at(addr)?;
        let slot_len = held.slot_len(slot)?;
        let state = held.segment.table().state(slot);
        let inside = offset < slot_len && len <= slot_len - offset;
        (inside && state.is_local()).then(|| Located {
            segment: held.segment.id(),
            slot,
            generation: state.generation,
            slot_len,
            offset,
            already_sent: state.is_committed(),
            index,
        })
    }

    /// Commits a slot: the token gives the reader the right to one lease of it. What was written before is seen by the reader;
    /// the local handle may live on. An error when the slot was committed before, or is not in use any more.
    pub fn send(&self, at: &Located) -> Result<Token> {
        self.stamp.same_process()?;
        let inner = self.lock();
        let held = inner.held.get(at.index).and_then(Option::as_ref);
        let held = held
            .filter(|held| held.segment.id() == at.segment)
            .ok_or(Error::NotReserved)?;
        // read before the commit: from then on the slot may be freed
        let len = held.slot_len(at.slot).ok_or(Error::NotReserved)?;
        commit(&held.segment, at.slot, at.generation, len)
    }

    /// Undoes [`send`](Arena::send) of a token that was certainly not received; the slot can be sent again while its local handle
    /// lives, and is free otherwise. False when the reader has its lease already, or the token is not of this arena.
    pub fn unsend(&self, token: &Token) -> bool {
        if self.stamp.same_process().is_err() {
            return false;
        }
        let inner = self.lock();
        let held = inner
            .held
            .iter()
            .flatten()
            .find(|held| held.segment.id() == token.segment);
        held.is_some_and(|held| held.segment.table().revoke(token.slot, token.generation).is_ok())
    }

    /// What the reader must be told before any token that was sent until now, in order. To be called once for each message;
    /// this is also where the memory bound is looked after.
    pub fn take_announcements(&self) -> Vec<Announce> {
        if self.stamp.same_process().is_err() {
            return Vec::new();
        }
        let mut inner = self.lock();
        inner.takes = inner.takes.wrapping_add(1);
        if inner.takes.is_multiple_of(BALANCE_EVERY) {
            inner.balance(self.idle_bytes);
        }
        std::mem::take(&mut inner.pending)
    }

    /// Sends what the reader must be told before any token that was sent until now, one by one and in order; for each message, like
    /// [`take_announcements`](Arena::take_announcements). What cannot be sent, and what comes behind it, comes first the next time.
    ///
    /// # Errors
    ///
    /// The first one of `send`.
    pub fn announce<E>(&self, mut send: impl FnMut(&Announce) -> Result<(), E>) -> Result<(), E> {
        let mut news = self.take_announcements().into_iter();
        while let Some(announce) = news.next() {
            if let Err(error) = send(&announce) {
                self.lock().pending.splice(0..0, std::iter::once(announce).chain(news));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes in what was let go of and gives back the free memory that exceeds the bound, longest unused first. For a worker
    /// that waits for work: nothing else looks after the bound then. Returns whether the reader still holds slots, so that
    /// calling again later can help.
    pub fn balance(&self) -> bool {
        if self.stamp.same_process().is_err() {
            return false;
        }
        let mut inner = self.lock();
        inner.balance(self.idle_bytes);
        inner.held.iter().flatten().any(|held| held.used > 0)
    }

    /// Gives back every segment in which no slot is in use.
    pub fn trim(&self) {
        if self.stamp.same_process().is_ok() {
            self.lock().give_back_down_to(0);
        }
    }

    /// Counts, exact at the moment of the call. Looks at every slot: not for a hot path.
    pub fn stats(&self) -> ArenaStats {
        let mut stats = ArenaStats::default();
        if self.stamp.same_process().is_err() {
            return stats;
        }
        for held in self.lock().held.iter_mut().flatten() {
            held.collect();
            stats.segments += 1;
            stats.mapped_bytes += held.segment.len();
            stats.used_bytes += held.used_bytes();
            stats.retired_slots += held.retired as usize;
            if held.idle() {
                stats.free_bytes += held.segment.len();
            }
            let table = held.segment.table();
            for state in (0..held.seen()).map(|slot| table.state(slot)) {
                stats.local_slots += usize::from(state.is_local());
                stats.leased_slots += usize::from(state.is_out());
            }
        }
        stats
    }
}

/// Offers a slot to the reader; shared by [`Arena::send`] and [`Slot::send`].
fn commit(segment: &Segment, slot: u32, generation: u32, len: usize) -> Result<Token> {
    match segment.table().commit(slot, generation) {
        Ok(()) => Ok(Token {
            segment: segment.id(),
            slot,
            generation,
            len: len as u64,
        }),
        Err(Fault::Committed) => Err(Error::AlreadySent),
        Err(_) => Err(Error::NotReserved),
    }
}

impl Inner {
    /// A free slot for `len` bytes in the segments at hand: index of the segment, slot, generation.
    fn find(&mut self, len: usize) -> Option<(usize, u32, u32)> {
        let now = self.now;
        if len < LARGE {
            let Self { held, classes, .. } = self;
            for &index in &classes[size::class(len)] {
                let Some(held) = &mut held[index] else { continue };
                if let Some((slot, generation)) = held.take(len, now) {
                    return Some((index, slot, generation));
                }
            }
            return None;
        }
        loop {
            let mut best: Option<(usize, u64, usize)> = None;
            for &index in &self.large {
                let Some(held) = &mut self.held[index] else { continue };
                held.collect();
                let capacity = held.segment.stride();
                if !size::serves(capacity, len) || !held.idle() || !held.usable() {
                    continue;
                }
                // the tightest; among equals the one used last, whose pages are warm
                let better = best.is_none_or(|(bytes, touched, _)| {
                    capacity < bytes || (capacity == bytes && held.touched > touched)
                });
                if better {
                    best = Some((capacity, held.touched, index));
                }
            }
            let (_, _, index) = best?;
            if let Some((slot, generation)) = self.held[index].as_mut().and_then(|held| held.take(len, now)) {
                return Some((index, slot, generation));
            }
        }
    }

    /// Makes a segment and takes its first slot.
    fn grow(&mut self, arena: &Arena, len: usize, capacity: usize) -> Result<(usize, u32, u32)> {
        self.balance(arena.idle_bytes);
        let class = (len < LARGE).then(|| size::class(len));
        let slots = class.map_or(1, |class| size::slab_slots(capacity, self.classes[class].len()));
        let id = self.next_id;
        let made = match Segment::create(&arena.name, id, slots, capacity) {
            // what lies idle may be what is missing
            Err(e) if e.is_resource() && self.give_back_down_to(0) > 0 => {
                Segment::create(&arena.name, id, slots, capacity)
            }
            made => made,
        };
        let (segment, fd) = made?;
        self.next_id = id.checked_add(1).ok_or(Error::Size { bytes: len })?;
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.pending.push(Announce::New {
            id,
            len: segment.len(),
            fd,
        });
        self.by_base.insert(segment.base(), index);
        match class {
            Some(class) => self.classes[class].push(index),
            None => self.large.push(index),
        }
        let mut held = Held::new(Arc::new(segment), class);
        let taken = held.take(len, self.now);
        self.held[index] = Some(held);
        let (slot, generation) = taken.ok_or(Error::NotReserved)?;
        Ok((index, slot, generation))
    }

    /// Brings free memory down to `idle_bytes` or the bytes in use, whichever is more.
    fn balance(&mut self, idle_bytes: usize) {
        let (mut used, mut free, mut drained) = (0, 0, false);
        for held in self.held.iter_mut().flatten() {
            held.collect();
            used += held.used_bytes();
            if held.idle() {
                free += held.segment.len();
                drained |= !held.usable();
            }
        }
        let keep = idle_bytes.max(used);
        if free > keep || drained {
            self.give_back_down_to(keep);
        }
    }

    /// Gives back idle segments, longest unused first, until `keep` bytes of them are left; those with retired slots go in any
    /// case. Returns how many went.
    fn give_back_down_to(&mut self, keep: usize) -> usize {
        let mut idle: Vec<(bool, u64, usize, usize)> = Vec::new();
        for (index, held) in self.held.iter_mut().enumerate() {
            let Some(held) = held else { continue };
            held.collect();
            if held.idle() {
                idle.push((held.usable(), held.touched, index, held.segment.len()));
            }
        }
        idle.sort_unstable();
        let mut free: usize = idle.iter().map(|(.., len)| len).sum();
        let mut gone = 0;
        for (usable, _, index, len) in idle {
            if usable && free <= keep {
                break;
            }
            self.give_back(index);
            free -= len;
            gone += 1;
        }
        gone
    }

    fn give_back(&mut self, index: usize) {
        let Some(held) = self.held[index].take() else { return };
        self.vacant.push(index);
        self.by_base.remove(&held.segment.base());
        let list = match held.class {
            Some(class) => &mut self.classes[class],
            None => &mut self.large,
        };
        list.retain(|other| *other != index);
        let id = held.segment.id();
        let unknown = self
            .pending
            .iter()
            .position(|announce| matches!(announce, Announce::New { id: new, .. } if *new == id));
        match unknown {
            Some(at) => drop(self.pending.remove(at)),
            None => self.pending.push(Announce::Gone { id }),
        }
        // A retired slot may be seen by a fork: its pages go when that process unmaps them.
        if held.retired == 0 {
            held.segment.discard();
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("name", &self.name)
            .field("idle_bytes", &self.idle_bytes)
            .finish_non_exhaustive()
    }
}
