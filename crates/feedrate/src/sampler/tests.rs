use super::*;

fn epoch<S: Sampler>(sampler: &mut S, epoch: u64) -> Vec<S::Item> {
    sampler.begin(epoch).unwrap();
    std::iter::from_fn(|| sampler.next().unwrap()).collect()
}

/// Two epochs and the next draw of the generator, from torch 2.14.1: `(seed, samples, replacement, count, first epoch, second
/// epoch, next)`.
#[test]
fn the_order_of_torch() {
    for (seed, samples, replacement, count, first, second, next) in ORDERS {
        let mut sampler = Random::new(*samples, *seed).unwrap();
        sampler = sampler.replacement(*replacement).count(*count).unwrap();
        assert_eq!(sampler.len(), Some(*count));
        assert_eq!(epoch(&mut sampler, 0), *first, "seed {seed}, {count} of {samples}");
        assert_eq!(epoch(&mut sampler, 1), *second, "seed {seed}, {count} of {samples}");
        assert_eq!(
            sampler.generator().clone().random_i64(),
            *next,
            "seed {seed}, {count} of {samples}"
        );
    }
}

#[test]
fn an_abandoned_epoch_leaves_nothing_behind() {
    let mut sampler = Batches::new(Sequential::new(5), 2, false).unwrap();
    sampler.begin(0).unwrap();
    sampler.next().unwrap();
    assert_eq!(epoch(&mut sampler, 1), [vec![0, 1], vec![2, 3], vec![4]]);
}

#[test]
fn batches() {
    for (drop_last, expected, count) in [(false, &[3, 3, 1][..], 3), (true, &[3, 3], 2)] {
        let mut sampler = Batches::new(Sequential::new(7), 3, drop_last).unwrap();
        let sizes: Vec<usize> = epoch(&mut sampler, 0).iter().map(Vec::len).collect();
        assert_eq!((sizes.as_slice(), sampler.len()), (expected, Some(count)));
    }
    assert!(Batches::new(Sequential::new(7), 0, false).unwrap_err().is_config());
    assert!(Random::new(0, 1).unwrap_err().is_config());
    assert!(Random::new(3, 1).unwrap().count(0).unwrap_err().is_config());
}

/// An error in the middle of a batch costs nothing: the batch goes on where it stopped.
#[test]
fn errors_lose_no_index() {
    struct Hiccup(usize, bool);
    impl Sampler for Hiccup {
        type Item = usize;
        fn begin(&mut self, _: u64) -> Result<(), BoxError> {
            (self.0, self.1) = (0, false);
            Ok(())
        }
        fn next(&mut self) -> Result<Option<usize>, BoxError> {
            if self.0 == 3 && !std::mem::replace(&mut self.1, true) {
                return Err("hiccup".into());
            }
            self.0 += 1;
            Ok((self.0 <= 4).then_some(self.0 - 1))
        }
        fn len(&self) -> Option<usize> {
            Some(4)
        }
    }
    let mut sampler = Batches::new(Hiccup(0, false), 2, false).unwrap();
    sampler.begin(0).unwrap();
    assert_eq!(sampler.next().unwrap(), Some(vec![0, 1]));
    assert_eq!(sampler.next().unwrap_err().to_string(), "hiccup");
    assert_eq!(sampler.next().unwrap(), Some(vec![2, 3]));
    assert_eq!(sampler.next().unwrap(), None);
}

type Order = (u64, usize, bool, usize, &'static [usize], &'static [usize], i64);

const ORDERS: &[Order] = &[
    (
        5,
        50,
        false,
        50,
        &[
            11, 34, 33, 43, 30, 4, 6, 45, 20, 24, 49, 38, 31, 44, 32, 0, 39, 15, 2, 27, 29, 25, 22, 41, 9, 42, 7, 14,
            18, 23, 1, 19, 10, 36, 48, 35, 8, 17, 3, 26, 46, 40, 13, 12, 28, 47, 16, 37, 5, 21,
        ],
        &[
            31, 30, 26, 35, 16, 39, 2, 7, 12, 43, 46, 34, 28, 0, 4, 29, 38, 1, 25, 24, 45, 19, 6, 11, 21, 13, 40, 22,
            44, 48, 3, 23, 27, 41, 5, 17, 42, 8, 47, 36, 15, 20, 10, 33, 18, 49, 9, 37, 14, 32,
        ],
        1_339_577_656_784_221_386,
    ),
    (
        5,
        50,
        false,
        120,
        &[
            11, 34, 33, 43, 30, 4, 6, 45, 20, 24, 49, 38, 31, 44, 32, 0, 39, 15, 2, 27, 29, 25, 22, 41, 9, 42, 7, 14,
            18, 23, 1, 19, 10, 36, 48, 35, 8, 17, 3, 26, 46, 40, 13, 12, 28, 47, 16, 37, 5, 21, 30, 28, 16, 39, 41, 19,
            17, 33, 1, 12, 24, 29, 13, 2, 40, 15, 37, 7, 22, 9, 47, 6, 14, 42, 4, 5, 46, 20, 25, 26, 49, 32, 8, 18, 35,
            3, 43, 27, 38, 48, 44, 0, 10, 36, 34, 45, 11, 31, 21, 23, 31, 30, 26, 35, 16, 39, 2, 7, 12, 43, 46, 34, 28,
            0, 4, 29, 38, 1, 25, 24,
        ],
        &[
            15, 17, 34, 12, 41, 8, 25, 18, 10, 27, 35, 44, 11, 21, 30, 37, 3, 36, 5, 20, 16, 9, 2, 29, 14, 13, 1, 38,
            4, 48, 19, 28, 0, 26, 23, 6, 24, 32, 43, 45, 40, 33, 42, 49, 7, 31, 46, 47, 39, 22, 26, 2, 8, 12, 38, 7,
            41, 29, 45, 20, 16, 44, 6, 14, 13, 46, 4, 3, 1, 48, 33, 28, 5, 10, 27, 42, 40, 17, 0, 49, 34, 43, 39, 22,
            31, 21, 19, 25, 9, 15, 37, 18, 30, 11, 35, 47, 24, 32, 23, 36, 6, 5, 36, 26, 28, 34, 35, 37, 45, 9, 0, 13,
            1, 47, 30, 12, 42, 40, 7, 32,
        ],
        5_580_474_139_264_172_243,
    ),
    (
        5,
        50,
        false,
        10,
        &[11, 34, 33, 43, 30, 4, 6, 45, 20, 24],
        &[30, 28, 16, 39, 41, 19, 17, 33, 1, 12],
        856_971_103_448_592_059,
    ),
    (
        5,
        50,
        true,
        100,
        &[
            11, 14, 17, 35, 6, 20, 42, 33, 38, 4, 29, 0, 11, 12, 18, 38, 23, 0, 27, 9, 9, 47, 12, 9, 34, 17, 41, 29,
            33, 16, 4, 24, 35, 24, 30, 35, 47, 34, 25, 9, 36, 33, 34, 47, 10, 32, 29, 32, 16, 30, 32, 42, 46, 49, 49,
            21, 17, 32, 6, 14, 31, 37, 29, 30, 25, 23, 39, 4, 26, 17, 2, 6, 17, 41, 37, 0, 29, 3, 29, 49, 44, 3, 35, 3,
            9, 27, 49, 4, 32, 4, 10, 47, 37, 14, 45, 20, 23, 0, 31, 41,
        ],
        &[
            12, 41, 26, 49, 42, 1, 42, 38, 26, 49, 0, 41, 46, 24, 28, 11, 39, 36, 25, 24, 12, 10, 34, 6, 0, 39, 10, 7,
            45, 9, 4, 0, 41, 0, 40, 35, 11, 28, 18, 39, 18, 11, 34, 29, 5, 28, 47, 15, 46, 20, 42, 9, 48, 49, 19, 4, 8,
            45, 40, 16, 11, 16, 7, 18, 29, 49, 38, 4, 43, 40, 35, 32, 2, 0, 35, 35, 6, 44, 14, 49, 41, 18, 38, 4, 4, 5,
            35, 10, 28, 38, 11, 47, 39, 18, 8, 31, 26, 48, 40, 26,
        ],
        8_949_194_281_546_180_256,
    ),
    (
        6,
        7,
        true,
        64,
        &[
            2, 0, 6, 4, 4, 0, 6, 4, 5, 6, 1, 2, 2, 4, 5, 2, 1, 3, 6, 6, 6, 2, 4, 4, 5, 0, 0, 2, 0, 1, 3, 1, 5, 0, 3, 5,
            0, 3, 6, 4, 4, 1, 0, 3, 6, 2, 3, 1, 0, 4, 4, 0, 0, 4, 5, 4, 0, 2, 2, 0, 2, 1, 2, 6,
        ],
        &[
            6, 6, 6, 4, 4, 4, 6, 6, 6, 2, 5, 0, 4, 2, 0, 3, 5, 3, 0, 4, 1, 2, 3, 3, 3, 0, 6, 1, 2, 3, 6, 1, 4, 0, 2, 6,
            0, 3, 0, 6, 4, 6, 5, 4, 2, 5, 4, 2, 1, 2, 3, 4, 3, 3, 4, 6, 1, 5, 4, 1, 6, 0, 4, 1,
        ],
        2_184_288_401_367_597_460,
    ),
    (7, 1, false, 3, &[0, 0, 0], &[0, 0, 0], 1_407_639_518_939_636_932),
];

/// An order of nothing is repeated in no time.
#[test]
fn nothing_again_and_again() {
    let mut sampler = Repeat::new(Sequential::new(0), u64::MAX).unwrap();
    sampler.begin(0).unwrap();
    assert_eq!(sampler.next().unwrap(), None);
    sampler.begin(1).unwrap();
    assert_eq!(sampler.skip(3).unwrap(), 0);
}
