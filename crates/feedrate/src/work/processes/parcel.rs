//! How messages travel: small ones as they are, large ones in a sealed file, descriptors one by one.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use feedrate_shm::{Announce, Arena, Channel, SendError, payload_fd, read_payload};

use super::serve::Stop;
use super::wire::Report;
use crate::error::{BoxError, Error};

/// Says that the message proper lies in the descriptor that came along.
const IN_PAYLOAD: u8 = 0;

/// A message as it is sent: small ones as they are, large ones in a sealed file.
pub(super) struct Parcel {
    bytes: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Parcel {
    pub(super) fn new(message: Vec<u8>) -> Result<Self, Error> {
        if message.len() <= Channel::MAX {
            return Ok(Self {
                bytes: message,
                fd: None,
            });
        }
        let fd = payload_fd(&message).map_err(|error| Error::system("sending a large message", error))?;
        Ok(Self {
            bytes: vec![IN_PAYLOAD],
            fd: Some(fd),
        })
    }

    pub(super) fn try_send(&self, channel: &Channel) -> Result<(), SendError> {
        channel.try_send(&self.bytes, self.fd.as_ref().map(|fd| fd.as_fd()))
    }

    pub(super) fn send(&self, channel: &Channel) -> Result<(), SendError> {
        channel.send(&self.bytes, self.fd.as_ref().map(|fd| fd.as_fd()))
    }
}

/// Calls `read` with the message proper, and with the descriptor if it is one of its own.
pub(super) fn open<T>(
    bytes: &[u8],
    fd: Option<OwnedFd>,
    read: impl FnOnce(&[u8], Option<OwnedFd>) -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    match (bytes, fd) {
        ([IN_PAYLOAD], Some(fd)) => read(&read_payload(fd)?, None),
        (_, fd) => read(bytes, fd),
    }
}

/// Sends what the parent must know of the arena, then the message.
pub(super) fn report(channel: &Channel, arena: &Arc<Arena>, report: Report) -> Result<(), Stop> {
    let (message, tokens) = report.encode(arena)?;
    let sent = announce(channel, arena).and_then(|()| post(channel, &Parcel::new(message)?));
    if sent.is_err() {
        // Nobody will read it.
        for token in &tokens {
            arena.unsend(token);
        }
    }
    sent
}

/// Sends what the parent must know of the arena.
pub(super) fn announce(channel: &Channel, arena: &Arc<Arena>) -> Result<(), Stop> {
    arena.announce(|announcement| {
        let (report, fd) = match announcement {
            Announce::New { id, len, fd } => (Report::Segment { id: *id, len: *len }, Some(fd.as_fd())),
            Announce::Gone { id } => (Report::Gone { id: *id }, None),
        };
        let (bytes, _) = report.encode(arena)?;
        channel.send(&bytes, fd).map_err(stop)
    })
}

fn post(channel: &Channel, parcel: &Parcel) -> Result<(), Stop> {
    parcel.send(channel).map_err(stop)
}

fn stop(error: SendError) -> Stop {
    match error {
        SendError::Closed => Stop::Gone,
        error => Error::system("reporting to the parent", error).into(),
    }
}
