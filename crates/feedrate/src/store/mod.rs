//! Where bytes lie, and how patterns name them.
//!
//! A [`Blob`] is something that can be opened and read from any place: a file, or bytes in memory. [`find`] turns paths, globs and brace
//! ranges into blobs, in a stated order. Only local files for now.

mod blob;
mod find;
mod pattern;

pub use blob::{Blob, Raw};
pub use find::find;
pub(crate) use find::{INDEX, is_index};
pub use pattern::braces;
