use feedrate_shm::{ArenaOptions, Channel};

use super::super::parcel::{open, report};
use super::*;
use crate::batch::{DType, Tensor, TensorError};
use crate::random::Key;

fn arena() -> Arc<Arena> {
    Arena::new(ArenaOptions::default()).unwrap()
}

/// Sends a batch through a channel within this process, as a worker sends it to its parent.
fn through(value: Value, arena: &Arc<Arena>, view: &Arc<View>) -> Value {
    let (ours, theirs) = Channel::pair().unwrap();
    report(
        &ours,
        arena,
        Report::Done {
            epoch: 1,
            position: 2,
            output: Ok(value),
        },
    )
    .ok()
    .unwrap();
    loop {
        let mut buffer = [0; Channel::MAX];
        let received = theirs.recv(&mut buffer).unwrap();
        let got = open(&buffer[..received.len], received.fd, |bytes, fd| {
            let report = Report::decode(bytes, view)?;
            if let (Report::Segment { id, len }, Some(fd)) = (&report, fd) {
                view.add(*id, *len, fd)?;
            }
            Ok(report)
        });
        match got.unwrap() {
            Report::Segment { .. } => {}
            Report::Done {
                epoch: 1,
                position: 2,
                output,
            } => return output.unwrap(),
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn batch(scale: usize) -> Value {
    let grid = Tensor::from_vec(
        (0..6 * u32::try_from(scale).unwrap()).map(f64::from).collect(),
        &[2, 3 * scale],
    );
    Value::map([
        ("grid", Value::from(grid.unwrap())),
        ("empty", Tensor::zeros(DType::BF16, &[0, 4]).unwrap().into()),
        ("names", Value::list(["a", "b"])),
        ("raw", Value::Bytes(vec![1, 2, 3])),
        (
            "plain",
            Value::List(vec![Value::None, true.into(), (-5).into(), 0.25.into()]),
        ),
    ])
}

#[test]
fn batches_arrive_as_they_were() {
    let (arena, view) = (arena(), View::new());
    for scale in [1, 1000, 100_000] {
        assert_eq!(through(batch(scale), &arena, &view), batch(scale));
    }
    // Too large for a message even without the tensors.
    let text = Value::Str("x".repeat(100_000));
    assert_eq!(through(text.clone(), &arena, &view), text);
    let long = Value::list((0..5000).collect::<Vec<i32>>());
    assert_eq!(through(long.clone(), &arena, &view), long);
}

#[test]
fn a_tensor_in_the_arena_is_not_copied() {
    let (arena, view) = (arena(), View::new());
    let build = || {
        Tensor::build(&arena, DType::U8, &[100_000], |bytes| {
            bytes.fill(3);
            Ok::<_, TensorError>(())
        })
        .unwrap()
    };
    let got = through(build().into(), &arena, &view);
    let stats = arena.stats();
    assert_eq!((stats.local_slots, stats.leased_slots), (0, 1));
    drop(got);
    assert_eq!(arena.stats().leased_slots, 0);

    // One that somebody keeps, or that was turned, is copied.
    let kept = build();
    let got = through(kept.clone().into(), &arena, &view);
    assert_eq!((arena.stats().local_slots, arena.stats().leased_slots), (1, 1));
    assert_eq!(got, Value::Tensor(kept));
    let turned = Tensor::from_vec((0..6_i32).collect(), &[2, 3])
        .unwrap()
        .transpose(0, 1)
        .unwrap();
    assert_eq!(through(turned.clone().into(), &arena, &view), Value::Tensor(turned));
}

#[test]
fn orders_and_errors_come_back() {
    let hello = Hello {
        worker: 1,
        workers: 2,
        in_flight: 3,
        seed: u64::MAX,
        drop_last: true,
        recipe: "r".to_owned(),
        argument: vec![0, 255],
    };
    let job = BatchJob {
        epoch: 4,
        first: 5,
        indices: vec![6, 7],
        count: 2,
        turn: None,
    };
    for order in [
        Order::Hello(hello),
        Order::Epoch(9),
        Order::Task {
            epoch: 1,
            position: 2,
            job,
        },
        Order::Retire,
    ] {
        assert_eq!(Order::decode(&order.encode()).unwrap(), order);
    }
    let (arena, view) = (arena(), View::new());
    let source = || BoxError::from(crate::error::Panic("why".to_owned()));
    for error in [
        Error::Sample {
            index: 1,
            position: 2,
            worker: 3,
            panic: true,
            source: source(),
        },
        Error::Collate {
            indices: vec![1, 2],
            position: 2,
            worker: 3,
            panic: false,
            source: source(),
        },
        Error::config("c"),
        Error::bug("b"),
    ] {
        let text = error.to_string();
        let bytes = Report::Done {
            epoch: 0,
            position: 0,
            output: Err(error),
        }
        .encode(&arena)
        .unwrap()
        .0;
        let Report::Done { output: Err(back), .. } = Report::decode(&bytes, &view).unwrap() else {
            panic!("not an error");
        };
        assert_eq!(back.to_string(), text);
    }
}

/// Every cut and thousands of damaged messages: an error or something else, never a panic or an endless allocation.
#[test]
fn damaged_messages_are_errors() {
    let (arena, view) = (arena(), View::new());
    let whole = Report::Done {
        epoch: 1,
        position: 2,
        output: Ok(batch(1)),
    }
    .encode(&arena)
    .unwrap()
    .0;
    for cut in 0..whole.len() {
        assert!(Report::decode(&whole[..cut], &view).is_err(), "cut at {cut}");
    }
    let task = Order::task(
        1,
        2,
        &BatchJob {
            indices: vec![1, 2, 3],
            ..BatchJob::default()
        },
    );
    for cut in 0..task.len() {
        assert!(Order::decode(&task[..cut]).is_err(), "cut at {cut}");
    }
    let mut rng = Key {
        seed: 8,
        ..Key::default()
    }
    .stream();
    for _ in 0..20_000 {
        let mut bytes = if rng.below(2) == 0 { whole.clone() } else { task.clone() };
        for _ in 0..=rng.below(3) {
            let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
            bytes[at] = u8::try_from(rng.below(256)).unwrap();
        }
        let _ = Report::decode(&bytes, &view);
        let _ = Order::decode(&bytes);
    }
    // A list that says it is endless, and one that is too deep.
    let mut list = vec![5];
    list.extend([0; 16]);
    list.push(7);
    list.extend(u64::MAX.to_le_bytes());
    assert!(Report::decode(&list, &view).is_err());
    let deep = (0..100).fold(Value::None, |inner, _| Value::List(vec![inner]));
    let tensor = Tensor::from_vec(vec![1_u8; 100], &[100]).unwrap();
    let output = Ok(Value::List(vec![tensor.into(), deep]));
    let before = arena.stats().leased_slots;
    assert!(
        Report::Done {
            epoch: 0,
            position: 0,
            output
        }
        .encode(&arena)
        .is_err()
    );
    assert_eq!(arena.stats().leased_slots, before);
}
