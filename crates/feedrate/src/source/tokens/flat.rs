//! Tokens one after the other in a file.

use std::sync::Arc;

use crate::batch::DType;
use crate::source::npy::{Array, Kind};
use crate::source::window::{Input, Window, fill_at};
use crate::source::{Fault, SourceError};

/// So many tokens are widened at a time.
const PIECE: usize = 16 << 10;

/// A file of tokens, or the part of it that holds them.
#[derive(Debug)]
pub(super) struct Flat {
    window: Window,
    pub(super) dtype: DType,
    swap: bool,
    /// Of the first token.
    base: u64,
    /// Number of tokens.
    pub(super) len: u64,
}

impl Flat {
    /// Of this type, little-endian; or an array that says what it is.
    pub(super) fn open(window: Window, dtype: Option<DType>) -> Result<Self, SourceError> {
        let name = Arc::clone(window.name());
        let size = window.len();
        if let Some(dtype) = dtype {
            let mut head = [0; 6];
            if fill_at(window.file(), &mut head, 0).is_ok() && head == *b"\x93NUMPY" {
                let message = format!(
                    "it is a .npy file, which says itself what its tokens are: leave out that they are {dtype}"
                );
                return Err(SourceError::new(Fault::Unsupported, &*name, message));
            }
            let width = dtype.size() as u64;
            if !size.is_multiple_of(width) {
                let message =
                    format!("{size} bytes are no whole number of {dtype} tokens: it is cut off, or of another type");
                return Err(SourceError::new(Fault::Truncated, &*name, message).at(size / width * width));
            }
            return Ok(Self {
                window,
                dtype,
                swap: cfg!(target_endian = "big"),
                base: 0,
                len: size / width,
            });
        }
        let array = Array::open(Input::File(window.again()), Arc::clone(&name), None, 0, size)?;
        let header = array.header();
        match (header.kind, header.shape.as_slice()) {
            (Kind::Numbers(dtype), [_]) => Ok(Self {
                window,
                dtype,
                swap: header.swap,
                base: header.data,
                len: array.rows(),
            }),
            (_, shape) => {
                let message = format!("tokens are an array of numbers with one dimension, this has shape {shape:?}");
                Err(SourceError::new(Fault::Unsupported, &*name, message))
            }
        }
    }

    /// Of a token, in bytes.
    pub(super) fn offset(&self, token: u64) -> u64 {
        self.base.saturating_add(token.saturating_mul(self.dtype.size() as u64))
    }

    /// Tokens from a byte offset on, in their own type.
    pub(super) fn stored(&mut self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.window.fill(offset, out, "a record")?;
        if self.swap {
            out.chunks_exact_mut(self.dtype.size()).for_each(<[u8]>::reverse);
        }
        Ok(())
    }

    /// Tokens from a byte offset on, as `int64`.
    pub(super) fn wide(&mut self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let size = self.dtype.size();
        let mut piece = vec![0; PIECE.min(out.len() / 8) * size];
        let mut at = offset;
        for out in out.chunks_mut(PIECE * 8) {
            let tokens = &mut piece[..out.len() / 8 * size];
            self.stored(at, tokens)?;
            at += tokens.len() as u64;
            match self.dtype {
                DType::U8 => widen(tokens, out, |[a]: [u8; 1]| i64::from(a)),
                DType::I8 => widen(tokens, out, |a| i64::from(i8::from_ne_bytes(a))),
                DType::U16 => widen(tokens, out, |a| i64::from(u16::from_ne_bytes(a))),
                DType::I16 => widen(tokens, out, |a| i64::from(i16::from_ne_bytes(a))),
                DType::U32 => widen(tokens, out, |a| i64::from(u32::from_ne_bytes(a))),
                DType::I32 => widen(tokens, out, |a| i64::from(i32::from_ne_bytes(a))),
                dtype => {
                    out.copy_from_slice(tokens);
                    let above = |token: &[u8; 8]| i64::from_ne_bytes(*token) < 0;
                    if dtype == DType::U64 && out.as_chunks::<8>().0.iter().any(above) {
                        let message =
                            "a token of 2⁶³ or more does not fit int64: read them in their own type (not wide)";
                        return Err(SourceError::new(Fault::Record, &**self.window.name(), message).at(at));
                    }
                }
            }
        }
        Ok(())
    }
}

fn widen<const N: usize>(from: &[u8], to: &mut [u8], wide: impl Fn([u8; N]) -> i64) {
    for (from, to) in from.chunks_exact(N).zip(to.chunks_exact_mut(8)) {
        if let Ok(narrow) = from.try_into() {
            to.copy_from_slice(&wide(narrow).to_ne_bytes());
        }
    }
}
