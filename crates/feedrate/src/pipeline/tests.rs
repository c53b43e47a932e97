//! Every cut of every kind of pipeline, alone and in lanes.

use proptest::prelude::*;

use super::*;
use crate::batch::{Tensor, Value};
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
    ]
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
        Kind::Batch(size) => pipeline.batch(*size).map("first", |value, _| {
            let x = value
                .get("x")
                .and_then(Value::as_tensor)
                .unwrap()
                .to_vec::<i64>()
                .unwrap();
            Ok(Value::map([("x", x.iter().sum::<i64>().into())]))
        }),
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
