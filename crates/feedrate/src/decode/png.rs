//! PNG: our own reader over `flate2`, since what Pillow makes of damaged and truncated files follows from when a row is whole.

use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::bytes::{be32, unpack};
use super::format::with_commas;
use super::pixels::{Pixels, Raw, Transparency};
use super::{Flaw, Format, Image, ImageError, Info, Mode, Options, Truncated, check_frame, check_size, exif};

/// What stands before the pixels.
#[derive(Debug)]
struct Header<'a> {
    width: u32,
    height: u32,
    /// Bits of a channel.
    bits: u8,
    mode: Mode,
    interlaced: bool,
    palette: Vec<[u8; 4]>,
    transparency: Option<Transparency>,
    exif: Option<&'a [u8]>,
    xmp: Option<&'a [u8]>,
    /// Where the first chunk of pixels begins.
    pixels: usize,
}

fn damaged(message: impl Into<String>) -> ImageError {
    ImageError::new(Flaw::Damaged, Format::Png, message)
}

fn truncated() -> ImageError {
    ImageError::new(Flaw::Truncated, Format::Png, "the file ends early within the header")
}

/// A chunk: its name, its data as far as they are there, its length as it says, and where the next one begins.
fn chunk(bytes: &[u8], at: usize) -> Option<([u8; 4], &[u8], usize, usize)> {
    let len = usize::try_from(be32(bytes, at)?).ok()?;
    let name = bytes.get(at + 4..at + 8)?.try_into().ok()?;
    let data = &bytes[at + 8..(at + 8).saturating_add(len).min(bytes.len())];
    Some((name, data, len, at.saturating_add(12).saturating_add(len)))
}

impl<'a> Header<'a> {
    fn read(bytes: &'a [u8], lenient: bool) -> Result<Self, ImageError> {
        let mut header: Option<Self> = None;
        let mut at = 8;
        loop {
            let (name, data, len, next) = chunk(bytes, at).ok_or_else(truncated)?;
            let text = String::from_utf8_lossy(&name).into_owned();
            if !name
                .iter()
                .all(|letter| letter.is_ascii_alphanumeric() || *letter == b'_')
            {
                return Err(damaged(format!("there is no chunk at byte {at}: {name:?} is no name")));
            }
            if name == *b"IDAT" {
                let mut header = header.ok_or_else(|| damaged("the pixels come before the header"))?;
                header.pixels = at;
                return Ok(header);
            }
            if name == *b"IEND" {
                return Err(damaged("there are no pixels in it"));
            }
            if data.len() < len {
                return Err(truncated());
            }
            let ancillary = name[0] & 0x20 != 0;
            if !(lenient && ancillary) {
                let stored = be32(bytes, at + 8 + len).ok_or_else(truncated)?;
                let mut sum = Crc::new();
                sum.update(&bytes[at + 4..at + 8 + len]);
                if sum.sum() != stored {
                    return Err(damaged(format!("the checksum of the chunk {text} does not fit")));
                }
            }
            match (&name, &mut header) {
                (b"IHDR", _) => header = Some(Self::begin(data)?),
                (b"PLTE", Some(header)) if header.mode == Mode::Palette => {
                    header.palette = data.chunks_exact(3).map(|c| [c[0], c[1], c[2], 255]).collect();
                }
                (b"tRNS", Some(header)) => header.transparency(data, lenient)?,
                (b"eXIf", Some(header)) => header.exif = Some(data),
                (b"iTXt", Some(header)) => header.xmp = xmp(data).or(header.xmp),
                _ => {}
            }
            at = next;
        }
    }

    fn begin(data: &[u8]) -> Result<Self, ImageError> {
        let [.., bits, colour, _, filter, interlace] = *data.get(..13).ok_or_else(truncated)? else {
            return Err(truncated());
        };
        let mode = match (bits, colour) {
            (1, 0) => Mode::Bilevel,
            (2 | 4 | 8, 0) => Mode::Gray,
            (16, 0) => Mode::Gray16,
            (8, 2) => Mode::Rgb,
            (16, 2) => Mode::Rgb16,
            (1 | 2 | 4 | 8, 3) => Mode::Palette,
            (8, 4) => Mode::GrayAlpha,
            (16, 4) => Mode::GrayAlpha16,
            (8, 6) => Mode::Rgba,
            (16, 6) => Mode::Rgba16,
            _ => {
                return Err(damaged(format!(
                    "{bits} bits and colour type {colour} do not go together"
                )));
            }
        };
        if filter != 0 {
            return Err(damaged(format!(
                "it says that its filters are of kind {filter}, of which there is only 0"
            )));
        }
        Ok(Self {
            width: be32(data, 0).unwrap_or(0),
            height: be32(data, 4).unwrap_or(0),
            bits,
            mode,
            interlaced: interlace != 0,
            palette: Vec::new(),
            transparency: None,
            exif: None,
            xmp: None,
            pixels: 0,
        })
    }

    fn transparency(&mut self, data: &[u8], lenient: bool) -> Result<(), ImageError> {
        let value = |i: usize| Some(u16::from_be_bytes([*data.get(i * 2)?, *data.get(i * 2 + 1)?]));
        let found = match self.mode {
            Mode::Palette => Some(Transparency::Alphas(data.to_vec())),
            Mode::Bilevel => value(0).map(|gray| Transparency::Gray(if gray == 0 { 0 } else { 255 })),
            Mode::Gray | Mode::Gray16 => value(0).map(Transparency::Gray),
            Mode::Rgb | Mode::Rgb16 => {
                let colour = (value(0), value(1), value(2));
                match colour {
                    (Some(red), Some(green), Some(blue)) => Some(Transparency::Colour([red, green, blue])),
                    _ => None,
                }
            }
            _ => return Ok(()),
        };
        if found.is_none() && !lenient {
            return Err(damaged("the chunk tRNS is too short"));
        }
        self.transparency = found;
        Ok(())
    }

    fn channels(&self) -> usize {
        match self.mode {
            Mode::GrayAlpha | Mode::GrayAlpha16 => 2,
            Mode::Rgb | Mode::Rgb16 => 3,
            Mode::Rgba | Mode::Rgba16 => 4,
            _ => 1,
        }
    }

    /// Bytes of a row of so many pixels, without its filter.
    fn row(&self, width: usize) -> usize {
        (width * self.channels() * usize::from(self.bits)).div_ceil(8)
    }
}

/// The text of an XMP chunk, if it is one and not compressed.
fn xmp(data: &[u8]) -> Option<&[u8]> {
    let rest = data.strip_prefix(b"XML:com.adobe.xmp\0")?;
    if *rest.first()? != 0 {
        return None;
    }
    let mut rest = rest.get(2..)?;
    for _ in 0..2 {
        rest = &rest[memchr::memchr(0, rest)? + 1..];
    }
    Some(rest)
}

pub(super) fn info(bytes: &[u8]) -> Result<Info, ImageError> {
    let header = Header::read(bytes, false)?;
    Ok(Info {
        format: Format::Png,
        width: header.width,
        height: header.height,
        mode: header.mode,
        frames: 1,
        orientation: orientation(bytes, &header),
    })
}

/// EXIF's orientation, whether it stands before the pixels or behind them.
fn orientation(bytes: &[u8], header: &Header<'_>) -> u8 {
    let (mut block, mut text) = (header.exif, header.xmp);
    let mut at = header.pixels;
    while let Some((name, data, _, next)) = chunk(bytes, at) {
        match &name {
            b"eXIf" => block = Some(data),
            b"iTXt" => text = xmp(data).or(text),
            b"IEND" => break,
            _ => {}
        }
        at = next;
    }
    let found = block.and_then(exif::orientation);
    found.or_else(|| exif::orientation_of_xmp(text?)).unwrap_or(1)
}

pub(super) fn decode(bytes: &[u8], options: &Options) -> Result<Image, ImageError> {
    let fill = options.truncated == Truncated::Fill;
    let header = Header::read(bytes, fill)?;
    check_frame(Format::Png, 1, options)?;
    check_size(Format::Png, header.width, header.height, options)?;
    let pixels = pixels(bytes, &header, fill)?;
    let turn = if options.orientation {
        orientation(bytes, &header)
    } else {
        1
    };
    let mut raw = Raw::new(header.width, header.height, header.mode, pixels);
    raw.palette = header.palette;
    raw.transparency = header.transparency;
    Ok(raw.converted(Format::Png, options)?.oriented(turn))
}

/// What inflating stopped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The place is full.
    Full,
    /// The data are over.
    Short,
    /// The data are no zlib stream.
    Broken,
}

/// The stream that lies in the chunks of pixels.
struct Inflater<'a> {
    bytes: &'a [u8],
    /// What is left of the present chunk.
    data: &'a [u8],
    next: usize,
    zlib: Decompress,
}

impl<'a> Inflater<'a> {
    fn new(bytes: &'a [u8], at: usize) -> Self {
        Self {
            bytes,
            data: &[],
            next: at,
            zlib: Decompress::new(true),
        }
    }

    /// Fills `out`; says how much it could.
    fn fill(&mut self, out: &mut [u8]) -> (usize, Stop) {
        let mut done = 0;
        while done < out.len() {
            if self.data.is_empty() {
                let Some((name, data, _, next)) = chunk(self.bytes, self.next) else {
                    return (done, Stop::Short);
                };
                if name != *b"IDAT" {
                    return (done, Stop::Short);
                }
                (self.data, self.next) = (data, next);
                continue;
            }
            let (read, made) = (self.zlib.total_in(), self.zlib.total_out());
            let status = self.zlib.decompress(self.data, &mut out[done..], FlushDecompress::None);
            let read = usize::try_from(self.zlib.total_in() - read).unwrap_or(0);
            let made = usize::try_from(self.zlib.total_out() - made).unwrap_or(0);
            self.data = &self.data[read..];
            done += made;
            match status {
                Ok(Status::StreamEnd) if done < out.len() => return (done, Stop::Short),
                Ok(Status::BufError) if read == 0 && made == 0 => return (done, Stop::Short),
                Err(_) if done < out.len() => return (done, Stop::Broken),
                // The checksum of a stream whose rows are all there is not looked at, as in Pillow.
                Ok(_) | Err(_) => {}
            }
        }
        (done, Stop::Full)
    }
}

/// Where decoded rows go.
enum Sink {
    Bytes(Vec<u8>),
    Words(Vec<u16>),
}

/// All pixels in the mode of the file.
fn pixels(bytes: &[u8], header: &Header<'_>, fill: bool) -> Result<Pixels, ImageError> {
    let (width, height) = (header.width as usize, header.height as usize);
    let len = width * height * header.channels();
    let mut sink = if header.bits == 16 {
        Sink::Words(Vec::with_capacity(len))
    } else {
        Sink::Bytes(Vec::with_capacity(len))
    };
    let mut stream = Inflater::new(bytes, header.pixels);
    let (rows, stop) = if header.interlaced {
        let (rows, stop) = interlaced(&mut stream, header, &mut sink);
        (rows.min(height), stop)
    } else {
        rows(&mut stream, header, width, height, |row| {
            append(header, row, width, &mut sink);
        })
    };
    if stop != Stop::Full && !fill {
        let rows = with_commas(rows);
        let of = with_commas(height);
        return Err(match stop {
            Stop::Broken => damaged(format!(
                "the compressed pixels are damaged: {rows} of {of} rows are whole"
            )),
            _ => ImageError::new(
                Flaw::Truncated,
                Format::Png,
                format!("the file ends early: {rows} of {of} rows are whole"),
            ),
        });
    }
    Ok(match sink {
        Sink::Bytes(mut values) => {
            values.resize(len, 0);
            Pixels::U8(values)
        }
        Sink::Words(mut values) => {
            values.resize(len, 0);
            Pixels::U16(values)
        }
    })
}

/// Takes `height` rows of `width` pixels out of the stream; gives how many came.
fn rows(
    stream: &mut Inflater<'_>,
    header: &Header<'_>,
    width: usize,
    height: usize,
    mut each: impl FnMut(&[u8]),
) -> (usize, Stop) {
    /// So much is inflated at a time: little enough for the caches.
    const BLOCK: usize = 64 << 10;
    let line = header.row(width) + 1;
    let back = (header.channels() * usize::from(header.bits)).div_ceil(8);
    let at_once = (BLOCK / line).clamp(1, height.max(1));
    // The row before those of the block stands at its beginning.
    let mut block = vec![0_u8; line * (at_once + 1)];
    let mut y = 0;
    while y < height {
        let wanted = at_once.min(height - y);
        let (made, stop) = stream.fill(&mut block[line..line * (wanted + 1)]);
        let whole = made / line;
        for row in 1..=whole {
            let (before, rest) = block[line * (row - 1)..].split_at_mut(line);
            if !unfilter(rest[0], back, &before[1..], &mut rest[1..line]) {
                return (y, Stop::Broken);
            }
            each(&rest[1..line]);
            y += 1;
        }
        if stop != Stop::Full {
            return (y, stop);
        }
        block.copy_within(line * wanted..line * (wanted + 1), 0);
    }
    (y, Stop::Full)
}

/// Adds a row as it is stored to what is decoded.
fn append(header: &Header<'_>, row: &[u8], width: usize, sink: &mut Sink) {
    match sink {
        Sink::Words(values) => values.extend(row.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))),
        Sink::Bytes(values) => match (header.bits, header.mode) {
            (8, _) => values.extend_from_slice(row),
            (bits, Mode::Palette) => unpack(row, usize::from(bits), width, values, |v| v),
            (bits, _) => {
                let most = 0xff_u8 >> (8 - bits);
                unpack(row, usize::from(bits), width, values, |v| v * (255 / most));
            }
        },
    }
}

/// Adam7: seven passes over ever denser grids.
fn interlaced(stream: &mut Inflater<'_>, header: &Header<'_>, sink: &mut Sink) -> (usize, Stop) {
    const PASSES: [(usize, usize, usize, usize); 7] = [
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ];
    let (width, height, channels) = (header.width as usize, header.height as usize, header.channels());
    match sink {
        Sink::Bytes(values) => values.resize(width * height * channels, 0),
        Sink::Words(values) => values.resize(width * height * channels, 0),
    }
    let mut whole = 0;
    for (left, top, across, down) in PASSES {
        let columns = width.saturating_sub(left).div_ceil(across);
        let lines = height.saturating_sub(top).div_ceil(down);
        if columns == 0 || lines == 0 {
            continue;
        }
        let mut y = top;
        let (_, stop) = rows(stream, header, columns, lines, |row| {
            let mut one = match sink {
                Sink::Bytes(_) => Sink::Bytes(Vec::with_capacity(columns * channels)),
                Sink::Words(_) => Sink::Words(Vec::with_capacity(columns * channels)),
            };
            append(header, row, columns, &mut one);
            match (&mut *sink, &one) {
                (Sink::Bytes(values), Sink::Bytes(row)) => spread(values, row, (y * width + left, across), channels),
                (Sink::Words(values), Sink::Words(row)) => spread(values, row, (y * width + left, across), channels),
                _ => {}
            }
            y += down;
        });
        if stop != Stop::Full {
            return (whole, stop);
        }
        if down == 2 && top == 1 {
            whole = height;
        }
    }
    (whole, Stop::Full)
}

/// Puts the pixels of a row at their places: the first at `at`, each next one `step` further on.
fn spread<T: Copy>(values: &mut [T], row: &[T], (at, step): (usize, usize), channels: usize) {
    for (i, pixel) in row.chunks_exact(channels).enumerate() {
        let place = (at + i * step) * channels;
        values[place..place + channels].copy_from_slice(pixel);
    }
}

/// Undoes the filter of a row; false for a filter that does not exist. `back` is the number of bytes to the pixel before.
fn unfilter(filter: u8, back: usize, before: &[u8], row: &mut [u8]) -> bool {
    match (filter, back) {
        (0, _) => {}
        (2, _) => {
            for (value, above) in row.iter_mut().zip(before) {
                *value = value.wrapping_add(*above);
            }
        }
        (1, 1) => sub::<1>(row),
        (1, 2) => sub::<2>(row),
        (1, 3) => sub::<3>(row),
        (1, 4) => sub::<4>(row),
        (1, 6) => sub::<6>(row),
        (1, _) => sub::<8>(row),
        (3, 1) => average::<1>(before, row),
        (3, 2) => average::<2>(before, row),
        (3, 3) => average::<3>(before, row),
        (3, 4) => average::<4>(before, row),
        (3, 6) => average::<6>(before, row),
        (3, _) => average::<8>(before, row),
        (4, 1) => paeth::<1>(before, row),
        (4, 2) => paeth::<2>(before, row),
        (4, 3) => paeth::<3>(before, row),
        (4, 4) => paeth::<4>(before, row),
        (4, 6) => paeth::<6>(before, row),
        (4, _) => paeth::<8>(before, row),
        _ => return false,
    }
    true
}

fn sub<const N: usize>(row: &mut [u8]) {
    let mut left = [0_u8; N];
    for pixel in row.chunks_exact_mut(N) {
        for (value, left) in pixel.iter_mut().zip(&mut left) {
            *value = value.wrapping_add(*left);
            *left = *value;
        }
    }
}

fn average<const N: usize>(before: &[u8], row: &mut [u8]) {
    let mut left = [0_u8; N];
    for (pixel, above) in row.chunks_exact_mut(N).zip(before.chunks_exact(N)) {
        for ((value, above), left) in pixel.iter_mut().zip(above).zip(&mut left) {
            *value = value.wrapping_add(u8::midpoint(*left, *above));
            *left = *value;
        }
    }
}

fn paeth<const N: usize>(before: &[u8], row: &mut [u8]) {
    let (mut left, mut corner) = ([0_i16; N], [0_i16; N]);
    for (pixel, above) in row.chunks_exact_mut(N).zip(before.chunks_exact(N)) {
        for i in 0..N {
            let (a, b, c) = (left[i], i16::from(above[i]), corner[i]);
            // How far each of the three is from a + b - c.
            let (pa, pb) = (b - c, a - c);
            let pc = (pa + pb).abs();
            let (pa, pb) = (pa.abs(), pb.abs());
            let (near, far) = if pb <= pc { (b, pb) } else { (c, pc) };
            let chosen = if pa <= pb && pa <= far.min(pc) { a } else { near };
            let [low, _] = chosen.to_le_bytes();
            pixel[i] = pixel[i].wrapping_add(low);
            left[i] = i16::from(pixel[i]);
            corner[i] = b;
        }
    }
}

/// Writes a PNG of 8-bit pixels: 1 (gray), 3 (RGB) or 4 (RGBA) channels, rows without padding.
///
/// For contact sheets: filtered by differences to the row above, compressed at the default level.
pub fn write_png(pixels: &[u8], width: u32, height: u32, channels: u8) -> Result<Vec<u8>, String> {
    let colour = match channels {
        1 => 0,
        3 => 2,
        4 => 6,
        other => return Err(format!("a PNG has 1, 3 or 4 channels here, not {other}")),
    };
    let row = width as usize * usize::from(channels);
    if row == 0 || height == 0 || row.checked_mul(height as usize) != Some(pixels.len()) {
        return Err(format!(
            "{} bytes are not {width} x {height} pixels of {channels} channels",
            pixels.len()
        ));
    }
    let mut filtered = Vec::with_capacity(pixels.len() + height as usize);
    let mut before = vec![0; row];
    for line in pixels.chunks_exact(row) {
        filtered.push(2);
        filtered.extend(
            line.iter()
                .zip(&before)
                .map(|(value, above)| value.wrapping_sub(*above)),
        );
        before.copy_from_slice(line);
    }
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    let packed = std::io::Write::write_all(&mut packed, &filtered).and_then(|()| packed.finish());
    let packed = packed.map_err(|error| error.to_string())?;
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = Vec::new();
    header.extend_from_slice(&width.to_be_bytes());
    header.extend_from_slice(&height.to_be_bytes());
    header.extend_from_slice(&[8, colour, 0, 0, 0]);
    for (name, data) in [(b"IHDR", &header), (b"IDAT", &packed), (b"IEND", &Vec::new())] {
        let len = u32::try_from(data.len()).map_err(|_| "a PNG of more than 4 GiB".to_owned())?;
        png.extend_from_slice(&len.to_be_bytes());
        let from = png.len();
        png.extend_from_slice(name);
        png.extend_from_slice(data);
        let mut sum = Crc::new();
        sum.update(&png[from..]);
        png.extend_from_slice(&sum.sum().to_be_bytes());
    }
    Ok(png)
}
