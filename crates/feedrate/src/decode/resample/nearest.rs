//! The nearest pixel, as Pillow's affine transform finds it: places are added up in double precision.

use std::ops::Range;

use super::View;

/// For each output pixel of a window, its input pixel, counted from the first one that is read.
#[derive(Debug)]
pub(super) struct Table {
    places: Vec<usize>,
    span: Range<usize>,
}

impl Table {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "sizes of images; C's conversions, as Pillow has them"
    )]
    pub(super) fn new(input: usize, from: f32, to: f32, output: usize, window: Range<usize>) -> Self {
        let scale = f64::from(to - from) / output as f64;
        let mut at = f64::from(from) + scale * 0.5;
        let mut places = Vec::with_capacity(window.len());
        for x in 0..window.end {
            if x >= window.start {
                // Rounding can only leave the image at its end.
                places.push((at as usize).min(input - 1));
            }
            at += scale;
        }
        let span = places[0]..places[places.len() - 1] + 1;
        for place in &mut places {
            *place -= span.start;
        }
        Self { places, span }
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }
}

pub(super) fn run(
    input: View<'_>,
    across: &Table,
    down: &Table,
    row: &mut Vec<u8>,
    each: &mut dyn FnMut(usize, &[u8]),
) {
    let channels = input.channels;
    for (y, place) in down.places.iter().enumerate() {
        let line = input.row(*place);
        row.clear();
        for x in &across.places {
            row.extend_from_slice(&line[x * channels..(x + 1) * channels]);
        }
        each(y, row);
    }
}
