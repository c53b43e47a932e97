//! Elements kept for later epochs, in memory or in files.
//!
//! A file holds entries one after the other: the length of a place and of a value, the CRC-32C of both, the place, the value, which has a
//! byte more where it is a collated batch. Each process appends to a file of its own and reads those of all; an entry that is cut off or damaged is as good as none.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::owned::Owned;
use super::sample::{Place, Sample};
use super::spec::fnv;
use crate::batch::{Value, encode};
use crate::error::BoxError;

/// Where the steps before it need not run again.
///
/// What has been made once is kept until `limit` bytes are full, and given again in later epochs wherever the same element is wanted.
/// Nothing is thrown out for something newer: epochs go round, and a cache that throws out what was used longest ago would
/// have thrown out each element just before it is wanted again.
pub struct Cache {
    limit: u64,
    folder: Option<PathBuf>,
    version: String,
    /// Where it stays locked, nothing is known and nothing kept.
    inner: Owned<Inner>,
    /// What the files were when lanes were opened, by the pass over the data, oldest first.
    stamps: Owned<Vec<Stamped>>,
}

/// What lanes of one pass over the data go by.
struct Stamped {
    pass: Pass,
    data: u64,
    since: Instant,
    /// The lanes that have it.
    lanes: HashSet<u64>,
}

/// The steps before, the seed, the pass over the data, the number of the step, and that of lanes.
type Pass = [u64; 5];

/// Lanes of a pass that are opened later than this look at the files themselves.
const TOGETHER: Duration = Duration::from_secs(60);
/// Passes that are under way at a time, of several loaders and of steps that begin again.
const PASSES: usize = 16;

#[derive(Default)]
struct Inner {
    bytes: u64,
    /// By the fingerprint of what comes before, under which seed.
    memory: HashMap<u64, HashMap<Place, Sample>>,
    files: HashMap<u64, Files>,
}

/// The files of one definition.
#[derive(Default)]
struct Files {
    /// Of all files, also those of other processes: which file, where its value begins, how long it is, and its checksum.
    entries: HashMap<Place, (usize, u64, u32, u32)>,
    known: Vec<Known>,
    /// The one that a process appends to, with that process's number.
    own: Option<(u32, usize, Arc<File>)>,
    /// Counts uses.
    clock: u64,
}

/// A file that has been found.
struct Known {
    path: PathBuf,
    /// If it is open.
    file: Option<Arc<File>>,
    /// When it was last wanted, in uses.
    used: u64,
    /// Up to where it has been read.
    end: u64,
}

/// Files of a definition that are open at a time, besides the one that is appended to: each process of each run leaves one.
const OPEN: usize = 32;
/// Behind a value: it is a batch that `collate` has made.
const COLLATED: u8 = 1;
/// Lengths and checksum before each entry.
const HEAD: usize = 12;

impl Cache {
    /// Keeps elements in this process's memory, up to `limit` bytes of data.
    pub fn memory(limit: u64) -> Self {
        Self {
            limit,
            folder: None,
            version: String::new(),
            inner: Owned::default(),
            stamps: Owned::default(),
        }
    }

    /// Keeps elements in files in `folder`, which is made if need be, up to `limit` bytes in all. Processes share them, and later runs
    /// find them. The files are named by the fingerprint of the steps before and by the files that these read (path, size, time of the last
    /// change). What a function of the same name does differently since is not seen, nor what else lies in memory: say another
    /// [`version`](Cache::version) then, or use another folder. Each process of each run that adds something leaves a file; 32 of them are open to be read, and the own.
    pub fn files(folder: impl Into<PathBuf>, limit: u64) -> Self {
        Self {
            limit,
            folder: Some(folder.into()),
            version: String::new(),
            inner: Owned::default(),
            stamps: Owned::default(),
        }
    }

    /// Files under another version are not looked at: for functions that do something else since, under the same name.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// What the files of these steps over this data are known by, in memory and on disk.
    pub(super) fn key(&self, steps: u64, seed: u64, data: u64) -> u64 {
        let key = format!("{steps:016x} {seed} {data:016x}{}", self.version);
        fnv(key.bytes())
    }

    /// The stamp of the data, which `look` asks the file system for: once for the lanes of a pass, however many files there are. A lane that is
    /// opened again looks anew, for the files may be others since; so do those behind it.
    pub(super) fn stamp<E>(&self, pass: Pass, lane: u64, look: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        // Others of this pass wait for what is found.
        let Some(mut stamps) = self.stamps.lock() else {
            return look();
        };
        stamps.retain(|one| one.since.elapsed() < TOGETHER);
        if let Some(one) = stamps.iter_mut().find(|one| one.pass == pass)
            && one.lanes.insert(lane)
        {
            return Ok(one.data);
        }
        stamps.retain(|one| one.pass != pass);
        let data = look()?;
        if stamps.len() >= PASSES {
            stamps.remove(0);
        }
        stamps.push(Stamped {
            pass,
            data,
            since: Instant::now(),
            lanes: HashSet::from([lane]),
        });
        Ok(data)
    }

    /// Finds what other processes have written since. Called when a lane is opened.
    pub(super) fn look(&self, fingerprint: u64) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        self.inner
            .lock()
            .map_or(Ok(()), |mut inner| inner.look(folder, fingerprint))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))
    }

    /// The element of this place, if it is kept.
    pub(super) fn get(&self, fingerprint: u64, place: &Place) -> Option<Sample> {
        let mut inner = self.inner.lock()?;
        if self.folder.is_none() {
            return inner.memory.get(&fingerprint)?.get(place).cloned();
        }
        let found = inner.files.get_mut(&fingerprint)?.find(place)?;
        // Others may look meanwhile.
        drop(inner);
        found.read(place)
    }

    /// Keeps an element, if there is room. A file that cannot be written is an error.
    pub(super) fn put(&self, fingerprint: u64, sample: &Sample) -> Result<(), BoxError> {
        let Sample { value, place, collated } = sample;
        let Some(mut inner) = self.inner.lock() else {
            return Ok(());
        };
        let Some(folder) = &self.folder else {
            // A place and the table take about this much.
            let size = held(value) as u64 + 128;
            if inner.bytes + size <= self.limit {
                let kept = inner.memory.entry(fingerprint).or_default();
                if kept.insert(place.clone(), sample.clone()).is_none() {
                    inner.bytes += size;
                }
            }
            return Ok(());
        };
        let have = inner
            .files
            .get(&fingerprint)
            .is_some_and(|files| files.entries.contains_key(place));
        if have || inner.bytes >= self.limit {
            return Ok(());
        }
        let mut entry = vec![0; HEAD];
        place.encode(&mut entry);
        let middle = entry.len();
        encode::encode(value, &mut entry)?;
        if *collated {
            entry.push(COLLATED);
        }
        if inner.bytes + entry.len() as u64 > self.limit {
            return Ok(());
        }
        // An element of more than 4 GiB is not kept.
        let (Ok(place_len), Ok(value_len)) = (u32::try_from(middle - HEAD), u32::try_from(entry.len() - middle)) else {
            return Ok(());
        };
        let sum = crc32c::crc32c(&entry[HEAD..]);
        for (at, number) in [place_len, value_len, sum].into_iter().enumerate() {
            entry[at * 4..][..4].copy_from_slice(&number.to_le_bytes());
        }
        inner
            .files
            .entry(fingerprint)
            .or_default()
            .append(folder, fingerprint, place, &entry, middle, value_len)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        inner.bytes += entry.len() as u64;
        Ok(())
    }
}

impl Inner {
    fn look(&mut self, folder: &Path, fingerprint: u64) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let prefix = format!("{fingerprint:016x}-");
        let mut names: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let ours = path.extension().is_some_and(|extension| extension == "cache");
            if ours && name.is_some_and(|name| name.starts_with(&prefix)) {
                names.push(path);
            }
        }
        names.sort();
        let files = self.files.entry(fingerprint).or_default();
        for path in names {
            if !files.known.iter().any(|known| known.path == path) {
                files.know(path);
            }
        }
        for at in 0..files.known.len() {
            files.read_on(at)?;
        }
        self.bytes = self
            .files
            .values()
            .flat_map(|files| &files.known)
            .map(|known| known.end)
            .sum();
        Ok(())
    }
}

impl Files {
    /// Takes in a file that is not known yet.
    fn know(&mut self, path: PathBuf) -> usize {
        self.known.push(Known {
            path,
            file: None,
            used: 0,
            end: 0,
        });
        self.known.len() - 1
    }

    /// A file to read from. Of those that are open, the one that was wanted longest ago is closed if they are too many.
    fn file(&mut self, at: usize) -> io::Result<Arc<File>> {
        if let Some((_, own, file)) = &self.own
            && *own == at
        {
            return Ok(Arc::clone(file));
        }
        self.clock += 1;
        self.known[at].used = self.clock;
        if let Some(file) = &self.known[at].file {
            return Ok(Arc::clone(file));
        }
        let open = || self.known.iter().filter(|known| known.file.is_some());
        if open().count() >= OPEN
            && let Some(oldest) = open().map(|known| known.used).min()
        {
            let known = self.known.iter_mut().filter(|known| known.file.is_some());
            known
                .filter(|known| known.used == oldest)
                .for_each(|known| known.file = None);
        }
        let file = Arc::new(File::open(&self.known[at].path)?);
        self.known[at].file = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Lists the entries that a file has got since it was last read.
    fn read_on(&mut self, at: usize) -> io::Result<()> {
        let Known { path, end, .. } = &self.known[at];
        let size = match std::fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            // Somebody tidied up. What it held is made again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut end = *end;
        if end + HEAD as u64 > size {
            return Ok(());
        }
        let file = self.file(at)?;
        let mut head = [0; HEAD];
        while end + HEAD as u64 <= size {
            file.read_exact_at(&mut head, end)?;
            let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let (place_len, value_len, sum) = (word(0), word(4), word(8));
            let whole = HEAD as u64 + u64::from(place_len) + u64::from(value_len);
            // Cut off, or still being written.
            if end + whole > size {
                break;
            }
            let mut place = vec![0; place_len as usize];
            file.read_exact_at(&mut place, end + HEAD as u64)?;
            // A damaged length would let us read nonsense from here on: the checksum of the value is looked at when it is used.
            let Ok(place) = Place::decode(&mut &place[..]) else {
                break;
            };
            let start = end + HEAD as u64;
            self.entries
                .entry(place)
                .or_insert((at, start + u64::from(place_len), value_len, sum));
            end += whole;
        }
        self.known[at].end = end;
        Ok(())
    }

    /// `None` also where the file is gone.
    fn find(&mut self, place: &Place) -> Option<Stored> {
        let (at, start, len, sum) = *self.entries.get(place)?;
        Some(Stored {
            file: self.file(at).ok()?,
            start,
            len,
            sum,
        })
    }

    fn append(
        &mut self,
        folder: &Path,
        fingerprint: u64,
        place: &Place,
        entry: &[u8],
        middle: usize,
        len: u32,
    ) -> io::Result<()> {
        let pid = std::process::id();
        // A child of a fork has a file of its own.
        let (at, file) = match &self.own {
            Some((owner, at, file)) if *owner == pid => (*at, Arc::clone(file)),
            _ => {
                let (path, file) = create(folder, fingerprint, pid)?;
                let (at, file) = (self.know(path), Arc::new(file));
                self.own = Some((pid, at, Arc::clone(&file)));
                (at, file)
            }
        };
        let end = self.known[at].end;
        if let Err(error) = (&*file).write_all(entry) {
            // A part of an entry, where a disk is full, would hide what comes behind it.
            if file.set_len(end).is_err() {
                self.own = None;
            }
            return Err(error);
        }
        let sum = u32::from_le_bytes([entry[8], entry[9], entry[10], entry[11]]);
        self.entries.insert(place.clone(), (at, end + middle as u64, len, sum));
        self.known[at].end += entry.len() as u64;
        Ok(())
    }
}

/// Where a value lies in a file.
struct Stored {
    file: Arc<File>,
    start: u64,
    len: u32,
    sum: u32,
}

impl Stored {
    /// `None` where it is damaged.
    fn read(&self, place: &Place) -> Option<Sample> {
        let mut bytes = Vec::new();
        place.encode(&mut bytes);
        let middle = bytes.len();
        bytes.resize(middle + self.len as usize, 0);
        self.file.read_exact_at(&mut bytes[middle..], self.start).ok()?;
        if crc32c::crc32c(&bytes) != self.sum {
            return None;
        }
        let mut rest = &bytes[middle..];
        let value = encode::decode(&mut rest).ok()?;
        Some(Sample {
            value,
            place: place.clone(),
            collated: rest == [COLLATED],
        })
    }
}

/// A new file of this process.
fn create(folder: &Path, fingerprint: u64, pid: u32) -> io::Result<(PathBuf, File)> {
    std::fs::create_dir_all(folder)?;
    let mut number = 0_u32;
    loop {
        let path = folder.join(format!("{fingerprint:016x}-{pid}-{number}.cache"));
        let made = File::options().read(true).append(true).create_new(true).open(&path);
        match made {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.folder {
            None => f.write_str("cache(memory)"),
            Some(_) => f.write_str("cache(files)"),
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("limit", &self.limit)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// Bytes that a value takes in memory, about: also those that hold it, which are most of a list of numbers.
fn held(value: &Value) -> usize {
    let inside = match value {
        Value::Str(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        // Its shape and strides, and the head of its memory.
        Value::Tensor(tensor) => tensor.bytes() + 16 * tensor.shape().len() + 64,
        Value::List(items) => items.iter().map(held).sum(),
        Value::Map(pairs) => pairs
            .iter()
            .map(|(name, value)| size_of::<String>() + name.len() + held(value))
            .sum(),
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Other(_) => 0,
    };
    size_of::<Value>() + inside
}
