//! Batches of bounded size.

use std::fmt;

use super::batch::indices;
use super::bucket::Length;
use super::{Sampler, must_be};
use crate::error::{BoxError, Error};
use crate::state::State;

/// What was given of a budget in one epoch, in the unit of the lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Padding {
    /// Lengths of all samples together.
    pub used: u64,
    /// What pads each sample to the longest of its batch, together.
    pub padded: u64,
}

/// As many indices of another sampler for each batch as a budget of tokens (pixels, bytes) allows, where each sample is padded to the
/// longest of its batch: samples × longest is at most the budget.
///
/// ```
/// use feedrate::sampler::{Budget, Sampler, Sequential};
///
/// let lengths = [3, 4, 2, 9, 1];
/// let mut sampler = Budget::new(Sequential::new(5), move |i| lengths[i], 10)?;
/// sampler.begin(0)?;
/// let batches: Vec<_> = std::iter::from_fn(|| sampler.next().transpose()).collect::<Result<_, _>>()?;
/// assert_eq!(batches, [vec![0, 1], vec![2], vec![3], vec![4]]);
/// assert_eq!((sampler.padding().used, sampler.padding().padded), (19, 1));
/// # Ok::<(), feedrate::BoxError>(())
/// ```
pub struct Budget<S> {
    inner: S,
    length: Length,
    limit: usize,
    most: Option<usize>,
    /// The batch that is being filled, its longest sample and the sum of lengths.
    gathered: Vec<usize>,
    longest: usize,
    sum: usize,
    padding: Padding,
    ended: bool,
}

/// A single sample is longer than a batch may be.
#[derive(Debug)]
struct TooLong {
    index: usize,
    length: usize,
    limit: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, length, limit } = self;
        write!(
            f,
            "sample {index} has length {length}, and a batch at most {limit}: raise the budget, or leave it out"
        )
    }
}

impl std::error::Error for TooLong {}

impl<S: Sampler<Item = usize>> Budget<S> {
    /// At most `budget` for each batch, padding included. A single sample that is longer is an error when its turn comes; asked
    /// again, the sampler goes on behind it.
    pub fn new(inner: S, length: impl Fn(usize) -> usize + Send + 'static, budget: usize) -> Result<Self, Error> {
        if budget == 0 {
            return Err(Error::config(
                "the budget of a batch is 0: give at least the longest length",
            ));
        }
        Ok(Self {
            inner,
            length: Box::new(length),
            limit: budget,
            most: None,
            gathered: Vec::new(),
            longest: 0,
            sum: 0,
            padding: Padding::default(),
            ended: false,
        })
    }

    /// At most so many samples in a batch, at least 1, whatever they cost.
    pub fn most_samples(mut self, most: usize) -> Result<Self, Error> {
        if most == 0 {
            return Err(Error::config("batches of at most 0 samples: give at least 1"));
        }
        self.most = Some(most);
        Ok(self)
    }

    /// What was given in this epoch so far.
    pub fn padding(&self) -> Padding {
        self.padding
    }

    /// Ends the batch at hand.
    fn finish(&mut self) -> Vec<usize> {
        self.padding.used += self.sum as u64;
        self.padding.padded += (self.gathered.len() * self.longest - self.sum) as u64;
        (self.longest, self.sum) = (0, 0);
        std::mem::take(&mut self.gathered)
    }

    fn gather(&mut self, index: usize, length: usize) {
        self.gathered.push(index);
        self.longest = self.longest.max(length);
        self.sum += length;
    }
}

impl<S: Sampler<Item = usize>> Sampler for Budget<S> {
    type Item = Vec<usize>;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        self.gathered.clear();
        (self.longest, self.sum, self.ended) = (0, 0, false);
        self.padding = Padding::default();
        self.inner.begin(epoch)
    }

    fn next(&mut self) -> Result<Option<Vec<usize>>, BoxError> {
        while !self.ended {
            let Some(index) = self.inner.next()? else {
                self.ended = true;
                break;
            };
            let length = (self.length)(index);
            if length > self.limit {
                let limit = self.limit;
                return Err(Box::new(TooLong { index, length, limit }));
            }
            let samples = self.gathered.len() + 1;
            let cost = samples.saturating_mul(self.longest.max(length));
            if cost <= self.limit && self.most.is_none_or(|most| samples <= most) {
                self.gather(index, length);
                continue;
            }
            let batch = self.finish();
            self.gather(index, length);
            return Ok(Some(batch));
        }
        Ok((!self.gathered.is_empty()).then(|| self.finish()))
    }

    /// Steps over samples that are too long, as who goes on behind their errors does.
    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        let mut skipped = 0;
        while skipped < count {
            match self.next() {
                Ok(Some(_)) => skipped += 1,
                Ok(None) => break,
                Err(error) if error.is::<TooLong>() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(skipped)
    }

    /// Unknown before the lengths are.
    fn len(&self) -> Option<usize> {
        None
    }

    fn state(&self) -> Option<State> {
        Some(State::map([
            ("sampler", "budget".into()),
            ("budget", self.limit.into()),
            ("most", self.most.into()),
            ("gathered", self.gathered.clone().into()),
            ("used", self.padding.used.into()),
            ("padded", self.padding.padded.into()),
            ("ended", self.ended.into()),
            ("of", self.inner.state()?),
        ]))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "budget")?;
        state.must_be("budget", self.limit, "budget of a batch", "give the same")?;
        state.must_be("most", self.most, "samples in a batch at most", "give the same")?;
        let gathered = indices(state, "gathered")?;
        let padding = Padding {
            used: state.number("used")?,
            padded: state.number("padded")?,
        };
        self.inner.restore(state.entry("of")?)?;
        self.gathered.clear();
        (self.longest, self.sum) = (0, 0);
        for index in gathered {
            let length = (self.length)(index);
            self.gather(index, length);
        }
        self.padding = padding;
        self.ended = state.entry("ended")? == &State::Bool(true);
        Ok(())
    }
}

impl<S: fmt::Debug> fmt::Debug for Budget<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("inner", &self.inner)
            .field("budget", &self.limit)
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}
