//! Calls into decoders that are not ours.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Fault, SourceError};

/// Calls into a decoder that may panic on what it did not expect.
pub(super) fn guard<T>(name: &str, call: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let message = format!("the decoder gave up on it: {}", said(&*panic));
        Err(SourceError::new(Fault::Damaged, name, message))
    })
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("no reason given")
}
