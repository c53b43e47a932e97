//! Files that are damaged at random: no reader may crash, hang, or take memory that is not there. `make fuzz` goes on from these files.

use std::time::{Duration, Instant};

use feedrate::random::{Key, Keyed};
use feedrate::source::tar::{Duplicates, Grouping, Missing};
use feedrate::source::{BigInts, Codec, Csv, JsonLines, Source, Tar, detect};
use feedrate::store::Blob;
use feedrate::testing::{exhaust, kept_as_seed};

use super::Folder;

/// How long each of these runs.
const TIME: Duration = Duration::from_secs(1);

fn number(random: &mut Keyed, below: usize) -> usize {
    usize::try_from(random.below(u64::try_from(below.max(1)).unwrap())).unwrap()
}

/// Some damage: bytes changed, cut out, doubled, put in from elsewhere.
fn damaged(random: &mut Keyed, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=number(random, 6) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = number(random, bytes.len());
        let length = number(random, 64).min(bytes.len() - at);
        match number(random, 8) {
            0..=2 => bytes[at] ^= 1 << number(random, 8),
            3 => bytes[at] = b"\0\xff 7,\"\\{}[]\n9-"[number(random, 14)],
            4 => drop(bytes.drain(at..at + length)),
            5 => {
                let piece = bytes[at..at + length].to_vec();
                let to = number(random, bytes.len());
                bytes.splice(to..to, piece);
            }
            6 => bytes.truncate(at),
            _ => bytes[at..at + length].fill(b'7'),
        }
    }
    bytes
}

/// Makes the checksums of all blocks that look like headers right again, so that damage gets behind them.
fn with_sums(mut bytes: Vec<u8>) -> Vec<u8> {
    for block in bytes.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().copied().map(u64::from).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    bytes
}

fn run(name: &str, seeds: &[Vec<u8>], mend: fn(Vec<u8>) -> Vec<u8>, sources: &dyn Fn(Blob) -> Vec<Box<dyn Source>>) {
    if seeds.iter().filter(|seed| kept_as_seed(seed)).count() > 0 {
        return;
    }
    let begun = Instant::now();
    let mut random = Key {
        seed: 7,
        ..Key::default()
    }
    .stream();
    let mut rounds = 0_u64;
    while begun.elapsed() < TIME {
        let seed = &seeds[number(&mut random, seeds.len())];
        let bytes = damaged(&mut random, seed);
        let bytes = if number(&mut random, 4) > 0 { mend(bytes) } else { bytes };
        let blob = Blob::memory(name, bytes);
        let _ = detect(&blob);
        for source in sources(blob.clone()) {
            exhaust(&*source);
        }
        rounds += 1;
    }
    assert!(rounds > 3, "{name}: {rounds}");
}

fn archives() -> Vec<Vec<u8>> {
    let folder = Folder::new();
    folder.write("d/a.jpg", vec![1; 700]);
    folder.write("d/a.cls", "1");
    folder.write(&format!("d/{}.txt", "n".repeat(180)), "long");
    folder.write("d/b.npy", []);
    folder.run("truncate -s 300K d/b.npy; printf x | dd of=d/b.npy bs=1 seek=70000 conv=notrunc status=none; printf tail >> d/b.npy; ln -s a.jpg d/l");
    let mut all = Vec::new();
    for format in [
        "gnu",
        "oldgnu",
        "pax --sparse-version=0.0",
        "pax --sparse-version=0.1",
        "pax --sparse-version=1.0",
    ] {
        if folder.run(&format!("tar -b1 --sort=name --sparse --format={format} -cf x.tar d")) {
            all.push(std::fs::read(folder.at("x.tar")).unwrap());
        }
    }
    all
}

#[test]
fn damaged_archives() {
    let seeds = archives();
    if seeds.is_empty() {
        return;
    }
    run("x.tar", &seeds, with_sums, &|blob| {
        let tar = |blob| Tar::of([blob]).max_sample_bytes(16 << 20);
        vec![
            Box::new(tar(blob.clone())),
            Box::new(tar(blob.clone()).fields(["npy"]).missing(Missing::Skip).past_end(true)),
            Box::new(
                tar(blob.clone())
                    .grouping(Grouping::Scattered)
                    .duplicates(Duplicates::Last),
            ),
            Box::new(tar(blob).grouping(Grouping::Whole).decompress(true)),
        ]
    });
}

#[test]
fn damaged_lines() {
    let seeds = [
        br#"{"a": [1, -2.5e3, true, null, "x\u00e9\ud83d\ude00\n"], "b": {"c": {}}}
{"a": 9223372036854775807, "b": NaN}

{"a": "\"", "a": 2}"#
            .to_vec(),
        b"\xef\xbb\xbf{\"k\":[[[[[[[]]]]]]]}\r\n{}".to_vec(),
    ];
    run("x.jsonl", &seeds, |bytes| bytes, &|blob| {
        vec![
            Box::new(JsonLines::of([blob.clone()]).big_ints(BigInts::Text)),
            Box::new(JsonLines::of([blob.clone()]).columns(["b"]).max_line_bytes(30)),
            Box::new(JsonLines::of([blob]).split_bytes(20)),
        ]
    });
}

#[test]
fn damaged_rows() {
    let seeds = [
        b"a,b,c\n1,\"x,\"\"y\"\"\n\",2.5\r\n,,\n\n7,8,9".to_vec(),
        b"\xef\xbb\xbfa,b\n\"\",\n".to_vec(),
    ];
    run("x.csv", &seeds, |bytes| bytes, &|blob| {
        vec![
            Box::new(Csv::of([blob.clone()])),
            Box::new(Csv::of([blob.clone()]).infer(2).max_row_bytes(20)),
            Box::new(Csv::of([blob]).columns(["b"]).quote(b'\'')),
        ]
    });
}

#[test]
fn damaged_compression() {
    let folder = Folder::new();
    let lines = (0..300).map(|i| format!("{{\"a\":{i},\"b\":\"{}\"}}\n", "x".repeat(i % 40)));
    let text = lines.collect::<Vec<String>>().concat();
    folder.write("x.jsonl", text);
    let tools = ["gzip", "bzip2", "xz", "zstd", "lz4"];
    let packed = |tool: &&str| {
        folder
            .run(&format!("{tool} -c x.jsonl > y"))
            .then(|| std::fs::read(folder.at("y")).unwrap())
    };
    let seeds: Vec<Vec<u8>> = tools.iter().filter_map(packed).collect();
    if seeds.is_empty() {
        return;
    }
    assert!(seeds.iter().all(|seed| Codec::find(seed).is_some()));
    run("x.jsonl.gz", &seeds, |bytes| bytes, &|blob| {
        vec![Box::new(JsonLines::of([blob]).max_line_bytes(1 << 20))]
    });
}
