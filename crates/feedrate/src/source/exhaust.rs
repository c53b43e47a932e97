//! What tests of parsers share: reading everything in every way, and files kept as seeds for `make fuzz`.

use super::Source;

/// Records of a part that are read, at most.
const MOST: u64 = 100_000;
/// Bytes that a record of a damaged file may have.
const BYTES: usize = 64 << 20;
/// Bytes of records of a part that are read: some formats leave out what was never written, so that a small file is many large rows.
const ALL: usize = 256 << 20;
/// Bytes of columns that are asked for at a time, by the size of the first record.
const COLUMNS: usize = 16 << 20;

/// Reads everything in every way, and gives the number of records.
///
/// # Panics
///
/// Where a reader gives a record after its end, none after an error, one of 64 MiB, passes over fewer than it gives, or gives columns
/// without rows.
pub fn exhaust(source: &dyn Source) -> u64 {
    let Ok(parts) = source.parts() else { return 0 };
    let mut records = 0;
    for part in 0..parts.len() {
        let (mut read, mut bad, mut bytes, mut first) = (0, 0, 0, None);
        let Ok(mut reader) = source.open(part, None) else {
            continue;
        };
        while read + bad < MOST && bytes < ALL {
            match reader.next() {
                Ok(Some(record)) => {
                    let found = record.value.bytes();
                    assert!(found < BYTES, "a record of {found} bytes");
                    read += 1;
                    bytes += found;
                    first.get_or_insert(found);
                }
                Ok(None) => {
                    assert!(matches!(reader.next(), Ok(None)), "a record after the end");
                    break;
                }
                Err(error) if error.may_continue() => bad += 1,
                Err(_) => {
                    assert!(reader.next().is_err(), "no error after an error");
                    break;
                }
            }
        }
        drop(reader);
        records += read;
        if let Ok(mut reader) = source.open(part, None)
            && let Ok(passed) = reader.skip(u64::MAX)
        {
            // Passing over sees no more than reading.
            assert!(passed >= read, "{passed} records passed over, {read} read");
        }
        if let Ok(mut reader) = source.open(part, None) {
            let _ = reader.skip(3);
            let _ = reader.next();
            let _ = reader.seek(1);
            let _ = reader.next();
        }
        if let Ok(mut reader) = source.open(part, None) {
            let rows = first.map_or(3, |bytes: usize| (COLUMNS / bytes.max(1)).clamp(1, 100));
            for _ in 0..20 {
                match reader.columns(rows) {
                    Some(Ok(columns)) if columns.rows > 0 => {}
                    _ => break,
                }
            }
        }
    }
    records
}

/// Whether files are asked for as seeds and this one, of the test that runs on this thread, is written into the folder
/// `FEEDRATE_FUZZ_SEEDS`, instead of being damaged.
///
/// # Panics
///
/// Where it cannot be written.
pub fn kept_as_seed(bytes: &[u8]) -> bool {
    let Some(folder) = std::env::var_os("FEEDRATE_FUZZ_SEEDS").map(std::path::PathBuf::from) else {
        return false;
    };
    let test = std::thread::current().name().unwrap_or_default().replace("::", ".");
    let name = format!("{test}-{:08x}", crc32c::crc32c(bytes));
    let written = std::fs::write(folder.join(name), bytes);
    assert!(written.is_ok(), "{}: {written:?}", folder.display());
    true
}
