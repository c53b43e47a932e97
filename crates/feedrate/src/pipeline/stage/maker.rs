//! Elements to one batch.

use super::pad::pad;
use super::{Failure, Place, Sample, Site};
use crate::batch::{Heap, Value, collate};
use crate::error::BoxError;
use crate::pipeline::function::Call;
use crate::pipeline::step::Batch;

/// What a step that makes batches makes them by.
pub(super) struct Maker {
    label: String,
    rule: Batch,
    call: Call,
}

impl Maker {
    pub(super) fn new(site: &Site, rule: &Batch) -> Self {
        Self {
            label: site.label(),
            rule: rule.clone(),
            call: site.opening.call(),
        }
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// The batch of these elements; its place is the group of theirs.
    pub(super) fn make(&self, samples: Vec<Sample>) -> Result<Sample, Failure> {
        let mut values = Vec::with_capacity(samples.len());
        let mut places = Vec::with_capacity(samples.len());
        for sample in samples {
            values.push(sample.value);
            places.push(sample.place);
        }
        let place = Place::Group(places);
        let failed = |error: BoxError| Failure::element(&self.label, error);
        let value = if let Some(function) = &self.rule.collate {
            let call = Call {
                place: place.key(),
                ..self.call
            };
            function.map(Value::List(values), &call).map_err(failed)?
        } else {
            let values: Result<Vec<_>, _> = values.into_iter().map(Value::native).collect();
            let values = values.map_err(failed)?;
            if let Some(padding) = &self.rule.padding {
                pad(values, padding).map_err(failed)?
            } else {
                collate(&values, &Heap).map_err(|error| failed(error.into()))?
            }
        };
        Ok(Sample {
            value,
            place,
            collated: self.rule.collate.is_none(),
        })
    }
}
