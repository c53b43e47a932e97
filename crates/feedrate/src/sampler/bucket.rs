//! Batches of samples of like lengths.

use std::fmt;

use super::batch::indices;
use super::{Sampler, must_be};
use crate::error::{BoxError, Error};
use crate::state::State;

/// The length of a sample, by its index.
pub(super) type Length = Box<dyn Fn(usize) -> usize + Send>;

/// Gathers the indices of another sampler by the length of their samples, and gives a batch as soon as `batch_size` of like length
/// are together, so that padding them costs little.
///
/// At the end what is left is given from the shortest to the longest, each length by itself, or left out.
///
/// ```
/// use feedrate::sampler::{Buckets, Sampler, Sequential};
///
/// // Even samples are short, odd ones long.
/// let length = |i: usize| if i % 2 == 0 { 10 } else { 500 };
/// let mut sampler = Buckets::new(Sequential::new(5), length, [100], 2, false)?;
/// sampler.begin(0)?;
/// let batches: Vec<_> = std::iter::from_fn(|| sampler.next().transpose()).collect::<Result<_, _>>()?;
/// assert_eq!(batches, [vec![0, 2], vec![1, 3], vec![4]]);
/// # Ok::<(), feedrate::BoxError>(())
/// ```
pub struct Buckets<S> {
    inner: S,
    length: Length,
    bounds: Vec<usize>,
    batch_size: usize,
    drop_last: bool,
    /// What is gathered, by length.
    gathered: Vec<Vec<usize>>,
    ended: bool,
}

impl<S: Sampler<Item = usize>> Buckets<S> {
    /// Samples of at most `bounds[0]`, of more than that and at most `bounds[1]`, and so on, and of more than the last bound, are
    /// of like length. `bounds` must ascend; without any, all are. Batches have `batch_size` samples, at least 1.
    pub fn new(
        inner: S,
        length: impl Fn(usize) -> usize + Send + 'static,
        bounds: impl Into<Vec<usize>>,
        batch_size: usize,
        drop_last: bool,
    ) -> Result<Self, Error> {
        let bounds = bounds.into();
        if batch_size == 0 {
            return Err(Error::config("batch_size is 0: give at least 1"));
        }
        if let Some((low, high)) = bounds
            .windows(2)
            .find_map(|pair| Some((pair[0], pair[1])).filter(|(low, high)| low >= high))
        {
            return Err(Error::config(format!(
                "the bounds of lengths must ascend, and {low} is followed by {high}"
            )));
        }
        Ok(Self {
            inner,
            length: Box::new(length),
            gathered: vec![Vec::new(); bounds.len() + 1],
            bounds,
            batch_size,
            drop_last,
            ended: false,
        })
    }
}

impl<S: Sampler<Item = usize>> Sampler for Buckets<S> {
    type Item = Vec<usize>;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        self.gathered.iter_mut().for_each(Vec::clear);
        self.ended = false;
        self.inner.begin(epoch)
    }

    fn next(&mut self) -> Result<Option<Vec<usize>>, BoxError> {
        while !self.ended {
            let Some(index) = self.inner.next()? else {
                self.ended = true;
                break;
            };
            let length = (self.length)(index);
            let place = self.bounds.partition_point(|bound| *bound < length);
            let bucket = &mut self.gathered[place];
            bucket.push(index);
            if bucket.len() == self.batch_size {
                return Ok(Some(std::mem::take(bucket)));
            }
        }
        if self.drop_last {
            return Ok(None);
        }
        let left = self.gathered.iter_mut().find(|bucket| !bucket.is_empty());
        Ok(left.map(std::mem::take))
    }

    /// Unknown before the lengths are.
    fn len(&self) -> Option<usize> {
        None
    }

    fn state(&self) -> Option<State> {
        Some(State::map([
            ("sampler", "buckets".into()),
            ("bounds", self.bounds.clone().into()),
            ("batch_size", self.batch_size.into()),
            ("gathered", self.gathered.clone().into()),
            ("ended", self.ended.into()),
            ("of", self.inner.state()?),
        ]))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "buckets")?;
        state.must_be("bounds", self.bounds.clone(), "bounds of lengths", "give the same")?;
        state.must_be("batch_size", self.batch_size, "batch size", "give the same")?;
        let lists = state.list("gathered")?.iter();
        let lists = lists.map(|list| indices(&State::map([("gathered", list.clone())]), "gathered"));
        let lists: Vec<Vec<usize>> = lists.collect::<Result<_, _>>()?;
        if lists.len() != self.gathered.len() || lists.iter().any(|list| list.len() >= self.batch_size) {
            return Err(Error::state(
                "`gathered` does not belong to these bounds and this batch size",
            ));
        }
        self.inner.restore(state.entry("of")?)?;
        self.gathered = lists;
        self.ended = state.entry("ended")? == &State::Bool(true);
        Ok(())
    }
}

impl<S: fmt::Debug> fmt::Debug for Buckets<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets")
            .field("inner", &self.inner)
            .field("bounds", &self.bounds)
            .field("batch_size", &self.batch_size)
            .finish_non_exhaustive()
    }
}
