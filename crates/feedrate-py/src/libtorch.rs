//! The samplers of PyTorch's C++ front end, under their names. Each is used from one thread at a time.

use feedrate::sampler::libtorch::{self, Sampler};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::compute;
use crate::order::generator;
use crate::state::{from_python, to_python};

fn refused(error: feedrate::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn reset<S: Sampler>(py: Python<'_>, sampler: &mut S, new_size: Option<usize>) -> PyResult<()> {
    compute(py, |_| sampler.reset(new_size))?.map_err(refused)
}

fn load<S: Sampler>(state: &Bound<'_, PyAny>, sampler: &mut S) -> PyResult<()> {
    let read = from_python(state)?;
    compute(state.py(), |_| sampler.load(&read))?.map_err(refused)
}

/// torch::data::samplers::DistributedRandomSampler: contiguous blocks of an order shuffled by std::mt19937(epoch).
#[pyclass(module = "feedrate.samplers.libtorch")]
pub(crate) struct DistributedRandomSampler(libtorch::DistributedRandomSampler);

#[pymethods]
impl DistributedRandomSampler {
    #[new]
    #[pyo3(signature = (size, num_replicas=1, rank=0, allow_duplicates=true))]
    fn new(py: Python<'_>, size: usize, num_replicas: usize, rank: usize, allow_duplicates: bool) -> PyResult<Self> {
        let make = || libtorch::DistributedRandomSampler::new(size, num_replicas, rank, allow_duplicates);
        compute(py, |_| make())?.map(Self).map_err(refused)
    }

    /// To the start of the epoch that was set, shuffled anew, of `new_size` samples if it is given.
    #[pyo3(signature = (new_size=None))]
    fn reset(&mut self, py: Python<'_>, new_size: Option<usize>) -> PyResult<()> {
        reset(py, &mut self.0, new_size)
    }

    /// At most `batch_size` further indices, None at the end.
    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        self.0.next(batch_size)
    }

    /// Position of the next index in the order of all ranks.
    fn index(&self) -> usize {
        self.0.index()
    }

    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    /// Takes effect at the next `reset`.
    fn set_epoch(&mut self, epoch: u64) {
        self.0.set_epoch(epoch);
    }

    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.save())
    }

    fn load(&mut self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        load(state, &mut self.0)
    }
}

/// torch::data::samplers::DistributedSequentialSampler: contiguous blocks of 0, 1, 2, ….
#[pyclass(module = "feedrate.samplers.libtorch")]
pub(crate) struct DistributedSequentialSampler(libtorch::DistributedSequentialSampler);

#[pymethods]
impl DistributedSequentialSampler {
    #[new]
    #[pyo3(signature = (size, num_replicas=1, rank=0, allow_duplicates=true))]
    fn new(size: usize, num_replicas: usize, rank: usize, allow_duplicates: bool) -> PyResult<Self> {
        libtorch::DistributedSequentialSampler::new(size, num_replicas, rank, allow_duplicates)
            .map(Self)
            .map_err(refused)
    }

    /// To the start, of `new_size` samples if it is given.
    #[pyo3(signature = (new_size=None))]
    fn reset(&mut self, py: Python<'_>, new_size: Option<usize>) -> PyResult<()> {
        reset(py, &mut self.0, new_size)
    }

    /// At most `batch_size` further indices, None at the end.
    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        self.0.next(batch_size)
    }

    /// Position of the next index in the order of all ranks.
    fn index(&self) -> usize {
        self.0.index()
    }

    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    /// Kept, and without effect on the order, as in libtorch.
    fn set_epoch(&mut self, epoch: u64) {
        self.0.set_epoch(epoch);
    }

    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.save())
    }

    fn load(&mut self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        load(state, &mut self.0)
    }
}

/// torch::data::samplers::RandomSampler, with a generator of its own: `state` is what `torch.Generator.get_state()` gives, as bytes.
#[pyclass(module = "feedrate.samplers.libtorch")]
pub(crate) struct RandomSampler(libtorch::RandomSampler);

#[pymethods]
impl RandomSampler {
    #[new]
    fn new(py: Python<'_>, size: usize, state: &[u8]) -> PyResult<Self> {
        let generator = generator(state)?;
        compute(py, |_| libtorch::RandomSampler::new(size, generator))?
            .map(Self)
            .map_err(refused)
    }

    /// Draws a new order, of `new_size` samples if it is given.
    #[pyo3(signature = (new_size=None))]
    fn reset(&mut self, py: Python<'_>, new_size: Option<usize>) -> PyResult<()> {
        reset(py, &mut self.0, new_size)
    }

    /// At most `batch_size` further indices, None at the end.
    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        self.0.next(batch_size)
    }

    /// How many indices were given.
    fn index(&self) -> usize {
        self.0.index()
    }

    /// The generator after the order was drawn.
    fn generator_state<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.generator().to_torch_state())
    }

    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.save())
    }

    fn load(&mut self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        load(state, &mut self.0)
    }
}

/// torch::data::samplers::SequentialSampler.
#[pyclass(module = "feedrate.samplers.libtorch")]
pub(crate) struct SequentialSampler(libtorch::SequentialSampler);

#[pymethods]
impl SequentialSampler {
    #[new]
    fn new(size: usize) -> Self {
        Self(libtorch::SequentialSampler::new(size))
    }

    /// To the start, of `new_size` samples if it is given.
    #[pyo3(signature = (new_size=None))]
    fn reset(&mut self, py: Python<'_>, new_size: Option<usize>) -> PyResult<()> {
        reset(py, &mut self.0, new_size)
    }

    /// At most `batch_size` further indices, None at the end.
    fn next(&mut self, batch_size: usize) -> Option<Vec<usize>> {
        self.0.next(batch_size)
    }

    /// How many indices were given.
    fn index(&self) -> usize {
        self.0.index()
    }

    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.save())
    }

    fn load(&mut self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        load(state, &mut self.0)
    }
}

/// torch::data::samplers::StreamSampler: how many samples of a stream to fetch, and no indices.
#[pyclass(module = "feedrate.samplers.libtorch")]
pub(crate) struct StreamSampler(libtorch::StreamSampler);

#[pymethods]
impl StreamSampler {
    #[new]
    fn new(epoch_size: usize) -> Self {
        Self(libtorch::StreamSampler::new(epoch_size))
    }

    /// To the start, with a new epoch size if one is given.
    #[pyo3(signature = (new_size=None))]
    fn reset(&mut self, py: Python<'_>, new_size: Option<usize>) -> PyResult<()> {
        reset(py, &mut self.0, new_size)
    }

    /// How many samples the next batch has, at most `batch_size`; None at the end.
    fn next(&mut self, batch_size: usize) -> Option<usize> {
        self.0.next(batch_size)
    }

    /// How many samples were asked for.
    fn index(&self) -> usize {
        self.0.index()
    }

    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0.save())
    }

    fn load(&mut self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        load(state, &mut self.0)
    }
}
