//! What the GNU C++ library (libstdc++ 11 and newer) makes of `std::mt19937`.

use super::Mt19937;

/// The values of a `std::mt19937`, as all of them.
const FULL: u64 = u32::MAX as u64;

/// One value of `std::uniform_int_distribution<std::size_t>(0, limit)`.
///
/// ```
/// use feedrate::random::{Mt19937, libstdcxx};
///
/// // std::mt19937 generator(5489);
/// let mut generator = Mt19937::new(5489);
/// assert_eq!(libstdcxx::uniform(&mut generator, 99), 81);
/// ```
pub fn uniform(generator: &mut Mt19937, limit: u64) -> u64 {
    if limit < FULL {
        return scaled(generator, limit + 1);
    }
    if limit == FULL {
        return u64::from(generator.u32());
    }
    loop {
        let high = uniform(generator, limit >> 32) << 32;
        let value = high + u64::from(generator.u32());
        if value <= limit {
            return value;
        }
    }
}

/// Uniform below `range`, which is at most 2³² - 1: the high half of a product, drawn again where that would be unfair (Lemire).
fn scaled(generator: &mut Mt19937, range: u64) -> u64 {
    let mut product = u64::from(generator.u32()) * range;
    if product & FULL < range {
        let unfair = (FULL + 1 - range) % range;
        while product & FULL < unfair {
            product = u64::from(generator.u32()) * range;
        }
    }
    product >> 32
}

/// `std::shuffle(items.begin(), items.end(), generator)`, which makes two swaps of one draw where 32 bits are enough for both.
///
/// ```
/// use feedrate::random::{Mt19937, libstdcxx};
///
/// let mut items = [0, 1, 2, 3, 4, 5, 6];
/// libstdcxx::shuffle(&mut Mt19937::new(5), &mut items);
/// assert_eq!(items, [3, 6, 0, 1, 2, 5, 4]);
/// ```
pub fn shuffle<T>(generator: &mut Mt19937, items: &mut [T]) {
    let len = items.len() as u64;
    if len == 0 {
        return;
    }
    let mut swap = |i: u64, j: u64| items.swap(place(i), place(j));
    let mut i = 1;
    if FULL / len < len {
        while i < len {
            swap(i, uniform(generator, i));
            i += 1;
        }
        return;
    }
    if len.is_multiple_of(2) {
        swap(i, uniform(generator, 1));
        i += 1;
    }
    while i < len {
        let both = uniform(generator, (i + 1) * (i + 2) - 1);
        swap(i, both / (i + 2));
        swap(i + 1, both % (i + 2));
        i += 2;
    }
}

/// Below the length of a slice.
#[expect(clippy::cast_possible_truncation, reason = "an index of a slice")]
fn place(i: u64) -> usize {
    i as usize
}

#[cfg(test)]
#[path = "libstdcxx_tests.rs"]
mod tests;
