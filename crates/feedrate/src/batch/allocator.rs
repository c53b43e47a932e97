//! Where batches are written.

use std::fmt;
use std::sync::Arc;

use feedrate_shm::{LocalArena, LocalBytes};

use crate::error::BoxError;

/// Memory of a fixed size, aligned to at least 16 bytes, readable and writable through its owner.
pub trait Buffer: fmt::Debug + Send + Sync + 'static {
    /// All of it.
    fn as_bytes(&self) -> &[u8];

    /// All of it, to write. Only a sole owner can get here.
    fn as_bytes_mut(&mut self) -> &mut [u8];
}

/// Gives memory for tensors.
///
/// Called by the thread that collates; implementations do not wait for memory to be let go.
pub trait Allocator: fmt::Debug + Send + Sync {
    /// A buffer of exactly `len` bytes, `len` at least 1. Its content is unspecified: it may be what a former batch left.
    fn reserve(&self, len: usize) -> Result<Box<dyn Buffer>, BoxError>;
}

/// Fresh memory for each buffer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heap;

impl Allocator for Heap {
    fn reserve(&self, len: usize) -> Result<Box<dyn Buffer>, BoxError> {
        let words = bytemuck::allocation::try_zeroed_slice_box(len.div_ceil(16));
        let words = words.map_err(|()| "the system has no more")?;
        Ok(Box::new(Block { words, len }))
    }
}

/// Memory in 16-byte words, so that every element type can be read in place.
#[derive(Debug)]
struct Block {
    words: Box<[u128]>,
    len: usize,
}

impl Buffer for Block {
    fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

/// Memory of batches that were let go, used again for the next ones: no fresh pages to fault in and clear. What the loader uses
/// inline and with threads.
impl Allocator for Arc<LocalArena> {
    fn reserve(&self, len: usize) -> Result<Box<dyn Buffer>, BoxError> {
        let slot = LocalArena::reserve(self, len).map_err(|error| error.to_string())?;
        Ok(Box::new(LocalBytes::from(slot)))
    }
}

impl Buffer for LocalBytes {
    fn as_bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.as_bytes_mut()
    }
}

/// Slots that another process can read: what the loader uses in worker processes.
#[cfg(target_os = "linux")]
impl Allocator for Arc<feedrate_shm::Arena> {
    fn reserve(&self, len: usize) -> Result<Box<dyn Buffer>, BoxError> {
        let slot = feedrate_shm::Arena::reserve(self, len)?;
        Ok(Box::new(feedrate_shm::SlotBytes::from(slot)))
    }
}

#[cfg(target_os = "linux")]
impl Buffer for feedrate_shm::SlotBytes {
    fn as_bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.as_bytes_mut()
    }
}

#[cfg(target_os = "linux")]
impl Buffer for feedrate_shm::LeaseBytes {
    fn as_bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.as_bytes_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_their_size_and_alignment() {
        let local = LocalArena::new(1 << 20);
        for allocator in [&Heap as &dyn Allocator, &local] {
            for len in [1, 15, 16, 17, 4097] {
                let mut buffer = allocator.reserve(len).unwrap();
                buffer.as_bytes_mut().fill(7);
                assert_eq!(buffer.as_bytes(), vec![7; len]);
                assert_eq!(buffer.as_bytes().as_ptr() as usize % 16, 0);
            }
        }
    }

    #[test]
    fn memory_is_used_again() {
        let local = LocalArena::new(1 << 20);
        let address = |buffer: &dyn Buffer| buffer.as_bytes().as_ptr();
        let first = Allocator::reserve(&local, 100_000).unwrap();
        let place = address(&*first);
        drop(first);
        assert_eq!(address(&*Allocator::reserve(&local, 100_000).unwrap()), place);
    }
}
