//! The front door: arguments, order, epochs, errors.

use std::time::Duration;

use feedrate::batch::{self, Heap, Value};
use feedrate::{BoxError, Context, DataLoader, DatasetExt as _, Error, Sampler, dataset, sampler};

fn all<B: Send + 'static>(loader: &mut DataLoader<B>) -> Vec<B> {
    loader.iter().unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn batches_and_their_number() {
    for (drop_last, sizes) in [(false, vec![4, 4, 2]), (true, vec![4, 4])] {
        let builder = DataLoader::builder(dataset::range(0..10))
            .batch_size(4)
            .drop_last(drop_last);
        let mut loader = builder.build().unwrap();
        assert_eq!(loader.len(), Some(sizes.len()));
        let got: Vec<usize> = all(&mut loader).iter().map(Vec::len).collect();
        assert_eq!(got, sizes);
        let mut epoch = loader.iter().unwrap();
        epoch.next();
        assert_eq!((epoch.size_hint().0, epoch.delivered()), (sizes.len() - 1, 1));
    }
    let mut single = DataLoader::builder(dataset::range(5..8)).unbatched().build().unwrap();
    assert_eq!(all(&mut single), [5, 6, 7]);
    assert!(all(&mut DataLoader::builder(dataset::range(0..0)).shuffle(true).build().unwrap()).is_empty());
}

/// The order depends on seed and epoch alone: not on the pool, nor on what was iterated before.
#[test]
fn shuffled_order() {
    let build = |threads: usize| {
        let builder = DataLoader::builder(dataset::range(0..50))
            .batch_size(7)
            .shuffle(true)
            .seed(11);
        if threads == 0 {
            builder
        } else {
            builder.threads(threads).items_in_flight(2)
        }
        .build()
        .unwrap()
    };
    let mut inline = build(0);
    let epochs: Vec<Vec<Vec<usize>>> = (0..3).map(|_| all(&mut inline)).collect();
    assert_ne!(epochs[0], epochs[1]);
    let mut sorted = epochs[1].concat();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..50).collect::<Vec<_>>());

    let mut threads = build(3);
    threads.set_epoch(2);
    assert_eq!(all(&mut threads), epochs[2]);
    assert_eq!(threads.epoch(), 3);
    threads.set_epoch(0);
    threads.iter().unwrap().next();
    assert_eq!(all(&mut threads), epochs[1]);

    let other = DataLoader::builder(dataset::range(0..50))
        .batch_size(7)
        .shuffle(true)
        .seed(12);
    assert_ne!(all(&mut other.build().unwrap()), epochs[0]);
    let drawn = || DataLoader::builder(dataset::range(0..2)).build().unwrap().seed();
    assert_ne!(drawn(), drawn());
}

/// The batches of torch.utils.data.DataLoader(range(10), batch_size=4, sampler=RandomSampler(range(10), generator=g)), seed 0.
#[test]
fn the_order_of_torch() {
    let order = sampler::Random::new(10, 0).unwrap();
    let mut loader = DataLoader::builder(dataset::range(0..10))
        .batch_size(4)
        .sampler(order)
        .build()
        .unwrap();
    assert_eq!(all(&mut loader), [vec![4, 1, 7, 5], vec![3, 9, 0, 8], vec![6, 2]]);
}

#[test]
fn random_steps_are_the_same_in_every_pool() {
    let noisy = || dataset::range(0..40).map_with(|i, cx: &Context| Ok((i, cx.rng(7).next_u64())));
    let collate = |samples: Vec<(usize, u64)>, cx: &Context| Ok((samples, cx.rng(7).next_u64()));
    let builder = || {
        DataLoader::builder(noisy())
            .batch_size(6)
            .shuffle(true)
            .seed(3)
            .collate(collate)
    };
    let expected = all(&mut builder().build().unwrap());
    for (threads, in_flight) in [(1, 1), (2, 3)] {
        let mut loader = builder().threads(threads).items_in_flight(in_flight).build().unwrap();
        assert_eq!(all(&mut loader), expected);
    }
    // A batch's numbers are not those of the sample in the same place.
    assert!(
        expected
            .iter()
            .enumerate()
            .all(|(b, (samples, of_batch))| { samples.get(b).is_none_or(|(_, of_sample)| of_sample != of_batch) })
    );
}

#[test]
fn errors_cost_their_batch_and_no_more() {
    for threads in [0, 2] {
        let source = dataset::from_fn(9, |i| match i {
            3 => Err("broken file".into()),
            7 => panic!("broken code"),
            _ => Ok(Value::from(i64::try_from(i).unwrap())),
        });
        let collate = |samples: Vec<Value>, cx: &Context| {
            if cx.position == 0 {
                Err("no first batch".into())
            } else {
                batch::stack(samples, cx)
            }
        };
        let builder = DataLoader::builder(source).batch_size(2).collate(collate);
        let builder = if threads == 0 {
            builder
        } else {
            builder.threads(threads)
        };
        let mut loader = builder.build().unwrap();
        let texts: Vec<String> = loader
            .iter()
            .unwrap()
            .map(|result| match result {
                Ok(batch) => format!("{:?}", batch.as_tensor().unwrap().as_slice::<i64>().unwrap()),
                Err(error) => error.to_string(),
            })
            .map(|text| text.replace("worker 1", "worker 0"))
            .collect();
        assert_eq!(
            texts,
            [
                "batch 0 (samples 0, 1) could not be collated in worker 0: no first batch",
                "sample 3 of batch 1 failed in worker 0: broken file",
                "[4, 5]",
                "sample 7 of batch 3 failed in worker 0 with a panic: broken code",
                "[8]",
            ]
        );
    }
}

#[test]
fn collate_errors_name_path_and_sample() {
    let source = dataset::from_items([Value::from(1), "two".into()]);
    let mut loader = DataLoader::builder(source)
        .batch_size(2)
        .collate(batch::stack)
        .build()
        .unwrap();
    let error = loader.iter().unwrap().next().unwrap().unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    let detail: &batch::CollateError = source.downcast_ref().unwrap();
    assert_eq!((detail.path.as_str(), detail.sample), ("$", 1));
    assert_eq!(error.indices(), [0, 1]);
}

#[test]
fn a_sampler_that_fails() {
    struct Fails(usize);
    impl Sampler for Fails {
        type Item = Vec<usize>;
        fn begin(&mut self, epoch: u64) -> Result<(), BoxError> {
            self.0 = 0;
            if epoch == 1 { Err("no order".into()) } else { Ok(()) }
        }
        fn next(&mut self) -> Result<Option<Vec<usize>>, BoxError> {
            self.0 += 1;
            match self.0 {
                2 => Err("a hole".into()),
                3 => panic!("a crack"),
                5.. => Ok(None),
                n => Ok(Some(vec![n])),
            }
        }
        fn len(&self) -> Option<usize> {
            None
        }
    }
    for threads in [0, 2] {
        let builder = DataLoader::builder(dataset::range(0..9)).batch_sampler(Fails(0));
        let builder = if threads == 0 {
            builder
        } else {
            builder.threads(threads)
        };
        let mut loader = builder.build().unwrap();
        assert_eq!(loader.len(), None);
        let texts: Vec<String> = loader
            .iter()
            .unwrap()
            .map(|result| result.map_or_else(|error| error.to_string(), |batch| format!("{batch:?}")))
            .collect();
        assert_eq!(
            texts,
            [
                "[1]",
                "the sampler failed: a hole",
                "the sampler failed with a panic: a crack",
                "[4]"
            ]
        );
        // A sampler that cannot begin is asked again.
        let mut epoch = loader.iter().unwrap();
        assert_eq!(
            epoch.next().unwrap().unwrap_err().to_string(),
            "the sampler failed: no order"
        );
    }
}

#[test]
fn streams() {
    let items = |cx: &Context| Ok((0..10).skip(cx.worker.id).step_by(cx.worker.workers).map(Ok));
    for (threads, drop_last, expected) in [
        (0, false, vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]),
        (0, true, vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]),
        (2, false, vec![vec![0, 2, 4, 6], vec![1, 3, 5, 7], vec![8], vec![9]]),
        (2, true, vec![vec![0, 2, 4, 6], vec![1, 3, 5, 7]]),
    ] {
        let builder = DataLoader::stream(dataset::from_iter(items))
            .batch_size(4)
            .drop_last(drop_last);
        let builder = if threads == 0 {
            builder
        } else {
            builder.threads(threads)
        };
        let mut loader = builder.build().unwrap();
        assert_eq!(loader.len(), None);
        for _ in 0..3 {
            assert_eq!(all(&mut loader), expected);
        }
    }
}

/// An error in a stream costs nothing but itself; one that cannot be opened is said once.
#[test]
fn streams_that_fail() {
    let source =
        dataset::from_iter(|_: &Context| Ok((0..6).map(|i| if i == 3 { Err(BoxError::from("torn")) } else { Ok(i) })));
    let mut loader = DataLoader::stream(source).batch_size(2).build().unwrap();
    let results: Vec<_> = loader.iter().unwrap().map(|r| r.map_err(|e| e.to_string())).collect();
    assert_eq!(
        results,
        [
            Ok(vec![0, 1]),
            Err("sample 3 of batch 1 failed in worker 0: torn".to_owned()),
            Ok(vec![2, 4]),
            Ok(vec![5])
        ]
    );
    let source = dataset::from_iter(|cx: &Context| match cx.epoch {
        0 => Err("not there".into()),
        1 => panic!("not even a file"),
        _ => Ok(std::iter::once(Ok(1))),
    });
    for threads in [0, 1] {
        let builder = DataLoader::stream(source.clone());
        let builder = if threads == 0 {
            builder
        } else {
            builder.threads(threads)
        };
        let mut loader = builder.build().unwrap();
        for text in ["not there", "not even a file"] {
            let errors: Vec<Error> = loader.iter().unwrap().filter_map(Result::err).collect();
            assert_eq!(errors.len(), 1);
            assert!(errors[0].to_string().ends_with(text), "{}", errors[0]);
        }
        assert_eq!(all(&mut loader), [[1]]);
    }
}

#[test]
fn timeouts_wait_on() {
    let source = dataset::from_fn(3, |i| {
        std::thread::sleep(Duration::from_millis(if i == 1 { 1000 } else { 0 }));
        Ok(i)
    });
    let builder = DataLoader::builder(source)
        .threads(1)
        .timeout(Duration::from_millis(50));
    let mut loader = builder.build().unwrap();
    let mut got = Vec::new();
    let mut timeouts = 0;
    for result in loader.iter().unwrap() {
        match result {
            Ok(batch) => got.extend(batch),
            Err(error) => {
                assert!(error.is_timeout() && error.may_continue(), "{error}");
                assert_eq!(error.indices().len(), 1);
                timeouts += 1;
            }
        }
    }
    assert_eq!(got, [0, 1, 2]);
    assert!(timeouts >= 1);
}

#[test]
fn a_timeout_beyond_all_clocks_is_none() {
    let builder = DataLoader::builder(dataset::range(0..5)).batch_size(2).threads(2);
    let mut loader = builder.timeout(Duration::MAX).build().unwrap();
    assert_eq!(all(&mut loader), [vec![0, 1], vec![2, 3], vec![4]]);
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let map = || DataLoader::builder(dataset::range(0..9));
    let stream = || {
        DataLoader::stream(dataset::from_iter(
            |_: &Context| Ok(std::iter::empty::<Result<u8, _>>()),
        ))
    };
    let errors = [
        map().batch_size(0).build().err(),
        map().threads(0).build().err(),
        map().threads(1).prefetch(0).build().err(),
        map().threads(1).items_in_flight(0).build().err(),
        map().timeout(Duration::from_secs(1)).build().err(),
        map().prefetch(3).build().err(),
        map().items_in_flight(2).build().err(),
        map().shuffle(true).sampler(sampler::Sequential::new(9)).build().err(),
        map()
            .batch_size(2)
            .batch_sampler(sampler::from_iter(|_| [vec![1]]))
            .build()
            .err(),
        map()
            .drop_last(true)
            .batch_sampler(sampler::from_iter(|_| [vec![1]]))
            .build()
            .err(),
        map().batch_size(2).unbatched().build().err(),
        map()
            .batch_sampler(sampler::from_iter(|_| [vec![1, 2]]))
            .unbatched()
            .build()
            .err(),
        stream().batch_size(0).build().err(),
        stream().threads(1).items_in_flight(2).build().err(),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("case {i} was accepted"));
        assert!(error.is_config(), "{error}");
    }
}

#[test]
fn an_allocator_of_the_users() {
    let source = dataset::from_fn(4, |i| Ok(Value::from(0.5 * f64::from(u32::try_from(i)?))));
    let builder = DataLoader::builder(source)
        .batch_size(4)
        .collate(batch::stack)
        .allocator(Heap);
    let batch = all(&mut builder.threads(2).build().unwrap()).remove(0);
    assert_eq!(
        batch.as_tensor().unwrap().as_slice::<f64>().unwrap(),
        [0.0, 0.5, 1.0, 1.5]
    );
}

/// A loader can be moved to another thread, and be a field of a named type.
#[test]
fn loaders_can_be_sent() {
    struct Training {
        loader: DataLoader<Vec<usize>>,
    }
    let loader = DataLoader::builder(dataset::range(0..4))
        .batch_size(2)
        .threads(1)
        .build()
        .unwrap();
    let mut training = Training { loader };
    let sent = std::thread::spawn(move || all(&mut training.loader));
    assert_eq!(sent.join().unwrap(), [[0, 1], [2, 3]]);
}
