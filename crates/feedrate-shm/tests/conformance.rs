//! Both implementations of the arena's contract keep it.
#![cfg(all(target_os = "linux", not(loom)))]

use feedrate_shm::LocalArena;
use feedrate_shm::testing::{Loopback, arena_conformance};

#[test]
fn shared_memory() {
    arena_conformance(|idle_bytes| Loopback::new(idle_bytes).expect("making an arena"));
}

#[test]
fn heap() {
    arena_conformance(LocalArena::new);
}
