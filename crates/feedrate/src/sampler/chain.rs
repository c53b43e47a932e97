//! Orders one after the other.

use std::fmt;

use super::{Sampler, must_be};
use crate::error::{BoxError, Error};
use crate::state::State;

/// Another order several times in one epoch, shuffled anew each time where it shuffles: repetition `i` of `n` in epoch `e` is its
/// epoch `e * n + i`.
///
/// ```
/// use feedrate::sampler::{Repeat, Sampler, Sequential};
///
/// let mut sampler = Repeat::new(Sequential::new(2), 3)?;
/// sampler.begin(0)?;
/// let order: Vec<_> = std::iter::from_fn(|| sampler.next().transpose()).collect::<Result<_, _>>()?;
/// assert_eq!(order, [0, 1, 0, 1, 0, 1]);
/// # Ok::<(), feedrate::BoxError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Repeat<S> {
    inner: S,
    times: u64,
    epoch: u64,
    round: u64,
    /// The inner sampler has begun this round.
    begun: bool,
}

impl<S: Sampler> Repeat<S> {
    /// `times` times, at least once.
    pub fn new(inner: S, times: u64) -> Result<Self, Error> {
        if times == 0 {
            return Err(Error::config("an order is to be repeated 0 times: give at least 1"));
        }
        Ok(Self {
            inner,
            times,
            epoch: 0,
            round: 0,
            begun: false,
        })
    }

    /// Begins the next round of the inner sampler if there is one.
    fn ready(&mut self) -> Result<bool, BoxError> {
        if self.round >= self.times {
            return Ok(false);
        }
        if !self.begun {
            self.inner
                .begin(self.epoch.wrapping_mul(self.times).wrapping_add(self.round))?;
            self.begun = true;
        }
        Ok(true)
    }

    fn end_round(&mut self) {
        // An order without items need not be asked as often.
        self.round = if self.inner.len() == Some(0) {
            self.times
        } else {
            self.round + 1
        };
        self.begun = false;
    }
}

impl<S: Sampler> Sampler for Repeat<S> {
    type Item = S::Item;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        (self.epoch, self.round, self.begun) = (epoch, 0, false);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<S::Item>, BoxError> {
        while self.ready()? {
            if let Some(item) = self.inner.next()? {
                return Ok(Some(item));
            }
            self.end_round();
        }
        Ok(None)
    }

    fn len(&self) -> Option<usize> {
        self.inner.len()?.checked_mul(usize::try_from(self.times).ok()?)
    }

    fn state(&self) -> Option<State> {
        Some(State::map([
            ("sampler", "repeat".into()),
            ("times", self.times.into()),
            ("epoch", self.epoch.into()),
            ("round", self.round.into()),
            ("begun", self.begun.into()),
            ("of", self.inner.state()?),
        ]))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "repeat")?;
        state.must_be("times", self.times, "repetitions", "repeat as often")?;
        let (epoch, round) = (state.number("epoch")?, state.number("round")?);
        self.inner.restore(state.entry("of")?)?;
        (self.epoch, self.round) = (epoch, round);
        self.begun = state.entry("begun")? == &State::Bool(true);
        Ok(())
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        let mut skipped = 0;
        while skipped < count && self.ready()? {
            let passed = self.inner.skip(count - skipped)?;
            skipped += passed;
            if skipped < count {
                self.end_round();
            }
        }
        Ok(skipped)
    }
}

/// Several orders one after the other, each with what is added to its indices: for datasets that were joined.
///
/// ```
/// use feedrate::sampler::{Concat, Sampler, Sequential};
///
/// let mut sampler = Concat::new().then(0, Sequential::new(2)).then(100, Sequential::new(2));
/// sampler.begin(0)?;
/// let order: Vec<_> = std::iter::from_fn(|| sampler.next().transpose()).collect::<Result<_, _>>()?;
/// assert_eq!(order, [0, 1, 100, 101]);
/// # Ok::<(), feedrate::BoxError>(())
/// ```
#[derive(Default)]
pub struct Concat {
    parts: Vec<(usize, Box<dyn Sampler<Item = usize>>)>,
    current: usize,
}

impl Concat {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Followed by this one, with `offset` added to its indices.
    #[must_use]
    pub fn then(mut self, offset: usize, sampler: impl Sampler<Item = usize>) -> Self {
        self.parts.push((offset, Box::new(sampler)));
        self
    }
}

impl fmt::Debug for Concat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concat")
            .field("parts", &self.parts.len())
            .field("current", &self.current)
            .finish()
    }
}

impl Sampler for Concat {
    type Item = usize;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        self.current = 0;
        self.parts.iter_mut().try_for_each(|(_, part)| part.begin(epoch))
    }

    fn next(&mut self) -> Result<Option<usize>, BoxError> {
        while let Some((offset, part)) = self.parts.get_mut(self.current) {
            if let Some(index) = part.next()? {
                return Ok(Some(*offset + index));
            }
            self.current += 1;
        }
        Ok(None)
    }

    fn len(&self) -> Option<usize> {
        self.parts.iter().map(|(_, part)| part.len()).sum()
    }

    fn state(&self) -> Option<State> {
        let states: Option<Vec<State>> = self.parts.iter().map(|(_, part)| part.state()).collect();
        Some(State::map([
            ("sampler", "concat".into()),
            ("current", self.current.into()),
            ("parts", self.parts.len().into()),
            ("of", State::List(states?)),
        ]))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "concat")?;
        state.must_be("parts", self.parts.len(), "orders that were joined", "join the same")?;
        let current = state.count("current")?;
        for ((_, part), state) in self.parts.iter_mut().zip(state.list("of")?) {
            part.restore(state)?;
        }
        self.current = current;
        Ok(())
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        let mut skipped = 0;
        while skipped < count
            && let Some((_, part)) = self.parts.get_mut(self.current)
        {
            skipped += part.skip(count - skipped)?;
            self.current += usize::from(skipped < count);
        }
        Ok(skipped)
    }
}
