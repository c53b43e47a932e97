//! Steps that run what lies before them in threads of their own.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::join::{by_branch, number};
use super::{Failure, Next, Origin, Place, Sample, Site, Stage};
use crate::asking;
use crate::pipeline::sample::to_text;
use crate::state::State;
use crate::work::STACK;

/// How often who waits looks whether to give up.
const LOOK: Duration = Duration::from_millis(20);

/// Tells a consumer that something was put into one of its queues.
#[derive(Default)]
struct Signal {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    fn seen(&self) -> u64 {
        *lock(&self.count)
    }

    fn raise(&self) {
        *lock(&self.count) += 1;
        self.changed.notify_all();
    }

    /// Waits until something has come since `seen`. False when who waits is to give up.
    fn wait(&self, seen: u64) -> bool {
        let mut count = lock(&self.count);
        while *count == seen {
            let (woken, _) = self
                .changed
                .wait_timeout(count, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
            drop(woken);
            // Without the lock: a handler of the user's may run.
            if !asking::go_on_now() {
                return false;
            }
            count = lock(&self.count);
        }
        true
    }
}

/// A failure that waits to be reported.
struct Failed {
    failure: Failure,
    /// Where its element is made from, if that was known: who goes on from there finds out anew.
    before: Option<State>,
}

/// A cursor that is heavier than this, in bytes, is taken before one element in as many as it has times so many.
const LIGHT: usize = 2048;

#[derive(Default)]
struct Queue {
    ready: VecDeque<Result<Sample, Failed>>,
    /// Nothing more will come.
    ended: bool,
    running: bool,
}

/// What a thread and its consumer share. Whoever needs both locks takes the stage's first.
struct Shared {
    stage: Mutex<Box<dyn Stage>>,
    queue: Mutex<Queue>,
    room: Condvar,
    signal: Arc<Signal>,
    limit: usize,
    label: String,
    /// Nobody wants more. Set with the queue's lock, for who waits for room.
    halted: AtomicBool,
    /// The process whose thread it is: a fork's child has none.
    owner: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process that has started such a thread last.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// All that may run.
static LIVE: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Ends all threads that run pipelines ahead (`prefetch`, `ready`), for the end of an interpreter whose functions they call. Waits until
/// they have made the element at hand, for `patience` at most; then `hurry` is called, which may do something about those that have not,
/// and they have `patience` again. Whoever is stuck is left alone. Inside of [`asking`](crate::pipeline::asking), it asks meanwhile
/// whether to go on. What they feed ends.
pub fn stop_ahead(patience: Duration, hurry: impl FnOnce()) {
    if STARTED.load(Ordering::Relaxed) != std::process::id() {
        // A fork's child: its locks may be held by threads that it does not have.
        return;
    }
    let live: Vec<_> = std::mem::take(&mut *lock(&LIVE));
    let live: Vec<_> = live.iter().filter_map(Weak::upgrade).collect();
    for shared in &live {
        shared.stop();
    }
    let mut hurry = Some(hurry);
    let mut begun = Instant::now();
    for shared in live {
        let mut queue = lock(&shared.queue);
        while queue.running && shared.owner == std::process::id() {
            let left = patience.saturating_sub(begun.elapsed());
            drop(queue);
            if !asking::go_on_now() {
                return;
            }
            if left.is_zero() {
                let Some(hurry) = hurry.take() else { return };
                hurry();
                begun = Instant::now();
            }
            queue = lock(&shared.queue);
            if queue.running {
                let woken = shared.room.wait_timeout(queue, left.min(LOOK));
                queue = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

thread_local! {
    /// Whose elements this thread makes.
    static MAKES: RefCell<Weak<Shared>> = const { RefCell::new(Weak::new()) };
}

/// Whether anybody wants what this thread makes.
fn wanted() -> bool {
    MAKES.with_borrow(|shared| shared.upgrade().is_none_or(|shared| !shared.halted()))
}

impl Shared {
    fn halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        let queue = lock(&self.queue);
        self.halted.store(true, Ordering::Relaxed);
        drop(queue);
        self.room.notify_all();
        self.signal.raise();
    }

    /// The thread: makes elements until there is no room, the end, or nobody who wants more.
    fn run(&self) {
        // Elements until a cursor is taken again.
        let mut quiet = 0;
        loop {
            let mut queue = lock(&self.queue);
            while queue.ready.len() >= self.limit && !self.halted() {
                queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if self.halted() {
                queue.ended = true;
                break;
            }
            drop(queue);
            let mut stage = lock(&self.stage);
            let before = if quiet == 0 { Some(stage.cursor()) } else { None };
            quiet = before.as_ref().map_or(quiet, |before| before.weight() / LIGHT + 1) - 1;
            let next = AssertUnwindSafe(|| asking::asking(wanted, || stage.next()));
            let found = catch_unwind(next).unwrap_or_else(|panic| {
                let message = crate::error::Panic::from_payload(&*panic);
                Err(Failure::fatal(&self.label, format!("panicked: {message}")))
            });
            let mut queue = lock(&self.queue);
            match found {
                // It may be because of that.
                Err(_) if self.halted() => queue.ended = true,
                Ok(Some(sample)) => queue.ready.push_back(Ok(sample)),
                Ok(None) => queue.ended = true,
                Err(failure) => {
                    queue.ended = !failure.may_continue;
                    queue.ready.push_back(Err(Failed { failure, before }));
                }
            }
            let ended = queue.ended;
            drop(queue);
            drop(stage);
            self.signal.raise();
            if ended {
                break;
            }
        }
    }

    /// The thread has ended, or was never there.
    fn gone(&self) {
        lock(&self.queue).running = false;
        self.room.notify_all();
        self.signal.raise();
    }
}

/// What a thread that runs a pipeline ahead does all its work in.
type Around = fn(&mut (dyn FnMut() + Send));

static AROUND: OnceLock<Around> = OnceLock::new();

/// Has threads that run pipelines ahead (`prefetch`, `ready`) do their work inside of this, which has to call what it gets: for an
/// interpreter that wants to know of its threads once, and not with each function that they call. Only the first one counts.
pub fn around_threads(around: Around) {
    let _ = AROUND.set(around);
}

/// What can be had without waiting.
enum Taken {
    Found(Sample),
    NotYet,
    End,
}

/// A stage that a thread runs ahead of its consumer.
struct Ahead {
    shared: Arc<Shared>,
    started: bool,
}

impl Ahead {
    fn new(
        stage: Box<dyn Stage>,
        limit: usize,
        label: String,
        cursor: Option<&State>,
        signal: Arc<Signal>,
    ) -> Result<Self, Failure> {
        let mut stage = stage;
        let mut queue = Queue::default();
        if let Some(cursor) = cursor {
            let places = crate::pipeline::sample::from_text(cursor.text("queue")?)?;
            queue.ready = stage.again(&places)?.into_iter().map(Ok).collect();
            for failed in cursor.list("failed")? {
                let at = usize::try_from(failed.number("at")?).unwrap_or(usize::MAX);
                let waiting = Failed {
                    failure: Failure::of_state(failed)?,
                    before: None,
                };
                queue.ready.insert(at.min(queue.ready.len()), Err(waiting));
            }
            queue.ended = cursor.get("ended") == Some(&State::Bool(true));
        }
        let shared = Arc::new(Shared {
            stage: Mutex::new(stage),
            queue: Mutex::new(queue),
            room: Condvar::new(),
            signal,
            limit: limit.max(1),
            label,
            owner: std::process::id(),
            halted: AtomicBool::new(false),
        });
        Ok(Self { shared, started: false })
    }

    /// The thread starts when it is first asked, so that opening costs nothing.
    fn start(&mut self) -> Result<(), Failure> {
        if self.started {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        self.started = true;
        if lock(&shared.queue).ended {
            return Ok(());
        }
        lock(&shared.queue).running = true;
        STARTED.store(shared.owner, Ordering::Relaxed);
        {
            let mut live = lock(&LIVE);
            live.retain(|have| have.strong_count() > 0);
            live.push(Arc::downgrade(&shared));
        }
        let run = Arc::clone(&shared);
        let spawned = thread::Builder::new()
            .name("feedrate-ahead".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                MAKES.set(Arc::downgrade(&run));
                match AROUND.get() {
                    Some(around) => around(&mut || run.run()),
                    None => run.run(),
                }
                run.gone();
            });
        if let Err(error) = spawned {
            shared.gone();
            return Err(Failure::fatal(
                &shared.label,
                format!("no thread could be started: {error}"),
            ));
        }
        Ok(())
    }

    /// Refuses a fork's child: the thread is in another process, and holds locks here for ever.
    fn own(&self) -> Result<(), Failure> {
        if self.shared.owner == std::process::id() {
            return Ok(());
        }
        let message = "it was begun in the process that this one was forked from: begin it again here";
        Err(Failure::fatal(&self.shared.label, message))
    }

    fn take(&mut self) -> Result<Taken, Failure> {
        self.start()?;
        let shared = &self.shared;
        let mut queue = lock(&shared.queue);
        let found = queue.ready.pop_front();
        let over = queue.ended && queue.ready.is_empty();
        drop(queue);
        shared.room.notify_all();
        match found {
            Some(Ok(sample)) => Ok(Taken::Found(sample)),
            Some(Err(failed)) => Err(failed.failure),
            None if over => Ok(Taken::End),
            None => Ok(Taken::NotYet),
        }
    }

    fn cursor(&self) -> State {
        if self.own().is_err() {
            // A thread that is not here may hold the locks for ever. Who takes it up is told.
            return State::map([("forked", State::Bool(true))]);
        }
        let stage = lock(&self.shared.stage);
        let queue = lock(&self.shared.queue);
        // What failed is tried again, and what lies behind it comes again.
        let known = |found: &Result<Sample, Failed>| found.as_ref().err().and_then(|failed| failed.before.clone());
        let again = queue
            .ready
            .iter()
            .enumerate()
            .find_map(|(at, found)| Some((at, known(found)?)));
        let kept = again.as_ref().map_or(queue.ready.len(), |(at, _)| *at);
        let ready = || queue.ready.iter().take(kept);
        let places = ready().filter_map(|found| found.as_ref().ok());
        let failed = ready().enumerate();
        let failed = failed.filter_map(|(at, found)| found.as_ref().err().map(|failed| failed.failure.state(at)));
        let ended = again.is_none() && queue.ended && !self.shared.halted();
        State::map([
            ("queue", to_text(places.map(|sample| &sample.place)).into()),
            ("failed", State::List(failed.collect())),
            ("ended", State::Bool(ended)),
            ("input", again.map_or_else(|| stage.cursor(), |(_, before)| before)),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.own().ok()?;
        lock(&self.shared.stage).origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.own()?;
        lock(&self.shared.stage).again(places)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // Not joined: the thread may wait for an interpreter's lock that this one holds. It ends after the element at hand.
        if self.own().is_ok() {
            self.shared.stop();
        }
    }
}

/// Refuses what [`Ahead::cursor`] gives in a fork's child.
fn known(label: &str, cursor: Option<&State>) -> Result<(), Failure> {
    if cursor.is_none_or(|cursor| cursor.get("forked").is_none()) {
        return Ok(());
    }
    let message = "the state was taken in a fork of the process whose thread runs ahead, and says nothing: take it in that process";
    Err(Failure::fatal(label, message))
}

/// `prefetch`: so many elements are made ahead by another thread.
pub(super) struct Prefetched(Ahead);

impl Prefetched {
    pub(super) fn open(site: &Site, count: usize) -> Result<Self, Failure> {
        known(&site.label(), site.cursor)?;
        let input = site.input()?;
        Ahead::new(input, count, site.label(), site.cursor, Arc::default()).map(Self)
    }
}

impl Stage for Prefetched {
    fn next(&mut self) -> Next {
        self.0.own()?;
        loop {
            let seen = self.0.shared.signal.seen();
            match self.0.take()? {
                Taken::Found(sample) => return Ok(Some(sample)),
                Taken::End => return Ok(None),
                Taken::NotYet => {
                    if !self.0.shared.signal.wait(seen) {
                        return Err(Failure::fatal(&self.0.shared.label, "interrupted"));
                    }
                }
            }
        }
    }

    fn cursor(&self) -> State {
        self.0.cursor()
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.0.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.0.again(places)
    }
}

/// `ready`: elements of several streams, each run by a thread, whichever has one first.
pub(super) struct Ready {
    inputs: Vec<Ahead>,
    signal: Arc<Signal>,
    label: String,
    /// Who is asked first.
    turn: usize,
}

impl Ready {
    pub(super) fn open(site: &Site, count: usize) -> Result<Self, Failure> {
        let signal = Arc::new(Signal::default());
        let many = site.node().inputs.len();
        let saved = match site.cursor {
            Some(cursor) => Some(cursor.list("streams")?),
            None => None,
        };
        if let Some(saved) = saved
            && saved.len() != many
        {
            let message = format!("the state has {} streams, the pipeline has {many}", saved.len());
            return Err(Failure::fatal(site.label(), message));
        }
        let mut inputs = Vec::with_capacity(many);
        for at in 0..many {
            let cursor = saved.map(|saved| &saved[at]);
            known(&site.label(), cursor)?;
            let inner = cursor.map(|cursor| cursor.entry("input")).transpose()?;
            let stage = site.input_as(site.opening, at, inner)?;
            inputs.push(Ahead::new(stage, count, site.label(), cursor, Arc::clone(&signal))?);
        }
        Ok(Self {
            inputs,
            signal,
            label: site.label(),
            turn: 0,
        })
    }
}

impl Stage for Ready {
    fn next(&mut self) -> Next {
        self.inputs.iter().try_for_each(Ahead::own)?;
        loop {
            let seen = self.signal.seen();
            let mut over = true;
            for step in 0..self.inputs.len() {
                let at = (self.turn + step) % self.inputs.len();
                match self.inputs[at].take()? {
                    Taken::Found(sample) => {
                        self.turn = at + 1;
                        return Ok(Some(sample.within(number(at))));
                    }
                    Taken::NotYet => over = false,
                    Taken::End => {}
                }
            }
            if over {
                return Ok(None);
            }
            if !self.signal.wait(seen) {
                return Err(Failure::fatal(&self.label, "interrupted"));
            }
        }
    }

    fn cursor(&self) -> State {
        let streams = self.inputs.iter().map(Ahead::cursor).collect();
        State::map([("streams", State::List(streams))])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        let Place::Child(inner, branch) = place else {
            return None;
        };
        self.inputs.get_mut(*branch as usize)?.origin(inner)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let inputs = &mut self.inputs;
        by_branch(inputs.len(), &self.label, places, |at, inner| inputs[at].again(inner))
    }
}
