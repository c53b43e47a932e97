//! Which format a file has.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::stream::Stream;
use super::{Codec, Csv, Fault, Files, JsonLines, Mds, Npy, Source, SourceError, Tar, TfRecords, tar};
use crate::store::{self, Blob};

/// Bytes of a file's start that are looked at, uncompressed.
const HEAD: usize = 4096;

/// Endings of files that are samples themselves.
const MEDIA: [&str; 22] = [
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "pfm", "wav", "flac", "mp3",
    "ogg", "opus", "m4a", "mp4", "webm", "txt",
];

/// How samples are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Tar archives.
    Tar,
    /// Parquet files.
    Parquet,
    /// Arrow files, also called Feather.
    Arrow,
    /// Arrow streams.
    ArrowStream,
    /// TFRecord files.
    TfRecord,
    /// An array of NumPy.
    Npy,
    /// Arrays of NumPy in a zip archive.
    Npz,
    /// A zip archive.
    Zip,
    /// A folder of MosaicML's shards.
    Mds,
    /// HDF5 files.
    Hdf5,
    /// An object on each line.
    JsonLines,
    /// Comma-separated values.
    Csv,
    /// Tab-separated values.
    Tsv,
    /// Files that are samples themselves.
    Files,
}

impl Format {
    /// The format in a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tar => "tar",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::ArrowStream => "arrow stream",
            Self::TfRecord => "tfrecord",
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::Zip => "zip",
            Self::Mds => "mds",
            Self::Hdf5 => "hdf5",
            Self::JsonLines => "jsonl",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Files => "files",
        }
    }

    /// By a file's name alone, without the endings of compressed files.
    fn of_name(name: &str) -> Option<Self> {
        let lower = name.to_lowercase();
        let base = lower.rsplit('/').next().unwrap_or(&lower);
        let mut base = base;
        let codecs = [Codec::Gzip, Codec::Zstd, Codec::Lz4, Codec::Xz, Codec::Bzip2];
        let packed = |ending: &str| codecs.iter().any(|codec| codec.endings().contains(&ending));
        if let Some((rest, ending)) = base.rsplit_once('.')
            && packed(ending)
        {
            if ending.starts_with('t') {
                return Some(Self::Tar);
            }
            base = rest;
        }
        let ending = base.rsplit_once('.').map_or("", |(_, ending)| ending);
        match ending {
            "tar" => Some(Self::Tar),
            "parquet" | "pq" => Some(Self::Parquet),
            "arrow" | "feather" => Some(Self::Arrow),
            "arrows" => Some(Self::ArrowStream),
            "tfrecord" | "tfrecords" => Some(Self::TfRecord),
            "npy" => Some(Self::Npy),
            "npz" => Some(Self::Npz),
            "zip" => Some(Self::Zip),
            "mds" => Some(Self::Mds),
            "h5" | "hdf5" => Some(Self::Hdf5),
            "jsonl" | "ndjson" | "jsonlines" => Some(Self::JsonLines),
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            _ if MEDIA.contains(&ending) => Some(Self::Files),
            _ => None,
        }
    }

    /// By what marks no other format has.
    fn of_content(head: &[u8]) -> Option<Self> {
        let hdf5 = b"\x89HDF\r\n\x1a\n";
        match head {
            [b'P', b'A', b'R', b'1' | b'E', ..] => Some(Self::Parquet),
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Some(Self::Arrow),
            [0xff, 0xff, 0xff, 0xff, length @ ..] if length.len() >= 4 && length[3] == 0 && length[..3] != [0; 3] => {
                Some(Self::ArrowStream)
            }
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Some(Self::Npy),
            [b'P', b'K', 3, 4, ..] => {
                let length = head
                    .get(26..28)
                    .map_or(0, |length| usize::from(length[0]) | (usize::from(length[1]) << 8));
                let npy = head.get(30..30 + length).is_some_and(|name| name.ends_with(b".npy"));
                Some(if npy { Self::Npz } else { Self::Zip })
            }
            [b'P', b'K', 5, 6, ..] => Some(Self::Zip),
            // Behind a block of the user's, which has a power of two from 512 on.
            _ if [0, 512, 1024, 2048]
                .iter()
                .any(|at| head.get(*at..).is_some_and(|head| head.starts_with(hdf5))) =>
            {
                Some(Self::Hdf5)
            }
            _ if tar::begins(head) => Some(Self::Tar),
            _ if is_tfrecord(head) => Some(Self::TfRecord),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the length of the first record has its checksum.
fn is_tfrecord(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<8>() else {
        return false;
    };
    let Some(stored) = rest.first_chunk::<4>() else {
        return false;
    };
    let sum = crc32c::crc32c(length);
    let masked = sum.rotate_right(15).wrapping_add(0xa282_ead8);
    masked == u32::from_le_bytes(*stored)
}

/// Finds the format of a file or folder: by its content, decompressed if it is compressed; where that says only that it is text, by its name; and
/// a folder by what is in it. Opens the file. Errors: what it looked like, if that is no format or more than one.
///
/// ```
/// use feedrate::source::{Format, detect};
/// use feedrate::store::Blob;
///
/// let blob = Blob::memory("rows.csv", *b"a,b\n1,2\n");
/// assert_eq!(detect(&blob)?, Format::Csv);
/// # Ok::<(), feedrate::source::SourceError>(())
/// ```
pub fn detect(blob: &Blob) -> Result<Format, SourceError> {
    if let Some(path) = blob.path().filter(|path| path.is_dir()) {
        return folder(path);
    }
    let by_name = Format::of_name(blob.name());
    let mut stream = Stream::open(blob)?;
    let head = stream.at_least(HEAD)?;
    let head = &head[..head.len().min(HEAD)];
    if let Some(format) = Format::of_content(head) {
        return Ok(format);
    }
    let looks = |what: &str| {
        let name = by_name.map_or("no format that is known".to_owned(), |format| format.name().to_owned());
        let message =
            format!("its format is not clear: by content it is {what}, by name {name}; name the format to read it");
        Err(SourceError::new(Fault::Unsupported, blob.name(), message))
    };
    if head.is_empty() {
        return by_name.map_or_else(|| looks("empty"), Ok);
    }
    // A user's block in front of HDF5 may be of any length.
    let named = matches!(by_name, Some(Format::Files | Format::Hdf5));
    if named || (by_name == Some(Format::Tar) && head.iter().all(|byte| *byte == 0)) {
        return by_name.map_or_else(|| looks("nothing"), Ok);
    }
    if !is_text(head) {
        let begins: Vec<String> = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        return looks(&format!(
            "none of those that are known (it begins with {})",
            begins.join(" ")
        ));
    }
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let object = head.trim_ascii_start().starts_with(b"{");
    match by_name {
        Some(format @ (Format::JsonLines | Format::Csv | Format::Tsv)) => Ok(format),
        None if object => Ok(Format::JsonLines),
        _ if object => looks("jsonl"),
        _ => looks("text (csv, tsv or another)"),
    }
}

/// UTF-8 without zeros, but for a character that is cut at the end.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() || head.contains(&b'\n'),
    };
    text && !head.contains(&0)
}

fn folder(path: &Path) -> Result<Format, SourceError> {
    let name = path.display().to_string();
    if path.join("index.json").is_file() {
        let index = Stream::open(&Blob::file(path.join("index.json")))?
            .at_least(HEAD)?
            .to_vec();
        let text = String::from_utf8_lossy(&index);
        if text.contains("\"shards\"") || text.contains("\"mds\"") {
            return Ok(Format::Mds);
        }
    }
    let mut kinds: Vec<Format> = Vec::new();
    let (mut folders, mut loose) = (Vec::new(), false);
    let entries = std::fs::read_dir(path).map_err(|error| SourceError::io(&*name, &error))?;
    for entry in entries.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with(['.', '_']) {
            continue;
        }
        let is_folder = entry.path().is_dir();
        let kind = if is_folder {
            folders.push(entry.path());
            Some(Format::Files)
        } else {
            Format::of_name(&file)
        };
        loose |= !is_folder && kind == Some(Format::Files);
        if let Some(kind) = kind
            && !kinds.contains(&kind)
        {
            kinds.push(kind);
        }
    }
    match kinds[..] {
        [Format::Files] if !loose => match in_folders(&folders, DEEP) {
            Some((shard, format)) => {
                let ending = shard.extension().unwrap_or_default().display().to_string();
                let message = format!(
                    "the folder has {format} files in its folders, such as {}: name them, as {}; or use format=\"files\" for all files \
                     as they are",
                    shard.display(),
                    path.join("**").join(format!("*.{ending}")).display()
                );
                Err(SourceError::new(Fault::Unsupported, name, message))
            }
            None => Ok(Format::Files),
        },
        [] => Ok(Format::Files),
        [one] => Ok(one),
        _ => {
            let mut kinds: Vec<&str> = kinds.into_iter().map(Format::name).collect();
            kinds.sort_unstable();
            let message = format!(
                "the folder has more than one format: {}; name the files, or the format",
                kinds.join(", ")
            );
            Err(SourceError::new(Fault::Unsupported, name, message))
        }
    }
}

/// How deep folders in folders are looked into, and how many names in each.
const DEEP: usize = 4;
const MANY: usize = 1000;

/// The first shard in folders, and in those below where they have no files that are known; `None` if there are samples as files.
fn in_folders(folders: &[PathBuf], deep: usize) -> Option<(PathBuf, Format)> {
    let mut found = None;
    let mut below = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(folder).ok()?.flatten().take(MANY) {
            let file = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if file.starts_with(['.', '_']) {
                continue;
            }
            match Format::of_name(&file) {
                _ if path.is_dir() => below.push(path),
                // Whatever else lies beside them.
                Some(Format::Files) => return None,
                Some(format) => found = found.or(Some((path, format))),
                None => {}
            }
        }
    }
    found.or_else(|| {
        below.truncate(MANY);
        let deeper = deep.checked_sub(1).filter(|_| !below.is_empty())?;
        in_folders(&below, deeper)
    })
}

/// What a path or pattern stands for: the format of the first file that it finds decides for all; see [`detect`] and
/// [`find`](crate::store::find). Opens one file; may block.
pub fn format_of(pattern: &str) -> Result<Format, SourceError> {
    let path = Path::new(pattern);
    if path.is_dir() {
        return detect(&Blob::file(path));
    }
    let found = store::find(&[pattern])?;
    same_names(found.iter().map(Blob::name))?;
    detect(&found[0])
}

/// As [`format_of`], of several paths and patterns, of which the first decides. Refuses files whose names say that they have another
/// format than the first one: they would be read as what they are not.
pub fn format_of_all(patterns: &[String]) -> Result<Format, SourceError> {
    let Some(first) = patterns.first() else {
        return Err(SourceError::new(Fault::Absent, "", "no path or pattern was given"));
    };
    same_names(patterns.iter().map(String::as_str))?;
    format_of(first)
}

/// That names do not speak of two formats. Nothing is opened for it.
fn same_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), SourceError> {
    // One reader reads both.
    let kind = |name| match Format::of_name(name)? {
        Format::ArrowStream => Some(Format::Arrow),
        Format::Npz => Some(Format::Npy),
        format => Some(format),
    };
    let mut first: Option<(&str, Format)> = None;
    for name in names {
        match (kind(name), first) {
            (Some(format), Some((other, known))) if format != known => {
                let message = format!(
                    "it is {format} by its name, and {other} is {known}: open each format by itself and concat() them, or name the format"
                );
                return Err(SourceError::new(Fault::Unsupported, name, message));
            }
            (Some(format), None) => first = Some((name, format)),
            _ => {}
        }
    }
    Ok(())
}

/// A source of what a path or pattern stands for, with that format's usual choices; see [`format_of`]. Opens one file; may block.
pub fn open(pattern: &str) -> Result<Arc<dyn Source>, SourceError> {
    let format = format_of(pattern)?;
    let paths = || -> Result<Vec<PathBuf>, SourceError> {
        let found = store::find(&[pattern])?;
        Ok(found.iter().filter_map(|blob| blob.path().map(PathBuf::from)).collect())
    };
    Ok(match format {
        Format::Tar => Arc::new(Tar::new([pattern])),
        Format::JsonLines => Arc::new(JsonLines::new([pattern])),
        Format::Csv => Arc::new(Csv::new([pattern])),
        Format::Tsv => Arc::new(Csv::new([pattern]).delimiter(b'\t')),
        Format::Files => Arc::new(Files::new([pattern])),
        Format::TfRecord => Arc::new(TfRecords::new(paths()?)),
        Format::Npy | Format::Npz => Arc::new(Npy::new(paths()?)),
        Format::Mds => Arc::new(Mds::new([pattern])),
        #[cfg(feature = "arrow")]
        Format::Arrow | Format::ArrowStream => Arc::new(super::ArrowIpc::new(paths()?)),
        #[cfg(feature = "hdf5")]
        Format::Hdf5 => Arc::new(super::Hdf5::new(paths()?)),
        #[cfg(feature = "parquet")]
        Format::Parquet => Arc::new(super::Parquet::new(paths()?)),
        other => {
            let message = format!("it is {other}, which is not read here");
            return Err(SourceError::new(Fault::Unsupported, pattern, message));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, bytes: &[u8]) -> Result<Format, SourceError> {
        detect(&Blob::memory(name, bytes.to_vec()))
    }

    #[test]
    fn content_decides_and_then_the_name() {
        let mut record = 5_u64.to_le_bytes().to_vec();
        let sum = crc32c::crc32c(&record).rotate_right(15).wrapping_add(0xa282_ead8);
        record.extend_from_slice(&sum.to_le_bytes());
        record.extend_from_slice(b"hello....");
        let mut npz = b"PK\x03\x04".to_vec();
        npz.resize(26, 0);
        npz.extend_from_slice(b"\x05\0\0\0x.npy");
        let mut hdf5 = vec![0; 512];
        hdf5.extend_from_slice(b"\x89HDF\r\n\x1a\n");
        for (name, bytes, format) in [
            ("x", &b"PAR1...."[..], Format::Parquet),
            ("x", b"ARROW1\0\0", Format::Arrow),
            ("x", b"\xff\xff\xff\xff\x10\x01\0\0", Format::ArrowStream),
            ("x.tar", &record, Format::TfRecord),
            ("x", b"\x93NUMPY\x01\0", Format::Npy),
            ("x", &npz, Format::Npz),
            ("x", b"PK\x05\x06", Format::Zip),
            ("x", &hdf5, Format::Hdf5),
            ("x", b"\xef\xbb\xbf {\"a\":1}", Format::JsonLines),
            ("x.csv", b"{a},b", Format::Csv),
            ("x.tsv.gz", b"a\tb", Format::Tsv),
            ("x.jsonl", b"", Format::JsonLines),
            ("x.tar", &[0; 1024], Format::Tar),
            ("x.JPG", b"\xff\xd8\xff", Format::Files),
            ("x.h5", &[7; 5000], Format::Hdf5),
        ] {
            assert_eq!(of(name, bytes).unwrap(), format, "{name} {bytes:?}");
        }
    }

    #[test]
    fn what_is_not_clear_says_what_it_looked_like() {
        let error = of("x.dat", b"a,b\n").unwrap_err();
        assert!(error.message().contains("by content it is text"), "{error}");
        let error = of("x.tar", b"{\"a\":1}").unwrap_err();
        assert!(
            error.message().contains("by content it is jsonl, by name tar"),
            "{error}"
        );
        let error = of("x.bin", b"\0\x01\x02").unwrap_err();
        assert!(error.message().contains("00 01 02"), "{error}");
        assert!(of("x", b"").is_err());
    }
}
