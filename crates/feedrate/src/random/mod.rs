//! Random numbers: PyTorch's and NumPy's streams bit for bit, and streams keyed by what they are for.
//!
//! [`Mt19937`] is the generator behind `torch.Generator` on the CPU, with the ways in which torch turns its output into
//! integers, permutations and floats. [`Keyed`] gives an independent stream for each (seed, epoch, step, position), so that
//! a random augmentation does not depend on which worker does it, or how often. [`Permutation`] is a shuffle of any size that
//! is computed place by place.

mod ahead;
mod keyed;
pub mod libstdcxx;
mod mt19937;
mod numpy;
mod permutation;
mod remainders;
mod tail;
mod topk;
mod torch;

pub use keyed::{Domain, Key, Keyed};
pub use mt19937::{Mt19937, StateError, TORCH_STATE_BYTES};
pub use numpy::worker_state as numpy_worker_state;
pub use permutation::Permutation;
pub(crate) use torch::{Place, check_weights, part_of_permutation, permute, skip_permutation};
