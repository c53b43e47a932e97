//! The calls into C: `shim.c`, and libjpeg-turbo behind it.
#![expect(unsafe_code, reason = "libjpeg-turbo is a C library")]

use std::ffi::{CStr, c_char, c_int, c_uchar};
use std::marker::PhantomData;
use std::ptr::NonNull;

// Brings libjpeg-turbo into the link.
use turbojpeg_sys as _;

/// `struct feedrate_jpeg`, which only C looks into.
#[repr(C)]
struct State {
    _private: [u8; 0],
}

/// What `feedrate_jpeg_header` reads.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Header {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) components: i32,
    pub(super) precision: i32,
}

unsafe extern "C" {
    fn feedrate_jpeg_new() -> *mut State;
    fn feedrate_jpeg_free(state: *mut State);
    fn feedrate_jpeg_end(state: *mut State);
    fn feedrate_jpeg_message(state: *const State) -> *const c_char;
    fn feedrate_jpeg_left(state: *const State) -> usize;
    fn feedrate_jpeg_header(
        state: *mut State,
        data: *const c_uchar,
        len: usize,
        fill: c_int,
        out: *mut Header,
    ) -> c_int;
    fn feedrate_jpeg_begin(
        state: *mut State,
        shrink: c_int,
        space: c_int,
        colour: c_int,
        width: *mut u32,
        height: *mut u32,
        bytes: *mut i32,
    ) -> c_int;
    fn feedrate_jpeg_rows(state: *mut State, into: *mut c_uchar, stride: usize, until: u32, done: *mut u32) -> c_int;
    fn feedrate_jpeg_crop(state: *mut State, x: *mut u32, width: *mut u32, y: u32) -> c_int;
}

/// What the samples of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(in crate::decode) enum Space {
    /// As the markers say.
    Said = 0,
    Gray = 1,
    Rgb = 2,
    YCbCr = 3,
    Cmyk = 4,
}

/// Why a call gave nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// The data end.
    Short,
    /// What libjpeg says.
    Broken(String),
    /// There is no memory.
    Memory,
    /// Only decoding the whole gives the same pixels.
    Otherwise,
}

/// A decompressor, made once and used for one image after the other.
#[derive(Debug)]
pub(super) struct Handle(NonNull<State>);

// SAFETY: the state belongs to its handle alone; libjpeg keeps nothing in threads.
unsafe impl Send for Handle {}

impl Handle {
    pub(super) fn new() -> Result<Self, Stop> {
        // SAFETY: no arguments; null is looked for.
        NonNull::new(unsafe { feedrate_jpeg_new() })
            .map(Self)
            .ok_or(Stop::Memory)
    }

    /// Reads the header of `data`.
    pub(super) fn open<'a>(&'a mut self, data: &'a [u8], fill: bool) -> Result<(Open<'a>, Header), Stop> {
        let mut header = Header::default();
        let open = Open {
            handle: self,
            data: PhantomData,
            channels: 0,
            row: 0,
        };
        // SAFETY: `open` borrows the data until it ends the image, so that they outlive what C keeps of them.
        let code = unsafe {
            feedrate_jpeg_header(
                open.raw(),
                data.as_ptr(),
                data.len(),
                c_int::from(fill),
                &raw mut header,
            )
        };
        open.result(code).map(|()| (open, header))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by feedrate_jpeg_new, and not used afterwards.
        unsafe { feedrate_jpeg_free(self.0.as_ptr()) }
    }
}

/// A decompressor that has read the header of an image.
#[derive(Debug)]
pub(super) struct Open<'a> {
    handle: &'a mut Handle,
    data: PhantomData<&'a [u8]>,
    /// Bytes a pixel, once decoding has begun.
    channels: usize,
    /// Bytes of a decoded row.
    row: usize,
}

impl Open<'_> {
    fn raw(&self) -> *mut State {
        self.handle.0.as_ptr()
    }

    fn result(&self, code: c_int) -> Result<(), Stop> {
        match code {
            0 => Ok(()),
            1 => Err(Stop::Short),
            3 => Err(Stop::Memory),
            4 => Err(Stop::Otherwise),
            _ => {
                // SAFETY: the message is an array within the state, ended by a zero.
                let message = unsafe { CStr::from_ptr(feedrate_jpeg_message(self.raw())) };
                Err(Stop::Broken(message.to_string_lossy().into_owned()))
            }
        }
    }

    /// How many bytes follow the header.
    pub(super) fn left(&self) -> usize {
        // SAFETY: only reads a number.
        unsafe { feedrate_jpeg_left(self.raw()) }
    }

    /// Begins to decode; gives the size of the output. `channels` is the number of bytes a pixel: 1 or 3 as it is stored, 3 or 4 for
    /// a gray image too, 4 for one with four components.
    pub(super) fn begin(&mut self, shrink: u32, space: Space, channels: usize) -> Result<(u32, u32), Stop> {
        let (mut width, mut height, mut bytes) = (0, 0, 0);
        let colour = c_int::try_from(channels).unwrap_or(3);
        let shrink = c_int::try_from(shrink).unwrap_or(1);
        // SAFETY: the header was read, since there is an `Open`.
        let code = unsafe {
            feedrate_jpeg_begin(
                self.raw(),
                shrink,
                space as c_int,
                colour,
                &raw mut width,
                &raw mut height,
                &raw mut bytes,
            )
        };
        self.result(code)?;
        self.channels = usize::try_from(bytes).unwrap_or(4);
        self.row = width as usize * self.channels;
        Ok((width, height))
    }

    /// Takes columns from `x` to `x + width`, and goes to row `y`. The columns that are decoded begin at a multiple of a block; gives their
    /// first, and their number.
    pub(super) fn crop(&mut self, mut x: u32, mut width: u32, y: u32) -> Result<(u32, u32), Stop> {
        // SAFETY: two numbers in and out; C refuses what is not within the image.
        let code = unsafe { feedrate_jpeg_crop(self.raw(), &raw mut x, &raw mut width, y) };
        self.result(code)?;
        self.row = width as usize * self.channels;
        Ok((x, width))
    }

    /// Bytes a pixel that `begin` has chosen.
    pub(super) fn channels(&self) -> usize {
        self.channels
    }

    /// Decodes `rows` rows, from row `first` on, where it stands; gives how many were decoded, and why no more.
    pub(super) fn rows(&mut self, into: &mut [u8], first: u32, rows: u32) -> (u32, Result<(), Stop>) {
        let stride = self.row;
        assert!(stride > 0 && into.len() / stride >= rows as usize, "a row has no place");
        let mut done = first;
        // SAFETY: there is place for all rows of as many bytes as C has said, which was looked at.
        let code = unsafe { feedrate_jpeg_rows(self.raw(), into.as_mut_ptr(), stride, first + rows, &raw mut done) };
        (done.saturating_sub(first), self.result(code))
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // SAFETY: C lets go of the data here, which are still borrowed.
        unsafe { feedrate_jpeg_end(self.raw()) }
    }
}
