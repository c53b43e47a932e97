//! One schema for files that have several.

use std::sync::Arc;

use arrow_schema::{DataType, FieldRef};

use crate::batch::{DType, Heap, Tensor, TensorError, Value, half};
use crate::source::{Columns, Fault, Mark, Reader, Record, SourceError};

/// What values of a type are, as far as files may differ in it.
#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// Nothing but nulls.
    Null,
    Int(DType),
    Float(DType),
    Text,
    Bytes,
    /// Equal or not.
    Other(DataType),
}

impl Kind {
    fn of(data: &DataType) -> Self {
        match data {
            DataType::Null => Self::Null,
            DataType::Int8 => Self::Int(DType::I8),
            DataType::Int16 => Self::Int(DType::I16),
            DataType::Int32 => Self::Int(DType::I32),
            DataType::Int64 => Self::Int(DType::I64),
            DataType::UInt8 => Self::Int(DType::U8),
            DataType::UInt16 => Self::Int(DType::U16),
            DataType::UInt32 => Self::Int(DType::U32),
            DataType::UInt64 => Self::Int(DType::U64),
            DataType::Float16 => Self::Float(DType::F16),
            DataType::Float32 => Self::Float(DType::F32),
            DataType::Float64 => Self::Float(DType::F64),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Self::Bytes,
            DataType::Dictionary(_, values) => Self::of(values),
            DataType::RunEndEncoded(_, values) => Self::of(values.data_type()),
            other => Self::Other(other.clone()),
        }
    }

    /// What holds the values of both. Integers of two widths become `int64`, floats of two `float64`, and so do integers with floats.
    fn with(&self, other: &Self) -> Option<Self> {
        Some(match (self, other) {
            (a, b) if a == b => a.clone(),
            (Self::Null, kind) | (kind, Self::Null) => kind.clone(),
            (Self::Int(a), Self::Int(b)) => match (unsigned(*a), unsigned(*b)) {
                (true, true) => Self::Int(DType::U64),
                _ if *a == DType::U64 || *b == DType::U64 => return None,
                _ => Self::Int(DType::I64),
            },
            (Self::Int(_) | Self::Float(_), Self::Int(_) | Self::Float(_)) => Self::Float(DType::F64),
            (Self::Other(a), Self::Other(b)) if alike(a, b) => self.clone(),
            _ => return None,
        })
    }
}

/// Equal types; what the elements of lists are called makes no difference, and what the fields of structs are called does.
fn alike(a: &DataType, b: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, LargeListView, List, ListView, Map, Struct};
    match (a, b) {
        (Struct(a), Struct(b)) => {
            let same = |(a, b): (&FieldRef, &FieldRef)| a.name() == b.name() && alike(a.data_type(), b.data_type());
            a.len() == b.len() && a.iter().zip(b).all(same)
        }
        (Map(a, _), Map(b, _)) => match (a.data_type(), b.data_type()) {
            (Struct(a), Struct(b)) => a.iter().zip(b).all(|(a, b)| alike(a.data_type(), b.data_type())),
            (a, b) => alike(a, b),
        },
        (List(a), List(b))
        | (LargeList(a), LargeList(b))
        | (ListView(a), ListView(b))
        | (LargeListView(a), LargeListView(b)) => alike(a.data_type(), b.data_type()),
        (FixedSizeList(a, n), FixedSizeList(b, m)) => n == m && alike(a.data_type(), b.data_type()),
        (a, b) => a.equals_datatype(b),
    }
}

fn unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64)
}

/// A column of all files.
#[derive(Debug)]
struct Column {
    name: String,
    kind: Kind,
    /// Where it got this kind, and what it is called there.
    file: Arc<str>,
    data: DataType,
}

/// The columns of all files, in the order in which they are met first.
#[derive(Debug, Default)]
pub(in crate::source) struct United {
    columns: Vec<Column>,
}

impl United {
    /// Takes in the columns of a file.
    pub(in crate::source) fn add(&mut self, file: &Arc<str>, fields: &[FieldRef]) -> Result<(), SourceError> {
        for field in fields {
            let kind = Kind::of(field.data_type());
            let new = |kind| Column {
                name: field.name().clone(),
                kind,
                file: Arc::clone(file),
                data: field.data_type().clone(),
            };
            let Some(known) = self.columns.iter_mut().find(|column| column.name == *field.name()) else {
                self.columns.push(new(kind));
                continue;
            };
            match known.kind.with(&kind) {
                Some(both) if both == known.kind => {}
                Some(both) => *known = new(both),
                None => {
                    let message = format!(
                        "it is {} there, and {} in {}: convert one of the files, leave the column out (columns=[...]), or read the \
                         files as they are (unify=False)",
                        field.data_type(),
                        known.data,
                        known.file
                    );
                    let error = SourceError::new(Fault::Unsupported, &**file, message);
                    return Err(error.of(format!("column {}", field.name())));
                }
            }
        }
        Ok(())
    }

    /// With the columns that are wanted in the order in which they are wanted; a name with dots stands for its first part.
    pub(in crate::source) fn in_order(mut self, wanted: Option<&[String]>, files: usize) -> Result<Self, SourceError> {
        let Some(wanted) = wanted else { return Ok(self) };
        let mut columns = Vec::new();
        for name in wanted {
            let root = name.split_once('.').map_or(name.as_str(), |(root, _)| root);
            let known = |column: &Column| column.name == *name || column.name == root;
            if let Some(at) = self.columns.iter().position(known) {
                columns.push(self.columns.remove(at));
            } else if !columns.iter().any(known) {
                let message = format!("there is no column {name:?} in any of {files} files");
                return Err(SourceError::new(Fault::Absent, "all files", message));
            }
        }
        self.columns = columns;
        Ok(self)
    }

    /// Records of a file with these columns, as those of all files are. `numbered`: a record's number is that of its row.
    pub(in crate::source) fn reader(
        self: &Arc<Self>,
        inner: impl Reader + 'static,
        name: Arc<str>,
        numbered: bool,
    ) -> Box<dyn Reader> {
        Box::new(Conformed {
            inner,
            united: Arc::clone(self),
            name,
            what: if numbered { "row" } else { "record" },
        })
    }

    /// Fields in the order of all files, `missing` where a file has no such column.
    fn conform(
        &self,
        mut fields: Vec<(String, Value)>,
        missing: impl Fn() -> Value,
        convert: impl Fn(Value, &Kind) -> Result<Value, Unfit>,
    ) -> Result<Vec<(String, Value)>, (String, Unfit)> {
        let mut made = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            made.push(match fields.iter().position(|(name, _)| *name == column.name) {
                Some(at) => {
                    let (name, value) = fields.swap_remove(at);
                    match convert(value, &column.kind) {
                        Ok(value) => (name, value),
                        Err(unfit) => return Err((name, unfit)),
                    }
                }
                None => (column.name.clone(), missing()),
            });
        }
        Ok(made)
    }
}

/// Only those that a file has.
pub(in crate::source) fn present(fields: &[FieldRef], wanted: &[String]) -> Vec<String> {
    let known = |name: &str| fields.iter().any(|field| field.name() == name);
    let has = |name: &&String| known(name) || name.split_once('.').is_some_and(|(root, _)| known(root));
    wanted.iter().filter(has).cloned().collect()
}

/// A reader whose records get the columns of all files.
struct Conformed<R> {
    inner: R,
    united: Arc<United>,
    /// The file's.
    name: Arc<str>,
    /// What is counted.
    what: &'static str,
}

/// Why a value is none of the column of all files.
#[derive(Debug, PartialEq)]
enum Unfit {
    /// A whole number that the nearest float is not, and how many values of the column come before it.
    Rounded(i128, usize),
    Tensor(TensorError),
}

impl From<TensorError> for Unfit {
    fn from(error: TensorError) -> Self {
        Self::Tensor(error)
    }
}

impl<R> Conformed<R> {
    /// `first`: the number of the record, or of the first of those that came as columns. The reader is behind them.
    fn wrong(&self, first: u64, (column, unfit): (String, Unfit)) -> SourceError {
        let (fault, at, message) = match unfit {
            Unfit::Rounded(number, at) => {
                let message = format!(
                    "it is float64 in all files together, which would round {number}: convert one of the files, leave the column out \
                     (columns=[...]), or read the files as they are (unify=False)"
                );
                (Fault::Record, first + at as u64, message)
            }
            Unfit::Tensor(error) => (Fault::Unsupported, first, error.to_string()),
        };
        SourceError::new(fault, &*self.name, message).of(format!("column {column} of {} {at}", self.what))
    }
}

impl<R: Reader> Reader for Conformed<R> {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        let Some(mut record) = self.inner.next()? else {
            return Ok(None);
        };
        if let Value::Map(fields) = record.value {
            let fields = self
                .united
                .conform(fields, || Value::None, |value, kind| cell(value, kind, 0));
            record.value = Value::Map(fields.map_err(|error| self.wrong(record.mark.number, error))?);
        }
        Ok(Some(record))
    }

    fn mark(&self) -> Mark {
        self.inner.mark()
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        self.inner.skip(count)
    }

    fn seek(&mut self, number: u64) -> Result<bool, SourceError> {
        self.inner.seek(number)
    }

    fn columns(&mut self, rows: usize) -> Option<Result<Columns, SourceError>> {
        let united = Arc::clone(&self.united);
        let found = self.inner.columns(rows)?;
        Some(found.and_then(|columns| {
            let Columns { rows, fields, first } = columns;
            if rows == 0 {
                return Ok(Columns { rows, fields, first });
            }
            let missing = || Value::List(vec![Value::None; rows]);
            let fields = united.conform(fields, missing, column);
            let fields = fields.map_err(|error| self.wrong(first, error))?;
            Ok(Columns { rows, fields, first })
        }))
    }
}

/// A whole number as a float that is no other number; `at` values of its column come before it.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "that is what is looked for"
)]
fn float(number: i128, at: usize) -> Result<f64, Unfit> {
    let float = number as f64;
    if float as i128 == number {
        Ok(float)
    } else {
        Err(Unfit::Rounded(number, at))
    }
}

/// A value of a row: other files may have floats there.
fn cell(value: Value, kind: &Kind, at: usize) -> Result<Value, Unfit> {
    match (value, kind) {
        (Value::Int(number), Kind::Float(_)) => float(number.into(), at).map(Value::Float),
        (value, _) => Ok(value),
    }
}

/// A column of some rows.
fn column(value: Value, kind: &Kind) -> Result<Value, Unfit> {
    let (Kind::Int(wanted) | Kind::Float(wanted)) = kind else {
        return Ok(value);
    };
    match value {
        Value::Tensor(tensor) if tensor.dtype() != *wanted => widened(&tensor, *wanted).map(Value::Tensor),
        Value::List(items) => {
            let items = items.into_iter().enumerate();
            let items = items.map(|(at, item)| cell(item, kind, at)).collect::<Result<_, _>>();
            items.map(Value::List)
        }
        value => Ok(value),
    }
}

/// Numbers in a type that holds more of them: `int64`, `uint64` or `float64`.
#[expect(
    clippy::cast_lossless,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "one of the kinds that `Kind::with` gives for this one"
)]
fn widened(tensor: &Tensor, wanted: DType) -> Result<Tensor, Unfit> {
    let tensor = tensor.contiguous(&Heap)?;
    let shape = tensor.shape();
    macro_rules! floats {
        ($from:ty, $float:expr) => {{
            let numbers = tensor.as_slice::<$from>()?.iter().enumerate();
            Tensor::from_vec(numbers.map($float).collect::<Result<Vec<f64>, Unfit>>()?, shape)
        }};
    }
    macro_rules! to {
        ($($dtype:path => $from:ty),*) => {
            match (tensor.dtype(), wanted) {
                $(
                    ($dtype, DType::F64) => floats!($from, |(at, x)| float((*x).into(), at)),
                    ($dtype, DType::U64) => Tensor::from_vec(tensor.as_slice::<$from>()?.iter().map(|x| *x as u64).collect(), shape),
                    ($dtype, DType::I64) => Tensor::from_vec(tensor.as_slice::<$from>()?.iter().map(|x| *x as i64).collect(), shape),
                )*
                (DType::F32, DType::F64) => floats!(f32, |(_, x)| Ok((*x).into())),
                (DType::F16, DType::F64) => {
                    let bits = tensor.as_bytes()?.as_chunks::<2>().0;
                    Tensor::from_vec(bits.iter().map(|two| half(u16::from_ne_bytes(*two))).collect(), shape)
                }
                (found, wanted) => Err(TensorError::Type { wanted, found }),
            }
        };
    }
    let widened = to!(
        DType::I8 => i8, DType::I16 => i16, DType::I32 => i32, DType::I64 => i64, DType::U8 => u8, DType::U16 => u16,
        DType::U32 => u32, DType::U64 => u64
    );
    Ok(widened?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::Field;

    fn fields(list: &[(&str, DataType)]) -> Vec<FieldRef> {
        list.iter()
            .map(|(name, data)| Arc::new(Field::new(*name, data.clone(), true)))
            .collect()
    }

    #[test]
    fn kinds_join_as_said() {
        let (int, long) = (Kind::Int(DType::I32), Kind::Int(DType::I64));
        let (byte, huge) = (Kind::Int(DType::U8), Kind::Int(DType::U64));
        let double = Kind::Float(DType::F64);
        assert_eq!(int.with(&int), Some(int.clone()));
        assert_eq!(int.with(&long), Some(long.clone()));
        assert_eq!(int.with(&byte), Some(long));
        assert_eq!(byte.with(&huge), Some(huge.clone()));
        assert_eq!(huge.with(&int), None);
        assert_eq!(huge.with(&Kind::Float(DType::F32)), Some(double.clone()));
        assert_eq!(Kind::Float(DType::F16).with(&Kind::Float(DType::F32)), Some(double));
        assert_eq!(Kind::Null.with(&Kind::Text), Some(Kind::Text));
        assert_eq!(Kind::Text.with(&int), None);
        assert_eq!(Kind::Text.with(&Kind::Bytes), None);
        let words = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::LargeUtf8));
        assert_eq!(Kind::of(&words), Kind::Text);
    }

    #[test]
    fn conflicts_name_both_files() {
        let mut united = United::default();
        united.add(&"a".into(), &fields(&[("x", DataType::Null)])).unwrap();
        united
            .add(&"b".into(), &fields(&[("y", DataType::Int8), ("x", DataType::Utf8)]))
            .unwrap();
        let error = united.add(&"c".into(), &fields(&[("x", DataType::Int64)])).unwrap_err();
        let text = error.to_string();
        for word in ["c", "column x", "Int64", "Utf8 in b"] {
            assert!(text.contains(word), "{text}");
        }
        assert!(
            united
                .in_order(Some(&["z".to_owned()]), 2)
                .unwrap_err()
                .to_string()
                .contains("\"z\"")
        );
    }

    #[test]
    fn tensors_are_widened() {
        let bytes = Tensor::from_vec(vec![-1_i8, 7], &[2]).unwrap();
        assert_eq!(widened(&bytes, DType::I64).unwrap().as_slice::<i64>().unwrap(), [-1, 7]);
        assert_eq!(
            widened(&bytes, DType::F64).unwrap().as_slice::<f64>().unwrap(),
            [-1.0, 7.0]
        );
        assert!(widened(&bytes, DType::F32).is_err());
    }

    #[test]
    fn whole_numbers_are_not_rounded() {
        let exact = 1_i64 << 53;
        for (numbers, bad) in [
            (vec![exact, -exact, exact + 2, i64::MIN], None),
            (vec![1, exact + 1], Some(exact + 1)),
            (vec![1, i64::MAX], Some(i64::MAX)),
        ] {
            let bad = bad.map(|bad| Unfit::Rounded(bad.into(), 1));
            let kind = Kind::Float(DType::F64);
            let list = Value::List(numbers.iter().map(|number| Value::Int(*number)).collect());
            let tensor = Tensor::from_slice(&numbers, &[numbers.len()]).unwrap();
            assert_eq!(column(list, &kind).err(), bad);
            assert_eq!(column(tensor.into(), &kind).err(), bad);
        }
        let huge = Tensor::from_vec(vec![u64::MAX], &[1]).unwrap();
        let rounded = Unfit::Rounded(u64::MAX.into(), 0);
        assert_eq!(widened(&huge, DType::F64).unwrap_err(), rounded);
    }
}
