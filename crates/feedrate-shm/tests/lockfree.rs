//! The lock-free paths under many threads, ordered by atomics alone.
//!
//! Without the usual harness, and without locks and channels of the standard library, because the thread sanitizer sees only what
//! is compiled with it (README, "Checking"): readers and handles are passed on in atomic boxes. It is a test without it as well.
#![cfg(all(target_os = "linux", not(loom)))]
#![expect(unsafe_code, reason = "the threads write through the pointers of slots and leases")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::thread;

use feedrate_shm::testing::Loopback;
use feedrate_shm::{Lease, Slot};

const ROUNDS: u64 = 3000;
const READERS: usize = 3;

/// Room for one value on its way to another thread.
struct Mailbox<T>(AtomicPtr<T>);

impl<T> Mailbox<T> {
    fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    fn put(&self, value: T) {
        let new = Box::into_raw(Box::new(value));
        while self
            .0
            .compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            thread::yield_now();
        }
    }

    fn take(&self) -> Option<T> {
        let found = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: whoever swaps a pointer out is its only owner; it came from `Box::into_raw` in `put`.
        (!found.is_null()).then(|| *unsafe { Box::from_raw(found) })
    }
}

/// Reads the mark that the writer has left, and overwrites it as a user of a writable batch does.
fn use_up(lease: &Lease, expected: u64) {
    let ptr = lease.as_mut_ptr().cast::<[u8; 8]>();
    // SAFETY: leased, at least eight bytes long; the writer does not touch it before the lease is gone.
    unsafe {
        assert_eq!(ptr.read(), expected.to_le_bytes());
        ptr.write([0xee; 8]);
    }
}

fn main() {
    let pair = Loopback::new(1 << 20).unwrap();
    let leases: Arc<[Mailbox<(Lease, u64)>]> = (0..READERS).map(|_| Mailbox::new()).collect();
    let handles = Arc::new(Mailbox::<Slot>::new());
    let done = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for reader in 0..READERS {
        let (leases, done) = (Arc::clone(&leases), Arc::clone(&done));
        threads.push(thread::spawn(move || {
            loop {
                let last = done.load(Ordering::Acquire);
                match leases[reader].take() {
                    Some((lease, expected)) => use_up(&lease, expected),
                    None if last => break,
                    None => thread::yield_now(),
                }
            }
        }));
    }
    {
        // the writer's handles go on a thread of their own, against the release of the lease
        let (handles, done) = (Arc::clone(&handles), Arc::clone(&done));
        threads.push(thread::spawn(move || {
            loop {
                let last = done.load(Ordering::Acquire);
                match handles.take() {
                    Some(slot) => drop(slot),
                    None if last => break,
                    None => thread::yield_now(),
                }
            }
        }));
    }
    for round in 0..ROUNDS {
        let slot = pair.arena.reserve(if round % 16 == 0 { 1 << 20 } else { 100 }).unwrap();
        // SAFETY: just reserved, at least eight bytes long.
        unsafe { slot.as_mut_ptr().cast::<[u8; 8]>().write(round.to_le_bytes()) };
        let token = slot.send().unwrap();
        pair.announce().unwrap();
        let lease = pair.view.lease(token).unwrap();
        leases[usize::try_from(round).unwrap() % READERS].put((lease, round));
        handles.put(slot);
    }
    done.store(true, Ordering::Release);
    for thread in threads {
        thread.join().unwrap();
    }
    pair.arena.trim();
    pair.announce().unwrap();
    let stats = pair.arena.stats();
    assert!(stats.segments == 0 && pair.view.mapped_bytes() == 0, "{stats:?}");
}
