//! Sources against files that other tools made. A tool that is not on the machine is passed over.

mod compressed;
mod found;
mod hostile;
mod tar;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use feedrate::batch::Value;
use feedrate::source::{Reader, Record, Source, SourceError};

/// A folder that goes when it is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("feedrate-sources-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        self.at(name)
    }

    /// Runs a tool in the folder; false if it is not there.
    pub(crate) fn run(&self, command: &str) -> bool {
        let tool = command.split(' ').next().unwrap();
        let there = Command::new("sh")
            .args(["-c", &format!("command -v {tool}")])
            .output()
            .unwrap();
        if !there.status.success() {
            return false;
        }
        let out = Command::new("sh")
            .args(["-c", command])
            .current_dir(&self.0)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{command}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        true
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All records of all parts, to the first error.
pub(crate) fn read_all(source: &dyn Source) -> Result<Vec<Record>, SourceError> {
    let mut all = Vec::new();
    for part in 0..source.parts()?.len() {
        let mut reader = source.open(part, None)?;
        while let Some(record) = reader.next()? {
            all.push(record);
        }
    }
    Ok(all)
}

pub(crate) fn bytes<'a>(record: &'a Record, field: &str) -> &'a [u8] {
    match record.value.get(field) {
        Some(Value::Bytes(bytes)) => bytes,
        other => panic!("{field}: {other:?}"),
    }
}

/// Reads to the end; the records before an error and the error.
pub(crate) fn drain(reader: &mut dyn Reader) -> (Vec<Record>, Option<SourceError>) {
    let mut all = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(record)) => all.push(record),
            Ok(None) => return (all, None),
            Err(error) => return (all, Some(error)),
        }
    }
}
