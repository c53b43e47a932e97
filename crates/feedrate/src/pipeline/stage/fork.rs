//! `fork` and `route`: one stream, read once, for several readers.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Failure, Next, Opening, Origin, Place, Sample, Site, Stage, blamed};
use crate::batch::Value;
use crate::pipeline::function::{Call, Func};
use crate::pipeline::sample::to_text;
use crate::pipeline::step::Branch;
use crate::state::State;

/// Which trunk: the fork, the share that is read, and whether a cache lies behind.
type Name = (u64, u64, usize, u64, u64, bool);

/// The streams that branches opened together share.
#[derive(Clone, Default)]
pub(super) struct Trunks(Arc<Mutex<HashMap<Name, Weak<Mutex<Trunk>>>>>);

// Which branches were opened together says nothing about which share of which epoch is opened.
impl PartialEq for Trunks {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Trunks {}

impl fmt::Debug for Trunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trunks")
    }
}

/// An element that a branch has not taken yet.
struct Entry {
    place: Place,
    held: Held,
}

enum Held {
    /// Whether it is a collated batch as well: [`Sample::collated`].
    Value(Value, bool),
    /// It is made again when it is wanted.
    Place,
    /// There was a bad one here, which all branches hear of: they stay side by side.
    Bad(Failure),
}

/// The stream, and what each branch has not taken yet.
struct Trunk {
    stage: Box<dyn Stage>,
    label: String,
    /// Which branch an element is for; `None`: for all.
    by: Option<Func>,
    call: Call,
    /// `None`: nobody reads this branch here.
    waiting: Vec<Option<VecDeque<Entry>>>,
    ended: bool,
    /// Elements that a branch lags behind before only their places are kept.
    buffer: usize,
}

/// Elements that are made again at a time.
const RUN: usize = 64;

impl Trunk {
    fn open(site: &Site, branch: &Branch) -> Result<Self, Failure> {
        let mut waiting = Vec::new();
        waiting.resize_with(branch.of, || None);
        // What is between a branch and where it is read changes nothing of the stream: steps before the fork have numbers, and with it
        // random streams, of the fork's own, and the lanes' shares are those of the whole pipeline.
        let own = Opening {
            step: site.node().inputs[0].fingerprint() >> 1,
            block: site.opening.unit,
            ..site.opening.clone()
        };
        Ok(Self {
            stage: site.input_as(&own, 0, site.entry("input")?)?,
            label: site.label(),
            by: branch.by.clone(),
            call: own.call(),
            waiting,
            ended: site.flag("ended")?,
            buffer: branch.buffer,
        })
    }

    /// Reads one element for branch `at`, and puts it where it belongs.
    fn pull(&mut self, at: usize) -> Result<(), Failure> {
        let found = self.read();
        if let Err(failure) = &found
            && failure.may_continue
            // Nobody knows which branch of a route it was for.
            && self.by.is_none()
        {
            let others = self.waiting.iter_mut().enumerate().filter(|(other, _)| *other != at);
            for waiting in others.filter_map(|(_, waiting)| waiting.as_mut()) {
                waiting.push_back(Entry {
                    place: Place::nowhere(),
                    held: Held::Bad(failure.echo()),
                });
            }
        }
        found
    }

    fn read(&mut self) -> Result<(), Failure> {
        let Some(sample) = self.stage.next()? else {
            self.ended = true;
            return Ok(());
        };
        let Sample { value, place, collated } = sample;
        // As plain data, so that what one branch does to it is not seen by another.
        let value = match value.native() {
            Ok(value) => value,
            Err(error) => {
                let failure = Failure::element(&self.label, error);
                return Err(blamed(failure, &mut *self.stage, &place));
            }
        };
        let only = match self.chosen(&value, &place) {
            Ok(only) => only,
            Err(failure) => return Err(blamed(failure, &mut *self.stage, &place)),
        };
        for (at, waiting) in self.waiting.iter_mut().enumerate() {
            let Some(waiting) = waiting.as_mut().filter(|_| only.is_none_or(|only| only == at)) else {
                continue;
            };
            let held = if waiting.len() < self.buffer {
                Held::Value(value.clone(), collated)
            } else {
                Held::Place
            };
            waiting.push_back(Entry {
                place: place.clone(),
                held,
            });
        }
        Ok(())
    }

    fn chosen(&self, value: &Value, place: &Place) -> Result<Option<usize>, Failure> {
        let Some(by) = &self.by else { return Ok(None) };
        let call = Call {
            place: place.key(),
            ..self.call
        };
        let count = self.waiting.len();
        let failed = |error| Failure::element(&self.label, error);
        match by.map(value.clone(), &call).and_then(Value::native).map_err(failed)? {
            Value::Int(number) => match usize::try_from(number) {
                Ok(at) if at < count => Ok(Some(at)),
                _ => Err(failed(format!("an element is for branch {number} of {count}").into())),
            },
            other => Err(failed(
                format!("the branch of an element is {}, and not a number", other.kind()).into(),
            )),
        }
    }

    fn next(&mut self, at: usize) -> Next {
        loop {
            let Some(waiting) = &mut self.waiting[at] else {
                return Ok(None);
            };
            match waiting.pop_front() {
                Some(Entry {
                    held: Held::Value(value, collated),
                    place,
                }) => return Ok(Some(Sample { value, place, collated })),
                Some(Entry {
                    held: Held::Bad(failure),
                    ..
                }) => return Err(failure),
                Some(entry) => {
                    waiting.push_front(entry);
                    let run = waiting.iter().take(RUN);
                    let run = run.take_while(|entry| matches!(entry.held, Held::Place));
                    let places: Vec<Place> = run.map(|entry| entry.place.clone()).collect();
                    let made = match self.stage.again(&places) {
                        Ok(made) => made,
                        // One of them cannot be made any more: alone, so that it is known which.
                        Err(_) => match self.stage.again(&places[..1]) {
                            Ok(made) => made,
                            Err(failure) => {
                                waiting.pop_front();
                                return Err(failure);
                            }
                        },
                    };
                    for (entry, sample) in waiting.iter_mut().zip(made) {
                        let value = sample.value.native();
                        let value = value.map_err(|error| Failure::element(&self.label, error))?;
                        entry.held = Held::Value(value, sample.collated);
                    }
                }
                None if self.ended => return Ok(None),
                None => self.pull(at)?,
            }
        }
    }
}

pub(super) struct Branched {
    trunk: Arc<Mutex<Trunk>>,
    at: usize,
}

impl Branched {
    pub(super) fn open(site: &Site, branch: &Branch) -> Result<Self, Failure> {
        let opening = site.opening;
        // Whoever gives numbers may give one twice: what is forked has to be the same, too.
        let input = site.node().inputs[0].fingerprint();
        let name = (
            branch.fork,
            input,
            branch.of,
            opening.lane,
            opening.lanes,
            opening.frozen,
        );
        let trunks = opening.trunks.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = trunks.get(&name).and_then(Weak::upgrade);
        // A branch that is read twice has two trunks.
        let free = found.filter(|trunk| lock(trunk).waiting[branch.at].is_none());
        drop(trunks);
        let trunk = if let Some(trunk) = free {
            trunk
        } else {
            // Opened without the lock: there may be forks among what it reads from.
            let trunk = Arc::new(Mutex::new(Trunk::open(site, branch)?));
            let mut trunks = opening.trunks.0.lock().unwrap_or_else(PoisonError::into_inner);
            trunks.insert(name, Arc::downgrade(&trunk));
            trunk
        };
        let mut bad = site.failures("bad")?;
        let queue = site.places("queue")?.into_iter();
        let mut entry = |place| Entry {
            held: match (place == Place::nowhere()).then(|| bad.next()).flatten() {
                Some(failure) => Held::Bad(failure),
                None => Held::Place,
            },
            place,
        };
        let queue = queue.map(&mut entry).collect();
        lock(&trunk).waiting[branch.at] = Some(queue);
        Ok(Self { trunk, at: branch.at })
    }
}

fn lock(trunk: &Mutex<Trunk>) -> MutexGuard<'_, Trunk> {
    trunk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage for Branched {
    fn next(&mut self) -> Next {
        lock(&self.trunk).next(self.at)
    }

    fn cursor(&self) -> State {
        let trunk = lock(&self.trunk);
        let waiting = || trunk.waiting[self.at].iter().flatten();
        let bad = waiting().enumerate().filter_map(|(at, entry)| match &entry.held {
            Held::Bad(failure) => Some(failure.state(at)),
            _ => None,
        });
        let waiting = waiting().map(|entry| &entry.place);
        State::map([
            ("input", trunk.stage.cursor()),
            ("queue", to_text(waiting).into()),
            ("bad", State::List(bad.collect())),
            ("ended", State::Bool(trunk.ended)),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        lock(&self.trunk).stage.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        lock(&self.trunk).stage.again(places)
    }
}

impl Drop for Branched {
    fn drop(&mut self) {
        // Nothing more waits for it.
        lock(&self.trunk).waiting[self.at] = None;
    }
}

impl Opening {
    /// The same share, opened anew: nothing is shared with what was opened before.
    pub(in crate::pipeline) fn anew(&self) -> Self {
        Self {
            asked: (self.lane, self.lanes),
            trunks: Trunks::default(),
            // Its fields are anybody's.
            lanes: self.lanes.max(1),
            block: self.block.max(1),
            ..self.clone()
        }
    }
}
