//! The control channel: small messages, each whole or not at all, with at most one descriptor.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::error::{Error, Result};

/// One end of a SOCK_SEQPACKET pair, close-on-exec. `Send` and `Sync`; a message sent by one thread arrives whole whatever the
/// others do.
pub struct Channel {
    fd: OwnedFd,
}

/// A message that came: its bytes are the first `len` of the buffer.
#[derive(Debug)]
pub struct Received {
    /// Length of the message in bytes; at least 1.
    pub len: usize,
    /// The descriptor that came with it, close-on-exec.
    pub fd: Option<OwnedFd>,
}

/// Why a message was not sent. It was not sent in part either.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError {
    /// The peer's buffer is full: keep the message and try again when the channel is writable.
    WouldBlock,
    /// Every copy of the peer's end is closed.
    Closed,
    /// Too many descriptors are on their way already: try again when the peer has received some.
    FdLimit,
    /// The message is empty, or longer than [`Channel::MAX`].
    Length(usize),
    /// Another failure.
    Io(io::Error),
}

/// Why no message was received.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecvError {
    /// Nothing has come yet.
    WouldBlock,
    /// Every copy of the peer's end is closed, and all its messages were read.
    Closed,
    /// A message is there, but this process has no number left for its descriptor (`ulimit -n`). It stays, to be tried again.
    FdLimit,
    /// The peer does not follow the protocol: its message is longer than [`Channel::MAX`].
    Length,
    /// Another failure.
    Io(io::Error),
}

/// How long to wait where too many descriptors are on their way.
const CROWDED: &Timespec = &Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

impl Channel {
    /// The longest message in bytes.
    pub const MAX: usize = 4096;

    /// Two connected ends.
    pub fn pair() -> Result<(Self, Self)> {
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|e| Error::io("creating a control channel", e.into()))?;
        Ok((Self { fd: a }, Self { fd: b }))
    }

    /// An end that was inherited, or passed on by number.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// The descriptor, for passing it on.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Sends a message of 1 to [`MAX`](Channel::MAX) bytes, and a copy of `fd` with it. Never waits and never raises SIGPIPE.
    pub fn try_send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), SendError> {
        if bytes.is_empty() || bytes.len() > Self::MAX {
            return Err(SendError::Length(bytes.len()));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let sent = match fd {
                None => rustix::net::send(&self.fd, bytes, flags),
                Some(fd) => {
                    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut control = SendAncillaryBuffer::new(&mut space);
                    let fds = [fd];
                    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                        return Err(SendError::Io(io::ErrorKind::InvalidInput.into()));
                    }
                    rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags)
                }
            };
            return match sent {
                Ok(_) => Ok(()),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN | Errno::NOBUFS) => Err(SendError::WouldBlock),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(SendError::Closed),
                Err(Errno::TOOMANYREFS) => Err(SendError::FdLimit),
                Err(e) => Err(SendError::Io(e.into())),
            };
        }
    }

    /// As [`try_send`](Channel::try_send), but waits while the peer's buffer is full, or too many descriptors are on their way; ends when
    /// the peer closes its end.
    pub fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), SendError> {
        loop {
            match self.try_send(bytes, fd) {
                Err(SendError::WouldBlock) => drop(self.wait(PollFlags::OUT, None).map_err(SendError::Io)?),
                // Nothing tells when the peer has taken some in, only that it has gone: the limit may be held by others then.
                Err(SendError::FdLimit) => {
                    if self.wait(PollFlags::empty(), Some(CROWDED)).map_err(SendError::Io)? {
                        return Err(SendError::Closed);
                    }
                }
                done => return done,
            }
        }
    }

    /// Takes the next message, if one is there. Never waits.
    pub fn try_recv(&self, buf: &mut [u8; Self::MAX]) -> Result<Received, RecvError> {
        let received = self.peek(buf)?;
        self.consume()?;
        Ok(received)
    }

    /// As [`try_recv`](Channel::try_recv), but the message stays until it is [consumed](Channel::consume): for who may fail to take in
    /// what came with it. For one thread at a time.
    pub fn peek(&self, buf: &mut [u8; Self::MAX]) -> Result<Received, RecvError> {
        let mut reset = false;
        loop {
            let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let got = rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(buf)], &mut control, flags);
            let message = match got {
                Ok(message) => message,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(RecvError::WouldBlock),
                // The peer died with messages of ours unread. That is told once, and before the messages that it had sent.
                Err(Errno::CONNRESET) if !reset => {
                    reset = true;
                    continue;
                }
                Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN) => {
                    return Err(RecvError::Closed);
                }
                Err(e) => return Err(RecvError::Io(e.into())),
            };
            // a descriptor beyond the first is not ours: dropped, which closes it
            let fd = control
                .drain()
                .filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                    _ => None,
                })
                .flatten()
                .reduce(|first, _| first);
            if message.flags.contains(ReturnFlags::TRUNC) {
                self.consume()?;
                return Err(RecvError::Length);
            }
            if message.flags.contains(ReturnFlags::CTRUNC) {
                return Err(RecvError::FdLimit);
            }
            if message.bytes == 0 {
                return Err(RecvError::Closed);
            }
            return Ok(Received { len: message.bytes, fd });
        }
    }

    /// Drops the next message and what came with it.
    pub fn consume(&self) -> Result<(), RecvError> {
        loop {
            // The rest of the message goes with its first byte.
            match rustix::net::recv(&self.fd, &mut [0u8; 1], RecvFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                // As the death of the peer is told: the message is still there.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Err(RecvError::WouldBlock),
                Err(e) => return Err(RecvError::Io(e.into())),
            }
        }
    }

    /// As [`try_recv`](Channel::try_recv), but waits for a message. Signals do not end it: where they must, use
    /// [`poll`](crate::poll()).
    pub fn recv(&self, buf: &mut [u8; Self::MAX]) -> Result<Received, RecvError> {
        loop {
            match self.try_recv(buf) {
                Err(RecvError::WouldBlock) => drop(self.wait(PollFlags::IN, None).map_err(RecvError::Io)?),
                done => return done,
            }
        }
    }

    /// Whether something has come of it: what was waited for, or the end of the peer.
    fn wait(&self, what: PollFlags, most: Option<&Timespec>) -> io::Result<bool> {
        match rustix::event::poll(&mut [PollFd::new(&self.fd, what)], most) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("fd", &self.fd.as_raw_fd()).finish()
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => f.write_str("the peer's buffer is full"),
            Self::Closed => f.write_str("the peer has closed the channel"),
            Self::FdLimit => {
                f.write_str("too many file descriptors are on their way; raise the limit of open files (`ulimit -n`)")
            }
            Self::Length(len) => {
                write!(f, "a message has 1 to {} bytes, not {len}", Channel::MAX)
            }
            Self::Io(e) => write!(f, "sending on the control channel: {e}"),
        }
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => f.write_str("no message has come yet"),
            Self::Closed => f.write_str("the peer has closed the channel"),
            Self::FdLimit => f.write_str(
                "a file descriptor could not be received: this process has none left; raise the limit of open files \
                 (`ulimit -n`)",
            ),
            Self::Length => {
                write!(f, "a message is longer than {} bytes", Channel::MAX)
            }
            Self::Io(e) => write!(f, "receiving on the control channel: {e}"),
        }
    }
}

impl std::error::Error for SendError {}
impl std::error::Error for RecvError {}
