//! Steps that look at one element at a time.

use super::{Columns, Failure, Next, Origin, Place, Sample, Site, Stage, blamed, foreign, parent};
use crate::batch::Value;
use crate::pipeline::function::{Call, Func};
use crate::state::State;

fn input_state(input: &dyn Stage) -> State {
    State::map([("input", input.cursor())])
}

/// What calling a user's function needs.
struct Caller {
    label: String,
    function: Func,
    call: Call,
}

impl Caller {
    fn new(site: &Site, function: &Func) -> Self {
        Self {
            label: site.label(),
            function: function.clone(),
            call: site.opening.call(),
        }
    }

    fn at(&self, place: &Place) -> Call {
        Call {
            place: place.key(),
            ..self.call
        }
    }

    fn failed(&self, source: crate::BoxError) -> Failure {
        Failure::element(&self.label, source)
    }
}

/// `map`.
pub(super) struct Mapped {
    input: Box<dyn Stage>,
    caller: Caller,
}

impl Mapped {
    pub(super) fn open(site: &Site, function: &Func) -> Result<Self, Failure> {
        Ok(Self {
            input: site.input()?,
            caller: Caller::new(site, function),
        })
    }

    fn make(&self, sample: Sample) -> Result<Sample, Failure> {
        let Sample { value, place } = sample;
        let caller = &self.caller;
        let value = caller
            .function
            .map(value, &caller.at(&place))
            .map_err(|error| caller.failed(error))?;
        Ok(Sample { value, place })
    }
}

impl Stage for Mapped {
    fn next(&mut self) -> Next {
        let Some(sample) = self.input.next()? else {
            return Ok(None);
        };
        let place = sample.place.clone();
        match self.make(sample) {
            Ok(sample) => Ok(Some(sample)),
            Err(failure) => Err(blamed(failure, &mut *self.input, &place)),
        }
    }

    fn next_known(
        &mut self,
        known: &mut dyn FnMut(&Place) -> Option<Value>,
    ) -> Result<Option<(Sample, bool)>, Failure> {
        let Some((sample, found)) = self.input.next_known(known)? else {
            return Ok(None);
        };
        if found {
            return Ok(Some((sample, true)));
        }
        let place = sample.place.clone();
        match self.make(sample) {
            Ok(sample) => Ok(Some((sample, false))),
            Err(failure) => Err(blamed(failure, &mut *self.input, &place)),
        }
    }

    fn cursor(&self) -> State {
        input_state(&*self.input)
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let samples = self.input.again(places)?;
        samples.into_iter().map(|sample| self.make(sample)).collect()
    }
}

/// `filter`.
pub(super) struct Kept {
    input: Box<dyn Stage>,
    caller: Caller,
}

impl Kept {
    pub(super) fn open(site: &Site, function: &Func) -> Result<Self, Failure> {
        Ok(Self {
            input: site.input()?,
            caller: Caller::new(site, function),
        })
    }

    fn look(&self, sample: Sample) -> Result<(Sample, bool), Failure> {
        let Sample { value, place } = sample;
        let caller = &self.caller;
        let (value, stays) = caller
            .function
            .keep(value, &caller.at(&place))
            .map_err(|error| caller.failed(error))?;
        Ok((Sample { value, place }, stays))
    }
}

impl Stage for Kept {
    fn next(&mut self) -> Next {
        while let Some(sample) = self.input.next()? {
            let place = sample.place.clone();
            let (sample, stays) = match self.look(sample) {
                Ok(looked) => looked,
                Err(failure) => return Err(blamed(failure, &mut *self.input, &place)),
            };
            if stays {
                return Ok(Some(sample));
            }
        }
        Ok(None)
    }

    fn next_known(
        &mut self,
        known: &mut dyn FnMut(&Place) -> Option<Value>,
    ) -> Result<Option<(Sample, bool)>, Failure> {
        while let Some((sample, found)) = self.input.next_known(known)? {
            // What is known stayed before.
            if found {
                return Ok(Some((sample, true)));
            }
            let place = sample.place.clone();
            match self.look(sample) {
                Ok((sample, true)) => return Ok(Some((sample, false))),
                Ok((_, false)) => {}
                Err(failure) => return Err(blamed(failure, &mut *self.input, &place)),
            }
        }
        Ok(None)
    }

    fn cursor(&self) -> State {
        input_state(&*self.input)
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let samples = self.input.again(places)?;
        samples
            .into_iter()
            .map(|sample| match self.look(sample)? {
                (sample, true) => Ok(sample),
                (sample, false) => Err(Failure::fatal(
                    &self.caller.label,
                    format!(
                        "{:?} stayed before and does not now: a filter has to be deterministic for a run to be resumed",
                        sample.place
                    ),
                )),
            })
            .collect()
    }
}

/// `flat_map`.
pub(super) struct Expanded {
    input: Box<dyn Stage>,
    caller: Caller,
    /// What came of the element at hand, in reverse, and where it comes from.
    waiting: Vec<Value>,
    place: Option<Place>,
    /// How many came of it.
    count: usize,
}

impl Expanded {
    pub(super) fn open(site: &Site, function: &Func) -> Result<Self, Failure> {
        let mut opened = Self {
            input: site.input()?,
            caller: Caller::new(site, function),
            waiting: Vec::new(),
            place: None,
            count: 0,
        };
        if let Some(place) = site.places("open")?.pop() {
            let given = usize::try_from(site.number("given")?).unwrap_or(usize::MAX);
            let sample = opened.input.again(std::slice::from_ref(&place))?.pop();
            let sample = sample.ok_or_else(|| foreign(&opened.caller.label, &place))?;
            opened.fill(sample)?;
            opened.waiting.truncate(opened.count.saturating_sub(given));
        }
        Ok(opened)
    }

    fn expand(&self, sample: Sample) -> Result<Vec<Value>, Failure> {
        let caller = &self.caller;
        caller
            .function
            .expand(sample.value, &caller.at(&sample.place))
            .map_err(|error| caller.failed(error))
    }

    fn fill(&mut self, sample: Sample) -> Result<(), Failure> {
        let place = sample.place.clone();
        self.waiting = self.expand(sample)?;
        self.count = self.waiting.len();
        self.waiting.reverse();
        self.place = Some(place);
        Ok(())
    }
}

impl Stage for Expanded {
    fn next(&mut self) -> Next {
        loop {
            if let Some(value) = self.waiting.pop() {
                let number = self.count - self.waiting.len() - 1;
                let place = self.place.clone().unwrap_or(Place::Group(Vec::new()));
                let place = place.child(u32::try_from(number).unwrap_or(u32::MAX));
                return Ok(Some(Sample { value, place }));
            }
            match self.input.next()? {
                Some(sample) => {
                    let place = sample.place.clone();
                    if let Err(failure) = self.fill(sample) {
                        return Err(blamed(failure, &mut *self.input, &place));
                    }
                }
                None => return Ok(None),
            }
        }
    }

    fn cursor(&self) -> State {
        let open = if self.waiting.is_empty() {
            None
        } else {
            self.place.as_ref()
        };
        State::map([
            ("input", self.input.cursor()),
            ("open", crate::pipeline::sample::to_text(open).into()),
            ("given", ((self.count - self.waiting.len()) as u64).into()),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(parent(place))
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let mut inner = Vec::with_capacity(places.len());
        for place in places {
            match place {
                Place::Child(place, _) => inner.push((**place).clone()),
                other => return Err(foreign(&self.caller.label, other)),
            }
        }
        // One element has many children: it is read and expanded once for those that follow one another.
        let mut distinct = inner.clone();
        distinct.dedup();
        let mut samples = self.input.again(&distinct)?.into_iter();
        let mut current: Option<(Place, Vec<Value>)> = None;
        let mut found = Vec::with_capacity(places.len());
        for (place, inner) in places.iter().zip(inner) {
            if current.as_ref().is_none_or(|(open, _)| *open != inner) {
                let sample = samples.next().ok_or_else(|| foreign(&self.caller.label, place))?;
                current = Some((inner, self.expand(sample)?));
            }
            let Place::Child(_, number) = place else { continue };
            let value = current.as_ref().and_then(|(_, values)| values.get(*number as usize));
            found.push(Sample {
                value: value.cloned().ok_or_else(|| foreign(&self.caller.label, place))?,
                place: place.clone(),
            });
        }
        Ok(found)
    }
}

/// `select`: these fields, renamed.
pub(super) struct Selected {
    input: Box<dyn Stage>,
    label: String,
    fields: Vec<(String, String)>,
}

impl Selected {
    pub(super) fn open(site: &Site, fields: &[(String, String)]) -> Result<Self, Failure> {
        Ok(Self {
            input: site.input()?,
            label: site.label(),
            fields: fields.to_vec(),
        })
    }

    fn pick(&self, pairs: Vec<(String, Value)>) -> Result<Vec<(String, Value)>, Failure> {
        let mut left: Vec<Option<(String, Value)>> = pairs.into_iter().map(Some).collect();
        let mut found = Vec::with_capacity(self.fields.len());
        for (name, new) in &self.fields {
            let slot = left
                .iter_mut()
                .find(|slot| matches!(slot, Some((have, _)) if have == name));
            if let Some((_, value)) = slot.and_then(Option::take) {
                found.push((new.clone(), value));
                continue;
            }
            if let Some((_, value)) = self.taken(name, &found) {
                found.push((new.clone(), value));
                continue;
            }
            let have: Vec<_> = left.iter().flatten().map(|(name, _)| name.as_str()).collect();
            let message = format!("no field `{name}`; there are {have:?}");
            return Err(Failure::element(&self.label, message.into()));
        }
        Ok(found)
    }

    /// A field that is asked for twice, by its first new name.
    fn taken(&self, name: &str, found: &[(String, Value)]) -> Option<(String, Value)> {
        let first = self.fields.iter().find(|(have, _)| have == name)?;
        found.iter().find(|(new, _)| *new == first.1).cloned()
    }

    fn make(&self, sample: Sample) -> Result<Sample, Failure> {
        let pairs = self.pick(pairs_of(&self.label, sample.value)?)?;
        Ok(Sample {
            value: Value::Map(pairs),
            place: sample.place,
        })
    }

    fn columns_of(&self, columns: Columns) -> Result<Columns, Failure> {
        if columns.rows == 0 {
            return Ok(columns);
        }
        Ok(Columns {
            fields: self.pick(columns.fields)?,
            ..columns
        })
    }
}

fn pairs_of(label: &str, value: Value) -> Result<Vec<(String, Value)>, Failure> {
    match value.native().map_err(|error| Failure::element(label, error))? {
        Value::Map(pairs) => Ok(pairs),
        other => Err(Failure::element(
            label,
            format!("the element is {}, and not a map with fields", other.kind()).into(),
        )),
    }
}

impl Stage for Selected {
    fn next(&mut self) -> Next {
        let Some(sample) = self.input.next()? else {
            return Ok(None);
        };
        let place = sample.place.clone();
        match self.make(sample) {
            Ok(sample) => Ok(Some(sample)),
            Err(failure) => Err(blamed(failure, &mut *self.input, &place)),
        }
    }

    fn next_known(
        &mut self,
        known: &mut dyn FnMut(&Place) -> Option<Value>,
    ) -> Result<Option<(Sample, bool)>, Failure> {
        let Some((sample, found)) = self.input.next_known(known)? else {
            return Ok(None);
        };
        if found {
            return Ok(Some((sample, true)));
        }
        let place = sample.place.clone();
        match self.make(sample) {
            Ok(sample) => Ok(Some((sample, false))),
            Err(failure) => Err(blamed(failure, &mut *self.input, &place)),
        }
    }

    fn cursor(&self) -> State {
        input_state(&*self.input)
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let samples = self.input.again(places)?;
        samples.into_iter().map(|sample| self.make(sample)).collect()
    }

    fn columns(&mut self, rows: usize) -> Option<Result<(Columns, Place), Failure>> {
        let found = self.input.columns(rows)?;
        Some(found.and_then(|(columns, place)| Ok((self.columns_of(columns)?, place))))
    }

    fn columns_again(&mut self, place: &Place) -> Option<Result<Columns, Failure>> {
        let found = self.input.columns_again(place)?;
        Some(found.and_then(|columns| self.columns_of(columns)))
    }
}

/// `without`: all fields but these.
pub(super) struct Without {
    input: Box<dyn Stage>,
    label: String,
    fields: Vec<String>,
}

impl Without {
    pub(super) fn open(site: &Site, fields: &[String]) -> Result<Self, Failure> {
        Ok(Self {
            input: site.input()?,
            label: site.label(),
            fields: fields.to_vec(),
        })
    }

    fn make(&self, sample: Sample) -> Result<Sample, Failure> {
        let mut pairs = pairs_of(&self.label, sample.value)?;
        pairs.retain(|(name, _)| !self.fields.contains(name));
        Ok(Sample {
            value: Value::Map(pairs),
            place: sample.place,
        })
    }

    fn columns_of(&self, mut columns: Columns) -> Columns {
        columns.fields.retain(|(name, _)| !self.fields.contains(name));
        columns
    }
}

impl Stage for Without {
    fn next(&mut self) -> Next {
        let Some(sample) = self.input.next()? else {
            return Ok(None);
        };
        let place = sample.place.clone();
        match self.make(sample) {
            Ok(sample) => Ok(Some(sample)),
            Err(failure) => Err(blamed(failure, &mut *self.input, &place)),
        }
    }

    fn next_known(
        &mut self,
        known: &mut dyn FnMut(&Place) -> Option<Value>,
    ) -> Result<Option<(Sample, bool)>, Failure> {
        let Some((sample, found)) = self.input.next_known(known)? else {
            return Ok(None);
        };
        if found {
            return Ok(Some((sample, true)));
        }
        let place = sample.place.clone();
        match self.make(sample) {
            Ok(sample) => Ok(Some((sample, false))),
            Err(failure) => Err(blamed(failure, &mut *self.input, &place)),
        }
    }

    fn cursor(&self) -> State {
        input_state(&*self.input)
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let samples = self.input.again(places)?;
        samples.into_iter().map(|sample| self.make(sample)).collect()
    }

    fn columns(&mut self, rows: usize) -> Option<Result<(Columns, Place), Failure>> {
        let found = self.input.columns(rows)?;
        Some(found.map(|(columns, place)| (self.columns_of(columns), place)))
    }

    fn columns_again(&mut self, place: &Place) -> Option<Result<Columns, Failure>> {
        let found = self.input.columns_again(place)?;
        Some(found.map(|columns| self.columns_of(columns)))
    }
}
