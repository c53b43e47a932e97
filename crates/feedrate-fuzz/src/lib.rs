//! Feedrate's parsers, each as a function of a file's bytes that must not panic, hang or take memory that is not there. Seeds are what
//! the tests damage: `FEEDRATE_FUZZ_SEEDS`.

use std::path::PathBuf;
use std::sync::OnceLock;

use feedrate::decode::Decoder;
use feedrate::source::tar::{Duplicates, Grouping, Missing};
use feedrate::source::{
    ArrowIpc, BigInts, Csv, Filter, Hdf5, JsonLines, Mds, Npy, Ones, Op, Parquet, ShortWindow, Tar, TfContent,
    TfRecords, Tokens, Windows, detect,
};
use feedrate::store::Blob;
use feedrate::testing::{exhaust, exhaust_image};

/// A parser under test.
#[derive(Debug)]
pub struct Parser {
    /// As `tools/fuzz.py` names it.
    pub name: &'static str,
    /// Reads a file in every way. It panics where the file shows a fault of the parser.
    pub read: fn(&[u8]),
    /// Makes check sums right, in place.
    pub mend: Option<fn(&mut [u8])>,
}

const fn parser(name: &'static str, read: fn(&[u8])) -> Parser {
    Parser { name, read, mend: None }
}

const PARSERS: &[Parser] = &[
    Parser {
        name: "tar",
        read: tar,
        mend: Some(tar_sums),
    },
    parser("jsonl", jsonl),
    parser("csv", csv),
    parser("compression", compression),
    parser("parquet", parquet),
    parser("arrow", arrow),
    Parser {
        name: "tfrecord",
        read: tfrecord,
        mend: Some(tfrecord_sums),
    },
    parser("npy", npy),
    parser("mds", mds),
    parser("tokens", tokens),
    parser("hdf5", hdf5),
    parser("jpeg", image),
    Parser {
        name: "png",
        read: image,
        mend: Some(png_sums),
    },
    parser("webp", image),
    parser("gif", image),
    parser("bmp", image),
    parser("pnm", image),
    parser("tiff", image),
];

/// The parser of that name.
pub fn find(name: &str) -> Option<&'static Parser> {
    PARSERS.iter().find(|parser| parser.name == name)
}

/// A file of this process, written anew.
#[expect(clippy::expect_used, reason = "without a folder there is no test")]
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("feedrate-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for files");
        folder
    });
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("a file");
    path
}

fn tar(bytes: &[u8]) {
    let blob = Blob::memory("x.tar", bytes.to_vec());
    let _ = detect(&blob);
    let tar = |blob| Tar::of([blob]).max_sample_bytes(16 << 20);
    exhaust(&tar(blob.clone()));
    exhaust(&tar(blob.clone()).fields(["npy"]).missing(Missing::Skip).past_end(true));
    exhaust(
        &tar(blob.clone())
            .grouping(Grouping::Scattered)
            .duplicates(Duplicates::Last),
    );
    exhaust(&tar(blob).grouping(Grouping::Whole).decompress(true));
}

fn jsonl(bytes: &[u8]) {
    let blob = Blob::memory("x.jsonl", bytes.to_vec());
    let _ = detect(&blob);
    exhaust(&JsonLines::of([blob.clone()]).big_ints(BigInts::Text));
    exhaust(&JsonLines::of([blob.clone()]).columns(["b"]).max_line_bytes(30));
    exhaust(&JsonLines::of([blob]).split_bytes(20));
}

fn csv(bytes: &[u8]) {
    let blob = Blob::memory("x.csv", bytes.to_vec());
    let _ = detect(&blob);
    exhaust(&Csv::of([blob.clone()]));
    exhaust(&Csv::of([blob.clone()]).infer(2).max_row_bytes(20));
    exhaust(&Csv::of([blob]).columns(["b"]).quote(b'\''));
}

fn compression(bytes: &[u8]) {
    let blob = Blob::memory("x.jsonl.gz", bytes.to_vec());
    let _ = detect(&blob);
    exhaust(&JsonLines::of([blob]).max_line_bytes(1 << 20));
}

fn parquet(bytes: &[u8]) {
    let path = file("m.parquet", bytes);
    exhaust(&Parquet::new([&path]));
    exhaust(&Parquet::new([&path]).filter(Filter::column("x", Op::Lt, 9_i64)));
}

fn arrow(bytes: &[u8]) {
    exhaust(&ArrowIpc::new([file("m.arrow", bytes)]).limit(1 << 24));
}

fn tfrecord(bytes: &[u8]) {
    let path = file("m.tfrecord", bytes);
    for check in [true, false] {
        exhaust(&TfRecords::new([&path]).check(check).limit(1 << 20));
        let sequences = TfRecords::new([&path]).content(TfContent::SequenceExample);
        exhaust(&sequences.check(check).ones(Ones::Single));
    }
}

fn npy(bytes: &[u8]) {
    exhaust(&Npy::new([file("m.npy", bytes)]));
}

fn mds(bytes: &[u8]) {
    // An index, a zero and a shard; without an index, the right one.
    let mut split = bytes.splitn(2, |byte| *byte == 0);
    let (json, shard) = (split.next().unwrap_or_default(), split.next().unwrap_or_default());
    let right = format!(
        r#"{{"shards": [{{"column_names": ["text", "n", "x", "y", "j", "i"],
        "column_encodings": ["str", "int", "ndarray", "ndarray:float32:1,2", "json", "list[jpeg]"],
        "column_sizes": [null, 8, null, 8, null, null], "compression": null, "format": "mds", "hashes": [],
        "raw_data": {{"basename": "s.mds", "bytes": {}, "hashes": {{}}}}, "samples": 5, "size_limit": null, "version": 2,
        "zip_data": null}}], "version": 2}}"#,
        shard.len()
    );
    file("s.mds", shard);
    let index = file("index.json", if json.is_empty() { right.as_bytes() } else { json });
    if let Some(folder) = index.parent() {
        exhaust(&Mds::new([folder]));
    }
}

fn tokens(bytes: &[u8]) {
    if bytes.starts_with(b"\x93NUMPY") {
        let windows = Windows {
            last: ShortWindow::Pad(0),
            ..Windows::of(3)
        };
        exhaust(&Tokens::npy([file("m.npy", bytes)], windows).wide(true));
    } else {
        file("m.idx", bytes);
        exhaust(&Tokens::megatron([&file("m.bin", &[1; 20])]));
    }
}

fn hdf5(bytes: &[u8]) {
    let path = file("m.h5", bytes);
    exhaust(&Hdf5::new([&path]));
    exhaust(&Hdf5::new([&path]).columns(["zip"]));
    exhaust(&Hdf5::new([&path]).columns(["tiles", "plain"]));
}

/// Any image, in all colours, and a part of it.
fn image(bytes: &[u8]) {
    exhaust_image(&mut Decoder::new(), bytes);
}

/// Of all blocks that look like headers.
fn tar_sums(bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().copied().map(u32::from).sum();
        let sum = format!("{:06o}\0 ", sum & 0o777_777);
        block[148..156].copy_from_slice(sum.as_bytes());
    }
}

/// Of lengths and data, as far as lengths lead to records.
fn tfrecord_sums(bytes: &mut [u8]) {
    let masked = |data: &[u8]| {
        crc32c::crc32c(data)
            .rotate_right(15)
            .wrapping_add(0xa282_ead8)
            .to_le_bytes()
    };
    let mut rest = bytes;
    while let Some((head, behind)) = rest.split_first_chunk_mut::<12>() {
        let mut length = [0; 8];
        length.copy_from_slice(&head[..8]);
        let sum = masked(&length);
        head[8..].copy_from_slice(&sum);
        let Ok(length) = usize::try_from(u64::from_le_bytes(length)) else {
            return;
        };
        if length.checked_add(4).is_none_or(|end| end > behind.len()) {
            return;
        }
        let (data, behind) = behind.split_at_mut(length);
        let (sum, behind) = behind.split_at_mut(4);
        sum.copy_from_slice(&masked(data));
        rest = behind;
    }
}

/// Of all chunks.
fn png_sums(bytes: &mut [u8]) {
    let mut rest = bytes.get_mut(8..).unwrap_or_default();
    while rest.len() >= 12 {
        let mut length = [0; 4];
        length.copy_from_slice(&rest[..4]);
        let length = u32::from_be_bytes(length) as usize;
        if length > rest.len() - 12 {
            return;
        }
        let (chunk, behind) = rest.split_at_mut(length + 12);
        let mut sum = flate2::Crc::new();
        sum.update(&chunk[4..8 + length]);
        chunk[8 + length..].copy_from_slice(&sum.sum().to_be_bytes());
        rest = behind;
    }
}
