//! A dataset, a loader on two threads, two epochs. `cargo run -p feedrate --example quickstart`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use feedrate::batch::{self, Tensor, Value};
use feedrate::{BoxError, Context, DataLoader, Dataset};

/// Small pictures of one colour, and the colour's number as the label.
struct Colours(usize);

impl Dataset for Colours {
    type Item = Value;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize, cx: &Context) -> Result<Value, BoxError> {
        const BRIGHTNESS: u64 = 0;
        let label = u8::try_from(index % 10)?;
        // The same brightness for this place of this epoch, whoever computes it.
        let brightness = u8::try_from(cx.rng(BRIGHTNESS).below(5))?;
        let image = Tensor::from_vec(vec![label * 20 + brightness; 3 * 32 * 32], &[3, 32, 32])?;
        Ok(Value::map([("image", Value::from(image)), ("label", label.into())]))
    }
}

fn main() -> Result<(), feedrate::Error> {
    let mut loader = DataLoader::builder(Colours(1000))
        .batch_size(64)
        .shuffle(true)
        .seed(1)
        .threads(2)
        .collate(batch::stack)
        .build()?;
    for epoch in 0..2 {
        let (mut batches, mut bytes) = (0, 0);
        for batch in loader.iter()? {
            let batch = batch?;
            batches += 1;
            bytes += batch.bytes();
        }
        println!("epoch {epoch}: {batches} batches, {bytes} bytes");
    }
    println!("waited {:?} for workers", loader.counters().waited);
    Ok(())
}
