//! Steps that count.

use super::{Failure, Next, Opening, Origin, Place, Sample, Site, Stage, foreign, parent};
use crate::pipeline::spec::Pipeline;
use crate::state::State;

/// A step that has to see all elements in one row, for one lane of several: the lane runs it whole and gives its share, in blocks.
pub(super) fn shared(
    pipeline: &Pipeline,
    opening: &Opening,
    cursor: Option<&State>,
) -> Result<Box<dyn Stage>, Failure> {
    let whole = opening.sharing(0, 1);
    let given = cursor.map_or(Ok(0), |cursor| cursor.number("given"))?;
    let inner = cursor.map(|cursor| cursor.entry("whole")).transpose()?;
    Ok(Box::new(Strided {
        inner: super::open(pipeline, &whole, inner)?,
        opening: opening.clone(),
        given,
        lost: false,
    }))
}

struct Strided {
    inner: Box<dyn Stage>,
    opening: Opening,
    /// Elements of all lanes so far.
    given: u64,
    /// It failed where other lanes did not: it does not know any more which elements are its own.
    lost: bool,
}

impl Stage for Strided {
    fn next(&mut self) -> Next {
        if self.lost {
            let message = "it failed in this lane alone, and lanes that share a step that counts have to see the same elements: go on from \
                           the last state";
            return Err(Failure::fatal("a step that counts", message));
        }
        loop {
            let lane = (self.given / self.opening.block) % self.opening.lanes;
            let mine = lane == self.opening.lane;
            let found = self.inner.next();
            if matches!(found, Ok(Some(_))) {
                self.given += 1;
            }
            match found {
                Ok(Some(_)) if !mine => {}
                Err(failure) if failure.alone() => {
                    self.lost = true;
                    return Err(failure);
                }
                // Whoever's turn it is reports it.
                Err(failure) if failure.may_continue && !mine => {}
                found => return found,
            }
        }
    }

    fn cursor(&self) -> State {
        State::map([("whole", self.inner.cursor()), ("given", self.given.into())])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.inner.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.inner.again(places)
    }
}

/// `take`.
pub(super) struct Taken {
    input: Box<dyn Stage>,
    left: u64,
}

impl Taken {
    pub(super) fn open(site: &Site, count: u64) -> Result<Self, Failure> {
        Ok(Self {
            input: site.input()?,
            left: if site.cursor.is_some() {
                site.number("left")?
            } else {
                count
            },
        })
    }
}

impl Stage for Taken {
    fn next(&mut self) -> Next {
        if self.left == 0 {
            return Ok(None);
        }
        let found = self.input.next()?;
        if found.is_some() {
            self.left -= 1;
        }
        Ok(found)
    }

    fn cursor(&self) -> State {
        State::map([("input", self.input.cursor()), ("left", self.left.into())])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.input.again(places)
    }
}

/// `skip`.
pub(super) struct Skipped {
    input: Box<dyn Stage>,
    left: u64,
}

impl Skipped {
    pub(super) fn open(site: &Site, count: u64) -> Result<Self, Failure> {
        Ok(Self {
            input: site.input()?,
            left: if site.cursor.is_some() {
                site.number("left")?
            } else {
                count
            },
        })
    }
}

impl Stage for Skipped {
    fn next(&mut self) -> Next {
        while self.left > 0 {
            match self.input.next()? {
                Some(_) => self.left -= 1,
                None => return Ok(None),
            }
        }
        self.input.next()
    }

    fn cursor(&self) -> State {
        State::map([("input", self.input.cursor()), ("left", self.left.into())])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.input.again(places)
    }
}

/// Rounds in a row of an endless `repeat` that give nothing, behind which it ends: repeating nothing for ever ends, and a filter that draws
/// may leave all out of a round, above all where lanes have few elements each.
pub(super) const IDLE: u64 = 16;
/// The same where the number of rounds is given: all are made, but for nothing.
const IDLE_OF_MANY: u64 = 1000;

/// `repeat`: rounds one after the other.
pub(super) struct Repeated {
    pipeline: Pipeline,
    opening: Opening,
    input: Box<dyn Stage>,
    times: Option<u64>,
    round: u64,
    /// The round has given something.
    any: bool,
    /// Rounds before it in a row that have given nothing.
    idle: u64,
    over: bool,
}

impl Repeated {
    pub(super) fn open(site: &Site, times: Option<u64>) -> Result<Self, Failure> {
        let round = site.number("round")?;
        let input = Self::round(site.pipeline, site.opening, round, site.entry("input")?)?;
        Ok(Self {
            pipeline: site.pipeline.clone(),
            opening: site.opening.clone(),
            input,
            times,
            round,
            any: site.flag("any")?,
            idle: site.number("idle")?,
            over: site.flag("over")? || times == Some(0),
        })
    }

    fn round(
        pipeline: &Pipeline,
        opening: &Opening,
        round: u64,
        cursor: Option<&State>,
    ) -> Result<Box<dyn Stage>, Failure> {
        let site = Site {
            pipeline,
            opening,
            cursor: None,
        };
        site.input_as(&opening.round(round), 0, cursor)
    }
}

impl Stage for Repeated {
    fn next(&mut self) -> Next {
        while !self.over {
            if let Some(sample) = self.input.next()? {
                self.any = true;
                let round = u32::try_from(self.round).unwrap_or(u32::MAX);
                return Ok(Some(sample.within(round)));
            }
            self.idle = if self.any { 0 } else { self.idle + 1 };
            let (more, most) = match self.times {
                Some(times) => (self.round + 1 < times, IDLE_OF_MANY),
                None => (true, IDLE),
            };
            if !more || self.idle >= most {
                self.over = true;
                break;
            }
            self.round += 1;
            self.any = false;
            self.input = Self::round(&self.pipeline, &self.opening, self.round, None)?;
        }
        Ok(None)
    }

    fn cursor(&self) -> State {
        State::map([
            ("input", self.input.cursor()),
            ("round", self.round.into()),
            ("any", State::Bool(self.any)),
            ("idle", self.idle.into()),
            ("over", State::Bool(self.over)),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(parent(place))
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let mut found: Vec<Option<Sample>> = vec![None; places.len()];
        let mut rounds: Vec<(u64, usize, Place)> = Vec::with_capacity(places.len());
        for (at, place) in places.iter().enumerate() {
            match place {
                Place::Child(inner, round) => rounds.push((u64::from(*round), at, (**inner).clone())),
                other => return Err(foreign("repeat", other)),
            }
        }
        rounds.sort_by_key(|(round, at, _)| (*round, *at));
        for group in rounds.chunk_by(|a, b| a.0 == b.0) {
            let round = group[0].0;
            let inner: Vec<Place> = group.iter().map(|(_, _, place)| place.clone()).collect();
            let samples = if round == self.round {
                self.input.again(&inner)?
            } else {
                Self::round(&self.pipeline, &self.opening, round, None)?.again(&inner)?
            };
            for ((_, at, _), sample) in group.iter().zip(samples) {
                found[*at] = Some(sample.at(places[*at].clone()));
            }
        }
        found
            .into_iter()
            .zip(places)
            .map(|(sample, place)| sample.ok_or_else(|| foreign("repeat", place)))
            .collect()
    }
}
