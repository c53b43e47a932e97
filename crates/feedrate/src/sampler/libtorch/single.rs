//! For one process.

use super::{Sampler, check, take};
use crate::error::Error;
use crate::random::Mt19937;
use crate::sampler::Order;
use crate::state::State;

/// `RandomSampler`: `torch::randperm`, drawn when the sampler is made and again at each reset.
///
/// libtorch draws from the global generator; this one has its own, which [`generator`](RandomSampler::generator) shows.
#[derive(Debug)]
pub struct RandomSampler {
    /// Before the order was drawn.
    before: Mt19937,
    generator: Mt19937,
    order: Order,
    position: usize,
}

impl RandomSampler {
    /// Of `size` samples, by a generator.
    pub fn new(size: usize, generator: Mt19937) -> Result<Self, Error> {
        let before = generator.clone();
        let mut generator = generator;
        let order = Order::randperm(size as u64, &mut generator)?;
        Ok(Self {
            before,
            generator,
            order,
            position: 0,
        })
    }

    /// How many samples were given.
    pub fn index(&self) -> usize {
        self.position
    }

    /// The generator, after the order was drawn.
    pub fn generator(&self) -> &Mt19937 {
        &self.generator
    }

    fn size(&self) -> usize {
        usize::try_from(self.order.len()).unwrap_or(usize::MAX)
    }
}

impl Sampler for RandomSampler {
    type Request = Vec<usize>;

    fn reset(&mut self, new_size: Option<usize>) -> Result<(), Error> {
        *self = Self::new(new_size.unwrap_or(self.size()), self.generator.clone())?;
        Ok(())
    }

    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        let size = self.size();
        let block = take(&mut self.position, size, batch_size)?;
        let at = |i: usize| self.order.at(i as u64).and_then(|i| usize::try_from(i).ok());
        Some(block.filter_map(at).collect())
    }

    fn save(&self) -> State {
        State::map([
            ("index", self.position.into()),
            ("size", self.size().into()),
            ("generator", State::bytes(&self.before.to_torch_state())),
        ])
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        let generator = Mt19937::from_torch_state(&state.to_bytes("generator")?);
        let generator = generator.map_err(|error| Error::state(error.to_string()))?;
        let (size, position) = (state.count("size")?, state.count("index")?);
        check(position, size)?;
        *self = Self::new(size, generator)?;
        self.position = position;
        Ok(())
    }
}

/// `SequentialSampler`: 0, 1, 2, …
#[derive(Debug, Clone)]
pub struct SequentialSampler {
    size: usize,
    position: usize,
}

impl SequentialSampler {
    /// Of `size` samples.
    pub fn new(size: usize) -> Self {
        Self { size, position: 0 }
    }

    /// How many samples were given.
    pub fn index(&self) -> usize {
        self.position
    }
}

impl Sampler for SequentialSampler {
    type Request = Vec<usize>;

    fn reset(&mut self, new_size: Option<usize>) -> Result<(), Error> {
        *self = Self::new(new_size.unwrap_or(self.size));
        Ok(())
    }

    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        take(&mut self.position, self.size, batch_size).map(Iterator::collect)
    }

    fn save(&self) -> State {
        State::map([("index", self.position.into()), ("size", self.size.into())])
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        state.must_be("size", self.size, "samples", "reset the sampler to that size first")?;
        let position = state.count("index")?;
        check(position, self.size)?;
        self.position = position;
        Ok(())
    }
}

/// `StreamSampler`: no indices, only how many samples of a stream to fetch.
#[derive(Debug, Clone)]
pub struct StreamSampler {
    epoch_size: usize,
    retrieved: usize,
}

impl StreamSampler {
    /// Ends after `epoch_size` samples.
    pub fn new(epoch_size: usize) -> Self {
        Self {
            epoch_size,
            retrieved: 0,
        }
    }

    /// How many samples were asked for.
    pub fn index(&self) -> usize {
        self.retrieved
    }
}

impl Sampler for StreamSampler {
    type Request = usize;

    fn reset(&mut self, new_size: Option<usize>) -> Result<(), Error> {
        *self = Self::new(new_size.unwrap_or(self.epoch_size));
        Ok(())
    }

    fn next(&mut self, batch_size: usize) -> Option<usize> {
        take(&mut self.retrieved, self.epoch_size, batch_size).map(|block| block.len())
    }

    fn save(&self) -> State {
        State::map([
            ("examples_retrieved_so_far", self.retrieved.into()),
            ("size", self.epoch_size.into()),
        ])
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        state.must_be(
            "size",
            self.epoch_size,
            "samples",
            "reset the sampler to that size first",
        )?;
        let retrieved = state.count("examples_retrieved_so_far")?;
        check(retrieved, self.epoch_size)?;
        self.retrieved = retrieved;
        Ok(())
    }
}
