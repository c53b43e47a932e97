//! A lock that a fork's child does not wait for.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// How often a fork's child tries to get the lock.
const PATIENCE: u32 = 100;

/// What a process's threads share. A fork's child may get it locked by a thread that it does not have.
#[derive(Debug)]
pub(super) struct Owned<T> {
    inner: Mutex<T>,
    /// The process that made it.
    owner: u32,
}

impl<T: Default> Default for Owned<T> {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            owner: std::process::id(),
        }
    }
}

impl<T> Owned<T> {
    /// `None` where it stays locked in a fork's child.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        if self.owner == std::process::id() {
            return Some(self.inner.lock().unwrap_or_else(PoisonError::into_inner));
        }
        for _ in 0..PATIENCE {
            match self.inner.try_lock() {
                Ok(inner) => return Some(inner),
                Err(TryLockError::Poisoned(inner)) => return Some(inner.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }
}
