//! Memory of bytes that were copied to where they stay, for the next ones.

use std::cell::RefCell;

/// Shorter ones are left to the allocator; the Python binding copies them one by one, too.
const SHORT: usize = 1 << 10;
/// What a thread keeps at most: the bytes of a batch, say.
const MOST: usize = 4 << 20;
/// And that many of them.
const MANY: usize = 256;
/// So many of the last ones are looked at for one that fits.
const LOOKS: usize = 16;

#[derive(Default)]
struct Spare {
    idle: Vec<Vec<u8>>,
    bytes: usize,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

/// An empty vector for about `len` bytes, with the memory of one that was [given back](give_back) on this thread where one of that size
/// is there: at least as large, and at most by a third larger. Else a new one, for which nothing is set aside yet.
pub(crate) fn spare(len: usize) -> Vec<u8> {
    if len < SHORT {
        return Vec::new();
    }
    let taken = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        let fits = |bytes: &Vec<u8>| bytes.capacity() >= len && bytes.capacity() / 4 * 3 <= len;
        let from = spare.idle.len().saturating_sub(LOOKS);
        let at = from + spare.idle[from..].iter().rposition(fits)?;
        let found = spare.idle.swap_remove(at);
        spare.bytes -= found.capacity();
        Some(found)
    });
    // Where the thread is ending there is none.
    taken.ok().flatten().unwrap_or_default()
}

/// The bytes as a vector, in [spare](spare) memory where there is some.
pub(crate) fn copied(bytes: &[u8]) -> Vec<u8> {
    let mut copy = spare(bytes.len());
    copy.extend_from_slice(bytes);
    copy
}

/// Gives the memory of bytes back that were copied to where they stay: the sources' next bytes on this thread may use it. Memory that is
/// freed and asked for again, batch by batch, makes the allocator return it to the system and fault it in again.
///
/// A thread keeps 4 MiB at most, until it ends; what is more is freed. Any vector may be given.
pub fn give_back(mut bytes: Vec<u8>) {
    let capacity = bytes.capacity();
    if !(SHORT..=MOST / 4).contains(&capacity) {
        return;
    }
    bytes.clear();
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.bytes + capacity <= MOST && spare.idle.len() < MANY {
            spare.bytes += capacity;
            spare.idle.push(bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_comes_again() {
        let kept = Vec::with_capacity(20_000);
        let place = kept.as_ptr();
        give_back(kept);
        // Too large for it, and so small that most of it would be lost.
        assert_eq!(spare(20_001).capacity(), 0);
        assert_eq!(spare(14_000).capacity(), 0);
        let found = spare(15_000);
        assert_eq!((found.as_ptr(), found.len()), (place, 0));
        assert_eq!(spare(15_000).capacity(), 0);
        // What was in it is not seen again.
        give_back(vec![7; 2_000]);
        assert_eq!(copied(&[1; 1_600]), [1; 1_600]);
    }

    #[test]
    fn little_is_kept() {
        for capacity in [10, 2 << 20] {
            give_back(Vec::with_capacity(capacity));
            assert_eq!(spare(capacity).capacity(), 0);
        }
        for _ in 0..10 {
            give_back(Vec::with_capacity(1 << 20));
        }
        let found = (0..10).filter(|_| spare(1 << 20).capacity() > 0).count();
        assert_eq!(found, 4);
        // By another thread's spare memory nothing is found.
        give_back(Vec::with_capacity(5_000));
        std::thread::spawn(|| assert_eq!(spare(5_000).capacity(), 0))
            .join()
            .unwrap();
    }
}
