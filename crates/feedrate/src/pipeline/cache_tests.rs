//! What a cache takes for the same data.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::*;
use crate::batch::{DType, Value};
use crate::source::mutate::Folder;
use crate::source::{Csv, Files, IndexAt, Indexed, JsonLines, Mds, Npy, Source, Tar, TfRecords, Tokens, Windows};
use crate::store::Blob;

/// As if it was written anew, with the same size.
fn touch(path: &Path, seconds: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
        .unwrap();
}

#[test]
fn the_stamp_of_a_source_is_of_all_its_files() {
    let folder = Folder::new("stamps");
    let at = |name: &str| folder.file(name, b"{\"x\": 1}\n{\"x\": 2}\n");
    let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let (a, b, bin, idx, packed) = (at("a.jsonl"), at("b.jsonl"), at("t.bin"), at("t.idx"), at("s.mds.gz"));
    let mds = serde_json::json!({"version": 2, "shards": [{
        "format": "mds", "version": 2, "samples": 2, "compression": "gz",
        "column_names": [], "column_encodings": [], "column_sizes": [],
        "raw_data": {"basename": "s.mds", "bytes": 99}, "zip_data": {"basename": "s.mds.gz", "bytes": 18},
    }]});
    let index = folder.file("index.json", mds.to_string().as_bytes());
    let both = [&a, &b];
    let cut = || JsonLines::new(both.map(text)).split_bytes(8);
    let windows = Windows::of(2);
    let mut sources: Vec<(Arc<dyn Source>, Vec<&PathBuf>)> = vec![
        (Arc::new(JsonLines::new(both.map(text))), both.to_vec()),
        (Arc::new(cut()), both.to_vec()),
        (Arc::new(Indexed::new(cut(), IndexAt::Memory)), both.to_vec()),
        (Arc::new(JsonLines::of(both.map(Blob::from))), both.to_vec()),
        (Arc::new(Csv::new(both.map(text))), both.to_vec()),
        (Arc::new(Tar::new(both.map(text))), both.to_vec()),
        (Arc::new(Files::new(both.map(text))), both.to_vec()),
        (Arc::new(Files::new(both.map(text)).files_per_part(1)), both.to_vec()),
        (Arc::new(TfRecords::new(both)), both.to_vec()),
        (Arc::new(Npy::new(both)), both.to_vec()),
        (Arc::new(Tokens::raw(both, DType::U8, windows)), both.to_vec()),
        (Arc::new(Tokens::megatron([&bin])), vec![&bin, &idx]),
        (Arc::new(Mds::new([folder.path()])), vec![&index, &packed]),
    ];
    #[cfg(feature = "arrow")]
    sources.push((Arc::new(crate::source::ArrowIpc::new(both)), both.to_vec()));
    #[cfg(feature = "parquet")]
    sources.push((Arc::new(crate::source::Parquet::new(both)), both.to_vec()));
    #[cfg(feature = "hdf5")]
    sources.push((Arc::new(crate::source::Hdf5::new(both)), both.to_vec()));
    let mut seconds = 0;
    for (source, files) in sources {
        let pipeline = Pipeline::dealt(Arc::clone(&source), Deal::Auto);
        let stamp = || pipeline.data_stamp().unwrap();
        let mut before = stamp();
        assert_eq!(stamp(), before);
        for path in files {
            seconds += 1;
            touch(path, seconds);
            assert_ne!(stamp(), before, "{} {source:?}: {}", source.format(), path.display());
            before = stamp();
        }
    }
    // What lies in memory has none.
    let memory = JsonLines::of([Blob::memory(&text(&a), *b"{}")]);
    let pipeline = Pipeline::source(memory);
    let before = pipeline.data_stamp().unwrap();
    touch(&a, seconds + 1);
    assert_eq!(pipeline.data_stamp().unwrap(), before);
}

#[test]
fn a_cache_of_cut_files_sees_that_they_were_rewritten() {
    let folder = Folder::new("cut");
    let path = folder.file("a.jsonl", b"{\"x\": 1}\n{\"x\": 2}\n");
    let kept = folder.path().join("kept");
    let run = || {
        let source = JsonLines::new([path.to_str().unwrap()]).split_bytes(8);
        let pipeline = Pipeline::source(source)
            .map("same", |value, _| Ok(value))
            .cache(Cache::files(&kept, 1 << 20));
        let elements = pipeline.iter().unwrap();
        let x = |value: Value| value.get("x").cloned().unwrap();
        elements.map(|value| x(value.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(run(), [Value::Int(1), Value::Int(2)]);
    folder.file("a.jsonl", b"{\"x\": 3}\n{\"x\": 4}\n");
    touch(&path, 1);
    assert_eq!(run(), [Value::Int(3), Value::Int(4)]);
}
