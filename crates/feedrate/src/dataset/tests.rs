use std::sync::Arc;

use super::*;

fn all<D: Dataset>(dataset: &D) -> Vec<D::Item> {
    let cx = Context::default();
    (0..dataset.len()).map(|i| dataset.get(i, &cx).unwrap()).collect()
}

#[test]
fn plain_sources() {
    assert_eq!(all(&from_items(["a", "b"])), ["a", "b"]);
    assert_eq!(all(&range(5..8)), [5, 6, 7]);
    assert_eq!(all(&Arc::new(from_fn(2, |i| Ok(i * 2)))), [0, 2]);
    let error = range(5..8).get(3, &Context::default()).unwrap_err();
    assert_eq!(error.to_string(), "index 3 is out of range for a dataset of 3 samples");
    assert!(from_items([1]).get(1, &Context::default()).is_err());
    assert!(from_fn(2, Ok).get(2, &Context::default()).is_err());
}

#[test]
fn adapters() {
    let tens = from_fn(10, |i| Ok(i * 10));
    assert_eq!(all(&tens.clone().subset([9, 0, 9]).unwrap()), [90, 0, 90]);
    let error = tens.clone().subset([9, 10]).unwrap_err();
    assert!(error.is_config(), "{error}");

    // torch.randperm(10, generator=torch.Generator().manual_seed(0))
    assert_eq!(all(&range(0..10).shuffled(0)), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);

    let joined = range(0..2).concat(range(0..0)).concat(from_fn(3, |i| Ok(i + 100)));
    assert_eq!(all(&joined), [0, 1, 100, 101, 102]);
    assert!(joined.get(5, &Context::default()).is_err());
}

#[test]
fn random_steps_depend_on_their_place_only() {
    let noisy = range(0..3).map_with(|i, cx| Ok((i, cx.rng(1).next_u64())));
    let at = |position, epoch| Context {
        epoch,
        position,
        ..Context::default()
    };
    let value = |index, cx: &Context| noisy.get(index, cx).unwrap();
    assert_eq!(value(1, &at(7, 0)).1, value(2, &at(7, 0)).1);
    assert_ne!(value(1, &at(7, 0)).1, value(1, &at(8, 0)).1);
    assert_ne!(value(1, &at(7, 0)).1, value(1, &at(7, 1)).1);
}
