//! Where samples come from.
//!
//! A [`Dataset`] gives any sample by its index; an [`IterableDataset`] gives them one after the other. Both are shared by all
//! threads of a worker, so they take `&self`. Adapters ([`DatasetExt`]) are datasets around datasets; [`from_fn`],
//! [`from_items`] and [`range`] make them of plain things.

mod adapters;
mod context;
mod iterable;
mod sources;

pub use adapters::{Concat, DatasetExt, Map, Shuffled, Subset};
pub use context::{Context, WorkerInfo};
pub use iterable::{FromIter, Items, IterableDataset, from_iter};
pub use sources::{FromFn, FromItems, Numbers, from_fn, from_items, range};

use crate::error::BoxError;

/// Samples by index.
///
/// ```
/// use feedrate::dataset::{Context, Dataset};
/// use feedrate::BoxError;
///
/// struct Squares(usize);
///
/// impl Dataset for Squares {
///     type Item = u64;
///
///     fn len(&self) -> usize {
///         self.0
///     }
///
///     fn get(&self, index: usize, _: &Context) -> Result<u64, BoxError> {
///         let index = u64::try_from(index)?;
///         Ok(index * index)
///     }
/// }
///
/// assert_eq!(Squares(10).get(3, &Context::default())?, 9);
/// # Ok::<(), BoxError>(())
/// ```
#[expect(clippy::len_without_is_empty, reason = "implementers should not have to write both")]
pub trait Dataset: Send + Sync + 'static {
    /// One sample.
    type Item: Send + 'static;

    /// Number of samples. Asked once for each epoch.
    fn len(&self) -> usize;

    /// The sample of `index`, which is below [`len`](Dataset::len). Runs in a worker, many calls at the same time; may
    /// block. `cx` says for which epoch and place it is, and has the random numbers that belong there; the result should depend
    /// on nothing else, since a task may be done again when a worker dies.
    fn get(&self, index: usize, cx: &Context) -> Result<Self::Item, BoxError>;
}

impl<D: Dataset + ?Sized> Dataset for std::sync::Arc<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize, cx: &Context) -> Result<Self::Item, BoxError> {
        (**self).get(index, cx)
    }
}

impl<D: Dataset + ?Sized> Dataset for Box<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize, cx: &Context) -> Result<Self::Item, BoxError> {
        (**self).get(index, cx)
    }
}

#[cfg(test)]
mod tests;
