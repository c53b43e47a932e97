//! The weights of one direction.

use std::f64::consts::PI;
use std::ops::Range;

use super::Filter;

/// Bits behind the point of a weight: what a sum of products with 8-bit pixels leaves of 32, with room for overshoot.
pub(super) const PRECISION: u32 = 32 - 8 - 2;

/// Taps of an output pixel are a multiple of this, with weights of 0 at the end.
pub(super) const GROUP: usize = 4;

/// For each output pixel of a window: where its input pixels begin, and their weights.
///
/// A weight is kept in two halves of 16 bits, `weight = (high << 15) + low` with `low` in `0..1 << 15`, so that products can be made
/// 16 bits wide.
#[derive(Debug)]
pub(super) struct Axis {
    /// First input pixel, counted from the first one that is read, and the number of taps that are not 0 by construction.
    bounds: Vec<(u32, u32)>,
    low: Vec<i16>,
    high: Vec<i16>,
    taps: usize,
    span: Range<usize>,
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * PI;
    x.sin() / x
}

/// The filter's value at `x`, where the distance of two output pixels is 1.
fn value(filter: Filter, x: f64) -> f64 {
    let a = x.abs();
    match filter {
        Filter::Nearest | Filter::Box => f64::from(x > -0.5 && x <= 0.5),
        Filter::Bilinear => (1.0 - a).max(0.0),
        Filter::Hamming => {
            if a == 0.0 {
                1.0
            } else if a >= 1.0 {
                0.0
            } else {
                let a = a * PI;
                // The constants are floats in Pillow.
                a.sin() / a * (f64::from(0.54_f32) + f64::from(0.46_f32) * a.cos())
            }
        }
        Filter::Bicubic => {
            const A: f64 = -0.5;
            if a < 1.0 {
                ((A + 2.0) * a - (A + 3.0)) * a * a + 1.0
            } else if a < 2.0 {
                (((a - 5.0) * a + 8.0) * a - 4.0) * A
            } else {
                0.0
            }
        }
        Filter::Lanczos => {
            if (-3.0..3.0).contains(&x) {
                sinc(x) * sinc(x / 3.0)
            } else {
                0.0
            }
        }
    }
}

fn support(filter: Filter) -> f64 {
    match filter {
        Filter::Nearest | Filter::Box => 0.5,
        Filter::Bilinear | Filter::Hamming => 1.0,
        Filter::Bicubic => 2.0,
        Filter::Lanczos => 3.0,
    }
}

impl Axis {
    /// The weights with which `from..to` of `input` pixels becomes `output` pixels, for those of `window`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "sizes of images; C's conversions, as Pillow has them"
    )]
    pub(super) fn new(filter: Filter, input: usize, from: f32, to: f32, output: usize, window: Range<usize>) -> Self {
        let scale = f64::from(to - from) / output as f64;
        let filter_scale = scale.max(1.0);
        let support = support(filter) * filter_scale;
        let step = 1.0 / filter_scale;
        let most = (support.ceil() as usize * 2 + 1).next_multiple_of(GROUP);
        let mut found: Vec<(usize, usize)> = Vec::with_capacity(window.len());
        let mut weights = vec![0_i32; most * window.len()];
        let mut row = vec![0.0_f64; most];
        for (xx, out) in window.zip(weights.chunks_exact_mut(most)) {
            let center = f64::from(from) + (xx as f64 + 0.5) * scale;
            let first = ((center - support + 0.5) as i64).max(0) as usize;
            let last = ((center + support + 0.5) as i64).clamp(0, input as i64) as usize;
            let taps = last.saturating_sub(first);
            let mut sum = 0.0;
            for (x, weight) in row[..taps].iter_mut().enumerate() {
                *weight = value(filter, ((x + first) as f64 - center + 0.5) * step);
                sum += *weight;
            }
            for (weight, out) in row[..taps].iter().zip(out) {
                let weight = if sum == 0.0 { *weight } else { weight / sum } * f64::from(1 << PRECISION);
                *out = if weight < 0.0 { weight - 0.5 } else { weight + 0.5 } as i32;
            }
            found.push((first, taps));
        }
        let start = found.iter().map(|(first, _)| *first).min().unwrap_or(0);
        let end = found.iter().map(|(first, taps)| first + taps).max().unwrap_or(0);
        let longest = found.iter().map(|(_, taps)| *taps).max().unwrap_or(0).max(1);
        let taps = longest.next_multiple_of(GROUP);
        let mut low = Vec::with_capacity(taps * found.len());
        let mut high = Vec::with_capacity(taps * found.len());
        for weights in weights.chunks_exact(most) {
            for weight in &weights[..taps] {
                low.push((weight & 0x7fff) as i16);
                high.push((weight >> 15) as i16);
            }
        }
        Self {
            bounds: found
                .iter()
                .map(|(first, taps)| ((first - start) as u32, *taps as u32))
                .collect(),
            low,
            high,
            taps,
            span: start..end,
        }
    }

    /// The input pixels that are read.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Of an output pixel: its first input pixel, from the start of the span, and how many there are.
    #[inline]
    pub(super) fn bounds(&self, output: usize) -> (usize, usize) {
        let (first, taps) = self.bounds[output];
        (first as usize, taps as usize)
    }

    /// The low and high halves of an output pixel's weights: as many as there are for any of them, zeros at the end.
    #[inline]
    pub(super) fn halves(&self, output: usize) -> (&[i16], &[i16]) {
        let at = output * self.taps..(output + 1) * self.taps;
        (&self.low[at.clone()], &self.high[at])
    }

    /// Of an output pixel, its weights.
    pub(super) fn weights(&self, output: usize) -> impl Iterator<Item = i32> + '_ {
        let (low, high) = self.halves(output);
        let taps = self.bounds(output).1;
        low.iter()
            .zip(high)
            .take(taps)
            .map(|(low, high)| (i32::from(*high) << 15) + i32::from(*low))
    }
}
