//! User functions in a pipeline.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::batch::Value;
use crate::error::{BoxError, Panic};
use crate::random::{Domain, Key, Keyed};

/// What a function may know about the moment in which it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The pipeline's seed.
    pub seed: u64,
    /// The pass over the data, from 0.
    pub epoch: u64,
    /// The step's number in the pipeline's definition.
    pub step: u64,
    /// A number that belongs to where the element comes from.
    pub place: u64,
}

impl Call {
    /// Random numbers for this element in this step: the same ones in whichever lane, worker or order it is made, and however often.
    pub fn rng(&self) -> Keyed {
        Key {
            seed: self.seed,
            epoch: self.epoch,
            step: self.step,
            position: self.place,
            domain: Domain::Sample,
        }
        .stream()
    }
}

/// A function of the user's. One of the three is what its step calls; the others refuse.
///
/// Called from any thread, several at a time. Must depend on its arguments alone: an element may be made again when a run is resumed.
pub trait Function: Send + Sync + 'static {
    /// What the definition and messages call it. Equal functions have equal names; with its step it is part of the pipeline's
    /// fingerprint.
    fn name(&self) -> &str;

    /// Another value for each.
    fn map(&self, value: Value, call: &Call) -> Result<Value, BoxError> {
        let _ = (value, call);
        Err(format!("{} gives no value for a value", self.name()).into())
    }

    /// Whether the value stays, and the value (which may be in another form).
    fn keep(&self, value: Value, call: &Call) -> Result<(Value, bool), BoxError> {
        let _ = (value, call);
        Err(format!("{} does not say what stays", self.name()).into())
    }

    /// Any number of values for each.
    fn expand(&self, value: Value, call: &Call) -> Result<Vec<Value>, BoxError> {
        let _ = (value, call);
        Err(format!("{} does not give several values for one", self.name()).into())
    }
}

/// A function in a definition.
#[derive(Clone)]
pub struct Func(Arc<dyn Function>);

impl Func {
    /// Of this function. A panic in it is the error of its element, and the step goes on, as a dataset does.
    pub fn new(function: impl Function) -> Self {
        Self(Arc::new(Caught(function)))
    }

    /// A closure that gives another value for each.
    pub fn map<F>(name: &str, function: F) -> Self
    where
        F: Fn(Value, &Call) -> Result<Value, BoxError> + Send + Sync + 'static,
    {
        Self::new(Mapping(name.to_owned(), function))
    }

    /// A closure that says which values stay.
    pub fn keep<F>(name: &str, function: F) -> Self
    where
        F: Fn(&Value, &Call) -> Result<bool, BoxError> + Send + Sync + 'static,
    {
        Self::new(Keeping(name.to_owned(), function))
    }

    /// A closure that gives any number of values for each.
    pub fn expand<F>(name: &str, function: F) -> Self
    where
        F: Fn(Value, &Call) -> Result<Vec<Value>, BoxError> + Send + Sync + 'static,
    {
        Self::new(Expanding(name.to_owned(), function))
    }
}

impl std::ops::Deref for Func {
    type Target = dyn Function;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Func {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

struct Mapping<F>(String, F);
struct Keeping<F>(String, F);
struct Expanding<F>(String, F);

/// A function whose panics are errors.
struct Caught<F>(F);

fn caught<T>(call: impl FnOnce() -> Result<T, BoxError>) -> Result<T, BoxError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| Err(Panic::from_payload(&*payload).into()))
}

impl<F: Function> Function for Caught<F> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn map(&self, value: Value, call: &Call) -> Result<Value, BoxError> {
        caught(|| self.0.map(value, call))
    }

    fn keep(&self, value: Value, call: &Call) -> Result<(Value, bool), BoxError> {
        caught(|| self.0.keep(value, call))
    }

    fn expand(&self, value: Value, call: &Call) -> Result<Vec<Value>, BoxError> {
        caught(|| self.0.expand(value, call))
    }
}

impl<F> Function for Mapping<F>
where
    F: Fn(Value, &Call) -> Result<Value, BoxError> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        &self.0
    }

    fn map(&self, value: Value, call: &Call) -> Result<Value, BoxError> {
        (self.1)(value, call)
    }
}

impl<F> Function for Keeping<F>
where
    F: Fn(&Value, &Call) -> Result<bool, BoxError> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        &self.0
    }

    fn keep(&self, value: Value, call: &Call) -> Result<(Value, bool), BoxError> {
        let stays = (self.1)(&value, call)?;
        Ok((value, stays))
    }
}

impl<F> Function for Expanding<F>
where
    F: Fn(Value, &Call) -> Result<Vec<Value>, BoxError> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        &self.0
    }

    fn expand(&self, value: Value, call: &Call) -> Result<Vec<Value>, BoxError> {
        (self.1)(value, call)
    }
}
