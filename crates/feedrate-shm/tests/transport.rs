//! The transport inside one process: what crosses, what is reused, what is given back, what is refused.
#![cfg(all(target_os = "linux", not(loom)))]
#![expect(unsafe_code, reason = "the tests write and read through the pointers")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;

use feedrate_shm::{Announce, Arena, ArenaOptions, Lease, Slot, View};

struct Pair {
    arena: Arc<Arena>,
    view: Arc<View>,
}

impl Pair {
    fn new(idle_bytes: usize) -> Self {
        let arena = Arena::new(ArenaOptions {
            name: "test".into(),
            idle_bytes,
        })
        .unwrap();
        Self {
            arena,
            view: View::new(),
        }
    }

    fn announce(&self) {
        for announce in self.arena.take_announcements() {
            match announce {
                Announce::New { id, len, fd } => self.view.add(id, len, fd).unwrap(),
                Announce::Gone { id } => assert!(self.view.remove(id)),
            }
        }
    }

    fn pass(&self, slot: &Slot) -> Lease {
        let at = self.arena.locate(slot.addr(), slot.len()).unwrap();
        let token = self.arena.send(&at).unwrap();
        self.announce();
        self.view.lease(token).unwrap()
    }
}

fn fill(slot: &Slot, byte: u8) {
    // SAFETY: the slot is ours and has this length.
    unsafe { slot.as_mut_ptr().write_bytes(byte, slot.len()) }
}

fn bytes(lease: &Lease) -> &[u8] {
    // SAFETY: the writers in these tests are done before the lease is taken.
    unsafe { std::slice::from_raw_parts(lease.as_ptr(), lease.len()) }
}

#[test]
fn bytes_cross_and_memory_is_reused() {
    let pair = Pair::new(1 << 20);
    for size in [1, 63, 64, 65, 1000, 100_000, 3 << 20] {
        let mut addrs = Vec::new();
        for round in 0..20u8 {
            let slot = pair.arena.reserve(size).unwrap();
            assert!(slot.addr().is_multiple_of(feedrate_shm::ALIGN));
            fill(&slot, round);
            addrs.push(slot.addr());
            let lease = pair.pass(&slot);
            drop(slot);
            assert_eq!(lease.len(), size);
            assert!(bytes(&lease).iter().all(|byte| *byte == round));
        }
        addrs.dedup();
        assert!(addrs.len() <= 2, "{size}: {addrs:?}");
    }
}
