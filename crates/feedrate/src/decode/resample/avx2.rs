//! The kernels with AVX2: 16-bit products of two taps at a time, the weights in two halves.
#![expect(
    unsafe_code,
    reason = "vector instructions, found at run time, and loads of whole registers"
)]

use std::arch::x86_64::{
    __m256i, _mm_add_epi32, _mm_cvtsi128_si32, _mm_loadu_si128, _mm_shuffle_epi32, _mm256_add_epi32,
    _mm256_castsi128_si256, _mm256_castsi256_si128, _mm256_cvtepu8_epi16, _mm256_extracti128_si256,
    _mm256_inserti128_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_packs_epi32, _mm256_packus_epi16,
    _mm256_set1_epi32, _mm256_setr_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi32,
    _mm256_srai_epi32, _mm256_storeu_si256, _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
};

use super::weights::{Axis, GROUP, PRECISION};
use super::{View, scalar};

const HALF: i32 = 1 << (PRECISION - 1);
#[expect(clippy::cast_possible_wrap, reason = "22")]
const SHIFT: i32 = PRECISION as i32;

/// Rows that are made at a time.
const ROWS: usize = 4;

/// All rows. `stride` leaves room for a register behind each.
///
/// # Panics
/// If the output is too small.
pub(super) fn horizontal(input: View<'_>, axis: &Axis, out: &mut [u8], stride: usize, width: usize) {
    assert!(out.len() >= stride * input.height && stride >= width * input.channels + 4);
    let channels = input.channels;
    let rows = match channels {
        3 | 4 => input.height / ROWS * ROWS,
        1 => input.height,
        _ => 0,
    };
    // In the last rows, the registers of the last pixels would reach beyond the data: those go the plain way.
    let reach = 16_usize.next_multiple_of(channels.max(1));
    for y in (0..rows).step_by(ROWS) {
        let group = ROWS.min(rows - y);
        let last = (y + group - 1) * input.stride;
        let safe = (0..width)
            .rev()
            .find(|x| {
                let (first, taps) = axis.bounds(*x);
                let loads = if channels == 1 {
                    taps.div_ceil(16) * 16
                } else {
                    taps.div_ceil(GROUP) * GROUP * channels
                };
                last + first * channels + loads + reach <= input.data.len()
            })
            .map_or(0, |x| x + 1);
        // SAFETY: AVX2 was detected. For the pixels below `safe` every load ends inside of the data: `first` and the number of taps
        // do not fall with x, and other rows of the group lie before the last one. Writes reach 4 bytes behind a row's pixels at most.
        unsafe {
            match channels {
                3 => colours::<3>(input, axis, out, stride, y, safe),
                4 => colours::<4>(input, axis, out, stride, y, safe),
                _ => (y..y + group).for_each(|y| gray(input, axis, &mut out[y * stride..], y, safe)),
            }
        }
        for y in y..y + group {
            scalar::row(input, axis, &mut out[y * stride..], y, safe..width);
        }
    }
    for y in rows..input.height {
        scalar::row(input, axis, &mut out[y * stride..], y, 0..width);
    }
}

/// Two taps, from the bytes of four pixels, as pairs of 16-bit numbers: channel by channel.
#[target_feature(enable = "avx2")]
fn pair_shuffles<const CHANNELS: usize>() -> (__m256i, __m256i) {
    const Z: i8 = -128;
    if CHANNELS == 3 {
        (
            _mm256_setr_epi8(
                0, Z, 3, Z, 1, Z, 4, Z, 2, Z, 5, Z, Z, Z, Z, Z, 0, Z, 3, Z, 1, Z, 4, Z, 2, Z, 5, Z, Z, Z, Z, Z,
            ),
            _mm256_setr_epi8(
                6, Z, 9, Z, 7, Z, 10, Z, 8, Z, 11, Z, Z, Z, Z, Z, 6, Z, 9, Z, 7, Z, 10, Z, 8, Z, 11, Z, Z, Z, Z, Z,
            ),
        )
    } else {
        (
            _mm256_setr_epi8(
                0, Z, 4, Z, 1, Z, 5, Z, 2, Z, 6, Z, 3, Z, 7, Z, 0, Z, 4, Z, 1, Z, 5, Z, 2, Z, 6, Z, 3, Z, 7, Z,
            ),
            _mm256_setr_epi8(
                8, Z, 12, Z, 9, Z, 13, Z, 10, Z, 14, Z, 11, Z, 15, Z, 8, Z, 12, Z, 9, Z, 13, Z, 10, Z, 14, Z, 11, Z,
                15, Z,
            ),
        )
    }
}

/// Two weights, side by side in every lane.
///
/// # Safety
/// `at` and the one behind it are readable.
#[target_feature(enable = "avx2")]
unsafe fn weights(at: *const i16) -> __m256i {
    // SAFETY: as asked of the caller.
    _mm256_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

/// The first `width` pixels of four rows of three or four channels.
///
/// # Safety
/// Sixteen bytes can be read at every fourth tap of these pixels in these rows, and `out` has 4 bytes behind each row's pixels.
#[target_feature(enable = "avx2")]
unsafe fn colours<const CHANNELS: usize>(
    input: View<'_>,
    axis: &Axis,
    out: &mut [u8],
    stride: usize,
    y: usize,
    width: usize,
) {
    let (front, back) = pair_shuffles::<CHANNELS>();
    let base = input.data.as_ptr();
    let half = _mm256_set1_epi32(HALF);
    for x in 0..width {
        let (first, taps) = axis.bounds(x);
        let (low, high) = axis.halves(x);
        let mut lows = [half; 2];
        let mut highs = [_mm256_setzero_si256(); 2];
        for group in 0..taps.div_ceil(GROUP) {
            // SAFETY: there are weights for whole groups; for the pixels see above.
            unsafe {
                let at = low.as_ptr().add(group * GROUP);
                let (low_front, low_back) = (weights(at), weights(at.add(2)));
                let at = high.as_ptr().add(group * GROUP);
                let (high_front, high_back) = (weights(at), weights(at.add(2)));
                let column = (first + group * GROUP) * CHANNELS;
                for two in 0..2 {
                    let above = base.add((y + two * 2) * input.stride + column);
                    let pixels = _mm256_inserti128_si256::<1>(
                        _mm256_castsi128_si256(_mm_loadu_si128(above.cast())),
                        _mm_loadu_si128(above.add(input.stride).cast()),
                    );
                    let one = _mm256_shuffle_epi8(pixels, front);
                    let other = _mm256_shuffle_epi8(pixels, back);
                    lows[two] = _mm256_add_epi32(lows[two], _mm256_madd_epi16(one, low_front));
                    highs[two] = _mm256_add_epi32(highs[two], _mm256_madd_epi16(one, high_front));
                    lows[two] = _mm256_add_epi32(lows[two], _mm256_madd_epi16(other, low_back));
                    highs[two] = _mm256_add_epi32(highs[two], _mm256_madd_epi16(other, high_back));
                }
            }
        }
        let words = _mm256_packs_epi32(finish(lows[0], highs[0]), finish(lows[1], highs[1]));
        // Per half of the register: rows 0 and 2, rows 1 and 3.
        let bytes = _mm256_packus_epi16(words, words);
        let (even, odd) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
        let at = y * stride + x * CHANNELS;
        for (k, four) in [
            _mm_cvtsi128_si32(even),
            _mm_cvtsi128_si32(odd),
            _mm_cvtsi128_si32(_mm_shuffle_epi32::<1>(even)),
            _mm_cvtsi128_si32(_mm_shuffle_epi32::<1>(odd)),
        ]
        .into_iter()
        .enumerate()
        {
            // SAFETY: inside of row y + k and what lies behind it, as asserted by `horizontal`.
            unsafe {
                out.as_mut_ptr()
                    .add(at + k * stride)
                    .cast::<i32>()
                    .write_unaligned(four);
            }
        }
    }
}

/// The first `width` pixels of a row of one channel.
///
/// # Safety
/// Sixteen bytes can be read at every sixteenth tap of these pixels in this row.
#[target_feature(enable = "avx2")]
unsafe fn gray(input: View<'_>, axis: &Axis, out: &mut [u8], y: usize, width: usize) {
    let row = input.data[y * input.stride..].as_ptr();
    for (x, out) in out.iter_mut().enumerate().take(width) {
        let (first, taps) = axis.bounds(x);
        let (low, high) = axis.halves(x);
        let mut lows = _mm256_setzero_si256();
        let mut highs = _mm256_setzero_si256();
        for start in (0..taps).step_by(16) {
            // Weights end with the last group: what is missing of 16 is 0.
            let (mut few_low, mut few_high) = ([0_i16; 16], [0_i16; 16]);
            let count = (low.len() - start).min(16);
            few_low[..count].copy_from_slice(&low[start..start + count]);
            few_high[..count].copy_from_slice(&high[start..start + count]);
            // SAFETY: arrays of a register's size; for the pixels see above.
            unsafe {
                let pixels = _mm256_cvtepu8_epi16(_mm_loadu_si128(row.add(first + start).cast()));
                lows = _mm256_add_epi32(
                    lows,
                    _mm256_madd_epi16(pixels, _mm256_loadu_si256(few_low.as_ptr().cast())),
                );
                highs = _mm256_add_epi32(
                    highs,
                    _mm256_madd_epi16(pixels, _mm256_loadu_si256(few_high.as_ptr().cast())),
                );
            }
        }
        let sums = _mm256_add_epi32(lows, _mm256_slli_epi32::<15>(highs));
        let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b00_00_11_10>(sums));
        let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b00_00_00_01>(sums));
        let sum = _mm_cvtsi128_si32(sums).wrapping_add(HALF);
        *out = clip(sum);
    }
}

fn clip(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255).to_le_bytes()[0]
}

/// Sums of both halves of the weights to pixels, 32 bits wide and not yet clipped.
#[target_feature(enable = "avx2")]
fn finish(low: __m256i, high: __m256i) -> __m256i {
    _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(low, _mm256_slli_epi32::<15>(high)))
}

/// One output row.
///
/// # Panics
/// If the output is shorter than a row.
pub(super) fn vertical(input: View<'_>, axis: &Axis, y: usize, out: &mut [u8]) {
    let bytes = input.width * input.channels;
    assert!(out.len() >= bytes);
    let blocks = bytes / 32 * 32;
    // SAFETY: AVX2 was detected; rows are `bytes` long, and so is the output at least.
    unsafe { columns(input, axis, y, out, blocks) };
    scalar::vertical(input, axis, y, out, blocks);
}

/// The first `bytes` of a row, a multiple of 32.
///
/// # Safety
/// Rows of the input and the output have as many bytes.
#[target_feature(enable = "avx2")]
unsafe fn columns(input: View<'_>, axis: &Axis, y: usize, out: &mut [u8], bytes: usize) {
    let (first, taps) = axis.bounds(y);
    let (low, high) = axis.halves(y);
    let zero = _mm256_setzero_si256();
    let half = _mm256_set1_epi32(HALF);
    for x in (0..bytes).step_by(32) {
        let mut lows = [half; 4];
        let mut highs = [zero; 4];
        for tap in (0..taps).step_by(2) {
            // The second of the last pair may not exist: its weight is 0.
            let other = (tap + 1).min(taps - 1);
            // SAFETY: both rows exist, and have 32 bytes from x on; weights come in groups of four.
            let (above, below, low, high) = unsafe {
                (
                    _mm256_loadu_si256(input.data.as_ptr().add((first + tap) * input.stride + x).cast()),
                    _mm256_loadu_si256(input.data.as_ptr().add((first + other) * input.stride + x).cast()),
                    weights(low.as_ptr().add(tap)),
                    weights(high.as_ptr().add(tap)),
                )
            };
            let left = _mm256_unpacklo_epi8(above, below);
            let right = _mm256_unpackhi_epi8(above, below);
            let pairs = [
                _mm256_unpacklo_epi8(left, zero),
                _mm256_unpackhi_epi8(left, zero),
                _mm256_unpacklo_epi8(right, zero),
                _mm256_unpackhi_epi8(right, zero),
            ];
            for k in 0..4 {
                lows[k] = _mm256_add_epi32(lows[k], _mm256_madd_epi16(pairs[k], low));
                highs[k] = _mm256_add_epi32(highs[k], _mm256_madd_epi16(pairs[k], high));
            }
        }
        let words = [
            _mm256_packs_epi32(finish(lows[0], highs[0]), finish(lows[1], highs[1])),
            _mm256_packs_epi32(finish(lows[2], highs[2]), finish(lows[3], highs[3])),
        ];
        // SAFETY: the output has 32 bytes from x on.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(x).cast(), _mm256_packus_epi16(words[0], words[1])) };
    }
}
