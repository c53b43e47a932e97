//! Steps that look at one element at a time.

use super::{Columns, Failure, Next, Origin, Place, Sample, Site, Stage, blamed, foreign, parent};
use crate::asking;
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

/// What makes one element of one.
pub(super) trait Each: Send {
    /// Whether it makes columns of columns too, and batches of batches: it keeps or leaves out fields.
    const COLUMNS: bool = false;

    fn value(&self, value: Value, place: &Place) -> Result<Value, Failure>;

    fn columns(&self, columns: Columns) -> Result<Columns, Failure> {
        Ok(columns)
    }
}

/// A step that gives one element for each.
pub(super) struct One<E> {
    input: Box<dyn Stage>,
    each: E,
}

impl<E: Each> One<E> {
    fn of(site: &Site, each: E) -> Result<Self, Failure> {
        Ok(Self {
            input: site.input()?,
            each,
        })
    }

    fn make(&self, sample: Sample) -> Result<Sample, Failure> {
        let Sample { value, place, collated } = sample;
        Ok(Sample {
            value: self.each.value(value, &place)?,
            place,
            collated: E::COLUMNS && collated,
        })
    }

    /// As [`make`](One::make), and a failure says where its element is stored.
    fn make_or_blame(&mut self, sample: Sample) -> Result<Sample, Failure> {
        let place = sample.place.clone();
        self.make(sample)
            .map_err(|failure| blamed(failure, &mut *self.input, &place))
    }
}

impl<E: Each> Stage for One<E> {
    fn next(&mut self) -> Next {
        let found = self.input.next()?;
        found.map(|sample| self.make_or_blame(sample)).transpose()
    }

    fn next_known(
        &mut self,
        known: &mut dyn FnMut(&Place) -> Option<Sample>,
    ) -> Result<Option<(Sample, bool)>, Failure> {
        Ok(match self.input.next_known(known)? {
            Some((sample, false)) => Some((self.make_or_blame(sample)?, false)),
            found => found,
        })
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
        if !E::COLUMNS {
            return None;
        }
        let found = self.input.columns(rows)?;
        Some(found.and_then(|(columns, place)| Ok((self.each.columns(columns)?, place))))
    }

    fn columns_again(&mut self, place: &Place) -> Option<Result<Columns, Failure>> {
        if !E::COLUMNS {
            return None;
        }
        let found = self.input.columns_again(place)?;
        Some(found.and_then(|columns| self.each.columns(columns)))
    }
}

/// `map`.
pub(super) struct Mapping(Caller);

impl Mapping {
    pub(super) fn open(site: &Site, function: &Func) -> Result<One<Self>, Failure> {
        One::of(site, Self(Caller::new(site, function)))
    }
}

impl Each for Mapping {
    fn value(&self, value: Value, place: &Place) -> Result<Value, Failure> {
        let caller = &self.0;
        caller
            .function
            .map(value, &caller.at(place))
            .map_err(|error| caller.failed(error))
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
        let Sample { value, place, collated } = sample;
        let caller = &self.caller;
        let (value, stays) = caller
            .function
            .keep(value, &caller.at(&place))
            .map_err(|error| caller.failed(error))?;
        Ok((Sample { value, place, collated }, stays))
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
            if !asking::go_on_now() {
                return Err(Failure::fatal(&*self.caller.label, "interrupted"));
            }
        }
        Ok(None)
    }

    fn next_known(
        &mut self,
        known: &mut dyn FnMut(&Place) -> Option<Sample>,
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
                return Ok(Some(Sample::new(value, place)));
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
            let value = value.cloned().ok_or_else(|| foreign(&self.caller.label, place))?;
            found.push(Sample::new(value, place.clone()));
        }
        Ok(found)
    }
}

/// `select`: these fields, renamed.
pub(super) struct Selecting {
    label: String,
    fields: Vec<(String, String)>,
}

impl Selecting {
    pub(super) fn open(site: &Site, fields: &[(String, String)]) -> Result<One<Self>, Failure> {
        let (label, fields) = (site.label(), fields.to_vec());
        One::of(site, Self { label, fields })
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
}

impl Each for Selecting {
    const COLUMNS: bool = true;

    fn value(&self, value: Value, _: &Place) -> Result<Value, Failure> {
        self.pick(pairs_of(&self.label, value)?).map(Value::Map)
    }

    fn columns(&self, columns: Columns) -> Result<Columns, Failure> {
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
            format!("the element is {}, and not a map with fields", other.describe()).into(),
        )),
    }
}

/// `without`: all fields but these.
pub(super) struct Leaving {
    label: String,
    fields: Vec<String>,
}

impl Leaving {
    pub(super) fn open(site: &Site, fields: &[String]) -> Result<One<Self>, Failure> {
        let (label, fields) = (site.label(), fields.to_vec());
        One::of(site, Self { label, fields })
    }

    fn rest(&self, mut pairs: Vec<(String, Value)>) -> Vec<(String, Value)> {
        pairs.retain(|(name, _)| !self.fields.contains(name));
        pairs
    }
}

impl Each for Leaving {
    const COLUMNS: bool = true;

    fn value(&self, value: Value, _: &Place) -> Result<Value, Failure> {
        Ok(Value::Map(self.rest(pairs_of(&self.label, value)?)))
    }

    fn columns(&self, columns: Columns) -> Result<Columns, Failure> {
        Ok(Columns {
            fields: self.rest(columns.fields),
            ..columns
        })
    }
}
