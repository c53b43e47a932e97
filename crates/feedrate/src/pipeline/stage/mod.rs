//! Running a definition: one file for each family of steps.

mod ahead;
mod batch;
mod cached;
mod count;
mod each;
mod fork;
mod gather;
mod indexed;
mod join;
mod maker;
mod mix;
mod packer;
mod pad;
mod source;
mod weigh;
mod window;

use std::fmt;

use super::Failure;
use super::sample::{Place, Sample};
use super::spec::{Node, Pipeline, fnv};
use super::step::Step;
use crate::pipeline::function::Call;
use crate::random::{Domain, Key, Keyed};
use crate::source::Columns;
use crate::state::State;

/// The shard and the record that an element comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) shard: String,
    pub(super) key: String,
}

/// What a step gives: an element, the end, or why there is none.
pub(super) type Next = Result<Option<Sample>, Failure>;

/// A step that runs. Used by one thread at a time.
pub(super) trait Stage: Send {
    /// The next element. After a failure that may be continued, the next call goes on with the element behind.
    fn next(&mut self) -> Next;

    /// Where the next element is made from. Taken up by opening the same definition with it.
    fn cursor(&self) -> State;

    /// Elements that this step gave before, made again, in this order. Does not move it.
    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure>;

    /// The next element, of which `known` may have what became of it, by its place: then it need not be made. True: it was known.
    fn next_known(
        &mut self,
        known: &mut dyn FnMut(&Place) -> Option<Sample>,
    ) -> Result<Option<(Sample, bool)>, Failure> {
        Ok(self.next()?.map(|sample| match known(&sample.place) {
            Some(kept) => (kept, true),
            None => (sample, false),
        }))
    }

    /// Where an element that this step gave is stored, for messages. Reads its record again for its name.
    fn origin(&mut self, place: &Place) -> Option<Origin>;

    /// Up to `rows` further elements as columns, where elements are stored so; `None` where they are not. At the end, no rows.
    fn columns(&mut self, rows: usize) -> Option<Result<(Columns, Place), Failure>> {
        let _ = rows;
        None
    }

    /// What [`columns`](Stage::columns) gave before, made again.
    fn columns_again(&mut self, place: &Place) -> Option<Result<Columns, Failure>> {
        let _ = place;
        None
    }
}

/// Which share of which epoch is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The lane, from 0.
    pub lane: u64,
    /// Number of lanes.
    pub lanes: u64,
    /// Elements that a lane gives before it is the next one's turn: where shares are dealt by elements, they are dealt in blocks of so
    /// many, so that the lanes' units in turn are the stored order.
    pub block: u64,
    /// The same where a fork reads, which has branches of different blocks: as the lanes give them.
    unit: u64,
    /// For all random steps.
    pub seed: u64,
    /// The pass over the data, from 0.
    pub epoch: u64,
    /// Number of the step that is opened; those behind a fork have numbers of their own.
    step: u64,
    /// For rounds of what is begun again: added to the epoch.
    rounds: u64,
    /// Functions draw the same numbers in every epoch: a cache lies behind.
    frozen: bool,
    /// Lane and number of lanes as they were asked for: a step that counts reads all in each.
    asked: (u64, u64),
    /// What branches of the same fork share.
    trunks: fork::Trunks,
}

impl Opening {
    /// One lane of several.
    pub fn new(lane: u64, lanes: u64, block: u64, seed: u64, epoch: u64) -> Self {
        Self {
            lane,
            lanes: lanes.max(1),
            block: block.max(1),
            unit: block.max(1),
            seed,
            epoch,
            step: 0,
            rounds: 0,
            frozen: false,
            asked: (lane, lanes),
            trunks: fork::Trunks::default(),
        }
    }

    /// All of it as one lane.
    pub fn whole(seed: u64, epoch: u64) -> Self {
        Self::new(0, 1, 1, seed, epoch)
    }

    /// The key of a random draw of this step: of `position` in this lane.
    fn draw(&self, position: u64) -> Keyed {
        self.key(self.lane << 40 | position).stream()
    }

    /// The key of this step, the same in all lanes.
    fn key(&self, position: u64) -> Key {
        Key {
            seed: self.seed,
            epoch: self.pass(),
            step: self.step,
            position,
            domain: Domain::Worker,
        }
    }

    /// What functions of this step are told, but for the place.
    fn call(&self) -> Call {
        Call {
            seed: self.seed,
            epoch: if self.frozen { 0 } else { self.pass() },
            step: self.step,
            place: 0,
        }
    }

    /// Number of the pass over the data: the epoch, and another one for each round of each `repeat` and mix that it lies in.
    fn pass(&self) -> u64 {
        self.epoch.wrapping_add(self.rounds)
    }

    /// Round `round` of what this step begins again.
    fn round(&self, round: u64) -> Self {
        let key = |number: u64| fnv([self.step, number].iter().flat_map(|part| part.to_le_bytes()));
        Self {
            rounds: match round {
                0 => self.rounds,
                round => self.rounds.wrapping_add(key(round)),
            },
            // Begun again alone: what branches shared in another round is not its own.
            trunks: fork::Trunks::default(),
            ..self.clone()
        }
    }

    fn sharing(&self, lane: u64, lanes: u64) -> Self {
        Self {
            lane,
            lanes,
            ..self.clone()
        }
    }
}

/// The definition of the step, for opening and for messages.
pub(super) struct Site<'a> {
    pipeline: &'a Pipeline,
    opening: &'a Opening,
    cursor: Option<&'a State>,
}

impl Site<'_> {
    fn node(&self) -> &Node {
        self.pipeline.node()
    }

    fn label(&self) -> String {
        self.node().label()
    }

    fn entry(&self, key: &str) -> Result<Option<&State>, Failure> {
        Ok(self.cursor.map(|cursor| cursor.entry(key)).transpose()?)
    }

    fn number(&self, key: &str) -> Result<u64, Failure> {
        Ok(self.cursor.map_or(Ok(0), |cursor| cursor.number(key))?)
    }

    fn flag(&self, key: &str) -> Result<bool, Failure> {
        Ok(matches!(self.entry(key)?, Some(State::Bool(true))))
    }

    fn places(&self, key: &str) -> Result<Vec<Place>, Failure> {
        match self.cursor {
            Some(cursor) => Ok(super::sample::from_text(cursor.text(key)?)?),
            None => Ok(Vec::new()),
        }
    }

    /// What waits to be reported, in order.
    fn failures(&self, key: &str) -> Result<std::vec::IntoIter<Failure>, Failure> {
        let saved = self.cursor.map_or(Ok(&[][..]), |cursor| cursor.list(key))?;
        let found: Result<Vec<_>, _> = saved.iter().map(Failure::of_state).collect();
        Ok(found?.into_iter())
    }

    /// Opens the only input, with the cursor's entry for it.
    fn input(&self) -> Result<Box<dyn Stage>, Failure> {
        self.input_as(self.opening, 0, self.entry("input")?)
    }

    /// Opens input `at` as a step of `opening`.
    fn input_as(&self, opening: &Opening, at: usize, cursor: Option<&State>) -> Result<Box<dyn Stage>, Failure> {
        let first: u64 = self.node().inputs[..at].iter().map(|input| input.node().size()).sum();
        let opening = Opening {
            step: opening.step + 1 + first,
            ..opening.clone()
        };
        self.node().inputs[at].open(&opening, cursor)
    }
}

/// Opens a step and all that it reads from.
pub(super) fn open(pipeline: &Pipeline, opening: &Opening, cursor: Option<&State>) -> Result<Box<dyn Stage>, Failure> {
    let node = pipeline.node();
    if node.step.counts() && opening.lanes > 1 {
        return count::shared(pipeline, opening, cursor);
    }
    let site = Site {
        pipeline,
        opening,
        cursor,
    };
    Ok(match &node.step {
        Step::Source { source, deal } => Box::new(source::Reading::open(&site, source, *deal, false)?),
        Step::ShuffleParts => {
            let Step::Source { source, deal } = &node.inputs[0].node().step else {
                return Err(Failure::fatal(node.label(), "it works on a source"));
            };
            Box::new(source::Reading::open(&site, source, *deal, true)?)
        }
        Step::ShuffleAll => {
            let Step::Source { source, .. } = &node.inputs[0].node().step else {
                return Err(Failure::fatal(node.label(), "it works on a source"));
            };
            Box::new(indexed::Shuffled::open(&site, source)?)
        }
        Step::Map(function) => Box::new(each::Mapping::open(&site, function)?),
        Step::Keep(function) => Box::new(each::Kept::open(&site, function)?),
        Step::Expand(function) => Box::new(each::Expanded::open(&site, function)?),
        Step::Select(fields) => Box::new(each::Selecting::open(&site, fields)?),
        Step::Without(fields) => Box::new(each::Leaving::open(&site, fields)?),
        Step::Shuffle(window) => Box::new(window::Shuffled::open(&site, *window)?),
        Step::SortWithin { window, by } => Box::new(window::Sorted::open(&site, *window, by)?),
        Step::Batch(batch) => Box::new(batch::Batched::open(&site, batch)?),
        Step::Unbatch => Box::new(batch::Unbatched::open(&site)?),
        Step::Pack(packing) => Box::new(packer::Packed::open(&site, packing)?),
        Step::Take(count) => Box::new(count::Taken::open(&site, *count)?),
        Step::Skip(count) => Box::new(count::Skipped::open(&site, *count)?),
        Step::Repeat(times) => Box::new(count::Repeated::open(&site, *times)?),
        Step::Concat => Box::new(join::Concatenated::open(&site)?),
        Step::Interleave(block) => Box::new(join::Interleaved::open(&site, *block)?),
        Step::Mix(weights) => Box::new(mix::Mixed::open(&site, weights)?),
        Step::Zip => Box::new(join::Zipped::open(&site)?),
        Step::Cache(cache) => Box::new(cached::Cached::open(&site, cache)?),
        Step::Prefetch(count) => Box::new(ahead::Prefetched::open(&site, *count)?),
        Step::Ready(count) => Box::new(ahead::Ready::open(&site, *count)?),
        Step::Gather(rule) => Box::new(gather::Gathered::open(&site, rule)?),
        Step::Branch(branch) => Box::new(fork::Branched::open(&site, branch)?),
    })
}

/// An independent, serial stream: one lane of a pipeline.
///
/// Used by one thread at a time; calls block while data is read.
pub struct Lane {
    stage: Box<dyn Stage>,
}

impl Lane {
    pub(super) fn new(stage: Box<dyn Stage>) -> Self {
        Self { stage }
    }

    /// The next element, `None` at the end. After a failure that [may be continued](Failure::may_continue), the next call
    /// goes on with the element behind it.
    #[expect(clippy::should_implement_trait, reason = "the end and failures, as readers have it")]
    pub fn next(&mut self) -> Result<Option<Sample>, Failure> {
        self.stage.next()
    }

    /// Where the next element is made from. A few numbers, and for windows and packing a few bytes for each element that waits in them.
    pub fn cursor(&self) -> State {
        self.stage.cursor()
    }

    /// Elements that this lane gave before, made again.
    pub fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.stage.again(places)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lane")
    }
}

/// The failure with where the element that `input` gave is stored.
fn blamed(mut failure: Failure, input: &mut dyn Stage, place: &Place) -> Failure {
    if let Some(origin) = input.origin(place) {
        failure.shard = Some(origin.shard);
        failure.key = Some(origin.key);
    }
    failure
}

/// What is inside a place that several elements came of.
fn parent(place: &Place) -> &Place {
    match place {
        Place::Child(inner, _) => inner,
        other => other,
    }
}

/// An element that is not of this step.
fn foreign(step: &str, place: &Place) -> Failure {
    Failure::fatal(
        step,
        format!("the state names {place:?}, which this step did not give: the pipeline is another one"),
    )
}

pub use ahead::{around_threads, stop_ahead};
pub use mix::{Mix, mixed};
