//! The calls into libwebp.
#![expect(unsafe_code, reason = "libwebp is a C library")]

use std::marker::PhantomData;
use std::ptr::NonNull;

use libwebp_sys as webp;

/// A file whose structure was read: frames and chunks, not yet pixels. It borrows the bytes.
#[derive(Debug)]
pub(super) struct File<'a> {
    demuxer: NonNull<webp::WebPDemuxer>,
    bytes: &'a [u8],
}

/// What a file says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) frames: u32,
    pub(super) animated: bool,
    pub(super) alpha: bool,
}

fn data(bytes: &[u8]) -> webp::WebPData {
    webp::WebPData {
        bytes: bytes.as_ptr(),
        size: bytes.len(),
    }
}

impl<'a> File<'a> {
    /// None when the structure is damaged, or the file ends early.
    pub(super) fn open(bytes: &'a [u8]) -> Option<Self> {
        let data = data(bytes);
        // SAFETY: `data` is read during the call; the demuxer keeps a pointer into the bytes, which `File` borrows.
        let demuxer = unsafe {
            webp::WebPDemuxInternal(
                &raw const data,
                0,
                std::ptr::null_mut(),
                webp::WEBP_DEMUX_ABI_VERSION.cast_signed(),
            )
        };
        Some(Self {
            demuxer: NonNull::new(demuxer)?,
            bytes,
        })
    }

    pub(super) fn head(&self) -> Head {
        // SAFETY: only reads numbers out of the demuxer.
        let get = |feature| unsafe { webp::WebPDemuxGetI(self.demuxer.as_ptr(), feature) };
        let flags = get(webp::WebPFormatFeature::WEBP_FF_FORMAT_FLAGS);
        Head {
            width: get(webp::WebPFormatFeature::WEBP_FF_CANVAS_WIDTH),
            height: get(webp::WebPFormatFeature::WEBP_FF_CANVAS_HEIGHT),
            frames: get(webp::WebPFormatFeature::WEBP_FF_FRAME_COUNT),
            animated: flags & 2 != 0,
            alpha: has_alpha(self.bytes),
        }
    }

    /// The first chunk of this name.
    pub(super) fn chunk(&self, name: &[u8; 4]) -> Option<Vec<u8>> {
        // SAFETY: plain data, for which zero is a value.
        let mut found: webp::WebPChunkIterator = unsafe { std::mem::zeroed() };
        // SAFETY: the name has the four bytes that are read; the iterator is let go of below.
        let code = unsafe { webp::WebPDemuxGetChunk(self.demuxer.as_ptr(), name.as_ptr().cast(), 1, &raw mut found) };
        if code == 0 {
            return None;
        }
        // SAFETY: the chunk lies within the bytes, which are borrowed.
        let chunk = unsafe { std::slice::from_raw_parts(found.chunk.bytes, found.chunk.size) }.to_vec();
        // SAFETY: filled by WebPDemuxGetChunk.
        unsafe { webp::WebPDemuxReleaseChunkIterator(&raw mut found) };
        Some(chunk)
    }
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        // SAFETY: made by WebPDemuxInternal, and not used afterwards.
        unsafe { webp::WebPDemuxDelete(self.demuxer.as_ptr()) }
    }
}

/// Whether the file says that it has alpha, as Pillow asks.
fn has_alpha(bytes: &[u8]) -> bool {
    // SAFETY: plain data, for which zero is a value.
    let mut features: webp::WebPBitstreamFeatures = unsafe { std::mem::zeroed() };
    // SAFETY: reads as many bytes as there are, and writes the features.
    let status = unsafe { webp::WebPGetFeatures(bytes.as_ptr(), bytes.len(), &raw mut features) };
    // Pillow takes a file that it cannot look into for one with alpha.
    status != webp::VP8StatusCode::VP8_STATUS_OK || features.has_alpha != 0
}

/// Decodes a still image of `width` x `height` pixels to `channels` (3 or 4) bytes each.
pub(super) fn still(bytes: &[u8], width: u32, height: u32, channels: usize) -> Option<Vec<u8>> {
    let row = width as usize * channels;
    let mut pixels: Vec<u8> = crate::decode::bytes::zeros(row * height as usize)?;
    let stride = i32::try_from(row).ok()?;
    let (from, len, into, size) = (bytes.as_ptr(), bytes.len(), pixels.as_mut_ptr(), pixels.len());
    // SAFETY: libwebp writes no more than `size` bytes, and refuses an image that needs more.
    let done = unsafe {
        if channels == 4 {
            webp::WebPDecodeRGBAInto(from, len, into, size, stride)
        } else {
            webp::WebPDecodeRGBInto(from, len, into, size, stride)
        }
    };
    (!done.is_null()).then_some(pixels)
}

/// Frames of an animation, each a whole canvas of RGBA.
#[derive(Debug)]
pub(super) struct Animation<'a> {
    decoder: NonNull<webp::WebPAnimDecoder>,
    size: usize,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Animation<'a> {
    /// `head` is that of the same bytes.
    pub(super) fn new(bytes: &'a [u8], head: Head) -> Option<Self> {
        let data = data(bytes);
        // SAFETY: as in `File::open`; null asks for the defaults: RGBA, no threads.
        let decoder = unsafe { webp::WebPAnimDecoderNew(&raw const data, std::ptr::null()) };
        let animation = Self {
            decoder: NonNull::new(decoder)?,
            size: head.width as usize * head.height as usize * 4,
            bytes: PhantomData,
        };
        // SAFETY: plain data, for which zero is a value.
        let mut info: webp::WebPAnimInfo = unsafe { std::mem::zeroed() };
        // SAFETY: writes the info.
        let code = unsafe { webp::WebPAnimDecoderGetInfo(animation.decoder.as_ptr(), &raw mut info) };
        let same = (info.canvas_width, info.canvas_height) == (head.width, head.height);
        (code != 0 && same).then_some(animation)
    }

    /// The next frame.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        let (mut canvas, mut time) = (std::ptr::null_mut(), 0);
        // SAFETY: writes a pointer to the canvas, which belongs to the decoder and lives until the next call.
        let code = unsafe { webp::WebPAnimDecoderGetNext(self.decoder.as_ptr(), &raw mut canvas, &raw mut time) };
        if code == 0 || canvas.is_null() {
            return None;
        }
        // SAFETY: the canvas has the size of the info, which was compared.
        Some(unsafe { std::slice::from_raw_parts(canvas, self.size) })
    }
}

impl Drop for Animation<'_> {
    fn drop(&mut self) {
        // SAFETY: made by WebPAnimDecoderNew, and not used afterwards.
        unsafe { webp::WebPAnimDecoderDelete(self.decoder.as_ptr()) }
    }
}
