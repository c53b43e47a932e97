//! PBM, PGM, PPM and PFM, plain and raw, as Pillow reads them.

use super::bytes::unpack;
use super::format::with_commas;
use super::pixels::{Pixels, Raw};
use super::{Flaw, Format, Image, ImageError, Info, Mode, Options, Truncated, check_frame, check_size, ends_early};

/// Longer numbers are refused, as in Pillow.
const DIGITS: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Samples {
    /// One bit, 1 for black.
    Bits,
    /// Whole numbers up to this one, which is white.
    Whole(u32),
    /// Floats, the lowest row first, and whether the lowest byte comes first.
    Floats { little: bool },
}

#[derive(Debug)]
struct Header {
    width: u32,
    height: u32,
    channels: usize,
    samples: Samples,
    /// Numbers as text.
    plain: bool,
    /// Where the pixels begin.
    pixels: usize,
}

fn error(flaw: Flaw, message: impl Into<String>) -> ImageError {
    ImageError::new(flaw, Format::Pnm, message)
}

/// What Python's `bytes.split` splits at.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Whether these first bytes are a header's: text may begin with a `P` and a digit.
pub(super) fn begins(bytes: &[u8]) -> bool {
    let [b'P', b'1'..=b'6' | b'f', space, rest @ ..] = bytes else {
        return false;
    };
    let next = rest.iter().find(|byte| !is_space(**byte));
    is_space(*space) && next.is_some_and(|byte| byte.is_ascii_digit() || *byte == b'#')
}

/// Words of a header or of plain pixels. A comment is taken out with the end of its line, also from within a word, as in Pillow.
struct Words<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Words<'_> {
    fn next_byte(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            if byte != b'#' {
                return Some(byte);
            }
            while let Some(byte) = self.bytes.get(self.at) {
                self.at += 1;
                if matches!(byte, b'\n' | b'\r') {
                    break;
                }
            }
        }
    }

    /// The next word, and the one byte behind it is passed; `None` at the end.
    fn next(&mut self) -> Result<Option<String>, ImageError> {
        let mut word = String::new();
        while let Some(byte) = self.next_byte() {
            match (is_space(byte), word.is_empty()) {
                (true, true) => {}
                (true, false) => break,
                (false, _) if word.len() == DIGITS => {
                    let message = format!("a number of more than {DIGITS} characters begins with {word:?}");
                    return Err(error(Flaw::Damaged, message));
                }
                (false, _) => word.push(char::from(byte)),
            }
        }
        Ok((!word.is_empty()).then_some(word))
    }

    fn number(&mut self, what: &str) -> Result<u32, ImageError> {
        let word = self.header(what)?;
        let digits = word.strip_prefix('+').unwrap_or(&word);
        let found = digits.parse().ok().filter(|_| digits.as_bytes()[0].is_ascii_digit());
        found.ok_or_else(|| error(Flaw::Damaged, format!("the {what} is {word:?}")))
    }

    fn header(&mut self, what: &str) -> Result<String, ImageError> {
        let message = || {
            error(
                Flaw::Truncated,
                format!("the file ends in the header, before the {what}"),
            )
        };
        self.next()?.ok_or_else(message)
    }
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, ImageError> {
        let kind = bytes.get(1).copied().unwrap_or_default();
        let mut words = Words { bytes, at: 2 };
        let (width, height) = (words.number("width")?, words.number("height")?);
        let samples = match kind {
            b'1' | b'4' => Samples::Bits,
            b'f' => {
                let word = words.header("scale")?;
                match word.parse::<f64>() {
                    Ok(scale) if scale.is_finite() && scale != 0.0 => Samples::Floats { little: scale < 0.0 },
                    _ => {
                        let message = format!("the scale is {word:?}: it has to be a number that is not 0");
                        return Err(error(Flaw::Damaged, message));
                    }
                }
            }
            _ => match words.number("largest value")? {
                most @ 1..=65_535 => Samples::Whole(most),
                most => {
                    let message = format!("the largest value is {most}: it has to be from 1 to 65535");
                    return Err(error(Flaw::Damaged, message));
                }
            },
        };
        Ok(Self {
            width,
            height,
            channels: if matches!(kind, b'3' | b'6') { 3 } else { 1 },
            samples,
            plain: matches!(kind, b'1'..=b'3'),
            pixels: words.at,
        })
    }

    fn mode(&self) -> Mode {
        match (self.channels, self.samples) {
            (3, _) => Mode::Rgb,
            (_, Samples::Bits) => Mode::Bilevel,
            (_, Samples::Floats { .. }) => Mode::Float32,
            (_, Samples::Whole(256..)) => Mode::Gray16,
            (_, Samples::Whole(_)) => Mode::Gray,
        }
    }

    /// What white is in the decoded image: colours always have 8 bits, as in Pillow.
    fn white(&self) -> u16 {
        if self.mode() == Mode::Gray16 { 65_535 } else { 255 }
    }
}

/// `value` of `most` in `white` steps, rounded as Python rounds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and white, which has 16 bits"
)]
fn scaled(value: u32, most: u32, white: u16) -> u16 {
    let steps = (f64::from(value) / f64::from(most) * f64::from(white)).round_ties_even();
    steps.min(f64::from(white)) as u16
}

pub(super) fn info(bytes: &[u8]) -> Result<Info, ImageError> {
    let header = Header::read(bytes)?;
    Ok(Info {
        format: Format::Pnm,
        width: header.width,
        height: header.height,
        mode: header.mode(),
        frames: 1,
        orientation: 1,
    })
}

pub(super) fn decode(bytes: &[u8], options: &Options) -> Result<Image, ImageError> {
    let header = Header::read(bytes)?;
    check_frame(Format::Pnm, 1, options)?;
    check_size(Format::Pnm, header.width, header.height, options)?;
    let fill = options.truncated == Truncated::Fill;
    let data = &bytes[header.pixels..];
    let pixels = match header.samples {
        Samples::Bits if header.plain => Pixels::U8(plain_bits(data, &header)?),
        Samples::Whole(most) if header.plain => narrow(&header, plain(data, &header, most)?),
        Samples::Bits => {
            let mut pixels = Vec::new();
            let width = header.width as usize;
            for row in rows(data, &header, width.div_ceil(8), fill)? {
                unpack(row, 1, width, &mut pixels, |bit| if bit == 1 { 0 } else { 255 });
            }
            filled(&mut pixels, &header);
            Pixels::U8(pixels)
        }
        Samples::Floats { little } => floats(data, &header, little, fill)?,
        Samples::Whole(255) => {
            let mut pixels = Vec::new();
            for row in rows(data, &header, header.width as usize * header.channels, fill)? {
                pixels.extend_from_slice(row);
            }
            filled(&mut pixels, &header);
            Pixels::U8(pixels)
        }
        Samples::Whole(most) => {
            // Pillow is lenient with files that end early where it need not rescale.
            let fill = fill && most == 65_535 && header.channels == 1;
            let (across, white) = (header.width as usize * header.channels, header.white());
            let mut values = Vec::new();
            for row in rows(data, &header, across * if most > 255 { 2 } else { 1 }, fill)? {
                if most > 255 {
                    let pairs = row.as_chunks::<2>().0.iter();
                    values.extend(pairs.map(|pair| scaled(u16::from_be_bytes(*pair).into(), most, white)));
                } else {
                    values.extend(row.iter().map(|value| scaled((*value).into(), most, white)));
                }
            }
            filled(&mut values, &header);
            narrow(&header, values)
        }
    };
    Raw::new(header.width, header.height, header.mode(), pixels).converted(Format::Pnm, options)
}

/// 8 bits, unless there are 16.
fn narrow(header: &Header, values: Vec<u16>) -> Pixels {
    if header.mode() == Mode::Gray16 {
        return Pixels::U16(values);
    }
    Pixels::U8(values.into_iter().map(|value| value.to_le_bytes()[0]).collect())
}

/// Black rows for those that are missing.
fn filled<T: Copy + Default>(values: &mut Vec<T>, header: &Header) {
    values.resize(
        header.width as usize * header.height as usize * header.channels,
        T::default(),
    );
}

/// The rows of `len` bytes that are whole: all of them, unless `fill`.
fn rows<'a>(
    data: &'a [u8],
    header: &Header,
    len: usize,
    fill: bool,
) -> Result<std::slice::ChunksExact<'a, u8>, ImageError> {
    let there = (data.len() / len).min(header.height as usize);
    if there < header.height as usize && !fill {
        return Err(ends_early(Format::Pnm, there, header.height));
    }
    Ok(data[..there * len].chunks_exact(len))
}

fn floats(data: &[u8], header: &Header, little: bool, fill: bool) -> Result<Pixels, ImageError> {
    let width = header.width as usize;
    let mut stored = Vec::new();
    for row in rows(data, header, width * 4, fill)? {
        let values = row.as_chunks::<4>().0.iter();
        stored.push(
            values
                .map(|value| {
                    if little {
                        f32::from_le_bytes(*value)
                    } else {
                        f32::from_be_bytes(*value)
                    }
                })
                .collect::<Vec<_>>(),
        );
    }
    stored.resize(header.height as usize, vec![0.0; width]);
    stored.reverse();
    Ok(Pixels::F32(stored.concat()))
}

/// Ones and zeros, with or without space between them.
fn plain_bits(data: &[u8], header: &Header) -> Result<Vec<u8>, ImageError> {
    let count = header.width as usize * header.height as usize;
    let mut words = Words { bytes: data, at: 0 };
    let mut pixels = Vec::with_capacity(count.min(data.len()));
    while let Some(byte) = words.next_byte() {
        match byte {
            b'0' | b'1' if pixels.len() == count => {}
            b'0' => pixels.push(255),
            b'1' => pixels.push(0),
            space if is_space(space) => {}
            other => {
                let message = format!("there is {:?} where each pixel is 0 or 1", char::from(other));
                return Err(error(Flaw::Damaged, message));
            }
        }
    }
    enough(pixels, count)
}

fn plain(data: &[u8], header: &Header, most: u32) -> Result<Vec<u16>, ImageError> {
    let count = header.width as usize * header.height as usize * header.channels;
    let mut words = Words { bytes: data, at: 0 };
    let mut values = Vec::with_capacity(count.min(data.len()));
    while values.len() < count {
        let Some(word) = words.next()? else { break };
        match word.parse::<u32>() {
            Ok(value) if value <= most => values.push(scaled(value, most, header.white())),
            Ok(value) => {
                let message = format!("a value is {value}, and {most} is said to be the largest");
                return Err(error(Flaw::Damaged, message));
            }
            Err(_) => return Err(error(Flaw::Damaged, format!("a value is {word:?}: no number"))),
        }
    }
    enough(values, count)
}

/// Plain files that end early are refused whatever the options say, as in Pillow.
fn enough<T>(values: Vec<T>, count: usize) -> Result<Vec<T>, ImageError> {
    if values.len() < count {
        let message = format!(
            "the file ends early: {} of {} values are there",
            with_commas(values.len()),
            with_commas(count)
        );
        return Err(error(Flaw::Truncated, message));
    }
    Ok(values)
}
