//! The seed that PyTorch gives NumPy in each worker.

/// The four words with which PyTorch seeds NumPy in worker `worker_id`: NumPy's `SeedSequence` hash (after M. E. O'Neill's
/// `seed_seq_fe128`) of `[worker_id, low half of base_seed, high half, 0]`.
///
/// ```
/// let state = feedrate::random::numpy_worker_state(13434589827475259383, 4);
/// assert_eq!(state, [2884386318, 1088094898, 3523808998, 3860348662]);
/// ```
#[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
pub fn worker_state(base_seed: u64, worker_id: u32) -> [u32; 4] {
    const XOR_SHIFT: u32 = 16;
    let mut hash = 0x43b0_d7e5_u32;
    let mut scramble = |mut value: u32| {
        value ^= hash;
        hash = hash.wrapping_mul(0x931e_8875);
        value = value.wrapping_mul(hash);
        value ^ (value >> XOR_SHIFT)
    };
    let mix = |x: u32, y: u32| {
        let result = x.wrapping_mul(0xca01_f9dd).wrapping_sub(y.wrapping_mul(0x4973_f715));
        result ^ (result >> XOR_SHIFT)
    };
    let mut pool = [worker_id, base_seed as u32, (base_seed >> 32) as u32, 0];
    for word in &mut pool {
        *word = scramble(*word);
    }
    for source in 0..4 {
        for target in 0..4 {
            if source != target {
                pool[target] = mix(pool[target], scramble(pool[source]));
            }
        }
    }
    let mut hash = 0x8b51_f9dd_u32;
    pool.map(|word| {
        let mut value = word ^ hash;
        hash = hash.wrapping_mul(0x58f3_8ded);
        value = value.wrapping_mul(hash);
        value ^ (value >> XOR_SHIFT)
    })
}

#[cfg(test)]
mod tests {
    use super::worker_state;

    /// Values of torch 2.14.1.
    #[test]
    fn golden() {
        for (base_seed, worker_id, expected) in GOLDEN {
            assert_eq!(worker_state(base_seed, worker_id), expected, "{base_seed} {worker_id}");
        }
    }

    const GOLDEN: [(u64, u32, [u32; 4]); 4] = [
        (
            13_434_589_827_475_259_383,
            4,
            [2_884_386_318, 1_088_094_898, 3_523_808_998, 3_860_348_662],
        ),
        (
            978_296_274_032_934_101,
            10,
            [1_759_791_917, 3_550_927_336, 1_225_977_135, 1_036_538_043],
        ),
        (0, 0, [2_968_811_710, 3_677_149_159, 745_650_761, 2_884_920_346]),
        (
            9_223_372_036_854_775_807,
            3,
            [1_885_505_632, 4_179_896_284, 1_438_801_625, 814_051_130],
        ),
    ];
}
