//! Image transforms: definitions, and batches of images that are made without the GIL.
#![expect(
    unsafe_code,
    reason = "pixels are read from Python's buffers and written into them without the GIL"
)]

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use feedrate::batch::DType;
use feedrate::decode::resample::{Filter, Passes, View};
use feedrate::decode::transform::{
    Drawn, Fill, ImageTransform as Definition, Jitter, Layout, Output, PadMode, Padding, Scale, Size, Source, Step,
    Target, TransformError, Worker,
};
use feedrate::decode::{Channels, Rect};
use feedrate::random::Key;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::image::{self, deep_named};

thread_local! {
    static WORKER: RefCell<Worker> = RefCell::default();
}

/// A definition: steps, and what comes out. Immutable; every method gives a new one.
#[pyclass(frozen, eq, hash, module = "feedrate._native")]
#[derive(PartialEq, Hash)]
pub(crate) struct ImageTransform {
    inner: Definition,
}

fn wrong(error: &TransformError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn filter(name: &str) -> PyResult<Filter> {
    Filter::from_name(name).ok_or_else(|| {
        let names = Filter::ALL.map(Filter::name);
        PyValueError::new_err(format!("interpolation is one of {names:?}, not {name:?}"))
    })
}

fn mode(name: &str) -> PyResult<PadMode> {
    PadMode::from_name(name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "a padding mode is one of \"constant\", \"edge\", \"reflect\", \"symmetric\", not {name:?}"
        ))
    })
}

fn target(height: u32, width: u32) -> Size {
    Size::new(width, height)
}

impl ImageTransform {
    fn then(&self, step: Step) -> PyResult<Self> {
        let inner = self.inner.clone().step(step).map_err(|e| wrong(&e))?;
        Ok(Self { inner })
    }
}

#[pymethods]
impl ImageTransform {
    #[new]
    fn new(channels: &str) -> PyResult<Self> {
        let channels = match channels {
            "L" => Channels::Gray,
            "RGB" => Channels::Rgb,
            "RGBA" => Channels::Rgba,
            other => {
                return Err(PyValueError::new_err(format!(
                    "mode is \"RGB\", \"L\" or \"RGBA\", not {other:?}"
                )));
            }
        };
        let inner = Definition::new(channels).map_err(|e| wrong(&e))?;
        Ok(Self { inner })
    }

    fn random_resized_crop(
        &self,
        height: u32,
        width: u32,
        scale: (f64, f64),
        ratio: (f64, f64),
        interpolation: &str,
    ) -> PyResult<Self> {
        self.then(Step::RandomResizedCrop {
            size: target(height, width),
            scale,
            ratio,
            filter: filter(interpolation)?,
        })
    }

    fn resize_short(&self, size: u32, most: Option<u32>, interpolation: &str) -> PyResult<Self> {
        self.then(Step::Resize {
            to: Target::Short { size, most },
            filter: filter(interpolation)?,
        })
    }

    fn resize(&self, height: u32, width: u32, interpolation: &str) -> PyResult<Self> {
        self.then(Step::Resize {
            to: Target::Exact(target(height, width)),
            filter: filter(interpolation)?,
        })
    }

    fn fit(&self, height: u32, width: u32, interpolation: &str) -> PyResult<Self> {
        self.then(Step::Resize {
            to: Target::Fit(target(height, width)),
            filter: filter(interpolation)?,
        })
    }

    fn letterbox(&self, height: u32, width: u32, fill: Fill, interpolation: &str) -> PyResult<Self> {
        self.then(Step::Resize {
            to: Target::Letterbox(target(height, width), fill),
            filter: filter(interpolation)?,
        })
    }

    fn center_crop(&self, height: u32, width: u32) -> PyResult<Self> {
        self.then(Step::CenterCrop(target(height, width)))
    }

    #[pyo3(signature = (height, width, padding, pad_if_needed, padding_mode, fill))]
    fn random_crop(
        &self,
        height: u32,
        width: u32,
        padding: Option<(u32, u32, u32, u32)>,
        pad_if_needed: bool,
        padding_mode: &str,
        fill: Fill,
    ) -> PyResult<Self> {
        let mode = mode(padding_mode)?;
        self.then(Step::RandomCrop {
            size: target(height, width),
            padding: padding.map(|(left, top, right, bottom)| Padding {
                left,
                top,
                right,
                bottom,
                fill,
                mode,
            }),
            if_needed: pad_if_needed.then_some((mode, fill)),
        })
    }

    fn pad(&self, padding: (u32, u32, u32, u32), padding_mode: &str, fill: Fill) -> PyResult<Self> {
        let (left, top, right, bottom) = padding;
        self.then(Step::Pad(Padding {
            left,
            top,
            right,
            bottom,
            fill,
            mode: mode(padding_mode)?,
        }))
    }

    fn horizontal_flip(&self, chance: f64) -> PyResult<Self> {
        self.then(Step::HorizontalFlip(chance))
    }

    fn vertical_flip(&self, chance: f64) -> PyResult<Self> {
        self.then(Step::VerticalFlip(chance))
    }

    #[pyo3(signature = (brightness, contrast, saturation, hue, chance))]
    fn color_jitter(
        &self,
        brightness: Option<(f64, f64)>,
        contrast: Option<(f64, f64)>,
        saturation: Option<(f64, f64)>,
        hue: Option<(f64, f64)>,
        chance: Option<f64>,
    ) -> PyResult<Self> {
        self.then(Step::ColorJitter {
            brightness,
            contrast,
            saturation,
            hue,
            chance,
        })
    }

    fn grayscale(&self, channels: usize) -> PyResult<Self> {
        self.then(Step::Grayscale(channels))
    }

    fn random_grayscale(&self, chance: f64) -> PyResult<Self> {
        self.then(Step::RandomGrayscale(chance))
    }

    #[pyo3(signature = (dtype, layout, scale, normalize))]
    fn output(
        &self,
        dtype: &str,
        layout: &str,
        scale: &str,
        normalize: Option<(Vec<f32>, Vec<f32>)>,
    ) -> PyResult<Self> {
        let dtype = DType::from_name(dtype).ok_or_else(|| {
            PyValueError::new_err(format!("dtype is uint8, float16, bfloat16 or float32, not {dtype:?}"))
        })?;
        let layout = match layout {
            "CHW" => Layout::Planes,
            "HWC" => Layout::Pixels,
            other => {
                return Err(PyValueError::new_err(format!(
                    "layout is \"CHW\" or \"HWC\", not {other:?}"
                )));
            }
        };
        let scale = match scale {
            "keep" => Scale::Keep,
            "divide" => Scale::Divide,
            "multiply" => Scale::Multiply,
            other => {
                return Err(PyValueError::new_err(format!(
                    "scale is \"keep\", \"divide\" or \"multiply\", not {other:?}"
                )));
            }
        };
        let output = Output {
            dtype,
            layout,
            scale,
            normalise: normalize,
        };
        let inner = self.inner.clone().output(output).map_err(|e| wrong(&e))?;
        Ok(Self { inner })
    }

    /// Which pass of a resize comes first: as in Pillow 13, or as before.
    fn passes(&self, pillow: u32) -> Self {
        let passes = if pillow >= 13 {
            Passes::Pillow13
        } else {
            Passes::Pillow12
        };
        Self {
            inner: self.inner.clone().passes(passes),
        }
    }

    /// Whether JPEGs may be decoded smaller than they are, and how many times larger than what comes out they stay.
    fn shrink(&self, gap: Option<f32>) -> PyResult<Self> {
        let inner = self.inner.clone().shrink(gap);
        Ok(Self {
            inner: inner.map_err(|e| wrong(&e))?,
        })
    }

    /// What becomes of 16 bits a channel: "upper", "clip" or "scale".
    fn deep(&self, deep: &str) -> PyResult<Self> {
        Ok(Self {
            inner: self.inner.clone().deep(deep_named(deep)?),
        })
    }

    /// (height, width) of what comes out, where it does not depend on the image.
    #[getter]
    fn fixed_size(&self) -> Option<(u32, u32)> {
        self.inner.fixed_size().map(|size| (size.height, size.width))
    }

    /// Channels of what comes out.
    #[getter]
    fn channels(&self) -> usize {
        self.inner.output_channels()
    }

    /// Whether any step draws random numbers.
    #[getter]
    fn random(&self) -> bool {
        self.inner.steps().iter().any(Step::is_random)
    }

    fn __str__(&self) -> String {
        self.inner.to_string()
    }

    /// Images on their way: reads files, and looks at headers. Without the GIL.
    ///
    /// An item is a path (str), the bytes of a file (bytes, or a one-dimensional buffer), or pixels (a buffer of rows, columns and channels).
    fn open(slf: &Bound<'_, Self>, py: Python<'_>, items: Vec<Bound<'_, PyAny>>) -> PyResult<ImageBatch> {
        let inputs = items.iter().map(Input::new).collect::<PyResult<Vec<_>>>()?;
        let transform = slf.get().inner.clone();
        let opened = py.detach(|| {
            inputs
                .into_iter()
                .map(|mut input| {
                    input.read()?;
                    let size = input.source().size()?;
                    Ok((input, size))
                })
                .enumerate()
                .map(|(number, opened)| opened.map_err(|error| (number, error)))
                .collect::<Result<Vec<_>, (usize, Failure)>>()
        });
        let (inputs, sizes): (Vec<Input>, Vec<Size>) = opened
            .map_err(|(number, error)| error.raised(py, number, &items))?
            .into_iter()
            .unzip();
        Ok(ImageBatch {
            transform,
            names: items.into_iter().map(Bound::unbind).collect(),
            inputs,
            sizes,
            drawn: None,
        })
    }
}

/// What went wrong with one image.
enum Failure {
    Read(std::io::Error, String),
    Transform(TransformError),
}

impl From<TransformError> for Failure {
    fn from(error: TransformError) -> Self {
        Self::Transform(error)
    }
}

impl Failure {
    /// The exception, which says which of the items it was.
    fn raised(self, py: Python<'_>, number: usize, items: &[Bound<'_, PyAny>]) -> PyErr {
        let name = items
            .get(number)
            .and_then(|item| item.cast::<PyString>().ok())
            .map(ToString::to_string);
        let place = name.unwrap_or_else(|| format!("image {number}"));
        match self {
            Self::Read(error, path) => match error.raw_os_error() {
                Some(code) => PyOSError::new_err((code, error.to_string(), path)),
                None => PyOSError::new_err(format!("{path}: {error}")),
            },
            Self::Transform(TransformError::Image(error)) => image::raised(py, &error.of(place)),
            Self::Transform(error) => PyValueError::new_err(format!("{place}: {error}")),
        }
    }
}

/// One image on its way in.
enum Input {
    Path(PathBuf),
    File(Vec<u8>),
    Bytes(PyBackedBytes),
    /// A buffer of rows, columns and perhaps channels.
    Pixels {
        buffer: PyBuffer<u8>,
        shape: [usize; 3],
    },
}

impl Input {
    fn new(item: &Bound<'_, PyAny>) -> PyResult<Self> {
        if item.is_instance_of::<PyString>() {
            // As the file system has it, which need not be text.
            return Ok(Self::Path(item.extract()?));
        }
        if let Ok(bytes) = item.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone().into()));
        }
        let buffer = PyBuffer::<u8>::get(item).map_err(|error| {
            PyTypeError::new_err(format!(
                "an image is a path (str), bytes, or a C-contiguous uint8 array, but got {}: {error}",
                item.get_type()
            ))
        })?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(
                "pixels have to lie in C order without gaps: use numpy.ascontiguousarray",
            ));
        }
        match *buffer.shape() {
            // Copied, since others may write to it while it is decoded.
            [_] => buffer.to_vec(item.py()).map(Self::File),
            [height, width] => Ok(Self::Pixels {
                buffer,
                shape: [height, width, 1],
            }),
            [height, width, channels] => Ok(Self::Pixels {
                buffer,
                shape: [height, width, channels],
            }),
            _ => Err(PyValueError::new_err(format!(
                "pixels have the shape (height, width, channels), but got {:?}",
                buffer.shape()
            ))),
        }
    }

    fn read(&mut self) -> Result<(), Failure> {
        if let Self::Path(path) = self {
            let bytes =
                std::fs::read(&*path).map_err(|error| Failure::Read(error, path.to_string_lossy().into_owned()))?;
            *self = Self::File(bytes);
        }
        Ok(())
    }

    fn source(&self) -> Source<'_> {
        match self {
            Self::Path(_) => Source::Encoded(&[]),
            Self::File(bytes) => Source::Encoded(bytes),
            Self::Bytes(bytes) => Source::Encoded(bytes),
            Self::Pixels {
                buffer,
                shape: [height, width, channels],
            } => Source::Pixels(View::new(contents(buffer), *width, *height, *channels)),
        }
    }
}

/// The bytes of a buffer that is C-contiguous.
fn contents(buffer: &PyBuffer<u8>) -> &[u8] {
    if buffer.len_bytes() == 0 {
        return &[];
    }
    // SAFETY: the buffer is held by its view, so that it stays where it is. As with NumPy's own functions, whoever writes to an array while it is
    // read gets mixed pixels; every byte is a valid value.
    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) }
}

/// Images that were opened; their random parameters are drawn, or given, and then they are made.
#[pyclass(module = "feedrate._native")]
pub(crate) struct ImageBatch {
    transform: Definition,
    /// What the user gave, for messages.
    names: Vec<Py<PyAny>>,
    inputs: Vec<Input>,
    sizes: Vec<Size>,
    drawn: Option<Vec<Vec<Drawn>>>,
}

#[pymethods]
impl ImageBatch {
    fn __len__(&self) -> usize {
        self.inputs.len()
    }

    /// (height, width) of each image as it is stored.
    #[getter]
    fn sizes(&self) -> Vec<(u32, u32)> {
        self.sizes.iter().map(|size| (size.height, size.width)).collect()
    }

    /// (height, width) of each image as it comes out.
    fn outputs(&self, py: Python<'_>) -> PyResult<Vec<(u32, u32)>> {
        self.sizes
            .iter()
            .enumerate()
            .map(|(number, size)| match self.transform.size_of(*size) {
                Ok(size) => Ok((size.height, size.width)),
                Err(error) => Err(self.failed(py, number, error.into())),
            })
            .collect()
    }

    /// For each image, the (height, width) that each random step chooses from.
    fn choices(&self, py: Python<'_>) -> PyResult<Vec<Vec<(u32, u32)>>> {
        self.sizes
            .iter()
            .enumerate()
            .map(|(number, size)| match self.transform.choices(*size) {
                Ok(sizes) => Ok(sizes.iter().map(|size| (size.height, size.width)).collect()),
                Err(error) => Err(self.failed(py, number, error.into())),
            })
            .collect()
    }

    /// Draws the parameters of all images from (seed, epoch, step, position) of each.
    fn draw(&mut self, py: Python<'_>, keys: Vec<(u64, u64, u64, u64)>) -> PyResult<()> {
        self.count("keys", keys.len())?;
        let mut drawn = Vec::with_capacity(keys.len());
        for (number, (size, (seed, epoch, step, position))) in self.sizes.iter().zip(keys).enumerate() {
            let key = Key {
                seed,
                epoch,
                step,
                position,
                ..Key::default()
            };
            drawn.push(
                self.transform
                    .draw(*size, key)
                    .map_err(|error| self.failed(py, number, error.into()))?,
            );
        }
        self.drawn = Some(drawn);
        Ok(())
    }

    /// The parameters, as plain numbers: for each image a list for each random step.
    ///
    /// A random resized crop has top, left, height and width; a random crop top and left; a flip and random grayscale 0 or 1; colour jitter 0 or 1, the
    /// order as four numbers, and four factors, of which NaN stands for none.
    #[getter]
    fn parameters(&self) -> Option<Vec<Vec<Vec<f64>>>> {
        let drawn = self.drawn.as_ref()?;
        Some(drawn.iter().map(|image| image.iter().map(plain).collect()).collect())
    }

    #[setter]
    fn set_parameters(&mut self, parameters: Vec<Vec<Vec<f64>>>) -> PyResult<()> {
        self.count("lists of parameters", parameters.len())?;
        let random: Vec<&Step> = self.transform.steps().iter().filter(|step| step.is_random()).collect();
        let drawn = parameters
            .iter()
            .map(|image| {
                if image.len() != random.len() {
                    return Err(PyValueError::new_err(format!(
                        "the transform has {} random steps, and an image has parameters for {}",
                        random.len(),
                        image.len()
                    )));
                }
                random
                    .iter()
                    .zip(image)
                    .map(|(step, numbers)| rich(step, numbers))
                    .collect()
            })
            .collect::<PyResult<Vec<_>>>()?;
        self.drawn = Some(drawn);
        Ok(())
    }

    /// Makes the images, one behind the other in `out`, or each in one of a list, on so many threads. Without the GIL.
    fn run(&self, py: Python<'_>, out: Vec<PyBuffer<u8>>, threads: usize) -> PyResult<()> {
        let mut lengths = Vec::with_capacity(self.sizes.len());
        for (height, width) in self.outputs(py)? {
            lengths.push(self.transform.bytes(Size::new(width, height)));
        }
        let mut outs: Vec<Mutex<&mut [u8]>> = Vec::with_capacity(lengths.len());
        let whole = out.len() == 1 && lengths.len() != 1;
        if !whole {
            self.count("outputs", out.len())?;
        }
        for (number, buffer) in out.iter().enumerate() {
            let wanted: usize = if whole { lengths.iter().sum() } else { lengths[number] };
            if buffer.readonly() || !buffer.is_c_contiguous() || buffer.len_bytes() != wanted {
                return Err(PyValueError::new_err(format!(
                    "out has to be writable, C-contiguous, and {wanted} bytes long, and has {} bytes",
                    buffer.len_bytes()
                )));
            }
            if wanted == 0 {
                continue;
            }
            // SAFETY: writable memory of this length, held by the buffer; each part of it is lent once. Other arrays over it belong to the user.
            let mut rest = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), wanted) };
            if whole {
                for length in &lengths {
                    let (one, others) = rest.split_at_mut(*length);
                    outs.push(Mutex::new(one));
                    rest = others;
                }
            } else {
                outs.push(Mutex::new(rest));
            }
        }
        let none = Vec::new();
        let one = |number: usize| -> Result<(), Failure> {
            let drawn = self.drawn.as_ref().map_or(&none, |drawn| &drawn[number]);
            let mut out = outs[number].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            WORKER.with_borrow_mut(|worker| {
                worker.run(
                    &self.transform,
                    self.inputs[number].source(),
                    self.sizes[number],
                    drawn,
                    &mut out,
                )
            })?;
            Ok(())
        };
        let failed = py.detach(|| all(self.inputs.len(), threads, &one));
        match failed {
            Some((number, error)) => Err(self.failed(py, number, error)),
            None => Ok(()),
        }
    }
}

impl ImageBatch {
    fn count(&self, what: &str, count: usize) -> PyResult<()> {
        if count == self.inputs.len() {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "{count} {what} for {} images",
            self.inputs.len()
        )))
    }

    fn failed(&self, py: Python<'_>, number: usize, error: Failure) -> PyErr {
        let items: Vec<Bound<'_, PyAny>> = self.names.iter().map(|name| name.bind(py).clone()).collect();
        error.raised(py, number, &items)
    }
}

/// Makes images `0..count`; the first one that failed, by number.
fn all(count: usize, threads: usize, one: &(dyn Fn(usize) -> Result<(), Failure> + Sync)) -> Option<(usize, Failure)> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<(usize, Failure)>> = Mutex::new(None);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            if let Err(error) = one(number) {
                let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                    *failed = Some((number, error));
                }
                // Images before it are being made already; those behind it are not wanted any more.
                next.fetch_max(count, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(work);
        }
        work();
    });
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn plain(drawn: &Drawn) -> Vec<f64> {
    match drawn {
        Drawn::Crop(rect) => [rect.y, rect.x, rect.height, rect.width].map(f64::from).to_vec(),
        Drawn::Corner(x, y) => vec![f64::from(*y), f64::from(*x)],
        Drawn::Done(done) => vec![f64::from(*done)],
        Drawn::Jitter(None) => vec![0.0],
        Drawn::Jitter(Some(jitter)) => std::iter::once(1.0)
            .chain(jitter.order.map(f64::from))
            .chain(jitter.factors.map(|factor| factor.unwrap_or(f64::NAN)))
            .collect(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers that were checked"
)]
fn rich(step: &Step, numbers: &[f64]) -> PyResult<Drawn> {
    let whole = |number: f64| (number.fract() == 0.0 && (0.0..4e9).contains(&number)).then_some(number as u32);
    let wholes: Option<Vec<u32>> = numbers.iter().copied().map(whole).collect();
    let found = match (step, wholes.as_deref()) {
        (Step::RandomResizedCrop { .. }, Some(&[y, x, height, width])) => {
            Some(Drawn::Crop(Rect::new(x, y, width, height)))
        }
        (Step::RandomCrop { .. }, Some(&[y, x])) => Some(Drawn::Corner(x, y)),
        (Step::HorizontalFlip(_) | Step::VerticalFlip(_) | Step::RandomGrayscale(_), Some(&[done @ (0 | 1)])) => {
            Some(Drawn::Done(done == 1))
        }
        (Step::ColorJitter { .. }, Some(&[0])) => Some(Drawn::Jitter(None)),
        (Step::ColorJitter { .. }, _) => match numbers {
            [done, order @ .., brightness, contrast, saturation, hue] if *done > 0.0 && order.len() == 4 => {
                let order: Option<Vec<u8>> = order
                    .iter()
                    .map(|n| whole(*n).filter(|n| *n < 4).map(|n| n as u8))
                    .collect();
                order.and_then(|order| order.try_into().ok()).map(|order| {
                    let factors =
                        [brightness, contrast, saturation, hue].map(|factor| Some(*factor).filter(|f| !f.is_nan()));
                    Drawn::Jitter(Some(Jitter { order, factors }))
                })
            }
            _ => None,
        },
        _ => None,
    };
    found.ok_or_else(|| PyValueError::new_err(format!("{step} does not take the parameters {numbers:?}")))
}
