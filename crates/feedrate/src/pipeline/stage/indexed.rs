//! All records of an indexed source, in an order that is computed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::source::{origin, reread};
use super::{Failure, Next, Origin, Place, Sample, Site, Stage};
use crate::random::Permutation;
use crate::source::{Mark, Reader, Record, Source};
use crate::state::State;

/// Parts that are kept open.
const OPEN: usize = 8;

/// Records by number.
pub(super) struct Table {
    label: String,
    source: Arc<dyn Source>,
    /// Records before each part, and in all.
    ends: Vec<u64>,
    /// Latest used last.
    open: VecDeque<(usize, Box<dyn Reader>)>,
}

impl Table {
    pub(super) fn new(label: String, source: &Arc<dyn Source>) -> Result<Self, Failure> {
        let counts = source.index().map_err(|error| Failure::reading(&label, error))?;
        let mut ends = vec![0];
        let mut total = 0_u64;
        for count in counts.iter() {
            total += count;
            ends.push(total);
        }
        Ok(Self {
            label,
            source: Arc::clone(source),
            ends,
            open: VecDeque::new(),
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The record at an index below the length.
    pub(super) fn get(&mut self, index: u64) -> Result<(usize, Record), Failure> {
        let part = self.ends.partition_point(|end| *end <= index) - 1;
        let number = index - self.ends[part];
        let failed = |error| Failure::reading(&self.label, error);
        let at = self.open.iter().position(|(open, _)| *open == part);
        let mut kept = at.and_then(|at| self.open.remove(at)).map(|(_, reader)| reader);
        if let Some(reader) = &mut kept
            && !reader.seek(number).map_err(failed)?
        {
            kept = None;
        }
        let mut reader = if let Some(reader) = kept {
            reader
        } else {
            let mark = Mark { number, offset: 0 };
            self.source.open(part, Some(mark)).map_err(failed)?
        };
        let found = reader.next();
        while self.open.len() >= OPEN {
            self.open.pop_front();
        }
        self.open.push_back((part, reader));
        match found.map_err(failed)? {
            Some(record) => Ok((part, record)),
            None => Err(Failure::fatal(
                &self.label,
                format!("record {number} of part {part} is not there any more: its index says otherwise"),
            )),
        }
    }
}

/// A lane's share of the shuffled records.
pub(super) struct Shuffled {
    table: Table,
    order: Permutation,
    lane: u64,
    lanes: u64,
    block: u64,
    /// Records that this lane has given.
    given: u64,
}

impl Shuffled {
    pub(super) fn open(site: &Site, source: &Arc<dyn Source>) -> Result<Self, Failure> {
        let table = Table::new(site.label(), source)?;
        let opening = site.opening;
        let order = Permutation::new(table.len(), opening.key(0).stream().next_u64(), opening.pass())?;
        Ok(Self {
            table,
            order,
            lane: opening.lane,
            lanes: opening.lanes,
            block: opening.block,
            given: site.number("given")?,
        })
    }
}

impl Stage for Shuffled {
    fn next(&mut self) -> Next {
        let (turn, within) = (self.given / self.block, self.given % self.block);
        // Numbers of the user's: what is too large is behind the end.
        let turns = turn
            .checked_mul(self.lanes)
            .and_then(|turns| turns.checked_add(self.lane));
        let first = turns.and_then(|turns| turns.checked_mul(self.block));
        let position = first.and_then(|first| first.checked_add(within));
        let Some(index) = position.and_then(|position| self.order.at(position)) else {
            return Ok(None);
        };
        self.given += 1;
        let (part, record) = self.table.get(index)?;
        let place = Place::Record {
            part: u32::try_from(part).unwrap_or(u32::MAX),
            mark: record.mark,
        };
        Ok(Some(Sample::new(record.value, place)))
    }

    fn cursor(&self) -> State {
        State::map([("given", self.given.into())])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        origin(&*self.table.source, place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        let parts = self.table.ends.len() - 1;
        reread(&self.table.label, &*self.table.source, parts, places, &mut None)
    }
}
