//! In which order samples come.
//!
//! A [`Sampler`] is a cursor over the indices of an epoch; [`Batches`] cuts them into batches. They run on the thread that
//! iterates, one index at a time, never ahead of the window.

mod batch;
mod random;
mod sequential;

pub use batch::Batches;
pub use random::Random;
pub use sequential::{Sequential, from_iter};

use crate::error::BoxError;

/// Gives the order of an epoch: indices, or batches of them.
///
/// ```
/// use feedrate::sampler::Sampler;
/// use feedrate::{BoxError, DataLoader, dataset};
///
/// /// Even epochs forwards, odd ones backwards.
/// struct BackAndForth { len: usize, given: usize, backwards: bool }
///
/// impl Sampler for BackAndForth {
///     type Item = usize;
///
///     fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
///         (self.given, self.backwards) = (0, epoch % 2 == 1);
///         Ok(())
///     }
///
///     fn next(&mut self) -> Result<Option<usize>, BoxError> {
///         let Some(left) = self.len.checked_sub(self.given + 1) else { return Ok(None) };
///         self.given += 1;
///         Ok(Some(if self.backwards { left } else { self.given - 1 }))
///     }
///
///     fn len(&self) -> Option<usize> {
///         Some(self.len)
///     }
/// }
///
/// let sampler = BackAndForth { len: 3, given: 0, backwards: false };
/// let mut loader = DataLoader::builder(dataset::range(0..3)).batch_size(3).sampler(sampler).build()?;
/// let first: Vec<_> = loader.iter()?.collect::<Result<_, _>>()?;
/// let second: Vec<_> = loader.iter()?.collect::<Result<_, _>>()?;
/// assert_eq!((first, second), (vec![vec![0, 1, 2]], vec![vec![2, 1, 0]]));
/// # Ok::<(), feedrate::Error>(())
/// ```
#[expect(
    clippy::len_without_is_empty,
    reason = "a length, where one is known, is all that is asked"
)]
pub trait Sampler: Send + 'static {
    /// `usize` for samples, `Vec<usize>` for batches.
    type Item;

    /// Goes to the start of an epoch (counted from 0), also when the last one was not finished.
    fn begin(&mut self, epoch: u64) -> Result<(), BoxError>;

    /// The next one, `None` at the end. After an error it may be asked again.
    fn next(&mut self) -> Result<Option<Self::Item>, BoxError>;

    /// How many an epoch has, if that is known.
    fn len(&self) -> Option<usize>;
}

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    type Item = S::Item;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        (**self).begin(epoch)
    }

    fn next(&mut self) -> Result<Option<Self::Item>, BoxError> {
        (**self).next()
    }

    fn len(&self) -> Option<usize> {
        (**self).len()
    }
}

#[cfg(test)]
mod tests;
