//! libFuzzer over one parser, which the environment variable `FEEDRATE_FUZZ` names; `tools/fuzz.py` builds and runs it.
#![no_main]

use std::alloc::System;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::{Mutex, OnceLock};

use cap::Cap;
use feedrate_fuzz::{Parser, find};

/// Bytes that may live at a time, ours and libFuzzer's Rust side: a file has at most a few hundred kilobytes, and no limit that is
/// set in [`feedrate_fuzz`] is above 64 MiB.
const MEMORY: usize = 256 << 20;
/// What the head of a Parquet page may say of its size, and the crate makes room for before it finds otherwise.
const PAGE: usize = 1 << 31;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

static PARSER: OnceLock<&'static Parser> = OnceLock::new();
/// What the last panic said: those that our guards catch are no failures.
static SAID: Mutex<String> = Mutex::new(String::new());

fn begin() {
    let name = std::env::var("FEEDRATE_FUZZ").unwrap_or_default();
    let parser = find(&name);
    assert!(parser.is_some(), "FEEDRATE_FUZZ={name:?} is no parser");
    let _ = parser.map(|parser| PARSER.set(parser));
    set_hook(Box::new(|panic| {
        if let Ok(mut said) = SAID.lock() {
            *said = panic.to_string();
        }
    }));
    // The corpus is read by libFuzzer itself, whose C++ does not allocate here.
    let _ = HEAP.set_limit(if name == "parquet" { MEMORY + PAGE } else { MEMORY });
}

#[expect(clippy::print_stderr, reason = "libFuzzer's output")]
fn one(bytes: &[u8]) {
    let Some(parser) = PARSER.get() else { return };
    if catch_unwind(AssertUnwindSafe(|| (parser.read)(bytes))).is_err() {
        eprintln!("{}", SAID.lock().map(|said| said.clone()).unwrap_or_default());
        std::process::abort();
    }
}

libfuzzer_sys::fuzz_target!(init: begin(), |bytes: &[u8]| one(bytes));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let size = libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    // Sums are made right again in most cases, so that damage gets behind them.
    if let Some(mend) = PARSER.get().and_then(|parser| parser.mend)
        && !seed.is_multiple_of(4)
    {
        mend(&mut data[..size]);
    }
    size
});
