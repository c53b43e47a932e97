//! The rules of the state word, one by one.

use super::heap::HeapTable;
use super::*;

fn collected(table: Table<'_>) -> Vec<(u32, bool)> {
    let mut all = Vec::new();
    table
        .collect(|slot, retired| all.push((slot, retired)))
        .expect("an intact stack");
    all
}

#[test]
fn the_last_of_writer_and_reader_frees() {
    let heap = HeapTable::new(3);
    let table = heap.table();
    for reader_first in [true, false] {
        let generation = table.reserve(1).unwrap();
        table.commit(1, generation).unwrap();
        table.lease(1, generation).unwrap();
        let (first, second) = if reader_first {
            (Holder::Lease, Holder::Local)
        } else {
            (Holder::Local, Holder::Lease)
        };
        table.release(1, generation, first, false).unwrap();
        assert!(!table.has_freed() && collected(table).is_empty());
        table.release(1, generation, second, false).unwrap();
        assert!(table.has_freed());
        assert_eq!(collected(table), [(1, false)]);
        assert!(collected(table).is_empty());
    }
}

#[test]
fn aborting_frees() {
    let heap = HeapTable::new(1);
    let table = heap.table();
    let generation = table.reserve(0).unwrap();
    table.release(0, generation, Holder::Local, false).unwrap();
    assert_eq!(collected(table), [(0, false)]);
}

#[test]
fn an_offer_without_its_handle_is_not_free() {
    let heap = HeapTable::new(1);
    let table = heap.table();
    let generation = table.reserve(0).unwrap();
    table.commit(0, generation).unwrap();
    table.release(0, generation, Holder::Local, false).unwrap();
    assert!(collected(table).is_empty());
    table.lease(0, generation).unwrap();
    table.release(0, generation, Holder::Lease, false).unwrap();
    assert_eq!(collected(table), [(0, false)]);
}

#[test]
fn generations_and_states_refuse_what_is_wrong() {
    let heap = HeapTable::new(1);
    let table = heap.table();
    let first = table.reserve(0).unwrap();
    assert_eq!(table.reserve(0), Err(Fault::Corrupt), "in use already");
    assert_eq!(table.lease(0, first), Err(Fault::Stale), "not committed");
    assert_eq!(
        table.release(0, first, Holder::Lease, false),
        Err(Fault::Stale),
        "not leased"
    );
    table.commit(0, first).unwrap();
    assert_eq!(table.commit(0, first), Err(Fault::Committed), "committed twice");
    table.lease(0, first).unwrap();
    assert_eq!(table.lease(0, first), Err(Fault::Stale), "leased twice");
    assert_eq!(table.revoke(0, first), Err(Fault::Stale), "the reader has it");
    table.release(0, first, Holder::Lease, false).unwrap();
    assert_eq!(
        table.release(0, first, Holder::Lease, false),
        Err(Fault::Stale),
        "released twice"
    );
    assert_eq!(
        table.commit(0, first),
        Err(Fault::Committed),
        "committed again after the release"
    );
    table.release(0, first, Holder::Local, false).unwrap();
    assert_eq!(
        table.release(0, first, Holder::Local, false),
        Err(Fault::Stale),
        "freed twice"
    );
    assert_eq!(collected(table), [(0, false)], "and on the stack once");

    let second = table.reserve(0).unwrap();
    assert_ne!(first, second);
    table.commit(0, second).unwrap();
    for stale in [0, first, second + 1, u32::MAX] {
        assert_eq!(table.lease(0, stale), Err(Fault::Stale));
        assert_eq!(table.release(0, stale, Holder::Local, false), Err(Fault::Stale));
        assert_eq!(table.commit(0, stale), Err(Fault::Stale));
    }
    for slot in [1, u32::MAX] {
        assert_eq!(table.lease(slot, second), Err(Fault::Range));
        assert_eq!(table.state(slot), SlotState::default());
    }
}

#[test]
fn a_revoked_offer_can_be_made_again() {
    let heap = HeapTable::new(1);
    let table = heap.table();
    let generation = table.reserve(0).unwrap();
    table.commit(0, generation).unwrap();
    table.revoke(0, generation).unwrap();
    assert_eq!(table.lease(0, generation), Err(Fault::Stale));
    table.commit(0, generation).unwrap();
    table.release(0, generation, Holder::Local, false).unwrap();
    table.revoke(0, generation).unwrap();
    assert_eq!(collected(table), [(0, false)], "revoked without a handle: free");
}

#[test]
fn who_retires_a_slot_retires_it_for_both() {
    for holder in [Holder::Lease, Holder::Local] {
        let heap = HeapTable::new(1);
        let table = heap.table();
        let generation = table.reserve(0).unwrap();
        table.commit(0, generation).unwrap();
        table.lease(0, generation).unwrap();
        let other = if holder == Holder::Lease {
            Holder::Local
        } else {
            Holder::Lease
        };
        table.release(0, generation, holder, true).unwrap();
        table.release(0, generation, other, false).unwrap();
        assert_eq!(collected(table), [(0, true)]);
        assert_eq!(table.reserve(0), Err(Fault::Corrupt), "never to be used again");
    }
}

#[test]
fn generations_do_not_come_round() {
    let heap = HeapTable::with_generation(1, u32::MAX - 1);
    let table = heap.table();
    let last = table.reserve(0).unwrap();
    assert_eq!(last, u32::MAX);
    table.release(0, last, Holder::Local, false).unwrap();
    assert_eq!(collected(table), [(0, false)]);
    assert_eq!(table.reserve(0), Err(Fault::Exhausted));
}

#[test]
fn a_damaged_stack_is_found() {
    let damage: [fn(Table<'_>); 3] = [
        |table| table.freed.store(9, Ordering::Relaxed), // no such slot
        |table| table.freed.store(2, Ordering::Relaxed), // a slot in use
        |table| {
            // a cycle of two freed slots
            for slot in [2, 3] {
                let generation = table.reserve(slot).unwrap();
                table.release(slot, generation, Holder::Local, false).unwrap();
            }
            table.entries[2].next.store(4, Ordering::Relaxed);
        },
    ];
    for damage in damage {
        let heap = HeapTable::new(4);
        let table = heap.table();
        table.reserve(1).unwrap();
        damage(table);
        assert_eq!(table.collect(|_, _| {}), Err(Fault::Corrupt));
    }
}
