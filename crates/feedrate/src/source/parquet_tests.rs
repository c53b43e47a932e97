use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, Encoding, ZstdLevel};
use ::parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
use ::parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::types::{ArrowPrimitiveType, Float16Type};
use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, Float16Array, Float64Array,
    Int8Array, Int32Array, Int64Array, RecordBatch, StringArray, StructArray, TimestampMillisecondArray,
};
use arrow_schema::{DataType, Field};

use super::super::arrow::tests::{batch, checks, row};
use super::*;
use crate::batch::Tensor;
use crate::pipeline::{Deal, Opening, Pipeline};
use crate::source::mutate::{Folder, all, exhaust, mutations};
use crate::source::{Op, Record};

fn file(batches: &[RecordBatch], properties: WriterPropertiesBuilder) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batches[0].schema(), Some(properties.build())).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
        writer.flush().unwrap();
    }
    writer.into_inner().unwrap()
}

/// Pages of three rows.
fn pages() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_data_page_row_count_limit(3)
        .set_write_batch_size(1)
}

fn batches() -> [RecordBatch; 3] {
    [batch(0, 7), batch(7, 1), batch(8, 12)]
}

#[test]
fn rows_columns_and_filters() {
    let folder = Folder::new("parquet");
    for (name, properties) in [
        (
            "plain",
            WriterProperties::builder().set_compression(Compression::UNCOMPRESSED),
        ),
        ("snappy", pages().set_compression(Compression::SNAPPY)),
        ("zstd", pages().set_compression(Compression::ZSTD(ZstdLevel::default()))),
        (
            "lz4",
            WriterProperties::builder()
                .set_compression(Compression::LZ4_RAW)
                .set_dictionary_enabled(false),
        ),
        (
            "bare",
            pages()
                .set_statistics_enabled(EnabledStatistics::None)
                .set_offset_index_disabled(true),
        ),
    ] {
        let path = folder.file(name, &file(&batches(), properties));
        checks(&Parquet::new([&path]), &|filter| {
            Box::new(Parquet::new([&path]).filter(filter))
        });
    }
}

#[test]
fn columns_are_chosen_down_to_leaves() {
    let folder = Folder::new("parquet-nested");
    let x: ArrayRef = Arc::new(Int32Array::from_iter_values(0..3));
    let y: ArrayRef = Arc::new(Int32Array::from_iter_values(5..8));
    let field = |name| Arc::new(Field::new(name, DataType::Int32, true));
    let pair: ArrayRef = Arc::new(StructArray::from(vec![(field("a"), Arc::clone(&x)), (field("b"), y)]));
    let all_columns = RecordBatch::try_from_iter([("x", x), ("p", pair)]).unwrap();
    let path = folder.file("n", &file(&[all_columns], WriterProperties::builder()));
    let read = |columns: &[&str]| {
        let source = Parquet::new([&path]).columns(columns.iter().copied());
        source.open(0, None).map(|mut reader| all(&mut *reader))
    };
    assert_eq!(
        read(&["p.b"]).unwrap()[1],
        Value::map([("p", Value::map([("b", Value::from(6))]))])
    );
    let both = Value::map([("p", Value::map([("a", Value::from(2))])), ("x", Value::from(2))]);
    assert_eq!(read(&["p.a", "x"]).unwrap()[2], both);
    for missing in ["z", "p.z", "x.a"] {
        assert_eq!(read(&[missing]).unwrap_err().fault(), Fault::Absent, "{missing}");
    }
}

#[test]
fn empty_and_cut_files() {
    let folder = Folder::new("parquet-empty");
    let none = |name: &str, batches: &[RecordBatch]| {
        let mut writer = ArrowWriter::try_new(Vec::new(), batch(0, 0).schema(), None).unwrap();
        for batch in batches {
            writer.write(batch).unwrap();
        }
        folder.file(name, &writer.into_inner().unwrap())
    };
    let paths = [
        none("groups", &[]),
        none("rows", &[batch(0, 0)]),
        none("some", &[batch(0, 2)]),
    ];
    let source = Parquet::new(&paths);
    assert_eq!(*source.index().unwrap(), [0, 0, 2]);
    for part in 0..2 {
        let mut reader = source.open(part, None).unwrap();
        assert!(reader.next().unwrap().is_none());
        assert_eq!(reader.columns(3).unwrap().unwrap().rows, 0);
    }
    assert_eq!(all(&mut *source.open(2, None).unwrap()), [row(0, 0), row(0, 1)]);
    let empty = Parquet::new([folder.file("zero.parquet", b"")]);
    let error = empty.open(0, None).map(|_| ()).unwrap_err();
    assert!(error.part().ends_with("zero.parquet"), "{error}");
    let bytes = file(&batches(), WriterProperties::builder());
    let cut = Parquet::new([folder.file("cut", &bytes[..bytes.len() - 20])]);
    assert!(cut.open(0, None).is_err());
    let lost = Parquet::new([folder.path().join("none")]);
    assert_eq!(lost.open(0, None).map(|_| ()).unwrap_err().fault(), Fault::Missing);
}

#[test]
fn groups_that_statistics_rule_out_are_not_read() {
    let folder = Folder::new("parquet-statistics");
    let mut bytes = file(&batches(), WriterProperties::builder());
    let filter = || Filter::column("x", Op::Ge, 8_i64);
    let path = folder.file("whole", &bytes);
    let expected = all(&mut *Parquet::new([path]).filter(filter()).open(0, None).unwrap());
    // The first group is nonsense now.
    let start = Parquet::new([folder.file("whole", &bytes)]).table(0).unwrap().0;
    let group = start.metadata.metadata().row_group(0).clone();
    let end = usize::try_from(group.compressed_size()).unwrap();
    bytes[4..4 + end].fill(0xee);
    let path = folder.file("damaged", &bytes);
    let found = all(&mut *Parquet::new([&path]).filter(filter()).open(0, None).unwrap());
    assert_eq!(found, expected);
    assert!(Parquet::new([&path]).open(0, None).unwrap().next().is_err());
}

/// Rows of a list `[n]` and of `n`.
fn lists(rows: std::ops::Range<i32>) -> RecordBatch {
    let mut column = ListBuilder::new(Int32Builder::new());
    for n in rows.clone() {
        column.append_value([Some(n)]);
    }
    let column: ArrayRef = Arc::new(column.finish());
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(rows));
    RecordBatch::try_from_iter([("x", column), ("n", numbers)]).unwrap()
}

#[test]
fn nested_columns_by_number() {
    let folder = Folder::new("parquet-nested-numbers");
    for (name, properties) in [
        ("one", WriterProperties::builder()),
        ("pages", pages()),
        ("bare", pages().set_offset_index_disabled(true)),
        ("two", pages().set_writer_version(WriterVersion::PARQUET_2_0)),
    ] {
        let path = folder.file(name, &file(&[lists(0..20), lists(20..27)], properties));
        let source = Parquet::new([&path]).columns(["x"]);
        let expected: Vec<_> = (0..27)
            .map(|n| Value::map([("x", Value::Tensor(Tensor::from_slice(&[n], &[1]).unwrap()))]))
            .collect();
        assert_eq!(all(&mut *source.open(0, None).unwrap()), expected, "{name}");
        let mut reader = source.open(0, None).unwrap();
        for at in [17, 3, 19, 26, 20, 0, 4, 27] {
            reader.seek(at).unwrap();
            let found = reader.next().unwrap().map(|record| record.value);
            let at = usize::try_from(at).unwrap();
            assert_eq!(found.as_ref(), expected.get(at), "{name}, {at}");
        }
        reader.seek(18).unwrap();
        assert_eq!(reader.columns(9).unwrap().unwrap().rows, 9, "{name}");
        let odd = source.filter(Filter::column("n", Op::Ge, 18_i64));
        assert_eq!(all(&mut *odd.open(0, None).unwrap()), expected[18..], "{name}");
    }
}

#[test]
fn pages_with_too_few_levels() {
    let folder = Folder::new("parquet-levels");
    // Twenty times level 0, which begins a row; then as many times level 2, which says that there is a number.
    let first: &[u8] = &[2, 0, 0, 0, 40, 0, 2, 0, 0, 0, 40, 2];
    let second: &[u8] = &[40, 0, 40, 2];
    for (version, levels) in [
        (WriterVersion::PARQUET_1_0, first),
        (WriterVersion::PARQUET_2_0, second),
    ] {
        let properties = WriterProperties::builder()
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_writer_version(version);
        let mut bytes = file(&[lists(0..20)], properties);
        let at = bytes.windows(levels.len()).position(|window| window == levels).unwrap();
        let head = at + levels.iter().position(|byte| *byte == 40).unwrap();
        for left in [10, 0] {
            bytes[head] = left * 2;
            let source = Parquet::new([folder.file("short", &bytes)]);
            assert!(source.open(0, None).unwrap().columns(20).unwrap().is_err());
            // By number and by a filter.
            let mut reader = source.open(0, None).unwrap();
            reader.seek(15).unwrap();
            let filtered = source.filter(Filter::column("n", Op::Ge, 15_i64));
            for mut reader in [reader, filtered.open(0, None).unwrap()] {
                let error = reader.next().unwrap_err();
                assert_eq!(error.fault(), Fault::Record);
                let message = format!("a page of 20 values has {left} repetition levels");
                assert!(error.to_string().contains(&message), "{error}");
            }
        }
    }
}

/// The same pages, with a footer that says that the first row group has `rows`.
fn retold(bytes: &[u8], rows: i64) -> Vec<u8> {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(bytes.to_vec()));
    let mut builder = metadata.unwrap().into_builder();
    let mut groups = builder.take_row_groups();
    groups[0] = groups[0].clone().into_builder().set_num_rows(rows).build().unwrap();
    let metadata = builder.set_row_groups(groups).build();
    let (pages, end) = bytes.split_at(bytes.len() - 8);
    let footer = u32::from_le_bytes(end[..4].try_into().unwrap());
    let mut made = pages[..pages.len() - footer as usize].to_vec();
    ParquetMetaDataWriter::new(&mut made, &metadata).finish().unwrap();
    made
}

#[test]
fn groups_with_other_rows_than_the_footer_says() {
    let folder = Folder::new("parquet-retold");
    let bare = pages().set_offset_index_disabled(true);
    for (properties, rows) in [(pages(), 3), (bare.clone(), 5), (bare, 9)] {
        let path = folder.file(
            "r",
            &retold(&file(&[lists(0..7), lists(7..8), lists(8..20)], properties), rows),
        );
        for column in ["n", "x"] {
            let source = Parquet::new([&path]).columns([column]);
            let mut reader = source.open(0, None).unwrap();
            let error = (0..30).map(|_| reader.next()).find_map(Result::err).unwrap();
            assert_ne!(error.fault(), Fault::Io, "{error}");
            let filtered = source.filter(Filter::column("n", Op::Ge, 0_i64));
            let error = filtered.open(0, None).unwrap().next().unwrap_err();
            assert_eq!(error.fault(), Fault::Damaged, "{error}");
        }
        let mut reader = Parquet::new([&path]).columns(["n"]).open(0, None).unwrap();
        assert!((0..7).filter_map(|_| reader.columns(3)).any(|columns| columns.is_err()));
        let mut reader = Parquet::new([&path]).columns(["n"]).open(0, None).unwrap();
        reader.seek(4).unwrap();
        // With three it is in the third group, and that is as it should be.
        let found: Vec<_> = (0..20).map(|_| reader.next()).collect();
        assert_eq!(found.iter().all(Result::is_ok), rows == 3, "{found:?}");
    }
}

/// A file of twenty texts in one page.
fn texts(encoding: Encoding, version: WriterVersion) -> Vec<u8> {
    let column: ArrayRef = Arc::new(StringArray::from_iter_values((0..20).map(|n| format!("text {n:02}"))));
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_writer_version(version)
        .set_encoding(encoding);
    file(&[RecordBatch::try_from_iter([("s", column)]).unwrap()], properties)
}

#[test]
fn texts_longer_than_their_page() {
    let folder = Folder::new("parquet-texts");
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        let bytes = texts(Encoding::PLAIN, version);
        let at = bytes.windows(7).position(|window| window == b"text 10").unwrap();
        let mut damaged = bytes.clone();
        damaged[at - 2] = 0x7f;
        for (bytes, whole) in [(bytes, true), (damaged, false)] {
            let source = Parquet::new([folder.file("t", &bytes)]);
            // From the first row on more than one is read at a time.
            for row in 1..20 {
                let mut reader = source.open(0, None).unwrap();
                reader.seek(row).unwrap();
                let found = reader.next();
                assert_eq!(found.is_ok(), whole || row < 10, "{row}: {found:?}");
                if let Ok(found) = found {
                    let text = format!("text {row:02}");
                    assert_eq!(found.unwrap().value, Value::map([("s", Value::from(text))]));
                }
            }
        }
    }
}

#[test]
fn lengths_for_more_texts_than_a_page_has() {
    let folder = Folder::new("parquet-lengths");
    // Blocks of 128 in four parts, and twenty of them.
    let head = [0x80, 1, 4, 20];
    for (encoding, lists) in [(Encoding::DELTA_LENGTH_BYTE_ARRAY, 1), (Encoding::DELTA_BYTE_ARRAY, 2)] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let bytes = texts(encoding, version);
            let places: Vec<_> = bytes
                .windows(4)
                .enumerate()
                .filter(|(_, window)| *window == head)
                .collect();
            assert_eq!(places.len(), lists);
            let whole = Parquet::new([folder.file("t", &bytes)]);
            assert_eq!(all(&mut *whole.open(0, None).unwrap()).len(), 20);
            for (at, _) in places {
                let mut damaged = bytes.clone();
                damaged[at + 3] = 99;
                let source = Parquet::new([folder.file("t", &damaged)]);
                let mut reader = source.open(0, None).unwrap();
                for row in [0, 15] {
                    reader.seek(row).unwrap();
                    let error = reader.next().unwrap_err();
                    assert!(
                        error.to_string().contains("a page of 20 values has 99 lengths"),
                        "{error}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_end_of_a_file_is_told_once() {
    let folder = Folder::new("parquet-end");
    let window = Window::open(&folder.file("short", b"abc"), "short".into()).unwrap();
    let file = Positioned {
        file: Arc::clone(window.file()),
        len: window.len(),
    };
    let mut reader = file.get_read(1).unwrap();
    let mut found = Vec::new();
    reader.read_to_end(&mut found).unwrap();
    assert_eq!(found, b"bc");
    let error = reader.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn dictionaries_of_any_values() {
    let folder = Folder::new("parquet-dictionaries");
    let keys = || Int8Array::from(vec![Some(0), Some(1), None]);
    let decimals = Decimal128Array::from(vec![15, 25]);
    let short = decimals.clone().with_precision_and_scale(9, 1).unwrap();
    let long = decimals.with_precision_and_scale(30, 1).unwrap();
    let fixed = FixedSizeBinaryArray::try_from_iter([b"ab", b"cd"].iter()).unwrap();
    let floats = [Value::Float(1.5), Value::Float(2.5)];
    let cases: [(ArrayRef, [Value; 2]); 9] = [
        (
            Arc::new(BooleanArray::from(vec![true, false])),
            [true.into(), false.into()],
        ),
        (Arc::new(short), floats.clone()),
        (Arc::new(long), floats.clone()),
        (
            Arc::new(Float16Array::from_iter_values(
                [1.5, 2.5].map(<Float16Type as ArrowPrimitiveType>::Native::from_f32),
            )),
            floats.clone(),
        ),
        (Arc::new(Float64Array::from(vec![1.5, 2.5])), floats),
        (Arc::new(Int32Array::from(vec![4, 5])), [4.into(), 5.into()]),
        (
            Arc::new(TimestampMillisecondArray::from(vec![4, 5])),
            [4.into(), 5.into()],
        ),
        (Arc::new(StringArray::from(vec!["a", "b"])), ["a".into(), "b".into()]),
        (
            Arc::new(fixed),
            [Value::Bytes(b"ab".to_vec()), Value::Bytes(b"cd".to_vec())],
        ),
    ];
    for (values, [first, second]) in cases {
        let kind = values.data_type().clone();
        let column: ArrayRef = Arc::new(DictionaryArray::new(keys(), values));
        let field = Arc::new(Field::new("a", column.data_type().clone(), true));
        let nested: ArrayRef = Arc::new(StructArray::from(vec![(field, Arc::clone(&column))]));
        let batch = RecordBatch::try_from_iter_with_nullable([("d", column, true), ("s", nested, true)]).unwrap();
        let source = Parquet::new([folder.file("d", &file(&[batch], WriterProperties::builder()))]);
        let expected = [first.clone(), second, Value::None]
            .map(|value| Value::map([("d", value.clone()), ("s", Value::map([("a", value)]))]));
        assert_eq!(all(&mut *source.open(0, None).unwrap()), expected, "{kind}");
        if let Value::Float(_) | Value::Bool(_) = first {
            let filtered = source.filter(Filter::column("d", Op::Eq, first));
            assert_eq!(all(&mut *filtered.open(0, None).unwrap()), expected[..1], "{kind}");
        }
    }
}

#[test]
fn united_integers_are_not_rounded() {
    let folder = Folder::new("parquet-unite");
    let one = |name: &str, column: ArrayRef| {
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        folder.file(name, &file(&[batch], WriterProperties::builder()))
    };
    let numbers = vec![1, 1 << 53, (1 << 53) + 1, i64::MAX, 7];
    let paths = [
        one("floats", Arc::new(Float64Array::from(vec![0.5]))),
        one("numbers", Arc::new(Int64Array::from(numbers))),
    ];
    let source = Parquet::new(&paths).unify(true);
    let mut reader = source.open(1, None).unwrap();
    let rows: Vec<_> = std::iter::from_fn(|| reader.next().transpose()).collect();
    let x = |row: &Result<Record, SourceError>| row.as_ref().ok().and_then(|row| row.value.get("x").cloned());
    let floats = [Some(1.0), Some(9_007_199_254_740_992.0), None, None, Some(7.0)];
    assert_eq!(
        rows.iter().map(x).collect::<Vec<_>>(),
        floats.map(|x| x.map(Value::Float))
    );
    let error = rows[2].as_ref().unwrap_err();
    assert!(error.may_continue() && error.part().ends_with("numbers"), "{error}");
    assert_eq!(error.key(), Some("column x of row 2"));
    assert!(error.message().contains("9007199254740993"), "{error}");
    let mut reader = source.open(1, None).unwrap();
    assert_eq!(reader.columns(2).unwrap().unwrap().rows, 2);
    assert_eq!(reader.columns(3).unwrap().unwrap_err(), *error);
    let filtered = source.filter(Filter::column("x", Op::Gt, 1_i64));
    let mut reader = filtered.open(1, None).unwrap();
    reader.next().unwrap();
    assert_eq!(reader.next().unwrap_err().key(), Some("column x of record 1"));
}

/// Three row groups of a hundred numbers, with a page that cannot be unpacked: of the second group's column `x`, counted from the first.
fn one_bad_page(properties: WriterPropertiesBuilder, page: usize) -> Vec<u8> {
    let batch = |first: i32| {
        let n: ArrayRef = Arc::new(Int32Array::from_iter_values(first..first + 100));
        let x: ArrayRef = Arc::new(Int32Array::from_iter_values((first..first + 100).map(mixed)));
        RecordBatch::try_from_iter([("n", n), ("x", x)]).unwrap()
    };
    let properties = properties
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_enabled(false);
    let mut bytes = file(&[batch(0), batch(100), batch(200)], properties);
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(bytes.clone()));
    let (start, len) = metadata.unwrap().row_group(1).column(1).byte_range();
    let column = &mut bytes[usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap()];
    // What Zstandard's frames begin with.
    let frames = column
        .windows(4)
        .enumerate()
        .filter(|(_, four)| *four == [0x28, 0xb5, 0x2f, 0xfd]);
    let (at, _) = frames.collect::<Vec<_>>()[page];
    column[at] = 0;
    bytes
}

fn mixed(n: i32) -> i32 {
    n.wrapping_mul(0x0019_660d)
}

fn numbered(n: u64) -> Value {
    let n = i32::try_from(n).unwrap();
    Value::map([("n", Value::from(n)), ("x", mixed(n).into())])
}

#[test]
fn a_damaged_page_hides_no_other_rows() {
    let folder = Folder::new("parquet-one-page");
    let source = Parquet::new([folder.file("p", &one_bad_page(WriterProperties::builder(), 0))]);
    let mut reader = source.open(0, None).unwrap();
    for row in [5, 150, 5, 250, 199, 250, 99, 100, 200] {
        assert!(reader.seek(row).unwrap());
        let found = reader.next();
        if (100..200).contains(&row) {
            let error = found.unwrap_err();
            assert_eq!(error.key(), Some(&*format!("row {row}")), "{error}");
        } else {
            assert_eq!(found.unwrap().unwrap().value, numbered(row), "{row}");
        }
    }
}

/// What a reader says of its rows from here on: their numbers, or errors without what they lie in. Ends in "end".
fn told(reader: &mut dyn Reader) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        told.push(match reader.next() {
            Ok(Some(record)) => {
                let n = record.value.get("n").cloned();
                assert_eq!(
                    record.value,
                    numbered(n.map_or(0, |n| if let Value::Int(n) = n { n.cast_unsigned() } else { 0 }))
                );
                format!("{:?}", record.value.get("n"))
            }
            Ok(None) => "end".to_owned(),
            Err(error) => {
                assert!(error.may_continue(), "{error}");
                let place = "row group 1 (rows 100 to 199), column x: ";
                assert!(error.message().starts_with(place), "{error}");
                format!("bad {}", error.key().unwrap())
            }
        });
        if told.last().is_some_and(|last| last == "end") {
            return told;
        }
    }
}

/// Pages of ten rows.
fn tens() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_data_page_row_count_limit(10)
        .set_write_batch_size(10)
}

#[test]
fn rows_before_and_behind_damage_are_read() {
    let folder = Folder::new("parquet-around");
    let bare = tens().set_offset_index_disabled(true);
    for (name, properties, page, bad) in [
        ("one", WriterProperties::builder(), 0, 100..200),
        ("first", tens(), 0, 100..110),
        ("middle", tens(), 5, 150..160),
        ("last", tens(), 9, 190..200),
        ("bare first", bare.clone(), 0, 100..110),
        ("bare middle", bare.clone(), 5, 150..160),
        ("bare last", bare, 9, 190..200),
    ] {
        let source = Parquet::new([folder.file("p", &one_bad_page(properties, page))]);
        let good = |row: u64| !bad.contains(&row);
        let mut expected: Vec<_> = (0..300)
            .map(|row| {
                if good(row) {
                    format!("{:?}", Some(Value::Int(row.cast_signed())))
                } else {
                    format!("bad row {row}")
                }
            })
            .collect();
        expected.push("end".to_owned());
        assert_eq!(told(&mut *source.open(0, None).unwrap()), expected, "{name}");
        // From any place on, opened there, gone there, or passed to.
        for at in (0..=300).step_by(29).chain([99, 100, 101, 159, 160, 199, 200]) {
            let rest = &expected[usize::try_from(at).unwrap()..];
            let mut sought = source.open(0, None).unwrap();
            assert!(sought.seek(at).unwrap());
            let mut passed = source.open(0, None).unwrap();
            assert_eq!(passed.skip(at).unwrap(), at);
            let mark = passed.mark();
            for mut reader in [source.open(0, Some(mark)).unwrap(), sought, passed] {
                assert_eq!(told(&mut *reader), rest, "{name}, from {at}");
            }
        }
        // Columns come up to the bad row, and go on behind it.
        for size in [1, 7, 300, 1000] {
            let mut reader = source.open(0, None).unwrap();
            let mut found = Vec::new();
            loop {
                let before = reader.mark();
                match reader.columns(size).unwrap() {
                    Ok(columns) if columns.rows == 0 => break,
                    Ok(columns) => {
                        assert_eq!(columns.first, found.len() as u64);
                        assert_eq!(reader.mark().number, before.number + columns.rows as u64);
                        let Some(Value::Tensor(n)) = columns.get("n") else {
                            panic!("a tensor")
                        };
                        let numbers = n.as_slice::<i32>().unwrap().iter();
                        found.extend(numbers.map(|n| format!("{:?}", Some(Value::from(*n)))));
                        let again = source.open(0, Some(before)).unwrap().columns(columns.rows);
                        assert_eq!(again.unwrap().unwrap(), columns, "{name}, {size}");
                    }
                    Err(error) => {
                        assert_eq!(reader.mark().number, before.number + 1, "{error}");
                        found.push(format!("bad {}", error.key().unwrap()));
                    }
                }
            }
            found.push("end".to_owned());
            assert_eq!(found, expected, "{name}, {size}");
        }
    }
}

#[test]
fn damage_behind_a_filter() {
    let folder = Folder::new("parquet-around-filter");
    let bytes = one_bad_page(tens(), 5);
    let source = || Parquet::new([folder.file("p", &bytes)]);
    // The column that is damaged is not asked: every third row.
    let thirds = source().filter(Filter::one_of("n", (0..300).step_by(3).map(i64::from)));
    let mut expected: Vec<_> = (0..300)
        .step_by(3)
        .map(|row| {
            if (150..160).contains(&row) {
                format!("bad row {row}")
            } else {
                format!("{:?}", Some(Value::from(row)))
            }
        })
        .collect();
    expected.push("end".to_owned());
    // It is asked: which rows of the group are wanted is not known, and they are one.
    let asked = source().filter(Filter::column("x", Op::Ne, 1_i64));
    let mut known: Vec<_> = (0..100)
        .chain(200..300)
        .map(|row| format!("{:?}", Some(Value::from(row))))
        .collect();
    known.insert(100, "bad row 100".to_owned());
    known.push("end".to_owned());
    for (source, expected) in [(thirds, expected), (asked, known)] {
        let count = expected.len() as u64 - 1;
        assert_eq!(told(&mut *source.open(0, None).unwrap()), expected);
        assert_eq!(*source.index().unwrap(), [count]);
        for at in (0..=count).step_by(7) {
            let mut reader = source.open(0, None).unwrap();
            assert_eq!(reader.skip(at).unwrap(), at);
            let mark = reader.mark();
            for mut reader in [source.open(0, Some(mark)).unwrap(), reader] {
                assert_eq!(
                    told(&mut *reader),
                    expected[usize::try_from(at).unwrap()..],
                    "from {at}"
                );
            }
        }
    }
}

#[test]
fn failures_of_the_system_are_no_damage() {
    let failed = io::Error::from_raw_os_error(5);
    let error = arrow_schema::ArrowError::from(ParquetError::from(failed));
    assert_eq!(wrong("p", &error).fault(), Fault::Io, "{error}");
    let error = arrow_schema::ArrowError::from(ParquetError::NYI("a codec".into()));
    assert_eq!(wrong("p", &error).fault(), Fault::Unsupported, "{error}");
    let error = arrow_schema::ArrowError::from(ParquetError::General("a page".into()));
    assert_eq!(wrong("p", &error).fault(), Fault::Damaged, "{error}");
}

#[test]
fn lanes_share_a_damaged_file() {
    let folder = Folder::new("parquet-around-lanes");
    let source: Arc<dyn Source> = Arc::new(Parquet::new([folder.file("p", &one_bad_page(tens(), 5))]));
    for size in [1, 16] {
        let pipeline = Pipeline::dealt(Arc::clone(&source), Deal::Records);
        let pipeline = if size == 1 { pipeline } else { pipeline.batch(size) };
        for lanes in [1, 3] {
            let (mut rows, mut bad) = (Vec::new(), Vec::new());
            for lane in 0..lanes {
                let opening = Opening::new(lane, lanes, 4, 0, 0);
                let mut lane = pipeline.lane(&opening, None).unwrap();
                loop {
                    // Taken up anew before each.
                    let cursor = lane.cursor().to_string().parse().unwrap();
                    lane = pipeline.lane(&opening, Some(&cursor)).unwrap();
                    match lane.next() {
                        Ok(Some(sample)) => match sample.value.get("n") {
                            Some(Value::Tensor(n)) => {
                                rows.extend(n.as_slice::<i32>().unwrap().iter().map(|n| i64::from(*n)));
                            }
                            Some(Value::Int(n)) => rows.push(*n),
                            other => panic!("{other:?}"),
                        },
                        Ok(None) => break,
                        Err(failure) => bad.push(failure.key.unwrap()),
                    }
                }
            }
            rows.sort_unstable();
            bad.sort_unstable();
            assert_eq!(rows, (0..150).chain(160..300).collect::<Vec<_>>(), "{size}, {lanes}");
            assert_eq!(
                bad,
                (150..160).map(|row| format!("row {row}")).collect::<Vec<_>>(),
                "{size}, {lanes}"
            );
        }
    }
}

#[test]
fn damaged_files_end_in_errors() {
    let folder = Folder::new("parquet-mutations");
    let snappy = WriterProperties::builder().set_compression(Compression::SNAPPY);
    let plain = WriterProperties::builder().set_dictionary_enabled(false);
    let second = plain.clone().set_writer_version(WriterVersion::PARQUET_2_0);
    let lengths = texts(Encoding::DELTA_LENGTH_BYTE_ARRAY, WriterVersion::PARQUET_2_0);
    let files = [snappy, plain, second].map(|properties| file(&batches(), properties));
    for bytes in files.into_iter().chain([lengths]) {
        mutations(&bytes, 120, |damaged| {
            let path = folder.file("m", damaged);
            exhaust(&Parquet::new([&path]));
            exhaust(&Parquet::new([&path]).filter(Filter::column("x", Op::Lt, 9_i64)));
        });
    }
}
