//! States as Python dicts.

use feedrate::State;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyList, PyString};

/// Dicts nested deeper are refused.
const DEPTH: usize = 64;
/// In a pipeline's cursor, which has up to two levels for each of its steps; Python takes 200 of these in a row.
const CURSOR: usize = 512;

pub(crate) fn to_python<'py>(py: Python<'py>, state: &State) -> PyResult<Bound<'py, PyAny>> {
    match state {
        State::Bool(value) => Ok(PyBool::new(py, *value).to_owned().into_any()),
        State::Number(number) => Ok(number.into_pyobject(py)?.into_any()),
        State::Text(text) => Ok(PyString::new(py, text).into_any()),
        State::List(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(to_python(py, item)?)?;
            }
            Ok(list.into_any())
        }
        State::Map(entries) => {
            let dict = PyDict::new(py);
            for (key, value) in entries {
                dict.set_item(key, to_python(py, value)?)?;
            }
            Ok(dict.into_any())
        }
        _ => Ok(py.None().into_bound(py)),
    }
}

pub(crate) fn from_python(value: &Bound<'_, PyAny>) -> PyResult<State> {
    convert(value, 0, DEPTH)
}

/// As [`from_python`], of a pipeline.
pub(crate) fn cursor_from_python(value: &Bound<'_, PyAny>) -> PyResult<State> {
    convert(value, 0, CURSOR)
}

fn convert(value: &Bound<'_, PyAny>, depth: usize, most: usize) -> PyResult<State> {
    if depth > most {
        return Err(PyTypeError::new_err(format!("a state is at most {most} levels deep")));
    }
    if value.is_none() {
        return Ok(State::Null);
    }
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(State::Bool(value.is_true()));
    }
    if let Ok(number) = value.cast::<PyInt>() {
        let beyond = |_| PyValueError::new_err(format!("a state has no numbers as large as {number}"));
        return number.extract().map(State::Number).map_err(beyond);
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(State::Text(text.to_str()?.to_owned()));
    }
    if let Ok(list) = value.cast::<PyList>() {
        let items: PyResult<Vec<State>> = list.iter().map(|item| convert(&item, depth + 1, most)).collect();
        return items.map(State::List);
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let entry = |(key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            Ok((key.extract::<String>()?, convert(&value, depth + 1, most)?))
        };
        let entries: PyResult<Vec<(String, State)>> = dict.iter().map(entry).collect();
        return entries.map(State::map);
    }
    Err(PyTypeError::new_err(format!(
        "a state is made of dicts, lists, whole numbers and texts, and this one has a {}",
        value.get_type().name()?
    )))
}
