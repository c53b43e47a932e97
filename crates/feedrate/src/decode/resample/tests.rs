use super::*;
use crate::random::{Key, Keyed};

fn image(dice: &mut Keyed, width: usize, height: usize, channels: usize, stride: usize) -> Vec<u8> {
    let extremes = dice.below(3) == 0;
    let bytes = (height - 1) * stride + width * channels;
    (0..bytes)
        .map(|_| {
            let byte = dice.next_u32().to_le_bytes()[0];
            if extremes {
                if byte < 128 { 0 } else { 255 }
            } else {
                byte
            }
        })
        .collect()
}

fn all(resize: &Resize, view: View<'_>, scratch: &mut Scratch) -> Vec<u8> {
    let (columns, rows) = resize.source();
    let mut found = Vec::new();
    let mut next = 0;
    resize.run(view.part(columns, rows), scratch, &mut |y, row| {
        assert_eq!(y, next);
        next += 1;
        found.extend_from_slice(row);
    });
    found
}

fn size(dice: &mut Keyed, most: u64) -> usize {
    usize::try_from(1 + dice.below(most)).unwrap()
}

/// A part of an axis, as fractions that `f32` holds.
fn stretch(dice: &mut Keyed, length: usize) -> (f32, f32) {
    let length = f64::from(u32::try_from(length).unwrap());
    #[expect(clippy::cast_possible_truncation, reason = "rounding is as good as another number")]
    match dice.below(3) {
        0 => (0.0, length as f32),
        1 => {
            let a = (dice.uniform() * (length - 1.0)).floor();
            (
                a as f32,
                (a + 1.0 + (dice.uniform() * (length - a - 1.0)).floor()) as f32,
            )
        }
        _ => {
            let a = dice.uniform() * length * 0.6;
            (
                a as f32,
                (a + (length - a) * (0.1 + 0.9 * dice.uniform())).min(length) as f32,
            )
        }
    }
}

/// Every kernel gives the same bytes, for any filter, size, area, stride and number of channels; a window is a part of the whole.
#[test]
fn kernels_agree_and_windows_are_parts() {
    let mut dice = Key {
        seed: 11,
        ..Key::default()
    }
    .stream();
    let (mut plain, mut fast) = (Scratch::without_simd(), Scratch::default());
    for case in 0..600 {
        let filter = Filter::ALL[case % 6];
        let channels = [3, 1, 4, 2][case / 6 % 4];
        let from = (size(&mut dice, 70), size(&mut dice, 40));
        let to = (size(&mut dice, 60), size(&mut dice, 40));
        let stride = from.0 * channels + size(&mut dice, 9) - 1;
        let data = image(&mut dice, from.0, from.1, channels, stride);
        let view = View::with_stride(&data, from.0, from.1, channels, stride);
        let ((left, right), (upper, lower)) = (stretch(&mut dice, from.0), stretch(&mut dice, from.1));
        let area = [left, upper, right, lower];
        let passes = if dice.below(2) == 0 {
            Passes::Pillow13
        } else {
            Passes::Pillow12
        };
        let how = (filter, passes);
        let whole = Resize::new(how, from, area, to, 0..to.0, 0..to.1);
        let expected = all(&whole, view, &mut plain);
        assert_eq!(expected.len(), to.0 * to.1 * channels);
        assert_eq!(
            all(&whole, view, &mut fast),
            expected,
            "{how:?} {channels} {from:?} {area:?} {to:?}"
        );
        let x = size(&mut dice, to.0 as u64) - 1;
        let y = size(&mut dice, to.1 as u64) - 1;
        let (columns, rows) = (
            x..x + size(&mut dice, (to.0 - x) as u64),
            y..y + size(&mut dice, (to.1 - y) as u64),
        );
        let window = Resize::new(how, from, area, to, columns.clone(), rows.clone());
        let cut: Vec<u8> = rows
            .flat_map(|y| expected[(y * to.0 + columns.start) * channels..(y * to.0 + columns.end) * channels].to_vec())
            .collect();
        assert_eq!(
            all(&window, view, &mut fast),
            cut,
            "{how:?} {channels} {from:?} {area:?} {to:?}"
        );
    }
}

/// Values that Pillow 13 gave; `tests/images/test_resample.py` compares with the installed one, over many more cases.
#[test]
fn a_known_image() {
    let data: Vec<u8> = (0..5 * 4).map(|i| u8::try_from(i * i * 7 % 256).unwrap()).collect();
    let view = View::new(&data, 5, 4, 1);
    let mut scratch = Scratch::default();
    for (filter, expected) in GOLDEN {
        let found = all(
            &Resize::whole((filter, Passes::default()), (5, 4), (3, 2)),
            view,
            &mut scratch,
        );
        assert_eq!(found, expected, "{filter:?}");
    }
}

const GOLDEN: [(Filter, [u8; 6]); 6] = [
    (Filter::Nearest, [175, 87, 55, 39, 231, 223]),
    (Filter::Box, [109, 58, 106, 77, 236, 174]),
    (Filter::Bilinear, [111, 103, 105, 100, 177, 163]),
    (Filter::Hamming, [105, 83, 101, 90, 198, 167]),
    (Filter::Bicubic, [113, 98, 99, 97, 185, 171]),
    (Filter::Lanczos, [116, 100, 95, 98, 190, 176]),
];

#[test]
fn names() {
    for filter in Filter::ALL {
        assert_eq!(Filter::from_name(filter.name()), Some(filter));
    }
    assert_eq!(Filter::from_name("cubic"), None);
}
