//! Colours as Pillow changes them: its luma, its blending with single precision, its way to HSV and back.
//!
//! Pixels are taken in blocks of planes, by loops without branches that compilers make vector instructions of. No closure is passed to what is
//! compiled without AVX2, such as the `map` of arrays: it would be called for each pixel.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::inline_always,
    clippy::needless_range_loop,
    reason = "C's conversions; what is compiled for its caller's processor; loops over several arrays at once"
)]

use super::Jitter;

/// Pixels of a block.
const BLOCK: usize = 64;

/// A number for each pixel of a block.
type Lane<T> = [T; BLOCK];

/// Red, green and blue of a block.
struct Planes {
    red: Lane<u8>,
    green: Lane<u8>,
    blue: Lane<u8>,
}

/// What is done with blocks. `block` has to be `inline(always)`, so that it is compiled for what [`each`] finds.
trait Kernel {
    /// Looks at a block or changes it; `pixels` of it are the image's.
    fn block(&mut self, planes: &mut Planes, pixels: usize);
}

/// All pixels through a kernel, with AVX2 where there is one.
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the same code, compiled for AVX2")
)]
fn each(pixels: &mut [u8], kernel: &mut impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected, and nothing else is asked for.
        unsafe { each_with_avx2(pixels, kernel) };
        return;
    }
    each_block(pixels, kernel);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn each_with_avx2(pixels: &mut [u8], kernel: &mut impl Kernel) {
    each_block(pixels, kernel);
}

#[inline(always)]
fn each_block(pixels: &mut [u8], kernel: &mut impl Kernel) {
    let mut planes = Planes {
        red: [0; BLOCK],
        green: [0; BLOCK],
        blue: [0; BLOCK],
    };
    let (blocks, rest) = pixels.as_chunks_mut::<{ BLOCK * 3 }>();
    for block in blocks {
        for i in 0..BLOCK {
            planes.red[i] = block[i * 3];
            planes.green[i] = block[i * 3 + 1];
            planes.blue[i] = block[i * 3 + 2];
        }
        kernel.block(&mut planes, BLOCK);
        for i in 0..BLOCK {
            block[i * 3] = planes.red[i];
            block[i * 3 + 1] = planes.green[i];
            block[i * 3 + 2] = planes.blue[i];
        }
    }
    for (i, pixel) in rest.chunks_exact(3).enumerate() {
        (planes.red[i], planes.green[i], planes.blue[i]) = (pixel[0], pixel[1], pixel[2]);
    }
    kernel.block(&mut planes, rest.len() / 3);
    for (i, pixel) in rest.chunks_exact_mut(3).enumerate() {
        (pixel[0], pixel[1], pixel[2]) = (planes.red[i], planes.green[i], planes.blue[i]);
    }
}

/// Pillow's luma, ITU-R 601-2 in 16 bits.
#[inline(always)]
fn lumas(planes: &Planes) -> Lane<u8> {
    let mut lumas = [0; BLOCK];
    for i in 0..BLOCK {
        let (r, g, b) = (planes.red[i], planes.green[i], planes.blue[i]);
        lumas[i] = ((u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000) >> 16) as u8;
    }
    lumas
}

/// Luma in all three channels.
struct Gray;

impl Kernel for Gray {
    #[inline(always)]
    fn block(&mut self, planes: &mut Planes, _: usize) {
        planes.red = lumas(planes);
        planes.green = planes.red;
        planes.blue = planes.red;
    }
}

/// Luma, listed.
struct Luma(Vec<u8>);

impl Kernel for Luma {
    #[inline(always)]
    fn block(&mut self, planes: &mut Planes, pixels: usize) {
        self.0.extend_from_slice(&lumas(planes)[..pixels]);
    }
}

/// Luma, added up.
struct Sum(u64);

impl Kernel for Sum {
    #[inline(always)]
    fn block(&mut self, planes: &mut Planes, pixels: usize) {
        let lumas = lumas(planes);
        for value in &lumas[..pixels] {
            self.0 += u64::from(*value);
        }
    }
}

/// RGB to one channel; the length is that of the luma then.
pub(super) fn to_gray(pixels: &mut Vec<u8>) {
    let mut luma = Luma(Vec::with_capacity(pixels.len() / 3));
    each(pixels, &mut luma);
    *pixels = luma.0;
}

/// RGB to luma three times, in place.
pub(super) fn to_gray_rgb(pixels: &mut [u8]) {
    each(pixels, &mut Gray);
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

/// A number from 0 to 255 without what is behind the point; 0 for what is no number. Rust's `as` looks for numbers out of range, one by one:
/// here 2⁵² is added, which leaves the whole number in the lowest bits.
#[inline(always)]
fn cut(value: f64) -> u8 {
    (value.trunc() + 4_503_599_627_370_496.0).to_bits() as u8
}

/// The same of a single, by 2²³.
#[inline(always)]
fn cut_single(value: f32) -> u8 {
    (value.trunc() + 8_388_608.0).to_bits() as u8
}

/// Pillow's `Image.blend` of one value: from `degenerate` (0) to `value` (1), and beyond. Within, nothing lies outside of a byte.
#[inline(always)]
fn blend(degenerate: u8, value: u8, factor: f32) -> u8 {
    let (a, b) = (f32::from(degenerate), f32::from(value));
    cut_single((a + factor * (b - a)).clamp(0.0, 255.0))
}

/// The same of a block.
#[inline(always)]
fn blends(degenerate: &Lane<u8>, values: &Lane<u8>, factor: f32) -> Lane<u8> {
    let (mut mixed, mut out) = ([0.0; BLOCK], [0; BLOCK]);
    for i in 0..BLOCK {
        let (a, b) = (f32::from(degenerate[i]), f32::from(values[i]));
        mixed[i] = a + factor * (b - a);
    }
    for i in 0..BLOCK {
        out[i] = cut_single(mixed[i].clamp(0.0, 255.0));
    }
    out
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
fn mean_luma(pixels: &mut [u8], channels: usize) -> u8 {
    let count = pixels.len() / channels;
    let sum = if channels == 3 {
        let mut sum = Sum(0);
        each(pixels, &mut sum);
        sum.0
    } else {
        pixels.iter().map(|value| u64::from(*value)).sum()
    };
    (sum as f64 / count as f64 + 0.5) as u8
}

/// Pillow's `ImageEnhance.Color`.
struct Saturate(f32);

impl Kernel for Saturate {
    #[inline(always)]
    fn block(&mut self, planes: &mut Planes, _: usize) {
        let gray = lumas(planes);
        planes.red = blends(&gray, &planes.red, self.0);
        planes.green = blends(&gray, &planes.green, self.0);
        planes.blue = blends(&gray, &planes.blue, self.0);
    }
}

/// torchvision's `adjust_hue` on a Pillow image: to HSV, another hue, and back.
struct Turn {
    shift: u8,
    /// By hue: the sixth of the circle it lies in, and the place there.
    sectors: [u8; 256],
    places: [f32; 256],
}

impl Turn {
    /// `shift` is in turns.
    fn new(shift: f64) -> Self {
        let place = |hue: usize| hue as f64 * 6.0 / 255.0;
        Self {
            // As NumPy converts.
            shift: (shift * 255.0) as i32 as u8,
            sectors: std::array::from_fn(|hue| place(hue) as u8 % 6),
            places: std::array::from_fn(|hue| place(hue).fract() as f32),
        }
    }
}

/// A whole number, half away from zero, of one from 0 to 255.
#[inline(always)]
fn rounded(value: f64) -> u8 {
    let whole = value.trunc();
    cut(if value - whole >= 0.5 { whole + 1.0 } else { whole })
}

/// Hue, saturation and value. Pillow adds and scales whole numbers in double precision, and keeps single.
#[inline(always)]
fn to_hsv(planes: &Planes) -> (Lane<u8>, Lane<u8>, Lane<u8>) {
    let Planes { red, green, blue } = planes;
    let (mut hue, mut saturation, mut most) = ([0; BLOCK], [0; BLOCK], [0; BLOCK]);
    let (mut range, mut single) = ([0.0_f32; BLOCK], [0.0_f32; BLOCK]);
    for i in 0..BLOCK {
        most[i] = red[i].max(green[i]).max(blue[i]);
        range[i] = f32::from(most[i] - red[i].min(green[i]).min(blue[i]));
    }
    for i in 0..BLOCK {
        // Gray has a range of 0: what comes of it is no number, and 0 as a whole one.
        let part = range[i] / f32::from(most[i]);
        saturation[i] = cut(f64::from(part) * 255.0);
    }
    for i in 0..BLOCK {
        let r = f32::from(most[i] - red[i]) / range[i];
        let g = f32::from(most[i] - green[i]) / range[i];
        let b = f32::from(most[i] - blue[i]) / range[i];
        let from_green = (2.0 + f64::from(r) - f64::from(b)) as f32;
        let from_blue = (4.0 + f64::from(g) - f64::from(r)) as f32;
        let other = if green[i] == most[i] { from_green } else { from_blue };
        single[i] = if red[i] == most[i] { b - g } else { other };
    }
    for i in 0..BLOCK {
        // The remainder by 1, of a number below 2.
        let turn = f64::from(single[i]) / 6.0 + 1.0;
        let turn = (if turn >= 1.0 { turn - 1.0 } else { turn }) as f32;
        hue[i] = cut(f64::from(turn) * 255.0);
    }
    (hue, saturation, most)
}

impl Kernel for Turn {
    #[inline(always)]
    fn block(&mut self, planes: &mut Planes, _: usize) {
        let (mut hue, saturation, most) = to_hsv(planes);
        let (mut sector, mut least, mut falling, mut rising) = ([0; BLOCK], [0; BLOCK], [0; BLOCK], [0; BLOCK]);
        let mut place = [0.0_f32; BLOCK];
        for i in 0..BLOCK {
            hue[i] = hue[i].wrapping_add(self.shift);
            sector[i] = self.sectors[usize::from(hue[i])];
            place[i] = self.places[usize::from(hue[i])];
        }
        for i in 0..BLOCK {
            let part = (f64::from(saturation[i]) / 255.0) as f32;
            let (wide, at, value) = (f64::from(part), f64::from(place[i]), f64::from(most[i]));
            least[i] = rounded(value * (1.0 - wide));
            falling[i] = rounded(value * (1.0 - f64::from((wide * at) as f32)));
            rising[i] = rounded(value * (1.0 - wide * (1.0 - at)));
        }
        for i in 0..BLOCK {
            let choose = |full: [u8; 2], falls: u8, rises: u8| {
                let at = sector[i];
                let low = if at == rises { rising[i] } else { least[i] };
                let side = if at == falls { falling[i] } else { low };
                if at == full[0] || at == full[1] { most[i] } else { side }
            };
            planes.red[i] = choose([0, 5], 1, 4);
            planes.green[i] = choose([1, 2], 3, 0);
            planes.blue[i] = choose([3, 4], 5, 2);
        }
    }
}

/// All of colour jitter. One channel has neither saturation nor hue.
pub(super) fn jitter(pixels: &mut [u8], channels: usize, jitter: &Jitter) {
    for kind in jitter.order {
        let Some(factor) = jitter.factors[usize::from(kind)] else {
            continue;
        };
        // Pillow blends in single precision.
        let single = factor as f32;
        match kind {
            0 => blend_with(pixels, 0, single),
            1 => {
                let mean = mean_luma(pixels, channels);
                blend_with(pixels, mean, single);
            }
            2 if channels == 3 => each(pixels, &mut Saturate(single)),
            3 if channels == 3 => each(pixels, &mut Turn::new(factor)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luma([r, g, b]: [u8; 3]) -> u8 {
        ((u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000) >> 16) as u8
    }

    // The way of Pillow's C, pixel by pixel and with branches.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::many_single_char_names,
        reason = "C's conversions, and the names of colour spaces"
    )]
    fn one_to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
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
    fn one_from_hsv([h, s, v]: [u8; 3]) -> [u8; 3] {
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

    /// Colours far and near, with all corners and grays, and a number of them that fills no block.
    fn colours() -> Vec<[u8; 3]> {
        let steps: Vec<u8> = (0..=255).step_by(9).chain([1, 2, 127, 128, 254, 255]).collect();
        let mut found = Vec::new();
        for r in &steps {
            for g in &steps {
                found.extend(steps.iter().map(|b| [*r, *g, *b]));
            }
        }
        found.extend((0..=255).map(|v| [v, v, v]));
        found.extend((0..=255).flat_map(|v| [[v, 200, 10], [10, v, 200], [200, 10, v], [v, v / 2, v / 3]]));
        found.push([7, 8, 9]);
        assert!(!found.len().is_multiple_of(BLOCK));
        found
    }

    fn changed(kernel: &mut impl Kernel) -> Vec<[u8; 3]> {
        let mut wide = colours().as_flattened().to_vec();
        let mut narrow = wide.clone();
        each(&mut wide, kernel);
        each_block(&mut narrow, kernel);
        assert_eq!(wide, narrow);
        wide.as_chunks().0.to_vec()
    }

    #[test]
    fn hues_turn_as_one_by_one() {
        for shift in [-0.5, -0.1, 0.0, 0.3, 0.5] {
            let by = (shift * 255.0) as i32 as u8;
            let found = changed(&mut Turn::new(shift));
            for (colour, found) in colours().into_iter().zip(found) {
                let [h, s, v] = one_to_hsv(colour);
                assert_eq!(found, one_from_hsv([h.wrapping_add(by), s, v]), "{colour:?} by {shift}");
            }
        }
    }

    #[test]
    fn luma_and_saturation_as_one_by_one() {
        let gray = changed(&mut Gray);
        let vivid = changed(&mut Saturate(1.7));
        let mut sum = Sum(0);
        changed(&mut sum);
        for ((colour, gray), vivid) in colours().into_iter().zip(&gray).zip(vivid) {
            let by = luma(colour);
            assert_eq!(*gray, [by; 3], "{colour:?}");
            let expected = colour.map(|value| {
                let mixed = f32::from(by) + 1.7 * (f32::from(value) - f32::from(by));
                mixed.clamp(0.0, 255.0) as u8
            });
            assert_eq!(vivid, expected, "{colour:?}");
        }
        // Both passes of `changed` were added up.
        assert_eq!(sum.0, 2 * gray.iter().map(|pixel| u64::from(pixel[0])).sum::<u64>());
        let mut listed = colours().as_flattened().to_vec();
        to_gray(&mut listed);
        assert!(listed.iter().eq(gray.iter().map(|pixel| &pixel[0])));
    }
}
