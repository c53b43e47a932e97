//! The state of a loader: written, read, and checked against the loader that is to take it up.

use std::sync::{Arc, Mutex};

use super::lanes::{LaneProgress, Saved};
use super::plan::{Indices, Jobs, Mark, Progress};
use crate::error::Error;
use crate::state::State;

/// Version of the format, under the key `feedrate`.
const VERSION: u64 = 1;
/// Nobody has counted further.
pub(super) const COUNT: u64 = 1 << 60;

/// Where an epoch is to begin.
#[derive(Debug, Clone, Default)]
pub(super) struct Start {
    pub(super) epoch: u64,
    pub(super) mark: Mark,
    /// Whether the sampler of the state had a state itself.
    pub(super) trusted: bool,
    /// Of a pipeline.
    pub(super) lanes: Option<Arc<Saved>>,
}

/// What [`Builder::resume`](super::Builder::resume) was given, as far as it can be read without a loader.
pub(super) struct Resume {
    state: State,
    pub(super) seed: u64,
}

impl Resume {
    pub(super) fn read(state: State) -> Result<Self, Error> {
        let fix = "use the version of feedrate that wrote it";
        state.must_be("feedrate", VERSION, "version of the state", fix)?;
        let seed = state.number("seed")?;
        Ok(Self { state, seed })
    }

    /// The seed of the loader: the state's, unless another one was asked for.
    pub(super) fn seed(&self, given: Option<u64>) -> Result<u64, Error> {
        if let Some(given) = given {
            let fix = "give the same seed, or none";
            self.state.must_be("seed", given, "seed", fix)?;
        }
        Ok(self.seed)
    }

    /// Takes the sampler to where it was before the epoch, and says where the loader is to go on in it.
    pub(super) fn apply(&self, jobs: &Jobs, in_order: bool) -> Result<Start, Error> {
        if !in_order {
            return Err(out_of_order());
        }
        let state = &self.state;
        let indices = match jobs {
            Jobs::Indices(indices) => indices,
            Jobs::Lanes(jobs) => {
                let lanes = match state.entry("lanes")? {
                    State::Null => None,
                    saved => Some(Arc::new(jobs.read(saved)?)),
                };
                return Ok(Start {
                    epoch: state.number("epoch")?,
                    lanes,
                    ..Start::default()
                });
            }
            Jobs::Stream(_) => return Err(streams()),
        };
        state.must_be(
            "dataset",
            indices.samples,
            "samples in the dataset",
            "resume with the same data",
        )?;
        let batch_size = State::from(indices.batch_size);
        let same = state.entry("batch_size")? == &batch_size;
        let sampler = state.entry("sampler")?;
        let trusted = *sampler != State::Null;
        // Samples can be cut in another way; the batches of a batch sampler cannot, nor what must be gone through again.
        if !same && (!trusted || indices.batch_size.is_none() || state.entry("batch_size")? == &State::Null) {
            let fix = "resume with the same, or a sampler of samples that has states";
            state.must_be("batch_size", batch_size, "batch size", fix)?;
        }
        if same {
            let fix = "resume with the same";
            state.must_be("drop_last", indices.drop_last, "drop_last", fix)?;
        }
        let mut mark = Mark {
            batches: state.number("batches")?,
            samples: state.number("samples")?,
            hash: state.number("hash")?,
        };
        if mark.batches.max(mark.samples) > COUNT {
            return Err(Error::state(format!(
                "{} batches of {} samples are more than an epoch has: resume with what `state` gave, unchanged",
                mark.batches, mark.samples
            )));
        }
        if let (false, Some(size)) = (same, indices.batch_size) {
            mark.batches = mark.samples.div_ceil(size as u64);
        }
        if trusted {
            indices.order().restore(sampler)?;
        } else if indices.order().state().is_some() {
            return Err(Error::state(
                "the state was made with a sampler that has no states, and the one here has: resume with the same sampler",
            ));
        }
        Ok(Start {
            epoch: state.number("epoch")?,
            mark,
            trusted,
            lanes: None,
        })
    }
}

/// The state of a loader that is as far as `progress`, or done with that epoch.
pub(super) fn state(
    jobs: &Jobs,
    in_order: bool,
    seed: u64,
    start: &Start,
    progress: &Mutex<Progress>,
    ended: bool,
) -> Result<State, Error> {
    if !in_order {
        return Err(out_of_order());
    }
    let progress = super::lock(progress);
    let indices = match jobs {
        Jobs::Indices(indices) => indices,
        Jobs::Lanes(_) => {
            let lanes = progress.lanes.as_ref().filter(|_| !ended);
            return Ok(State::map([
                ("feedrate", VERSION.into()),
                ("seed", seed.into()),
                ("epoch", start.epoch.saturating_add(u64::from(ended)).into()),
                ("lanes", lanes.map_or(State::Null, LaneProgress::state)),
            ]));
        }
        Jobs::Stream(_) => return Err(streams()),
    };
    let (epoch, mark, sampler) = if ended {
        (start.epoch.saturating_add(1), Mark::default(), None)
    } else {
        (start.epoch, progress.delivered(), progress.before().cloned())
    };
    Ok(write(indices, seed, epoch, mark, sampler))
}

/// `sampler` is its state before the epoch, or `None` if the epoch is not begun.
fn write(indices: &Indices, seed: u64, epoch: u64, mark: Mark, sampler: Option<State>) -> State {
    let sampler = sampler.unwrap_or_else(|| indices.order().state().into());
    State::map([
        ("feedrate", VERSION.into()),
        ("seed", seed.into()),
        ("epoch", epoch.into()),
        ("batches", mark.batches.into()),
        ("samples", mark.samples.into()),
        ("hash", mark.hash.into()),
        ("dataset", indices.samples.into()),
        ("batch_size", indices.batch_size.into()),
        ("drop_last", indices.drop_last.into()),
        ("sampler", sampler),
    ])
}

fn streams() -> Error {
    Error::state("a stream cannot be resumed: its position is known to the dataset alone. Use samples by index")
}

fn out_of_order() -> Error {
    Error::state(
        "in_order is false: how far the epoch is cannot be said by a number. Leave it true for a loader that is to be resumed",
    )
}
