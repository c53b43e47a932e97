//! A pool that is not there: workers with random latencies and deaths. No time passes but the simulation's own, and every run is
//! a function of its seed.

use std::collections::VecDeque;
use std::time::Duration;

use feedrate::deliver::Options;
use feedrate::plan::Task;
use feedrate::random::{Key, Keyed};
use feedrate::work::{Death, Event, Pool};

/// What a job does to its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) number: u64,
    /// Deaths that it brings about before it is done.
    pub(crate) kills: u32,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) queue: VecDeque<(u64, u64, Job)>,
    pub(crate) alive: bool,
    pub(crate) ready: bool,
    /// Steps until the first task is done.
    pub(crate) left: u64,
    /// Tasks of its stream that it still has, if it has one.
    pub(crate) stream: Option<u64>,
    pub(crate) retired: bool,
}

/// A pool whose workers do their tasks in order, with random latencies; it checks how it is used.
#[derive(Debug)]
pub(crate) struct Simulated {
    pub(crate) rng: Keyed,
    pub(crate) workers: Vec<Worker>,
    /// Deaths that each job still brings about.
    pub(crate) kills: std::collections::HashMap<u64, u32>,
    /// Chance of a death out of the blue, in a thousand for each look.
    pub(crate) random_deaths: u64,
    /// Deaths of workers before they are ready that are still to come.
    pub(crate) failing_starts: u32,
    pub(crate) streams: Option<Vec<u64>>,
    pub(crate) epoch: u64,
    pub(crate) submitted: usize,
    pub(crate) revived: u64,
    /// Replacements that still fail.
    pub(crate) refused_revivals: u32,
    /// Chance that a task is not taken, in a thousand.
    pub(crate) refused_sends: u64,
    /// Never finishes anything.
    pub(crate) stuck: bool,
}

impl Simulated {
    pub(crate) fn new(seed: u64, workers: usize) -> Self {
        let worker = || Worker {
            queue: VecDeque::new(),
            alive: true,
            ready: true,
            left: 0,
            stream: None,
            retired: false,
        };
        Self {
            rng: Key { seed, ..Key::default() }.stream(),
            workers: (0..workers).map(|_| worker()).collect(),
            kills: std::collections::HashMap::new(),
            random_deaths: 0,
            failing_starts: 0,
            streams: None,
            epoch: 0,
            submitted: 0,
            revived: 0,
            refused_revivals: 0,
            refused_sends: 0,
            stuck: false,
        }
    }

    fn die(&mut self, worker: usize, events: &mut Vec<Event<Job>>) {
        let member = &mut self.workers[worker];
        let death = Death {
            pid: Some(7),
            exit_code: None,
            signal: Some(9),
            ready: member.ready,
        };
        member.alive = false;
        member.queue.clear();
        events.push(Event::Died { worker, death });
    }

    pub(crate) fn step(&mut self, worker: usize, events: &mut Vec<Event<Job>>) {
        if !self.workers[worker].alive {
            return;
        }
        if !self.workers[worker].ready {
            if self.failing_starts > 0 {
                self.failing_starts -= 1;
                self.die(worker, events);
                return;
            }
            self.workers[worker].ready = true;
        }
        if self.rng.below(1000) < self.random_deaths {
            self.die(worker, events);
            return;
        }
        let next_latency = self.rng.below(6);
        let member = &mut self.workers[worker];
        let Some(&(epoch, position, job)) = member.queue.front() else {
            return;
        };
        if member.left > 0 {
            member.left -= 1;
            return;
        }
        if let Some(kills) = self.kills.get_mut(&job.number).filter(|kills| **kills > 0) {
            *kills -= 1;
            self.die(worker, events);
            return;
        }
        member.queue.pop_front();
        member.left = next_latency;
        if let Some(stream) = &mut member.stream {
            // The streams of an abandoned epoch are gone.
            if *stream == 0 || epoch != self.epoch {
                events.push(Event::Exhausted {
                    worker,
                    epoch,
                    position,
                });
                return;
            }
            *stream -= 1;
        }
        events.push(Event::Done {
            worker,
            epoch,
            position,
            output: job,
        });
    }
}

impl Pool for Simulated {
    type Job = Job;
    type Output = Job;
    type Error = String;

    fn workers(&self) -> usize {
        self.workers.len()
    }

    fn submit(&mut self, worker: usize, task: &Task<Job>) -> Result<(), String> {
        if self.refused_sends > 0 && self.rng.below(1000) < self.refused_sends {
            return Err("not now".to_owned());
        }
        self.submitted += 1;
        self.kills.entry(task.job.number).or_insert(task.job.kills);
        let member = &mut self.workers[worker];
        assert!(!member.retired, "a retired worker gets no task");
        if member.alive {
            member.queue.push_back((task.epoch, task.position, *task.job));
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<Job>>) -> Result<(), String> {
        if self.stuck {
            assert!(timeout.is_some(), "this would wait for ever");
            return Ok(());
        }
        for _ in 0..100_000 {
            // In a random order, so that completions of different workers mix.
            let mut order: Vec<usize> = (0..self.workers.len()).collect();
            self.rng.shuffle(&mut order);
            for worker in order {
                self.step(worker, events);
            }
            if !events.is_empty() {
                return Ok(());
            }
        }
        Err("nothing happens any more".to_owned())
    }

    fn begin_epoch(&mut self, epoch: u64) -> Result<(), String> {
        self.epoch = epoch;
        for (at, worker) in self.workers.iter_mut().enumerate() {
            worker.retired = false;
            worker.stream = self.streams.as_ref().map(|streams| streams[at]);
        }
        Ok(())
    }

    fn revive(&mut self, worker: usize, _: u64, _: Option<(u64, u64)>) -> Result<(), String> {
        let member = &mut self.workers[worker];
        assert!(!member.alive, "only a dead worker is replaced");
        if self.refused_revivals > 0 {
            self.refused_revivals -= 1;
            return Err("no process to be had".to_owned());
        }
        self.revived += 1;
        (member.alive, member.ready, member.left) = (true, false, 0);
        Ok(())
    }

    fn retire(&mut self, worker: usize) -> Result<(), String> {
        assert!(!self.workers[worker].retired, "a worker is retired once");
        self.workers[worker].retired = true;
        Ok(())
    }
}

pub(crate) fn options(window: usize) -> Options {
    Options {
        window,
        in_order: true,
        ahead: true,
        redo: true,
        pinned: false,
    }
}

pub(crate) type Plan = Box<dyn Iterator<Item = Result<Job, String>>>;

/// `count` jobs; `kills` says how many workers each ends.
pub(crate) fn plan(count: u64, kills: impl Fn(u64) -> u32 + 'static) -> Plan {
    Box::new((0..count).map(move |number| {
        Ok(Job {
            number,
            kills: kills(number),
        })
    }))
}
