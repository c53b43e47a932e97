//! Cuts an order into batches.

use super::{Sampler, must_be};
use crate::error::{BoxError, Error};
use crate::state::State;

/// Batches of `batch_size` indices of another sampler; the last one may be shorter, or left out.
#[derive(Debug, Clone)]
pub struct Batches<S> {
    inner: S,
    batch_size: usize,
    drop_last: bool,
    /// Drawn for a batch that an error of the inner sampler interrupted.
    begun: Vec<usize>,
}

impl<S: Sampler<Item = usize>> Batches<S> {
    /// Batches of `batch_size`, at least 1; `drop_last` leaves out a last one that is shorter.
    pub fn new(inner: S, batch_size: usize, drop_last: bool) -> Result<Self, Error> {
        if batch_size == 0 {
            return Err(Error::config("batch_size is 0: give at least 1"));
        }
        Ok(Self {
            inner,
            batch_size,
            drop_last,
            begun: Vec::new(),
        })
    }

    /// Passes over `count` samples, of whichever batches, and returns how many there were.
    pub fn skip_samples(&mut self, count: usize) -> Result<usize, BoxError> {
        self.inner.skip(count)
    }
}

impl<S: Sampler<Item = usize>> Sampler for Batches<S> {
    type Item = Vec<usize>;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        self.begun.clear();
        self.inner.begin(epoch)
    }

    fn next(&mut self) -> Result<Option<Vec<usize>>, BoxError> {
        while self.begun.len() < self.batch_size {
            match self.inner.next()? {
                Some(index) => self.begun.push(index),
                None if self.begun.is_empty() || self.drop_last => return Ok(None),
                None => break,
            }
        }
        let next = Vec::with_capacity(self.batch_size.min(1 << 16));
        Ok(Some(std::mem::replace(&mut self.begun, next)))
    }

    fn len(&self) -> Option<usize> {
        let samples = self.inner.len()?;
        Some(if self.drop_last {
            samples / self.batch_size
        } else {
            samples.div_ceil(self.batch_size)
        })
    }

    /// The batch size is not part of it: another one may go on with the rest.
    fn state(&self) -> Option<State> {
        Some(State::map([
            ("sampler", "batches".into()),
            ("begun", self.begun.clone().into()),
            ("of", self.inner.state()?),
        ]))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "batches")?;
        self.begun = indices(state, "begun")?;
        self.inner.restore(state.entry("of")?)
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        if count == 0 {
            return Ok(0);
        }
        let wanted = count.saturating_mul(self.batch_size).saturating_sub(self.begun.len());
        let skipped = self.begun.len() + self.inner.skip(wanted)?;
        self.begun.clear();
        Ok(if self.drop_last {
            skipped / self.batch_size
        } else {
            skipped.div_ceil(self.batch_size)
        })
    }
}

/// A list of indices in a state.
pub(super) fn indices(state: &State, key: &str) -> Result<Vec<usize>, Error> {
    let index = |state: &State| match state {
        State::Number(index) => usize::try_from(*index).ok(),
        _ => None,
    };
    let indices: Option<Vec<usize>> = state.list(key)?.iter().map(index).collect();
    indices.ok_or_else(|| Error::state(format!("`{key}` must be a list of indices")))
}
