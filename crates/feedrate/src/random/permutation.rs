//! A permutation of any size in constant memory.

use std::sync::Arc;

use super::{Domain, Key, Keyed};
use crate::error::Error;

/// Rounds of the Feistel network; the number that NIST takes for the same task (FF1 in SP 800-38G).
const ROUNDS: usize = 10;

/// Up to this length the permutation is a table, 4 bytes for each element.
const TABLE: u64 = 1 << 10;

/// A shuffled order of `0..len` that can be asked for any place: [`at`](Permutation::at) gives the index at a position,
/// [`position_of`](Permutation::position_of) the position of an index. Both take well under a microsecond, and nothing is stored:
/// a shuffle of ten billion samples is begun, and resumed anywhere, at once.
///
/// It depends on (seed, epoch, length) alone, and is frozen: golden tests hold it.
///
/// ```
/// use feedrate::random::Permutation;
///
/// let order = Permutation::new(10_000_000_000, 7, 0)?;
/// let index = order.at(9_000_000_000).unwrap();
/// assert_eq!(order.position_of(index), Some(9_000_000_000));
/// # Ok::<(), feedrate::Error>(())
/// ```
///
/// # How it is made
///
/// A Feistel network (H. Feistel, 1973; M. Luby and C. Rackoff, "How to construct pseudorandom permutations from pseudorandom
/// functions", 1988) permutes the numbers of `b` bits, the fewest that hold `len` values: each of 10 rounds changes one
/// half of the bits by a keyed function of the other half, which can be undone whatever the function is. When `b` is odd
/// the halves differ by one bit. A result that is not below `len` is permuted again until it is (cycle walking: J. Black and
/// P. Rogaway, "Ciphers with arbitrary finite domains", 2002); since `2^b < 2 * len`, that takes less than 2 turns on average. The
/// function is a multiply and shift mixer, keyed for each round by two words of the ChaCha8 [`Keyed`] stream of
/// (seed, epoch, length).
///
/// Networks over a handful of bits are poor (over 2 + 2 bits, they reach only half of all permutations), and a table of so few costs
/// nothing: up to 1,024 elements the order is a plain shuffle by that stream, all permutations equally likely.
///
/// # How random it is
///
/// Enough for training, as tested: first positions, neighbours, serial correlation and distances between epochs look like those of a
/// true shuffle. It is not a cipher: the round function is a fast mixer, so nothing must be kept secret with it. Of the `len!` orders
/// it can give at most 2^128 (one for each seed and epoch), as every generator with a seed can. And where the length is a power of two
/// above 1,024, every order is an even permutation (one of an even number of swaps), as with every Feistel network.
#[derive(Debug, Clone)]
pub struct Permutation {
    len: u64,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Index at each position, then position of each index.
    Table(Arc<[u16]>),
    Feistel(Box<Feistel>),
}

#[derive(Debug, Clone)]
struct Feistel {
    /// Bits of the low part, which the first round reads.
    low: u32,
    high: u32,
    keys: [[u64; 2]; ROUNDS],
}

impl Permutation {
    /// Of `0..len`, with `len` at most 2⁶³.
    pub fn new(len: u64, seed: u64, epoch: u64) -> Result<Self, Error> {
        if len > 1 << 63 {
            return Err(Error::config(format!(
                "a permutation of {len} elements: at most 2^63 are possible"
            )));
        }
        let key = Key {
            seed,
            epoch,
            step: 0,
            position: len,
            domain: Domain::Permutation,
        };
        let kind = if len <= TABLE {
            Kind::table(len, &mut key.stream())
        } else {
            Kind::feistel(len, &mut key.stream())
        };
        Ok(Self { len, kind })
    }

    /// How many elements there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The index at a position; `None` from the length on.
    pub fn at(&self, position: u64) -> Option<u64> {
        self.look(position, 0, Feistel::forth)
    }

    /// At which position an index comes; `None` from the length on.
    pub fn position_of(&self, index: u64) -> Option<u64> {
        self.look(index, self.len, Feistel::back)
    }

    fn look(&self, value: u64, table_at: u64, turn: impl Fn(&Feistel, u64) -> u64) -> Option<u64> {
        if value >= self.len {
            return None;
        }
        match &self.kind {
            Kind::Table(table) => {
                let place = usize::try_from(table_at + value).ok()?;
                table.get(place).map(|v| u64::from(*v))
            }
            Kind::Feistel(feistel) => {
                let mut value = turn(feistel, value);
                while value >= self.len {
                    value = turn(feistel, value);
                }
                Some(value)
            }
        }
    }
}

impl Kind {
    fn table(len: u64, stream: &mut Keyed) -> Self {
        let mut order: Vec<u16> = (0..u16::try_from(len).unwrap_or_default()).collect();
        stream.shuffle(&mut order);
        let mut table = order.clone();
        table.resize(order.len() * 2, 0);
        for (position, index) in (0_u16..).zip(&order) {
            table[order.len() + usize::from(*index)] = position;
        }
        Self::Table(table.into())
    }

    /// Needs at least 2 bits, one for each half.
    fn feistel(len: u64, stream: &mut Keyed) -> Self {
        let bits = u64::BITS - (len - 1).leading_zeros();
        let mut keys = [[0; 2]; ROUNDS];
        for key in keys.as_flattened_mut() {
            *key = stream.next_u64();
        }
        let (low, high) = (bits / 2, bits - bits / 2);
        Self::Feistel(Box::new(Feistel { low, high, keys }))
    }
}

impl Feistel {
    fn forth(&self, value: u64) -> u64 {
        let (mut low, mut high) = self.split(value);
        for pair in self.keys.chunks_exact(2) {
            high ^= round(low, pair[0]) >> (u64::BITS - self.high);
            low ^= round(high, pair[1]) >> (u64::BITS - self.low);
        }
        (high << self.low) | low
    }

    fn back(&self, value: u64) -> u64 {
        let (mut low, mut high) = self.split(value);
        for pair in self.keys.chunks_exact(2).rev() {
            low ^= round(high, pair[1]) >> (u64::BITS - self.low);
            high ^= round(low, pair[0]) >> (u64::BITS - self.high);
        }
        (high << self.low) | low
    }

    fn split(&self, value: u64) -> (u64, u64) {
        (value & ((1 << self.low) - 1), value >> self.low)
    }
}

/// 64 bits of which the highest are used. The multipliers are odd: one fixed (2⁶⁴ divided by the golden ratio), one of the key.
fn round(half: u64, [add, multiply]: [u64; 2]) -> u64 {
    let mixed = (half ^ add).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(multiply | 1)
}

#[cfg(test)]
#[path = "permutation_tests.rs"]
mod tests;
