//! An epoch for asynchronous code.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use futures_core::{FusedStream, Stream};

use super::{DataLoader, Epoch};
use crate::error::Error;

/// Where a batch passes from the thread that waits for it to the task that wants it.
enum Slot<B> {
    /// Nobody has asked.
    Idle,
    /// Asked for; this task is woken when it is there.
    Wanted(Waker),
    Ready(Result<B, Error>),
    /// Nothing more comes, or nobody wants more.
    Over,
}

struct Shared<B> {
    slot: Mutex<Slot<B>>,
    changed: Condvar,
}

/// Gives the task of a thread that unwinds an error, so that it does not wait for ever, nor takes it for the end.
struct TellPanic<'a, B>(&'a Shared<B>);

impl<B> Drop for TellPanic<'_, B> {
    fn drop(&mut self) {
        let mut slot = self.0.lock();
        if let Slot::Wanted(waker) = &*slot {
            let waker = waker.clone();
            *slot = Slot::Ready(Err(Error::bug(
                "the thread of a stream panicked while it waited for a batch (its message is on stderr)",
            )));
            drop(slot);
            waker.wake();
        }
    }
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, Slot<B>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: hands over a batch whenever one is wanted.
    fn serve(&self, mut epoch: Epoch<'_, B>) {
        loop {
            let mut slot = self.lock();
            while matches!(*slot, Slot::Idle | Slot::Ready(_)) {
                slot = self.changed.wait(slot).unwrap_or_else(PoisonError::into_inner);
            }
            if matches!(*slot, Slot::Over) {
                return;
            }
            drop(slot);
            let telling = TellPanic(self);
            let found = epoch.next();
            std::mem::forget(telling);
            let ended = found.is_none();
            let mut slot = self.lock();
            if matches!(*slot, Slot::Over) {
                return;
            }
            let before = std::mem::replace(&mut *slot, found.map_or(Slot::Over, Slot::Ready));
            drop(slot);
            if let Slot::Wanted(waker) = before {
                waker.wake();
            }
            if ended {
                return;
            }
        }
    }
}

/// The batches of one epoch as a [`Stream`]; from [`DataLoader::into_stream`]. Belongs to no executor: a thread of its own waits
/// for each batch that was asked for and wakes the task.
pub struct BatchStream<B> {
    shared: Arc<Shared<B>>,
    thread: Option<JoinHandle<DataLoader<B>>>,
    over: bool,
}

impl<B: Send + 'static> DataLoader<B> {
    /// The next epoch as a [`Stream`] of `Result<B, Error>`, with the errors that [`Epoch`] has. The workers make batches ahead as ever;
    /// [`into_loader`](BatchStream::into_loader) gives the loader back for the next epoch. Fails when the workers or the
    /// thread cannot be started.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use feedrate::{DataLoader, dataset};
    /// use futures_core::Stream;
    ///
    /// let loader = DataLoader::builder(dataset::range(0..10)).batch_size(4).threads(2).build()?;
    /// let mut stream = pin!(loader.into_stream()?);
    /// let mut sizes = Vec::new();
    /// // An executor would sleep until it is woken.
    /// loop {
    ///     match stream.as_mut().poll_next(&mut Context::from_waker(Waker::noop())) {
    ///         Poll::Ready(Some(batch)) => sizes.push(batch?.len()),
    ///         Poll::Ready(None) => break,
    ///         Poll::Pending => std::thread::yield_now(),
    ///     }
    /// }
    /// assert_eq!(sizes, [4, 4, 2]);
    /// # Ok::<(), feedrate::Error>(())
    /// ```
    pub fn into_stream(self) -> Result<BatchStream<B>, Error> {
        let shared = Arc::new(Shared {
            slot: Mutex::new(Slot::Idle),
            changed: Condvar::new(),
        });
        let mut loader = self;
        // Started here, so that what cannot be is an error here.
        loader.start()?;
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("feedrate-stream".to_owned())
            .spawn(move || {
                match loader.iter() {
                    Ok(epoch) => theirs.serve(epoch),
                    Err(error) => theirs.fail(error),
                }
                loader
            })
            .map_err(|error| Error::config(format!("no thread could be started for a stream of batches: {error}")))?;
        Ok(BatchStream {
            shared,
            thread: Some(thread),
            over: false,
        })
    }
}

impl<B> Shared<B> {
    /// The epoch could not be begun: that is what the first who asks is told.
    fn fail(&self, error: Error) {
        let mut slot = self.lock();
        while matches!(*slot, Slot::Idle) {
            slot = self.changed.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
        if let Slot::Wanted(waker) = std::mem::replace(&mut *slot, Slot::Ready(Err(error))) {
            waker.wake();
        }
    }
}

impl<B> BatchStream<B> {
    fn stop(&self) {
        *self.shared.lock() = Slot::Over;
        self.shared.changed.notify_all();
    }

    /// The loader, for the next epoch or for its [`state`](DataLoader::state), which is behind the last batch that was taken. What is left of
    /// the epoch is abandoned. Waits for a batch that was asked for and not taken; that one counts as handed over.
    pub fn into_loader(mut self) -> Result<DataLoader<B>, Error> {
        self.stop();
        let thread = self.thread.take().ok_or_else(|| Error::bug("a stream has no thread"))?;
        thread.join().map_err(|_| Error::bug("the thread of a stream panicked"))
    }
}

impl<B> Stream for BatchStream<B> {
    type Item = Result<B, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let shared = Arc::clone(&self.shared);
        let mut slot = shared.lock();
        match std::mem::replace(&mut *slot, Slot::Idle) {
            Slot::Ready(result) => {
                self.over = result.as_ref().is_err_and(|error| !error.may_continue());
                return Poll::Ready(Some(result));
            }
            Slot::Over => {
                *slot = Slot::Over;
                self.over = true;
                return Poll::Ready(None);
            }
            Slot::Idle | Slot::Wanted(_) => *slot = Slot::Wanted(context.waker().clone()),
        }
        drop(slot);
        shared.changed.notify_all();
        Poll::Pending
    }
}

impl<B> FusedStream for BatchStream<B> {
    fn is_terminated(&self) -> bool {
        self.over
    }
}

impl<B> Drop for BatchStream<B> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<B> fmt::Debug for BatchStream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchStream")
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;
    use crate::dataset;

    /// Wakes a thread that is parked.
    struct Parked(thread::Thread, AtomicUsize);

    impl Wake for Parked {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.unpark();
        }
    }

    fn next<B: Send + 'static>(stream: &mut BatchStream<B>, parked: &Arc<Parked>) -> Option<Result<B, Error>> {
        let waker = Waker::from(Arc::clone(parked));
        loop {
            match Pin::new(&mut *stream).poll_next(&mut Context::from_waker(&waker)) {
                Poll::Ready(found) => return found,
                Poll::Pending => thread::park_timeout(Duration::from_secs(60)),
            }
        }
    }

    #[test]
    fn all_batches_in_order_and_the_loader_again() {
        let parked = Arc::new(Parked(thread::current(), AtomicUsize::new(0)));
        let build = || {
            DataLoader::builder(dataset::range(0..100))
                .batch_size(7)
                .shuffle(true)
                .seed(3)
        };
        let expected: Vec<_> = build()
            .inline()
            .build()
            .unwrap()
            .iter()
            .unwrap()
            .map(Result::unwrap)
            .collect();
        for threads in [1, 3] {
            let loader = build().threads(threads).build().unwrap();
            let mut stream = loader.into_stream().unwrap();
            let mut found = Vec::new();
            for _ in 0..4 {
                found.push(next(&mut stream, &parked).unwrap().unwrap());
            }
            // A state behind what was taken, and the rest elsewhere.
            let loader = stream.into_loader().unwrap();
            let saved = loader.state().unwrap();
            let mut stream = build().threads(2).resume(saved).build().unwrap().into_stream().unwrap();
            while let Some(batch) = next(&mut stream, &parked) {
                found.push(batch.unwrap());
            }
            assert!(stream.is_terminated());
            assert!(next(&mut stream, &parked).is_none());
            assert_eq!(found, expected);
            assert_eq!(stream.into_loader().unwrap().epoch(), 1);
        }
        assert!(parked.1.load(Ordering::Relaxed) > 0);
    }

    #[cfg(feature = "testing")]
    #[test]
    fn a_panic_of_its_thread_is_no_end() {
        let parked = Arc::new(Parked(thread::current(), AtomicUsize::new(0)));
        let pipeline = crate::pipeline::Pipeline::source(crate::testing::Cracked::new(100));
        let loader = DataLoader::pipeline(pipeline)
            .batch_size(2)
            .lanes(2, 1)
            .build()
            .unwrap();
        let mut stream = loader.into_stream().unwrap();
        let error = std::iter::from_fn(|| next(&mut stream, &parked)).find_map(Result::err);
        let error = error.unwrap_or_else(|| panic!("it ended without a word"));
        assert!(matches!(&error, Error::Bug { .. }), "{error}");
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(next(&mut stream, &parked).is_none());
    }

    #[test]
    fn a_stream_that_is_dropped_leaves_no_thread_waiting() {
        let loader = DataLoader::builder(dataset::range(0..100)).threads(2).build().unwrap();
        let mut stream = loader.into_stream().unwrap();
        assert!(matches!(
            Pin::new(&mut stream).poll_next(&mut Context::from_waker(Waker::noop())),
            Poll::Pending
        ));
        let shared = Arc::downgrade(&stream.shared);
        drop(stream);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while shared.strong_count() > 0 && std::time::Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(shared.strong_count(), 0);
    }
}
