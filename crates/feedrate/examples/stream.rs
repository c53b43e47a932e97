//! A source that knows no index: lines of several files, shared out among workers. `cargo run -p feedrate --example stream`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use feedrate::dataset::Items;
use feedrate::{BoxError, Context, DataLoader, IterableDataset};

/// Each worker reads every n-th file.
struct Lines(Vec<PathBuf>);

impl IterableDataset for Lines {
    type Item = String;

    fn iter(&self, cx: &Context) -> Result<Items<String>, BoxError> {
        let mine = self.0.iter().skip(cx.worker.id).step_by(cx.worker.workers);
        let files = mine.map(File::open).collect::<Result<Vec<_>, _>>()?;
        let lines = files.into_iter().flat_map(|file| BufReader::new(file).lines());
        Ok(Box::new(lines.map(|line| Ok(line?))))
    }
}

fn main() -> Result<(), BoxError> {
    let folder = std::env::temp_dir().join(format!("feedrate-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut files = Vec::new();
    for name in ["a", "b", "c"] {
        let lines = [0, 1, 2, 3, 4].map(|i| format!("{name}{i}\n")).concat();
        files.push(folder.join(name));
        std::fs::write(folder.join(name), lines)?;
    }

    let mut loader = DataLoader::stream(Lines(files)).batch_size(4).threads(2).build()?;
    for batch in loader.iter()? {
        println!("{:?}", batch?);
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
