//! One rank's share of any order.

use super::batch::indices;
use super::{Sampler, must_be};
use crate::error::{BoxError, Error};
use crate::state::State;

/// What becomes of the last indices of an order that are too few for all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remainder {
    /// The first ones are repeated, so that all ranks have the same number. Some samples count twice.
    #[default]
    Pad,
    /// They are left out: all ranks have the same number.
    Drop,
    /// They go to the first ranks: every sample comes once, and the last ranks have one less. Ranks that wait for each other at each
    /// step must then agree when to stop.
    Exact,
}

/// Every `world`-th index of another sampler, from the `rank`-th on: with the same sampler and seed on each of them, the ranks
/// share one order.
///
/// ```
/// use feedrate::random::Mt19937;
/// use feedrate::sampler::{Ranks, Remainder, Sampler, Weighted};
///
/// let share = |rank| {
///     let weighted = Weighted::new([1.0, 5.0, 2.0], 6, true, Mt19937::new(0))?;
///     let mut sampler = Ranks::new(weighted, rank, 2, Remainder::Pad)?;
///     sampler.begin(0)?;
///     std::iter::from_fn(move || sampler.next().transpose()).collect::<Result<Vec<_>, _>>()
/// };
/// assert_eq!((share(0)?.len(), share(1)?.len()), (3, 3));
/// # Ok::<(), feedrate::BoxError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Ranks<S> {
    inner: S,
    rank: usize,
    world: usize,
    remainder: Remainder,
    /// The first indices of the epoch, for padding: at most one for each rank.
    first: Vec<usize>,
    /// The round that is being dealt out, as far as it was drawn before an error.
    round: Vec<usize>,
    ended: bool,
    /// The number of ranks of a state, until its epoch is gone on with.
    before: Option<usize>,
}

impl<S: Sampler<Item = usize>> Ranks<S> {
    /// The share of `rank`, below `world`. The sampler must give the same on all ranks.
    pub fn new(inner: S, rank: usize, world: usize, remainder: Remainder) -> Result<Self, Error> {
        if rank >= world {
            return Err(Error::config(format!(
                "rank {rank} in a world of {world}: ranks count from 0, so it must be below"
            )));
        }
        Ok(Self {
            inner,
            rank,
            world,
            remainder,
            first: Vec::new(),
            round: Vec::new(),
            ended: false,
            before: None,
        })
    }

    /// What this rank gets of a round that is not full.
    fn last(&self) -> Option<usize> {
        match self.remainder {
            Remainder::Drop => None,
            Remainder::Exact => self.round.get(self.rank).copied(),
            Remainder::Pad if self.round.is_empty() => None,
            Remainder::Pad => {
                let padding = self.rank.checked_sub(self.round.len());
                padding.map_or_else(
                    || self.round.get(self.rank).copied(),
                    |place| self.first.get(place % self.first.len()).copied(),
                )
            }
        }
    }
}

impl<S: Sampler<Item = usize>> Sampler for Ranks<S> {
    type Item = usize;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        self.first.clear();
        self.round.clear();
        self.ended = false;
        self.inner.begin(epoch)
    }

    fn next(&mut self) -> Result<Option<usize>, BoxError> {
        self.before = None;
        if self.ended {
            return Ok(None);
        }
        while self.round.len() < self.world {
            let Some(index) = self.inner.next()? else {
                self.ended = true;
                return Ok(self.last());
            };
            self.round.push(index);
            if self.first.len() < self.world {
                self.first.push(index);
            }
        }
        let index = self.round[self.rank];
        self.round.clear();
        Ok(Some(index))
    }

    fn len(&self) -> Option<usize> {
        let all = self.inner.len()?;
        Some(match self.remainder {
            Remainder::Pad => all.div_ceil(self.world),
            Remainder::Drop => all / self.world,
            Remainder::Exact => all / self.world + usize::from(self.rank < all % self.world),
        })
    }

    /// Of all ranks: the position is that of the shared order, so any rank may take it up, in a world of another size too
    /// where nothing has been padded. A loader's state has the sampler as it was before the epoch, and is taken up in the middle of one by as
    /// many ranks only.
    fn state(&self) -> Option<State> {
        Some(State::map([
            ("sampler", "ranks".into()),
            ("first", self.first.clone().into()),
            ("round", self.round.clone().into()),
            ("ended", self.ended.into()),
            ("world", self.world.into()),
            ("of", self.inner.state()?),
        ]))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "ranks")?;
        let (first, round) = (indices(state, "first")?, indices(state, "round")?);
        // For padding, the first indices must be known for all ranks of a larger world too.
        let padding = self.remainder == Remainder::Pad && !first.is_empty() && first.len() < self.world;
        if padding || !round.is_empty() {
            let fix = "resume with the same number of ranks, with fewer, or without padding";
            state.must_be("world", self.world, "ranks", fix)?;
        }
        let before = state.count("world")?;
        self.inner.restore(state.entry("of")?)?;
        self.before = Some(before).filter(|before| *before != self.world);
        self.first = first;
        self.first.truncate(self.world);
        self.round = round;
        self.ended = state.entry("ended")? == &State::Bool(true);
        Ok(())
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        if count > 0
            && let Some(before) = self.before
        {
            // A loader counts what its rank was given from the start of the epoch on.
            return Err(Error::state(format!(
                "the state was saved by one of {before} ranks, in the middle of an epoch, and here are {}: resume with {before} ranks",
                self.world
            ))
            .into());
        }
        let mut skipped = 0;
        while skipped < count && (self.first.len() < self.world || !self.round.is_empty()) {
            if self.next()?.is_none() {
                return Ok(skipped);
            }
            skipped += 1;
        }
        let wanted = (count - skipped).saturating_mul(self.world);
        let passed = self.inner.skip(wanted)?;
        skipped += passed / self.world;
        if passed < wanted {
            self.ended = true;
            let rest = passed % self.world;
            skipped += usize::from(match self.remainder {
                Remainder::Pad => rest > 0,
                Remainder::Drop => false,
                Remainder::Exact => self.rank < rest,
            });
        }
        Ok(skipped)
    }
}
