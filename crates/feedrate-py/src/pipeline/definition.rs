//! Definitions.

use feedrate::pipeline::{self, Batch, Deal, Fit, Func, Long, Opening, Packing, Weights};
use feedrate::source::Numbers;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::function::{Callable, KeyOf};
use super::lane::{Lane, raise};
use super::sequence::Iterated;
use super::sources;
use super::value::Arrays;
use crate::state;

/// A definition, immutable. The Python class `feedrate.Pipeline` keeps one beside the steps it was made of.
#[pyclass(frozen, module = "feedrate._native")]
pub(crate) struct Pipeline {
    inner: pipeline::Pipeline,
    arrays: Arrays,
}

fn config(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

impl Pipeline {
    fn with(&self, inner: pipeline::Pipeline) -> Self {
        Self {
            inner,
            arrays: self.arrays,
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
        Ok(Self {
            inner: pipeline::Pipeline::source(Numbers::new(name, count)),
            arrays: Arrays::of(arrays)?,
        })
    }

    /// The items of an object with `__iter__`.
    #[staticmethod]
    fn iterable(name: String, object: Py<PyAny>, arrays: &str) -> PyResult<Self> {
        Ok(Self {
            inner: pipeline::Pipeline::source(Iterated { name, object }),
            arrays: Arrays::of(arrays)?,
        })
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
        Ok(Self {
            inner: pipeline::Pipeline::dealt(source, deal(split)?),
            arrays: Arrays::of(arrays)?,
        })
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

    #[pyo3(signature = (size, *, drop_last=false, padded=false, collate=None))]
    fn batch(&self, size: usize, drop_last: bool, padded: bool, collate: Option<(String, Py<PyAny>)>) -> Self {
        let collate = collate.map(|(name, function)| Func::new(self.callable(name, function)));
        self.with(self.inner.batch_with(Batch {
            size,
            drop_last,
            padded,
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
        Ok(Self { inner, arrays })
    }

    #[staticmethod]
    fn interleave(inputs: Vec<Py<Self>>, block: usize) -> PyResult<Self> {
        let (inputs, arrays) = Self::inputs(&inputs)?;
        let inner = pipeline::Pipeline::interleave(inputs, block);
        Ok(Self { inner, arrays })
    }

    #[staticmethod]
    fn zip(inputs: Vec<Py<Self>>) -> PyResult<Self> {
        let (inputs, arrays) = Self::inputs(&inputs)?;
        let inner = pipeline::Pipeline::zip(inputs);
        Ok(Self { inner, arrays })
    }

    #[staticmethod]
    fn mix(inputs: Vec<Py<Self>>, schedule: Vec<(u64, Vec<f64>)>, replacement: bool) -> PyResult<Self> {
        let (inputs, arrays) = Self::inputs(&inputs)?;
        let weights = Weights { schedule, replacement };
        let inner = pipeline::Pipeline::mix(inputs, weights).map_err(config)?;
        Ok(Self { inner, arrays })
    }

    /// Number of elements in an epoch where the definition tells, else `None`. May read indexes.
    fn length(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        py.detach(|| self.inner.len()).map_err(|failure| raise(py, failure))
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

    #[getter]
    fn fingerprint(&self) -> u64 {
        self.inner.fingerprint()
    }

    /// Element `index` of an indexed pipeline, as epoch `epoch` under `seed` has it.
    fn get(&self, py: Python<'_>, indices: Vec<u64>, seed: u64, epoch: u64) -> PyResult<Vec<Py<PyAny>>> {
        let opening = Opening::whole(seed, epoch);
        let found = py
            .detach(|| self.inner.get(&indices, &opening))
            .map_err(|failure| raise(py, failure))?;
        let object = |value| super::value::to_python(py, value, self.arrays).map(Bound::unbind);
        found.into_iter().map(object).collect()
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
        let cursor = cursor.map(state::from_python).transpose()?;
        let opening = Opening::new(lane, lanes, block, seed, epoch);
        let lane = py.detach(|| self.inner.lane(&opening, cursor.as_ref()));
        Ok(Lane::new(lane.map_err(|failure| raise(py, failure))?, self.arrays))
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
