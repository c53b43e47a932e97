//! Shards by their format and options.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use feedrate::batch::{DType, Value};
use feedrate::source::tar::{Duplicates, EndMark, Grouping, Missing, Names, Split};
use feedrate::source::{
    ArrowIpc, BigInts, Csv, CsvType, Files, Filter, Format, Hdf5, IndexAt, Indexed, JsonLines, Mds, Npy, Ones, Op,
    Parquet, ShortWindow, Source, Tar, TfContent, TfRecords, Tokens, Windows,
};
use feedrate::store;
use pyo3::exceptions::{PyNotADirectoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::value::from_python;
use crate::error::PipelineError;

fn config(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn reading(error: impl Display) -> PyErr {
    PipelineError::new_err(error.to_string())
}

/// The options of one format. Each is taken once; what is left is not an option of it.
struct Options<'py> {
    format: &'static str,
    given: Bound<'py, PyDict>,
    known: Vec<&'static str>,
}

impl<'py> Options<'py> {
    fn new(format: &'static str, given: &Bound<'py, PyDict>) -> PyResult<Self> {
        Ok(Self {
            format,
            given: given.copy()?,
            known: Vec::new(),
        })
    }

    fn take(&mut self, name: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.known.push(name);
        let found = self.given.get_item(name)?;
        if found.is_some() {
            self.given.del_item(name)?;
        }
        Ok(found.filter(|value| !value.is_none()))
    }

    fn get<T>(&mut self, name: &'static str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        let format = self.format;
        let Some(value) = self.take(name)? else { return Ok(None) };
        match value.extract::<T>() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(PyTypeError::new_err(format!(
                "{format}: {name}={} is not understood",
                value.repr()?
            ))),
        }
    }

    /// A list of names, or one.
    fn names(&mut self, name: &'static str) -> PyResult<Option<Vec<String>>> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        if let Ok(one) = value.cast::<PyString>() {
            return Ok(Some(vec![one.to_str()?.to_owned()]));
        }
        Ok(Some(value.extract()?))
    }

    /// One of some words.
    fn one_of<T: Clone>(&mut self, name: &'static str, words: &[(&str, T)]) -> PyResult<Option<T>> {
        let Some(word) = self.get::<String>(name)? else {
            return Ok(None);
        };
        if let Some((_, value)) = words.iter().find(|(known, _)| *known == word) {
            return Ok(Some(value.clone()));
        }
        let known: Vec<_> = words.iter().map(|(known, _)| *known).collect();
        Err(config(format!("{}: {name}={word:?} is none of {known:?}", self.format)))
    }

    fn done(self) -> PyResult<()> {
        match self.given.keys().iter().next() {
            None => Ok(()),
            Some(name) => Err(PyTypeError::new_err(format!(
                "{} has no option {}; there are {:?}",
                self.format,
                name.repr()?,
                self.known
            ))),
        }
    }
}

/// Sets options that were given.
macro_rules! set {
    ($source:ident, $options:ident, $($method:ident = $value:expr;)*) => {
        $( if let Some(value) = $value? { $source = $source.$method(value); } )*
    };
}

/// The format of a word.
fn format_of(name: &str) -> PyResult<Format> {
    const ALL: &[Format] = &[
        Format::Tar,
        Format::Parquet,
        Format::Arrow,
        Format::TfRecord,
        Format::Npy,
        Format::Hdf5,
        Format::Mds,
        Format::JsonLines,
        Format::Csv,
        Format::Tsv,
        Format::Files,
    ];
    ALL.iter().copied().find(|format| format.name() == name).ok_or_else(|| {
        let known: Vec<_> = ALL.iter().map(|format| format.name()).collect();
        config(format!("format={name:?} is none of {known:?}, \"tokens\""))
    })
}

/// Opens patterns as what `format` says, or `auto` for what the first of them is. Returns the source.
pub(super) fn open(
    py: Python<'_>,
    patterns: Vec<String>,
    format: &str,
    options: &Bound<'_, PyDict>,
) -> PyResult<Arc<dyn Source>> {
    if format == "tokens" {
        return tokens(py, patterns, options);
    }
    let format = if format == "auto" {
        py.detach(|| feedrate::source::format_of_all(&patterns))
            .map_err(reading)?
    } else {
        format_of(format)?
    };
    match format {
        Format::Tar => tar(patterns, options),
        Format::Parquet => parquet(py, patterns, options),
        Format::Arrow | Format::ArrowStream => arrow(py, patterns, options),
        Format::TfRecord => tfrecord(py, patterns, options),
        Format::Npy | Format::Npz => npy(py, patterns, options),
        Format::Hdf5 => hdf5(py, patterns, options),
        Format::Mds => mds(patterns, options),
        Format::JsonLines => jsonl(patterns, options),
        Format::Csv => csv("csv", b',', patterns, options),
        Format::Tsv => csv("tsv", b'\t', patterns, options),
        Format::Files => files(patterns, options),
        other => Err(config(format!(
            "{} is {other}, which feedrate does not read: name another format=, or read it with from_items()",
            patterns.join(" ")
        ))),
    }
}

/// Files that patterns stand for.
fn paths(py: Python<'_>, patterns: &[String]) -> PyResult<Vec<PathBuf>> {
    let found = py.detach(|| store::find(patterns)).map_err(reading)?;
    found
        .iter()
        .map(|blob| {
            blob.path()
                .map(PathBuf::from)
                .ok_or_else(|| config(format!("{} is no file", blob.name())))
        })
        .collect()
}

fn tar(patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("tar", options)?;
    let mut source = Tar::new(patterns);
    let grouping = [
        ("consecutive", Grouping::Consecutive),
        ("whole", Grouping::Whole),
        ("scattered", Grouping::Scattered),
    ];
    let key = [("first_dot", Split::FirstDot), ("last_dot", Split::LastDot)];
    let names = [("utf8", Names::Utf8), ("latin1", Names::Latin1)];
    let duplicates = [
        ("error", Duplicates::Error),
        ("first", Duplicates::First),
        ("last", Duplicates::Last),
    ];
    let missing = [
        ("error", Missing::Error),
        ("skip", Missing::Skip),
        ("leave", Missing::Leave),
    ];
    let end = [
        ("checked", EndMark::Checked),
        ("required", EndMark::Required),
        ("optional", EndMark::Optional),
    ];
    set! { source, o,
        grouping = o.one_of("grouping", &grouping);
        split = o.one_of("key", &key);
        names = o.one_of("names", &names);
        duplicates = o.one_of("duplicates", &duplicates);
        fields = o.names("fields");
        missing = o.one_of("missing", &missing);
        end_mark = o.one_of("end_mark", &end);
        repeats = o.get("repeats");
        hidden = o.get("hidden");
        url = o.get("url");
        decompress = o.get("decompress");
        max_sample_bytes = o.get("max_sample_bytes");
    }
    if let Some(at) = index_at(&mut o)? {
        source = source.with_index(at);
    }
    o.done()?;
    Ok(Arc::new(source))
}

/// `index=True`, `"memory"`, `"beside"`, or a folder.
fn index_at(o: &mut Options<'_>) -> PyResult<Option<IndexAt>> {
    let Some(value) = o.take("index")? else { return Ok(None) };
    if let Ok(wanted) = value.extract::<bool>() {
        return Ok(wanted.then_some(IndexAt::Memory));
    }
    let folder: PathBuf = value.extract()?;
    Ok(Some(match folder.to_str() {
        Some("memory") => IndexAt::Memory,
        Some("beside") => IndexAt::Beside,
        // That an index cannot be stored is no error otherwise.
        _ if folder.exists() && !folder.is_dir() => {
            let path = folder.display();
            return Err(PyNotADirectoryError::new_err(format!(
                "index={path:?} is a file: give a folder for the indexes, \"beside\" for beside the shards, or True for in memory"
            )));
        }
        _ => IndexAt::Folder(folder),
    }))
}

/// With an index, where one is asked for.
fn indexed(source: impl Source, o: &mut Options<'_>) -> PyResult<Arc<dyn Source>> {
    Ok(match index_at(o)? {
        Some(at) => Arc::new(Indexed::new(source, at)),
        None => Arc::new(source),
    })
}

fn files(patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("files", options)?;
    let mut source = Files::new(patterns);
    set! { source, o,
        classes = o.get("classes");
        hidden = o.get("hidden");
        extensions = o.names("extensions");
        files_per_part = o.get("files_per_part");
        max_file_bytes = o.get("max_file_bytes");
        bytes = o.get("read");
    }
    o.done()?;
    Ok(Arc::new(source))
}

fn jsonl(patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("jsonl", options)?;
    let mut source = JsonLines::new(patterns);
    let big = [
        ("error", BigInts::Error),
        ("float", BigInts::Float),
        ("text", BigInts::Text),
    ];
    set! { source, o,
        columns = o.names("columns");
        big_ints = o.one_of("big_ints", &big);
        max_line_bytes = o.get("max_line_bytes");
        split_bytes = o.get("split_bytes");
    }
    let source = indexed(source, &mut o)?;
    o.done()?;
    Ok(source)
}

fn csv(
    format: &'static str,
    delimiter: u8,
    patterns: Vec<String>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new(format, options)?;
    let mut source = Csv::new(patterns).delimiter(delimiter);
    let byte = |text: Option<String>, what: &str| match text.as_deref().map(str::as_bytes) {
        None => Ok(None),
        Some([byte]) => Ok(Some(*byte)),
        Some(_) => Err(config(format!(
            "{format}: {what}={:?} is not one byte",
            text.unwrap_or_default()
        ))),
    };
    let given = o.get("delimiter")?;
    if let Some(byte) = byte(given, "delimiter")? {
        source = source.delimiter(byte);
    }
    let given = o.get("quote")?;
    if let Some(byte) = byte(given, "quote")? {
        source = source.quote(byte);
    }
    if let Some(types) = o.take("types")? {
        let types = types.cast_into::<PyDict>()?;
        let mut found = Vec::with_capacity(types.len());
        for (name, kind) in types.iter() {
            let kind: String = match kind.getattr("__name__") {
                Ok(name) => name.extract()?,
                Err(_) => kind.extract()?,
            };
            let kind = match kind.as_str() {
                "str" | "text" => CsvType::Text,
                "int" => CsvType::Int,
                "float" => CsvType::Float,
                "bool" => CsvType::Bool,
                other => {
                    return Err(config(format!(
                        "{format}: a column of {other:?}: str, int, float or bool"
                    )));
                }
            };
            found.push((name.extract::<String>()?, kind));
        }
        source = source.types(found);
    }
    set! { source, o,
        names = o.names("names");
        columns = o.names("columns");
        infer = o.get("infer");
        max_row_bytes = o.get("max_row_bytes");
    }
    let source = indexed(source, &mut o)?;
    o.done()?;
    Ok(source)
}

fn parquet(py: Python<'_>, patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("parquet", options)?;
    let mut source = Parquet::new(paths(py, &patterns)?);
    set! { source, o,
        columns = o.names("columns");
        filter = filter(&mut o);
        unify = o.get("unify");
    }
    o.done()?;
    Ok(Arc::new(source))
}

fn arrow(py: Python<'_>, patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("arrow", options)?;
    let mut source = ArrowIpc::new(paths(py, &patterns)?);
    set! { source, o,
        columns = o.names("columns");
        filter = filter(&mut o);
        unify = o.get("unify");
        limit = o.get("max_batch_bytes");
    }
    o.done()?;
    Ok(Arc::new(source))
}

fn filter(o: &mut Options<'_>) -> PyResult<Option<Filter>> {
    o.take("where")?.map(|given| condition(&given)).transpose()
}

/// `("length", "<", 4096)`; `("language", "in", ["en", "de"])`; `("name", "is null")`; `["and", …]`, `["or", …]`, `["not", …]`; a list of conditions is all of them.
fn condition(given: &Bound<'_, PyAny>) -> PyResult<Filter> {
    if let Ok(list) = given.cast::<PyList>() {
        let word = list.iter().next().and_then(|first| first.extract::<String>().ok());
        let wordless = |item: Bound<'_, PyAny>| {
            let inner = item.cast_into::<PyList>().ok();
            inner.is_some_and(|inner| inner.get_item(0).is_ok_and(|first| first.extract::<String>().is_err()))
        };
        if word.is_none() && list.iter().any(wordless) {
            return Err(config(
                "where: a list in a list is any of them for pyarrow, and all of them elsewhere: begin lists with \"or\" or \"and\"",
            ));
        }
        let inner: Vec<Filter> = list
            .iter()
            .skip(usize::from(word.is_some()))
            .map(|item| condition(&item))
            .collect::<PyResult<_>>()?;
        return match word.as_deref() {
            None | Some("and") => Ok(Filter::All(inner)),
            Some("or") => Ok(Filter::Any(inner)),
            Some("not") => match <[Filter; 1]>::try_from(inner) {
                Ok([inner]) => Ok(inner.negate()),
                Err(_) => Err(config("where: [\"not\", condition] takes one condition")),
            },
            Some(other) => Err(config(format!("where: {other:?} is none of \"and\", \"or\", \"not\""))),
        };
    }
    let tuple = given.cast::<PyTuple>().map_err(|_| {
        config("where: a condition is (column, operator, value), (column, \"is null\"), or a list of conditions")
    })?;
    if let Ok((column, word)) = tuple.extract::<(String, String)>() {
        return match word.as_str() {
            "is null" => Ok(Filter::Null(column)),
            "is not null" => Ok(Filter::Null(column).negate()),
            other => Err(config(format!(
                "where: {other:?} is neither \"is null\" nor \"is not null\""
            ))),
        };
    }
    let (column, op, value): (String, String, Bound<'_, PyAny>) = tuple.extract().map_err(|_| {
        config(format!(
            "where: {tuple} is neither (column, operator, value) nor (column, \"is null\")"
        ))
    })?;
    if matches!(op.as_str(), "in" | "not in") {
        let refused = || config(format!("where: {column:?}, {op:?} takes a list of values, not {value}"));
        if value.extract::<String>().is_ok() {
            return Err(refused());
        }
        let values = value.try_iter().map_err(|_| refused())?;
        let values = values
            .map(|value| constant(&column, &value?))
            .collect::<PyResult<Vec<_>>>()?;
        let found = Filter::one_of(column, values);
        return Ok(if op == "in" { found } else { found.negate() });
    }
    let op = match op.as_str() {
        "=" | "==" => Op::Eq,
        "!=" => Op::Ne,
        "<" => Op::Lt,
        "<=" => Op::Le,
        ">" => Op::Gt,
        ">=" => Op::Ge,
        other => {
            return Err(config(format!(
                "where: {other:?} is none of = != < <= > >= \"in\" \"not in\""
            )));
        }
    };
    let value = constant(&column, &value)?;
    Ok(Filter::column(column, op, value))
}

/// What a column can be compared with.
fn constant(column: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    // NumPy's scalars.
    let plain = if value.hasattr("dtype")? && value.hasattr("item")? {
        &value.call_method0("item")?
    } else {
        value
    };
    match from_python(plain, 0)? {
        value @ (Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) | Value::Bytes(_)) => Ok(value),
        _ => Err(config(format!(
            "where: {column} is compared with {} of the type {}: give a number, text, bytes or bool (dates and times are compared as the \
             whole number that is stored, in the column's unit)",
            value.repr()?,
            value.get_type().name()?
        ))),
    }
}

fn tfrecord(py: Python<'_>, patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("tfrecord", options)?;
    let mut source = TfRecords::new(paths(py, &patterns)?);
    let content = [
        ("example", TfContent::Example),
        ("sequence_example", TfContent::SequenceExample),
        ("raw", TfContent::Raw),
    ];
    let ones = [("bytes", Ones::Bytes), ("lists", Ones::Lists), ("single", Ones::Single)];
    set! { source, o,
        content = o.one_of("content", &content);
        features = o.names("features");
        check = o.get("check");
        limit = o.get("max_record_bytes");
    }
    match o.take("scalars")? {
        None => {}
        Some(value) if value.is_instance_of::<PyString>() => {
            let word: String = value.extract()?;
            let found = ones.iter().find(|(known, _)| *known == word);
            let (_, rule) = found.ok_or_else(|| {
                config(format!(
                    "tfrecord: scalars={word:?} is none of \"bytes\", \"lists\", \"single\", or a list of names"
                ))
            })?;
            source = source.ones(rule.clone());
        }
        Some(value) => source = source.ones(Ones::Named(value.extract()?)),
    }
    let source = indexed(source, &mut o)?;
    o.done()?;
    Ok(source)
}

fn npy(py: Python<'_>, patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("npy", options)?;
    let mut source = Npy::new(paths(py, &patterns)?);
    set! { source, o,
        named = o.get::<String>("name");
        fields = o.names("fields");
    }
    o.done()?;
    Ok(Arc::new(source))
}

fn hdf5(py: Python<'_>, patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("hdf5", options)?;
    let mut source = Hdf5::new(paths(py, &patterns)?);
    set! { source, o,
        columns = o.names("columns");
    }
    o.done()?;
    Ok(Arc::new(source))
}

fn mds(patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("mds", options)?;
    let mut source = Mds::new(patterns);
    set! { source, o,
        columns = o.names("columns");
        limit = o.get("max_shard_bytes");
    }
    o.done()?;
    Ok(Arc::new(source))
}

/// The `.bin` files that paths, folders and patterns stand for.
fn pairs(py: Python<'_>, patterns: Vec<String>) -> PyResult<Vec<PathBuf>> {
    let mut pairs: Vec<PathBuf> = Vec::new();
    for pattern in patterns {
        let path = PathBuf::from(&pattern);
        if !path.is_dir() && !pattern.contains(['*', '?', '[', '{']) {
            pairs.push(path);
            continue;
        }
        let found = paths(py, std::slice::from_ref(&pattern))?.into_iter();
        let ends = |path: &PathBuf| path.extension().is_some_and(|end| end == "bin" || end == "idx");
        let mut found: Vec<_> = found.filter(ends).map(|path| path.with_extension("bin")).collect();
        found.dedup();
        if found.is_empty() {
            return Err(config(format!("tokens: {pattern} finds no .bin or .idx file")));
        }
        pairs.append(&mut found);
    }
    Ok(pairs)
}

/// Whether Megatron's index is beside a file of tokens.
fn has_index(file: &std::path::Path) -> bool {
    file.extension().is_none_or(|end| end != "idx") && file.with_extension("idx").is_file()
}

fn lacks_index(file: &std::path::Path) -> bool {
    file.extension().is_none_or(|end| end != "idx") && !file.with_extension("idx").is_file()
}

fn tokens(py: Python<'_>, patterns: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Source>> {
    let mut o = Options::new("tokens", options)?;
    let dtype: Option<String> = o.get("dtype")?;
    let length: Option<usize> = o.get("length")?;
    let extra: Option<usize> = o.get("extra")?;
    let stride: Option<usize> = o.get("stride")?;
    let pad: Option<i64> = o.get("pad")?;
    let keep: Option<bool> = o.get("keep_short")?;
    let wide: Option<bool> = o.get("wide")?;
    o.done()?;
    let windows = length.map(|len| Windows {
        extra: extra.unwrap_or(1),
        stride: stride.unwrap_or(len),
        last: match (pad, keep) {
            (Some(token), _) => ShortWindow::Pad(token),
            (None, Some(true)) => ShortWindow::Keep,
            _ => ShortWindow::Drop,
        },
        ..Windows::of(len)
    });
    let wanted = || config("tokens: a flat file has no documents: give length= for windows of so many tokens");
    let source = if let Some(dtype) = dtype {
        let dtype = DType::from_name(&dtype).ok_or_else(|| config(format!("tokens: there is no dtype {dtype:?}")))?;
        let files = paths(py, &patterns)?;
        if let Some(file) = files.iter().find(|file| has_index(file)) {
            let index = file.with_extension("idx").display().to_string();
            return Err(config(format!(
                "tokens: {index} says what the tokens beside it are: leave dtype out, which is {dtype} here"
            )));
        }
        Tokens::raw(files, dtype, windows.ok_or_else(wanted)?)
    } else if patterns.iter().any(|pattern| {
        std::path::Path::new(pattern)
            .extension()
            .is_some_and(|end| end == "npy")
    }) {
        Tokens::npy(paths(py, &patterns)?, windows.ok_or_else(wanted)?)
    } else {
        let files = pairs(py, patterns)?;
        if let Some(file) = files.iter().find(|file| file.is_file() && lacks_index(file)) {
            let index = file.with_extension("idx").display().to_string();
            return Err(config(format!(
                "tokens: there is no {index}, which Megatron's files have beside them; for a flat file of tokens say what they are, as \
                 dtype=\"uint16\""
            )));
        }
        let megatron = Tokens::megatron(files);
        match windows {
            Some(windows) => megatron.windows(windows),
            None => megatron,
        }
    };
    Ok(Arc::new(source.wide(wide.unwrap_or(false))))
}
