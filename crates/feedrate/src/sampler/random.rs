//! PyTorch's random order.

use super::{Order, Sampler, generator_state, must_be, must_have, restored_generator, restored_position};
use crate::error::{BoxError, Error};
use crate::random::{Mt19937, skip_permutation};
use crate::state::State;

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
#[derive(Debug)]
pub struct Random {
    generator: Mt19937,
    /// At the start of the epoch.
    before: Mt19937,
    samples: usize,
    wanted: usize,
    replacement: bool,
    /// Drawn last.
    chunk: Order,
    /// How much of it was given.
    used: u64,
    /// Chunks drawn in this epoch.
    chunks: usize,
    /// Given in this epoch.
    given: usize,
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
            before: generator.clone(),
            generator,
            samples,
            wanted: samples,
            replacement: false,
            chunk: Order::default(),
            used: 0,
            chunks: 0,
            given: 0,
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

    /// Size of the chunks and of the last one.
    fn chunk_sizes(&self) -> (usize, usize) {
        let size = if self.replacement { DRAW } else { self.samples };
        (size, self.wanted % size)
    }

    /// Draws the next chunk for who begins at its index `from`; false when there is none.
    fn draw(&mut self, from: u64) -> Result<bool, Error> {
        let (size, last) = self.chunk_sizes();
        let full = self.wanted / size;
        if self.chunks > full {
            return Ok(false);
        }
        let len = if self.chunks < full { size } else { last };
        let (samples, len) = (self.samples as u64, len as u64);
        self.chunk = if self.replacement {
            Order::random(samples, &mut self.generator, true, len)?
        } else if len == samples {
            Order::randperm_from(samples, &mut self.generator, from, &mut || true)?
        } else {
            Order::first_of_randperm(samples, len, &mut self.generator)?
        };
        self.chunks += 1;
        self.used = 0;
        Ok(true)
    }
}

impl Sampler for Random {
    type Item = usize;

    fn begin(&mut self, _: u64) -> Result<(), BoxError> {
        self.before = self.generator.clone();
        self.chunk = Order::default();
        (self.used, self.chunks, self.given) = (0, 0, 0);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<usize>, BoxError> {
        loop {
            if let Some(index) = self.chunk.at(self.used) {
                self.used += 1;
                self.given += 1;
                return Ok(Some(usize::try_from(index)?));
            }
            if !self.draw(0)? {
                return Ok(None);
            }
        }
    }

    fn len(&self) -> Option<usize> {
        Some(self.wanted)
    }

    fn state(&self) -> Option<State> {
        Some(State::map([
            ("sampler", "random".into()),
            ("samples", self.samples.into()),
            ("count", self.wanted.into()),
            ("replacement", self.replacement.into()),
            ("generator", generator_state(&self.before)),
            ("position", self.given.into()),
            ("chunks", self.chunks.into()),
        ]))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        must_be(state, "random")?;
        must_have(state, self.samples)?;
        state.must_be("count", self.wanted, "indices in an epoch", "ask for the same number")?;
        state.must_be("replacement", self.replacement, "replacement", "choose the same")?;
        let (position, chunks) = (restored_position(state, self.wanted)?, state.count("chunks")?);
        let (size, _) = self.chunk_sizes();
        if chunks > self.wanted / size + 1 || chunks < position.div_ceil(size) {
            return Err(Error::state(format!(
                "{chunks} chunks of {size} were drawn for {position} indices"
            )));
        }
        self.generator = restored_generator(state)?;
        self.begin(0).map_err(|error| Error::state(error.to_string()))?;
        self.go_to(position)?;
        while self.chunks < chunks {
            self.draw(0)?;
        }
        Ok(())
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        let from = self.given;
        self.go_to(from.saturating_add(count).min(self.wanted))?;
        if self.given - from < count {
            // The end was seen, and with it the last draw.
            while self.draw(0)? {}
        }
        Ok(self.given - from)
    }
}

impl Random {
    /// Passes over indices, and over whole permutations without making them.
    fn go_to(&mut self, position: usize) -> Result<(), Error> {
        let (size, _) = self.chunk_sizes();
        while self.given < position {
            let (left, missing) = (self.chunk.len() - self.used, (position - self.given) as u64);
            if left == 0 && !self.replacement && missing >= size as u64 && self.chunks < self.wanted / size {
                skip_permutation(&mut self.generator, size as u64);
                self.chunks += 1;
                self.given += size;
                self.chunk = Order::default();
                self.used = 0;
                continue;
            }
            if left == 0 && !self.draw(missing)? {
                return Ok(());
            }
            let step = missing.min(self.chunk.len() - self.used);
            self.used += step;
            self.given += usize::try_from(step).unwrap_or_default();
        }
        Ok(())
    }
}
