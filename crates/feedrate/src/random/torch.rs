//! Permutations and weighted draws as torch makes them on the CPU.

use feedrate_shm::vec_in_large_pages;

use super::ahead::ahead;
use super::remainders::remainders;
use super::tail::{Stopped, piece, tail};
use super::{Mt19937, topk};
use crate::error::Error;

/// From so many elements on, torch draws 64 bits for each: below, 32 are enough by its measure of skew.
const LARGE: u64 = u32::MAX as u64 / 20;

/// Most weights that torch takes.
const CATEGORIES: usize = 1 << 24;

/// Draws made at a time. Their places in memory are asked for first, all at once, since each is a cache miss of its own.
const BLOCK: usize = 128;

/// Elements between two questions whether to go on.
const ASK: usize = BLOCK << 13;

impl Mt19937 {
    /// `torch.randperm(n)`. Takes `8 * n` bytes.
    pub fn randperm(&mut self, n: usize) -> Vec<usize> {
        let mut items: Vec<usize> = (0..n).collect();
        permute(self, &mut items, n, &mut || true);
        items
    }

    /// The same permutation in half the memory: `4 * n` bytes and nothing more.
    ///
    /// ```
    /// use feedrate::random::Mt19937;
    ///
    /// assert_eq!(Mt19937::new(0).randperm_u32(10), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
    /// ```
    pub fn randperm_u32(&mut self, n: u32) -> Vec<u32> {
        let mut items = vec_in_large_pages(n as usize);
        items.extend(0..n);
        permute(self, &mut items, n as usize, &mut || true);
        items
    }

    /// `torch.multinomial` of float64 weights: `count` indices, each with a chance that is proportional to its weight. Without
    /// `replacement` no index comes twice.
    ///
    /// The errors are torch's, and so is this: without replacement, indices of weight zero come when the others have run out.
    ///
    /// ```
    /// use feedrate::random::Mt19937;
    ///
    /// let weights = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6];
    /// assert_eq!(Mt19937::new(0).multinomial(&weights, 6, false)?, [4, 1, 2, 5, 3, 0]);
    /// # Ok::<(), feedrate::Error>(())
    /// ```
    pub fn multinomial(&mut self, weights: &[f64], count: usize, replacement: bool) -> Result<Vec<u32>, Error> {
        check_weights(weights, count, replacement)?;
        // Torch takes the other way for a single draw, whatever `replacement` says.
        if replacement && count > 1 {
            Ok(self.with_replacement(weights, count))
        } else {
            Ok(self.without_replacement(weights, count))
        }
    }

    fn with_replacement(&mut self, weights: &[f64], count: usize) -> Vec<u32> {
        let mut sum = 0.0;
        let mut bounds: Vec<f64> = weights
            .iter()
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        for bound in &mut bounds {
            *bound /= sum;
        }
        if let Some(last) = bounds.last_mut() {
            *last = 1.0;
        }
        let find = |uniform: f64| index(bounds.partition_point(|bound| *bound < uniform));
        (0..count).map(|_| find(self.uniform())).collect()
    }

    /// An exponential race: each index arrives after a time drawn for its weight, the first ones win.
    fn without_replacement(&mut self, weights: &[f64], count: usize) -> Vec<u32> {
        let speeds = weights.iter().map(|weight| weight / -(-self.uniform()).ln_1p());
        topk::largest(speeds, count)
    }
}

/// Of a length that was checked.
fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(u32::MAX)
}

pub(crate) fn check_weights(weights: &[f64], count: usize, replacement: bool) -> Result<(), Error> {
    if count == 0 {
        return Err(Error::config("cannot sample n_sample <= 0 samples"));
    }
    if !replacement && count > weights.len() {
        return Err(Error::config(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement",
        ));
    }
    if weights.len() > CATEGORIES {
        return Err(Error::config("number of categories cannot exceed 2^24"));
    }
    if !weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0) {
        return Err(Error::config(
            "probability tensor contains either `inf`, `nan` or element < 0",
        ));
    }
    if weights.iter().all(|weight| *weight == 0.0) {
        return Err(Error::config(
            "invalid multinomial distribution (sum of probabilities <= 0)",
        ));
    }
    Ok(())
}

/// Turns `items`, which must be ascending from 0, into `torch.randperm(items.len())`. Only the first `keep` of the result are
/// certain; the generator moves as for all of it. `go_on` is asked every few milliseconds; when it says no, the rest is left
/// undone and the answer is false.
pub(crate) fn permute<T: Place>(
    generator: &mut Mt19937,
    items: &mut [T],
    keep: usize,
    go_on: &mut dyn FnMut() -> bool,
) -> bool {
    if (items.len() as u64) < LARGE {
        permute_small(generator, items, keep, go_on)
    } else {
        permute_large(generator, items, go_on)
    }
}

/// The positions `from..to` of `torch.randperm(n)`, sooner and in less memory than all of it where that can be. The generator moves as for
/// all of it. `go_on` is asked as by [`permute`]; `None` when it says no.
pub(crate) fn part_of_permutation(
    generator: &mut Mt19937,
    n: u32,
    from: u32,
    to: u32,
    go_on: &mut dyn FnMut() -> bool,
) -> Option<Vec<u32>> {
    let to = to.min(n);
    if from >= to {
        skip_permutation(generator, n.into());
        return Some(Vec::new());
    }
    if u64::from(n) < LARGE {
        // Few of the swaps before matter for few positions, or for the last ones.
        let found = if to - from <= n / 64 && to < n {
            piece(generator, n, from, to, go_on)
        } else if to == n && from >= n - n / 4 {
            tail(generator, n, from, go_on)
        } else {
            Err(Stopped::Full)
        };
        match found {
            Ok(items) => return Some(items),
            Err(Stopped::Told) => return None,
            Err(Stopped::Full) => {}
        }
    }
    let mut items = vec_in_large_pages(n as usize);
    items.extend(0..n);
    if !permute(generator, &mut items, to as usize, go_on) {
        return None;
    }
    items.truncate(to as usize);
    items.drain(..from as usize);
    Some(items)
}

/// Moves the generator as `torch.randperm(n)` does.
pub(crate) fn skip_permutation(generator: &mut Mt19937, n: u64) {
    generator.skip(if n < LARGE { n.saturating_sub(1) } else { 2 * n });
}

/// What a permutation can be held in.
pub(crate) trait Place: Copy {
    fn of(index: usize) -> Self;
}

impl Place for u32 {
    fn of(index: usize) -> Self {
        self::index(index)
    }
}

impl Place for i64 {
    fn of(index: usize) -> Self {
        i64::try_from(index).unwrap_or(i64::MAX)
    }
}

impl Place for usize {
    fn of(index: usize) -> Self {
        index
    }
}

pub(super) fn permute_small<T: Place>(
    generator: &mut Mt19937,
    items: &mut [T],
    keep: usize,
    go_on: &mut dyn FnMut() -> bool,
) -> bool {
    let n = items.len();
    let swaps = n.saturating_sub(1);
    let wanted = swaps.min(keep);
    let mut draws = [0_u32; BLOCK];
    let mut at = 0;
    while at < wanted {
        let block = BLOCK.min(wanted - at);
        let draws = &mut draws[..block];
        generator.fill(draws);
        remainders(draws, index(n - at));
        for (i, draw) in (at..).zip(draws.iter()) {
            ahead(items, i + *draw as usize);
        }
        for (i, draw) in (at..).zip(draws.iter()) {
            items.swap(i, i + *draw as usize);
        }
        at += block;
        if at.is_multiple_of(ASK) && !go_on() {
            return false;
        }
    }
    generator.skip((swaps - wanted) as u64);
    true
}

/// Torch's way for very many elements: inside-out, with 64 bits for each.
fn permute_large<T: Place>(generator: &mut Mt19937, items: &mut [T], go_on: &mut dyn FnMut() -> bool) -> bool {
    let n = items.len();
    let mut draws = [0_usize; BLOCK];
    let mut at = 0;
    while at < n {
        let block = BLOCK.min(n - at);
        let draws = &mut draws[..block];
        for (i, draw) in (at..).zip(draws.iter_mut()) {
            *draw = usize::try_from(generator.u64() % (i as u64 + 1)).unwrap_or(i);
            ahead(items, *draw);
        }
        for (i, draw) in (at..).zip(draws.iter()) {
            items[i] = items[*draw];
            items[*draw] = T::of(i);
        }
        at += block;
        if at.is_multiple_of(ASK) && !go_on() {
            return false;
        }
    }
    true
}

#[cfg(test)]
#[path = "torch_tests.rs"]
mod tests;
