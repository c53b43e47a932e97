//! Decoded pixels: what they are stored in, turned, cut and converted as Pillow does.

use super::bytes::mapped;
use super::{Channels, Deep, Flaw, Format, ImageError, Mode, Options, Part, Rect};

/// Pixels, row by row without padding, the channels of a pixel side by side.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Pixels {
    /// 8 bits a channel.
    U8(Vec<u8>),
    /// 16 bits.
    U16(Vec<u16>),
    /// Whole numbers.
    I32(Vec<i32>),
    /// Floats.
    F32(Vec<f32>),
}

impl Pixels {
    /// The bytes, if there are 8 bits a channel.
    pub fn as_u8(&self) -> Option<&[u8]> {
        match self {
            Self::U8(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::F32(values) => values.len(),
        }
    }

    /// Whether there are none, which no decoded image has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A decoded image.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Image {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Values a pixel.
    pub channels: usize,
    /// `height * width * channels` values.
    pub pixels: Pixels,
}

impl Image {
    pub(super) fn new(width: u32, height: u32, channels: usize, pixels: Pixels) -> Self {
        debug_assert_eq!(pixels.len(), width as usize * height as usize * channels);
        Self {
            width,
            height,
            channels,
            pixels,
        }
    }

    /// Turned and mirrored as EXIF's orientation says (1 to 8; anything else leaves it as it is), as Pillow's `exif_transpose` does.
    #[must_use]
    pub fn oriented(self, orientation: u8) -> Self {
        if !(2..=8).contains(&orientation) {
            return self;
        }
        let size = (self.width as usize, self.height as usize, self.channels);
        let pixels = match self.pixels {
            Pixels::U8(values) => Pixels::U8(turned(&values, size, orientation)),
            Pixels::U16(values) => Pixels::U16(turned(&values, size, orientation)),
            Pixels::I32(values) => Pixels::I32(turned(&values, size, orientation)),
            Pixels::F32(values) => Pixels::F32(turned(&values, size, orientation)),
        };
        let (width, height) = if orientation >= 5 {
            (self.height, self.width)
        } else {
            (self.width, self.height)
        };
        Self::new(width, height, self.channels, pixels)
    }

    /// Makes `into` a rectangle of 8-bit pixels, in the memory of this image: there is never a second one.
    pub(super) fn cut(self, region: Rect, into: &mut Vec<u8>) -> Result<Part, ImageError> {
        check_region(region, self.width, self.height, None)?;
        let Pixels::U8(mut bytes) = self.pixels else {
            return Err(ImageError::new(
                Flaw::Unsupported,
                None,
                "regions have 8 bits a channel",
            ));
        };
        let row = self.width as usize * self.channels;
        let (left, len) = (region.x as usize * self.channels, region.width as usize * self.channels);
        for (to, y) in (region.y..region.y + region.height).enumerate() {
            let at = y as usize * row + left;
            bytes.copy_within(at..at + len, to * len);
        }
        bytes.truncate(region.height as usize * len);
        *into = bytes;
        Ok(Part {
            x: region.x,
            y: region.y,
            width: region.width,
            height: region.height,
            channels: self.channels,
            shrink: 1,
            full_width: self.width,
            full_height: self.height,
        })
    }
}

/// Refuses a region that is empty or not within the image.
pub(super) fn check_region(region: Rect, width: u32, height: u32, format: Option<Format>) -> Result<(), ImageError> {
    if region.fits(width, height) {
        return Ok(());
    }
    let Rect {
        x,
        y,
        width: w,
        height: h,
    } = region;
    let message = format!(
        "the region of {w} x {h} pixels at ({x}, {y}) is empty or not within the image, which has {width} x {height}"
    );
    Err(ImageError::new(Flaw::Unsupported, format, message))
}

/// `orientation` is 2 to 8.
fn turned<T: Copy>(values: &[T], (width, height, channels): (usize, usize, usize), orientation: u8) -> Vec<T> {
    let (out_width, out_height) = if orientation >= 5 {
        (height, width)
    } else {
        (width, height)
    };
    let mut out = Vec::with_capacity(values.len());
    for y in 0..out_height {
        for x in 0..out_width {
            let (from_x, from_y) = match orientation {
                2 => (width - 1 - x, y),
                3 => (width - 1 - x, height - 1 - y),
                4 => (x, height - 1 - y),
                5 => (y, x),
                6 => (y, height - 1 - x),
                7 => (width - 1 - y, height - 1 - x),
                _ => (width - 1 - y, x),
            };
            let at = (from_y * width + from_x) * channels;
            out.extend_from_slice(&values[at..at + channels]);
        }
    }
    out
}

/// What is transparent in a mode without alpha.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Transparency {
    /// Alpha of the colours of a palette, from the first on.
    Alphas(Vec<u8>),
    /// This gray.
    Gray(u16),
    /// This colour.
    Colour([u16; 3]),
}

/// What a decoder gives, in the mode of the file.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) mode: Mode,
    /// 1 value a pixel for `Palette`, 2 for `PaletteAlpha`; the others as their names say.
    pub(super) pixels: Pixels,
    /// Red, green, blue, alpha.
    pub(super) palette: Vec<[u8; 4]>,
    pub(super) transparency: Option<Transparency>,
}

impl Raw {
    pub(super) fn new(width: u32, height: u32, mode: Mode, pixels: Pixels) -> Self {
        Self {
            width,
            height,
            mode,
            pixels,
            palette: Vec::new(),
            transparency: None,
        }
    }

    /// In the channels that are asked for.
    pub(super) fn converted(mut self, format: Format, options: &Options) -> Result<Image, ImageError> {
        let (width, height) = (self.width, self.height);
        let done = |channels, pixels| Ok(Image::new(width, height, channels, pixels));
        let mut channels = options.channels;
        if channels == Channels::AsStored {
            if let Some(count) = as_stored(self.mode) {
                return done(count, self.pixels);
            }
            channels = match self.mode {
                Mode::PaletteAlpha => Channels::Rgba,
                _ if matches!(self.transparency, Some(Transparency::Alphas(_))) => Channels::Rgba,
                _ => Channels::Rgb,
            };
        }
        if self.mode == Mode::Lab {
            let message = "L*a*b* is read as stored only: its conversion needs a colour profile";
            return Err(ImageError::new(Flaw::Unsupported, format, message));
        }
        let bytes = self.take_bytes(options.deep);
        match (channels, self.mode) {
            (Channels::Gray, Mode::Gray | Mode::Bilevel) => return done(1, Pixels::U8(bytes)),
            (Channels::Rgb, Mode::Rgb) => return done(3, Pixels::U8(bytes)),
            (Channels::Rgba, Mode::Rgba) => return done(4, Pixels::U8(bytes)),
            _ => {}
        }
        let pixels = Source {
            bytes: &bytes,
            mode: self.mode,
            palette: self.full_palette(),
            transparency: self.transparency.as_ref(),
        };
        match channels {
            Channels::Gray => done(1, Pixels::U8(pixels.gray())),
            Channels::Rgba => done(4, Pixels::U8(pixels.rgba())),
            _ => done(3, Pixels::U8(pixels.rgb())),
        }
    }

    /// 8 bits a channel, and the mode that then is.
    fn take_bytes(&mut self, deep: Deep) -> Vec<u8> {
        match (std::mem::replace(&mut self.pixels, Pixels::U8(Vec::new())), self.mode) {
            (Pixels::U8(bytes), _) => bytes,
            (Pixels::U16(values), mode) => {
                // Pillow clips gray and takes the upper halves of colours.
                let (to, clip) = match mode {
                    Mode::Rgb16 => (Mode::Rgb, false),
                    Mode::Rgba16 => (Mode::Rgba, false),
                    Mode::GrayAlpha16 => (Mode::GrayAlpha, false),
                    _ => (Mode::Gray, true),
                };
                self.mode = to;
                values
                    .iter()
                    .map(|value| match deep {
                        Deep::Scale => low((u32::from(*value) + 128) / 257),
                        Deep::Clip if clip => u8::try_from(*value).unwrap_or(255),
                        Deep::Upper | Deep::Clip => value.to_be_bytes()[0],
                    })
                    .collect()
            }
            (Pixels::I32(values), _) => {
                self.mode = Mode::Gray;
                values
                    .iter()
                    .map(|value| low(value.clamp(&0, &255).cast_unsigned()))
                    .collect()
            }
            (Pixels::F32(values), _) => {
                self.mode = Mode::Gray;
                values.iter().map(|value| clipped(*value)).collect()
            }
        }
    }

    fn full_palette(&self) -> Box<[[u8; 4]; 256]> {
        let mut full = Box::new([[0, 0, 0, 255]; 256]);
        for (to, from) in full.iter_mut().zip(&self.palette) {
            *to = *from;
        }
        if let Some(Transparency::Alphas(alphas)) = &self.transparency {
            for (to, alpha) in full.iter_mut().zip(alphas) {
                to[3] = *alpha;
            }
        }
        full
    }
}

/// Values a pixel where the mode is given as it is stored.
fn as_stored(mode: Mode) -> Option<usize> {
    match mode {
        Mode::Bilevel | Mode::Gray | Mode::Gray16 | Mode::Int32 | Mode::Float32 => Some(1),
        Mode::GrayAlpha | Mode::GrayAlpha16 => Some(2),
        Mode::Rgb | Mode::Rgb16 | Mode::Lab | Mode::YCbCr => Some(3),
        Mode::Rgba | Mode::Rgba16 | Mode::Cmyk => Some(4),
        Mode::Palette | Mode::PaletteAlpha | Mode::Rgbx => None,
    }
}

/// The low byte.
fn low(value: u32) -> u8 {
    value.to_le_bytes()[0]
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "within 0..=255, or not a number, which becomes 0"
)]
fn clipped(value: f32) -> u8 {
    value as u8
}

/// Pillow's luma.
pub(super) fn luma(red: u8, green: u8, blue: u8) -> u8 {
    let sum = u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000;
    low(sum >> 16)
}

/// Pillow's CMYK to RGB.
pub(super) fn rgb_of_cmyk(pixel: [u8; 4]) -> [u8; 3] {
    let light = 255 - u32::from(pixel[3]);
    let one = |ink: u8| {
        let product = u32::from(ink) * light + 128;
        low(light.saturating_sub(((product >> 8) + product) >> 8))
    };
    [one(pixel[0]), one(pixel[1]), one(pixel[2])]
}

/// Pillow's YCbCr to RGB: 6 fractional bits, from tables that were rounded as a cast to a whole number does it.
fn rgb_of_ycbcr(pixel: [u8; 3]) -> [u8; 3] {
    #[expect(clippy::cast_possible_truncation, reason = "small")]
    let scaled = |factor: f64, value: u8| (factor * 64.0 * (f64::from(value) - 128.0) + 0.5) as i32;
    let luma = i32::from(pixel[0]);
    let clip = |value: i32| low(value.clamp(0, 255).cast_unsigned());
    [
        clip(luma + (scaled(1.402, pixel[2]) >> 6)),
        clip(luma + ((scaled(-0.344_14, pixel[1]) + scaled(-0.714_14, pixel[2])) >> 6)),
        clip(luma + (scaled(1.772, pixel[1]) >> 6)),
    ]
}

/// Bytes in a mode of 8 bits.
struct Source<'a> {
    bytes: &'a [u8],
    mode: Mode,
    palette: Box<[[u8; 4]; 256]>,
    transparency: Option<&'a Transparency>,
}

impl Source<'_> {
    fn gray(&self) -> Vec<u8> {
        let bytes = self.bytes;
        let of_colour = || self.palette.map(|c| luma(c[0], c[1], c[2]));
        match self.mode {
            Mode::GrayAlpha => mapped(bytes, |&[gray, _]| [gray]),
            Mode::Palette => {
                let table = of_colour();
                mapped(bytes, |&[index]| [table[usize::from(index)]])
            }
            Mode::PaletteAlpha => {
                let table = of_colour();
                mapped(bytes, |&[index, _]| [table[usize::from(index)]])
            }
            Mode::Rgb => mapped(bytes, |&[red, green, blue]| [luma(red, green, blue)]),
            Mode::Rgba | Mode::Rgbx => mapped(bytes, |&[red, green, blue, _]| [luma(red, green, blue)]),
            Mode::Cmyk => mapped(bytes, |inks: &[u8; 4]| {
                let [red, green, blue] = rgb_of_cmyk(*inks);
                [luma(red, green, blue)]
            }),
            Mode::YCbCr => mapped(bytes, |&[luma, _, _]| [luma]),
            _ => bytes.to_vec(),
        }
    }

    fn rgb(&self) -> Vec<u8> {
        let bytes = self.bytes;
        let colour = |index: u8| {
            let [red, green, blue, _] = self.palette[usize::from(index)];
            [red, green, blue]
        };
        match self.mode {
            Mode::Rgb => bytes.to_vec(),
            Mode::GrayAlpha => mapped(bytes, |&[gray, _]| [gray; 3]),
            Mode::Palette => mapped(bytes, |&[index]| colour(index)),
            Mode::PaletteAlpha => mapped(bytes, |&[index, _]| colour(index)),
            Mode::Rgba | Mode::Rgbx => mapped(bytes, |&[red, green, blue, _]| [red, green, blue]),
            Mode::Cmyk => mapped(bytes, |inks| rgb_of_cmyk(*inks)),
            Mode::YCbCr => mapped(bytes, |pixel| rgb_of_ycbcr(*pixel)),
            _ => mapped(bytes, |&[gray]| [gray; 3]),
        }
    }

    fn rgba(&self) -> Vec<u8> {
        let bytes = self.bytes;
        // Pillow compares the lower 8 bits of what the file says is transparent with 8-bit pixels.
        let key = match self.transparency {
            Some(Transparency::Gray(gray)) => Some([low(u32::from(*gray)); 3]),
            Some(Transparency::Colour(colour)) => Some(colour.map(|value| low(u32::from(value)))),
            _ => None,
        };
        let keyed =
            |[red, green, blue]: [u8; 3]| [red, green, blue, if key == Some([red, green, blue]) { 0 } else { 255 }];
        match self.mode {
            Mode::Rgba => bytes.to_vec(),
            Mode::GrayAlpha => mapped(bytes, |&[gray, alpha]| [gray, gray, gray, alpha]),
            Mode::Palette => mapped(bytes, |&[index]| self.palette[usize::from(index)]),
            Mode::PaletteAlpha => mapped(bytes, |&[index, alpha]| {
                let [red, green, blue, _] = self.palette[usize::from(index)];
                [red, green, blue, alpha]
            }),
            Mode::Rgb => mapped(bytes, |pixel| keyed(*pixel)),
            Mode::Bilevel | Mode::Gray => mapped(bytes, |&[gray]| keyed([gray; 3])),
            _ => mapped(&self.rgb(), |&[red, green, blue]| [red, green, blue, 255]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orientations_are_those_of_exif() {
        // 1 2 3
        // 4 5 6
        let image = || Image::new(3, 2, 1, Pixels::U8(vec![1, 2, 3, 4, 5, 6]));
        let turned = [
            (1, 3, [1, 2, 3, 4, 5, 6]),
            (2, 3, [3, 2, 1, 6, 5, 4]),
            (3, 3, [6, 5, 4, 3, 2, 1]),
            (4, 3, [4, 5, 6, 1, 2, 3]),
            (5, 2, [1, 4, 2, 5, 3, 6]),
            (6, 2, [4, 1, 5, 2, 6, 3]),
            (7, 2, [6, 3, 5, 2, 4, 1]),
            (8, 2, [3, 6, 2, 5, 1, 4]),
        ];
        for (orientation, width, values) in turned {
            let image = image().oriented(orientation);
            assert_eq!((image.width, image.height), (width, 6 / width), "{orientation}");
            assert_eq!(image.pixels.as_u8(), Some(&values[..]), "{orientation}");
        }
    }

    #[test]
    fn sixteen_bits_are_cut_clipped_or_scaled() {
        let values = vec![0, 1, 255, 256, 257, 65_535];
        let with = |deep| {
            let raw = Raw::new(6, 1, Mode::Gray16, Pixels::U16(values.clone()));
            let options = Options {
                channels: Channels::Gray,
                deep,
                ..Options::default()
            };
            let image = raw.converted(Format::Png, &options).unwrap();
            image.pixels.as_u8().unwrap().to_vec()
        };
        assert_eq!(with(Deep::Upper), [0, 0, 0, 1, 1, 255]);
        assert_eq!(with(Deep::Clip), [0, 1, 255, 255, 255, 255]);
        assert_eq!(with(Deep::Scale), [0, 0, 1, 1, 1, 255]);
    }
}
