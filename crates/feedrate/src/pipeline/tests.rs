//! Every cut of every kind of pipeline, alone and in lanes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::batch::{DType, Tensor, Value};
use crate::source::{Items, Part, Source, SourceError};
use crate::state::State;

/// Items in several parts, of which the counts are known or not.
#[derive(Debug)]
struct Parts {
    parts: Vec<Items>,
    known: bool,
}

impl Source for Parts {
    fn format(&self) -> &'static str {
        "parts"
    }

    fn describe(&self) -> String {
        format!("{:?}", self.parts)
    }

    fn parts(&self) -> Result<std::sync::Arc<[Part]>, SourceError> {
        self.parts
            .iter()
            .map(|items| {
                let mut part = items.parts()?[0].clone();
                if !self.known {
                    part.records = None;
                }
                Ok(part)
            })
            .collect()
    }

    fn files(&self, _: usize) -> Result<Vec<std::path::PathBuf>, SourceError> {
        Ok(Vec::new())
    }

    fn open(
        &self,
        part: usize,
        from: Option<crate::source::Mark>,
    ) -> Result<Box<dyn crate::source::Reader>, SourceError> {
        self.parts[part].open(0, from)
    }

    fn indexed(&self) -> bool {
        self.known
    }
}

/// `sizes` parts of numbers that count on.
fn numbers(sizes: &[usize], known: bool) -> Pipeline {
    dealt(sizes, known, Deal::Auto)
}

fn dealt(sizes: &[usize], known: bool, deal: Deal) -> Pipeline {
    let mut next = 0_i64;
    let parts = sizes
        .iter()
        .map(|size| {
            let items: Vec<Value> = (next..).take(*size).map(|x| Value::map([("x", x.into())])).collect();
            next += i64::try_from(*size).unwrap();
            Items::new("numbers", items)
        })
        .collect();
    Pipeline::dealt(std::sync::Arc::new(Parts { parts, known }), deal)
}

fn x_of(value: &Value) -> i64 {
    match value.get("x") {
        Some(Value::Int(x)) => *x,
        _ => 0,
    }
}

/// All elements of a lane, and the cursor before each and at the end.
fn run(pipeline: &Pipeline, opening: &Opening) -> (Vec<Sample>, Vec<State>) {
    let mut lane = pipeline.lane(opening, None).unwrap();
    let (mut samples, mut cursors) = (Vec::new(), vec![lane.cursor()]);
    while let Some(sample) = lane.next().unwrap() {
        samples.push(sample);
        cursors.push(lane.cursor());
        assert!(samples.len() < 10_000, "{pipeline} does not end");
    }
    (samples, cursors)
}

fn rest(pipeline: &Pipeline, opening: &Opening, cursor: &State) -> Vec<Sample> {
    let text = cursor.to_string();
    let cursor: State = text.parse().unwrap();
    let mut lane = pipeline.lane(opening, Some(&cursor)).unwrap();
    let mut samples = Vec::new();
    while let Some(sample) = lane.next().unwrap() {
        samples.push(sample);
    }
    samples
}

/// Cuts every lane everywhere.
fn check(pipeline: &Pipeline, lanes: u64, block: u64) {
    for lane in 0..lanes {
        let opening = Opening::new(lane, lanes, block, 5, 2);
        let (samples, cursors) = run(pipeline, &opening);
        for (cut, cursor) in cursors.iter().enumerate() {
            assert_eq!(
                rest(pipeline, &opening, cursor),
                samples[cut..],
                "{pipeline} lane {lane} of {lanes}, cut {cut}"
            );
        }
        let mut again = pipeline.lane(&opening, None).unwrap();
        let places: Vec<_> = samples.iter().rev().map(|sample| sample.place.clone()).collect();
        let backwards: Vec<_> = samples.iter().rev().cloned().collect();
        assert_eq!(again.again(&places).unwrap(), backwards, "{pipeline} made again");
    }
}

/// The elements of all lanes, in turns of `block`.
fn in_turn(pipeline: &Pipeline, lanes: u64, block: usize) -> Vec<Value> {
    let mut each: Vec<Vec<Value>> = (0..lanes)
        .map(|lane| {
            let opening = Opening::new(lane, lanes, block as u64, 0, 0);
            run(pipeline, &opening)
                .0
                .into_iter()
                .map(|sample| sample.value)
                .collect()
        })
        .collect();
    let mut found = Vec::new();
    while each.iter().any(|lane| !lane.is_empty()) {
        for lane in &mut each {
            let count = block.min(lane.len());
            found.extend(lane.drain(..count));
        }
    }
    found
}

#[derive(Debug, Clone)]
enum Kind {
    Map,
    Keep,
    Expand,
    Shuffle(usize),
    Batch(usize),
    Rebatch(usize),
    Sort(usize),
    Take(u64),
    Skip(u64),
    Repeat(u64),
    Concat,
    Interleave(usize),
    Mix(bool),
    Zip,
    Pack(usize),
    Cache,
    Prefetch(usize),
    Bucket,
    Budget(bool),
    Fork,
    Route,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Map),
        Just(Kind::Keep),
        Just(Kind::Expand),
        (1_usize..9).prop_map(Kind::Shuffle),
        (1_usize..5).prop_map(Kind::Batch),
        (1_usize..5).prop_map(Kind::Rebatch),
        (1_usize..6).prop_map(Kind::Sort),
        (0_u64..20).prop_map(Kind::Take),
        (0_u64..8).prop_map(Kind::Skip),
        (1_u64..3).prop_map(Kind::Repeat),
        Just(Kind::Concat),
        (1_usize..4).prop_map(Kind::Interleave),
        any::<bool>().prop_map(Kind::Mix),
        Just(Kind::Zip),
        (3_usize..9).prop_map(Kind::Pack),
        Just(Kind::Cache),
        (1_usize..4).prop_map(Kind::Prefetch),
        Just(Kind::Bucket),
        any::<bool>().prop_map(Kind::Budget),
        Just(Kind::Fork),
        Just(Kind::Route),
    ]
}

/// The sum of a batch.
#[expect(clippy::needless_pass_by_value, reason = "as a step calls it")]
fn summed(value: Value, _: &Call) -> Result<Value, crate::BoxError> {
    let x = value.get("x").and_then(Value::as_tensor).unwrap().to_vec::<i64>()?;
    Ok(Value::map([("x", x.iter().sum::<i64>().into())]))
}

/// The step behind a pipeline whose elements are maps with an `x`; what comes out is of the same form.
fn step(pipeline: &Pipeline, kind: &Kind) -> Pipeline {
    let only_x = |value: Value, at: usize| match value {
        Value::List(items) => items.into_iter().nth(at).unwrap(),
        value => value,
    };
    match kind {
        Kind::Map => pipeline.map("noisy", |value, call| {
            let noise = i64::try_from(call.rng().below(3)).unwrap();
            Ok(Value::map([("x", (x_of(&value) * 3 + noise).into())]))
        }),
        Kind::Keep => pipeline.keep("two of three", |value, _| Ok(x_of(value) % 3 != 1)),
        Kind::Expand => pipeline.expand("0 to 2", |value, _| {
            let x = x_of(&value);
            Ok((0..x.rem_euclid(3))
                .map(|i| Value::map([("x", (x + i).into())]))
                .collect())
        }),
        Kind::Shuffle(window) => pipeline.shuffle(*window),
        Kind::Batch(size) => pipeline.batch(*size).map("sum", summed),
        Kind::Rebatch(size) => pipeline.batch(*size).unbatch().map("scalar", |value, _| {
            let x = value
                .get("x")
                .and_then(Value::as_tensor)
                .unwrap()
                .to_vec::<i64>()
                .unwrap();
            Ok(Value::map([("x", x[0].into())]))
        }),
        Kind::Sort(window) => {
            pipeline.sort_within(*window, Func::map("x mod 5", |value, _| Ok((x_of(&value) % 5).into())))
        }
        Kind::Take(count) => pipeline.take(*count),
        Kind::Skip(count) => pipeline.skip(*count),
        Kind::Repeat(times) => pipeline.repeat(Some(*times)),
        Kind::Concat => Pipeline::concat([pipeline.clone(), numbers(&[3, 2], true)]),
        Kind::Interleave(block) => Pipeline::interleave([pipeline.clone(), numbers(&[5], false)], *block),
        Kind::Mix(replacement) => {
            let weights = Weights {
                schedule: vec![(0, vec![2.0, 1.0]), (4, vec![0.0, 1.0]), (6, vec![1.0, 1.0])],
                replacement: *replacement,
            };
            Pipeline::mix([pipeline.clone(), numbers(&[4, 3], false)], weights).unwrap()
        }
        Kind::Zip => Pipeline::zip([pipeline.clone(), numbers(&[9, 9], true)])
            .map("first of two", move |value, _| Ok(only_x(value, 0))),
        Kind::Cache => pipeline.cache(Cache::memory(1 << 20)),
        // A branch goes on with the others; behind one there is nothing to run ahead.
        Kind::Prefetch(count) => pipeline.prefetch(*count).unwrap_or_else(|_| pipeline.clone()),
        Kind::Bucket => pipeline
            .gather(Gather {
                by: Func::map("x mod 7", |value, _| Ok((x_of(&value).rem_euclid(7)).into())),
                rule: Rule::Buckets {
                    boundaries: vec![2.0, 5.0],
                    sizes: vec![2, 3, 1],
                },
                batch: Batch::of(1),
            })
            .unwrap()
            .map("sum", summed),
        Kind::Budget(padded) => pipeline
            .gather(Gather {
                by: Func::map("x mod 7", |value, _| Ok((x_of(&value).rem_euclid(7)).into())),
                rule: Rule::Budget {
                    budget: 9.0,
                    padded: *padded,
                    most: Some(4),
                    oversize: Oversize::Refuse,
                },
                batch: Batch::of(1),
            })
            .unwrap()
            .map("sum", summed),
        Kind::Fork => {
            let branches = pipeline.fork(2, 2);
            let late = branches[1].keep("third", |value, _| Ok(x_of(value) % 3 == 0));
            Pipeline::interleave([branches[0].clone(), late], 2)
        }
        Kind::Route => {
            let by = Func::map("parity", |value, _| Ok((x_of(&value).rem_euclid(2)).into()));
            Pipeline::concat(pipeline.route(2, &by, 3))
        }
        Kind::Pack(length) => pipeline
            .map("tokens", |value, _| {
                let x = x_of(&value);
                let len = usize::try_from(x.rem_euclid(11)).unwrap();
                Ok(Value::map([("t", Tensor::from_vec(vec![x; len], &[len])?.into())]))
            })
            .pack(Packing {
                open: 2,
                fit: if length % 2 == 0 { Fit::First } else { Fit::Best },
                ..Packing::of(*length)
            })
            .map("sum", |value, _| {
                let tokens = value.get("t").and_then(Value::as_tensor).unwrap().to_vec::<i64>()?;
                Ok(Value::map([("x", tokens.iter().sum::<i64>().into())]))
            }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_cut_of_random_pipelines(
        sizes in prop::collection::vec(0_usize..9, 1..5),
        known in any::<bool>(),
        kinds in prop::collection::vec(kind(), 0..6),
        parts in any::<bool>(),
        lanes in 1_u64..4,
        block in 1_u64..4,
        deal in prop_oneof![Just(Deal::Auto), Just(Deal::Parts), Just(Deal::Records)],
    ) {
        let mut pipeline = dealt(&sizes, known, deal);
        if parts {
            pipeline = if known { pipeline.shuffle_all() } else { pipeline.shuffle_parts() }.unwrap();
        }
        for kind in &kinds {
            pipeline = step(&pipeline, kind);
        }
        check(&pipeline, lanes, block);
    }

    #[test]
    fn lanes_share_all_and_nothing_twice(
        sizes in prop::collection::vec(0_usize..9, 1..9),
        known in any::<bool>(),
        lanes in 1_u64..6,
        block in 1_usize..5,
        window in 1_usize..20,
        deal in prop_oneof![Just(Deal::Auto), Just(Deal::Parts), Just(Deal::Records)],
    ) {
        let pipeline = dealt(&sizes, known, deal);
        let all: Vec<i64> = (0..).take(sizes.iter().sum()).collect();
        for pipeline in [
            pipeline.shuffle(window),
            pipeline.skip(0),
            pipeline.shuffle_parts().unwrap(),
            if known { pipeline.shuffle_all().unwrap() } else { pipeline.clone() },
        ] {
            let mut found: Vec<i64> = in_turn(&pipeline, lanes, block).iter().map(x_of).collect();
            found.sort_unstable();
            prop_assert_eq!(&found, &all, "{}", pipeline);
        }
    }

    #[test]
    fn lanes_in_turn_are_the_stored_order(
        sizes in prop::collection::vec(0_usize..30, 1..4),
        known in any::<bool>(),
        lanes in 4_u64..7,
        block in 1_usize..5,
    ) {
        let pipeline = dealt(&sizes, known, Deal::Records).map("same", |value, _| Ok(value));
        let found: Vec<i64> = in_turn(&pipeline, lanes, block).iter().map(x_of).collect();
        let all: Vec<i64> = (0..).take(sizes.iter().sum()).collect();
        prop_assert_eq!(found, all);
    }
}

#[test]
fn a_definition_prints_and_compares() {
    let make = |window| {
        numbers(&[3], true)
            .keep("odd", |_, _| Ok(true))
            .shuffle(window)
            .batch(2)
    };
    let text = make(4).to_string();
    assert!(
        text.ends_with("filter(odd)\nshuffle(4)\nbatch(2, drop_last=false)\n"),
        "{text}"
    );
    assert_eq!(make(4).fingerprint(), make(4).fingerprint());
    assert_ne!(make(4).fingerprint(), make(5).fingerprint());
    assert_eq!(make(4).len().unwrap(), None);
    assert_eq!(numbers(&[3, 4], true).batch(2).len().unwrap(), Some(4));
}

#[test]
fn epochs_and_rounds_are_shuffled_differently() {
    let pipeline = numbers(&[40], true).shuffle_all().unwrap().repeat(Some(2));
    let epoch = |epoch| {
        let found = pipeline.epoch(1, epoch).unwrap().map(|value| x_of(&value.unwrap()));
        found.collect::<Vec<_>>()
    };
    let (first, second) = (epoch(0), epoch(1));
    assert_ne!(first[..40], first[40..]);
    assert_ne!(first[..40], second[..40]);
    assert_eq!(first, epoch(0));
}

#[test]
fn a_failure_names_its_step_and_the_rest_goes_on() {
    let pipeline = numbers(&[6], true)
        .map("bad at 2", |value, _| {
            if x_of(&value) == 2 {
                Err("no good".into())
            } else {
                Ok(value)
            }
        })
        .batch(2);
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for element in pipeline.iter().unwrap() {
        match element {
            Ok(batch) => good.extend(
                batch
                    .get("x")
                    .and_then(Value::as_tensor)
                    .unwrap()
                    .to_vec::<i64>()
                    .unwrap(),
            ),
            Err(failure) => bad.push(failure.to_string()),
        }
    }
    // The batch is filled up from behind the bad one.
    assert_eq!(good, [0, 1, 3, 4, 5]);
    assert_eq!(bad, ["map(bad at 2), numbers, record 2: no good"]);
}

#[test]
fn a_window_of_100_000_has_a_small_cursor() {
    let pipeline = numbers(&[100_500], true).shuffle(100_000);
    let mut lane = pipeline.lane(&Opening::whole(0, 0), None).unwrap();
    lane.next().unwrap();
    assert!(lane.cursor().to_string().len() < 2_000_000);
}

#[test]
fn packing_leaves_little_padding_and_loses_nothing() {
    let lengths = [3_usize, 5, 2, 8, 1, 4, 20, 7, 6, 2];
    let items = lengths.iter().enumerate().map(|(at, len)| {
        let tokens = vec![i32::try_from(at).unwrap() + 1; *len];
        Value::map([("tokens", Tensor::from_vec(tokens, &[*len]).unwrap().into())])
    });
    let pipeline = Pipeline::items("documents", items).pack(Packing::of(8));
    let mut tokens = 0;
    for sequence in pipeline.iter().unwrap() {
        let sequence = sequence.unwrap();
        let field = |name| {
            sequence
                .get(name)
                .and_then(Value::as_tensor)
                .unwrap()
                .to_vec::<i32>()
                .unwrap()
        };
        let (ids, segments, positions) = (field("tokens"), field("segment_ids"), field("positions"));
        assert_eq!(ids.len(), 8);
        for at in 0..8 {
            assert_eq!(ids[at] == 0, segments[at] == 0);
            if at > 0 && segments[at] == segments[at - 1] && segments[at] > 0 {
                assert_eq!((ids[at], positions[at]), (ids[at - 1], positions[at - 1] + 1));
            }
        }
        tokens += ids.iter().filter(|id| **id > 0).count();
    }
    assert_eq!(tokens, lengths.iter().sum::<usize>());
}

#[test]
fn branches_are_read_once_and_all_of_them() {
    let read = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&read);
    let counted = numbers(&[50, 50], true).map("counted", move |value, _| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(value)
    });
    let branches = counted.fork(3, 100);
    let zipped = Pipeline::zip(branches.clone());
    assert_eq!(zipped.iter().unwrap().count(), 100);
    assert_eq!(read.swap(0, Ordering::Relaxed), 100);
    // One that lags far behind is made again, and none is lost.
    let one_by_one = Pipeline::concat(counted.fork(2, 10));
    assert_eq!(one_by_one.iter().unwrap().count(), 200);
    assert_eq!(read.swap(0, Ordering::Relaxed), 190);
    // Each alone reads for itself.
    assert_eq!(branches[1].iter().unwrap().count(), 100);
    assert_eq!(read.swap(0, Ordering::Relaxed), 100);
    let by = Func::map("tens", |value, _| Ok((x_of(&value) / 10).into()));
    let routed = counted.route(5, &by, 100);
    let mut found = Pipeline::concat(routed).iter().unwrap();
    let first: Vec<_> = found.by_ref().take(10).map(|value| x_of(&value.unwrap())).collect();
    assert_eq!(first, (0..10).collect::<Vec<_>>());
    // Those from 50 on are for no branch.
    assert_eq!(found.filter(Result::is_err).count(), 50);
}

#[test]
fn weights_of_a_mix_have_a_finite_sum() {
    let mix = |weights: [f64; 2]| Pipeline::mix([numbers(&[9], true), numbers(&[9], true)], Weights::fixed(weights));
    let error = mix([1e308, 1e308]).unwrap_err().to_string();
    assert!(error.contains("their sum must be finite"), "{error}");
    assert!(mix([1e308, 0.0]).is_ok());
}

#[test]
fn a_cache_makes_each_element_once_and_the_same_in_all_epochs() {
    let folder = std::env::temp_dir().join(format!("feedrate-cache-{}", std::process::id()));
    let made = Arc::new(AtomicU64::new(0));
    let run = |cache: Cache| {
        let count = Arc::clone(&made);
        let pipeline = numbers(&[30, 30], true)
            .map("noisy", move |value, call| {
                count.fetch_add(1, Ordering::Relaxed);
                let noise = i64::try_from(call.rng().below(1000)).unwrap();
                Ok(Value::map([("x", (x_of(&value) * 1000 + noise).into())]))
            })
            .cache(cache)
            .shuffle_all()
            .unwrap();
        let mut epochs = Vec::new();
        for epoch in 0..3 {
            let found = pipeline.epoch(1, epoch).unwrap();
            epochs.push(found.map(|value| x_of(&value.unwrap())).collect::<Vec<_>>());
        }
        // Another seed has other numbers.
        let other = pipeline.epoch(2, 0).unwrap();
        epochs.push(other.map(|value| x_of(&value.unwrap())).collect());
        (epochs, made.swap(0, Ordering::Relaxed))
    };
    let (none, calls) = run(Cache::memory(0));
    assert_eq!(calls, 240);
    let (all, calls) = run(Cache::memory(1 << 20));
    assert_eq!((&all, calls), (&none, 120));
    // A map of one number: the map, the number and its name.
    let element = 128 + 2 * size_of::<Value>() + size_of::<String>() + 1;
    let (half, calls) = run(Cache::memory(30 * element as u64));
    assert_eq!((&half, calls), (&none, 60 + 30 + 30 + 60));
    let (stored, calls) = run(Cache::files(&folder, 1 << 20));
    assert_eq!((&stored, calls), (&none, 120));
    // Another run finds them, damaged ones are made again.
    let mut damaged = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        bytes.truncate(last + 1);
        bytes.extend([7; 20]);
        std::fs::write(&path, bytes).unwrap();
        damaged += 1;
    }
    let (again, calls) = run(Cache::files(&folder, 1 << 20));
    assert_eq!(again, none);
    assert!(damaged >= 1 && calls >= damaged && calls < 30, "{calls} for {damaged}");
    std::fs::remove_dir_all(&folder).unwrap();
    let (mut first, mut second) = (none[0].clone(), none[1].clone());
    assert_ne!(first, second);
    first.sort_unstable();
    second.sort_unstable();
    assert_eq!(first, second);
}

#[test]
fn whoever_is_ready_comes_first_and_nothing_is_lost() {
    let slow = numbers(&[20], true).map("slow", |value, _| {
        std::thread::sleep(std::time::Duration::from_millis(3));
        Ok(value)
    });
    let fast = numbers(&[200], true).map("fast", |value, _| Ok(Value::map([("x", (1000 + x_of(&value)).into())])));
    let joined = Pipeline::ready([slow, fast], 4).unwrap();
    assert_eq!(joined.timed().as_deref(), Some("ready(4)"));
    let opening = Opening::whole(0, 0);
    let mut lane = joined.lane(&opening, None).unwrap();
    let mut found = Vec::new();
    for _ in 0..50 {
        found.push(x_of(&lane.next().unwrap().unwrap().value));
    }
    assert!(found.iter().filter(|x| **x >= 1000).count() > 30, "{found:?}");
    // Taken up elsewhere: each comes once.
    let cursor: State = lane.cursor().to_string().parse().unwrap();
    drop(lane);
    let mut lane = joined.lane(&opening, Some(&cursor)).unwrap();
    while let Some(sample) = lane.next().unwrap() {
        found.push(x_of(&sample.value));
    }
    found.sort_unstable();
    assert_eq!(found, (0..20).chain(1000..1200).collect::<Vec<_>>());
}

#[test]
fn a_failure_ahead_is_told_in_its_place_also_after_a_cut() {
    let pipeline = numbers(&[12], true)
        .map("bad at 5", |value, _| {
            if x_of(&value) == 5 {
                Err("no good".into())
            } else {
                Ok(value)
            }
        })
        .prefetch(4)
        .unwrap();
    let opening = Opening::whole(0, 0);
    for cut in 0..12 {
        let mut lane = pipeline.lane(&opening, None).unwrap();
        let mut told = Vec::new();
        let mut tell = |found: Result<Option<Sample>, Failure>| {
            match found {
                Ok(Some(sample)) => told.push(x_of(&sample.value).to_string()),
                Ok(None) => return false,
                Err(failure) => {
                    assert!(failure.may_continue);
                    told.push(failure.to_string());
                }
            }
            true
        };
        for _ in 0..cut {
            tell(lane.next());
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        let cursor: State = lane.cursor().to_string().parse().unwrap();
        drop(lane);
        let mut lane = pipeline.lane(&opening, Some(&cursor)).unwrap();
        while tell(lane.next()) {}
        let mut wanted: Vec<_> = (0..12).map(|x: i64| x.to_string()).collect();
        wanted[5] = "map(bad at 5), numbers, record 5: no good".to_owned();
        assert_eq!(told, wanted, "cut {cut}");
    }
}

#[test]
fn a_closure_that_panics_fails_for_its_element_alone() {
    let three = |value: &Value| assert!(x_of(value) != 3, "at three");
    let map = numbers(&[9], true).map("panics", move |value, _| {
        three(&value);
        Ok(value)
    });
    let keep = numbers(&[9], true).keep("panics", move |value, _| {
        three(value);
        Ok(true)
    });
    let expand = numbers(&[9], true).expand("panics", move |value, _| {
        three(&value);
        Ok(vec![value])
    });
    for pipeline in [&map, &keep, &expand] {
        for pipeline in [pipeline, &pipeline.prefetch(2).unwrap()] {
            let found: Vec<_> = pipeline.iter().unwrap().collect();
            let told: Vec<_> = found
                .iter()
                .map(|found| found.as_ref().map(x_of).map_err(ToString::to_string))
                .collect();
            assert_eq!(told.len(), 9, "{told:?}");
            let error = told[3].as_ref().unwrap_err();
            assert!(error.contains("record 3: at three"), "{error}");
            assert_eq!(told.iter().flatten().count(), 8);
        }
    }
}

#[test]
fn buckets_and_budgets_hold_what_they_say() {
    let by = || Func::map("x", |value, _| Ok(x_of(&value).into()));
    let bucketed = numbers(&[10], true)
        .gather(Gather {
            by: by(),
            rule: Rule::Buckets {
                boundaries: vec![3.0, 8.0],
                sizes: vec![2, 4, 2],
            },
            batch: Batch::of(1),
        })
        .unwrap();
    let batches = |pipeline: &Pipeline| -> Vec<Vec<i64>> {
        let field = |value: Value| value.get("x").and_then(Value::as_tensor).unwrap().to_vec().unwrap();
        pipeline.iter().unwrap().filter_map(Result::ok).map(field).collect()
    };
    assert_eq!(
        batches(&bucketed),
        [vec![0, 1], vec![3, 4, 5, 6], vec![8, 9], vec![2], vec![7]]
    );
    let budget = |padded, oversize, drop_last| {
        let gather = Gather {
            by: by(),
            rule: Rule::Budget {
                budget: 8.0,
                padded,
                most: Some(3),
                oversize,
            },
            batch: Batch {
                drop_last,
                ..Batch::of(1)
            },
        };
        batches(&numbers(&[10], true).gather(gather).unwrap())
    };
    let sums = budget(false, Oversize::Refuse, false);
    assert_eq!(sums, [vec![0, 1, 2], vec![3, 4], vec![5], vec![6], vec![7], vec![8]]);
    let padded = budget(true, Oversize::Alone, true);
    assert_eq!(padded, [vec![0, 1, 2], vec![3, 4], vec![5], vec![6], vec![7], vec![8]]);
    assert_eq!(budget(true, Oversize::Skip, false).len(), 6);
    let refused = numbers(&[3], true).gather(Gather {
        by: by(),
        rule: Rule::Buckets {
            boundaries: vec![3.0],
            sizes: vec![2],
        },
        batch: Batch::of(1),
    });
    assert!(refused.unwrap_err().to_string().contains("1 boundaries make 2 buckets"));
}

#[test]
fn padding_fits_its_type_or_is_refused() {
    let made = |fill: Fill, dtype: DType| fill.bytes(dtype).map_err(|error| error.to_string());
    assert_eq!(made((-1).into(), DType::I16), Ok(vec![255, 255]));
    assert_eq!(made(2.0.into(), DType::U8), Ok(vec![2]));
    assert_eq!(made(1.into(), DType::Bool), Ok(vec![1]));
    assert_eq!(made(f64::NAN.into(), DType::F64), Ok(f64::NAN.to_ne_bytes().to_vec()));
    assert_eq!(made((-0.0).into(), DType::F16), Ok(vec![0, 128]));
    for (fill, dtype) in [
        (Fill::Whole(256), DType::U8),
        (Fill::Whole(-1), DType::U64),
        (Fill::Real(0.5), DType::I64),
        (Fill::Real(f64::INFINITY), DType::I32),
        (Fill::Whole(2), DType::Bool),
    ] {
        assert_eq!(
            made(fill, dtype),
            Err(format!("padding {fill} does not fit into {dtype}"))
        );
    }
    let of_16_bits = |fill: f64, dtype| made(fill.into(), dtype).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    for (fill, half, brain) in [
        (1.0, 0x3c00, 0x3f80),
        (-2.0, 0xc000, 0xc000),
        (f64::NEG_INFINITY, 0xfc00, 0xff80),
        // The nearest: 1 + 2^-10 is there in one, and of two equally near the even one is taken.
        (1.000_976_562_5, 0x3c01, 0x3f80),
        (1.000_488_281_25, 0x3c00, 0x3f80),
        (1.001_464_843_75, 0x3c02, 0x3f80),
        (-65_504.0, 0xfbff, 0xc780),
        (6e-8, 1, 0x3381),
    ] {
        assert_eq!(of_16_bits(fill, DType::F16), Ok(half), "{fill}");
        assert_eq!(of_16_bits(fill, DType::BF16), Ok(brain), "{fill}");
    }
    assert_eq!(of_16_bits(f64::NAN, DType::F16), Ok(0x7e00));
    assert!(of_16_bits(70_000.0, DType::F16).is_err() && made(1e39.into(), DType::F32).is_err());
    assert_eq!(
        made(1.into(), DType::Complex64),
        Err("complex64 can be padded with 0 only".to_owned())
    );
}
