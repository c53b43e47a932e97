//! The graph as data.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::function::Func;
use super::stage::{self, Lane, Opening, Stage};
use super::step::{Batch, Branch, Deal, Step, Weights};
use super::{Cache, Failure, Gather, Getter, Packing};
use crate::batch::Value;
use crate::error::Error;
use crate::source::{Items, Source};
use crate::state::State;

/// A definition: where elements come from and what is done with them, step by step.
///
/// Nothing is opened or run before it is iterated. It is cheap to clone, prints as what it does, and can be compared by its
/// [`fingerprint`](Pipeline::fingerprint).
///
/// ```
/// use feedrate::pipeline::Pipeline;
///
/// let pipeline = Pipeline::items("numbers", (0..10_i64).map(Into::into))
///     .keep("odd", |value, _| Ok(matches!(value, feedrate::batch::Value::Int(x) if x % 2 == 1)))
///     .batch(2);
/// let batches: Vec<_> = pipeline.iter()?.collect::<Result<_, _>>()?;
/// assert_eq!(batches.len(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pipeline(Arc<Node>);

/// One step and what it reads from.
pub(super) struct Node {
    pub(super) step: Step,
    pub(super) inputs: Vec<Pipeline>,
    /// Steps in this tree.
    size: u64,
    /// Steps one behind the other.
    depth: u32,
}

impl Pipeline {
    fn of(step: Step, inputs: Vec<Pipeline>) -> Self {
        let sizes = inputs.iter().map(|input| input.0.size);
        let size = sizes.fold(1, u64::saturating_add);
        let depth = 1 + inputs.iter().map(|input| input.0.depth).max().unwrap_or(0);
        Self(Arc::new(Node {
            step,
            inputs,
            size,
            depth,
        }))
    }

    fn then(&self, step: Step) -> Self {
        Self::of(step, vec![self.clone()])
    }

    pub(super) fn node(&self) -> &Node {
        &self.0
    }

    /// The records of a source.
    pub fn source(source: impl Source) -> Self {
        Self::dealt(Arc::new(source), Deal::Auto)
    }

    /// The records of a source, dealt out to lanes as said.
    pub fn dealt(source: Arc<dyn Source>, deal: Deal) -> Self {
        Self::of(Step::Source { source, deal }, Vec::new())
    }

    /// Values in memory.
    pub fn items(name: &str, items: impl IntoIterator<Item = Value>) -> Self {
        Self::source(Items::new(name, items))
    }

    /// All elements of the first, then of the second, and so on.
    pub fn concat(inputs: impl IntoIterator<Item = Pipeline>) -> Self {
        Self::of(Step::Concat, inputs.into_iter().collect())
    }

    /// `block` elements of each in turn; what has run out is left out.
    pub fn interleave(inputs: impl IntoIterator<Item = Pipeline>, block: usize) -> Self {
        Self::of(Step::Interleave(block.max(1)), inputs.into_iter().collect())
    }

    /// Elements of all, drawn by weight.
    pub fn mix(inputs: impl IntoIterator<Item = Pipeline>, weights: Weights) -> Result<Self, Error> {
        let inputs: Vec<_> = inputs.into_iter().collect();
        weights.check(inputs.len())?;
        Ok(Self::of(Step::Mix(weights), inputs))
    }

    /// Lists of one element of each; ends with the first that ends.
    pub fn zip(inputs: impl IntoIterator<Item = Pipeline>) -> Self {
        Self::of(Step::Zip, inputs.into_iter().collect())
    }

    /// Another value for each.
    #[must_use]
    pub fn map<F>(&self, name: &str, function: F) -> Self
    where
        F: Fn(Value, &super::Call) -> Result<Value, crate::BoxError> + Send + Sync + 'static,
    {
        self.then(Step::Map(Func::map(name, function)))
    }

    /// Those that the function says yes to.
    #[must_use]
    pub fn keep<F>(&self, name: &str, function: F) -> Self
    where
        F: Fn(&Value, &super::Call) -> Result<bool, crate::BoxError> + Send + Sync + 'static,
    {
        self.then(Step::Keep(Func::keep(name, function)))
    }

    /// Any number of values for each.
    #[must_use]
    pub fn expand<F>(&self, name: &str, function: F) -> Self
    where
        F: Fn(Value, &super::Call) -> Result<Vec<Value>, crate::BoxError> + Send + Sync + 'static,
    {
        self.then(Step::Expand(Func::expand(name, function)))
    }

    /// [`map`](Pipeline::map) with a function of another language.
    #[must_use]
    pub fn map_with(&self, function: Func) -> Self {
        self.then(Step::Map(function))
    }

    /// [`keep`](Pipeline::keep) with a function of another language.
    #[must_use]
    pub fn keep_with(&self, function: Func) -> Self {
        self.then(Step::Keep(function))
    }

    /// [`expand`](Pipeline::expand) with a function of another language.
    #[must_use]
    pub fn expand_with(&self, function: Func) -> Self {
        self.then(Step::Expand(function))
    }

    /// Only these fields, as `(name, new name)`.
    #[must_use]
    pub fn select(&self, fields: Vec<(String, String)>) -> Self {
        self.then(Step::Select(fields))
    }

    /// All fields but these.
    #[must_use]
    pub fn without(&self, fields: Vec<String>) -> Self {
        self.then(Step::Without(fields))
    }

    /// The parts of the source in another order each epoch. Goes through steps that look at one element at a time, down to the source;
    /// refused behind others.
    pub fn shuffle_parts(&self) -> Result<Self, Error> {
        match &self.0.step {
            Step::Source { .. } => Ok(self.then(Step::ShuffleParts)),
            step if step.single() => Ok(Self::of(step.clone(), vec![self.0.inputs[0].shuffle_parts()?])),
            _ => Err(self.misplaced("shuffle_parts()", "a source, with nothing but maps and filters between")),
        }
    }

    /// The records in another order each epoch, all of them equally likely anywhere. Goes through steps that give one element for
    /// each, down to the source; refused behind others, and unless the source is indexed.
    pub fn shuffle_all(&self) -> Result<Self, Error> {
        match &self.0.step {
            Step::Source { source, .. } if source.indexed() => Ok(self.then(Step::ShuffleAll)),
            Step::Source { source, .. } => Err(Error::config(format!(
                "shuffle_all() behind {}: its records cannot be read by number; use shuffle_parts() and shuffle(window), or a \
                 source with an index",
                source.format()
            ))),
            step if step.one_for_each() => Ok(Self::of(step.clone(), vec![self.0.inputs[0].shuffle_all()?])),
            _ => Err(self.misplaced("shuffle_all()", "an indexed source, with nothing but maps between")),
        }
    }

    fn misplaced(&self, step: &str, wanted: &str) -> Error {
        Error::config(format!("{step} behind {}: it works on {wanted}", self.0.label()))
    }

    /// Elements in random order out of a window of so many: each draw takes one of the window and fills its place from behind. With
    /// several lanes each has its share of the window, but no less than 32.
    #[must_use]
    pub fn shuffle(&self, window: usize) -> Self {
        self.then(Step::Shuffle(window))
    }

    /// Batches of `size` elements, collated as [`collate`](fn@crate::batch::collate) does; the last one may be short.
    #[must_use]
    pub fn batch(&self, size: usize) -> Self {
        self.batch_with(Batch::of(size))
    }

    /// Batches by this rule.
    #[must_use]
    pub fn batch_with(&self, rule: Batch) -> Self {
        let size = rule.size.max(1);
        self.then(Step::Batch(Batch { size, ..rule }))
    }

    /// The elements of batches, one by one: of lists, and of maps of tensors and lists along their first dimension.
    #[must_use]
    pub fn unbatch(&self) -> Self {
        self.then(Step::Unbatch)
    }

    /// Sorts within windows of so many by the number that `by` maps a value to, smallest first.
    #[must_use]
    pub fn sort_within(&self, window: usize, by: Func) -> Self {
        self.then(Step::SortWithin { window, by })
    }

    /// Documents packed into sequences of a fixed length.
    #[must_use]
    pub fn pack(&self, packing: Packing) -> Self {
        // None would hold a token.
        let length = packing.length.max(1);
        self.then(Step::Pack(Packing { length, ..packing }))
    }

    /// At most so many.
    #[must_use]
    pub fn take(&self, count: u64) -> Self {
        self.then(Step::Take(count))
    }

    /// Without the first so many.
    #[must_use]
    pub fn skip(&self, count: u64) -> Self {
        self.then(Step::Skip(count))
    }

    /// So many times (`None`: for ever), each time with new random orders.
    #[must_use]
    pub fn repeat(&self, times: Option<u64>) -> Self {
        self.then(Step::Repeat(times))
    }

    /// What the steps before make is kept, and given again in later epochs. It is the same in every epoch then: functions before it
    /// draw the random numbers of epoch 0, orders go on changing.
    #[must_use]
    pub fn cache(&self, cache: Cache) -> Self {
        self.then(Step::Cache(Arc::new(cache)))
    }

    /// Up to `count` elements are made ahead by a thread of each lane's own. Refused behind a [`fork`](Pipeline::fork), whose branches
    /// go on together.
    pub fn prefetch(&self, count: usize) -> Result<Self, Error> {
        self.alone("prefetch()")?;
        Ok(self.then(Step::Prefetch(count.max(1))))
    }

    /// Elements of all, whichever has one first: up to `count` of each are made ahead by a thread. Each comes once, and a cursor
    /// is exact, but another run has another order, so loaders with workers refuse it. Refused behind a fork.
    pub fn ready(inputs: impl IntoIterator<Item = Pipeline>, count: usize) -> Result<Self, Error> {
        let inputs: Vec<_> = inputs.into_iter().collect();
        inputs.iter().try_for_each(|input| input.alone("ready()"))?;
        Ok(Self::of(Step::Ready(count.max(1)), inputs))
    }

    fn alone(&self, step: &str) -> Result<(), Error> {
        match self.0.step {
            Step::Branch(_) => Err(Error::config(format!(
                "{step} behind {}: a branch goes on together with the others, and not in a thread of its own; put it before the fork",
                self.0.label()
            ))),
            _ => self.0.inputs.iter().try_for_each(|input| input.alone(step)),
        }
    }

    /// Batches whose size depends on their elements: buckets by length, or as many as a budget allows.
    pub fn gather(&self, gather: Gather) -> Result<Self, Error> {
        gather.rule.check()?;
        Ok(self.then(Step::Gather(gather)))
    }

    /// The same stream for `count` readers, read once where they are joined again: `zip` of them, say. Of what a reader lags behind,
    /// `buffer` elements are held, and of more only the places, from which they are made again. Readers that are not joined
    /// read it each for itself.
    pub fn fork(&self, count: usize, buffer: usize) -> Vec<Self> {
        self.branches(fork_number(), count, None, buffer)
    }

    /// `count` streams, of which the number that `by` maps an element to (from 0) gets it. Read once where they are joined again, as
    /// with [`fork`](Pipeline::fork).
    pub fn route(&self, count: usize, by: &Func, buffer: usize) -> Vec<Self> {
        self.branches(fork_number(), count, Some(by), buffer)
    }

    /// [`fork`](Pipeline::fork) or [`route`](Pipeline::route) with a number for the fork, by which branches that are made one by one
    /// know one another.
    pub fn branches(&self, fork: u64, count: usize, by: Option<&Func>, buffer: usize) -> Vec<Self> {
        let branch = |at| Branch {
            fork,
            at,
            of: count,
            by: by.cloned(),
            buffer,
        };
        (0..count).map(|at| self.then(Step::Branch(branch(at)))).collect()
    }

    /// The steps of [`Display`](fmt::Display), hashed (FNV-1a): equal definitions over equally named data have equal ones.
    pub fn fingerprint(&self) -> u64 {
        fnv(self.to_string().bytes())
    }

    /// The names and sizes of all files that are read (of what lies in memory the number of records), hashed: equal as long as no file
    /// was added, taken away or rewritten to another size. Lists the sources, which may block.
    pub fn data_fingerprint(&self) -> Result<u64, Failure> {
        let mut found = String::new();
        self.list_data(&mut found)?;
        Ok(fnv(found.bytes()))
    }

    /// As [`data_fingerprint`](Self::data_fingerprint), of the whole paths of all files that parts are made of, and with the times of their
    /// last changes.
    pub(super) fn data_stamp(&self) -> Result<u64, Failure> {
        let mut found = String::new();
        self.list_stamps(&mut HashSet::new(), &mut found)?;
        Ok(fnv(found.bytes()))
    }

    fn list_stamps(&self, seen: &mut HashSet<PathBuf>, found: &mut String) -> Result<(), Failure> {
        let node = &*self.0;
        if let Step::Source { source, .. } = &node.step {
            let failed = |error| Failure::reading(node.label(), error);
            for (at, part) in source.parts().map_err(failed)?.iter().enumerate() {
                source.contents(at, found);
                let files = source.files(at).map_err(failed)?;
                // What is no file has a size or a number of records.
                let size = part.bytes.or(part.records).filter(|_| files.is_empty());
                let _ = writeln!(found, "{} {size:?}", part.name);
                for path in files {
                    let path = std::path::absolute(&path).unwrap_or(path);
                    // Many parts may be of one file.
                    if seen.contains(&path) {
                        continue;
                    }
                    let known = std::fs::metadata(&path).ok();
                    let known = known.map(|file| (file.len(), file.modified().ok()));
                    let name = path.as_os_str().as_encoded_bytes().escape_ascii();
                    let _ = writeln!(found, "{name} {known:?}");
                    seen.insert(path);
                }
            }
        }
        node.inputs.iter().try_for_each(|input| input.list_stamps(seen, found))
    }

    fn list_data(&self, found: &mut String) -> Result<(), Failure> {
        let node = &*self.0;
        if let Step::Source { source, .. } = &node.step {
            let parts = source.parts().map_err(|error| Failure::reading(node.label(), error))?;
            for (at, part) in parts.iter().enumerate() {
                source.contents(at, found);
                let name = part.name.rsplit('/').next().unwrap_or_default();
                // A number of records may become known later on; a size is there from the start.
                let size = part.bytes.or(part.records);
                let _ = writeln!(found, "{name} {size:?}");
            }
        }
        node.inputs.iter().try_for_each(|input| input.list_data(found))
    }

    /// How many elements an epoch has, where the definition tells: with known numbers of records and one element for each. Lists the
    /// source, and reads its index if it is an indexed one. `None` where it is not known before all is read.
    pub fn len(&self) -> Result<Option<u64>, Failure> {
        let node = &*self.0;
        let inner = |at: usize| match node.inputs.get(at) {
            Some(input) => input.len(),
            None => Ok(None),
        };
        let all = || -> Result<Option<Vec<u64>>, Failure> { node.inputs.iter().map(Pipeline::len).collect() };
        Ok(match &node.step {
            Step::Source { source, .. } => {
                let parts = source.parts().map_err(|error| Failure::reading(node.label(), error))?;
                let known: Option<u64> = parts.iter().map(|part| part.records).sum();
                match known {
                    None if source.indexed() => {
                        let counts = source.index().map_err(|error| Failure::reading(node.label(), error))?;
                        Some(counts.iter().sum())
                    }
                    known => known,
                }
            }
            Step::ShuffleParts
            | Step::ShuffleAll
            | Step::Map(_)
            | Step::Select(_)
            | Step::Without(_)
            | Step::Shuffle(_)
            | Step::Cache(_)
            | Step::Prefetch(_)
            | Step::SortWithin { .. } => inner(0)?,
            Step::Branch(branch) if branch.by.is_none() => inner(0)?,
            Step::Branch(_)
            | Step::Gather(_)
            | Step::Keep(_)
            | Step::Expand(_)
            | Step::Unbatch
            | Step::Pack(_)
            | Step::Mix(_)
            | Step::Repeat(None) => None,
            Step::Batch(rule) => inner(0)?.map(|len| {
                let size = rule.size as u64;
                if rule.drop_last { len / size } else { len.div_ceil(size) }
            }),
            Step::Take(count) => inner(0)?.map(|len| len.min(*count)),
            Step::Skip(count) => inner(0)?.map(|len| len.saturating_sub(*count)),
            Step::Repeat(Some(times)) => inner(0)?.and_then(|len| len.checked_mul(*times)),
            Step::Concat | Step::Interleave(_) | Step::Ready(_) => {
                all()?.and_then(|lens| lens.into_iter().try_fold(0_u64, u64::checked_add))
            }
            Step::Zip => all()?.and_then(|lens| lens.into_iter().min()),
        })
    }

    /// The step that makes fewer elements of many (`batch`), if there is one: each lane makes its own, with an end of its own, so that
    /// [`len`](Self::len) holds for one lane only.
    pub fn cut(&self) -> Option<String> {
        match self.0.step {
            Step::Batch(_) => Some(self.0.label()),
            _ => self.0.inputs.iter().find_map(Self::cut),
        }
    }

    /// Whether every element can be had by its number: an indexed source, and steps that give one element for each.
    pub fn indexed(&self) -> bool {
        match &self.0.step {
            Step::Source { source, .. } => source.indexed(),
            step => step.one_for_each() && self.0.inputs.iter().all(Pipeline::indexed),
        }
    }

    /// Elements of an [`indexed`](Pipeline::indexed) pipeline by their numbers, for many calls.
    pub fn getter(&self) -> Result<Getter, Failure> {
        Getter::new(self)
    }

    /// Whether lanes run it whole and give only their share, since a step counts all elements in one row; the step's name.
    pub fn serial(&self) -> Option<String> {
        if self.0.step.counts() {
            return Some(self.0.label());
        }
        self.0.inputs.iter().find_map(Pipeline::serial)
    }

    /// The step whose order depends on time, if there is one.
    pub fn timed(&self) -> Option<String> {
        match self.0.step {
            Step::Ready(_) => Some(self.0.label()),
            _ => self.0.inputs.iter().find_map(Pipeline::timed),
        }
    }

    /// All elements of epoch 0 under seed 0, one after the other.
    #[expect(clippy::iter_not_returning_iterator, reason = "opening a source may fail")]
    pub fn iter(&self) -> Result<Elements, Failure> {
        self.epoch(0, 0)
    }

    /// All elements of an epoch, one after the other.
    pub fn epoch(&self, seed: u64, epoch: u64) -> Result<Elements, Failure> {
        let lane = self.lane(&Opening::whole(seed, epoch), None)?;
        Ok(Elements::of(lane))
    }

    /// One lane of an epoch, from its start or from a [`cursor`](Lane::cursor).
    pub fn lane(&self, opening: &Opening, cursor: Option<&State>) -> Result<Lane, Failure> {
        if self.0.depth > DEEPEST {
            let message = format!(
                "the pipeline has {} steps one behind the other, and {DEEPEST} are the limit: make several into one",
                self.0.depth
            );
            return Err(Failure::fatal(self.0.label(), message));
        }
        let stage = self.open(&opening.anew(), cursor)?;
        Ok(Lane::new(stage))
    }

    pub(super) fn open(&self, opening: &Opening, cursor: Option<&State>) -> Result<Box<dyn Stage>, Failure> {
        stage::open(self, opening, cursor)
    }

    fn lines(&self, out: &mut dyn fmt::Write, depth: usize) -> fmt::Result {
        for (at, input) in self.0.inputs.iter().enumerate() {
            let many = self.0.inputs.len() > 1;
            if many {
                writeln!(out, "{:depth$}[{at}]", "", depth = depth)?;
            }
            input.lines(out, depth + if many { 4 } else { 0 })?;
        }
        writeln!(out, "{:depth$}{}", "", self.0.step, depth = depth)
    }
}

/// Steps that may lie one behind the other: each calls the one before it, on the stack of the thread that asks.
const DEEPEST: u32 = 200;

/// A number that no other fork of this process has.
fn fork_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The FNV-1a hash (Fowler, Noll, Vo).
pub(super) fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Node {
    /// The step's name for messages.
    pub(super) fn label(&self) -> String {
        match &self.step {
            // Its shards say the rest.
            Step::Source { source, .. } => source.format().to_owned(),
            step => step.to_string(),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines(f, 0)
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The elements of one epoch.
#[derive(Debug)]
pub struct Elements {
    lane: Option<Lane>,
}

impl Elements {
    pub(super) fn of(lane: Lane) -> Self {
        Self { lane: Some(lane) }
    }
}

impl Iterator for Elements {
    type Item = Result<Value, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.lane.as_mut()?.next();
        match found {
            Ok(Some(sample)) => Some(Ok(sample.value)),
            Ok(None) => {
                self.lane = None;
                None
            }
            Err(failure) => {
                if !failure.may_continue {
                    self.lane = None;
                }
                Some(Err(failure))
            }
        }
    }
}
