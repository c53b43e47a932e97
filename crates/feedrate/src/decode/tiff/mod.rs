//! TIFF, with the layouts that Pillow reads.

mod compression;
mod directory;

use self::compression::{Compression, name, reversed, unpredict};
use self::directory::{Directory, Order};
use super::bytes::{unpack, zeros};
use super::jpeg::{Jpeg, Space};
use super::pixels::{Pixels, Raw};
use super::{Flaw, Format, Image, ImageError, Info, Mode, Options, Truncated, check_frame, check_size};

fn damaged(message: impl Into<String>) -> ImageError {
    ImageError::new(Flaw::Damaged, Format::Tiff, message)
}

fn unsupported(message: impl Into<String>) -> ImageError {
    ImageError::new(Flaw::Unsupported, Format::Tiff, message)
}

fn short() -> ImageError {
    ImageError::new(Flaw::Truncated, Format::Tiff, "the file ends early within the header")
}

/// What is done with the samples of a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sample {
    /// They are the pixel.
    Plain,
    /// Light is dark.
    Inverted,
    /// Colours were multiplied by alpha.
    Premultiplied,
}

/// A page: what its tags say.
#[derive(Debug)]
struct Page {
    order: Order,
    width: u32,
    height: u32,
    /// Samples a pixel, and bits a sample.
    samples: usize,
    bits: usize,
    photometric: u64,
    mode: Mode,
    treatment: Sample,
    /// 2 when each sample has its own strips.
    planar: bool,
    reverse: bool,
    compression: u64,
    predictor: u64,
    /// Size of a strip or tile.
    chunk: (u32, u32),
    offsets: Vec<u64>,
    counts: Vec<u64>,
    tables: Vec<u8>,
    palette: Vec<[u8; 4]>,
    orientation: u8,
}

impl Page {
    fn read(directory: &Directory<'_>) -> Result<Self, ImageError> {
        let number = |tag, default| directory.value(tag).map(|value| value.unwrap_or(default));
        let small = |value: Option<u64>, what: &str| {
            let value = value.ok_or_else(|| damaged(format!("it does not say its {what}")))?;
            u32::try_from(value).map_err(|_| damaged(format!("its {what} is {value}")))
        };
        let (width, height) = (
            small(directory.value(256)?, "width")?,
            small(directory.value(257)?, "height")?,
        );
        let compression = number(259, 1)?;
        let photometric = number(262, 0)?;
        let planar = number(284, 1)? == 2;
        let mut bits = directory.values(258)?;
        let mut extra = directory.values(338)?;
        let mut samples = number(277, 1)?;
        if bits.is_empty() {
            bits.push(1);
        }
        if planar && extra.iter().max() == Some(&0) {
            // Planes without a meaning, which need not be read.
            samples = samples.saturating_sub(extra.len() as u64);
            bits.truncate(usize::try_from(samples).unwrap_or(0));
            extra.clear();
        }
        if samples == 0 || samples > 6 {
            return Err(unsupported(format!(
                "{samples} samples a pixel are not read; 1 to 6 are"
            )));
        }
        let samples = usize::try_from(samples).unwrap_or(1);
        bits.truncate(samples);
        if bits.is_empty() || (bits.len() != samples && bits.len() != 1) || bits.iter().any(|b| *b != bits[0]) {
            return Err(unsupported(format!("{samples} samples of {bits:?} bits are not read")));
        }
        let bits = usize::try_from(bits[0]).map_err(|_| damaged("its number of bits is too large"))?;
        let formats = directory.values(339)?;
        let format = formats.first().copied().unwrap_or(1);
        if formats.iter().any(|f| *f != format) {
            return Err(unsupported("samples of different kinds are not read"));
        }
        let (mode, treatment) = layout(
            directory.order.big,
            photometric,
            format,
            bits,
            samples,
            &extra,
            compression,
        )?;
        let tiled = directory.value(273)?.is_none();
        let (offsets, counts) = if tiled { (324, 325) } else { (273, 279) };
        let chunk = if tiled {
            (
                small(directory.value(322)?, "tile width")?,
                small(directory.value(323)?, "tile height")?,
            )
        } else {
            (
                width,
                u32::try_from(number(278, u64::from(height))?)
                    .unwrap_or(u32::MAX)
                    .min(height),
            )
        };
        if chunk.0 == 0 || chunk.1 == 0 {
            return Err(damaged("its strips or tiles have no pixels"));
        }
        let palette = if matches!(mode, Mode::Palette | Mode::PaletteAlpha) {
            let values = directory.values(320)?;
            let third = values.len() / 3;
            let high = |i: usize| u8::try_from(values[i] >> 8).unwrap_or(255);
            (0..third.min(256))
                .map(|i| [high(i), high(i + third), high(i + 2 * third), 255])
                .collect()
        } else {
            Vec::new()
        };
        let orientation = number(274, 1)?;
        Ok(Self {
            order: directory.order,
            width,
            height,
            samples,
            bits,
            photometric,
            mode,
            treatment,
            planar,
            reverse: number(266, 1)? == 2,
            compression,
            predictor: number(317, 1)?,
            chunk,
            offsets: directory.values(offsets)?,
            counts: directory.values(counts)?,
            tables: directory.bytes(347)?,
            palette,
            orientation: u8::try_from(orientation).unwrap_or(1),
        })
    }

    /// Values a pixel in what is given on.
    fn channels(&self) -> usize {
        match self.mode {
            Mode::GrayAlpha | Mode::PaletteAlpha => 2,
            Mode::Rgb | Mode::Rgb16 | Mode::YCbCr | Mode::Lab => 3,
            Mode::Rgba | Mode::Rgba16 | Mode::Cmyk => 4,
            _ => 1,
        }
    }
}

/// The mode of a layout of samples, as in Pillow's table.
fn layout(
    big: bool,
    photometric: u64,
    format: u64,
    bits: usize,
    samples: usize,
    extra: &[u64],
    compression: u64,
) -> Result<(Mode, Sample), ImageError> {
    let jpeg = compression == 7;
    let zeros = |extra: &[u64]| extra.iter().all(|e| *e == 0);
    let plain = |mode| Ok((mode, Sample::Plain));
    match (photometric, format, bits, samples, extra) {
        (0 | 1, 1, 1, 1, []) => Ok((
            Mode::Bilevel,
            if photometric == 0 {
                Sample::Inverted
            } else {
                Sample::Plain
            },
        )),
        (0 | 1, 1, 2 | 4 | 8, 1, []) => Ok((
            Mode::Gray,
            if photometric == 0 {
                Sample::Inverted
            } else {
                Sample::Plain
            },
        )),
        (1, 2, 8, 1, []) | (6, 1, 8, 1, []) | (1, 1, 8, 2, [0]) => plain(Mode::Gray),
        (1, 1, 16, 1, []) => plain(Mode::Gray16),
        (1, 1, 12, 1, []) | (0, 1, 16, 1, []) if !big => plain(Mode::Gray16),
        (1, 2, 16 | 32, 1, []) => plain(Mode::Int32),
        (1, 1, 32, 1, []) if !big => plain(Mode::Int32),
        (0 | 1, 3, 32, 1, []) => plain(Mode::Float32),
        (1, 1, 8, 2, [2]) => plain(Mode::GrayAlpha),
        (2, 1, 8, 3, []) => plain(Mode::Rgb),
        (2, 1, 8, 4, [] | [2 | 999]) | (2, 1, 8, 5 | 6, [2, ..]) => plain(Mode::Rgba),
        (2, 1, 8, 4..=6, [1, rest @ ..]) if zeros(rest) => Ok((Mode::Rgba, Sample::Premultiplied)),
        (2, 1, 8, 4..=6, extra) if zeros(extra) && extra.len() + 3 == samples => plain(Mode::Rgb),
        (2, 1, 16, 3, []) | (2, 1, 16, 4, [0]) => plain(Mode::Rgb16),
        (2, 1, 16, 4, [] | [2]) => plain(Mode::Rgba16),
        (2, 1, 16, 4, [1]) => Ok((Mode::Rgba, Sample::Premultiplied)),
        (3, 1, 1 | 2 | 4 | 8, 1, []) | (3, 1, 8, 2, [0]) => plain(Mode::Palette),
        (3, 1, 8, 2, [2]) => plain(Mode::PaletteAlpha),
        (5, 1, 8, 4..=6, extra) if zeros(extra) && extra.len() + 4 == samples => plain(Mode::Cmyk),
        (5, 1, 16, 4, []) => plain(Mode::Cmyk),
        (6, 1, 8, 3, []) if jpeg => plain(Mode::Rgb),
        (6, 1, 8, 3, []) if compression == 1 => plain(Mode::YCbCr),
        (8, 1, 8, 3, []) => plain(Mode::Lab),
        _ => Err(unsupported(format!(
            "photometric interpretation {photometric} with {samples} samples of {bits} bits, sample format {format}, extra samples \
             {extra:?} and compression {compression} is not read"
        ))),
    }
}

pub(super) fn info(bytes: &[u8]) -> Result<Info, ImageError> {
    let (directory, _) = Directory::find(bytes, 0)?;
    let page = Page::read(&directory)?;
    let (width, height) = if (5..=8).contains(&page.orientation) {
        (page.height, page.width)
    } else {
        (page.width, page.height)
    };
    Ok(Info {
        format: Format::Tiff,
        width,
        height,
        mode: page.mode,
        frames: Directory::pages(bytes)?,
        // As in Pillow: images are turned when they are read.
        orientation: 1,
    })
}

pub(super) fn decode(bytes: &[u8], options: &Options, jpeg: &mut Jpeg) -> Result<Image, ImageError> {
    let (directory, pages) = Directory::find(bytes, options.frame)?;
    check_frame(Format::Tiff, pages, options)?;
    let page = Page::read(&directory)?;
    check_size(Format::Tiff, page.width, page.height, options)?;
    check_size(Format::Tiff, page.chunk.0, page.chunk.1, options)?;
    let pixels = finished(&page, samples(bytes, &page, options, jpeg)?);
    let mut raw = Raw::new(page.width, page.height, page.mode, pixels);
    raw.palette.clone_from(&page.palette);
    Ok(raw.converted(Format::Tiff, options)?.oriented(page.orientation))
}

/// All samples, pixel by pixel, each in as many bytes as it has, in the order of the file; of less than 8 bits, one in a byte.
fn samples(bytes: &[u8], page: &Page, options: &Options, jpeg: &mut Jpeg) -> Result<Vec<u8>, ImageError> {
    let size = page.bits.div_ceil(8);
    let (width, height) = (page.width as usize, page.height as usize);
    let (wide, high) = (page.chunk.0 as usize, page.chunk.1 as usize);
    let row = width * page.samples * size;
    let memory = || ImageError::new(Flaw::Decoder, Format::Tiff, "there is no memory to decode it");
    let mut all: Vec<u8> = zeros(row * height).ok_or_else(memory)?;
    let (across, down) = (width.div_ceil(wide), height.div_ceil(high));
    let planes = if page.planar { page.samples } else { 1 };
    let each = page.samples / planes;
    let fill = options.truncated == Truncated::Fill && page.compression == 1;
    // Pillow takes the last one where one would do.
    let first = if across * down * planes == 1 {
        page.offsets.len().saturating_sub(1)
    } else {
        0
    };
    for index in 0..across * down * planes {
        let (band, place) = (index / (across * down), index % (across * down));
        let (left, top) = (place % across * wide, place / across * high);
        // The last strip has the rows that are left; tiles are whole.
        let rows = if wide == width { high.min(height - top) } else { high };
        let chunk = chunk(bytes, page, first + index, (wide, rows, each), jpeg);
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) if fill && error.flaw() == Flaw::Truncated => continue,
            Err(error) => return Err(error),
        };
        let line = wide * each * size;
        for (y, from) in chunk.chunks_exact(line).enumerate().take(height - top) {
            let columns = wide.min(width - left);
            let to = &mut all[(top + y) * row..(top + y + 1) * row];
            if planes == 1 {
                let at = left * each * size;
                to[at..at + columns * each * size].copy_from_slice(&from[..columns * each * size]);
            } else {
                for x in 0..columns {
                    let at = ((left + x) * page.samples + band) * size;
                    to[at..at + size].copy_from_slice(&from[x * size..(x + 1) * size]);
                }
            }
        }
    }
    Ok(all)
}

/// The samples of one strip or tile, of the given width, rows and samples a pixel.
fn chunk(
    bytes: &[u8],
    page: &Page,
    index: usize,
    (wide, rows, each): (usize, usize, usize),
    jpeg: &mut Jpeg,
) -> Result<Vec<u8>, ImageError> {
    let place = |list: &[u64]| list.get(index).and_then(|value| usize::try_from(*value).ok());
    let from = place(&page.offsets).ok_or_else(|| damaged(format!("strip or tile {index} is not there")))?;
    let data = bytes.get(from..).unwrap_or_default();
    let packed = (wide * each * page.bits).div_ceil(8);
    let count = if page.compression == 1 {
        Some(packed * rows)
    } else {
        place(&page.counts)
    };
    let whole = count.is_none_or(|count| count <= data.len());
    let data = &data[..count.unwrap_or(usize::MAX).min(data.len())];
    if page.compression == 7 {
        return jpeg_chunk(data, page, (wide, rows, each), jpeg);
    }
    let Some(compression) = compression::of(page.compression) else {
        let name = name(page.compression);
        return Err(unsupported(format!(
            "the compression {} ({name}) is not read",
            page.compression
        )));
    };
    let mut expanded = if page.reverse {
        compression.expand(&reversed(data), packed * rows)
    } else {
        compression.expand(data, packed * rows)
    };
    if expanded.len() < packed * rows {
        let flaw = if whole && compression != Compression::None {
            Flaw::Damaged
        } else {
            Flaw::Truncated
        };
        let message = format!(
            "strip or tile {index} gives {} of {} rows",
            expanded.len() / packed,
            rows
        );
        return Err(ImageError::new(flaw, Format::Tiff, message));
    }
    let size = page.bits.div_ceil(8);
    if page.predictor != 1 {
        let known =
            page.bits.is_multiple_of(8) && unpredict(page.predictor, &mut expanded, packed, each, size, page.order.big);
        if !known {
            return Err(unsupported(format!(
                "predictor {} of {} bits is not read",
                page.predictor, page.bits
            )));
        }
    }
    if page.bits.is_multiple_of(8) {
        return Ok(expanded);
    }
    let mut out = Vec::with_capacity(wide * each * rows * size);
    for line in expanded.chunks_exact(packed) {
        if page.bits == 12 {
            // The highest bits first, whatever the order of bytes.
            let value = |i: usize| {
                let (high, low) = (line[i * 3 / 2], line.get(i * 3 / 2 + 1).copied().unwrap_or(0));
                let two = u16::from_be_bytes([high, low]);
                if i.is_multiple_of(2) { two >> 4 } else { two & 0xfff }
            };
            out.extend((0..wide * each).flat_map(|i| value(i).to_le_bytes()));
        } else {
            unpack(line, page.bits, wide * each, &mut out, |v| v);
        }
    }
    Ok(out)
}

fn jpeg_chunk(
    data: &[u8],
    page: &Page,
    (wide, rows, each): (usize, usize, usize),
    jpeg: &mut Jpeg,
) -> Result<Vec<u8>, ImageError> {
    let space = match (page.photometric, each) {
        (_, 1) => Space::Gray,
        (6, 3) => Space::YCbCr,
        (2, 3) => Space::Rgb,
        (5, 4) => Space::Cmyk,
        (photometric, each) => {
            return Err(unsupported(format!(
                "JPEG of {each} samples and photometric interpretation {photometric} is not read"
            )));
        }
    };
    // Tables stand before the data, as if they were one file.
    let tables = page.tables.strip_suffix(b"\xff\xd9").unwrap_or(&page.tables);
    let joined;
    let stream = if tables.len() > 2 {
        joined = [tables, data.strip_prefix(b"\xff\xd8").unwrap_or(data)].concat();
        &joined[..]
    } else {
        data
    };
    let (width, height, pixels) = jpeg.raw(stream, space, wide as u64 * rows as u64)?;
    let fits = width as usize == wide && height as usize >= rows && pixels.len() == wide * height as usize * each;
    if !fits {
        return Err(damaged(format!(
            "a JPEG of {width} x {height} pixels stands where {wide} x {rows} should"
        )));
    }
    Ok(pixels)
}

/// From samples as they are stored to pixels.
fn finished(page: &Page, samples: Vec<u8>) -> Pixels {
    let order = page.order;
    let (stored, channels) = (page.samples, page.channels());
    let words = |data: &[u8]| -> Vec<u16> {
        // 12 bits were put into two bytes here, the lower one first.
        let two = |pair: &[u8]| [pair[0], pair[1]];
        data.chunks_exact(2)
            .map(|pair| {
                if page.bits == 12 {
                    u16::from_le_bytes(two(pair))
                } else {
                    order.u16(two(pair))
                }
            })
            .collect()
    };
    let longs = || {
        samples
            .chunks_exact(4)
            .map(|four| order.u32([four[0], four[1], four[2], four[3]]))
    };
    match (page.mode, page.bits) {
        (Mode::Float32, _) => Pixels::F32(longs().map(f32::from_bits).collect()),
        (Mode::Int32, 32) => Pixels::I32(longs().map(u32::cast_signed).collect()),
        (Mode::Int32, _) => Pixels::I32(
            words(&samples)
                .into_iter()
                .map(|word| i32::from(word.cast_signed()))
                .collect(),
        ),
        (Mode::Gray16, _) => Pixels::U16(words(&samples)),
        (Mode::Rgb16 | Mode::Rgba16, _) => Pixels::U16(first_of(words(&samples), stored, channels)),
        (_, 16) => {
            // Pillow keeps the upper halves.
            let bytes = words(&samples).into_iter().map(|word| word.to_be_bytes()[0]).collect();
            Pixels::U8(treated(page, bytes))
        }
        _ => {
            let most = 0xff_u8 >> (8 - page.bits.min(8));
            let scale = if matches!(page.mode, Mode::Gray | Mode::Bilevel) {
                255 / most
            } else {
                1
            };
            let mut bytes = first_of(samples, stored, channels);
            if scale > 1 {
                for byte in &mut bytes {
                    // A damaged JPEG within may give more than the bits allow.
                    *byte = byte.wrapping_mul(scale);
                }
            }
            Pixels::U8(treated(page, bytes))
        }
    }
}

/// The first `channels` of `stored` values of each pixel.
fn first_of<T: Copy>(values: Vec<T>, stored: usize, channels: usize) -> Vec<T> {
    if stored == channels {
        return values;
    }
    let mut out = Vec::with_capacity(values.len() / stored * channels);
    for pixel in values.chunks_exact(stored) {
        out.extend_from_slice(&pixel[..channels]);
    }
    out
}

fn treated(page: &Page, mut bytes: Vec<u8>) -> Vec<u8> {
    match page.treatment {
        Sample::Plain => {}
        Sample::Inverted => {
            for byte in &mut bytes {
                *byte = !*byte;
            }
        }
        Sample::Premultiplied => {
            for pixel in bytes.chunks_exact_mut(4) {
                let alpha = u16::from(pixel[3]);
                for colour in &mut pixel[..3] {
                    *colour = match alpha {
                        0 => 0,
                        255 => *colour,
                        _ => u8::try_from(u16::from(*colour) * 255 / alpha).unwrap_or(255),
                    };
                }
            }
        }
    }
    bytes
}
