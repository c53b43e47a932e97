//! What parsers are tested with: files damaged at random, from a seed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Reader;
pub(crate) use super::exhaust::{exhaust, kept_as_seed};

/// A folder of a test, gone at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        // Tests of one process run side by side.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("feedrate-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small generator: splitmix64.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.roll() % n as u64).unwrap()
    }
}

/// Numbers that lengths and offsets are replaced by.
const ODD: [u64; 10] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX.cast_unsigned(),
    u64::MAX,
];

/// A damaged copy.
fn damage(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=dice.below(3) {
        if bytes.is_empty() {
            break;
        }
        // Headers and footers are where it hurts.
        let at = match dice.below(3) {
            0 => dice.below(bytes.len().min(256)),
            1 => bytes.len() - 1 - dice.below(bytes.len().min(256)),
            _ => dice.below(bytes.len()),
        };
        match dice.below(6) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes[at] = u8::try_from(dice.below(256)).unwrap(),
            2 => bytes.truncate(at),
            3 => {
                let odd = ODD[dice.below(ODD.len())].to_le_bytes();
                let len = [1, 2, 4, 8][dice.below(4)].min(bytes.len() - at);
                bytes[at..at + len].copy_from_slice(&odd[..len]);
            }
            4 => {
                let len = dice.below(64).min(bytes.len() - at);
                bytes.drain(at..at + len);
            }
            _ => {
                let len = dice.below(64).min(bytes.len() - at);
                let piece = bytes[at..at + len].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

/// Runs `try_it` on that many damaged copies. The seed is in the panic's message, and one seed is tried alone by
/// `FEEDRATE_FUZZ_SEED`; `make fuzz` goes on from these files.
pub(crate) fn mutations(bytes: &[u8], times: u64, mut try_it: impl FnMut(&[u8])) {
    if kept_as_seed(bytes) {
        return;
    }
    let alone = std::env::var("FEEDRATE_FUZZ_SEED")
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    for seed in alone.map_or(0..times, |seed| seed..seed + 1) {
        let damaged = damage(bytes, &mut Dice::new(seed));
        let began = Instant::now();
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| try_it(&damaged)));
        assert!(run.is_ok(), "FEEDRATE_FUZZ_SEED={seed} panics");
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(20),
            "FEEDRATE_FUZZ_SEED={seed} takes {took:?}"
        );
    }
}

/// All records of a part.
pub(crate) fn all(reader: &mut dyn Reader) -> Vec<crate::batch::Value> {
    std::iter::from_fn(|| reader.next().unwrap())
        .map(|record| record.value)
        .collect()
}
