//! Every interleaving of the lock-free core that loom can find, for two or three threads.
//!
//! The contents of a slot are a `loom` cell, which reports any access that is not ordered by the table's own atomics.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::heap::HeapTable;
use super::*;

struct World {
    heap: HeapTable,
    contents: Vec<UnsafeCell<u32>>,
}

// SAFETY: the cells are what the models check: loom panics on any access that the table does not order.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(slots: u32) -> Arc<Self> {
        let contents = (0..slots).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self {
            heap: HeapTable::new(slots),
            contents,
        })
    }

    fn table(&self) -> Table<'_> {
        self.heap.table()
    }

    fn write(&self, slot: usize, value: u32) {
        // SAFETY: loom checks that nobody else has access now.
        self.contents[slot].with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self, slot: usize) -> u32 {
        // SAFETY: loom checks that nobody writes now.
        self.contents[slot].with(|cell| unsafe { *cell })
    }

    fn collected(&self) -> Vec<(u32, bool)> {
        let mut all = Vec::new();
        self.table().collect(|slot, retired| all.push((slot, retired))).unwrap();
        all.sort_unstable();
        all
    }

    /// Reserves, writes and commits.
    fn send(&self, slot: u32, value: u32) -> u32 {
        let generation = self.table().reserve(slot).unwrap();
        self.write(slot as usize, value);
        self.table().commit(slot, generation).unwrap();
        generation
    }
}

/// Two readers free their slots while the writer collects: each slot comes back once.
#[test]
fn loom_two_releases_and_a_collection() {
    loom::model(|| {
        let world = World::new(2);
        let generations = [0, 1].map(|slot| world.send(slot, slot + 10));
        for slot in [0, 1] {
            world
                .table()
                .release(slot, generations[slot as usize], Holder::Local, false)
                .unwrap();
        }
        let readers = [0u32, 1].map(|slot| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let generation = generations[slot as usize];
                world.table().lease(slot, generation).unwrap();
                assert_eq!(world.read(slot as usize), slot + 10);
                world.table().release(slot, generation, Holder::Lease, false).unwrap();
            })
        });
        let mut all = world.collected();
        for reader in readers {
            reader.join().unwrap();
        }
        all.extend(world.collected());
        all.sort_unstable();
        assert_eq!(all, [(0, false), (1, false)]);
    });
}

/// The writer's handle and the reader's lease go at the same time: the slot is freed once, and retired if either says so.
#[test]
fn loom_handle_and_lease_go_together() {
    loom::model(|| {
        let world = World::new(1);
        let generation = world.send(0, 5);
        world.table().lease(0, generation).unwrap();
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.table().release(0, generation, Holder::Lease, true).unwrap())
        };
        world.table().release(0, generation, Holder::Local, false).unwrap();
        reader.join().unwrap();
        assert_eq!(world.collected(), [(0, true)]);
    });
}

/// Of a taken-back offer and a lease of it, one succeeds.
#[test]
fn loom_revoke_against_lease() {
    loom::model(|| {
        let world = World::new(1);
        let generation = world.send(0, 5);
        world.table().release(0, generation, Holder::Local, false).unwrap();
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let got = world.table().lease(0, generation).is_ok();
                if got {
                    assert_eq!(world.read(0), 5);
                    world.table().release(0, generation, Holder::Lease, false).unwrap();
                }
                got
            })
        };
        let revoked = world.table().revoke(0, generation).is_ok();
        let leased = reader.join().unwrap();
        assert!(revoked != leased);
        assert_eq!(world.collected(), [(0, false)]);
    });
}

/// Two readers with the same token: one gets the lease.
#[test]
fn loom_one_lease_for_a_token() {
    loom::model(|| {
        let world = World::new(1);
        let generation = world.send(0, 5);
        let readers = [0, 1].map(|_| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.table().lease(0, generation).is_ok())
        });
        let got = readers.map(|reader| reader.join().unwrap());
        assert!(got[0] != got[1]);
    });
}

/// The whole circle: the reader sees what was written before the commit, and the writer, having collected, may overwrite what
/// the reader has finished reading. The message is left out on purpose: the table alone must order the accesses.
#[test]
fn loom_contents_are_ordered_by_the_table() {
    loom::model(|| {
        let world = World::new(1);
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                // generation 1 or 2, whichever is there; a token may come at any time
                for generation in [1, 2] {
                    if world.table().lease(0, generation).is_ok() {
                        assert_eq!(world.read(0), generation);
                        world.table().release(0, generation, Holder::Lease, false).unwrap();
                    }
                }
            })
        };
        let first = world.send(0, 1);
        world.table().release(0, first, Holder::Local, false).unwrap();
        if world.collected() == [(0, false)] {
            let second = world.send(0, 2);
            assert_eq!(second, 2);
            world.table().release(0, second, Holder::Local, false).unwrap();
        }
        reader.join().unwrap();
    });
}

/// A stale release cannot touch the slot's next life.
#[test]
fn loom_a_stale_release_does_nothing() {
    loom::model(|| {
        let world = World::new(1);
        let first = world.send(0, 1);
        world.table().lease(0, first).unwrap();
        world.table().release(0, first, Holder::Lease, false).unwrap();
        world.table().release(0, first, Holder::Local, false).unwrap();
        let stale = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert!(world.table().release(0, first, Holder::Lease, false).is_err());
                assert!(world.table().lease(0, first).is_err());
            })
        };
        assert_eq!(world.collected(), [(0, false)]);
        let second = world.send(0, 2);
        stale.join().unwrap();
        world.table().lease(0, second).unwrap();
        assert_eq!(world.read(0), 2);
        assert!(world.collected().is_empty());
    });
}
