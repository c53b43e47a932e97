//! Many draws to numbers below a bound that falls.

/// Takes draws modulo `first`, `first - 1` and so on: less than 2³¹, and still 1 for the last draw.
pub(super) fn remainders(draws: &mut [u32], first: u32) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function is compiled for.
        #[expect(unsafe_code, reason = "vector instructions, found at run time")]
        unsafe {
            wide(draws, first);
        }
        return;
    }
    plain(draws, first);
}

/// The same, compiled for wider registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn wide(draws: &mut [u32], first: u32) {
    plain(draws, first);
}

/// By doubles, of which processors divide several at a time, and integers one by one.
#[inline(always)]
fn plain(draws: &mut [u32], first: u32) {
    // Added to a double from 0 to 2³², it leaves the nearest integer in the low half.
    const TWO_52: f64 = 4_503_599_627_370_496.0;
    let double = |number: u32| f64::from_bits(TWO_52.to_bits() | u64::from(number)) - TWO_52;
    let mut by = first;
    for draw in draws {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the integer")]
        let times = (double(*draw) / double(by) + TWO_52).to_bits() as u32;
        // The nearest integer may be the one above, and the rest negative. Whichever it is, the rest is small: it fits 32 bits with a sign.
        let rest = draw.wrapping_sub(times.wrapping_mul(by));
        *draw = rest.wrapping_add((rest.cast_signed() >> 31).cast_unsigned() & by);
        by = by.wrapping_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Mt19937;

    #[test]
    fn they_are_those_of_integers() {
        let mut generator = Mt19937::new(2);
        let bounds = [
            1,
            2,
            3,
            4,
            5,
            7,
            64,
            1000,
            65_536,
            65_537,
            10_000_000,
            214_748_363,
            (1 << 31) - 1,
        ];
        for first in bounds {
            let len = 300.min(first) as usize;
            let mut cases: Vec<u32> = (0..len).map(|_| generator.u32()).collect();
            // Those around multiples, where a quotient is nearly an integer.
            for (case, by) in cases.iter_mut().zip((1..=first).rev()).step_by(2) {
                let multiple = (*case / by) * by;
                *case = multiple.wrapping_add(generator.u32() % 3).wrapping_sub(1);
            }
            for ends in [[0, u32::MAX], [first - 1, first], [first / 2, first / 2 + 1]] {
                let mut edge = cases.clone();
                for (case, end) in edge.iter_mut().zip(ends) {
                    *case = end;
                }
                let expected: Vec<u32> = edge.iter().zip((1..=first).rev()).map(|(draw, by)| draw % by).collect();
                let mut found = edge.clone();
                plain(&mut found, first);
                assert_eq!(found, expected, "below {first}");
                remainders(&mut edge, first);
                assert_eq!(edge, expected, "below {first}");
            }
        }
    }
}
