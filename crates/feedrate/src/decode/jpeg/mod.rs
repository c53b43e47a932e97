//! JPEG by libjpeg-turbo, whose pixels are those of Pillow.

mod ffi;
#[cfg(test)]
pub(in crate::decode) mod tests;

use memchr::memmem;

pub(super) use self::ffi::Space;
use self::ffi::{Handle, Header, Open, Stop};
use super::bytes::mapped;
use super::format::with_commas;
use super::pixels::{Pixels, check_region, luma, rgb_of_cmyk};
use super::{
    Channels, Flaw, Format, Image, ImageError, Info, Mode, Options, Part, Rect, Truncated, check_frame, check_size,
    exif,
};

/// How far the columns at an edge depend on those beyond: chroma of half the columns is interpolated between neighbours.
const MARGIN: u32 = 2;

/// A decompressor and a few rows, used for one image after the other.
#[derive(Debug, Default)]
pub(super) struct Jpeg {
    handle: Option<Handle>,
    rows: Vec<u8>,
}

impl Jpeg {
    pub(super) fn decode(&mut self, bytes: &[u8], options: &Options) -> Result<Image, ImageError> {
        let image = self.whole(bytes, options, 1)?;
        Ok(if options.orientation {
            image.oriented(orientation(bytes))
        } else {
            image
        })
    }

    fn handle(&mut self) -> Result<&mut Handle, ImageError> {
        if self.handle.is_none() {
            self.handle = Some(Handle::new().map_err(|stop| error(&stop, None))?);
        }
        self.handle.as_mut().ok_or_else(|| error(&Stop::Memory, None))
    }

    /// All pixels at 1/shrink, not turned.
    fn whole(&mut self, bytes: &[u8], options: &Options, shrink: u32) -> Result<Image, ImageError> {
        check_frame(Format::Jpeg, 1, options)?;
        let fill = options.truncated == Truncated::Fill;
        let (mut open, header) = self.handle()?.open(bytes, fill).map_err(|stop| error(&stop, None))?;
        check_header(header, options)?;
        let begun = open.begin(shrink, Space::Said, wanted(header, options));
        let (width, height, decoded, stop) = match begun {
            Ok((width, height)) => (width, height, open.channels(), None),
            // No row is there.
            Err(stop) => {
                let size = (header.width.div_ceil(shrink), header.height.div_ceil(shrink));
                (size.0, size.1, wanted(header, options), Some(stop))
            }
        };
        let mut pixels = vec![0; width as usize * height as usize * decoded];
        let (rows, result) = match stop {
            None => open.rows(&mut pixels, 0, height),
            Some(stop) => (0, Err(stop)),
        };
        match result {
            Ok(()) => {}
            Err(Stop::Short | Stop::Broken(_)) if fill => {}
            Err(stop) => return Err(error(&stop, Some((rows, height)))),
        }
        let whole = rows as usize * width as usize * decoded;
        let (channels, pixels) = finished(header, options, pixels, whole);
        Ok(Image::new(width, height, channels, Pixels::U8(pixels)))
    }

    /// All samples of a JPEG within another file, RGB where they are YCbCr: width, height and pixels. No more than `most` pixels, but for
    /// a strip that goes on below the image.
    pub(super) fn raw(&mut self, bytes: &[u8], space: Space, most: u64) -> Result<(u32, u32, Vec<u8>), ImageError> {
        let (mut open, header) = self.handle()?.open(bytes, false).map_err(|stop| error(&stop, None))?;
        mode(header)?;
        if u64::from(header.width) * u64::from(header.height) > most.saturating_mul(2).saturating_add(1 << 20) {
            let message = format!(
                "a JPEG of {} x {} pixels is larger than its place",
                header.width, header.height
            );
            return Err(ImageError::new(Flaw::Damaged, Format::Tiff, message));
        }
        let channels = if header.components == 1 { 1 } else { 3 };
        let (width, height) = open.begin(1, space, channels).map_err(|stop| error(&stop, None))?;
        let mut pixels = vec![0; width as usize * height as usize * open.channels()];
        let (rows, result) = open.rows(&mut pixels, 0, height);
        result.map_err(|stop| error(&stop, Some((rows, height))))?;
        Ok((width, height, pixels))
    }

    pub(super) fn region(
        &mut self,
        bytes: &[u8],
        options: &Options,
        region: Rect,
        shrink: u32,
        into: &mut Vec<u8>,
    ) -> Result<Part, ImageError> {
        check_frame(Format::Jpeg, 1, options)?;
        let mut rows = std::mem::take(&mut self.rows);
        let (open, header) = self.handle()?.open(bytes, false).map_err(|stop| error(&stop, None))?;
        check_header(header, options)?;
        check_region(region, header.width, header.height, Some(Format::Jpeg))?;
        let part = if ends(bytes, open.left()) {
            part(open, header, options, region, shrink, &mut rows, into)
        } else {
            drop(open);
            None
        };
        self.rows = rows;
        if let Some(part) = part {
            return Ok(part);
        }
        // What is odd goes the way that says what is wrong with it, or gives what Pillow would.
        *into = Vec::new();
        let image = self.whole(bytes, options, shrink)?;
        let shrink = if image.width == header.width.div_ceil(shrink) {
            shrink
        } else {
            1
        };
        let part = image.cut(region.shrunk(shrink), into)?;
        Ok(Part { shrink, ..part })
    }
}

/// Whether the marker of the end stands in what follows the header. If not, the file is cut off, or so odd that its pixels may
/// depend on what comes behind the region.
fn ends(bytes: &[u8], left: usize) -> bool {
    let scans = &bytes[bytes.len().saturating_sub(left)..];
    scans.ends_with(b"\xff\xd9") || memmem::rfind(scans, b"\xff\xd9").is_some()
}

/// A part of the image, if it can be decoded alone and be the same.
fn part(
    mut open: Open<'_>,
    header: Header,
    options: &Options,
    region: Rect,
    shrink: u32,
    rows: &mut Vec<u8>,
    into: &mut Vec<u8>,
) -> Option<Part> {
    const BAND: u32 = 16;
    let (full_width, full_height) = open.begin(shrink, Space::Said, wanted(header, options)).ok()?;
    if full_width != header.width.div_ceil(shrink) {
        return None;
    }
    let channels = open.channels();
    let part = region.shrunk(shrink);
    let left = part.x.saturating_sub(MARGIN);
    let right = (part.x + part.width + MARGIN).min(full_width);
    let (first, width) = open.crop(left, right - left, part.y).ok()?;
    let stride = width as usize * channels;
    let from = (part.x - first) as usize * channels;
    let to = from + part.width as usize * channels;
    rows.resize(stride * BAND as usize, 0);
    let direct = finished_channels(header, options) == channels && header.components != 4;
    into.reserve(part.width as usize * part.height as usize * finished_channels(header, options));
    let mut y = 0;
    while y < part.height {
        let band = BAND.min(part.height - y);
        let (done, result) = open.rows(rows, part.y + y, band);
        if done != band || result.is_err() {
            into.clear();
            return None;
        }
        for row in rows.chunks_exact(stride).take(band as usize) {
            if direct {
                into.extend_from_slice(&row[from..to]);
            } else {
                let (_, row) = finished(header, options, row[from..to].to_vec(), to - from);
                into.extend_from_slice(&row);
            }
        }
        y += band;
    }
    Some(Part {
        x: part.x,
        y: part.y,
        width: part.width,
        height: part.height,
        channels: finished_channels(header, options),
        shrink,
        full_width,
        full_height,
    })
}

/// What libjpeg is asked for.
fn wanted(header: Header, options: &Options) -> usize {
    match (header.components, options.channels) {
        (4, _) | (_, Channels::Rgba) => 4,
        (1, Channels::Gray | Channels::AsStored) => 1,
        _ => 3,
    }
}

/// Bytes a pixel of the result.
fn finished_channels(header: Header, options: &Options) -> usize {
    match (options.channels, header.components) {
        (Channels::Gray, _) | (Channels::AsStored, 1) => 1,
        (Channels::Rgba, _) | (Channels::AsStored, 4) => 4,
        _ => 3,
    }
}

/// From what libjpeg gives to what is asked for. The first `whole` bytes were decoded; what follows is missing, and zero in
/// the mode of the file.
fn finished(header: Header, options: &Options, mut pixels: Vec<u8>, whole: usize) -> (usize, Vec<u8>) {
    let channels = finished_channels(header, options);
    if header.components == 4 {
        // Inks are stored inverted, as Adobe does and Pillow assumes of all.
        for ink in &mut pixels[..whole] {
            *ink = !*ink;
        }
        pixels = match options.channels {
            Channels::AsStored => pixels,
            Channels::Gray => mapped(&pixels, |inks: &[u8; 4]| {
                let [red, green, blue] = rgb_of_cmyk(*inks);
                [luma(red, green, blue)]
            }),
            Channels::Rgb => mapped(&pixels, |inks| rgb_of_cmyk(*inks)),
            Channels::Rgba => mapped(&pixels, |inks: &[u8; 4]| {
                let [red, green, blue] = rgb_of_cmyk(*inks);
                [red, green, blue, 255]
            }),
        };
    } else if options.channels == Channels::Gray && header.components != 1 {
        pixels = mapped(&pixels, |&[red, green, blue]| [luma(red, green, blue)]);
    } else if options.channels == Channels::Rgba {
        for pixel in pixels[whole..].chunks_exact_mut(4) {
            pixel[3] = 255;
        }
    }
    (channels, pixels)
}

fn check_header(header: Header, options: &Options) -> Result<(), ImageError> {
    mode(header)?;
    check_size(Format::Jpeg, header.width, header.height, options)
}

fn mode(header: Header) -> Result<Mode, ImageError> {
    if header.precision != 8 {
        let message = format!("it has {} bits a sample; 8 are read", header.precision);
        return Err(ImageError::new(Flaw::Unsupported, Format::Jpeg, message));
    }
    match header.components {
        1 => Ok(Mode::Gray),
        3 => Ok(Mode::Rgb),
        4 => Ok(Mode::Cmyk),
        other => {
            let message = format!("it has {other} components; 1, 3 and 4 are read");
            Err(ImageError::new(Flaw::Unsupported, Format::Jpeg, message))
        }
    }
}

fn error(stop: &Stop, rows: Option<(u32, u32)>) -> ImageError {
    let with_rows = |what: String| match rows {
        Some((done, all)) => format!("{what}: {} of {} rows are whole", with_commas(done), with_commas(all)),
        None => format!("{what} within the header"),
    };
    let (flaw, message) = match stop {
        Stop::Short => (Flaw::Truncated, with_rows("the file ends early".to_owned())),
        Stop::Broken(said) => (Flaw::Damaged, with_rows(said.clone())),
        Stop::Memory => (Flaw::Decoder, "there is no memory to decode it".to_owned()),
        Stop::Otherwise => (Flaw::Decoder, "it cannot be decoded in part".to_owned()),
    };
    ImageError::new(flaw, Format::Jpeg, message)
}

/// What the header says.
pub(super) fn info(bytes: &[u8]) -> Result<Info, ImageError> {
    let mut handle = Handle::new().map_err(|stop| error(&stop, None))?;
    let (_open, header) = handle.open(bytes, false).map_err(|stop| error(&stop, None))?;
    Ok(Info {
        format: Format::Jpeg,
        width: header.width,
        height: header.height,
        mode: mode(header)?,
        frames: 1,
        orientation: orientation(bytes),
    })
}

/// EXIF's orientation; XMP's where there is none; else 1.
fn orientation(bytes: &[u8]) -> u8 {
    let (mut blocks, mut xmp) = (Vec::new(), None);
    for (marker, segment) in Segments::of(bytes) {
        if marker != 0xe1 {
            continue;
        }
        if let Some(rest) = segment.strip_prefix(b"Exif\0\0") {
            blocks.push(rest);
        } else if let Some(rest) = segment.strip_prefix(b"http://ns.adobe.com/xap/1.0/\0") {
            xmp = Some(rest);
        }
    }
    let found = match &blocks[..] {
        [] => None,
        [one] => exif::orientation(one),
        // One block in several segments.
        many => exif::orientation(&many.concat()),
    };
    found.or_else(|| exif::orientation_of_xmp(xmp?)).unwrap_or(1)
}

/// The segments of a header, up to the first scan.
struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> Segments<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes.get(2..).unwrap_or_default(),
        }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = memchr::memchr(0xff, self.rest)?;
            let marker = *self.rest.get(at + 1)?;
            if marker == 0xff {
                self.rest = &self.rest[at + 1..];
                continue;
            }
            self.rest = &self.rest[at + 2..];
            match marker {
                0x00 | 0x01 | 0xd0..=0xd8 => {}
                0xd9 | 0xda => return None,
                _ => {
                    let len = usize::from(u16::from_be_bytes([*self.rest.first()?, *self.rest.get(1)?]));
                    let segment = self.rest.get(2..len)?;
                    self.rest = &self.rest[len..];
                    return Some((marker, segment));
                }
            }
        }
    }
}
