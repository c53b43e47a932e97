//! Cuts an order into batches.

use super::Sampler;
use crate::error::{BoxError, Error};

/// Batches of `batch_size` indices of another sampler; the last one may be shorter, or left out.
#[derive(Debug, Clone)]
pub struct Batches<S> {
    inner: S,
    batch_size: usize,
    drop_last: bool,
    /// Drawn for a batch that an error of the inner sampler interrupted.
    begun: Vec<usize>,
}

impl<S: Sampler<Item = usize>> Batches<S> {
    /// Batches of `batch_size`, at least 1; `drop_last` leaves out a last one that is shorter.
    pub fn new(inner: S, batch_size: usize, drop_last: bool) -> Result<Self, Error> {
        if batch_size == 0 {
            return Err(Error::config("batch_size is 0: give at least 1"));
        }
        Ok(Self {
            inner,
            batch_size,
            drop_last,
            begun: Vec::new(),
        })
    }
}

impl<S: Sampler<Item = usize>> Sampler for Batches<S> {
    type Item = Vec<usize>;

    fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
        self.begun.clear();
        self.inner.begin(epoch)
    }

    fn next(&mut self) -> Result<Option<Vec<usize>>, BoxError> {
        while self.begun.len() < self.batch_size {
            match self.inner.next()? {
                Some(index) => self.begun.push(index),
                None if self.begun.is_empty() || self.drop_last => return Ok(None),
                None => break,
            }
        }
        let next = Vec::with_capacity(self.batch_size.min(1 << 16));
        Ok(Some(std::mem::replace(&mut self.begun, next)))
    }

    fn len(&self) -> Option<usize> {
        let samples = self.inner.len()?;
        Some(if self.drop_last {
            samples / self.batch_size
        } else {
            samples.div_ceil(self.batch_size)
        })
    }
}
