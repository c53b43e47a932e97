//! Against values of torch 2.14.1.

use super::*;

fn untimed<T: Place>(generator: &mut Mt19937, items: &mut [T], keep: usize) {
    assert!(permute(generator, items, keep, &mut || true));
}

/// The branch for 214,748,364 elements and more, on a size that a test can afford; the algorithm is the field document's.
#[test]
fn randperm_of_very_many() {
    let mut generator = Mt19937::new(11);
    let mut items: Vec<i64> = (0..1_000).collect();
    assert!(permute_large(&mut generator, &mut items, &mut || true));
    let mut reference = vec![0_i64; 1_000];
    let mut draws = Mt19937::new(11);
    for i in 0..1_000 {
        let z = usize::try_from(draws.u64() % (i as u64 + 1)).unwrap();
        reference[i] = reference[z];
        reference[z] = i64::try_from(i).unwrap();
    }
    assert_eq!(items, reference);
    assert_eq!(generator.u32(), draws.u32());
}

/// Every width gives the same, the first of a permutation are the first of it, and the generator does not see the difference.
#[test]
fn widths_and_parts() {
    for n in [0, 1, 2, 3, 127, 128, 129, 130, 623, 624, 625, 1_000, 5_000] {
        let mut generator = Mt19937::new(3);
        let wide = generator.randperm(n);
        let next = generator.u32();

        let mut generator = Mt19937::new(3);
        let narrow = generator.randperm_u32(u32::try_from(n).unwrap());
        assert_eq!(narrow.iter().map(|i| *i as usize).collect::<Vec<_>>(), wide);
        assert_eq!(generator.u32(), next, "after {n}");

        for keep in [0, 1, 100, 128, 200, n.saturating_sub(1), n] {
            let keep = keep.min(n);
            let mut generator = Mt19937::new(3);
            let mut items: Vec<usize> = (0..n).collect();
            untimed(&mut generator, &mut items, keep);
            assert_eq!(items[..keep], wide[..keep], "{keep} of {n}");
            assert_eq!(generator.u32(), next, "after {keep} of {n}");
        }

        let mut generator = Mt19937::new(3);
        skip_permutation(&mut generator, n as u64);
        assert_eq!(generator.u32(), next, "after skipping {n}");
    }
}

#[test]
fn skipping_is_drawing() {
    for draws in [0, 1, 623, 624, 625, 1_247, 1_248, 1_249, 10_000] {
        let (mut skipped, mut drawn) = (Mt19937::new(8), Mt19937::new(8));
        for generator in [&mut skipped, &mut drawn] {
            generator.u32();
        }
        skipped.skip(draws);
        for _ in 0..draws {
            drawn.u32();
        }
        assert_eq!(skipped.to_torch_state(), drawn.to_torch_state(), "{draws}");
    }
}

#[test]
fn a_long_permutation_can_be_stopped() {
    let mut items: Vec<u32> = (0..index(2 * ASK)).collect();
    let mut asked = 0;
    let finished = permute(&mut Mt19937::new(1), &mut items, 2 * ASK, &mut || {
        asked += 1;
        false
    });
    assert_eq!((finished, asked), (false, 1));
}

#[test]
fn multinomial() {
    for (seed, replacement, expected) in MULTINOMIAL {
        let drawn = Mt19937::new(*seed)
            .multinomial(&WEIGHTS, expected.len(), *replacement)
            .unwrap();
        assert_eq!(drawn, *expected, "seed {seed}, replacement {replacement}");
    }
}

#[test]
fn multinomial_says_what_is_wrong() {
    let error = |weights: &[f64], count, replacement| {
        let error = Mt19937::new(0).multinomial(weights, count, replacement).unwrap_err();
        error.to_string()
    };
    assert_eq!(error(&WEIGHTS, 0, true), "cannot sample n_sample <= 0 samples");
    assert_eq!(
        error(&WEIGHTS, 7, false),
        "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
    );
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        for replacement in [false, true] {
            assert!(error(&[1.0, bad], 2, replacement).contains("`inf`, `nan` or element < 0"));
        }
    }
    assert!(error(&[0.0, 0.0], 2, true).contains("sum of probabilities <= 0"));
    let many = vec![1.0; CATEGORIES + 1];
    assert_eq!(error(&many, 1, true), "number of categories cannot exceed 2^24");
}

const WEIGHTS: [f64; 6] = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6];

const MULTINOMIAL: &[(u64, bool, &[u32])] = &[
    (0, true, &[5, 4, 4, 5, 4, 4, 2, 3, 4, 3, 4, 2, 3, 4, 4, 4, 4, 2, 4, 4]),
    (0, true, &[4]),
    (0, false, &[4]),
    (0, false, &[4, 1, 2, 5, 3, 0]),
    (0, false, &[4, 1, 2]),
    (1, true, &[1, 2, 2, 2, 4, 1, 4, 4, 4, 4, 4, 3, 4, 4, 1, 1, 4, 2, 4, 4]),
    (1, true, &[5]),
    (1, false, &[5]),
    (1, false, &[5, 4, 3, 1, 0, 2]),
    (1, false, &[5, 4, 3]),
    (2, true, &[5, 1, 4, 4, 5, 4, 1, 3, 4, 4, 1, 4, 4, 4, 4, 3, 5, 2, 4, 1]),
    (2, true, &[1]),
    (2, false, &[1, 4, 3, 5, 2, 0]),
];
