//! Pipelines in a loader: the plan over lanes, what is handed over, and what is left over at the lanes' ends.
//!
//! One step takes a unit of samples from each lane of a row, and the next step from the next row. Which samples a unit holds depends on
//! nothing but the pipeline, its seed and the epoch; which thread does the work decides nothing.

mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

pub use work::LaneWork;

use super::plan::{Jobs, Progress};
use super::resume::COUNT;
use super::source::{Cut, Samples, Tail, sealed};
use super::{Builder, DataLoader};
use crate::batch::{Allocator, Value};
use crate::dataset::WorkerInfo;
use crate::error::Error;
use crate::pipeline::Pipeline;
use crate::plan::Task;
use crate::state::State;
use crate::work::{BatchJob, Collate, Common, Done, Turn, Unit};

/// What can be done about a state of another rank.
pub(super) const OWN: &str = "Near the end of an epoch load the state that this rank has saved itself, with as many ranks, or one from earlier in the epoch";

/// Lanes at most: a state names each of them.
const MOST: u64 = 1 << 20;

/// Rows where nobody says: as many workers can read at a time.
const ROWS: u64 = 8;

/// A [`Pipeline`], cut into lanes; from [`DataLoader::pipeline`].
#[derive(Debug)]
pub struct LaneSource {
    pipeline: Pipeline,
    rows: Option<u64>,
    units: Option<u64>,
    rank: u64,
    world: u64,
}

impl DataLoader<()> {
    /// Begins a loader for the elements of a pipeline.
    ///
    /// The pipeline is cut into lanes, which the workers advance in turn: nothing comes twice, nothing is lost, and the order depends on the
    /// pipeline, the seed and the epoch alone, whatever the number of threads. [`state`](DataLoader::state) holds the lanes' positions, no data,
    /// and another number of threads goes on from it exactly. Elements that are left over when lanes end become the last batches, so that only
    /// the very last one is short. Threads only: there are no processes for it.
    ///
    /// ```
    /// use feedrate::DataLoader;
    /// use feedrate::batch::Value;
    /// use feedrate::pipeline::Pipeline;
    ///
    /// let even = Pipeline::items("numbers", (0..100_i64).map(Into::into))
    ///     .keep("even", |value, _| Ok(matches!(value, Value::Int(x) if x % 2 == 0)))
    ///     .shuffle(16);
    /// let build = || DataLoader::pipeline(even.clone()).batch_size(4).seed(1);
    /// let mut loader = build().threads(2).build()?;
    /// let mut epoch = loader.iter()?;
    /// let begun: Vec<_> = epoch.by_ref().take(5).collect::<Result<_, _>>()?;
    /// let saved = epoch.state()?;
    /// let rest: Vec<_> = epoch.collect::<Result<_, _>>()?;
    ///
    /// let mut resumed = build().inline().resume(saved).build()?;
    /// assert_eq!(resumed.iter()?.collect::<Result<Vec<_>, _>>()?, rest);
    /// assert_eq!(begun.len() + rest.len(), 13);
    /// # Ok::<(), feedrate::Error>(())
    /// ```
    pub fn pipeline(pipeline: Pipeline) -> Builder<LaneSource, Vec<Value>> {
        Builder::over(LaneSource {
            pipeline,
            rows: None,
            units: None,
            rank: 0,
            world: 1,
        })
    }
}

impl<B: Send + 'static> Builder<LaneSource, B> {
    /// How many lanes take turns (default 8, or 1 where a step counts all elements in one row), and the units of a batch over all ranks
    /// (default: one for each rank). Both are part of what a state was made with; the number of ranks is not, as long as it divides the units.
    #[must_use]
    pub fn lanes(mut self, rows: usize, units: usize) -> Self {
        self.source.rows = Some(rows as u64);
        self.source.units = Some(units as u64);
        self
    }

    /// This loader gives the share of rank `rank` of `world`. Lanes end where their data does, so ranks may have different numbers of steps.
    #[must_use]
    pub fn rank(mut self, rank: usize, world: usize) -> Self {
        self.source.rank = rank as u64;
        self.source.world = world as u64;
        self
    }
}

/// How a loader cuts a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    rows: u64,
    /// In a step, over all ranks.
    units: u64,
    /// Samples in a unit.
    samples: usize,
    rank: u64,
    world: u64,
}

impl Shape {
    /// The units of this rank's batch.
    fn mine(&self) -> Range<u64> {
        let each = self.units / self.world;
        self.rank * each..(self.rank + 1) * each
    }

    fn row(&self, row: u64) -> impl Iterator<Item = u64> {
        let units = self.units;
        self.mine().map(move |column| row * units + column)
    }
}

impl LaneSource {
    fn shape(&self, cut: &Cut) -> Result<Shape, Error> {
        let Self { rank, world, .. } = *self;
        if rank >= world {
            return Err(Error::config(format!("rank {rank} of {world}: ranks count from 0")));
        }
        let units = self.units.unwrap_or(world);
        if units == 0 || self.rows == Some(0) {
            return Err(Error::config("lanes() needs at least one row and one unit"));
        }
        if self
            .rows
            .unwrap_or(ROWS)
            .checked_mul(units)
            .is_none_or(|lanes| lanes > MOST)
        {
            return Err(Error::config(format!(
                "lanes({}, {units}): there can be at most {MOST} lanes",
                self.rows.unwrap_or(ROWS)
            )));
        }
        if !units.is_multiple_of(world) {
            let legal: Vec<u64> = (1..=units).filter(|ranks| units.is_multiple_of(*ranks)).collect();
            return Err(Error::config(format!(
                "a step has {units} units, and there are {world} ranks: each rank takes an equal number of units, so the number of ranks \
                 can be one of {legal:?}; or use lanes() with {world} units"
            )));
        }
        let (size, each) = (cut.size()?, units / world);
        let samples = size as u64 / each;
        if samples * each != size as u64 {
            return Err(Error::config(format!(
                "a batch of {size} cannot be made of {each} equal units: use a batch_size that {each} divides, or other units in lanes()"
            )));
        }
        let timed = self.pipeline.timed().is_some();
        let rows = self.rows.unwrap_or(if timed || self.pipeline.serial().is_some() {
            1
        } else {
            ROWS
        });
        Ok(Shape {
            rows,
            units,
            samples: usize::try_from(samples).unwrap_or(usize::MAX),
            rank,
            world,
        })
    }
}

impl sealed::Sealed for LaneSource {}

impl Samples for LaneSource {
    type Item = Value;
    type Work<B: Send + 'static> = LaneWork<B>;

    const STREAM: bool = false;
    const SERIAL: bool = true;

    fn refuses(&self, inline: bool) -> Result<(), Error> {
        match self.pipeline.timed() {
            Some(step) if !inline || self.world > 1 => Err(Error::config(format!(
                "the pipeline has a step {step}, whose order no other worker and no other rank can repeat: use inline() and one rank, or \
                 interleave() or mix() instead of ready()"
            ))),
            _ => Ok(()),
        }
    }

    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn work<B: Send + 'static>(
        &self,
        collate: Collate<Value, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
        cut: &Cut,
    ) -> Result<LaneWork<B>, Error> {
        let shape = self.shape(cut)?;
        let common = Common::new(collate, allocator, seed);
        Ok(LaneWork::new(
            self.pipeline.clone(),
            common,
            shape.rows * shape.units,
            shape.samples,
        ))
    }

    fn tail<B: Send + 'static>(
        &self,
        collate: Collate<Value, B>,
        allocator: Arc<dyn Allocator>,
        seed: u64,
    ) -> Option<Tail<B>> {
        let common = Common::new(collate, allocator, seed);
        Some(Box::new(move |samples, epoch, position| {
            let job = BatchJob {
                epoch,
                ..BatchJob::default()
            };
            let task = Task {
                epoch: 0,
                position,
                job: Arc::new(job),
            };
            common.collate(WorkerInfo::default(), &task, samples)
        }))
    }

    #[expect(private_interfaces, reason = "the trait is sealed")]
    fn jobs(self, cut: &Cut, _: u64) -> Result<Jobs, Error> {
        let shape = self.shape(cut)?;
        let fingerprint = format!("{:016x}", self.pipeline.fingerprint());
        Ok(Jobs::Lanes(LaneJobs {
            shape,
            fingerprint: fingerprint.into(),
            pipeline: self.pipeline,
            data: Arc::default(),
            drop_last: cut.drop_last,
        }))
    }
}

/// What the epochs of a loader over a pipeline have in common.
#[derive(Debug, Clone)]
pub(super) struct LaneJobs {
    shape: Shape,
    fingerprint: Arc<str>,
    pipeline: Pipeline,
    /// What [`LaneJobs::data`] has found.
    data: Arc<OnceLock<State>>,
    drop_last: bool,
}

/// What a state knows of an epoch under way.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// Turns of which the samples were handed over, where nothing else is known of a lane.
    turns: u64,
    lanes: BTreeMap<u64, Stand>,
    /// Batches of what was left over that were handed over.
    tail: u64,
}

/// Where a lane is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stand {
    /// Units handed over.
    units: u64,
    /// Of those, behind the cursor.
    since: u64,
    /// `None` is the start.
    cursor: Option<State>,
    /// It is where it was when something was known of it: another rank has it.
    old: bool,
}

impl LaneJobs {
    /// The fingerprint of the files, found when a state first asks for it; null where they cannot be listed, which reading them will tell.
    fn data(&self) -> &State {
        self.data.get_or_init(|| match self.pipeline.data_fingerprint() {
            Ok(data) => State::Text(format!("{data:016x}")),
            Err(_) => State::Null,
        })
    }

    /// The steps of the pipeline, a line each; of a step that lists thousands of files the front.
    fn steps(&self) -> State {
        const LINE: usize = 300;
        let text = self.pipeline.to_string();
        let lines = text.lines().map(|line| match line.char_indices().nth(LINE) {
            Some((end, _)) => State::Text(format!("{}…", &line[..end])),
            None => line.into(),
        });
        State::List(lines.collect())
    }

    /// The steps of the state's pipeline and of this one, where the state has them.
    fn differences(&self, state: &State) -> String {
        let lines = |steps: &State| match steps {
            State::List(lines) => lines
                .iter()
                .map(|line| format!("\n  {line}"))
                .collect::<Vec<_>>()
                .concat(),
            _ => String::new(),
        };
        state.get("steps").map_or_else(String::new, |there| {
            format!(". Steps in the state:{}\nhere:{}", lines(there), lines(&self.steps()))
        })
    }

    /// Reads a state that [`LaneProgress::state`] wrote. Refuses one of other lanes.
    pub(super) fn read(&self, state: &State) -> Result<Saved, Error> {
        let fix = format!("build the loader over the same pipeline{}", self.differences(state));
        state.must_be("pipeline", &*self.fingerprint, "fingerprint of the pipeline", &fix)?;
        // States of earlier builds have none.
        if state.entry("data").is_ok_and(|data| *data != State::Null) && *self.data() != State::Null {
            let fix = "use the files with which the state was made: their names and sizes must be the same";
            state.must_be("data", self.data().clone(), "fingerprint of the files", fix)?;
        }
        let Shape {
            rows,
            units,
            samples,
            world,
            ..
        } = self.shape;
        state.must_be("rows", rows, "rows", "build the loader with lanes() of as many rows")?;
        state.must_be(
            "units",
            units,
            "units of a step",
            "build the loader with lanes() of as many units",
        )?;
        let fix = "use the batch_size with which the state was made, over all ranks";
        state.must_be("samples", samples, "samples in a unit", fix)?;
        let tail = state.number("tail")?;
        if tail > 0 {
            let fix = "the state was saved among the samples that are left over: use the same number of ranks for the rest of the epoch";
            state.must_be("world", world, "ranks", fix)?;
        }
        let mut lanes = BTreeMap::new();
        for entry in state.list("lanes")? {
            let cursor = match entry.entry("cursor")? {
                State::Null => None,
                cursor => Some(cursor.clone()),
            };
            let stand = Stand {
                units: entry.number("units")?,
                since: entry.number("since")?,
                cursor,
                old: entry.get("old") == Some(&State::Bool(true)),
            };
            let lane = entry.number("lane")?;
            if lane >= rows * units || stand.since > stand.units || stand.units > COUNT {
                return Err(Error::state(format!(
                    "a lane {lane} with {stand:?}: the state is damaged"
                )));
            }
            lanes.insert(lane, stand);
        }
        let dry = state.get("dry") == Some(&State::Bool(true));
        let known = |lane: u64| lanes.get(&lane).is_some_and(|stand| !stand.old);
        if dry && let Some(lane) = (0..rows).flat_map(|row| self.shape.row(row)).find(|lane| !known(*lane)) {
            return Err(Error::state(format!(
                "the state was saved by another rank, after lanes of its own had run out: where lane {lane} of this rank was then is not known \
                 any more. {OWN}"
            )));
        }
        let turns = state.number("turns")?;
        if turns > COUNT {
            return Err(Error::state(format!(
                "{turns} turns are more than an epoch has: resume with what `state` gave, unchanged"
            )));
        }
        Ok(Saved { turns, lanes, tail })
    }
}

/// Plans the turns of an epoch.
#[derive(Debug)]
pub(super) struct LanePlan {
    shape: Shape,
    /// The next turn.
    turn: u64,
    /// By lane: units that are planned or were given before.
    planned: BTreeMap<u64, u64>,
    /// Lanes of which a first unit was planned.
    begun: BTreeSet<u64>,
    position: u64,
}

impl LanePlan {
    pub(super) fn new(jobs: &LaneJobs, progress: &LaneProgress) -> Self {
        let planned: BTreeMap<u64, u64> = progress
            .stands
            .iter()
            .map(|(lane, stand)| (*lane, stand.units))
            .collect();
        let rows = jobs.shape.rows;
        let lanes = (0..rows).flat_map(|row| jobs.shape.row(row));
        let given = |lane: u64| planned.get(&lane).copied().unwrap_or(0);
        Self {
            shape: jobs.shape,
            // All before were given.
            turn: lanes.map(given).min().unwrap_or(0).saturating_mul(rows),
            planned,
            begun: BTreeSet::new(),
            position: 0,
        }
    }

    pub(super) fn next(&mut self, epoch: u64, progress: &Mutex<Progress>) -> Option<BatchJob> {
        let mut progress = super::lock(progress);
        let progress = progress.lanes.as_mut()?;
        while (progress.dry.len() as u64) < self.shape.rows {
            let (row, number) = (self.turn % self.shape.rows, self.turn / self.shape.rows);
            self.turn += 1;
            if progress.dry.contains(&row) {
                continue;
            }
            let mut units = Vec::new();
            for lane in self.shape.row(row) {
                let planned = self.planned.entry(lane).or_default();
                if *planned > number {
                    continue;
                }
                *planned = number + 1;
                let stand = progress.stands.get(&lane).filter(|_| !self.begun.contains(&lane));
                let placed = progress.placed.get(&lane).filter(|_| !self.begun.contains(&lane));
                self.begun.insert(lane);
                units.push(Unit {
                    lane,
                    before: number,
                    begin: stand.map(|stand| (stand.units - stand.since, stand.cursor.clone())),
                    must: placed.copied().unwrap_or(0),
                });
            }
            if units.is_empty() {
                continue;
            }
            let turn = Arc::new(Turn::new(self.turn - 1, row, units));
            progress.planned.push_back((self.position, Arc::clone(&turn)));
            self.position += 1;
            return Some(BatchJob {
                epoch,
                turn: Some(turn),
                ..BatchJob::default()
            });
        }
        None
    }
}

/// Where the lanes of an epoch are.
pub(super) struct LaneProgress {
    jobs: LaneJobs,
    turns: u64,
    /// Of all lanes that are known, those of other ranks too.
    stands: BTreeMap<u64, Stand>,
    /// Lanes that are where the number of turns says, and units that they must have had.
    placed: BTreeMap<u64, u64>,
    tail: u64,
    /// Rows whose lanes of this rank have all ended.
    dry: BTreeSet<u64>,
    /// Turns that were planned and whose results were not seen, by their positions.
    planned: VecDeque<(u64, Arc<Turn>)>,
    /// Samples of lanes that have ended, which no batch holds yet.
    rest: BTreeMap<u64, Vec<Value>>,
    /// The last batches, once all lanes have ended.
    last: Option<VecDeque<Vec<Value>>>,
}

/// What the result of a turn is.
pub(super) enum Seen {
    /// A batch, or an error of the user's.
    Output,
    /// No batch: the units were not full.
    Nothing,
}

impl LaneProgress {
    pub(super) fn new(jobs: &LaneJobs, saved: &Saved) -> Self {
        let mut stands = saved.lanes.clone();
        let mut placed = BTreeMap::new();
        let shape = jobs.shape;
        // Nothing is known of other ranks' lanes but that they were in step, and perhaps where they once were: they are read again up to
        // there.
        for row in (0..shape.rows).filter(|_| saved.turns > 0) {
            let before = saved.turns / shape.rows + u64::from(row < saved.turns % shape.rows);
            for lane in shape.row(row).filter(|_| before > 0) {
                let known = saved.lanes.get(&lane);
                if known.is_some_and(|stand| !stand.old) {
                    continue;
                }
                let from = known.map(|stand| (stand.units - stand.since, stand.cursor.clone()));
                let (at, cursor) = from.filter(|(at, _)| *at <= before).unwrap_or_default();
                placed.insert(lane, before);
                stands.insert(
                    lane,
                    Stand {
                        units: before,
                        since: before - at,
                        cursor,
                        old: false,
                    },
                );
            }
        }
        Self {
            jobs: jobs.clone(),
            turns: saved.turns,
            stands,
            placed,
            tail: saved.tail,
            dry: BTreeSet::new(),
            planned: VecDeque::new(),
            rest: BTreeMap::new(),
            last: None,
        }
    }

    /// The turn at this position came back.
    pub(super) fn seen(&mut self, position: u64) -> Seen {
        let Some(at) = self.planned.iter().position(|(there, _)| *there == position) else {
            return Seen::Output;
        };
        let Some((_, turn)) = self.planned.remove(at) else {
            return Seen::Output;
        };
        let Some(Done { full, rest, stands }) = turn.take() else {
            // It failed: its units count as given, and what was in them comes with the next ones.
            for unit in &turn.units {
                self.hand_over(unit.lane, unit.before + 1, None);
            }
            return Seen::Output;
        };
        let short: Vec<u64> = rest.iter().map(|(lane, _)| *lane).collect();
        for (lane, samples) in rest {
            // Not handed over: a state has to bring it again. Turns that were planned meanwhile find nothing.
            self.rest.entry(lane).or_insert(samples);
        }
        if !short.is_empty() && self.jobs.shape.row(turn.row).all(|lane| self.rest.contains_key(&lane)) {
            self.dry.insert(turn.row);
        }
        if !full {
            return Seen::Nothing;
        }
        for (lane, units, cursor) in stands {
            if !short.contains(&lane) {
                self.hand_over(lane, units, cursor);
            }
        }
        Seen::Output
    }

    fn hand_over(&mut self, lane: u64, units: u64, cursor: Option<State>) {
        let shape = self.jobs.shape;
        let stand = self.stands.entry(lane).or_insert(Stand {
            units: 0,
            since: 0,
            cursor: None,
            old: false,
        });
        stand.since = match &cursor {
            Some(_) => 0,
            None => stand.since + units.saturating_sub(stand.units),
        };
        stand.units = units;
        if cursor.is_some() {
            stand.cursor = cursor;
        }
        self.turns = self.turns.max((units - 1) * shape.rows + lane / shape.units + 1);
    }

    /// When all lanes have ended: the samples of the next of the last batches, and its position behind those of the turns.
    pub(super) fn last(&mut self) -> Option<(Vec<Value>, u64)> {
        if self.last.is_none() {
            let mut batches = self.last_batches();
            let given = usize::try_from(self.tail).unwrap_or(usize::MAX).min(batches.len());
            batches.drain(..given);
            self.last = Some(batches);
        }
        let samples = self.last.as_mut()?.pop_front()?;
        self.tail += 1;
        Some((samples, self.turns + self.tail - 1))
    }

    /// What is left over, by columns: the same on any number of ranks.
    fn last_batches(&mut self) -> VecDeque<Vec<Value>> {
        let shape = self.jobs.shape;
        let size = shape.samples;
        let mut columns: Vec<VecDeque<Value>> = Vec::new();
        for column in shape.mine() {
            let lanes = (0..shape.rows).map(|row| row * shape.units + column);
            let left = lanes.filter_map(|lane| self.rest.remove(&lane)).flatten();
            columns.push(left.collect());
        }
        let whole = columns.len().saturating_mul(size);
        let mut batches = VecDeque::new();
        while columns.iter().any(|column| !column.is_empty()) {
            let there: usize = columns.iter().map(VecDeque::len).sum();
            let mut batch = Vec::with_capacity(whole.min(there));
            for column in &mut columns {
                batch.extend(column.drain(..size.min(column.len())));
            }
            if batch.len() == whole || !self.jobs.drop_last {
                batches.push_back(batch);
            }
        }
        batches
    }

    /// Where the lanes stand: positions, and no data.
    pub(super) fn state(&self) -> State {
        let shape = self.jobs.shape;
        // Lanes of this rank that have given nothing are known all the same.
        let mut stands = self.stands.clone();
        for lane in (0..shape.rows).flat_map(|row| shape.row(row)) {
            stands.entry(lane).or_insert(Stand {
                units: 0,
                since: 0,
                cursor: None,
                old: false,
            });
        }
        let lanes = stands.iter().map(|(lane, stand)| {
            State::map([
                ("lane", (*lane).into()),
                ("units", stand.units.into()),
                ("since", stand.since.into()),
                ("cursor", stand.cursor.clone().unwrap_or(State::Null)),
                ("old", State::Bool(!shape.mine().contains(&(lane % shape.units)))),
            ])
        });
        let Shape {
            rows,
            units,
            samples,
            world,
            ..
        } = self.jobs.shape;
        State::map([
            ("pipeline", (&*self.jobs.fingerprint).into()),
            ("data", self.jobs.data().clone()),
            ("steps", self.jobs.steps()),
            ("rows", rows.into()),
            ("units", units.into()),
            ("samples", samples.into()),
            ("world", world.into()),
            ("turns", self.turns.into()),
            ("tail", self.tail.into()),
            ("dry", State::Bool(!self.dry.is_empty())),
            ("lanes", State::List(lanes.collect())),
        ])
    }
}

impl fmt::Debug for LaneProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneProgress")
            .field("turns", &self.turns)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}
