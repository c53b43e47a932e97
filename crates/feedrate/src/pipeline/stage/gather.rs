//! Batches whose size depends on what is in them: buckets of similar elements, and budgets.

use super::maker::Maker;
use super::weigh::Scale;
use super::{Failure, Next, Origin, Place, Sample, Site, Stage, blamed, foreign};
use crate::pipeline::gather::{Gather, Oversize, Rule};
use crate::pipeline::sample::to_text;
use crate::state::State;

/// An element and its number.
struct Weighed {
    sample: Sample,
    weight: f64,
}

/// Elements that wait, and what they weigh.
struct Group {
    waiting: Vec<Weighed>,
    sum: f64,
    heaviest: f64,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            sum: 0.0,
            heaviest: f64::NEG_INFINITY,
        }
    }
}

impl Group {
    fn push(&mut self, element: Weighed) {
        self.sum += element.weight;
        self.heaviest = self.heaviest.max(element.weight);
        self.waiting.push(element);
    }

    fn take(&mut self) -> Vec<Weighed> {
        std::mem::take(self).waiting
    }
}

pub(super) struct Gathered {
    input: Box<dyn Stage>,
    maker: Maker,
    scale: Scale,
    gather: Gather,
    /// Elements that wait: one group for each bucket, or the one that a budget fills.
    groups: Vec<Group>,
    /// The input has ended: what waits is given as it is.
    ended: bool,
}

impl Gathered {
    pub(super) fn open(site: &Site, gather: &Gather) -> Result<Self, Failure> {
        let inner = super::Opening {
            block: site.opening.block.saturating_mul(gather.rule.usual() as u64),
            ..site.opening.clone()
        };
        let mut input = site.input_as(&inner, 0, site.entry("input")?)?;
        let scale = Scale::new(site, &gather.by);
        let mut groups = Vec::new();
        groups.resize_with(gather.rule.groups(), Group::default);
        let saved = site.places("groups")?;
        if !saved.is_empty() && saved.len() != groups.len() {
            let message = format!(
                "the state has {} buckets, the pipeline has {}",
                saved.len(),
                groups.len()
            );
            return Err(Failure::fatal(site.label(), message));
        }
        for (group, place) in groups.iter_mut().zip(&saved) {
            let Place::Group(places) = place else {
                return Err(foreign(&site.label(), place));
            };
            for sample in input.again(places)? {
                let weight = scale.weigh(&sample)?;
                group.push(Weighed { sample, weight });
            }
        }
        Ok(Self {
            input,
            maker: Maker::new(site, &gather.batch),
            scale,
            gather: gather.clone(),
            groups,
            ended: site.flag("ended")?,
        })
    }

    /// Puts an element where it belongs; a batch that is complete thereby.
    fn put(&mut self, sample: Sample) -> Result<Option<Vec<Weighed>>, Failure> {
        let weight = self.scale.weigh(&sample)?;
        let element = Weighed { sample, weight };
        match &self.gather.rule {
            Rule::Buckets { boundaries, sizes } => {
                let at = boundaries.partition_point(|boundary| *boundary <= weight);
                let group = &mut self.groups[at];
                group.push(element);
                Ok((group.waiting.len() >= sizes[at]).then(|| group.take()))
            }
            Rule::Budget {
                budget,
                padded,
                most,
                oversize,
            } => {
                if weight > *budget {
                    match oversize {
                        Oversize::Refuse => {
                            let message = format!(
                                "an element of {weight} is larger than the budget of {budget}: make the budget larger, or \
                                 say that such elements are skipped or batches of their own"
                            );
                            return Err(Failure::element(self.maker.label(), message.into()));
                        }
                        Oversize::Skip => return Ok(None),
                        Oversize::Alone => {}
                    }
                }
                let group = &mut self.groups[0];
                let count = group.waiting.len() + 1;
                let size = if *padded {
                    #[expect(clippy::cast_precision_loss, reason = "a batch has far fewer than 2^52 elements")]
                    let count = count as f64;
                    count * group.heaviest.max(weight)
                } else {
                    group.sum + weight
                };
                let full = !group.waiting.is_empty() && (size > *budget || most.is_some_and(|most| count > most));
                let batch = full.then(|| group.take());
                group.push(element);
                Ok(batch)
            }
        }
    }

    fn make(&mut self, group: Vec<Weighed>) -> Next {
        let first = group.first().map(|have| have.sample.place.clone());
        let made = self.maker.make(group.into_iter().map(|have| have.sample).collect());
        match (made, first) {
            (Ok(batch), _) => Ok(Some(batch)),
            (Err(failure), Some(first)) => Err(blamed(failure, &mut *self.input, &first)),
            (Err(failure), None) => Err(failure),
        }
    }
}

impl Stage for Gathered {
    fn next(&mut self) -> Next {
        while !self.ended {
            let Some(sample) = self.input.next()? else {
                self.ended = true;
                break;
            };
            let place = sample.place.clone();
            match self.put(sample) {
                Ok(Some(group)) => return self.make(group),
                Ok(None) => {}
                Err(failure) => return Err(blamed(failure, &mut *self.input, &place)),
            }
        }
        if self.gather.batch.drop_last {
            self.groups.iter_mut().for_each(|group| drop(group.take()));
        }
        match self.groups.iter_mut().find(|group| !group.waiting.is_empty()) {
            Some(group) => {
                let group = group.take();
                self.make(group)
            }
            None => Ok(None),
        }
    }

    fn cursor(&self) -> State {
        let place = |group: &Group| Place::Group(group.waiting.iter().map(|have| have.sample.place.clone()).collect());
        let groups: Vec<Place> = self.groups.iter().map(place).collect();
        State::map([
            ("input", self.input.cursor()),
            ("groups", to_text(&groups).into()),
            ("ended", State::Bool(self.ended)),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        match place {
            Place::Group(places) => self.input.origin(places.first()?),
            other => self.input.origin(other),
        }
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let mut found = Vec::with_capacity(places.len());
        for place in places {
            let Place::Group(inner) = place else {
                return Err(foreign(self.maker.label(), place));
            };
            let samples = self.input.again(inner)?;
            found.push(self.maker.make(samples)?);
        }
        Ok(found)
    }
}
