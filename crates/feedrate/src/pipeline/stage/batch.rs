//! Elements to batches and back.

use super::maker::Maker;
use super::{Columns, Failure, Next, Origin, Place, Sample, Site, Stage, blamed, foreign, parent};
use crate::batch::{DType, Heap, Tensor, Value, half};
use crate::error::BoxError;
use crate::pipeline::sample::to_text;
use crate::pipeline::step::Batch;
use crate::state::State;

/// `batch` and `padded_batch`.
pub(super) struct Batched {
    input: Box<dyn Stage>,
    maker: Maker,
    rule: Batch,
    /// Elements of the batch at hand that were there when a later one failed.
    pending: Vec<Sample>,
    /// The same as columns.
    pieces: Vec<(Columns, Place)>,
    /// Whether elements come as columns; not known before the first.
    columnar: Option<bool>,
}

impl Batched {
    pub(super) fn open(site: &Site, rule: &Batch) -> Result<Self, Failure> {
        let opening = site.opening;
        let inner = super::Opening {
            block: opening.block.saturating_mul(rule.size as u64),
            ..opening.clone()
        };
        let mut input = site.input_as(&inner, 0, site.entry("input")?)?;
        let mut pending = Vec::new();
        let mut pieces = Vec::new();
        for place in site.places("pending")? {
            match (&place, input.columns_again(&place)) {
                (Place::Child(..), Some(columns)) => pieces.push((columns?, place)),
                _ => pending.append(&mut input.again(&[place])?),
            }
        }
        Ok(Self {
            input,
            maker: Maker::new(site, rule),
            columnar: (!rule.plain() || !pending.is_empty()).then_some(false),
            rule: rule.clone(),
            pending,
            pieces,
        })
    }

    /// A batch of rows, `None` at the end, or that there are no columns.
    fn next_columns(&mut self) -> Option<Next> {
        let mut rows: usize = self.pieces.iter().map(|(columns, _)| columns.rows).sum();
        while rows < self.rule.size {
            match self.input.columns(self.rule.size - rows)? {
                Ok((columns, _)) if columns.rows == 0 => break,
                Ok(piece) => {
                    rows += piece.0.rows;
                    self.pieces.push(piece);
                }
                Err(failure) => return Some(Err(failure)),
            }
        }
        let pieces = std::mem::take(&mut self.pieces);
        if pieces.is_empty() || (self.rule.drop_last && rows < self.rule.size) {
            return Some(Ok(None));
        }
        Some(self.join(pieces).map(Some))
    }

    fn join(&self, pieces: Vec<(Columns, Place)>) -> Result<Sample, Failure> {
        let (mut columns, places): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
        let fields = match columns.len() {
            1 => columns.remove(0).fields,
            _ => join(columns).map_err(|error| Failure::element(self.maker.label(), error))?,
        };
        Ok(Sample::new(Value::Map(fields), Place::Group(places)))
    }
}

impl Stage for Batched {
    fn next(&mut self) -> Next {
        if self.columnar != Some(false) {
            match self.next_columns() {
                Some(found) => {
                    self.columnar = Some(true);
                    return found;
                }
                None => self.columnar = Some(false),
            }
        }
        while self.pending.len() < self.rule.size {
            match self.input.next()? {
                Some(sample) => self.pending.push(sample),
                None => break,
            }
        }
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() || (self.rule.drop_last && pending.len() < self.rule.size) {
            return Ok(None);
        }
        let first = pending[0].place.clone();
        match self.maker.make(pending) {
            Ok(batch) => Ok(Some(batch)),
            Err(failure) => Err(blamed(failure, &mut *self.input, &first)),
        }
    }

    fn cursor(&self) -> State {
        let pending = self.pending.iter().map(|sample| &sample.place);
        let pieces = self.pieces.iter().map(|(_, place)| place);
        State::map([
            ("input", self.input.cursor()),
            ("pending", to_text(pending.chain(pieces)).into()),
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
            if matches!(inner.first(), Some(Place::Child(..))) && self.rule.plain() {
                let mut pieces = Vec::with_capacity(inner.len());
                for place in inner {
                    match self.input.columns_again(place) {
                        Some(columns) => pieces.push((columns?, place.clone())),
                        None => break,
                    }
                }
                if pieces.len() == inner.len() {
                    self.columnar = Some(true);
                    found.push(self.join(pieces)?);
                    continue;
                }
            }
            self.columnar.get_or_insert(false);
            let samples = self.input.again(inner)?;
            found.push(self.maker.make(samples)?);
        }
        Ok(found)
    }
}

/// Pieces of the same columns, one below the other.
fn join(pieces: Vec<Columns>) -> Result<Vec<(String, Value)>, BoxError> {
    let mut pieces = pieces.into_iter();
    let Some(first) = pieces.next() else {
        return Ok(Vec::new());
    };
    let mut joined: Vec<(String, Vec<Value>)> = first.fields.into_iter().map(|(name, v)| (name, vec![v])).collect();
    for piece in pieces {
        if let Some((name, _)) = piece
            .fields
            .iter()
            .find(|(name, _)| joined.iter().all(|(have, _)| have != name))
        {
            return Err(format!(
                "column `{name}` is not in one part and is in the next: unify=True gives all parts the same columns"
            )
            .into());
        }
        for (name, values) in &mut joined {
            let found = piece.fields.iter().find(|(have, _)| have == name);
            let value = found.ok_or_else(|| {
                format!(
                    "column `{name}` is in one part and not in the next: unify=True gives all parts the same columns"
                )
            })?;
            values.push(value.1.clone());
        }
    }
    joined
        .into_iter()
        .map(|(name, values)| {
            let value = below(values).map_err(|error| format!("column `{name}`: {error}"))?;
            Ok((name, value))
        })
        .collect()
}

/// The rows of a tensor as a list has them that holds nulls too.
pub(super) fn rows(tensor: &Tensor) -> Result<Vec<Value>, BoxError> {
    if tensor.shape().len() != 1 {
        let count = tensor.shape().first().copied().unwrap_or(0);
        return Ok((0..count)
            .map(|row| tensor.get(row).map(Value::Tensor))
            .collect::<Result<_, _>>()?);
    }
    macro_rules! numbers {
        ($as:ty, $value:expr) => {
            Ok(tensor.to_vec::<$as>()?.into_iter().map($value).collect())
        };
    }
    match tensor.dtype() {
        DType::I8 => numbers!(i8, |n| Value::Int(n.into())),
        DType::I16 => numbers!(i16, |n| Value::Int(n.into())),
        DType::I32 => numbers!(i32, |n| Value::Int(n.into())),
        DType::I64 => numbers!(i64, Value::Int),
        DType::U8 => numbers!(u8, |n| Value::Int(n.into())),
        DType::U16 => numbers!(u16, |n| Value::Int(n.into())),
        DType::U32 => numbers!(u32, |n| Value::Int(n.into())),
        DType::U64 => {
            let whole = |n| i64::try_from(n).map(Value::Int);
            Ok(tensor
                .to_vec::<u64>()?
                .into_iter()
                .map(whole)
                .collect::<Result<_, _>>()?)
        }
        DType::F32 => numbers!(f32, |n| Value::Float(n.into())),
        DType::F64 => numbers!(f64, Value::Float),
        DType::Bool => numbers!(bool, Value::Bool),
        _ => {
            let bits = tensor.contiguous(&Heap)?;
            let bits = bits.as_bytes()?.as_chunks::<2>().0;
            Ok(bits
                .iter()
                .map(|two| Value::Float(half(u16::from_ne_bytes(*two))))
                .collect())
        }
    }
}

/// Values one below the other along their first dimension.
fn below(values: Vec<Value>) -> Result<Value, BoxError> {
    let tensors: Option<Vec<&Tensor>> = values.iter().map(Value::as_tensor).collect();
    let Some(tensors) = tensors else {
        let mut items = Vec::new();
        for value in values {
            match value {
                Value::List(list) => items.extend(list),
                // Its part has no nulls, and another one has.
                Value::Tensor(tensor) => items.extend(rows(&tensor)?),
                other => return Err(format!("{} among lists", other.kind()).into()),
            }
        }
        return Ok(Value::List(items));
    };
    let first = tensors[0];
    let mut shape = first.shape().to_vec();
    shape[0] = 0;
    for tensor in &tensors {
        if tensor.dtype() != first.dtype() || tensor.shape()[1..] != first.shape()[1..] {
            return Err(format!(
                "{tensor:?} does not go below {first:?}: files differ in it; unify=True reads them as one type, where there is one"
            )
            .into());
        }
        shape[0] += tensor.shape()[0];
    }
    let joined = Tensor::build(&Heap, first.dtype(), &shape, |out| {
        let mut rest = out;
        for tensor in &tensors {
            let (place, behind) = rest.split_at_mut(tensor.bytes());
            tensor.copy_to(place);
            rest = behind;
        }
        Ok::<_, BoxError>(())
    })?;
    Ok(Value::Tensor(joined))
}

/// `unbatch`.
pub(super) struct Unbatched {
    input: Box<dyn Stage>,
    label: String,
    batch: Option<Sample>,
    given: usize,
}

impl Unbatched {
    pub(super) fn open(site: &Site) -> Result<Self, Failure> {
        let mut input = site.input()?;
        let open = site.places("open")?;
        let batch = input.again(&open)?.pop();
        let mut opened = Self {
            input,
            label: site.label(),
            batch: None,
            given: usize::try_from(site.number("given")?).unwrap_or(usize::MAX),
        };
        if let Some(batch) = batch {
            opened.batch = Some(opened.looked_into(batch)?);
        }
        Ok(opened)
    }

    fn looked_into(&self, mut batch: Sample) -> Result<Sample, Failure> {
        let value = std::mem::replace(&mut batch.value, Value::None).native();
        Ok(Sample {
            value: value.map_err(|error| Failure::element(&self.label, error))?,
            ..batch
        })
    }

    fn row(&self, batch: &Sample, at: usize) -> Result<Option<Value>, Failure> {
        row(&batch.value, at, batch.collated).map_err(|error| Failure::element(&self.label, error))
    }
}

/// Row `at` of a batch, `None` behind its end. A list of `collated` elements holds their entries, unless it holds text.
fn row(batch: &Value, at: usize, collated: bool) -> Result<Option<Value>, BoxError> {
    let holds = |value: &Value| matches!(value, Value::Tensor(_) | Value::List(_) | Value::Map(_));
    Ok(match batch {
        Value::List(entries) if collated && !entries.is_empty() && entries.iter().all(holds) => {
            let rows = entries
                .iter()
                .map(|entry| row(entry, at, true))
                .collect::<Result<Vec<_>, _>>()?;
            if rows.iter().any(Option::is_none) && rows.iter().any(Option::is_some) {
                return Err(format!("an entry of a list has {at} rows, and another one has more").into());
            }
            rows.into_iter().collect::<Option<Vec<_>>>().map(Value::List)
        }
        Value::List(items) => items.get(at).cloned(),
        Value::Tensor(tensor) => match tensor.shape().first() {
            None => return Err("a tensor without dimensions cannot be taken apart".into()),
            Some(rows) if at >= *rows => None,
            Some(_) => Some(Value::Tensor(tensor.get(at)?)),
        },
        Value::Map(pairs) => {
            let mut found = Vec::with_capacity(pairs.len());
            let mut missing = None;
            for (name, value) in pairs {
                match row(value, at, collated)? {
                    Some(value) => found.push((name.clone(), value)),
                    None => missing = Some(name),
                }
            }
            match missing {
                Some(name) if !found.is_empty() => {
                    return Err(format!("field `{name}` has {at} rows, and another one has more").into());
                }
                Some(_) => None,
                None if pairs.is_empty() => None,
                None => Some(Value::Map(found)),
            }
        }
        other => return Err(format!("an element is {}, and not a batch", other.kind()).into()),
    })
}

impl Stage for Unbatched {
    fn next(&mut self) -> Next {
        loop {
            if let Some(batch) = &self.batch {
                let found = self.row(batch, self.given);
                match found {
                    Ok(Some(value)) => {
                        let number = u32::try_from(self.given).unwrap_or(u32::MAX);
                        let place = batch.place.clone().child(number);
                        self.given += 1;
                        return Ok(Some(Sample::new(value, place)));
                    }
                    Ok(None) => self.batch = None,
                    Err(failure) => {
                        self.batch = None;
                        return Err(failure);
                    }
                }
            }
            let Some(batch) = self.input.next()? else {
                return Ok(None);
            };
            self.batch = Some(self.looked_into(batch)?);
            self.given = 0;
        }
    }

    fn cursor(&self) -> State {
        let open = self.batch.as_ref().map(|batch| &batch.place);
        State::map([
            ("input", self.input.cursor()),
            ("open", to_text(open).into()),
            ("given", (self.given as u64).into()),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(parent(place))
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let mut found = Vec::with_capacity(places.len());
        let mut open: Option<Sample> = None;
        for place in places {
            let Place::Child(inner, number) = place else {
                return Err(foreign(&self.label, place));
            };
            if open.as_ref().is_none_or(|have| have.place != **inner) {
                let batch = self.input.again(&[(**inner).clone()])?.pop();
                open = Some(self.looked_into(batch.ok_or_else(|| foreign(&self.label, place))?)?);
            }
            let value = match &open {
                Some(batch) => self.row(batch, *number as usize)?,
                None => None,
            };
            let value = value.ok_or_else(|| foreign(&self.label, place))?;
            found.push(Sample::new(value, place.clone()));
        }
        Ok(found)
    }
}
