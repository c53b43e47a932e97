//! Python callables as steps.

use std::fmt;

use feedrate::BoxError;
use feedrate::batch::Value;
use feedrate::pipeline::{Call, Function, Interrupt};
use pyo3::exceptions::{PyException, PyStopIteration};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::value::{Arrays, Object, from_python, to_python};

/// A Python exception on its way through the engine.
pub(crate) struct Raised(pub(crate) PyErr);

impl Raised {
    pub(crate) fn boxed(error: PyErr) -> BoxError {
        if Self::interrupts(&error) {
            return Box::new(Interrupt(Box::new(Self(error))));
        }
        Box::new(Self(error))
    }

    /// Whether it is none of Python's `Exception`s: a `KeyboardInterrupt`, `SystemExit`.
    pub(crate) fn interrupts(error: &PyErr) -> bool {
        Python::attach(|py| !error.is_instance_of::<PyException>(py))
    }
}

impl fmt::Debug for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Raised {}

/// A callable. Takes the GIL for each call.
pub(crate) struct Callable {
    pub(crate) name: String,
    pub(crate) function: Py<PyAny>,
    pub(crate) arrays: Arrays,
}

impl Callable {
    /// The object that the function is called with, and what it returns. `feedrate.rng()` gives this element's numbers meanwhile.
    fn call<'py>(
        &self,
        py: Python<'py>,
        value: Value,
        call: &Call,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        static KEYED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let argument = to_python(py, value, self.arrays)?;
        let key = (call.seed, call.epoch, call.step, call.place);
        let keyed = KEYED.import(py, "feedrate._context", "keyed_call")?;
        let result = keyed.call1((self.function.bind(py), &argument, key));
        match result {
            Ok(result) => Ok((argument, result)),
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => {
                let message = format!(
                    "{} raised StopIteration. It would end the stream without a word; raise another exception for a bad element",
                    self.name
                );
                let raised = pyo3::exceptions::PyRuntimeError::new_err(message);
                raised.set_cause(py, Some(error));
                Err(raised)
            }
            Err(error) => Err(error),
        }
    }
}

impl Function for Callable {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&self, value: Value, call: &Call) -> Result<Value, BoxError> {
        Python::attach(|py| self.call(py, value, call).map(|(_, result)| Object::value(result))).map_err(Raised::boxed)
    }

    fn keep(&self, value: Value, call: &Call) -> Result<(Value, bool), BoxError> {
        Python::attach(|py| {
            let (argument, result) = self.call(py, value, call)?;
            Ok((Object::value(argument), result.is_truthy()?))
        })
        .map_err(Raised::boxed)
    }

    fn expand(&self, value: Value, call: &Call) -> Result<Vec<Value>, BoxError> {
        Python::attach(|py| {
            let (_, result) = self.call(py, value, call)?;
            result
                .try_iter()?
                .map(|item| item.map(Object::value))
                .collect::<PyResult<Vec<_>>>()
        })
        .map_err(Raised::boxed)
    }
}

/// A callable that gives a key to sort by: its result as a value.
pub(crate) struct KeyOf(pub(crate) Callable);

impl Function for KeyOf {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn map(&self, value: Value, call: &Call) -> Result<Value, BoxError> {
        Python::attach(|py| {
            let (_, result) = self.0.call(py, value, call)?;
            from_python(&result, 0)
        })
        .map_err(Raised::boxed)
    }
}
