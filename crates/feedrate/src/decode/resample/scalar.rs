//! The kernels in plain Rust: for processors without wide instructions, for what is left over of rows, and the oracle of the others.

use std::ops::Range;

use super::View;
use super::weights::{Axis, PRECISION};

const HALF: i32 = 1 << (PRECISION - 1);

fn pixel(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255).to_le_bytes()[0]
}

/// The pixels of `columns` of each row.
pub(super) fn horizontal(input: View<'_>, axis: &Axis, out: &mut [u8], stride: usize, columns: Range<usize>) {
    for y in 0..input.height {
        row(input, axis, &mut out[y * stride..], y, columns.clone());
    }
}

/// The pixels of `columns` of one row.
pub(super) fn row(input: View<'_>, axis: &Axis, out: &mut [u8], y: usize, columns: Range<usize>) {
    let channels = input.channels;
    let row = input.row(y);
    for x in columns {
        let (first, _) = axis.bounds(x);
        for channel in 0..channels {
            let sum = axis
                .weights(x)
                .zip(row[first * channels + channel..].iter().step_by(channels))
                .fold(HALF, |sum: i32, (weight, value)| {
                    sum.wrapping_add(weight.wrapping_mul(i32::from(*value)))
                });
            out[x * channels + channel] = pixel(sum);
        }
    }
}

/// The bytes of one output row, from `start` on.
pub(super) fn vertical(input: View<'_>, axis: &Axis, y: usize, out: &mut [u8], start: usize) {
    let (first, _) = axis.bounds(y);
    for (x, out) in out
        .iter_mut()
        .enumerate()
        .take(input.width * input.channels)
        .skip(start)
    {
        let sum = axis.weights(y).enumerate().fold(HALF, |sum: i32, (k, weight)| {
            sum.wrapping_add(weight.wrapping_mul(i32::from(input.data[(first + k) * input.stride + x])))
        });
        *out = pixel(sum);
    }
}
