//! A whole order at once, in as little memory as it can be held.

use std::fmt;
use std::sync::OnceLock;

use feedrate_shm::vec_in_large_pages;

use crate::error::Error;
use crate::random::{Mt19937, Permutation, Place, part_of_permutation, permute, skip_permutation};

/// An immutable order of sample indices that can be asked for any position.
///
/// Torch's random orders take 4 bytes a sample (8 from 2³² samples on), also at their peak while they are made, and for who goes on in
/// the middle of an epoch what is left of it; sequential and keyed orders take nothing.
///
/// ```
/// use feedrate::random::Mt19937;
/// use feedrate::sampler::Order;
///
/// let mut generator = Mt19937::new(0);
/// let order = Order::random(10, &mut generator, false, 10)?;
/// assert_eq!(order.iter().collect::<Vec<_>>(), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
/// assert_eq!(order.at(3), Some(5));
/// # Ok::<(), feedrate::Error>(())
/// ```
pub struct Order(Held);

enum Held {
    Range(u64),
    Keyed(Permutation),
    Narrow(Vec<u32>),
    Wide(Vec<i64>),
    Late(Box<Late>),
}

/// A permutation that is made in parts, for who begins at `from`: of long ones first a short part, which takes a fraction of the time.
struct Late {
    len: u32,
    from: u32,
    items: Vec<u32>,
    /// Before it was drawn, to make the other parts if they are asked for.
    before: Mt19937,
    /// Behind `items`, where that is the end of it.
    rest: OnceLock<Vec<u32>>,
    /// All of it.
    whole: OnceLock<Vec<u32>>,
}

/// So many positions are made first: some batches ahead of many workers.
const FIRST: u32 = 1 << 16;

impl Late {
    fn draw(len: u32, generator: &mut Mt19937, from: u32, go_on: &mut dyn FnMut() -> bool) -> Result<Self, Error> {
        let before = generator.clone();
        let to = if len / 64 >= FIRST && len - from > FIRST * 4 {
            from + FIRST
        } else {
            len
        };
        let items = part_of_permutation(generator, len, from, to, go_on).ok_or_else(interrupted)?;
        Ok(Self {
            len,
            from,
            items,
            before,
            rest: OnceLock::new(),
            whole: OnceLock::new(),
        })
    }

    /// Where the part behind the first one begins.
    fn behind(&self) -> u32 {
        self.from + index(self.items.len())
    }

    /// Whether the part behind is made without the whole, which takes as long if it is most of it.
    fn in_parts(&self) -> bool {
        self.behind() >= self.len - self.len / 4
    }

    fn make(&self, from: u32) -> Vec<u32> {
        part_of_permutation(&mut self.before.clone(), self.len, from, self.len, &mut || true).unwrap_or_default()
    }

    fn at(&self, position: u32) -> Option<u32> {
        if position >= self.len {
            return None;
        }
        let offset = position.checked_sub(self.from);
        if let Some(item) = offset.and_then(|offset| self.items.get(offset as usize)) {
            return Some(*item);
        }
        match position.checked_sub(self.behind()) {
            Some(offset) if self.in_parts() => self.rest.get_or_init(|| self.make(self.behind())).get(offset as usize),
            _ => self.whole.get_or_init(|| self.make(0)).get(position as usize),
        }
        .copied()
    }

    fn is_made(&self, position: u32) -> bool {
        if (self.from..self.behind()).contains(&position) || position >= self.len {
            true
        } else if position > self.from && self.in_parts() {
            self.rest.get().is_some()
        } else {
            self.whole.get().is_some()
        }
    }

    fn bytes(&self) -> usize {
        let more = [&self.rest, &self.whole].map(|part| part.get().map_or(0, |items| size_of_val(items.as_slice())));
        size_of_val(self) + size_of_val(self.items.as_slice()) + more.iter().sum::<usize>()
    }
}

/// From so many samples on, 4 bytes do not hold an index.
const WIDE: u64 = 1 << 32;

impl Order {
    /// 0, 1, 2, … below `len`, at most 2⁶³.
    pub fn sequential(len: u64) -> Result<Self, Error> {
        if len > 1 << 63 {
            return Err(Error::config(format!(
                "an order of {len} samples: at most 2^63 are possible"
            )));
        }
        Ok(Self(Held::Range(len)))
    }

    /// The [`Permutation`] of `0..len` by seed and epoch.
    pub fn keyed(len: u64, seed: u64, epoch: u64) -> Result<Self, Error> {
        Permutation::new(len, seed, epoch).map(|order| Self(Held::Keyed(order)))
    }

    /// These indices.
    pub fn of(indices: Vec<i64>) -> Self {
        Self(Held::Wide(indices))
    }

    /// These indices.
    pub fn of_u32(indices: Vec<u32>) -> Self {
        Self(Held::Narrow(indices))
    }

    /// One epoch of `torch.utils.data.RandomSampler`: `count` indices below `len`. The generator is left where torch's sampler
    /// leaves it: without replacement that is one more permutation further, also when nothing of it was used.
    pub fn random(len: u64, generator: &mut Mt19937, replacement: bool, count: u64) -> Result<Self, Error> {
        Self::random_while(len, generator, replacement, count, &mut || true)
    }

    /// As [`random`](Order::random), asking every few milliseconds whether to go on; an error when told not to.
    pub fn random_while(
        len: u64,
        generator: &mut Mt19937,
        replacement: bool,
        count: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Self, Error> {
        if len == 0 && count > 0 {
            return Err(Error::config(format!(
                "{count} indices were asked for, and there are no samples to draw from"
            )));
        }
        if len > WIDE {
            draw(len, generator, replacement, count, u64::cast_signed, go_on).map(|items| Self(Held::Wide(items)))
        } else {
            draw(len, generator, replacement, count, narrow, go_on).map(|items| Self(Held::Narrow(items)))
        }
    }

    /// [`random_while`](Order::random_while) for who wants the positions from `from` on. Without replacement it is then made
    /// in parts, when they are asked for: the first one soon, the one behind it at about the cost of all, and the one before `from`, which
    /// nobody may want, like a whole order.
    pub fn random_from(
        len: u64,
        generator: &mut Mt19937,
        replacement: bool,
        count: u64,
        from: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Self, Error> {
        if replacement || count != len || from == 0 {
            return Self::random_while(len, generator, replacement, count, go_on);
        }
        let order = Self::randperm_from(len, generator, from, go_on)?;
        skip_permutation(generator, len);
        Ok(order)
    }

    /// `torch.randperm(len)` for who wants the positions from `from` on, as [`random_from`](Order::random_from) is.
    pub fn randperm_from(
        len: u64,
        generator: &mut Mt19937,
        from: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Self, Error> {
        let (Ok(n), true) = (u32::try_from(len), from > 0) else {
            return Self::randperm_while(len, generator, go_on);
        };
        let from = u32::try_from(from.min(len)).unwrap_or(n);
        let late = Late::draw(n, generator, from, go_on)?;
        Ok(Self(Held::Late(Box::new(late))))
    }

    /// `torch.randperm(len)`.
    pub fn randperm(len: u64, generator: &mut Mt19937) -> Result<Self, Error> {
        Self::randperm_while(len, generator, &mut || true)
    }

    /// As [`randperm`](Order::randperm), asking every few milliseconds whether to go on; an error when told not to.
    pub fn randperm_while(len: u64, generator: &mut Mt19937, go_on: &mut dyn FnMut() -> bool) -> Result<Self, Error> {
        Self::part_of_randperm(len, len, generator, go_on)
    }

    /// The first `keep` of `torch.randperm(len)`; the generator moves as for all of it.
    pub(super) fn first_of_randperm(len: u64, keep: u64, generator: &mut Mt19937) -> Result<Self, Error> {
        if keep == 0 {
            skip_permutation(generator, len);
            return Ok(Self::default());
        }
        Self::part_of_randperm(len, keep, generator, &mut || true)
    }

    fn part_of_randperm(
        len: u64,
        keep: u64,
        generator: &mut Mt19937,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Self, Error> {
        if len > WIDE {
            let mut items = vec_in_large_pages(memory(len)?);
            append(&mut items, len, keep, generator, u64::cast_signed, go_on)?;
            Ok(Self(Held::Wide(items)))
        } else {
            let mut items = vec_in_large_pages(memory(len)?);
            append(&mut items, len, keep, generator, narrow, go_on)?;
            Ok(Self(Held::Narrow(items)))
        }
    }

    /// The indices of `torch.utils.data.DistributedSampler` before it pads, cuts and gives each rank its share:
    /// `seed_plus_epoch` is what it seeds its generator with.
    pub fn distributed(len: u64, seed_plus_epoch: u64, shuffle: bool) -> Result<Self, Error> {
        Self::distributed_from(len, seed_plus_epoch, shuffle, 0)
    }

    /// The same for who wants the positions from `from` on, as [`random_from`](Order::random_from) is.
    pub fn distributed_from(len: u64, seed_plus_epoch: u64, shuffle: bool, from: u64) -> Result<Self, Error> {
        if shuffle {
            Self::randperm_from(len, &mut Mt19937::new(seed_plus_epoch), from, &mut || true)
        } else {
            Self::sequential(len)
        }
    }

    /// How many indices there are.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Held::Range(len) => *len,
            Held::Keyed(order) => order.len(),
            Held::Narrow(items) => items.len() as u64,
            Held::Wide(items) => items.len() as u64,
            Held::Late(late) => late.len.into(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index at a position; `None` from the length on. Negative only where one was given to [`of`](Order::of).
    pub fn at(&self, position: u64) -> Option<i64> {
        match &self.0 {
            Held::Range(len) => (position < *len).then_some(position.cast_signed()),
            Held::Keyed(order) => order.at(position).map(u64::cast_signed),
            Held::Narrow(items) => items.get(usize::try_from(position).ok()?).map(|i| i64::from(*i)),
            Held::Wide(items) => items.get(usize::try_from(position).ok()?).copied(),
            Held::Late(late) => late.at(u32::try_from(position).ok()?).map(i64::from),
        }
    }

    /// Whether [`at`](Order::at) has the index at a position at hand. Where it has not, for an order that was made from a later position
    /// on, it makes the rest, once.
    pub fn is_made(&self, position: u64) -> bool {
        match &self.0 {
            Held::Late(late) => u32::try_from(position).map_or(true, |position| late.is_made(position)),
            _ => true,
        }
    }

    /// The position of an index in a sequential or keyed order; for others, which would have to be searched, an error.
    pub fn position_of(&self, index: i64) -> Result<Option<u64>, Error> {
        let index = u64::try_from(index).unwrap_or(u64::MAX);
        match &self.0 {
            Held::Range(len) => Ok((index < *len).then_some(index)),
            Held::Keyed(order) => Ok(order.position_of(index)),
            Held::Narrow(_) | Held::Wide(_) | Held::Late(_) => Err(Error::config(
                "positions can be looked up in sequential and keyed orders only, and this one is a list of indices: \
                 shuffle by a keyed permutation, or search",
            )),
        }
    }

    /// All indices from the first on.
    pub fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        (0..self.len()).filter_map(|position| self.at(position))
    }

    /// Bytes that it takes on the heap, or nearly so.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Held::Range(_) | Held::Keyed(_) => 0,
            Held::Narrow(items) => size_of_val(items.as_slice()),
            Held::Wide(items) => size_of_val(items.as_slice()),
            Held::Late(late) => late.bytes(),
        }
    }
}

impl Default for Order {
    /// No indices.
    fn default() -> Self {
        Self(Held::Range(0))
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Held::Range(_) => "sequential",
            Held::Keyed(_) => "keyed",
            Held::Narrow(_) => "u32",
            Held::Wide(_) => "i64",
            Held::Late(_) => "u32, from a position on",
        };
        f.debug_struct("Order")
            .field("kind", &kind)
            .field("len", &self.len())
            .finish()
    }
}

/// As a length in memory.
fn memory(count: u64) -> Result<usize, Error> {
    match usize::try_from(count) {
        // 8 bytes each must be addressable.
        Ok(count) if count <= isize::MAX.cast_unsigned() / 8 => Ok(count),
        _ => Err(Error::config(format!(
            "an order of {count} samples does not fit in memory: a keyed permutation of them needs none"
        ))),
    }
}

/// Of a length below 2³².
fn index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_possible_truncation, reason = "only of indices below 2³²")]
fn narrow(index: u64) -> u32 {
    index as u32
}

/// The draws of [`Order::random`]. Of an empty range nothing is drawn.
fn draw<T: Place>(
    len: u64,
    generator: &mut Mt19937,
    replacement: bool,
    count: u64,
    make: fn(u64) -> T,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<T>, Error> {
    const ASK: u64 = 1 << 20;
    if len == 0 {
        return Ok(Vec::new());
    }
    if replacement {
        let mut items = vec_in_large_pages(memory(count)?);
        for drawn in 0..count {
            if drawn % ASK == ASK - 1 && !go_on() {
                return Err(interrupted());
            }
            items.push(make(generator.below(len)));
        }
        return Ok(items);
    }
    let (full, rest) = (count / len, count % len);
    let mut items = vec_in_large_pages(memory((full + u64::from(rest > 0)).saturating_mul(len))?);
    for _ in 0..full {
        append(&mut items, len, len, generator, make, go_on)?;
    }
    if rest == 0 {
        skip_permutation(generator, len);
    } else {
        append(&mut items, len, rest, generator, make, go_on)?;
        items.shrink_to_fit();
    }
    Ok(items)
}

/// Appends the first `keep` of a permutation of `0..len`.
fn append<T: Place>(
    items: &mut Vec<T>,
    len: u64,
    keep: u64,
    generator: &mut Mt19937,
    make: fn(u64) -> T,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), Error> {
    let (start, keep) = (items.len(), memory(keep)?);
    items.extend((0..len).map(make));
    if !permute(generator, &mut items[start..], keep, go_on) {
        return Err(interrupted());
    }
    items.truncate(start + keep);
    Ok(())
}

fn interrupted() -> Error {
    Error::config("the order is not complete: it was told not to go on")
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
