//! A number for an element: what is sorted, put into buckets or counted by.

use super::batch::rows;
use super::{Failure, Sample, Site};
use crate::batch::Value;
use crate::error::BoxError;
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
        self.exactly(sample).map(|(number, _)| number)
    }

    /// The same with what it is as a whole number, which tells those apart that are one number in floating point.
    pub(super) fn exactly(&self, sample: &Sample) -> Result<(f64, i64), Failure> {
        let call = Call {
            place: sample.place.key(),
            ..self.call
        };
        let found = self.by.map(sample.value.clone(), &call).and_then(Value::native);
        match plain(found.map_err(|error| Failure::element(&self.label, error))?) {
            #[expect(clippy::cast_precision_loss, reason = "the number itself is beside it")]
            Value::Int(x) => Ok((x as f64, x)),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "where it matters, beyond 2^53, it is whole"
            )]
            Value::Float(x) if !x.is_nan() => Ok((x, x as i64)),
            other => {
                let message = format!("the key of an element is {}, and not a number", other.kind());
                Err(Failure::element(&self.label, message.into()))
            }
        }
    }
}

/// A number of a tensor without dimensions, as NumPy's scalars come.
fn plain(value: Value) -> Value {
    let Value::Tensor(tensor) = &value else { return value };
    if !tensor.shape().is_empty() {
        return value;
    }
    let one = tensor.reshape(&[1]).map_err(BoxError::from).and_then(|one| rows(&one));
    one.ok().and_then(|mut numbers| numbers.pop()).unwrap_or(value)
}
