//! Pipelines in the loader.

use feedrate::batch::Value;
use feedrate::pipeline::{Pipeline, Weights};
use feedrate::{Asked, DataLoader, Error, State};

pub(super) fn numbers(name: &str, count: i64) -> Pipeline {
    Pipeline::items(name, (0..count).map(Into::into))
}

pub(super) fn int(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => panic!("{other:?}"),
    }
}

type Batches = Vec<Vec<i64>>;

fn ints(batch: Result<Vec<Value>, Error>) -> Vec<i64> {
    batch.unwrap().iter().map(int).collect()
}

/// How a loader is built but for the workers.
#[derive(Clone, Copy, Debug)]
struct How {
    batch_size: usize,
    drop_last: bool,
    lanes: Option<(usize, usize)>,
    rank: (usize, usize),
}

const PLAIN: How = How {
    batch_size: 4,
    drop_last: false,
    lanes: None,
    rank: (0, 1),
};

/// Global batches of eight samples in four units, over this many ranks.
fn eight(rank: usize, world: usize) -> How {
    How {
        batch_size: 8 / world,
        lanes: Some((2, 4)),
        rank: (rank, world),
        ..PLAIN
    }
}

fn build(pipeline: &Pipeline, how: How, threads: usize, state: Option<State>) -> DataLoader<Vec<Value>> {
    try_build(pipeline, how, threads, state).unwrap()
}

fn try_build(
    pipeline: &Pipeline,
    how: How,
    threads: usize,
    state: Option<State>,
) -> Result<DataLoader<Vec<Value>>, feedrate::Error> {
    let mut builder = DataLoader::pipeline(pipeline.clone())
        .batch_size(how.batch_size)
        .drop_last(how.drop_last)
        .rank(how.rank.0, how.rank.1);
    if let Some((rows, units)) = how.lanes {
        builder = builder.lanes(rows, units);
    }
    if threads > 0 {
        builder = builder.threads(threads);
    }
    match state {
        // Through text, as users keep it.
        Some(state) => builder.resume(state.to_string().parse().unwrap()),
        None => builder.seed(3),
    }
    .build()
}

fn epoch(loader: &mut DataLoader<Vec<Value>>) -> Batches {
    loader.iter().unwrap().map(ints).collect()
}

fn pipelines() -> Vec<Pipeline> {
    let weights = Weights::fixed([0.3, 0.7]);
    vec![
        numbers("n", 37),
        numbers("n", 3),
        numbers("n", 0),
        numbers("n", 90)
            .keep("some", |value, _| Ok(int(value) % 3 > 0))
            .shuffle(20),
        numbers("n", 20)
            .expand("twice", |value, _| Ok(vec![value.clone(), value]))
            .take(29),
        Pipeline::mix([numbers("a", 40), numbers("b", 30)], weights)
            .unwrap()
            .skip(3),
        numbers("n", 16).shuffle_all().unwrap().repeat(Some(3)),
    ]
}

#[test]
fn any_number_of_threads_gives_the_same_batches() {
    for pipeline in pipelines() {
        for drop_last in [false, true] {
            let how = How { drop_last, ..PLAIN };
            let mut inline = build(&pipeline, how, 0, None);
            let wanted = [epoch(&mut inline), epoch(&mut inline)];
            let whole: Vec<i64> = wanted[0].concat();
            let short = wanted[0].iter().filter(|batch| batch.len() < 4).count();
            assert!(short <= 1 && (short == 0 || !drop_last), "{pipeline}");
            let mut all: Vec<i64> = pipeline
                .epoch(3, 0)
                .unwrap()
                .map(|value| int(&value.unwrap()))
                .collect();
            if !drop_last && pipeline.serial().is_none() {
                let mut whole = whole.clone();
                whole.sort_unstable();
                all.sort_unstable();
                assert_eq!(whole, all, "{pipeline}");
            }
            for threads in [1, 2, 5] {
                let mut loader = build(&pipeline, how, threads, None);
                assert_eq!(epoch(&mut loader), wanted[0], "{pipeline} {threads}");
                assert_eq!(epoch(&mut loader), wanted[1], "{pipeline} {threads}");
            }
        }
    }
}

#[test]
fn every_cut_goes_on_with_other_threads() {
    for pipeline in pipelines() {
        for (at, how) in [
            PLAIN,
            How {
                drop_last: true,
                lanes: Some((3, 2)),
                ..PLAIN
            },
        ]
        .into_iter()
        .enumerate()
        {
            let mut loader = build(&pipeline, how, 0, None);
            let (first, second) = (epoch(&mut loader), epoch(&mut loader));
            for cut in 0..=first.len() {
                let mut loader = build(&pipeline, how, (cut + at) % 3, None);
                let mut begun = loader.iter().unwrap();
                let given: Batches = begun.by_ref().take(cut).map(ints).collect();
                let state = begun.state().unwrap();
                drop(begun);
                assert_eq!(loader.state().unwrap(), state);
                assert_eq!(given, first[..cut]);
                // A loader that has done nothing yet says the same.
                let idle = build(&pipeline, how, 1, Some(state));
                let mut later = build(&pipeline, how, (cut + 1) % 3, Some(idle.state().unwrap()));
                // Cut again one batch later.
                let mut rest = later.iter().unwrap();
                let mut found: Batches = rest.by_ref().take(1).map(ints).collect();
                let state = rest.state().unwrap();
                drop(rest);
                let mut last = build(&pipeline, how, 2, Some(state));
                if cut < first.len() {
                    found.extend(epoch(&mut last));
                    assert_eq!(found, first[cut..], "{pipeline} {cut}");
                    assert_eq!(epoch(&mut last), second, "{pipeline} {cut}");
                }
            }
        }
    }
}

#[test]
fn the_end_of_an_epoch_is_the_start_of_the_next() {
    let pipeline = numbers("n", 30).shuffle_all().unwrap();
    let mut loader = build(&pipeline, PLAIN, 2, None);
    let (first, second) = (epoch(&mut loader), epoch(&mut loader));
    assert_ne!(first, second);
    let mut loader = build(&pipeline, PLAIN, 2, None);
    assert_eq!(epoch(&mut loader), first);
    let mut later = build(&pipeline, PLAIN, 1, Some(loader.state().unwrap()));
    assert_eq!((later.epoch(), epoch(&mut later)), (1, second.clone()));
    later.set_epoch(0);
    assert_eq!(epoch(&mut later), first);
}

#[test]
fn ranks_share_the_units_and_states_move_between_worlds() {
    let pipeline = numbers("n", 100)
        .keep("most", |value, _| Ok(int(value) % 7 > 0))
        .shuffle(10);
    let one = epoch(&mut build(&pipeline, eight(0, 1), 0, None));
    let full = one.iter().take_while(|batch| batch.len() == 8).count();
    for world in [2, 4] {
        let ranks: Vec<Batches> = (0..world)
            .map(|rank| epoch(&mut build(&pipeline, eight(rank, world), 2, None)))
            .collect();
        let joined = |step: usize| -> Vec<i64> { ranks.iter().flat_map(|rank| rank[step].clone()).collect() };
        for (step, wanted) in one.iter().enumerate().take(full - 2) {
            assert_eq!(joined(step), *wanted, "{world} ranks, step {step}");
        }
        let mut all: Vec<i64> = ranks.iter().flatten().flatten().copied().collect();
        all.sort_unstable();
        let mut wanted = one.concat();
        wanted.sort_unstable();
        assert_eq!(all, wanted);
    }
    // Any one rank's state is enough for any number of ranks.
    for (from, to) in [(1, 2), (2, 1), (2, 4), (4, 1)] {
        for saved_by in 0..from {
            let mut loader = build(&pipeline, eight(saved_by, from), 1, None);
            let mut begun = loader.iter().unwrap();
            begun.by_ref().take(3).for_each(drop);
            let state = begun.state().unwrap();
            let ranks: Vec<Batches> = (0..to)
                .map(|rank| epoch(&mut build(&pipeline, eight(rank, to), 2, Some(state.clone()))))
                .collect();
            for step in 3..full - 2 {
                let joined: Vec<i64> = ranks.iter().flat_map(|rank| rank[step - 3].clone()).collect();
                assert_eq!(joined, one[step], "{from} to {to} ranks, step {step}");
            }
        }
    }
}

#[test]
fn a_state_of_a_resumed_rank_does_not_bring_back_where_others_were() {
    let pipeline = numbers("n", 100).shuffle(10);
    let one = epoch(&mut build(&pipeline, eight(0, 1), 0, None));
    let go = |how, state: Option<State>, steps: usize| {
        let mut loader = build(&pipeline, how, 0, state);
        let mut begun = loader.iter().unwrap();
        begun.by_ref().take(steps).for_each(drop);
        begun.state().unwrap()
    };
    let first = go(eight(0, 1), None, 2);
    for rank in 0..2 {
        // It has known all lanes, of which the other rank has moved half since.
        let second = go(eight(rank, 2), Some(first.clone()), 3);
        let rest = epoch(&mut build(&pipeline, eight(0, 1), 0, Some(second)));
        assert_eq!(rest[..3], one[5..8]);
    }
}

#[test]
fn a_state_of_another_rank_is_refused_once_lanes_have_run_out() {
    // Of eight lanes the first two, a row of rank 0, have one unit only.
    let pipeline = numbers("n", 80).keep("some", |value, _| Ok(int(value) < 16 || int(value) / 2 % 8 > 1));
    let mut outcomes = Vec::new();
    for steps in 1..6 {
        let mut loader = build(&pipeline, eight(0, 2), 0, None);
        let mut begun = loader.iter().unwrap();
        let seen: Vec<i64> = begun
            .by_ref()
            .take(steps)
            .flat_map(|batch| batch.unwrap())
            .map(|v| int(&v))
            .collect();
        let state = begun.state().unwrap();
        drop(begun);
        // The same rank goes on exactly.
        let rest = epoch(&mut build(&pipeline, eight(0, 2), 0, Some(state.clone())));
        let own = [seen, rest.concat()].concat();
        assert_eq!(own, epoch(&mut build(&pipeline, eight(0, 2), 0, None)).concat());
        outcomes.push(try_build(&pipeline, eight(1, 2), 0, Some(state)).map_err(|error| error.to_string()));
    }
    assert!(outcomes[0].is_ok());
    let last = outcomes.pop().unwrap().unwrap_err();
    assert!(
        last.contains("load the state that this rank has saved itself"),
        "{last}"
    );
}

#[test]
fn a_bad_element_costs_its_batch_no_other() {
    let pipeline = numbers("n", 40).map("odd", |value, _| match int(&value) {
        13 | 14 => Err("unlucky".into()),
        _ => Ok(value),
    });
    // Turns are counted by each run for itself.
    let why = |error: Error| error.to_string().split_once("worker").unwrap().1[2..].to_owned();
    let tell = |batch: Result<Vec<Value>, Error>| batch.map(|batch| batch.iter().map(int).collect()).map_err(why);
    let told = |threads| -> Vec<Result<Vec<i64>, String>> {
        let mut loader = build(&pipeline, PLAIN, threads, None);
        loader.iter().unwrap().map(tell).collect()
    };
    let wanted = told(0);
    let bad: Vec<_> = wanted.iter().filter_map(|batch| batch.as_ref().err()).collect();
    assert_eq!(bad.len(), 2);
    assert!(
        bad.iter()
            .all(|text| text.contains("unlucky") && text.contains("record 1")),
        "{bad:?}"
    );
    let mut good: Vec<i64> = wanted.iter().flatten().flatten().copied().collect();
    good.sort_unstable();
    assert_eq!(good, (0..40).filter(|n| *n != 13 && *n != 14).collect::<Vec<_>>());
    assert_eq!(told(1), wanted);
    assert_eq!(told(3), wanted);
    // Behind the error, too, a state goes on exactly.
    let cut = wanted.iter().position(Result::is_err).unwrap() + 1;
    let mut loader = build(&pipeline, PLAIN, 2, None);
    let mut begun = loader.iter().unwrap();
    begun.by_ref().take(cut).for_each(drop);
    let state = begun.state().unwrap();
    let mut later = build(&pipeline, PLAIN, 1, Some(state));
    let rest: Vec<_> = later.iter().unwrap().map(tell).collect();
    assert_eq!(rest, wanted[cut..]);
}

#[test]
fn a_collation_that_panics_ends_no_more_than_its_batch() {
    let mut loader = DataLoader::pipeline(numbers("n", 32))
        .batch_size(4)
        .seed(0)
        .collate(|samples, _| {
            assert!(int(&samples[0]) != 4, "not this one");
            Ok(samples.len())
        })
        .threads(2)
        .build()
        .unwrap();
    let found: Vec<_> = loader.iter().unwrap().collect();
    assert_eq!(found.iter().filter(|batch| batch.is_err()).count(), 1);
    assert_eq!(found.iter().flatten().sum::<usize>(), 28);
}

#[test]
fn a_function_that_panics_costs_no_more_than_its_batch() {
    for threads in [0, 2] {
        let pipeline = numbers("n", 800).map("panics", |value, _| {
            assert!(int(&value) != 5, "not this one");
            Ok(value)
        });
        let mut loader = build(&pipeline, PLAIN, threads, None);
        let found: Vec<_> = loader.iter().unwrap().collect();
        let errors: Vec<_> = found.iter().filter_map(|batch| batch.as_ref().err()).collect();
        let [error] = errors[..] else { panic!("{errors:?}") };
        assert!(error.is_data() && error.may_continue(), "{error}");
        assert!(error.to_string().contains("with a panic"), "{error}");
        let mut given: Vec<_> = found.iter().flatten().flatten().map(int).collect();
        given.sort_unstable();
        assert!(given.len() >= 796, "{}", given.len());
    }
}

#[test]
fn an_epoch_behind_a_panic_of_a_reader_is_whole() {
    for threads in [1, 2, 3] {
        let pipeline = Pipeline::source(feedrate::testing::Cracked::new(100));
        let mut loader = DataLoader::pipeline(pipeline)
            .batch_size(2)
            .lanes(4, 1)
            .threads(threads)
            .build()
            .unwrap();
        let told: Vec<_> = loader.iter().unwrap().filter_map(Result::err).collect();
        let [error] = &told[..] else { panic!("{told:?}") };
        assert!(error.to_string().contains("a crack in the reader"), "{error}");
        // Every lane has its thread.
        for _ in 0..2 {
            let mut given: Vec<_> = loader.iter().unwrap().flat_map(ints).collect();
            given.sort_unstable();
            assert_eq!(given, (0..100).collect::<Vec<_>>());
        }
    }
}

#[test]
fn numbers_beyond_reason_are_refused() {
    for (rows, units) in [(1 << 63, 2), (1 << 40, 1 << 30)] {
        let built = DataLoader::pipeline(numbers("n", 8))
            .batch_size(units)
            .lanes(rows, units)
            .build();
        assert!(built.unwrap_err().is_config());
    }
    assert!(
        DataLoader::pipeline(numbers("n", 8))
            .threads(usize::MAX)
            .build()
            .is_err_and(|error| error.is_config())
    );
    // A state that was damaged.
    let mut loader = build(&numbers("n", 80), PLAIN, 0, None);
    let mut begun = loader.iter().unwrap();
    begun.next();
    let state = begun.state().unwrap().to_string();
    let damaged: State = state
        .replace("\"turns\": 1", "\"turns\": 4611686018427387904")
        .parse()
        .unwrap();
    assert_ne!(damaged.to_string(), state);
    let refused = DataLoader::pipeline(numbers("n", 80))
        .batch_size(4)
        .resume(damaged)
        .build()
        .and_then(|mut loader| loader.iter().map(drop));
    assert!(refused.unwrap_err().is_state());
}

#[test]
fn asking_without_waiting_sees_every_batch() {
    let pipeline = numbers("n", 50).keep("few", |value, _| Ok(int(value) % 5 == 0));
    let wanted = epoch(&mut build(&pipeline, PLAIN, 0, None));
    let mut loader = build(&pipeline, PLAIN, 2, None);
    let mut begun = loader.iter().unwrap();
    let mut found = Vec::new();
    loop {
        match begun.try_next() {
            Asked::Batch(batch) => found.push(ints(batch)),
            Asked::NotReady => std::thread::yield_now(),
            Asked::End => break,
        }
    }
    assert_eq!(found, wanted);
}

#[test]
fn what_cannot_be_is_refused() {
    let pipeline = numbers("n", 40);
    let refused = |builder: feedrate::Builder<feedrate::loader::LaneSource, Vec<Value>>, words: &[&str]| {
        let text = builder.build().expect_err("an error").to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let of = || DataLoader::pipeline(pipeline.clone());
    refused(of().lanes(2, 3).rank(0, 2), &["3 units", "2 ranks", "[1, 3]"]);
    refused(of().batch_size(4).lanes(2, 3), &["4", "3 equal units"]);
    refused(of().rank(2, 2), &["rank 2 of 2"]);
    refused(of().lanes(0, 1), &["at least one"]);
    refused(of().threads(1).items_in_flight(2), &["items_in_flight"]);
    let ready = Pipeline::ready([numbers("a", 3), numbers("b", 3)], 2).unwrap();
    refused(DataLoader::pipeline(ready.clone()).threads(1), &["ready", "inline()"]);
    let mut loader = DataLoader::pipeline(ready).batch_size(6).build().unwrap();
    assert_eq!(epoch(&mut loader)[0].len(), 6);

    let mut loader = build(&pipeline, PLAIN, 1, None);
    let mut begun = loader.iter().unwrap();
    begun.by_ref().take(2).for_each(drop);
    let state = begun.state().unwrap();
    let with = |pipeline: &Pipeline| DataLoader::pipeline(pipeline.clone()).resume(state.clone());
    refused(with(&numbers("n", 41)).batch_size(4), &["fingerprint"]);
    refused(with(&pipeline).batch_size(5), &["4 in the state, 5 here"]);
    refused(with(&pipeline).batch_size(4).lanes(2, 1), &["8 in the state, 2 here"]);
    refused(with(&pipeline).batch_size(4).in_order(false), &["in_order"]);
}

/// A batch's position and random numbers are its own: neither the threads, nor the window, nor a resume change them.
#[test]
fn collate_functions_see_the_same_positions_and_numbers() {
    type Seen = (u64, u64, Vec<i64>);
    let build = |threads: usize, prefetch: usize, state: Option<State>| {
        let mut builder = DataLoader::pipeline(numbers("n", 22)).batch_size(4).seed(1).collate(
            |samples: Vec<Value>, cx| -> Result<Seen, _> {
                let drawn = cx.rng(0).below(1_000_000);
                Ok((cx.position, drawn, samples.iter().map(int).collect()))
            },
        );
        if threads > 0 {
            builder = builder.threads(threads).prefetch(prefetch);
        }
        match state {
            Some(state) => builder.resume(state).build().unwrap(),
            None => builder.build().unwrap(),
        }
    };
    let mut loader = build(0, 0, None);
    let mut epoch = loader.iter().unwrap();
    let mut states = vec![epoch.state().unwrap()];
    let mut whole = Vec::new();
    while let Some(batch) = epoch.next() {
        whole.push(batch.unwrap());
        states.push(epoch.state().unwrap());
    }
    assert_eq!(whole.iter().map(|(_, _, samples)| samples.len()).sum::<usize>(), 22);
    assert!(whole.is_sorted_by(|a, b| a.0 < b.0), "{whole:?}");
    for (threads, prefetch) in [(0, 0), (1, 1), (2, 2), (4, 3)] {
        for (cut, state) in states.iter().enumerate() {
            let mut loader = build(threads, prefetch, Some(state.clone()));
            let rest: Vec<Seen> = loader.iter().unwrap().map(Result::unwrap).collect();
            assert_eq!(rest, whole[cut..], "{threads} threads, cut {cut}");
        }
    }
}

/// A lane that ends in a turn in which another one fails keeps what is left over.
#[test]
fn what_is_left_over_beside_a_failure_comes_later() {
    let pipeline = numbers("n", 20)
        .map("fails", |value, _| match int(&value) % 5 {
            1 => Err(format!("bad {}", int(&value)).into()),
            _ => Ok(value),
        })
        .keep("some", |value, _| Ok(int(value) % 3 != 0));
    let told = |batch: Result<Vec<Value>, Error>| batch.map(|batch| batch.iter().map(int).collect::<Vec<_>>()).ok();
    for threads in [0, 2] {
        let how = How {
            lanes: Some((3, 2)),
            ..PLAIN
        };
        let mut loader = build(&pipeline, how, threads, None);
        let mut epoch = loader.iter().unwrap();
        let mut states = vec![epoch.state().unwrap()];
        let mut whole = Vec::new();
        while let Some(batch) = epoch.next() {
            whole.push(told(batch));
            states.push(epoch.state().unwrap());
        }
        assert!(whole.iter().flatten().flatten().any(|number| *number == 8), "{whole:?}");
        for (cut, state) in states.into_iter().enumerate() {
            let mut loader = build(&pipeline, how, threads, Some(state));
            let rest: Vec<_> = loader.iter().unwrap().map(told).collect();
            assert_eq!(rest, whole[cut..], "{threads} threads, cut {cut}");
        }
    }
}

/// The files are part of a state of the middle of an epoch.
#[test]
fn a_state_is_of_its_files() {
    use feedrate::source::JsonLines;

    let folder = std::env::temp_dir().join(format!("feedrate-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("a.jsonl");
    let write = |count: usize| {
        let lines: Vec<_> = (0..count).map(|i| format!("{{\"x\":{i}}}\n")).collect();
        std::fs::write(&path, lines.concat()).unwrap();
    };
    let build = || DataLoader::pipeline(Pipeline::source(JsonLines::new([path.to_str().unwrap()]))).batch_size(4);
    write(40);
    let mut loader = build().build().unwrap();
    let mut epoch = loader.iter().unwrap();
    epoch.next().unwrap().unwrap();
    let middle = epoch.state().unwrap();
    assert_eq!(epoch.count(), 9);
    let end = loader.state().unwrap();
    let mut resumed = build().resume(middle.clone()).build().unwrap();
    assert_eq!(resumed.iter().unwrap().count(), 9);
    write(30);
    let error = build().resume(middle.clone()).build().unwrap_err().to_string();
    assert!(error.contains("fingerprint of the files"), "{error}");
    // Another definition is told apart step by step.
    let other = Pipeline::source(JsonLines::new([path.to_str().unwrap()])).take(20);
    let other = DataLoader::pipeline(other).batch_size(4).resume(middle);
    let error = other.build().unwrap_err().to_string();
    let (there, here) = error.split_once("here:\n").unwrap();
    assert!(there.contains("a.jsonl") && !there.contains("take(20)"), "{error}");
    assert!(here.contains("a.jsonl") && here.contains("take(20)"), "{error}");
    // The next epoch may be over others.
    let mut next = build().resume(end).build().unwrap();
    assert_eq!(next.iter().unwrap().count(), 8);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// One batch of all there is; what was handed over is counted in batches, and not in turns.
#[test]
fn batches_larger_than_all_data() {
    for size in [usize::MAX, 1 << 62, 1 << 40] {
        let mut loader = DataLoader::pipeline(numbers("n", 10)).batch_size(size).build().unwrap();
        let mut epoch = loader.iter().unwrap();
        let batches: Vec<_> = epoch.by_ref().map(ints).collect();
        assert_eq!(epoch.delivered(), 1);
        let mut all = batches.concat();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>(), "{size}");
    }
}

/// Each lane says it once, and is at its end.
#[test]
fn a_pipeline_that_cannot_be_opened_ends() {
    let gone = Pipeline::source(feedrate::source::JsonLines::new(["/there/is/no/such/file.jsonl"]));
    for threads in [0, 2] {
        let builder = DataLoader::pipeline(gone.clone()).batch_size(4);
        let builder = if threads > 0 { builder.threads(threads) } else { builder };
        let mut loader = builder.build().unwrap();
        for _ in 0..2 {
            let errors: Vec<_> = loader.iter().unwrap().take(100).map(Result::unwrap_err).collect();
            assert!((1..=8).contains(&errors.len()), "{}", errors.len());
            assert!(errors[0].to_string().contains("no/such/file"), "{}", errors[0]);
        }
    }
}
