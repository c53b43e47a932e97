use super::*;
use crate::sampler::{Random, Sampler};

fn indices(order: &Order) -> Vec<i64> {
    order.iter().collect()
}

/// The same indices, and the same generator afterwards, as the sampler that draws piece by piece.
#[test]
fn random_is_an_epoch_of_the_sampler() {
    for len in [1, 2, 31, 32, 33, 200] {
        for count in [1, 5, 31, 32, 64, 199, 200, 201, 400, 450] {
            for replacement in [false, true] {
                let mut sampler = Random::new(len, 9).unwrap().replacement(replacement);
                sampler = sampler.count(count).unwrap();
                sampler.begin(0).unwrap();
                let expected: Vec<i64> = std::iter::from_fn(|| sampler.next().unwrap())
                    .map(|i| i64::try_from(i).unwrap())
                    .collect();

                let mut generator = Mt19937::new(9);
                let order = Order::random(len as u64, &mut generator, replacement, count as u64).unwrap();
                let case = format!("{count} of {len}, replacement {replacement}");
                assert_eq!(indices(&order), expected, "{case}");
                assert_eq!(
                    generator.to_torch_state(),
                    sampler.generator().to_torch_state(),
                    "{case}"
                );
            }
        }
    }
}

#[test]
fn lookups() {
    let shuffled = Order::randperm(1_000, &mut Mt19937::new(0)).unwrap();
    assert_eq!(
        (shuffled.at(0), shuffled.at(999).is_some(), shuffled.at(1_000)),
        (Some(44), true, None)
    );
    assert!(shuffled.position_of(44).unwrap_err().is_config());
    assert_eq!(shuffled.bytes(), 4_000);

    let keyed = Order::keyed(1 << 63, 1, 2).unwrap();
    let index = keyed.at(1 << 62).unwrap();
    assert_eq!(keyed.position_of(index).unwrap(), Some(1 << 62));
    assert_eq!((keyed.position_of(-1).unwrap(), keyed.bytes()), (None, 0));

    let forwards = Order::sequential(3).unwrap();
    assert_eq!(indices(&forwards), [0, 1, 2]);
    assert_eq!(
        (forwards.position_of(2).unwrap(), forwards.position_of(3).unwrap()),
        (Some(2), None)
    );

    assert_eq!(indices(&Order::of(vec![5, -1, 1 << 40])), [5, -1, 1 << 40]);
    assert_eq!(indices(&Order::of_u32(vec![5, u32::MAX])), [5, i64::from(u32::MAX)]);
}

#[test]
fn distributed() {
    // torch.randperm(10) of seed 7
    let shuffled = Order::distributed(10, 7, true).unwrap();
    assert_eq!(indices(&shuffled), [5, 0, 3, 4, 1, 7, 9, 6, 8, 2]);
    assert_eq!(indices(&Order::distributed(3, 7, false).unwrap()), [0, 1, 2]);
}

#[test]
fn refusals() {
    let mut generator = Mt19937::new(0);
    assert!(Order::random(0, &mut generator, false, 1).unwrap_err().is_config());
    assert!(Order::random(0, &mut generator, true, 1).unwrap_err().is_config());
    assert!(Order::random(0, &mut generator, false, 0).unwrap().is_empty());
    assert!(Order::randperm(u64::MAX, &mut generator).unwrap_err().is_config());
    assert!(
        Order::random(10, &mut generator, true, u64::MAX)
            .unwrap_err()
            .is_config()
    );
    assert!(Order::sequential(u64::MAX).unwrap_err().is_config());
    let stopped = Order::random_while(1 << 21, &mut generator, false, 1 << 21, &mut || false);
    assert!(stopped.unwrap_err().to_string().contains("told not to go on"));
}

/// Whoever begins late gets the same order, may look back, and leaves the generator where the others do.
#[test]
fn made_from_a_position_on() {
    for len in [1, 2, 3, 10, 64, 1000, 20_000] {
        for from in [0, 1, len / 4, len / 2, len - 1, len, len + 5] {
            let (mut whole, mut late) = (Mt19937::new(4), Mt19937::new(4));
            let expected = Order::random(len, &mut whole, false, len).unwrap();
            let order = Order::random_from(len, &mut late, false, len, from, &mut || true).unwrap();
            let what = format!("{len} from {from}");
            assert_eq!(order.len(), len, "{what}");
            assert_eq!((late.u64(), late.seed()), (whole.u64(), whole.seed()), "{what}");
            assert_eq!(order.at(len), None);
            for position in (from.min(len)..len).rev() {
                assert!(order.is_made(position), "{what}");
                assert_eq!(order.at(position), expected.at(position), "{what}");
            }
            assert!(from == 0 || !order.is_made(0), "{what}");
            assert!(order.bytes() < 4 * usize::try_from(len).unwrap() + 4096, "{what}");
            assert_eq!(indices(&order), indices(&expected), "{what}");
            assert!(order.is_made(0));
        }
    }
    // Draws that are not one whole permutation are made whole.
    for (replacement, count) in [(true, 10), (false, 15), (false, 4)] {
        let (mut whole, mut late) = (Mt19937::new(5), Mt19937::new(5));
        let expected = Order::random(10, &mut whole, replacement, count).unwrap();
        let order = Order::random_from(10, &mut late, replacement, count, 3, &mut || true).unwrap();
        assert_eq!(indices(&order), indices(&expected));
        assert_eq!(late.u32(), whole.u32());
    }
}

/// Long ones are made in three parts.
#[test]
fn long_ones_are_made_in_parts() {
    let len = 64 << 16;
    let (mut whole, mut late) = (Mt19937::new(9), Mt19937::new(9));
    let expected = Order::randperm(len, &mut whole).unwrap();
    let from = len - len / 5;
    let order = Order::randperm_from(len, &mut late, from, &mut || true).unwrap();
    assert_eq!(late.u64(), whole.u64());
    let places = |order: &Order| [from, from + 1, len - 1, from - 1, 0].map(|position| order.is_made(position));
    assert_eq!(places(&order), [true, true, false, false, false]);
    assert!(order.bytes() < 300_000, "{}", order.bytes());
    let same = |range: std::ops::Range<u64>| range.into_iter().all(|at| order.at(at) == expected.at(at));
    assert!(same(from..len));
    assert_eq!(places(&order), [true, true, true, false, false]);
    assert!(same(0..len));
    assert_eq!(places(&order), [true; 5]);

    // In the first half what lies behind the first part is most of it, and made with the whole.
    let order = Order::randperm_from(len, &mut Mt19937::new(9), len / 8, &mut || true).unwrap();
    let places = |order: &Order| [len / 8, len - 1, 0, len].map(|position| order.is_made(position));
    assert_eq!(places(&order), [true, false, false, true]);
    assert_eq!((order.at(len), order.is_made(len - 1)), (None, false));
    let same = |range: std::ops::Range<u64>| range.into_iter().all(|at| order.at(at) == expected.at(at));
    assert!(same(len / 8..len));
    assert_eq!(places(&order), [true; 4]);
    assert!(same(0..len / 8));
}
