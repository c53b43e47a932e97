//! In which order samples come.
//!
//! A [`Sampler`] is a cursor over the indices of an epoch; [`Batches`] cuts them into batches. They run on the thread that
//! iterates, one index at a time, never ahead of the window.
//!
//! | sampler | order | resumed by | memory a sample |
//! | --- | --- | --- | --- |
//! | [`Sequential`] | 0, 1, 2, … | position | none |
//! | [`Shuffled`] | a keyed permutation of (seed, epoch) | position | none |
//! | [`Random`], [`Subset`], [`Weighted`] | torch's `RandomSampler`, `SubsetRandomSampler`, `WeightedRandomSampler` | generator and position | 4 bytes |
//! | [`Distributed`] | torch's `DistributedSampler` | epoch and position | 4 bytes |
//! | [`Ranks`] | one rank's share of any other | the other's state | none |
//! | [`Repeat`], [`Concat`] | others, several times or one after the other | their states | none |
//! | [`Batches`], [`Buckets`], [`Budget`] | batches of another: equal ones, of like lengths, of bounded size | its state, and what is gathered | none |
//! | [`libtorch`] | the samplers of PyTorch's C++ front end | position | 4 bytes |
//!
//! [`Order`] is a whole epoch at once, for random access.

mod batch;
mod bucket;
mod budget;
mod chain;
mod distributed;
mod drawn;
pub mod libtorch;
mod order;
mod random;
mod ranks;
mod sequential;
mod shuffled;

pub use batch::Batches;
pub use bucket::Buckets;
pub use budget::{Budget, Padding};
pub use chain::{Concat, Repeat};
pub use distributed::Distributed;
pub use drawn::{Subset, Weighted};
pub use order::Order;
pub use random::Random;
pub use ranks::{Ranks, Remainder};
pub use sequential::{Sequential, from_iter};
pub use shuffled::Shuffled;

use crate::error::{BoxError, Error};
use crate::random::Mt19937;
use crate::state::State;

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

    /// Where it stands: what [`restore`](Sampler::restore) needs to go on with the next one, in this epoch and later ones. `None`
    /// (the default) when it cannot say; a loader then assumes that `begin` gives the same order again, and checks that
    /// it does.
    fn state(&self) -> Option<State> {
        None
    }

    /// Goes to where a sampler with the same arguments stood. What cannot be exact is refused with
    /// [`Error::state`], and leaves this one usable after its next `begin`.
    fn restore(&mut self, state: &State) -> Result<(), Error> {
        Err(Error::state(format!(
            "this sampler has no states, and was given {state}: write `state` and `restore` for it"
        )))
    }

    /// Passes over `count` and returns how many there were; when there were fewer, it is as if `next` had given `None`. Those that
    /// compute their order do not go through it.
    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        for skipped in 0..count {
            if self.next()?.is_none() {
                return Ok(skipped);
            }
        }
        Ok(count)
    }
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

    fn state(&self) -> Option<State> {
        (**self).state()
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        (**self).restore(state)
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        (**self).skip(count)
    }
}

/// Refuses the state of another kind of sampler.
fn must_be(state: &State, kind: &str) -> Result<(), Error> {
    state.must_be(
        "sampler",
        kind,
        "kind of sampler",
        "resume with the sampler that made the state",
    )
}

/// Refuses a state for another number of samples.
fn must_have(state: &State, samples: usize) -> Result<(), Error> {
    state.must_be("samples", samples, "samples", "resume with the same data")
}

/// A generator as part of a state.
fn generator_state(generator: &Mt19937) -> State {
    State::bytes(&generator.to_torch_state())
}

fn restored_generator(state: &State) -> Result<Mt19937, Error> {
    Mt19937::from_torch_state(&state.to_bytes("generator")?).map_err(|error| Error::state(error.to_string()))
}

/// Passes over `count` of what is between `next` and `len`.
fn skip_to(next: &mut usize, len: usize, count: usize) -> usize {
    let skipped = count.min(len.saturating_sub(*next));
    *next += skipped;
    skipped
}

/// The position in a state, at most `len`.
fn restored_position(state: &State, len: usize) -> Result<usize, Error> {
    let position = state.count("position")?;
    if position <= len {
        return Ok(position);
    }
    Err(Error::state(format!("position {position} of {len} in an epoch")))
}

#[cfg(test)]
mod resume_tests;
#[cfg(test)]
mod tests;
