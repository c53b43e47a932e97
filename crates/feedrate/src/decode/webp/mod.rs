//! WebP by libwebp, as Pillow uses it.

mod ffi;

use self::ffi::{Animation, File, Head};
use super::bytes::mapped;
use super::pixels::{Pixels, Raw};
use super::{Channels, Flaw, Format, Image, ImageError, Info, Mode, Options, check_frame, check_size, exif};

/// Reads the structure. The size is looked at first, since libwebp takes memory for the canvas of an animation.
fn open<'a>(bytes: &'a [u8], options: &Options) -> Result<(File<'a>, Head), ImageError> {
    let Some(file) = File::open(bytes) else {
        let said = super::bytes::le32(bytes, 4).map_or(0, u64::from) + 8;
        return Err(if (bytes.len() as u64) < said {
            let message = format!(
                "the file ends early: it has {} of the {said} bytes that it says",
                bytes.len()
            );
            ImageError::new(Flaw::Truncated, Format::WebP, message)
        } else {
            ImageError::new(Flaw::Damaged, Format::WebP, "its chunks make no image")
        });
    };
    let head = file.head();
    check_size(Format::WebP, head.width, head.height, options)?;
    Ok((file, head))
}

fn orientation(file: &File<'_>) -> u8 {
    let found = file.chunk(b"EXIF").and_then(|block| exif::orientation(&block));
    found
        .or_else(|| exif::orientation_of_xmp(&file.chunk(b"XMP ")?))
        .unwrap_or(1)
}

pub(super) fn info(bytes: &[u8]) -> Result<Info, ImageError> {
    let unlimited = Options {
        max_pixels: u64::MAX,
        ..Options::default()
    };
    let (file, head) = open(bytes, &unlimited)?;
    Ok(Info {
        format: Format::WebP,
        width: head.width,
        height: head.height,
        mode: if head.alpha { Mode::Rgba } else { Mode::Rgb },
        frames: head.frames,
        orientation: orientation(&file),
    })
}

pub(super) fn decode(bytes: &[u8], options: &Options) -> Result<Image, ImageError> {
    let (file, head) = open(bytes, options)?;
    check_frame(Format::WebP, head.frames, options)?;
    let damaged = || ImageError::new(Flaw::Damaged, Format::WebP, "its compressed pixels are damaged");
    let alpha = head.alpha && options.channels != Channels::Rgb && options.channels != Channels::Gray;
    let channels = if alpha { 4 } else { 3 };
    let pixels = if head.animated {
        let mut animation = Animation::new(bytes, head).ok_or_else(damaged)?;
        for _ in 0..options.frame {
            animation.next().ok_or_else(damaged)?;
        }
        let canvas = animation.next().ok_or_else(damaged)?;
        if alpha {
            canvas.to_vec()
        } else {
            mapped(canvas, |&[red, green, blue, _]| [red, green, blue])
        }
    } else {
        ffi::still(bytes, head.width, head.height, channels).ok_or_else(damaged)?
    };
    let mode = if alpha { Mode::Rgba } else { Mode::Rgb };
    let raw = Raw::new(head.width, head.height, mode, Pixels::U8(pixels));
    let turn = if options.orientation { orientation(&file) } else { 1 };
    Ok(raw.converted(Format::WebP, options)?.oriented(turn))
}
