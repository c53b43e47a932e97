//! Colours as Pillow changes them: its luma, its blending with single precision, its way to HSV and back.

use super::Jitter;

/// Pillow's luma, ITU-R 601-2 in 16 bits.
pub(super) fn luma(pixel: &[u8]) -> u8 {
    let [r, g, b] = [0, 1, 2].map(|k| u32::from(pixel[k]));
    ((r * 19_595 + g * 38_470 + b * 7_471 + 0x8000) >> 16).to_le_bytes()[0]
}

/// RGB to one channel, in place; the length is that of the luma then.
pub(super) fn to_gray(pixels: &mut Vec<u8>) {
    let count = pixels.len() / 3;
    for k in 0..count {
        pixels[k] = luma(&pixels[k * 3..k * 3 + 3]);
    }
    pixels.truncate(count);
}

/// RGB to luma three times, in place.
pub(super) fn to_gray_rgb(pixels: &mut [u8]) {
    for pixel in pixels.chunks_exact_mut(3) {
        pixel.fill(luma(pixel));
    }
}

/// One channel to three.
pub(super) fn triple(pixels: &mut Vec<u8>) {
    let count = pixels.len();
    pixels.resize(count * 3, 0);
    for k in (0..count).rev() {
        let value = pixels[k];
        pixels[k * 3..k * 3 + 3].fill(value);
    }
}

/// Pillow's `Image.blend` of one value: from `degenerate` (0) to `value` (1), and beyond.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "C's conversions")]
fn blend(degenerate: u8, value: u8, factor: f32) -> u8 {
    let (a, b) = (f32::from(degenerate), f32::from(value));
    let mixed = a + factor * (b - a);
    if (0.0..=1.0).contains(&factor) {
        mixed as u8
    } else {
        mixed.clamp(0.0, 255.0) as u8
    }
}

/// Blends all with one value.
fn blend_with(pixels: &mut [u8], degenerate: u8, factor: f32) {
    let mut table = [0; 256];
    for (value, out) in (0..=255).zip(&mut table) {
        *out = blend(degenerate, value, factor);
    }
    for value in pixels {
        *value = table[usize::from(*value)];
    }
}

/// Pillow's `ImageEnhance.Contrast` blends with the rounded mean of the luma.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a mean of bytes"
)]
fn mean_luma(pixels: &[u8], channels: usize) -> u8 {
    let count = pixels.len() / channels;
    let sum: u64 = if channels == 3 {
        pixels.chunks_exact(3).map(|pixel| u64::from(luma(pixel))).sum()
    } else {
        pixels.iter().map(|value| u64::from(*value)).sum()
    };
    (sum as f64 / count as f64 + 0.5) as u8
}

fn saturate(pixels: &mut [u8], factor: f32) {
    for pixel in pixels.chunks_exact_mut(3) {
        let gray = luma(pixel);
        for value in pixel {
            *value = blend(gray, *value, factor);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::many_single_char_names,
    reason = "C's conversions, and the names of colour spaces"
)]
fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (most, least) = (r.max(g).max(b), r.min(g).min(b));
    if most == least {
        return [0, 0, most];
    }
    let range = f32::from(most - least);
    let s = range / f32::from(most);
    let [rc, gc, bc] = [r, g, b].map(|value| f32::from(most - value) / range);
    // Pillow adds the whole numbers in double precision and keeps single.
    let h = if r == most {
        bc - gc
    } else if g == most {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    // The remainder by 1, of a number below 2: `fmod` would take longer than all the rest.
    let h = f64::from(h) / 6.0 + 1.0;
    let h = (if h >= 1.0 { h - 1.0 } else { h }) as f32;
    let byte = |value: f32| (f64::from(value) * 255.0) as i32;
    [byte(h).clamp(0, 255) as u8, byte(s).clamp(0, 255) as u8, most]
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::many_single_char_names,
    reason = "C's conversions, and the names of colour spaces"
)]
fn from_hsv([h, s, v]: [u8; 3]) -> [u8; 3] {
    if s == 0 {
        return [v, v, v];
    }
    let place = f64::from(h) * 6.0 / 255.0;
    let sector = place as u32;
    let f = (place - f64::from(sector)) as f32;
    let fs = (f64::from(s) / 255.0) as f32;
    let (f, fs, value) = (f64::from(f), f64::from(fs), f64::from(v));
    // Half away from zero, of a number from 0 to 255.
    let byte = |value: f64| {
        let whole = value as u32;
        whole.to_le_bytes()[0] + u8::from(value - f64::from(whole) >= 0.5)
    };
    let p = byte(value * (1.0 - fs));
    let q = byte(value * (1.0 - f64::from((fs * f) as f32)));
    let t = byte(value * (1.0 - fs * (1.0 - f)));
    match sector % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

/// torchvision's `adjust_hue` on a Pillow image: `shift` is in turns.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "as NumPy converts"
)]
fn turn(pixels: &mut [u8], shift: f64) {
    let shift = (shift * 255.0) as i32 as u8;
    let mut last = ([0; 3], from_hsv([shift, 0, 0]));
    for pixel in pixels.chunks_exact_mut(3) {
        let found = [pixel[0], pixel[1], pixel[2]];
        if found != last.0 {
            let [h, s, v] = to_hsv(found);
            last = (found, from_hsv([h.wrapping_add(shift), s, v]));
        }
        pixel.copy_from_slice(&last.1);
    }
}

/// All of colour jitter. One channel has neither saturation nor hue.
#[expect(clippy::cast_possible_truncation, reason = "Pillow blends in single precision")]
pub(super) fn jitter(pixels: &mut [u8], channels: usize, jitter: &Jitter) {
    for kind in jitter.order {
        let Some(factor) = jitter.factors[usize::from(kind)] else {
            continue;
        };
        match kind {
            0 => blend_with(pixels, 0, factor as f32),
            1 => blend_with(pixels, mean_luma(pixels, channels), factor as f32),
            2 if channels == 3 => saturate(pixels, factor as f32),
            3 if channels == 3 => turn(pixels, factor),
            _ => {}
        }
    }
}
