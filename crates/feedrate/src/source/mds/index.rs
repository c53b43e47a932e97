//! `index.json` of a folder of MDS shards.

use std::path::{Component, Path, PathBuf};

use serde_json::Value as Json;

use super::encoding::Encoding;
use crate::source::{Fault, SourceError};

/// A column of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// What is not read says why.
    pub(super) encoding: Result<Encoding, String>,
    /// The same for all samples, if it is.
    pub(super) size: Option<u32>,
}

/// A file that the index names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// A shard, as the index describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shard {
    /// The index that names it.
    pub(super) index: PathBuf,
    pub(super) raw: Named,
    pub(super) packed: Option<Named>,
    pub(super) compression: Option<String>,
    pub(super) samples: u64,
    pub(super) columns: Vec<Column>,
}

/// All shards of a folder, or of the folder in which this `index.json` lies.
pub(super) fn read(path: &Path) -> Result<Vec<Shard>, SourceError> {
    let file = if path.is_dir() {
        path.join("index.json")
    } else {
        path.to_owned()
    };
    let name = file.to_string_lossy().into_owned();
    let text = std::fs::read(&file).map_err(|error| SourceError::io(&*name, &error))?;
    let damaged = |message: String| SourceError::new(Fault::Damaged, &*name, message);
    let json: Json = serde_json::from_slice(&text).map_err(|error| damaged(format!("no JSON: {error}")))?;
    let shards = json
        .get("shards")
        .and_then(Json::as_array)
        .ok_or_else(|| damaged("it has no list `shards`".into()))?;
    let shard = |(at, json): (usize, &Json)| shard(json, &file).map_err(|why| damaged(format!("shard {at}: {why}")));
    shards.iter().enumerate().map(shard).collect()
}

fn shard(json: &Json, index: &Path) -> Result<Shard, String> {
    let folder = index.parent().unwrap_or(Path::new(""));
    let format = json.get("format").and_then(Json::as_str).unwrap_or_default();
    if format != "mds" {
        return Err(format!("the format is {format:?}, and mds is read"));
    }
    let version = json.get("version").and_then(Json::as_u64);
    if version != Some(2) {
        return Err(format!("the version is {version:?}, and 2 is read"));
    }
    let list = |key: &str| {
        json.get(key)
            .and_then(Json::as_array)
            .ok_or(format!("it has no list `{key}`"))
    };
    let (names, encodings, sizes) = (list("column_names")?, list("column_encodings")?, list("column_sizes")?);
    if names.len() != encodings.len() || names.len() != sizes.len() {
        return Err("its lists of column names, encodings and sizes differ in length".into());
    }
    let mut columns = Vec::with_capacity(names.len());
    for ((name, encoding), size) in names.iter().zip(encodings).zip(sizes) {
        let (Some(name), Some(encoding)) = (name.as_str(), encoding.as_str()) else {
            return Err("a column's name or encoding is no text".into());
        };
        let size = match size.as_u64().map(u32::try_from) {
            // As the writer's own reader has it, 0 says that sizes differ.
            None | Some(Ok(0)) => None,
            Some(Ok(size)) => Some(size),
            Some(Err(_)) => return Err(format!("column {name:?} has too large a size")),
        };
        columns.push(Column {
            name: name.to_owned(),
            encoding: Encoding::named(encoding),
            size,
        });
    }
    let raw = named(json.get("raw_data"), folder)?.ok_or("it names no file")?;
    Ok(Shard {
        index: index.to_owned(),
        raw,
        packed: named(json.get("zip_data"), folder)?,
        compression: json.get("compression").and_then(Json::as_str).map(str::to_owned),
        samples: json
            .get("samples")
            .and_then(Json::as_u64)
            .ok_or("it does not say how many samples it has")?,
        columns,
    })
}

/// A file beside the index or below it, and nowhere else.
fn named(json: Option<&Json>, folder: &Path) -> Result<Option<Named>, String> {
    let Some(json) = json.filter(|json| !json.is_null()) else {
        return Ok(None);
    };
    let name = json.get("basename").and_then(Json::as_str).unwrap_or_default();
    let inside = Path::new(name)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !inside {
        return Err(format!("the file {name:?} does not lie in the index's folder"));
    }
    let bytes = json.get("bytes").and_then(Json::as_u64).ok_or("a file has no size")?;
    Ok(Some(Named {
        path: folder.join(name),
        bytes,
    }))
}
