//! Pipelines: from shards to elements, as a definition that can be printed, cut into lanes and resumed anywhere.
//!
//! A [`Pipeline`] is a plain description. [`Pipeline::lane`] runs one lane of it: an independent, serial stream with a share of the
//! data, whose [`cursor`](Lane::cursor) is enough to go on exactly. A cursor holds positions and not data: what sits in a shuffle
//! window or a packing buffer is read again.

mod cache;
#[cfg(test)]
mod cache_tests;
mod error;
mod function;
mod gather;
mod getter;
mod owned;
mod pack;
mod padding;
mod sample;
mod spec;
mod stage;
mod step;
#[cfg(test)]
mod tests;

pub use crate::asking::asking;
pub use cache::Cache;
pub use error::{Failure, Interrupt};
pub use function::{Call, Func, Function};
pub use gather::{Gather, Oversize, Rule};
pub use getter::Getter;
pub use pack::{Fit, Long, Packing};
pub use padding::{Fill, Padding};
pub use sample::{Place, Sample};
pub use spec::{Elements, Pipeline};
pub use stage::{Lane, Mix, Opening, around_threads, mixed, stop_ahead};
pub use step::{Batch, Deal, Weights};
