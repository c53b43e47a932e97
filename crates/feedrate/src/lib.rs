#![doc = include_str!("../README.md")]

mod asking;
pub mod batch;
pub mod dataset;
#[cfg(feature = "image")]
pub mod decode;
pub mod deliver;
mod error;
pub mod loader;
pub mod pipeline;
pub mod plan;
pub mod random;
pub mod sampler;
pub mod source;
mod state;
pub mod stats;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod work;

pub use dataset::{Context, Dataset, DatasetExt, IterableDataset, WorkerInfo};
pub use error::{BoxError, Error, Panic, Result, WorkerDeath};
#[cfg(feature = "stream")]
pub use loader::BatchStream;
pub use loader::{Asked, Builder, DataLoader, Epoch};
pub use sampler::Sampler;
pub use state::State;
