//! Rules for batches whose size depends on what is in them.

use std::fmt;

use super::function::Func;
use super::step::Batch;
use crate::error::Error;

/// What happens to an element that is larger than a budget by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Oversize {
    /// It is an error, as any bad element is.
    #[default]
    Refuse,
    /// It is left out.
    Skip,
    /// It is a batch of its own.
    Alone,
}

/// Which elements make a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// Those of similar number. Bucket `b` holds numbers from `boundaries[b - 1]` up to but not including `boundaries[b]`, the first and
    /// the last one are open; a bucket with `sizes[b]` elements is a batch.
    Buckets {
        /// Ascending.
        boundaries: Vec<f64>,
        /// One more than there are boundaries; each at least 1.
        sizes: Vec<usize>,
    },
    /// As many as fit, in order.
    Budget {
        /// The largest sum of numbers in a batch.
        budget: f64,
        /// Whether each element counts as much as the largest one of the batch, as when it is padded.
        padded: bool,
        /// The largest number of elements in a batch.
        most: Option<usize>,
        /// What happens to an element that does not fit by itself.
        oversize: Oversize,
    },
}

/// Batches by a number that each element has: its length, say.
#[derive(Debug, Clone)]
pub struct Gather {
    /// Gives an element's number (its [`map`](super::Function::map)).
    pub by: Func,
    /// Which elements make a batch.
    pub rule: Rule,
    /// How a batch is made of them; its size is not looked at. `drop_last` leaves out what is incomplete at the end of a lane.
    pub batch: Batch,
}

impl Rule {
    pub(super) fn groups(&self) -> usize {
        match self {
            Self::Buckets { sizes, .. } => sizes.len(),
            Self::Budget { .. } => 1,
        }
    }

    /// About how many elements a batch has.
    pub(super) fn usual(&self) -> usize {
        match self {
            Self::Buckets { sizes, .. } => sizes.iter().copied().max().unwrap_or(1),
            Self::Budget { most, .. } => most.unwrap_or(1),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Buckets { boundaries, sizes } => {
                if sizes.len() != boundaries.len() + 1 {
                    return Err(Error::config(format!(
                        "{} boundaries make {} buckets, but there are {} batch sizes: give one for each bucket",
                        boundaries.len(),
                        boundaries.len() + 1,
                        sizes.len()
                    )));
                }
                if sizes.contains(&0) {
                    return Err(Error::config(format!("batch sizes {sizes:?}: each must be at least 1")));
                }
                if !boundaries.is_sorted_by(|a, b| a < b) {
                    return Err(Error::config(format!("boundaries {boundaries:?} must be ascending")));
                }
                Ok(())
            }
            Self::Budget { budget, most, .. } => {
                if !budget.is_finite() || *budget <= 0.0 {
                    return Err(Error::config(format!("a budget of {budget}: it must be above 0")));
                }
                if *most == Some(0) {
                    return Err(Error::config("at most 0 elements in a batch: it must be at least 1"));
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Rule::Buckets { boundaries, sizes } => {
                write!(f, "bucket({:?}, boundaries={boundaries:?}, sizes={sizes:?}", self.by)?;
            }
            Rule::Budget {
                budget,
                padded,
                most,
                oversize,
            } => {
                write!(
                    f,
                    "budget({:?}, {budget}, padded={padded}, most={most:?}, oversize={oversize:?}",
                    self.by
                )?;
            }
        }
        let padding = &self.batch.padding;
        write!(f, ", pad={}, drop_last={}", padding.is_some(), self.batch.drop_last)?;
        if let Some(padding) = padding {
            write!(f, "{padding}")?;
        }
        if let Some(collate) = &self.batch.collate {
            write!(f, ", {collate:?}")?;
        }
        f.write_str(")")
    }
}
