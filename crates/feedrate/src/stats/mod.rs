//! What is counted while batches are delivered.

use std::time::Duration;

/// Counters of one delivery, from its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches handed over.
    pub delivered: u64,
    /// Time that the caller spent waiting for the pool.
    pub waited: Duration,
    /// Workers that died unasked.
    pub deaths: u64,
    /// Tasks sent a second time because their worker died.
    pub redone: u64,
}
