//! The allocator against a naive model: a list of who holds what.
#![expect(unsafe_code, reason = "the test fills and checks the memory")]

use std::sync::Arc;

use feedrate_shm::{Announce, Arena, ArenaOptions, Error, Lease, Slot, Token, View};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Reserve(usize),
    Send(usize),
    Unsend(usize),
    Receive(usize),
    DropSlot(usize),
    DropLease(usize),
    Balance,
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![1usize..300, 300usize..70_000, 900_000usize..3_000_000];
    prop_oneof![
        6 => len.prop_map(Step::Reserve),
        4 => any::<usize>().prop_map(Step::Send),
        1 => any::<usize>().prop_map(Step::Unsend),
        4 => any::<usize>().prop_map(Step::Receive),
        4 => any::<usize>().prop_map(Step::DropSlot),
        4 => any::<usize>().prop_map(Step::DropLease),
        1 => Just(Step::Balance),
        1 => Just(Step::Trim),
    ]
}

/// One reservation and who holds it.
struct Item {
    mark: u64,
    addr: usize,
    len: usize,
    slot: Option<Slot>,
    token: Option<Token>,
    lease: Option<Lease>,
    was_sent: bool,
}

impl Item {
    fn is_held(&self) -> bool {
        self.slot.is_some() || self.token.is_some() || self.lease.is_some()
    }

    fn check(&self) {
        let seen = (self.slot.iter().map(Slot::as_mut_ptr)).chain(self.lease.iter().map(Lease::as_mut_ptr));
        for ptr in seen {
            // SAFETY: held, and `len` bytes long; the marks lie in its first and last eight bytes.
            let found = unsafe {
                [
                    ptr.cast::<u64>().read_unaligned(),
                    ptr.add(self.len - 8).cast::<u64>().read_unaligned(),
                ]
            };
            assert_eq!(found, [self.mark; 2], "{} bytes at {:#x}", self.len, self.addr);
        }
    }
}

struct World {
    arena: Arc<Arena>,
    view: Arc<View>,
    items: Vec<Item>,
    marks: u64,
}

impl World {
    fn announce(&self) {
        for announce in self.arena.take_announcements() {
            match announce {
                Announce::New { id, len, fd } => self.view.add(id, len, fd).unwrap(),
                Announce::Gone { id } => assert!(self.view.remove(id)),
            }
        }
    }

    /// The item among those that `which` allows that `pick` means.
    fn pick(&mut self, pick: usize, which: impl Fn(&Item) -> bool) -> Option<&mut Item> {
        let mut found: Vec<_> = self.items.iter_mut().filter(|item| which(item)).collect();
        if found.is_empty() {
            return None;
        }
        let at = pick % found.len();
        Some(found.swap_remove(at))
    }

    fn reserve(&mut self, len: usize) {
        let len = len.max(16); // both marks
        let slot = self.arena.reserve(len).unwrap();
        self.marks += 1;
        // SAFETY: just reserved with this length.
        unsafe {
            slot.as_mut_ptr().cast::<u64>().write_unaligned(self.marks);
            slot.as_mut_ptr().add(len - 8).cast::<u64>().write_unaligned(self.marks);
        }
        let addr = slot.addr();
        for item in self.items.iter().filter(|item| item.is_held()) {
            assert!(
                item.addr + item.len <= addr || addr + len <= item.addr,
                "handed out while held"
            );
        }
        let (slot, mark) = (Some(slot), self.marks);
        self.items.push(Item {
            mark,
            addr,
            len,
            slot,
            token: None,
            lease: None,
            was_sent: false,
        });
    }

    fn run(&mut self, step: &Step) {
        let (arena, view) = (Arc::clone(&self.arena), Arc::clone(&self.view));
        match *step {
            Step::Reserve(len) => self.reserve(len),
            Step::Send(pick) => {
                if let Some(item) = self.pick(pick, |item| item.slot.is_some()) {
                    let at = arena.locate(item.addr + item.len - 1, 1).unwrap();
                    assert_eq!(
                        (at.offset, at.slot_len, at.already_sent),
                        (item.len - 1, item.len, item.was_sent)
                    );
                    match arena.send(&at) {
                        Ok(token) => {
                            assert!(!item.was_sent);
                            (item.token, item.was_sent) = (Some(token), true);
                        }
                        Err(e) => assert!(matches!(e, Error::AlreadySent) && item.was_sent, "{e}"),
                    }
                }
            }
            Step::Unsend(pick) => {
                if let Some(item) = self.pick(pick, |item| item.token.is_some()) {
                    assert!(arena.unsend(&item.token.take().unwrap()));
                    item.was_sent = false;
                }
            }
            Step::Receive(pick) => {
                self.announce();
                if let Some(item) = self.pick(pick, |item| item.token.is_some()) {
                    let token = item.token.take().unwrap();
                    item.lease = Some(view.lease(token).unwrap());
                    assert!(view.lease(token).is_err() && !arena.unsend(&token));
                }
            }
            Step::DropSlot(pick) => {
                if let Some(item) = self.pick(pick, |item| item.slot.is_some()) {
                    item.slot = None;
                }
            }
            Step::DropLease(pick) => {
                if let Some(item) = self.pick(pick, |item| item.lease.is_some()) {
                    item.lease = None;
                }
            }
            Step::Balance => drop(arena.balance()),
            Step::Trim => arena.trim(),
        }
        self.items.retain(Item::is_held);
        self.items.iter().for_each(Item::check);
        let stats = self.arena.stats();
        let count = |which: fn(&Item) -> bool| self.items.iter().filter(|item| which(item)).count();
        assert_eq!(stats.local_slots, count(|item| item.slot.is_some()));
        assert_eq!(
            stats.leased_slots,
            count(|item| item.token.is_some() || item.lease.is_some())
        );
        assert_eq!(stats.retired_slots, 0);
        let held: usize = self.items.iter().map(|item| item.len).sum();
        assert!(stats.used_bytes >= held && stats.mapped_bytes >= stats.used_bytes + stats.free_bytes / 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_arena_agrees_with_the_model(steps in prop::collection::vec(step(), 1..150)) {
        let arena = Arena::new(ArenaOptions { name: "model".to_owned(), idle_bytes: 1 << 20 }).unwrap();
        let mut world = World { arena, view: View::new(), items: Vec::new(), marks: 0 };
        for step in &steps {
            world.run(step);
        }
        for item in &mut world.items {
            if let Some(token) = item.token.take() {
                assert!(world.arena.unsend(&token));
            }
        }
        world.items.clear();
        world.arena.trim();
        world.announce();
        prop_assert_eq!(world.arena.stats(), feedrate_shm::ArenaStats::default());
        prop_assert_eq!(world.view.mapped_bytes(), 0);
    }
}
