//! Patterns to files.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::Blob;
use super::pattern::{braces, fits, is_wild};
use crate::source::{Fault, SourceError};

/// The files that patterns name, in a stated order: pattern by pattern as given, braces from left to right, and what a wildcard finds by the
/// bytes of its path, component by component (`10.tar` before `9.tar`). A file that two patterns name comes twice. Blocks while folders are read.
///
/// - A path that exists is that file, whatever characters it has.
/// - `{0000..0009}` and `{a,b}` are written out; each name so made has to exist.
/// - `*`, `?` and `[…]` stand for parts of one component, `**` for any number of folders. Names that begin with a dot are found only by a
///   component that begins with one. Symbolic links are followed; a folder is entered once for each way down, so loops end.
/// - A folder stands for the files in it whose names do not begin with a dot or an underscore.
/// - Indexes that are stored beside shards (`*.feedrate-index`) are passed over by folders and wildcards, and so is `lost+found`.
///
/// Errors: a pattern that finds nothing says where it looked and what is there instead. What may hide shards is named: a folder on the way
/// that cannot be read, and a symbolic link that fits and leads nowhere, also where `*` or `**` stand for folders.
pub fn find<S: AsRef<str>>(patterns: &[S]) -> Result<Vec<Blob>, SourceError> {
    let mut found = Vec::new();
    for pattern in patterns {
        let pattern = pattern.as_ref();
        if is_named(pattern) {
            add(Path::new(pattern), pattern, &mut found)?;
            continue;
        }
        for name in braces(pattern)? {
            if is_wild(&name) && !is_named(&name) {
                let before = found.len();
                let mut paths = expand(&name)?;
                paths.sort_by(|a, b| by_bytes(a, b));
                paths.dedup();
                for path in paths {
                    if (!is_index(&path) || name.ends_with(INDEX)) && is_file(&path)? {
                        found.push(Blob::file(path));
                    }
                }
                if found.len() == before {
                    return Err(nothing(pattern, Path::new(&name)));
                }
            } else {
                add(Path::new(&name), pattern, &mut found)?;
            }
        }
    }
    if found.is_empty() {
        return Err(SourceError::new(Fault::Missing, "", "no path or pattern was given"));
    }
    Ok(found)
}

/// How the names of stored indexes end: they lie beside shards, and are none.
pub(crate) const INDEX: &str = ".feedrate-index";

pub(crate) fn is_index(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(INDEX.as_bytes())
}

/// Whether it is a path as it stands; a link that leads nowhere is one too.
fn is_named(pattern: &str) -> bool {
    fs::symlink_metadata(pattern).is_ok()
}

/// What lies there, or where a link leads; `None` where there is nothing, or nothing any more.
fn look(path: &Path) -> Result<Option<fs::Metadata>, SourceError> {
    let error = match fs::metadata(path) {
        Ok(known) => return Ok(Some(known)),
        Err(error) => error,
    };
    match fs::read_link(path) {
        Ok(target) => {
            let message = format!("it is a symbolic link to {}: {error}", target.display());
            Err(SourceError::io(
                path.to_string_lossy(),
                &io::Error::new(error.kind(), message),
            ))
        }
        Err(_) if is_gone(&error) => Ok(None),
        Err(_) => Err(SourceError::io(path.to_string_lossy(), &error)),
    }
}

/// That nothing is there, or a file where a folder was looked for.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn is_file(path: &Path) -> Result<bool, SourceError> {
    Ok(look(path)?.is_some_and(|known| known.is_file()))
}

fn is_folder(path: &Path) -> Result<bool, SourceError> {
    Ok(look(path)?.is_some_and(|known| known.is_dir()))
}

/// The file, or the files of the folder.
fn add(path: &Path, pattern: &str, found: &mut Vec<Blob>) -> Result<(), SourceError> {
    let Some(known) = look(path)? else {
        return Err(nothing(pattern, path));
    };
    if !known.is_dir() {
        if !known.is_file() {
            // Opening a pipe waits for whoever writes to it.
            let message = "it is no file but a pipe, a socket or a device, and shards are read by their positions: write it to a file";
            return Err(SourceError::new(Fault::Unsupported, pattern, message));
        }
        found.push(Blob::file(path));
        return Ok(());
    }
    let entries = fs::read_dir(path).map_err(|error| SourceError::io(pattern, &error))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| SourceError::io(pattern, &error))?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_')));
        if !hidden && !is_index(&path) && is_file(&path)? {
            files.push(path);
        }
    }
    if files.is_empty() {
        let message = format!("the folder has no files; {}", there(path));
        return Err(SourceError::new(Fault::Missing, pattern, message));
    }
    files.sort_by(|a, b| by_bytes(a, b));
    found.extend(files.into_iter().map(Blob::file));
    Ok(())
}

/// By the bytes of each component, so that a folder's files stay together.
pub(crate) fn by_bytes(a: &Path, b: &Path) -> std::cmp::Ordering {
    let (a, b) = (a.components(), b.components());
    a.map(|part| part.as_os_str().as_encoded_bytes())
        .cmp(b.map(|part| part.as_os_str().as_encoded_bytes()))
}

/// The paths that fit, in no order.
fn expand(pattern: &str) -> Result<Vec<PathBuf>, SourceError> {
    let mut at = vec![PathBuf::new()];
    let parts: Vec<Component<'_>> = Path::new(pattern).components().collect();
    for (place, part) in parts.iter().enumerate() {
        let last = place + 1 == parts.len();
        let text = part.as_os_str().to_string_lossy();
        let mut fit = Vec::new();
        for mut path in at {
            if text == "**" {
                fit.append(&mut folders(path, last)?);
            } else if is_wild(&text) {
                for below in matching(&path, &text)? {
                    // Files are no way on. The last ones are looked at when all are known.
                    if last || is_folder(&below)? {
                        fit.push(below);
                    }
                }
            } else {
                path.push(part);
                if look(&path)?.is_some() {
                    fit.push(path);
                }
            }
        }
        at = fit;
    }
    Ok(at)
}

/// What a folder has; nothing, where it is gone or a file.
fn list(path: &Path) -> Result<Vec<fs::DirEntry>, SourceError> {
    let here = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    match fs::read_dir(here).and_then(Iterator::collect) {
        Ok(entries) => Ok(entries),
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        Err(error) => Err(SourceError::io(here.to_string_lossy(), &error)),
    }
}

fn matching(path: &Path, pattern: &str) -> Result<Vec<PathBuf>, SourceError> {
    let named = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // In the root of many volumes, and none but the system's owner may look into it.
        let shown = (pattern.starts_with('.') || !name.starts_with('.')) && name != "lost+found";
        shown && fits(pattern, &name)
    };
    let entries = list(path)?.into_iter().filter(named);
    Ok(entries.map(|entry| path.join(entry.file_name())).collect())
}

/// The folder and all in it, without hidden ones; at the pattern's end their files too.
fn folders(path: PathBuf, files: bool) -> Result<Vec<PathBuf>, SourceError> {
    let (mut all, mut ahead) = (Vec::new(), vec![(path, HashSet::new())]);
    while let Some((path, mut above)) = ahead.pop() {
        // A folder that is already above itself is a loop of links.
        let real = if path.as_os_str().is_empty() {
            fs::canonicalize(".")
        } else {
            fs::canonicalize(&path)
        };
        let new = match real {
            Ok(real) => above.insert(real),
            Err(error) if is_gone(&error) => false,
            Err(error) => return Err(SourceError::io(path.to_string_lossy(), &error)),
        };
        if !new {
            continue;
        }
        for below in matching(&path, "*")? {
            if is_folder(&below)? {
                ahead.push((below, above.clone()));
            } else if files {
                all.push(below);
            }
        }
        all.push(path);
    }
    Ok(all)
}

fn nothing(pattern: &str, name: &Path) -> SourceError {
    // The deepest folder that is there.
    let mut folder = name.parent().unwrap_or(Path::new(""));
    while !folder.as_os_str().is_empty() && !folder.is_dir() {
        folder = folder.parent().unwrap_or(Path::new(""));
    }
    let text = name.to_string_lossy();
    let message = if pattern.contains("://") || pattern.starts_with("pipe:") {
        "this is an address, and only files are read: copy it, or mount what it is in".to_owned()
    } else if text.starts_with('~') {
        format!(
            "there is no {text}; ~ is not written out here: os.path.expanduser does that in Python, a shell elsewhere"
        )
    } else if is_wild(&text) {
        format!("nothing fits; {}", there(folder))
    } else {
        format!("there is no {text}; {}", there(folder))
    };
    SourceError::new(Fault::Missing, pattern, message)
}

/// What a folder has, in a few words.
fn there(folder: &Path) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    let entries = match list(folder) {
        Ok(entries) => entries,
        Err(error) => return error.to_string(),
    };
    for entry in entries.into_iter().take(10_000) {
        let path = entry.path();
        let kind = if path.is_dir() {
            "folders".to_owned()
        } else {
            path.extension().map_or_else(
                || "files without extension".to_owned(),
                |kind| format!("*.{}", kind.to_string_lossy()),
            )
        };
        match kinds.iter().position(|(known, _)| *known == kind) {
            Some(at) => kinds[at].1 += 1,
            None if kinds.len() < 50 => kinds.push((kind, 1)),
            None => {}
        }
    }
    kinds.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    kinds.truncate(4);
    let place = if folder.as_os_str().is_empty() {
        "the current folder".to_owned()
    } else {
        folder.display().to_string()
    };
    if kinds.is_empty() {
        return format!("{place} is empty");
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    format!("{place} has {}", kinds.join(", "))
}
