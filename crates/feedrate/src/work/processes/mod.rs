//! On processes of their own: for code that blocks the whole process, that crashes, or whose memory should be limited alone.
//!
//! A worker is this program, started again. Its `main` calls [`Workers::run`] first, which finds out that it is a worker, makes
//! the dataset by the named recipe, and serves. Jobs go to it and batches come back over one socket in small messages; tensors lie in the
//! worker's arena, which the parent maps, and are not copied on their way.
//!
//! ```no_run
//! use feedrate::work::{Launch, Workers};
//! use feedrate::{BoxError, Builder, DataLoader, batch, dataset, loader::Samples};
//!
//! /// Everything that a worker needs to know comes in the argument.
//! fn training(argument: Vec<u8>) -> Result<Builder<impl Samples, batch::Value>, BoxError> {
//!     let scale: f64 = String::from_utf8(argument)?.parse()?;
//!     let source = dataset::from_fn(1000, move |i| Ok(i as f64 * scale));
//!     Ok(DataLoader::builder(source).batch_size(32).collate(batch::stack))
//! }
//!
//! fn main() -> Result<(), BoxError> {
//!     Workers::new().with("training", training).run();
//!
//!     let launch = Launch::new("training").argument("0.5");
//!     let mut loader = training(b"0.5".to_vec())?.processes(2, launch).build()?;
//!     for batch in loader.iter()? {
//!         println!("{:?}", batch?);
//!     }
//!     Ok(())
//! }
//! ```

mod codec;
mod launch;
mod parcel;
mod pool;
mod serve;
mod wire;

pub use launch::Launch;
pub use pool::Processes;
pub use serve::Workers;

/// Set for worker processes: the process id of the parent, and the inode of the socket that is their standard input. A worker's own
/// children have another standard input, and are no workers.
const MARK: &str = "FEEDRATE_WORKER_OF";
