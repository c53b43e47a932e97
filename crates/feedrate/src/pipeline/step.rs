//! The steps of a definition.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use super::cache::Cache;
use super::function::Func;
use super::gather::Gather;
use super::pack::Packing;
use super::padding::Padding;
use crate::error::Error;
use crate::source::Source;

/// How a source is dealt out to lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Deal {
    /// Whole parts where there are at least as many as lanes. Else each lane has one part, of which those that share it read blocks of
    /// records in turn.
    #[default]
    Auto,
    /// Whole parts: each lane reads its own.
    Parts,
    /// Records, in blocks of a lane's unit: every lane reads all parts and passes over what is not its own. Keeps the order in which
    /// things are stored.
    Records,
}

/// Weights of a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// From which draw on these hold, and the weights; the first entry begins at 0.
    pub schedule: Vec<(u64, Vec<f64>)>,
    /// Whether a stream that has run out is begun again (until all have run out once), or left out from then on.
    pub replacement: bool,
}

/// How batches are made.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Elements in a batch, at least 1.
    pub size: usize,
    /// Whether a last short one is left out.
    pub drop_last: bool,
    /// With what tensors of different shapes, and lists of numbers, are filled up to the largest of every dimension, the first
    /// dimension's lengths coming as `<field>_length`; `None`: they have to be of one shape.
    pub padding: Option<Padding>,
    /// What makes a batch of a list of elements (its [`map`](super::Function::map)); `None`: [`collate`](fn@crate::batch::collate).
    pub collate: Option<Func>,
}

impl Batch {
    /// Of so many elements; the last one may be short.
    pub fn of(size: usize) -> Self {
        Self {
            size: size.max(1),
            drop_last: false,
            padding: None,
            collate: None,
        }
    }

    /// Whether rows may come as columns.
    pub(super) fn plain(&self) -> bool {
        self.padding.is_none() && self.collate.is_none()
    }
}

/// What happens to elements.
#[derive(Clone)]
pub(super) enum Step {
    Source {
        source: Arc<dyn Source>,
        deal: Deal,
    },
    /// Parts of the source in another order each epoch.
    ShuffleParts,
    /// Records of an indexed source in another order each epoch.
    ShuffleAll,
    Map(Func),
    Keep(Func),
    Expand(Func),
    /// These fields, by these names.
    Select(Vec<(String, String)>),
    Without(Vec<String>),
    Shuffle(usize),
    Batch(Batch),
    Unbatch,
    SortWithin {
        window: usize,
        by: Func,
    },
    Pack(Packing),
    Take(u64),
    Skip(u64),
    Repeat(Option<u64>),
    Concat,
    /// Elements of each in turn, so many at a time.
    Interleave(usize),
    Mix(Weights),
    Zip,
    Cache(Arc<Cache>),
    /// So many elements ahead.
    Prefetch(usize),
    /// Whichever has one first, so many ahead of each.
    Ready(usize),
    Gather(Gather),
    Branch(Branch),
}

/// One of the readers of a stream.
#[derive(Clone)]
pub(super) struct Branch {
    /// Which fork: branches of the same one read the stream together.
    pub(super) fork: u64,
    pub(super) at: usize,
    pub(super) of: usize,
    /// Which branch an element is for; `None`: for all.
    pub(super) by: Option<Func>,
    /// Elements that a branch may lag behind before only their places are kept.
    pub(super) buffer: usize,
}

impl Step {
    /// Whether it gives one element for each, by itself.
    pub(super) fn one_for_each(&self) -> bool {
        matches!(
            self,
            Self::Map(_) | Self::Select(_) | Self::Without(_) | Self::Cache(_) | Self::Prefetch(_)
        )
    }

    /// Whether it looks at one element at a time.
    pub(super) fn single(&self) -> bool {
        self.one_for_each() || matches!(self, Self::Keep(_) | Self::Expand(_))
    }

    /// Whether it must see all elements in one row.
    pub(super) fn counts(&self) -> bool {
        matches!(self, Self::Take(_) | Self::Skip(_) | Self::Zip)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source { source, deal } => {
                write!(f, "{}({}", source.format(), source.describe())?;
                if *deal != Deal::Auto {
                    write!(f, ", deal={deal:?}")?;
                }
                f.write_char(')')
            }
            Self::ShuffleParts => f.write_str("shuffle_parts()"),
            Self::ShuffleAll => f.write_str("shuffle_all()"),
            Self::Map(function) => write!(f, "map({function:?})"),
            Self::Keep(function) => write!(f, "filter({function:?})"),
            Self::Expand(function) => write!(f, "flat_map({function:?})"),
            Self::Select(fields) => write!(f, "select({fields:?})"),
            Self::Without(fields) => write!(f, "without({fields:?})"),
            Self::Shuffle(window) => write!(f, "shuffle({window})"),
            Self::Batch(rule) => {
                let name = if rule.padding.is_some() {
                    "padded_batch"
                } else {
                    "batch"
                };
                write!(f, "{name}({}, drop_last={}", rule.size, rule.drop_last)?;
                if let Some(padding) = &rule.padding {
                    write!(f, "{padding}")?;
                }
                if let Some(collate) = &rule.collate {
                    write!(f, ", {collate:?}")?;
                }
                f.write_char(')')
            }
            Self::Unbatch => f.write_str("unbatch()"),
            Self::SortWithin { window, by } => write!(f, "sort_within({window}, {by:?})"),
            Self::Pack(packing) => write!(f, "{packing}"),
            Self::Take(count) => write!(f, "take({count})"),
            Self::Skip(count) => write!(f, "skip({count})"),
            Self::Repeat(None) => f.write_str("repeat()"),
            Self::Repeat(Some(times)) => write!(f, "repeat({times})"),
            Self::Concat => f.write_str("concat()"),
            Self::Interleave(block) => write!(f, "interleave({block})"),
            Self::Mix(weights) => write!(f, "mix({:?}, replacement={})", weights.schedule, weights.replacement),
            Self::Zip => f.write_str("zip()"),
            Self::Cache(cache) => write!(f, "{cache}"),
            Self::Prefetch(count) => write!(f, "prefetch({count})"),
            Self::Ready(count) => write!(f, "ready({count})"),
            Self::Gather(gather) => write!(f, "{gather}"),
            Self::Branch(branch) => match &branch.by {
                None => write!(f, "fork({})[{}]", branch.of, branch.at),
                Some(by) => write!(f, "route({by:?}, {})[{}]", branch.of, branch.at),
            },
        }
    }
}

impl Weights {
    /// Fixed weights; streams that run out are left out from then on.
    pub fn fixed(weights: impl Into<Vec<f64>>) -> Self {
        Self {
            schedule: vec![(0, weights.into())],
            replacement: false,
        }
    }

    pub(super) fn check(&self, streams: usize) -> Result<(), Error> {
        if self.schedule.first().is_none_or(|(from, _)| *from != 0) {
            return Err(Error::config("the schedule of a mix begins at draw 0"));
        }
        if !self.schedule.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(Error::config(
                "the schedule of a mix has its entries in ascending order of draws",
            ));
        }
        for (from, weights) in &self.schedule {
            if weights.len() != streams {
                return Err(Error::config(format!(
                    "a mix of {streams} streams has {} weights from draw {from} on: give one for each",
                    weights.len()
                )));
            }
            if weights.iter().any(|w| !w.is_finite() || *w < 0.0) || weights.iter().sum::<f64>() <= 0.0 {
                return Err(Error::config(format!(
                    "weights {weights:?} of a mix: they must be finite, not negative, and not all 0"
                )));
            }
            // Shares are taken of the sum.
            if !weights.iter().sum::<f64>().is_finite() {
                return Err(Error::config(format!(
                    "weights {weights:?} of a mix: their sum must be finite; only their shares of it count, so give smaller ones"
                )));
            }
        }
        Ok(())
    }
}
