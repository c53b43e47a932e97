//! The same contract inside one process: reserved memory that is reused by size. For inline loading, threads and tests.

use std::alloc::{Layout, alloc, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, TryLockError, Weak};

use crate::error::{Error, Result};
use crate::size;

/// Reused heap memory of one process.
///
/// Fresh large memory costs a page fault for every 4 KiB; a buffer from here was mostly written before. All methods may be
/// called from any thread and none ever waits: when another thread is just using the cache, memory is allocated or freed
/// without it. For the same reason a fork is harmless.
pub struct LocalArena {
    cache: Mutex<Cache>,
    idle_bytes: usize,
    me: Weak<Self>,
}

#[derive(Default)]
struct Cache {
    /// The longest unused first.
    free: Vec<Buffer>,
    free_bytes: usize,
    used_bytes: usize,
}

/// Heap memory, freed when dropped.
struct Buffer {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a buffer owns its memory alone and gives out nothing but the address.
unsafe impl Send for Buffer {}
// SAFETY: as above; there is nothing that shared access could change.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(capacity: usize) -> Result<Self> {
        let error = || Error::Size { bytes: capacity };
        let layout = Layout::from_size_align(capacity, size::ALIGN).map_err(|_| error())?;
        // SAFETY: the capacity of a slot is never zero.
        let ptr = NonNull::new(unsafe { alloc(layout) }).ok_or_else(|| Error::Memory {
            doing: "allocating a buffer",
            bytes: capacity,
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        Ok(Self { ptr, layout })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, and dropped once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

impl LocalArena {
    /// An empty cache that keeps at most `idle_bytes` or the bytes in use, whichever is more, for reuse.
    pub fn new(idle_bytes: usize) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            cache: Mutex::default(),
            idle_bytes,
            me: me.clone(),
        })
    }

    fn with_cache<T>(&self, run: impl FnOnce(&mut Cache) -> T) -> Option<T> {
        match self.cache.try_lock() {
            Ok(mut cache) => Some(run(&mut cache)),
            Err(TryLockError::Poisoned(cache)) => Some(run(&mut cache.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Reserves `len` bytes (at least 1), aligned to 64, with arbitrary contents.
    pub fn reserve(&self, len: usize) -> Result<LocalSlot> {
        let capacity = size::capacity(len)
            .filter(|_| len > 0)
            .ok_or(Error::Size { bytes: len })?;
        let reused = self.with_cache(|cache| {
            cache.used_bytes += capacity;
            cache.take(len)
        });
        let counted = reused.is_some();
        let buffer = match reused.flatten() {
            Some(buffer) => buffer,
            None => match Buffer::new(capacity) {
                Ok(buffer) => buffer,
                Err(e) => {
                    self.with_cache(|cache| cache.used_bytes = cache.used_bytes.saturating_sub(capacity));
                    return Err(e);
                }
            },
        };
        Ok(LocalSlot {
            buffer: Some(buffer),
            len,
            counted: counted.then_some(capacity),
            arena: self.me.clone(),
        })
    }

    /// Frees everything that lies idle.
    pub fn trim(&self) {
        // freed outside the lock
        drop(self.with_cache(|cache| {
            cache.free_bytes = 0;
            std::mem::take(&mut cache.free)
        }));
    }

    /// Bytes that lie idle; 0 when another thread is just using the cache.
    pub fn free_bytes(&self) -> usize {
        self.with_cache(|cache| cache.free_bytes).unwrap_or(0)
    }
}

impl Cache {
    /// The tightest idle buffer; among equals the one used last.
    fn take(&mut self, len: usize) -> Option<Buffer> {
        let (at, _) = (self.free.iter().enumerate())
            .filter(|(_, buffer)| size::serves(buffer.layout.size(), len))
            .min_by_key(|(at, buffer)| (buffer.layout.size(), usize::MAX - at))?;
        let buffer = self.free.remove(at);
        self.free_bytes -= buffer.layout.size();
        Some(buffer)
    }
}

/// A reserved buffer; its memory is reused when it is dropped. `Send` and `Sync`, and it may outlive its arena.
pub struct LocalSlot {
    buffer: Option<Buffer>,
    len: usize,
    /// What this slot added to the arena's count of bytes in use.
    counted: Option<usize>,
    arena: Weak<LocalArena>,
}

impl LocalSlot {
    /// The first byte; valid for reads and writes of [`len`](LocalSlot::len) bytes while this handle lives.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.buffer
            .as_ref()
            .map_or(std::ptr::null_mut(), |buffer| buffer.ptr.as_ptr())
    }

    /// The address of the first byte.
    pub fn addr(&self) -> usize {
        self.as_mut_ptr().addr()
    }

    /// Bytes reserved.
    #[expect(clippy::len_without_is_empty, reason = "a slot has at least one byte")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for LocalSlot {
    fn drop(&mut self) {
        let Some(arena) = self.arena.upgrade() else { return };
        let mut buffer = self.buffer.take();
        let surplus = arena.with_cache(|cache| {
            cache.used_bytes = cache.used_bytes.saturating_sub(self.counted.unwrap_or(0));
            let mut surplus = Vec::new();
            if let Some(buffer) = buffer.take() {
                cache.free_bytes += buffer.layout.size();
                cache.free.push(buffer);
            }
            let keep = arena.idle_bytes.max(cache.used_bytes);
            while cache.free_bytes > keep {
                let oldest = cache.free.remove(0);
                cache.free_bytes -= oldest.layout.size();
                surplus.push(oldest);
            }
            surplus
        });
        drop(surplus); // freed outside the lock, as is the buffer itself when the cache was busy
    }
}

impl fmt::Debug for LocalArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalArena")
            .field("idle_bytes", &self.idle_bytes)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LocalSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSlot")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
