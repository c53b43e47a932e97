//! A loader stopped after any batch goes on exactly, in any pool.

use std::sync::Arc;
use std::sync::Mutex;

use feedrate::loader::MapSource;
use feedrate::random::Mt19937;
use feedrate::sampler::{self, Order, Random, Ranks, Remainder, Repeat, Sampler, Sequential, Weighted};
use feedrate::{Builder, Context, DataLoader, Dataset, Error, State, dataset};

const SAMPLES: usize = 23;

/// Gives its index and a random number, and remembers what was loaded.
#[derive(Clone, Default)]
struct Watched(Arc<Mutex<Vec<usize>>>);

impl Dataset for Watched {
    type Item = (usize, u64);

    fn len(&self) -> usize {
        SAMPLES
    }

    fn get(&self, index: usize, cx: &Context) -> Result<(usize, u64), feedrate::BoxError> {
        self.0.lock().unwrap().push(index);
        Ok((index, cx.rng(3).next_u64()))
    }
}

/// With a random number of the batch, which is keyed by its position.
type Batch = (Vec<(usize, u64)>, u64);
type Build = Builder<MapSource<Watched>, Batch>;
type Way = fn(Build) -> Build;

fn builder(watched: &Watched) -> Build {
    DataLoader::builder(watched.clone()).collate(|samples, cx| Ok((samples, cx.rng(4).next_u64())))
}

/// The ways to say in which order, and how many pass before a state is taken.
fn orders() -> Vec<(&'static str, Way)> {
    vec![
        ("sequential", |b| b.batch_size(4)),
        ("one by one", |b| b),
        ("shuffled", |b| b.batch_size(4).shuffle(true).drop_last(true)),
        ("random", |b| b.batch_size(4).sampler(Random::new(SAMPLES, 5).unwrap())),
        ("several permutations", |b| {
            b.batch_size(5)
                .sampler(Random::new(SAMPLES, 5).unwrap().count(60).unwrap())
        }),
        ("weighted and shared", |b| {
            let weighted = Weighted::new(vec![1.5; SAMPLES], 40, true, Mt19937::new(8)).unwrap();
            b.batch_size(4)
                .sampler(Ranks::new(weighted, 1, 2, Remainder::Pad).unwrap())
        }),
        ("repeated", |b| {
            b.batch_size(4)
                .sampler(Repeat::new(Random::new(SAMPLES, 1).unwrap(), 2).unwrap())
        }),
        ("buckets", |b| {
            let inner = Random::new(SAMPLES, 2).unwrap();
            b.batch_sampler(sampler::Buckets::new(inner, |i| i, [5, 11], 3, false).unwrap())
        }),
        ("without states", |b| {
            let order = |epoch| Order::keyed(SAMPLES as u64, 9, epoch).unwrap();
            b.batch_size(4).sampler(sampler::from_iter(move |epoch| {
                let order = order(epoch);
                (0..SAMPLES as u64).map(move |i| usize::try_from(order.at(i).unwrap()).unwrap())
            }))
        }),
        ("batches without states", |b| {
            b.batch_sampler(sampler::from_iter(|epoch| {
                (0..6).map(move |i| vec![i, i + usize::try_from(epoch).unwrap()])
            }))
        }),
    ]
}

fn pooled(builder: Build, workers: usize) -> Build {
    match workers {
        0 => builder.inline(),
        n => builder.threads(n).prefetch(n),
    }
}

fn all(loader: &mut DataLoader<Batch>) -> Vec<Batch> {
    loader.iter().unwrap().collect::<Result<_, _>>().unwrap()
}

fn text(state: &State) -> State {
    state.to_string().parse().unwrap()
}

#[test]
fn every_cut_in_every_pool() {
    for (name, order) in orders() {
        let build = |workers| pooled(order(builder(&Watched::default())).seed(77), workers);
        let mut whole = build(0).build().unwrap();
        let epochs: Vec<Vec<Batch>> = (0..4).map(|_| all(&mut whole)).collect();
        for (before, after) in [(0, 2), (1, 0), (3, 1), (2, 3)] {
            for past in 0..2 {
                for cut in 0..=epochs[past].len() {
                    let mut loader = build(before).build().unwrap();
                    for _ in 0..past {
                        all(&mut loader);
                    }
                    let mut epoch = loader.iter().unwrap();
                    let taken: Vec<Batch> = epoch.by_ref().take(cut).collect::<Result<_, _>>().unwrap();
                    assert_eq!(taken, epochs[past][..cut]);
                    let state = text(&epoch.state().unwrap());
                    drop(epoch);
                    assert_eq!(
                        loader.state().unwrap(),
                        state,
                        "{name}: an abandoned epoch stays where it was"
                    );

                    let watched = Watched::default();
                    let again = pooled(order(builder(&watched)), after).resume(state);
                    let mut resumed = again.build().unwrap();
                    assert_eq!((resumed.seed(), resumed.epoch()), (77, past as u64));
                    let rest = all(&mut resumed);
                    assert_eq!(
                        rest,
                        epochs[past][cut..],
                        "{name}: {before} to {after} workers, cut at {cut}"
                    );
                    let needed: usize = rest.iter().map(|(samples, _)| samples.len()).sum();
                    assert_eq!(
                        watched.0.lock().unwrap().len(),
                        needed,
                        "{name}: only the rest is loaded"
                    );
                    assert_eq!(
                        all(&mut resumed),
                        epochs[past + 1],
                        "{name}: the epoch after a cut at {cut}"
                    );
                }
            }
        }
    }
}

/// Saved, resumed, and saved again after each batch: the states of a resumed loader are those of one that never stopped.
#[test]
fn states_of_a_resumed_loader_are_the_same() {
    for (name, order) in orders() {
        let build = || pooled(order(builder(&Watched::default())).seed(1), 2);
        let mut whole = build().build().unwrap();
        let mut states = vec![whole.state().unwrap()];
        for _ in 0..2 {
            let mut epoch = whole.iter().unwrap();
            while let Some(batch) = epoch.next() {
                batch.unwrap();
                states.push(epoch.state().unwrap());
            }
            states.push(epoch.state().unwrap());
        }
        assert_eq!(whole.state().unwrap(), *states.last().unwrap());

        let mut found = vec![states[0].clone()];
        let mut state = states[0].clone();
        while found.len() < states.len() {
            let mut loader = build().resume(text(&state)).build().unwrap();
            assert_eq!(loader.state().unwrap(), state, "{name}: as it was resumed");
            let mut epoch = loader.iter().unwrap();
            let _ = epoch.next().transpose().unwrap();
            state = epoch.state().unwrap();
            found.push(state.clone());
        }
        for (step, (found, expected)) in found.iter().zip(&states).enumerate() {
            assert_eq!(found, expected, "{name}: after {step} steps");
        }
    }
}

#[test]
fn the_batch_size_may_change_where_samples_are_cut() {
    let build = |size| {
        DataLoader::builder(dataset::range(0..SAMPLES))
            .batch_size(size)
            .shuffle(true)
    };
    let mut loader = build(4).seed(3).build().unwrap();
    let mut epoch = loader.iter().unwrap();
    let mut order: Vec<usize> = epoch.by_ref().take(3).collect::<Result<Vec<_>, _>>().unwrap().concat();
    let state = epoch.state().unwrap();
    let rest = epoch.collect::<Result<Vec<_>, _>>().unwrap().concat();
    let mut resumed = build(7).resume(state).build().unwrap();
    let batches = resumed.iter().unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [7, 4]);
    assert_eq!(batches.concat(), rest);
    order.extend(rest);
    order.sort_unstable();
    assert_eq!(order, (0..SAMPLES).collect::<Vec<_>>());
}

/// A batch that failed was had: the resumed loader goes on behind it.
#[test]
fn failed_batches_count() {
    let build = || {
        let source = dataset::from_fn(10, |i| if i == 3 { Err("bad".into()) } else { Ok(i) });
        DataLoader::builder(source).batch_size(2).seed(0)
    };
    let mut loader = build().threads(2).build().unwrap();
    let mut epoch = loader.iter().unwrap();
    assert_eq!(epoch.next().unwrap().unwrap(), [0, 1]);
    assert!(epoch.next().unwrap().unwrap_err().is_data());
    let state = epoch.state().unwrap();
    let mut resumed = build().resume(state).build().unwrap();
    let rest = resumed.iter().unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(rest, [[4, 5], [6, 7], [8, 9]]);
}

#[test]
fn another_epoch_can_be_chosen() {
    let build = || {
        DataLoader::builder(dataset::range(0..SAMPLES))
            .batch_size(4)
            .shuffle(true)
            .seed(3)
    };
    let mut loader = build().build().unwrap();
    for chosen in [1, 7] {
        loader.iter().unwrap().next();
        loader.set_epoch(chosen);
        let state = loader.state().unwrap();
        assert_eq!(
            (state.number("epoch").unwrap(), state.number("batches").unwrap()),
            (chosen, 0)
        );
    }
    let state = loader.state().unwrap();
    let expected = loader.iter().unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let mut resumed = build().resume(state).build().unwrap();
    assert_eq!(
        resumed.iter().unwrap().collect::<Result<Vec<_>, _>>().unwrap(),
        expected
    );
}

/// Passing over nine tenths of a hundred billion samples takes no time and loads nothing.
#[test]
fn huge_epochs_are_resumed_at_once() {
    const HUGE: usize = 100_000_000_000;
    let build = || {
        DataLoader::builder(dataset::from_fn(HUGE, Ok))
            .batch_size(1000)
            .shuffle(true)
    };
    let mut loader = build().seed(6).build().unwrap();
    let State::Map(mut state) = loader.state().unwrap() else {
        panic!("a loader's state is a map");
    };
    state.insert("batches".into(), (HUGE / 1000 - 1).into());
    state.insert("samples".into(), (HUGE - 1000).into());
    let mut resumed = build().resume(State::Map(state)).build().unwrap();
    let last = resumed.iter().unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let order = Order::keyed(HUGE as u64, 6, 0).unwrap();
    let expected: Vec<i64> = (HUGE as u64 - 1000..HUGE as u64).filter_map(|i| order.at(i)).collect();
    assert_eq!(
        last.concat()
            .iter()
            .map(|i| i64::try_from(*i).unwrap())
            .collect::<Vec<_>>(),
        expected
    );
    assert_eq!(loader.iter().unwrap().next().unwrap().unwrap().len(), 1000);
}

#[test]
fn what_cannot_be_exact_is_refused() {
    let refused = |builder: Build, state: &State| -> String {
        let error = builder.resume(state.clone()).build().unwrap_err();
        assert!(matches!(error, Error::State { .. }), "{error}");
        error.to_string()
    };
    let new = || builder(&Watched::default());
    let mut loader = new().batch_size(4).seed(5).build().unwrap();
    let mut epoch = loader.iter().unwrap();
    epoch.next();
    let state = epoch.state().unwrap();
    let cases: [(Build, &str); 5] = [
        (new().batch_size(4).seed(6), "seed: 5 in the state, 6 here"),
        (
            new().batch_size(4).drop_last(true),
            "drop_last: false in the state, true here",
        ),
        (
            new().batch_size(4).shuffle(true),
            "\"sequential\" in the state, \"shuffled\" here",
        ),
        (
            new().batch_sampler(sampler::from_iter(|_| [vec![0]])),
            "batch size: 4 in the state, null here",
        ),
        (new().batch_size(4).threads(1).in_order(false), "in_order is false"),
    ];
    for (builder, expected) in cases {
        let message = refused(builder, &state);
        assert!(message.contains(expected), "{message}");
    }

    let longer = DataLoader::builder(dataset::range(0..30))
        .batch_size(4)
        .resume(state.clone());
    let message = longer.build().unwrap_err().to_string();
    assert!(
        message.contains("samples in the dataset: 23 in the state, 30 here"),
        "{message}"
    );
    let State::Map(mut newer) = state else {
        panic!("a loader's state is a map");
    };
    newer.insert("feedrate".into(), 2.into());
    assert!(refused(new().batch_size(4), &State::Map(newer)).contains("version of the state: 2 in the state, 1 here"));
    assert!(refused(new(), &State::Null).contains("`feedrate` is missing"));

    let stream = DataLoader::stream(dataset::from_iter(
        |_: &Context| Ok(std::iter::empty::<Result<u8, _>>()),
    ));
    assert!(stream.build().unwrap().state().unwrap_err().is_state());
    let disordered = new().threads(1).in_order(false).build().unwrap();
    assert!(disordered.state().unwrap_err().is_state());
}

/// A sampler without states that gives another order is found out, before any batch.
#[test]
fn another_order_is_found_out() {
    let build = |shift: usize| {
        let order = move |epoch: u64| (0..10).map(move |i| (i + shift * usize::try_from(epoch).unwrap()) % 10);
        DataLoader::builder(dataset::range(0..10))
            .batch_size(2)
            .sampler(sampler::from_iter(order))
    };
    let mut loader = build(1).seed(0).build().unwrap();
    loader.set_epoch(1);
    let mut epoch = loader.iter().unwrap();
    epoch.next();
    let state = epoch.state().unwrap();
    for threads in [0, 2] {
        let again = build(2).resume(state.clone());
        let again = if threads == 0 { again } else { again.threads(threads) };
        let mut resumed = again.build().unwrap();
        let mut epoch = resumed.iter().unwrap();
        let error = epoch.next().unwrap().unwrap_err();
        assert!(
            error.is_state() && error.to_string().contains("another order than before"),
            "{error}"
        );
        assert!(epoch.next().is_none());
    }
    let shorter = DataLoader::builder(dataset::range(0..10))
        .batch_size(2)
        .sampler(sampler::from_iter(|_| 0..0));
    let mut resumed = shorter.resume(state.clone()).build().unwrap();
    let error = resumed.iter().unwrap().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("shorter than before"), "{error}");
    let with_states = DataLoader::builder(dataset::range(0..10))
        .batch_size(2)
        .sampler(Sequential::new(10));
    assert!(with_states.resume(state).build().unwrap_err().is_state());
}

/// A loader's state counts the samples of its own rank.
#[test]
fn ranks_of_another_number_are_refused_in_the_middle_of_an_epoch() {
    let build = |rank, world| {
        let shuffled = sampler::Shuffled::new(20, 3).unwrap();
        DataLoader::builder(dataset::range(0..20))
            .batch_size(2)
            .sampler(Ranks::new(shuffled, rank, world, Remainder::Exact).unwrap())
    };
    let mut loader = build(0, 2).build().unwrap();
    let mut epoch = loader.iter().unwrap();
    let first: Vec<usize> = epoch.by_ref().take(2).flat_map(Result::unwrap).collect();
    let state = epoch.state().unwrap();
    let rest: Vec<usize> = epoch.flat_map(Result::unwrap).collect();
    assert_eq!((first.len(), rest.len()), (4, 6));
    let mut same = build(0, 2).resume(state.clone()).build().unwrap();
    assert_eq!(
        same.iter().unwrap().flat_map(Result::unwrap).collect::<Vec<usize>>(),
        rest
    );
    for world in [1, 4] {
        let mut other = build(0, world).resume(state.clone()).build().unwrap();
        let mut epoch = other.iter().unwrap();
        let error = epoch.next().unwrap().unwrap_err();
        assert!(error.is_state() && !error.may_continue());
        assert!(error.to_string().contains("one of 2 ranks"), "{error}");
        assert!(epoch.next().is_none());
        // The state is still where it was.
        assert_eq!(text(&epoch.state().unwrap()).number("epoch").unwrap(), 0);
    }
    // Between epochs any number may go on.
    assert_eq!(same.state().unwrap().number("epoch").unwrap(), 1);
    let mut other = build(3, 4).resume(same.state().unwrap()).build().unwrap();
    assert_eq!(other.iter().unwrap().flat_map(Result::unwrap).count(), 5);
}

/// Has no states, and fails at some of its batches.
#[derive(Debug)]
struct Erring(usize);

impl Sampler for Erring {
    type Item = Vec<usize>;

    fn begin(&mut self, _: u64) -> Result<(), feedrate::BoxError> {
        self.0 = 0;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Vec<usize>>, feedrate::BoxError> {
        self.0 += 1;
        match self.0 {
            3 | 8 => Err("a hole".into()),
            ..13 => Ok(Some(vec![self.0])),
            _ => Ok(None),
        }
    }

    fn len(&self) -> Option<usize> {
        None
    }
}

/// Errors of a sampler are told where they come, and a state behind them passes over them.
#[test]
fn states_behind_errors_of_a_sampler() {
    let lengths = |i: usize| if i % 7 == 3 { 99 } else { 1 + i % 4 };
    let budget = move || sampler::Budget::new(Sequential::new(SAMPLES), lengths, 10).unwrap();
    let boxed = |of: usize| -> Box<dyn Sampler<Item = Vec<usize>>> {
        if of == 0 {
            Box::new(budget())
        } else {
            Box::new(Erring(0))
        }
    };
    for of in 0..2 {
        let build = || DataLoader::builder(dataset::range(0..23)).batch_sampler(boxed(of));
        let whole: Vec<_> = build().build().unwrap().iter().unwrap().map(Result::ok).collect();
        assert!(whole.iter().filter(|batch| batch.is_none()).count() >= 2);
        for cut in 0..whole.len() {
            let mut loader = build().threads(2).build().unwrap();
            let mut epoch = loader.iter().unwrap();
            let before: Vec<_> = epoch.by_ref().take(cut).map(Result::ok).collect();
            assert_eq!(before, whole[..cut]);
            let state = epoch.state().unwrap();
            drop(epoch);
            let mut resumed = build().resume(state).build().unwrap();
            let rest: Vec<_> = resumed.iter().unwrap().filter_map(Result::ok).collect();
            assert_eq!(
                rest,
                whole[cut..].iter().flatten().cloned().collect::<Vec<_>>(),
                "{cut}"
            );
        }
    }
}
