//! Several streams to one.

use super::{Failure, Next, Origin, Place, Sample, Site, Stage, foreign};
use crate::batch::Value;
use crate::pipeline::sample::to_text;
use crate::source::SourceError;
use crate::state::State;

/// The inputs of a step, with their numbers in places.
struct Inputs {
    label: String,
    stages: Vec<Box<dyn Stage>>,
    ended: Vec<bool>,
}

impl Inputs {
    fn open(site: &Site) -> Result<Self, Failure> {
        let cursors = match site.entry("inputs")? {
            Some(State::List(cursors)) => cursors.iter().map(Some).collect(),
            _ => vec![None; site.node().inputs.len()],
        };
        if cursors.len() != site.node().inputs.len() {
            let message = format!(
                "the state has {} streams, the pipeline has {}",
                cursors.len(),
                site.node().inputs.len()
            );
            return Err(Failure::fatal(site.label(), message));
        }
        let stages = cursors
            .into_iter()
            .enumerate()
            .map(|(at, cursor)| site.input_as(site.opening, at, cursor))
            .collect::<Result<Vec<_>, _>>()?;
        let mut ended = vec![false; stages.len()];
        if let Some(State::List(flags)) = site.entry("ended")? {
            for (ended, flag) in ended.iter_mut().zip(flags) {
                *ended = *flag == State::Bool(true);
            }
        }
        Ok(Self {
            label: site.label(),
            stages,
            ended,
        })
    }

    fn next(&mut self, at: usize) -> Next {
        if self.ended[at] {
            return Ok(None);
        }
        let Some(sample) = self.stages[at].next()? else {
            self.ended[at] = true;
            return Ok(None);
        };
        Ok(Some(sample.within(number(at))))
    }

    fn state(&self) -> [(&'static str, State); 2] {
        let inputs = self.stages.iter().map(|stage| stage.cursor()).collect();
        let ended = self.ended.iter().map(|ended| State::Bool(*ended)).collect();
        [("inputs", State::List(inputs)), ("ended", State::List(ended))]
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        let Place::Child(inner, branch) = place else {
            return None;
        };
        self.stages.get_mut(*branch as usize)?.origin(inner)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let stages = &mut self.stages;
        by_branch(stages.len(), &self.label, places, |at, inner| stages[at].again(inner))
    }
}

/// Elements made again by the one of `count` inputs that each came of.
pub(super) fn by_branch(
    count: usize,
    label: &str,
    places: &[Place],
    mut again: impl FnMut(usize, &[Place]) -> Result<Vec<Sample>, Failure>,
) -> Result<Vec<Sample>, Failure> {
    let mut found: Vec<Option<Sample>> = vec![None; places.len()];
    for at in 0..count {
        let mut mine = Vec::new();
        let mut inner = Vec::new();
        for (k, place) in places.iter().enumerate() {
            match place {
                Place::Child(place, branch) if *branch == number(at) => {
                    mine.push(k);
                    inner.push((**place).clone());
                }
                _ => {}
            }
        }
        if mine.is_empty() {
            continue;
        }
        for (k, sample) in mine.into_iter().zip(again(at, &inner)?) {
            found[k] = Some(sample.at(places[k].clone()));
        }
    }
    found
        .into_iter()
        .zip(places)
        .map(|(sample, place)| sample.ok_or_else(|| foreign(label, place)))
        .collect()
}

pub(super) fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// `concat`.
pub(super) struct Concatenated {
    inputs: Inputs,
    at: usize,
}

impl Concatenated {
    pub(super) fn open(site: &Site) -> Result<Self, Failure> {
        Ok(Self {
            inputs: Inputs::open(site)?,
            at: usize::try_from(site.number("at")?).unwrap_or(usize::MAX),
        })
    }
}

impl Stage for Concatenated {
    fn next(&mut self) -> Next {
        while self.at < self.inputs.stages.len() {
            if let Some(sample) = self.inputs.next(self.at)? {
                return Ok(Some(sample));
            }
            self.at += 1;
        }
        Ok(None)
    }

    fn cursor(&self) -> State {
        State::map(self.inputs.state().into_iter().chain([("at", (self.at as u64).into())]))
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.inputs.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.inputs.again(places)
    }
}

/// `interleave`: some of each in turn.
pub(super) struct Interleaved {
    inputs: Inputs,
    block: u64,
    at: usize,
    /// Elements that the stream at hand has given in this turn.
    given: u64,
}

impl Interleaved {
    pub(super) fn open(site: &Site, block: usize) -> Result<Self, Failure> {
        Ok(Self {
            at: usize::try_from(site.number("at")?).unwrap_or(0) % site.node().inputs.len().max(1),
            inputs: Inputs::open(site)?,
            block: block as u64,
            given: site.number("given")?,
        })
    }
}

impl Stage for Interleaved {
    fn next(&mut self) -> Next {
        let count = self.inputs.stages.len();
        let mut idle = 0;
        while idle < count {
            if self.given < self.block
                && let Some(sample) = self.inputs.next(self.at)?
            {
                self.given += 1;
                return Ok(Some(sample));
            }
            idle = if self.given == 0 { idle + 1 } else { 0 };
            self.at = (self.at + 1) % count;
            self.given = 0;
        }
        Ok(None)
    }

    fn cursor(&self) -> State {
        let here = [("at", (self.at as u64).into()), ("given", self.given.into())];
        State::map(self.inputs.state().into_iter().chain(here))
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.inputs.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.inputs.again(places)
    }
}

/// `zip`: one of each, as a list. A bad element takes those beside it along.
pub(super) struct Zipped {
    inputs: Inputs,
    /// Of the list at hand, as far as it has come: an interrupt in the middle of it, or a failure that passes, takes nothing along.
    taken: Vec<Taken>,
}

enum Taken {
    Found(Sample),
    Bad(Failure),
    /// A state names it.
    Place(Place),
}

impl Zipped {
    pub(super) fn open(site: &Site) -> Result<Self, Failure> {
        let inputs = Inputs::open(site)?;
        let mut taken = Vec::new();
        if site.cursor.is_some_and(|cursor| cursor.get("taken").is_some()) {
            let mut bad = site.failures("bad")?;
            for place in site.places("taken")? {
                let failure = (place == Place::nowhere()).then(|| bad.next()).flatten();
                taken.push(failure.map_or(Taken::Place(place), Taken::Bad));
            }
        }
        taken.truncate(inputs.stages.len());
        Ok(Self { inputs, taken })
    }
}

impl Stage for Zipped {
    fn next(&mut self) -> Next {
        let count = self.inputs.stages.len();
        while self.taken.len() < count {
            match self.inputs.next(self.taken.len()) {
                Ok(Some(sample)) => self.taken.push(Taken::Found(sample)),
                Ok(None) => {
                    // Those beside it have no partner.
                    let bad = self.taken.drain(..).find_map(|one| match one {
                        Taken::Bad(failure) => Some(failure),
                        _ => None,
                    });
                    return bad.map_or(Ok(None), Err);
                }
                Err(mut failure) => {
                    // What lies behind a reader that cannot go on is lost, nobody knows how much: nothing would belong together.
                    let reading = failure.source.downcast_ref::<SourceError>();
                    failure.may_continue &= reading.is_none_or(SourceError::may_continue);
                    if !failure.may_continue {
                        return Err(failure);
                    }
                    // All streams go on by one, so that they stay side by side.
                    self.taken.push(Taken::Bad(failure));
                }
            }
        }
        let (mut values, mut places) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for one in std::mem::take(&mut self.taken) {
            match one {
                Taken::Found(sample) => {
                    values.push(sample.value);
                    places.push(sample.place);
                }
                Taken::Bad(failure) => return Err(failure),
                Taken::Place(place) => {
                    let made = self.inputs.again(std::slice::from_ref(&place))?.pop();
                    values.push(made.ok_or_else(|| foreign(&self.inputs.label, &place))?.value);
                    places.push(place);
                }
            }
        }
        Ok(Some(Sample::new(Value::List(values), Place::Group(places))))
    }

    fn cursor(&self) -> State {
        if self.taken.is_empty() {
            return State::map(self.inputs.state());
        }
        let bad = Place::nowhere();
        let taken = self.taken.iter().map(|one| match one {
            Taken::Found(sample) => &sample.place,
            Taken::Bad(_) => &bad,
            Taken::Place(place) => place,
        });
        let failures = self.taken.iter().enumerate().filter_map(|(at, one)| match one {
            Taken::Bad(failure) => Some(failure.state(at)),
            _ => None,
        });
        let taken = [
            ("taken", State::from(to_text(taken))),
            ("bad", State::List(failures.collect())),
        ];
        State::map(self.inputs.state().into_iter().chain(taken))
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        match place {
            Place::Group(places) => self.inputs.origin(places.first()?),
            other => self.inputs.origin(other),
        }
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let width = self.inputs.stages.len();
        let mut all = Vec::with_capacity(places.len() * width);
        for place in places {
            match place {
                Place::Group(group) if group.len() == width => all.extend(group.iter().cloned()),
                other => return Err(foreign(&self.inputs.label, other)),
            }
        }
        let mut samples = self.inputs.again(&all)?.into_iter().map(|sample| sample.value);
        Ok(places
            .iter()
            .map(|place| Sample::new(Value::List(samples.by_ref().take(width).collect()), place.clone()))
            .collect())
    }
}
