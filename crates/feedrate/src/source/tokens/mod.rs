//! Files of tokens: Megatron's pairs and flat arrays.

mod flat;
mod megatron;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::flat::Flat;
use self::megatron::Megatron;
use super::numbered::{Fields, Numbered};
use super::paths::Paths;
use super::window::Window;
use super::{Fault, Mark, Part, Reader, Source, SourceError};
use crate::batch::{DType, Heap, Tensor, TensorError, Value};

/// What happens to the tokens that do not fill a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ShortWindow {
    /// They are left out.
    #[default]
    Drop,
    /// They are a shorter window.
    Keep,
    /// They are a window filled up with this token. Every record then has a field `length` that counts the tokens which are not filling.
    Pad(i64),
}

/// Windows of a fixed length over the tokens of a part, across documents.
///
/// Window `i` begins at token `i * stride` and has `len + extra` tokens: with `extra` 1, inputs and targets that are shifted by one. The
/// tokens behind the last full window are a short one if there are more than `extra` of them and not all were in a full window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Tokens of a window, at least 1.
    pub len: usize,
    /// Tokens more that each window shows of what follows.
    pub extra: usize,
    /// From one window's beginning to the next one's, at least 1.
    pub stride: usize,
    /// What happens to the rest.
    pub last: ShortWindow,
}

impl Windows {
    /// Side by side, of `len` tokens, and one more for the targets; the rest is dropped.
    pub fn of(len: usize) -> Self {
        Self {
            len,
            extra: 1,
            stride: len,
            last: ShortWindow::Drop,
        }
    }

    fn width(&self) -> usize {
        self.len.saturating_add(self.extra)
    }

    /// Full windows in so many tokens, and whether there is a short one.
    fn count(&self, tokens: u64) -> (u64, bool) {
        let (width, stride) = (self.width() as u64, self.stride.max(1) as u64);
        let full = tokens.checked_sub(width).map_or(0, |room| room / stride + 1);
        let covered = full.checked_sub(1).map_or(0, |last| last * stride + width);
        let left = tokens.saturating_sub(full.saturating_mul(stride));
        let short = self.last != ShortWindow::Drop && covered < tokens && left > self.extra as u64;
        (full, short)
    }
}

/// What the files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Megatron,
    Flat(Option<DType>),
}

/// Files of tokens, each a part: Megatron's `.bin` with its `.idx`, or a flat array.
///
/// A record is a map with the field `tokens`, a tensor of one dimension. Records are the documents of a Megatron file (all its sequences,
/// one after the other), or [`Windows`] over all tokens of a part; flat files have windows only. Every record is found without reading
/// others. Memory for each reader: four buffers of 256 KiB, and the record.
///
/// ```
/// use feedrate::batch::DType;
/// use feedrate::source::{Source, Tokens, Windows};
///
/// let path = std::env::temp_dir().join(format!("feedrate-doc-{}.tokens", std::process::id()));
/// std::fs::write(&path, [1, 0, 2, 0, 3, 0, 4, 0, 5, 0])?;
/// let source = Tokens::raw([&path], DType::U16, Windows::of(2)).wide(true);
/// assert_eq!(*source.index()?, [2]);
/// let mut reader = source.open(0, None)?;
/// reader.skip(1)?;
/// let window = reader.next()?.ok_or("a window")?.value;
/// let tokens = window.get("tokens").and_then(|value| value.as_tensor()).ok_or("a tensor")?;
/// assert_eq!(tokens.as_slice::<i64>()?, [3, 4, 5]);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tokens {
    shards: Paths,
    layout: Layout,
    windows: Option<Windows>,
    wide: bool,
}

impl Tokens {
    /// Documents of Megatron's files. A path names the `.bin`, the `.idx` beside it, or both without their ends.
    pub fn megatron(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            shards: Paths::new(paths.into_iter().map(|path| bin(&path.into()))),
            layout: Layout::Megatron,
            windows: None,
            wide: false,
        }
    }

    /// Windows over `.npy` files of one dimension, whose type their header says.
    pub fn npy(paths: impl IntoIterator<Item = impl Into<PathBuf>>, windows: Windows) -> Self {
        Self {
            shards: Paths::new(paths),
            layout: Layout::Flat(None),
            windows: Some(windows),
            wide: false,
        }
    }

    /// Windows over files that hold tokens and nothing else, little-endian, of an integer type.
    pub fn raw(paths: impl IntoIterator<Item = impl Into<PathBuf>>, dtype: DType, windows: Windows) -> Self {
        Self {
            layout: Layout::Flat(Some(dtype)),
            ..Self::npy(paths, windows)
        }
    }

    /// Windows in place of documents.
    #[must_use]
    pub fn windows(mut self, windows: Windows) -> Self {
        self.windows = Some(windows);
        self
    }

    /// Whether tokens come as `int64`, as embeddings want them, and not in the type that they are stored in.
    #[must_use]
    pub fn wide(mut self, wide: bool) -> Self {
        self.wide = wide;
        self
    }

    fn reader(&self, part: usize) -> Result<TokensReader, SourceError> {
        let (path, name) = self.shards.path(part)?;
        let (flat, megatron) = match self.layout {
            Layout::Flat(dtype) => (Flat::open(Window::open(path, Arc::clone(&name))?, dtype)?, None),
            Layout::Megatron => {
                let index = path.with_extension("idx");
                let called = index.to_string_lossy().into();
                let megatron = Megatron::open(Window::open(&index, called)?)?;
                let flat = Flat::open(Window::open(path, Arc::clone(&name))?, Some(megatron.dtype()))?;
                (flat, Some(megatron))
            }
        };
        if !matches!(
            flat.dtype,
            DType::U8 | DType::I8 | DType::U16 | DType::I16 | DType::U32 | DType::I32 | DType::U64 | DType::I64
        ) {
            let message = format!("tokens are whole numbers, and these are {}", flat.dtype);
            return Err(SourceError::new(Fault::Unsupported, &*name, message));
        }
        if self
            .windows
            .is_some_and(|windows| windows.len == 0 || windows.stride == 0)
        {
            let message = "windows have a length and a stride of at least 1";
            return Err(SourceError::new(Fault::Unsupported, &*name, message));
        }
        if let Some(ShortWindow::Pad(token)) = self.windows.map(|windows| windows.last)
            && !self.wide
            && !holds(flat.dtype, token)
        {
            let message = format!(
                "{} tokens cannot hold the padding {token}: choose another, or read them as int64 (wide)",
                flat.dtype
            );
            return Err(SourceError::new(Fault::Unsupported, &*name, message));
        }
        let (records, short) = match (&self.windows, &megatron) {
            (Some(windows), _) => {
                let (full, short) = windows.count(flat.len);
                (full + u64::from(short), short)
            }
            (None, Some(megatron)) => (megatron.documents(), false),
            (None, None) => (0, false),
        };
        Ok(TokensReader {
            name,
            flat,
            megatron,
            windows: self.windows,
            wide: self.wide,
            records,
            short,
        })
    }
}

/// Whether an integer type has this number.
fn holds(dtype: DType, number: i64) -> bool {
    match dtype {
        DType::U8 => u8::try_from(number).is_ok(),
        DType::I8 => i8::try_from(number).is_ok(),
        DType::U16 => u16::try_from(number).is_ok(),
        DType::I16 => i16::try_from(number).is_ok(),
        DType::U32 => u32::try_from(number).is_ok(),
        DType::I32 => i32::try_from(number).is_ok(),
        DType::U64 => u64::try_from(number).is_ok(),
        _ => true,
    }
}

/// The file of tokens that a path means.
fn bin(path: &Path) -> PathBuf {
    if let Some("bin" | "idx") = path.extension().and_then(|end| end.to_str()) {
        return path.with_extension("bin");
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".bin");
    name.into()
}

impl Source for Tokens {
    fn format(&self) -> &'static str {
        match self.layout {
            Layout::Megatron => "megatron",
            Layout::Flat(_) => "tokens",
        }
    }

    fn describe(&self) -> String {
        format!(
            "{} ({:?}, {:?}, wide {})",
            self.shards.describe(),
            self.layout,
            self.windows,
            self.wide
        )
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        Ok(self.shards.parts())
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        let mut files = self.shards.files(part)?;
        if self.layout == Layout::Megatron {
            files.extend(files.first().map(|path| path.with_extension("idx")));
        }
        Ok(files)
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(self.reader(part)?.in_order(from))
    }

    fn indexed(&self) -> bool {
        true
    }

    fn index(&self) -> Result<Arc<[u64]>, SourceError> {
        self.shards.index(|part| Ok(self.reader(part)?.records))
    }
}

struct TokensReader {
    name: Arc<str>,
    flat: Flat,
    megatron: Option<Megatron>,
    windows: Option<Windows>,
    wide: bool,
    records: u64,
    short: bool,
}

impl TokensReader {
    fn dtype(&self) -> DType {
        if self.wide { DType::I64 } else { self.flat.dtype }
    }

    /// A tensor whose bytes `fill` writes.
    fn tensor(
        &mut self,
        shape: &[usize],
        fill: impl FnOnce(&mut Self, &mut [u8]) -> Result<(), SourceError>,
    ) -> Result<Value, SourceError> {
        let mut failed = None;
        let built = Tensor::build(&Heap, self.dtype(), shape, |out| {
            fill(self, out).map_err(|error| {
                failed = Some(error);
                TensorError::Index { index: 0, len: 0 }
            })
        });
        match (built, failed) {
            (_, Some(error)) => Err(error),
            (Ok(tensor), None) => Ok(Value::Tensor(tensor)),
            (Err(error), None) => Err(SourceError::new(Fault::TooLarge, &*self.name, error.to_string())),
        }
    }

    /// Tokens from a byte offset on, as they are given.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        if self.wide {
            self.flat.wide(offset, out)
        } else {
            self.flat.stored(offset, out)
        }
    }

    fn window(&mut self, windows: Windows, number: u64) -> Result<Value, SourceError> {
        let start = number.saturating_mul(windows.stride as u64);
        let width = windows.width();
        let left = usize::try_from(self.flat.len.saturating_sub(start)).unwrap_or(usize::MAX);
        let (len, size) = (width.min(left), self.dtype().size());
        let at = self.flat.offset(start);
        let mut pairs = Vec::with_capacity(2);
        let pad = match windows.last {
            ShortWindow::Pad(token) => Some(token),
            ShortWindow::Drop | ShortWindow::Keep => None,
        };
        let shape = if pad.is_some() { width } else { len };
        pairs.push((
            "tokens",
            self.tensor(&[shape], |reader, out| {
                let (tokens, rest) = out.split_at_mut(len * size);
                reader.read(at, tokens)?;
                let token = pad.unwrap_or(0).to_ne_bytes();
                let token = if cfg!(target_endian = "big") {
                    &token[8 - size..]
                } else {
                    &token[..size]
                };
                rest.chunks_exact_mut(size)
                    .for_each(|place| place.copy_from_slice(token));
                Ok(())
            })?,
        ));
        if pad.is_some() {
            pairs.push(("length", Value::Int(i64::try_from(len).unwrap_or(i64::MAX))));
        }
        Ok(Value::map(pairs))
    }

    fn document(&mut self, number: u64) -> Result<Value, SourceError> {
        let size = self.flat.dtype.size() as u64;
        let bytes = self.flat.len * size;
        let Some(megatron) = &mut self.megatron else {
            return Ok(Value::None);
        };
        let pieces = megatron.document(number, bytes)?;
        let tokens: u64 = pieces.iter().map(|(_, bytes)| bytes / size).sum();
        let shape = usize::try_from(tokens).unwrap_or(usize::MAX);
        let given = self.dtype().size() as u64;
        let tokens = self.tensor(&[shape], |reader, out| {
            let mut out = out;
            for (offset, bytes) in pieces {
                let len = usize::try_from(bytes / size * given).unwrap_or(usize::MAX);
                let (piece, rest) = out.split_at_mut(len.min(out.len()));
                reader.read(offset, piece)?;
                out = rest;
            }
            Ok(())
        })?;
        Ok(Value::map([("tokens", tokens)]))
    }
}

impl Numbered for TokensReader {
    fn count(&self) -> u64 {
        self.records
    }

    fn record(&mut self, number: u64) -> Result<Value, SourceError> {
        match self.windows {
            Some(windows) => self.window(windows, number),
            None => self.document(number),
        }
    }

    /// Full windows are one tensor; what is of different lengths is a list.
    fn columns(&mut self, first: u64, rows: usize) -> Option<Result<(usize, Fields), SourceError>> {
        let full = self.records - u64::from(self.short);
        let fields = match self.windows {
            Some(windows) if windows.last == ShortWindow::Drop || first + rows as u64 <= full => {
                self.block(windows, first, rows)
            }
            _ => self.list(first, rows),
        };
        Some(fields.map(|fields| (rows, fields)))
    }
}

impl TokensReader {
    /// Full windows as one tensor.
    fn block(&mut self, windows: Windows, first: u64, rows: usize) -> Result<Vec<(String, Value)>, SourceError> {
        // So many windows were counted in the file, so each of them is no larger than it.
        let width = if rows == 0 { 0 } else { windows.width() };
        let size = self.dtype().size();
        let tokens = self.tensor(&[rows, width], |reader, out| {
            if windows.stride == width {
                let at = reader.flat.offset(first * windows.stride as u64);
                return reader.read(at, out);
            }
            for (row, out) in (first..).zip(out.chunks_exact_mut((width * size).max(1))) {
                let at = reader.flat.offset(row * windows.stride as u64);
                reader.read(at, out)?;
            }
            Ok(())
        })?;
        let mut fields = vec![("tokens".to_owned(), tokens)];
        if matches!(windows.last, ShortWindow::Pad(_)) {
            let lengths = vec![i64::try_from(width).unwrap_or(i64::MAX); rows];
            let lengths = Tensor::from_slice(&lengths, &[rows]);
            let lengths = lengths.map_err(|error| SourceError::new(Fault::TooLarge, &*self.name, error.to_string()))?;
            fields.push(("length".into(), Value::Tensor(lengths)));
        }
        Ok(fields)
    }

    /// Records of different lengths, as lists.
    fn list(&mut self, first: u64, rows: usize) -> Result<Vec<(String, Value)>, SourceError> {
        let mut fields: Vec<(String, Vec<Value>)> = Vec::new();
        for number in first..first + rows as u64 {
            let Value::Map(pairs) = self.record(number)? else {
                continue;
            };
            for (name, value) in pairs {
                match fields.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, values)) => values.push(value),
                    None => fields.push((name, vec![value])),
                }
            }
        }
        Ok(fields
            .into_iter()
            .map(|(name, values)| (name, Value::List(values)))
            .collect())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
