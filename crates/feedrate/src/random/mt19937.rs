//! PyTorch's CPU generator.

use std::fmt;

const WORDS: usize = 624;
const SHIFT: usize = 397;

/// Size of the byte string that `torch.Generator.get_state()` gives for a CPU generator.
pub const TORCH_STATE_BYTES: usize = 5056;

/// The 32-bit Mersenne Twister (M. Matsumoto and T. Nishimura, 1998), seeded and drawn from as `torch.Generator` is on the CPU.
///
/// ```
/// use feedrate::random::Mt19937;
///
/// // torch.randperm(10, generator=torch.Generator().manual_seed(0))
/// assert_eq!(Mt19937::new(0).randperm(10), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
/// ```
#[derive(Clone)]
pub struct Mt19937 {
    seed: u64,
    words: [u32; WORDS],
    /// Next word; `WORDS` when they are used up.
    next: usize,
    /// Fresh from seeding: torch counts this state as `next = 0`.
    fresh: bool,
    /// Torch's cached normals; carried along, never drawn.
    normals: [u8; 40],
}

/// Bytes that are no state of torch's CPU generator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The wrong number of bytes.
    #[error("a state of torch's CPU generator has {TORCH_STATE_BYTES} bytes, got {0}")]
    Length(usize),
    /// Fields that contradict each other.
    #[error("not a state of torch's CPU generator: {0}")]
    Content(&'static str),
}

impl Mt19937 {
    /// As `torch.Generator().manual_seed(seed)`. Only the low 32 bits choose the stream; a negative Python seed `s` is
    /// `s + 2**64`.
    #[expect(clippy::cast_possible_truncation, reason = "torch uses the low half")]
    pub fn new(seed: u64) -> Self {
        let mut words = [0; WORDS];
        words[0] = seed as u32;
        for i in 1..WORDS {
            let last = words[i - 1];
            words[i] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self {
            seed,
            words,
            next: WORDS,
            fresh: true,
            normals: [0; 40],
        }
    }

    /// The seed that it was given.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> u32 {
        if self.next == WORDS {
            self.twist();
        }
        self.next += 1;
        temper(self.words[self.next - 1])
    }

    /// As so many calls of [`u32`](Mt19937::u32) whose results nobody wants, and much faster.
    pub fn skip(&mut self, mut draws: u64) {
        while draws > 0 {
            if self.next == WORDS {
                self.twist();
            }
            let step = usize::try_from(draws).unwrap_or(WORDS).min(WORDS - self.next);
            self.next += step;
            draws -= step as u64;
        }
    }

    /// Fills `out` with what [`u32`](Mt19937::u32) would give.
    pub(super) fn fill(&mut self, mut out: &mut [u32]) {
        while !out.is_empty() {
            if self.next == WORDS {
                self.twist();
            }
            let step = out.len().min(WORDS - self.next);
            let (now, later) = out.split_at_mut(step);
            for (out, word) in now.iter_mut().zip(&self.words[self.next..]) {
                *out = temper(*word);
            }
            self.next += step;
            out = later;
        }
    }

    /// The next 64 bits; the first draw is the high half.
    pub fn u64(&mut self) -> u64 {
        let high = u64::from(self.u32());
        (high << 32) | u64::from(self.u32())
    }

    /// `torch.empty((), dtype=torch.int64).random_()`: uniform in `0..2**63`. What PyTorch draws its seeds with.
    pub fn random_i64(&mut self) -> i64 {
        i64::try_from(self.u64() & (u64::MAX >> 1)).unwrap_or_default()
    }

    /// One value of `torch.randint(high, ...)` with int64: `0..high`. 64 bits are drawn from 2²⁸ on (torch 2.14; until 2.6 the
    /// threshold was 2³²), then the remainder is taken, as torch does.
    ///
    /// # Panics
    /// If `high` is 0.
    pub fn below(&mut self, high: u64) -> u64 {
        assert!(high > 0, "there is no number below 0");
        if high >= 1 << 28 {
            self.u64() % high
        } else {
            u64::from(self.u32()) % high
        }
    }

    /// `torch.randint(high, (count,))`.
    pub fn randint(&mut self, high: u64, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.below(high)).collect()
    }

    /// `torch.rand((), dtype=torch.float64)`: uniform in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn uniform(&mut self) -> f64 {
        (self.u64() & ((1 << 53) - 1)) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// The bytes of `torch.Generator.get_state()`.
    pub fn to_torch_state(&self) -> Vec<u8> {
        let (left, next) = if self.fresh {
            (1, 0)
        } else {
            (WORDS + 1 - self.next, self.next)
        };
        let mut bytes = Vec::with_capacity(TORCH_STATE_BYTES);
        bytes.extend(self.seed.to_le_bytes());
        bytes.extend(u32::try_from(left).unwrap_or(1).to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend((next as u64).to_le_bytes());
        for word in self.words {
            bytes.extend(u64::from(word).to_le_bytes());
        }
        bytes.extend(self.normals);
        bytes
    }

    /// Takes up a state that `torch.Generator.get_state()` gave.
    pub fn from_torch_state(bytes: &[u8]) -> Result<Self, StateError> {
        if bytes.len() != TORCH_STATE_BYTES {
            return Err(StateError::Length(bytes.len()));
        }
        let u64_at = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (counts, next) = (u64_at(8), u64_at(16));
        let left = counts & u64::from(u32::MAX);
        if counts >> 32 != 1 {
            return Err(StateError::Content("it was never seeded"));
        }
        let fresh = left == 1 && next == 0;
        let used = usize::try_from(next).unwrap_or(usize::MAX);
        if !fresh && (used == 0 || used > WORDS || left + next != WORDS as u64 + 1) {
            return Err(StateError::Content("`left` and `next` do not belong together"));
        }
        let mut words = [0; WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            *word = u32::try_from(u64_at(24 + 8 * i))
                .map_err(|_| StateError::Content("a word of it has more than 32 bits"))?;
        }
        let mut normals = [0; 40];
        normals.copy_from_slice(&bytes[TORCH_STATE_BYTES - 40..]);
        let next = if fresh { WORDS } else { used };
        Ok(Self {
            seed: u64_at(0),
            words,
            next,
            fresh,
            normals,
        })
    }

    fn twist(&mut self) {
        // Three loops instead of one with remainders, so that the compiler can work on several words at once.
        let words = &mut self.words;
        for i in 0..WORDS - SHIFT {
            words[i] = twisted(words[i], words[i + 1], words[i + SHIFT]);
        }
        for i in WORDS - SHIFT..WORDS - 1 {
            words[i] = twisted(words[i], words[i + 1], words[i + SHIFT - WORDS]);
        }
        words[WORDS - 1] = twisted(words[WORDS - 1], words[0], words[SHIFT - 1]);
        self.next = 0;
        self.fresh = false;
    }
}

fn twisted(word: u32, next: u32, far: u32) -> u32 {
    let joined = (word & 0x8000_0000) | (next & 0x7fff_ffff);
    far ^ (joined >> 1) ^ ((joined & 1).wrapping_neg() & 0x9908_b0df)
}

fn temper(mut word: u32) -> u32 {
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c_5680;
    word ^= (word << 15) & 0xefc6_0000;
    word ^ (word >> 18)
}

impl fmt::Debug for Mt19937 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mt19937")
            .field("seed", &self.seed)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "mt19937_tests.rs"]
mod tests;
