//! `feedrate._native`: translation between Python and the engine, one file per Python class.
//!
//! The rules of this crate: every blocking call goes through `enter`, memory leaves through `block` and `dlpack`, and only
//! the modules listed here may be unsafe: `block`, `dlpack`, `image`, `pipeline::value`, `transform` and `worker_end` (raw memory handed to
//! or taken from Python).

// PyO3 fixes the signatures: arguments by value, tuples for Python.
#![expect(clippy::needless_pass_by_value, reason = "Python hands arguments over by value")]
#![expect(clippy::type_complexity, reason = "tuples that Python takes apart")]

mod block;
mod dlpack;
mod enter;
mod error;
mod feed;
mod image;
mod inline;
mod libtorch;
mod message;
mod order;
mod pipeline;
mod pool;
mod processes;
mod state;
mod system;
mod threads;
mod transform;
mod wire;
mod worker_end;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::block::{Arena, Block};
    #[pymodule_export]
    use crate::error::WorkerDied;
    #[pymodule_export]
    use crate::error::{Error, PipelineError};
    #[pymodule_export]
    use crate::feed::Feed;
    #[pymodule_export]
    use crate::image::{decode_images, encode_png, image_info};
    #[pymodule_export]
    use crate::libtorch::{
        DistributedRandomSampler, DistributedSequentialSampler, RandomSampler, SequentialSampler, StreamSampler,
    };
    #[pymodule_export]
    use crate::message::{block, tensor};
    #[pymodule_export]
    use crate::order::{Order, OrderBatches};
    #[pymodule_export]
    use crate::pipeline::{Lane, Pipeline, stop_ahead};
    #[pymodule_export]
    use crate::processes::{Processes, forget_inherited};
    #[pymodule_export]
    use crate::system::{exit_thread, memory_limit, oom_kills, process_state, set_thread_name};
    #[pymodule_export]
    use crate::threads::{ThreadEnd, Threads};
    #[pymodule_export]
    use crate::transform::{ImageBatch, ImageTransform};
    #[pymodule_export]
    use crate::worker_end::WorkerEnd;

    #[pymodule_init]
    #[expect(clippy::unnecessary_wraps, reason = "the macro's signature")]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        let _ = module;
        crate::pipeline::know_threads();
        Ok(())
    }
}
