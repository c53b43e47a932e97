use std::io::Write as _;

use super::*;
use crate::batch::Tensor;
use crate::source::mutate::{Folder, all, exhaust, mutations};

const NOWHERE: u64 = u64::MAX;

/// A file in the oldest layout, which has no checksums that would hide what is behind them from damaged copies.
struct Built {
    bytes: Vec<u8>,
    datasets: Vec<(String, u64)>,
}

/// How values are stored.
enum Layout<'a> {
    Compact,
    Contiguous,
    /// Chunks of so many rows and columns, deflated if wanted; those of these numbers are left out.
    Chunked([u64; 2], bool, &'a [usize]),
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().div_ceil(8) * 8, 0);
    bytes
}

fn le16(n: usize) -> [u8; 2] {
    u16::try_from(n).unwrap().to_le_bytes()
}

fn le32(n: usize) -> [u8; 4] {
    u32::try_from(n).unwrap().to_le_bytes()
}

impl Built {
    fn new() -> Self {
        Self {
            bytes: vec![0; 96],
            datasets: Vec::new(),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&padded(bytes));
        at
    }

    fn header(&mut self, messages: &[(u8, Vec<u8>)]) -> u64 {
        let body: Vec<u8> = messages
            .iter()
            .flat_map(|(kind, data)| {
                let data = padded(data);
                [&[*kind, 0][..], &le16(data.len()), &[0; 4], &data].concat()
            })
            .collect();
        let head = [
            &[1, 0][..],
            &le16(messages.len()),
            &[1, 0, 0, 0],
            &le32(body.len()),
            &[0; 4],
        ];
        self.put(&[&head.concat()[..], &body].concat())
    }

    /// A dataset of `rows` × `columns` whole numbers of two bytes.
    fn dataset(&mut self, name: &str, values: &[i16], columns: u64, layout: &Layout<'_>) {
        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let rows = values.len() as u64 / columns;
        let mut filters = Vec::new();
        let layout = match layout {
            Layout::Compact => [&[3, 0][..], &le16(data.len()), &data].concat(),
            Layout::Contiguous => {
                let at = self.put(&data).to_le_bytes();
                [&[3, 1][..], &at, &(data.len() as u64).to_le_bytes()].concat()
            }
            Layout::Chunked([deep, wide], deflate, left_out) => {
                if *deflate {
                    filters = [
                        &[1, 1, 0, 0, 0, 0, 0, 0][..],
                        &[1, 0, 0, 0, 1, 0, 1, 0],
                        &[6, 0, 0, 0, 0, 0, 0, 0],
                    ]
                    .concat();
                }
                let mut entries = Vec::new();
                for (number, (r, c)) in (0..rows.div_ceil(*deep))
                    .flat_map(|r| (0..columns.div_ceil(*wide)).map(move |c| (r * deep, c * wide)))
                    .enumerate()
                {
                    if left_out.contains(&number) {
                        continue;
                    }
                    let mut chunk = Vec::new();
                    for place in 0..deep * wide {
                        let (row, column) = (r + place / wide, c + place % wide);
                        let inside = row < rows && column < columns;
                        let at = usize::try_from(row * columns + column).unwrap();
                        chunk.extend_from_slice(&if inside { values[at] } else { -99 }.to_le_bytes());
                    }
                    if *deflate {
                        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                        encoder.write_all(&chunk).unwrap();
                        chunk = encoder.finish().unwrap();
                    }
                    let key = [
                        &le32(chunk.len())[..],
                        &[0; 4],
                        &r.to_le_bytes(),
                        &c.to_le_bytes(),
                        &[0; 8],
                    ]
                    .concat();
                    entries.push([key, self.put(&chunk).to_le_bytes().to_vec()].concat());
                }
                let head = [
                    &b"TREE\x01\x00"[..],
                    &le16(entries.len()),
                    &NOWHERE.to_le_bytes(),
                    &NOWHERE.to_le_bytes(),
                ];
                let last = [&[0; 8][..], &rows.to_le_bytes(), &columns.to_le_bytes(), &[0; 8]].concat();
                let tree = self.put(&[head.concat(), entries.concat(), last].concat());
                let (deep, wide) = (u32::try_from(*deep).unwrap(), u32::try_from(*wide).unwrap());
                let dims = [deep.to_le_bytes(), wide.to_le_bytes(), [2, 0, 0, 0]].concat();
                [&[3, 2, 3][..], &tree.to_le_bytes(), &dims].concat()
            }
        };
        let mut messages = vec![
            (
                1,
                [
                    &[1, 2, 0, 0, 0, 0, 0, 0][..],
                    &rows.to_le_bytes(),
                    &columns.to_le_bytes(),
                ]
                .concat(),
            ),
            (3, vec![0x10, 8, 0, 0, 2, 0, 0, 0, 0, 0, 16, 0]),
            (5, vec![2, 2, 0, 1, 2, 0, 0, 0, 7, 0]),
            (8, layout),
        ];
        if !filters.is_empty() {
            messages.push((11, filters));
        }
        let header = self.header(&messages);
        self.datasets.push((name.to_owned(), header));
    }

    /// With a group of all datasets, which have to be named in order.
    fn done(mut self) -> Vec<u8> {
        let mut names = vec![0; 8];
        let mut symbols = Vec::new();
        let mut last = 0;
        for (name, header) in std::mem::take(&mut self.datasets) {
            last = names.len() as u64;
            names.extend_from_slice(&padded(&[name.as_bytes(), b"\0"].concat()));
            symbols.push([&last.to_le_bytes()[..], &header.to_le_bytes(), &[0; 24]].concat());
        }
        let data = self.put(&names).to_le_bytes();
        let size = (names.len() as u64).to_le_bytes();
        let heap = self
            .put(&[b"HEAP\0\0\0\0", &size[..], &1_u64.to_le_bytes(), &data].concat())
            .to_le_bytes();
        let node = [&b"SNOD\x01\0"[..], &le16(symbols.len()), &symbols.concat()].concat();
        let node = self.put(&node).to_le_bytes();
        let nowhere = NOWHERE.to_le_bytes();
        let tree = [
            b"TREE\0\0\x01\0",
            &nowhere[..],
            &nowhere,
            &[0; 8],
            &node,
            &last.to_le_bytes(),
        ]
        .concat();
        let tree = self.put(&tree).to_le_bytes();
        let root = self.header(&[(17, [tree, heap].concat())]).to_le_bytes();
        let end = (self.bytes.len() as u64).to_le_bytes();
        let begin = [
            &b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0\x04\0\x10\0\0\0\0\0"[..],
            &[0; 8],
            &nowhere,
            &end,
            &nowhere,
            &[0; 8],
            &root,
            &[1, 0, 0, 0, 0, 0, 0, 0],
            &tree,
            &heap,
        ];
        self.bytes[..96].copy_from_slice(&begin.concat());
        self.bytes
    }
}

fn values(rows: u64, columns: u64) -> Vec<i16> {
    (0..rows * columns).map(|x| i16::try_from(x).unwrap() - 5).collect()
}

/// 11 rows of 5 in every layout.
fn every() -> Vec<u8> {
    let mut file = Built::new();
    let numbers = values(11, 5);
    file.dataset("compact", &numbers, 5, &Layout::Compact);
    file.dataset("plain", &numbers, 5, &Layout::Contiguous);
    file.dataset("tiles", &numbers, 5, &Layout::Chunked([3, 2], false, &[]));
    file.dataset("whole", &numbers, 5, &Layout::Chunked([4, 5], false, &[]));
    file.dataset("zip", &numbers, 5, &Layout::Chunked([4, 5], true, &[]));
    file.dataset("ziptiles", &numbers, 5, &Layout::Chunked([16, 3], true, &[]));
    file.done()
}

#[test]
fn every_layout_gives_the_same_rows() {
    let folder = Folder::new("hdf5-layouts");
    let source = Hdf5::new([folder.file("every.bin", &every())]);
    assert_eq!(*source.index().unwrap(), [11]);
    let numbers = values(11, 5);
    let names = ["compact", "plain", "tiles", "whole", "zip", "ziptiles"];
    let expected: Vec<Value> = numbers
        .chunks(5)
        .map(|row| Value::map(names.map(|name| (name, Value::Tensor(Tensor::from_slice(row, &[5]).unwrap())))))
        .collect();
    let mut reader = source.open(0, None).unwrap();
    assert_eq!(all(&mut *reader), expected);
    // By number, back and forth.
    for at in [7, 0, 10, 3, 2, 99] {
        assert!(reader.seek(at).unwrap());
        let found = reader.next().unwrap().map(|record| record.value);
        assert_eq!(found.as_ref(), expected.get(usize::try_from(at).unwrap()), "{at}");
    }
    for (first, rows) in [(0, 11), (2, 7), (9, 2)] {
        let mark = Mark {
            number: first,
            offset: 0,
        };
        let columns = source.open(0, Some(mark)).unwrap().columns(rows).unwrap().unwrap();
        let from = usize::try_from(first).unwrap() * 5;
        let tensor = Tensor::from_slice(&numbers[from..from + rows * 5], &[rows, 5]).unwrap();
        assert_eq!((columns.rows, columns.first), (rows, first));
        assert_eq!(
            columns.fields,
            names.map(|name| (name.to_owned(), Value::Tensor(tensor.clone())))
        );
    }
    let mut chosen = Hdf5::new([folder.path().join("every.bin")])
        .columns(["zip", "/plain"])
        .open(0, None)
        .unwrap();
    let Value::Map(fields) = chosen.next().unwrap().unwrap().value else {
        panic!()
    };
    assert_eq!([&fields[0].0[..], &fields[1].0], ["zip", "/plain"]);
}

#[test]
fn chunks_that_were_not_written_are_the_fill_value() {
    let folder = Folder::new("hdf5-fill");
    let mut file = Built::new();
    file.dataset("x", &values(6, 4), 4, &Layout::Chunked([2, 2], false, &[0, 3]));
    let source = Hdf5::new([folder.file("fill.h5", &file.done())]);
    let columns = source.open(0, None).unwrap().columns(9).unwrap().unwrap();
    let mut expected = values(6, 4);
    for at in [0, 1, 4, 5, 10, 11, 14, 15] {
        expected[at] = 7;
    }
    assert_eq!(
        columns.fields[0].1,
        Value::Tensor(Tensor::from_slice(&expected, &[6, 4]).unwrap())
    );
}

#[test]
fn what_cannot_be_read_is_told() {
    let folder = Folder::new("hdf5-wrong");
    let mut file = Built::new();
    file.dataset("a", &values(6, 4), 4, &Layout::Contiguous);
    file.dataset("b", &values(8, 3), 3, &Layout::Chunked([4, 3], true, &[]));
    let bytes = file.done();
    let path = folder.file("two.h5", &bytes);
    let refused = |source: Hdf5| source.open(0, None).map(|_| ()).unwrap_err();
    let error = refused(Hdf5::new([&path]));
    assert_eq!(error.fault(), Fault::Unsupported);
    assert!(
        error.to_string().contains("\"a\" and \"b\" have 6 and 8 rows"),
        "{error}"
    );
    let error = refused(Hdf5::new([&path]).columns(["c"]));
    assert_eq!(error.fault(), Fault::Absent);
    assert!(error.to_string().contains("only [\"a\", \"b\"]"), "{error}");
    for cut in [0, 9, 95, 200, bytes.len() - 1] {
        let path = folder.file("cut.h5", &bytes[..cut]);
        let error = refused(Hdf5::new([&path]));
        assert!(
            matches!(error.fault(), Fault::Truncated | Fault::Damaged),
            "{cut}: {error}"
        );
        assert!(error.part().ends_with("cut.h5"), "{error}");
    }
    // The first chunk is nonsense, the second is not.
    let mut damaged = bytes;
    let at = damaged.windows(2).position(|two| two == [0x78, 0x9c]).unwrap();
    damaged[at + 4] ^= 0x55;
    let source = Hdf5::new([folder.file("damaged.h5", &damaged)]).columns(["b"]);
    let mut reader = source.open(0, None).unwrap();
    let error = reader.next().unwrap_err();
    assert_eq!((error.fault(), error.key()), (Fault::Damaged, Some("dataset b, row 0")));
    assert!(reader.next().is_err());
    assert!(reader.seek(4).unwrap() && reader.next().unwrap().is_some());
}

#[test]
fn damaged_files_end_in_errors() {
    let folder = Folder::new("hdf5-mutations");
    mutations(&every(), 300, |damaged| {
        let path = folder.file("m", damaged);
        exhaust(&Hdf5::new([&path]));
        exhaust(&Hdf5::new([&path]).columns(["zip"]));
        exhaust(&Hdf5::new([&path]).columns(["tiles", "plain"]));
    });
}
