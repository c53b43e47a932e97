//! Numbers out of bytes that may end.

/// The two bytes at `at`, the lower one first.
pub(super) fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// The four bytes at `at`, the lowest one first.
pub(super) fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// The four bytes at `at`, the highest one first.
pub(super) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Adds `N` values for each `M` of `from`.
pub(super) fn each<const M: usize, const N: usize, T: Copy + Default>(
    from: &[T],
    out: &mut Vec<T>,
    map: impl Fn(&[T; M]) -> [T; N],
) {
    let pixels = from.as_chunks::<M>().0;
    let at = out.len();
    out.resize(at + pixels.len() * N, T::default());
    for (to, from) in out[at..].as_chunks_mut::<N>().0.iter_mut().zip(pixels) {
        *to = map(from);
    }
}

/// `N` values for each `M` of `from`.
pub(super) fn mapped<const M: usize, const N: usize, T: Copy + Default>(
    from: &[T],
    map: impl Fn(&[T; M]) -> [T; N],
) -> Vec<T> {
    let mut out = Vec::with_capacity(from.len() / M * N);
    each(from, &mut out, map);
    out
}

/// Takes `count` values of `bits` bits (1, 2 or 4) out of a row of packed bytes, the highest bits first, each mapped by `map`.
pub(super) fn unpack(packed: &[u8], bits: usize, count: usize, out: &mut Vec<u8>, map: impl Fn(u8) -> u8) {
    let each = 8 / bits;
    let mask = 0xff_u8 >> (8 - bits);
    let values = packed
        .iter()
        .flat_map(|byte| (0..each).map(move |i| (byte >> (8 - bits * (i + 1))) & mask));
    out.extend(values.take(count).map(map));
}

/// A buffer of zeros, or nothing where there is no memory.
pub(super) fn zeros<T: Clone + Default>(len: usize) -> Option<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).ok()?;
    values.resize(len, T::default());
    Some(values)
}
