//! The parent's side of worker processes.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feedrate_shm::{Channel, Interest, PidFd, PollOutcome, Ready, RecvError, SendError, View, poll};

use super::launch::Launch;
use super::parcel::{self, Parcel};
use super::wire::{Hello, Order, Report};
use crate::batch::Transfer;
use crate::error::Error;
use crate::plan::Task;
use crate::work::{BatchJob, Death, Event, Pool};

/// How long workers may take to end by themselves when the pool is dropped.
const GRACE: Duration = Duration::from_millis(200);

/// Worker processes, each with a channel and an arena of its own. The pool has no thread: messages are read and written while somebody
/// waits for a batch.
///
/// Dropping it closes the channels, at which idle workers end; those that are still busy after 200 ms are killed. Batches outlive
/// it: their memory stays mapped.
pub struct Processes<B> {
    launch: Launch,
    /// For worker 0; the others differ in their number.
    hello: Hello,
    members: Vec<Option<Member>>,
    epoch: u64,
    batch: PhantomData<fn() -> B>,
}

/// One worker process.
struct Member {
    child: Child,
    pidfd: PidFd,
    channel: Channel,
    view: Arc<View>,
    /// What could not be sent yet.
    outbox: VecDeque<Parcel>,
    ready: bool,
}

/// How a worker's channel was left.
enum Channels {
    Open,
    Closed,
}

impl<B: Transfer> Processes<B> {
    /// Starts `workers` processes (at least 1), each with `in_flight` samples at the same time. Does not wait until they are ready.
    /// `seed` and `drop_last` are what the works of the loader have.
    pub fn new(launch: Launch, workers: usize, in_flight: usize, seed: u64, drop_last: bool) -> Result<Self, Error> {
        if workers == 0 || in_flight == 0 {
            return Err(Error::config(format!(
                "a pool of processes needs at least 1 worker and 1 sample in flight, got {workers} and {in_flight}"
            )));
        }
        let hello = Hello {
            worker: 0,
            workers,
            in_flight,
            seed,
            drop_last,
            recipe: launch.recipe.clone(),
            argument: launch.argument.clone(),
        };
        let mut pool = Self {
            launch,
            hello,
            members: Vec::new(),
            epoch: 0,
            batch: PhantomData,
        };
        for worker in 0..workers {
            let member = pool.start(worker)?;
            pool.members.push(Some(member));
        }
        Ok(pool)
    }

    fn start(&self, worker: usize) -> Result<Member, Error> {
        let failed = |error: feedrate_shm::Error| Error::system(format!("starting worker {worker}"), error);
        let (ours, theirs) = Channel::pair().map_err(failed)?;
        let mut child = self.launch.start(theirs)?;
        let opened = i32::try_from(child.id()).map_err(|_| "a process id is too large".into());
        let opened = opened.and_then(|pid| PidFd::open(pid).map_err(crate::BoxError::from));
        let pidfd = match opened {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::system(format!("starting worker {worker}"), error));
            }
        };
        let mut member = Member {
            child,
            pidfd,
            channel: ours,
            view: View::new(),
            outbox: VecDeque::new(),
            ready: false,
        };
        member.post(
            &Order::Hello(Hello {
                worker,
                ..self.hello.clone()
            })
            .encode(),
        )?;
        Ok(member)
    }

    /// Process ids, by worker; `None` for one that has ended.
    pub fn pids(&self) -> Vec<Option<u32>> {
        self.members
            .iter()
            .map(|member| member.as_ref().map(|m| m.child.id()))
            .collect()
    }

    fn post(&mut self, worker: usize, message: &[u8]) -> Result<(), Error> {
        match &mut self.members[worker] {
            Some(member) => member.post(message),
            // It has just died; its tasks come again.
            None => Ok(()),
        }
    }

    /// One look at all workers, at most for `timeout`.
    fn look(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<Result<B, Error>>>) -> Result<(), Error> {
        let alive: Vec<usize> = (0..self.members.len()).filter(|&w| self.members[w].is_some()).collect();
        let mut fds = Vec::with_capacity(2 * alive.len());
        for member in self.members.iter().flatten() {
            let interest = Interest {
                read: true,
                write: !member.outbox.is_empty(),
            };
            fds.push((member.channel.as_fd(), interest));
            fds.push((member.pidfd.as_fd(), Interest::READ));
        }
        if fds.is_empty() {
            return Err(Error::bug("all worker processes have ended and none was replaced"));
        }
        let ready = match poll(&fds, timeout).map_err(|error| Error::system("waiting for workers", error))? {
            PollOutcome::Interrupted => return Ok(()),
            PollOutcome::Ready(ready) => ready,
        };
        drop(fds);
        for (worker, found) in alive.into_iter().zip(ready.chunks_exact(2)) {
            self.attend(worker, found[0], found[1], events)?;
        }
        Ok(())
    }

    fn attend(
        &mut self,
        worker: usize,
        channel: Ready,
        process: Ready,
        events: &mut Vec<Event<Result<B, Error>>>,
    ) -> Result<(), Error> {
        let Some(member) = &mut self.members[worker] else {
            return Ok(());
        };
        if channel.write {
            member.flush()?;
        }
        let mut state = Channels::Open;
        // What a dead worker had sent still counts.
        if channel.read || channel.closed || process.any() {
            state = member.read(worker, events)?;
        }
        if process.any() || matches!(state, Channels::Closed) {
            let death = member.bury();
            self.members[worker] = None;
            events.push(Event::Died { worker, death });
        }
        Ok(())
    }
}

impl Member {
    /// Sends, or keeps for later what cannot be sent now.
    fn post(&mut self, message: &[u8]) -> Result<(), Error> {
        self.outbox.push_back(Parcel::new(message.to_vec())?);
        self.flush().inspect_err(|_| {
            // What failed is tried again by who posts it: it does not come twice.
            drop(self.outbox.pop_back());
        })
    }

    fn flush(&mut self) -> Result<(), Error> {
        while let Some(parcel) = self.outbox.front() {
            match parcel.try_send(&self.channel) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(SendError::WouldBlock | SendError::FdLimit) => return Ok(()),
                // Its death will be noticed.
                Err(SendError::Closed) => self.outbox.clear(),
                Err(error) => return Err(Error::system("sending to a worker", error)),
            }
        }
        Ok(())
    }

    /// Takes all messages that are there.
    fn read<B: Transfer>(
        &mut self,
        worker: usize,
        events: &mut Vec<Event<Result<B, Error>>>,
    ) -> Result<Channels, Error> {
        let mut buffer = [0; Channel::MAX];
        loop {
            let received = match self.channel.peek(&mut buffer) {
                Ok(received) => received,
                Err(RecvError::WouldBlock) => return Ok(Channels::Open),
                Err(RecvError::Closed) => return Ok(Channels::Closed),
                Err(error) => return Err(Error::system(format!("receiving from worker {worker}"), error)),
            };
            let view = Arc::clone(&self.view);
            let shared = received.fd.is_some();
            let report = parcel::open(&buffer[..received.len], received.fd, |bytes, fd| {
                let report = Report::decode(bytes, &view)?;
                if let (Report::Segment { id, len }, Some(fd)) = (&report, fd) {
                    view.add(*id, *len, fd)?;
                }
                Ok(report)
            })
            .map_err(|error| Error::system(format!("reading a message of worker {worker}"), error));
            // Memory that could not be mapped is tried again by the next call: batches lie in it.
            if report.is_ok() || !shared {
                let consumed = self.channel.consume();
                consumed.map_err(|error| Error::system(format!("receiving from worker {worker}"), error))?;
            }
            match report? {
                Report::Ready => self.ready = true,
                Report::Refused(reason) => {
                    return Err(Error::system(format!("worker {worker} could not begin"), reason));
                }
                Report::Broken(message) => {
                    return Err(Error::bug(format!("worker {worker} stopped: {message}")));
                }
                Report::Segment { .. } => {}
                Report::Gone { id } => {
                    self.view.remove(id);
                }
                Report::Exhausted { epoch, position } => {
                    events.push(Event::Exhausted {
                        worker,
                        epoch,
                        position,
                    });
                }
                Report::Done {
                    epoch,
                    position,
                    output,
                } => {
                    let output = output.and_then(|value| {
                        B::from_value(value)
                            .map_err(|error| Error::system("reading a batch (Transfer::from_value)", error))
                    });
                    events.push(Event::Done {
                        worker,
                        epoch,
                        position,
                        output,
                    });
                }
            }
        }
    }

    /// Ends the process, if it has not ended, and says how it did.
    fn bury(&mut self) -> Death {
        if !self.pidfd.is_dead() {
            // It closed its channel: it may be on its way out. If not, it is of no use any more.
            self.pidfd.wait(Some(GRACE));
            let _ = self.child.kill();
        }
        // Where the program ignores SIGCHLD, or somebody else waits for its children, how it ended is not known.
        let status = self.child.wait().ok();
        Death {
            pid: Some(self.child.id()),
            exit_code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            ready: self.ready,
        }
    }
}

impl<B: Transfer> Pool for Processes<B> {
    type Job = BatchJob;
    type Output = Result<B, Error>;
    type Error = Error;

    fn workers(&self) -> usize {
        self.members.len()
    }

    fn submit(&mut self, worker: usize, task: &Task<BatchJob>) -> Result<(), Error> {
        self.post(worker, &Order::task(task.epoch, task.position, &task.job))
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<Self::Output>>) -> Result<(), Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            self.look(left, events)?;
            if !events.is_empty() || left == Some(Duration::ZERO) {
                return Ok(());
            }
        }
    }

    fn begin_epoch(&mut self, epoch: u64) -> Result<(), Error> {
        self.epoch = epoch;
        for worker in 0..self.members.len() {
            self.post(worker, &Order::Epoch(epoch).encode())?;
        }
        Ok(())
    }

    fn revive(&mut self, worker: usize, epoch: u64, _: Option<(u64, u64)>) -> Result<(), Error> {
        let mut member = self.start(worker)?;
        member.post(&Order::Epoch(epoch).encode())?;
        self.members[worker] = Some(member);
        Ok(())
    }

    fn retire(&mut self, worker: usize) -> Result<(), Error> {
        self.post(worker, &Order::Retire.encode())
    }
}

impl<B> Drop for Processes<B> {
    fn drop(&mut self) {
        let mut ending: Vec<(Child, PidFd)> = Vec::new();
        for member in self.members.iter_mut().filter_map(Option::take) {
            // Closing the channel asks it to end.
            drop(member.channel);
            ending.push((member.child, member.pidfd));
        }
        let deadline = Instant::now() + GRACE;
        for (mut child, pidfd) in ending {
            if !pidfd.wait(Some(deadline.saturating_duration_since(Instant::now()))) {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

impl<B> fmt::Debug for Processes<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processes")
            .field("launch", &self.launch)
            .field("workers", &self.members.len())
            .finish_non_exhaustive()
    }
}
