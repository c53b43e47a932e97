//! Tests of the library from outside.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

mod delivery;
mod lanes;
mod loader;
mod pools;
#[cfg(all(feature = "processes", target_os = "linux"))]
mod processes;
mod reported;
mod resume;
mod simulated;
mod sources;
