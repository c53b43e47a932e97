//! The contract of an arena as tests that any implementation can run: [`arena_conformance`].
//!
//! Both implementations of this crate run it, [`Loopback`] (shared memory, a real channel, both sides in one process) and
//! [`LocalArena`]. It is for tests: it panics on what is wrong. The deterministic crashes are
//! [`Slot::abandon`] and [`Lease::abandon`].

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use crate::{ALIGN, Announce, Arena, ArenaOptions, Channel, Lease, LocalArena, LocalSlot, Result, Slot, View};

/// Memory that is reserved, filled, handed over, read and let go of.
pub trait Transport: Send + Sync {
    /// The writer's handle.
    type Slot: Send + Sync;
    /// The reader's lease; it may outlive everything else.
    type Lease: Send + Sync + 'static;

    /// Reserves memory without waiting.
    fn reserve(&self, len: usize) -> Result<Self::Slot>;
    /// Where a reserved slot lies: address and length.
    fn slot_memory(slot: &Self::Slot) -> (*mut u8, usize);
    /// Passes a slot to the reader; the writer's handle may live on.
    fn hand_over(&self, slot: &Self::Slot) -> Result<Self::Lease>;
    /// Where the contents of a lease lie: address and length.
    fn lease_memory(lease: &Self::Lease) -> (*mut u8, usize);
    /// Bytes of memory that exist because of this transport.
    fn footprint(&self) -> usize;
    /// Keeps the memory bound.
    fn balance(&self);
    /// Gives back all that is idle.
    fn trim(&self);
}

/// The shared-memory transport with writer and reader in one process; segments travel over a real channel.
#[derive(Debug)]
pub struct Loopback {
    /// The writing side.
    pub arena: Arc<Arena>,
    /// The reading side.
    pub view: Arc<View>,
    /// Locked from taking announcements until they have arrived: a token must not overtake them.
    ends: Mutex<(Channel, Channel)>,
}

impl Loopback {
    /// A new arena and its view.
    pub fn new(idle_bytes: usize) -> Result<Self> {
        let arena = Arena::new(ArenaOptions {
            name: "feedrate-loopback".to_owned(),
            idle_bytes,
        })?;
        Ok(Self {
            arena,
            view: View::new(),
            ends: Mutex::new(Channel::pair()?),
        })
    }

    /// Passes the arena's announcements on to the view, descriptors over the channel.
    ///
    /// # Panics
    ///
    /// When an announcement is wrong or does not cross.
    pub fn announce(&self) -> Result<()> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        for announce in self.arena.take_announcements() {
            match announce {
                Announce::Gone { id } => assert!(self.view.remove(id), "segment {id} was never announced"),
                Announce::New { id, len, fd } => {
                    let mut message = [0; 12];
                    message[..4].copy_from_slice(&id.to_le_bytes());
                    message[4..].copy_from_slice(&(len as u64).to_le_bytes());
                    ends.0.send(&message, Some(fd.as_fd())).expect("the other end is open");
                    let mut buffer = [0; Channel::MAX];
                    let received = ends.1.recv(&mut buffer).expect("a message was sent");
                    assert_eq!(buffer[..received.len], message);
                    self.view.add(id, len, received.fd.expect("a descriptor was sent"))?;
                }
            }
        }
        Ok(())
    }
}

impl Transport for Loopback {
    type Slot = Slot;
    type Lease = Lease;

    fn reserve(&self, len: usize) -> Result<Slot> {
        self.arena.reserve(len)
    }

    fn slot_memory(slot: &Slot) -> (*mut u8, usize) {
        (slot.as_mut_ptr(), slot.len())
    }

    fn hand_over(&self, slot: &Slot) -> Result<Lease> {
        let at = self
            .arena
            .locate(slot.addr(), slot.len())
            .expect("a live slot is found by its address");
        assert_eq!((at.offset, at.slot_len), (0, slot.len()));
        let token = self.arena.send(&at)?;
        self.announce()?;
        self.view.lease(token)
    }

    fn lease_memory(lease: &Lease) -> (*mut u8, usize) {
        (lease.as_mut_ptr(), lease.len())
    }

    fn footprint(&self) -> usize {
        self.arena.stats().mapped_bytes.max(self.view.mapped_bytes())
    }

    fn balance(&self) {
        self.arena.balance();
        self.announce().expect("announcing");
    }

    fn trim(&self) {
        self.arena.trim();
        self.announce().expect("announcing");
    }
}

impl Transport for Arc<LocalArena> {
    type Slot = Arc<LocalSlot>;
    type Lease = Arc<LocalSlot>;

    fn reserve(&self, len: usize) -> Result<Arc<LocalSlot>> {
        LocalArena::reserve(self, len).map(Arc::new)
    }

    fn slot_memory(slot: &Arc<LocalSlot>) -> (*mut u8, usize) {
        (slot.as_mut_ptr(), slot.len())
    }

    fn hand_over(&self, slot: &Arc<LocalSlot>) -> Result<Arc<LocalSlot>> {
        Ok(Arc::clone(slot))
    }

    fn lease_memory(lease: &Arc<LocalSlot>) -> (*mut u8, usize) {
        (lease.as_mut_ptr(), lease.len())
    }

    fn footprint(&self) -> usize {
        self.held_bytes()
    }

    fn balance(&self) {}

    fn trim(&self) {
        LocalArena::trim(self);
    }
}

/// Fills memory with a pattern that depends on `seed` and on the position.
fn fill((ptr, len): (*mut u8, usize), seed: u8) {
    // SAFETY: the callers own the slot that this is the memory of, and nobody else uses it now.
    let bytes = unsafe {
        ptr.write_bytes(0, len);
        std::slice::from_raw_parts_mut(ptr, len)
    };
    for (byte, at) in bytes.iter_mut().zip(0u8..=250) {
        *byte = seed.wrapping_add(at);
    }
    bytes[len - 1] = seed;
}

fn check((ptr, len): (*mut u8, usize), seed: u8, what: &str) {
    // SAFETY: the callers hold the slot or the lease, and nobody writes now.
    let bytes = unsafe { std::slice::from_raw_parts(ptr, len) };
    let right = bytes[..len - 1]
        .iter()
        .zip(0u8..=250)
        .all(|(byte, at)| *byte == seed.wrapping_add(at));
    assert!(
        right && bytes[len - 1] == seed,
        "{what}: {len} bytes of pattern {seed} were overwritten"
    );
}

fn seed(at: usize) -> u8 {
    u8::try_from(at % 241).unwrap_or(0)
}

fn range((ptr, len): (*mut u8, usize)) -> Range<usize> {
    ptr.addr()..ptr.addr() + len
}

/// Lengths of tensors as they come: from a byte to some megabytes, without an order.
fn lengths(count: usize) -> impl Iterator<Item = usize> {
    let mut state = 0x9e37_79b9_u64;
    (0..count).map(move |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 33) % 23;
        usize::try_from((state >> 40) % (1 << bits) + 1).unwrap_or(1)
    })
}

/// Runs the whole contract. `make` gives a fresh transport that keeps at most `idle_bytes` (or as much as is in use) idle.
///
/// # Panics
///
/// When the transport breaks the contract.
pub fn arena_conformance<T: Transport>(make: impl Fn(usize) -> T) {
    sizes(&make(1 << 20));
    nothing_overlaps(&make(1 << 20));
    held_memory_is_not_reused(&make(1 << 20));
    aborting_frees(&make(1 << 20));
    steady_use_does_not_grow(&make(1 << 20));
    varying_lengths_do_not_grow(&make(4 << 20));
    memory_comes_back(&make(4 << 20));
    leases_outlive_the_transport(make(1 << 20));
    threads(&make(1 << 20));
}

fn sizes<T: Transport>(transport: &T) {
    for len in [0, usize::MAX, isize::MAX as usize] {
        let refused = transport.reserve(len).err().expect("no such length");
        assert!(
            matches!(refused, crate::Error::Size { bytes } if bytes == len),
            "{len}: {refused}"
        );
    }
    for len in [
        1,
        63,
        64,
        65,
        4095,
        4097,
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
        5_000_000,
    ] {
        let slot = transport.reserve(len).expect("reserving");
        let memory = T::slot_memory(&slot);
        assert!(
            memory.1 == len && memory.0.addr().is_multiple_of(ALIGN),
            "{len}: {memory:?}"
        );
        fill(memory, 7);
        let lease = transport.hand_over(&slot).expect("handing over");
        drop(slot);
        assert_eq!(T::lease_memory(&lease).1, len);
        check(T::lease_memory(&lease), 7, "after the hand-over");
    }
}

fn nothing_overlaps<T: Transport>(transport: &T) {
    let slots: Vec<_> = lengths(400)
        .map(|len| transport.reserve(len).expect("reserving"))
        .collect();
    let mut ranges: Vec<_> = slots.iter().map(|slot| range(T::slot_memory(slot))).collect();
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "two slots share memory");
    for (at, slot) in slots.iter().enumerate() {
        fill(T::slot_memory(slot), seed(at));
    }
    for (at, slot) in slots.iter().enumerate() {
        check(T::slot_memory(slot), seed(at), "beside other slots");
    }
}

fn held_memory_is_not_reused<T: Transport>(transport: &T) {
    // at i % 3 == 0 the writer keeps its handle, at 1 the reader keeps its lease, at 2 both do
    let mut kept = Vec::new();
    for (at, len) in lengths(120).enumerate() {
        let slot = transport.reserve(len).expect("reserving");
        fill(T::slot_memory(&slot), seed(at));
        let lease = transport.hand_over(&slot).expect("handing over");
        kept.push(((at % 3 != 1).then_some(slot), (at % 3 != 0).then_some(lease)));
    }
    for len in lengths(240) {
        let other = transport.reserve(len).expect("reserving");
        fill(T::slot_memory(&other), 255);
    }
    for (at, (slot, lease)) in kept.iter().enumerate() {
        if let Some(slot) = slot {
            check(T::slot_memory(slot), seed(at), "with the writer's handle alive");
        }
        if let Some(lease) = lease {
            check(T::lease_memory(lease), seed(at), "with the lease alive");
        }
    }
}

fn aborting_frees<T: Transport>(transport: &T) {
    drop(transport.reserve(3 << 20).expect("reserving"));
    let before = transport.footprint();
    for _ in 0..50 {
        drop(transport.reserve(3 << 20).expect("reserving"));
    }
    assert_eq!(transport.footprint(), before, "a slot dropped without sending is free");
}

fn steady_use_does_not_grow<T: Transport>(transport: &T) {
    for len in [100, 70_000, 2 << 20] {
        let mut window = std::collections::VecDeque::new();
        let mut after_warm_up = 0;
        for round in 0..200 {
            let slot = transport.reserve(len).expect("reserving");
            fill(T::slot_memory(&slot), seed(round));
            window.push_back((round, transport.hand_over(&slot).expect("handing over")));
            drop(slot);
            if window.len() > 4 {
                let (then, lease) = window.pop_front().expect("five are there");
                check(T::lease_memory(&lease), seed(then), "in a window of four");
            }
            if round == 20 {
                after_warm_up = transport.footprint();
            }
        }
        assert_eq!(transport.footprint(), after_warm_up, "steady use of {len} bytes grows");
    }
}

fn varying_lengths_do_not_grow<T: Transport>(transport: &T) {
    let mut peak = [0; 2];
    let mut window = std::collections::VecDeque::new();
    for (round, len) in lengths(3000).enumerate() {
        let slot = transport.reserve(len).expect("reserving");
        fill(T::slot_memory(&slot), seed(round));
        window.push_back((round, transport.hand_over(&slot).expect("handing over")));
        drop(slot);
        if window.len() > 4 {
            let (then, lease) = window.pop_front().expect("five are there");
            check(T::lease_memory(&lease), seed(then), "in a window of four");
        }
        let peak = &mut peak[round / 1500];
        *peak = transport.footprint().max(*peak);
    }
    assert!(
        peak[1] <= peak[0] * 3 / 2,
        "the second half needs more than the first: {peak:?}"
    );
}

fn memory_comes_back<T: Transport>(transport: &T) {
    const LEN: usize = 2 << 20;
    let hold = |count: usize| -> Vec<T::Lease> {
        let one = || {
            transport
                .hand_over(&transport.reserve(LEN).expect("reserving"))
                .expect("handing over")
        };
        (0..count).map(|_| one()).collect()
    };
    let leases = hold(40);
    assert!(transport.footprint() >= 40 * LEN);
    drop(leases);
    transport.balance();
    let kept = transport.footprint();
    assert!(
        kept <= 6 << 20,
        "40 slots of 2 MiB were let go of, the bound is 4 MiB, {kept} bytes are left"
    );
    drop(hold(1));
    transport.trim();
    let kept = transport.footprint();
    assert_eq!(kept, 0, "nothing is in use");
}

fn leases_outlive_the_transport<T: Transport>(transport: T) {
    let slot = transport.reserve(3 << 20).expect("reserving");
    let small = transport.reserve(100).expect("reserving");
    fill(T::slot_memory(&slot), 1);
    fill(T::slot_memory(&small), 2);
    let leases = [&slot, &small].map(|slot| transport.hand_over(slot).expect("handing over"));
    drop(slot);
    drop(transport);
    check(T::slot_memory(&small), 2, "a handle without its arena");
    drop(small);
    let reader = thread::spawn(move || {
        check(T::lease_memory(&leases[0]), 1, "a lease without its writer");
        check(T::lease_memory(&leases[1]), 2, "a lease without its writer");
    });
    reader.join().expect("the leases were intact");
}

/// Writers on three threads; what they send is let go of on a fourth.
fn threads<T: Transport>(transport: &T) {
    let (sender, receiver) = mpsc::channel::<(usize, T::Lease)>();
    let reader = thread::spawn(move || {
        let mut kept = Vec::new();
        for (at, lease) in receiver {
            check(T::lease_memory(&lease), seed(at), "in another thread");
            kept.push((at, lease));
            if kept.len() == 7 {
                for (at, lease) in kept.drain(..) {
                    check(T::lease_memory(&lease), seed(at), "after others came");
                }
            }
        }
    });
    thread::scope(|scope| {
        for writer in 0..3 {
            let sender = sender.clone();
            scope.spawn(move || {
                for (round, len) in lengths(300).enumerate() {
                    let at = round * 3 + writer;
                    let slot = transport.reserve(len % 100_000 + 1).expect("reserving");
                    fill(T::slot_memory(&slot), seed(at));
                    let lease = transport.hand_over(&slot).expect("handing over");
                    sender.send((at, lease)).expect("the reader lives");
                }
            });
        }
    });
    drop(sender);
    reader.join().expect("every lease was intact");
    transport.trim();
    assert_eq!(transport.footprint(), 0, "all was let go of");
}
