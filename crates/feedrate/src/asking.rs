//! Giving up in the middle of one element or an index: a `skip` of millions of records is one call.

use std::cell::Cell;

/// Records between two questions.
const RECORDS: u32 = 1024;

thread_local! {
    static GO_ON: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
    static READ: Cell<u32> = const { Cell::new(0) };
}

/// Runs `work`. Meanwhile, sources that are read or indexed on this thread ask `go_on` every thousand records, and fail once it says no: the
/// element that is being made is not, and the lane can go on later from where it stands. The function should answer in a microsecond.
pub fn asking<T>(go_on: fn() -> bool, work: impl FnOnce() -> T) -> T {
    struct Before(Option<fn() -> bool>);
    impl Drop for Before {
        fn drop(&mut self) {
            GO_ON.set(self.0);
        }
    }
    let _before = Before(GO_ON.replace(Some(go_on)));
    work()
}

/// Whether to go on; to be called for each record.
pub(crate) fn go_on() -> bool {
    let read = READ.get().wrapping_add(1);
    READ.set(read);
    !read.is_multiple_of(RECORDS) || go_on_now()
}

/// Whether to go on; to be called every few milliseconds.
pub(crate) fn go_on_now() -> bool {
    GO_ON.get().is_none_or(|ask| ask())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether all of so many records go on that one of them asks.
    fn go_on() -> bool {
        (0..RECORDS).fold(true, |all, _| super::go_on() && all)
    }

    #[test]
    fn asked_inside_only_and_the_outer_one_again_behind_a_panic() {
        assert!(go_on());
        asking(
            || true,
            || {
                let inner = std::panic::catch_unwind(|| {
                    asking(
                        || false,
                        || {
                            assert!(!go_on());
                            panic!("on purpose");
                        },
                    );
                });
                assert!(inner.is_err() && go_on());
            },
        );
        assert!(go_on());
    }
}
