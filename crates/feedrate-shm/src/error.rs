//! One error type: what the caller can do about it is in the variant, what happened in its fields.

use std::fmt;
use std::io;

use crate::Token;

/// What went wrong in shared memory or process plumbing.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The process (or the system) has no file descriptor left. Nothing was changed; close some, or raise the limit.
    FdLimit {
        /// What was being done.
        doing: &'static str,
        /// This process's soft limit on open files (`ulimit -n`), when there is one.
        limit: Option<u64>,
    },
    /// The kernel refused memory or another mapping.
    Memory {
        /// What was being done.
        doing: &'static str,
        /// How many bytes were asked for.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another system call failed.
    Io {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A size that no segment can have (zero, or beyond the address space).
    Size {
        /// How many bytes were asked for.
        bytes: usize,
    },
    /// The slot was sent before, so its reader may still use it: send a copy.
    AlreadySent,
    /// The slot is not in use any more.
    NotReserved,
    /// The object belongs to the process that made it, and this is a fork of that process.
    Forked,
    /// A segment that the peer announced cannot be used.
    Segment {
        /// The segment's number.
        id: u32,
        /// What is wrong with it.
        fault: SegmentFault,
    },
    /// A token does not name a slot that can be leased.
    Token {
        /// The token as it came.
        token: Token,
        /// What is wrong with it.
        fault: TokenFault,
    },
    /// A descriptor is not a payload of this library.
    Payload {
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Why a segment cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentFault {
    /// The descriptor's seals do not guarantee its size.
    Unsealed,
    /// The memory is not as long as announced.
    Length {
        /// Bytes announced.
        announced: u64,
        /// Bytes found.
        found: u64,
    },
    /// This is not a segment.
    Magic,
    /// The writer has another version of the layout.
    Version {
        /// The writer's version.
        found: u32,
        /// The version of this library.
        expected: u32,
    },
    /// The writer has not finished its header.
    Unready,
    /// The header contradicts itself or the announcement.
    Geometry,
    /// A segment with this number is known already.
    Duplicate,
}

/// Why a token cannot be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenFault {
    /// Its segment was never announced, or is gone.
    Segment,
    /// Its segment has no such slot.
    Slot,
    /// It is longer than its slot.
    Length,
    /// The slot has another generation, or this lease was taken before.
    Stale,
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(doing: &'static str, source: io::Error) -> Self {
        Self::sized(doing, 0, source)
    }

    /// As [`Error::io`], for a call that asked for `bytes` of memory.
    pub(crate) fn sized(doing: &'static str, bytes: usize, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Self::FdLimit {
                doing,
                limit: fd_limit(),
            },
            Some(libc::ENOMEM | libc::ENOSPC) => Self::Memory { doing, bytes, source },
            _ => Self::Io { doing, source },
        }
    }

    /// Whether closing descriptors or freeing memory can help, so that the same call may succeed later.
    pub fn is_resource(&self) -> bool {
        matches!(self, Self::FdLimit { .. } | Self::Memory { .. })
    }

    /// Whether the peer sent something that no correct peer sends.
    pub fn is_protocol(&self) -> bool {
        matches!(self, Self::Segment { .. } | Self::Token { .. } | Self::Payload { .. })
    }
}

#[cfg(target_os = "linux")]
fn fd_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(not(target_os = "linux"))]
fn fd_limit() -> Option<u64> {
    None
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FdLimit {
                doing,
                limit: Some(limit),
            } => write!(
                f,
                "{doing}: no file descriptor left; the limit of this process is {limit} open files: close some, or raise it \
                 (`ulimit -n`, RLIMIT_NOFILE)"
            ),
            Self::FdLimit { doing, limit: None } => write!(
                f,
                "{doing}: no file descriptor left in the system or this process (`ulimit -n`, fs.file-max)"
            ),
            Self::Memory { doing, bytes, source } => write!(
                f,
                "{doing}: the kernel refused {bytes} bytes ({source}); look at the memory limit of the container, RLIMIT_AS \
                 and vm.max_map_count"
            ),
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
            Self::Size { bytes } => write!(f, "a slot cannot have {bytes} bytes"),
            Self::AlreadySent => {
                f.write_str("this memory was sent before and its reader may still use it: send a copy")
            }
            Self::NotReserved => f.write_str("this memory is not a slot in use"),
            Self::Forked => f.write_str(
                "this object belongs to the process that made it; it cannot be used in a fork of that process",
            ),
            Self::Segment { id, fault } => write!(f, "shared segment {id} cannot be used: {fault}"),
            Self::Token { token, fault } => write!(
                f,
                "no lease for {} bytes in slot {} (generation {}) of segment {}: {fault}",
                token.len, token.slot, token.generation, token.segment
            ),
            Self::Payload { what } => write!(f, "a message's payload cannot be read: {what}"),
        }
    }
}

impl fmt::Display for SegmentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsealed => f.write_str("it is not sealed against shrinking and growing"),
            Self::Length { announced, found } => {
                write!(f, "announced with {announced} bytes, it has {found}")
            }
            Self::Magic => f.write_str("it does not begin with the mark of a segment"),
            Self::Version { found, expected } => write!(
                f,
                "its layout has version {found}, this process has version {expected}: run the same feedrate in both"
            ),
            Self::Unready => f.write_str("its header is unfinished"),
            Self::Geometry => f.write_str("its header is contradictory"),
            Self::Duplicate => f.write_str("a segment with this number is in use already"),
        }
    }
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segment => "no such segment",
            Self::Slot => "no such slot",
            Self::Length => "longer than the slot",
            Self::Stale => "the slot was reused, or this lease was taken before",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory { source, .. } | Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
