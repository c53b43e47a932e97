//! Windows bitmaps, as Pillow reads them.

use super::bytes::{each, le16, le32, unpack};
use super::pixels::{Pixels, Raw};
use super::{Flaw, Format, Image, ImageError, Info, Mode, Options, Truncated, check_frame, check_size, ends_early};

/// How the bytes of a pixel are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Packed values of 1 or 4 bits, or bytes.
    Values,
    /// 5 bits each for red, green, blue.
    Bits555,
    /// 5, 6 and 5.
    Bits565,
    /// So many bytes, and in which of them red, green, blue and alpha are.
    Bytes(usize, [usize; 3], Option<usize>),
}

#[derive(Debug)]
struct Header {
    width: u32,
    height: u32,
    bits: u16,
    mode: Mode,
    layout: Layout,
    /// Run lengths, and whether they are of 4 bits rather than 8.
    runs: Option<bool>,
    top_first: bool,
    palette: Vec<[u8; 4]>,
    /// Where the pixels begin.
    pixels: usize,
}

fn unsupported(message: impl Into<String>) -> ImageError {
    ImageError::new(Flaw::Unsupported, Format::Bmp, message)
}

fn short() -> ImageError {
    ImageError::new(Flaw::Truncated, Format::Bmp, "the file ends early within the header")
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, ImageError> {
        let word = |at| le32(bytes, at).ok_or_else(short);
        let half = |at| le16(bytes, at).ok_or_else(short);
        let (mut pixels, size) = (word(10)? as usize, word(14)? as usize);
        let body = 18;
        let mut behind = 14 + size;
        if bytes.len() < behind {
            return Err(short());
        }
        let old = size == 12;
        if !old && !matches!(size, 40 | 52 | 56 | 64 | 108 | 124) {
            return Err(unsupported(format!("a header of {size} bytes is not read")));
        }
        let (width, height, top_first, bits, compression, colours);
        if old {
            (width, height) = (u32::from(half(body)?), u32::from(half(body + 2)?));
            (top_first, bits, compression, colours) = (false, half(body + 6)?, 0, 0);
        } else {
            width = word(body)?;
            let rows = word(body + 4)?;
            top_first = rows >> 24 == 0xff;
            height = if top_first { rows.wrapping_neg() } else { rows };
            (bits, compression, colours) = (half(body + 10)?, word(body + 12)?, word(body + 28)?);
        }
        let mut masks = [0; 4];
        if compression == 3 {
            // A header of 40 bytes has the masks behind it.
            let count = if size >= 56 { 4 } else { 3 };
            for (i, mask) in masks.iter_mut().take(count).enumerate() {
                *mask = word(body + 36 + i * 4)?;
            }
            if size < 52 {
                behind += 12;
            }
        }
        let colours = match colours {
            0 => 1_u64 << bits.min(63),
            n => u64::from(n),
        };
        let padding = if old { 3 } else { 4 };
        if pixels == 14 + size && bits <= 8 {
            let palette = usize::try_from(colours).unwrap_or(usize::MAX).saturating_mul(padding);
            pixels = pixels.saturating_add(palette);
        }
        let (mut mode, layout) = layout(bits, compression, masks)?;
        let mut palette = Vec::new();
        if mode == Mode::Palette {
            if colours > 65_536 {
                return Err(unsupported(format!("a palette of {colours} colours is not read")));
            }
            let len = usize::try_from(colours).unwrap_or(0) * padding;
            let stored = &bytes[behind.min(bytes.len())..(behind + len).min(bytes.len())];
            behind += stored.len();
            palette = stored.chunks_exact(padding).map(|c| [c[2], c[1], c[0], 255]).collect();
            mode = if is_gray(&palette, colours, bits) {
                if bits == 1 { Mode::Bilevel } else { Mode::Gray }
            } else {
                Mode::Palette
            };
        }
        Ok(Self {
            width,
            height,
            bits,
            mode,
            layout,
            runs: matches!(compression, 1 | 2).then_some(compression == 2),
            top_first,
            palette,
            pixels: if pixels == 0 { behind } else { pixels },
        })
    }
}

/// Whether a palette maps each value to itself as gray, or to black and white.
fn is_gray(palette: &[[u8; 4]], colours: u64, bits: u16) -> bool {
    let value = |i: usize| u8::try_from(if colours == 2 { i * 255 } else { i }).ok();
    let fits = (bits == 1 && colours <= 2) || (bits == 8 && colours > 2);
    fits && palette.len() as u64 == colours
        && palette
            .iter()
            .enumerate()
            .all(|(i, c)| value(i).is_some_and(|v| c[..3] == [v, v, v]))
}

fn layout(bits: u16, compression: u32, masks: [u32; 4]) -> Result<(Mode, Layout), ImageError> {
    let bgr = |n| Layout::Bytes(n, [2, 1, 0], None);
    let plain = match bits {
        1 | 4 | 8 => (Mode::Palette, Layout::Values),
        16 => (Mode::Rgb, Layout::Bits555),
        24 => (Mode::Rgb, bgr(3)),
        32 => (Mode::Rgb, bgr(4)),
        other => return Err(unsupported(format!("{other} bits a pixel are not read"))),
    };
    match compression {
        0 => Ok(plain),
        1 | 2 if matches!(bits, 4 | 8) => Ok(plain),
        1 | 2 => Err(unsupported(format!("run lengths of {bits} bits are not read"))),
        3 => {
            let alpha = |order, at| (Mode::Rgba, Layout::Bytes(4, order, Some(at)));
            Ok(match (bits, masks) {
                (32, [0xff_0000, 0xff00, 0xff, 0]) => (Mode::Rgb, bgr(4)),
                (32, [0xff00_0000, 0xff_0000, 0xff00, 0]) => (Mode::Rgb, Layout::Bytes(4, [3, 2, 1], None)),
                (32, [0xff00_0000, 0xff00, 0xff, 0]) => (Mode::Rgb, Layout::Bytes(4, [3, 1, 0], None)),
                (32, [0xff00_0000, 0xff_0000, 0xff00, 0xff]) => alpha([3, 2, 1], 0),
                (32, [0xff, 0xff00, 0xff_0000, 0xff00_0000]) => alpha([0, 1, 2], 3),
                (32, [0xff_0000, 0xff00, 0xff, 0xff00_0000] | [0, 0, 0, 0]) => alpha([2, 1, 0], 3),
                (32, [0xff00_0000, 0xff00, 0xff, 0xff_0000]) => alpha([3, 1, 0], 2),
                (24, [0xff_0000, 0xff00, 0xff, _]) => (Mode::Rgb, bgr(3)),
                (16, [0xf800, 0x7e0, 0x1f, _]) => (Mode::Rgb, Layout::Bits565),
                (16, [0x7c00, 0x3e0, 0x1f, _]) => (Mode::Rgb, Layout::Bits555),
                (bits, masks) => {
                    return Err(unsupported(format!(
                        "{bits} bits with the masks {masks:x?} are not read"
                    )));
                }
            })
        }
        4 => Err(unsupported("a JPEG within a BMP is not read")),
        5 => Err(unsupported("a PNG within a BMP is not read")),
        other => Err(unsupported(format!("compression {other} is not read"))),
    }
}

pub(super) fn info(bytes: &[u8]) -> Result<Info, ImageError> {
    let header = Header::read(bytes)?;
    Ok(Info {
        format: Format::Bmp,
        width: header.width,
        height: header.height,
        mode: header.mode,
        frames: 1,
        orientation: 1,
    })
}

pub(super) fn decode(bytes: &[u8], options: &Options) -> Result<Image, ImageError> {
    let header = Header::read(bytes)?;
    check_frame(Format::Bmp, 1, options)?;
    check_size(Format::Bmp, header.width, header.height, options)?;
    let fill = options.truncated == Truncated::Fill;
    let pixels = if let Some(nibbles) = header.runs {
        run_lengths(bytes, &header, nibbles)?
    } else {
        rows(bytes, &header, fill)?
    };
    let mut raw = Raw::new(header.width, header.height, header.mode, Pixels::U8(pixels));
    raw.palette = header.palette;
    raw.converted(Format::Bmp, options)
}

/// Rows one after the other, in the mode of the file.
fn rows(bytes: &[u8], header: &Header, fill: bool) -> Result<Vec<u8>, ImageError> {
    let (width, height) = (header.width as usize, header.height as usize);
    let data = bytes.get(header.pixels..).unwrap_or_default();
    let used = (width * usize::from(header.bits)).div_ceil(8);
    let stride = used.next_multiple_of(4);
    let channels = match header.mode {
        Mode::Rgb => 3,
        Mode::Rgba => 4,
        _ => 1,
    };
    // The last row need not be padded.
    let there = if data.len() < used {
        0
    } else {
        ((data.len() - used) / stride + 1).min(height)
    };
    if there < height && !fill {
        return Err(ends_early(Format::Bmp, there, header.height));
    }
    let mut pixels = Vec::with_capacity(width * height * channels);
    for y in 0..height {
        let from = if header.top_first { y } else { height - 1 - y };
        if from < there {
            row(&data[from * stride..from * stride + used], header, width, &mut pixels);
        } else {
            pixels.resize(pixels.len() + width * channels, 0);
        }
    }
    Ok(pixels)
}

fn row(row: &[u8], header: &Header, width: usize, out: &mut Vec<u8>) {
    let scaled = |value: u16, most: u16| u8::try_from(value * 255 / most).unwrap_or(255);
    match header.layout {
        Layout::Values if header.bits == 8 => out.extend_from_slice(row),
        Layout::Values => {
            let white = if header.mode == Mode::Bilevel { 255 } else { 1 };
            unpack(row, usize::from(header.bits), width, out, |v| v * white);
        }
        Layout::Bytes(n, [red, green, blue], None) => {
            // A constant number of bytes makes it quick.
            match n {
                3 => each(row, out, |p: &[u8; 3]| [p[red], p[green], p[blue]]),
                _ => each(row, out, |p: &[u8; 4]| [p[red], p[green], p[blue]]),
            }
        }
        Layout::Bytes(_, [red, green, blue], Some(alpha)) => {
            each(row, out, |p: &[u8; 4]| [p[red], p[green], p[blue], p[alpha]]);
        }
        Layout::Bits555 | Layout::Bits565 => {
            let (bits, most) = if header.layout == Layout::Bits565 {
                (6, 63)
            } else {
                (5, 31)
            };
            each(row, out, |pair: &[u8; 2]| {
                let value = u16::from_le_bytes(*pair);
                [
                    scaled((value >> (5 + bits)) & 31, 31),
                    scaled((value >> 5) & most, most),
                    scaled(value & 31, 31),
                ]
            });
        }
    }
}

/// Run lengths of 8 or 4 bits.
fn run_lengths(bytes: &[u8], header: &Header, nibbles: bool) -> Result<Vec<u8>, ImageError> {
    let (width, height) = (header.width as usize, header.height as usize);
    let all = width * height;
    let mut at = header.pixels;
    let mut data: Vec<u8> = Vec::with_capacity(all.min(bytes.len().saturating_mul(256)));
    let mut x = 0;
    while data.len() < all {
        let (Some(&count), Some(&value)) = (bytes.get(at), bytes.get(at + 1)) else {
            break;
        };
        at += 2;
        match (count, value) {
            (0, 0) => {
                data.resize(data.len().next_multiple_of(width), 0);
                x = 0;
            }
            (0, 1) => break,
            (0, 2) => {
                let (Some(&right), Some(&up)) = (bytes.get(at), bytes.get(at + 1)) else {
                    break;
                };
                at += 2;
                let skipped = (usize::from(right) + usize::from(up) * width).min(all - data.len());
                data.resize(data.len() + skipped, 0);
                x = data.len() % width;
            }
            (0, n) => {
                let pixels = usize::from(n).min(all - data.len());
                let len = if nibbles { pixels.div_ceil(2) } else { pixels };
                let stored = &bytes[at.min(bytes.len())..(at + len).min(bytes.len())];
                at += stored.len();
                if nibbles {
                    unpack(stored, 4, pixels, &mut data, |v| v);
                } else {
                    data.extend_from_slice(stored);
                }
                if stored.len() < len || data.len() == all {
                    break;
                }
                x += usize::from(n);
                at += at % 2;
            }
            (n, value) => {
                let run = usize::from(n).min(width.saturating_sub(x));
                let pair = if nibbles { [value >> 4, value & 15] } else { [value; 2] };
                data.extend(pair.iter().cycle().take(run));
                x += run;
                // A row that is full and not ended gets no more, and no progress would be made.
            }
        }
    }
    if data.len() < all {
        return Err(ends_early(Format::Bmp, data.len() / width, header.height));
    }
    data.truncate(all);
    if !header.top_first {
        data = data.chunks_exact(width).rev().flatten().copied().collect();
    }
    Ok(data)
}
