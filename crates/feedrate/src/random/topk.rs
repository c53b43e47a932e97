//! The largest of many values, ties in the order in which torch's `topk` gives them on the CPU.
//!
//! Torch leaves ties to the algorithms of the GNU C++ library: introselect and introsort (D. Musser, "Introspective sorting and
//! selection algorithms", 1997) for many of the values, a heap for few. Their order among equals follows from each
//! comparison and swap, so these are made here in the same sequence. Ties matter: weights of zero are all alike.

/// A value and its index.
type Item = (f64, u32);

/// Whether `a` comes before `b`: the larger one, and what is no number first of all.
fn before(a: Item, b: Item) -> bool {
    (a.0.is_nan() && !b.0.is_nan()) || a.0 > b.0
}

/// The indices of the `k` largest values, largest first: `torch.topk(values, k).indices`. `k` is at least 1 and at most their number.
pub(super) fn largest(values: impl Iterator<Item = f64>, k: usize) -> Vec<u32> {
    let mut items: Vec<Item> = values.zip(0..).collect();
    if k.saturating_mul(64) <= items.len() {
        heap_select(&mut items, k);
        sort_heap(&mut items[..k]);
    } else {
        select(&mut items, k - 1);
        sort(&mut items[..k - 1]);
    }
    items.truncate(k);
    items.into_iter().map(|(_, index)| index).collect()
}

/// How often a range may be parted before a heap takes over.
fn patience(len: usize) -> u32 {
    len.checked_ilog2().unwrap_or(0) * 2
}

/// Brings to place `nth` what would be there if all were sorted, and what comes before it before it.
fn select(items: &mut [Item], nth: usize) {
    let (mut first, mut last) = (0, items.len());
    let mut left = patience(last);
    while last - first > 3 {
        if left == 0 {
            heap_select(&mut items[first..last], nth + 1 - first);
            items.swap(first, nth);
            return;
        }
        left -= 1;
        let cut = first + part(&mut items[first..last]);
        if cut <= nth {
            first = cut;
        } else {
            last = cut;
        }
    }
    insertion_sort(&mut items[first..last]);
}

/// Shorter ranges are left to insertion.
const SHORT: usize = 16;

fn sort(items: &mut [Item]) {
    sort_roughly(items, patience(items.len()));
    let short = SHORT.min(items.len());
    insertion_sort(&mut items[..short]);
    for i in SHORT..items.len() {
        insert(items, i);
    }
}

/// Parts `items` until the pieces are short.
fn sort_roughly(mut items: &mut [Item], mut left: u32) {
    while items.len() > SHORT {
        if left == 0 {
            heap_select(items, items.len());
            sort_heap(items);
            return;
        }
        left -= 1;
        let cut = part(items);
        let (low, high) = items.split_at_mut(cut);
        sort_roughly(high, left);
        items = low;
    }
}

/// Parts more than 3 items by the median of three of them; where the later part begins.
fn part(items: &mut [Item]) -> usize {
    let [low, middle, high] = [1, items.len() / 2, items.len() - 1];
    let precedes = |i: usize, j: usize| before(items[i], items[j]);
    let median = match (precedes(low, middle), precedes(middle, high), precedes(low, high)) {
        (true, true, _) | (false, false, false) => middle,
        (true, false, true) | (false, true, false) => high,
        (true, false, false) | (false, _, true) => low,
    };
    items.swap(0, median);
    let pivot = items[0];
    let (mut first, mut last) = (1, items.len());
    loop {
        while before(items[first], pivot) {
            first += 1;
        }
        last -= 1;
        while before(pivot, items[last]) {
            last -= 1;
        }
        if first >= last {
            return first;
        }
        items.swap(first, last);
        first += 1;
    }
}

fn insertion_sort(items: &mut [Item]) {
    for i in 1..items.len() {
        if before(items[i], items[0]) {
            items[..=i].rotate_right(1);
        } else {
            insert(items, i);
        }
    }
}

/// Moves item `i` to its place among the sorted ones in front of it, one of which stops it.
fn insert(items: &mut [Item], mut i: usize) {
    let item = items[i];
    while i > 0 && before(item, items[i - 1]) {
        items[i] = items[i - 1];
        i -= 1;
    }
    items[i] = item;
}

/// Brings the first `k` in order to the front, as a heap whose root is the last of them.
fn heap_select(items: &mut [Item], k: usize) {
    if k >= 2 {
        for hole in (0..=(k - 2) / 2).rev() {
            let item = items[hole];
            sift(&mut items[..k], hole, item);
        }
    }
    for i in k..items.len() {
        if before(items[i], items[0]) {
            let item = items[i];
            items[i] = items[0];
            sift(&mut items[..k], 0, item);
        }
    }
}

fn sort_heap(items: &mut [Item]) {
    for last in (1..items.len()).rev() {
        let item = items[last];
        items[last] = items[0];
        sift(&mut items[..last], 0, item);
    }
}

/// Lets the hole sink to the bottom, then the item rise from there.
fn sift(heap: &mut [Item], top: usize, item: Item) {
    let mut hole = top;
    loop {
        let right = 2 * hole + 2;
        if right < heap.len() {
            let child = if before(heap[right], heap[right - 1]) {
                right - 1
            } else {
                right
            };
            heap[hole] = heap[child];
            hole = child;
        } else {
            if right == heap.len() {
                heap[hole] = heap[right - 1];
                hole = right - 1;
            }
            break;
        }
    }
    while hole > top {
        let parent = (hole - 1) / 2;
        if !before(heap[parent], item) {
            break;
        }
        heap[hole] = heap[parent];
        hole = parent;
    }
    heap[hole] = item;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With ties in all sizes: the values are those of a sort, and each index comes once.
    #[test]
    fn the_largest_come_first() {
        for n in [1_usize, 2, 3, 4, 15, 16, 17, 18, 64, 100, 500, 3_000] {
            for spread in [1, 2, 7, 100, 1_000_000] {
                let value = |i: usize| f64::from(u32::try_from((i * 7919) % spread).unwrap());
                for k in [1, 2, 3, n / 64, n / 2, n - 1, n] {
                    let k = k.clamp(1, n);
                    let found = largest((0..n).map(value), k);
                    let mut sorted: Vec<f64> = (0..n).map(value).collect();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    let values: Vec<f64> = found.iter().map(|i| value(*i as usize)).collect();
                    assert_eq!(values, sorted[..k], "{k} of {n}");
                    let mut indices = found;
                    indices.sort_unstable();
                    indices.dedup();
                    assert_eq!(indices.len(), k, "{k} of {n}");
                }
            }
        }
    }

    /// Ranges that always part badly end in a heap.
    #[test]
    fn without_patience() {
        let mut items: Vec<Item> = (0..1_000_u32).map(|i| (f64::from(i * 7 % 1_000), i)).collect();
        sort_roughly(&mut items, 0);
        assert!(items.windows(2).all(|pair| !before(pair[1], pair[0])));
    }
}
