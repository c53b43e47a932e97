//! Processes: knowing when one dies, and waiting for several things at once.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use std::{fmt, io, thread};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::error::{Error, Result};

/// A process by descriptor: unlike its number, it can never come to mean another process. Readable once the process is dead,
/// also while it is not yet waited for.
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// The process with this number now. Of a child that was not waited for, the number is certain.
    pub fn open(pid: i32) -> Result<Self> {
        let doing = "opening a process (pidfd_open)";
        let pid = (pid > 0)
            .then(|| Pid::from_raw(pid))
            .flatten()
            .ok_or_else(|| Error::io(doing, io::ErrorKind::InvalidInput.into()))?;
        rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map(|fd| Self { fd })
            .map_err(|e| Error::io(doing, e.into()))
    }

    /// The parent of this process. `NotFound` inside [`Error::Io`] when it has died already.
    pub fn parent() -> Result<Self> {
        let gone = || Error::io("opening the parent process", io::ErrorKind::NotFound.into());
        let pid = rustix::process::getppid().ok_or_else(gone)?;
        let found = Self::open(pid.as_raw_nonzero().get())?;
        // still our parent after opening: then the number cannot have been given to another in between
        if rustix::process::getppid() == Some(pid) {
            Ok(found)
        } else {
            Err(gone())
        }
    }

    /// A pidfd that was inherited or received.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// The descriptor, for passing it on.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Sends the signal with this number. An error when the process was waited for already.
    pub fn send_signal(&self, signal: i32) -> Result<()> {
        let doing = "sending a signal";
        let signal =
            Signal::from_named_raw(signal).ok_or_else(|| Error::io(doing, io::ErrorKind::InvalidInput.into()))?;
        rustix::process::pidfd_send_signal(&self.fd, signal).map_err(|e| Error::io(doing, e.into()))
    }

    /// Whether the process has ended. Does not wait.
    pub fn is_dead(&self) -> bool {
        self.wait(Some(Duration::ZERO))
    }

    /// Waits until the process has ended (true), or for this long (false).
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| std::time::Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(std::time::Instant::now()));
            let fds = [(self.fd.as_fd(), Interest::READ)];
            match poll(&fds, left) {
                Ok(PollOutcome::Interrupted) => {}
                Ok(PollOutcome::Ready(ready)) => return ready[0].any(),
                Err(_) => return false,
            }
        }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for PidFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PidFd").field("fd", &self.fd.as_raw_fd()).finish()
    }
}

/// What to wait for on a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Wait until it can be read, or is closed by the peer.
    pub read: bool,
    /// Wait until it can be written.
    pub write: bool,
}

impl Interest {
    /// Reading only.
    pub const READ: Self = Self {
        read: true,
        write: false,
    };
    /// Writing only.
    pub const WRITE: Self = Self {
        read: false,
        write: true,
    };
    /// Both.
    pub const BOTH: Self = Self {
        read: true,
        write: true,
    };
}

/// What is so with a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Reading does not wait. For a pidfd: the process is dead.
    pub read: bool,
    /// Writing does not wait.
    pub write: bool,
    /// The peer has hung up, or the descriptor is in error. Told without being asked for.
    pub closed: bool,
}

impl Ready {
    /// Whether anything is so.
    pub fn any(self) -> bool {
        self.read || self.write || self.closed
    }
}

/// How a [`poll()`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// One entry for each descriptor; all false when the time is over.
    Ready(Vec<Ready>),
    /// A signal handler ran in this thread. The caller decides whether to go on.
    Interrupted,
}

/// Waits until one of the descriptors is ready or the time is over (None: for ever). One system call; an interruption by a
/// signal is told and not hidden.
pub fn poll(fds: &[(BorrowedFd<'_>, Interest)], timeout: Option<Duration>) -> Result<PollOutcome> {
    let mut entries: Vec<PollFd<'_>> = fds
        .iter()
        .map(|(fd, interest)| {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, interest.read);
            events.set(PollFlags::OUT, interest.write);
            PollFd::from_borrowed_fd(*fd, events)
        })
        .collect();
    // what does not fit is as good as for ever
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(&mut entries, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(PollOutcome::Interrupted),
        Err(e) => return Err(Error::io("waiting for descriptors (poll)", e.into())),
    }
    let bad = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(PollOutcome::Ready(
        entries
            .iter()
            .map(|entry| {
                let found = entry.revents();
                Ready {
                    read: found.contains(PollFlags::IN),
                    write: found.contains(PollFlags::OUT),
                    closed: found.intersects(bad),
                }
            })
            .collect(),
    ))
}

/// Starts a thread that waits for the death of `parent` and then runs `on_death` (in a worker: [`exit_now`](crate::exit_now)).
/// At once, if it is dead already. The thread needs no interpreter and takes no signals: all are blocked in it.
pub fn watch_parent(parent: PidFd, on_death: impl FnOnce() + Send + 'static) -> Result<()> {
    let watch = move || {
        if parent.wait(None) {
            on_death();
        }
    };
    let old = block_signals()?;
    let started = thread::Builder::new()
        .name("feedrate-parent".to_owned())
        .stack_size(128 << 10)
        .spawn(watch);
    restore_signals(&old);
    started
        .map(drop)
        .map_err(|e| Error::io("starting the thread that watches the parent", e))
}

/// Blocks every signal in this thread, so that a thread started now begins with all blocked; gives the old mask.
fn block_signals() -> Result<libc::sigset_t> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid for writes; sigfillset writes the first whole before it is read, and pthread_sigmask writes
    // the second whole when it succeeds.
    let code = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr())
    };
    if code != 0 {
        return Err(Error::io("blocking signals", io::Error::from_raw_os_error(code)));
    }
    // SAFETY: written by the successful call above.
    Ok(unsafe { old.assume_init() })
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: `old` is a mask that the kernel gave us; no old mask is asked for.
    let code = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut()) };
    debug_assert_eq!(code, 0, "restoring a mask that was in force");
}
