//! The reading side of one arena.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::{Error, Result, SegmentFault, TokenFault};
use crate::fork::{self, Stamp};
use crate::lease::Lease;
use crate::segment::Segment;
use crate::slots::Fault;
use crate::token::Token;

/// What one process sees of another's arena.
///
/// All methods may be called from any thread. None waits for the writer. Leases live on when the view, or the writer, is gone.
/// In a fork of the process that made it, a view refuses everything.
pub struct View {
    stamp: Stamp,
    segments: RwLock<HashMap<u32, Arc<Segment>>>,
    mapped: Arc<AtomicUsize>,
}

impl View {
    /// A view of nothing.
    ///
    /// # Panics
    ///
    /// When the at-fork handlers cannot be installed: when an allocation of a few bytes fails.
    pub fn new() -> Arc<Self> {
        if let Err(e) = fork::install() {
            panic!("{e}");
        }
        Arc::new(Self {
            stamp: Stamp::now(),
            segments: RwLock::default(),
            mapped: Arc::default(),
        })
    }

    /// Maps a segment that the writer announced and checks its seals, length and header; the descriptor is closed in any case.
    pub fn add(&self, id: u32, len: usize, fd: OwnedFd) -> Result<()> {
        self.stamp.same_process()?;
        let segment = Segment::open(id, len, &fd, Arc::clone(&self.mapped))?;
        drop(fd);
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        if segments.contains_key(&id) {
            return Err(Error::Segment {
                id,
                fault: SegmentFault::Duplicate,
            });
        }
        segments.insert(id, Arc::new(segment));
        Ok(())
    }

    /// Forgets a segment that the writer has given back. It stays mapped while leases of it live. False when it is unknown.
    pub fn remove(&self, id: u32) -> bool {
        if self.stamp.same_process().is_err() {
            return false;
        }
        let gone = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id);
        gone.is_some() // unmapped here, without the lock
    }

    /// Takes the lease that a token gives the right to, once. Every token received must be leased, at least to drop the lease
    /// at once: until then the writer cannot reuse the slot. The contents are those at the time of the send.
    pub fn lease(self: &Arc<Self>, token: Token) -> Result<Lease> {
        self.stamp.same_process()?;
        let fail = |fault| Error::Token { token, fault };
        let segment = {
            let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
            segments
                .get(&token.segment)
                .cloned()
                .ok_or_else(|| fail(TokenFault::Segment))?
        };
        let len = usize::try_from(token.len).unwrap_or(usize::MAX);
        if len > segment.stride() {
            return Err(fail(TokenFault::Length));
        }
        // Taken before the lease: a fork in between then counts as one since the lease.
        let stamp = Stamp::now();
        match segment.table().lease(token.slot, token.generation) {
            Ok(()) => Ok(Lease::new(segment, token.slot, token.generation, len, stamp)),
            Err(Fault::Range) => Err(fail(TokenFault::Slot)),
            Err(_) => Err(fail(TokenFault::Stale)),
        }
    }

    /// Bytes mapped for this view, those kept only by leases among them.
    pub fn mapped_bytes(&self) -> usize {
        self.mapped.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("mapped_bytes", &self.mapped_bytes())
            .finish_non_exhaustive()
    }
}
