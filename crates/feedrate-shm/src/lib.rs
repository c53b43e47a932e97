#![doc = include_str!("../README.md")]
#![expect(unsafe_code, reason = "shared memory, signals and fork are this crate's purpose")]
#![cfg_attr(
    loom,
    allow(
        dead_code,
        unfulfilled_lint_expectations,
        reason = "the models use the slot table only"
    )
)]

#[cfg(not(loom))]
mod bytes;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod huge;
#[cfg(not(loom))]
mod local;
#[cfg(not(loom))]
mod size;
mod slots;
mod sync;
#[cfg(all(feature = "testing", target_os = "linux", not(loom)))]
pub mod testing;
#[cfg(not(loom))]
mod token;

#[cfg(all(target_os = "linux", not(loom)))]
mod arena;
#[cfg(all(target_os = "linux", not(loom)))]
mod channel;
#[cfg(all(target_os = "linux", not(loom)))]
mod fork;
#[cfg(all(target_os = "linux", not(loom)))]
mod lease;
#[cfg(all(target_os = "linux", not(loom)))]
mod memfd;
#[cfg(all(target_os = "linux", not(loom)))]
mod payload;
#[cfg(all(target_os = "linux", not(loom)))]
mod reap;
#[cfg(all(target_os = "linux", not(loom)))]
mod segment;
#[cfg(all(target_os = "linux", not(loom)))]
mod sys;
#[cfg(all(target_os = "linux", not(loom)))]
mod view;

#[cfg(not(loom))]
pub use bytes::LocalBytes;
#[cfg(not(loom))]
pub use error::{Error, Result, SegmentFault, TokenFault};
#[cfg(not(loom))]
pub use huge::{vec_in_large_pages, zeros_in_large_pages};
#[cfg(not(loom))]
pub use local::{LocalArena, LocalSlot};
#[cfg(not(loom))]
pub use size::ALIGN;
#[cfg(not(loom))]
pub use token::Token;

#[cfg(all(target_os = "linux", not(loom)))]
pub use self::{
    arena::{Announce, Arena, ArenaOptions, ArenaStats, Located, Slot},
    bytes::{LeaseBytes, SlotBytes},
    channel::{Channel, Received, RecvError, SendError},
    lease::Lease,
    payload::{Payload, payload_fd, read_payload},
    reap::{Interest, PidFd, PollOutcome, Ready, poll, watch_parent},
    segment::LAYOUT_VERSION,
    sys::{close_inherited, exit_now, memory_limit, oom_kills, process_state, set_thread_name},
    view::View,
};
