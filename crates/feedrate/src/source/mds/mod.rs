//! MosaicML's shards.

mod encoding;
mod index;

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use self::index::{Column, Shard};
use super::codec::{Codec, Piece};
use super::numbered::Numbered;
use super::window::{Window, decoding};
use super::{Fault, Mark, Part, Reader, Source, SourceError};
use crate::batch::Value;

/// Folders of MDS shards with their `index.json`, as `mosaicml-streaming` writes them; each shard is a part.
///
/// A shard begins with the number of samples and the offset of each, so every sample is found by number. A record is a map of its
/// columns: `str`, `bytes`, `int`, NumPy scalars (tensors without dimensions), `ndarray` (tensors), `json`, `str_int`, `str_float`;
/// `str_decimal` as text; `jpeg` and `png` as bytes; `pil` as a tensor of its pixels, height first; lists of images as lists. A column of
/// `pkl` is refused by name, unless [`columns`](Mds::columns) leaves it out.
///
/// Files are read where they lie. A shard of which only the compressed file is there (`zstd` or `gz`) is held decompressed by each
/// reader, up to [`limit`](Mds::limit); others need a buffer of 256 KiB and the sample.
///
/// ```
/// use feedrate::source::{Mds, Source};
///
/// let folder = std::env::temp_dir().join(format!("feedrate-doc-{}-mds", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// let sizes: [u32; 3] = [1, 12, 20]; // one sample, and where it begins and ends
/// let shard = sizes.iter().flat_map(|n| n.to_le_bytes()).chain(7_i64.to_le_bytes());
/// std::fs::write(folder.join("0.mds"), shard.collect::<Vec<_>>())?;
/// std::fs::write(folder.join("index.json"), r#"{"version": 2, "shards": [{
///     "format": "mds", "version": 2, "samples": 1, "compression": null, "zip_data": null,
///     "column_names": ["label"], "column_encodings": ["int"], "column_sizes": [8],
///     "raw_data": {"basename": "0.mds", "bytes": 20}}]}"#)?;
/// let record = Mds::new([&folder]).open(0, None)?.next()?.ok_or("a sample")?;
/// assert_eq!(record.value.get("label"), Some(&7.into()));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mds {
    folders: Vec<PathBuf>,
    columns: Option<Vec<String>>,
    limit: u64,
    listed: OnceLock<Listed>,
}

/// What the indexes say.
type Listed = (Arc<[Shard]>, Arc<[Part]>);

impl Mds {
    /// Of these folders, or these `index.json`, in this order. The indexes are read when the parts are asked for.
    pub fn new(folders: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self {
            folders: folders.into_iter().map(Into::into).collect(),
            columns: None,
            limit: 1 << 30,
            listed: OnceLock::new(),
        }
    }

    /// Only these columns, in this order.
    #[must_use]
    pub fn columns(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.columns = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Most bytes that a compressed shard may have when it is decompressed. The default is 1 GiB; the writer's default size is 64 MiB.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    fn listed(&self) -> Result<&Listed, SourceError> {
        if let Some(listed) = self.listed.get() {
            return Ok(listed);
        }
        let mut shards = Vec::new();
        for folder in &self.folders {
            shards.append(&mut index::read(folder)?);
        }
        let part = |shard: &Shard| Part {
            name: shard.raw.path.to_string_lossy().into_owned(),
            records: Some(shard.samples),
            bytes: Some(shard.raw.bytes),
        };
        let parts = shards.iter().map(part).collect();
        Ok(self.listed.get_or_init(|| (shards.into(), parts)))
    }

    /// Where the columns that are wanted stand among those of the shard.
    fn chosen(&self, shard: &Shard, name: &str) -> Result<Vec<usize>, SourceError> {
        let chosen: Vec<usize> = match &self.columns {
            None => (0..shard.columns.len()).collect(),
            Some(wanted) => {
                let known: Vec<_> = shard.columns.iter().map(|column| column.name.as_str()).collect();
                let find = |wanted: &String| {
                    known.iter().position(|known| known == wanted).ok_or_else(|| {
                        let message = format!("there is no column {wanted:?}, only {known:?}");
                        SourceError::new(Fault::Absent, name, message)
                    })
                };
                wanted.iter().map(find).collect::<Result<_, _>>()?
            }
        };
        for at in &chosen {
            if let Err(why) = &shard.columns[*at].encoding {
                let error = SourceError::new(Fault::Unsupported, name, why.clone());
                return Err(error.of(format!("column {}", shard.columns[*at].name)));
            }
        }
        Ok(chosen)
    }

    fn bytes(&self, shard: &Shard) -> Result<Bytes, SourceError> {
        let name: Arc<str> = shard.raw.path.to_string_lossy().into();
        let wrong = |fault, name: &str, message: String| SourceError::new(fault, name, message);
        let size = |found: u64, named: &index::Named, name: &str| match found {
            found if found < named.bytes => Err(wrong(
                Fault::Truncated,
                name,
                format!(
                    "the index says that it has {} bytes, it has {found}: it is cut off",
                    named.bytes
                ),
            )),
            found if found > named.bytes => Err(wrong(
                Fault::Damaged,
                name,
                format!("the index says that it has {} bytes, it has {found}", named.bytes),
            )),
            _ => Ok(()),
        };
        let missing = match Window::open(&shard.raw.path, Arc::clone(&name)) {
            Ok(window) => {
                size(window.len(), &shard.raw, &name)?;
                return Ok(Bytes::File(window));
            }
            Err(error) => error,
        };
        let (Some(packed), Some(compression), Fault::Missing) = (&shard.packed, &shard.compression, missing.fault())
        else {
            return Err(missing);
        };
        let name: Arc<str> = packed.path.to_string_lossy().into();
        let codec = match compression.split(':').next() {
            Some("zstd") => Codec::Zstd,
            Some("gz") => Codec::Gzip,
            _ => {
                let message = format!("it is compressed by {compression}: zstd and gz are read");
                return Err(wrong(Fault::Unsupported, &name, message));
            }
        };
        if shard.raw.bytes > self.limit {
            let message = format!(
                "it has {} bytes decompressed, the limit (max_shard_bytes) is {}: raise it if that is right",
                shard.raw.bytes, self.limit
            );
            return Err(wrong(Fault::Unsupported, &name, message));
        }
        let window = Window::packed(&packed.path, Arc::clone(&name))?;
        size(window.len(), packed, &name)?;
        let read = || {
            let mut bytes = Vec::new();
            let stream = codec.decode(Piece::new(window.file(), 0, window.len()))?;
            stream.take(shard.raw.bytes + 1).read_to_end(&mut bytes)?;
            io::Result::Ok(bytes)
        };
        let bytes = read().map_err(|error| decoding(&name, &error))?;
        size(bytes.len() as u64, &shard.raw, &name)?;
        Ok(Bytes::Memory(bytes))
    }

    fn shard(&self, part: usize) -> Result<&Shard, SourceError> {
        let shards = &self.listed()?.0;
        shards.get(part).ok_or_else(|| {
            let message = format!("there is no part {part}: the source has {}", shards.len());
            SourceError::new(Fault::Absent, format!("part {part}"), message)
        })
    }

    fn reader(&self, part: usize) -> Result<MdsReader, SourceError> {
        let shard = self.shard(part)?;
        let name: Arc<str> = shard.raw.path.to_string_lossy().into();
        let chosen = self.chosen(shard, &name)?;
        let mut bytes = self.bytes(shard)?;
        let mut four = [0; 4];
        four.copy_from_slice(bytes.exact(0, 4, &name)?);
        let found = u64::from(u32::from_le_bytes(four));
        if found != shard.samples {
            let message = format!(
                "the index says that it has {} samples, itself that it has {found}",
                shard.samples
            );
            return Err(SourceError::new(Fault::Damaged, &*name, message).at(0));
        }
        let columns = shard.columns.clone().into();
        Ok(MdsReader {
            bytes,
            name,
            columns,
            chosen,
            samples: shard.samples,
        })
    }
}

impl Source for Mds {
    fn format(&self) -> &'static str {
        "mds"
    }

    fn describe(&self) -> String {
        let folders: Vec<_> = self.folders.iter().map(|path| path.to_string_lossy()).collect();
        format!("{} (columns {:?})", folders.join(" "), self.columns)
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        Ok(Arc::clone(&self.listed()?.1))
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        let shard = self.shard(part)?;
        let packed = shard.packed.as_ref().map(|packed| packed.path.clone());
        Ok([shard.index.clone(), shard.raw.path.clone()]
            .into_iter()
            .chain(packed)
            .collect())
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(self.reader(part)?.in_order(from))
    }

    fn indexed(&self) -> bool {
        true
    }
}

/// A shard's bytes: in its file, or decompressed.
enum Bytes {
    File(Window),
    Memory(Vec<u8>),
}

impl Bytes {
    fn exact(&mut self, offset: u64, len: usize, name: &str) -> Result<&[u8], SourceError> {
        match self {
            Self::File(window) => window.exact(offset, len, "a shard"),
            Self::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let found = start.checked_add(len).and_then(|end| bytes.get(start..end));
                found.ok_or_else(|| {
                    let message = format!("{len} bytes are wanted, and it has {}", bytes.len());
                    SourceError::new(Fault::Truncated, name, message).at(offset)
                })
            }
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::File(window) => window.len(),
            Self::Memory(bytes) => bytes.len() as u64,
        }
    }
}

struct MdsReader {
    bytes: Bytes,
    name: Arc<str>,
    columns: Arc<[Column]>,
    chosen: Vec<usize>,
    samples: u64,
}

impl MdsReader {
    fn sample(&mut self, number: u64) -> Result<Value, SourceError> {
        let name = Arc::clone(&self.name);
        let bad = |at, message: String| {
            SourceError::new(Fault::Record, &*name, message)
                .of(format!("sample {number}"))
                .at(at)
        };
        let place = (number + 1) * 4;
        let pair = self.bytes.exact(place, 8, &name)?;
        let word = |at: usize| pair[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let (begin, end) = (u64::from(word(0)), u64::from(word(4)));
        let size = self.bytes.len();
        let len = end.checked_sub(begin).filter(|_| end <= size);
        let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
            return Err(bad(
                place,
                format!("it lies from byte {begin} to {end} of a shard of {size}"),
            ));
        };
        let columns = Arc::clone(&self.columns);
        let chosen = &self.chosen;
        let data = self.bytes.exact(begin, len, &name)?;
        // The sizes of what has no fixed size, then all columns.
        let variable = columns.iter().filter(|column| column.size.is_none()).count();
        let mut sizes = data.get(..variable * 4).unwrap_or_default().chunks_exact(4);
        let mut at = variable * 4;
        let mut pieces = Vec::with_capacity(columns.len());
        for column in &*columns {
            let size = match column.size {
                Some(size) => Some(size),
                None => sizes
                    .next()
                    .and_then(|four| four.try_into().ok())
                    .map(u32::from_le_bytes),
            };
            let size = size.and_then(|size| usize::try_from(size).ok());
            let piece = size.and_then(|size| data.get(at..at.checked_add(size)?));
            let Some(piece) = piece else {
                return Err(bad(begin, format!("column {:?} does not fit in it", column.name)));
            };
            at += piece.len();
            pieces.push(piece);
        }
        if at != data.len() {
            return Err(bad(
                begin,
                format!("its columns have {at} bytes, itself {}", data.len()),
            ));
        }
        let mut fields = Vec::with_capacity(chosen.len());
        for at in chosen {
            let column = &columns[*at];
            let decoded = match &column.encoding {
                Ok(encoding) => encoding.decode(pieces[*at]),
                Err(why) => Err(why.clone()),
            };
            let value = decoded.map_err(|why| bad(begin, format!("column {:?}: {why}", column.name)))?;
            fields.push((column.name.clone(), value));
        }
        Ok(Value::Map(fields))
    }
}

impl Numbered for MdsReader {
    fn count(&self) -> u64 {
        self.samples
    }

    fn record(&mut self, number: u64) -> Result<Value, SourceError> {
        self.sample(number)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
