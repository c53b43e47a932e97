use super::*;
use crate::batch::Tensor;
use crate::source::mutate::{Folder, all, exhaust, mutations};

const COLUMNS: [(&str, &str, Option<u32>); 6] = [
    ("text", "str", None),
    ("n", "int", Some(8)),
    ("x", "ndarray", None),
    ("y", "ndarray:float32:1,2", Some(8)),
    ("j", "json", None),
    ("i", "list[jpeg]", None),
];

fn sample(i: u8) -> Vec<u8> {
    let columns = [
        vec![b'a' + i; usize::from(i)],
        i64::from(i).to_le_bytes().to_vec(),
        // int16, two dimensions of one byte each.
        vec![17, 2 << 2, 1, 2, i, 0, 0xff, 0xff],
        [0.5_f32, f32::from(i)].iter().flat_map(|x| x.to_le_bytes()).collect(),
        br#"{"k": [1, null]}"#.to_vec(),
        vec![0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 7, 8, 9],
    ];
    let sizes = columns
        .iter()
        .zip(COLUMNS)
        .filter(|(_, (_, _, size))| size.is_none())
        .flat_map(|(bytes, _)| u32::try_from(bytes.len()).unwrap().to_le_bytes());
    sizes.chain(columns.iter().flatten().copied()).collect()
}

fn shard(samples: u8) -> Vec<u8> {
    let config = b"{}";
    let samples: Vec<_> = (0..samples).map(sample).collect();
    let mut at = u32::try_from(4 + 4 * (samples.len() + 1) + config.len()).unwrap();
    let mut out = u32::try_from(samples.len()).unwrap().to_le_bytes().to_vec();
    out.extend_from_slice(&at.to_le_bytes());
    for sample in &samples {
        at += u32::try_from(sample.len()).unwrap();
        out.extend_from_slice(&at.to_le_bytes());
    }
    [out, config.to_vec(), samples.concat()].concat()
}

fn index(samples: u8, bytes: usize, zip: Option<(&str, usize)>, basename: &str, first: &str) -> String {
    let names: Vec<_> = COLUMNS.iter().map(|(name, ..)| name).collect();
    let mut encodings: Vec<_> = COLUMNS.iter().map(|(_, encoding, _)| *encoding).collect();
    encodings[0] = first;
    let sizes: Vec<_> = COLUMNS.iter().map(|(.., size)| size).collect();
    let packed = zip.map(|(name, bytes)| serde_json::json!({"basename": name, "bytes": bytes, "hashes": {}}));
    serde_json::json!({"version": 2, "shards": [{
        "format": "mds", "version": 2, "samples": samples, "compression": zip.map(|_| "zstd:3"), "hashes": [],
        "column_names": names, "column_encodings": encodings, "column_sizes": sizes, "size_limit": 1 << 26,
        "raw_data": {"basename": basename, "bytes": bytes, "hashes": {}}, "zip_data": packed,
    }]})
    .to_string()
}

#[test]
fn samples_by_number_plain_and_compressed() {
    let folder = Folder::new("mds");
    let bytes = shard(5);
    let zip = zstd::encode_all(&bytes[..], 1).unwrap();
    let path = folder.file("s.mds", &bytes);
    folder.file("s.mds.zstd", &zip);
    let listed = index(5, bytes.len(), Some(("s.mds.zstd", zip.len())), "s.mds", "str");
    folder.file("index.json", listed.as_bytes());
    let source = Mds::new([folder.path()]);
    assert_eq!(source.parts().unwrap()[0].records, Some(5));
    let rows = all(&mut *source.open(0, None).unwrap());
    let expected = Value::map([
        ("text", Value::from("ddd")),
        ("n", Value::Int(3)),
        ("x", Tensor::from_slice(&[3_i16, -1], &[1, 2]).unwrap().into()),
        ("y", Tensor::from_slice(&[0.5_f32, 3.0], &[1, 2]).unwrap().into()),
        ("j", Value::map([("k", Value::List(vec![1_i64.into(), Value::None]))])),
        ("i", Value::List(vec![Value::Bytes(vec![7]), Value::Bytes(vec![8, 9])])),
    ]);
    assert_eq!((rows.len(), &rows[3]), (5, &expected));
    std::fs::remove_file(&path).unwrap();
    let mut reader = source.open(0, None).unwrap();
    assert_eq!(all(&mut *reader), rows);
    reader.seek(1).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().value, rows[1]);
    let small = Mds::new([folder.path()])
        .limit(10)
        .open(0, None)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(small.fault(), Fault::Unsupported);
    assert!(
        small.message().contains("the limit (max_shard_bytes) is 10: raise it"),
        "{small}"
    );
    folder.file("s.mds", &bytes[..bytes.len() - 1]);
    assert_eq!(source.open(0, None).map(|_| ()).unwrap_err().fault(), Fault::Truncated);
}

#[test]
fn pickles_and_paths_are_refused() {
    let folder = Folder::new("mds-refused");
    let bytes = shard(2);
    folder.file("s.mds", &bytes);
    folder.file("index.json", index(2, bytes.len(), None, "s.mds", "pkl").as_bytes());
    let error = Mds::new([folder.path()]).open(0, None).map(|_| ()).unwrap_err();
    assert_eq!((error.fault(), error.key()), (Fault::Unsupported, Some("column text")));
    let some = Mds::new([folder.path()]).columns(["n"]);
    assert_eq!(
        all(&mut *some.open(0, None).unwrap())[1],
        Value::map([("n", 1_i64)].map(|(k, v)| (k, v.into())))
    );
    for basename in ["../s.mds", "/etc/passwd", "", "a/../../s.mds"] {
        folder.file("index.json", index(2, bytes.len(), None, basename, "str").as_bytes());
        let error = Mds::new([folder.path()]).parts().unwrap_err();
        assert_eq!(error.fault(), Fault::Damaged, "{basename}");
    }
    assert_eq!(
        Mds::new([folder.path().join("none")]).parts().unwrap_err().fault(),
        Fault::Missing
    );
}

#[test]
fn damaged_files_end_in_errors() {
    let folder = Folder::new("mds-mutations");
    let bytes = shard(5);
    let index = |len, first| index(5, len, None, "s.mds", first);
    let whole = [index(bytes.len(), "pil").as_bytes(), &bytes].join(&0);
    // An index, a zero and a shard; without an index, the right one.
    for (file, times) in [([&[0], &bytes[..]].concat(), 400), (whole, 200)] {
        mutations(&file, times, |damaged| {
            let end = memchr::memchr(0, damaged).unwrap_or(damaged.len());
            let (json, shard) = (&damaged[..end], damaged.get(end + 1..).unwrap_or_default());
            folder.file("s.mds", shard);
            let right = index(shard.len(), "str");
            folder.file("index.json", if json.is_empty() { right.as_bytes() } else { json });
            exhaust(&Mds::new([folder.path()]));
        });
    }
}
