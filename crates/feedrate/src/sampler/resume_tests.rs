//! Every sampler, stopped anywhere, goes on exactly.

use std::fmt::Debug;

use proptest::prelude::*;

use super::*;
use crate::random::Mt19937;

fn rest<S: Sampler + ?Sized>(sampler: &mut S) -> Vec<S::Item> {
    std::iter::from_fn(|| sampler.next().unwrap()).collect()
}

/// Stopped after each number of items in two epochs, written down, taken up by a new one: the rest and the next epoch are the same.
/// And skipping is the same as going through.
fn check<S: Sampler + ?Sized>(make: &dyn Fn() -> Box<S>)
where
    S::Item: Debug + PartialEq,
{
    for epoch in [0, 1] {
        let start = || {
            let mut sampler = make();
            for past in 0..epoch {
                sampler.begin(past).unwrap();
                rest(&mut *sampler);
            }
            sampler
        };
        let mut whole = start();
        whole.begin(epoch).unwrap();
        let expected = rest(&mut *whole);
        if let Some(len) = whole.len() {
            assert_eq!(len, expected.len());
        }
        whole.begin(epoch + 1).unwrap();
        let following = rest(&mut *whole);

        for cut in 0..=expected.len() + 1 {
            let mut stopped = start();
            stopped.begin(epoch).unwrap();
            for _ in 0..cut {
                stopped.next().unwrap();
            }
            let state = stopped.state().unwrap().to_string().parse().unwrap();
            let mut resumed = make();
            resumed.restore(&state).unwrap();
            let kept = cut.min(expected.len());
            assert_eq!(rest(&mut *resumed), expected[kept..], "cut at {cut}: {state}");
            resumed.begin(epoch + 1).unwrap();
            assert_eq!(rest(&mut *resumed), following, "after a cut at {cut}: {state}");

            for first in [0, 1, cut / 2] {
                let first = first.min(cut);
                let mut skipped = start();
                skipped.begin(epoch).unwrap();
                for _ in 0..first {
                    skipped.next().unwrap();
                }
                let passed = skipped.skip(cut - first).unwrap();
                assert_eq!(passed, kept - first.min(kept), "skipped {first} to {cut}");
                assert_eq!(rest(&mut *skipped), expected[kept..], "skipped {first} to {cut}");
                skipped.begin(epoch + 1).unwrap();
                assert_eq!(rest(&mut *skipped), following, "after skipping {first} to {cut}");
            }
        }

        // Between epochs, as loaders do it.
        let idle = start();
        let mut resumed = make();
        resumed.restore(&idle.state().unwrap()).unwrap();
        resumed.begin(epoch).unwrap();
        assert_eq!(rest(&mut *resumed), expected, "between epochs");
    }
}

type Indices = Box<dyn Sampler<Item = usize>>;

fn random(samples: usize, replacement: bool, count: usize) -> Random {
    Random::new(samples, 5)
        .unwrap()
        .replacement(replacement)
        .count(count)
        .unwrap()
}

/// Samplers of about `n` indices.
fn samplers(n: usize) -> Vec<Box<dyn Fn() -> Indices>> {
    let mut all: Vec<Box<dyn Fn() -> Indices>> = vec![
        Box::new(move || Box::new(Sequential::new(n))),
        Box::new(move || Box::new(Shuffled::new(n, 7).unwrap())),
        Box::new(move || Box::new(random(n, false, n))),
        Box::new(move || Box::new(random(n, false, n / 2 + 1))),
        Box::new(move || Box::new(random(n, false, 2 * n))),
        Box::new(move || Box::new(random(n, false, 2 * n + n / 2))),
        Box::new(move || Box::new(random(n, true, n))),
        Box::new(move || Box::new(random(n, true, 64))),
        Box::new(move || Box::new(random(n, true, 70))),
        Box::new(move || Box::new(Subset::new((0..n).map(|i| i * 3).collect::<Vec<_>>(), Mt19937::new(1)))),
        Box::new(move || Box::new(weighted(n, false))),
        Box::new(move || Box::new(weighted(n, true))),
        Box::new(move || Box::new(Repeat::new(random(n, false, n), 3).unwrap())),
        Box::new(move || {
            let both = Concat::new()
                .then(0, random(n, false, n))
                .then(1_000, Shuffled::new(n, 1).unwrap());
            Box::new(both.then(2_000, Sequential::new(2)))
        }),
    ];
    for rank in [0, 2] {
        for drop_last in [false, true] {
            all.push(Box::new(move || {
                Box::new(Distributed::new(n, 3, rank).unwrap().drop_last(drop_last).seed(4))
            }));
        }
        for remainder in [Remainder::Pad, Remainder::Drop, Remainder::Exact] {
            all.push(Box::new(move || {
                Box::new(Ranks::new(random(n, false, n), rank, 3, remainder).unwrap())
            }));
        }
    }
    all
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn weighted(n: usize, replacement: bool) -> Weighted {
    let weights: Vec<f64> = (1..=n).map(|i| i as f64).collect();
    Weighted::new(weights, n, replacement, Mt19937::new(3)).unwrap()
}

#[test]
fn orders_go_on_where_they_stopped() {
    for n in [1, 2, 10, 23] {
        for make in samplers(n) {
            check(&*make);
        }
    }
}

#[test]
fn batches_go_on_where_they_stopped() {
    for n in [1, 7] {
        for make in samplers(n) {
            for drop_last in [false, true] {
                check(&|| Box::new(Batches::new(make(), 4, drop_last).unwrap()));
            }
            check(&|| Box::new(Buckets::new(make(), |i| i % 7, [2, 4], 3, false).unwrap()));
            check(&|| Box::new(Budget::new(make(), |i| i % 7, 15).unwrap().most_samples(4).unwrap()));
        }
    }
}

/// Through states of states.
#[test]
fn towers_go_on_where_they_stopped() {
    let ranks = || Ranks::new(Repeat::new(random(11, false, 11), 2).unwrap(), 1, 2, Remainder::Pad).unwrap();
    check(&|| Box::new(Batches::new(Concat::new().then(0, ranks()).then(50, Sequential::new(3)), 4, false).unwrap()));
}

/// An epoch that was left in the middle counts for a generator as far as it was drawn, also when it is resumed.
#[test]
fn an_abandoned_epoch_is_resumed_as_one() {
    for make in samplers(10) {
        for cut in [0, 1, 7] {
            let mut sampler = make();
            sampler.begin(0).unwrap();
            for _ in 0..cut {
                sampler.next().unwrap();
            }
            let mut resumed = make();
            resumed.restore(&sampler.state().unwrap()).unwrap();
            for sampler in [&mut sampler, &mut resumed] {
                sampler.begin(1).unwrap();
            }
            assert_eq!(rest(&mut *sampler), rest(&mut *resumed), "left at {cut}");
        }
    }
}

/// The ranks' shares are the order dealt out, and padding and dropping do what they say.
#[test]
fn ranks_share_an_order() {
    for n in 1..20 {
        for world in 1..6 {
            let mut inner = random(n, false, n);
            inner.begin(0).unwrap();
            let order = rest(&mut inner);
            let share = |rank, remainder| {
                let mut sampler = Ranks::new(random(n, false, n), rank, world, remainder).unwrap();
                sampler.begin(0).unwrap();
                rest(&mut sampler)
            };
            let dealt =
                |order: &[usize], rank: usize| order.iter().copied().skip(rank).step_by(world).collect::<Vec<_>>();
            let padded: Vec<usize> = order.iter().copied().cycle().take(n.div_ceil(world) * world).collect();
            let cut = &order[..n / world * world];
            for rank in 0..world {
                assert_eq!(share(rank, Remainder::Pad), dealt(&padded, rank), "{n} by {world}");
                assert_eq!(share(rank, Remainder::Drop), dealt(cut, rank), "{n} by {world}");
                assert_eq!(share(rank, Remainder::Exact), dealt(&order, rank), "{n} by {world}");
            }
        }
    }
}

/// Saved with 4 ranks, resumed with 2 and with 6: the rest of the order, each index once.
#[test]
fn ranks_can_change_between_rounds() {
    let n = 50;
    let make = |rank, world, remainder| Ranks::new(Shuffled::new(n, 3).unwrap(), rank, world, remainder).unwrap();
    let mut order = Shuffled::new(n, 3).unwrap();
    order.begin(1).unwrap();
    let order = rest(&mut order);
    for rounds in [0, 1, 5, 12] {
        let mut old = make(1, 4, Remainder::Exact);
        old.begin(1).unwrap();
        for _ in 0..rounds {
            old.next().unwrap();
        }
        let state = old.state().unwrap();
        for world in [1, 2, 6] {
            let mut union: Vec<usize> = Vec::new();
            for rank in 0..world {
                let mut resumed = make(rank, world, Remainder::Exact);
                resumed.restore(&state).unwrap();
                union.extend(rest(&mut resumed));
            }
            let mut left = order[rounds * 4..].to_vec();
            left.sort_unstable();
            union.sort_unstable();
            assert_eq!(union, left, "{rounds} rounds, then {world} ranks");
        }
    }
    // Six ranks cannot pad: only the first four indices are known.
    let mut old = make(1, 4, Remainder::Pad);
    old.begin(1).unwrap();
    old.next().unwrap();
    let error = make(1, 6, Remainder::Pad).restore(&old.state().unwrap()).unwrap_err();
    assert!(error.to_string().contains("ranks: 4 in the state, 6 here"), "{error}");
}

#[test]
fn the_distributed_order_of_torch() {
    for (rank, shuffle, drop_last, epoch, expected) in DISTRIBUTED {
        let mut sampler = Distributed::new(10, 3, *rank).unwrap();
        sampler = sampler.shuffle(*shuffle).drop_last(*drop_last);
        sampler.begin(*epoch).unwrap();
        assert_eq!(rest(&mut sampler), *expected, "{rank} {shuffle} {drop_last} {epoch}");
    }
    // Fewer samples than half the ranks: the order is repeated more than once.
    let shares: Vec<Vec<usize>> = (0..7)
        .map(|rank| {
            let mut sampler = Distributed::new(2, 7, rank).unwrap().shuffle(false);
            sampler.begin(0).unwrap();
            rest(&mut sampler)
        })
        .collect();
    assert_eq!(shares.concat(), [0, 1, 0, 1, 0, 1, 0]);
    assert!(Distributed::new(0, 1, 0).unwrap().next().unwrap().is_none());
}

const DISTRIBUTED: &[(usize, bool, bool, u64, &[usize])] = &[
    (0, true, false, 0, &[4, 5, 0, 2]),
    (0, true, false, 3, &[6, 7, 1, 4]),
    (0, true, true, 0, &[4, 5, 0]),
    (0, true, true, 3, &[6, 7, 1]),
    (0, false, false, 0, &[0, 3, 6, 9]),
    (0, false, true, 3, &[0, 3, 6]),
    (1, true, false, 3, &[0, 8, 9, 6]),
    (1, false, false, 0, &[1, 4, 7, 0]),
    (2, true, false, 0, &[7, 9, 6, 1]),
    (2, true, true, 3, &[3, 5, 2]),
    (2, false, false, 3, &[2, 5, 8, 1]),
];

#[test]
fn wrong_states_are_refused_with_both_sides() {
    let message =
        |sampler: &mut dyn Sampler<Item = usize>, state: &State| sampler.restore(state).unwrap_err().to_string();
    let shuffled = Shuffled::new(10, 1).unwrap().state().unwrap();
    assert_eq!(
        message(&mut Sequential::new(10), &shuffled),
        "the state does not fit: kind of sampler: \"shuffled\" in the state, \"sequential\" here: resume with the sampler that \
         made the state"
    );
    assert!(message(&mut Shuffled::new(11, 1).unwrap(), &shuffled).contains("samples: 10 in the state, 11 here"));
    let other = random(10, true, 5).state().unwrap();
    assert!(message(&mut random(10, false, 5), &other).contains("replacement: true in the state, false here"));
    assert!(message(&mut random(10, true, 6), &other).contains("indices in an epoch: 5 in the state, 6 here"));
    let other = Distributed::new(10, 2, 0).unwrap().state().unwrap();
    assert!(message(&mut Distributed::new(10, 3, 0).unwrap(), &other).contains("replicas: 2 in the state, 3 here"));
    let mut opaque = from_iter(|_| 0..3);
    assert!(opaque.state().is_none());
    assert!(opaque.restore(&shuffled).unwrap_err().is_state());
}

/// A state with anything changed is taken or refused, never a panic or a sampler that does not end.
#[test]
fn damaged_states_do_no_harm() {
    let damage = [
        State::Null,
        0.into(),
        1.into(),
        10_000.into(),
        u64::MAX.into(),
        "x".into(),
        State::List(vec![5.into()]),
    ];
    for make in samplers(10) {
        let mut sampler = make();
        sampler.begin(0).unwrap();
        sampler.next().unwrap();
        let State::Map(entries) = sampler.state().unwrap() else {
            panic!("a sampler's state is a map");
        };
        for key in entries.keys() {
            for value in &damage {
                let mut entries = entries.clone();
                entries.insert(key.clone(), value.clone());
                let mut sampler = make();
                if sampler.restore(&State::Map(entries)).is_ok() {
                    assert!(
                        (0..1_000).any(|_| matches!(sampler.next(), Ok(None) | Err(_))),
                        "{key}: {value}"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Every index comes once, in a batch of its own length, none too large; and the padding is what it is.
    #[test]
    fn buckets_and_budgets_keep_every_index(
        lengths in prop::collection::vec(1_usize..30, 0..60),
        size in 1_usize..6,
        budget in 30_usize..100,
    ) {
        let n = lengths.len();
        let length = move |lengths: &[usize], i: usize| lengths[i];
        let all: Vec<usize> = (0..n).collect();

        let known = lengths.clone();
        let mut buckets =
            Buckets::new(Sequential::new(n), move |i| length(&known, i), [5, 10, 20], size, false).unwrap();
        buckets.begin(0).unwrap();
        let batches = rest(&mut buckets);
        for batch in &batches {
            prop_assert!((1..=size).contains(&batch.len()));
            let kind = |i: &usize| [5, 10, 20].iter().filter(|bound| lengths[*i] > **bound).count();
            prop_assert!(batch.iter().all(|i| kind(i) == kind(&batch[0])));
        }
        let mut given = batches.concat();
        given.sort_unstable();
        prop_assert_eq!(&given, &all);

        let known = lengths.clone();
        let mut sampler = Budget::new(Sequential::new(n), move |i| length(&known, i), budget).unwrap();
        sampler.begin(0).unwrap();
        let batches = rest(&mut sampler);
        let mut padded = 0;
        for batch in &batches {
            let longest = batch.iter().map(|i| lengths[*i]).max().unwrap();
            prop_assert!(longest * batch.len() <= budget);
            padded += batch.iter().map(|i| longest - lengths[*i]).sum::<usize>();
        }
        prop_assert_eq!(batches.concat(), all);
        let found = sampler.padding();
        prop_assert_eq!((found.used, found.padded), (lengths.iter().sum::<usize>() as u64, padded as u64));
    }
}

#[test]
fn a_sample_beyond_the_budget_is_named_and_passed_over() {
    let mut sampler = Budget::new(Sequential::new(3), |i| if i == 1 { 50 } else { 5 }, 20).unwrap();
    sampler.begin(0).unwrap();
    let error = sampler.next().unwrap_err().to_string();
    assert!(
        error.contains("sample 1 has length 50") && error.contains("at most 20"),
        "{error}"
    );
    assert_eq!(rest(&mut sampler), [vec![0, 2]]);
}

#[test]
fn arguments_are_checked() {
    assert!(
        Buckets::new(Sequential::new(1), |_| 1, [3, 3], 1, false)
            .unwrap_err()
            .is_config()
    );
    assert!(
        Buckets::new(Sequential::new(1), |_| 1, [], 0, false)
            .unwrap_err()
            .is_config()
    );
    assert!(Budget::new(Sequential::new(1), |_| 1, 0).unwrap_err().is_config());
    assert!(
        Budget::new(Sequential::new(1), |_| 1, 1)
            .unwrap()
            .most_samples(0)
            .unwrap_err()
            .is_config()
    );
    assert!(Repeat::new(Sequential::new(1), 0).unwrap_err().is_config());
    assert!(
        Ranks::new(Sequential::new(1), 2, 2, Remainder::Pad)
            .unwrap_err()
            .is_config()
    );
    assert!(Distributed::new(1, 0, 0).unwrap_err().is_config());
    assert!(
        Weighted::new([1.0, f64::NAN], 1, true, Mt19937::new(0))
            .unwrap_err()
            .is_config()
    );
    assert!(Shuffled::new(usize::MAX, 0).unwrap_err().is_config());
}
