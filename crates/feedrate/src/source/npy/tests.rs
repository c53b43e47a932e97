use std::io::Write as _;

use super::*;
use crate::batch::{DType, Tensor};
use crate::source::mutate::{Folder, all, exhaust, mutations};

fn array(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let fortran = if fortran { "True" } else { "False" };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    let text = format!("{text:<117}\n");
    [&b"\x93NUMPY\x01\x00\x76\x00"[..], text.as_bytes(), data].concat()
}

fn numbers(n: u8) -> Vec<u8> {
    (0..n).flat_map(|i| (i16::from(i) - 3).to_le_bytes()).collect()
}

fn field(value: &Value) -> &Tensor {
    value.get("array").and_then(Value::as_tensor).unwrap()
}

#[test]
fn rows_in_both_orders_and_both_byte_orders() {
    let folder = Folder::new("npy-orders");
    let plain: Vec<i16> = (0..24).map(|i| i - 3).collect();
    // Element (i, j, k) of a 4 x 2 x 3 array, stored with the first index moving fastest.
    let mut turned = vec![0_i16; 24];
    for (at, x) in plain.iter().enumerate() {
        let (i, j, k) = (at / 6, at / 3 % 2, at % 3);
        turned[i + 4 * (j + 2 * k)] = *x;
    }
    let le = |items: &[i16]| items.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    let be = |items: &[i16]| items.iter().flat_map(|x| x.to_be_bytes()).collect::<Vec<_>>();
    for (name, bytes) in [
        ("c", array("<i2", false, "(4, 2, 3)", &le(&plain))),
        ("big", array(">i2", false, "(4, 2, 3)", &be(&plain))),
        ("f", array("<i2", true, "(4, 2, 3)", &le(&turned))),
        ("fbig", array(">i2", true, "(4, 2, 3)", &be(&turned))),
    ] {
        let source = Npy::new([folder.file(name, &bytes)]);
        assert_eq!(*source.index().unwrap(), [4]);
        let mut reader = source.open(0, None).unwrap();
        let rows = all(&mut *reader);
        for (row, expected) in rows.iter().zip(plain.chunks(6)) {
            assert_eq!(*field(row), Tensor::from_slice(expected, &[2, 3]).unwrap(), "{name}");
        }
        // By number, back and forth.
        for at in [3, 0, 2, 1, 9] {
            assert!(reader.seek(at).unwrap());
            let found = reader.next().unwrap().map(|record| record.value);
            assert_eq!(found.as_ref(), rows.get(usize::try_from(at).unwrap()), "{name}");
        }
        reader.seek(1).unwrap();
        let columns = reader.columns(2).unwrap().unwrap();
        assert_eq!((columns.rows, columns.first), (2, 1));
        let expected = Tensor::from_slice(&plain[6..18], &[2, 2, 3]).unwrap();
        assert_eq!(columns.fields, [("array".to_owned(), Value::Tensor(expected))]);
        assert_eq!(reader.columns(9).unwrap().unwrap().rows, 1);
        assert_eq!(reader.columns(9).unwrap().unwrap().rows, 0);
    }
}

#[test]
fn what_cannot_be_read_is_told() {
    let folder = Folder::new("npy-wrong");
    let open = |bytes: &[u8]| {
        Npy::new([folder.file("x.npy", bytes)])
            .open(0, None)
            .map(|_| ())
            .unwrap_err()
            .fault()
    };
    assert_eq!(open(&array("|O", false, "(3,)", b"\x80\x04")), Fault::Unsupported);
    assert_eq!(open(&array("<i2", false, "()", &[1, 0])), Fault::Unsupported);
    assert_eq!(open(&array("<i2", false, "(5,)", &numbers(4))), Fault::Truncated);
    assert_eq!(
        open(&array("<i2", false, "(99999999999999999, 99999)", &[])),
        Fault::Damaged
    );
    // Some bytes of header must not become gigabytes of empty strings and lists.
    for (descr, shape) in [
        ("|S0", "(750, 5, 8, 48, 5, 2)"),
        ("<U4", "(7777777, 0)"),
        ("|S1", "(7777777777, 7777777777, 0, 7)"),
    ] {
        assert_eq!(open(&array(descr, false, shape, &[])), Fault::Damaged, "{shape}");
    }
    assert_eq!(open(b"\x93NUMPY"), Fault::Truncated);
    assert_eq!(open(b""), Fault::Truncated);
    assert_eq!(open(b"\x93NUMPY\x01\x00\x76\x00{'descr"), Fault::Truncated);
    assert_eq!(open(b"hello, this is no array"), Fault::Damaged);
    let source = Npy::new([folder.file("bool.npy", &array("|b1", false, "(3,)", &[1, 0, 7]))]);
    let mut reader = source.open(0, None).unwrap();
    reader.skip(2).unwrap();
    let error = reader.next().unwrap_err();
    assert_eq!((error.fault(), error.offset()), (Fault::Damaged, Some(130)));
}

#[test]
fn text_and_bytes_are_lists() {
    let folder = Folder::new("npy-text");
    let text: Vec<u8> = "hi\0žlu".chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
    let source = Npy::new([folder.file("t.npy", &array("<U3", false, "(2,)", &text))]).named("t");
    let rows = all(&mut *source.open(0, None).unwrap());
    assert_eq!(
        rows,
        [
            Value::map([("t", Value::from("hi"))]),
            Value::map([("t", Value::from("žlu"))])
        ]
    );
    let source = Npy::new([folder.file("s.npy", &array("|S2", false, "(2, 2)", b"aab\0\0\0cd"))]);
    let columns = source.open(0, None).unwrap().columns(5).unwrap().unwrap();
    let bytes = |text: &[u8]| Value::Bytes(text.to_vec());
    let expected = Value::List(vec![
        Value::List(vec![bytes(b"aa"), bytes(b"b")]),
        Value::List(vec![bytes(b""), bytes(b"cd")]),
    ]);
    assert_eq!(columns.fields[0].1, expected);
    let none = |descr: &str, shape: &str| {
        let source = Npy::new([folder.file("n.npy", &array(descr, false, shape, &[]))]);
        let columns = source.open(0, None).unwrap().columns(5).unwrap().unwrap();
        columns.fields[0].1.clone()
    };
    assert_eq!(none("|S0", "(2,)"), Value::List(vec![bytes(b""), bytes(b"")]));
    assert_eq!(none("<U4", "(1, 0)"), Value::List(vec![Value::List(vec![])]));
}

/// An archive of stored and deflated members.
fn archive(members: &[(&str, &[u8], bool)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    for (name, data, deflate) in members {
        let mut crc = flate2::Crc::new();
        crc.update(data);
        let packed = if *deflate {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        } else {
            data.to_vec()
        };
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let method = [if *deflate { 8 } else { 0 }, 0];
        let common = [
            &[20, 0, 0, 0][..],
            &method,
            &[0; 4],
            &crc.sum().to_le_bytes(),
            &len(&packed),
            &len(data),
            &u16::try_from(name.len()).unwrap().to_le_bytes(),
            &[0, 0],
        ]
        .concat();
        let at = len(&out);
        directory.extend_from_slice(&[b"PK\x01\x02\x14\x00", &common[..], &[0; 10], &at, name.as_bytes()].concat());
        out.extend_from_slice(&[b"PK\x03\x04", &common[..], name.as_bytes(), &packed].concat());
    }
    let n = u16::try_from(members.len()).unwrap().to_le_bytes();
    let len = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    let end = [
        b"PK\x05\x06\0\0\0\0",
        &n[..],
        &n,
        &len(directory.len()),
        &len(out.len()),
        &[0, 0],
    ]
    .concat();
    [out, directory, end].concat()
}

#[test]
fn archives_are_rows_of_all_their_arrays() {
    let folder = Folder::new("npz");
    let x = array("<i2", false, "(6, 2)", &numbers(12));
    let y = array("|u1", false, "(6,)", &[9, 8, 7, 6, 5, 4]);
    let object = array("|O", false, "(1,)", b"\x80\x04N.");
    let bytes = archive(&[("x.npy", &x, true), ("y.npy", &y, false), ("o.npy", &object, false)]);
    let path = folder.file("a.npz", &bytes);
    let error = Npy::new([&path]).open(0, None).map(|_| ()).unwrap_err();
    assert_eq!((error.fault(), error.key()), (Fault::Unsupported, Some("o.npy")));
    let source = Npy::new([&path]).fields(["y", "x"]);
    let mut reader = source.open(0, None).unwrap();
    let rows = all(&mut *reader);
    assert_eq!(rows.len(), 6);
    let x = Value::Tensor(Tensor::from_slice(&[-1_i16, 0], &[2]).unwrap());
    assert_eq!(
        rows[1],
        Value::map([("y", Value::Tensor(Tensor::scalar(8_u8).unwrap())), ("x", x)])
    );
    reader.seek(1).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().value, rows[1]);
    let missing = Npy::new([&path]).fields(["z"]).open(0, None).map(|_| ()).unwrap_err();
    assert_eq!(missing.fault(), Fault::Absent);
    let differ = Npy::new([&path])
        .fields(["x", "o"])
        .open(0, None)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(differ.fault(), Fault::Unsupported);
    // A changed byte in what is compressed does not pass.
    let mut damaged = bytes.clone();
    let at = 30 + 5 + 70;
    damaged[at] ^= 1;
    let source = Npy::new([folder.file("d.npz", &damaged)]).fields(["x"]);
    let read = source.open(0, None).and_then(|mut reader| {
        while reader.next()?.is_some() {}
        Ok(())
    });
    assert!(read.is_err());
    let cut = Npy::new([folder.file("c.npz", &bytes[..bytes.len() - 40])]);
    assert_eq!(cut.open(0, None).map(|_| ()).unwrap_err().fault(), Fault::Truncated);
}

#[test]
fn damaged_files_end_in_errors() {
    let folder = Folder::new("npy-mutations");
    let x = array("<f4", true, "(6, 2)", &[1; 48]);
    let t = array("<U2", false, "(6, 1)", &[0; 48]);
    let npz = archive(&[("x.npy", &x, false), ("t.npy", &t, true)]);
    for bytes in [&x, &t, &npz] {
        mutations(bytes, 400, |damaged| {
            exhaust(&Npy::new([folder.file("m.npy", damaged)]));
        });
    }
    assert_eq!(exhaust(&Npy::new([folder.file("x.npy", &x)])), 6);
    assert_eq!(exhaust(&Npy::new([folder.file("x.npz", &npz)])), 6);
    assert_eq!(DType::F32.size(), 4);
}
