//! Pipelines: definitions, lanes, and what flows through them.

mod definition;
mod function;
mod lane;
mod sequence;
mod sources;
mod value;

pub(crate) use definition::{Pipeline, know_threads, stop_ahead};
pub(crate) use lane::Lane;
