//! The order of `torch.utils.data.RandomSampler`, and a generator handed to and fro: `cargo run -p feedrate --example torch_order`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use feedrate::random::Mt19937;
use feedrate::{BoxError, DataLoader, dataset, sampler};

fn main() -> Result<(), BoxError> {
    // torch.Generator().manual_seed(5), as bytes of get_state() and back.
    let state = Mt19937::new(5).to_torch_state();
    let generator = Mt19937::from_torch_state(&state)?;

    // RandomSampler(range(50), generator=g), batches of 10
    let order = sampler::Random::with_generator(50, generator)?;
    let mut loader = DataLoader::builder(dataset::range(0..50))
        .batch_size(10)
        .sampler(order)
        .build()?;
    for batch in loader.iter()? {
        println!("{:?}", batch?);
    }
    Ok(())
}
