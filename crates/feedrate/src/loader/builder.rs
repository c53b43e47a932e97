//! The arguments of a loader.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use feedrate_shm::LocalArena;

use super::resume::Resume;
use super::source::Cut;
use super::{AnyPool, DataLoader, MakePool, MapSource, Parts, Samples};
use crate::batch::Allocator;
use crate::dataset::{Context, Dataset};
use crate::deliver::Options;
use crate::error::{BoxError, Error};
use crate::sampler::Sampler;
use crate::state::State;
use crate::work::{Collate, Inline, Team, Threads};

/// Linux has no more than so many processes and threads in all (`PID_MAX_LIMIT`).
const MOST: usize = 1 << 22;

/// Unused memory that a loader keeps for its next batches.
const IDLE_BYTES: usize = 64 << 20;

/// The arguments of a [`DataLoader`]; nothing is checked or started before [`build`](Builder::build).
///
/// `S` is what samples come from, `B` what a batch is: a `Vec` of samples unless [`collate`](Builder::collate) makes something else
/// of them.
pub struct Builder<S: Samples, B> {
    pub(super) source: S,
    collate: Collate<S::Item, B>,
    cut: Cut,
    place: Place<B>,
    in_flight: usize,
    prefetch: Option<usize>,
    in_order: bool,
    redo: bool,
    timeout: Option<Duration>,
    seed: Option<u64>,
    allocator: Option<Arc<dyn Allocator>>,
    resume: Option<State>,
}

/// Makes a pool of processes, of what is known when the loader is built: workers, samples in flight, seed, `drop_last`.
type MakeProcesses<B> = Box<dyn FnOnce(usize, usize, u64, bool) -> Result<AnyPool<B>, Error> + Send>;

/// Where the work is done.
enum Place<B> {
    Inline,
    Threads(usize),
    #[cfg_attr(
        not(all(feature = "processes", target_os = "linux")),
        expect(dead_code, reason = "made by the feature `processes`, on Linux")
    )]
    Processes(usize, MakeProcesses<B>),
}

/// Batches that are planned ahead where nobody knows the end, for each worker.
const MOST_AHEAD: usize = 1024;

impl<S: Samples> Builder<S, Vec<S::Item>> {
    pub(super) fn over(source: S) -> Self {
        Self {
            source,
            collate: Arc::new(|samples, _| Ok(samples)),
            cut: Cut {
                batch_size: None,
                drop_last: false,
                unbatched: false,
            },
            place: Place::Inline,
            in_flight: 1,
            prefetch: None,
            in_order: true,
            redo: true,
            timeout: None,
            seed: None,
            allocator: None,
            resume: None,
        }
    }
}

impl<S: Samples, B: Send + 'static> Builder<S, B> {
    /// Samples in a batch; default 1.
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.cut.batch_size = Some(batch_size);
        self
    }

    /// Leaves out a last batch that is shorter than the others; for a stream, that of each worker.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.cut.drop_last = drop_last;
        self
    }

    /// Makes a batch of samples with `f`, in the worker. [`batch::stack`](crate::batch::stack) makes tensors of them. Call it before
    /// `processes`, which is about the batch that comes out.
    #[must_use]
    pub fn collate<C: Send + 'static>(
        self,
        f: impl Fn(Vec<S::Item>, &Context) -> Result<C, BoxError> + Send + Sync + 'static,
    ) -> Builder<S, C> {
        self.with_collate(Arc::new(f))
    }

    /// Gives single samples instead of batches.
    #[must_use]
    pub fn unbatched(self) -> Builder<S, S::Item> {
        let one = |mut samples: Vec<S::Item>, _: &Context| {
            samples.pop().ok_or_else(|| BoxError::from("a task without a sample"))
        };
        let mut builder = self.with_collate(Arc::new(one));
        builder.cut.unbatched = true;
        builder
    }

    fn with_collate<C: Send + 'static>(self, collate: Collate<S::Item, C>) -> Builder<S, C> {
        Builder {
            source: self.source,
            collate,
            cut: self.cut,
            place: match self.place {
                Place::Threads(workers) => Place::Threads(workers),
                Place::Inline | Place::Processes(..) => Place::Inline,
            },
            in_flight: self.in_flight,
            prefetch: self.prefetch,
            in_order: self.in_order,
            redo: self.redo,
            timeout: self.timeout,
            seed: self.seed,
            allocator: self.allocator,
            resume: self.resume,
        }
    }

    /// Works on the thread that iterates, when it asks for a batch. The default.
    #[must_use]
    pub fn inline(mut self) -> Self {
        self.place = Place::Inline;
        self
    }

    /// Works on `workers` threads of this process, at least 1. They share each batch, so that the first one comes early. Take as many
    /// as there are processors for work that computes; for work that waits see [`items_in_flight`](Builder::items_in_flight).
    #[must_use]
    pub fn threads(mut self, workers: usize) -> Self {
        self.place = Place::Threads(workers);
        self
    }

    /// Samples that each worker fetches at the same time, on threads inside it; default 1. For storage that answers slowly: take
    /// (samples wanted per second) × (seconds that one takes) / workers.
    #[must_use]
    pub fn items_in_flight(mut self, items: usize) -> Self {
        self.in_flight = items;
        self
    }

    /// Batches for each worker that are on their way or wait to be taken; default 2. Peak memory grows by this many batches for
    /// each worker. Of streams and pipelines, whose end is not known beforehand, 1,024 at most.
    #[must_use]
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = Some(batches);
        self
    }

    /// Whether batches come in the order of the plan (the default) or as they are done.
    #[must_use]
    pub fn in_order(mut self, in_order: bool) -> Self {
        self.in_order = in_order;
        self
    }

    /// Whether the tasks of a process that died are done again in a new one (the default). Streams cannot be.
    #[must_use]
    pub fn redo(mut self, redo: bool) -> Self {
        self.redo = redo;
        self
    }

    /// How long to wait for a batch before [`Error::Timeout`]; for ever by default. The work goes on, and the next call waits for the
    /// same batch.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Keys the shuffled order and the random numbers of the [`Context`]. Drawn from the system when it is not given.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Memory for batches, inline and in threads; by default that of batches which were let go, of which 64 MiB (or as much as is in
    /// use) is kept.
    #[must_use]
    pub fn allocator(mut self, allocator: impl Allocator + 'static) -> Self {
        self.allocator = Some(Arc::new(allocator));
        self
    }

    /// Goes on where a loader with the same data and sampler stood, see [`DataLoader::state`]: the first [`iter`](DataLoader::iter)
    /// gives the rest of that epoch, and no sample is loaded again. Workers, prefetch and where the work is done may be others; so may the
    /// batch size, where the sampler gives samples. The seed is that of the state. What cannot be exact is an
    /// [`Error::State`] from [`build`](Builder::build).
    #[must_use]
    pub fn resume(mut self, state: State) -> Self {
        self.resume = Some(state);
        self
    }

    /// Checks the arguments. Starts nothing.
    pub fn build(self) -> Result<DataLoader<B>, Error> {
        self.check()?;
        let mut prefetch = self.prefetch.unwrap_or(2);
        if S::SERIAL {
            // Nobody knows beforehand where these end: they would be planned for ever.
            prefetch = prefetch.min(MOST_AHEAD);
        }
        let (workers, ahead) = match self.place {
            Place::Inline => (1, false),
            Place::Threads(workers) | Place::Processes(workers, _) => (workers, true),
        };
        let options = Options {
            window: if ahead { workers.saturating_mul(prefetch) } else { 1 },
            in_order: self.in_order,
            ahead,
            redo: self.redo,
            pinned: S::STREAM,
        };
        let resume = self.resume.map(Resume::read).transpose()?;
        let seed = match &resume {
            Some(resume) => resume.seed(self.seed)?,
            None => self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()),
        };
        let allocator = self.allocator.unwrap_or_else(|| Arc::new(LocalArena::new(IDLE_BYTES)));
        let tail = self
            .source
            .tail(Arc::clone(&self.collate), Arc::clone(&allocator), seed);
        let work = self.source.work(self.collate, allocator, seed, &self.cut)?;
        let jobs = self.source.jobs(&self.cut, seed)?;
        let start = resume.map(|resume| resume.apply(&jobs, self.in_order)).transpose()?;
        let (in_flight, drop_last) = (self.in_flight, self.cut.drop_last);
        let pool: MakePool<B> = match self.place {
            Place::Inline => Box::new(move || Ok(Box::new(Inline::new(work)) as AnyPool<B>)),
            Place::Threads(workers) => {
                Box::new(move || Ok(Box::new(Threads::new(work, Team { workers, in_flight })?) as AnyPool<B>))
            }
            Place::Processes(workers, make) => Box::new(move || make(workers, in_flight, seed, drop_last)),
        };
        Ok(DataLoader::new(Parts {
            pool,
            jobs,
            options,
            timeout: self.timeout,
            seed,
            start: start.unwrap_or_default(),
            tail,
        }))
    }

    fn check(&self) -> Result<(), Error> {
        let inline = matches!(self.place, Place::Inline);
        if let Place::Threads(0) | Place::Processes(0, _) = self.place {
            return Err(Error::config(
                "0 workers were asked for: give at least 1, or call inline()",
            ));
        }
        if let Place::Threads(workers) | Place::Processes(workers, _) = self.place
            && workers.saturating_mul(self.in_flight) > MOST
        {
            return Err(Error::config(format!(
                "{workers} workers with {} samples in flight each were asked for: there can be {MOST} in all",
                self.in_flight
            )));
        }
        if self.in_flight == 0 || self.prefetch == Some(0) {
            return Err(Error::config(format!(
                "items_in_flight ({}) and prefetch ({}) must be at least 1",
                self.in_flight,
                self.prefetch.unwrap_or(2)
            )));
        }
        if inline && (self.timeout.is_some() || self.prefetch.is_some() || self.in_flight > 1) {
            return Err(Error::config(
                "timeout, prefetch and items_in_flight need workers, and this loader works inline: call threads(n), \
                 or leave them out",
            ));
        }
        if S::SERIAL && self.in_flight > 1 {
            return Err(Error::config(format!(
                "items_in_flight is {}, but a stream is drawn one sample at a time: leave it out, and use more workers",
                self.in_flight
            )));
        }
        if S::SERIAL && !S::STREAM && matches!(self.place, Place::Processes(..)) {
            return Err(Error::config(
                "a pipeline is read by threads of this process: call threads(n) or inline() instead of processes",
            ));
        }
        self.source.refuses(inline)?;
        if self.cut.unbatched && (self.cut.drop_last || self.cut.batch_size.is_some_and(|n| n != 1)) {
            return Err(Error::config(
                "unbatched() gives single samples: leave batch_size and drop_last out",
            ));
        }
        Ok(())
    }
}

#[cfg(all(feature = "processes", target_os = "linux"))]
impl<S: Samples, B: crate::batch::Transfer> Builder<S, B> {
    /// Works in `workers` processes, at least 1; each is this program, started again, and must call
    /// [`Workers::run`](crate::work::Workers::run). See [`work::processes`](crate::work::processes).
    #[must_use]
    pub fn processes(mut self, workers: usize, launch: crate::work::Launch) -> Self {
        let make = |workers, in_flight, seed, drop_last| {
            let pool = crate::work::Processes::new(launch, workers, in_flight, seed, drop_last)?;
            Ok(Box::new(pool) as AnyPool<B>)
        };
        self.place = Place::Processes(workers, Box::new(make));
        self
    }

    /// What a worker process does.
    pub(crate) fn into_work(
        self,
        allocator: Arc<dyn Allocator>,
        seed: u64,
        drop_last: bool,
    ) -> Result<S::Work<B>, Error> {
        let cut = Cut { drop_last, ..self.cut };
        self.source.work(self.collate, allocator, seed, &cut)
    }
}

impl<D: Dataset, B: Send + 'static> Builder<MapSource<D>, B> {
    /// A new random order for each epoch, which depends on the seed and the epoch alone: a keyed permutation
    /// ([`sampler::Shuffled`](crate::sampler::Shuffled)), which takes no memory and no time to begin, whatever the number of samples.
    /// For PyTorch's order see [`sampler::Random`](crate::sampler::Random).
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.source.shuffle = shuffle;
        self
    }

    /// The order of samples.
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler<Item = usize>) -> Self {
        self.source.sampler = Some(Box::new(sampler));
        self
    }

    /// The batches.
    #[must_use]
    pub fn batch_sampler(mut self, sampler: impl Sampler<Item = Vec<usize>>) -> Self {
        self.source.batch_sampler = Some(Box::new(sampler));
        self
    }
}

impl<S: Samples, B> fmt::Debug for Builder<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("cut", &self.cut)
            .field("in_order", &self.in_order)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
