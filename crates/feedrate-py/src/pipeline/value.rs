//! Values to Python objects and back.
#![expect(unsafe_code, reason = "tensors hand raw memory to Python")]

use std::any::Any;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use feedrate::BoxError;
use feedrate::batch::{DType, Foreign, Heap, Other, Tensor, Value, give_back};
use numpy::npyffi::{NpyTypes, PY_ARRAY_API, PyArrayObject, get_type_object, npy_intp};
use pyo3::exceptions::{PyMemoryError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};

use super::function::Raised;
use crate::block::{Block, Memory};
use crate::dlpack;

/// Whose tensors users get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrays {
    Numpy,
    Torch,
}

impl Arrays {
    pub(crate) fn of(name: &str) -> PyResult<Self> {
        match name {
            "numpy" => Ok(Self::Numpy),
            "torch" => Ok(Self::Torch),
            other => Err(PyTypeError::new_err(format!("arrays of {other:?}: numpy or torch"))),
        }
    }
}

/// A Python object in a pipeline.
pub(crate) struct Object(Py<PyAny>);

impl Object {
    pub(crate) fn value(object: Bound<'_, PyAny>) -> Value {
        Value::Other(Other::new(Self(object.unbind())))
    }
}

impl Foreign for Object {
    fn kind(&self) -> &'static str {
        "a Python object"
    }

    fn describe(&self) -> String {
        Python::attach(|py| {
            let class = self.0.bind(py).get_type();
            let name = class.qualname().map(|name| name.to_string());
            name.map_or_else(
                |_| self.kind().to_owned(),
                |name| format!("{} of the type {name}", self.kind()),
            )
        })
    }

    fn to_value(&self) -> Result<Value, BoxError> {
        Python::attach(|py| from_python(self.0.bind(py), 0)).map_err(Raised::boxed)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Values nested deeper are refused.
const DEPTH: usize = 64;

/// The Python object as a value, as far as it is one; what is none stays a Python object.
pub(crate) fn from_python(object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > DEPTH {
        return Err(PyTypeError::new_err(format!(
            "a sample is nested more than {DEPTH} deep"
        )));
    }
    if object.is_none() {
        return Ok(Value::None);
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    if let Ok(number) = object.cast_exact::<PyInt>() {
        return Ok(number
            .extract::<i64>()
            .map_or_else(|_| Object::value(object.clone()), Value::Int));
    }
    if let Ok(number) = object.cast_exact::<PyFloat>() {
        return Ok(Value::Float(number.value()));
    }
    if let Ok(text) = object.cast_exact::<PyString>() {
        return Ok(Value::Str(text.to_str()?.to_owned()));
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        return Ok(Value::Bytes(bytes.as_bytes().to_vec()));
    }
    if let Ok(bytes) = object.cast_exact::<PyByteArray>() {
        return Ok(Value::Bytes(bytes.to_vec()));
    }
    if let Ok(list) = object.cast_exact::<PyList>() {
        let items: PyResult<Vec<_>> = list.iter().map(|item| from_python(&item, depth + 1)).collect();
        return items.map(Value::List);
    }
    if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        let items: PyResult<Vec<_>> = tuple.iter().map(|item| from_python(&item, depth + 1)).collect();
        return items.map(Value::List);
    }
    if let Ok(dict) = object.cast_exact::<PyDict>() {
        let pairs = pairs(dict.iter().map(Ok), depth)?;
        return Ok(pairs.map_or_else(|| Object::value(object.clone()), Value::Map));
    }
    if let Some(value) = array(object)? {
        return Ok(value);
    }
    like(object, depth)
}

/// Pairs by name; none where a key is no text.
fn pairs<'py>(
    items: impl Iterator<Item = PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)>>,
    depth: usize,
) -> PyResult<Option<Vec<(String, Value)>>> {
    let mut pairs = Vec::new();
    for item in items {
        let (key, value) = item?;
        let Ok(key) = key.cast::<PyString>() else {
            return Ok(None);
        };
        pairs.push((key.to_str()?.to_owned(), from_python(&value, depth + 1)?));
    }
    Ok(Some(pairs))
}

/// Of other classes those that are text, bytes, whole numbers, sequences or mappings too: an enumeration, `numpy.str_`, an `OrderedDict`, what
/// tokenizers give. A named tuple has more to it than its items.
fn like(object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Value::Str(text.to_str()?.to_owned()));
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Value::Bytes(bytes.as_bytes().to_vec()));
    }
    if let Ok(Ok(number)) = object.cast::<PyInt>().map(|number| number.extract::<i64>()) {
        return Ok(Value::Int(number));
    }
    if object.is_instance_of::<PyList>() || (object.is_instance_of::<PyTuple>() && !object.hasattr("_fields")?) {
        let items: PyResult<Vec<_>> = object.try_iter()?.map(|item| from_python(&item?, depth + 1)).collect();
        return items.map(Value::List);
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        let items = mapping.items()?;
        if let Some(pairs) = pairs(items.iter().map(|item| item.extract()), depth)? {
            return Ok(Value::Map(pairs));
        }
    }
    Ok(Object::value(object.clone()))
}

/// A tensor of an array or a torch tensor, copied.
fn array(object: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    let py = object.py();
    let module = object.get_type().module()?;
    let module = module.to_str()?;
    let array = if module.starts_with("torch") && object.hasattr("detach")? {
        object
            .call_method0("detach")?
            .call_method0("cpu")?
            .call_method0("numpy")?
    } else if module.starts_with("numpy") && object.hasattr("dtype")? {
        static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        ASARRAY.import(py, "numpy", "ascontiguousarray")?.call1((object,))?
    } else {
        return Ok(None);
    };
    let dtype = array.getattr("dtype")?;
    let name: String = dtype.getattr("name")?.extract()?;
    let native: bool = dtype.getattr("isnative")?.extract()?;
    let Some(dtype) = DType::from_name(&name).filter(|_| native) else {
        return Ok(None);
    };
    // A number of NumPy has no dimensions, and `ascontiguousarray` gives it one.
    let shape: Vec<usize> = object.getattr("shape")?.extract()?;
    let bytes: Vec<u8> = array.call_method0("tobytes")?.cast::<PyBytes>()?.as_bytes().to_vec();
    let tensor = Tensor::build(&Heap, dtype, &shape, |out| {
        out.copy_from_slice(&bytes);
        Ok::<_, feedrate::batch::TensorError>(())
    });
    tensor
        .map(|tensor| Some(Value::Tensor(tensor)))
        .map_err(|error| PyMemoryError::new_err(error.to_string()))
}

/// The value as a Python object; a Python object as it is.
pub(crate) fn to_python(py: Python<'_>, value: Value, arrays: Arrays) -> PyResult<Bound<'_, PyAny>> {
    made(py, value, arrays, &mut None)
}

/// Bytes that are copied without the GIL have at least this length.
const LONG: usize = 1024;
/// Of so many elements at least.
const MANY: usize = 4;
/// Names of fields that are remembered, and looked through.
const NAMES: usize = 32;

/// Makes many objects: the names of fields are made once, and long bytes are copied later, all at once, without the GIL.
#[derive(Default)]
pub(crate) struct Maker {
    names: Vec<(String, Py<PyString>)>,
    copies: Vec<Copying>,
    /// Whether there are enough elements for leaving the GIL once more.
    later: bool,
}

/// Bytes on their way into a Python object.
struct Copying {
    from: Vec<u8>,
    to: *mut u8,
    /// Keeps `to`.
    _object: Py<PyBytes>,
}

// SAFETY: `to` is the memory of `_object`, which whoever has this may write, on any thread, until it is given out.
unsafe impl Send for Copying {}

impl Maker {
    /// Elements as a list.
    pub(crate) fn list<'py>(
        &mut self,
        py: Python<'py>,
        mut values: impl ExactSizeIterator<Item = Value>,
        arrays: Arrays,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        self.later = values.len() >= MANY;
        let mut maker = Some(self);
        let filled = values.try_for_each(|value| list.append(made(py, value, arrays, &mut maker)?));
        if let Some(maker) = maker {
            let mut copies = std::mem::take(&mut maker.copies);
            if !copies.is_empty() {
                py.detach(|| {
                    for copy in &mut copies {
                        // SAFETY: `to` is new memory of this length; nobody else knows the object before the list is given out.
                        unsafe { copy.to.copy_from_nonoverlapping(copy.from.as_ptr(), copy.from.len()) };
                        give_back(std::mem::take(&mut copy.from));
                    }
                });
            }
        }
        filled.map(|()| list)
    }

    /// One element.
    pub(crate) fn one<'py>(&mut self, py: Python<'py>, value: Value, arrays: Arrays) -> PyResult<Bound<'py, PyAny>> {
        self.later = false;
        made(py, value, arrays, &mut Some(self))
    }

    /// The name of a field: most often that of the same place in the element before.
    fn name<'py>(&mut self, py: Python<'py>, at: usize, name: &str) -> Bound<'py, PyString> {
        let there = self.names.get(at).filter(|(known, _)| known == name);
        let found = there.or_else(|| self.names.iter().find(|(known, _)| known == name));
        if let Some((_, object)) = found {
            return object.bind(py).clone();
        }
        let object = PyString::intern(py, name);
        if self.names.len() < NAMES {
            self.names.push((name.to_owned(), object.clone().unbind()));
        }
        object
    }

    /// A bytes object that [`list`](Maker::list) fills before anybody sees it.
    fn bytes<'py>(&mut self, py: Python<'py>, from: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        let len = pyo3::ffi::Py_ssize_t::try_from(from.len())?;
        // SAFETY: without a source the object's memory is not set; it is, before it is given out.
        let object =
            unsafe { Bound::from_owned_ptr_or_err(py, pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), len)) };
        let object = object?.cast_into::<PyBytes>()?;
        // SAFETY: it is a bytes object, whose memory this points to.
        let to = unsafe { pyo3::ffi::PyBytes_AsString(object.as_ptr()) }.cast();
        self.copies.push(Copying {
            from,
            to,
            _object: object.clone().unbind(),
        });
        Ok(object.into_any())
    }
}

fn made<'py>(
    py: Python<'py>,
    value: Value,
    arrays: Arrays,
    maker: &mut Option<&mut Maker>,
) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::None => py.None().into_bound(py),
        Value::Bool(value) => PyBool::new(py, value).to_owned().into_any(),
        Value::Int(number) => number.into_pyobject(py)?.into_any(),
        Value::Float(number) => PyFloat::new(py, number).into_any(),
        Value::Str(text) => PyString::new(py, &text).into_any(),
        Value::Bytes(bytes) => match maker {
            Some(maker) if maker.later && bytes.len() >= LONG => maker.bytes(py, bytes)?,
            _ => {
                let object = PyBytes::new(py, &bytes).into_any();
                give_back(bytes);
                object
            }
        },
        Value::List(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(made(py, item, arrays, maker)?)?;
            }
            list.into_any()
        }
        Value::Map(pairs) => {
            let dict = PyDict::new(py);
            for (at, (key, value)) in pairs.into_iter().enumerate() {
                let value = made(py, value, arrays, maker)?;
                match maker {
                    Some(maker) => dict.set_item(maker.name(py, at, &key), value)?,
                    None => dict.set_item(key, value)?,
                }
            }
            dict.into_any()
        }
        Value::Tensor(tensor) => tensor_to_python(py, tensor, arrays)?,
        Value::Other(thing) => match thing.as_any().downcast_ref::<Object>() {
            Some(object) => object.0.bind(py).clone(),
            None => return Err(PyTypeError::new_err(format!("{} is no Python object", thing.kind()))),
        },
        _ => {
            return Err(PyTypeError::new_err(
                "a value of a kind that this binding does not know",
            ));
        }
    })
}

/// Memory of a tensor that nobody else reads.
struct Owned {
    ptr: *mut u8,
    len: usize,
    _tensor: Tensor,
}

// SAFETY: `ptr` points into the buffer that `_tensor` owns alone; who writes through it is up to Python, as for any memory with the
// buffer protocol.
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

fn tensor_to_python(py: Python<'_>, tensor: Tensor, arrays: Arrays) -> PyResult<Bound<'_, PyAny>> {
    let failed = |error: feedrate::batch::TensorError| PyMemoryError::new_err(error.to_string());
    if arrays == Arrays::Numpy
        && tensor.bytes() <= SMALL
        && let Ok(bytes) = tensor.as_bytes()
    {
        return small_array(py, tensor.dtype(), tensor.shape(), bytes);
    }
    let mut tensor = tensor;
    if tensor.as_bytes_mut().is_none() {
        // Others hold the same memory, or it is not in one piece.
        tensor = tensor.contiguous(&Heap).map_err(failed)?;
        if tensor.as_bytes_mut().is_none() {
            let packed = Tensor::build(&Heap, tensor.dtype(), tensor.shape(), |out| {
                tensor.copy_to(out);
                Ok::<_, feedrate::batch::TensorError>(())
            });
            tensor = packed.map_err(failed)?;
        }
    }
    let (dtype, shape, elements) = (tensor.dtype(), tensor.shape().to_vec(), tensor.elements());
    let bytes = tensor.as_bytes_mut().map(|bytes| (bytes.as_mut_ptr(), bytes.len()));
    let (ptr, len) = bytes.ok_or_else(|| PyMemoryError::new_err("a tensor's memory is shared"))?;
    let memory: Arc<dyn Memory> = Arc::new(Owned {
        ptr,
        len,
        _tensor: tensor,
    });
    match arrays {
        Arrays::Torch => {
            static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            let (code, bits) = code(dtype)?;
            let mut strides = vec![1_i64; shape.len()];
            let shape: Vec<i64> = shape.into_iter().map(i64::try_from).collect::<Result<_, _>>()?;
            for i in (1..shape.len()).rev() {
                strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
            }
            let memory = (elements > 0).then_some(memory);
            let capsule = dlpack::capsule(py, memory, 0, dlpack::DType::new(code, bits), shape, strides)?;
            FROM_DLPACK.import(py, "torch._C", "_from_dlpack")?.call1((capsule,))
        }
        Arrays::Numpy => {
            static NDARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            let block = Bound::new(py, Block::new(memory))?;
            let shape = PyTuple::new(py, shape)?;
            NDARRAY
                .import(py, "numpy", "ndarray")?
                .call1((shape, numpy_type(py, dtype)?, block))
        }
    }
}

/// Arrays of at most so many bytes are copied into memory of NumPy's own: that takes less than telling it of memory of another.
const SMALL: usize = 4096;

/// The bytes as an array that owns them.
fn small_array<'py>(py: Python<'py>, dtype: DType, shape: &[usize], bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let mut dims: Vec<npy_intp> = shape.iter().map(|&n| npy_intp::try_from(n)).collect::<Result<_, _>>()?;
    let rank = c_int::try_from(dims.len())?;
    let descr = numpy_type(py, dtype)?.into_ptr().cast();
    // SAFETY: `dims` has `rank` lengths; the call takes the reference to `descr` over; without data it allocates, C-contiguous.
    let array = unsafe {
        let class = get_type_object(py, NpyTypes::PyArray_Type);
        let (strides, data, like) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let array =
            PY_ARRAY_API.PyArray_NewFromDescr(py, class, descr, rank, dims.as_mut_ptr(), strides, data, 0, like);
        Bound::from_owned_ptr_or_err(py, array)?
    };
    // SAFETY: it is an array of this shape and type, of as many bytes as these therefore, and nobody else knows it yet.
    unsafe {
        let data = (*array.as_ptr().cast::<PyArrayObject>()).fields.data.cast::<u8>();
        data.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
    Ok(array)
}

/// NumPy's object for the type.
fn numpy_type(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    static TYPES: [PyOnceLock<Py<PyAny>>; 256] = [const { PyOnceLock::new() }; 256];
    if code(dtype).is_err() || dtype == DType::BF16 {
        let message = format!("NumPy has no type {dtype}: cast it before, or use feedrate.torch");
        return Err(PyTypeError::new_err(message));
    }
    let known = TYPES[usize::from(dtype.code())].get_or_try_init(py, || -> PyResult<_> {
        Ok(py.import("numpy")?.call_method1("dtype", (dtype.name(),))?.unbind())
    })?;
    Ok(known.bind(py).clone())
}

/// DLPack's type code and bits.
fn code(dtype: DType) -> PyResult<(u8, u8)> {
    let bits = u8::try_from(dtype.size() * 8).unwrap_or(0);
    let code = match dtype {
        DType::Bool => 6,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::Complex64 | DType::Complex128 => 5,
        other => {
            return Err(PyTypeError::new_err(format!(
                "tensors of {other} cannot be handed to Python"
            )));
        }
    };
    Ok((code, bits))
}
