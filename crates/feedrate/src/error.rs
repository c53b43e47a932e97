//! What can go wrong, by what the caller can do about it.

use std::fmt::{self, Write as _};
use std::time::Duration;

/// Any error of user code: what datasets, samplers and collate functions return.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no batch, or no loader.
///
/// The kinds say what the caller can do; [`source`](std::error::Error::source) says what happened. After an error for which
/// [`may_continue`](Error::may_continue) holds, the epoch goes on with the next batch.
///
/// ```
/// use feedrate::{DataLoader, dataset};
///
/// let source = dataset::from_fn(3, |i| if i == 1 { Err("a bad file".into()) } else { Ok(i) });
/// let mut loader = DataLoader::builder(source).build()?;
/// let mut seen = Vec::new();
/// for batch in loader.iter()? {
///     match batch {
///         Ok(batch) => seen.extend(batch),
///         Err(error) if error.is_data() => assert_eq!(error.indices(), [1]),
///         Err(error) => return Err(error),
///     }
/// }
/// assert_eq!(seen, [0, 2]);
/// # Ok::<(), feedrate::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments do not fit together; the message says which, and what would.
    #[error("{message}")]
    Config {
        /// Both sides and the fix.
        message: String,
    },

    /// A state cannot be taken up exactly, or is none; the message has both values and the fix.
    #[error("the state does not fit: {message}")]
    State {
        /// Both sides and the fix.
        message: String,
    },

    /// The dataset could not give a sample.
    #[error("sample {index} of batch {position} failed in worker {worker}{}: {source}", panicked(*.panic))]
    Sample {
        /// The sample's index in the dataset; for a stream, how many samples its worker had drawn before.
        index: usize,
        /// The batch's position in the epoch.
        position: u64,
        /// The worker that tried.
        worker: usize,
        /// Whether user code panicked instead of returning an error.
        panic: bool,
        /// What the dataset said.
        source: BoxError,
    },

    /// The samples were there, and could not be made into a batch.
    #[error(
        "batch {position} (samples {}) could not be collated in worker {worker}{}: {source}",
        Indices(.indices), panicked(*.panic)
    )]
    Collate {
        /// The samples' indices in the dataset; empty for a stream.
        indices: Vec<usize>,
        /// The batch's position in the epoch.
        position: u64,
        /// The worker that tried.
        worker: usize,
        /// Whether user code panicked instead of returning an error.
        panic: bool,
        /// What the collate function said.
        source: BoxError,
    },

    /// The sampler failed; everything that it gave before has been delivered.
    #[error("the sampler failed{}: {source}", panicked(*.panic))]
    Sampler {
        /// Whether user code panicked instead of returning an error.
        panic: bool,
        /// What the sampler said.
        source: BoxError,
    },

    /// A worker is gone and its work could not be done again.
    #[error("{}", died(.0))]
    WorkerDied(Box<WorkerDeath>),

    /// Nothing arrived within the timeout. The next call waits for the same batch again.
    #[error(
        "no batch within {after:?}: worker {worker} is still busy with samples {}; raise the timeout, or look at \
         what makes these samples slow",
        Indices(.indices)
    )]
    Timeout {
        /// The worker that has the awaited task.
        worker: usize,
        /// Samples of the task that it works on; empty for a stream.
        indices: Vec<usize>,
        /// The timeout that has passed.
        after: Duration,
    },

    /// The system refused something that the pool needs: a thread, a process, memory.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: BoxError,
    },

    /// A mistake of this library, not of the caller. Please report it.
    #[error("feedrate has a bug; this epoch cannot go on: {message}")]
    Bug {
        /// What was found.
        message: String,
    },
}

/// How a worker was lost for good.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerDeath {
    /// The worker.
    pub worker: usize,
    /// Its process id.
    pub pid: Option<u32>,
    /// Its exit code, if it exited.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Samples of the task that it was doing; empty for a stream or an idle worker.
    pub indices: Vec<usize>,
    /// Whether it had become ready; if not, its start is to blame and not a sample.
    pub ready: bool,
    /// Whether its replacement ended in the same way.
    pub twice: bool,
    /// Batches delivered in this epoch before the death was noticed.
    pub delivered: u64,
    /// What the worker said before it ended, or a hint (a memory limit).
    pub note: Option<String>,
}

impl Error {
    /// An [`Error::Config`].
    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::Config {
            message: message.into(),
        }
    }

    /// An [`Error::State`]; for samplers of your own too.
    pub fn state(message: impl Into<String>) -> Self {
        Self::State {
            message: message.into(),
        }
    }

    /// An [`Error::System`].
    pub(crate) fn system(doing: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::System {
            doing: doing.into(),
            source: source.into(),
        }
    }

    /// An [`Error::Bug`].
    pub(crate) fn bug(message: impl Into<String>) -> Self {
        Self::Bug {
            message: message.into(),
        }
    }

    /// Whether a sample or a batch is at fault: [`Sample`](Error::Sample) and [`Collate`](Error::Collate).
    pub fn is_data(&self) -> bool {
        matches!(self, Self::Sample { .. } | Self::Collate { .. })
    }

    /// Whether the arguments are at fault.
    pub fn is_config(&self) -> bool {
        matches!(self, Self::Config { .. })
    }

    /// Whether a state was refused.
    pub fn is_state(&self) -> bool {
        matches!(self, Self::State { .. })
    }

    /// Whether a worker was lost.
    pub fn is_worker_died(&self) -> bool {
        matches!(self, Self::WorkerDied(_))
    }

    /// Whether the timeout has passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// Whether the same iterator can be asked for the next batch. The batch of this error is lost, except after a
    /// [`Timeout`](Error::Timeout), which waits for it again.
    pub fn may_continue(&self) -> bool {
        match self {
            Self::WorkerDied(death) => death.ready && death.twice && !death.indices.is_empty(),
            Self::Sample { .. } | Self::Collate { .. } | Self::Sampler { .. } | Self::Timeout { .. } => true,
            Self::Config { .. } | Self::State { .. } | Self::System { .. } | Self::Bug { .. } => false,
        }
    }

    /// The dataset indices that the error is about; empty where none are known.
    pub fn indices(&self) -> &[usize] {
        match self {
            Self::Sample { index, .. } => std::slice::from_ref(index),
            Self::Collate { indices, .. } | Self::Timeout { indices, .. } => indices,
            Self::WorkerDied(death) => &death.indices,
            Self::Config { .. }
            | Self::State { .. }
            | Self::Sampler { .. }
            | Self::System { .. }
            | Self::Bug { .. } => &[],
        }
    }

    /// The worker that the error is about, if it is about one.
    pub fn worker(&self) -> Option<usize> {
        match self {
            Self::Sample { worker, .. } | Self::Collate { worker, .. } | Self::Timeout { worker, .. } => Some(*worker),
            Self::WorkerDied(death) => Some(death.worker),
            Self::Config { .. }
            | Self::State { .. }
            | Self::Sampler { .. }
            | Self::System { .. }
            | Self::Bug { .. } => None,
        }
    }
}

/// A panic of user code as an error, with its message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Panic(pub String);

impl Panic {
    /// Takes the message out of what `catch_unwind` gives.
    pub(crate) fn from_payload(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| payload.downcast_ref::<String>().cloned());
        Self(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    }
}

fn panicked(panic: bool) -> &'static str {
    if panic { " with a panic" } else { "" }
}

/// Shows at most eight indices.
struct Indices<'a>(&'a [usize]);

impl fmt::Display for Indices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        if self.0.is_empty() {
            return f.write_str("of a stream");
        }
        for (i, index) in self.0.iter().take(SHOWN).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{index}")?;
        }
        match self.0.len().checked_sub(SHOWN) {
            Some(more) if more > 0 => write!(f, " and {more} more"),
            _ => Ok(()),
        }
    }
}

fn died(death: &WorkerDeath) -> String {
    let mut text = format!("worker {}", death.worker);
    if let Some(pid) = death.pid {
        let _ = write!(text, " (pid {pid})");
    }
    match (death.signal, death.exit_code) {
        (Some(signal), _) => {
            let _ = write!(text, " was killed by signal {signal}");
        }
        (None, Some(code)) => {
            let _ = write!(text, " exited with code {code}");
        }
        (None, None) => text.push_str(" is gone"),
    }
    if !death.ready {
        text.push_str(" before it was ready");
    } else if !death.indices.is_empty() {
        let _ = write!(text, " while it worked on samples {}", Indices(&death.indices));
    }
    if death.twice {
        text.push_str(", and so did its replacement");
    }
    let _ = write!(text, "; {} batches had been delivered", death.delivered);
    if let Some(note) = &death.note {
        let _ = write!(text, ". {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_both_sides() {
        let error = Error::Sample {
            index: 7,
            position: 2,
            worker: 1,
            panic: true,
            source: "no such file".into(),
        };
        assert_eq!(
            error.to_string(),
            "sample 7 of batch 2 failed in worker 1 with a panic: no such file"
        );
        assert!(error.is_data() && error.may_continue() && !error.is_config());

        let death = WorkerDeath {
            worker: 3,
            pid: Some(41),
            exit_code: None,
            signal: Some(9),
            indices: (0..10).collect(),
            ready: true,
            twice: true,
            delivered: 5,
            note: Some("The memory limit is 64 MiB.".to_owned()),
        };
        let error = Error::WorkerDied(Box::new(death));
        assert_eq!(
            error.to_string(),
            "worker 3 (pid 41) was killed by signal 9 while it worked on samples 0, 1, 2, 3, 4, 5, 6, 7 and 2 \
             more, and so did its replacement; 5 batches had been delivered. The memory limit is 64 MiB."
        );
        assert!(error.is_worker_died() && error.may_continue());
        assert_eq!(error.worker(), Some(3));
    }

    #[test]
    fn a_panic_keeps_its_message() {
        let caught = std::panic::catch_unwind(|| panic!("at {}", 5)).unwrap_err();
        assert_eq!(Panic::from_payload(&*caught).0, "at 5");
        let caught = std::panic::catch_unwind(|| std::panic::panic_any(5_u8)).unwrap_err();
        assert_eq!(Panic::from_payload(&*caught).0, "a panic without a message");
    }
}
