//! Against values of libtorch 2.14.1.

use super::*;
use crate::random::Mt19937;

fn drain<S: Sampler>(sampler: &mut S, batch_size: usize) -> Vec<S::Request> {
    std::iter::from_fn(|| sampler.next(batch_size)).collect()
}

fn random(rank: usize, duplicates: bool) -> DistributedRandomSampler {
    DistributedRandomSampler::new(10, 3, rank, duplicates).unwrap()
}

fn sequential(rank: usize, duplicates: bool) -> DistributedSequentialSampler {
    DistributedSequentialSampler::new(10, 3, rank, duplicates).unwrap()
}

#[test]
fn ten_samples_among_three() {
    let with: [[&[usize]; 2]; 3] = [[&[0, 2, 1], &[5]], [&[9, 1, 4], &[7]], [&[6, 0, 3], &[8]]];
    let without: [&[usize]; 3] = [&[2, 4, 6], &[0, 5, 1], &[8, 3, 7]];
    let in_order: [[&[usize]; 2]; 3] = [[&[0, 1, 2], &[3]], [&[4, 5, 6], &[7]], [&[8, 9, 0], &[1]]];
    for rank in 0..3 {
        assert_eq!(drain(&mut random(rank, true), 3), with[rank]);
        assert_eq!(drain(&mut random(rank, false), 3), [without[rank]]);
        assert_eq!(drain(&mut sequential(rank, true), 3), in_order[rank]);
        assert_eq!(
            drain(&mut sequential(rank, false), 3),
            [[rank * 3, rank * 3 + 1, rank * 3 + 2]]
        );
    }
}

#[test]
fn an_epoch_needs_a_reset() {
    let mut sampler = DistributedRandomSampler::new(10, 1, 0, true).unwrap();
    let first = drain(&mut sampler, 10);
    sampler.set_epoch(1);
    assert_eq!((sampler.index(), sampler.epoch(), sampler.next(1)), (10, 1, None));
    sampler.reset(None).unwrap();
    let second = drain(&mut sampler, 10);
    assert_eq!(first, [[0, 2, 1, 5, 9, 8, 4, 7, 6, 3]]);
    assert_eq!(second, [[9, 0, 2, 5, 7, 4, 6, 3, 1, 8]]);
    sampler.reset(Some(3)).unwrap();
    assert_eq!(drain(&mut sampler, 2), [vec![1, 0], vec![2]]);
    sampler.reset(None).unwrap();
    assert_eq!(sampler.next(0), Some(Vec::new()));
}

#[test]
fn streams_and_single_processes() {
    let mut stream = StreamSampler::new(7);
    assert_eq!(drain(&mut stream, 3), [3, 3, 1]);
    stream.reset(Some(2)).unwrap();
    assert_eq!((drain(&mut stream, 3), stream.index()), (vec![2], 2));

    let mut random = RandomSampler::new(10, Mt19937::new(7)).unwrap();
    assert_eq!(drain(&mut random, 10), [[5, 0, 3, 4, 1, 7, 9, 6, 8, 2]]);
    random.reset(None).unwrap();
    assert_eq!(drain(&mut random, 10), [[1, 8, 9, 5, 7, 4, 0, 3, 6, 2]]);

    let mut sequential = SequentialSampler::new(5);
    assert_eq!(drain(&mut sequential, 2), [vec![0, 1], vec![2, 3], vec![4]]);
    sequential.reset(Some(1)).unwrap();
    assert_eq!((drain(&mut sequential, 2), sequential.index()), (vec![vec![0]], 1));
}

fn check<S: Sampler>(make: &dyn Fn() -> S)
where
    S::Request: PartialEq + std::fmt::Debug,
{
    for cut in 0..6 {
        let mut stopped = make();
        stopped.set_epoch(4);
        stopped.reset(None).unwrap();
        for _ in 0..cut {
            stopped.next(3);
        }
        let state: State = stopped.save().to_string().parse().unwrap();
        let mut resumed = make();
        resumed.load(&state).unwrap();
        assert_eq!(drain(&mut resumed, 2), drain(&mut stopped, 2), "{state}");
        for sampler in [&mut stopped, &mut resumed] {
            sampler.reset(None).unwrap();
        }
        assert_eq!(drain(&mut resumed, 2), drain(&mut stopped, 2), "{state}");
    }
}

#[test]
fn saved_and_loaded() {
    for duplicates in [false, true] {
        check(&|| random(2, duplicates));
        check(&|| sequential(2, duplicates));
    }
    check(&|| RandomSampler::new(8, Mt19937::new(1)).unwrap());
    check(&|| SequentialSampler::new(8));
    check(&|| StreamSampler::new(8));
}

#[test]
fn what_does_not_fit_is_refused() {
    let state = random(2, true).save();
    let message = |mut sampler: DistributedRandomSampler| sampler.load(&state).unwrap_err().to_string();
    assert!(message(random(1, true)).contains("rank: 2 in the state, 1 here"));
    assert!(message(random(2, false)).contains("duplicates allowed: true in the state, false here"));
    let other = DistributedRandomSampler::new(11, 3, 2, true).unwrap();
    assert!(message(other).contains("samples: 10 in the state, 11 here"));
    assert!(DistributedRandomSampler::new(1, 2, 2, true).unwrap_err().is_config());
    assert!(
        DistributedSequentialSampler::new(1, 0, 0, true)
            .unwrap_err()
            .is_config()
    );
    assert!(
        DistributedRandomSampler::new(1 << 33, 1, 0, true)
            .unwrap_err()
            .is_config()
    );
    let far = State::map([("index", 9.into()), ("size", 8.into())]);
    assert!(SequentialSampler::new(8).load(&far).unwrap_err().is_state());
}
