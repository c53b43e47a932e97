//! Elements to one batch.

use super::{Failure, Place, Sample, Site};
use crate::batch::{Heap, Tensor, Value, collate};
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
            if self.rule.padded {
                pad(values).map_err(failed)?
            } else {
                collate(&values, &Heap).map_err(|error| failed(error.into()))?
            }
        };
        Ok(Sample { value, place })
    }
}

/// Collates maps whose tensors differ in shape: each is filled up with zeros to the largest of every dimension, and the lengths of
/// the first one come as `<field>_length`.
fn pad(samples: Vec<Value>) -> Result<Value, BoxError> {
    let mut rows = Vec::with_capacity(samples.len());
    for sample in samples {
        match sample {
            Value::Map(pairs) => rows.push(pairs),
            Value::Tensor(tensor) => rows.push(vec![("data".to_owned(), Value::Tensor(tensor))]),
            other => return Err(format!("padding needs maps of tensors, and an element is {}", other.kind()).into()),
        }
    }
    let names: Vec<String> = rows
        .first()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect();
    for (at, row) in rows.iter().enumerate() {
        if let Some((name, _)) = row.iter().find(|(name, _)| !names.contains(name)) {
            return Err(format!("element {at} of the batch has the field `{name}`, which the first one lacks").into());
        }
    }
    let mut out = Vec::with_capacity(names.len());
    for name in names.clone() {
        let mut column = Vec::with_capacity(rows.len());
        for (at, row) in rows.iter().enumerate() {
            let found = row.iter().find(|(have, _)| *have == name);
            let (_, value) = found.ok_or_else(|| format!("element {at} of the batch has no field `{name}`"))?;
            column.push(value.clone());
        }
        let tensors: Option<Vec<&Tensor>> = column.iter().map(Value::as_tensor).collect();
        match tensors {
            Some(tensors) if tensors[0].shape().is_empty() => out.push((name, collate(&column, &Heap)?)),
            Some(tensors) => {
                let lengths: Vec<i64> = tensors
                    .iter()
                    .map(|tensor| i64::try_from(tensor.shape().first().copied().unwrap_or(0)).unwrap_or(i64::MAX))
                    .collect();
                let count = lengths.len();
                if names.contains(&format!("{name}_length")) {
                    let message = format!(
                        "the lengths of `{name}` would be called `{name}_length`, and there is a field of that name: rename it"
                    );
                    return Err(message.into());
                }
                out.push((name.clone(), Value::Tensor(pad_tensors(&name, &tensors)?)));
                out.push((format!("{name}_length"), Tensor::from_vec(lengths, &[count])?.into()));
            }
            None => out.push((name, collate(&column, &Heap)?)),
        }
    }
    Ok(Value::Map(out))
}

fn pad_tensors(name: &str, tensors: &[&Tensor]) -> Result<Tensor, BoxError> {
    let first = tensors[0];
    let mut largest = first.shape().to_vec();
    for tensor in tensors {
        if tensor.dtype() != first.dtype() || tensor.shape().len() != largest.len() {
            return Err(format!("field `{name}`: {tensor:?} cannot be padded to {first:?}").into());
        }
        for (most, have) in largest.iter_mut().zip(tensor.shape()) {
            *most = (*most).max(*have);
        }
    }
    let mut shape = vec![tensors.len()];
    shape.extend(&largest);
    let item = first.dtype().size();
    let one: usize = largest.iter().product::<usize>() * item;
    Tensor::build(&Heap, first.dtype(), &shape, |out| {
        out.fill(0);
        if one == 0 {
            return Ok(());
        }
        for (place, tensor) in out.chunks_exact_mut(one).zip(tensors) {
            let mut packed = vec![0; tensor.bytes()];
            tensor.copy_to(&mut packed);
            spread(&packed, tensor.shape(), place, &largest, item);
        }
        Ok::<_, BoxError>(())
    })
}

/// Copies rows of a smaller grid into a larger one.
fn spread(from: &[u8], have: &[usize], to: &mut [u8], largest: &[usize], item: usize) {
    if have.len() <= 1 {
        to[..from.len()].copy_from_slice(from);
        return;
    }
    let small: usize = have[1..].iter().product::<usize>() * item;
    let large: usize = largest[1..].iter().product::<usize>() * item;
    if small == 0 {
        return;
    }
    for (from, to) in from.chunks_exact(small).zip(to.chunks_exact_mut(large)) {
        spread(from, &have[1..], to, &largest[1..], item);
    }
}
