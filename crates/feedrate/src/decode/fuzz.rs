//! Every decoder on files damaged at random: an error or an image, never a panic, never more memory than the limit allows.
#![expect(unsafe_code, reason = "libwebp's encoder makes the files")]

use std::io::Write as _;

use super::exhaust::exhaust_image;
use super::*;
use crate::source::mutate::{Dice, mutations};

/// How many damaged copies of each file are tried in an ordinary run.
const TIMES: u64 = 400;

fn fuzz(bytes: &[u8]) {
    let mut decoder = Decoder::new();
    let whole = decoder.decode(bytes, &Options::default());
    assert!(whole.is_ok(), "the file itself: {whole:?}");
    mutations(bytes, TIMES, |damaged| exhaust_image(&mut decoder, damaged));
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    (0..len).map(|_| u8::try_from(dice.below(256)).unwrap()).collect()
}

fn zlib(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn jpeg() {
    for (name, file) in jpeg::tests::some_files() {
        assert!(!name.is_empty());
        fuzz(&file);
    }
}

fn chunk(out: &mut Vec<u8>, name: [u8; 4], data: &[u8]) {
    out.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
    let from = out.len();
    out.extend_from_slice(&name);
    out.extend_from_slice(data);
    let mut sum = flate2::Crc::new();
    sum.update(&out[from..]);
    let sum = sum.sum();
    out.extend_from_slice(&sum.to_be_bytes());
}

/// A PNG of random rows, with filters in turn.
fn png_of(bits: usize, colour: u8, interlaced: bool) -> Vec<u8> {
    let (width, height) = (29_usize, 23_usize);
    let channels = [1, 0, 3, 1, 2, 0, 4][usize::from(colour)];
    let passes: &[(usize, usize, usize, usize)] = if interlaced {
        &[
            (0, 0, 8, 8),
            (4, 0, 8, 8),
            (0, 4, 4, 8),
            (2, 0, 4, 4),
            (0, 2, 2, 4),
            (1, 0, 2, 2),
            (0, 1, 1, 2),
        ]
    } else {
        &[(0, 0, 1, 1)]
    };
    let mut raw = Vec::new();
    for (left, top, across, down) in passes {
        let (columns, lines) = ((width - left).div_ceil(*across), (height - top).div_ceil(*down));
        for y in 0..lines {
            raw.push(u8::try_from(y % 5).unwrap());
            raw.extend(noise((columns * channels * bits).div_ceil(8), y as u64));
        }
    }
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut head = Vec::new();
    for side in [width, height] {
        head.extend_from_slice(&u32::try_from(side).unwrap().to_be_bytes());
    }
    head.extend_from_slice(&[u8::try_from(bits).unwrap(), colour, 0, 0, u8::from(interlaced)]);
    chunk(&mut png, *b"IHDR", &head);
    if colour == 3 {
        chunk(&mut png, *b"PLTE", &noise(3 << bits, 1));
        chunk(&mut png, *b"tRNS", &[0, 128, 255]);
    }
    let packed = zlib(&raw);
    for piece in packed.chunks(300) {
        chunk(&mut png, *b"IDAT", piece);
    }
    chunk(&mut png, *b"IEND", &[]);
    png
}

#[test]
fn png() {
    for (bits, colour, interlaced) in [
        (8, 2, false),
        (16, 6, true),
        (4, 3, false),
        (1, 0, true),
        (8, 4, false),
        (16, 0, false),
    ] {
        fuzz(&png_of(bits, colour, interlaced));
    }
}

#[test]
fn what_is_written_is_read() {
    for channels in [1, 3, 4_u8] {
        let pixels = noise(31 * 17 * usize::from(channels), 4);
        let png = write_png(&pixels, 31, 17, channels).unwrap();
        let options = Options {
            channels: Channels::AsStored,
            ..Options::default()
        };
        let image = Decoder::new().decode(&png, &options).unwrap();
        assert_eq!(
            (image.width, image.height, image.channels),
            (31, 17, usize::from(channels))
        );
        assert_eq!(image.pixels.as_u8(), Some(&pixels[..]));
    }
    assert!(write_png(&[0; 5], 2, 1, 3).is_err());
    assert!(write_png(&[0; 4], 2, 1, 2).is_err());
    assert!(write_png(&[], 0, 1, 3).is_err());
}

#[test]
fn pnm() {
    let head = |kind: u8, most: &str| format!("P{} 21 # x\n 13 {most}\n", char::from(kind)).into_bytes();
    for (kind, most, len) in [
        (b'4', "", 3 * 13),
        (b'5', "255", 21 * 13),
        (b'5', "65535", 21 * 13 * 2),
        (b'5', "1000", 21 * 13 * 2),
        (b'6', "255", 21 * 13 * 3),
        (b'6', "99", 21 * 13 * 3),
        (b'f', "-1.5", 21 * 13 * 4),
    ] {
        fuzz(&[head(kind, most), noise(len, 3)].concat());
    }
    for (kind, most, count) in [(b'1', 1, 21 * 13), (b'2', 100, 21 * 13), (b'3', 65_535, 21 * 13 * 3)] {
        let mut file = head(kind, &if kind == b'1' { String::new() } else { most.to_string() });
        for value in noise(count, 5) {
            file.extend_from_slice(format!("{} ", u32::from(value) * 257 % (most + 1)).as_bytes());
        }
        fuzz(&file);
    }
}

fn bmp_of(bits: u16, compression: u32, body: &[u8]) -> Vec<u8> {
    let colours = if bits <= 8 { 1_usize << bits } else { 0 };
    let palette = noise(colours * 4, 9);
    let offset = u32::try_from(54 + palette.len()).unwrap();
    let mut bmp = b"BM".to_vec();
    for word in [offset, 0, offset, 40, 20, 9] {
        bmp.extend_from_slice(&word.to_le_bytes());
    }
    bmp.extend_from_slice(&1_u16.to_le_bytes());
    bmp.extend_from_slice(&bits.to_le_bytes());
    for word in [compression, 0, 0, 0, 0, 0] {
        bmp.extend_from_slice(&word.to_le_bytes());
    }
    bmp.extend_from_slice(&palette);
    bmp.extend_from_slice(body);
    bmp
}

#[test]
fn bmp() {
    for bits in [1, 4, 8, 16, 24, 32] {
        fuzz(&bmp_of(bits, 0, &noise(20 * 4 * 9, 2)));
    }
    let mut runs = vec![20, 5, 0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 15, 9, 0, 0, 3, 7, 0, 2, 5, 1];
    for value in 0..9 {
        runs.extend_from_slice(&[20, value, 0, 0]);
    }
    fuzz(&bmp_of(8, 1, &runs));
    fuzz(&bmp_of(4, 2, &runs));
}

/// Codes that never grow: a clear code stands before each would.
fn lzw(pixels: &[u8]) -> Vec<u8> {
    let (mut bits, mut filled, mut data) = (0_u32, 0, Vec::new());
    let mut put = |code: u8| {
        bits |= u32::from(code) << filled;
        filled += 4;
        while filled >= 8 {
            data.push(u8::try_from(bits & 255).unwrap());
            bits >>= 8;
            filled -= 8;
        }
    };
    for six in pixels.chunks(6) {
        put(8);
        for pixel in six {
            put(pixel & 7);
        }
    }
    put(9);
    put(0);
    let mut out = vec![3];
    for block in data.chunks(200) {
        out.push(u8::try_from(block.len()).unwrap());
        out.extend_from_slice(block);
    }
    out.push(0);
    out
}

#[test]
fn gif() {
    for (interlaced, own) in [(0, 0), (0x40, 0x82)] {
        let mut gif = b"GIF89a".to_vec();
        gif.extend_from_slice(&[30, 0, 20, 0, 0x82, 3, 0]);
        gif.extend_from_slice(&noise(24, 1));
        for (place, disposal) in [
            ([0, 0, 30, 20], 1),
            ([3, 2, 20, 11], 2),
            ([10, 5, 9, 9], 3),
            ([0, 1, 7, 3], 0),
        ] {
            gif.extend_from_slice(&[0x21, 0xf9, 4, disposal << 2 | 1, 5, 0, 2, 0, 0x2c]);
            for number in place {
                gif.extend_from_slice(&[number, 0]);
            }
            gif.push(interlaced | own);
            if own != 0 {
                gif.extend_from_slice(&noise(24, 5));
            }
            gif.extend_from_slice(&lzw(&noise(usize::from(place[2]) * usize::from(place[3]), 7)));
        }
        gif.push(0x3b);
        fuzz(&gif);
    }
}

fn webp_of(width: i32, height: i32, lossless: bool) -> Vec<u8> {
    let pixels = noise(usize::try_from(width * height * 4).unwrap(), 3);
    let mut out = std::ptr::null_mut();
    // SAFETY: libwebp's encoder as documented: there are width * height pixels of 4 bytes; what it gives is copied and freed.
    unsafe {
        let len = if lossless {
            libwebp_sys::WebPEncodeLosslessRGBA(pixels.as_ptr(), width, height, width * 4, &raw mut out)
        } else {
            libwebp_sys::WebPEncodeRGBA(pixels.as_ptr(), width, height, width * 4, 60.0, &raw mut out)
        };
        let file = std::slice::from_raw_parts(out, len).to_vec();
        libwebp_sys::WebPFree(out.cast());
        file
    }
}

#[test]
fn webp() {
    fuzz(&webp_of(33, 21, true));
    fuzz(&webp_of(33, 21, false));
    // An animation of lossless frames, put together by hand.
    let put = |out: &mut Vec<u8>, name: &[u8], data: &[u8]| {
        out.extend_from_slice(name);
        out.extend_from_slice(&u32::try_from(data.len()).unwrap().to_le_bytes());
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(2), 0);
    };
    let mut body = b"WEBP".to_vec();
    put(&mut body, b"VP8X", &[0x12, 0, 0, 0, 39, 0, 0, 29, 0, 0]);
    put(&mut body, b"ANIM", &[0; 6]);
    for (x, y, flags) in [(0, 0, 0), (4, 3, 1), (2, 2, 3)] {
        let mut frame = vec![x, 0, 0, y, 0, 0, 19, 0, 0, 14, 0, 0, 40, 0, 0, flags];
        frame.extend_from_slice(&webp_of(20, 15, true)[12..]);
        put(&mut body, b"ANMF", &frame);
    }
    let mut file = Vec::new();
    put(&mut file, b"RIFF", &body);
    fuzz(&file);
}

/// A TIFF of one strip.
fn tiff_of(tags: &[(u16, &[u32])], strip: &[u8]) -> Vec<u8> {
    let mut file = b"II*\0".to_vec();
    let mut tags: Vec<(u16, Vec<u32>)> = tags.iter().map(|(tag, values)| (*tag, values.to_vec())).collect();
    for (tag, value) in [(256, 24), (257, 18)] {
        if tags.iter().all(|(other, _)| *other != tag) {
            tags.push((tag, vec![value]));
        }
    }
    tags.push((273, vec![8]));
    tags.push((279, vec![u32::try_from(strip.len()).unwrap()]));
    tags.sort();
    let directory = 8 + strip.len().next_multiple_of(2);
    file.extend_from_slice(&u32::try_from(directory).unwrap().to_le_bytes());
    file.extend_from_slice(strip);
    file.resize(directory, 0);
    let mut heap = directory + 2 + tags.len() * 12 + 4;
    let mut values_behind = Vec::new();
    file.extend_from_slice(&u16::try_from(tags.len()).unwrap().to_le_bytes());
    for (tag, values) in tags {
        file.extend_from_slice(&tag.to_le_bytes());
        file.extend_from_slice(&4_u16.to_le_bytes());
        file.extend_from_slice(&u32::try_from(values.len()).unwrap().to_le_bytes());
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        if bytes.len() == 4 {
            file.extend_from_slice(&bytes);
        } else {
            file.extend_from_slice(&u32::try_from(heap).unwrap().to_le_bytes());
            heap += bytes.len();
            values_behind.extend_from_slice(&bytes);
        }
    }
    file.extend_from_slice(&[0; 4]);
    file.extend_from_slice(&values_behind);
    file
}

#[test]
fn tiff() {
    let rgb: &[(u16, &[u32])] = &[(258, &[8, 8, 8]), (262, &[2]), (277, &[3])];
    let with = |more: &[(u16, &'static [u32])], strip: &[u8]| {
        let mut tags = rgb.to_vec();
        tags.extend_from_slice(more);
        tiff_of(&tags, strip)
    };
    let pixels = noise(24 * 18 * 3, 1);
    fuzz(&with(&[(259, &[1])], &pixels));
    fuzz(&with(&[(259, &[8]), (317, &[2])], &zlib(&pixels)));
    fuzz(&with(&[(259, &[50_000])], &zstd::bulk::compress(&pixels, 1).unwrap()));
    let runs: Vec<u8> = pixels
        .chunks(100)
        .flat_map(|piece| [&[u8::try_from(piece.len() - 1).unwrap()], piece].concat())
        .collect();
    fuzz(&with(&[(259, &[32_773])], &runs));
    fuzz(&tiff_of(
        &[(258, &[32]), (262, &[1]), (339, &[3]), (259, &[8]), (317, &[3])],
        &zlib(&noise(24 * 18 * 4, 3)),
    ));
    fuzz(&tiff_of(
        &[(258, &[16]), (262, &[1]), (274, &[6])],
        &noise(24 * 18 * 2, 3),
    ));
    fuzz(&tiff_of(
        &[(258, &[4]), (262, &[3]), (320, &[77; 48])],
        &noise(12 * 18, 3),
    ));
    // Codes of 9 bits: a clear code, pixels, the end.
    let mut codes = vec![256];
    codes.extend(noise(24 * 18, 6).into_iter().flat_map(|v| [u32::from(v), 256]));
    codes.push(257);
    let (mut bits, mut filled, mut packed) = (0_u64, 0, Vec::new());
    for code in codes {
        bits = bits << 9 | u64::from(code);
        filled += 9;
        while filled >= 8 {
            packed.push(u8::try_from(bits >> (filled - 8) & 255).unwrap());
            filled -= 8;
        }
    }
    packed.push(u8::try_from(bits << (8 - filled) & 255).unwrap());
    fuzz(&tiff_of(&[(258, &[8]), (262, &[1]), (259, &[5])], &packed));
    for (name, file) in jpeg::tests::some_files() {
        if name == "gray" {
            fuzz(&tiff_of(
                &[(258, &[8]), (262, &[1]), (259, &[7]), (256, &[64]), (257, &[48])],
                &file,
            ));
        }
    }
}
