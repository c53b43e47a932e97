//! A number for an element: what is sorted, put into buckets or counted by.

use super::{Failure, Sample, Site};
use crate::batch::Value;
use crate::pipeline::function::{Call, Func};

/// The user's function that gives the number.
pub(super) struct Scale {
    label: String,
    by: Func,
    call: Call,
}

impl Scale {
    pub(super) fn new(site: &Site, by: &Func) -> Self {
        Self {
            label: site.label(),
            by: by.clone(),
            call: site.opening.call(),
        }
    }

    /// The element's number; never NaN.
    pub(super) fn weigh(&self, sample: &Sample) -> Result<f64, Failure> {
        let call = Call {
            place: sample.place.key(),
            ..self.call
        };
        let found = self.by.map(sample.value.clone(), &call).and_then(Value::native);
        match found.map_err(|error| Failure::element(&self.label, error))? {
            #[expect(clippy::cast_precision_loss, reason = "lengths; ties keep their order")]
            Value::Int(x) => Ok(x as f64),
            Value::Float(x) if !x.is_nan() => Ok(x),
            other => {
                let message = format!("the key of an element is {}, and not a number", other.kind());
                Err(Failure::element(&self.label, message.into()))
            }
        }
    }
}
