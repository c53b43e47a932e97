//! What a task of lanes is. Plain data: what a lane is, only the loader knows.

use std::sync::{Mutex, PoisonError};

use crate::batch::Value;
use crate::state::State;

/// One unit of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) lane: u64,
    /// Units of the lane before it.
    pub(crate) before: u64,
    /// Where to open the lane, for one that is taken up from a state: units before that place, and its cursor.
    pub(crate) begin: Option<(u64, Option<State>)>,
    /// Units that the lane must have had: more than that it is another rank's is not known of it.
    pub(crate) must: u64,
}

/// What a task of lanes is, and where its worker puts what the delivery has to know beside the batch.
#[derive(Debug)]
pub struct Turn {
    /// Which one of the epoch it is, whatever was planned before it: the position of its batch as user code sees it.
    pub(crate) number: u64,
    /// Tasks of one row go to one worker.
    pub(crate) row: u64,
    pub(crate) units: Vec<Unit>,
    done: Mutex<Option<Done>>,
}

/// What a turn gave, but for the batch.
#[derive(Debug)]
pub(crate) struct Done {
    /// Whether any unit was full: else there is no batch, and an error stands in its place.
    pub(crate) full: bool,
    /// Elements of units that were not full, by lane: these lanes have nothing more.
    pub(crate) rest: Vec<(u64, Vec<Value>)>,
    /// By lane: units given, and the cursor behind them, if it was taken.
    pub(crate) stands: Vec<(u64, u64, Option<State>)>,
}

impl Turn {
    pub(crate) fn new(number: u64, row: u64, units: Vec<Unit>) -> Self {
        Self {
            number,
            row,
            units,
            done: Mutex::new(None),
        }
    }

    /// The worker's side.
    pub(crate) fn leave(&self, done: Done) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
    }

    /// What the worker left; nothing when it failed.
    pub(crate) fn take(&self) -> Option<Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Turns are one thing each.
impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Turn {}
