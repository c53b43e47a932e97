//! `cache`: elements that were made once.

use std::sync::Arc;

use super::{Failure, Next, Opening, Origin, Place, Sample, Site, Stage, blamed};
use crate::batch::Value;
use crate::error::BoxError;
use crate::pipeline::cache::Cache;
use crate::state::State;

pub(super) struct Cached {
    input: Box<dyn Stage>,
    label: String,
    /// Of the steps before.
    fingerprint: u64,
    cache: Arc<Cache>,
}

impl Cached {
    pub(super) fn open(site: &Site, cache: &Arc<Cache>) -> Result<Self, Failure> {
        // An element that is kept is the same in every epoch, whatever comes behind; so it has to be when it is not kept.
        let before = site.node().inputs[0].fingerprint();
        let frozen = Opening {
            frozen: true,
            step: before >> 1,
            ..site.opening.clone()
        };
        let (lane, lanes) = frozen.asked;
        let pass = [before, frozen.seed, site.opening.pass(), site.opening.step, lanes];
        let data = cache.stamp(pass, lane, || site.node().inputs[0].data_stamp())?;
        let fingerprint = cache.key(before, frozen.seed, data);
        cache
            .look(fingerprint)
            .map_err(|error| Failure::fatal(site.label(), error))?;
        Ok(Self {
            input: site.input_as(&frozen, 0, site.entry("input")?)?,
            label: site.label(),
            fingerprint,
            cache: Arc::clone(cache),
        })
    }

    /// What is kept, and what goes on: with nothing in it that others could change.
    fn keep(&self, mut sample: Sample) -> Result<Sample, Failure> {
        let failed = |error: BoxError| Failure::element(&self.label, error);
        let value = std::mem::replace(&mut sample.value, Value::None)
            .native()
            .map_err(failed)?;
        plain(&value, "the element").map_err(failed)?;
        let sample = Sample { value, ..sample };
        self.cache
            .put(self.fingerprint, &sample)
            // A full disk is not the element's fault.
            .map_err(|error| Failure::fatal(&self.label, error))?;
        Ok(sample)
    }
}

/// Refuses what a cache cannot hold.
fn plain(value: &Value, what: &str) -> Result<(), BoxError> {
    match value {
        Value::Other(thing) => Err(format!(
            "{what} is {}, and a cache holds arrays, numbers, text, bytes, and dicts and lists of them: put it before the step that \
             makes something else",
            thing.kind()
        )
        .into()),
        Value::List(items) => items.iter().try_for_each(|item| plain(item, what)),
        Value::Map(pairs) => pairs
            .iter()
            .try_for_each(|(name, value)| plain(value, &format!("the field `{name}`"))),
        _ => Ok(()),
    }
}

impl Stage for Cached {
    fn next(&mut self) -> Next {
        let (cache, fingerprint) = (&self.cache, self.fingerprint);
        let Some((sample, known)) = self.input.next_known(&mut |place| cache.get(fingerprint, place))? else {
            return Ok(None);
        };
        if known {
            return Ok(Some(sample));
        }
        let place = sample.place.clone();
        match self.keep(sample) {
            Ok(sample) => Ok(Some(sample)),
            Err(failure) => Err(blamed(failure, &mut *self.input, &place)),
        }
    }

    fn cursor(&self) -> State {
        State::map([("input", self.input.cursor())])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let kept: Vec<Option<Sample>> = places
            .iter()
            .map(|place| self.cache.get(self.fingerprint, place))
            .collect();
        let missing = places.iter().zip(&kept).filter(|(_, kept)| kept.is_none());
        let missing: Vec<Place> = missing.map(|(place, _)| place.clone()).collect();
        let mut made = self.input.again(&missing)?.into_iter();
        let mut found = Vec::with_capacity(places.len());
        for (place, kept) in places.iter().zip(kept) {
            match (kept, made.len()) {
                (Some(kept), _) => found.push(kept),
                (None, 0) => return Err(super::foreign(&self.label, place)),
                (None, _) => {
                    for sample in made.by_ref().take(1) {
                        found.push(self.keep(sample)?);
                    }
                }
            }
        }
        Ok(found)
    }
}
