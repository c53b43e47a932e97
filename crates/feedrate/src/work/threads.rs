//! On threads of this process, which share each batch.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{Event, Pool, Work};
use crate::asking::asking;
use crate::dataset::WorkerInfo;
use crate::error::{Error, Panic};
use crate::plan::Task;

/// How many threads, and as which workers they appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Team {
    /// Workers, at least 1: how many tasks are served at the same time, and how far the window reaches.
    pub workers: usize,
    /// Threads for each worker, at least 1: how many samples it has in flight.
    pub in_flight: usize,
}

/// Threads that share each batch: all of them work on the samples of the oldest task, so that it is done as early as it can be, and
/// go on to the next when none of its samples is left to begin. With a work that has lanes, each task runs whole, on one
/// thread at a time for each worker.
///
/// There are `workers * in_flight` threads (`workers` with lanes), from [`new`](Threads::new) on. Dropping the pool waits for what
/// user code is doing at that moment, and for nothing else; then no thread is left.
pub struct Threads<W: Work> {
    shared: Arc<Shared<W>>,
    events: Receiver<Message<W::Output>>,
    handles: Vec<JoinHandle<()>>,
}

enum Message<O> {
    Event(Event<O>),
    /// A thread's own code panicked.
    Broken(Panic),
}

struct Shared<W: Work> {
    work: W,
    /// As user code sees them, by worker.
    infos: Vec<WorkerInfo>,
    state: Mutex<State<W>>,
    /// Signalled when there is something to begin, or to stop for.
    ready: Condvar,
    /// The epoch whose tasks are wanted; what works on others gives up where it asks.
    wanted: Arc<AtomicU64>,
    threads: usize,
}

/// Bytes of stack of a thread, for work whose steps call one another (pipelines): virtual memory, which is taken as far as it is used.
pub(crate) const STACK: usize = 8 << 20;

/// No epoch.
const NONE: u64 = u64::MAX;

thread_local! {
    /// The epoch of the task at hand, and the one that is wanted.
    static WANTED: RefCell<Option<(u64, Arc<AtomicU64>)>> = const { RefCell::new(None) };
}

/// Whether anybody wants what this thread makes.
fn wanted() -> bool {
    WANTED.with_borrow(|wanted| {
        wanted
            .as_ref()
            .is_none_or(|(epoch, wanted)| wanted.load(Ordering::Relaxed) == *epoch)
    })
}

struct State<W: Work> {
    /// Tasks with parts to begin, oldest first.
    open: VecDeque<Open<W>>,
    lanes: Vec<Lane<W>>,
    epoch: u64,
    /// Threads that wait for work.
    idle: usize,
    stop: bool,
}

struct Open<W: Work> {
    flight: Arc<Flight<W>>,
    next: usize,
    total: usize,
}

/// A task with parts.
struct Flight<W: Work> {
    worker: usize,
    task: Task<W::Job>,
    progress: Mutex<Progress<W::Part>>,
}

struct Progress<P> {
    parts: Vec<Option<P>>,
    /// Parts that are not done.
    left: usize,
    /// A part that makes those behind it needless.
    end: Option<usize>,
}

struct Lane<W: Work> {
    tasks: VecDeque<Task<W::Job>>,
    busy: bool,
    kept: Option<W::Lane>,
}

/// What a thread does next.
enum Step<W: Work> {
    Parts(Arc<Flight<W>>, std::ops::Range<usize>),
    Lane(usize, Task<W::Job>, Option<W::Lane>),
    Stop,
}

impl<W: Work> Threads<W> {
    /// Starts the threads. Fails when the numbers are 0 or the system gives no thread.
    pub fn new(work: W, team: Team) -> Result<Self, Error> {
        let infos = (0..team.workers)
            .map(|id| WorkerInfo {
                id,
                workers: team.workers,
            })
            .collect();
        Self::with_workers(work, infos, team.in_flight)
    }

    /// The workers here, as they are seen from elsewhere.
    pub(crate) fn with_workers(work: W, infos: Vec<WorkerInfo>, in_flight: usize) -> Result<Self, Error> {
        let workers = infos.len();
        if workers == 0 || in_flight == 0 {
            return Err(Error::config(format!(
                "a pool of threads needs at least 1 worker and 1 sample in flight, got {workers} and {in_flight}"
            )));
        }
        let count = if W::PRIVATE {
            workers
        } else {
            workers.saturating_mul(in_flight)
        };
        let lane = || Lane {
            tasks: VecDeque::new(),
            busy: false,
            kept: None,
        };
        let state = State {
            open: VecDeque::new(),
            lanes: infos.iter().map(|_| lane()).collect(),
            epoch: 0,
            idle: 0,
            stop: false,
        };
        let shared = Arc::new(Shared {
            work,
            infos,
            state: Mutex::new(state),
            ready: Condvar::new(),
            wanted: Arc::default(),
            threads: count,
        });
        let (sender, events) = crossbeam_channel::unbounded();
        let mut pool = Self {
            shared,
            events,
            handles: Vec::with_capacity(count),
        };
        for number in 0..count {
            let (shared, sender) = (Arc::clone(&pool.shared), sender.clone());
            // If this fails, dropping `pool` ends those that were started.
            let thread = std::thread::Builder::new()
                .name(format!("feedrate-{number}"))
                .stack_size(STACK)
                .spawn(move || run(&shared, &sender))
                .map_err(|error| Error::system(format!("starting thread {number} of {count}"), error))?;
            pool.handles.push(thread);
        }
        Ok(pool)
    }
}

impl<W: Work> fmt::Debug for Threads<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("workers", &self.shared.infos.len())
            .field("threads", &self.handles.len())
            .finish_non_exhaustive()
    }
}

impl<W: Work> Drop for Threads<W> {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wanted.store(NONE, Ordering::Relaxed);
        self.shared.ready.notify_all();
        for thread in self.handles.drain(..) {
            // A thread's own panic was reported as an event.
            let _ = thread.join();
        }
    }
}

impl<W: Work> Pool for Threads<W> {
    type Job = W::Job;
    type Output = W::Output;
    type Error = Error;

    fn workers(&self) -> usize {
        self.shared.infos.len()
    }

    fn submit(&mut self, worker: usize, task: &Task<W::Job>) -> Result<(), Error> {
        let task = task.clone();
        let total = self.shared.work.parts(&task.job);
        let mut state = self.shared.lock();
        if W::PRIVATE {
            state.lanes[worker].tasks.push_back(task);
        } else {
            let progress = Progress {
                parts: std::iter::repeat_with(|| None).take(total).collect(),
                left: total,
                end: None,
            };
            let flight = Arc::new(Flight {
                worker,
                task,
                progress: Mutex::new(progress),
            });
            state.open.push_back(Open { flight, next: 0, total });
        }
        let idle = state.idle;
        drop(state);
        // Several samples may be begun at the same time; threads that find none go back to sleep.
        if idle > 0 {
            if total > 1 && idle > 1 {
                self.shared.ready.notify_all();
            } else {
                self.shared.ready.notify_one();
            }
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<W::Output>>) -> Result<(), Error> {
        let first = match timeout {
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeout) => self.events.recv_timeout(timeout),
        };
        let first = match first {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::bug("all worker threads have ended"));
            }
        };
        for message in std::iter::once(first).chain(self.events.try_iter()) {
            match message {
                Message::Event(event) => events.push(event),
                Message::Broken(panic) => {
                    return Err(Error::bug(format!("a worker thread panicked: {panic}")));
                }
            }
        }
        Ok(())
    }

    fn begin_epoch(&mut self, epoch: u64) -> Result<(), Error> {
        let mut state = self.shared.lock();
        state.epoch = epoch;
        self.shared.wanted.store(epoch, Ordering::Relaxed);
        // What was not begun is not wanted any more; what was begun ends unheard.
        let old = std::mem::take(&mut state.open);
        let lanes: Vec<_> = state
            .lanes
            .iter_mut()
            .map(|lane| (std::mem::take(&mut lane.tasks), lane.kept.take()))
            .collect();
        drop(state);
        // User code (dropping samples and streams) runs outside the lock.
        drop((old, lanes));
        for message in self.events.try_iter() {
            if let Message::Broken(panic) = message {
                return Err(Error::bug(format!("a worker thread panicked: {panic}")));
            }
        }
        Ok(())
    }

    fn revive(&mut self, _: usize, _: u64, _: Option<(u64, u64)>) -> Result<(), Error> {
        Err(Error::bug("a worker thread was reported as dead"))
    }

    fn retire(&mut self, worker: usize) -> Result<(), Error> {
        let mut state = self.shared.lock();
        let lane = &mut state.lanes[worker];
        let old = (std::mem::take(&mut lane.tasks), lane.kept.take());
        drop(state);
        drop(old);
        Ok(())
    }
}

impl<W: Work> Shared<W> {
    /// The lock cannot be poisoned by user code, which never runs under it.
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to do.
    fn step(&self) -> Step<W> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return Step::Stop;
            }
            if let Some(step) = self.pick(&mut state) {
                return step;
            }
            state.idle += 1;
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn pick(&self, state: &mut State<W>) -> Option<Step<W>> {
        if W::PRIVATE {
            let free = |lane: &Lane<W>| !lane.busy && !lane.tasks.is_empty();
            let worker = state.lanes.iter().position(free)?;
            let lane = &mut state.lanes[worker];
            let task = lane.tasks.pop_front()?;
            lane.busy = true;
            return Some(Step::Lane(worker, task, lane.kept.take()));
        }
        let open = state.open.front_mut()?;
        // Large pieces first, single samples at the end, so that the threads finish together.
        let left = open.total - open.next;
        let share = if self.threads == 1 {
            left
        } else {
            left / (2 * self.threads)
        };
        let piece = open.next..open.next + share.max(1).min(left);
        open.next = piece.end;
        let flight = Arc::clone(&open.flight);
        if open.next == open.total {
            state.open.pop_front();
        }
        Some(Step::Parts(flight, piece))
    }

    /// Does some parts, and the whole task if they were the last. Gives its output then.
    fn parts(&self, flight: &Flight<W>, piece: std::ops::Range<usize>) -> Option<Event<W::Output>> {
        let info = self.infos[flight.worker];
        let mut done = Vec::with_capacity(piece.len());
        let mut end = None;
        for at in piece.clone() {
            let part = self.work.part(info, &flight.task, at);
            let ends = self.work.ends(&part);
            done.push(part);
            if ends {
                end = Some(at);
                break;
            }
        }
        // Parts that will not be begun: the rest of this piece, and of the task.
        let mut skipped = piece.len() - done.len();
        if end.is_some() {
            skipped += self.close(flight);
        }
        let mut progress = flight.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.left -= done.len() + skipped;
        for (at, part) in piece.clone().zip(done) {
            progress.parts[at] = Some(part);
        }
        if let Some(end) = end {
            progress.end = Some(progress.end.map_or(end, |known| known.min(end)));
        }
        if progress.left > 0 {
            return None;
        }
        // Parts are begun in order, so that all before the first one that ends the task are there.
        let needed = progress.end.map_or(progress.parts.len(), |end| end + 1);
        let parts: Vec<_> = progress.parts.drain(..).take(needed).flatten().collect();
        drop(progress);
        let output = self.work.finish(info, &flight.task, parts, &mut None);
        Some(Event::of(flight.worker, &flight.task, output))
    }

    /// Takes a task's parts that nobody has begun out of the queue; gives their number.
    fn close(&self, flight: &Flight<W>) -> usize {
        let mut state = self.lock();
        let same = |open: &Open<W>| std::ptr::eq(Arc::as_ptr(&open.flight), flight);
        let Some(at) = state.open.iter().position(same) else {
            return 0;
        };
        state.open.remove(at).map_or(0, |open| open.total - open.next)
    }

    /// Does a task of a lane and reports it. Only then another thread may take the lane's next task, so that what a lane gives is
    /// reported in order.
    fn lane(&self, worker: usize, task: &Task<W::Job>, mut lane: Option<W::Lane>, events: &Sender<Message<W::Output>>) {
        let free = FreeLane(self, worker);
        WANTED.set(Some((task.epoch, Arc::clone(&self.wanted))));
        let finish = || self.work.finish(self.infos[worker], task, Vec::new(), &mut lane);
        let output = asking(wanted, finish);
        std::mem::forget(free);
        send(events, Event::of(worker, task, output));
        let mut state = self.lock();
        state.lanes[worker].busy = false;
        let more = !state.lanes[worker].tasks.is_empty();
        if state.epoch == task.epoch {
            state.lanes[worker].kept = lane.take();
        }
        drop(state);
        if more {
            self.ready.notify_one();
        }
    }
}

/// Has the lane of a task that unwinds taken up anew by the next one.
struct FreeLane<'a, W: Work>(&'a Shared<W>, usize);

impl<W: Work> Drop for FreeLane<'_, W> {
    fn drop(&mut self) {
        self.0.lock().lanes[self.1].busy = false;
    }
}

fn send<O>(events: &Sender<Message<O>>, event: Event<O>) {
    // The receiver is gone only while the pool is dropped, which also sets `stop`.
    let _ = events.send(Message::Event(event));
}

/// A thread's life. What unwinds ends the epoch, and not the thread: the next epoch has need of it.
fn run<W: Work>(shared: &Shared<W>, events: &Sender<Message<W::Output>>) {
    loop {
        let result = catch_unwind(AssertUnwindSafe(|| {
            match shared.step() {
                Step::Stop => return false,
                Step::Lane(worker, task, lane) => shared.lane(worker, &task, lane, events),
                Step::Parts(flight, piece) => {
                    if let Some(event) = shared.parts(&flight, piece) {
                        send(events, event);
                    }
                }
            }
            true
        }));
        match result {
            Ok(true) => {}
            Ok(false) => return,
            Err(payload) => drop(events.send(Message::Broken(Panic::from_payload(&*payload)))),
        }
    }
}
