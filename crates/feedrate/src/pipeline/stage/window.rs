//! Steps that hold a window of elements. Their cursors name what is in it, and it is read again when they are taken up.

use super::weigh::Scale;
use super::{Failure, Next, Opening, Origin, Place, Sample, Site, Stage, blamed};
use crate::pipeline::function::Func;
use crate::pipeline::sample::to_text;
use crate::state::State;

/// A lane's window is not made smaller than this: a window of one element shuffles nothing.
const SMALL: usize = 32;

/// A lane's share of a window.
fn share(window: usize, opening: &Opening) -> usize {
    let lanes = usize::try_from(opening.lanes).unwrap_or(usize::MAX);
    window.div_ceil(lanes).max(window.min(SMALL)).max(1)
}

/// `shuffle`: each draw takes one of the window.
pub(super) struct Shuffled {
    input: Box<dyn Stage>,
    opening: Opening,
    window: Vec<Sample>,
    size: usize,
    drawn: u64,
    /// The input has ended.
    ended: bool,
}

impl Shuffled {
    pub(super) fn open(site: &Site, window: usize) -> Result<Self, Failure> {
        let mut input = site.input()?;
        let window_now = input.again(&site.places("window")?)?;
        Ok(Self {
            input,
            opening: site.opening.clone(),
            window: window_now,
            size: share(window, site.opening),
            drawn: site.number("drawn")?,
            ended: site.flag("ended")?,
        })
    }

    fn fill(&mut self) -> Result<(), Failure> {
        while !self.ended && self.window.len() < self.size {
            match self.input.next()? {
                Some(sample) => self.window.push(sample),
                None => self.ended = true,
            }
        }
        Ok(())
    }
}

impl Stage for Shuffled {
    fn next(&mut self) -> Next {
        self.fill()?;
        let Ok(len) = u64::try_from(self.window.len()) else {
            return Ok(None);
        };
        if len == 0 {
            return Ok(None);
        }
        let at = usize::try_from(self.opening.draw(self.drawn).below(len)).unwrap_or(0);
        self.drawn += 1;
        Ok(Some(self.window.swap_remove(at)))
    }

    fn cursor(&self) -> State {
        State::map([
            ("input", self.input.cursor()),
            ("window", to_text(self.window.iter().map(|sample| &sample.place)).into()),
            ("drawn", self.drawn.into()),
            ("ended", State::Bool(self.ended)),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.input.again(places)
    }
}

/// `sort_within`: windows one after the other, each sorted.
pub(super) struct Sorted {
    input: Box<dyn Stage>,
    scale: Scale,
    size: usize,
    /// The window that is being filled.
    filling: Vec<Sample>,
    /// Keys of the first ones of a full one.
    keys: Vec<(f64, i64)>,
    /// The sorted window, in reverse.
    ready: Vec<Sample>,
}

impl Sorted {
    pub(super) fn open(site: &Site, window: usize, by: &Func) -> Result<Self, Failure> {
        let mut input = site.input()?;
        let filling = input.again(&site.places("filling")?)?;
        let ready = input.again(&site.places("sorted")?)?;
        Ok(Self {
            input,
            scale: Scale::new(site, by),
            size: window.max(1),
            filling,
            keys: Vec::new(),
            ready,
        })
    }

    /// Sorts what was filled; one whose key cannot be had is left out and reported.
    fn sort(&mut self) -> Result<(), Failure> {
        while let Some(sample) = self.filling.get(self.keys.len()) {
            match self.scale.exactly(sample) {
                Ok(key) => self.keys.push(key),
                // Nothing against the element.
                Err(failure) if failure.alone() => return Err(failure),
                Err(failure) => {
                    let bad = self.filling.remove(self.keys.len());
                    return Err(blamed(failure, &mut *self.input, &bad.place));
                }
            }
        }
        let mut keyed: Vec<((f64, i64), usize)> = std::mem::take(&mut self.keys).into_iter().zip(0..).collect();
        keyed.sort_by(|(a, at), (b, bt)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(at.cmp(bt)));
        let mut filling: Vec<Option<Sample>> = std::mem::take(&mut self.filling).into_iter().map(Some).collect();
        self.ready = keyed.iter().rev().filter_map(|(_, at)| filling[*at].take()).collect();
        Ok(())
    }
}

impl Stage for Sorted {
    fn next(&mut self) -> Next {
        if let Some(sample) = self.ready.pop() {
            return Ok(Some(sample));
        }
        while self.filling.len() < self.size {
            match self.input.next()? {
                Some(sample) => self.filling.push(sample),
                None => break,
            }
        }
        self.sort()?;
        Ok(self.ready.pop())
    }

    fn cursor(&self) -> State {
        State::map([
            ("input", self.input.cursor()),
            (
                "filling",
                to_text(self.filling.iter().map(|sample| &sample.place)).into(),
            ),
            ("sorted", to_text(self.ready.iter().map(|sample| &sample.place)).into()),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        self.input.origin(place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        self.input.again(places)
    }
}
