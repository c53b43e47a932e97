//! GIF, with frames composed as Pillow composes them: the first in its own colours, those behind it on a canvas of RGB or RGBA.

use super::bytes::{le16, mapped};
use super::format::with_commas;
use super::pixels::{Pixels, Raw, Transparency};
use super::{Flaw, Format, Image, ImageError, Info, Mode, Options, Truncated, check_frame, check_size};

type Palette = Vec<[u8; 3]>;

/// Where a frame stands on the canvas.
#[derive(Debug, Clone, Copy)]
struct Place {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

/// One frame, its pixels still compressed.
#[derive(Debug, Clone)]
struct Frame {
    place: Place,
    /// None where the colours are those of gray by number.
    palette: Option<Palette>,
    transparent: Option<u8>,
    /// 0 and 1: stays; 2: background; 3: what was before.
    disposal: u8,
    interlaced: bool,
    /// Bits of the first codes.
    bits: u8,
    /// Where the blocks of codes begin.
    data: usize,
}

/// The file, as a walk over its blocks finds it.
#[derive(Debug)]
struct Gif {
    width: usize,
    height: usize,
    background: u8,
    frames: Vec<Frame>,
}

fn error(flaw: Flaw, message: impl Into<String>) -> ImageError {
    ImageError::new(flaw, Format::Gif, message)
}

fn short() -> ImageError {
    error(Flaw::Truncated, "the file ends early within the header")
}

/// A palette, unless it maps each number to itself as gray.
fn palette(bytes: &[u8], at: usize, colours: usize) -> Option<Palette> {
    let end = (at + colours * 3).min(bytes.len());
    let palette: Palette = bytes[at.min(end)..end]
        .chunks_exact(3)
        .map(|c| [c[0], c[1], c[2]])
        .collect();
    let gray = palette
        .iter()
        .enumerate()
        .all(|(i, colour)| colour.iter().all(|v| usize::from(*v) == i));
    (!gray).then_some(palette)
}

/// Behind the blocks that begin at `at`.
fn behind_blocks(bytes: &[u8], mut at: usize) -> usize {
    while let Some(&len) = bytes.get(at) {
        at += 1 + usize::from(len);
        if len == 0 {
            break;
        }
    }
    at
}

impl Gif {
    /// Walks over the file up to frame `last`.
    fn read(bytes: &[u8], last: u32) -> Result<Self, ImageError> {
        let half = |at| le16(bytes, at).map(usize::from).ok_or_else(short);
        let (width, height, flags) = (half(6)?, half(8)?, *bytes.get(10).ok_or_else(short)?);
        let mut gif = Self {
            width,
            height,
            background: 0,
            frames: Vec::new(),
        };
        let mut at = 13;
        let mut global = None;
        if flags & 0x80 != 0 {
            gif.background = *bytes.get(11).ok_or_else(short)?;
            let colours = 2 << (flags & 7);
            global = palette(bytes, at, colours);
            at += colours * 3;
        }
        let mut disposal = 0;
        let mut transparent = None;
        // What a decoder meets where nothing is left is the end, as in Pillow.
        while gif.frames.len() <= last as usize {
            match bytes.get(at) {
                None | Some(b';') => break,
                Some(b'!') => {
                    let label = bytes.get(at + 1).copied();
                    if let (Some(0xf9), Some([_, flags, _, _, index, ..])) = (label, bytes.get(at + 2..)) {
                        transparent = if flags & 1 != 0 { Some(*index) } else { transparent };
                        // Kept from frame to frame where nothing is said.
                        disposal = if (flags >> 2) & 7 != 0 {
                            (flags >> 2) & 7
                        } else {
                            disposal
                        };
                    }
                    at = behind_blocks(bytes, at + 2);
                }
                Some(b',') => {
                    let Some(head) = bytes.get(at + 1..at + 10) else { break };
                    let number = |i: usize| usize::from(u16::from_le_bytes([head[i], head[i + 1]]));
                    let flags = head[8];
                    at += 10;
                    let mut own = global.clone();
                    if flags & 0x80 != 0 {
                        let colours = 2 << (flags & 7);
                        own = palette(bytes, at, colours);
                        at += colours * 3;
                    }
                    let Some(&bits) = bytes.get(at) else { break };
                    gif.frames.push(Frame {
                        place: Place {
                            x: number(0),
                            y: number(2),
                            width: number(4),
                            height: number(6),
                        },
                        palette: own,
                        transparent: transparent.take(),
                        disposal,
                        interlaced: flags & 0x40 != 0,
                        bits,
                        data: at + 1,
                    });
                    at = behind_blocks(bytes, at + 1);
                }
                Some(_) => at += 1,
            }
        }
        match gif.frames.first().map(|frame| frame.place) {
            None => Err(error(Flaw::Damaged, "there is no image in it")),
            // A first frame beyond the screen makes the screen larger.
            Some(place) => {
                gif.width = gif.width.max(place.x + place.width);
                gif.height = gif.height.max(place.y + place.height);
                Ok(gif)
            }
        }
    }

    fn size(&self) -> (u32, u32) {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        (number(self.width), number(self.height))
    }
}

pub(super) fn info(bytes: &[u8]) -> Result<Info, ImageError> {
    let gif = Gif::read(bytes, u32::MAX - 1)?;
    let (width, height) = gif.size();
    Ok(Info {
        format: Format::Gif,
        width,
        height,
        mode: if gif.frames[0].palette.is_some() {
            Mode::Palette
        } else {
            Mode::Gray
        },
        frames: u32::try_from(gif.frames.len()).unwrap_or(u32::MAX),
        orientation: 1,
    })
}

pub(super) fn decode(bytes: &[u8], options: &Options) -> Result<Image, ImageError> {
    let gif = Gif::read(bytes, options.frame)?;
    check_frame(
        Format::Gif,
        u32::try_from(gif.frames.len()).unwrap_or(u32::MAX),
        options,
    )?;
    let (width, height) = gif.size();
    check_size(Format::Gif, width, height, options)?;
    let mut canvas = Canvas::first(bytes, &gif, options)?;
    for frame in &gif.frames[1..=options.frame as usize] {
        canvas.next(bytes, &gif, frame, options)?;
    }
    canvas.into_raw().converted(Format::Gif, options)
}

/// What is drawn on.
#[derive(Debug)]
enum Surface {
    /// Indices: of the first frame, and of those behind it while it is gray.
    Indexed(Vec<u8>),
    /// RGBA; the flag says whether alpha counts.
    Colours(Vec<[u8; 4]>, bool),
}

/// What is put back before the next frame.
#[derive(Debug)]
enum Disposal {
    Keep,
    Index(u8),
    Colour([u8; 4]),
    Indices(Vec<u8>),
    Pixels(Vec<[u8; 4]>),
}

#[derive(Debug)]
struct Canvas {
    width: usize,
    height: usize,
    surface: Surface,
    palette: Option<Palette>,
    /// Whether the frame that was drawn last has colours, which is what Pillow looks at.
    coloured: bool,
    /// The index that the first frame calls transparent, until it has become alpha.
    transparent: Option<u8>,
    disposal: Disposal,
    place: Place,
}

/// The colours of a palette as the canvas takes them.
fn rgba(palette: Option<&Palette>, transparent: Option<u8>) -> Vec<[u8; 4]> {
    (0..=255_u8)
        .map(|i| {
            let [red, green, blue] = match palette {
                Some(palette) => palette.get(usize::from(i)).copied().unwrap_or_default(),
                None => [i; 3],
            };
            [red, green, blue, if transparent == Some(i) { 0 } else { 255 }]
        })
        .collect()
}

/// One colour, as Pillow looks it up for what is disposed of: beyond the palette it is the first.
fn colour(palette: Option<&Palette>, index: u8) -> [u8; 3] {
    match palette {
        Some(palette) => palette
            .get(usize::from(index))
            .or(palette.first())
            .copied()
            .unwrap_or_default(),
        None => [index; 3],
    }
}

fn crop<T: Copy>(pixels: &[T], width: usize, place: Place) -> Vec<T> {
    let rows = (place.y..place.y + place.height).map(|y| &pixels[y * width + place.x..][..place.width]);
    rows.flatten().copied().collect()
}

/// Puts something at each pixel of a place.
fn paste<T: Copy>(pixels: &mut [T], width: usize, place: Place, mut what: impl FnMut(usize) -> Option<T>) {
    for row in 0..place.height {
        let line = &mut pixels[(place.y + row) * width + place.x..][..place.width];
        for (column, pixel) in line.iter_mut().enumerate() {
            if let Some(new) = what(row * place.width + column) {
                *pixel = new;
            }
        }
    }
}

impl Canvas {
    fn first(bytes: &[u8], gif: &Gif, options: &Options) -> Result<Self, ImageError> {
        let frame = &gif.frames[0];
        let len = gif.width * gif.height;
        let mut pixels = vec![frame.transparent.unwrap_or(0); len];
        let drawn = indices(bytes, frame, frame.transparent.unwrap_or(0), options)?;
        paste(&mut pixels, gif.width, frame.place, |i| Some(drawn[i]));
        let disposal = match (frame.disposal, frame.transparent) {
            (2.., Some(index)) => Disposal::Index(index),
            (2, None) => Disposal::Index(gif.background),
            _ => Disposal::Keep,
        };
        Ok(Self {
            width: gif.width,
            height: gif.height,
            surface: Surface::Indexed(pixels),
            palette: frame.palette.clone(),
            coloured: frame.palette.is_some(),
            transparent: frame.transparent,
            disposal,
            place: frame.place,
        })
    }

    /// Takes away what the frame before wants taken away.
    fn dispose(&mut self) {
        let (width, place) = (self.width, self.place);
        match (&mut self.surface, std::mem::replace(&mut self.disposal, Disposal::Keep)) {
            (Surface::Indexed(pixels), Disposal::Index(index)) => paste(pixels, width, place, |_| Some(index)),
            (Surface::Indexed(pixels), Disposal::Indices(old)) => paste(pixels, width, place, |i| Some(old[i])),
            (Surface::Colours(pixels, _), Disposal::Colour(colour)) => paste(pixels, width, place, |_| Some(colour)),
            (Surface::Colours(pixels, _), Disposal::Pixels(old)) => paste(pixels, width, place, |i| Some(old[i])),
            _ => {}
        }
    }

    fn next(&mut self, bytes: &[u8], gif: &Gif, frame: &Frame, options: &Options) -> Result<(), ImageError> {
        let place = frame.place;
        if place.x + place.width > self.width || place.y + place.height > self.height {
            let size = (
                self.width.max(place.x + place.width),
                self.height.max(place.y + place.height),
            );
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            check_size(Format::Gif, number(size.0), number(size.1), options)?;
            self.dispose();
            self.grow(size, frame.transparent.is_some());
        }
        self.dispose();
        // The canvas gets colours with the second frame, unless the first is gray.
        if let (Surface::Indexed(pixels), true) = (&self.surface, self.palette.is_some() || self.coloured) {
            let table = rgba(self.palette.as_ref(), self.transparent);
            let colours = pixels.iter().map(|index| table[usize::from(*index)]).collect();
            self.surface = Surface::Colours(colours, self.transparent.is_some());
            self.transparent = None;
        }
        let own = frame.palette.as_ref();
        self.coloured = own.is_some();
        self.disposal = match (&self.surface, frame.disposal) {
            (_, 0 | 1) => Disposal::Keep,
            (Surface::Indexed(_), 2) => {
                Disposal::Index(self.transparent.or(frame.transparent).unwrap_or(gif.background))
            }
            (Surface::Colours(..), 2) => {
                let index = self.transparent.or(frame.transparent);
                let [red, green, blue] = colour(own, index.unwrap_or(gif.background));
                Disposal::Colour([red, green, blue, if index.is_some() { 0 } else { 255 }])
            }
            (Surface::Indexed(pixels), _) => Disposal::Indices(crop(pixels, self.width, place)),
            (Surface::Colours(pixels, _), _) => Disposal::Pixels(crop(pixels, self.width, place)),
        };
        self.place = place;
        let drawn = indices(bytes, frame, frame.transparent.unwrap_or(0), options)?;
        let seen = |i: usize| (frame.transparent != Some(drawn[i])).then(|| drawn[i]);
        match &mut self.surface {
            Surface::Indexed(pixels) => paste(pixels, self.width, place, seen),
            Surface::Colours(pixels, _) => {
                let table = rgba(own, None);
                paste(pixels, self.width, place, |i| Some(table[usize::from(seen(i)?)]));
            }
        }
        Ok(())
    }

    /// A frame beyond the canvas makes it larger.
    fn grow(&mut self, (width, height): (usize, usize), clear: bool) {
        let place = Place {
            x: 0,
            y: 0,
            width: self.width,
            height: self.height,
        };
        match &mut self.surface {
            Surface::Indexed(pixels) => {
                let old = std::mem::replace(pixels, vec![0; width * height]);
                paste(pixels, width, place, |i| Some(old[i]));
            }
            Surface::Colours(pixels, _) => {
                let empty = if clear { [0; 4] } else { [0, 0, 0, 255] };
                let old = std::mem::replace(pixels, vec![empty; width * height]);
                paste(pixels, width, place, |i| Some(old[i]));
            }
        }
        (self.width, self.height) = (width, height);
    }

    fn into_raw(self) -> Raw {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (width, height) = (number(self.width), number(self.height));
        match self.surface {
            Surface::Colours(pixels, true) => Raw::new(width, height, Mode::Rgba, Pixels::U8(pixels.into_flattened())),
            Surface::Colours(pixels, false) => {
                let colours = mapped(pixels.as_flattened(), |&[red, green, blue, _]| [red, green, blue]);
                Raw::new(width, height, Mode::Rgb, Pixels::U8(colours))
            }
            Surface::Indexed(pixels) => {
                // A gray image on which a frame with colours was drawn is gray, and called a palette.
                let mode = if self.coloured { Mode::Palette } else { Mode::Gray };
                let mut raw = Raw::new(width, height, mode, Pixels::U8(pixels));
                raw.transparency = self.transparent.map(|index| match mode {
                    Mode::Gray => Transparency::Gray(u16::from(index)),
                    _ => Transparency::Alphas(rgba(None, Some(index)).iter().map(|c| c[3]).collect()),
                });
                raw.palette = match self.palette {
                    Some(palette) => palette.iter().map(|c| [c[0], c[1], c[2], 255]).collect(),
                    None => rgba(None, None),
                };
                raw
            }
        }
    }
}

/// The pixels of a frame, `empty` where the data end.
fn indices(bytes: &[u8], frame: &Frame, empty: u8, options: &Options) -> Result<Vec<u8>, ImageError> {
    let Place { width, height, .. } = frame.place;
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    if width == 0 || height == 0 {
        return Ok(Vec::new());
    }
    check_size(Format::Gif, number(width), number(height), options)?;
    let mut codes = Codes::new(bytes, frame);
    let mut pixels = Vec::with_capacity(width * height);
    let result = codes.run(width * height, &mut pixels);
    if options.truncated == Truncated::Refuse {
        let of = format!(
            "{} of {} rows are whole",
            with_commas(pixels.len() / width),
            with_commas(height)
        );
        match result {
            Ok(()) => {}
            Err(Flaw::Truncated) => return Err(error(Flaw::Truncated, format!("the file ends early: {of}"))),
            Err(flaw) => return Err(error(flaw, format!("the compressed pixels are damaged: {of}"))),
        }
    }
    pixels.resize(width * height, empty);
    if !frame.interlaced {
        return Ok(pixels);
    }
    let mut sorted = vec![empty; width * height];
    let order = [(0, 8), (4, 8), (2, 4), (1, 2)];
    let lines = order.iter().flat_map(|(first, step)| (*first..height).step_by(*step));
    for (line, row) in lines.zip(pixels.chunks_exact(width)) {
        sorted[line * width..(line + 1) * width].copy_from_slice(row);
    }
    Ok(sorted)
}

/// LZW with codes that grow, in blocks of up to 255 bytes.
struct Codes<'a> {
    bytes: &'a [u8],
    at: usize,
    /// What is left of the present block.
    block: usize,
    buffer: u32,
    filled: u32,
    bits: u8,
}

const MOST: usize = 4096;

impl<'a> Codes<'a> {
    fn new(bytes: &'a [u8], frame: &Frame) -> Self {
        Self {
            bytes,
            at: frame.data,
            block: 0,
            buffer: 0,
            filled: 0,
            bits: frame.bits,
        }
    }

    fn code(&mut self, size: u32) -> Option<usize> {
        while self.filled < size {
            if self.block == 0 {
                let len = usize::from(*self.bytes.get(self.at)?);
                // A block counts when it is whole.
                self.bytes.get(self.at + 1..self.at + 1 + len)?;
                (self.block, self.at) = (len, self.at + 1);
                continue;
            }
            self.buffer |= u32::from(self.bytes[self.at]) << self.filled;
            (self.at, self.block, self.filled) = (self.at + 1, self.block - 1, self.filled + 8);
        }
        let code = self.buffer & ((1 << size) - 1);
        self.buffer >>= size;
        self.filled -= size;
        usize::try_from(code).ok()
    }

    /// Decodes `len` pixels.
    fn run(&mut self, len: usize, out: &mut Vec<u8>) -> Result<(), Flaw> {
        if self.bits > 12 {
            return Err(Flaw::Damaged);
        }
        let clear = 1_usize << self.bits;
        let end = clear + 1;
        // Each code is a piece of what was written before: where it begins, and its length.
        let mut table = vec![(0_usize, 0_usize); MOST];
        let first_size = u32::from(self.bits) + 1;
        let (mut size, mut next) = (first_size, end + 1);
        let mut last: Option<(usize, usize)> = None;
        while out.len() < len {
            let code = self.code(size).ok_or(Flaw::Truncated)?;
            if code == clear {
                (size, next, last) = (first_size, end + 1, None);
                continue;
            }
            if code == end {
                return Err(Flaw::Truncated);
            }
            let from = out.len();
            match last {
                _ if code < clear => out.push(u8::try_from(code & 0xff).unwrap_or(0)),
                Some((start, run)) if code == next && next < MOST => {
                    out.extend_from_within(start..start + run);
                    out.push(out[start]);
                }
                Some(_) if code < next => {
                    let (start, run) = table[code];
                    out.extend_from_within(start..start + run);
                }
                _ => return Err(Flaw::Damaged),
            }
            if let Some((start, run)) = last
                && next < MOST
            {
                table[next] = (start, run + 1);
                if next == (1 << size) - 1 && size < 12 {
                    size += 1;
                }
                next += 1;
            }
            last = Some((from, out.len() - from));
        }
        out.truncate(len);
        Ok(())
    }
}
