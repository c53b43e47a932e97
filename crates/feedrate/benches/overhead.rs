//! What the loader itself costs: `cargo bench -p feedrate`. Without `--bench` (as `cargo test` runs it) only a moment of it, to
//! see that the answers are right.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::{Duration, Instant};

use feedrate::batch::{self, Heap, Tensor, Value};
use feedrate::{DataLoader, Error, dataset};

/// Batches of one run.
struct Run {
    name: &'static str,
    batches: u64,
    /// Of all batches, to see that the work was done.
    sum: u64,
    time: Duration,
}

fn numbers(name: &'static str, batches: usize, threads: usize) -> Result<Run, Error> {
    const BATCH: usize = 32;
    let builder = DataLoader::builder(dataset::range(0..batches * BATCH)).batch_size(BATCH);
    let builder = if threads == 0 {
        builder
    } else {
        builder.threads(threads)
    };
    let mut loader = builder.build()?;
    measure(name, &mut loader, |batch| batch.iter().map(|i| *i as u64).sum())
}

/// Dicts of a tensor of 512 floats, an int and a string.
fn dicts(name: &'static str, batches: usize, threads: usize) -> Result<Run, Error> {
    const BATCH: usize = 32;
    let image = Tensor::zeros(batch::DType::F32, &[512]).map_err(|error| Error::Config {
        message: error.to_string(),
    })?;
    let source = dataset::from_fn(batches * BATCH, move |i| {
        let label = Value::from(i64::try_from(i)?);
        Ok(Value::map([
            ("image", image.clone().into()),
            ("label", label),
            ("name", "sample".into()),
        ]))
    });
    let builder = DataLoader::builder(source).batch_size(BATCH).collate(batch::stack);
    let builder = if threads == 0 {
        builder
    } else {
        builder.threads(threads)
    };
    let mut loader = builder.build()?;
    measure(name, &mut loader, |batch| {
        let labels = batch.get("label").and_then(Value::as_tensor);
        let labels = labels
            .and_then(|labels| labels.as_slice::<i64>().ok())
            .unwrap_or_default();
        labels.iter().map(|i| i.unsigned_abs()).sum()
    })
}

/// 38 MB of pixels, from memory that was used before or that is fresh.
fn images(name: &'static str, batches: usize, fresh: bool) -> Result<Run, Error> {
    const BATCH: usize = 64;
    let image = Tensor::zeros(batch::DType::F32, &[3, 224, 224]).map_err(|error| Error::Config {
        message: error.to_string(),
    })?;
    let source = dataset::from_fn(batches * BATCH, move |_| Ok(Value::from(image.clone())));
    let builder = DataLoader::builder(source).batch_size(BATCH).collate(batch::stack);
    let builder = if fresh { builder.allocator(Heap) } else { builder };
    let mut loader = builder.build()?;
    measure(name, &mut loader, |batch| batch.bytes() as u64)
}

fn measure<B: Send + 'static>(
    name: &'static str,
    loader: &mut DataLoader<B>,
    sum_of: impl Fn(&B) -> u64,
) -> Result<Run, Error> {
    let (mut batches, mut sum) = (0, 0);
    let begun = Instant::now();
    for batch in loader.iter()? {
        batches += 1;
        sum += sum_of(&batch?);
    }
    Ok(Run {
        name,
        batches,
        sum,
        time: begun.elapsed(),
    })
}

fn main() -> Result<(), Error> {
    let full = std::env::args().any(|arg| arg == "--bench");
    let (many, few) = if full { (20_000, 100) } else { (50, 2) };
    let all = |n: usize| (n * 32 * (n * 32 - 1) / 2) as u64;
    let pixels = |n: usize| (n * 64 * 3 * 224 * 224 * 4) as u64;
    let runs = [
        (numbers("32 numbers, inline", many, 0)?, all(many)),
        (numbers("32 numbers, 1 thread", many, 1)?, all(many)),
        (numbers("32 numbers, 2 threads", many, 2)?, all(many)),
        (dicts("32 dicts, inline", many, 0)?, all(many)),
        (dicts("32 dicts, 2 threads", many, 2)?, all(many)),
        (
            images("38 MB of images, inline, memory used again", few, false)?,
            pixels(few),
        ),
        (images("38 MB of images, inline, fresh memory", few, true)?, pixels(few)),
    ];
    for (run, expected) in runs {
        assert_eq!(run.sum, expected, "{}: the batches are not right", run.name);
        if full {
            #[expect(clippy::cast_precision_loss, reason = "a few thousand batches")]
            let each = run.time.as_secs_f64() * 1e6 / run.batches as f64;
            println!("{:<45} {each:>10.2} us for each batch", run.name);
        }
    }
    Ok(())
}
