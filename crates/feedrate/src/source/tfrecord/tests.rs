use proptest::prelude::*;

use super::*;
use crate::batch::Tensor;
use crate::source::mutate::{Folder, all, exhaust, mutations};

fn frame(data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u64).to_le_bytes();
    let crcs = (masked(&len).to_le_bytes(), masked(data).to_le_bytes());
    [&len[..], &crcs.0, data, &crcs.1].concat()
}

fn number(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n >= 0x80 {
        out.push(u8::try_from(n & 0x7f).unwrap() | 0x80);
        n >>= 7;
    }
    out.push(u8::try_from(n).unwrap());
    out
}

/// A field of bytes.
fn field(tag: u64, bytes: &[u8]) -> Vec<u8> {
    [&number(tag << 3 | 2)[..], &number(bytes.len() as u64), bytes].concat()
}

fn ints(items: &[i64], packed: bool) -> Vec<u8> {
    let numbers = items.iter().map(|n| number(n.cast_unsigned()));
    let list = if packed {
        field(1, &numbers.collect::<Vec<_>>().concat())
    } else {
        numbers.flat_map(|n| [vec![8], n].concat()).collect()
    };
    field(3, &list)
}

fn floats(items: &[f32], packed: bool) -> Vec<u8> {
    let numbers = items.iter().map(|x| x.to_le_bytes());
    let list = if packed {
        field(1, &numbers.collect::<Vec<_>>().concat())
    } else {
        numbers.flat_map(|n| [&[13][..], &n].concat()).collect()
    };
    field(2, &list)
}

fn strings(items: &[&[u8]]) -> Vec<u8> {
    field(1, &items.iter().flat_map(|s| field(1, s)).collect::<Vec<_>>())
}

fn features(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entry = |(name, feature): &(&str, Vec<u8>)| field(1, &[field(1, name.as_bytes()), field(2, feature)].concat());
    entries.iter().flat_map(entry).collect()
}

fn example(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    field(1, &features(entries))
}

fn tensor<T: crate::batch::Element>(items: &[T]) -> Value {
    Tensor::from_slice(items, &[items.len()]).unwrap().into()
}

#[test]
fn features_become_values() {
    let folder = Folder::new("tf-values");
    let message = example(&[
        ("name", strings(&[b"cat"])),
        ("label", ints(&[-7], true)),
        ("words", strings(&[b"a", b"", b"b"])),
        ("box", floats(&[0.5, -1.0], false)),
        ("empty", vec![]),
        ("none", ints(&[], true)),
    ]);
    // Unknown fields are passed over.
    let message = [message, field(9, b"what"), vec![0x50, 1]].concat();
    let path = folder.file("a.tfrecord", &frame(&message));
    let read = |source: &TfRecords| source.open(0, None).unwrap().next();
    let value = read(&TfRecords::new([&path])).unwrap().unwrap().value;
    let words = Value::List(vec![
        Value::Bytes(b"a".to_vec()),
        Value::Bytes(vec![]),
        Value::Bytes(b"b".to_vec()),
    ]);
    let expected = Value::map([
        ("box", tensor(&[0.5_f32, -1.0])),
        ("empty", Value::None),
        ("label", tensor(&[-7_i64])),
        ("name", Value::Bytes(b"cat".to_vec())),
        ("none", tensor::<i64>(&[])),
        ("words", words),
    ]);
    assert_eq!(value, expected);

    let single = TfRecords::new([&path]).ones(Ones::Single).features(["label", "name"]);
    let expected = Value::map([("label", Value::Int(-7)), ("name", Value::Bytes(b"cat".to_vec()))]);
    assert_eq!(read(&single).unwrap().unwrap().value, expected);
    let lists = TfRecords::new([&path]).ones(Ones::Lists).features(["name"]);
    let expected = Value::map([("name", Value::List(vec![Value::Bytes(b"cat".to_vec())]))]);
    assert_eq!(read(&lists).unwrap().unwrap().value, expected);

    for (source, needle) in [
        (TfRecords::new([&path]).features(["nose"]), "nose"),
        (
            TfRecords::new([&path]).ones(Ones::Named(vec!["box".into()])),
            "has 2 values",
        ),
        (
            TfRecords::new([&path]).ones(Ones::Named(vec!["empty".into()])),
            "has 0 values",
        ),
    ] {
        let error = read(&source).unwrap_err();
        assert_eq!(error.fault(), Fault::Absent);
        assert!(
            error.to_string().contains(needle) && error.to_string().contains("record 0"),
            "{error}"
        );
    }
}

#[test]
fn sequences_have_a_context_and_lists_of_steps() {
    let folder = Folder::new("tf-sequence");
    let steps = [ints(&[1], true), ints(&[2, 3], false)];
    let list: Vec<u8> = steps.iter().flat_map(|step| field(1, step)).collect();
    let message = [
        field(1, &features(&[("id", ints(&[9], true))])),
        field(2, &features(&[("tokens", list)])),
    ];
    let path = folder.file("s.tfrecord", &frame(&message.concat()));
    let source = TfRecords::new([path]).content(TfContent::SequenceExample);
    let tokens = Value::List(vec![tensor(&[1_i64]), tensor(&[2_i64, 3])]);
    let expected = Value::map([
        ("context", Value::map([("id", tensor(&[9_i64]))])),
        ("feature_lists", Value::map([("tokens", tokens)])),
    ]);
    assert_eq!(all(&mut *source.open(0, None).unwrap()), [expected]);
}

fn raw(folder: &Folder, name: &str, bytes: &[u8]) -> TfRecords {
    TfRecords::new([folder.file(name, bytes)]).content(TfContent::Raw)
}

fn records(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| frame(&vec![b'a'; i * 37 % 101])).collect()
}

/// What a reader says until it is at its end or can go no further.
fn story(source: &TfRecords) -> Vec<Result<u64, Fault>> {
    let mut reader = source.open(0, None).unwrap();
    let mut told = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(record)) => told.push(Ok(record.mark.number)),
            Ok(None) => return told,
            Err(error) => {
                told.push(Err(error.fault()));
                if !error.may_continue() {
                    assert_eq!(reader.next().unwrap_err(), error);
                    return told;
                }
            }
        }
    }
}

#[test]
fn damage_is_told_where_it_is() {
    let folder = Folder::new("tf-damage");
    let good: Vec<u8> = [b'a', b'b', b'c'].iter().flat_map(|c| frame(&[*c; 10])).collect();
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        bytes
    };
    let source = raw(&folder, "payload", &flipped(26 + 12));
    assert_eq!(story(&source), [Ok(0), Err(Fault::Record), Ok(2)]);
    let source = raw(&folder, "length", &flipped(26));
    assert_eq!(story(&source), [Ok(0), Err(Fault::Damaged)]);
    let error = source.open(0, None).unwrap().skip(u64::MAX).unwrap_err();
    assert_eq!(
        (error.offset(), error.key(), error.fault()),
        (Some(26), Some("record 1"), Fault::Damaged)
    );
    assert_eq!(
        story(&raw(&folder, "crc", &flipped(26 + 8))),
        [Ok(0), Err(Fault::Damaged)]
    );
    let source = raw(&folder, "cut", &good[..60]);
    assert_eq!(story(&source), [Ok(0), Ok(1), Err(Fault::Truncated)]);
    assert_eq!(
        source.open(0, None).unwrap().skip(9).unwrap_err().fault(),
        Fault::Truncated
    );
    let source = raw(&folder, "zeros", &[&good[..], &[0; 5]].concat());
    assert_eq!(story(&source), [Ok(0), Ok(1), Ok(2), Err(Fault::Truncated)]);
    // A length that nobody can have, with the right checksum.
    let len = (1_u64 << 60).to_le_bytes();
    let huge = [&len[..], &masked(&len).to_le_bytes(), b"abcdef"].concat();
    assert_eq!(story(&raw(&folder, "huge", &huge)), [Err(Fault::Truncated)]);
    let len = u64::MAX.to_le_bytes();
    let huge = [&len[..], &masked(&len).to_le_bytes(), b"abcdef"].concat();
    assert_eq!(story(&raw(&folder, "most", &huge)), [Err(Fault::Damaged)]);
    // Unchecked, damage of the content is not seen.
    assert_eq!(
        story(&raw(&folder, "payload", &flipped(26 + 12)).check(false)),
        [Ok(0), Ok(1), Ok(2)]
    );
    let small = raw(&folder, "small", &good).limit(9);
    assert_eq!(story(&small), [Err(Fault::TooLarge); 3]);
    let error = small.open(0, None).unwrap().next().unwrap_err();
    assert!(
        error
            .message()
            .ends_with("the limit (max_record_bytes) is 9: raise it if that is right"),
        "{error}"
    );
    assert_eq!(
        TfRecords::new([folder.path().join("none")])
            .open(0, None)
            .map(|_| ())
            .unwrap_err()
            .fault(),
        Fault::Missing
    );
}

#[test]
fn compressed_files_are_told_by_their_bytes() {
    use std::io::Write as _;
    let folder = Folder::new("tf-compressed");
    let plain = records(300);
    let gzip = |bytes: &[u8]| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    };
    let (left, right) = plain.split_at(1000);
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    zlib.write_all(&plain).unwrap();
    let expected = all(&mut *raw(&folder, "plain", &plain).open(0, None).unwrap());
    assert_eq!(expected.len(), 300);
    for (name, bytes) in [
        ("g.tfrecord", gzip(&plain)),
        ("members", [gzip(left), gzip(right)].concat()),
        ("z.gz", zlib.finish().unwrap()),
        ("zstd", zstd::encode_all(&plain[..], 1).unwrap()),
    ] {
        let source = raw(&folder, name, &bytes);
        assert_eq!(all(&mut *source.open(0, None).unwrap()), expected, "{name}");
        assert_eq!(*source.index().unwrap(), [300]);
        assert_eq!(source.parts().unwrap()[0].records, Some(300));
        // Marks are places in what is uncompressed.
        let mut reader = source.open(0, None).unwrap();
        assert_eq!(reader.skip(123).unwrap(), 123);
        let mut again = source.open(0, Some(reader.mark())).unwrap();
        assert_eq!(again.next().unwrap(), reader.next().unwrap());
        assert_eq!(all(&mut *again), expected[124..]);
        let cut = raw(&folder, "cut", &bytes[..bytes.len() - 30]);
        let fault = story(&cut).last().copied();
        assert_eq!(fault, Some(Err(Fault::Truncated)), "{name}");
        assert!(cut.index().is_err(), "{name}");
    }
    let padded = raw(&folder, "padded", &[&gzip(&plain)[..], &[0; 600]].concat());
    assert_eq!(all(&mut *padded.open(0, None).unwrap()), expected);
    let said = |bytes: &[u8]| {
        let source = raw(&folder, "said", bytes);
        source
            .open(0, None)
            .and_then(|mut reader| reader.skip(u64::MAX))
            .unwrap_err()
    };
    let error = said(&[&gzip(&plain)[..], b"garbage"].concat());
    assert!(
        error
            .message()
            .contains("there are 7 bytes behind the end of the gzip data"),
        "{error}"
    );
    // A window of 2 GiB.
    let error = said(b"\x28\xb5\x2f\xfd\0\xa8\x29\0\0hello");
    assert_eq!(error.fault(), Fault::Unsupported);
    assert!(error.message().contains("--long=27"), "{error}");
    // The stream is whole, its last record is not.
    let cut = raw(&folder, "whole", &gzip(&plain[..plain.len() - 1]));
    assert_eq!(
        cut.open(0, None).unwrap().skip(u64::MAX).unwrap_err().fault(),
        Fault::Truncated
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read(
        numbers in prop::collection::vec(any::<i64>(), 0..20), packed: bool,
        decimals in prop::collection::vec(any::<f32>(), 0..20), text in prop::collection::vec(any::<u8>(), 0..40), cut in 0..10_u64,
    ) {
        let folder = Folder::new("tf-property");
        let message = example(&[("f", floats(&decimals, packed)), ("i", ints(&numbers, packed)), ("s", strings(&[&text]))]);
        let one = frame(&message);
        let source = TfRecords::new([folder.file("p.tfrecord", &one.repeat(9))]);
        let value = Value::map([("f", tensor(&decimals)), ("i", tensor(&numbers)), ("s", Value::Bytes(text))]);
        prop_assert_eq!(all(&mut *source.open(0, None).unwrap()), vec![value; 9]);
        let mut reader = source.open(0, None).unwrap();
        prop_assert_eq!(reader.skip(cut).unwrap(), cut.min(9));
        prop_assert_eq!(reader.mark(), Mark { number: cut.min(9), offset: cut.min(9) * one.len() as u64 });
        let from_number = source.open(0, Some(Mark { number: cut, offset: 0 })).unwrap().next().unwrap();
        prop_assert_eq!(from_number, reader.next().unwrap());
    }
}

#[test]
fn damaged_files_end_in_errors() {
    let folder = Folder::new("tf-mutations");
    let one = example(&[
        ("a", ints(&[1, 300, -1], true)),
        ("b", floats(&[1.0, 2.0], false)),
        ("c", strings(&[b"x", b"y"])),
    ]);
    let bytes = [frame(&one), frame(&one), frame(&one)].concat();
    let packed = zstd::encode_all(&bytes[..], 1).unwrap();
    for (bytes, check) in [(&bytes, true), (&bytes, false), (&packed, false)] {
        mutations(bytes, 300, |damaged| {
            let path = folder.file("m.tfrecord", damaged);
            exhaust(&TfRecords::new([&path]).check(check).limit(1 << 20));
            exhaust(
                &TfRecords::new([&path])
                    .content(TfContent::SequenceExample)
                    .check(check)
                    .ones(Ones::Single),
            );
        });
    }
}
