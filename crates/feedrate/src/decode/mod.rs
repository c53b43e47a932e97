//! Images: bytes to pixels, as Pillow gives them.
//!
//! The format is found by content. [`Decoder::decode`] gives the whole image, [`Decoder::region`] a rectangle of it for about the
//! time that the rectangle is worth. Pixels are those that Pillow gives for `Image.open(file).convert(mode)`, bit for bit.
//!
//! ```
//! use feedrate::decode::{Decoder, Options};
//!
//! # let mut bytes = b"BM".to_vec();
//! # for word in [58u32, 0, 54, 40, 1, 1, 0x0018_0001, 0, 4, 0, 0, 0, 0, 0x0003_0201] {
//! #     bytes.extend_from_slice(&word.to_le_bytes());
//! # }
//! let mut decoder = Decoder::new();
//! let image = decoder.decode(&bytes, &Options::default())?;
//! assert_eq!((image.width, image.height, image.channels), (1, 1, 3));
//! assert_eq!(image.pixels.as_u8(), Some(&[3, 2, 1][..]));
//! # Ok::<(), feedrate::decode::ImageError>(())
//! ```

mod bmp;
mod bytes;
mod error;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod exhaust;
mod exif;
mod format;
#[cfg(test)]
mod fuzz;
mod gif;
mod jpeg;
mod pixels;
mod png;
mod pnm;
pub mod resample;
mod tiff;
pub mod transform;
mod webp;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Panic;

pub use error::{Flaw, ImageError};
pub use format::{Format, Mode};
pub use pixels::{Image, Pixels};
pub use png::write_png;

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The format, by content.
    pub format: Format,
    /// Columns as stored, before any orientation.
    pub width: u32,
    /// Rows as stored.
    pub height: u32,
    /// What a pixel is.
    pub mode: Mode,
    /// Frames of an animation, pages of a TIFF; 1 for a still image.
    pub frames: u32,
    /// EXIF's orientation, 1 to 8; 1 where none is said.
    pub orientation: u8,
}

/// Which channels a decoded image has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Channels {
    /// As stored: gray 1, gray and alpha 2, RGB 3, RGBA and CMYK 4, with the depth as stored. A palette is applied: 3, or 4 where it
    /// has transparency. One bit becomes 0 and 255.
    AsStored,
    /// One: luma, as Pillow's `convert("L")`.
    Gray,
    /// Three, as Pillow's `convert("RGB")`. Alpha is dropped and shows what lies beneath it.
    #[default]
    Rgb,
    /// Four, as Pillow's `convert("RGBA")`.
    Rgba,
}

/// What is done with an image that ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Truncated {
    /// An error, as in Pillow.
    #[default]
    Refuse,
    /// What is there, as Pillow gives it under `ImageFile.LOAD_TRUNCATED_IMAGES`.
    Fill,
}

/// What becomes of 16 bits a channel where 8 are asked for. Whole numbers of 32 bits and floats have no known white, and are clipped
/// in all three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Deep {
    /// The upper 8 bits, so that white stays white: Pillow's way for colours, taken for gray too.
    #[default]
    Upper,
    /// As in Pillow: the upper bits of colours, but of gray what is above 255 becomes 255, which is nearly all of a photograph.
    Clip,
    /// Divided by 257 and rounded.
    Scale,
}

/// Pillow's limit, above which it raises `DecompressionBombError`.
pub const MAX_PIXELS: u64 = 178_956_970;

/// How to decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which channels the result has.
    pub channels: Channels,
    /// More pixels than this are refused before memory is taken.
    pub max_pixels: u64,
    /// Whether EXIF's orientation is applied, as Pillow's `ImageOps.exif_transpose` does. TIFF is always turned, as in Pillow.
    pub orientation: bool,
    /// What is done with an image that ends early.
    pub truncated: Truncated,
    /// What becomes of 16 bits where 8 are asked for.
    pub deep: Deep,
    /// Which frame or page, from 0.
    pub frame: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            channels: Channels::default(),
            max_pixels: MAX_PIXELS,
            orientation: false,
            truncated: Truncated::default(),
            deep: Deep::default(),
            frame: 0,
        }
    }
}

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rect {
    /// Columns left of it.
    pub x: u32,
    /// Rows above it.
    pub y: u32,
    /// Its columns.
    pub width: u32,
    /// Its rows.
    pub height: u32,
}

impl Rect {
    /// The rectangle of these values.
    pub fn new(x: u32, y: u32, width: u32, height: u32) -> Self {
        Self { x, y, width, height }
    }

    /// Whether it has pixels and lies within an image of this size.
    fn fits(&self, width: u32, height: u32) -> bool {
        let within = |from: u32, len: u32, all: u32| len > 0 && from.checked_add(len).is_some_and(|end| end <= all);
        within(self.x, self.width, width) && within(self.y, self.height, height)
    }

    /// The smallest rectangle of an image shrunk to `1 / shrink` that covers this one.
    #[must_use]
    pub fn shrunk(&self, shrink: u32) -> Self {
        let (x, y) = (self.x / shrink, self.y / shrink);
        Self {
            x,
            y,
            width: (self.x + self.width).div_ceil(shrink) - x,
            height: (self.y + self.height).div_ceil(shrink) - y,
        }
    }
}

/// What [`Decoder::region`] decoded. At `shrink` s, pixel (i, j) of it is pixel (x + i, y + j) of the image at 1/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// Columns left of it, in pixels of the shrunk image.
    pub x: u32,
    /// Rows above it.
    pub y: u32,
    /// Its columns.
    pub width: u32,
    /// Its rows.
    pub height: u32,
    /// 1, 3 or 4 bytes a pixel.
    pub channels: usize,
    /// By how much it is shrunk: what was asked for with JPEG, else 1.
    pub shrink: u32,
    /// Columns of the whole image, shrunk.
    pub full_width: u32,
    /// Rows of the whole image, shrunk.
    pub full_height: u32,
}

/// Decodes images; keeps what can be used again for the next one. One for each thread.
#[derive(Debug, Default)]
pub struct Decoder {
    jpeg: jpeg::Jpeg,
}

impl Decoder {
    /// A decoder, which costs nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The whole image. A panic of a decoder is an error too.
    pub fn decode(&mut self, bytes: &[u8], options: &Options) -> Result<Image, ImageError> {
        self.guarded(bytes, |decoder, format| match format {
            Format::Jpeg => decoder.jpeg.decode(bytes, options),
            Format::Png => png::decode(bytes, options),
            Format::WebP => webp::decode(bytes, options),
            Format::Gif => gif::decode(bytes, options),
            Format::Bmp => bmp::decode(bytes, options),
            Format::Tiff => tiff::decode(bytes, options, &mut decoder.jpeg),
            Format::Pnm => pnm::decode(bytes, options),
        })
    }

    /// A rectangle of the image as stored (`options.orientation` is not applied; [`Info::orientation`] has it), into `into`, which is
    /// cleared, and used again for JPEG: 8 bits a channel, rows without padding.
    ///
    /// `region` is in pixels of the full image. `shrink` is 1, 2, 4 or 8, and taken up by JPEG, whose decoder can shrink;
    /// other formats decode at 1. At
    /// shrink 1 the pixels are exactly those of [`decode`](Self::decode); at others those of Pillow's draft mode at that scale.
    /// `Channels::AsStored` is as `Rgb` here.
    ///
    /// A file of which rows below the region are damaged gives its region; one that ends early is refused whatever the region, unless
    /// `options.truncated` says otherwise.
    ///
    /// # Panics
    ///
    /// When `shrink` is none of the four, a mistake of the caller.
    pub fn region(
        &mut self,
        bytes: &[u8],
        options: &Options,
        region: Rect,
        shrink: u32,
        into: &mut Vec<u8>,
    ) -> Result<Part, ImageError> {
        assert!(matches!(shrink, 1 | 2 | 4 | 8), "shrink is 1, 2, 4 or 8, not {shrink}");
        let mut options = options.clone();
        options.orientation = false;
        if options.channels == Channels::AsStored {
            options.channels = Channels::Rgb;
        }
        into.clear();
        if Format::of(bytes) == Some(Format::Jpeg) {
            return self.guarded(bytes, |decoder, _| {
                decoder.jpeg.region(bytes, &options, region, shrink, into)
            });
        }
        // The image before is not kept beside this one.
        *into = Vec::new();
        let image = self.decode(bytes, &options)?;
        image.cut(region, into)
    }

    /// Finds the format, and makes panics errors.
    fn guarded<T>(
        &mut self,
        bytes: &[u8],
        work: impl FnOnce(&mut Self, Format) -> Result<T, ImageError>,
    ) -> Result<T, ImageError> {
        let format = Format::of(bytes).ok_or_else(|| format::unknown(bytes))?;
        match catch_unwind(AssertUnwindSafe(|| work(self, format))) {
            Ok(result) => result,
            Err(payload) => {
                // What a panic leaves behind is not used again.
                *self = Self::default();
                let message = format!("the decoder panicked: {}", Panic::from_payload(&*payload));
                Err(ImageError::new(Flaw::Decoder, format, message))
            }
        }
    }
}

/// What the header says. Cheap: pixels are not decoded, but for the number of frames all of a GIF or WebP is walked over.
pub fn info(bytes: &[u8]) -> Result<Info, ImageError> {
    Decoder::new().guarded(bytes, |_, format| match format {
        Format::Jpeg => jpeg::info(bytes),
        Format::Png => png::info(bytes),
        Format::WebP => webp::info(bytes),
        Format::Gif => gif::info(bytes),
        Format::Bmp => bmp::info(bytes),
        Format::Tiff => tiff::info(bytes),
        Format::Pnm => pnm::info(bytes),
    })
}

/// Refuses more pixels than the limit, and none at all.
fn check_size(format: Format, width: u32, height: u32, options: &Options) -> Result<(), ImageError> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 {
        let message = format!("it says that it has {width} x {height} pixels");
        return Err(ImageError::new(Flaw::Damaged, format, message));
    }
    if pixels > options.max_pixels {
        let message = format!(
            "{width} x {height} = {} pixels are more than max_pixels = {}: raise the limit if the file is to be trusted",
            format::with_commas(pixels),
            format::with_commas(options.max_pixels),
        );
        return Err(ImageError::new(Flaw::TooLarge, format, message));
    }
    Ok(())
}

/// A file of rows that ends before the last one.
fn ends_early(format: Format, rows: usize, of: u32) -> ImageError {
    let message = format!(
        "the file ends early: {} of {} rows are whole",
        format::with_commas(rows),
        format::with_commas(of)
    );
    ImageError::new(Flaw::Truncated, format, message)
}

/// Refuses a frame of an image that has fewer.
fn check_frame(format: Format, frames: u32, options: &Options) -> Result<(), ImageError> {
    if options.frame < frames {
        return Ok(());
    }
    let message = format!("there is no frame {}: it has {frames}, counted from 0", options.frame);
    Err(ImageError::new(Flaw::NoFrame, format, message))
}
