use super::*;

fn order(len: u64, seed: u64, epoch: u64) -> Permutation {
    Permutation::new(len, seed, epoch).unwrap()
}

fn all(order: &Permutation) -> Vec<u64> {
    (0..order.len()).map(|i| order.at(i).unwrap()).collect()
}

fn check_bijection(order: &Permutation) {
    let mut seen = vec![false; usize::try_from(order.len()).unwrap()];
    for position in 0..order.len() {
        let index = order.at(position).unwrap();
        assert_eq!(order.position_of(index), Some(position), "of {}", order.len());
        assert!(
            !std::mem::replace(&mut seen[usize::try_from(index).unwrap()], true),
            "{index} comes twice, of {}",
            order.len()
        );
    }
    assert_eq!(order.at(order.len()), None);
    assert_eq!(order.position_of(order.len()), None);
}

#[test]
fn every_small_length_is_a_bijection() {
    for len in 0..=2_000 {
        check_bijection(&order(len, 5, len % 3));
    }
}

/// The network also where a table is used instead.
#[test]
fn the_network_is_a_bijection_at_every_length() {
    for len in 3..=2_000 {
        let kind = Kind::feistel(
            len,
            &mut Key {
                seed: len,
                ..Key::default()
            }
            .stream(),
        );
        check_bijection(&Permutation { len, kind });
    }
}

#[test]
fn huge_lengths_are_bijections_where_they_were_looked_at() {
    let lengths = [
        (1 << 32) - 1,
        1 << 32,
        (1 << 32) + 1,
        10_000_000_000,
        (1 << 40) + 1,
        (1 << 62) + 1,
        (1 << 63) - 1,
        1 << 63,
    ];
    for len in lengths {
        let order = order(len, 1, 2);
        let mut stream = Key {
            seed: len,
            ..Key::default()
        }
        .stream();
        let mut seen = std::collections::HashSet::new();
        for i in 0..1_000 {
            for position in [i, len - 1 - i, len / 2 + i] {
                let index = order.at(position).unwrap();
                assert!(index < len && seen.insert(index), "{index} at {position} of {len}");
                assert_eq!(order.position_of(index), Some(position), "of {len}");
            }
            let index = stream.below(len);
            assert_eq!(order.at(order.position_of(index).unwrap()), Some(index), "of {len}");
        }
        assert_eq!((order.at(len), order.position_of(u64::MAX)), (None, None));
    }
    assert!(Permutation::new((1 << 63) + 1, 0, 0).unwrap_err().is_config());
}

/// Frozen: a change here changes every user's order.
#[test]
fn golden() {
    for (len, seed, epoch, expected) in GOLDEN {
        let order = order(len, seed, epoch);
        let first: Vec<u64> = (0..4).map(|i| order.at(i).unwrap()).collect();
        assert_eq!(first, expected, "{len} {seed} {epoch}");
    }
}

const GOLDEN: [(u64, u64, u64, [u64; 4]); 3] = [
    (10, 1, 2, [2, 9, 0, 5]),
    (2_000, 1, 2, [710, 1_277, 1_559, 1_139]),
    (
        10_000_000_000,
        1,
        2,
        [3_779_034_785, 2_858_040_312, 5_774_626_912, 2_729_208_523],
    ),
];

/// How far a chi-square statistic is from its mean, in standard deviations.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn chi_square(counts: &[u32]) -> f64 {
    let total: f64 = counts.iter().map(|n| f64::from(*n)).sum();
    let expected = total / counts.len() as f64;
    assert!(expected >= 5.0, "too few for a chi-square test");
    let statistic: f64 = counts
        .iter()
        .map(|n| (f64::from(*n) - expected).powi(2) / expected)
        .sum();
    let freedom = counts.len() as f64 - 1.0;
    (statistic - freedom) / (2.0 * freedom).sqrt()
}

/// The correlation of two sequences, in its standard deviations under independence.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn correlation(a: &[u64], b: &[u64]) -> f64 {
    let n = a.len() as f64;
    let mean = |v: &[u64]| v.iter().map(|x| *x as f64).sum::<f64>() / n;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (*a as f64 - mean_a, *b as f64 - mean_b);
        ab += a * b;
        aa += a * a;
        bb += b * b;
    }
    ab / (aa * bb).sqrt() * n.sqrt()
}

/// Bound for all statistics below: the seeds are fixed, so a test passes always or never, and a true shuffle exceeds it once in
/// 16,000 times.
const BOUND: f64 = 4.0;

fn bucket(value: u64, len: u64, buckets: usize) -> usize {
    usize::try_from(u128::from(value) * buckets as u128 / u128::from(len)).unwrap()
}

/// Each index is equally likely at each position.
#[test]
fn single_positions_are_uniform() {
    for (len, buckets) in [
        (1_025, 1_025),
        (1_500, 1_500),
        (4_096, 512),
        (100_000, 500),
        (10_000_000_000, 500),
        (1 << 63, 500),
    ] {
        for place in [0, 1, len / 2, len - 1] {
            let mut counts = vec![0; buckets];
            for seed in 0..10_000 {
                counts[bucket(order(len, seed, 3).at(place).unwrap(), len, buckets)] += 1;
            }
            let z = chi_square(&counts);
            assert!(z.abs() < BOUND, "{z} at {place} of {len}");
        }
    }
}

/// All permutations of few elements are equally likely.
#[test]
fn small_permutations_are_uniform() {
    for (len, count) in [(3, 6), (4, 24), (5, 120), (6, 720)] {
        let mut counts = std::collections::HashMap::new();
        for seed in 0..200 {
            for epoch in 0..200 {
                *counts.entry(all(&order(len, seed, epoch))).or_insert(0_u32) += 1;
            }
        }
        assert_eq!(counts.len(), count);
        let z = chi_square(&counts.into_values().collect::<Vec<_>>());
        assert!(z.abs() < BOUND, "{z} for {len}");
    }
}

/// The distance from one index to the next is uniform: neighbours are not drawn to each other, nor kept apart.
#[test]
fn neighbours_are_independent() {
    for (len, keys) in [(1_031, 200), (2_048, 100), (5_003, 100)] {
        let mut counts = vec![0_u32; usize::try_from(len - 1).unwrap()];
        for seed in 0..keys {
            let order = all(&order(len, seed, 0));
            for pair in order.windows(2) {
                counts[usize::try_from((pair[1] + len - pair[0]) % len - 1).unwrap()] += 1;
            }
        }
        let z = chi_square(&counts);
        assert!(z.abs() < BOUND, "{z} for {len}");
    }
}

/// First and second index together are uniform over a grid, also for huge lengths.
#[test]
fn pairs_of_positions_are_uniform() {
    for len in [1_025, 65_536, 1_000_003, 10_000_000_000, 1 << 62] {
        for (one, two) in [(0, 1), (0, 32), (0, len / 2), (5, len - 1)] {
            let mut counts = [0_u32; 400];
            for seed in 0..8_000 {
                let order = order(len, 1 << 40, seed);
                let (a, b) = (order.at(one).unwrap(), order.at(two).unwrap());
                counts[bucket(a, len, 20) * 20 + bucket(b, len, 20)] += 1;
            }
            let z = chi_square(&counts);
            assert!(z.abs() < BOUND, "{z} at {one} and {two} of {len}");
        }
    }
}

#[test]
fn there_is_no_serial_correlation() {
    for (len, seed) in [(20_000, 1), (32_768, 2), (50_021, 3)] {
        let order = all(&order(len, seed, 0));
        let places: Vec<u64> = (0..len).collect();
        let z = correlation(&places, &order);
        assert!(z.abs() < BOUND, "{z} with the position, {len}");
        for lag in [1, 2, 3, 7, 32, 128, 181, 1_024] {
            let z = correlation(&order[lag..], &order[..order.len() - lag]);
            assert!(z.abs() < BOUND, "{z} at lag {lag}, {len}");
        }
    }
}

/// Orders of neighbouring epochs, seeds and lengths have nothing to do with each other.
#[test]
fn orders_are_independent_of_each_other() {
    let len = 20_000;
    let base = all(&order(len, 10, 20));
    let shorter = all(&order(len - 1, 10, 20));
    let z = correlation(&base[..shorter.len()], &shorter);
    assert!(z.abs() < BOUND, "{z} to another length");
    for (seed, epoch) in [(10, 21), (11, 20), (20, 10), (10 + (1 << 32), 20), (!10, 20)] {
        let other = all(&order(len, seed, epoch));
        let z = correlation(&base, &other);
        assert!(z.abs() < BOUND, "{z} to {seed}, {epoch}");
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 8, "{same} positions as in {seed}, {epoch}");
    }
}

/// The number of pairs in the wrong order is normal with a known mean and variance (Kendall).
#[test]
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn inversions_are_those_of_a_shuffle() {
    let (len, keys) = (1_100_u64, 60);
    let mut sum = 0.0;
    for seed in 0..keys {
        let order = all(&order(len, seed, 9));
        let inversions = (0..order.len())
            .map(|i| order[i + 1..].iter().filter(|later| **later < order[i]).count())
            .sum::<usize>();
        sum += inversions as f64;
    }
    let n = len as f64;
    let (mean, variance) = (n * (n - 1.0) / 4.0, n * (n - 1.0) * (2.0 * n + 5.0) / 72.0);
    let z = (sum - keys as f64 * mean) / (keys as f64 * variance).sqrt();
    assert!(z.abs() < BOUND, "{z}");
}
