//! The window: tasks that were sent and not yet delivered. Pure bookkeeping, no waiting and no I/O.

use std::collections::VecDeque;

use crate::plan::Task;
use crate::work::Death;

/// A worker that is gone and whose work could not, or was not allowed to, be done again.
#[derive(Debug)]
pub struct Lost<J> {
    /// The worker.
    pub worker: usize,
    /// How it ended.
    pub death: Death,
    /// Tasks that were with it, the one that it was doing first.
    pub tasks: Vec<Task<J>>,
    /// Whether a replacement was ended by the same task (or by its start) as well.
    pub twice: bool,
    /// Batches delivered in this epoch before the death was noticed.
    pub delivered: u64,
}

impl<J> Clone for Lost<J> {
    fn clone(&self) -> Self {
        Self {
            worker: self.worker,
            death: self.death.clone(),
            tasks: self.tasks.clone(),
            twice: self.twice,
            delivered: self.delivered,
        }
    }
}

/// How a delivery behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, each with its own meaning"
)]
pub struct Options {
    /// Largest number of tasks sent and not yet delivered. `num_workers * prefetch_factor` for pools that work ahead.
    pub window: usize,
    /// Deliver in plan order; otherwise as completed.
    pub in_order: bool,
    /// Whether the next task is planned as soon as a batch is handed over (workers run ahead) or only when the next batch is
    /// asked for (inline: nothing is planned that is not wanted).
    pub ahead: bool,
    /// Whether tasks of a dead worker are done again. When false, or when `pinned`, a death is a failure.
    pub redo: bool,
    /// Whether each worker owns a private stream (an opaque iterable), so that its tasks cannot move.
    pub pinned: bool,
}

#[derive(Debug)]
enum State<J, O> {
    /// With a worker.
    Sent,
    /// Came back, waits for its turn.
    Ready(O),
    /// Ended two workers; said when its turn comes.
    Lost(Lost<J>),
}

#[derive(Debug)]
struct Entry<J, O> {
    task: Task<J>,
    worker: usize,
    state: State<J, O>,
    deaths: u32,
}

#[derive(Debug)]
struct Worker {
    /// Positions with this worker, oldest first.
    queue: VecDeque<u64>,
    active: bool,
    completed: Option<(u64, u64)>,
    /// It may still be busy with a task of an abandoned epoch.
    stale: bool,
}

/// What is known of every task in flight.
#[derive(Debug)]
pub(super) struct Window<J, O> {
    options: Options,
    /// Sorted by position. Out of order, or when a stream has ended, positions are missing; what is delivered is not kept,
    /// so that one slow task does not make the list grow.
    entries: VecDeque<Entry<J, O>>,
    /// Position of the next task.
    next: u64,
    workers: Vec<Worker>,
    /// The worker that is asked first for the next task.
    turn: usize,
}

impl<J, O> Window<J, O> {
    pub(super) fn new(options: Options, workers: usize) -> Self {
        let worker = || Worker {
            queue: VecDeque::new(),
            active: true,
            completed: None,
            stale: false,
        };
        Self {
            options,
            entries: VecDeque::with_capacity(options.window.min(1024)),
            next: 0,
            workers: (0..workers).map(|_| worker()).collect(),
            turn: 0,
        }
    }

    /// Forgets all tasks; what workers still do for them is ignored when it arrives, by its epoch.
    /// `turn` gets the first task of what follows, and `position` is that of the task.
    pub(super) fn reset(&mut self, turn: usize, position: u64) {
        self.entries.clear();
        self.next = position;
        self.turn = turn % self.workers.len().max(1);
        for worker in &mut self.workers {
            worker.stale |= !worker.queue.is_empty();
            worker.queue.clear();
            worker.active = true;
        }
    }

    /// Whether another task may be sent, with `taken` batches handed out whose places are still theirs.
    pub(super) fn has_room(&self, taken: usize) -> bool {
        self.entries.len() + taken < self.options.window
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn next_position(&self) -> u64 {
        self.next
    }

    /// Whether any worker still takes tasks in this epoch.
    pub(super) fn any_active(&self) -> bool {
        self.workers.iter().any(|w| w.active)
    }

    /// Whether this worker still takes tasks in this epoch.
    pub(super) fn is_active(&self, worker: usize) -> bool {
        self.workers[worker].active
    }

    /// Whether [`pick`](Self::pick) would find a worker.
    pub(super) fn can_pick(&self) -> bool {
        let share = self.share();
        self.workers.iter().any(|w| self.takes(w, share))
    }

    /// Out of order, the largest number of tasks that one worker may have.
    fn share(&self) -> usize {
        let active = self.workers.iter().filter(|w| w.active).count();
        (self.options.window / active.max(1)).max(1)
    }

    fn takes(&self, worker: &Worker, share: usize) -> bool {
        worker.active && (self.options.in_order || worker.queue.len() < share)
    }

    /// The worker for the next task, by PyTorch's rule: round robin over the active workers; out of order, the first in turn
    /// that has less than its share. `None` when no worker can take one.
    pub(super) fn pick(&mut self) -> Option<usize> {
        let share = self.share();
        for _ in 0..self.workers.len() {
            let candidate = self.turn;
            self.turn = (self.turn + 1) % self.workers.len();
            if self.takes(&self.workers[candidate], share) {
                return Some(candidate);
            }
        }
        None
    }

    /// The worker of a route.
    pub(super) fn routed(&self, route: u64) -> usize {
        usize::try_from(route % self.workers.len().max(1) as u64).unwrap_or(0)
    }

    pub(super) fn sent(&mut self, worker: usize, task: Task<J>) {
        debug_assert_eq!(task.position, self.next);
        self.workers[worker].queue.push_back(task.position);
        self.next += 1;
        self.entries.push_back(Entry {
            task,
            worker,
            state: State::Sent,
            deaths: 0,
        });
    }

    /// A task came back. False when it is not one we wait for (an abandoned epoch, or a redone task that came twice).
    pub(super) fn done(&mut self, worker: usize, epoch: u64, position: u64, output: O) -> bool {
        let Some(entry) = self.entry(position) else {
            return false;
        };
        if entry.task.epoch != epoch || entry.worker != worker || !matches!(entry.state, State::Sent) {
            return false;
        }
        entry.state = State::Ready(output);
        self.leave(worker, epoch, position);
        true
    }

    /// A worker's stream ended at this task. False when the task is not one we wait for.
    pub(super) fn exhausted(&mut self, worker: usize, epoch: u64, position: u64) -> bool {
        let Some(entry) = self.entry(position) else {
            return false;
        };
        if entry.task.epoch != epoch || entry.worker != worker || !matches!(entry.state, State::Sent) {
            return false;
        }
        // Its later tasks will find the same end: nothing comes for them.
        self.workers[worker].stale = false;
        self.workers[worker].queue.clear();
        self.workers[worker].active = false;
        self.entries
            .retain(|e| e.worker != worker || !matches!(e.state, State::Sent));
        true
    }

    /// The next result to hand over, if it is there.
    pub(super) fn take(&mut self) -> Option<(u64, usize, Result<O, Lost<J>>)> {
        let settled = |e: &Entry<J, O>| !matches!(e.state, State::Sent);
        let at = if self.options.in_order {
            self.entries.front().filter(|e| settled(e)).map(|_| 0)
        } else {
            self.entries.iter().position(settled)
        }?;
        let entry = self.entries.remove(at)?;
        let result = match entry.state {
            State::Ready(output) => Ok(output),
            State::Lost(lost) => Err(lost),
            State::Sent => return None,
        };
        Some((entry.task.position, entry.worker, result))
    }

    /// The worker and position that the user waits for: the oldest task that is still with a worker.
    pub(super) fn awaited(&self) -> Option<(usize, u64)> {
        self.entries
            .iter()
            .find(|e| matches!(e.state, State::Sent))
            .map(|e| (e.worker, e.task.position))
    }

    /// What a dead worker leaves behind: its tasks, oldest first, and whether the one it was doing has now ended
    /// two workers.
    pub(super) fn died(&mut self, worker: usize, ready: bool) -> (Vec<Task<J>>, bool) {
        // Tasks are done in order: while an abandoned one may be under way, none of these is to blame.
        let begun = !std::mem::take(&mut self.workers[worker].stale);
        let queue: Vec<u64> = self.workers[worker].queue.iter().copied().collect();
        let mut twice = false;
        let mut tasks = Vec::with_capacity(queue.len());
        for (i, position) in queue.into_iter().enumerate() {
            if let Some(entry) = self.entry(position) {
                if i == 0 && ready && begun {
                    entry.deaths += 1;
                    twice = entry.deaths >= 2;
                }
                tasks.push(entry.task.clone());
            }
        }
        (tasks, twice)
    }

    /// Gives up the task that a dead worker was doing: its turn brings `lost`.
    pub(super) fn give_up(&mut self, worker: usize, lost: Lost<J>) {
        let Some(position) = self.workers[worker].queue.pop_front() else {
            return;
        };
        if let Some(entry) = self.entry(position) {
            entry.state = State::Lost(lost);
        }
    }

    pub(super) fn completed(&self, worker: usize) -> Option<(u64, u64)> {
        self.workers[worker].completed
    }

    pub(super) fn tasks_of(&self, worker: usize) -> Vec<Task<J>> {
        let queue = &self.workers[worker].queue;
        self.entries
            .iter()
            .filter(|e| queue.contains(&e.task.position))
            .map(|e| e.task.clone())
            .collect()
    }

    pub(super) fn note_completed(&mut self, worker: usize, epoch: u64, position: u64) {
        self.workers[worker].completed = Some((epoch, position));
    }

    fn entry(&mut self, position: u64) -> Option<&mut Entry<J, O>> {
        let at = self.entries.binary_search_by_key(&position, |e| e.task.position).ok()?;
        self.entries.get_mut(at)
    }

    fn leave(&mut self, worker: usize, epoch: u64, position: u64) {
        let worker = &mut self.workers[worker];
        worker.completed = Some((epoch, position));
        worker.stale = false;
        if worker.queue.front() == Some(&position) {
            worker.queue.pop_front();
        } else {
            worker.queue.retain(|p| *p != position);
        }
    }
}
