//! Samples one after the other.

use std::fmt;

use super::Context;
use crate::error::BoxError;

/// A stream of samples.
pub type Items<T> = Box<dyn Iterator<Item = Result<T, BoxError>> + Send>;

/// Samples one after the other, for sources that know no index.
///
/// ```
/// use feedrate::dataset::{Context, Items, IterableDataset};
/// use feedrate::{BoxError, DataLoader};
///
/// struct Countdown(u32);
///
/// impl IterableDataset for Countdown {
///     type Item = u32;
///
///     fn iter(&self, cx: &Context) -> Result<Items<u32>, BoxError> {
///         // Each worker takes its share.
///         let share = (0..self.0).rev().skip(cx.worker.id).step_by(cx.worker.workers);
///         Ok(Box::new(share.map(Ok)))
///     }
/// }
///
/// let mut loader = DataLoader::stream(Countdown(5)).batch_size(2).threads(2).build()?;
/// let batches: Vec<Vec<u32>> = loader.iter()?.collect::<Result<_, _>>()?;
/// assert_eq!(batches, [vec![4, 2], vec![3, 1], vec![0]]);
/// # Ok::<(), feedrate::Error>(())
/// ```
pub trait IterableDataset: Send + Sync + 'static {
    /// One sample.
    type Item: Send + 'static;

    /// The stream of one worker for one epoch. Every worker calls it; a source that does not look at `cx.worker` gives all of
    /// its samples to each of them. An error of the stream is reported in place of its batch, and the stream is asked again
    /// for the next one.
    #[expect(clippy::iter_not_returning_iterator, reason = "opening a source may fail")]
    fn iter(&self, cx: &Context) -> Result<Items<Self::Item>, BoxError>;
}

/// An iterable dataset of a closure; see [`from_iter`].
#[derive(Clone)]
pub struct FromIter<F>(F);

impl<F> fmt::Debug for FromIter<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromIter")
    }
}

/// A dataset of a closure that makes the stream of one worker for one epoch.
///
/// ```
/// use feedrate::{DataLoader, dataset};
///
/// let source = dataset::from_iter(|cx| Ok((0..3).map(|i| Ok(i)).skip(cx.worker.id)));
/// let mut loader = DataLoader::stream(source).build()?;
/// assert_eq!(loader.iter()?.count(), 3);
/// # Ok::<(), feedrate::Error>(())
/// ```
pub fn from_iter<T, I, F>(iter: F) -> FromIter<F>
where
    F: Fn(&Context) -> Result<I, BoxError> + Send + Sync + 'static,
    I: Iterator<Item = Result<T, BoxError>> + Send + 'static,
    T: Send + 'static,
{
    FromIter(iter)
}

impl<T, I, F> IterableDataset for FromIter<F>
where
    F: Fn(&Context) -> Result<I, BoxError> + Send + Sync + 'static,
    I: Iterator<Item = Result<T, BoxError>> + Send + 'static,
    T: Send + 'static,
{
    type Item = T;

    fn iter(&self, cx: &Context) -> Result<Items<T>, BoxError> {
        Ok(Box::new((self.0)(cx)?))
    }
}
