//! Knowing when this process was forked.
//!
//! A stamp is `depth << 32 | epoch`. The depth is one more in a child than in its parent, so a stamp made before the fork never
//! equals one made in the child (process ids would not do: a new pid namespace may give the child its parent's number). The
//! epoch moves on before and after each fork in the forking process, so that a lease made by another thread between the two
//! counts as forked too.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;

static NOW: AtomicU64 = AtomicU64::new(0);

/// The process and the moment, as far as forks are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

/// What happened to the process since a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// The same process, no fork.
    Nothing,
    /// The same process, which has forked: a child may see the same memory.
    Forked,
    /// This is a child of the process that made the stamp.
    Child,
}

impl Stamp {
    /// The stamp of this moment. [`install`] must have succeeded before.
    pub(crate) fn now() -> Self {
        Self(NOW.load(Ordering::Relaxed))
    }

    /// A stamp of no process: whoever has it behaves as in a forked child.
    #[cfg(feature = "testing")]
    pub(crate) fn foreign() -> Self {
        Self(u64::MAX)
    }

    pub(crate) fn since(self) -> Since {
        let now = NOW.load(Ordering::Relaxed);
        if now == self.0 {
            Since::Nothing
        } else if now >> 32 == self.0 >> 32 {
            Since::Forked
        } else {
            Since::Child
        }
    }

    /// An error unless this is still the process that made the stamp.
    pub(crate) fn same_process(self) -> Result<(), Error> {
        match self.since() {
            Since::Child => Err(Error::Forked),
            Since::Nothing | Since::Forked => Ok(()),
        }
    }
}

/// Installs the at-fork handlers, once in the life of the process and of its children.
pub(crate) fn install() -> Result<(), Error> {
    static DONE: OnceLock<i32> = OnceLock::new();
    let code = *DONE.get_or_init(|| {
        // SAFETY: the three handlers are plain functions of this library, which touch one atomic and nothing else; that is
        // allowed at any moment of a fork.
        unsafe { libc::pthread_atfork(Some(in_parent), Some(in_parent), Some(in_child)) }
    });
    match code {
        0 => Ok(()),
        code => Err(Error::io(
            "installing the at-fork handlers",
            std::io::Error::from_raw_os_error(code),
        )),
    }
}

fn update(change: impl Fn(u64) -> u64) {
    let mut now = NOW.load(Ordering::SeqCst);
    while let Err(other) = NOW.compare_exchange_weak(now, change(now), Ordering::SeqCst, Ordering::SeqCst) {
        now = other;
    }
}

extern "C" fn in_parent() {
    const EPOCH: u64 = 0xffff_ffff;
    update(|now| now & !EPOCH | now.wrapping_add(1) & EPOCH);
}

extern "C" fn in_child() {
    update(|now| (now >> 32).wrapping_add(1) << 32);
}
