#![expect(
    clippy::cast_precision_loss,
    clippy::float_cmp,
    clippy::many_single_char_names,
    reason = "small numbers that floats hold, and columns named by a letter"
)]

use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeListArray, Float32Array, Int8Array, Int32Array,
    Int64Array, ListArray, RecordBatch, StringArray, TimestampMillisecondArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field};

use super::*;
use crate::batch::{DType, Tensor, Value};
use crate::source::mutate::{Folder, all, exhaust, mutations};

/// A batch with numbers from `first` on, and one column of each kind.
pub(in crate::source) fn batch(first: i32, rows: i32) -> RecordBatch {
    let range = first..first + rows;
    let x: ArrayRef = Arc::new(Int32Array::from_iter_values(range.clone()));
    let f: ArrayRef = Arc::new(Float32Array::from_iter_values(range.clone().map(|i| i as f32 / 2.0)));
    let n: ArrayRef = Arc::new(
        range
            .clone()
            .map(|i| (i % 3 != 0).then_some(i64::from(i)))
            .collect::<Int64Array>(),
    );
    let s: ArrayRef = Arc::new(
        range
            .clone()
            .map(|i| (i % 4 != 1).then(|| format!("s{i}")))
            .collect::<StringArray>(),
    );
    let b: ArrayRef = Arc::new(range.clone().map(|i| Some(i % 2 == 0)).collect::<BooleanArray>());
    let keys = range.clone().map(|i| (i % 2 == 0).then_some(1)).collect::<Int8Array>();
    let words = StringArray::from_iter_values(["odd", "even"]);
    let d: ArrayRef = Arc::new(DictionaryArray::<Int8Type>::new(keys, Arc::new(words)));
    let lengths = range.clone().map(|i| usize::try_from(i % 3).unwrap());
    let offsets = OffsetBuffer::from_lengths(lengths.clone());
    let items = Int64Array::from_iter_values(0..i64::try_from(lengths.sum::<usize>()).unwrap());
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let l: ArrayRef = Arc::new(ListArray::new(Arc::clone(&item), offsets, Arc::new(items), None));
    let pairs = Float32Array::from_iter_values((0..rows * 2).map(|i| i as f32));
    let inner = Arc::new(Field::new("item", DataType::Float32, true));
    let v: ArrayRef = Arc::new(FixedSizeListArray::new(inner, 2, Arc::new(pairs), None));
    let t: ArrayRef = Arc::new(TimestampMillisecondArray::from_iter_values(
        range.clone().map(i64::from),
    ));
    let decimals = Decimal128Array::from_iter_values(range.map(|i| i128::from(i) * 5));
    let m: ArrayRef = Arc::new(decimals.with_precision_and_scale(20, 1).unwrap());
    let columns = [
        ("x", x),
        ("f", f),
        ("n", n),
        ("s", s),
        ("b", b),
        ("d", d),
        ("l", l),
        ("v", v),
        ("t", t),
        ("m", m),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

/// What [`batch`] holds in a row.
pub(in crate::source) fn row(first: i32, i: i32) -> Value {
    let before: i32 = (first..i).map(|i| i % 3).sum();
    let items: Vec<i64> = (i64::from(before)..i64::from(before + i % 3)).collect();
    let at = (i - first) as f32 * 2.0;
    Value::map([
        ("x", Value::from(i)),
        ("f", Value::Float(f64::from(i) / 2.0)),
        ("n", if i % 3 == 0 { Value::None } else { i.into() }),
        (
            "s",
            if i % 4 == 1 {
                Value::None
            } else {
                format!("s{i}").into()
            },
        ),
        ("b", (i % 2 == 0).into()),
        ("d", if i % 2 == 0 { "even".into() } else { Value::None }),
        ("l", Tensor::from_slice(&items, &[items.len()]).unwrap().into()),
        ("v", Tensor::from_slice(&[at, at + 1.0], &[2]).unwrap().into()),
        ("t", i.into()),
        ("m", Value::Float(f64::from(i) / 2.0)),
    ])
}

fn file(batches: &[RecordBatch], codec: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), batches[0].schema_ref(), options).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.into_inner().unwrap()
}

fn stream(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), batches[0].schema_ref()).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.into_inner().unwrap()
}

/// The rules that hold for every table of [`batch`] (0, 7), (7, 1), (8, 12).
pub(in crate::source) fn checks(source: &dyn Source, filtered: &dyn Fn(Filter) -> Box<dyn Source>) {
    let expected: Vec<_> = [(0, 7), (7, 1), (8, 12)]
        .into_iter()
        .flat_map(|(first, rows)| (first..first + rows).map(move |i| (first, i)))
        .collect();
    let mut reader = source.open(0, None).unwrap();
    let rows = all(&mut *reader);
    assert_eq!(rows.len(), 20);
    // Lists and pairs count from the beginning of each batch, or of the file.
    for (found, (first, i)) in rows.iter().zip(&expected) {
        assert_eq!(*found, row(*first, *i));
    }
    assert_eq!(*source.index().unwrap(), [20]);
    for at in [19, 0, 8, 7, 20, 3] {
        assert!(reader.seek(at).unwrap());
        let found = reader.next().unwrap().map(|record| (record.mark.number, record.value));
        let expected = rows.get(usize::try_from(at).unwrap()).map(|row| (at, row.clone()));
        assert_eq!(found, expected);
    }
    for at in 0..=20 {
        let mut reader = source.open(0, None).unwrap();
        reader.next().unwrap();
        assert_eq!(reader.skip(at).unwrap(), at.min(19));
        let again = source.open(0, Some(reader.mark())).unwrap().next().unwrap();
        assert_eq!(
            again.map(|record| record.value),
            rows.get(usize::try_from(at).unwrap() + 1).cloned()
        );
    }
    // Columns, in pieces that need not fit the file's.
    for size in [1, 3, 6, 100] {
        let mut reader = source.open(0, None).unwrap();
        let mut at = 0;
        loop {
            let columns = reader.columns(size).unwrap().unwrap();
            if columns.rows == 0 {
                break;
            }
            assert_eq!(columns.first, u64::try_from(at).unwrap());
            for i in 0..columns.rows {
                for (name, column) in &columns.fields {
                    let value = match column {
                        Value::Tensor(tensor) => Value::Tensor(tensor.get(i).unwrap()),
                        list => list.at(i).cloned().unwrap(),
                    };
                    let expected = rows[at + i].get(name).unwrap();
                    match (&value, expected) {
                        (Value::Tensor(tensor), Value::Int(x)) if tensor.dtype() == DType::I32 => {
                            assert_eq!(i64::from(tensor.as_slice::<i32>().unwrap()[0]), *x);
                        }
                        (Value::Tensor(tensor), Value::Int(x)) => assert_eq!(tensor.as_slice::<i64>().unwrap(), [*x]),
                        (Value::Tensor(tensor), Value::Float(x)) if tensor.dtype() == DType::F32 => {
                            assert_eq!(f64::from(tensor.as_slice::<f32>().unwrap()[0]), *x);
                        }
                        (Value::Tensor(tensor), Value::Float(x)) => assert_eq!(tensor.as_slice::<f64>().unwrap(), [*x]),
                        (Value::Tensor(tensor), Value::Bool(x)) => assert_eq!(tensor.as_slice::<bool>().unwrap(), [*x]),
                        (value, expected) => assert_eq!(*value, *expected, "{name}"),
                    }
                }
            }
            at += columns.rows;
        }
        assert_eq!(at, 20);
    }
    let x = |row: &Value| row.get("x").cloned();
    for (filter, wanted) in [
        (Filter::column("x", Op::Ge, 9_i64), (9..20).collect::<Vec<i32>>()),
        (
            Filter::column("f", Op::Lt, 2_i64).and(Filter::column("b", Op::Eq, true)),
            vec![0, 2],
        ),
        (Filter::column("n", Op::Ne, 4_i64).negate(), vec![4]),
        (
            Filter::Null("s".into()).or(Filter::column("s", Op::Eq, "s8")),
            vec![1, 5, 8, 9, 13, 17],
        ),
        (Filter::column("d", Op::Eq, "odd"), vec![]),
        (Filter::column("x", Op::Gt, 100_i64), vec![]),
    ] {
        let source = filtered(filter.clone());
        let found = all(&mut *source.open(0, None).unwrap());
        let wanted: Vec<_> = wanted.into_iter().map(|i| Some(Value::from(i))).collect();
        assert_eq!(found.iter().map(x).collect::<Vec<_>>(), wanted, "{filter}");
        assert_eq!(*source.index().unwrap(), [wanted.len() as u64]);
        for at in 0..=wanted.len() {
            let mut reader = source.open(0, None).unwrap();
            assert_eq!(reader.skip(at as u64).unwrap(), at as u64);
            let mark = reader.mark();
            let number = Mark {
                number: mark.number,
                offset: 0,
            };
            for from in [mark, number] {
                let rest = all(&mut *source.open(0, Some(from)).unwrap());
                assert_eq!(rest, found[at..], "{filter} from {from:?}");
            }
        }
    }
    let wrong = filtered(Filter::column("s", Op::Eq, 1_i64));
    assert!(wrong.open(0, None).unwrap().next().is_err());
    assert!(filtered(Filter::column("none", Op::Eq, 1_i64)).open(0, None).is_err());
}

fn batches() -> [RecordBatch; 3] {
    [batch(0, 7), batch(7, 1), batch(8, 12)]
}

#[test]
fn files_and_streams() {
    let folder = Folder::new("arrow");
    let empty = batch(0, 0);
    let with_empty = [
        empty.clone(),
        batches()[0].clone(),
        empty.clone(),
        batches()[1].clone(),
        batches()[2].clone(),
    ];
    for (name, bytes) in [
        ("plain", file(&batches(), None)),
        ("lz4", file(&batches(), Some(CompressionType::LZ4_FRAME))),
        ("zstd", file(&batches(), Some(CompressionType::ZSTD))),
        ("empty", file(&with_empty, None)),
        ("stream", stream(&batches())),
    ] {
        let path = folder.file(name, &bytes);
        checks(&ArrowIpc::new([&path]), &|filter| {
            Box::new(ArrowIpc::new([&path]).filter(filter))
        });
        let some = ArrowIpc::new([&path])
            .columns(["v", "x"])
            .filter(Filter::column("b", Op::Eq, false));
        let rows = all(&mut *some.open(0, None).unwrap());
        assert_eq!(rows.len(), 10);
        let Value::Map(fields) = &rows[0] else { panic!("a map") };
        assert_eq!(
            fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["v", "x"]
        );
        let cut = ArrowIpc::new([folder.file("cut", &bytes[..bytes.len() - 30])]);
        if name != "stream" {
            assert_eq!(cut.open(0, None).map(|_| ()).unwrap_err().fault(), Fault::Truncated);
        }
        let small = ArrowIpc::new([&path]).limit(100);
        let error = small.open(0, None).unwrap().next().unwrap_err();
        assert_eq!(error.fault(), Fault::Unsupported);
        assert!(
            error.message().contains("the limit (max_batch_bytes) is 100: raise it"),
            "{error}"
        );
    }
    let cut = stream(&batches());
    let cut = ArrowIpc::new([folder.file("cut", &cut[..cut.len() - 30])]);
    assert_eq!(cut.open(0, None).map(|_| ()).unwrap_err().fault(), Fault::Truncated);
    let none = ArrowIpc::new([folder.file("none", &file(&[empty], None))]);
    assert_eq!(*none.index().unwrap(), [0]);
    assert_eq!(none.open(0, None).unwrap().columns(5).unwrap().unwrap().rows, 0);
    assert!(ArrowIpc::new([folder.file("zero", b"")]).open(0, None).is_err());
}

#[test]
fn whole_numbers_and_floats_are_compared_without_rounding() {
    const LARGE: i64 = 1 << 53;
    let numbers: Vec<i64> = (0..40)
        .map(|i| LARGE + i)
        .chain([i64::MIN, i64::MAX, -1, 0, 1])
        .collect();
    let column: ArrayRef = Arc::new(Int64Array::from(numbers.clone()));
    let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
    let kept = |filter: &Filter| -> Vec<i64> {
        let mask = filter.mask(&batch, false).unwrap();
        let both = numbers.iter().zip(mask);
        both.filter(|(_, held)| *held == Some(true)).map(|(n, _)| *n).collect()
    };
    // Every other one as a float too, in many orders: of those that are equal to one float, one is found by halves, and the others missed.
    let floats = (0..20).map(|i| Value::Float((LARGE + 2 * i) as f64));
    let values: Vec<Value> = (0..40).map(|i| Value::Int(LARGE + i)).chain(floats).collect();
    for step in [1, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 49, 53, 59] {
        let mixed = (0..60).map(|at| values[at * step % 60].clone());
        assert_eq!(kept(&Filter::one_of("n", mixed)), numbers[..40], "{step}");
    }
    let even = Filter::one_of("n", [Value::Float(LARGE as f64), Value::Float(-1.0)]);
    assert_eq!(kept(&even), [LARGE, -1]);
    let float = |op, value: f64| kept(&Filter::column("n", op, value));
    assert_eq!(float(Op::Eq, LARGE as f64), [LARGE]);
    assert_eq!(float(Op::Ne, LARGE as f64).len(), numbers.len() - 1);
    assert_eq!(
        float(Op::Lt, (LARGE + 2) as f64),
        [LARGE, LARGE + 1, i64::MIN, -1, 0, 1]
    );
    assert_eq!(float(Op::Ge, (LARGE + 38) as f64), [LARGE + 38, LARGE + 39, i64::MAX]);
    assert_eq!(float(Op::Ge, 9_223_372_036_854_775_808.0), [0; 0]);
    assert_eq!(float(Op::Le, -9_223_372_036_854_775_808.0), [i64::MIN]);
    assert_eq!(float(Op::Lt, f64::INFINITY).len(), numbers.len());
    assert_eq!(float(Op::Lt, -0.5), [i64::MIN, -1]);
    assert_eq!(float(Op::Gt, 0.5)[41..], [1]);
    // A column of floats, and a whole number that no float holds.
    let column: ArrayRef = Arc::new(arrow_array::Float64Array::from(vec![LARGE as f64, f64::NAN]));
    let batch = RecordBatch::try_from_iter([("f", column)]).unwrap();
    let held = |op| Filter::column("f", op, LARGE + 1).mask(&batch, false).unwrap();
    assert_eq!(held(Op::Eq), [Some(false); 2]);
    assert_eq!(held(Op::Lt), [Some(true), Some(false)]);
}

#[test]
fn a_damaged_record_batch_hides_no_other_rows() {
    let folder = Folder::new("arrow-one-batch");
    let numbers = |range: std::ops::Range<i32>| {
        let x: ArrayRef = Arc::new(Int32Array::from_iter_values(range));
        RecordBatch::try_from_iter([("x", x)]).unwrap()
    };
    let batches = [numbers(0..100), numbers(100..200), numbers(200..300)];
    let mut bytes = file(&batches, Some(CompressionType::ZSTD));
    // What Zstandard's frames begin with.
    let frames = bytes
        .windows(4)
        .enumerate()
        .filter(|(_, four)| *four == [0x28, 0xb5, 0x2f, 0xfd]);
    let (at, _) = frames.collect::<Vec<_>>()[1];
    bytes[at] = 0;
    let path = folder.file("m", &bytes);
    let source = ArrowIpc::new([&path]);
    for at in [0, 50, 99, 100, 101, 199, 200, 300] {
        let mut sought = source.open(0, None).unwrap();
        sought.seek(at).unwrap();
        let mut passed = source.open(0, None).unwrap();
        passed.skip(at).unwrap();
        for mut reader in [source.open(0, Some(passed.mark())).unwrap(), sought, passed] {
            for row in at..300 {
                let found = reader.next();
                if (100..200).contains(&row) {
                    let error = found.unwrap_err();
                    assert!(error.may_continue(), "{error}");
                    assert_eq!(error.key(), Some(&*format!("row {row}")));
                    assert!(
                        error.message().starts_with("record batch 1 (rows 100 to 199): "),
                        "{error}"
                    );
                } else {
                    let record = found.unwrap().unwrap();
                    assert_eq!(
                        (record.mark.number, record.value.get("x")),
                        (row, Some(&Value::Int(row.cast_signed())))
                    );
                }
            }
            assert!(reader.next().unwrap().is_none());
        }
    }
    let filtered = source.filter(Filter::column("x", Op::Ge, 50_i64));
    let mut reader = filtered.open(0, None).unwrap();
    let found: Vec<_> = std::iter::from_fn(|| reader.next().transpose()).collect();
    assert_eq!(found.iter().filter(|found| found.is_ok()).count(), 150);
    assert_eq!(found[50].as_ref().unwrap_err().key(), Some("row 100"));
    assert_eq!(*filtered.index().unwrap(), [151]);
}

#[test]
fn damaged_files_end_in_errors() {
    let folder = Folder::new("arrow-mutations");
    for (bytes, times) in [
        (file(&batches(), None), 100),
        (file(&batches(), Some(CompressionType::LZ4_FRAME)), 100),
        (stream(&batches()), 100),
    ] {
        mutations(&bytes, times, |damaged| {
            exhaust(&ArrowIpc::new([folder.file("m", damaged)]).limit(1 << 24));
        });
    }
}
