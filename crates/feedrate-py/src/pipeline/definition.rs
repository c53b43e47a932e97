//! Definitions.

use std::collections::BTreeSet;
use std::ffi::c_long;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use feedrate::pipeline::{
    self, Batch, Cache, Deal, Failure, Fill, Fit, Func, Gather, Getter, Long, Opening, Oversize, Packing, Padding,
    Rule, Weights, asking,
};
use feedrate::source::Numbers;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::function::{Callable, KeyOf};
use super::lane::{Lane, raise};
use super::sequence::Iterated;
use super::sources;
use super::value::Arrays;
use crate::enter::{compute, quiet};
use crate::{state, system};

/// A definition, immutable. The Python class `feedrate.Pipeline` keeps one beside the steps it was made of.
#[pyclass(frozen, module = "feedrate._native")]
pub(crate) struct Pipeline {
    inner: pipeline::Pipeline,
    arrays: Arrays,
    /// Made at the first index.
    getter: OnceLock<Getter>,
}

fn config(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

impl Pipeline {
    fn with(&self, inner: pipeline::Pipeline) -> Self {
        Self::of(inner, self.arrays)
    }

    fn of(inner: pipeline::Pipeline, arrays: Arrays) -> Self {
        Self {
            inner,
            arrays,
            getter: OnceLock::new(),
        }
    }

    fn callable(&self, name: String, function: Py<PyAny>) -> Callable {
        Callable {
            name,
            function,
            arrays: self.arrays,
        }
    }

    fn inputs(inputs: &[Py<Self>]) -> PyResult<(Vec<pipeline::Pipeline>, Arrays)> {
        let first = inputs.first().ok_or_else(|| config("no pipelines to join"))?;
        let arrays = first.get().arrays;
        Ok((inputs.iter().map(|input| input.get().inner.clone()).collect(), arrays))
    }
}

#[pymethods]
impl Pipeline {
    /// The numbers below `count`.
    #[staticmethod]
    fn numbers(name: &str, count: u64, arrays: &str) -> PyResult<Self> {
        let inner = pipeline::Pipeline::source(Numbers::new(name, count));
        Ok(Self::of(inner, Arrays::of(arrays)?))
    }

    /// The items of an object with `__iter__`.
    #[staticmethod]
    fn iterable(name: String, object: Py<PyAny>, arrays: &str) -> PyResult<Self> {
        let inner = pipeline::Pipeline::source(Iterated { name, object });
        Ok(Self::of(inner, Arrays::of(arrays)?))
    }

    /// Shards of a format (`auto` looks at the first), dealt out to lanes by `split`.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        patterns: Vec<String>,
        format: &str,
        options: &Bound<'_, PyDict>,
        split: &str,
        arrays: &str,
    ) -> PyResult<Self> {
        let source = sources::open(py, patterns, format, options)?;
        let inner = pipeline::Pipeline::dealt(source, deal(split)?);
        Ok(Self::of(inner, Arrays::of(arrays)?))
    }

    fn map(&self, name: String, function: Py<PyAny>) -> Self {
        self.with(self.inner.map_with(Func::new(self.callable(name, function))))
    }

    fn filter(&self, name: String, function: Py<PyAny>) -> Self {
        self.with(self.inner.keep_with(Func::new(self.callable(name, function))))
    }

    fn flat_map(&self, name: String, function: Py<PyAny>) -> Self {
        self.with(self.inner.expand_with(Func::new(self.callable(name, function))))
    }

    fn select(&self, fields: Vec<(String, String)>) -> Self {
        self.with(self.inner.select(fields))
    }

    fn without(&self, fields: Vec<String>) -> Self {
        self.with(self.inner.without(fields))
    }

    fn shuffle_parts(&self) -> PyResult<Self> {
        Ok(self.with(self.inner.shuffle_parts().map_err(config)?))
    }

    fn shuffle_all(&self) -> PyResult<Self> {
        Ok(self.with(self.inner.shuffle_all().map_err(config)?))
    }

    fn shuffle(&self, window: usize) -> Self {
        self.with(self.inner.shuffle(window))
    }

    #[pyo3(signature = (size, *, drop_last=false, padding=None, collate=None))]
    fn batch(
        &self,
        size: usize,
        drop_last: bool,
        padding: Option<Paddings>,
        collate: Option<(String, Py<PyAny>)>,
    ) -> Self {
        let collate = collate.map(|(name, function)| Func::new(self.callable(name, function)));
        self.with(self.inner.batch_with(Batch {
            size,
            drop_last,
            padding: padding.map(padding_of),
            collate,
        }))
    }

    fn unbatch(&self) -> Self {
        self.with(self.inner.unbatch())
    }

    fn sort_within(&self, window: usize, name: String, key: Py<PyAny>) -> Self {
        let by = Func::new(KeyOf(self.callable(name, key)));
        self.with(self.inner.sort_within(window, by))
    }

    #[pyo3(signature = (length, *, open, fit, long, fields, padding))]
    fn pack(
        &self,
        length: usize,
        open: usize,
        fit: &str,
        long: &str,
        fields: Vec<String>,
        padding: i64,
    ) -> PyResult<Self> {
        let fit = match fit {
            "first" => Fit::First,
            "best" => Fit::Best,
            other => return Err(config(format!("fit={other:?}: first or best"))),
        };
        let long = match long {
            "split" => Long::Split,
            "truncate" => Long::Truncate,
            "error" => Long::Refuse,
            other => return Err(config(format!("long={other:?}: split, truncate or error"))),
        };
        Ok(self.with(self.inner.pack(Packing {
            length,
            open,
            fit,
            long,
            fields,
            padding,
        })))
    }

    /// Batches of elements of a bucket, or as many as a budget allows.
    #[pyo3(signature = (name, key, rule, *, drop_last=false, padding=None, collate=None))]
    fn gather(
        &self,
        name: String,
        key: Py<PyAny>,
        rule: &Bound<'_, PyDict>,
        drop_last: bool,
        padding: Option<Paddings>,
        collate: Option<(String, Py<PyAny>)>,
    ) -> PyResult<Self> {
        let collate = collate.map(|(name, function)| Func::new(self.callable(name, function)));
        let gather = Gather {
            by: Func::new(KeyOf(self.callable(name, key))),
            rule: rule_of(rule)?,
            batch: Batch {
                size: 1,
                drop_last,
                padding: padding.map(padding_of),
                collate,
            },
        };
        Ok(self.with(self.inner.gather(gather).map_err(config)?))
    }

    /// What comes before is kept in memory, or in files of `folder`. `code`: says which code the functions before have.
    fn cache(&self, limit: u64, folder: Option<std::path::PathBuf>, code: &str) -> Self {
        self.with(self.inner.cache(match folder {
            Some(folder) => Cache::files(folder, limit).version(code),
            None => Cache::memory(limit),
        }))
    }

    fn prefetch(&self, count: usize) -> PyResult<Self> {
        Ok(self.with(self.inner.prefetch(count).map_err(config)?))
    }

    #[staticmethod]
    fn ready(inputs: Vec<Py<Self>>, count: usize) -> PyResult<Self> {
        let (inputs, arrays) = Self::inputs(&inputs)?;
        let inner = pipeline::Pipeline::ready(inputs, count).map_err(config)?;
        Ok(Self::of(inner, arrays))
    }

    /// Branch `at` of the fork of this number. `by` gives the number of the branch that an element is for.
    #[pyo3(signature = (fork, at, of, buffer, by=None))]
    fn branch(
        &self,
        fork: u64,
        at: usize,
        of: usize,
        buffer: usize,
        by: Option<(String, Py<PyAny>)>,
    ) -> PyResult<Self> {
        let by = by.map(|(name, function)| Func::new(KeyOf(self.callable(name, function))));
        let mut branches = self.inner.branches(fork, of, by.as_ref(), buffer);
        if at >= branches.len() {
            return Err(config(format!("branch {at} of {of}")));
        }
        Ok(self.with(branches.swap_remove(at)))
    }

    /// The step whose order depends on time, if there is one.
    #[getter]
    fn timed(&self) -> Option<String> {
        self.inner.timed()
    }

    fn take(&self, count: u64) -> Self {
        self.with(self.inner.take(count))
    }

    fn skip(&self, count: u64) -> Self {
        self.with(self.inner.skip(count))
    }

    #[pyo3(signature = (times=None))]
    fn repeat(&self, times: Option<u64>) -> Self {
        self.with(self.inner.repeat(times))
    }

    #[staticmethod]
    fn concat(inputs: Vec<Py<Self>>) -> PyResult<Self> {
        let (inputs, arrays) = Self::inputs(&inputs)?;
        let inner = pipeline::Pipeline::concat(inputs);
        Ok(Self::of(inner, arrays))
    }

    #[staticmethod]
    fn interleave(inputs: Vec<Py<Self>>, block: usize) -> PyResult<Self> {
        let (inputs, arrays) = Self::inputs(&inputs)?;
        let inner = pipeline::Pipeline::interleave(inputs, block);
        Ok(Self::of(inner, arrays))
    }

    #[staticmethod]
    fn zip(inputs: Vec<Py<Self>>) -> PyResult<Self> {
        let (inputs, arrays) = Self::inputs(&inputs)?;
        let inner = pipeline::Pipeline::zip(inputs);
        Ok(Self::of(inner, arrays))
    }

    #[staticmethod]
    fn mix(inputs: Vec<Py<Self>>, schedule: Vec<(u64, Vec<f64>)>, replacement: bool) -> PyResult<Self> {
        let (inputs, arrays) = Self::inputs(&inputs)?;
        let weights = Weights { schedule, replacement };
        let inner = pipeline::Pipeline::mix(inputs, weights).map_err(config)?;
        Ok(Self::of(inner, arrays))
    }

    /// Number of elements in an epoch where the definition tells, else `None`. May read indexes.
    fn length(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        interruptible(py, || self.inner.len())
    }

    #[getter]
    fn indexed(&self) -> bool {
        self.inner.indexed()
    }

    /// The step that has to see all elements in one row, if there is one.
    #[getter]
    fn serial(&self) -> Option<String> {
        self.inner.serial()
    }

    /// The step that makes fewer elements of many, in each lane its own, if there is one.
    #[getter]
    fn cut(&self) -> Option<String> {
        self.inner.cut()
    }

    #[getter]
    fn fingerprint(&self) -> u64 {
        self.inner.fingerprint()
    }

    /// Names and sizes of what is read, hashed. Lists the sources.
    fn data_fingerprint(&self, py: Python<'_>) -> PyResult<u64> {
        interruptible(py, || self.inner.data_fingerprint())
    }

    /// Element `index` of an indexed pipeline, as epoch `epoch` under `seed` has it.
    fn get(&self, py: Python<'_>, indices: Vec<u64>, seed: u64, epoch: u64) -> PyResult<Vec<Py<PyAny>>> {
        let found = interruptible(py, || {
            let getter = if let Some(getter) = self.getter.get() {
                getter
            } else {
                let made = self.inner.getter()?;
                self.getter.get_or_init(|| made)
            };
            getter.get(&indices, seed, epoch)
        })?;
        let object = |value| super::value::to_python(py, value, self.arrays).map(Bound::unbind);
        found.into_iter().map(object).collect()
    }

    /// What each mix has drawn by a state with lanes: elements of each stream, and how many were to be expected.
    #[staticmethod]
    fn mixed(state: &Bound<'_, PyAny>) -> PyResult<Vec<(Vec<u64>, Vec<f64>)>> {
        let found = pipeline::mixed(&state::cursor_from_python(state)?);
        Ok(found.into_iter().map(|mix| (mix.given, mix.expected)).collect())
    }

    /// One lane of an epoch, from its start or from a cursor.
    #[pyo3(signature = (lane, lanes, block, seed, epoch, cursor=None))]
    #[expect(clippy::too_many_arguments, reason = "as Python passes them")]
    fn lane(
        &self,
        py: Python<'_>,
        lane: u64,
        lanes: u64,
        block: u64,
        seed: u64,
        epoch: u64,
        cursor: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Lane> {
        let cursor = cursor.map(state::cursor_from_python).transpose()?;
        let opening = Opening::new(lane, lanes, block, seed, epoch);
        let lane = interruptible(py, || self.inner.lane(&opening, cursor.as_ref()))?;
        Ok(Lane::new(lane, self.arrays))
    }

    fn __str__(&self) -> String {
        self.inner.to_string()
    }
}

fn deal(name: &str) -> PyResult<Deal> {
    match name {
        "auto" => Ok(Deal::Auto),
        "shards" => Ok(Deal::Parts),
        "records" => Ok(Deal::Records),
        other => Err(config(format!("split={other:?}: auto, shards or records"))),
    }
}

/// A whole number or another one.
#[derive(FromPyObject)]
enum Number {
    Whole(i64),
    Real(f64),
}

impl From<Number> for Fill {
    fn from(number: Number) -> Self {
        match number {
            Number::Whole(number) => number.into(),
            Number::Real(number) => number.into(),
        }
    }
}

/// For all fields, and by name.
type Paddings = (Number, Vec<(String, Number)>);

fn padding_of((value, fields): Paddings) -> Padding {
    let padding = Padding::with(value);
    fields
        .into_iter()
        .fold(padding, |padding, (name, value)| padding.field(name, value))
}

/// The rule of a dict: of `boundaries` and `sizes`, or of `budget`, `padded`, `most` and `oversize`.
fn rule_of(rule: &Bound<'_, PyDict>) -> PyResult<Rule> {
    let entry = |key: &str| {
        let found = rule.get_item(key)?;
        found.ok_or_else(|| config(format!("a rule without {key}")))
    };
    if rule.contains("boundaries")? {
        return Ok(Rule::Buckets {
            boundaries: entry("boundaries")?.extract()?,
            sizes: entry("sizes")?.extract()?,
        });
    }
    let oversize: String = entry("oversize")?.extract()?;
    Ok(Rule::Budget {
        budget: entry("budget")?.extract()?,
        padded: entry("padded")?.extract()?,
        most: entry("most")?.extract()?,
        oversize: match oversize.as_str() {
            "error" => Oversize::Refuse,
            "skip" => Oversize::Skip,
            "alone" => Oversize::Alone,
            other => return Err(config(format!("oversize={other:?}: error, skip or alone"))),
        },
    })
}

/// One state of the interpreter for all that such a thread does: Python's data of a thread stays from element to element, and no lock of
/// the interpreter's own is taken for each, which a child that is forked meanwhile would get (CPython 3.11 waits for it then).
fn around(work: &mut (dyn FnMut() + Send)) {
    Python::attach(|py| {
        let ident = system::this_thread(py);
        if let Some(ident) = ident {
            lock(&AHEAD).insert(ident);
        }
        py.detach(work);
        if let Some(ident) = ident {
            lock(&AHEAD).remove(&ident);
        }
    });
}

/// The threads that run pipelines ahead, as Python numbers them. Looked at with the GIL only, so that no child gets it locked when it is
/// forked by Python; what such a child has of its parent are threads that it does not have.
static AHEAD: Mutex<BTreeSet<c_long>> = Mutex::new(BTreeSet::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has threads that run pipelines ahead known to the interpreter.
pub(crate) fn know_threads() {
    pipeline::around_threads(around);
}

/// For how long the end of an interpreter waits for functions that run ahead.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ends the threads of `prefetch` and `join` before the interpreter does. Waits for the element that they make, for a second; then their
/// functions get a `SystemExit`, and another second.
#[pyfunction]
pub(crate) fn stop_ahead(py: Python<'_>) -> PyResult<()> {
    let hurry = || {
        Python::attach(|py| {
            for &ident in &*lock(&AHEAD) {
                system::exit_thread(py, ident);
            }
        });
    };
    compute(py, |_| asking(quiet, || pipeline::stop_ahead(PATIENCE, hurry)))
}

/// Runs `work` without the GIL; a Ctrl-C ends it, also while an index is made.
fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
    compute(py, |_| asking(quiet, work))?.map_err(|failure| raise(py, failure))
}
