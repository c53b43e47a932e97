//! Delivery and window against a simulated pool: random latencies, deaths, redo, ends of streams.

use std::time::Duration;

use feedrate::deliver::{Delivery, Failure, Options};
use feedrate::random::Key;

use crate::simulated::{Job, Plan, Simulated, options, plan};

/// Hundreds of worlds: every job exactly once, in order where order was asked for, and never more in flight than the window
/// holds.
#[test]
fn every_task_once_whatever_dies() {
    for seed in 0..400 {
        let mut world = Key {
            seed,
            step: 1,
            ..Key::default()
        }
        .stream();
        let mut draw = |n: u64| usize::try_from(world.below(n)).unwrap();
        let workers = 1 + draw(4);
        let window = workers * (1 + draw(3)) + draw(3);
        let count = draw(60) as u64;
        let in_order = draw(3) > 0;
        let ahead = draw(5) > 0;
        let mut pool = Simulated::new(seed, workers);
        pool.random_deaths = if draw(2) == 0 { 0 } else { 5 };
        let random_deaths = pool.random_deaths > 0;
        let every = 3 + draw(20) as u64;
        let kills = move |number: u64| u32::from(number % every == 2);
        let mut delivery = Delivery::new(
            pool,
            Options {
                in_order,
                ahead,
                ..options(window)
            },
        );
        for epoch in 0..3 {
            delivery.pool_mut().kills.clear();
            delivery.begin(plan(count, kills)).unwrap();
            let stop = if epoch == 1 { draw(count + 1) } else { usize::MAX };
            let mut seen = Vec::new();
            while seen.len() < stop {
                let Some(result) = delivery.next(None) else { break };
                match result {
                    Ok(got) => {
                        assert_eq!(got.position, got.output.number, "a result is at its place");
                        seen.push(got.position);
                    }
                    // Chance may end two workers with one task; it is then said in its place.
                    Err(Failure::Lost(lost)) if random_deaths && lost.twice && lost.death.ready => {
                        seen.push(lost.tasks[0].position);
                    }
                    // Or two workers in a row before they were ready.
                    Err(other) => panic!("seed {seed}: {other:?}"),
                }
            }
            if in_order {
                assert!(seen.iter().copied().eq(0..seen.len() as u64), "seed {seed}: {seen:?}");
            }
            seen.sort_unstable();
            seen.dedup();
            if stop == usize::MAX {
                assert_eq!(seen.len() as u64, count, "seed {seed}, epoch {epoch}");
                assert!(delivery.next(None).is_none());
            }
        }
        let counters = delivery.counters();
        assert_eq!(
            counters.deaths,
            delivery.pool().revived,
            "seed {seed}: each death is answered"
        );
    }
}

/// Not one task more than the window is with the pool or waiting, at any time.
#[test]
fn the_window_is_never_exceeded() {
    for seed in 0..100 {
        for in_order in [true, false] {
            let workers = 1 + usize::try_from(seed % 4).unwrap();
            let window = workers * 2 + usize::try_from(seed % 3).unwrap();
            let mut delivery = Delivery::new(
                Simulated::new(seed, workers),
                Options {
                    in_order,
                    ..options(window)
                },
            );
            delivery.begin(plan(50, |_| 0)).unwrap();
            for delivered in 0..50 {
                let submitted = delivery.pool().submitted;
                assert!(
                    submitted <= delivered + window,
                    "seed {seed}: {submitted} of {delivered} + {window}"
                );
                if in_order {
                    assert_eq!(submitted, (delivered + window).min(50), "the window is kept full");
                }
                delivery.next(None).unwrap().unwrap();
            }
        }
    }
}

/// One slow task does not stop the others out of order, and nothing piles up behind it.
#[test]
fn out_of_order_goes_round_a_slow_task() {
    let mut delivery = Delivery::new(
        Simulated::new(1, 2),
        Options {
            in_order: false,
            ..options(4)
        },
    );
    delivery.begin(plan(1000, |_| 0)).unwrap();
    // Worker 0 sits on task 0.
    delivery.pool_mut().workers[0].left = 3000;
    let mut order: Vec<u64> = std::iter::from_fn(|| delivery.next(None))
        .map(|r| r.unwrap().position)
        .collect();
    assert!(order.iter().position(|p| *p == 0).unwrap() > 300);
    order.sort_unstable();
    assert_eq!(order, (0..1000).collect::<Vec<_>>());
}

#[test]
fn workers_take_turns() {
    let mut delivery = Delivery::new(Simulated::new(5, 3), options(6));
    delivery.begin(plan(20, |_| 0)).unwrap();
    for at in 0..20 {
        assert_eq!(delivery.next(None).unwrap().unwrap().worker, at % 3);
    }
}

#[test]
fn a_task_that_kills_twice_is_reported_in_its_place() {
    for in_order in [true, false] {
        let mut delivery = Delivery::new(Simulated::new(3, 2), Options { in_order, ..options(4) });
        delivery
            .begin(plan(10, |number| if number == 4 { 2 } else { 0 }))
            .unwrap();
        let mut order = Vec::new();
        while let Some(result) = delivery.next(None) {
            match result {
                Ok(got) => order.push(got.position),
                Err(Failure::Lost(lost)) => {
                    assert!(lost.twice && lost.death.ready);
                    assert_eq!((lost.tasks.len(), lost.tasks[0].position, lost.worker), (1, 4, 0));
                    if in_order {
                        assert_eq!(order, [0, 1, 2, 3]);
                    }
                    order.push(4);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        order.sort_unstable();
        assert_eq!(order, (0..10).collect::<Vec<_>>());
        assert_eq!((delivery.counters().deaths, delivery.delivered()), (2, 9));
    }
}

#[test]
fn workers_that_never_begin_end_the_epoch() {
    for (failing, fails) in [(1, false), (2, true)] {
        let mut pool = Simulated::new(3, 1);
        pool.failing_starts = failing;
        let mut delivery = Delivery::new(pool, options(2));
        delivery.begin(plan(5, |number| u32::from(number == 2))).unwrap();
        let results: Vec<_> = (0..6).map_while(|_| delivery.next(None)).collect();
        if fails {
            let Some(Err(Failure::Lost(lost))) = results.last() else {
                panic!("{results:?}")
            };
            assert!(lost.twice && !lost.death.ready);
            assert!(
                matches!(delivery.next(None), Some(Err(Failure::Lost(_)))),
                "and every call says so"
            );
        } else {
            assert!(results.len() == 5 && results.iter().all(Result::is_ok), "{results:?}");
        }
    }
}

#[test]
fn without_redo_and_with_streams_a_death_is_final() {
    for (redo, pinned) in [(false, false), (true, true)] {
        let mut pool = Simulated::new(3, 2);
        pool.streams = pinned.then(|| vec![100, 100]);
        let mut delivery = Delivery::new(
            pool,
            Options {
                redo,
                pinned,
                ..options(4)
            },
        );
        delivery.begin(plan(20, |number| u32::from(number == 6))).unwrap();
        let mut delivered = 0;
        let lost = loop {
            match delivery.next(None) {
                Some(Ok(_)) => delivered += 1,
                Some(Err(Failure::Lost(lost))) => break lost,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            (lost.tasks[0].position, lost.delivered, lost.twice),
            (6, delivered, false)
        );
        assert!(matches!(delivery.next(None), Some(Err(Failure::Lost(_)))));
        // The next epoch has all workers again.
        delivery.pool_mut().kills.clear();
        delivery.begin(plan(4, |_| 0)).unwrap();
        assert_eq!(delivery.pool().revived, 1);
        let positions: Vec<_> = std::iter::from_fn(|| delivery.next(None))
            .map(|got| got.unwrap().position)
            .collect();
        assert_eq!(positions, [0, 1, 2, 3]);
    }
}

/// A worker that cannot be replaced at once gets its tasks when it can be, and so it does in an epoch that was begun meanwhile.
#[test]
fn workers_are_replaced_when_they_can_be() {
    for begins_again in [false, true] {
        let mut pool = Simulated::new(5, 2);
        pool.refused_revivals = 2;
        let mut delivery = Delivery::new(pool, options(4));
        delivery.begin(plan(12, |number| u32::from(number == 3))).unwrap();
        let (mut positions, mut errors) = (Vec::new(), 0);
        loop {
            match delivery.next(None) {
                Some(Ok(got)) => positions.push(got.position),
                Some(Err(Failure::Pool(_))) => {
                    errors += 1;
                    if begins_again && errors == 1 {
                        positions.clear();
                        assert!(matches!(delivery.begin(plan(12, |_| 0)), Err(Failure::Pool(_))));
                        delivery.begin(plan(12, |_| 0)).unwrap();
                    }
                }
                None => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(positions.iter().copied().eq(0..12), "{positions:?}");
        assert_eq!((errors, delivery.pool().revived), (if begins_again { 1 } else { 2 }, 1));
    }
}

/// Streams of different lengths, in turns; the window stays full, and no job is lost, whatever the number of workers that are left.
#[test]
fn streams_end_one_by_one() {
    for seed in 0..200 {
        let mut world = Key {
            seed,
            step: 2,
            ..Key::default()
        }
        .stream();
        let workers = 1 + usize::try_from(world.below(4)).unwrap();
        let streams: Vec<u64> = (0..workers).map(|_| world.below(12)).collect();
        let window = workers * (1 + usize::try_from(world.below(3)).unwrap());
        for in_order in [true, false] {
            let mut pool = Simulated::new(seed, workers);
            pool.streams = Some(streams.clone());
            let mut delivery = Delivery::new(
                pool,
                Options {
                    in_order,
                    pinned: true,
                    ..options(window)
                },
            );
            for _ in 0..2 {
                delivery.begin(plan(u64::MAX, |_| 0)).unwrap();
                let got: Vec<usize> = std::iter::from_fn(|| delivery.next(None))
                    .map(|r| r.unwrap().worker)
                    .collect();
                let mut counts = vec![0; workers];
                for worker in &got {
                    counts[*worker] += 1;
                }
                assert_eq!(counts, streams, "seed {seed}: every stream is read to its end");
                if in_order {
                    let rounds = (0..12).flat_map(|round| {
                        let streams = &streams;
                        (0..workers).filter(move |w| streams[*w] > round)
                    });
                    assert!(got.iter().copied().eq(rounds), "seed {seed}: {got:?} of {streams:?}");
                }
            }
        }
    }
}

/// A task that could not be sent is sent with the next call: nothing is lost, nor in another place, whatever dies or ends meanwhile.
#[test]
fn what_was_not_sent_is_sent_again() {
    let mut refused = 0;
    for seed in 0..300 {
        let mut world = Key {
            seed,
            step: 3,
            ..Key::default()
        }
        .stream();
        let mut draw = |n: u64| usize::try_from(world.below(n)).unwrap();
        let workers = 1 + draw(4);
        let window = workers * (1 + draw(3));
        let streams: Vec<u64> = (0..workers).map(|_| draw(12) as u64).collect();
        let pinned = draw(2) == 0;
        let jobs = if pinned { u64::MAX } else { draw(50) as u64 };
        let every = 3 + draw(20) as u64;
        let deadly = !pinned && draw(2) == 0;
        let run = |refused_sends: u64| {
            let mut pool = Simulated::new(seed, workers);
            pool.streams = pinned.then(|| streams.clone());
            pool.refused_sends = refused_sends;
            let mut delivery = Delivery::new(
                pool,
                Options {
                    pinned,
                    ..options(window)
                },
            );
            let (mut got, mut refusals) = (Vec::new(), 0);
            for _ in 0..2 {
                delivery.pool_mut().kills.clear();
                let plan = plan(jobs, move |number| u32::from(deadly && number % every == 2));
                if let Err(failure) = delivery.begin(plan) {
                    assert!(matches!(failure, Failure::Pool(_)), "{failure:?}");
                }
                while let Some(result) = delivery.next(None) {
                    match result {
                        Ok(batch) => got.push((batch.position, batch.output.number, batch.worker)),
                        Err(Failure::Pool(_)) => refusals += 1,
                        Err(other) => panic!("seed {seed}: {other:?}"),
                    }
                }
            }
            (got, refusals)
        };
        let (got, refusals) = run(300);
        if pinned {
            // Which job finds a stream's end depends on the moment.
            let workers_of = |got: &[(u64, u64, usize)]| got.iter().map(|batch| batch.2).collect::<Vec<_>>();
            assert_eq!(workers_of(&got), workers_of(&run(0).0), "seed {seed}");
        } else {
            assert_eq!(got, run(0).0, "seed {seed}");
        }
        refused += refusals;
    }
    assert!(refused > 1000, "{refused}");
}

/// A worker whose stream has ended may die without harm.
#[test]
fn a_death_after_the_end_of_a_stream_is_harmless() {
    let mut pool = Simulated::new(9, 2);
    pool.streams = Some(vec![1, 30]);
    let mut delivery = Delivery::new(
        pool,
        Options {
            pinned: true,
            ..options(4)
        },
    );
    delivery.begin(plan(u64::MAX, |_| 0)).unwrap();
    let mut got = 0;
    while let Some(result) = delivery.next(None) {
        result.unwrap();
        got += 1;
        if got == 10 {
            let pool = delivery.pool_mut();
            assert!(pool.workers[0].retired);
            pool.random_deaths = 1000;
            let mut events = Vec::new();
            pool.step(0, &mut events);
            pool.random_deaths = 0;
            // Let the delivery hear of it with the next look.
            pool.workers[0].alive = true;
            pool.workers[0].ready = true;
            pool.kills.insert(u64::MAX, 1);
            pool.workers[0].queue.push_back((
                0,
                0,
                Job {
                    number: u64::MAX,
                    kills: 1,
                },
            ));
        }
    }
    assert_eq!(got, 31);
    assert_eq!((delivery.counters().deaths, delivery.pool().revived), (1, 1));
}

#[test]
fn timeouts_say_who_is_waited_for() {
    let mut pool = Simulated::new(1, 2);
    pool.stuck = true;
    let mut delivery = Delivery::new(pool, options(4));
    delivery.begin(plan(4, |_| 0)).unwrap();
    for timeout in [Duration::ZERO, Duration::from_millis(5)] {
        match delivery.next(Some(timeout)) {
            Some(Err(Failure::TimedOut { worker, tasks })) => {
                let positions: Vec<u64> = tasks.iter().map(|task| task.position).collect();
                assert_eq!((worker, positions), (0, vec![0, 2]));
            }
            other => panic!("{other:?}"),
        }
    }
    delivery.pool_mut().stuck = false;
    // Even a timeout of zero looks once.
    delivery
        .pool_mut()
        .workers
        .iter_mut()
        .for_each(|worker| worker.left = 0);
    assert_eq!(delivery.next(Some(Duration::ZERO)).unwrap().unwrap().position, 0);
    assert_eq!(
        std::iter::from_fn(|| delivery.next(None))
            .map(|r| r.unwrap().position)
            .collect::<Vec<_>>(),
        [1, 2, 3]
    );
}

#[test]
fn a_plan_may_fail_and_go_on() {
    for ahead in [true, false] {
        let jobs = [Ok(0), Ok(1), Err("hole"), Ok(2), Err("crack"), Ok(3)];
        let plan: Plan = Box::new(
            jobs.into_iter()
                .map(|job| job.map(|number| Job { number, kills: 0 }).map_err(str::to_owned)),
        );
        let mut delivery = Delivery::new(Simulated::new(2, 2), Options { ahead, ..options(4) });
        delivery.begin(plan).unwrap();
        let got: Vec<String> = std::iter::from_fn(|| delivery.next(None))
            .map(|result| match result {
                Ok(got) => format!("{} at {}", got.output.number, got.position),
                Err(Failure::Plan(error)) => error,
                Err(other) => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(got, ["0 at 0", "1 at 1", "hole", "2 at 2", "crack", "3 at 3"]);
    }
}

/// A plan some of whose errors do not wait.
struct Interrupted(Plan);

impl feedrate::plan::Plan for Interrupted {
    type Job = Job;
    type Error = String;

    fn next_job(&mut self) -> Option<Result<Job, String>> {
        self.0.next()
    }

    fn urgent(&self, error: &String) -> bool {
        error == "Ctrl-C"
    }
}

/// An urgent error is told by the call that planned it, and the batch that the call had comes with the next one. What waits for its place,
/// as another error does, stays there.
#[test]
fn urgent_errors_are_told_at_once_and_cost_nothing() {
    let told = |ahead: bool, window: usize| -> Vec<String> {
        let jobs = ["0", "1", "Ctrl-C", "2", "hole", "Ctrl-C", "3", "Ctrl-C"];
        let plan = Interrupted(Box::new(jobs.into_iter().map(|job| {
            job.parse()
                .map(|number| Job { number, kills: 0 })
                .map_err(|_| job.to_owned())
        })));
        let mut delivery = Delivery::new(
            Simulated::new(2, 2),
            Options {
                ahead,
                ..options(window)
            },
        );
        let tell = |result| match result {
            Ok(got) => {
                let got: feedrate::deliver::Delivered<Job> = got;
                format!("{} at {}", got.output.number, got.position)
            }
            Err(Failure::Plan(error)) => error,
            Err(other) => panic!("{other:?}"),
        };
        let begun = delivery.begin(plan).err().map(|failure| tell(Err(failure)));
        let rest: Vec<_> = std::iter::from_fn(|| {
            let (last, delivered) = (delivery.last(), delivery.delivered());
            let result = delivery.next(None)?;
            if matches!(result, Err(Failure::Plan(_))) {
                assert_eq!((delivery.last(), delivery.delivered()), (last, delivered));
            }
            Some(tell(result))
        })
        .collect();
        begun.into_iter().chain(rest).collect()
    };
    // Each is in front of the batch that the call had when it was planned.
    assert_eq!(
        told(true, 2),
        [
            "Ctrl-C", "0 at 0", "1 at 1", "2 at 2", "Ctrl-C", "hole", "Ctrl-C", "3 at 3"
        ]
    );
    assert_eq!(
        told(false, 2),
        [
            "0 at 0", "1 at 1", "Ctrl-C", "2 at 2", "hole", "Ctrl-C", "3 at 3", "Ctrl-C"
        ]
    );
    // It may come before there is anything.
    assert_eq!(told(true, 8)[..2], ["Ctrl-C", "0 at 0"]);
}

/// Nothing is planned that is not asked for.
#[test]
fn inline_plans_one_at_a_time() {
    let mut delivery = Delivery::new(
        Simulated::new(2, 1),
        Options {
            ahead: false,
            ..options(1)
        },
    );
    delivery.begin(plan(5, |_| 0)).unwrap();
    for asked in 0..5 {
        assert_eq!(delivery.pool().submitted, asked);
        delivery.next(None).unwrap().unwrap();
    }
    assert!(delivery.next(None).is_none());
    assert!(delivery.next(None).is_none());
}

/// Batches that were taken keep their place until they are handed over; running out of places is not the end.
#[test]
fn taken_batches_keep_their_place() {
    for (seed, in_order) in (0..40).map(|seed| (seed, seed % 2 == 0)) {
        let mut delivery = Delivery::new(Simulated::new(seed, 2), Options { in_order, ..options(4) });
        delivery.begin(plan(30, |_| 0)).unwrap();
        let mut world = Key {
            seed,
            step: 3,
            ..Key::default()
        }
        .stream();
        let (mut taken, mut seen) = (0, Vec::new());
        loop {
            assert!(delivery.pool().submitted <= seen.len() - taken + 4, "seed {seed}");
            if taken > 0 && world.below(3) == 0 {
                delivery.refill().unwrap();
                taken -= 1;
                continue;
            }
            match delivery.take(None) {
                Some(Ok(got)) => {
                    seen.push(got.position);
                    taken += 1;
                }
                Some(Err(Failure::TimedOut { tasks, .. })) => {
                    assert!(tasks.is_empty() && taken == 4, "seed {seed}");
                    delivery.refill().unwrap();
                    taken -= 1;
                }
                None => break,
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..30), "seed {seed}: {seen:?}");
    }
}
