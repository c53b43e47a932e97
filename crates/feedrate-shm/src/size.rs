//! Which size of slot serves which request.

/// Slots begin at multiples of this.
pub const ALIGN: usize = 64;

/// From this size on a slot has a segment of its own.
pub(crate) const LARGE: usize = 1 << 20;
/// Idle large memory serves a request down to this part of its capacity.
const MOST_WASTE: usize = 4;
/// Number of classes below [`LARGE`].
pub(crate) const CLASSES: usize = 52;

const FIRST_SLAB: usize = 64 << 10;
const LARGEST_SLAB: usize = 16 << 20;

/// `len` rounded up to the capacity of its slot: multiples of 64 up to 256, then four steps to each doubling, so that at most
/// a quarter of the request is added. None when it does not fit an address.
pub(crate) fn capacity(len: usize) -> Option<usize> {
    if len <= 4 * ALIGN {
        return Some(len.max(1).next_multiple_of(ALIGN));
    }
    let step = 1usize << ((len - 1).ilog2() - 2);
    len.checked_next_multiple_of(step)
        .filter(|bytes| isize::try_from(*bytes).is_ok())
}

/// The class of a request below [`LARGE`], counted from zero, dense.
pub(crate) fn class(len: usize) -> usize {
    debug_assert!(len < LARGE);
    let len = len.max(1);
    if len <= 4 * ALIGN {
        return (len - 1) / ALIGN;
    }
    let power = (len - 1).ilog2();
    let step = power - 2;
    // the leading bit and the two bits after it, counted from 256 = 2^8
    4 + (power as usize - 8) * 4 + (((len - 1) >> step) & 3)
}

/// Whether idle memory of this capacity is reused for `len` bytes.
pub(crate) fn serves(capacity: usize, len: usize) -> bool {
    capacity >= len
        && if len < LARGE {
            self::capacity(len) == Some(capacity)
        } else {
            capacity / MOST_WASTE <= len
        }
}

/// How many slots of `stride` bytes the next slab gets, after `before` slabs of that class.
pub(crate) fn slab_slots(stride: usize, before: usize) -> u32 {
    let bytes = FIRST_SLAB.checked_shl(u32::try_from(before).unwrap_or(u32::MAX).min(16));
    let bytes = bytes.unwrap_or(LARGEST_SLAB).min(LARGEST_SLAB);
    u32::try_from(bytes / stride)
        .unwrap_or(u32::MAX)
        .max(4 << before.min(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_one_class_and_one_capacity() {
        let mut last = (0, 64);
        for len in 1..LARGE {
            let now = (class(len), capacity(len).unwrap());
            assert!(now.1 >= len && now.1.is_multiple_of(ALIGN), "{len}: {now:?}");
            assert!(len <= 256 || now.1 - len <= len / 4, "{len}: {now:?}");
            if now != last {
                assert_eq!(now.0, last.0 + 1, "{len}: classes are dense");
                assert!(now.1 > last.1 && len == last.1 + 1, "{len}: one capacity a class");
                last = now;
            }
        }
        assert_eq!(last, (CLASSES - 1, LARGE));
    }

    #[test]
    fn capacities_beyond_the_address_space_are_refused() {
        assert_eq!(capacity(usize::MAX), None);
        assert_eq!(capacity((1 << 62) + 1), Some((1 << 62) + (1 << 60)));
        assert_eq!(capacity(isize::MAX as usize), None);
    }

    #[test]
    fn slabs_double_up_to_a_bound() {
        assert_eq!(slab_slots(64, 0), 1024);
        assert_eq!(slab_slots(64, 1), 2048);
        assert_eq!(slab_slots(64, 8), 262_144);
        assert_eq!(slab_slots(64, 1000), 262_144);
        assert_eq!(slab_slots(LARGE, 0), 4);
        assert_eq!(slab_slots(LARGE, 9), 16);
    }
}
