//! Worker processes: the suite of all pools, deaths, and what is left behind.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use feedrate::batch::{self, DType, Tensor, Value};
use feedrate::testing::{self, ABORTS, ABORTS_ONCE, Abilities, FAILS, SLEEPS};
use feedrate::work::{Launch, Processes, Workers};
use feedrate::{BoxError, Builder, Context, DataLoader, Error, dataset, loader::Samples, sampler};

/// What worker processes run: this test program, told to run this test only. In the tests' own process it returns at once.
#[test]
fn worker() {
    Workers::new()
        .with("probe", testing::probe)
        .with("stream", testing::probe_stream)
        .with("tensors", tensors)
        .with("refuses", |_| {
            Err::<Builder<feedrate::loader::MapSource<testing::Probe>, Vec<i64>>, _>("no data here".into())
        })
        .run();
    if let Some(path) = std::env::var_os(RETURNED) {
        std::fs::write(path, "this process is no worker").unwrap();
    }
}

/// For the test of orphans: a file that tells that one of them went on with its program.
const RETURNED: &str = "FEEDRATE_TEST_RETURNED";

/// Runs one of these tests in a process of its own, started by `with`. Its output ends when all that it has started have.
fn alone(test: &str, with: &str, env: Option<(&str, &str)>) -> std::process::Output {
    std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("exec {with} \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "-q"])
        .envs(env)
        .output()
        .unwrap()
}

/// In a process of its own: ends while its workers are starting.
#[test]
fn leaves_at_once() {
    if std::env::var_os(RETURNED).is_some() {
        let mut loader = loader(vec![vec![1]], 4, "").build().unwrap();
        let _epoch = loader.iter().unwrap();
        feedrate_shm::exit_now(7);
    }
}

#[test]
fn a_worker_whose_parent_is_gone_does_not_go_on_with_the_program() {
    let scratch = Scratch::new("orphans");
    let told = scratch.0.join("told");
    for _ in 0..10 {
        let output = alone(
            "processes::leaves_at_once",
            "",
            Some((RETURNED, told.to_str().unwrap())),
        );
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert!(!told.exists());
    }
}

#[test]
fn deaths_are_noticed_where_sigchld_is_ignored() {
    // Not by a shell's trap: some give it back before they start the program.
    let with = "env --ignore-signal=CHLD";
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("exec {with} grep SigIgn /proc/self/status")])
        .output()
        .unwrap();
    let status = String::from_utf8_lossy(&status.stdout);
    let ignored = u64::from_str_radix(status.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert!(ignored & (1 << 16) != 0, "{status}");
    let output = alone("processes::killed_from_outside", with, None);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}

fn launch(recipe: &str) -> Launch {
    Launch::new(recipe)
        .arg("--exact")
        .arg("processes::worker")
        .arg("--nocapture")
        .arg("-q")
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a recipe")]
fn tensors(_: Vec<u8>) -> Result<Builder<impl Samples, Value>, BoxError> {
    let sample = |i: usize, cx: &Context| {
        let image = Tensor::build(&batch::Heap, DType::U8, &[3, 64, 64], |bytes| {
            bytes.fill(u8::try_from(i % 251).unwrap_or(0));
            Ok::<_, batch::TensorError>(())
        })?;
        Ok(Value::map([
            ("image", Value::from(image)),
            ("label", i64::try_from(i)?.into()),
            ("noise", cx.rng(1).uniform().into()),
            ("name", format!("sample {i}").into()),
        ]))
    };
    let source = feedrate::DatasetExt::map_with(dataset::range(0..50), sample);
    Ok(DataLoader::builder(source).batch_size(8).seed(5).collate(batch::stack))
}

/// A directory of this test's own, removed afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("feedrate-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn loader(
    batches: Vec<Vec<usize>>,
    workers: usize,
    marks: &str,
) -> Builder<feedrate::loader::MapSource<testing::Probe>, Vec<i64>> {
    testing::probe(marks.into())
        .unwrap()
        .batch_sampler(sampler::from_iter(move |_| batches.clone()))
        .processes(workers, launch("probe").argument(marks))
}

#[test]
fn conformance() {
    testing::pool_conformance(Abilities { ahead: true }, |workers, in_flight| {
        Processes::new(launch("probe"), workers, in_flight, 0, false).unwrap()
    });
    testing::stream_conformance(|workers| Processes::new(launch("stream"), workers, 1, 0, false).unwrap());
}

/// Tensors, text and random numbers are those of the inline loader.
#[test]
fn the_same_batches_as_inline() {
    let inline: Vec<Value> = tensors(Vec::new())
        .unwrap()
        .build()
        .unwrap()
        .iter()
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(inline.len(), 7);
    let mut loader = tensors(Vec::new())
        .unwrap()
        .processes(2, launch("tensors"))
        .build()
        .unwrap();
    let mut kept = Vec::new();
    for _ in 0..3 {
        loader.set_epoch(0);
        let got: Vec<Value> = loader.iter().unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(got, inline);
        kept.push(got);
    }
    // Batches outlive their loader and its workers.
    drop(loader);
    assert!(kept.iter().all(|got| *got == inline));
    let Some(Value::Tensor(image)) = kept[0][0].get("image") else {
        panic!("no image")
    };
    let mut image = image.clone();
    kept.clear();
    // And they are writable by their sole owner.
    image.as_bytes_mut().unwrap().fill(1);
}

/// Saved inline or in processes, resumed in processes or inline: the same tensors, random numbers included.
#[test]
fn a_resumed_loader_goes_on_in_processes() {
    let build = |workers: usize| {
        let builder = tensors(Vec::new()).unwrap();
        match workers {
            0 => builder.inline(),
            n => builder.processes(n, launch("tensors")),
        }
    };
    let all =
        |loader: &mut DataLoader<Value>| -> Vec<Value> { loader.iter().unwrap().collect::<Result<_, _>>().unwrap() };
    let whole = all(&mut build(0).build().unwrap());
    for (before, after) in [(0, 2), (2, 0), (2, 1)] {
        for cut in [0, 3, whole.len()] {
            let mut loader = build(before).build().unwrap();
            let mut epoch = loader.iter().unwrap();
            let taken: Vec<Value> = epoch.by_ref().take(cut).collect::<Result<_, _>>().unwrap();
            assert_eq!(taken, whole[..cut]);
            let state = epoch.state().unwrap().to_string().parse().unwrap();
            let mut resumed = build(after).resume(state).build().unwrap();
            assert_eq!(
                all(&mut resumed),
                whole[cut..],
                "{before} to {after} workers, cut at {cut}"
            );
        }
    }
}

#[test]
fn a_dead_worker_is_replaced_and_its_tasks_done_again() {
    let scratch = Scratch::new("redo");
    for workers in [1, 3] {
        let once = ABORTS_ONCE + workers;
        let batches: Vec<Vec<usize>> = (0..12)
            .map(|b| vec![b, if b == 5 { once } else { SLEEPS + 1 }])
            .collect();
        let mut loader = loader(batches.clone(), workers, scratch.name()).build().unwrap();
        let got: Vec<Vec<i64>> = loader.iter().unwrap().collect::<Result<_, _>>().unwrap();
        let expected: Vec<Vec<i64>> = batches
            .iter()
            .map(|b| b.iter().map(|i| i64::try_from(*i).unwrap()).collect())
            .collect();
        assert_eq!(got, expected);
        let counters = loader.counters();
        assert_eq!((counters.deaths, counters.delivered), (1, 12));
        assert!(counters.redone >= 1);
    }
}

#[test]
fn a_task_that_kills_twice_is_named_in_its_place() {
    let batches = vec![vec![1], vec![2, ABORTS + 7], vec![3], vec![4]];
    let mut loader = loader(batches, 2, "").build().unwrap();
    let mut epoch = loader.iter().unwrap();
    assert_eq!(epoch.next().unwrap().unwrap(), [1]);
    let error = epoch.next().unwrap().unwrap_err();
    let Error::WorkerDied(death) = &error else {
        panic!("{error}")
    };
    assert_eq!(death.indices, [2, ABORTS + 7]);
    assert_eq!((death.signal, death.exit_code, death.twice), (Some(6), None, true));
    // It may be noticed while the first batch is still waited for.
    assert!(death.delivered <= 1);
    assert!(
        error
            .to_string()
            .contains("signal 6 while it worked on samples 2, 800007"),
        "{error}"
    );
    assert!(error.may_continue());
    // The others are not harmed.
    assert_eq!(epoch.next().unwrap().unwrap(), [3]);
    assert_eq!(epoch.next().unwrap().unwrap(), [4]);
    assert!(epoch.next().is_none());
}

#[test]
fn without_redo_a_death_ends_the_epoch() {
    let scratch = Scratch::new("no-redo");
    let batches = vec![vec![1], vec![ABORTS_ONCE], vec![3]];
    let mut loader = loader(batches, 1, scratch.name()).redo(false).build().unwrap();
    let results: Vec<_> = loader.iter().unwrap().collect();
    let error = results.last().unwrap().as_ref().unwrap_err();
    assert!(error.is_worker_died() && !error.may_continue(), "{error}");
    assert!(results.len() <= 2);
    // The next epoch has a worker again.
    let results: Result<Vec<_>, _> = loader.iter().unwrap().collect();
    assert_eq!(results.unwrap().len(), 3);
}

#[test]
fn killed_from_outside() {
    let batches: Vec<Vec<usize>> = (0..40).map(|b| vec![b, SLEEPS + 2]).collect();
    let pool = Processes::<Vec<i64>>::new(launch("probe"), 2, 1, 0, false).unwrap();
    let mut delivery = feedrate::deliver::Delivery::new(pool, testing::options(4));
    delivery
        .begin(testing::plan(0, batches, &std::sync::Arc::default()))
        .unwrap();
    let mut got = Vec::new();
    while let Some(result) = delivery.next(None) {
        got.push(result.unwrap().output.unwrap()[0]);
        if got.len() % 7 == 3 {
            let victim = delivery.pool().pids()[got.len() % 2];
            if let Some(pid) = victim.and_then(|pid| i32::try_from(pid).ok()) {
                // It may have died between.
                let _ = feedrate_shm::PidFd::open(pid).and_then(|fd| fd.send_signal(9));
            }
        }
    }
    assert_eq!(got, (0..40).collect::<Vec<i64>>());
    assert!(delivery.counters().deaths > 0);
}

#[test]
fn workers_that_cannot_begin_say_why() {
    let cases = [
        (
            launch("refuses"),
            "worker 0 could not begin: the recipe \"refuses\" failed: no data here",
        ),
        (
            launch("nobody"),
            "worker 0 could not begin: the worker knows no recipe \"nobody\", only \
             [\"probe\", \"stream\", \"tensors\", \"refuses\"]: add it with Workers::with before run",
        ),
        (
            Launch::new("probe").program("/nonexistent/program"),
            "starting /nonexistent/program as a worker: No such file",
        ),
    ];
    for (launch, text) in cases {
        let builder = testing::probe(Vec::new()).unwrap().batch_size(1).processes(1, launch);
        let mut loader = builder.build().unwrap();
        let error = match loader.iter() {
            Err(error) => error,
            Ok(mut epoch) => epoch.next().unwrap().unwrap_err(),
        };
        assert!(error.to_string().starts_with(text), "{error}");
        assert!(!error.may_continue());
    }
    // A program that is no worker at all: it ends before it is ready, twice.
    let launch = Launch::new("probe").program("/bin/false");
    let mut loader = testing::probe(Vec::new())
        .unwrap()
        .processes(1, launch)
        .build()
        .unwrap();
    let error = loader.iter().unwrap().next().unwrap().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("exited with code 1 before it was ready, and so did its replacement"),
        "{error}"
    );
}

/// A message that does not fit one datagram, and errors with their place.
#[test]
fn large_jobs_and_errors() {
    let batches = vec![(0..5000).collect(), vec![FAILS + 3]];
    let mut loader = loader(batches, 1, "").build().unwrap();
    let mut epoch = loader.iter().unwrap();
    assert_eq!(epoch.next().unwrap().unwrap(), (0..5000).collect::<Vec<i64>>());
    let error = epoch.next().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "sample 500003 of batch 1 failed in worker 0: probe 500003 fails"
    );
}

fn state(pid: u32) -> Option<char> {
    feedrate_shm::process_state(i32::try_from(pid).unwrap())
}

#[test]
fn no_process_is_left() {
    for busy in [false, true] {
        let pool = Processes::<Vec<i64>>::new(launch("probe"), 2, 1, 0, false).unwrap();
        let pids: Vec<u32> = pool.pids().into_iter().flatten().collect();
        let mut delivery = feedrate::deliver::Delivery::new(pool, testing::options(4));
        let slow = if busy { SLEEPS + 60_000 } else { 7 };
        let batches = vec![vec![1], vec![2], vec![slow], vec![slow]];
        delivery
            .begin(testing::plan(0, batches, &std::sync::Arc::default()))
            .unwrap();
        assert!(delivery.next(None).unwrap().is_ok());
        assert!(pids.iter().all(|pid| state(*pid).is_some()));
        let begun = Instant::now();
        drop(delivery);
        assert!(pids.iter().all(|pid| state(*pid).is_none()), "busy: {busy}");
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "a busy worker is not waited for"
        );
    }
}

/// Memory of batches that were let go is used again: the arenas do not grow over epochs.
#[test]
fn memory_does_not_grow() {
    let mut loader = tensors(Vec::new())
        .unwrap()
        .processes(1, launch("tensors"))
        .build()
        .unwrap();
    let mut mapped = Vec::new();
    for _ in 0..20 {
        for batch in loader.iter().unwrap() {
            batch.unwrap();
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        mapped.push(
            maps.lines()
                .filter(|line| line.contains("memfd:feedrate-tensors"))
                .count(),
        );
    }
    assert!(mapped[19] <= mapped[2] + 2, "{mapped:?}");
}
