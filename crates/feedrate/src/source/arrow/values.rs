//! Arrow's arrays as values: whole columns, and single rows.

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    ArrowDictionaryKeyType, ArrowPrimitiveType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType, Float16Type,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, RunEndIndexType, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, BooleanArray};
use arrow_buffer::Buffer as ArrowBuffer;
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};

use crate::batch::{Buffer, DType, Heap, Tensor, TensorError, Value, copied};

/// What tensors need of memory that they do not own alone.
const ALIGNED: usize = 16;

/// A buffer of Arrow's, read where it lies.
#[derive(Debug)]
enum Held {
    Shared(ArrowBuffer),
    Own(Vec<u8>),
}

impl Buffer for Held {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Shared(buffer) => buffer.as_slice(),
            Self::Own(bytes) => bytes,
        }
    }

    /// Others may read what Arrow shares, so writing begins with a copy.
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        if let Self::Shared(buffer) = self {
            *self = Self::Own(buffer.to_vec());
        }
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(_) => &mut [],
        }
    }
}

/// Row-major strides.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1_usize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
    }
    strides
}

/// A tensor of the elements in a buffer: in place if `share` and if that keeps little else alive, else a copy.
fn tensor(buffer: &ArrowBuffer, dtype: DType, shape: &[usize], in_place: bool) -> Result<Value, String> {
    let place = buffer.as_ptr().addr();
    let whole = buffer.capacity() <= buffer.len().saturating_mul(2).saturating_add(4096);
    let built = if in_place && place.is_multiple_of(ALIGNED) && whole {
        let held: Arc<dyn Buffer> = Arc::new(Held::Shared(buffer.clone()));
        Tensor::from_buffer(held, dtype, shape, &strides(shape), 0)
    } else {
        Tensor::build(&Heap, dtype, shape, |out| {
            out.copy_from_slice(buffer.as_slice());
            Ok(())
        })
    };
    built.map(Value::Tensor).map_err(|error: TensorError| error.to_string())
}

/// Runs `$then!(type, dtype)` for the primitive types that are numbers as they lie.
macro_rules! numbers {
    ($of:expr, $then:ident, $else:expr) => {
        match $of {
            DataType::Int8 => $then!(Int8Type, DType::I8),
            DataType::Int16 => $then!(Int16Type, DType::I16),
            DataType::Int32 => $then!(Int32Type, DType::I32),
            DataType::Int64 => $then!(Int64Type, DType::I64),
            DataType::UInt8 => $then!(UInt8Type, DType::U8),
            DataType::UInt16 => $then!(UInt16Type, DType::U16),
            DataType::UInt32 => $then!(UInt32Type, DType::U32),
            DataType::UInt64 => $then!(UInt64Type, DType::U64),
            DataType::Float32 => $then!(Float32Type, DType::F32),
            DataType::Float64 => $then!(Float64Type, DType::F64),
            DataType::Date32 => $then!(Date32Type, DType::I32),
            DataType::Date64 => $then!(Date64Type, DType::I64),
            DataType::Time32(TimeUnit::Second) => $then!(Time32SecondType, DType::I32),
            DataType::Time32(TimeUnit::Millisecond) => $then!(Time32MillisecondType, DType::I32),
            DataType::Time64(TimeUnit::Microsecond) => $then!(Time64MicrosecondType, DType::I64),
            DataType::Time64(TimeUnit::Nanosecond) => $then!(Time64NanosecondType, DType::I64),
            DataType::Timestamp(TimeUnit::Second, _) => $then!(TimestampSecondType, DType::I64),
            DataType::Timestamp(TimeUnit::Millisecond, _) => $then!(TimestampMillisecondType, DType::I64),
            DataType::Timestamp(TimeUnit::Microsecond, _) => $then!(TimestampMicrosecondType, DType::I64),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => $then!(TimestampNanosecondType, DType::I64),
            DataType::Duration(TimeUnit::Second) => $then!(DurationSecondType, DType::I64),
            DataType::Duration(TimeUnit::Millisecond) => $then!(DurationMillisecondType, DType::I64),
            DataType::Duration(TimeUnit::Microsecond) => $then!(DurationMicrosecondType, DType::I64),
            DataType::Duration(TimeUnit::Nanosecond) => $then!(DurationNanosecondType, DType::I64),
            _ => $else,
        }
    };
}

/// A column: a tensor of what is numbers, bools or fixed-size lists of these without nulls, else a list of its rows.
pub(in crate::source) fn column(array: &dyn Array) -> Result<Value, String> {
    match dense(array, true)? {
        Some(value) => Ok(value),
        None => rows(array),
    }
}

/// All rows as a list.
fn rows(array: &dyn Array) -> Result<Value, String> {
    (0..array.len())
        .map(|row| cell(array, row))
        .collect::<Result<_, _>>()
        .map(Value::List)
}

/// The tensor of an array that can be one.
fn dense(array: &dyn Array, share: bool) -> Result<Option<Value>, String> {
    if array.null_count() > 0 {
        return Ok(None);
    }
    macro_rules! primitive {
        ($type:ty, $dtype:expr) => {
            primitive::<$type>(array, $dtype, share).map(Some)
        };
    }
    let len = array.len();
    numbers!(
        array.data_type(),
        primitive,
        match array.data_type() {
            DataType::Float16 => primitive::<Float16Type>(array, DType::F16, share).map(Some),
            DataType::Boolean => bools(array.as_boolean()).map(Some),
            DataType::Decimal32(_, _) | DataType::Decimal64(_, _) | DataType::Decimal128(_, _) => {
                let numbers = (0..len).map(|row| decimal(array, row)).collect::<Option<Vec<_>>>();
                let numbers = numbers.ok_or("a decimal is none")?;
                let tensor = Tensor::from_slice(&numbers, &[len]);
                tensor
                    .map(|tensor| Some(tensor.into()))
                    .map_err(|error| error.to_string())
            }
            DataType::FixedSizeList(_, size) => {
                let (list, size) = (array.as_fixed_size_list(), usize::try_from(*size).unwrap_or(0));
                let Some(inner) = dense(list.values().as_ref(), share)? else {
                    return Ok(None);
                };
                let Value::Tensor(inner) = inner else { return Ok(None) };
                let dimensions: Vec<_> = [len, size]
                    .into_iter()
                    .chain(inner.shape()[1..].iter().copied())
                    .collect();
                let shaped = inner.reshape(&dimensions).map_err(|error| error.to_string())?;
                Ok(Some(Value::Tensor(shaped)))
            }
            _ => Ok(None),
        }
    )
}

fn primitive<T: ArrowPrimitiveType>(array: &dyn Array, dtype: DType, share: bool) -> Result<Value, String> {
    let array = array.as_primitive_opt::<T>().ok_or("an array is not of its own type")?;
    tensor(array.values().inner(), dtype, &[array.len()], share)
}

fn bools(array: &BooleanArray) -> Result<Value, String> {
    let bits: Vec<bool> = array.values().iter().collect();
    Tensor::from_slice(&bits, &[bits.len()])
        .map(Value::Tensor)
        .map_err(|error| error.to_string())
}

/// The nearest float.
#[expect(
    clippy::cast_precision_loss,
    reason = "decimals are given as the nearest float, which is documented"
)]
fn decimal(array: &dyn Array, row: usize) -> Option<f64> {
    let (unscaled, scale): (i128, i8) = match array.data_type() {
        DataType::Decimal32(_, scale) => (array.as_primitive::<Decimal32Type>().value(row).into(), *scale),
        DataType::Decimal64(_, scale) => (array.as_primitive::<Decimal64Type>().value(row).into(), *scale),
        DataType::Decimal128(_, scale) => (array.as_primitive::<Decimal128Type>().value(row), *scale),
        _ => return None,
    };
    // Through text where the quotient would be rounded twice.
    if unscaled.unsigned_abs() > 1 << 53 {
        return format!("{unscaled}e{}", -i32::from(scale)).parse().ok();
    }
    let unscaled = unscaled as f64;
    // Dividing two exact numbers is rounded once.
    match scale {
        0 => Some(unscaled),
        1..=22 => Some(unscaled / 10_f64.powi(scale.into())),
        _ => format!("{unscaled}e{}", -i32::from(scale)).parse().ok(),
    }
}

/// A list's elements: a tensor if they can be one, else a list.
fn list(elements: &dyn Array) -> Result<Value, String> {
    match dense(elements, false)? {
        Some(value) => Ok(value),
        None => rows(elements),
    }
}

/// The value of a row.
pub(in crate::source) fn cell(array: &dyn Array, row: usize) -> Result<Value, String> {
    if array.is_null(row) {
        return Ok(Value::None);
    }
    macro_rules! primitive {
        ($type:ty, $dtype:expr) => {
            number(array.as_primitive::<$type>().value(row))
        };
    }
    numbers!(array.data_type(), primitive, other(array, row))
}

/// A number as a value.
trait Number {
    fn value(self) -> Result<Value, String>;
}

fn number(number: impl Number) -> Result<Value, String> {
    number.value()
}

macro_rules! number {
    ($($type:ty),*) => { $(
        impl Number for $type {
            fn value(self) -> Result<Value, String> { Ok(self.into()) }
        }
    )* };
}

number!(i8, i16, i32, i64, u8, u16, u32, f32, f64);

impl Number for u64 {
    fn value(self) -> Result<Value, String> {
        match i64::try_from(self) {
            Ok(number) => Ok(number.into()),
            Err(_) => Err(format!(
                "{self} does not fit in a signed number of 64 bits: read the column as a tensor"
            )),
        }
    }
}

fn other(array: &dyn Array, row: usize) -> Result<Value, String> {
    Ok(match array.data_type() {
        DataType::Null => Value::None,
        DataType::Float16 => array.as_primitive::<Float16Type>().value(row).to_f64().into(),
        DataType::Boolean => array.as_boolean().value(row).into(),
        DataType::Utf8 => array.as_string::<i32>().value(row).into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).into(),
        DataType::Utf8View => array.as_string_view().value(row).into(),
        DataType::Binary => Value::Bytes(copied(array.as_binary::<i32>().value(row))),
        DataType::LargeBinary => Value::Bytes(copied(array.as_binary::<i64>().value(row))),
        DataType::BinaryView => Value::Bytes(copied(array.as_binary_view().value(row))),
        DataType::FixedSizeBinary(_) => Value::Bytes(copied(array.as_fixed_size_binary().value(row))),
        DataType::Decimal32(_, _) | DataType::Decimal64(_, _) | DataType::Decimal128(_, _) => {
            decimal(array, row).ok_or("a decimal is none")?.into()
        }
        DataType::List(_) => list(array.as_list::<i32>().value(row).as_ref())?,
        DataType::LargeList(_) => list(array.as_list::<i64>().value(row).as_ref())?,
        DataType::ListView(_) => list(array.as_list_view::<i32>().value(row).as_ref())?,
        DataType::LargeListView(_) => list(array.as_list_view::<i64>().value(row).as_ref())?,
        DataType::FixedSizeList(_, _) => list(array.as_fixed_size_list().value(row).as_ref())?,
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let entry = |(field, column): (&Arc<Field>, &Arc<dyn Array>)| {
                cell(column.as_ref(), row).map(|value| (field.name().clone(), value))
            };
            Value::Map(fields.iter().zip(columns).map(entry).collect::<Result<_, _>>()?)
        }
        DataType::Map(_, _) => {
            let entries = array.as_map().value(row);
            let (keys, values) = (entries.column(0), entries.column(1));
            let pair = |at| Ok(Value::List(vec![cell(keys.as_ref(), at)?, cell(values.as_ref(), at)?]));
            Value::List((0..entries.len()).map(pair).collect::<Result<_, String>>()?)
        }
        DataType::Dictionary(keys, _) => match keys.as_ref() {
            DataType::Int8 => entry::<Int8Type>(array, row)?,
            DataType::Int16 => entry::<Int16Type>(array, row)?,
            DataType::Int32 => entry::<Int32Type>(array, row)?,
            DataType::Int64 => entry::<Int64Type>(array, row)?,
            DataType::UInt8 => entry::<UInt8Type>(array, row)?,
            DataType::UInt16 => entry::<UInt16Type>(array, row)?,
            DataType::UInt32 => entry::<UInt32Type>(array, row)?,
            DataType::UInt64 => entry::<UInt64Type>(array, row)?,
            other => return Err(format!("a dictionary has keys of {other}")),
        },
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => run::<Int16Type>(array, row)?,
            DataType::Int32 => run::<Int32Type>(array, row)?,
            DataType::Int64 => run::<Int64Type>(array, row)?,
            other => return Err(format!("runs end in {other}")),
        },
        other => return Err(format!("a column of {other} is not read")),
    })
}

/// What a dictionary's key stands for.
fn entry<K: ArrowDictionaryKeyType>(array: &dyn Array, row: usize) -> Result<Value, String> {
    let array = array.as_dictionary::<K>();
    let key = array.key(row).ok_or("a dictionary's key is none")?;
    if key >= array.values().len() {
        return Err(format!("there is no entry {key} in the dictionary"));
    }
    cell(array.values().as_ref(), key)
}

/// The run in which the row lies.
fn run<R: RunEndIndexType>(array: &dyn Array, row: usize) -> Result<Value, String> {
    let array = array.as_run_opt::<R>().ok_or("runs are none")?;
    cell(array.values().as_ref(), array.get_physical_index(row))
}

/// Whether rows of this type can be given.
pub(in crate::source) fn readable(kind: &DataType) -> Result<(), String> {
    match kind {
        DataType::Union(_, _)
        | DataType::Interval(IntervalUnit::YearMonth | IntervalUnit::DayTime | IntervalUnit::MonthDayNano)
        | DataType::Decimal256(_, _) => Err(format!("a column of {kind} is not read")),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _)
        | DataType::RunEndEncoded(_, field) => readable(field.data_type()),
        DataType::Struct(fields) => fields.iter().enumerate().try_for_each(|(at, field)| {
            if fields[..at].iter().any(|other| other.name() == field.name()) {
                return Err(format!("several fields of a struct are called {:?}", field.name()));
            }
            readable(field.data_type())
        }),
        DataType::Dictionary(_, values) => readable(values),
        _ => Ok(()),
    }
}

/// The shape of the elements of a column that is declared to hold tensors of one shape.
pub(in crate::source) fn shape(field: &Field) -> Option<Vec<usize>> {
    let metadata = field.metadata();
    if metadata.get("ARROW:extension:name")? != "arrow.fixed_shape_tensor" {
        return None;
    }
    let json: serde_json::Value = serde_json::from_str(metadata.get("ARROW:extension:metadata")?).ok()?;
    // Elements that lie in another order than their shape says stay as they lie.
    let in_order = |order: &serde_json::Value| {
        let places = order.as_array().into_iter().flatten().map(serde_json::Value::as_u64);
        order.is_null() || places.eq((0..).map(Some).take(order.as_array().map_or(0, Vec::len)))
    };
    if !json.get("permutation").is_none_or(in_order) {
        return None;
    }
    let dimension = |n: &serde_json::Value| n.as_u64().and_then(|n| usize::try_from(n).ok());
    json.get("shape")?.as_array()?.iter().map(dimension).collect()
}

/// A tensor in the shape of its elements, behind its first `outer` dimensions.
pub(in crate::source) fn reshaped(value: Value, outer: usize, shape: Option<&[usize]>) -> Value {
    match (value, shape) {
        (Value::Tensor(tensor), Some(shape)) => {
            let all = [&tensor.shape()[..outer.min(tensor.shape().len())], shape].concat();
            Value::Tensor(tensor.reshape(&all).unwrap_or(tensor))
        }
        (value, _) => value,
    }
}
