#![expect(unsafe_code, reason = "the encoder of libjpeg-turbo, as an oracle")]

use std::ffi::c_int;

use turbojpeg_sys as tj;

use super::*;
use crate::decode::{Decoder, MAX_PIXELS};
use crate::source::mutate::Dice;

/// How a test image is written.
#[derive(Debug, Clone, Copy)]
struct Kind {
    sampling: c_int,
    format: c_int,
    settings: &'static [(c_int, c_int)],
}

const RGB: c_int = tj::TJPF_TJPF_RGB;
const GRAY: c_int = tj::TJPF_TJPF_GRAY;
const CMYK: c_int = tj::TJPF_TJPF_CMYK;
const SAMPLINGS: [c_int; 6] = [
    tj::TJSAMP_TJSAMP_444,
    tj::TJSAMP_TJSAMP_422,
    tj::TJSAMP_TJSAMP_420,
    tj::TJSAMP_TJSAMP_440,
    tj::TJSAMP_TJSAMP_411,
    tj::TJSAMP_TJSAMP_441,
];
const SETTINGS: [&[(c_int, c_int)]; 6] = [
    &[],
    &[(tj::TJPARAM_TJPARAM_OPTIMIZE.cast_signed(), 1)],
    &[(tj::TJPARAM_TJPARAM_PROGRESSIVE.cast_signed(), 1)],
    &[(tj::TJPARAM_TJPARAM_RESTARTROWS.cast_signed(), 1)],
    &[
        (tj::TJPARAM_TJPARAM_RESTARTBLOCKS.cast_signed(), 3),
        (tj::TJPARAM_TJPARAM_PROGRESSIVE.cast_signed(), 1),
    ],
    &[(tj::TJPARAM_TJPARAM_ARITHMETIC.cast_signed(), 1)],
];

fn channels_of(format: c_int) -> usize {
    match format {
        GRAY => 1,
        CMYK => 4,
        _ => 3,
    }
}

/// Smooth in places, noisy in others.
fn picture(width: usize, height: usize, channels: usize, seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let mut pixels = Vec::with_capacity(width * height * channels);
    for y in 0..height {
        for x in 0..width {
            for c in 0..channels {
                let smooth = (x * (3 + c) + y * (5 - c.min(4)) + c * 40) % 256;
                let noisy = (x / 16 + y / 16) % 2 == 0;
                let value = if noisy { dice.below(256) } else { smooth };
                pixels.push(u8::try_from(value).unwrap());
            }
        }
    }
    pixels
}

fn encode(pixels: &[u8], width: usize, height: usize, kind: Kind) -> Vec<u8> {
    let number = |n: usize| c_int::try_from(n).unwrap();
    // SAFETY: TurboJPEG's calls as documented; the source holds width * height pixels, and what comes back is copied and freed.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS.cast_signed());
        let set = |param, value| assert_eq!(tj::tj3Set(handle, param, value), 0);
        set(tj::TJPARAM_TJPARAM_SUBSAMP.cast_signed(), kind.sampling);
        set(tj::TJPARAM_TJPARAM_QUALITY.cast_signed(), 85);
        for (param, value) in kind.settings {
            set(*param, *value);
        }
        assert_eq!(pixels.len(), width * height * channels_of(kind.format));
        let (mut buffer, mut size) = (std::ptr::null_mut(), 0);
        let code = tj::tj3Compress8(
            handle,
            pixels.as_ptr(),
            number(width),
            0,
            number(height),
            kind.format,
            &raw mut buffer,
            &raw mut size,
        );
        assert_eq!(code, 0, "{:?}", std::ffi::CStr::from_ptr(tj::tj3GetErrorStr(handle)));
        let jpeg = std::slice::from_raw_parts(buffer, usize::try_from(size).unwrap()).to_vec();
        tj::tj3Free(buffer.cast());
        tj::tj3Destroy(handle);
        jpeg
    }
}

/// What TurboJPEG's own interface decodes.
fn oracle(jpeg: &[u8], width: usize, height: usize, format: c_int) -> Vec<u8> {
    let mut pixels = vec![0; width * height * channels_of(format)];
    // SAFETY: TurboJPEG's calls as documented; there is place for all pixels.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS.cast_signed());
        let code = tj::tj3Decompress8(handle, jpeg.as_ptr(), jpeg.len() as _, pixels.as_mut_ptr(), 0, format);
        assert_eq!(code, 0);
        tj::tj3Destroy(handle);
    }
    pixels
}

fn with(channels: Channels) -> Options {
    Options {
        channels,
        ..Options::default()
    }
}

fn kinds() -> impl Iterator<Item = Kind> {
    let colour = SAMPLINGS.iter().flat_map(|sampling| {
        SETTINGS.iter().map(|settings| Kind {
            sampling: *sampling,
            format: RGB,
            settings,
        })
    });
    let gray = SETTINGS.iter().map(|settings| Kind {
        sampling: tj::TJSAMP_TJSAMP_GRAY,
        format: GRAY,
        settings,
    });
    let inks = [tj::TJSAMP_TJSAMP_444, tj::TJSAMP_TJSAMP_420].map(|sampling| Kind {
        sampling,
        format: CMYK,
        settings: &[],
    });
    colour.chain(gray).chain(inks)
}

/// Small files of several kinds, for other tests.
pub(in crate::decode) fn some_files() -> Vec<(&'static str, Vec<u8>)> {
    let kind = |sampling, format, settings| Kind {
        sampling,
        format,
        settings,
    };
    let file = |kind: Kind| encode(&picture(64, 48, channels_of(kind.format), 8), 64, 48, kind);
    vec![
        ("gray", file(kind(tj::TJSAMP_TJSAMP_GRAY, GRAY, SETTINGS[0]))),
        ("colour", file(kind(tj::TJSAMP_TJSAMP_420, RGB, SETTINGS[3]))),
        ("progressive", file(kind(tj::TJSAMP_TJSAMP_422, RGB, SETTINGS[4]))),
        ("arithmetic", file(kind(tj::TJSAMP_TJSAMP_444, RGB, SETTINGS[5]))),
        ("inks", file(kind(tj::TJSAMP_TJSAMP_444, CMYK, SETTINGS[0]))),
    ]
}

const SIZES: [(usize, usize); 7] = [(1, 1), (3, 2), (17, 31), (64, 48), (97, 53), (130, 200), (300, 9)];

#[test]
fn a_region_is_a_crop_of_the_whole() {
    let mut decoder = Decoder::new();
    let mut into = Vec::new();
    let mut dice = Dice::new(5);
    for kind in kinds() {
        for (width, height) in SIZES {
            let jpeg = encode(
                &picture(width, height, channels_of(kind.format), 1),
                width,
                height,
                kind,
            );
            for shrink in [1, 2, 4, 8] {
                let channels = [Channels::Rgb, Channels::Gray, Channels::Rgba][dice.below(3)];
                let options = with(channels);
                let whole = decoder.jpeg.whole(&jpeg, &options, shrink).unwrap();
                for round in 0..12 {
                    let mut span = |all: usize| {
                        let from = dice.below(all);
                        let len = if round == 0 { all } else { 1 + dice.below(all - from) };
                        let from = if round == 0 { 0 } else { from };
                        (u32::try_from(from).unwrap(), u32::try_from(len).unwrap())
                    };
                    let ((x, w), (y, h)) = (span(width), span(height));
                    let rect = Rect::new(x, y, w, h);
                    let part = decoder.region(&jpeg, &options, rect, shrink, &mut into).unwrap();
                    let mut expected = Vec::new();
                    let cut = whole.clone().cut(rect.shrunk(shrink), &mut expected).unwrap();
                    assert_eq!(
                        Part { shrink, ..cut },
                        part,
                        "{kind:?} {width}x{height} {rect:?} 1/{shrink}"
                    );
                    assert!(
                        into == expected,
                        "{kind:?} {width}x{height} {rect:?} 1/{shrink}: pixels differ"
                    );
                }
            }
        }
    }
}

#[test]
fn a_region_alone_is_decoded_without_the_rest() {
    // Else the test above would say nothing: the way around gives the same pixels.
    for kind in kinds() {
        let (width, height) = (130, 200);
        let jpeg = encode(
            &picture(width, height, channels_of(kind.format), 1),
            width,
            height,
            kind,
        );
        for shrink in [1, 2, 4, 8] {
            let mut handle = Handle::new().unwrap();
            let (open, header) = handle.open(&jpeg, false).unwrap();
            assert!(ends(&jpeg, open.left()));
            let (mut rows, mut into) = (Vec::new(), Vec::new());
            let rect = Rect::new(50, 77, 40, 60);
            let part = part(open, header, &Options::default(), rect, shrink, &mut rows, &mut into);
            assert!(part.is_some(), "{kind:?} 1/{shrink}");
        }
    }
}

#[test]
fn the_whole_is_what_turbojpeg_gives() {
    let mut decoder = Decoder::new();
    for kind in kinds() {
        for (width, height) in SIZES {
            let jpeg = encode(
                &picture(width, height, channels_of(kind.format), 2),
                width,
                height,
                kind,
            );
            let image = decoder.decode(&jpeg, &with(Channels::AsStored)).unwrap();
            let mut expected = oracle(&jpeg, width, height, kind.format);
            if kind.format == CMYK {
                for ink in &mut expected {
                    *ink = !*ink;
                }
            }
            assert!(image.pixels.as_u8() == Some(&expected), "{kind:?} {width}x{height}");
        }
    }
}

#[test]
fn a_file_that_ends_early_is_refused_or_filled_whatever_the_region() {
    let mut decoder = Decoder::new();
    let mut into = Vec::new();
    let (width, height) = (97, 120);
    let fill = Options {
        truncated: Truncated::Fill,
        ..Options::default()
    };
    for settings in [SETTINGS[0], SETTINGS[2], SETTINGS[3], SETTINGS[5]] {
        let kind = Kind {
            sampling: tj::TJSAMP_TJSAMP_420,
            format: RGB,
            settings,
        };
        let jpeg = encode(&picture(width, height, 3, 3), width, height, kind);
        let left = {
            let mut handle = Handle::new().unwrap();
            handle.open(&jpeg, false).unwrap().0.left()
        };
        for len in (jpeg.len() - left..jpeg.len()).step_by(37) {
            let cut = &jpeg[..len];
            let whole = decoder.decode(cut, &Options::default());
            let rect = Rect::new(8, 3, 20, 9);
            let region = decoder.region(cut, &Options::default(), rect, 1, &mut into);
            assert_eq!(whole.as_ref().err(), region.as_ref().err(), "{len}");
            if let Err(error) = whole {
                assert_eq!(error.flaw(), Flaw::Truncated, "{len}: {error}");
            }
            let whole = decoder.decode(cut, &fill).unwrap();
            decoder.region(cut, &fill, rect, 1, &mut into).unwrap();
            let mut expected = Vec::new();
            whole.clone().cut(rect, &mut expected).unwrap();
            assert!(into == expected, "{len}");
        }
        for len in 3..jpeg.len() - left {
            assert!(decoder.decode(&jpeg[..len], &Options::default()).is_err());
            assert!(decoder.decode(&jpeg[..len], &fill).is_err(), "{len}");
        }
    }
}

#[test]
fn too_large_or_odd_is_refused_before_memory_is_taken() {
    let kind = Kind {
        sampling: tj::TJSAMP_TJSAMP_420,
        format: RGB,
        settings: SETTINGS[2],
    };
    let mut jpeg = encode(&picture(16, 16, 3, 3), 16, 16, kind);
    let at = memmem::find(&jpeg, b"\xff\xc2").unwrap();
    jpeg[at + 5..at + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
    let error = Decoder::new().decode(&jpeg, &Options::default()).unwrap_err();
    assert_eq!(error.flaw(), Flaw::TooLarge);
    assert_eq!(
        error.to_string(),
        "JPEG: 65500 x 65500 = 4,290,250,000 pixels are more than max_pixels = 178,956,970: raise the limit if the file is to be trusted"
    );
    assert_eq!(Options::default().max_pixels, MAX_PIXELS);
    jpeg[at + 4] = 12;
    let error = Decoder::new().decode(&jpeg, &Options::default()).unwrap_err();
    assert_eq!(error.flaw(), Flaw::Unsupported);
}

#[test]
fn tables_of_one_file_do_not_serve_another() {
    let kind = Kind {
        sampling: tj::TJSAMP_TJSAMP_420,
        format: RGB,
        settings: SETTINGS[1],
    };
    let whole = encode(&picture(64, 64, 3, 3), 64, 64, kind);
    // Without the quantisation tables nothing can be decoded.
    let mut bare = whole.clone();
    while let Some(at) = memmem::find(&bare, b"\xff\xdb") {
        let len = usize::from(u16::from_be_bytes([bare[at + 2], bare[at + 3]]));
        bare.drain(at..at + 2 + len);
    }
    let mut decoder = Decoder::new();
    let fresh = decoder.decode(&bare, &Options::default()).unwrap_err();
    decoder.decode(&whole, &Options::default()).unwrap();
    assert_eq!(decoder.decode(&bare, &Options::default()).unwrap_err(), fresh);
}
