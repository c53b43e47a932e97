//! Several streams to one, by weight.

use std::collections::BTreeMap;

use super::count::IDLE;
use super::{Failure, Next, Opening, Origin, Place, Sample, Site, Stage, foreign, parent};
use crate::pipeline::spec::Pipeline;
use crate::pipeline::step::Weights;
use crate::state::State;

/// One of the streams that are mixed.
struct Stream {
    stage: Box<dyn Stage>,
    /// How often it was begun again.
    round: u64,
    /// It has nothing more in this round.
    ended: bool,
    /// It has ended once.
    over: bool,
    /// Elements of the round at hand.
    here: u64,
    /// Rounds before it in a row that have given nothing.
    idle: u64,
    /// With replacement, a lane that has no share of it draws from all of it: otherwise its weight would hold in the other lanes only.
    whole: bool,
    /// Elements that came of it.
    given: u64,
    /// How many were to be expected by the weights, among the streams that had not ended.
    expected: f64,
}

/// `mix`: each draw takes from one of the streams.
pub(super) struct Mixed {
    label: String,
    pipeline: Pipeline,
    weights: Weights,
    opening: Opening,
    draws: u64,
    streams: Vec<Stream>,
    /// The streams of the draw at hand, and their weights.
    live: Vec<(usize, f64)>,
}

impl Mixed {
    pub(super) fn open(site: &Site, weights: &Weights) -> Result<Self, Failure> {
        let mut opened = Self {
            label: site.label(),
            pipeline: site.pipeline.clone(),
            weights: weights.clone(),
            opening: site.opening.clone(),
            draws: site.number("draws")?,
            streams: Vec::new(),
            live: Vec::new(),
        };
        let count = site.node().inputs.len();
        let saved = match site.cursor {
            Some(cursor) => Some(cursor.list("streams")?),
            None => None,
        };
        if let Some(saved) = saved
            && saved.len() != count
        {
            let message = format!("the state has {} streams, the pipeline has {count}", saved.len());
            return Err(Failure::fatal(opened.label, message));
        }
        for at in 0..count {
            let state = saved.map(|saved| &saved[at]);
            let round = state.map_or(Ok(0), |state| state.number("round"))?;
            let cursor = state.map(|state| state.entry("input")).transpose()?;
            let flag = |key: &str| state.is_some_and(|state| state.get(key) == Some(&State::Bool(true)));
            let whole = flag("whole");
            opened.streams.push(Stream {
                stage: opened.begin(at, round, whole, cursor)?,
                whole,
                round,
                ended: flag("ended"),
                over: flag("over"),
                here: state.map_or(Ok(0), |state| state.number("here"))?,
                idle: state.map_or(Ok(0), |state| state.number("idle"))?,
                given: state.map_or(Ok(0), |state| state.number("given"))?,
                expected: f64::from_bits(state.map_or(Ok(0), |state| state.number("expected"))?),
            });
        }
        Ok(opened)
    }

    fn begin(&self, at: usize, round: u64, whole: bool, cursor: Option<&State>) -> Result<Box<dyn Stage>, Failure> {
        let site = Site {
            pipeline: &self.pipeline,
            opening: &self.opening,
            cursor: None,
        };
        let opening = self.opening.round(round);
        let opening = if whole { opening.sharing(0, 1) } else { opening };
        site.input_as(&opening, at, cursor)
    }

    /// This draw among those of all lanes, which take turns.
    fn overall(&self) -> u64 {
        self.draws.saturating_mul(self.opening.lanes)
    }

    /// The weights of this draw.
    fn current(&self) -> &[f64] {
        let overall = self.overall();
        let after = self.weights.schedule.partition_point(|(from, _)| *from <= overall);
        &self.weights.schedule[after.saturating_sub(1)].1
    }

    /// The stream of this draw; `None` at the end.
    fn pick(&mut self) -> Option<usize> {
        loop {
            let weights = self.current();
            if self.weights.replacement {
                let drawn = |at: usize| self.weights.schedule.iter().any(|(_, weights)| weights[at] > 0.0);
                if self
                    .streams
                    .iter()
                    .enumerate()
                    .all(|(at, stream)| stream.over || !drawn(at))
                {
                    return None;
                }
            }
            let live = weights
                .iter()
                .copied()
                .enumerate()
                .filter(|(at, weight)| !self.streams[*at].ended && *weight > 0.0)
                .collect();
            self.live = live;
            if self.live.is_empty() {
                // Those that are left have no weight yet.
                let left = self.streams.iter().any(|stream| !stream.ended);
                let next = self.weights.schedule.iter().find(|(from, _)| *from > self.overall());
                match next {
                    Some((from, _)) if left => {
                        self.draws = from.div_ceil(self.opening.lanes);
                        continue;
                    }
                    _ => return None,
                }
            }
            let total: f64 = self.live.iter().map(|(_, weight)| weight).sum();
            let mut at = self.opening.draw(self.draws).uniform() * total;
            for (stream, weight) in &self.live {
                at -= weight;
                if at < 0.0 {
                    return Some(*stream);
                }
            }
            return self.live.last().map(|(stream, _)| *stream);
        }
    }

    /// An element was drawn.
    fn expect(&mut self) {
        let total: f64 = self.live.iter().map(|(_, weight)| weight).sum();
        for (at, weight) in &self.live {
            self.streams[*at].expected += weight / total;
        }
    }
}

impl Stage for Mixed {
    fn next(&mut self) -> Next {
        while let Some(at) = self.pick() {
            let stream = &mut self.streams[at];
            if let Some(sample) = stream.stage.next()? {
                stream.here += 1;
                stream.given += 1;
                self.draws += 1;
                let round = u32::try_from(stream.round).unwrap_or(u32::MAX);
                self.expect();
                return Ok(Some(sample.within(round).within(number(at))));
            }
            stream.over = true;
            // What gives nothing is not begun again for ever.
            stream.idle = if stream.here > 0 { 0 } else { stream.idle + 1 };
            if !self.weights.replacement || stream.idle >= IDLE {
                stream.ended = true;
                continue;
            }
            stream.whole |= stream.given == 0;
            stream.here = 0;
            stream.round += 1;
            let (round, whole) = (stream.round, stream.whole);
            self.streams[at].stage = self.begin(at, round, whole, None)?;
        }
        Ok(None)
    }

    fn cursor(&self) -> State {
        let streams = self.streams.iter().map(|stream| {
            State::map([
                ("input", stream.stage.cursor()),
                ("round", stream.round.into()),
                ("ended", State::Bool(stream.ended)),
                ("over", State::Bool(stream.over)),
                ("here", stream.here.into()),
                ("idle", stream.idle.into()),
                ("whole", State::Bool(stream.whole)),
                ("given", stream.given.into()),
                ("expected", stream.expected.to_bits().into()),
            ])
        });
        State::map([
            ("draws", self.draws.into()),
            ("streams", State::List(streams.collect())),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        let Place::Child(inner, branch) = place else {
            return None;
        };
        self.streams.get_mut(*branch as usize)?.stage.origin(parent(inner))
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let mut wanted = Vec::with_capacity(places.len());
        for (k, place) in places.iter().enumerate() {
            let Place::Child(inner, branch) = place else {
                return Err(foreign(&self.label, place));
            };
            match &**inner {
                Place::Child(inner, round) if (*branch as usize) < self.streams.len() => {
                    wanted.push((*branch, *round, k, (**inner).clone()));
                }
                _ => return Err(foreign(&self.label, place)),
            }
        }
        wanted.sort_by_key(|(branch, round, k, _)| (*branch, *round, *k));
        let mut found: Vec<Option<Sample>> = vec![None; places.len()];
        for group in wanted.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (at, round) = (group[0].0 as usize, u64::from(group[0].1));
            let inner: Vec<Place> = group.iter().map(|(_, _, _, place)| place.clone()).collect();
            let samples = if self.streams[at].round == round {
                self.streams[at].stage.again(&inner)?
            } else {
                self.begin(at, round, self.streams[at].whole, None)?.again(&inner)?
            };
            for ((_, _, k, _), sample) in group.iter().zip(samples) {
                found[*k] = Some(sample.at(places[*k].clone()));
            }
        }
        found
            .into_iter()
            .zip(places)
            .map(|(sample, place)| sample.ok_or_else(|| foreign(&self.label, place)))
            .collect()
    }
}

/// What a mix has drawn.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Mix {
    /// Elements of each stream.
    pub given: Vec<u64>,
    /// How many of each were to be expected: the sum over the draws of its share in the weights, among streams that had not ended.
    pub expected: Vec<f64>,
}

/// What each mix has drawn, from the outermost one on: by a [`Lane::cursor`](super::Lane::cursor), or a loader's state, whose lanes are added
/// up. Elements that wait in the window of a shuffle behind it count as drawn.
pub fn mixed(state: &State) -> Vec<Mix> {
    let mut found = BTreeMap::new();
    collect(state, &mut Vec::new(), &mut found);
    found.into_values().collect()
}

/// By where they are in the definition.
fn collect(state: &State, path: &mut Vec<String>, found: &mut BTreeMap<(usize, Vec<String>), Mix>) {
    let mut within = |key: String, entry: &State| {
        path.push(key);
        collect(entry, path, found);
        path.pop();
    };
    match state {
        State::Map(entries) => {
            for (key, entry) in entries {
                match (key.as_str(), entry) {
                    // All lanes are of one definition.
                    ("lanes", State::List(lanes)) => lanes.iter().for_each(|lane| within("lanes".into(), lane)),
                    // Those of Python's loaders, by their numbers.
                    ("lanes", State::Map(lanes)) if lanes.keys().all(|lane| lane.parse::<u64>().is_ok()) => {
                        for lane in lanes.values() {
                            within("lanes".into(), lane);
                        }
                    }
                    _ => within(key.clone(), entry),
                }
            }
        }
        State::List(items) => {
            for (at, item) in items.iter().enumerate() {
                within(at.to_string(), item);
            }
        }
        _ => {}
    }
    if state.get("draws").is_some()
        && let Some(State::List(streams)) = state.get("streams")
    {
        let mix = found.entry((path.len(), path.clone())).or_default();
        mix.given.resize(streams.len(), 0);
        mix.expected.resize(streams.len(), 0.0);
        for (at, stream) in streams.iter().enumerate() {
            mix.given[at] += stream.number("given").unwrap_or_default();
            mix.expected[at] += f64::from_bits(stream.number("expected").unwrap_or_default());
        }
    }
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
