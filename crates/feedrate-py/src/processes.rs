//! The pool of worker processes: started by Python, one channel and one process descriptor each.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use feedrate::plan::Task;
use feedrate::work::{Death, Event, Pool};
use feedrate_shm::{Channel, Interest, Lease, PidFd, PollOutcome, RecvError, SendError, Token, View, payload_fd, poll};
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::goes_on;
use crate::error::shm;
use crate::message::{Body, Message};
use crate::pool::{Job, Output, check_owner};
use crate::wire::{self, Header, Kind, Place, TensorEntry};

/// A wait comes up this often to run Python's signal handlers (see `enter`).
const SLICE: Duration = Duration::from_millis(50);
/// How long a wait is silent before Python is asked to look at the workers.
const STALL: Duration = Duration::from_secs(10);
/// A worker that has closed its channel but does not end is ended after this.
const MUTE: Duration = Duration::from_secs(5);

/// Descriptors of this process that forked children inherit and must not keep: a worker's channel held open by a sibling
/// would outlive its owner.
static OWN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

fn own(fd: RawFd) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).push(fd);
}

fn disown(fd: RawFd) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).retain(|f| *f != fd);
}

/// In a forked child: closes what belongs to the parent's pools.
#[pyfunction]
pub(crate) fn forget_inherited() {
    // Held by a thread that does not exist here only if the fork did not hold the GIL; then the descriptors stay open, which
    // costs nothing but promptness: pidfds tell of deaths as well.
    if let Ok(mut fds) = OWN.try_lock() {
        for fd in fds.drain(..) {
            feedrate_shm::close_inherited(fd);
        }
    }
}

struct Worker {
    channel: Channel,
    pidfd: PidFd,
    pid: u32,
    view: Arc<View>,
    outbox: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    /// Where it leaves its random states.
    page: Option<Lease>,
    /// The states that it took up from the worker before it.
    resumed: Option<Vec<u8>>,
    ready: bool,
    /// Asked to end: its death is no news.
    retired: bool,
    /// Its channel is closed from the other side since then.
    mute: Option<Instant>,
    /// We ended it, since it could not be spoken to any more: the signal is ours and explains nothing.
    ended: bool,
}

impl Worker {
    fn push(&mut self, bytes: Vec<u8>, fd: Option<OwnedFd>) -> PyResult<()> {
        self.outbox.push_back((bytes, fd));
        self.flush().inspect_err(|_| {
            // What failed is tried again by who pushes it: it does not come twice.
            drop(self.outbox.pop_back());
        })
    }

    /// Sends what the channel takes without blocking. A closed channel swallows everything: the death will be reported.
    fn flush(&mut self) -> PyResult<()> {
        while let Some((bytes, fd)) = self.outbox.front() {
            match self.channel.try_send(bytes, fd.as_ref().map(AsFd::as_fd)) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(SendError::WouldBlock | SendError::FdLimit) => return Ok(()),
                Err(SendError::Closed) => self.outbox.clear(),
                Err(error) => return Err(PyOSError::new_err(error.to_string())),
            }
        }
        Ok(())
    }
}

pub(crate) struct ProcessPool {
    workers: Vec<Option<Worker>>,
    /// `launch(worker, fd, resume)` starts a process that serves the channel `fd` and returns its pid.
    launch: Py<PyAny>,
    /// `bury(worker)` reaps a dead process and returns its exit code (negative: the signal), or None when unknown.
    bury: Py<PyAny>,
    /// `stalled(seconds)` is told when nothing has happened for a while.
    stalled: Py<PyAny>,
    dumps: Py<PyAny>,
    owner: u32,
    /// Sent with the beginning of each epoch.
    pub(crate) epoch_body: Vec<u8>,
}

impl ProcessPool {
    fn start(&mut self, py: Python<'_>, worker: usize, resume: Option<&[u8]>) -> PyResult<()> {
        let (ours, theirs) = Channel::pair().map_err(|e| shm(&e))?;
        let raw = ours.as_fd().as_raw_fd();
        own(raw);
        let taken_up = resume.map(|bytes| PyBytes::new(py, bytes));
        let theirs = theirs.into_fd();
        let launched = self.launch.bind(py).call1((worker, theirs.as_raw_fd(), taken_up));
        let opened = launched.and_then(|pid| {
            let pid: u32 = pid.extract()?;
            let pidfd = PidFd::open(i32::try_from(pid)?).map_err(|e| shm(&e))?;
            PyResult::Ok((pid, pidfd))
        });
        let (pid, pidfd) = opened.inspect_err(|_| disown(raw))?;
        own(pidfd.as_fd().as_raw_fd());
        self.workers[worker] = Some(Worker {
            channel: ours,
            pidfd,
            pid,
            view: View::new(),
            outbox: VecDeque::new(),
            page: None,
            resumed: resume.map(<[u8]>::to_vec),
            ready: false,
            retired: false,
            mute: None,
            ended: false,
        });
        Ok(())
    }

    /// Takes everything that has arrived from one worker.
    fn drain(&mut self, at: usize, events: &mut Vec<Event<Output>>) -> PyResult<()> {
        let mut buffer = [0u8; Channel::MAX];
        while let Some(worker) = self.workers[at].as_mut().filter(|w| w.mute.is_none()) {
            let received = match worker.channel.peek(&mut buffer) {
                Ok(received) => received,
                Err(RecvError::WouldBlock) => break,
                Err(RecvError::Closed) => {
                    worker.mute = Some(Instant::now());
                    break;
                }
                Err(RecvError::FdLimit) => return Err(PyRuntimeError::new_err(TOO_MANY_FILES)),
                Err(error) => return Err(PyOSError::new_err(error.to_string())),
            };
            let shared = received.fd.is_some();
            let event = accept(worker, at, &buffer[..received.len], received.fd);
            // Memory that could not be mapped is tried again by the next call: batches lie in it.
            if event.is_ok() || !shared {
                worker
                    .channel
                    .consume()
                    .map_err(|e| PyOSError::new_err(e.to_string()))?;
            }
            events.extend(event?);
        }
        Ok(())
    }

    /// Waits until a channel or a process descriptor has something to say. Returns which workers have died.
    fn sleep(&mut self, py: Python<'_>, timeout: Duration) -> PyResult<Vec<usize>> {
        let mut fds = Vec::with_capacity(self.workers.len() * 2);
        let mut whose = Vec::with_capacity(self.workers.len() * 2);
        for (at, worker) in self.workers.iter().enumerate() {
            let Some(worker) = worker else { continue };
            if worker.retired {
                continue;
            }
            if worker.mute.is_none() {
                let interest = if worker.outbox.is_empty() {
                    Interest::READ
                } else {
                    Interest::BOTH
                };
                fds.push((worker.channel.as_fd(), interest));
                whose.push((at, false));
            }
            fds.push((worker.pidfd.as_fd(), Interest::READ));
            whose.push((at, true));
        }
        let outcome = py.detach(|| poll(&fds, Some(timeout)));
        drop(fds);
        py.check_signals()?;
        let ready = match outcome.map_err(|e| shm(&e))? {
            PollOutcome::Ready(ready) => ready,
            PollOutcome::Interrupted => return Ok(Vec::new()),
        };
        let dead = whose
            .iter()
            .zip(ready)
            .filter(|((_, process), ready)| *process && ready.any());
        Ok(dead.map(|((at, _), _)| *at).collect())
    }

    /// Books a death. Everything the worker had sent has been taken before.
    fn dead(&mut self, py: Python<'_>, at: usize, events: &mut Vec<Event<Output>>) -> PyResult<()> {
        let Some(worker) = self.workers[at].as_ref() else {
            return Ok(());
        };
        let code: Option<i32> = self.bury.bind(py).call1((at,))?.extract()?;
        let death = Death {
            pid: Some(worker.pid),
            exit_code: code.filter(|c| *c >= 0),
            signal: code.filter(|c| *c < 0 && !worker.ended).map(|c| -c),
            ready: worker.ready,
        };
        self.release(at, true);
        events.push(Event::Died { worker: at, death });
        Ok(())
    }

    /// Lets go of a worker's descriptors; its page stays for the replacement when asked for.
    fn release(&mut self, at: usize, keep_page: bool) {
        if let Some(worker) = self.workers[at].as_mut() {
            disown(worker.channel.as_fd().as_raw_fd());
            disown(worker.pidfd.as_fd().as_raw_fd());
            worker.retired = true;
            worker.outbox.clear();
            if !keep_page {
                self.workers[at] = None;
            }
        }
    }

    /// Asks all workers to end; they do when they have finished what they are doing.
    pub(crate) fn close(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        for at in 0..self.workers.len() {
            if let Some(worker) = self.workers[at].as_mut()
                && !worker.retired
            {
                worker.outbox.clear();
                // If the channel is full, its closing says the same.
                drop(worker.channel.try_send(&Header::new(Kind::Stop, 0, 0).bytes(), None));
            }
            self.release(at, false);
        }
    }
}

const TOO_MANY_FILES: &str = "Too many open files. Communication with the workers is no longer possible. Please increase \
the limit using `ulimit -n` in the shell, or close files: a loader needs three descriptors for each worker. (With torch's own \
loader one would change the sharing strategy by `torch.multiprocessing.set_sharing_strategy('file_system')`; here no \
descriptor is held for a batch.)";

fn malformed(worker: usize) -> PyErr {
    PyRuntimeError::new_err(format!("DataLoader worker {worker} sent a message that cannot be read"))
}

/// Reads one message of a worker; bookkeeping messages give no event.
fn accept(worker: &mut Worker, at: usize, bytes: &[u8], fd: Option<OwnedFd>) -> PyResult<Option<Event<Output>>> {
    let bad = || malformed(at);
    let (header, body) = Header::read(bytes).ok_or_else(bad)?;
    let (epoch, position) = (header.epoch, header.position);
    match header.kind {
        Kind::Segment => {
            let id = u32::try_from(epoch).map_err(|_| bad())?;
            let len = usize::try_from(position).map_err(|_| bad())?;
            worker.view.add(id, len, fd.ok_or_else(bad)?).map_err(|e| shm(&e))?;
            Ok(None)
        }
        Kind::Gone => {
            worker.view.remove(u32::try_from(epoch).map_err(|_| bad())?);
            Ok(None)
        }
        Kind::Hello => {
            worker.ready = true;
            let (tokens, _) = wire::tokens(header.tokens, body).ok_or_else(bad)?;
            if let Some(token) = tokens.first() {
                worker.page = Some(worker.view.lease(*token).map_err(|e| shm(&e))?);
            }
            Ok(None)
        }
        Kind::Exhausted => Ok(Some(Event::Exhausted {
            worker: at,
            epoch,
            position,
        })),
        Kind::Batch | Kind::Error => {
            let message = unwrap(worker, &header, body).ok_or_else(bad)?.map_err(|e| shm(&e))?;
            Ok(Some(Event::Done {
                worker: at,
                epoch,
                position,
                output: Output::Message(message),
            }))
        }
        Kind::Task | Kind::Epoch | Kind::Stop => Err(bad()),
    }
}

/// Takes the leases of a batch. `None` when the message is malformed.
fn unwrap(worker: &Worker, header: &Header, body: &[u8]) -> Option<Result<Message, feedrate_shm::Error>> {
    let lease = |token: Token| worker.view.lease(token).map(Arc::new);
    let table_len = usize::try_from(header.table).ok()?;
    let start = usize::from(header.tokens) * wire::TOKEN + table_len;
    let mut slot = None;
    let spilled;
    let head = if header.place == Place::Slot {
        let (outer, _) = wire::tokens(1, body)?;
        match lease(*outer.first()?) {
            Ok(lease) => spilled = lease.read(0, start).map(|head| (slot.insert(lease), head).1)?,
            Err(error) => return Some(Err(error)),
        }
        &spilled[..]
    } else {
        body.get(..start)?
    };
    let (tokens, table) = wire::tokens(header.tokens, head)?;
    let tensors = TensorEntry::read_all(table)?;
    let body = match slot {
        Some(slot) => Body::Slot(slot, start),
        None => Body::Here(body[start..].to_vec()),
    };
    let leases = tokens.into_iter().map(lease).collect::<Result<Vec<_>, _>>();
    Some(leases.map(|leases| Message {
        error: header.kind == Kind::Error,
        leases,
        tensors,
        body,
    }))
}

impl Pool for ProcessPool {
    type Job = Job;
    type Output = Output;
    type Error = PyErr;

    fn workers(&self) -> usize {
        self.workers.len()
    }

    fn submit(&mut self, at: usize, task: &Task<Job>) -> PyResult<()> {
        check_owner(self.owner)?;
        let dumps = &self.dumps;
        let Some(worker) = self.workers[at].as_mut() else {
            return Ok(());
        };
        if worker.retired {
            return Ok(());
        }
        Python::attach(|py| {
            let body = task.job.pickled(py, dumps)?;
            let mut header = Header::new(Kind::Task, task.epoch, task.position);
            if body.len() + wire::HEADER <= Channel::MAX {
                let mut bytes = header.bytes();
                bytes.extend_from_slice(body);
                return worker.push(bytes, None);
            }
            header.place = Place::File;
            let file = payload_fd(body).map_err(|e| shm(&e))?;
            worker.push(header.bytes(), Some(file))
        })
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<Output>>) -> PyResult<()> {
        check_owner(self.owner)?;
        let begun = Instant::now();
        let mut told = 0;
        loop {
            for at in 0..self.workers.len() {
                if let Some(worker) = self.workers[at].as_mut().filter(|w| !w.outbox.is_empty()) {
                    worker.flush()?;
                }
                self.drain(at, events)?;
            }
            if !events.is_empty() {
                return Ok(());
            }
            let elapsed = begun.elapsed();
            let left = timeout.map_or(SLICE, |t| t.saturating_sub(elapsed).min(SLICE));
            if timeout.is_some_and(|t| elapsed >= t) {
                return Ok(());
            }
            goes_on()?;
            Python::attach(|py| {
                let dead = self.sleep(py, left)?;
                for at in dead {
                    self.drain(at, events)?;
                    self.dead(py, at, events)?;
                }
                for worker in self.workers.iter_mut().flatten() {
                    if worker.mute.is_some_and(|since| since.elapsed() > MUTE) && !worker.retired {
                        // It cannot be spoken to any more; an ended process at least can be replaced.
                        worker.mute = Some(Instant::now());
                        worker.ended = true;
                        drop(worker.pidfd.send_signal(9));
                    }
                }
                let silent = elapsed.as_secs() / STALL.as_secs();
                if silent > told {
                    told = silent;
                    self.stalled.bind(py).call1((elapsed.as_secs_f64(),))?;
                }
                PyResult::Ok(())
            })?;
        }
    }

    fn begin_epoch(&mut self, epoch: u64) -> PyResult<()> {
        check_owner(self.owner)?;
        // A worker starts with the first epoch that it hears of.
        if epoch > 1 {
            for worker in self.workers.iter_mut().flatten().filter(|w| !w.retired) {
                let mut bytes = Header::new(Kind::Epoch, epoch, 0).bytes();
                bytes.extend_from_slice(&self.epoch_body);
                worker.push(bytes, None)?;
            }
        }
        Ok(())
    }

    fn revive(&mut self, at: usize, _epoch: u64, completed: Option<(u64, u64)>) -> PyResult<()> {
        let (page, former) = self.workers[at]
            .as_mut()
            .map_or((None, None), |w| (w.page.take(), w.resumed.take()));
        let resume = page
            .zip(completed)
            .and_then(|(page, (epoch, position))| saved_state(&page.read(0, page.len())?, epoch, position))
            // It died before it had completed anything: its own beginning still holds.
            .or(former);
        self.release(at, false);
        Python::attach(|py| self.start(py, at, resume.as_deref()))
    }

    fn retire(&mut self, _at: usize) -> PyResult<()> {
        // It stays until the loader is closed: what torch itself sent of its last batches can only be fetched from a live process.
        Ok(())
    }
}

/// The state that a worker left with a task: its page holds two records (epoch, position + 1, length, bytes), written in
/// turns before each completion is sent, so that the one of the last completion received is whole whenever the worker dies.
fn saved_state(page: &[u8], epoch: u64, position: u64) -> Option<Vec<u8>> {
    let number = |at: usize| Some(u64::from_le_bytes(page.get(at..at + 8)?.try_into().ok()?));
    let half = page.len() / 2;
    for start in [0, half] {
        if number(start)? == epoch && number(start + 8)? == position + 1 {
            let len = usize::try_from(number(start + 16)?).ok()?;
            return page.get(start + 24..start + half)?.get(..len).map(<[u8]>::to_vec);
        }
    }
    None
}

impl Drop for ProcessPool {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.close();
            return;
        }
        // A forked copy: the descriptors were closed at the fork and their numbers may be in use for something else.
        for worker in self.workers.drain(..).flatten() {
            std::mem::forget(worker.channel);
            std::mem::forget(worker.pidfd);
        }
    }
}

/// Worker processes, to be given to a feed.
#[pyclass(module = "feedrate._native")]
pub(crate) struct Processes {
    pool: Option<ProcessPool>,
}

impl Processes {
    pub(crate) fn take(&mut self) -> PyResult<ProcessPool> {
        self.pool
            .take()
            .ok_or_else(|| PyRuntimeError::new_err("these processes already serve a feed"))
    }
}

#[pymethods]
impl Processes {
    /// Starts `workers` processes by `launch(worker, fd, resume) -> pid`; does not wait for them.
    #[new]
    fn new(
        py: Python<'_>,
        workers: usize,
        launch: Py<PyAny>,
        bury: Py<PyAny>,
        stalled: Py<PyAny>,
        dumps: Py<PyAny>,
    ) -> PyResult<Self> {
        let mut pool = ProcessPool {
            workers: (0..workers).map(|_| None).collect(),
            launch,
            bury,
            stalled,
            dumps,
            owner: std::process::id(),
            epoch_body: Vec::new(),
        };
        for worker in 0..workers {
            pool.start(py, worker, None)?;
        }
        Ok(Self { pool: Some(pool) })
    }
}
