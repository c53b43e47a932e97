//! Elements of different shapes to one batch.

use crate::batch::{DType, Element, Heap, Tensor, Value, collate};
use crate::error::BoxError;
use crate::pipeline::padding::Padding;

/// Collates maps whose tensors differ in shape: each is filled up to the largest of every dimension, and the lengths of the first one come
/// as `<field>_length`. Lists of numbers are tensors of one dimension.
pub(super) fn pad(samples: Vec<Value>, padding: &Padding) -> Result<Value, BoxError> {
    let refused = |kind: &str| {
        let message = format!("padding needs tensors, lists of numbers, or maps of such, and an element is {kind}");
        BoxError::from(message)
    };
    let mut rows = Vec::with_capacity(samples.len());
    let mut bare = false;
    for sample in samples {
        match sample {
            Value::Map(pairs) => rows.push(pairs),
            Value::List(_) => {
                bare = true;
                rows.push(vec![("data".to_owned(), sample)]);
            }
            Value::Tensor(_) => rows.push(vec![("data".to_owned(), sample)]),
            other => return Err(refused(&other.describe())),
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
    if let Some(name) = padding.names().find(|name| names.iter().all(|have| have != name)) {
        return Err(format!("there is padding for the field `{name}`, and the elements have {names:?}").into());
    }
    let mut out = Vec::with_capacity(names.len());
    for name in names.clone() {
        let mut column = Vec::with_capacity(rows.len());
        for (at, row) in rows.iter().enumerate() {
            let found = row.iter().find(|(have, _)| *have == name);
            let (_, value) = found.ok_or_else(|| format!("element {at} of the batch has no field `{name}`"))?;
            column.push(value.clone());
        }
        lists_to_tensors(&mut column)?;
        if let (true, Some(Value::List(_))) = (bare, column.iter().find(|value| value.as_tensor().is_none())) {
            return Err(refused("a list of something else"));
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
                out.push((name.clone(), Value::Tensor(pad_tensors(&name, &tensors, padding)?)));
                out.push((format!("{name}_length"), Tensor::from_vec(lengths, &[count])?.into()));
            }
            None => out.push((name, collate(&column, &Heap)?)),
        }
    }
    Ok(Value::Map(out))
}

/// Lists of numbers as tensors: of `int64`, if one of them has a fraction of `float64`, and of `bool` for truth values only. Empty ones are
/// of the type of the others, whether these are lists or tensors. What else is a list stays one.
fn lists_to_tensors(column: &mut [Value]) -> Result<(), BoxError> {
    let (mut lists, mut truths, mut wholes, mut reals) = (false, false, false, false);
    let mut of_tensors = None;
    for value in column.iter() {
        match value {
            Value::List(items) => {
                lists = true;
                for item in items {
                    match item {
                        Value::Bool(_) => truths = true,
                        Value::Int(_) => wholes = true,
                        Value::Float(_) => reals = true,
                        _ => return Ok(()),
                    }
                }
            }
            Value::Tensor(tensor) if tensor.shape().len() == 1 => of_tensors = Some(tensor.dtype()),
            _ => return Ok(()),
        }
    }
    if !lists || (truths && (wholes || reals)) {
        return Ok(());
    }
    for value in column {
        if let Value::List(items) = value {
            let tensor = if !(truths || wholes || reals) {
                Tensor::build(&Heap, of_tensors.unwrap_or(DType::I64), &[0], |_| Ok::<_, BoxError>(()))?
            } else if truths {
                tensor_of(items, |item| matches!(item, Value::Bool(true)))?
            } else if reals {
                tensor_of(items, real)?
            } else {
                tensor_of(items, |item| if let Value::Int(x) = item { *x } else { 0 })?
            };
            *value = Value::Tensor(tensor);
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "as in Python")]
fn real(item: &Value) -> f64 {
    match item {
        Value::Float(x) => *x,
        Value::Int(x) => *x as f64,
        _ => 0.0,
    }
}

fn tensor_of<T: Element>(items: &[Value], number: impl Fn(&Value) -> T) -> Result<Tensor, BoxError> {
    Ok(Tensor::from_vec(items.iter().map(number).collect(), &[items.len()])?)
}

fn pad_tensors(name: &str, tensors: &[&Tensor], padding: &Padding) -> Result<Tensor, BoxError> {
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
    let filler = padding.of(name).bytes(first.dtype());
    let filler = filler.map_err(|error| format!("field `{name}`: {error}"))?;
    let mut shape = vec![tensors.len()];
    shape.extend(&largest);
    let item = first.dtype().size();
    let one: usize = largest.iter().product::<usize>() * item;
    Tensor::build(&Heap, first.dtype(), &shape, |out| {
        for place in out.chunks_exact_mut(filler.len()) {
            place.copy_from_slice(&filler);
        }
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
