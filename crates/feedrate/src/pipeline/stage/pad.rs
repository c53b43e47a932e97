//! Elements of different shapes to one batch.

use crate::batch::{DType, Heap, Tensor, Value, collate};
use crate::error::BoxError;
use crate::pipeline::padding::{Fill, Padding};

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
        let blamed = |error: BoxError| BoxError::from(format!("field `{name}`: {error}"));
        lists_to_tensors(&mut column).map_err(blamed)?;
        if let (true, Some(Value::List(_))) = (bare, column.iter().find(|value| value.as_tensor().is_none())) {
            return Err(refused("a list of something else"));
        }
        let tensors: Option<Vec<&Tensor>> = column.iter().map(Value::as_tensor).collect();
        match tensors {
            Some(tensors) if tensors[0].shape().is_empty() => {
                let made = collate(&column, &Heap).map_err(|error| blamed(error.into()))?;
                out.push((name, made));
            }
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
            None => {
                let made = collate(&column, &Heap).map_err(|error| blamed(error.into()))?;
                out.push((name, made));
            }
        }
    }
    Ok(Value::Map(out))
}

/// What lists of a column have in them, at any depth.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each says that there is one of a kind")]
struct Leaves {
    truths: bool,
    wholes: bool,
    reals: bool,
    /// Numbers that have a type of their own.
    typed: Vec<DType>,
    other: bool,
}

impl Leaves {
    fn look(&mut self, value: &Value) {
        match value {
            Value::List(items) => items.iter().for_each(|item| self.look(item)),
            Value::Bool(_) => self.truths = true,
            Value::Int(_) => self.wholes = true,
            Value::Float(_) => self.reals = true,
            Value::Tensor(number) if number.shape().is_empty() => {
                if !self.typed.contains(&number.dtype()) {
                    self.typed.push(number.dtype());
                }
            }
            _ => self.other = true,
        }
    }

    /// The type of a tensor of all these numbers.
    fn dtype(&self) -> DType {
        let untyped = self.truths || self.wholes || self.reals;
        match self.typed[..] {
            [dtype] if !untyped => dtype,
            [] if self.truths && !self.wholes && !self.reals => DType::Bool,
            _ if self.reals || !self.typed.iter().copied().all(whole) => DType::F64,
            _ => DType::I64,
        }
    }
}

fn whole(dtype: DType) -> bool {
    !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// Lists of numbers, and of such lists of one length, as tensors: of `int64`, if one number of the column has a fraction of `float64`, and of
/// `bool` for truth values only; numbers that are all of one type keep it. Empty lists are of the type of the others, whether these are
/// lists or tensors. Lists in which there is something else stay what they are.
fn lists_to_tensors(column: &mut [Value]) -> Result<(), BoxError> {
    let mut leaves = Leaves::default();
    let (mut lists, mut rank) = (false, 1);
    let mut of_tensors = None;
    for value in column.iter() {
        match value {
            Value::List(_) => {
                lists = true;
                leaves.look(value);
                rank = rank.max(depth(value));
            }
            Value::Tensor(tensor) if !tensor.shape().is_empty() => {
                of_tensors = Some(tensor.dtype());
                rank = rank.max(tensor.shape().len());
            }
            _ => return Ok(()),
        }
    }
    if !lists || leaves.other {
        return Ok(());
    }
    let dtype = match (&leaves.typed[..], of_tensors) {
        // Numbers without a type take that of the tensors beside them, where it can hold them.
        ([], Some(dtype)) if !leaves.reals || !whole(dtype) => dtype,
        _ => leaves.dtype(),
    };
    for value in column {
        if let Value::List(_) = value {
            let mut shape = shape_of(value)?;
            if shape.last() == Some(&0) {
                // Nothing in it says how deep it would be.
                shape.resize(rank.max(shape.len()), 0);
            }
            let mut bytes = Vec::with_capacity(shape.iter().product::<usize>() * dtype.size());
            write(value, dtype, &mut bytes)?;
            *value = Value::Tensor(Tensor::build(&Heap, dtype, &shape, |out| {
                out.copy_from_slice(&bytes);
                Ok::<_, BoxError>(())
            })?);
        }
    }
    Ok(())
}

fn depth(value: &Value) -> usize {
    match value {
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The lengths of a list, of the lists in it, and so on.
fn shape_of(value: &Value) -> Result<Vec<usize>, BoxError> {
    let Value::List(items) = value else {
        return Ok(Vec::new());
    };
    let mut shape = vec![items.len()];
    if let Some(first) = items.first() {
        let inner = shape_of(first)?;
        for (at, item) in items.iter().enumerate() {
            let other = shape_of(item)?;
            if other != inner {
                let message = format!(
                    "the lists in one element are of the lengths {inner:?} and, at {at}, {other:?}: only the outer one may differ, from \
                     element to element"
                );
                return Err(message.into());
            }
        }
        shape.extend(inner);
    }
    Ok(shape)
}

/// The numbers of a list.
fn write(value: &Value, dtype: DType, out: &mut Vec<u8>) -> Result<(), BoxError> {
    let fill = match value {
        Value::List(items) => return items.iter().try_for_each(|item| write(item, dtype, out)),
        Value::Tensor(number) if number.dtype() == dtype => {
            let at = out.len();
            out.resize(at + number.bytes(), 0);
            number.copy_to(&mut out[at..]);
            return Ok(());
        }
        Value::Tensor(number) => number_of(number)?,
        Value::Bool(x) => Fill::Whole((*x).into()),
        Value::Int(x) => Fill::Whole(*x),
        Value::Float(x) => Fill::Real(*x),
        other => return Err(format!("{} is no number", other.kind()).into()),
    };
    out.extend(fill.bytes(dtype)?);
    Ok(())
}

/// A tensor's one number.
fn number_of(number: &Tensor) -> Result<Fill, BoxError> {
    macro_rules! number {
        ($($dtype:ident: $type:ty => $into:ty),*) => {
            match number.dtype() {
                $(DType::$dtype => Ok(Fill::from(<$into>::from(number.as_slice::<$type>()?[0]))),)*
                DType::U64 => Ok(Fill::Whole(i64::try_from(number.as_slice::<u64>()?[0])?)),
                other => Err(format!("a list has {other} beside numbers of other types: give them one type").into()),
            }
        };
    }
    number!(
        Bool: bool => i64, U8: u8 => i64, I8: i8 => i64, U16: u16 => i64, I16: i16 => i64, U32: u32 => i64, I32: i32 => i64,
        I64: i64 => i64, F32: f32 => f64, F64: f64 => f64
    )
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
