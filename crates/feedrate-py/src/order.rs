//! Orders of sample indices without a Python list.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use feedrate::random::Mt19937;
use feedrate::sampler;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::enter::compute;

/// An immutable order of sample indices that can be asked for any position. Safe to use from any thread.
#[pyclass(frozen, sequence, module = "feedrate._native")]
pub(crate) struct Order(Arc<sampler::Order>);

#[pymethods]
impl Order {
    /// 0, 1, 2, … below `n`.
    #[staticmethod]
    fn sequential(n: u64) -> PyResult<Self> {
        finish(sampler::Order::sequential(n))
    }

    /// A shuffle of `n` indices by (seed, epoch) that is computed and not stored. The seed and the epoch count modulo 2**64.
    #[staticmethod]
    fn keyed(n: u64, seed: &Bound<'_, PyAny>, epoch: &Bound<'_, PyAny>) -> PyResult<Self> {
        finish(sampler::Order::keyed(n, word(seed)?, word(epoch)?))
    }

    /// The indices of a C-contiguous, one-dimensional buffer of int64, copied: 4 bytes each where they fit, else 8.
    #[staticmethod]
    fn of(py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        let indices = vector::<i64>(buffer)?.to_vec(py)?;
        let order = compute(py, |_| {
            let mut narrow = Vec::with_capacity(indices.len());
            narrow.extend(indices.iter().map_while(|index| u32::try_from(*index).ok()));
            if narrow.len() == indices.len() {
                sampler::Order::of_u32(narrow)
            } else {
                sampler::Order::of(indices)
            }
        })?;
        finish(Ok(order))
    }

    /// An epoch of torch's RandomSampler for a generator in `state` (bytes of `get_state()`), and the state after it. It is made from
    /// the position `start` on; the others are made if they are asked for.
    #[staticmethod]
    #[pyo3(signature = (n, state, *, replacement=false, num_samples=None, start=0))]
    fn torch_random<'py>(
        py: Python<'py>,
        n: u64,
        state: &[u8],
        replacement: bool,
        num_samples: Option<u64>,
        start: u64,
    ) -> PyResult<(Self, Bound<'py, PyBytes>)> {
        drawn(py, state, |generator, go_on| {
            sampler::Order::random_from(n, generator, replacement, num_samples.unwrap_or(n), start, go_on)
        })
    }

    /// `torch.randperm(n)` for a generator in `state`, and the state after it; made from `start` on, as `torch_random` does.
    #[staticmethod]
    #[pyo3(signature = (n, state, *, start=0))]
    fn torch_randperm<'py>(py: Python<'py>, n: u64, state: &[u8], start: u64) -> PyResult<(Self, Bound<'py, PyBytes>)> {
        drawn(py, state, |generator, go_on| {
            sampler::Order::randperm_from(n, generator, start, go_on)
        })
    }

    /// `torch.multinomial(weights, num_samples, replacement)` for a generator in `state`, and the state after it. `weights` is a
    /// one-dimensional buffer of float64; a RuntimeError as torch raises it for weights and counts that do not fit.
    #[staticmethod]
    fn torch_multinomial<'py>(
        py: Python<'py>,
        weights: &Bound<'py, PyAny>,
        num_samples: usize,
        replacement: bool,
        state: &[u8],
    ) -> PyResult<(Self, Bound<'py, PyBytes>)> {
        let weights = vector::<f64>(weights)?.to_vec(py)?;
        let mut generator = generator(state)?;
        let order = compute(py, |_| generator.multinomial(&weights, num_samples, replacement))?
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let order = Self(Arc::new(sampler::Order::of_u32(order)));
        Ok((order, PyBytes::new(py, &generator.to_torch_state())))
    }

    /// The indices of torch's DistributedSampler before it pads, cuts and gives each rank its share; made from `start` on, as
    /// `torch_random` does.
    #[staticmethod]
    #[pyo3(signature = (n, seed_plus_epoch, shuffle, *, start=0))]
    fn torch_distributed(
        py: Python<'_>,
        n: u64,
        seed_plus_epoch: &Bound<'_, PyAny>,
        shuffle: bool,
        start: u64,
    ) -> PyResult<Self> {
        if !shuffle {
            return Self::sequential(n);
        }
        let mut generator = Mt19937::new(seed(seed_plus_epoch)?);
        let order = compute(py, |go_on| {
            sampler::Order::randperm_from(n, &mut generator, start, go_on)
        })?;
        finish(order)
    }

    fn __len__(&self) -> PyResult<usize> {
        match usize::try_from(self.0.len()) {
            Ok(len) if len <= isize::MAX.cast_unsigned() => Ok(len),
            _ => Err(PyOverflowError::new_err(format!(
                "an order of {} samples is too long for len()",
                self.0.len()
            ))),
        }
    }

    fn __getitem__(&self, py: Python<'_>, position: isize) -> PyResult<i64> {
        let len = self.0.len();
        u64::try_from(position)
            .ok()
            .or_else(|| len.checked_sub(position.unsigned_abs() as u64))
            .and_then(|position| {
                make(py, &self.0, position);
                self.0.at(position)
            })
            .ok_or_else(|| PyIndexError::new_err(format!("position {position} of an order of {len} samples")))
    }

    /// The indices at positions `start`, `start + step`, … below `stop` and the length, as a list.
    #[pyo3(signature = (start, stop, step=1))]
    #[expect(clippy::similar_names, reason = "as Python's range has them")]
    fn take<'py>(&self, py: Python<'py>, start: u64, stop: u64, step: u64) -> PyResult<Bound<'py, PyList>> {
        if step == 0 {
            return Err(PyValueError::new_err("step is 0: give at least 1"));
        }
        list(py, &self.0, start, stop, step)
    }

    /// The position of an index, None if it is not in it; a ValueError where it would have to be searched.
    fn position_of(&self, index: i64) -> PyResult<Option<u64>> {
        self.0
            .position_of(index)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Iterates over lists: batch k of `rank` has the indices at the positions `start + k*batch_size*world + rank + j*world` for
    /// j below `batch_size`, as far as there are any. The last list may be short, unless `drop_last`.
    #[pyo3(signature = (start, batch_size, drop_last, *, rank=0, world=1))]
    fn batches(&self, start: u64, batch_size: u64, drop_last: bool, rank: u64, world: u64) -> PyResult<OrderBatches> {
        if batch_size == 0 || rank >= world {
            return Err(PyValueError::new_err(format!(
                "batch_size ({batch_size}) must be at least 1, and rank ({rank}) below world ({world})"
            )));
        }
        // What is more than there can be samples is all of them.
        let batch_size = batch_size.min(((1 << 62) / world).max(1));
        let span = batch_size.saturating_mul(world);
        Ok(OrderBatches {
            order: Arc::clone(&self.0),
            next: AtomicU64::new(start.saturating_add(rank)),
            span,
            world,
            drop_last,
        })
    }

    /// Bytes that it takes, beyond a few hundred.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    fn __repr__(&self) -> String {
        format!("<feedrate._native.{:?}>", self.0)
    }
}

/// Cuts an [`Order`] into lists.
#[pyclass(frozen, module = "feedrate._native")]
pub(crate) struct OrderBatches {
    order: Arc<sampler::Order>,
    /// Position of the first index of the next list.
    next: AtomicU64,
    span: u64,
    world: u64,
    drop_last: bool,
}

#[pymethods]
impl OrderBatches {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let len = self.order.len();
        // Stays below 2⁶⁴: lengths are at most 2⁶³, and beyond the end nothing is added.
        let advance = |at: u64| (at < len).then(|| at + self.span);
        let Ok(start) = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance) else {
            return Ok(None);
        };
        // The last position that a whole batch needs.
        let last = start + (self.span - self.world);
        if self.drop_last && last >= len {
            return Ok(None);
        }
        list(py, &self.order, start, last.saturating_add(1), self.world).map(Some)
    }
}

/// Makes the rest of an order that was made from a later position on, without the GIL.
fn make(py: Python<'_>, order: &sampler::Order, position: u64) {
    if !order.is_made(position) {
        py.detach(|| order.at(position));
    }
}

fn list<'py>(py: Python<'py>, order: &sampler::Order, start: u64, end: u64, step: u64) -> PyResult<Bound<'py, PyList>> {
    let end = end.min(order.len());
    let count = end.saturating_sub(start).div_ceil(step);
    let count = usize::try_from(count)?;
    make(py, order, start);
    let items = (0..count as u64).map(|i| order.at(start + i * step).unwrap_or_default());
    PyList::new(py, Exactly(items, count))
}

/// An iterator that says how long it is.
struct Exactly<I>(I, usize);

impl<I: Iterator> Iterator for Exactly<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.1 = self.1.saturating_sub(1);
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.1, Some(self.1))
    }
}

impl<I: Iterator> ExactSizeIterator for Exactly<I> {}

/// Draws from a generator without the GIL; gives its state afterwards too.
fn drawn<'py>(
    py: Python<'py>,
    state: &[u8],
    draw: impl FnOnce(&mut Mt19937, &mut dyn FnMut() -> bool) -> Result<sampler::Order, feedrate::Error> + Send,
) -> PyResult<(Order, Bound<'py, PyBytes>)> {
    let mut generator = generator(state)?;
    let order = compute(py, |go_on| draw(&mut generator, go_on))?;
    Ok((finish(order)?, PyBytes::new(py, &generator.to_torch_state())))
}

fn finish(order: Result<sampler::Order, feedrate::Error>) -> PyResult<Order> {
    order
        .map(|order| Order(Arc::new(order)))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

pub(crate) fn generator(state: &[u8]) -> PyResult<Mt19937> {
    Mt19937::from_torch_state(state).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A seed as torch takes it: from -2**63 to 2**64 - 1.
fn seed(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    match value.extract::<u64>() {
        Ok(seed) => Ok(seed),
        Err(_) => value.extract::<i64>().map(i64::cast_unsigned),
    }
}

/// Any integer, modulo 2**64.
fn word(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value
        .call_method0("__index__")?
        .call_method1("__and__", (u64::MAX,))?
        .extract()
}

/// A one-dimensional buffer of these numbers.
fn vector<T: pyo3::buffer::Element>(source: &Bound<'_, PyAny>) -> PyResult<PyBuffer<T>> {
    let buffer = PyBuffer::<T>::get(source)?;
    if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
        return Err(PyTypeError::new_err(format!(
            "a contiguous buffer of one dimension is needed, this one has {} dimensions and strides {:?}",
            buffer.dimensions(),
            buffer.strides()
        )));
    }
    Ok(buffer)
}
