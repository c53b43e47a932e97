//! Images: bytes to arrays, without the GIL.
#![expect(unsafe_code, reason = "pixels are handed to Python as they are")]

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use feedrate::decode::{
    Channels, Decoder, Deep, Flaw, Format, Image, ImageError, Options, Pixels, Truncated, info, write_png,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::block::{Block, Memory};
use crate::enter::compute;

/// The error as Python's `feedrate.ImageError`.
pub(crate) fn raised(py: Python<'_>, error: &ImageError) -> PyErr {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = || {
        let fields = PyDict::new(py);
        fields.set_item("name", error.name())?;
        fields.set_item("format", error.format().map(Format::name))?;
        fields.set_item("reason", error.message())?;
        fields.set_item("flaw", flaw(error.flaw()))?;
        let class = CLASS.import(py, "feedrate._errors", "ImageError")?;
        class.call((error.to_string(),), Some(&fields))
    };
    make().map_or_else(|failed| failed, PyErr::from_value)
}

fn flaw(flaw: Flaw) -> &'static str {
    match flaw {
        Flaw::Unknown => "unknown",
        Flaw::Unsupported => "unsupported",
        Flaw::Truncated => "truncated",
        Flaw::Damaged => "damaged",
        Flaw::TooLarge => "too large",
        Flaw::NoFrame => "no frame",
        _ => "decoder",
    }
}

/// Bytes that stay as they are while the GIL is not held: those of `bytes` themselves, a copy of anything that others may write to.
enum Input {
    Kept(PyBackedBytes),
    Copied(Vec<u8>),
}

impl Input {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Kept(bytes.clone().into()));
        }
        let buffer = PyBuffer::<u8>::get(object).map_err(|error| {
            let kind = object.get_type();
            let error_text = error.value(object.py()).to_string();
            PyTypeError::new_err(format!(
                "an image is bytes, bytearray, memoryview or an array of uint8, not {kind}: {error_text}"
            ))
        })?;
        buffer.to_vec(object.py()).map(Self::Copied)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Kept(bytes) => bytes,
            Self::Copied(bytes) => bytes,
        }
    }
}

/// Pixels that Python's arrays look at.
struct Owned {
    ptr: *mut u8,
    len: usize,
    _pixels: Pixels,
}

// SAFETY: `ptr` points into the vector that `_pixels` owns and nothing else reads; who writes through it is up to Python, as for any
// memory with the buffer protocol.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Memory for Owned {
    fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// The image as a NumPy array, without a copy: height, width and channels, or height and width for one channel.
fn array(py: Python<'_>, image: Image) -> PyResult<Bound<'_, PyAny>> {
    static NDARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (height, width, channels) = (image.height, image.width, image.channels);
    let mut pixels = image.pixels;
    let (ptr, len, dtype) = match &mut pixels {
        Pixels::U8(values) => (values.as_mut_ptr(), values.len(), "u1"),
        Pixels::U16(values) => (values.as_mut_ptr().cast(), values.len() * 2, "u2"),
        Pixels::I32(values) => (values.as_mut_ptr().cast(), values.len() * 4, "i4"),
        Pixels::F32(values) => (values.as_mut_ptr().cast(), values.len() * 4, "f4"),
        _ => return Err(PyTypeError::new_err("pixels of a kind that this binding does not know")),
    };
    let memory: Arc<dyn Memory> = Arc::new(Owned {
        ptr,
        len,
        _pixels: pixels,
    });
    let block = Bound::new(py, Block::new(memory))?;
    let shape = if channels == 1 {
        PyTuple::new(py, [height as usize, width as usize])?
    } else {
        PyTuple::new(py, [height as usize, width as usize, channels])?
    };
    NDARRAY.import(py, "numpy", "ndarray")?.call1((shape, dtype, block))
}

/// What becomes of 16 bits, by its name.
pub(crate) fn deep_named(name: &str) -> PyResult<Deep> {
    match name {
        "upper" => Ok(Deep::Upper),
        "clip" => Ok(Deep::Clip),
        "scale" => Ok(Deep::Scale),
        other => Err(PyValueError::new_err(format!(
            "deep is \"upper\", \"clip\" or \"scale\", not {other:?}"
        ))),
    }
}

fn options(
    mode: Option<&str>,
    orientation: bool,
    frame: u32,
    max_pixels: u64,
    truncated: &str,
    deep: &str,
) -> PyResult<Options> {
    let channels = match mode {
        None => Channels::AsStored,
        Some("L") => Channels::Gray,
        Some("RGB") => Channels::Rgb,
        Some("RGBA") => Channels::Rgba,
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "mode is \"RGB\", \"L\", \"RGBA\" or None (as stored), not {other:?}"
            )));
        }
    };
    let truncated = match truncated {
        "refuse" => Truncated::Refuse,
        "fill" => Truncated::Fill,
        other => {
            return Err(PyValueError::new_err(format!(
                "truncated is \"refuse\" or \"fill\", not {other:?}"
            )));
        }
    };
    let deep = deep_named(deep)?;
    Ok(Options {
        channels,
        max_pixels,
        orientation,
        truncated,
        deep,
        frame,
    })
}

/// Decodes images, in `threads` threads; a list of arrays. The first error, in the order of the list, is raised; `names` says whose it is.
#[pyfunction]
#[pyo3(signature = (images, names, mode, orientation, frame, max_pixels, truncated, deep, threads))]
#[expect(clippy::too_many_arguments, reason = "one place in Python calls it")]
pub(crate) fn decode_images<'py>(
    py: Python<'py>,
    images: Vec<Bound<'py, PyAny>>,
    names: Option<Vec<String>>,
    mode: Option<&str>,
    orientation: bool,
    frame: u32,
    max_pixels: u64,
    truncated: &str,
    deep: &str,
    threads: usize,
) -> PyResult<Bound<'py, PyList>> {
    let options = options(mode, orientation, frame, max_pixels, truncated, deep)?;
    let inputs = images.iter().map(Input::of).collect::<PyResult<Vec<_>>>()?;
    let whose = |index: usize, error: ImageError| match names.as_ref().and_then(|names| names.get(index)) {
        Some(name) => error.of(name.clone()),
        None => error,
    };
    let results: Vec<Mutex<Option<Result<Image, ImageError>>>> = inputs.iter().map(|_| Mutex::new(None)).collect();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = |go_on: &mut dyn FnMut() -> bool| {
        let mut decoder = Decoder::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(input), Some(place)) = (inputs.get(index), results.get(index)) else {
                break;
            };
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let result = decoder.decode(input.bytes(), &options);
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            if let Ok(mut place) = place.lock() {
                *place = Some(result);
            }
            if !go_on() {
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    compute(py, |go_on| {
        std::thread::scope(|scope| {
            for _ in 1..threads.min(inputs.len()) {
                // Where no thread can be had, the others do its part.
                let _ = std::thread::Builder::new().spawn_scoped(scope, || work(&mut || true));
            }
            work(go_on);
        });
    })?;
    let arrays = PyList::empty(py);
    for (index, place) in results.into_iter().enumerate() {
        match place.into_inner().ok().flatten() {
            Some(Ok(image)) => arrays.append(array(py, image)?)?,
            Some(Err(error)) => return Err(raised(py, &whose(index, error))),
            None => return Err(PyMemoryError::new_err("an image was not decoded")),
        }
    }
    Ok(arrays)
}

/// What a header says: format, width, height, Pillow's mode, frames, orientation.
#[pyfunction]
#[pyo3(signature = (image, name=None))]
pub(crate) fn image_info(
    py: Python<'_>,
    image: Bound<'_, PyAny>,
    name: Option<String>,
) -> PyResult<(&'static str, u32, u32, &'static str, u32, u8)> {
    let input = Input::of(&image)?;
    let found = py.detach(|| info(input.bytes())).map_err(|error| {
        let error = match name {
            Some(name) => error.of(name),
            None => error,
        };
        raised(py, &error)
    })?;
    Ok((
        found.format.name(),
        found.width,
        found.height,
        found.mode.pillow_name(),
        found.frames,
        found.orientation,
    ))
}

/// A PNG of 8-bit pixels in rows without padding: 1, 3 or 4 channels.
#[pyfunction]
pub(crate) fn encode_png<'py>(
    py: Python<'py>,
    pixels: Bound<'py, PyAny>,
    width: u32,
    height: u32,
    channels: u8,
) -> PyResult<Bound<'py, PyBytes>> {
    let input = Input::of(&pixels)?;
    let png = py.detach(|| write_png(input.bytes(), width, height, channels));
    png.map(|png| PyBytes::new(py, &png)).map_err(PyValueError::new_err)
}
