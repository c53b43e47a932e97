//! The crate from outside, one process.
#![cfg(all(target_os = "linux", not(loom)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod channel;
mod hostile;
mod model;
mod process;
