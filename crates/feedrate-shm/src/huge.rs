//! Large vectors in large pages.

/// From so many bytes on the kernel is asked for large pages, as NumPy asks for its arrays.
#[cfg(target_os = "linux")]
const LARGE: usize = 4 << 20;

/// An empty vector with room for `capacity` elements, for which the kernel is asked to use large pages: memory that is touched for the
/// first time, or in no order, costs a page fault and an entry in the processor's tables for each page, and there are 512 times fewer.
///
/// It is a hint and changes nothing else; elsewhere than on Linux, or for less than 4 MiB, this is [`Vec::with_capacity`].
pub fn vec_in_large_pages<T>(capacity: usize) -> Vec<T> {
    let items = Vec::<T>::with_capacity(capacity);
    advise(items.as_ptr().cast(), items.capacity().saturating_mul(size_of::<T>()));
    items
}

/// So many zeros, in memory that is not touched before it is used, as [`vec_in_large_pages`] asks for it.
pub fn zeros_in_large_pages(len: usize) -> Vec<u32> {
    let items = vec![0; len];
    advise(items.as_ptr().cast(), len.saturating_mul(size_of::<u32>()));
    items
}

/// Asks for large pages for so many bytes, where they are many. Nothing but time depends on it.
#[cfg(target_os = "linux")]
pub(crate) fn advise(start: *const u8, bytes: usize) {
    /// What addresses and lengths are rounded to: as large as any processor's usual page.
    const PAGE: usize = 64 << 10;
    if bytes < LARGE {
        return;
    }
    let before = start.align_offset(PAGE);
    let len = bytes.saturating_sub(before) / PAGE * PAGE;
    let pages = start.wrapping_add(before).cast_mut();
    // SAFETY: this advice changes how the kernel will back these addresses, and not what is there or whether anything is. A kernel without
    // large pages refuses it, which does not matter.
    let _ = unsafe { rustix::mm::madvise(pages.cast(), len, rustix::mm::Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn advise(_start: *const u8, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_vectors_like_others() {
        for capacity in [0, 1, 1000, 3 << 20] {
            let mut items = vec_in_large_pages::<u32>(capacity);
            assert!(items.capacity() >= capacity && items.is_empty());
            items.extend(0..10);
            items.resize(capacity.max(10), 7);
            items.push(1);
            assert_eq!(items[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        }
        assert!(vec_in_large_pages::<()>(5).is_empty());
        for len in [0, 1, 2 << 20] {
            assert!(zeros_in_large_pages(len).iter().all(|item| *item == 0));
            assert_eq!(zeros_in_large_pages(len).len(), len);
        }
    }
}
