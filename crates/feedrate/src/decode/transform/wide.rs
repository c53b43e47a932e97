//! Rows of RGB to the output with AVX2, sixteen pixels at a time.
#![expect(
    unsafe_code,
    reason = "vector instructions, found at run time, and loads and stores of whole registers"
)]

use std::arch::x86_64::{
    __m128i, __m256, _mm_loadu_si128, _mm_or_si128, _mm_setr_epi8, _mm_shuffle_epi8, _mm_srli_si128, _mm_storeu_si128,
    _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_div_ps, _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_mul_ps,
    _mm256_set1_ps, _mm256_storeu_ps, _mm256_sub_ps,
};

use super::Scale;

/// Pixels that are taken at a time.
const BLOCK: usize = 16;

pub(super) fn available() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// What a byte becomes, as arithmetic: the same numbers as the table's, which was checked for all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Formula {
    scale: Scale,
    /// Mean and standard deviation of each channel.
    normalise: Option<[(f32, f32); 3]>,
}

impl Formula {
    /// The formula, if it gives bit for bit what the tables hold.
    pub(super) fn new(scale: Scale, normalise: Option<[(f32, f32); 3]>, tables: &[[u32; 256]]) -> Option<Self> {
        let formula = Self { scale, normalise };
        if !available() || tables.len() != 3 {
            return None;
        }
        let row: Vec<u8> = (0..=255).flat_map(|byte| [byte; 3]).collect();
        let mut out = vec![0_u32; 3 * 256];
        let (red, rest) = out.split_at_mut(256);
        let (green, blue) = rest.split_at_mut(256);
        singles(&formula, &row, [red, green, blue], false);
        out.chunks(256)
            .eq(tables.iter().map(|table| &table[..]))
            .then_some(formula)
    }
}

/// How bytes of three sixteenths of a block come together to one channel, or come reversed.
struct Shuffles {
    /// By channel, then by register.
    split: [[__m128i; 3]; 3],
    reverse: __m128i,
}

#[target_feature(enable = "avx2")]
fn shuffles() -> Shuffles {
    const Z: i8 = -1;
    Shuffles {
        split: [
            [
                _mm_setr_epi8(0, 3, 6, 9, 12, 15, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z),
                _mm_setr_epi8(Z, Z, Z, Z, Z, Z, 2, 5, 8, 11, 14, Z, Z, Z, Z, Z),
                _mm_setr_epi8(Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, 1, 4, 7, 10, 13),
            ],
            [
                _mm_setr_epi8(1, 4, 7, 10, 13, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z),
                _mm_setr_epi8(Z, Z, Z, Z, Z, 0, 3, 6, 9, 12, 15, Z, Z, Z, Z, Z),
                _mm_setr_epi8(Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, 2, 5, 8, 11, 14),
            ],
            [
                _mm_setr_epi8(2, 5, 8, 11, 14, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z),
                _mm_setr_epi8(Z, Z, Z, Z, Z, 1, 4, 7, 10, 13, Z, Z, Z, Z, Z, Z),
                _mm_setr_epi8(Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, 0, 3, 6, 9, 12, 15),
            ],
        ],
        reverse: _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
    }
}

/// Where the blocks of a row begin: the last one may overlap the one before it, and is made again then.
fn blocks(width: usize) -> impl Iterator<Item = usize> {
    (0..width / BLOCK)
        .map(|block| block * BLOCK)
        .chain((!width.is_multiple_of(BLOCK)).then(|| width - BLOCK))
}

/// The channels of sixteen pixels.
///
/// # Safety
/// 48 bytes can be read.
#[target_feature(enable = "avx2")]
unsafe fn split(at: *const u8, shuffles: &Shuffles, mirrored: bool) -> [__m128i; 3] {
    // SAFETY: as asked of the caller.
    let from = unsafe {
        [
            _mm_loadu_si128(at.cast()),
            _mm_loadu_si128(at.add(16).cast()),
            _mm_loadu_si128(at.add(32).cast()),
        ]
    };
    let [red, green, blue] = &shuffles.split;
    let (red, green, blue) = (joined(&from, red), joined(&from, green), joined(&from, blue));
    if mirrored {
        let by = shuffles.reverse;
        return [
            _mm_shuffle_epi8(red, by),
            _mm_shuffle_epi8(green, by),
            _mm_shuffle_epi8(blue, by),
        ];
    }
    [red, green, blue]
}

// The functions here that take vectors are all compiled for AVX2: what is not, such as the `map` and `zip` of arrays, is called and not inlined.

/// One channel of three registers.
#[target_feature(enable = "avx2")]
fn joined(from: &[__m128i; 3], by: &[__m128i; 3]) -> __m128i {
    let front = _mm_or_si128(_mm_shuffle_epi8(from[0], by[0]), _mm_shuffle_epi8(from[1], by[1]));
    _mm_or_si128(front, _mm_shuffle_epi8(from[2], by[2]))
}

fn check<T>(row: &[u8], out: &[&mut [T]; 3]) -> usize {
    let width = row.len() / 3;
    assert!(width >= BLOCK && row.len() == width * 3 && out.iter().all(|plane| plane.len() == width));
    width
}

/// A row of at least sixteen pixels to a row of each plane.
pub(super) fn bytes(row: &[u8], out: [&mut [u8]; 3], mirrored: bool) {
    let width = check(row, &out);
    // SAFETY: AVX2 was detected; every block lies inside of the row and of the planes' rows, whose lengths were checked.
    unsafe { split_bytes(row, out, mirrored, width) };
}

/// # Safety
/// The row and the planes have `width` pixels, and at least sixteen.
#[target_feature(enable = "avx2")]
unsafe fn split_bytes(row: &[u8], [red, green, blue]: [&mut [u8]; 3], mirrored: bool, width: usize) {
    let shuffles = shuffles();
    for x in blocks(width) {
        let to = if mirrored { width - BLOCK - x } else { x };
        // SAFETY: as asked of the caller.
        unsafe {
            let channels = split(row.as_ptr().add(x * 3), &shuffles, mirrored);
            _mm_storeu_si128(red.as_mut_ptr().add(to).cast(), channels[0]);
            _mm_storeu_si128(green.as_mut_ptr().add(to).cast(), channels[1]);
            _mm_storeu_si128(blue.as_mut_ptr().add(to).cast(), channels[2]);
        }
    }
}

/// A row of at least sixteen pixels to a row of each plane, as singles by the formula.
pub(super) fn singles(formula: &Formula, row: &[u8], out: [&mut [u32]; 3], mirrored: bool) {
    let width = check(row, &out);
    // SAFETY: AVX2 and FMA were detected when the formula was made; the lengths were checked.
    unsafe {
        match (formula.scale, formula.normalise.is_some()) {
            (Scale::Keep, false) => split_singles::<0, false>(formula, row, out, mirrored, width),
            (Scale::Keep, true) => split_singles::<0, true>(formula, row, out, mirrored, width),
            (Scale::Divide, false) => split_singles::<1, false>(formula, row, out, mirrored, width),
            (Scale::Divide, true) => split_singles::<1, true>(formula, row, out, mirrored, width),
            (Scale::Multiply, false) => split_singles::<2, false>(formula, row, out, mirrored, width),
            (Scale::Multiply, true) => split_singles::<2, true>(formula, row, out, mirrored, width),
        }
    }
}

/// A division by a constant: its reciprocal, and one step of Newton's that makes the last bit right.
#[derive(Clone, Copy)]
struct By {
    divisor: __m256,
    reciprocal: __m256,
}

impl By {
    #[target_feature(enable = "avx2")]
    fn new(divisor: f32) -> Self {
        Self {
            divisor: _mm256_set1_ps(divisor),
            reciprocal: _mm256_div_ps(_mm256_set1_ps(1.0), _mm256_set1_ps(divisor)),
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn divide(self, x: __m256) -> __m256 {
        let quotient = _mm256_mul_ps(x, self.reciprocal);
        let rest = _mm256_fnmadd_ps(quotient, self.divisor, x);
        _mm256_fmadd_ps(rest, self.reciprocal, quotient)
    }
}

/// `SCALE`: 0 keeps, 1 divides by 255, 2 multiplies with its reciprocal.
///
/// # Safety
/// The row and the planes have `width` pixels, and at least sixteen.
#[target_feature(enable = "avx2,fma")]
unsafe fn split_singles<const SCALE: u8, const NORMALISE: bool>(
    formula: &Formula,
    row: &[u8],
    mut out: [&mut [u32]; 3],
    mirrored: bool,
    width: usize,
) {
    let shuffles = shuffles();
    let scale = By::new(255.0);
    let [red, green, blue] = formula.normalise.unwrap_or_default();
    let means = [_mm256_set1_ps(red.0), _mm256_set1_ps(green.0), _mm256_set1_ps(blue.0)];
    let stds = [By::new(red.1), By::new(green.1), By::new(blue.1)];
    for x in blocks(width) {
        let to = if mirrored { width - BLOCK - x } else { x };
        // SAFETY: as asked of the caller.
        let channels = unsafe { split(row.as_ptr().add(x * 3), &shuffles, mirrored) };
        for (k, plane) in out.iter_mut().enumerate() {
            let eight = [channels[k], _mm_srli_si128::<8>(channels[k])];
            let mut values = [
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight[0])),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight[1])),
            ];
            values = match SCALE {
                0 => values,
                1 => [scale.divide(values[0]), scale.divide(values[1])],
                _ => [
                    _mm256_mul_ps(values[0], scale.reciprocal),
                    _mm256_mul_ps(values[1], scale.reciprocal),
                ],
            };
            if NORMALISE {
                values = [
                    stds[k].divide(_mm256_sub_ps(values[0], means[k])),
                    stds[k].divide(_mm256_sub_ps(values[1], means[k])),
                ];
            }
            // SAFETY: as asked of the caller.
            unsafe {
                let at = plane.as_mut_ptr().add(to);
                _mm256_storeu_ps(at.cast(), values[0]);
                _mm256_storeu_ps(at.add(8).cast(), values[1]);
            }
        }
    }
}

/// A row, mirrored.
pub(super) fn mirror(row: &[u8], out: &mut [u8]) {
    assert!(row.len() == out.len() && row.len().is_multiple_of(3));
    // SAFETY: AVX2 was detected, and both have the same length.
    unsafe { mirror_fives(row, out) };
}

/// # Safety
/// The output is as long as the row.
#[target_feature(enable = "avx2")]
unsafe fn mirror_fives(row: &[u8], out: &mut [u8]) {
    const FIVE: usize = 15;
    let by = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
    let mut at = 0;
    // A byte in front of the five pixels is read with them, and one behind them written, which the next five put right.
    while at + FIVE < out.len() {
        let from = row.len() - FIVE - at;
        // SAFETY: `from` is at least 1, and both ends lie inside.
        unsafe {
            let pixels = _mm_loadu_si128(row.as_ptr().add(from - 1).cast());
            _mm_storeu_si128(out.as_mut_ptr().add(at).cast(), _mm_shuffle_epi8(pixels, by));
        }
        at += FIVE;
    }
    for (out, pixel) in out[at..]
        .chunks_exact_mut(3)
        .zip(row[..row.len() - at].chunks_exact(3).rev())
    {
        out.copy_from_slice(pixel);
    }
}
