//! Workers in processes of their own, one of which dies: `cargo run -p feedrate --example processes`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

#[cfg(all(feature = "processes", target_os = "linux"))]
mod run {
    use std::path::Path;

    use feedrate::batch::{self, Tensor, Value};
    use feedrate::loader::Samples;
    use feedrate::work::{Launch, Workers};
    use feedrate::{BoxError, Builder, DataLoader, dataset};

    /// What the parent and its workers agree on; the argument is the path of a file that marks that the accident has happened.
    #[expect(clippy::unnecessary_wraps, reason = "the form of a recipe")]
    fn recipe(argument: Vec<u8>) -> Result<Builder<impl Samples, Value>, BoxError> {
        let source = dataset::from_fn(40, move |i| {
            let mark = Path::new(std::str::from_utf8(&argument)?);
            if i == 13 && !mark.exists() {
                std::fs::write(mark, b"")?;
                std::process::abort();
            }
            Ok(i64::try_from(i)?)
        });
        Ok(DataLoader::builder(source).batch_size(8).collate(batch::stack))
    }

    pub(crate) fn main() -> Result<(), BoxError> {
        // In a worker process this serves and never returns.
        Workers::new().with("numbers", recipe).run();

        let mark = std::env::temp_dir().join(format!("feedrate-example-{}", std::process::id()));
        let argument = mark.to_string_lossy().into_owned().into_bytes();
        let launch = Launch::new("numbers").argument(argument.clone());
        let mut loader = recipe(argument)?.processes(2, launch).build()?;
        for batch in loader.iter()? {
            let batch = batch?;
            let numbers = batch.as_tensor().map(Tensor::to_vec::<i64>).transpose()?;
            println!("{numbers:?}");
        }
        let counters = loader.counters();
        println!(
            "{} worker died, {} tasks were done again",
            counters.deaths, counters.redone
        );
        std::fs::remove_file(&mark)?;
        Ok(())
    }
}

#[cfg(all(feature = "processes", target_os = "linux"))]
fn main() -> Result<(), feedrate::BoxError> {
    run::main()
}

#[cfg(not(all(feature = "processes", target_os = "linux")))]
fn main() {
    println!("worker processes need Linux and the feature `processes`");
}
