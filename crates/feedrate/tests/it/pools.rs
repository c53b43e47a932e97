//! The pools of this process against the suite that all pools must pass, and what only threads do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
#[cfg(target_os = "linux")]
use std::time::Instant;

use feedrate::batch::Heap;
use feedrate::testing::{self, Abilities, Output, Probe, ProbeStream, SLEEPS};
use feedrate::work::{Draw, Fetch, Inline, Team, Threads};
use feedrate::{DataLoader, dataset};

/// Longer than anything here takes, and shorter than a test runner's.
const PATIENCE: Duration = Duration::from_secs(20);

fn fetch() -> Fetch<Probe, Vec<i64>> {
    Fetch::new(
        Arc::new(Probe::new("")),
        Arc::new(|samples, _| Ok(samples)),
        Arc::new(Heap),
        0,
    )
}

fn draw() -> Draw<ProbeStream, Vec<i64>> {
    Draw::new(
        Arc::new(ProbeStream),
        Arc::new(|samples, _| Ok(samples)),
        Arc::new(Heap),
        0,
        false,
    )
}

#[test]
fn inline() {
    testing::pool_conformance(Abilities { ahead: false }, |_, _| Inline::new(fetch()));
    testing::stream_conformance(|_| Inline::new(draw()));
}

#[test]
fn threads() {
    testing::pool_conformance(Abilities { ahead: true }, |workers, in_flight| {
        Threads::new(fetch(), Team { workers, in_flight }).unwrap()
    });
    testing::stream_conformance(|workers| Threads::new(draw(), Team { workers, in_flight: 1 }).unwrap());
}

/// All threads work on the first batch: each of its samples waits until all of them are under way.
#[test]
fn the_first_batch_is_shared() {
    static UNDER_WAY: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
    let source = dataset::from_fn(64, |i| {
        if i < 16 {
            let (count, changed) = &UNDER_WAY;
            let mut count = count.lock().unwrap();
            *count += 1;
            changed.notify_all();
            let (count, _) = changed
                .wait_timeout_while(count, PATIENCE, |count| *count < 16)
                .unwrap();
            assert_eq!(
                *count, 16,
                "all samples of the first batch are begun before one is done"
            );
        }
        Ok(i)
    });
    let loader = DataLoader::builder(source)
        .batch_size(16)
        .threads(2)
        .items_in_flight(8)
        .build();
    let batches: Vec<Vec<usize>> = loader.unwrap().iter().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(batches.concat(), (0..64).collect::<Vec<_>>());
}

/// Never more samples are in flight than were asked for.
#[test]
fn items_in_flight_is_a_bound() {
    static NOW: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let source = dataset::from_fn(60, |i| {
        MOST.fetch_max(NOW.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(3));
        NOW.fetch_sub(1, Ordering::SeqCst);
        Ok(i)
    });
    let loader = DataLoader::builder(source)
        .batch_size(6)
        .threads(2)
        .items_in_flight(3)
        .build();
    assert_eq!(loader.unwrap().iter().unwrap().count(), 10);
    assert!((1..=6).contains(&MOST.load(Ordering::SeqCst)));
}

/// Waits until this process has so many threads of ours: the kernel names them, and forgets them, a moment late.
#[cfg(target_os = "linux")]
fn until_threads(count: usize) {
    let begun = Instant::now();
    while threads_of_ours() != count {
        assert!(begun.elapsed() < PATIENCE, "{} threads, not {count}", threads_of_ours());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(target_os = "linux")]
fn threads_of_ours() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("feedrate-"))
        .count()
}

/// Runs itself alone in a process, since other tests have threads of this name.
#[test]
#[cfg(target_os = "linux")]
fn no_thread_is_left() {
    if std::env::var_os("FEEDRATE_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "pools::no_thread_is_left", "--test-threads=1"])
            .env("FEEDRATE_TEST_ALONE", "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    for taken in [0, 1, 5] {
        let probe = Probe::new("");
        let batches = (0..20).map(|i| vec![SLEEPS + 1, i]).collect::<Vec<_>>();
        let mut loader = DataLoader::builder(probe)
            .batch_sampler(feedrate::sampler::from_iter(move |_| batches.clone()))
            .threads(3)
            .items_in_flight(2)
            .build()
            .unwrap();
        assert_eq!(threads_of_ours(), 0, "nothing runs before the first epoch");
        let epoch = loader.iter().unwrap();
        assert_eq!(epoch.take(taken).flatten().count(), taken);
        until_threads(6);
        drop(loader);
        until_threads(0);
    }
}

/// A panic in a pool's own code (here: in a work that lets one out) ends the epoch loudly.
#[test]
fn a_panic_of_the_machinery_is_an_error() {
    use feedrate::deliver::{Delivery, Failure};
    use feedrate::plan::Task;
    use feedrate::work::Work;
    use feedrate::{Error, WorkerInfo};

    struct Broken;
    impl Work for Broken {
        type Job = ();
        type Part = ();
        type Output = Output;
        type Lane = ();
        const PRIVATE: bool = false;
        fn parts(&self, (): &()) -> usize {
            2
        }
        fn part(&self, _: WorkerInfo, _: &Task<()>, at: usize) {
            assert!(at == 0, "part {at} is beyond me");
        }
        fn ends(&self, (): &()) -> bool {
            false
        }
        fn finish(&self, _: WorkerInfo, _: &Task<()>, _: Vec<()>, _: &mut Option<()>) -> Option<Output> {
            None
        }
    }
    let pool = Threads::new(
        Broken,
        Team {
            workers: 2,
            in_flight: 1,
        },
    )
    .unwrap();
    let mut delivery = Delivery::new(pool, testing::options(4));
    delivery.begin((0..4).map(|_| Ok::<(), Error>(()))).unwrap();
    match delivery.next(None) {
        Some(Err(Failure::Pool(error @ Error::Bug { .. }))) => {
            assert!(error.to_string().contains("part 1 is beyond me"), "{error}");
            assert!(!error.may_continue());
        }
        other => panic!("not the bug: {other:?}"),
    }
}

#[test]
fn numbers_of_threads_are_checked() {
    for (workers, in_flight) in [(0, 1), (1, 0)] {
        let error = Threads::new(fetch(), Team { workers, in_flight }).unwrap_err();
        assert!(error.is_config(), "{error}");
    }
}
