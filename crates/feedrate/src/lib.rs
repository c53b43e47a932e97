//! A data loader for machine-learning training: plan, work, deliver.
#![doc = ""]

pub mod deliver;
pub mod plan;
pub mod stats;
pub mod work;
