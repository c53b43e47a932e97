//! What samples and batches are made of: typed tensors, trees of values, and the way from samples to a batch.
//!
//! A [`Tensor`] is a view of a [`Buffer`], which may be heap memory or a slot of an arena; views keep it alive. An
//! [`Allocator`] gives the memory into which [`collate`](fn@collate) writes, so that a batch is written once, where it stays.
//! A [`Value`] is a tree of tensors, numbers, text and containers: the common form of samples, and what crosses a process
//! boundary.

mod allocator;
mod collate;
mod dtype;
pub(crate) mod encode;
mod spare;
mod tensor;
mod transfer;
mod value;

pub use allocator::{Allocator, Buffer, Heap};
pub use collate::{CollateError, collate, stack};
pub(crate) use dtype::half;
pub use dtype::{DType, Element};
pub use spare::give_back;
pub(crate) use spare::{copied, spare};
#[cfg(all(feature = "processes", target_os = "linux"))]
pub(crate) use tensor::packed;
pub use tensor::{Tensor, TensorError};
pub use transfer::Transfer;
pub use value::{Foreign, Other, Value};
