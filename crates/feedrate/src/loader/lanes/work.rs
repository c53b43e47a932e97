//! The work of a loader over a pipeline: units of lanes that a worker keeps open.

use std::collections::HashMap;
use std::fmt;

use crate::asking;
use crate::batch::Value;
use crate::dataset::WorkerInfo;
use crate::error::{BoxError, Error, Panic};
use crate::pipeline::{Failure, Lane, Opening, Pipeline};
use crate::plan::Task;
use crate::state::State;
use crate::work::{BatchJob, Common, Done, Turn, Unit, Work, catch};

/// A cursor of more bytes is sent along less often: once in as many units as it has times this many bytes.
const LIGHT: usize = 2048;

/// A lane that runs in a worker.
#[expect(unnameable_types, reason = "only the pools hold it")]
pub struct Open {
    /// `None` where it cannot be opened, which was told.
    lane: Option<Lane>,
    /// Units given.
    units: u64,
    over: bool,
    /// Elements of the unit at hand that were there when a later one failed.
    waiting: Vec<Value>,
    /// A last unit that is not full, when it was read ahead of its turn.
    left: Option<Vec<Value>>,
    /// Units until the next cursor is taken.
    quiet: usize,
}

impl Open {
    /// The next unit; shorter at the end.
    fn unit(&mut self, samples: usize) -> Result<Vec<Value>, (bool, BoxError)> {
        self.units += 1;
        if let Some(left) = self.left.take() {
            self.over = true;
            return Ok(left);
        }
        while !self.over && self.waiting.len() < samples {
            let Some(lane) = &mut self.lane else { break };
            if !asking::go_on_now() {
                return Err((false, "the epoch is not wanted any more".into()));
            }
            match catch(|| lane.next().map_err(BoxError::from)) {
                Ok(Some(sample)) => self.waiting.push(sample.value),
                Ok(None) => self.over = true,
                Err((panic, error)) => {
                    let failure = error.downcast_ref::<Failure>();
                    self.over = panic || failure.is_none_or(|failure| !failure.may_continue);
                    let source = failure.and_then(std::error::Error::source);
                    let panic = panic || source.is_some_and(<dyn std::error::Error>::is::<Panic>);
                    return Err((panic, error));
                }
            }
        }
        let ready = self.waiting.len().min(samples);
        Ok(self.waiting.drain(..ready).collect())
    }

    fn cursor(&mut self, always: bool) -> Option<State> {
        if self.quiet > 0 && !always {
            self.quiet -= 1;
            return None;
        }
        let cursor = self.lane.as_ref()?.cursor();
        self.quiet = cursor.to_string().len() / LIGHT;
        Some(cursor)
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("units", &self.units)
            .finish_non_exhaustive()
    }
}

/// Batches of the lanes whose turns a worker gets. A lane that it does not have, or that stands elsewhere, is opened from where the turn
/// says, and read up to there.
pub struct LaneWork<B> {
    pipeline: Pipeline,
    common: Common<Value, B>,
    /// How many lanes there are.
    count: u64,
    samples: usize,
    /// Whether the order is another one each time, so that nothing can be read again.
    timed: bool,
}

impl<B> LaneWork<B> {
    /// Of so many lanes, in units of so many samples.
    pub(crate) fn new(pipeline: Pipeline, common: Common<Value, B>, count: u64, samples: usize) -> Self {
        Self {
            timed: pipeline.timed().is_some(),
            pipeline,
            common,
            count,
            samples,
        }
    }

    /// The lane of a unit, standing before it.
    fn open<'a>(
        &self,
        kept: &'a mut HashMap<u64, Open>,
        unit: &Unit,
        epoch: u64,
    ) -> Result<&'a mut Open, (bool, BoxError)> {
        if kept.get(&unit.lane).is_none_or(|open| open.units > unit.before) {
            let (at, cursor) = unit.begin.clone().unwrap_or((0, None));
            let opening = Opening::new(unit.lane, self.count, self.samples as u64, self.common.seed(), epoch);
            let lane = catch(|| self.pipeline.lane(&opening, cursor.as_ref()).map_err(BoxError::from));
            let mut open = Open {
                lane: None,
                units: at,
                over: false,
                waiting: Vec::new(),
                left: None,
                quiet: 0,
            };
            let failed = match lane {
                Ok(lane) => {
                    open.lane = Some(lane);
                    None
                }
                Err(error) => {
                    // Told once, and then it is at its end: who goes on asking gets there.
                    (open.units, open.over) = (unit.before + 1, true);
                    Some(error)
                }
            };
            kept.insert(unit.lane, open);
            if let Some(error) = failed {
                return Err(error);
            }
        }
        if let Some(open) = kept.get_mut(&unit.lane)
            && let Err(error) = self.catch_up(open, unit)
        {
            // The next turn begins anew.
            kept.remove(&unit.lane);
            return Err(error);
        }
        kept.get_mut(&unit.lane)
            .ok_or_else(|| (false, "a lane is missing".into()))
    }

    /// Reads again what was given before, to be where the turn is.
    fn catch_up(&self, open: &mut Open, unit: &Unit) -> Result<(), (bool, BoxError)> {
        while open.units < unit.before {
            let found = match open.unit(self.samples) {
                Ok(found) => found,
                // Of the moment, and so not one that was told then.
                Err((panic, error)) if error.downcast_ref().is_some_and(Failure::alone) => return Err((panic, error)),
                Err(_) => continue,
            };
            if found.len() < self.samples {
                if open.units <= unit.must {
                    let message = format!(
                        "the state was saved by another rank, and by its steps lane {} has given {} units, but it has only {} full ones: \
                         ranks had run out of data before that. {}",
                        unit.lane,
                        unit.must,
                        open.units - 1,
                        super::OWN
                    );
                    return Err((false, message.into()));
                }
                // Not given, then: it is left over.
                (open.left, open.units) = (Some(found), unit.before);
            }
        }
        Ok(())
    }

    fn turn(
        &self,
        kept: &mut HashMap<u64, Open>,
        worker: WorkerInfo,
        task: &Task<BatchJob>,
        turn: &Turn,
    ) -> Result<B, Error> {
        let task = &Task {
            position: turn.number,
            ..task.clone()
        };
        let mut taken = Taken::default();
        let batch = self.take(kept, worker, task, turn, &mut taken).and_then(|()| {
            let samples = std::mem::take(&mut taken.samples);
            let full = !samples.is_empty();
            full.then(|| self.common.collate(worker, task, samples)).transpose()
        });
        let Taken { rest, stands, .. } = taken;
        match batch {
            Ok(batch) => {
                let full = batch.is_some();
                turn.leave(Done { full, rest, stands });
                batch.ok_or_else(|| Error::bug("a turn without a batch"))
            }
            Err(error) => {
                // What is left over of other lanes was not in the batch that failed: it comes with their next turn.
                for (lane, found) in rest {
                    if let Some(open) = kept.get_mut(&lane) {
                        open.left = Some(found);
                    }
                }
                Err(error)
            }
        }
    }

    fn take(
        &self,
        kept: &mut HashMap<u64, Open>,
        worker: WorkerInfo,
        task: &Task<BatchJob>,
        turn: &Turn,
        taken: &mut Taken,
    ) -> Result<(), Error> {
        for unit in &turn.units {
            let open = self.open(kept, unit, task.job.epoch);
            let found = open.and_then(|open| Ok((open.unit(self.samples)?, open.cursor(self.timed))));
            let (found, cursor) = found.map_err(|(panic, source)| Error::Sample {
                index: usize::try_from(unit.before)
                    .unwrap_or(usize::MAX)
                    .saturating_mul(self.samples),
                position: task.position,
                worker: worker.id,
                panic,
                source,
            })?;
            if found.len() == self.samples {
                taken.samples.extend(found);
            } else {
                taken.rest.push((unit.lane, found));
            }
            taken.stands.push((unit.lane, unit.before + 1, cursor));
        }
        Ok(())
    }
}

/// The units of a turn.
#[derive(Default)]
struct Taken {
    /// Of full ones.
    samples: Vec<Value>,
    /// What is left over of lanes that have ended.
    rest: Vec<(u64, Vec<Value>)>,
    stands: Vec<(u64, u64, Option<State>)>,
}

impl<B> fmt::Debug for LaneWork<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneWork")
            .field("lanes", &self.count)
            .finish_non_exhaustive()
    }
}

impl<B: Send + 'static> Work for LaneWork<B> {
    type Job = BatchJob;
    type Part = ();
    type Output = Result<B, Error>;
    type Lane = HashMap<u64, Open>;

    const PRIVATE: bool = true;

    fn part(&self, _: WorkerInfo, _: &Task<BatchJob>, _: usize) {}

    fn finish(
        &self,
        worker: WorkerInfo,
        task: &Task<BatchJob>,
        _: Vec<()>,
        kept: &mut Option<Self::Lane>,
    ) -> Option<Self::Output> {
        let Some(turn) = &task.job.turn else {
            return Some(Err(Error::bug("a task of lanes has no turn")));
        };
        Some(self.turn(kept.get_or_insert_default(), worker, task, turn))
    }
}
