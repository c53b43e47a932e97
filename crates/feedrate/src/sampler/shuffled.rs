//! A shuffle that is computed and not stored.

use super::{Sampler, must_be, must_have, skip_to};
use crate::error::{BoxError, Error};
use crate::random::Permutation;
use crate::state::State;

/// All indices in an order of (seed, epoch), by a keyed [`Permutation`]: no memory, whatever the number of samples, and no time to
/// begin an epoch or to resume one in the middle.
///
/// ```
/// use feedrate::sampler::{Sampler, Shuffled};
///
/// let mut sampler = Shuffled::new(10_000_000_000, 7)?;
/// sampler.begin(3)?;
/// sampler.skip(9_000_000_000)?;
/// assert!(sampler.next()?.is_some());
/// # Ok::<(), feedrate::BoxError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Shuffled {
    samples: usize,
    seed: u64,
    epoch: u64,
    order: Permutation,
    next: usize,
}

impl Shuffled {
    /// The indices below `samples`, at most 2⁶³.
    pub fn new(samples: usize, seed: u64) -> Result<Self, Error> {
        Ok(Self {
            samples,
            seed,
            epoch: 0,
            order: Permutation::new(samples as u64, seed, 0)?,
            next: 0,
        })
    }
}

impl Sampler for Shuffled {
    type Item = usize;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        self.order = Permutation::new(self.samples as u64, self.seed, epoch)?;
        (self.epoch, self.next) = (epoch, 0);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<usize>, BoxError> {
        let Some(index) = self.order.at(self.next as u64) else {
            return Ok(None);
        };
        self.next += 1;
        Ok(Some(usize::try_from(index)?))
    }

    fn len(&self) -> Option<usize> {
        Some(self.samples)
    }

    fn state(&self) -> Option<State> {
        Some(State::map([
            ("sampler", "shuffled".into()),
            ("samples", self.samples.into()),
            ("seed", self.seed.into()),
            ("epoch", self.epoch.into()),
            ("position", self.next.into()),
        ]))
    }

    /// The seed of the state is taken up, whatever this one had.
    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "shuffled")?;
        must_have(state, self.samples)?;
        let (seed, epoch) = (state.number("seed")?, state.number("epoch")?);
        let position = super::restored_position(state, self.samples)?;
        self.order = Permutation::new(self.samples as u64, seed, epoch)?;
        (self.seed, self.epoch, self.next) = (seed, epoch, position);
        Ok(())
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        Ok(skip_to(&mut self.next, self.samples, count))
    }
}
