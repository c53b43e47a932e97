//! Datasets around datasets.

use std::fmt;
use std::sync::Arc;

use super::{Context, Dataset};
use crate::error::{BoxError, Error};
use crate::random::Mt19937;

/// Adapters for every dataset.
pub trait DatasetExt: Dataset + Sized {
    /// With each sample changed by `f`, in the worker.
    fn map<T, F>(self, f: F) -> Map<Self, impl Fn(Self::Item, &Context) -> Result<T, BoxError> + Clone>
    where
        F: Fn(Self::Item) -> Result<T, BoxError> + Clone + Send + Sync + 'static,
        T: Send + 'static,
    {
        Map {
            inner: self,
            f: move |item, _: &Context| f(item),
        }
    }

    /// As [`map`](DatasetExt::map), for an `f` that uses the [`Context`]: random numbers, above all.
    fn map_with<T, F>(self, f: F) -> Map<Self, F>
    where
        F: Fn(Self::Item, &Context) -> Result<T, BoxError> + Send + Sync + 'static,
        T: Send + 'static,
    {
        Map { inner: self, f }
    }

    /// Only the samples of these indices, in this order; an index may come more than once.
    fn subset(self, indices: impl Into<Arc<[usize]>>) -> Result<Subset<Self>, Error> {
        let (indices, len) = (indices.into(), self.len());
        if let Some(index) = indices.iter().find(|i| **i >= len) {
            return Err(Error::config(format!(
                "the subset has index {index}, the dataset has {len} samples: leave out indices from {len} on"
            )));
        }
        Ok(Subset { inner: self, indices })
    }

    /// A fixed shuffled view: `torch.randperm` of `seed`. For a new order in each epoch, shuffle in the loader instead.
    fn shuffled(self, seed: u64) -> Shuffled<Self> {
        let order = Mt19937::new(seed).randperm(self.len());
        Shuffled(Subset {
            inner: self,
            indices: order.into(),
        })
    }

    /// This one's samples, then those of `other`.
    fn concat<D: Dataset<Item = Self::Item>>(self, other: D) -> Concat<Self::Item> {
        Concat::new([Box::new(self) as Box<dyn Dataset<Item = Self::Item>>, Box::new(other)])
    }
}

impl<D: Dataset> DatasetExt for D {}

/// See [`DatasetExt::map`].
#[derive(Clone)]
pub struct Map<D, F> {
    inner: D,
    f: F,
}

impl<D: fmt::Debug, F> fmt::Debug for Map<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<D, T, F> Dataset for Map<D, F>
where
    D: Dataset,
    F: Fn(D::Item, &Context) -> Result<T, BoxError> + Send + Sync + 'static,
    T: Send + 'static,
{
    type Item = T;

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn get(&self, index: usize, cx: &Context) -> Result<T, BoxError> {
        (self.f)(self.inner.get(index, cx)?, cx)
    }
}

/// See [`DatasetExt::subset`].
#[derive(Debug, Clone)]
pub struct Subset<D> {
    inner: D,
    indices: Arc<[usize]>,
}

impl<D: Dataset> Dataset for Subset<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize, cx: &Context) -> Result<D::Item, BoxError> {
        let len = self.indices.len();
        let inner = self
            .indices
            .get(index)
            .ok_or_else(|| format!("index {index} is out of range for a subset of {len} samples"))?;
        self.inner.get(*inner, cx)
    }
}

/// See [`DatasetExt::shuffled`].
#[derive(Debug, Clone)]
pub struct Shuffled<D>(Subset<D>);

impl<D: Dataset> Dataset for Shuffled<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, cx: &Context) -> Result<D::Item, BoxError> {
        self.0.get(index, cx)
    }
}

/// Several datasets as one, one after the other; see [`DatasetExt::concat`].
pub struct Concat<T> {
    parts: Vec<Box<dyn Dataset<Item = T>>>,
    /// `ends[i]` is the first index behind part `i`.
    ends: Vec<usize>,
}

impl<T: Send + 'static> Concat<T> {
    /// All of them, in this order. Lengths are taken now.
    pub fn new(parts: impl IntoIterator<Item = Box<dyn Dataset<Item = T>>>) -> Self {
        let parts: Vec<_> = parts.into_iter().collect();
        let ends = parts
            .iter()
            .scan(0, |end, part| {
                *end += part.len();
                Some(*end)
            })
            .collect();
        Self { parts, ends }
    }
}

impl<T> fmt::Debug for Concat<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concat")
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Dataset for Concat<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn get(&self, index: usize, cx: &Context) -> Result<T, BoxError> {
        let part = self.ends.partition_point(|end| *end <= index);
        let Some(inner) = self.parts.get(part) else {
            let len = self.len();
            return Err(format!("index {index} is out of range for {len} samples").into());
        };
        let start = part.checked_sub(1).map_or(0, |before| self.ends[before]);
        inner.get(index - start, cx)
    }
}
