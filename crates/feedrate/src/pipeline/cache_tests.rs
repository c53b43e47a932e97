//! What a cache takes for the same data.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::*;
use crate::batch::{DType, Value};
use crate::source::mutate::Folder;
use crate::source::{
    Csv, Files, IndexAt, Indexed, JsonLines, Mark, Mds, Npy, Part, Reader, Source, SourceError, Tar, TfRecords, Tokens,
    Windows,
};
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

/// Counts how often it is asked for its files.
#[derive(Debug)]
struct Counted {
    lines: JsonLines,
    asked: Arc<AtomicU64>,
}

impl Source for Counted {
    fn format(&self) -> &'static str {
        "counted"
    }

    fn describe(&self) -> String {
        self.lines.describe()
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        self.lines.parts()
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.lines.files(part)
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        self.lines.open(part, from)
    }
}

#[test]
fn lanes_of_an_epoch_look_at_the_files_once() {
    let folder = Folder::new("lanes");
    let path = folder.file("a.jsonl", b"{\"x\": 1}\n{\"x\": 2}\n{\"x\": 3}\n");
    for cache in [
        Cache::memory(1 << 20),
        Cache::files(folder.path().join("kept"), 1 << 20),
    ] {
        folder.file("a.jsonl", b"{\"x\": 1}\n{\"x\": 2}\n{\"x\": 3}\n");
        touch(&path, 1);
        let asked = Arc::new(AtomicU64::new(0));
        let source = Counted {
            lines: JsonLines::new([path.to_str().unwrap()]),
            asked: Arc::clone(&asked),
        };
        let kept = Pipeline::source(source).map("same", |value, _| Ok(value)).cache(cache);
        let asked = || asked.swap(0, Ordering::Relaxed);
        // Also where each lane reads all, and in whatever order they are opened, at the same time too.
        for pipeline in [&kept, &kept.take(2), &kept.repeat(Some(2))] {
            for epoch in 0..2 {
                for lane in [3, 0, 1, 2] {
                    pipeline.lane(&Opening::new(lane, 4, 1, 0, epoch), None).unwrap();
                }
                assert_eq!(asked(), 1, "{pipeline}");
            }
            std::thread::scope(|scope| {
                for lane in 0..4 {
                    scope.spawn(move || pipeline.lane(&Opening::new(lane, 4, 1, 0, 2), None).unwrap());
                }
            });
            assert_eq!(asked(), 1, "{pipeline}");
        }
        // The same epoch again sees what was written since.
        let found = || {
            let x = |value: Result<Value, Failure>| value.unwrap().get("x").cloned().unwrap();
            kept.iter().unwrap().map(x).collect::<Vec<_>>()
        };
        assert_eq!(found(), [1, 2, 3].map(Value::Int));
        assert_eq!(found(), [1, 2, 3].map(Value::Int));
        folder.file("a.jsonl", b"{\"x\": 4}\n{\"x\": 5}\n{\"x\": 6}\n");
        touch(&path, 2);
        assert_eq!(found(), [4, 5, 6].map(Value::Int));
        assert_eq!(asked(), 3);
    }
}
