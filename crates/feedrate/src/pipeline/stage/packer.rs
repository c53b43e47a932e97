//! `pack`: documents to sequences of a fixed length.

use std::collections::{HashMap, VecDeque};

use super::{Failure, Next, Origin, Place, Sample, Site, Stage, blamed, foreign, parent};
use crate::batch::{Heap, Tensor, TensorError, Value};
use crate::error::BoxError;
use crate::pipeline::pack::{Fit, Long, Packing};
use crate::pipeline::padding::Fill;
use crate::pipeline::sample::to_text;
use crate::state::State;

/// A document, or a piece of a long one.
#[derive(Debug, Clone)]
struct Piece {
    /// One tensor for each field, all of them `len` long.
    fields: Vec<Tensor>,
    len: usize,
    /// Position of its first token in the document.
    start: usize,
    place: Place,
}

/// A sequence that is being filled.
#[derive(Debug, Default)]
struct Bin {
    used: usize,
    pieces: Vec<Piece>,
}

impl Bin {
    fn put(&mut self, piece: Piece) {
        self.used += piece.len;
        self.pieces.push(piece);
    }
}

pub(super) struct Packed {
    input: Box<dyn Stage>,
    label: String,
    packing: Packing,
    /// Names of the fields, as the first document has them.
    names: Vec<String>,
    /// Pieces of a document that were not put anywhere yet.
    pieces: VecDeque<Piece>,
    /// In the order in which they were begun.
    bins: Vec<Bin>,
    ready: VecDeque<Bin>,
}

impl Packed {
    pub(super) fn open(site: &Site, packing: &Packing) -> Result<Self, Failure> {
        let mut opened = Self {
            input: site.input()?,
            label: site.label(),
            packing: packing.clone(),
            names: packing.fields.clone(),
            pieces: VecDeque::new(),
            bins: Vec::new(),
            ready: VecDeque::new(),
        };
        if let Some(State::List(names)) = site.cursor.and_then(|cursor| cursor.get("names")) {
            let names = names.iter().filter_map(|name| match name {
                State::Text(name) => Some(name.clone()),
                _ => None,
            });
            opened.names.extend(names);
        }
        let groups = site.places("sequences")?;
        let ready = usize::try_from(site.number("ready")?).unwrap_or(0);
        for (at, pieces) in opened.groups_of(&groups)?.into_iter().enumerate() {
            if at == 0 {
                opened.pieces = pieces.into();
                continue;
            }
            let mut bin = Bin::default();
            for piece in pieces {
                bin.put(piece);
            }
            if at <= ready {
                opened.ready.push_back(bin);
            } else {
                opened.bins.push(bin);
            }
        }
        Ok(opened)
    }

    /// The fields of an element.
    fn fields(&mut self, value: Value) -> Result<Vec<Tensor>, BoxError> {
        let pairs = match value.native()? {
            Value::Map(pairs) => pairs,
            other => vec![("tokens".to_owned(), other)],
        };
        if self.names.is_empty() {
            let tokens = |value: &Value| {
                matches!(value, Value::List(_)) || value.as_tensor().is_some_and(|t| t.shape().len() == 1)
            };
            let names = pairs
                .iter()
                .filter(|(_, value)| tokens(value))
                .map(|(name, _)| name.clone());
            self.names = names.collect();
            if self.names.is_empty() {
                return Err("nothing to pack: no field is a one-dimensional tensor or a list of numbers".into());
            }
        }
        let mut fields: Vec<Tensor> = Vec::with_capacity(self.names.len());
        for name in &self.names {
            let found = pairs.iter().find(|(have, _)| have == name);
            let (_, value) = found.ok_or_else(|| {
                let have: Vec<_> = pairs.iter().map(|(name, _)| name.as_str()).collect();
                format!("no field `{name}`; there are {have:?}")
            })?;
            let tensor = match value {
                Value::Tensor(tensor) if tensor.shape().len() == 1 => tensor.clone(),
                Value::List(items) => numbers(items).map_err(|error| format!("field `{name}`: {error}"))?,
                other => return Err(format!("field `{name}` is {}, and not one-dimensional", other.kind()).into()),
            };
            if let Some(first) = fields.first()
                && first.shape() != tensor.shape()
            {
                return Err(format!(
                    "field `{name}` has {} tokens, `{}` has {}: fields that are packed together are of one length",
                    tensor.shape()[0],
                    self.names[0],
                    first.shape()[0]
                )
                .into());
            }
            fields.push(tensor);
        }
        Ok(fields)
    }

    /// The pieces of one document.
    fn cut(&mut self, sample: Sample) -> Result<Vec<Piece>, Failure> {
        let Sample { value, place, .. } = sample;
        let label = self.label.clone();
        let failed = |error: BoxError| Failure::element(&label, error);
        let fields = self.fields(value).map_err(failed)?;
        let (len, length) = (fields[0].shape()[0], self.packing.length);
        let count = match self.packing.long {
            _ if len <= length => 1,
            Long::Truncate => 1,
            Long::Split => len.div_ceil(length),
            Long::Refuse => {
                let message = format!("a document of {len} tokens does not fit into {length}: split or truncate it");
                return Err(failed(message.into()));
            }
        };
        if len == 0 {
            return Ok(Vec::new());
        }
        (0..count)
            .map(|at| {
                let start = at * length;
                let size = length.min(len - start);
                let cut: Result<Vec<_>, TensorError> = fields.iter().map(|field| field.narrow(start, size)).collect();
                Ok(Piece {
                    fields: cut.map_err(|error| failed(error.into()))?,
                    len: size,
                    start,
                    place: place.clone().child(u32::try_from(at).unwrap_or(u32::MAX)),
                })
            })
            .collect()
    }

    /// Pieces that were cut before, of several sequences. Each document is made again once, however many of its pieces are wanted.
    fn groups_of(&mut self, groups: &[Place]) -> Result<Vec<Vec<Piece>>, Failure> {
        let mut documents: Vec<Place> = Vec::new();
        let mut numbers: HashMap<&Place, usize> = HashMap::new();
        // By group: the document's number, the piece's number in it, and its place.
        let mut wanted: Vec<Vec<(usize, usize, &Place)>> = Vec::with_capacity(groups.len());
        for group in groups {
            let Place::Group(places) = group else {
                return Err(foreign(&self.label, group));
            };
            let mut pieces = Vec::with_capacity(places.len());
            for place in places {
                let Place::Child(document, piece) = place else {
                    return Err(foreign(&self.label, place));
                };
                let number = *numbers.entry(document).or_insert_with(|| {
                    documents.push((**document).clone());
                    documents.len() - 1
                });
                pieces.push((number, *piece as usize, place));
            }
            wanted.push(pieces);
        }
        let samples = self.input.again(&documents)?;
        let cut: Vec<Vec<Piece>> = samples
            .into_iter()
            .map(|sample| self.cut(sample))
            .collect::<Result<_, _>>()?;
        let piece = |(document, at, place): (usize, usize, &Place)| {
            let found = cut.get(document).and_then(|pieces| pieces.get(at)).cloned();
            found.ok_or_else(|| foreign(&self.label, place))
        };
        wanted
            .into_iter()
            .map(|pieces| pieces.into_iter().map(piece).collect())
            .collect()
    }

    /// Puts a piece into a sequence.
    fn put(&mut self, piece: Piece) {
        let room = |bin: &Bin| self.packing.length - bin.used;
        let fitting = self.bins.iter().enumerate().filter(|(_, bin)| room(bin) >= piece.len);
        let at = match self.packing.fit {
            Fit::First => fitting.map(|(at, _)| at).next(),
            Fit::Best => fitting.min_by_key(|(_, bin)| room(bin)).map(|(at, _)| at),
        };
        let at = at.unwrap_or_else(|| {
            if self.bins.len() >= self.packing.open.max(1) {
                // Of equally full ones the first.
                let fullest = (0..self.bins.len())
                    .rev()
                    .max_by_key(|at| self.bins[*at].used)
                    .unwrap_or(0);
                self.ready.push_back(self.bins.remove(fullest));
            }
            self.bins.push(Bin::default());
            self.bins.len() - 1
        });
        self.bins[at].put(piece);
        if self.bins[at].used == self.packing.length {
            self.ready.push_back(self.bins.remove(at));
        }
    }

    fn make(&self, bin: &Bin) -> Result<Sample, Failure> {
        let value = self.lay_out(&bin.pieces);
        let place = Place::Group(bin.pieces.iter().map(|piece| piece.place.clone()).collect());
        let value = value.map_err(|error| Failure::element(&self.label, error))?;
        Ok(Sample::new(value, place))
    }

    fn lay_out(&self, pieces: &[Piece]) -> Result<Value, BoxError> {
        let length = self.packing.length;
        let mut out = Vec::with_capacity(self.names.len() + 2);
        for (at, name) in self.names.iter().enumerate() {
            let dtype = pieces[0].fields[at].dtype();
            let filler = Fill::Whole(self.packing.padding).bytes(dtype)?;
            let tensor = Tensor::build(&Heap, dtype, &[length], |bytes| {
                let mut rest = bytes;
                for piece in pieces {
                    let field = &piece.fields[at];
                    if field.dtype() != dtype {
                        let message = format!(
                            "field `{name}` is {dtype} in one document and {} in another",
                            field.dtype()
                        );
                        return Err(BoxError::from(message));
                    }
                    let (place, behind) = rest.split_at_mut(field.bytes());
                    field.copy_to(place);
                    rest = behind;
                }
                for place in rest.chunks_exact_mut(filler.len()) {
                    place.copy_from_slice(&filler);
                }
                Ok(())
            })?;
            out.push((name.clone(), Value::Tensor(tensor)));
        }
        let (mut segments, mut positions) = (Vec::new(), Vec::new());
        for column in [&mut segments, &mut positions] {
            let room = column.try_reserve_exact(length);
            room.map_err(|error| format!("a sequence of {length} tokens: {error}"))?;
        }
        for (number, piece) in (1_i32..).zip(pieces) {
            let start = i32::try_from(piece.start).unwrap_or(i32::MAX);
            segments.extend(std::iter::repeat_n(number, piece.len));
            positions.extend((start..).take(piece.len));
        }
        segments.resize(length, 0);
        positions.resize(length, 0);
        out.push(("segment_ids".to_owned(), Tensor::from_vec(segments, &[length])?.into()));
        out.push(("positions".to_owned(), Tensor::from_vec(positions, &[length])?.into()));
        Ok(Value::Map(out))
    }
}

/// Whole numbers as a tensor.
fn numbers(items: &[Value]) -> Result<Tensor, BoxError> {
    let found: Option<Vec<i64>> = items
        .iter()
        .map(|item| match item {
            Value::Int(x) => Some(*x),
            _ => None,
        })
        .collect();
    let found = found.ok_or("a list that is packed holds whole numbers only")?;
    let len = found.len();
    Ok(Tensor::from_vec(found, &[len])?)
}

impl Stage for Packed {
    fn next(&mut self) -> Next {
        loop {
            if let Some(bin) = self.ready.pop_front() {
                return self.make(&bin).map(Some);
            }
            if let Some(piece) = self.pieces.pop_front() {
                self.put(piece);
                continue;
            }
            match self.input.next()? {
                Some(sample) => {
                    let place = sample.place.clone();
                    match self.cut(sample) {
                        Ok(pieces) => self.pieces = pieces.into(),
                        Err(failure) => return Err(blamed(failure, &mut *self.input, &place)),
                    }
                }
                None if self.bins.is_empty() => return Ok(None),
                None => {
                    let bin = self.bins.remove(0);
                    return self.make(&bin).map(Some);
                }
            }
        }
    }

    fn cursor(&self) -> State {
        fn group<'a>(pieces: impl Iterator<Item = &'a Piece>) -> Place {
            Place::Group(pieces.map(|piece| piece.place.clone()).collect())
        }
        let mut groups = vec![group(self.pieces.iter())];
        groups.extend(self.ready.iter().chain(&self.bins).map(|bin| group(bin.pieces.iter())));
        // Those of the definition are known.
        let found = if self.packing.fields.is_empty() {
            &self.names[..]
        } else {
            &[]
        };
        let names = found.iter().map(|name| name.as_str().into());
        State::map([
            ("input", self.input.cursor()),
            ("names", State::List(names.collect())),
            ("sequences", to_text(&groups).into()),
            ("ready", (self.ready.len() as u64).into()),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        match place {
            Place::Group(places) => self.input.origin(parent(places.first()?)),
            other => self.input.origin(parent(other)),
        }
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let groups = self.groups_of(places)?.into_iter();
        groups
            .map(|pieces| {
                let mut bin = Bin::default();
                for piece in pieces {
                    bin.put(piece);
                }
                self.make(&bin)
            })
            .collect()
    }
}
