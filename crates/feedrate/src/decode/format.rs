//! Which format bytes have: by their content, never by a name.

use std::fmt;

use super::{Flaw, ImageError};

/// A format that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// JPEG: baseline, progressive, arithmetic; gray, YCbCr, RGB, CMYK and YCCK.
    Jpeg,
    /// PNG, of every colour type and depth.
    Png,
    /// WebP: lossy, lossless, animated.
    WebP,
    /// GIF, animated or not.
    Gif,
    /// Windows bitmaps.
    Bmp,
    /// TIFF: 1 to 32 bits, whole numbers and floats, many pages.
    Tiff,
    /// PBM, PGM, PPM and PFM, plain and raw.
    Pnm,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Jpeg,
        Self::Png,
        Self::WebP,
        Self::Gif,
        Self::Bmp,
        Self::Tiff,
        Self::Pnm,
    ];

    /// The format of these bytes, by their first 32 at most.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let starts = |prefix: &[u8]| bytes.starts_with(prefix);
        if starts(b"\xff\xd8\xff") {
            Some(Self::Jpeg)
        } else if starts(b"\x89PNG\r\n\x1a\n") {
            Some(Self::Png)
        } else if starts(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Some(Self::WebP)
        } else if starts(b"GIF87a") || starts(b"GIF89a") {
            Some(Self::Gif)
        } else if starts(b"BM") && is_bitmap(bytes) {
            Some(Self::Bmp)
        } else if [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"]
            .iter()
            .any(|prefix| starts(*prefix))
        {
            Some(Self::Tiff)
        } else if super::pnm::begins(bytes) {
            Some(Self::Pnm)
        } else {
            None
        }
    }

    /// Its name, as Pillow spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WEBP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
            Self::Pnm => "PPM",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the header behind "BM" has a size that exists: text may begin with these letters.
fn is_bitmap(bytes: &[u8]) -> bool {
    bytes.get(14..18).is_some_and(|size| {
        matches!(
            u32::from_le_bytes([size[0], size[1], size[2], size[3]]),
            12 | 16 | 40 | 52 | 56 | 64 | 108 | 124
        )
    })
}

/// The error for bytes of no known format, with what they look like.
pub(super) fn unknown(bytes: &[u8]) -> ImageError {
    let size = with_commas(bytes.len());
    if bytes.is_empty() {
        return ImageError::new(Flaw::Unknown, None, "no image: 0 bytes");
    }
    if Format::of(b"\xff\xd8\xff") == Some(Format::Jpeg) && bytes.len() < 18 && could_become(bytes) {
        return ImageError::new(Flaw::Truncated, None, format!("the file ends early: {size} bytes"));
    }
    let what = looks_like(bytes);
    ImageError::new(
        Flaw::Unknown,
        None,
        format!(
            "no image of a known format (JPEG, PNG, WebP, GIF, BMP, TIFF, PPM); it looks like {what}, {size} bytes"
        ),
    )
}

/// Whether so few bytes are the beginning of a known format.
fn could_become(bytes: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 9] = [
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"GIF87a",
        b"GIF89a",
        b"RIFF",
        b"BM",
        b"II*\0",
        b"MM\0*",
        b"II+\0",
    ];
    BEGINNINGS.iter().any(|b| b.starts_with(bytes) || bytes.starts_with(b))
}

fn looks_like(bytes: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 22] = [
        (b"%PDF", "PDF"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"\x1f\x8b", "gzip"),
        (b"\x28\xb5\x2f\xfd", "Zstandard"),
        (b"\xfd7zXZ", "xz"),
        (b"7z\xbc\xaf", "a 7z archive"),
        (b"Rar!", "a RAR archive"),
        (b"8BPS", "Photoshop"),
        (b"\0\0\x01\0", "an icon (ICO)"),
        (b"\xff\x0a", "JPEG XL"),
        (b"\0\0\0\x0cJXL ", "JPEG XL"),
        (b"\0\0\0\x0cjP  ", "JPEG 2000"),
        (b"\xff\x4f\xff\x51", "JPEG 2000"),
        (b"v/1\x01", "OpenEXR"),
        (b"DDS ", "DDS"),
        (b"\x93NUMPY", "a NumPy array"),
        (
            b"version https://git-lfs",
            "a Git LFS pointer: the file itself was not fetched",
        ),
        (b"\x1aE\xdf\xa3", "a Matroska video"),
        (b"RIFF", "RIFF (AVI or WAV)"),
        (b"OggS", "Ogg"),
        (b"%!PS", "PostScript"),
        (b"\x7fELF", "a program"),
    ];
    if let Some((_, name)) = KNOWN.iter().find(|(prefix, _)| bytes.starts_with(prefix)) {
        return name;
    }
    if bytes.get(4..8) == Some(b"ftyp") {
        return match bytes.get(8..12) {
            Some(b"avif" | b"avis") => "AVIF",
            Some(b"heic" | b"heix" | b"mif1" | b"msf1" | b"hevc") => "HEIF",
            _ => "an MP4 video",
        };
    }
    if bytes.starts_with(b"P7\n") {
        return "PAM";
    }
    let head = &bytes[..bytes.len().min(1024)];
    if head.iter().all(|byte| *byte == 0) {
        return "zeros";
    }
    let text = String::from_utf8_lossy(head)
        .trim_start_matches('\u{feff}')
        .trim_start()
        .to_lowercase();
    if text.starts_with("<!doctype html")
        || text.starts_with("<html")
        || (text.starts_with('<') && text.contains("<html"))
    {
        "HTML"
    } else if text.starts_with("<svg") || (text.starts_with("<?xml") && text.contains("<svg")) {
        "SVG"
    } else if text.starts_with("<?xml") {
        "XML"
    } else if text.starts_with('{') || text.starts_with('[') {
        "JSON"
    } else if !head.contains(&0) && std::str::from_utf8(&head[..head.len().saturating_sub(3)]).is_ok() {
        "text"
    } else {
        "other binary data"
    }
}

/// `1234` as `1,234`.
pub(super) fn with_commas(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What a pixel is, as Pillow names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One bit; decoded to 0 and 255.
    Bilevel,
    /// 8 bits of gray.
    Gray,
    /// 8 bits of gray, and alpha.
    GrayAlpha,
    /// 8 bits of an index into colours. Decoded to the colours, never to the index.
    Palette,
    /// An index into colours, and alpha.
    PaletteAlpha,
    /// 8 bits for each of three colours.
    Rgb,
    /// Three colours, and alpha.
    Rgba,
    /// Three colours and a byte without meaning.
    Rgbx,
    /// Four inks, 8 bits each, 0 without ink.
    Cmyk,
    /// CIE L*a*b*, 8 bits each.
    Lab,
    /// Luma and two chroma planes, 8 bits each.
    YCbCr,
    /// 16 bits of gray.
    Gray16,
    /// 16 bits for each of three colours. Pillow has no such mode: it keeps the upper 8 bits and says `RGB`.
    Rgb16,
    /// 16 bits for each of three colours, and alpha. Pillow keeps the upper 8 bits and says `RGBA`.
    Rgba16,
    /// 16 bits of gray, and alpha. Pillow keeps the upper 8 bits and says `RGBA`.
    GrayAlpha16,
    /// 32 bits of a whole number with a sign.
    Int32,
    /// 32-bit floats.
    Float32,
}

impl Mode {
    /// The mode that Pillow gives such an image.
    pub fn pillow_name(self) -> &'static str {
        match self {
            Self::Bilevel => "1",
            Self::Gray => "L",
            Self::GrayAlpha => "LA",
            Self::Palette => "P",
            Self::PaletteAlpha => "PA",
            Self::Rgb | Self::Rgb16 => "RGB",
            Self::Rgba | Self::Rgba16 | Self::GrayAlpha16 => "RGBA",
            Self::Rgbx => "RGBX",
            Self::Cmyk => "CMYK",
            Self::Lab => "LAB",
            Self::YCbCr => "YCbCr",
            Self::Gray16 => "I;16",
            Self::Int32 => "I",
            Self::Float32 => "F",
        }
    }
}
