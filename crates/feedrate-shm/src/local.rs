//! The same contract inside one process: reserved memory that is reused by size. For inline loading, threads and tests.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};

use crate::error::{Error, Result};
use crate::size;

/// Reused heap memory of one process.
///
/// Fresh large memory costs a page fault for every 4 KiB; a buffer from here was mostly written before. All methods may be
/// called from any thread and none ever waits: when another thread is just using the cache, memory is allocated or freed
/// without it. For the same reason a fork is harmless: in the child the cache may stay locked for ever, and nothing more.
pub struct LocalArena {
    idle: Mutex<Idle>,
    idle_bytes: usize,
    used_bytes: AtomicUsize,
    me: Weak<Self>,
}

#[derive(Default)]
struct Idle {
    /// The longest unused first.
    buffers: Vec<Buffer>,
    bytes: usize,
}

/// Heap memory, freed when dropped.
struct Buffer {
    ptr: NonNull<u8>,
    capacity: usize,
    /// What was allocated: a little more than the capacity, at any address.
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a buffer owns its memory alone and gives out nothing but the address.
unsafe impl Send for Buffer {}
// SAFETY: as above; there is nothing that shared access could change.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(capacity: usize) -> Result<Self> {
        let error = || Error::Size { bytes: capacity };
        // Not aligned by the allocator, which would then write the zeros itself, and touch pages of which the kernel has none but zeros.
        let room = capacity.checked_add(size::ALIGN).ok_or_else(error)?;
        let layout = Layout::from_size_align(room, 1).map_err(|_| error())?;
        // Zeroed, so that all of it may be looked at as bytes.
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| Error::Memory {
            doing: "allocating a buffer",
            bytes: capacity,
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        crate::huge::advise(base.as_ptr(), room);
        let before = base.as_ptr().align_offset(size::ALIGN);
        // SAFETY: there are as many bytes more than the capacity as the alignment has, which `before` is less than.
        let ptr = unsafe { base.add(before) };
        Ok(Self {
            ptr,
            capacity,
            base,
            layout,
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, and dropped once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl LocalArena {
    /// An empty cache that keeps at most `idle_bytes` or the bytes in use, whichever is more, for reuse.
    pub fn new(idle_bytes: usize) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            idle: Mutex::default(),
            idle_bytes,
            used_bytes: AtomicUsize::new(0),
            me: me.clone(),
        })
    }

    fn with_idle<T>(&self, run: impl FnOnce(&mut Idle) -> T) -> Option<T> {
        match self.idle.try_lock() {
            Ok(mut idle) => Some(run(&mut idle)),
            Err(TryLockError::Poisoned(idle)) => Some(run(&mut idle.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Reserves `len` bytes (at least 1), aligned to 64, with arbitrary contents.
    pub fn reserve(&self, len: usize) -> Result<LocalSlot> {
        let capacity = size::capacity(len)
            .filter(|_| len > 0)
            .ok_or(Error::Size { bytes: len })?;
        let buffer = match self.with_idle(|idle| idle.take(len)).flatten() {
            Some(buffer) => buffer,
            None => Buffer::new(capacity)?,
        };
        self.used_bytes.fetch_add(buffer.capacity, Ordering::Relaxed);
        Ok(LocalSlot {
            buffer: Some(buffer),
            len,
            arena: self.me.clone(),
        })
    }

    /// Frees everything that lies idle.
    pub fn trim(&self) {
        let freed = self.with_idle(std::mem::take);
        drop(freed); // outside the lock
    }

    /// Bytes reserved or kept for reuse. What is idle is not counted while another thread is just using the cache.
    pub fn held_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed) + self.with_idle(|idle| idle.bytes).unwrap_or(0)
    }
}

impl Idle {
    /// The tightest idle buffer; among equals the one used last, whose pages are warm.
    fn take(&mut self, len: usize) -> Option<Buffer> {
        let (at, _) = (self.buffers.iter().enumerate())
            .filter(|(_, buffer)| size::serves(buffer.capacity, len))
            .min_by_key(|(at, buffer)| (buffer.capacity, usize::MAX - at))?;
        let buffer = self.buffers.remove(at);
        self.bytes -= buffer.capacity;
        Some(buffer)
    }

    /// Takes a buffer in and gives out what exceeds `keep` bytes, longest unused first.
    fn put(&mut self, buffer: Buffer, keep: usize) -> Vec<Buffer> {
        self.bytes += buffer.capacity;
        self.buffers.push(buffer);
        let mut surplus = 0;
        while self.bytes > keep {
            self.bytes -= self.buffers[surplus].capacity;
            surplus += 1;
        }
        self.buffers.drain(..surplus).collect()
    }
}

/// A reserved buffer; its memory is reused when it is dropped. `Send` and `Sync`, and it may outlive its arena.
pub struct LocalSlot {
    buffer: Option<Buffer>,
    len: usize,
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
        let (Some(buffer), Some(arena)) = (self.buffer.take(), self.arena.upgrade()) else {
            return;
        };
        let size = buffer.capacity;
        let used = arena.used_bytes.fetch_sub(size, Ordering::Relaxed) - size;
        let keep = arena.idle_bytes.max(used);
        // freed outside the lock, as is the buffer itself when the cache is busy
        drop(arena.with_idle(|idle| idle.put(buffer, keep)));
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
