//! A worker process.

use std::fmt;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use feedrate_shm::{Arena, ArenaOptions, Channel, Interest, PidFd, PollOutcome, RecvError, exit_now, watch_parent};

use super::MARK;
use super::codec::chain;
use super::parcel;
use super::wire::{Hello, Order, Report};
use crate::batch::Transfer;
use crate::dataset::WorkerInfo;
use crate::error::{BoxError, Error, Panic};
use crate::loader::{Builder, Samples};
use crate::plan::Task;
use crate::work::{BatchJob, Event, Inline, Pool, Threads};

/// How often an idle worker looks whether memory can be given back.
const TIDY: Duration = Duration::from_millis(250);

type Serve = Box<dyn FnOnce(&Hello, &Channel) -> Result<(), Stop>>;

/// The recipes that worker processes of this program know.
#[derive(Default)]
pub struct Workers {
    recipes: Vec<(String, Serve)>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.recipes.iter().map(|(name, _)| name))
            .finish()
    }
}

impl Workers {
    /// No recipe yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a recipe. It makes the same builder as the parent uses; only its dataset and its collate function count here, order
    /// and numbers are the parent's.
    #[must_use]
    pub fn with<S: Samples, B: Transfer>(
        mut self,
        name: impl Into<String>,
        recipe: impl FnOnce(Vec<u8>) -> Result<Builder<S, B>, BoxError> + 'static,
    ) -> Self {
        let serve = move |hello: &Hello, channel: &Channel| serve(hello, channel, recipe);
        self.recipes.push((name.into(), Box::new(serve)));
        self
    }

    /// In a worker process: serves, and never returns. Otherwise: returns at once. To be called first in `main`, before there are
    /// other threads. The worker's standard input is `/dev/null`.
    pub fn run(self) {
        let Some(parent) = parent() else { return };
        if std::os::unix::process::parent_id() != parent {
            // It has died, and this must not become a second one of it.
            exit_now(1);
        }
        let code = match self.serve() {
            Ok(()) | Err(Stop::Gone) => 0,
            Err(Stop::Failed(error)) => {
                let _ = writeln!(std::io::stderr(), "feedrate worker: {}", chain(&error));
                1
            }
        };
        let _ = std::io::stdout().flush();
        exit_now(code);
    }

    fn serve(self) -> Result<(), Stop> {
        let lost = |error: feedrate_shm::Error| Error::system("watching the parent", error);
        let watched = PidFd::parent().map_err(lost)?;
        if parent() != Some(std::os::unix::process::parent_id()) {
            exit_now(1);
        }
        watch_parent(watched, || exit_now(1)).map_err(lost)?;
        let channel = channel()?;
        let Some(Order::Hello(hello)) = receive(&channel, true)? else {
            return Err(Error::bug("a worker was not told what to do").into());
        };
        feedrate_shm::set_thread_name(&format!("feedrate-w{}", hello.worker));
        let known: Vec<&str> = self.recipes.iter().map(|(name, _)| name.as_str()).collect();
        let unknown = format!(
            "the worker knows no recipe {:?}, only {known:?}: add it with Workers::with before run",
            hello.recipe
        );
        let found = self.recipes.into_iter().find(|(name, _)| *name == hello.recipe);
        match found {
            Some((_, serve)) => serve(&hello, &channel),
            None => refuse(&channel, unknown),
        }
    }
}

/// In a worker process, the process that started it.
fn parent() -> Option<u32> {
    let mark = std::env::var(MARK).ok()?;
    let (parent, socket) = mark.split_once(' ')?;
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().ok()?;
    let input = std::fs::File::from(stdin).metadata().ok()?;
    let given = input.file_type().is_socket() && input.ino().to_string() == socket;
    given.then(|| parent.parse().ok())?
}

/// Why a worker ends.
pub(super) enum Stop {
    /// The parent has closed the channel.
    Gone,
    /// Something failed.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Takes the channel out of standard input.
fn channel() -> Result<Channel, Error> {
    let failed = |error: std::io::Error| Error::system("taking the channel from standard input", error);
    let fd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(|e| failed(e.into()))?;
    let null = std::fs::File::open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdin(&null).map_err(|e| failed(e.into()))?;
    Ok(Channel::from_fd(fd))
}

/// Tells the parent why this worker cannot begin.
fn refuse(channel: &Channel, reason: String) -> Result<(), Stop> {
    let failed = |error: feedrate_shm::Error| Error::system("making an arena", error);
    let arena = Arena::new(ArenaOptions::default()).map_err(failed)?;
    parcel::report(channel, &arena, Report::Refused(reason))
}

/// The next order; `None` when there is none (and `wait` is not set), or no parent any more.
fn receive(channel: &Channel, wait: bool) -> Result<Option<Order>, Stop> {
    let mut buffer = [0; Channel::MAX];
    let received = if wait {
        channel.recv(&mut buffer)
    } else {
        channel.try_recv(&mut buffer)
    };
    let received = match received {
        Ok(received) => received,
        Err(RecvError::WouldBlock) => return Ok(None),
        // The parent has closed the loader.
        Err(RecvError::Closed) => return Err(Stop::Gone),
        Err(error) => return Err(Error::system("receiving from the parent", error).into()),
    };
    parcel::open(&buffer[..received.len], received.fd, |bytes, _| Order::decode(bytes))
        .map(Some)
        .map_err(|error| Error::system("reading the parent's message", error).into())
}

fn serve<S: Samples, B: Transfer>(
    hello: &Hello,
    channel: &Channel,
    recipe: impl FnOnce(Vec<u8>) -> Result<Builder<S, B>, BoxError>,
) -> Result<(), Stop> {
    let name = format!("feedrate-{}-{}", hello.recipe, hello.worker);
    let arena = Arena::new(ArenaOptions {
        name,
        ..ArenaOptions::default()
    })
    .map_err(|error| Error::system("making an arena", error))?;
    let made = catch_unwind(AssertUnwindSafe(|| recipe(hello.argument.clone())))
        .unwrap_or_else(|payload| Err(Panic::from_payload(&*payload).into()));
    let builder = match made {
        Ok(builder) => builder,
        Err(error) => {
            let reason = format!("the recipe {:?} failed: {}", hello.recipe, chain(&*error));
            return parcel::report(channel, &arena, Report::Refused(reason));
        }
    };
    let work = builder.into_work(Arc::new(Arc::clone(&arena)), hello.seed, hello.drop_last)?;
    let info = WorkerInfo {
        id: hello.worker,
        workers: hello.workers,
    };
    let mut pool: Box<dyn Pool<Job = BatchJob, Output = Result<B, Error>, Error = Error>> =
        if S::STREAM || hello.in_flight == 1 {
            Box::new(Inline::with_worker(work, info))
        } else {
            Box::new(Threads::with_workers(work, vec![info], hello.in_flight)?)
        };
    parcel::report(channel, &arena, Report::Ready)?;
    let result = work_on(channel, &arena, &mut *pool);
    if let Err(Stop::Failed(error)) = &result {
        let _ = parcel::report(channel, &arena, Report::Broken(chain(error)));
    }
    result
}

fn work_on<B: Transfer>(
    channel: &Channel,
    arena: &Arc<Arena>,
    pool: &mut dyn Pool<Job = BatchJob, Output = Result<B, Error>, Error = Error>,
) -> Result<(), Stop> {
    let mut pending = 0_usize;
    let mut current = 0;
    let mut events = Vec::new();
    loop {
        // Take what has come; wait only with nothing to do.
        loop {
            if pending == 0 {
                idle(channel, arena)?;
            }
            match receive(channel, pending == 0)? {
                None => break,
                Some(Order::Hello(_)) => return Err(Error::bug("a worker was greeted twice").into()),
                Some(Order::Epoch(epoch)) => {
                    (pending, current) = (0, epoch);
                    pool.begin_epoch(epoch)?;
                }
                Some(Order::Retire) => {
                    pending = 0;
                    pool.retire(0)?;
                }
                Some(Order::Task { epoch, position, job }) => {
                    pool.submit(
                        0,
                        &Task {
                            epoch,
                            position,
                            job: Arc::new(job),
                        },
                    )?;
                    pending += 1;
                }
            }
        }
        pool.wait(None, &mut events)?;
        for event in events.drain(..) {
            let (report, epoch) = match event {
                Event::Done {
                    epoch,
                    position,
                    output,
                    ..
                } => {
                    let output = output.map(B::into_value);
                    (
                        Report::Done {
                            epoch,
                            position,
                            output,
                        },
                        epoch,
                    )
                }
                Event::Exhausted { epoch, position, .. } => (Report::Exhausted { epoch, position }, epoch),
                Event::Died { .. } => return Err(Error::bug("a thread of a worker died").into()),
            };
            if epoch != current {
                continue;
            }
            pending -= 1;
            let (Report::Done { position, .. } | Report::Exhausted { position, .. }) = report else {
                continue;
            };
            if let Err(Stop::Failed(error)) = parcel::report(channel, arena, report) {
                // The batch could not be handed over (no memory, too deep): say so in its place.
                let output = Err(error);
                parcel::report(
                    channel,
                    arena,
                    Report::Done {
                        epoch,
                        position,
                        output,
                    },
                )?;
            }
        }
    }
}

/// Waits for a message; gives memory back while nobody needs it.
fn idle(channel: &Channel, arena: &Arc<Arena>) -> Result<(), Stop> {
    use std::os::fd::AsFd as _;
    let failed = |error: feedrate_shm::Error| Error::system("waiting for the parent", error);
    loop {
        let outcome = feedrate_shm::poll(&[(channel.as_fd(), Interest::READ)], Some(TIDY)).map_err(failed)?;
        match outcome {
            PollOutcome::Ready(ready) if ready[0].any() => return Ok(()),
            PollOutcome::Ready(_) => {
                let held = arena.balance();
                parcel::announce(channel, arena)?;
                if !held {
                    return Ok(());
                }
            }
            PollOutcome::Interrupted => {}
        }
    }
}
