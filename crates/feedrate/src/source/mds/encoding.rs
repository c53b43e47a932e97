//! How MDS writes a field.

use crate::batch::{DType, Heap, Tensor, TensorError, Value, copied};
use crate::source::json::{self, BigInts};

/// How a column is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Bytes as they are; encoded images too.
    Bytes,
    Str,
    /// A Python int.
    Int,
    /// A NumPy scalar.
    Scalar(DType),
    StrInt,
    StrFloat,
    /// Decimals have more digits than floats, so they stay text.
    StrDecimal,
    Json,
    Array {
        dtype: Option<DType>,
        shape: Option<Vec<usize>>,
    },
    /// Pixels without compression.
    Pixels,
    List(Box<Encoding>),
    /// As a list, without the list's first word.
    JpegArray,
}

impl Encoding {
    /// By the name in the index; a message if it is none that is read.
    pub(super) fn named(name: &str) -> Result<Self, String> {
        Ok(match name {
            "bytes" | "jpeg" | "png" => Self::Bytes,
            "str" => Self::Str,
            "int" => Self::Int,
            "str_int" => Self::StrInt,
            "str_float" => Self::StrFloat,
            "str_decimal" => Self::StrDecimal,
            "json" => Self::Json,
            "pil" => Self::Pixels,
            "list[pil]" => Self::List(Box::new(Self::Pixels)),
            "list[jpeg]" | "list[png]" => Self::List(Box::new(Self::Bytes)),
            "jpeg_array" | "jpegarray" => Self::JpegArray,
            "ndarray" => Self::Array {
                dtype: None,
                shape: None,
            },
            "pkl" => {
                return Err("the encoding is pkl, and pickles are never read: leave the column out, or write it as json, ndarray or bytes".into());
            }
            _ => match (name.strip_prefix("ndarray:"), number(name)) {
                (Some(rest), _) => array(rest).ok_or_else(|| format!("the encoding {name:?} is no array's"))?,
                (None, Some(dtype)) => Self::Scalar(dtype),
                (None, None) => return Err(format!("the encoding {name:?} is not known")),
            },
        })
    }

    /// The value of these bytes.
    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Value, String> {
        match self {
            Self::Bytes => Ok(Value::Bytes(copied(bytes))),
            Self::Str => text(bytes).map(|text| Value::Str(text.to_owned())),
            Self::StrDecimal => text(bytes).map(|text| Value::Str(text.to_owned())),
            Self::Int => match bytes.try_into() {
                Ok(eight) => Ok(Value::Int(i64::from_le_bytes(eight))),
                Err(_) => Err(format!("an int has 8 bytes, not {}", bytes.len())),
            },
            Self::Scalar(dtype) => tensor(*dtype, &[], bytes),
            Self::StrInt => {
                let text = text(bytes)?;
                let parsed = text.parse().map(Value::Int);
                parsed.map_err(|_| format!("{:?} is no int of 64 bits", short(text)))
            }
            Self::StrFloat => {
                let text = text(bytes)?;
                let parsed = text.parse().map(Value::Float);
                parsed.map_err(|_| format!("{:?} is no float", short(text)))
            }
            Self::Json => {
                let parsed = json::value(text(bytes)?, BigInts::Error);
                parsed.map_err(|bad| format!("no JSON: {} (byte {})", bad.message, bad.at))
            }
            Self::Array { dtype, shape } => grid(*dtype, shape.as_deref(), bytes),
            Self::Pixels => pixels(bytes),
            Self::List(inner) => {
                let (_, rest) = word(bytes)?;
                list(rest, |element| inner.decode(element))
            }
            Self::JpegArray => list(bytes, |element| Ok(Value::Bytes(copied(element)))),
        }
    }
}

fn number(name: &str) -> Option<DType> {
    match name {
        "uint8" | "uint16" | "uint32" | "uint64" | "int8" | "int16" | "int32" | "int64" | "float16" | "float32"
        | "float64" => DType::from_name(name),
        _ => None,
    }
}

/// The type, and behind a colon the shape, if these are the same for all.
fn array(text: &str) -> Option<Encoding> {
    let mut parts = text.split(':');
    let dtype = Some(number(parts.next()?)?);
    let shape = match parts.next() {
        None => None,
        Some(shape) => Some(shape.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>()?),
    };
    parts.next().is_none().then_some(Encoding::Array { dtype, shape })
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    str::from_utf8(bytes).map_err(|error| format!("no UTF-8: {error}"))
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// A tensor of little-endian elements, which must be as many as the shape says.
fn tensor(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Value, String> {
    let wanted = shape.iter().try_fold(dtype.size(), |n, d| n.checked_mul(*d));
    if wanted != Some(bytes.len()) {
        return Err(format!("{dtype} of shape {shape:?} do not have {} bytes", bytes.len()));
    }
    let built = Tensor::build(&Heap, dtype, shape, |out| {
        out.copy_from_slice(bytes);
        if cfg!(target_endian = "big") {
            out.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
        }
        Ok::<_, TensorError>(())
    });
    built.map(Value::Tensor).map_err(|error| error.to_string())
}

/// An array: what its column does not say stands before its elements.
fn grid(dtype: Option<DType>, shape: Option<&[usize]>, bytes: &[u8]) -> Result<Value, String> {
    let cut = || "the array's head is cut off".to_owned();
    let mut rest = bytes;
    let dtype = if let Some(dtype) = dtype {
        dtype
    } else {
        let (code, behind) = rest.split_first().ok_or_else(cut)?;
        rest = behind;
        match code {
            8 => DType::U8,
            9 => DType::I8,
            16 => DType::U16,
            17 => DType::I16,
            18 => DType::F16,
            32 => DType::U32,
            33 => DType::I32,
            34 => DType::F32,
            64 => DType::U64,
            65 => DType::I64,
            66 => DType::F64,
            code => return Err(format!("there is no element type {code}")),
        }
    };
    if let Some(shape) = shape {
        return tensor(dtype, shape, rest);
    }
    let (head, behind) = rest.split_first().ok_or_else(cut)?;
    let width = 1_usize << (head & 3);
    let len = usize::from(head >> 2) * width;
    let (dimensions, elements) = behind.split_at_checked(len).ok_or_else(cut)?;
    let dimension = |bytes: &[u8]| {
        let mut eight = [0; 8];
        eight[..width].copy_from_slice(bytes);
        usize::try_from(u64::from_le_bytes(eight)).unwrap_or(usize::MAX)
    };
    let shape: Vec<_> = dimensions.chunks_exact(width).map(dimension).collect();
    tensor(dtype, &shape, elements)
}

fn word(bytes: &[u8]) -> Result<(usize, &[u8]), String> {
    match bytes.split_at_checked(4) {
        Some((four, rest)) => {
            let number = four.try_into().map_or(0, u32::from_le_bytes);
            Ok((usize::try_from(number).unwrap_or(usize::MAX), rest))
        }
        None => Err("it is cut off".into()),
    }
}

/// A count, as many sizes, and the elements.
fn list(bytes: &[u8], element: impl Fn(&[u8]) -> Result<Value, String>) -> Result<Value, String> {
    let (count, rest) = word(bytes)?;
    let sizes = count.checked_mul(4).and_then(|len| rest.split_at_checked(len));
    let (sizes, mut rest) = sizes.ok_or("the list's sizes are cut off")?;
    let mut items = Vec::with_capacity(count);
    for size in sizes.chunks_exact(4) {
        let (size, _) = word(size)?;
        let (bytes, behind) = rest.split_at_checked(size).ok_or("an element of the list is cut off")?;
        items.push(element(bytes)?);
        rest = behind;
    }
    Ok(Value::List(items))
}

/// Pillow's pixels: width, height, the mode's length, the mode, the pixels. As `numpy.asarray` shapes them.
fn pixels(bytes: &[u8]) -> Result<Value, String> {
    let (width, rest) = word(bytes)?;
    let (height, rest) = word(rest)?;
    let (len, rest) = word(rest)?;
    let (mode, raw) = rest.split_at_checked(len).ok_or("the image's head is cut off")?;
    let mode = text(mode)?;
    let (dtype, channels) = match mode {
        "L" | "P" => (DType::U8, None),
        "LA" | "La" | "PA" => (DType::U8, Some(2)),
        "RGB" | "YCbCr" | "HSV" | "LAB" => (DType::U8, Some(3)),
        "RGBA" | "CMYK" | "RGBa" | "RGBX" => (DType::U8, Some(4)),
        "I" => (DType::I32, None),
        "I;16" => (DType::U16, None),
        "F" => (DType::F32, None),
        _ => return Err(format!("an image of mode {:?} is not read", short(mode))),
    };
    let shape: Vec<_> = [Some(height), Some(width), channels].into_iter().flatten().collect();
    tensor(dtype, &shape, raw)
}
