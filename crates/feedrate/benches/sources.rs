//! What reading a format costs beside reading its bytes: `cargo bench -p feedrate --bench sources`. Files lie in the page cache, one thread
//! reads. Without `--bench` (as `cargo test` runs it) only a moment of it, to see that the answers are right.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use feedrate::source::tar::IndexAt;
use feedrate::source::{JsonLines, Source, Tar};

const ROUNDS: usize = 7;

/// A header of ustar, and the body padded.
fn member(archive: &mut Vec<u8>, name: &str, body: &[u8]) {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[124..136].copy_from_slice(format!("{:011o}\0", body.len()).as_bytes());
    block[148..157].copy_from_slice(b"        0");
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u64 = block.iter().copied().map(u64::from).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&block);
    archive.extend_from_slice(body);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn shard(samples: usize, size: usize) -> Vec<u8> {
    let mut archive = Vec::new();
    let body: Vec<u8> = (0_u8..=255).cycle().take(size).collect();
    for i in 0..samples {
        member(&mut archive, &format!("train/{i:08}.jpg"), &body);
        member(&mut archive, &format!("train/{i:08}.cls"), b"17");
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// Lines of about 1 kB.
fn rows(count: usize) -> String {
    let mut text = String::new();
    for i in 0..count {
        let words = "the quick brown fox jumps over the lazy dog ".repeat(16);
        let _ = writeln!(
            text,
            r#"{{"id": {i}, "text": "{words}", "score": {}.25, "label": "class {}", "tags": ["a", "b", "c"], "box": [1.5, 2.25, 300, 4.125], "source": {{"file": "part-{i}.txt", "line": {i}, "ok": true, "note": null}}, "lang": "en", "url": "https://example.com/{i}"}}"#,
            i % 100,
            i % 10
        );
    }
    text
}

/// Seconds that this thread was on a core, where the system says so: other work on the machine does not count.
fn clock(begun: Instant) -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let on_core = text
        .split(' ')
        .next()
        .and_then(|nanoseconds| nanoseconds.parse::<f64>().ok());
    on_core.map_or_else(|| begun.elapsed().as_secs_f64(), |nanoseconds| nanoseconds / 1e9)
}

/// The best of some rounds, in seconds on a core, and what the work gave.
fn best(rounds: usize, mut work: impl FnMut() -> Result<u64, Box<dyn Error>>) -> Result<(f64, u64), Box<dyn Error>> {
    let (mut least, mut answer) = (f64::MAX, 0);
    for _ in 0..rounds {
        let begun = Instant::now();
        let before = clock(begun);
        answer = work()?;
        least = least.min(clock(begun) - before);
    }
    Ok((least, answer))
}

fn plain(path: &Path) -> Result<u64, Box<dyn Error>> {
    let (mut file, mut buffer, mut sum) = (File::open(path)?, vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sum),
            length => sum += length as u64,
        }
    }
}

fn all(source: &dyn Source) -> Result<u64, Box<dyn Error>> {
    let (mut reader, mut sum) = (source.open(0, None)?, 0);
    while let Some(record) = reader.next()? {
        sum += 1;
        std::hint::black_box(&record);
    }
    Ok(sum)
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn main() -> Result<(), Box<dyn Error>> {
    let full = std::env::args().any(|arg| arg == "--bench");
    let rounds = if full { ROUNDS } else { 1 };
    let scale = if full { 10_000 } else { 20 };
    let folder = Folder(std::env::temp_dir().join(format!("feedrate-bench-{}", std::process::id())));
    fs::create_dir_all(&folder.0)?;
    let report = |name: &str, path: &Path, time: f64, count: u64, expected: u64| -> Result<(), Box<dyn Error>> {
        assert_eq!(count, expected, "{name}: the answer is not right");
        if full {
            let bytes = fs::metadata(path)?.len() as f64;
            let (read, _) = best(rounds, || plain(path))?;
            println!(
                "{name:<42} {:>10.0} records/s {:>8.2} GB/s {:>6.1} % of plain read ({:.2} GB/s)",
                count as f64 / time,
                bytes / time / 1e9,
                100.0 * read / time,
                bytes / read / 1e9,
            );
        }
        Ok(())
    };
    for (size, samples) in [(16 << 10, scale), (110 << 10, scale / 5), (1 << 20, scale / 50)] {
        let path = folder.0.join(format!("{size}.tar"));
        fs::write(&path, shard(samples.max(1), size))?;
        let samples = samples.max(1) as u64;
        let tar = || Tar::of([path.as_path().into()]);
        let (time, count) = best(rounds, || all(&tar()))?;
        report(&format!("tar, {size} B + 2 B"), &path, time, count, samples)?;
        if size >= 1 << 20 {
            // Too short for the clock.
            continue;
        }
        let (time, count) = best(rounds, || all(&tar().fields(["cls"])))?;
        report("  only the 2 B", &path, time, count, samples)?;
        let (time, count) = best(rounds, || Ok(tar().with_index(IndexAt::Memory).index()?[0]))?;
        report("  an index", &path, time, count, samples)?;
    }
    let path = folder.0.join("a.jsonl");
    fs::write(&path, rows(scale * 10))?;
    let count = scale as u64 * 10;
    let lines = || JsonLines::of([path.as_path().into()]);
    let (time, got) = best(rounds, || all(&lines()))?;
    report("jsonl, 1 kB", &path, time, got, count)?;
    let (time, got) = best(rounds, || all(&lines().columns(["id", "label"])))?;
    report("  2 columns", &path, time, got, count)?;
    let (time, got) = best(rounds, || Ok(lines().open(0, None)?.skip(u64::MAX)?))?;
    report("  skip", &path, time, got, count)?;
    Ok(())
}
