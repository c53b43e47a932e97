//! Tests of the library from outside.

mod delivery;
mod loader;
mod pools;
#[cfg(all(feature = "processes", target_os = "linux"))]
mod processes;
