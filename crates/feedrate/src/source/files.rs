//! Whole files as records.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::shards::no_part;
use super::{Fault, Mark, Part, Reader, Record, Source, SourceError};
use crate::batch::{Value, spare};
use crate::store::{self, is_index};

/// Folders in each other that are entered.
const DEEPEST: usize = 64;

/// Files, each of which is a record: a map of `__key__` (the path below the root, with `/`), `path` and `bytes`, and with
/// [`classes`](Files::classes) of `class` (text) and `label` (its number).
///
/// Folders are walked when they are first asked for, not before: names are read then, no file is opened and none is asked for its size. Folders and
/// files come by the bytes of their names, the files of a folder before its folders. Hidden names, which begin with a dot, and `__MACOSX` are
/// passed over, and so are links that lead back to a folder above. About 64 bytes and the name are kept for each file. A part is up to
/// [`files_per_part`](Files::files_per_part) files, so that work can be shared.
///
/// A file that cannot be read is an error that names it; the next can be read.
///
/// ```no_run
/// use feedrate::source::{Files, Source};
///
/// let files = Files::new(["images/train"]).classes(true).extensions(["jpg", "png"]);
/// println!("{:?}", files.class_names()?);
/// let first = files.open(0, None)?.next()?;
/// # Ok::<(), feedrate::source::SourceError>(())
/// ```
pub struct Files {
    patterns: Vec<String>,
    options: Options,
    listed: OnceLock<Arc<Listed>>,
}

#[derive(Debug, Clone)]
struct Options {
    classes: bool,
    hidden: bool,
    extensions: Option<Vec<String>>,
    files_per_part: usize,
    max_file_bytes: u64,
    bytes: bool,
}

#[derive(Debug)]
struct Listed {
    folders: Vec<Folder>,
    files: Vec<File>,
    classes: Vec<String>,
    parts: Arc<[Part]>,
    skipped: u64,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Below the root, with slashes.
    key: String,
    class: Option<usize>,
}

#[derive(Debug)]
struct File {
    folder: usize,
    name: OsString,
}

impl Files {
    /// The files in these folders and all below them, and files that these paths and patterns name. Nothing is looked for yet.
    pub fn new<S: Into<String>>(patterns: impl IntoIterator<Item = S>) -> Self {
        Self {
            patterns: patterns.into_iter().map(Into::into).collect(),
            options: Options {
                classes: false,
                hidden: false,
                extensions: None,
                files_per_part: 1024,
                max_file_bytes: 1 << 30,
                bytes: true,
            },
            listed: OnceLock::new(),
        }
    }

    fn set(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self.listed = OnceLock::new();
        self
    }

    /// Takes the names of the folders right below a root for classes, as torchvision's `ImageFolder` does: sorted by their bytes and
    /// numbered from 0. Files that lie in no class are passed over; a class without files is an error. Default: no.
    #[must_use]
    pub fn classes(self, on: bool) -> Self {
        self.set(|options| options.classes = on)
    }

    /// Whether names that begin with a dot, and `__MACOSX`, are read too. Default: no.
    #[must_use]
    pub fn hidden(self, read: bool) -> Self {
        self.set(|options| options.hidden = read)
    }

    /// Only files with these extensions, whatever their case. Default: all.
    #[must_use]
    pub fn extensions<S: AsRef<str>>(self, extensions: impl IntoIterator<Item = S>) -> Self {
        let extensions = extensions.into_iter();
        let extensions = extensions
            .map(|one| one.as_ref().trim_start_matches('.').to_lowercase())
            .collect();
        self.set(|options| options.extensions = Some(extensions))
    }

    /// Files in a part, at least 1. Default: 1024.
    #[must_use]
    pub fn files_per_part(self, count: usize) -> Self {
        self.set(|options| options.files_per_part = count.max(1))
    }

    /// Bytes that a file may have. A larger one is an error; the next can be read. Default: 1 GiB.
    #[must_use]
    pub fn max_file_bytes(self, bytes: u64) -> Self {
        self.set(|options| options.max_file_bytes = bytes)
    }

    /// Whether records have `bytes`. Without, nothing is opened. Default: yes.
    #[must_use]
    pub fn bytes(self, on: bool) -> Self {
        self.set(|options| options.bytes = on)
    }

    /// The classes, by number. Lists the folders; may block.
    pub fn class_names(&self) -> Result<Vec<String>, SourceError> {
        Ok(self.listed()?.classes.clone())
    }

    /// Names that were passed over: hidden, of other extensions, in no class. Lists the folders; may block.
    pub fn skipped(&self) -> Result<u64, SourceError> {
        Ok(self.listed()?.skipped)
    }

    fn listed(&self) -> Result<&Arc<Listed>, SourceError> {
        if let Some(listed) = self.listed.get() {
            return Ok(listed);
        }
        let listed = Lister::new(&self.options).list(&self.patterns)?;
        Ok(self.listed.get_or_init(|| Arc::new(listed)))
    }

    /// The files of a part: the first, and the one behind the last.
    fn range(&self, part: usize) -> Result<(usize, usize), SourceError> {
        let listed = self.listed()?;
        let parts = listed.parts.len();
        if part >= parts {
            return Err(no_part(part, parts));
        }
        let first = part * self.options.files_per_part;
        Ok((first, (first + self.options.files_per_part).min(listed.files.len())))
    }
}

struct Lister<'a> {
    options: &'a Options,
    listed: Listed,
}

impl<'a> Lister<'a> {
    fn new(options: &'a Options) -> Self {
        let listed = Listed {
            folders: Vec::new(),
            files: Vec::new(),
            classes: Vec::new(),
            parts: Arc::new([]),
            skipped: 0,
        };
        Self { options, listed }
    }

    fn list(mut self, patterns: &[String]) -> Result<Listed, SourceError> {
        // Classes first, so that those of all roots have one numbering.
        let roots: Vec<&Path> = patterns.iter().map(Path::new).filter(|path| path.is_dir()).collect();
        if self.options.classes {
            for root in &roots {
                let (_, folders) = self.entries(root)?;
                let names = folders.iter().map(|name| name.to_string_lossy().into_owned());
                self.listed.classes.extend(names);
            }
            self.listed.classes.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
            self.listed.classes.dedup();
            self.listed.skipped = 0;
        }
        for pattern in patterns {
            let path = Path::new(pattern);
            if path.is_dir() {
                let mut above = Vec::new();
                self.walk(path, "", None, &mut above)?;
            } else {
                self.matching(pattern)?;
            }
        }
        if self.listed.files.is_empty() {
            let message = format!(
                "no file was found; {} were passed over by their names",
                self.listed.skipped
            );
            return Err(SourceError::new(Fault::Missing, patterns.join(" "), message));
        }
        self.check_classes(patterns)?;
        let name = |first: usize, last: usize| {
            let key = |at: usize| self.listed.path(at).display().to_string();
            if first == last {
                key(first)
            } else {
                format!("{} … {}", key(first), key(last))
            }
        };
        let step = self.options.files_per_part;
        let count = self.listed.files.len();
        let parts = (0..count).step_by(step).map(|first| {
            let behind = (first + step).min(count);
            Part {
                name: name(first, behind - 1),
                records: Some((behind - first) as u64),
                bytes: None,
            }
        });
        self.listed.parts = parts.collect();
        Ok(self.listed)
    }

    fn check_classes(&self, patterns: &[String]) -> Result<(), SourceError> {
        let mut counts = vec![0_u64; self.listed.classes.len()];
        for file in &self.listed.files {
            if let Some(class) = self.listed.folders[file.folder].class {
                counts[class] += 1;
            }
        }
        let empty: Vec<&str> = self
            .listed
            .classes
            .iter()
            .zip(&counts)
            .filter(|(_, count)| **count == 0)
            .map(|(name, _)| name.as_str())
            .collect();
        if empty.is_empty() {
            return Ok(());
        }
        let message = format!("folders that should be classes have no files: {}", empty.join(", "));
        Err(SourceError::new(Fault::Absent, patterns.join(" "), message))
    }

    /// Names of files and of folders, sorted.
    fn entries(&mut self, path: &Path) -> Result<(Vec<OsString>, Vec<OsString>), SourceError> {
        let failed = |error: &std::io::Error| SourceError::io(path.display().to_string(), error);
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(path).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            let name = entry.file_name();
            if !self.options.hidden
                && (name.as_encoded_bytes().starts_with(b".") || name == "__MACOSX" || is_index(Path::new(&name)))
            {
                self.listed.skipped += 1;
                continue;
            }
            let kind = entry.file_type().map_err(|error| failed(&error))?;
            let is_folder = kind.is_dir() || (kind.is_symlink() && entry.path().is_dir());
            if is_folder {
                folders.push(name);
            } else if kind.is_file() || kind.is_symlink() {
                files.push(name);
            } else {
                self.listed.skipped += 1;
            }
        }
        for names in [&mut files, &mut folders] {
            names.sort_by(|a, b| a.as_encoded_bytes().cmp(b.as_encoded_bytes()));
        }
        Ok((files, folders))
    }

    fn wanted(&self, name: &OsString) -> bool {
        let Some(wanted) = &self.options.extensions else {
            return true;
        };
        let extension = Path::new(name)
            .extension()
            .map(|one| one.to_string_lossy().to_lowercase());
        extension.is_some_and(|extension| wanted.contains(&extension))
    }

    fn walk(
        &mut self,
        path: &Path,
        key: &str,
        class: Option<usize>,
        above: &mut Vec<PathBuf>,
    ) -> Result<(), SourceError> {
        let real = fs::canonicalize(path).map_err(|error| SourceError::io(path.display().to_string(), &error))?;
        if above.contains(&real) || above.len() >= DEEPEST {
            self.listed.skipped += 1;
            return Ok(());
        }
        above.push(real);
        let (files, folders) = self.entries(path)?;
        let folder = self.listed.folders.len();
        self.listed.folders.push(Folder {
            path: path.to_owned(),
            key: key.to_owned(),
            class,
        });
        for name in files {
            if self.wanted(&name) && (class.is_some() || !self.options.classes) {
                self.listed.files.push(File { folder, name });
            } else {
                self.listed.skipped += 1;
            }
        }
        for name in folders {
            let text = name.to_string_lossy().into_owned();
            let class = class.or_else(|| self.listed.classes.iter().position(|class| *class == text));
            self.walk(&path.join(&name), &format!("{key}{text}/"), class, above)?;
        }
        above.pop();
        Ok(())
    }

    /// Files that a pattern names.
    fn matching(&mut self, pattern: &str) -> Result<(), SourceError> {
        for blob in store::find(&[pattern])? {
            let Some((parent, name)) = blob.path().and_then(|path| path.parent().zip(path.file_name())) else {
                continue;
            };
            let name = name.to_owned();
            if !self.wanted(&name) || self.options.classes {
                self.listed.skipped += 1;
                continue;
            }
            let last = self.listed.folders.last();
            if last.is_none_or(|last| last.path != parent || last.class.is_some()) {
                let mut key = parent.to_string_lossy().into_owned();
                if !key.is_empty() && !key.ends_with('/') {
                    key.push('/');
                }
                self.listed.folders.push(Folder {
                    path: parent.to_owned(),
                    key,
                    class: None,
                });
            }
            let folder = self.listed.folders.len() - 1;
            self.listed.files.push(File { folder, name });
        }
        Ok(())
    }
}

impl Listed {
    fn path(&self, at: usize) -> PathBuf {
        let file = &self.files[at];
        self.folders[file.folder].path.join(&file.name)
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Files({})", self.patterns.join(" "))
    }
}

impl Source for Files {
    fn format(&self) -> &'static str {
        "files"
    }

    fn describe(&self) -> String {
        format!("files {} {:?}", self.patterns.join(" "), self.options)
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        Ok(Arc::clone(&self.listed()?.parts))
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        let (listed, (first, behind)) = (self.listed()?, self.range(part)?);
        let number = from.map_or(0, |mark| mark.number).min((behind - first) as u64);
        Ok(Box::new(FilesReader {
            listed: Arc::clone(listed),
            options: self.options.clone(),
            first,
            behind,
            number,
        }))
    }

    fn indexed(&self) -> bool {
        true
    }

    fn files(&self, part: usize) -> Result<Vec<PathBuf>, SourceError> {
        let (listed, (first, behind)) = (self.listed()?, self.range(part)?);
        Ok((first..behind).map(|at| listed.path(at)).collect())
    }

    fn contents(&self, part: usize, found: &mut String) {
        let (Ok(listed), Ok((first, behind))) = (self.listed(), self.range(part)) else {
            return;
        };
        for file in &listed.files[first..behind] {
            // Not the whole path: the folder may have moved.
            let folder = listed.folders[file.folder].path.file_name().unwrap_or_default();
            let _ = writeln!(found, "{}/{}", folder.display(), file.name.display());
        }
    }
}

struct FilesReader {
    listed: Arc<Listed>,
    options: Options,
    first: usize,
    behind: usize,
    number: u64,
}

impl FilesReader {
    fn left(&self) -> u64 {
        (self.behind - self.first) as u64 - self.number
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, SourceError> {
        let name = || path.display().to_string();
        let failed = |error: std::io::Error| SourceError::new(Fault::Record, name(), error.to_string());
        let limit = self.options.max_file_bytes;
        let too_large = |size: String| {
            let message =
                format!("the file has {size} bytes, the limit is {limit}: raise max_file_bytes if that is right");
            SourceError::new(Fault::TooLarge, name(), message)
        };
        let mut file = fs::File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        if length > limit {
            return Err(too_large(length.to_string()));
        }
        let length = usize::try_from(length).unwrap_or(0);
        let mut bytes = spare(length);
        bytes.reserve_exact(length);
        // It may have grown, and not every file knows its size.
        file.by_ref()
            .take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if bytes.len() as u64 > limit {
            return Err(too_large(format!("more than {limit}")));
        }
        Ok(bytes)
    }
}

impl Reader for FilesReader {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        if self.left() == 0 {
            return Ok(None);
        }
        let mark = self.mark();
        let at = self.first + usize::try_from(self.number).unwrap_or(usize::MAX);
        self.number += 1;
        let file = &self.listed.files[at];
        let folder = &self.listed.folders[file.folder];
        let path = self.listed.path(at);
        let key = format!("{}{}", folder.key, file.name.to_string_lossy());
        let mut pairs = vec![
            ("__key__".to_owned(), Value::Str(key.clone())),
            ("path".to_owned(), Value::Str(path.to_string_lossy().into_owned())),
        ];
        if let Some(class) = folder.class {
            let label = i64::try_from(class).unwrap_or(i64::MAX);
            pairs.push(("class".to_owned(), Value::Str(self.listed.classes[class].clone())));
            pairs.push(("label".to_owned(), Value::Int(label)));
        }
        if self.options.bytes {
            let bytes = self.read(&path).map_err(|error| error.of(&*key))?;
            pairs.push(("bytes".to_owned(), Value::Bytes(bytes)));
        }
        Ok(Some(Record {
            value: Value::Map(pairs),
            mark,
            key: Some(key),
        }))
    }

    fn mark(&self) -> Mark {
        Mark {
            number: self.number,
            offset: 0,
        }
    }

    fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        let passed = count.min(self.left());
        self.number += passed;
        Ok(passed)
    }
}
