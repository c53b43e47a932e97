//! What every pool must do, as a test suite; feature `testing`.
//!
//! [`pool_conformance`] and [`stream_conformance`] drive a pool through a [`Delivery`] and panic at the first thing that is wrong.
//! The pools must run the works of [`probe`] and [`probe_stream`].

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::dataset::{Context, Dataset, Items, IterableDataset};
#[cfg(feature = "image")]
pub use crate::decode::exhaust::exhaust_image;
use crate::deliver::{Delivery, Failure, Options};
use crate::error::{BoxError, Error};
use crate::loader::{Builder, DataLoader, MapSource, StreamSource};
pub use crate::source::exhaust::{exhaust, kept_as_seed};
use crate::source::{self, Mark, Part, Reader, Record, Source, SourceError};
use crate::work::{BatchJob, Pool};

/// What the pool under test can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// It works while nobody waits for it, so that a wait can time out.
    pub ahead: bool,
}

/// The output of the pools under test.
pub type Output = Result<Vec<i64>, Error>;

/// Indices from here on fail.
pub const FAILS: usize = 500_000;
/// Indices from here on panic.
pub const PANICS: usize = 600_000;
/// Indices from here on take as many milliseconds as they are above it.
pub const SLEEPS: usize = 700_000;
/// Indices from here on end the process.
pub const ABORTS: usize = 800_000;
/// Indices from here on end the process unless the file `<argument>/<index>` exists, which they make.
pub const ABORTS_ONCE: usize = 900_000;
/// What an epoch adds to each value.
pub const EPOCH: i64 = 10_000_000;

/// A dataset whose samples are their indices, plus [`EPOCH`] for each epoch, and which misbehaves where it is told to.
#[derive(Debug, Clone)]
pub struct Probe {
    marks: String,
}

impl Probe {
    /// With a directory for [`ABORTS_ONCE`].
    pub fn new(marks: impl Into<String>) -> Self {
        Self { marks: marks.into() }
    }
}

/// Numbers whose readers panic once: where they are asked where they stand, behind the third one.
#[derive(Debug)]
pub struct Cracked {
    numbers: source::Items,
    whole: Arc<AtomicBool>,
}

impl Cracked {
    /// So many.
    pub fn new(count: i64) -> Self {
        Self {
            numbers: source::Items::new("cracked", (0..count).map(Into::into)),
            whole: Arc::default(),
        }
    }
}

impl Source for Cracked {
    fn format(&self) -> &'static str {
        "cracked"
    }

    fn describe(&self) -> String {
        "cracked".to_owned()
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        self.numbers.parts()
    }

    fn files(&self, _: usize) -> Result<Vec<PathBuf>, SourceError> {
        Ok(Vec::new())
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(Box::new(CrackedReader {
            numbers: self.numbers.open(part, from)?,
            given: 0,
            whole: Arc::clone(&self.whole),
        }))
    }
}

struct CrackedReader {
    numbers: Box<dyn Reader>,
    given: usize,
    whole: Arc<AtomicBool>,
}

impl Reader for CrackedReader {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        self.given += 1;
        self.numbers.next()
    }

    fn mark(&self) -> Mark {
        assert!(
            self.given < 3 || self.whole.swap(true, Ordering::Relaxed),
            "a crack in the reader"
        );
        self.numbers.mark()
    }
}

impl Dataset for Probe {
    type Item = i64;

    fn len(&self) -> usize {
        1_000_000
    }

    fn get(&self, index: usize, cx: &Context) -> Result<i64, BoxError> {
        match index {
            ABORTS_ONCE.. => {
                let mark = std::path::Path::new(&self.marks).join(index.to_string());
                if !mark.exists() {
                    std::fs::write(&mark, b"")?;
                    std::process::abort();
                }
            }
            ABORTS.. => std::process::abort(),
            SLEEPS.. => std::thread::sleep(Duration::from_millis((index - SLEEPS) as u64)),
            PANICS.. => panic!("probe {index} panics"),
            FAILS.. => return Err(format!("probe {index} fails").into()),
            _ => {}
        }
        Ok(i64::try_from(index)? + EPOCH * i64::try_from(cx.epoch)?)
    }
}

/// What the pools of [`pool_conformance`] run. As a recipe, the argument is a directory for [`ABORTS_ONCE`].
pub fn probe(argument: Vec<u8>) -> Result<Builder<MapSource<Probe>, Vec<i64>>, BoxError> {
    Ok(DataLoader::builder(Probe::new(String::from_utf8(argument)?)))
}

/// A stream of which worker `w` has `3 + 4 * w` samples: `1000 * w`, counting on, plus [`EPOCH`] for each epoch.
#[derive(Debug, Clone, Copy)]
pub struct ProbeStream;

impl IterableDataset for ProbeStream {
    type Item = i64;

    fn iter(&self, cx: &Context) -> Result<Items<i64>, BoxError> {
        let worker = i64::try_from(cx.worker.id)?;
        let start = 1000 * worker + EPOCH * i64::try_from(cx.epoch)?;
        Ok(Box::new((start..start + 3 + 4 * worker).map(Ok)))
    }
}

/// What the pools of [`stream_conformance`] run.
pub fn probe_stream(_: Vec<u8>) -> Result<Builder<StreamSource<ProbeStream>, Vec<i64>>, BoxError> {
    Ok(DataLoader::stream(ProbeStream))
}

/// The options of a delivery for a pool that works ahead.
pub fn options(window: usize) -> Options {
    Options {
        window,
        in_order: true,
        ahead: true,
        redo: true,
        pinned: false,
    }
}

/// A plan of these batches, which counts those that it has given.
pub fn plan(
    epoch: u64,
    batches: impl IntoIterator<Item = Vec<usize>, IntoIter: Send + 'static>,
    planned: &Arc<AtomicUsize>,
) -> Box<dyn Iterator<Item = Result<BatchJob, Error>> + Send> {
    let planned = Arc::clone(planned);
    let mut first = 0;
    Box::new(batches.into_iter().map(move |indices| {
        planned.fetch_add(1, Ordering::Relaxed);
        let count = indices.len();
        let job = BatchJob {
            epoch,
            first,
            indices,
            count,
            turn: None,
        };
        first += count as u64;
        Ok(job)
    }))
}

type Plan = Box<dyn Iterator<Item = Result<BatchJob, Error>> + Send>;

/// Takes everything that is left of an epoch: positions, and what came.
fn drain<P>(delivery: &mut Delivery<Plan, P>) -> Vec<(u64, Output)>
where
    P: Pool<Job = BatchJob, Output = Output, Error = Error>,
{
    std::iter::from_fn(|| delivery.next(None))
        .map(|result| match result {
            Ok(delivered) => (delivered.position, delivered.output),
            Err(failure) => panic!("a delivery failed: {failure:?}"),
        })
        .collect()
}

fn values(indices: &[usize], epoch: i64) -> Vec<i64> {
    indices
        .iter()
        .filter_map(|i| i64::try_from(*i).ok())
        .map(|i| i + EPOCH * epoch)
        .collect()
}

/// Batches whose samples take 0 to 3 ms, the slow ones first.
fn uneven(batches: usize, size: usize) -> Vec<Vec<usize>> {
    let index = |b: usize, i: usize| {
        if (b + i).is_multiple_of(3) {
            SLEEPS + (3 - b % 4)
        } else {
            b * size + i
        }
    };
    (0..batches).map(|b| (0..size).map(|i| index(b, i)).collect()).collect()
}

/// Everything that a pool of [`probe`] works must do. `make` gives a new pool of so many workers with so many samples in flight
/// each.
///
/// # Panics
/// At the first thing that is wrong.
pub fn pool_conformance<P>(abilities: Abilities, make: impl Fn(usize, usize) -> P)
where
    P: Pool<Job = BatchJob, Output = Output, Error = Error>,
{
    for (workers, in_flight) in [(1, 1), (2, 1), (3, 2)] {
        in_plan_order(make(workers, in_flight));
        as_completed(make(workers, in_flight));
        within_the_window(make(workers, in_flight));
        with_errors(make(workers, in_flight));
        from_epoch_to_epoch(make(workers, in_flight));
        dropped_while_busy(make(workers, in_flight));
        if abilities.ahead {
            timing_out(make(workers, in_flight));
        }
    }
}

fn in_plan_order<P: Pool<Job = BatchJob, Output = Output, Error = Error>>(pool: P) {
    let window = 2 * pool.workers();
    let mut delivery = Delivery::new(pool, options(window));
    let batches = uneven(23, 5);
    delivery
        .begin(plan(0, batches.clone(), &Arc::default()))
        .expect("an epoch begins");
    let got = drain(&mut delivery);
    assert_eq!(got.len(), batches.len(), "every task comes exactly once");
    for ((position, output), (at, indices)) in got.into_iter().zip(batches.iter().enumerate()) {
        assert_eq!(position, at as u64, "tasks come in plan order");
        assert_eq!(
            output.expect("no sample fails"),
            values(indices, 0),
            "a batch holds its samples in order"
        );
    }
    assert!(delivery.next(None).is_none(), "the end stays");
    delivery
        .begin(plan(0, [vec![], vec![1]], &Arc::default()))
        .expect("an epoch begins");
    let sizes: Vec<_> = drain(&mut delivery)
        .into_iter()
        .map(|(_, o)| o.expect("no sample fails").len())
        .collect();
    assert_eq!(sizes, [0, 1], "a batch of no samples is a batch");
}

fn as_completed<P: Pool<Job = BatchJob, Output = Output, Error = Error>>(pool: P) {
    let window = 2 * pool.workers();
    let mut delivery = Delivery::new(
        pool,
        Options {
            in_order: false,
            ..options(window)
        },
    );
    let batches = uneven(23, 5);
    delivery
        .begin(plan(0, batches.clone(), &Arc::default()))
        .expect("an epoch begins");
    let mut seen = BTreeSet::new();
    for (position, output) in drain(&mut delivery) {
        let at = usize::try_from(position).expect("positions are small");
        assert_eq!(output.expect("no sample fails"), values(&batches[at], 0));
        assert!(seen.insert(position), "no task comes twice");
    }
    assert_eq!(seen.len(), batches.len(), "every task comes");
}

fn within_the_window<P: Pool<Job = BatchJob, Output = Output, Error = Error>>(pool: P) {
    let window = 3 * pool.workers();
    let mut delivery = Delivery::new(pool, options(window));
    let planned = Arc::new(AtomicUsize::new(0));
    delivery
        .begin(plan(0, uneven(30, 2), &planned))
        .expect("an epoch begins");
    for delivered in 1..=30 {
        let before = planned.load(Ordering::Relaxed);
        assert!(
            before < delivered + window,
            "{before} planned before batch {delivered}, window {window}"
        );
        assert!(matches!(delivery.next(None), Some(Ok(_))));
    }
    assert_eq!(planned.load(Ordering::Relaxed), 30);
}

fn with_errors<P: Pool<Job = BatchJob, Output = Output, Error = Error>>(pool: P) {
    let window = 2 * pool.workers();
    let mut delivery = Delivery::new(pool, options(window));
    let batches = [
        vec![1, 2, 3],
        // The first one that fails is named, also when a later one fails sooner.
        vec![4, SLEEPS + 5, FAILS + 1, 5, FAILS + 2, PANICS + 1],
        vec![6],
        vec![PANICS + 2, 7],
        vec![8, 9],
    ];
    delivery
        .begin(plan(0, batches, &Arc::default()))
        .expect("an epoch begins");
    let got = drain(&mut delivery);
    let texts: Vec<String> = got
        .into_iter()
        .map(|(position, output)| match output {
            Ok(batch) => format!("{batch:?}"),
            Err(Error::Sample {
                index,
                position: at,
                panic,
                source,
                ..
            }) => {
                assert_eq!(at, position, "an error names its batch");
                format!("{index} {panic} {source}")
            }
            Err(other) => panic!("another error than of a sample: {other}"),
        })
        .collect();
    let expected = [
        "[1, 2, 3]",
        "500001 false probe 500001 fails",
        "[6]",
        "600002 true probe 600002 panics",
        "[8, 9]",
    ];
    assert_eq!(texts, expected);
}

fn from_epoch_to_epoch<P: Pool<Job = BatchJob, Output = Output, Error = Error>>(pool: P) {
    let window = 2 * pool.workers();
    let mut delivery = Delivery::new(pool, options(window));
    for epoch in 0..6_u64 {
        let batches = uneven(9, 4);
        delivery
            .begin(plan(epoch, batches.clone(), &Arc::default()))
            .expect("an epoch begins");
        let signed = i64::try_from(epoch).expect("epochs are few");
        // Most epochs are abandoned after a few batches, one at once.
        let taken = [9, 2, 0, 5, 1, 9][usize::try_from(epoch).expect("epochs are few")];
        for (at, indices) in batches.iter().enumerate().take(taken) {
            match delivery.next(None) {
                Some(Ok(got)) => {
                    assert_eq!(got.position, at as u64);
                    let batch = got.output.expect("no sample fails");
                    assert_eq!(batch, values(indices, signed), "nothing of another epoch comes");
                }
                other => panic!("no batch {at} in epoch {epoch}: {other:?}"),
            }
        }
    }
    assert!(delivery.next(None).is_none());
}

fn dropped_while_busy<P: Pool<Job = BatchJob, Output = Output, Error = Error>>(pool: P) {
    let window = 2 * pool.workers();
    let mut delivery = Delivery::new(pool, options(window));
    delivery
        .begin(plan(0, uneven(9, 4), &Arc::default()))
        .expect("an epoch begins");
    assert!(delivery.next(None).is_some());
    drop(delivery);
}

fn timing_out<P: Pool<Job = BatchJob, Output = Output, Error = Error>>(pool: P) {
    let window = 2 * pool.workers();
    let mut delivery = Delivery::new(pool, options(window));
    // The first batch shows that the workers have begun.
    let batches = [vec![1], vec![SLEEPS + 800], vec![2]];
    delivery
        .begin(plan(0, batches, &Arc::default()))
        .expect("an epoch begins");
    assert!(matches!(delivery.next(None), Some(Ok(_))));
    match delivery.next(Some(Duration::from_millis(20))) {
        Some(Err(Failure::TimedOut { tasks, .. })) => assert_eq!(tasks[0].position, 1),
        other => panic!("no timeout: {other:?}"),
    }
    assert!(matches!(
        delivery.next(Some(Duration::ZERO)),
        Some(Err(Failure::TimedOut { .. }))
    ));
    let rest: Vec<u64> = drain(&mut delivery).into_iter().map(|(position, _)| position).collect();
    assert_eq!(rest, [1, 2], "the awaited batch is not lost");
}

/// What a pool of [`probe_stream`] works must do with streams that end at different times. `make` gives a new pool of so many
/// workers.
///
/// # Panics
/// At the first thing that is wrong.
pub fn stream_conformance<P>(make: impl Fn(usize) -> P)
where
    P: Pool<Job = BatchJob, Output = Output, Error = Error>,
{
    for (workers, ahead) in [(1, false), (1, true), (2, true), (3, true)] {
        for in_order in [true, false] {
            let pool = make(workers);
            let workers = pool.workers();
            let window = if ahead { 2 * workers } else { 1 };
            let mut delivery = Delivery::new(
                pool,
                Options {
                    in_order,
                    ahead,
                    pinned: true,
                    ..options(window)
                },
            );
            for epoch in 0..3 {
                let job = move || BatchJob {
                    epoch,
                    first: 0,
                    count: 2,
                    ..BatchJob::default()
                };
                let jobs: Plan = Box::new(std::iter::repeat_with(move || Ok(job())));
                delivery.begin(jobs).expect("an epoch begins");
                if epoch == 1 {
                    // Abandoned; its streams are not heard of again.
                    assert!(matches!(delivery.next(None), Some(Ok(_))));
                    continue;
                }
                let mut got: Vec<Vec<i64>> = drain(&mut delivery)
                    .into_iter()
                    .map(|(_, o)| o.expect("no sample fails"))
                    .collect();
                let mut expected = round_robin(workers, i64::try_from(epoch).expect("epochs are few"));
                if !in_order {
                    got.sort_unstable();
                    expected.sort_unstable();
                }
                assert_eq!(got, expected, "{workers} workers, in order: {in_order}");
            }
        }
    }
}

/// Batches of two, in turns, from each stream that has not ended.
fn round_robin(workers: usize, epoch: i64) -> Vec<Vec<i64>> {
    let stream = |worker: i64| {
        (0..3 + 4 * worker)
            .map(|i| 1000 * worker + i + EPOCH * epoch)
            .collect::<Vec<_>>()
    };
    let streams: Vec<Vec<i64>> = (0..workers).filter_map(|w| i64::try_from(w).ok()).map(stream).collect();
    let mut batches = Vec::new();
    for round in 0.. {
        let before = batches.len();
        for stream in &streams {
            batches.extend(stream.chunks(2).nth(round).map(<[i64]>::to_vec));
        }
        if batches.len() == before {
            break;
        }
    }
    batches
}
