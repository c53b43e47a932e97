//! In the order of the dataset, or of an iterator.

use std::fmt;

use super::{Sampler, must_be, must_have, restored_position, skip_to};
use crate::error::{BoxError, Error};
use crate::state::State;

/// 0, 1, 2, …
#[derive(Debug, Clone)]
pub struct Sequential {
    len: usize,
    next: usize,
}

impl Sequential {
    /// The indices below `len`.
    pub fn new(len: usize) -> Self {
        Self { len, next: 0 }
    }
}

impl Sampler for Sequential {
    type Item = usize;

    fn begin(&mut self, _: u64) -> Result<(), BoxError> {
        self.next = 0;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<usize>, BoxError> {
        let index = self.next;
        if index >= self.len {
            return Ok(None);
        }
        self.next += 1;
        Ok(Some(index))
    }

    fn len(&self) -> Option<usize> {
        Some(self.len)
    }

    fn state(&self) -> Option<State> {
        Some(State::map([
            ("sampler", "sequential".into()),
            ("samples", self.len.into()),
            ("position", self.next.into()),
        ]))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "sequential")?;
        must_have(state, self.len)?;
        self.next = restored_position(state, self.len)?;
        Ok(())
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        Ok(skip_to(&mut self.next, self.len, count))
    }
}

/// A sampler of a closure that gives an iterator for each epoch.
///
/// ```
/// use feedrate::{DataLoader, dataset, sampler};
///
/// let mut loader = DataLoader::builder(dataset::from_items(["a", "b", "c"]))
///     .batch_sampler(sampler::from_iter(|_epoch| [vec![2, 0], vec![1]]))
///     .build()?;
/// let batches: Vec<_> = loader.iter()?.collect::<Result<_, _>>()?;
/// assert_eq!(batches, [vec!["c", "a"], vec!["b"]]);
/// # Ok::<(), feedrate::Error>(())
/// ```
pub fn from_iter<I, F>(order: F) -> impl Sampler<Item = I::Item> + fmt::Debug
where
    F: FnMut(u64) -> I + Send + 'static,
    I: IntoIterator,
    I::IntoIter: Send + 'static,
    I: 'static,
{
    FromIter { order, iter: None }
}

struct FromIter<F, I> {
    order: F,
    iter: Option<I>,
}

impl<F, I> fmt::Debug for FromIter<F, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromIter")
    }
}

impl<F, I> Sampler for FromIter<F, I::IntoIter>
where
    F: FnMut(u64) -> I + Send + 'static,
    I: IntoIterator + 'static,
    I::IntoIter: Send + 'static,
{
    type Item = I::Item;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        self.iter = Some((self.order)(epoch).into_iter());
        Ok(())
    }

    fn next(&mut self) -> Result<Option<I::Item>, BoxError> {
        Ok(self.iter.as_mut().and_then(Iterator::next))
    }

    fn len(&self) -> Option<usize> {
        None
    }
}
