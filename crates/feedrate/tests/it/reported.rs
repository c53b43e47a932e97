//! Faults of pipelines that trials have reported.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use feedrate::batch::Value;
use feedrate::pipeline::{Call, Func, Function, Opening, Packing, Pipeline, Sample, Weights, mixed, stop_ahead};
use feedrate::source::{Items, Mark, Part, Reader, Record, Source, SourceError};
use feedrate::{BoxError, DataLoader, State};

use super::lanes::{int, numbers};

/// All that the lanes give, sorted.
fn in_lanes(pipeline: &Pipeline, lanes: u64) -> Vec<i64> {
    let mut found = Vec::new();
    for lane in 0..lanes {
        let mut lane = pipeline.lane(&Opening::new(lane, lanes, 1, 7, 0), None).unwrap();
        while let Some(sample) = lane.next().unwrap() {
            found.push(int(&sample.value));
        }
    }
    found.sort_unstable();
    found
}

/// Runs `work` on a thread of its own; fails where it does not come back.
fn comes_back(what: &str, work: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        work();
        tell.send(()).unwrap();
    });
    assert!(told.recv_timeout(Duration::from_secs(60)).is_ok(), "{what} hangs");
}

#[test]
fn rounds_that_give_nothing_are_no_end() {
    let rare = numbers("n", 80).keep("rare", |_, call| Ok(call.rng().below(10) == 0));
    let whole = in_lanes(&rare.repeat(Some(20)), 1);
    assert!(whole.len() > 100, "{}", whole.len());
    for lanes in [2, 4, 8, 16, 80] {
        assert_eq!(in_lanes(&rare.repeat(Some(20)), lanes), whole, "{lanes} lanes");
    }
    let nothing = numbers("n", 8).keep("none", |_, _| Ok(false));
    assert!(in_lanes(&nothing.repeat(None), 3).is_empty());
    assert!(in_lanes(&nothing.repeat(Some(u64::MAX)), 3).is_empty());
    // The same of the streams of a mix, which begin again.
    let some = numbers("m", 4).keep("half", |_, call| Ok(call.rng().below(2) == 0));
    let weights = Weights {
        replacement: true,
        ..Weights::fixed([1.0, 1.0])
    };
    let both = Pipeline::mix([numbers("n", 400), some], weights).unwrap();
    let mut given = [0; 2];
    for lane in 0..4 {
        let mut lane = both.lane(&Opening::new(lane, 4, 1, 7, 0), None).unwrap();
        while lane.next().unwrap().is_some() {}
        for (sum, of) in given.iter_mut().zip(&mixed(&lane.cursor())[0].given) {
            *sum += *of;
        }
    }
    assert!(given[1] > 300, "{given:?}");
}

#[test]
fn a_small_stream_has_its_weight_in_lanes_that_have_no_share_of_it() {
    let weights = Weights {
        replacement: true,
        ..Weights::fixed([1.0, 1.0])
    };
    let both = Pipeline::mix([numbers("small", 3), numbers("large", 4000)], weights).unwrap();
    for lanes in [1, 8, 16] {
        let mut given = [0; 2];
        for lane in 0..lanes {
            let opening = Opening::new(lane, lanes, 16, 7, 0);
            let mut running = both.lane(&opening, None).unwrap();
            let mut found = Vec::new();
            let mut cut = None;
            while let Some(sample) = running.next().unwrap() {
                found.push(sample);
                if found.len() == 50 {
                    cut = Some(running.cursor());
                }
            }
            for (sum, of) in given.iter_mut().zip(&mixed(&running.cursor())[0].given) {
                *sum += *of;
            }
            let mut again = both.lane(&opening, cut.as_ref()).unwrap();
            let rest: Vec<_> = std::iter::from_fn(|| again.next().unwrap()).collect();
            assert_eq!(rest, found[50..], "lane {lane} of {lanes}");
            assert_eq!(again.again(&[found[7].place.clone()]).unwrap(), found[7..8]);
        }
        assert_eq!(given[1], 4000);
        assert!((3700..4300).contains(&given[0]), "{lanes} lanes: {given:?}");
    }
}

/// A function that is no closure.
struct Panics;

impl Function for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn map(&self, value: Value, _: &Call) -> Result<Value, BoxError> {
        assert!(int(&value) != 3, "at three");
        Ok(value)
    }
}

#[test]
fn a_panic_of_any_function_costs_its_element_alone() {
    let pipeline = numbers("n", 9).map_with(Func::new(Panics));
    let found: Vec<_> = pipeline.iter().unwrap().collect();
    assert_eq!(
        found.iter().flatten().map(int).collect::<Vec<_>>(),
        [0, 1, 2, 4, 5, 6, 7, 8]
    );
    let error = found[3].as_ref().unwrap_err();
    assert!(
        error.may_continue && error.to_string().contains("record 3: at three"),
        "{error}"
    );
}

#[test]
fn a_mix_is_added_up_over_the_lanes_of_a_loader() {
    let both = Pipeline::mix([numbers("n", 90), numbers("m", 90)], Weights::fixed([1.0, 2.0])).unwrap();
    for (rows, units) in [(1, 1), (2, 1), (4, 2)] {
        let mut loader = DataLoader::pipeline(both.clone())
            .batch_size(2)
            .lanes(rows, units)
            .build()
            .unwrap();
        let mut epoch = loader.iter().unwrap();
        for _ in 0..16 {
            epoch.next().unwrap().unwrap();
        }
        let found = mixed(&epoch.state().unwrap());
        assert_eq!(found.len(), 1, "{rows} rows of {units}");
        assert_eq!(found[0].given.iter().sum::<u64>(), 32);
    }
}

#[test]
fn whole_numbers_are_sorted_as_such() {
    let keys = [
        i64::MAX,
        (1 << 53) + 1,
        i64::MAX - 1,
        1 << 53,
        -3,
        i64::MIN + 1,
        i64::MIN,
    ];
    let pipeline =
        Pipeline::items("keys", keys.map(Value::from)).sort_within(100, Func::map("itself", |key, _| Ok(key)));
    let found: Vec<_> = pipeline.iter().unwrap().map(|key| int(&key.unwrap())).collect();
    let mut sorted = keys;
    sorted.sort_unstable();
    assert_eq!(found, sorted);
}

#[test]
fn a_window_weighs_each_element_once_beside_bad_ones() {
    use std::sync::atomic::{AtomicU64, Ordering};

    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let by = Func::map("odd", move |value, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        if int(&value) % 2 == 0 {
            Err("even".into())
        } else {
            Ok(value)
        }
    });
    let pipeline = numbers("n", 1000).sort_within(200, by);
    let found: Vec<_> = pipeline.iter().unwrap().flatten().map(|value| int(&value)).collect();
    assert_eq!(found.len(), 500);
    assert_eq!(calls.load(Ordering::Relaxed), 1000);
}

#[test]
fn forks_with_the_same_number_are_told_apart() {
    let (a, b) = (
        numbers("a", 8),
        numbers("b", 8).map("up", |value, _| Ok((int(&value) + 100).into())),
    );
    let (of_a, of_b) = (a.branches(0, 2, None, 4), b.branches(0, 3, None, 4));
    let all = Pipeline::zip([&of_a[0], &of_a[1], &of_b[0], &of_b[2]].map(Clone::clone));
    for (at, found) in all.iter().unwrap().enumerate() {
        let Value::List(found) = found.unwrap() else {
            panic!("no list")
        };
        let at = i64::try_from(at).unwrap();
        assert_eq!(found.iter().map(int).collect::<Vec<_>>(), [at, at, at + 100, at + 100]);
    }
}

#[test]
fn deep_places_are_read_again() {
    let mut chain = numbers("n", 3);
    for _ in 0..66 {
        chain = Pipeline::concat([chain, numbers("m", 3)]);
    }
    let pipeline = chain.shuffle(20);
    let build = || DataLoader::pipeline(pipeline.clone()).batch_size(4).seed(1);
    let mut loader = build().build().unwrap();
    let mut epoch = loader.iter().unwrap();
    for _ in 0..20 {
        epoch.next().unwrap().unwrap();
    }
    let saved = epoch.state().unwrap();
    for _ in 0..200 {
        chain = chain.map("same", |value, _| Ok(value));
    }
    let refused = chain.iter().map(drop).unwrap_err().to_string();
    assert!(refused.contains("267 steps one behind the other"), "{refused}");
    let rest: Vec<_> = epoch.map(Result::unwrap).collect();
    assert!(rest.len() > 20);
    let mut resumed = build().resume(saved).build().unwrap();
    assert_eq!(resumed.iter().unwrap().map(Result::unwrap).collect::<Vec<_>>(), rest);
}

#[test]
fn loaders_whose_elements_never_come_are_dropped() {
    let never = numbers("n", 100).repeat(None).keep("none", |_, _| Ok(false));
    for pipeline in [never.clone(), never.prefetch(2).unwrap()] {
        comes_back("dropping it", move || {
            let mut loader = DataLoader::pipeline(pipeline)
                .threads(2)
                .timeout(Duration::from_millis(50))
                .build()
                .unwrap();
            assert!(loader.iter().unwrap().next().unwrap().is_err());
            // The next epoch does not wait for what the last one does.
            assert!(loader.iter().unwrap().next().unwrap().is_err());
            drop(loader);
        });
    }
}

#[test]
fn any_prefetch_begins() {
    comes_back("prefetch", || {
        let mut loader = DataLoader::pipeline(numbers("n", 30))
            .batch_size(4)
            .threads(2)
            .prefetch(usize::MAX)
            .build()
            .unwrap();
        let found: usize = loader.iter().unwrap().map(|batch| batch.unwrap().len()).sum();
        assert_eq!(found, 30);
    });
    comes_back("lanes", || {
        for (rows, units) in [(1 << 40, 1), (1, (1 << 59) + 1)] {
            let built = DataLoader::pipeline(numbers("n", 8))
                .lanes(rows, units)
                .rank(0, 2)
                .build();
            assert!(built.is_err_and(|error| error.is_config()));
        }
    });
}

#[test]
fn zeros_where_a_number_is_wanted() {
    let packing = Packing {
        length: 0,
        ..Packing::of(4)
    };
    let tokens = Pipeline::items("t", [Value::List(vec![Value::Int(1), Value::Int(2)])]);
    let _: Vec<_> = tokens.pack(packing).iter().unwrap().collect();
    let mut opening = Opening::whole(0, 0);
    (opening.lanes, opening.block) = (0, 0);
    assert!(numbers("n", 3).lane(&opening, None).unwrap().next().unwrap().is_some());
}

#[test]
fn a_batch_that_was_collated_stays_one() {
    let lists = |name: &'static str, from: i64| {
        Pipeline::items(name, (from..from + 12).map(Value::from)).map("lists", |value, _| {
            let row = |length: usize, by: i64| Value::List(vec![(int(&value) * by).into(); length]);
            Ok(Value::map([("x", Value::List(vec![row(3, 1), row(2, 10)]))]))
        })
    };
    let ready = lists("ready", 100);
    let batches = Pipeline::concat([lists("a", 0).batch(2), ready]);
    let plain = sorted(&batches.unbatch());
    let fork = batches.fork(2, 1);
    for pipeline in [
        batches.shuffle(5).unbatch(),
        batches.prefetch(4).unwrap().unbatch(),
        fork[1].unbatch(),
        Pipeline::interleave([batches.take(2), batches.skip(2)], 1).unbatch(),
    ] {
        assert_eq!(sorted(&pipeline), plain, "{pipeline}");
    }
    let cached = lists("a", 0)
        .batch(2)
        .cache(feedrate::pipeline::Cache::memory(1 << 20))
        .unbatch()
        .shuffle(4);
    let mut lane = cached.lane(&Opening::whole(3, 0), None).unwrap();
    for _ in 0..3 {
        lane.next().unwrap().unwrap();
    }
    let state = lane.cursor();
    let rest: Vec<Sample> = std::iter::from_fn(|| lane.next().unwrap()).collect();
    let mut again = cached.lane(&Opening::whole(3, 0), Some(&state)).unwrap();
    let found: Vec<Sample> = std::iter::from_fn(|| again.next().unwrap()).collect();
    assert_eq!(found, rest);
}

fn sorted(pipeline: &Pipeline) -> Vec<String> {
    let mut found: Vec<_> = pipeline
        .iter()
        .unwrap()
        .map(|value| format!("{:?}", value.unwrap()))
        .collect();
    found.sort_unstable();
    found
}

#[test]
fn a_state_of_a_forks_child_is_refused() {
    let pipeline = numbers("n", 9).prefetch(2).unwrap();
    let state = State::map([("forked", State::Bool(true))]);
    let refused = pipeline.lane(&Opening::whole(0, 0), Some(&state));
    assert!(refused.unwrap_err().to_string().contains("fork"));
}

/// A source whose readers panic at their fourth record.
#[derive(Debug)]
struct PanicsAtThree(Items);

impl Source for PanicsAtThree {
    fn format(&self) -> &'static str {
        "panics"
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn parts(&self) -> Result<Arc<[Part]>, SourceError> {
        self.0.parts()
    }

    fn files(&self, part: usize) -> Result<Vec<std::path::PathBuf>, SourceError> {
        self.0.files(part)
    }

    fn open(&self, part: usize, from: Option<Mark>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(Box::new(Three(self.0.open(part, from)?)))
    }
}

struct Three(Box<dyn Reader>);

impl Reader for Three {
    fn next(&mut self) -> Result<Option<Record>, SourceError> {
        assert!(self.mark().number != 3, "at three");
        self.0.next()
    }

    fn mark(&self) -> Mark {
        self.0.mark()
    }
}

#[test]
fn a_panic_ahead_is_an_error_and_dropping_ends_the_thread() {
    // Not a function of the user's.
    let items = Items::new("n", (0..9_i64).map(Value::from).collect::<Vec<_>>());
    let pipeline = Pipeline::source(PanicsAtThree(items)).prefetch(2).unwrap();
    let found: Vec<_> = pipeline.iter().unwrap().collect();
    assert_eq!(found.len(), 4);
    let message = found[3].as_ref().unwrap_err().to_string();
    assert!(message.contains("panicked: at three"), "{message}");
    let endless = numbers("n", 9).repeat(None).prefetch(2).unwrap();
    let mut lane = endless.lane(&Opening::whole(0, 0), None).unwrap();
    lane.next().unwrap();
    stop_ahead(Duration::from_secs(600), || panic!("there is time"));
    while lane.next().unwrap().is_some() {}
    assert!(pipeline.fork(2, 1)[0].prefetch(1).is_err());
}
