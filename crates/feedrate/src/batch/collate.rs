//! From samples to a batch.

use super::allocator::Allocator;
use super::dtype::DType;
use super::tensor::{Tensor, TensorError};
use super::value::Value;
use crate::dataset::Context;
use crate::error::BoxError;

/// Samples that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {path}, sample {sample} of the batch: {reason}")]
pub struct CollateError {
    /// Where in the samples: `$` is the sample, `.key` and `[i]` lead down.
    pub path: String,
    /// Which sample does not fit, counted in the batch from 0.
    pub sample: usize,
    /// What is wrong, and what would fit.
    pub reason: String,
}

/// Makes a batch of samples by PyTorch's rules: tensors are stacked, whole numbers become an `int64` tensor, floats (and
/// whole numbers beside them) a `float64` and bools a `bool` tensor, text and bytes a list, maps and lists are collated entry by entry. The first sample
/// decides. Every tensor of the batch lies in a buffer of its own from `allocator`, and is written once.
///
/// Differs from PyTorch where that guesses: a key that only some samples have and tensors of different types are errors.
///
/// ```
/// use feedrate::batch::{Heap, Tensor, Value, collate};
///
/// let sample = |label: i64| Value::map([("x", Value::from(0.5)), ("label", label.into())]);
/// let batch = collate(&[sample(3), sample(4)], &Heap)?;
/// let labels = batch.get("label").and_then(Value::as_tensor);
/// assert_eq!(labels, Some(&Tensor::from_vec(vec![3_i64, 4], &[2])?));
///
/// let error = collate(&[sample(3), 5.into()], &Heap).unwrap_err();
/// assert_eq!(error.to_string(), "at $, sample 1 of the batch: it is an int, and the first one is a map");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn collate(samples: &[Value], allocator: &dyn Allocator) -> Result<Value, CollateError> {
    let samples: Vec<&Value> = samples.iter().collect();
    Level {
        path: &mut "$".to_owned(),
        allocator,
    }
    .collate(&samples)
}

/// [`collate`](fn@collate) as a loader's collate function: samples of any type that is a [`Value`], memory of the context.
///
/// ```
/// use feedrate::{DataLoader, batch, dataset};
///
/// let source = dataset::from_fn(4, |i| Ok(i as f64));
/// let mut loader = DataLoader::builder(source).batch_size(4).collate(batch::stack).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.as_tensor().unwrap().as_slice::<f64>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
/// # Ok::<(), feedrate::Error>(())
/// ```
pub fn stack<T: Into<Value>>(samples: Vec<T>, cx: &Context) -> Result<Value, BoxError> {
    let samples: Vec<Value> = samples.into_iter().map(Into::into).collect();
    Ok(collate(&samples, cx.allocator())?)
}

/// One place in the tree.
struct Level<'a> {
    path: &'a mut String,
    allocator: &'a dyn Allocator,
}

impl Level<'_> {
    fn collate(&mut self, samples: &[&Value]) -> Result<Value, CollateError> {
        let Some(first) = samples.first() else {
            return Err(self.error(0, "a batch of no samples has no form; give at least one"));
        };
        match first {
            Value::None => Err(self.error(0, "it is nothing, which cannot be collated; leave it out")),
            Value::Bool(_) => self.numbers(samples, DType::Bool, |value| match value {
                Value::Bool(x) => Some([u8::from(*x)]),
                _ => None,
            }),
            Value::Int(_) if samples.iter().all(|value| matches!(value, Value::Int(_))) => {
                self.numbers(samples, DType::I64, |value| match value {
                    Value::Int(x) => Some(x.to_le_bytes()),
                    _ => None,
                })
            }
            #[expect(clippy::cast_precision_loss, reason = "as in Python")]
            Value::Int(_) | Value::Float(_) => self.numbers(samples, DType::F64, |value| match value {
                Value::Float(x) => Some(x.to_le_bytes()),
                Value::Int(x) => Some((*x as f64).to_le_bytes()),
                _ => None,
            }),
            Value::Str(_) | Value::Bytes(_) => {
                if let Some(odd) = samples.iter().position(|s| s.kind() != first.kind()) {
                    return Err(self.unlike(odd, samples));
                }
                Ok(Value::List(samples.iter().map(|s| (*s).clone()).collect()))
            }
            Value::Tensor(tensor) => self.stack(tensor, samples),
            Value::List(items) => self.lists(items.len(), samples),
            Value::Map(pairs) => self.maps(pairs, samples),
            Value::Other(thing) => {
                let reason = format!(
                    "it is {}, which is not known here: make numbers, tensors, texts, lists or maps of it before, or give a function that \
                     collates",
                    thing.describe()
                );
                Err(self.error(0, reason))
            }
        }
    }

    fn numbers<const N: usize>(
        &mut self,
        samples: &[&Value],
        dtype: DType,
        bytes_of: impl Fn(&Value) -> Option<[u8; N]>,
    ) -> Result<Value, CollateError> {
        if let Some(odd) = samples.iter().position(|s| bytes_of(s).is_none()) {
            return Err(self.unlike(odd, samples));
        }
        let filled = Tensor::build(self.allocator, dtype, &[samples.len()], |out| {
            for (place, bytes) in out.chunks_exact_mut(N).zip(samples.iter().filter_map(|s| bytes_of(s))) {
                place.copy_from_slice(&bytes);
            }
            Ok::<_, TensorError>(())
        });
        filled
            .map(Value::Tensor)
            .map_err(|error| self.error(0, error.to_string()))
    }

    fn stack(&mut self, first: &Tensor, samples: &[&Value]) -> Result<Value, CollateError> {
        let mut tensors = Vec::with_capacity(samples.len());
        for (i, sample) in samples.iter().enumerate() {
            let Value::Tensor(tensor) = sample else {
                return Err(self.unlike(i, samples));
            };
            if tensor.dtype() != first.dtype() || tensor.shape() != first.shape() {
                let reason = format!("it is {tensor:?}, and the first one is {first:?}");
                return Err(self.error(i, reason));
            }
            tensors.push(tensor);
        }
        let mut shape = vec![samples.len()];
        shape.extend(first.shape());
        let bytes = first.bytes();
        let stacked = Tensor::build(self.allocator, first.dtype(), &shape, |out| {
            if bytes > 0 {
                for (place, tensor) in out.chunks_exact_mut(bytes).zip(tensors) {
                    tensor.copy_to(place);
                }
            }
            Ok::<_, TensorError>(())
        });
        stacked
            .map(Value::Tensor)
            .map_err(|error| self.error(0, error.to_string()))
    }

    fn lists(&mut self, len: usize, samples: &[&Value]) -> Result<Value, CollateError> {
        for (i, sample) in samples.iter().enumerate() {
            match sample {
                Value::List(items) if items.len() == len => {}
                Value::List(items) => {
                    let reason = format!("it has {} entries, and the first one has {len}", items.len());
                    return Err(self.error(i, reason));
                }
                _ => return Err(self.unlike(i, samples)),
            }
        }
        let mut out = Vec::with_capacity(len);
        for at in 0..len {
            let column: Vec<&Value> = samples.iter().filter_map(|s| s.at(at)).collect();
            out.push(self.below(&format!("[{at}]"), &column)?);
        }
        Ok(Value::List(out))
    }

    fn maps(&mut self, pairs: &[(String, Value)], samples: &[&Value]) -> Result<Value, CollateError> {
        for (i, sample) in samples.iter().enumerate() {
            let Value::Map(found) = sample else {
                return Err(self.unlike(i, samples));
            };
            if let Some((extra, _)) = found.iter().find(|(key, _)| pairs.iter().all(|(k, _)| k != key)) {
                let reason = format!("it has the key {extra:?}, which the first one lacks");
                return Err(self.error(i, reason));
            }
        }
        let mut out = Vec::with_capacity(pairs.len());
        for (at, (key, _)) in pairs.iter().enumerate() {
            let mut column = Vec::with_capacity(samples.len());
            for (i, sample) in samples.iter().enumerate() {
                // Samples of one dataset mostly have their keys in one order.
                let value = match sample {
                    Value::Map(found) => match found.get(at) {
                        Some((name, value)) if name == key => Some(value),
                        _ => sample.get(key),
                    },
                    _ => None,
                };
                let Some(value) = value else {
                    let reason = format!("it lacks the key {key:?}, which the first one has");
                    return Err(self.error(i, reason));
                };
                column.push(value);
            }
            out.push((key.clone(), self.below(&format!(".{key}"), &column)?));
        }
        Ok(Value::Map(out))
    }

    fn below(&mut self, step: &str, column: &[&Value]) -> Result<Value, CollateError> {
        let len = self.path.len();
        self.path.push_str(step);
        let result = Level {
            path: self.path,
            allocator: self.allocator,
        }
        .collate(column);
        self.path.truncate(len);
        result
    }

    fn unlike(&self, sample: usize, samples: &[&Value]) -> CollateError {
        let reason = format!(
            "it is {}, and the first one is {}",
            samples[sample].kind(),
            samples[0].kind()
        );
        self.error(sample, reason)
    }

    fn error(&self, sample: usize, reason: impl Into<String>) -> CollateError {
        CollateError {
            path: self.path.clone(),
            sample,
            reason: reason.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocator::Heap;
    use super::*;

    fn sample(i: u8) -> Value {
        Value::map([
            ("image", Value::from(Tensor::from_vec(vec![i; 4], &[2, 2]).unwrap())),
            (
                "meta",
                Value::map([
                    ("ok", Value::from(i.is_multiple_of(2))),
                    ("weight", f64::from(i).into()),
                ]),
            ),
            ("names", Value::list([format!("n{i}"), "same".to_owned()])),
            ("raw", Value::Bytes(vec![i])),
        ])
    }

    #[test]
    fn nested_samples() {
        let batch = collate(&[sample(1), sample(2), sample(3)], &Heap).unwrap();
        let image = batch.get("image").unwrap().as_tensor().unwrap();
        assert_eq!(image.shape(), [3, 2, 2]);
        assert_eq!(image.get(1).unwrap().as_slice::<u8>().unwrap(), [2; 4]);
        let meta = batch.get("meta").unwrap();
        let ok = meta.get("ok").unwrap().as_tensor().unwrap();
        assert_eq!(ok.as_slice::<bool>().unwrap(), [false, true, false]);
        let weight = meta.get("weight").unwrap().as_tensor().unwrap();
        assert_eq!(weight.as_slice::<f64>().unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(
            batch.get("names").unwrap().at(0),
            Some(&Value::list(["n1", "n2", "n3"]))
        );
        assert_eq!(batch.get("raw").unwrap().at(2), Some(&Value::Bytes(vec![3])));
    }

    #[test]
    fn strided_samples_are_copied_right() {
        let turned = Tensor::from_vec((0..6_i32).collect(), &[2, 3])
            .unwrap()
            .transpose(0, 1)
            .unwrap();
        let batch = collate(&[turned.clone().into(), turned.into()], &Heap).unwrap();
        let rows = [0, 3, 1, 4, 2, 5];
        assert_eq!(
            batch.as_tensor().unwrap().as_slice::<i32>().unwrap(),
            [rows, rows].concat()
        );
    }

    #[test]
    fn errors_name_path_and_sample() {
        let with = |key: &str, value: Value| {
            let Value::Map(mut pairs) = sample(1) else {
                unreachable!()
            };
            for pair in &mut pairs {
                if pair.0 == key {
                    pair.1 = value.clone();
                }
            }
            Value::Map(pairs)
        };
        let image = Tensor::from_vec(vec![0_u8; 6], &[2, 3]).unwrap();
        let cases = [
            (
                with("image", image.into()),
                "$.image",
                "it is Tensor(uint8 [2, 3]), and the first one is Tensor(uint8 [2, 2])",
            ),
            (
                with("meta", Value::map([("ok", Value::from(true))])),
                "$.meta",
                "it lacks the key \"weight\", which the first one has",
            ),
            (
                with("meta", Value::map([("ok", Value::from(1)), ("weight", 1.0.into())])),
                "$.meta.ok",
                "it is an int, and the first one is a bool",
            ),
            (
                with("names", Value::list(["a"])),
                "$.names",
                "it has 1 entries, and the first one has 2",
            ),
            (
                with("names", Value::list([Value::from("a"), 1.into()])),
                "$.names[1]",
                "it is an int, and the first one is a string",
            ),
        ];
        for (odd, path, reason) in cases {
            let error = collate(&[sample(1), sample(2), odd], &Heap).unwrap_err();
            assert_eq!(
                (error.path.as_str(), error.sample, error.reason.as_str()),
                (path, 2, reason)
            );
        }
        let mut extra = vec![("more".to_owned(), Value::Int(1))];
        let Value::Map(pairs) = sample(1) else { unreachable!() };
        extra.extend(pairs);
        assert!(collate(&[sample(1), Value::Map(extra)], &Heap).is_err());
        assert!(collate(&[], &Heap).is_err());
        assert!(collate(&[Value::None], &Heap).is_err());
    }

    #[test]
    fn zero_sized_tensors() {
        let empty = Value::from(Tensor::zeros(DType::F32, &[0]).unwrap());
        let batch = collate(&[empty.clone(), empty], &Heap).unwrap();
        assert_eq!(batch.as_tensor().unwrap().shape(), [2, 0]);
    }
}
