//! What tests of decoders share.

use super::{Channels, Decoder, Options, Rect, Truncated, info};

/// Pixels that an image may have, so that many can be tried.
const PIXELS: u64 = 1 << 18;

/// Decodes an image in all colours, frames and ways to end early, and a part of it.
///
/// # Panics
///
/// Where a decoder gives fewer or more pixels than it says or than are allowed, or panicked itself.
pub fn exhaust_image(decoder: &mut Decoder, bytes: &[u8]) {
    if let Ok(info) = info(bytes) {
        assert!(info.orientation >= 1 && info.orientation <= 8);
    }
    let mut options = Options {
        max_pixels: PIXELS,
        orientation: true,
        ..Options::default()
    };
    for (channels, truncated, frame) in [
        (Channels::Rgb, Truncated::Refuse, 0),
        (Channels::AsStored, Truncated::Fill, 0),
        (Channels::Gray, Truncated::Fill, 1),
        (Channels::Rgba, Truncated::Refuse, 2),
    ] {
        (options.channels, options.truncated, options.frame) = (channels, truncated, frame);
        match decoder.decode(bytes, &options) {
            Ok(image) => {
                let pixels = image.width as usize * image.height as usize;
                assert!(pixels > 0 && pixels as u64 <= PIXELS);
                assert_eq!(image.pixels.len(), pixels * image.channels);
            }
            Err(error) => assert!(
                !error.message().contains("panicked") && !error.message().is_empty(),
                "{error}"
            ),
        }
    }
    (options.frame, options.truncated) = (0, Truncated::Refuse);
    let mut into = Vec::new();
    if let Ok(part) = decoder.region(bytes, &options, Rect::new(3, 2, 9, 7), 2, &mut into) {
        assert_eq!(into.len(), part.width as usize * part.height as usize * part.channels);
    }
}
