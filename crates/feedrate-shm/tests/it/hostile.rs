//! What a broken or hostile peer can send is refused, and never followed.
#![expect(unsafe_code, reason = "the tests damage mapped segments")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use feedrate_shm::{Announce, Arena, ArenaOptions, Error, LAYOUT_VERSION, SegmentFault, Token, TokenFault, View};
use rustix::fs::{MemfdFlags, SealFlags};

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn arena() -> Arc<Arena> {
    Arena::new(ArenaOptions::default()).unwrap()
}

/// The only announcement: a new segment.
fn announced(arena: &Arena) -> (u32, usize, OwnedFd) {
    let mut all = arena.take_announcements();
    assert_eq!(all.len(), 1);
    match all.pop() {
        Some(Announce::New { id, len, fd }) => (id, len, fd),
        other => panic!("{other:?}"),
    }
}

/// A sealed memfd with these bytes at its start.
fn forged(len: usize, header: &[u8], seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("forged", MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(fd);
    file.set_len(len as u64).unwrap();
    file.write_all_at(header, 0).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

fn refused(id: u32, len: usize, fd: OwnedFd) -> SegmentFault {
    let view = View::new();
    let error = view.add(id, len, fd).unwrap_err();
    assert!(error.is_protocol() && view.mapped_bytes() == 0, "{error}");
    match error {
        Error::Segment { id: found, fault } if found == id => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn forged_segments() {
    let arena = arena();
    let _slot = arena.reserve(100).unwrap();
    let (id, len, fd) = announced(&arena);
    let mut good = vec![0; 128];
    File::from(fd.try_clone().unwrap()).read_exact_at(&mut good, 0).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut header = good.clone();
        header[at..at + bytes.len()].copy_from_slice(bytes);
        refused(id, len, forged(len, &header, SEALS))
    };
    assert_eq!(with(0, b"F"), SegmentFault::Magic);
    let expected = LAYOUT_VERSION;
    assert_eq!(with(8, &[9]), SegmentFault::Version { found: 9, expected });
    assert_eq!(with(20, &[0]), SegmentFault::Unready);
    // id, slot count (none, too many), slot size (none, odd, huge), start of the slots, length
    let wrong: [(usize, &[u8]); 8] = [
        (12, &[77]),
        (16, &[0; 4]),
        (16, &[0xff; 4]),
        (24, &[0; 8]),
        (24, &[127]),
        (24, &[0xff; 8]),
        (32, &[1]),
        (40, &[1]),
    ];
    for (at, bytes) in wrong {
        assert_eq!(with(at, bytes), SegmentFault::Geometry, "byte {at}");
    }
    assert_eq!(
        refused(id, len, forged(len, &good, SealFlags::GROW)),
        SegmentFault::Unsealed
    );
    assert_eq!(
        refused(id, len, File::open("/dev/zero").unwrap().into()),
        SegmentFault::Unsealed
    );
    let short = SegmentFault::Length {
        announced: len as u64,
        found: 4096,
    };
    assert_eq!(refused(id, len, forged(4096, &good, SEALS)), short);
    assert_eq!(refused(id, 64, forged(64, &good[..64], SEALS)), SegmentFault::Geometry);
    assert_eq!(refused(id, 0, forged(0, &[], SEALS)), SegmentFault::Geometry);

    let view = View::new();
    view.add(id, len, forged(len, &good, SEALS)).unwrap(); // the forger's header is right
    let again = view.add(id, len, fd).unwrap_err();
    assert!(
        matches!(
            again,
            Error::Segment {
                fault: SegmentFault::Duplicate,
                ..
            }
        ),
        "{again}"
    );
}

#[test]
fn forged_tokens() {
    let arena = arena();
    let slot = arena.reserve(100).unwrap();
    let (id, len, fd) = announced(&arena);
    let view = View::new();
    let token = slot.send().unwrap();
    let fault = |token| match view.lease(token) {
        Err(Error::Token { token: named, fault }) if named == token => fault,
        other => panic!("{other:?}"),
    };
    assert_eq!(fault(token), TokenFault::Segment, "not announced yet");
    view.add(id, len, fd).unwrap();
    assert_eq!(
        fault(Token {
            segment: id + 1,
            ..token
        }),
        TokenFault::Segment
    );
    assert_eq!(fault(Token { slot: 1 << 20, ..token }), TokenFault::Slot);
    assert_eq!(
        fault(Token {
            slot: u32::MAX,
            ..token
        }),
        TokenFault::Slot
    );
    assert_eq!(
        fault(Token {
            slot: token.slot + 1,
            ..token
        }),
        TokenFault::Stale
    );
    for generation in [0, token.generation + 1, u32::MAX] {
        assert_eq!(fault(Token { generation, ..token }), TokenFault::Stale);
    }
    for len in [129, 1 << 40, u64::MAX] {
        assert_eq!(fault(Token { len, ..token }), TokenFault::Length);
    }
    let lease = view.lease(token).unwrap();
    assert_eq!(fault(token), TokenFault::Stale, "taken before");
    drop(lease);
    assert_eq!(fault(token), TokenFault::Stale, "released before");
    assert!(view.remove(id) && !view.remove(id));
    assert_eq!(fault(token), TokenFault::Segment);
    assert_eq!(view.mapped_bytes(), 0);
}

/// A peer that scribbles over the table costs the segment, and nothing else: no crash, no memory handed out twice.
#[test]
fn a_damaged_table_takes_the_segment_out_of_use() {
    let arena = arena();
    let slots = [arena.reserve(100).unwrap(), arena.reserve(100).unwrap()];
    let (_, len, fd) = announced(&arena);
    // SAFETY: a second mapping of the segment; only its header and table, which hold atomics, are written.
    let table = unsafe {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &fd,
            0,
        )
    };
    let head = table.unwrap().cast::<u32>().wrapping_add(16);
    // SAFETY: the head of the freed stack, inside the mapping, aligned; the other side reads it atomically.
    unsafe { head.write_volatile(0x7fff_ffff) };
    let other = arena.reserve(100).unwrap();
    assert!(slots.iter().all(|slot| slot.addr().abs_diff(other.addr()) >= 128));
    // SAFETY: as above.
    unsafe { head.write_volatile(1) }; // a slot in use
    drop(slots);
    let more: Vec<_> = (0..2000).map(|_| arena.reserve(100).unwrap()).collect();
    let mut addrs: Vec<_> = more
        .iter()
        .map(feedrate_shm::Slot::addr)
        .chain([other.addr()])
        .collect();
    addrs.sort_unstable();
    addrs.dedup();
    assert_eq!(addrs.len(), 2001, "no memory is handed out twice");
}

#[test]
fn foreign_places_and_tokens_are_refused_by_the_arena() {
    let (arena, other) = (arena(), arena());
    let slot = arena.reserve(100).unwrap();
    let at = arena.locate(slot.addr() + 10, 90).unwrap();
    assert_eq!((at.offset, at.slot_len, at.already_sent), (10, 100, false));
    assert_eq!(arena.locate(slot.addr() + 10, 91), None, "beyond what was reserved");
    assert_eq!(arena.locate(slot.addr() + 100, 0), None);
    assert_eq!(arena.locate(slot.addr() - 1, 1), None);
    assert_eq!(arena.locate(usize::MAX, 1), None);
    assert_eq!(arena.locate(0, 1), None);
    assert_eq!(other.locate(slot.addr(), 1), None);
    assert!(matches!(other.send(&at), Err(Error::NotReserved)));

    let token = arena.send(&at).unwrap();
    assert!(arena.locate(slot.addr(), 100).unwrap().already_sent);
    assert!(matches!(arena.send(&at), Err(Error::AlreadySent)));
    assert!(matches!(slot.send(), Err(Error::AlreadySent)));
    assert!(!other.unsend(&token) && !arena.unsend(&Token { segment: 99, ..token }));
    assert!(arena.unsend(&token) && !arena.unsend(&token));
    let token = arena.send(&at).unwrap();
    drop(slot);
    assert!(matches!(arena.send(&at), Err(Error::NotReserved)));
    assert_eq!(arena.locate(token.slot as usize, 1), None);
    assert_eq!(arena.stats().leased_slots, 1);
    assert!(arena.unsend(&token));
    assert_eq!(arena.stats().leased_slots, 0);
    arena.trim();
    assert!(
        arena.take_announcements().is_empty(),
        "a segment that was never announced goes unannounced"
    );
    assert!(
        matches!(arena.send(&at), Err(Error::NotReserved)),
        "its segment is gone"
    );
}

#[test]
fn announcements_that_cannot_be_sent_come_again() {
    let arena = arena();
    // Slots too large for one segment.
    let _slots: Vec<_> = (0..3).map(|_| arena.reserve(64 << 20).unwrap()).collect();
    let mut sent = Vec::new();
    for room in 0..4 {
        let mut left = room;
        let result = arena.announce(|announce| {
            let Announce::New { id, .. } = announce else {
                panic!("{announce:?}")
            };
            if left == 0 {
                return Err(*id);
            }
            left -= 1;
            sent.push(*id);
            Ok(())
        });
        // The first call sends nothing, the second one, the third the other two.
        assert_eq!(result.err(), [Some(1), Some(2), None, None][room], "{sent:?}");
    }
    assert_eq!(sent, [1, 2, 3]);
}
