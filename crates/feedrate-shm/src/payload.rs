//! Payloads too large for a message: a sealed memfd that travels with it.

use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::SealFlags;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::memfd;
use crate::segment::Mapping;

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE)
    .union(SealFlags::SEAL);

/// A descriptor that holds a copy of `bytes`, which nobody can change any more.
pub fn payload_fd(bytes: &[u8]) -> Result<OwnedFd> {
    let doing = "writing a message's payload";
    let fd = memfd::create("feedrate-payload")?;
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(&fd, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::sized(doing, bytes.len(), e.into())),
        }
    }
    rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|e| Error::io(doing, e.into()))?;
    Ok(fd)
}

/// Maps what [`payload_fd`] of the peer made; the descriptor is closed. An error for any other descriptor.
#[expect(clippy::needless_pass_by_value, reason = "the descriptor is of no further use")]
pub fn read_payload(fd: OwnedFd) -> Result<Payload> {
    let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SEALS));
    if !sealed {
        return Err(Error::Payload {
            what: "it is not sealed, so it could change",
        });
    }
    let stat = rustix::fs::fstat(&fd).map_err(|e| Error::io("asking for a payload's length", e.into()))?;
    let len = usize::try_from(stat.st_size).map_err(|_| Error::Payload {
        what: "its length does not fit an address",
    })?;
    if len == 0 {
        return Ok(Payload { map: None });
    }
    Ok(Payload {
        map: Some(Mapping::new(fd.as_fd(), len, false, None)?),
    })
}

/// The bytes of a payload, mapped.
pub struct Payload {
    map: Option<Mapping>,
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.map {
            None => &[],
            // SAFETY: mapped with this length; the file is sealed against writing, shrinking and growing, so the bytes exist
            // and do not change as long as the mapping lives, which the borrow of `self` ensures.
            Some(map) => unsafe { std::slice::from_raw_parts(map.base(), map.len()) },
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload").field("len", &self.len()).finish()
    }
}
