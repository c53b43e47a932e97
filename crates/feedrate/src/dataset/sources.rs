//! Datasets of plain things.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::{Context, Dataset};
use crate::error::BoxError;

fn beyond(index: usize, len: usize) -> BoxError {
    format!("index {index} is out of range for a dataset of {len} samples").into()
}

/// Items in memory as a dataset; see [`from_items`].
#[derive(Debug, Clone)]
pub struct FromItems<T>(Arc<[T]>);

/// A dataset of items in memory, each cloned when it is asked for.
///
/// ```
/// use feedrate::dataset::{self, Context, Dataset};
///
/// let words = dataset::from_items(vec!["a", "b", "c"]);
/// assert_eq!((words.len(), words.get(2, &Context::default())?), (3, "c"));
/// # Ok::<(), feedrate::BoxError>(())
/// ```
pub fn from_items<T: Clone + Send + Sync + 'static>(items: impl Into<Arc<[T]>>) -> FromItems<T> {
    FromItems(items.into())
}

impl<T: Clone + Send + Sync + 'static> Dataset for FromItems<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, _: &Context) -> Result<T, BoxError> {
        self.0.get(index).cloned().ok_or_else(|| beyond(index, self.0.len()))
    }
}

/// Numbers in a row as a dataset; see [`range`].
#[derive(Debug, Clone)]
pub struct Numbers(Range<usize>);

/// A dataset of the numbers in a range.
///
/// ```
/// use feedrate::dataset::{self, Context, Dataset};
///
/// assert_eq!(dataset::range(5..8).get(1, &Context::default())?, 6);
/// # Ok::<(), feedrate::BoxError>(())
/// ```
pub fn range(numbers: Range<usize>) -> Numbers {
    Numbers(numbers)
}

impl Dataset for Numbers {
    type Item = usize;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, _: &Context) -> Result<usize, BoxError> {
        if index < self.0.len() {
            Ok(self.0.start + index)
        } else {
            Err(beyond(index, self.0.len()))
        }
    }
}

/// A dataset of a length and a closure; see [`from_fn`].
#[derive(Clone)]
pub struct FromFn<F> {
    len: usize,
    get: F,
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A dataset of `len` samples that `get` makes of their indices.
///
/// ```
/// use feedrate::dataset::{self, Context, Dataset};
///
/// let files = ["a.txt", "b.txt"];
/// let texts = dataset::from_fn(files.len(), move |i| Ok(format!("what {} holds", files[i])));
/// assert_eq!(texts.get(1, &Context::default())?, "what b.txt holds");
/// # Ok::<(), feedrate::BoxError>(())
/// ```
pub fn from_fn<T, F>(len: usize, get: F) -> FromFn<F>
where
    F: Fn(usize) -> Result<T, BoxError> + Send + Sync + 'static,
    T: Send + 'static,
{
    FromFn { len, get }
}

impl<T, F> Dataset for FromFn<F>
where
    F: Fn(usize) -> Result<T, BoxError> + Send + Sync + 'static,
    T: Send + 'static,
{
    type Item = T;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, _: &Context) -> Result<T, BoxError> {
        if index < self.len {
            (self.get)(index)
        } else {
            Err(beyond(index, self.len))
        }
    }
}
