//! A pipeline as a dataset.

use std::fmt;

use super::Failure;
use super::owned::Owned;
use super::sample::Place;
use super::spec::Pipeline;
use super::stage::{Opening, Stage};
use super::step::Step;
use crate::batch::Value;
use crate::dataset::{Context, Dataset};
use crate::error::BoxError;
use crate::source::Mark;

/// Elements of an indexed pipeline by their numbers: a [`Dataset`].
///
/// Used from any number of threads. What was opened for one call stays open for the next: at most one reader for each thread that
/// was in it at a time, and none across a fork.
///
/// ```
/// use feedrate::DataLoader;
/// use feedrate::pipeline::Pipeline;
///
/// let squares = Pipeline::items("numbers", (0..100_i64).map(Into::into)).map("square", |value, _| match value {
///     feedrate::batch::Value::Int(x) => Ok((x * x).into()),
///     other => Ok(other),
/// });
/// let mut loader = DataLoader::builder(squares.getter()?).batch_size(10).shuffle(true).threads(2).build()?;
/// assert_eq!(loader.iter()?.count(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Getter {
    pipeline: Pipeline,
    /// Elements up to and including each part.
    ends: Vec<u64>,
    spare: Owned<Vec<Open>>,
}

/// Stages that nobody uses at the moment.
struct Open {
    seed: u64,
    epoch: u64,
    /// The process that opened them: a fork shares the files' positions.
    owner: u32,
    stage: Box<dyn Stage>,
}

/// More spare ones than this are closed.
const SPARE: usize = 64;

impl Getter {
    pub(super) fn new(pipeline: &Pipeline) -> Result<Self, Failure> {
        let label = pipeline.node().label();
        if !pipeline.indexed() {
            return Err(Failure::fatal(
                label,
                "it has no index: only all of it can be read in order",
            ));
        }
        let mut base = pipeline;
        while !matches!(base.node().step, Step::Source { .. }) {
            base = match base.node().inputs.first() {
                Some(input) => input,
                None => return Err(Failure::fatal(label, "it has no source")),
            };
        }
        let Step::Source { source, .. } = &base.node().step else {
            return Err(Failure::fatal(label, "it has no source"));
        };
        let counts = source
            .index()
            .map_err(|error| Failure::reading(base.node().label(), error))?;
        let mut total = 0_u64;
        let ends = counts
            .iter()
            .map(|count| {
                total += count;
                total
            })
            .collect();
        Ok(Self {
            pipeline: pipeline.clone(),
            ends,
            spare: Owned::default(),
        })
    }

    /// The elements of these numbers, in this order, as an epoch under a seed has them.
    pub fn get(&self, indices: &[u64], seed: u64, epoch: u64) -> Result<Vec<Value>, Failure> {
        let places: Result<Vec<_>, _> = indices.iter().map(|index| self.place(*index)).collect();
        let places = places?;
        let owner = std::process::id();
        let mut stage = match self.spare(seed, epoch, owner) {
            Some(stage) => stage,
            None => self.pipeline.open(&Opening::whole(seed, epoch), None)?,
        };
        let found = stage.again(&places);
        let open = Open {
            seed,
            epoch,
            owner,
            stage,
        };
        // One that has failed may stand anywhere.
        if found.is_ok()
            && let Some(mut spare) = self.spare.lock()
            && spare.len() < SPARE
        {
            spare.push(open);
        }
        Ok(found?.into_iter().map(|sample| sample.value).collect())
    }

    fn spare(&self, seed: u64, epoch: u64, owner: u32) -> Option<Box<dyn Stage>> {
        let mut spare = self.spare.lock()?;
        // Those of another epoch or another process are of no use any more.
        spare.retain(|open| (open.seed, open.epoch, open.owner) == (seed, epoch, owner));
        spare.pop().map(|open| open.stage)
    }

    fn place(&self, index: u64) -> Result<Place, Failure> {
        let part = self.ends.partition_point(|end| *end <= index);
        if part == self.ends.len() {
            let total = self.ends.last().copied().unwrap_or(0);
            return Err(Failure::fatal(
                self.pipeline.node().label(),
                format!("index {index} of {total} elements"),
            ));
        }
        let before = if part == 0 { 0 } else { self.ends[part - 1] };
        Ok(Place::Record {
            part: u32::try_from(part).unwrap_or(u32::MAX),
            mark: Mark {
                number: index - before,
                offset: 0,
            },
        })
    }
}

impl Dataset for Getter {
    type Item = Value;

    fn len(&self) -> usize {
        usize::try_from(self.ends.last().copied().unwrap_or(0)).unwrap_or(usize::MAX)
    }

    fn get(&self, index: usize, cx: &Context) -> Result<Value, BoxError> {
        let found = Getter::get(self, &[index as u64], cx.seed, cx.epoch)?.pop();
        found.ok_or_else(|| "an element is missing".into())
    }
}

impl fmt::Debug for Getter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Getter")
            .field("pipeline", &self.pipeline)
            .field("len", &Dataset::len(self))
            .finish_non_exhaustive()
    }
}
