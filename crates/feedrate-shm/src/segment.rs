//! One segment: a sealed memfd, mapped, with its header, its slot table and its slots. The same type serves the writer, who
//! creates it, and the reader, who opens it.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::SealFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, SegmentFault};
use crate::memfd;
use crate::size::ALIGN;
use crate::slots::{Entry, Table};

/// The version of everything in this file and in `slots.rs` that both processes must agree about.
pub const LAYOUT_VERSION: u32 = 1;

const MAGIC: u64 = u64::from_le_bytes(*b"feedrate");
const PAGE: usize = 4096;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The first bytes of a segment. Atomics, because two processes see it; only `freed` changes after `ready`.
#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    id: AtomicU32,
    slots: AtomicU32,
    ready: AtomicU32,
    stride: AtomicU64,
    data: AtomicU64,
    len: AtomicU64,
    reserved: [AtomicU64; 2],
    /// Head of the freed stack, on a cache line of its own.
    freed: AtomicU32,
    padding: [AtomicU32; 15],
}

const TABLE: usize = size_of::<Header>();
const _: () = assert!(TABLE == 128 && size_of::<Entry>() == 16 && align_of::<Entry>() == 8);

/// Memory mapped from a descriptor; unmapped when dropped.
pub(crate) struct Mapping {
    base: NonNull<c_void>,
    len: usize,
    /// Bytes mapped by the same view, this mapping among them.
    meter: Option<Arc<AtomicUsize>>,
}

// SAFETY: a mapping may be used and unmapped by any thread; this type gives out raw pointers only, so what is read and written
// through them is the business of their users.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared access gives nothing but the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd`, shared and writable or private and read-only.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        len: usize,
        shared: bool,
        meter: Option<Arc<AtomicUsize>>,
    ) -> Result<Self, Error> {
        let doing = "mapping shared memory";
        let (prot, flags) = if shared {
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
        } else {
            (ProtFlags::READ, MapFlags::PRIVATE)
        };
        // SAFETY: no address is asked for, so the kernel chooses a range that nothing else uses.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, flags, fd, 0) }
            .map_err(|e| Error::sized(doing, len, e.into()))?;
        let base = NonNull::new(base).ok_or(Error::Size { bytes: len })?;
        if let Some(meter) = &meter {
            meter.fetch_add(len, Ordering::Relaxed);
        }
        Ok(Self { base, len, meter })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; whoever uses the memory holds this mapping alive.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own range: {unmapped:?}");
        if let Some(meter) = &self.meter {
            meter.fetch_sub(self.len, Ordering::Relaxed);
        }
    }
}

/// A mapped segment whose header is known to be right. The geometry is a private copy: what a stray write does to the header
/// later cannot move a pointer out of the mapping.
pub(crate) struct Segment {
    map: Mapping,
    id: u32,
    slots: u32,
    stride: usize,
    data: usize,
}

impl Segment {
    /// Bytes of a segment with so many slots; the slots begin at the first number.
    fn extent(slots: u32, stride: usize) -> Option<(usize, usize)> {
        let table = (slots as usize).checked_mul(size_of::<Entry>())?.checked_add(TABLE)?;
        let data = table.checked_next_multiple_of(PAGE)?;
        let len = data
            .checked_add((slots as usize).checked_mul(stride)?)?
            .checked_next_multiple_of(PAGE)?;
        isize::try_from(len).is_ok().then_some((data, len))
    }

    /// Writer: makes a segment. The descriptor is for the reader; the mapping does not need it.
    pub(crate) fn create(name: &str, id: u32, slots: u32, stride: usize) -> Result<(Self, OwnedFd), Error> {
        let bytes = stride.saturating_mul(slots as usize);
        let (data, len) = Self::extent(slots, stride).ok_or(Error::Size { bytes })?;
        let fd = memfd::create(name)?;
        let doing = "sizing shared memory";
        rustix::fs::ftruncate(&fd, len as u64).map_err(|e| Error::sized(doing, len, e.into()))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|e| Error::io("sealing shared memory", e.into()))?;
        let map = Mapping::new(fd.as_fd(), len, true, None)?;
        let segment = Self {
            map,
            id,
            slots,
            stride,
            data,
        };
        let header = segment.header();
        header.magic.store(MAGIC, Ordering::Relaxed);
        header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        header.id.store(id, Ordering::Relaxed);
        header.slots.store(slots, Ordering::Relaxed);
        header.stride.store(stride as u64, Ordering::Relaxed);
        header.data.store(data as u64, Ordering::Relaxed);
        header.len.store(len as u64, Ordering::Relaxed);
        header.ready.store(1, Ordering::Release);
        Ok((segment, fd))
    }

    /// Reader: maps and checks a segment that the peer announced.
    pub(crate) fn open(id: u32, len: usize, fd: &OwnedFd, meter: Arc<AtomicUsize>) -> Result<Self, Error> {
        let fail = |fault| Error::Segment { id, fault };
        // what is no memfd has no seals
        if !rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(fail(SegmentFault::Unsealed));
        }
        let stat = rustix::fs::fstat(fd).map_err(|e| Error::io("asking for a segment's length", e.into()))?;
        let found = u64::try_from(stat.st_size).unwrap_or(0);
        if found != len as u64 {
            return Err(fail(SegmentFault::Length {
                announced: len as u64,
                found,
            }));
        }
        if len < PAGE {
            return Err(fail(SegmentFault::Geometry));
        }
        let map = Mapping::new(fd.as_fd(), len, true, Some(meter))?;
        let mut segment = Self {
            map,
            id,
            slots: 0,
            stride: 0,
            data: 0,
        };
        let header = segment.header();
        if header.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(fail(SegmentFault::Magic));
        }
        let version = header.version.load(Ordering::Relaxed);
        if version != LAYOUT_VERSION {
            let expected = LAYOUT_VERSION;
            return Err(fail(SegmentFault::Version {
                found: version,
                expected,
            }));
        }
        if header.ready.load(Ordering::Acquire) != 1 {
            return Err(fail(SegmentFault::Unready));
        }
        let slots = header.slots.load(Ordering::Relaxed);
        let stride = usize::try_from(header.stride.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let (data, extent) = Self::extent(slots, stride).ok_or_else(|| fail(SegmentFault::Geometry))?;
        let right = slots > 0
            && stride > 0
            && stride.is_multiple_of(ALIGN)
            && extent == len
            && header.id.load(Ordering::Relaxed) == id
            && header.len.load(Ordering::Relaxed) == len as u64
            && header.data.load(Ordering::Relaxed) == data as u64;
        if !right {
            return Err(fail(SegmentFault::Geometry));
        }
        (segment.slots, segment.stride, segment.data) = (slots, stride, data);
        Ok(segment)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned and at least a page long, which holds a header; every field is an atomic, for
        // which any bytes are valid and changes from elsewhere are allowed; it lives as long as `self`.
        unsafe { &*self.map.base.as_ptr().cast::<Header>() }
    }

    pub(crate) fn table(&self) -> Table<'_> {
        // SAFETY: `extent` has made sure that `slots` entries lie behind the header, inside the mapping; the end of a
        // header is aligned for them; entries are atomics, valid with any bytes and changeable from elsewhere.
        let entries = unsafe {
            std::slice::from_raw_parts(
                self.map.base.as_ptr().cast::<Header>().add(1).cast::<Entry>(),
                self.slots as usize,
            )
        };
        Table {
            freed: &self.header().freed,
            entries,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes from one slot to the next: the capacity of each.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn base(&self) -> usize {
        self.map.base().addr()
    }

    /// Where `slot` begins. Panics when there is no such slot; the callers have checked.
    pub(crate) fn slot_ptr(&self, slot: u32) -> *mut u8 {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        // SAFETY: data + slots * stride lies inside the mapping (`extent`), and so does the start of each slot.
        unsafe { self.map.base().add(self.data + slot as usize * self.stride) }
    }

    /// The slot in which `addr` lies, and how far from its start.
    pub(crate) fn slot_at(&self, addr: usize) -> Option<(u32, usize)> {
        let at = addr.checked_sub(self.base() + self.data)?;
        let slot = u32::try_from(at / self.stride).ok()?;
        (slot < self.slots).then_some((slot, at % self.stride))
    }

    /// Writer: gives the pages of all slots back to the kernel at once, although the reader may still have them mapped. To be
    /// called only when nobody has a view of any slot.
    pub(crate) fn discard(&self) {
        let start = self.data;
        // Failing is harmless: the pages then go with the last mapping.
        // SAFETY: from the first slot to the end of our own mapping, page-aligned; the caller says that no slot is in use.
        let _ = unsafe {
            rustix::mm::madvise(
                self.map.base().add(start).cast::<c_void>(),
                self.len() - start,
                Advice::LinuxRemove,
            )
        };
    }
}
