//! The end of a long permutation without the whole of it, for a run that goes on late in an epoch.
//!
//! Torch's shuffle swaps each position, from the front, with one behind it. What ends up behind `from` depends on all draws before, but
//! few of those swaps move something that stays there. Going back over the draws finds these: the positions behind `from` are wanted,
//! and a swap into a wanted position makes its own position wanted instead. Going forward again only they are made.
//!
//! Both passes walk through memory in order: values on their way to a later block of positions wait in a list for it (time-forward
//! processing, as in Y.-J. Chiang et al., External-Memory Graph Algorithms, 1995). The shuffle itself waits for memory at each swap.

use feedrate_shm::{vec_in_large_pages, zeros_in_large_pages};

use super::Mt19937;
use super::remainders::remainders;
use super::torch::permute_small;

/// Positions that are worked on together: what belongs to them stays in the processor's cache.
const BLOCK: usize = 1 << 14;

/// Blocks between two questions whether to go on.
const ASK: usize = 64;

/// Why there is no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// Told not to go on.
    Told,
    /// More swaps matter than there is room for, which chance does not bring about.
    Full,
}

/// The positions `from..n` of `torch.randperm(n)`, for an `n` that torch shuffles with 32 bits for each element; the generator moves as
/// for all of it, or not at all when it is stopped.
///
/// While it runs it takes 4 bytes for each of the `n` if `from` is in the last quarter; up to 6 before.
pub(super) fn tail(
    generator: &mut Mt19937,
    n: u32,
    from: u32,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<u32>, Stopped> {
    let room = Room::expected(n, from, n - from);
    let mut memory = room.memory(n);
    let mut parts = room.parts(n, &mut memory);
    want(parts.wanted, from..n);
    let mut at_from = generator.clone();
    let found = go_back(starts(&mut at_from, from), n, from, &mut parts, go_on)?;
    let mut items = vec_in_large_pages((n - from) as usize);
    items.extend(from..n);
    go_forward(found, &mut parts, &mut |to, value| items[to] = value, go_on)?;
    let keep = items.len();
    if !permute_small(&mut at_from, &mut items, keep, go_on) {
        return Err(Stopped::Told);
    }
    *generator = at_from;
    Ok(items)
}

/// The positions `from..to` of the same permutation, of which `to` is less than `n`: sooner, since few swaps matter for few positions.
pub(super) fn piece(
    generator: &mut Mt19937,
    n: u32,
    from: u32,
    to: u32,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<u32>, Stopped> {
    let room = Room::expected(n, from, to - from);
    let mut memory = room.memory(n);
    let mut parts = room.parts(n, &mut memory);
    want(parts.wanted, from..to);
    let mut behind = generator.clone();
    let starts = starts(&mut behind, from);
    let mut draws = vec![0; (to - from) as usize];
    behind.fill(&mut draws);
    targets(&mut draws, n, from);
    // What is at these positions in the end is at these before the first of them has its turn.
    let swaps = (from..to).zip(&draws);
    for (position, target) in swaps.clone().rev() {
        swap(parts.wanted, position, *target);
    }
    let set = Set::new(parts.wanted, from);
    let found = go_back(starts, n, from, &mut parts, go_on)?;
    let mut items: Vec<u32> = set.positions().collect();
    go_forward(
        found,
        &mut parts,
        &mut |to, value| items[set.rank(from + position(to))] = value,
        go_on,
    )?;
    let items = set.shuffled(&mut items, swaps);
    // The last position is not swapped.
    behind.skip((n - 1 - to).into());
    *generator = behind;
    Ok(items)
}

/// Swaps two bits.
fn swap(bits: &mut [u32], a: u32, b: u32) {
    let bit = |bits: &[u32], at: u32| (bits[(at / 32) as usize] >> (at % 32)) & 1;
    let differ = bit(bits, a) ^ bit(bits, b);
    bits[(a / 32) as usize] ^= differ << (a % 32);
    bits[(b / 32) as usize] ^= differ << (b % 32);
}

/// A few positions, by number.
struct Set {
    /// Number of the first word of bits.
    first: usize,
    bits: Vec<u32>,
    /// How many there are before each word.
    before: Vec<u32>,
}

impl Set {
    /// Those of a map that are set, all of them from `from` on.
    fn new(bits: &[u32], from: u32) -> Self {
        let first = (from / 32) as usize;
        let bits = bits[first..].to_vec();
        let mut sum = 0;
        let before = bits.iter().map(|word| {
            sum += word.count_ones();
            sum - word.count_ones()
        });
        Self {
            first,
            before: before.collect(),
            bits,
        }
    }

    fn positions(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.bits).flat_map(|(word, bits)| {
            let start = position(self.first * 32) + word * 32;
            (0..32)
                .filter(move |bit| (bits >> bit) & 1 == 1)
                .map(move |bit| start + bit)
        })
    }

    fn rank(&self, position: u32) -> usize {
        let word = (position / 32) as usize - self.first;
        let below = self.bits[word] & ((1 << (position % 32)) - 1);
        (self.before[word] + below.count_ones()) as usize
    }

    /// What swaps bring to their positions, one after the other, from what lies at those of the set. All targets are in it, since what
    /// lies there is asked for; what lies at a position that is not in it is not.
    fn shuffled<'a>(&self, items: &mut [u32], swaps: impl Iterator<Item = (u32, &'a u32)>) -> Vec<u32> {
        let one = |(position, target): (u32, &u32)| {
            let here = self.has(position).then(|| items[self.rank(position)]);
            std::mem::replace(&mut items[self.rank(*target)], here.unwrap_or_default())
        };
        swaps.map(one).collect()
    }

    fn has(&self, position: u32) -> bool {
        (self.bits[(position / 32) as usize - self.first] >> (position % 32)) & 1 == 1
    }
}

/// How many swaps there is room for.
struct Room {
    /// All that matter.
    swaps: usize,
    /// Those to positions of later blocks.
    later: usize,
}

impl Room {
    /// For so many wanted positions from `from` on. A swap hits one of them with the chance of them among the positions that are left,
    /// which adds up to a logarithm. All but as many as would stay where they are are hit once, and those swaps do not go to later blocks.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most n, which has 32 bits"
    )]
    fn expected(n: u32, from: u32, wanted: u32) -> Self {
        let (whole, wanted) = (f64::from(n), f64::from(wanted));
        let swaps = wanted * (whole / f64::from((n - from).max(1))).ln();
        // Chance deviates by the square root, which is much less than this.
        let room = |of: f64| (of * 1.01) as usize + 1000;
        Self {
            swaps: room(swaps) + BLOCK,
            later: room(swaps - wanted * f64::from(from) / whole),
        }
    }

    fn memory(&self, n: u32) -> Vec<u32> {
        let wanted = (n as usize).div_ceil(32);
        zeros_in_large_pages(wanted + self.swaps + self.swaps.div_ceil(2) + self.later + self.later.div_ceil(2))
    }

    fn parts<'a>(&self, n: u32, memory: &'a mut [u32]) -> Parts<'a> {
        let (wanted, memory) = memory.split_at_mut((n as usize).div_ceil(32));
        let (to, memory) = memory.split_at_mut(self.swaps);
        let (places, memory) = memory.split_at_mut(self.swaps.div_ceil(2));
        let (arriving, arriving_at) = memory.split_at_mut(self.later);
        Parts {
            wanted,
            to,
            places: bytemuck::cast_slice_mut(places),
            arriving,
            arriving_at: bytemuck::cast_slice_mut(arriving_at),
        }
    }
}

/// What the passes work on, in one piece of memory.
struct Parts<'a> {
    /// A bit for each position.
    wanted: &'a mut [u32],
    /// Where swaps go that matter. From the front those to later blocks, as positions; from the back those into what is asked for, as
    /// places in that. The block that was gone over last is nearest to the middle.
    to: &'a mut [u32],
    /// Their places in their blocks.
    places: &'a mut [u16],
    /// Values on their way, by the block where they arrive.
    arriving: &'a mut [u32],
    /// Their places there.
    arriving_at: &'a mut [u16],
}

/// What was found on the way back.
struct Found {
    /// By block, from the last one on.
    blocks: Vec<Block>,
    /// How many values arrive in each block.
    arrivals: Vec<usize>,
    /// Swaps to later blocks, and into what is asked for.
    later: usize,
    tail: usize,
}

struct Block {
    /// Swaps to places of the same block, the last one first. They are few.
    inside: Vec<(u16, u16)>,
    /// How many others there are.
    later: usize,
    tail: usize,
}

/// The generator at the draw for the first position of each block before `from`. It is left at that for `from`.
fn starts(generator: &mut Mt19937, from: u32) -> Vec<Mt19937> {
    let (mut left, mut starts) = (u64::from(from), Vec::with_capacity(blocks(from)));
    while left > 0 {
        starts.push(generator.clone());
        let block = left.min(BLOCK as u64);
        generator.skip(block);
        left -= block;
    }
    starts
}

fn blocks(from: u32) -> usize {
    (from as usize).div_ceil(BLOCK)
}

/// Takes draws for the positions from `from` on to the positions that those are swapped with.
fn targets(draws: &mut [u32], n: u32, from: u32) {
    remainders(draws, n - from);
    for (target, position) in draws.iter_mut().zip(from..) {
        *target += position;
    }
}

/// Finds the swaps of positions before `from` that matter, from generators at the starts of their blocks.
fn go_back(
    starts: Vec<Mt19937>,
    n: u32,
    from: u32,
    parts: &mut Parts<'_>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Found, Stopped> {
    let mut found = Found {
        blocks: Vec::with_capacity(blocks(from)),
        arrivals: vec![0; n as usize / BLOCK + 1],
        later: 0,
        tail: 0,
    };
    let mut draws = zeros::<u32>();
    for (block, mut generator) in starts.into_iter().enumerate().rev() {
        let start = block * BLOCK;
        let draws = &mut draws[..BLOCK.min(from as usize - start)];
        generator.fill(draws);
        targets(draws, n, position(start));
        if found.later + found.tail + draws.len() > parts.to.len() {
            return Err(Stopped::Full);
        }
        found.add(start, draws, from, parts);
        if block % ASK == 0 && !go_on() {
            return Err(Stopped::Told);
        }
    }
    if found.later > parts.arriving.len() {
        return Err(Stopped::Full);
    }
    Ok(found)
}

/// Sets the bits of these positions.
fn want(bits: &mut [u32], positions: std::ops::Range<u32>) {
    for word in positions.start / 32..positions.end.div_ceil(32) {
        let (first, end) = (word * 32, word * 32 + 31);
        let low = u32::MAX << positions.start.saturating_sub(first);
        let high = u32::MAX >> (end + 1).saturating_sub(positions.end);
        bits[word as usize] |= low & high;
    }
}

impl Found {
    /// Goes back over the swaps of the positions from `start` on, with these targets.
    fn add(&mut self, start: usize, targets: &[u32], from: u32, parts: &mut Parts<'_>) {
        let bits = &mut *parts.wanted;
        let end = position(start + BLOCK).min(from);
        // First those that may matter, without branches, which the processor could only guess. Positions of this block may become wanted yet.
        let mut candidates = zeros::<u16>();
        let mut count = 0;
        for (at, to) in targets.iter().enumerate().rev() {
            let is_wanted = (bits[(to / 32) as usize] >> (to % 32)) & 1 == 1;
            candidates[count % BLOCK] = place(at);
            count += usize::from(is_wanted) | usize::from(*to < end);
        }
        let last = parts.to.len() - 1;
        let (mut later, mut tail) = (self.later, self.tail);
        let mut inside = Vec::new();
        for at in &candidates[..count] {
            let to = targets[usize::from(*at)];
            let here = start + usize::from(*at);
            let (word, bit) = ((to / 32) as usize, 1 << (to % 32));
            if bits[word] & bit == 0 {
                continue;
            }
            bits[word] &= !bit;
            bits[here / 32] |= 1 << (here % 32);
            if to < end {
                inside.push((*at, place(to as usize - start)));
                continue;
            }
            // Either is written, for the same reason; what is too much is written over.
            let is_later = to < from;
            (parts.to[later], parts.places[later]) = (to, *at);
            (parts.to[last - tail], parts.places[last - tail]) = if is_later {
                (parts.to[last - tail], parts.places[last - tail])
            } else {
                (to - from, *at)
            };
            later += usize::from(is_later);
            tail += usize::from(!is_later);
            self.arrivals[to as usize / BLOCK] += usize::from(is_later);
        }
        self.blocks.push(Block {
            inside,
            later: later - self.later,
            tail: tail - self.tail,
        });
        (self.later, self.tail) = (later, tail);
    }
}

/// Makes the swaps that were found; those into what is asked for are given to `put`, with the place behind `from`.
fn go_forward(
    found: Found,
    parts: &mut Parts<'_>,
    put: &mut impl FnMut(usize, u32),
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), Stopped> {
    // By block, where its next value is put: first from where those of the block before end.
    let mut next = Vec::with_capacity(found.arrivals.len());
    let mut sum = 0;
    for count in found.arrivals {
        next.push(sum);
        sum += count;
    }
    let (mut later, mut tail) = (found.later, parts.to.len() - found.tail);
    let mut values = zeros::<u32>();
    for (block, found) in found.blocks.into_iter().rev().enumerate() {
        let start = block * BLOCK;
        for (value, position) in values.iter_mut().zip(position(start)..) {
            *value = position;
        }
        // All are there, so the next one would be the first of the next block.
        let arrived = block.checked_sub(1).map_or(0, |before| next[before])..next[block];
        for (at, value) in parts.arriving_at[arrived.clone()].iter().zip(&parts.arriving[arrived]) {
            values[usize::from(*at)] = *value;
        }
        for (at, to) in found.inside.into_iter().rev() {
            values[usize::from(to)] = values[usize::from(at)];
        }
        // What lies at a place when its turn comes stays: these can follow in any order.
        let range = later - found.later..later;
        later = range.start;
        for (at, to) in parts.places[range.clone()].iter().zip(&parts.to[range]) {
            let next = &mut next[*to as usize / BLOCK];
            parts.arriving[*next] = values[usize::from(*at)];
            parts.arriving_at[*next] = place(*to as usize % BLOCK);
            *next += 1;
        }
        let range = tail..tail + found.tail;
        tail = range.end;
        for (at, to) in parts.places[range.clone()].iter().zip(&parts.to[range]) {
            put(*to as usize, values[usize::from(*at)]);
        }
        if block % ASK == ASK - 1 && !go_on() {
            return Err(Stopped::Told);
        }
    }
    Ok(())
}

/// For a block.
fn zeros<T: Clone + Default>() -> Vec<T> {
    vec![T::default(); BLOCK]
}

/// Below 2³², as the length is.
#[expect(
    clippy::cast_possible_truncation,
    reason = "positions of a permutation of less than 2³²"
)]
fn position(at: usize) -> u32 {
    at as u32
}

/// A place in a block.
#[expect(clippy::cast_possible_truncation, reason = "a block has fewer than 2¹⁶ positions")]
fn place(at: usize) -> u16 {
    at as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_end_of_the_whole() {
        for n in [1, 2, 3, 63, 64, 65, 1000, 16_383, 16_384, 16_385, 40_000, 100_001] {
            let mut generator = Mt19937::new(u64::from(n));
            let whole = generator.randperm_u32(n);
            let next = generator.u32();
            let places = [
                0,
                1,
                2,
                63,
                64,
                65,
                n / 4,
                n / 2,
                n - n / 10,
                16_383,
                16_384,
                16_385,
                32_768,
                n - 1,
            ];
            for from in places.into_iter().filter(|from| *from < n) {
                let mut generator = Mt19937::new(u64::from(n));
                let found = tail(&mut generator, n, from, &mut || true);
                assert_eq!(found.as_deref(), Ok(&whole[from as usize..]), "{n} from {from}");
                assert_eq!(generator.u32(), next, "after {n} from {from}");
            }
        }
    }

    /// From any state of the generator, and swaps within a block of the end itself.
    #[test]
    fn random_cases() {
        let mut cases = Mt19937::new(6);
        for _ in 0..300 {
            let n = 2 + cases.u32() % 50_000;
            let from = cases.u32() % n;
            let mut generator = Mt19937::new(cases.u64());
            generator.skip(u64::from(cases.u32() % 2000));
            let whole = generator.clone().randperm_u32(n);
            let found = tail(&mut generator, n, from, &mut || true);
            assert_eq!(found.as_deref(), Ok(&whole[from as usize..]), "{n} from {from}");
        }
    }

    #[test]
    fn pieces() {
        let mut cases = Mt19937::new(7);
        let mut check = |n: u32, from: u32, to: u32| {
            let mut generator = Mt19937::new(cases.u64());
            generator.skip(u64::from(cases.u32() % 2000));
            let mut after = generator.clone();
            let whole = after.randperm_u32(n);
            let found = piece(&mut generator, n, from, to, &mut || true);
            assert_eq!(generator.u32(), after.u32());
            assert_eq!(
                found.as_deref(),
                Ok(&whole[from as usize..to as usize]),
                "{n} from {from} to {to}"
            );
        };
        for n in [2, 3, 31, 32, 33, 64, 65, 1000, 16_385, 40_000] {
            for from in [0, 1, n / 2, n - 2] {
                for to in [from + 1, from + (n - from) / 2, n - 1]
                    .into_iter()
                    .filter(|to| (from..n).contains(to))
                {
                    check(n, from, to);
                }
            }
        }
        let mut choose = Mt19937::new(8);
        for _ in 0..300 {
            let n = 3 + choose.u32() % 50_000;
            let from = choose.u32() % (n - 1);
            check(n, from, from + 1 + choose.u32() % (n - 1 - from));
        }
    }

    #[test]
    fn without_room_nothing_is_done() {
        let (n, from) = (60_000, 40_000);
        let small = Room {
            swaps: BLOCK,
            later: 10,
        };
        for room in [
            Room {
                swaps: 10,
                later: 10_000,
            },
            small,
        ] {
            let mut memory = room.memory(n);
            let mut parts = room.parts(n, &mut memory);
            want(parts.wanted, from..n);
            let found = go_back(starts(&mut Mt19937::new(1), from), n, from, &mut parts, &mut || true);
            assert_eq!(found.err(), Some(Stopped::Full));
        }
    }

    #[test]
    fn it_can_be_stopped_in_either_pass() {
        let blocks = 2 * ASK;
        let from = position(blocks * BLOCK);
        for allowed in 0..3 {
            let mut asked = 0;
            let found = tail(&mut Mt19937::new(1), from + 10, from, &mut || {
                asked += 1;
                asked <= allowed
            });
            assert_eq!((found, asked), (Err(Stopped::Told), allowed + 1));
        }
    }
}
