//! Sizes and places, as torchvision computes them; padding.

use super::{Fill, PadMode, Padding, Size, Step, Target, TransformError};
use crate::decode::Rect;
use crate::decode::resample::View;

/// `number / by`, rounded down, as Python's `int(a * b / c)` does: in double precision.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes of images")]
fn ratio(size: u32, long: u32, short: u32) -> u32 {
    (f64::from(size) * f64::from(long) / f64::from(short)) as u32
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes of images")]
fn rounded(value: f64) -> u32 {
    value.round_ties_even() as u32
}

/// The size of a resized image, without the bars of a letterbox.
pub(super) fn resized(to: &Target, image: Size) -> Size {
    match *to {
        Target::Exact(size) | Target::Fit(size) => size,
        Target::Short { size, most } => {
            let (short, long) = (image.width.min(image.height), image.width.max(image.height));
            let (mut new_short, mut new_long) = (size, ratio(size, long, short));
            if let Some(most) = most.filter(|most| new_long > *most) {
                (new_short, new_long) = (ratio(most, new_short, new_long), most);
            }
            // Pillow refuses sizes of 0, which only absurd ratios give.
            let (new_short, new_long) = (new_short.max(1), new_long.max(1));
            if image.width <= image.height {
                Size::new(new_short, new_long)
            } else {
                Size::new(new_long, new_short)
            }
        }
        Target::Letterbox(size, _) => {
            let of_image = f64::from(image.width) / f64::from(image.height);
            let of_box = f64::from(size.width) / f64::from(size.height);
            if of_image > of_box {
                let height = rounded(f64::from(image.height) / f64::from(image.width) * f64::from(size.width));
                Size::new(size.width, height.clamp(1, size.height))
            } else if of_image < of_box {
                let width = rounded(of_image * f64::from(size.height));
                Size::new(width.clamp(1, size.width), size.height)
            } else {
                size
            }
        }
    }
}

/// All of an image, as (left, upper, right, lower).
#[expect(clippy::cast_precision_loss, reason = "sizes of images")]
pub(super) fn whole(image: Size) -> [f32; 4] {
    [0.0, 0.0, image.width as f32, image.height as f32]
}

/// What is resized: all of the image, or for a fit the largest part in the middle that has the ratio, with fractions.
#[expect(
    clippy::cast_possible_truncation,
    clippy::float_cmp,
    reason = "Pillow computes in double precision, compares so, and keeps single"
)]
pub(super) fn area(to: &Target, image: Size) -> [f32; 4] {
    let Target::Fit(size) = to else {
        return whole(image);
    };
    let (width, height) = (f64::from(image.width), f64::from(image.height));
    let (of_image, of_size) = (width / height, f64::from(size.width) / f64::from(size.height));
    let (w, h) = if of_image == of_size {
        (width, height)
    } else if of_image >= of_size {
        (of_size * height, height)
    } else {
        (width, width / of_size)
    };
    let (left, upper) = ((width - w) * 0.5, (height - h) * 0.5);
    // Rounding must not lead out of the image.
    let right = ((left + w) as f32).min(whole(image)[2]);
    let lower = ((upper + h) as f32).min(whole(image)[3]);
    [left as f32, upper as f32, right, lower]
}

/// The bars of a letterbox around a resized image.
pub(super) fn bars(size: Size, inner: Size, fill: Fill) -> Option<Padding> {
    if inner == size {
        return None;
    }
    let left = rounded(f64::from(size.width - inner.width) * 0.5);
    let top = rounded(f64::from(size.height - inner.height) * 0.5);
    Some(Padding {
        left,
        top,
        right: size.width - inner.width - left,
        bottom: size.height - inner.height - top,
        fill,
        mode: PadMode::Constant,
    })
}

pub(super) fn padded(image: Size, padding: &Padding) -> Size {
    Size::new(
        image.width + padding.left + padding.right,
        image.height + padding.top + padding.bottom,
    )
}

/// What a center crop does: black around what is too small, then a rectangle.
pub(super) fn center(image: Size, size: Size) -> (Option<Padding>, Rect) {
    let short = |have: u32, want: u32| want.saturating_sub(have);
    let (x, y) = (short(image.width, size.width), short(image.height, size.height));
    let padding = (x > 0 || y > 0).then(|| Padding {
        left: x / 2,
        top: y / 2,
        right: x.div_ceil(2),
        bottom: y.div_ceil(2),
        fill: [0; 4],
        mode: PadMode::Constant,
    });
    let image = padding.as_ref().map_or(image, |padding| padded(image, padding));
    let middle = |have: u32, want: u32| rounded(f64::from(have - want) / 2.0);
    let rect = Rect::new(
        middle(image.width, size.width),
        middle(image.height, size.height),
        size.width,
        size.height,
    );
    (padding, rect)
}

/// What a random crop puts around an image because it is too small.
pub(super) fn needed(image: Size, size: Size, (mode, fill): (PadMode, Fill)) -> Option<Padding> {
    let (x, y) = (
        size.width.saturating_sub(image.width),
        size.height.saturating_sub(image.height),
    );
    (x > 0 || y > 0).then_some(Padding {
        left: x,
        top: y,
        right: x,
        bottom: y,
        fill,
        mode,
    })
}

/// The size out of which a random crop takes its rectangle.
pub(super) fn padded_for(
    image: Size,
    size: Size,
    padding: Option<&Padding>,
    if_needed: Option<(PadMode, Fill)>,
) -> Result<Size, TransformError> {
    let mut found = image;
    if let Some(padding) = padding {
        found = padded(found, padding);
    }
    if let Some(padding) = if_needed.and_then(|how| needed(found, size, how)) {
        found = padded(found, &padding);
    }
    if found.width < size.width || found.height < size.height {
        return Err(TransformError::Mismatch(format!(
            "a random crop of {size} pixels does not fit into an image of {found}: resize first, pad, or use pad_if_needed"
        )));
    }
    Ok(found)
}

/// The size behind a step.
pub(super) fn after(step: &Step, image: Size) -> Result<Size, TransformError> {
    Ok(match step {
        Step::RandomResizedCrop { size, .. } | Step::CenterCrop(size) => *size,
        Step::Resize { to, .. } => match to {
            Target::Letterbox(size, _) => *size,
            to => resized(to, image),
        },
        Step::RandomCrop {
            size,
            padding,
            if_needed,
        } => {
            padded_for(image, *size, padding.as_ref(), *if_needed)?;
            *size
        }
        Step::Pad(padding) => padded(image, padding),
        _ => image,
    })
}

/// The size behind a step, as far as it does not depend on the image.
pub(super) fn fixed(step: &Step, before: Option<Size>) -> Option<Size> {
    match step {
        Step::RandomResizedCrop { size, .. } | Step::CenterCrop(size) | Step::RandomCrop { size, .. } => Some(*size),
        Step::Resize { to, .. } => match to {
            Target::Exact(size) | Target::Fit(size) | Target::Letterbox(size, _) => Some(*size),
            Target::Short { .. } => before.map(|size| resized(to, size)),
        },
        Step::Pad(padding) => before.map(|size| padded(size, padding)),
        _ => before,
    }
}

/// Where a place of the padded image lies in the image, `None` for the fill. As `numpy.pad`: what is mirrored is mirrored again further out.
fn inside(at: usize, before: u32, length: usize, mode: PadMode) -> Option<usize> {
    let before = before as usize;
    if (before..before + length).contains(&at) {
        return Some(at - before);
    }
    let period = match mode {
        PadMode::Constant => return None,
        PadMode::Edge => return Some(if at < before { 0 } else { length - 1 }),
        PadMode::Reflect if length == 1 => return Some(0),
        PadMode::Reflect => 2 * (length - 1),
        PadMode::Symmetric => 2 * length,
    };
    let place = (at + period * before.div_ceil(period) - before) % period;
    Some(match mode {
        _ if place < length => place,
        PadMode::Reflect => period - place,
        _ => period - 1 - place,
    })
}

/// The padded image, into `out`. `padding` was checked.
pub(super) fn pad(image: View<'_>, padding: &Padding, out: &mut Vec<u8>) {
    let channels = image.channels;
    let width = image.width + padding.left as usize + padding.right as usize;
    let height = image.height + padding.top as usize + padding.bottom as usize;
    out.clear();
    out.reserve(width * height * channels);
    let fill = &padding.fill[..channels];
    let columns: Vec<Option<usize>> = (0..width)
        .map(|x| inside(x, padding.left, image.width, padding.mode))
        .collect();
    let left = padding.left as usize;
    for y in 0..height {
        let Some(row) = inside(y, padding.top, image.height, padding.mode).map(|y| image.row(y)) else {
            (0..width).for_each(|_| out.extend_from_slice(fill));
            continue;
        };
        for (columns, middle) in [(&columns[..left], Some(row)), (&columns[left + image.width..], None)] {
            for column in columns {
                out.extend_from_slice(column.map_or(fill, |x| &row[x * channels..(x + 1) * channels]));
            }
            out.extend_from_slice(middle.unwrap_or_default());
        }
    }
}
