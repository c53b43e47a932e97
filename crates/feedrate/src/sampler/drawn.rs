//! Orders that are drawn whole from torch's generator when the first index is wanted.

use super::{Order, Sampler, generator_state, must_be, must_have, restored_generator, restored_position, skip_to};
use crate::error::{BoxError, Error};
use crate::random::Mt19937;
use crate::state::State;

/// What an epoch of these has in common.
#[derive(Debug)]
struct Drawn {
    /// Before the order of this epoch was drawn.
    before: Mt19937,
    generator: Mt19937,
    order: Option<Order>,
    next: usize,
    len: usize,
}

/// Draws an order for who begins at a position.
type Draw<'a> = &'a dyn Fn(&mut Mt19937, usize) -> Result<Order, Error>;

impl Drawn {
    fn new(generator: Mt19937, len: usize) -> Self {
        Self {
            before: generator.clone(),
            generator,
            order: None,
            next: 0,
            len,
        }
    }

    fn begin(&mut self) {
        self.before = self.generator.clone();
        self.order = None;
        self.next = 0;
    }

    fn next(&mut self, draw: Draw<'_>) -> Result<Option<usize>, BoxError> {
        if self.order.is_none() {
            self.order = Some(draw(&mut self.generator, self.next)?);
        }
        let index = self.order.as_ref().and_then(|order| order.at(self.next as u64));
        self.next += usize::from(index.is_some());
        Ok(index.map(usize::try_from).transpose()?)
    }

    fn skip(&mut self, count: usize, draw: Draw<'_>) -> Result<usize, BoxError> {
        if count > 0 && self.order.is_none() {
            self.order = Some(draw(&mut self.generator, self.next.saturating_add(count))?);
        }
        Ok(skip_to(&mut self.next, self.len, count))
    }

    fn state(&self, kind: &str, samples: usize) -> State {
        State::map([
            ("sampler", kind.into()),
            ("samples", samples.into()),
            ("count", self.len.into()),
            ("generator", generator_state(&self.before)),
            ("drawn", self.order.is_some().into()),
            ("position", self.next.into()),
        ])
    }

    fn restore(&mut self, state: &State, kind: &str, samples: usize, draw: Draw<'_>) -> Result<(), Error> {
        must_be(state, kind)?;
        must_have(state, samples)?;
        state.must_be("count", self.len, "indices in an epoch", "ask for the same number")?;
        let position = restored_position(state, self.len)?;
        let generator = restored_generator(state)?;
        *self = Self::new(generator, self.len);
        if state.entry("drawn")? == &State::Bool(true) {
            self.order = Some(draw(&mut self.generator, position)?);
        }
        self.next = position;
        Ok(())
    }
}

/// The order of `torch.utils.data.SubsetRandomSampler`: these indices, permuted anew for each epoch.
///
/// ```
/// use feedrate::random::Mt19937;
/// use feedrate::sampler::{Sampler, Subset};
///
/// // list(SubsetRandomSampler([10, 20, 30], generator=torch.Generator().manual_seed(0)))
/// let mut sampler = Subset::new([10, 20, 30], Mt19937::new(0));
/// sampler.begin(0)?;
/// assert_eq!((sampler.next()?, sampler.next()?), (Some(30), Some(10)));
/// # Ok::<(), feedrate::BoxError>(())
/// ```
#[derive(Debug)]
pub struct Subset {
    indices: Vec<usize>,
    drawn: Drawn,
}

impl Subset {
    /// These indices, by a generator that goes on from epoch to epoch.
    pub fn new(indices: impl Into<Vec<usize>>, generator: Mt19937) -> Self {
        let indices = indices.into();
        Self {
            drawn: Drawn::new(generator, indices.len()),
            indices,
        }
    }

    /// The generator, as it stands.
    pub fn generator(&self) -> &Mt19937 {
        &self.drawn.generator
    }
}

fn permutation(len: usize) -> impl Fn(&mut Mt19937, usize) -> Result<Order, Error> {
    move |generator, from| Order::randperm_from(len as u64, generator, from as u64, &mut || true)
}

impl Sampler for Subset {
    type Item = usize;

    fn begin(&mut self, _: u64) -> Result<(), BoxError> {
        self.drawn.begin();
        Ok(())
    }

    fn next(&mut self) -> Result<Option<usize>, BoxError> {
        let place = self.drawn.next(&permutation(self.indices.len()))?;
        Ok(place.and_then(|place| self.indices.get(place).copied()))
    }

    fn len(&self) -> Option<usize> {
        Some(self.indices.len())
    }

    fn state(&self) -> Option<State> {
        Some(self.drawn.state("subset", self.indices.len()))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        let len = self.indices.len();
        self.drawn.restore(state, "subset", len, &permutation(len))
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        self.drawn.skip(count, &permutation(self.indices.len()))
    }
}

/// The order of `torch.utils.data.WeightedRandomSampler`: indices with a chance that is proportional to their weight.
///
/// ```
/// use feedrate::random::Mt19937;
/// use feedrate::sampler::{Sampler, Weighted};
///
/// let mut sampler = Weighted::new([0.1, 0.9, 0.4, 0.7, 3.0, 0.6], 3, false, Mt19937::new(1))?;
/// sampler.begin(0)?;
/// assert_eq!((sampler.next()?, sampler.next()?, sampler.next()?), (Some(5), Some(4), Some(3)));
/// # Ok::<(), feedrate::BoxError>(())
/// ```
#[derive(Debug)]
pub struct Weighted {
    weights: Vec<f64>,
    replacement: bool,
    drawn: Drawn,
}

impl Weighted {
    /// `count` indices an epoch, by a generator that goes on from epoch to epoch. Without `replacement` none comes twice in an epoch.
    /// Weights are at most 2²⁴, finite and not negative, as torch demands.
    pub fn new(
        weights: impl Into<Vec<f64>>,
        count: usize,
        replacement: bool,
        generator: Mt19937,
    ) -> Result<Self, Error> {
        let weights = weights.into();
        // Refused now, and not when the first index is wanted.
        crate::random::check_weights(&weights, count, replacement)?;
        Ok(Self {
            weights,
            replacement,
            drawn: Drawn::new(generator, count),
        })
    }

    /// The generator, as it stands.
    pub fn generator(&self) -> &Mt19937 {
        &self.drawn.generator
    }
}

fn multinomial(
    weights: &[f64],
    count: usize,
    replacement: bool,
) -> impl Fn(&mut Mt19937, usize) -> Result<Order, Error> {
    move |generator, _| generator.multinomial(weights, count, replacement).map(Order::of_u32)
}

impl Sampler for Weighted {
    type Item = usize;

    fn begin(&mut self, _: u64) -> Result<(), BoxError> {
        self.drawn.begin();
        Ok(())
    }

    fn next(&mut self) -> Result<Option<usize>, BoxError> {
        let count = self.drawn.len;
        self.drawn.next(&multinomial(&self.weights, count, self.replacement))
    }

    fn len(&self) -> Option<usize> {
        Some(self.drawn.len)
    }

    fn state(&self) -> Option<State> {
        Some(self.drawn.state("weighted", self.weights.len()))
    }

    fn restore(&mut self, state: &State) -> Result<(), Error> {
        let (samples, count) = (self.weights.len(), self.drawn.len);
        let draw = multinomial(&self.weights, count, self.replacement);
        self.drawn.restore(state, "weighted", samples, &draw)
    }

    fn skip(&mut self, count: usize) -> Result<usize, BoxError> {
        let draw = multinomial(&self.weights, self.drawn.len, self.replacement);
        self.drawn.skip(count, &draw)
    }
}
