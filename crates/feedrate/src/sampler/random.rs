//! PyTorch's random order.

use super::Sampler;
use crate::error::{BoxError, Error};
use crate::random::Mt19937;

/// The order of `torch.utils.data.RandomSampler`, draw by draw, for a `torch.Generator` in the same state.
///
/// The generator goes on from epoch to epoch, and is drawn from when torch's would be: nothing before the first index, and at
/// the end of an epoch without replacement one more permutation, of which nothing or only the rest is used.
///
/// ```
/// use feedrate::sampler::{Random, Sampler};
///
/// // list(RandomSampler(range(5), generator=torch.Generator().manual_seed(0)))
/// let mut sampler = Random::new(5, 0)?;
/// sampler.begin(0)?;
/// let mut order = Vec::new();
/// while let Some(index) = sampler.next()? {
///     order.push(index);
/// }
/// assert_eq!(order, [4, 0, 1, 3, 2]);
/// # Ok::<(), feedrate::BoxError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Random {
    generator: Mt19937,
    samples: usize,
    wanted: usize,
    replacement: bool,
    /// Drawn and not yet given.
    chunk: std::vec::IntoIter<usize>,
    /// Chunks drawn in this epoch.
    chunks: usize,
}

/// Torch draws this many at a time with replacement.
const DRAW: usize = 32;

impl Random {
    /// A permutation of `samples` indices for each epoch, from a generator with this seed.
    pub fn new(samples: usize, seed: u64) -> Result<Self, Error> {
        Self::with_generator(samples, Mt19937::new(seed))
    }

    /// The same from a generator in any state.
    pub fn with_generator(samples: usize, generator: Mt19937) -> Result<Self, Error> {
        if samples == 0 {
            return Err(Error::config(
                "a random sampler needs at least one sample, the dataset has 0: leave shuffling out, or fill it",
            ));
        }
        Ok(Self {
            generator,
            samples,
            wanted: samples,
            replacement: false,
            chunk: Vec::new().into_iter(),
            chunks: 0,
        })
    }

    /// Draws each index independently of the others.
    #[must_use]
    pub fn replacement(mut self, replacement: bool) -> Self {
        self.replacement = replacement;
        self
    }

    /// Indices in one epoch; more than there are samples without replacement gives several permutations, the last one cut.
    pub fn count(mut self, count: usize) -> Result<Self, Error> {
        if count == 0 {
            return Err(Error::config(
                "a random sampler was asked for 0 samples an epoch: ask for at least 1",
            ));
        }
        self.wanted = count;
        Ok(self)
    }

    /// The generator, as it stands.
    pub fn generator(&self) -> &Mt19937 {
        &self.generator
    }

    fn draw(&mut self) -> Option<Vec<usize>> {
        let chunk = self.chunks;
        self.chunks += 1;
        let (size, full) = if self.replacement {
            (DRAW, self.wanted / DRAW)
        } else {
            (self.samples, self.wanted / self.samples)
        };
        if chunk > full {
            return None;
        }
        let len = if chunk < full { size } else { self.wanted % size };
        if self.replacement {
            let drawn = self.generator.randint(self.samples as u64, len);
            return Some(drawn.into_iter().filter_map(|i| usize::try_from(i).ok()).collect());
        }
        let mut order = self.generator.randperm(self.samples);
        order.truncate(len);
        Some(order)
    }
}

impl Sampler for Random {
    type Item = usize;

    fn begin(&mut self, _: u64) -> Result<(), BoxError> {
        self.chunk = Vec::new().into_iter();
        self.chunks = 0;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<usize>, BoxError> {
        loop {
            if let Some(index) = self.chunk.next() {
                return Ok(Some(index));
            }
            match self.draw() {
                Some(chunk) => self.chunk = chunk.into_iter(),
                None => return Ok(None),
            }
        }
    }

    fn len(&self) -> Option<usize> {
        Some(self.wanted)
    }
}
