use super::*;
use crate::source::mutate::{Folder, all, exhaust, mutations};

fn index(code: u8, sequences: &[(i32, i64)], bounds: &[i64]) -> Vec<u8> {
    let mut out = b"MMIDIDX\0\0".to_vec();
    out.extend_from_slice(&1_u64.to_le_bytes());
    out.push(code);
    out.extend_from_slice(&(sequences.len() as u64).to_le_bytes());
    out.extend_from_slice(&(bounds.len() as u64).to_le_bytes());
    for (len, _) in sequences {
        out.extend_from_slice(&len.to_le_bytes());
    }
    for number in sequences.iter().map(|(_, at)| at).chain(bounds) {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out
}

fn shorts(n: u16) -> Vec<u8> {
    (0..n).flat_map(u16::to_le_bytes).collect()
}

fn tokens(value: &Value) -> Vec<i64> {
    value
        .get("tokens")
        .and_then(Value::as_tensor)
        .unwrap()
        .to_vec()
        .unwrap()
}

#[test]
fn documents_are_their_sequences() {
    let folder = Folder::new("megatron");
    let path = folder.file("a.bin", &shorts(10));
    // The second document has two sequences that do not lie side by side.
    let idx = index(8, &[(3, 0), (2, 6), (4, 12), (1, 10)], &[0, 1, 3, 3, 4]);
    folder.file("a.idx", &idx);
    let source = Tokens::megatron([path.with_extension("")]).wide(true);
    assert_eq!(*source.index().unwrap(), [4]);
    let mut reader = source.open(0, None).unwrap();
    let documents: Vec<_> = all(&mut *reader).iter().map(tokens).collect();
    assert_eq!(documents, [vec![0, 1, 2], vec![3, 4, 6, 7, 8, 9], vec![], vec![5]]);
    reader.seek(1).unwrap();
    let columns = reader.columns(2).unwrap().unwrap();
    assert_eq!((columns.rows, columns.first), (2, 1));
    let windows = Tokens::megatron([path.with_extension("idx")])
        .windows(Windows::of(4))
        .wide(true);
    let found: Vec<_> = all(&mut *windows.open(0, None).unwrap()).iter().map(tokens).collect();
    assert_eq!(found, [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]);

    folder.file("a.idx", &index(8, &[(3, 0), (9, 6)], &[0, 1, 2]));
    let mut reader = source.open(0, None).unwrap();
    assert!(reader.next().is_ok());
    let error = reader.next().unwrap_err();
    assert_eq!((error.fault(), error.key()), (Fault::Record, Some("document 1")));
    assert!(reader.next().unwrap().is_none());
    folder.file("a.idx", &idx[..60]);
    assert_eq!(source.open(0, None).map(|_| ()).unwrap_err().fault(), Fault::Truncated);
}

#[test]
fn windows_by_their_rule() {
    let folder = Folder::new("windows");
    let path = folder.file("t", &shorts(10));
    let read = |windows: Windows| {
        let source = Tokens::raw([&path], DType::U16, windows).wide(true);
        let mut reader = source.open(0, None).unwrap();
        let rows = all(&mut *reader);
        assert_eq!(source.index().unwrap()[0], rows.len() as u64);
        // The same as columns.
        reader.seek(0).unwrap();
        let columns = reader.columns(100).unwrap().unwrap();
        let by_column = |at: usize| match &columns.fields[0].1 {
            Value::Tensor(tensor) => Value::Tensor(tensor.get(at).unwrap()),
            other => other.at(at).cloned().unwrap(),
        };
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(row.get("tokens"), Some(&by_column(at)));
        }
        rows
    };
    let full = Windows {
        len: 3,
        extra: 1,
        stride: 3,
        last: ShortWindow::Drop,
    };
    let list = |windows| read(windows).iter().map(tokens).collect::<Vec<_>>();
    assert_eq!(list(full), [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]);
    let overlap = Windows {
        stride: 2,
        last: ShortWindow::Keep,
        ..full
    };
    assert_eq!(list(overlap), [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]);
    let keep = Windows {
        len: 4,
        stride: 4,
        last: ShortWindow::Keep,
        ..full
    };
    assert_eq!(list(keep), [vec![0, 1, 2, 3, 4], vec![4, 5, 6, 7, 8], vec![8, 9]]);
    let pad = Windows {
        last: ShortWindow::Pad(-1),
        ..keep
    };
    let rows = read(pad);
    assert_eq!(tokens(&rows[2]), [8, 9, -1, -1, -1]);
    assert_eq!(rows[2].get("length"), Some(&Value::Int(2)));
    assert_eq!(rows[0].get("length"), Some(&Value::Int(5)));
    let none = Windows::of(11);
    assert!(list(none).is_empty());
    assert_eq!(
        list(Windows {
            last: ShortWindow::Keep,
            ..none
        }),
        [(0..10).collect::<Vec<_>>()]
    );
    let odd = Tokens::raw([folder.file("odd", &[0; 7])], DType::U16, full);
    assert_eq!(odd.open(0, None).map(|_| ()).unwrap_err().fault(), Fault::Truncated);
    let float = Tokens::raw([&path], DType::F32, full);
    assert!(float.open(0, None).is_err());
}

#[test]
fn damaged_files_end_in_errors() {
    let folder = Folder::new("tokens-mutations");
    let path = folder.file("m.bin", &shorts(10));
    let idx = index(8, &[(3, 0), (2, 6), (4, 12), (1, 10)], &[0, 1, 3, 3, 4]);
    mutations(&idx, 400, |damaged| {
        folder.file("m.idx", damaged);
        exhaust(&Tokens::megatron([&path]));
    });
    let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (10,), }                    \n";
    let npy = [&b"\x93NUMPY\x01\x00\x50\x00"[..], header.as_bytes(), &shorts(10)].concat();
    mutations(&npy, 400, |damaged| {
        let windows = Windows {
            last: ShortWindow::Pad(0),
            ..Windows::of(3)
        };
        exhaust(&Tokens::npy([folder.file("m.npy", damaged)], windows).wide(true));
    });
}
