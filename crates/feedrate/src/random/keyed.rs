//! Streams keyed by what they are for.
//!
//! The algorithm is ChaCha with 8 rounds (D. J. Bernstein, "ChaCha, a variant of Salsa20", 2008; block layout with a 64-bit
//! counter and a 64-bit nonce). The 256-bit key is (seed, epoch, step, position), each a little-endian `u64`, and the nonce is
//! the [`Domain`]: no hashing is involved, so two different keys never share a block. The streams are frozen: golden tests
//! hold them.

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Domain {
    /// One sample; `position` counts samples in the epoch.
    #[default]
    Sample,
    /// One batch (collation); `position` counts batches in the epoch.
    Batch,
    /// One worker; `position` is its number.
    Worker,
    /// One whole epoch (a sampler's order); `position` is 0.
    Epoch,
    /// A [`Permutation`](super::Permutation); `position` is its length.
    Permutation,
}

/// Names a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Key {
    /// The loader's seed.
    pub seed: u64,
    /// The pass over the data, from 0.
    pub epoch: u64,
    /// Which random step of the work it is; different steps get independent streams.
    pub step: u64,
    /// Place in the epoch, from 0; what is counted depends on the domain.
    pub position: u64,
    /// What the stream is for.
    pub domain: Domain,
}

impl Key {
    /// The stream of this key, from its start.
    pub fn stream(self) -> Keyed {
        Keyed::new(self)
    }
}

/// A generator for one [`Key`]: 64 bytes of ChaCha8 at a time.
///
/// ```
/// use feedrate::random::Key;
///
/// let key = Key { seed: 7, epoch: 0, step: 1, position: 20, ..Key::default() };
/// let mut once = key.stream();
/// let mut again = key.stream();
/// assert_eq!(once.next_u64(), again.next_u64());
/// assert!(once.uniform() < 1.0);
/// assert!(once.below(6) < 6);
/// ```
#[derive(Debug, Clone)]
pub struct Keyed {
    input: [u32; 16],
    block: [u32; 16],
    /// Next word of the block; 16 when it is used up.
    next: usize,
}

impl Keyed {
    /// The stream of `key`, from its start.
    pub fn new(key: Key) -> Self {
        let mut words = [0; 8];
        for (pair, value) in words
            .chunks_exact_mut(2)
            .zip([key.seed, key.epoch, key.step, key.position])
        {
            (pair[0], pair[1]) = halves(value);
        }
        Self {
            input: layout(words, key.domain as u64),
            block: [0; 16],
            next: 16,
        }
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.next == 16 {
            self.block = block(&self.input, 8);
            let (low, carry) = self.input[12].overflowing_add(1);
            self.input[12] = low;
            self.input[13] = self.input[13].wrapping_add(u32::from(carry));
            self.next = 0;
        }
        let word = self.block[self.next];
        self.next += 1;
        word
    }

    /// The next 64 bits; the first word is the low half.
    pub fn next_u64(&mut self) -> u64 {
        let low = u64::from(self.next_u32());
        low | (u64::from(self.next_u32()) << 32)
    }

    /// Uniform in [0, 1), a multiple of 2⁻⁵³.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Uniform in `0..limit`, without bias (Lemire's method, with rejection).
    ///
    /// # Panics
    /// If `limit` is 0.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a product")]
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "there is no number below 0");
        loop {
            let product = u128::from(self.next_u64()) * u128::from(limit);
            let low = product as u64;
            if low >= limit || low >= limit.wrapping_neg() % limit {
                return (product >> 64) as u64;
            }
        }
    }

    /// Shuffles in place (Fisher and Yates, from the end).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1);
            items.swap(i, usize::try_from(j).unwrap_or(i));
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
fn halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}

fn layout(key: [u32; 8], nonce: u64) -> [u32; 16] {
    // "expand 32-byte k"
    let mut input = [0; 16];
    input[..4].copy_from_slice(&[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574]);
    input[4..12].copy_from_slice(&key);
    (input[14], input[15]) = halves(nonce);
    input
}

fn block(input: &[u32; 16], rounds: usize) -> [u32; 16] {
    const ROUND: [[usize; 4]; 8] = [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
        [0, 5, 10, 15],
        [1, 6, 11, 12],
        [2, 7, 8, 13],
        [3, 4, 9, 14],
    ];
    let mut x = *input;
    for _ in 0..rounds / 2 {
        for [a, b, c, d] in ROUND {
            x[a] = x[a].wrapping_add(x[b]);
            x[d] = (x[d] ^ x[a]).rotate_left(16);
            x[c] = x[c].wrapping_add(x[d]);
            x[b] = (x[b] ^ x[c]).rotate_left(12);
            x[a] = x[a].wrapping_add(x[b]);
            x[d] = (x[d] ^ x[a]).rotate_left(8);
            x[c] = x[c].wrapping_add(x[d]);
            x[b] = (x[b] ^ x[c]).rotate_left(7);
        }
    }
    for (out, start) in x.iter_mut().zip(input) {
        *out = out.wrapping_add(*start);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(words: &[u32]) -> String {
        use std::fmt::Write as _;
        words
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
    }

    /// Published first blocks for an all-zero key and nonce.
    #[test]
    fn the_block_function_is_chacha() {
        let zero = layout([0; 8], 0);
        assert_eq!(
            hex(&block(&zero, 20)),
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7\
             da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        );
        assert_eq!(
            hex(&block(&zero, 8)),
            "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e\
             984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"
        );
    }

    #[test]
    fn the_zero_key_is_the_zero_stream() {
        let mut stream = Key::default().stream();
        let words: Vec<u32> = (0..16).map(|_| stream.next_u32()).collect();
        assert_eq!(words, block(&layout([0; 8], 0), 8));
        let mut second = layout([0; 8], 0);
        second[12] = 1;
        assert_eq!(stream.next_u32(), block(&second, 8)[0]);
    }

    /// Frozen: a change here changes every user's augmentation.
    #[test]
    fn golden_streams() {
        let key = Key {
            seed: 1,
            epoch: 2,
            step: 3,
            position: 4,
            domain: Domain::Sample,
        };
        let mut stream = key.stream();
        let words: Vec<u64> = (0..4).map(|_| stream.next_u64()).collect();
        assert_eq!(words, GOLDEN);
        let mut batch = Key {
            domain: Domain::Batch,
            ..key
        }
        .stream();
        assert_ne!(batch.next_u64(), words[0]);
    }

    const GOLDEN: [u64; 4] = [
        1_223_844_302_487_303_164,
        6_368_864_477_575_460_494,
        4_630_466_153_352_783_437,
        5_027_844_928_882_384_814,
    ];

    #[test]
    fn every_part_of_the_key_counts() {
        let base = Key::default();
        let others = [
            Key { seed: 1, ..base },
            Key { epoch: 1, ..base },
            Key { step: 1, ..base },
            Key { position: 1, ..base },
            Key { seed: 1 << 32, ..base },
            Key {
                domain: Domain::Worker,
                ..base
            },
            Key {
                domain: Domain::Epoch,
                ..base
            },
        ];
        let mut firsts: Vec<u64> = others.iter().map(|k| k.stream().next_u64()).collect();
        firsts.push(base.stream().next_u64());
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), others.len() + 1);
    }

    #[test]
    fn below_is_fair_and_shuffle_is_a_permutation() {
        let mut stream = Key {
            seed: 5,
            ..Key::default()
        }
        .stream();
        let mut counts = [0_u32; 3];
        for _ in 0..30_000 {
            counts[usize::try_from(stream.below(3)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|n| (9_500..10_500).contains(n)), "{counts:?}");
        let mut items: Vec<u32> = (0..100).collect();
        stream.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
