//! Reading a source, and which share of it.

use std::sync::Arc;

use super::{Failure, Next, Opening, Origin, Place, Sample, Site, Stage, foreign};
use crate::asking;
use crate::pipeline::step::Deal;
use crate::random::Permutation;
use crate::source::{Columns, Fault, Mark, Part, Reader, Record, Source, SourceError};
use crate::state::State;

/// Records of a lane's share of a source.
pub(super) struct Reading {
    label: String,
    source: Arc<dyn Source>,
    parts: Arc<[Part]>,
    /// In which order parts are read; `None`: as listed.
    order: Option<Permutation>,
    share: Share,
    /// Place in that order of the part that is being read, or comes next.
    at: u64,
    reader: Option<Box<dyn Reader>>,
    /// Where the part goes on when it is not open.
    mark: Mark,
    /// Records before that, in all parts read in order. Counted where shares are dealt by records.
    ordinal: u64,
    /// Rows that are read one by one, since as columns they could not be: to know which of them is bad.
    single: usize,
    /// Of elements that were made again.
    kept: Kept,
}

#[derive(Debug, Clone)]
enum Share {
    /// Every `lanes`th part, from `lane` on.
    Parts { lane: u64, lanes: u64 },
    /// One part, which `lanes` lanes share: every `lanes`th block of its records, from `lane` on.
    Part { at: u64, lane: u64, lanes: u64, block: u64 },
    /// Every `lanes`th block of all records, from `lane` on.
    Records { lane: u64, lanes: u64, block: u64 },
}

impl Share {
    fn new(opening: &Opening, deal: Deal, parts: u64) -> Self {
        let (lane, lanes) = (opening.lane, opening.lanes);
        match deal {
            Deal::Parts => Self::Parts { lane, lanes },
            Deal::Records => Self::Records {
                lane,
                lanes,
                block: opening.block,
            },
            Deal::Auto if parts == 0 || parts >= lanes => Self::Parts { lane, lanes },
            Deal::Auto => {
                let at = lane % parts;
                Self::Part {
                    at,
                    lane: lane / parts,
                    lanes: (lanes - at).div_ceil(parts),
                    block: opening.block,
                }
            }
        }
    }

    /// Records to pass over before the next one of this share, and how many follow that.
    fn next(&self, ordinal: u64) -> (u64, u64) {
        match *self {
            Self::Parts { .. } => (0, u64::MAX),
            Self::Part { lane, lanes, block, .. } | Self::Records { lane, lanes, block } => {
                let turn = ordinal / block;
                let ahead = (lane + lanes - turn % lanes) % lanes;
                if ahead == 0 {
                    return (0, (turn + 1).saturating_mul(block) - ordinal);
                }
                ((turn + ahead).saturating_mul(block) - ordinal, block)
            }
        }
    }
}

impl Reading {
    pub(super) fn open(site: &Site, source: &Arc<dyn Source>, deal: Deal, shuffle: bool) -> Result<Self, Failure> {
        let label = site.label();
        let parts = source.parts().map_err(|error| Failure::reading(&label, error))?;
        let count = parts.len() as u64;
        let opening = site.opening;
        let order = if shuffle {
            Some(Permutation::new(
                count,
                opening.key(0).stream().next_u64(),
                opening.pass(),
            )?)
        } else {
            None
        };
        let at = site.number("at")?;
        if at > count {
            let message = format!("the state is in part {at}, and the source has {count}: the data is not the same");
            return Err(Failure::fatal(label, message));
        }
        Ok(Self {
            label,
            source: Arc::clone(source),
            parts,
            order,
            share: Share::new(opening, deal, count),
            at,
            reader: None,
            mark: Mark {
                number: site.number("number")?,
                offset: site.number("offset")?,
            },
            ordinal: site.number("ordinal")?,
            single: 0,
            kept: None,
        })
    }

    fn part(&self) -> Option<usize> {
        let part = match &self.order {
            Some(order) => order.at(self.at)?,
            None => self.at,
        };
        usize::try_from(part).ok().filter(|part| *part < self.parts.len())
    }

    /// The part behind this one comes next.
    fn pass(&mut self) {
        self.at += 1;
        self.reader = None;
        self.mark = Mark::default();
        self.single = 0;
    }

    /// The same for a part that was entered. All lanes have to count alike, however far each could read it: where the number of its
    /// records is known, that is how many it had.
    fn leave(&mut self, part: usize) {
        if let Some(records) = self.parts[part].records {
            self.ordinal += records.saturating_sub(self.here().number);
        }
        self.pass();
    }

    /// The same for a part that cannot be read further. Where records are found by number, lanes jump over damage without seeing it, and
    /// count what lies behind.
    fn abandon(&mut self, part: usize) {
        if self.parts[part].records.is_none() && self.source.indexed() {
            let from = Some(self.here()).filter(|mark| mark.number > 0);
            let behind = self
                .source
                .open(part, from)
                .and_then(|mut reader| reader.skip(u64::MAX));
            self.ordinal += behind.unwrap_or(0);
        }
        self.leave(part);
    }

    /// Where the part goes on.
    fn here(&self) -> Mark {
        self.reader.as_ref().map_or(self.mark, |reader| reader.mark())
    }

    /// What is to be said of a part that cannot be read, or not further. `mine`: the record at hand is of this lane.
    fn unreadable(&mut self, part: usize, error: SourceError, mine: bool) -> Option<Failure> {
        let fault = error.fault();
        if fault == Fault::Interrupted {
            // The part is not at fault; who goes on finds it as it was.
            return Some(self.failed(error));
        }
        self.abandon(part);
        // Damage is the same for all lanes, and reported by the one whose record it is. Of what happens to one lane alone nobody else knows.
        (mine || fault.passing()).then(|| self.failed(error))
    }

    fn failed(&self, error: SourceError) -> Failure {
        Failure::reading(&self.label, error)
    }

    /// Opens the next part of this share if none is open, at the next record of it; its number and how many records follow.
    fn ready(&mut self) -> Result<Option<(usize, u64)>, Failure> {
        loop {
            let Some(part) = self.part() else { return Ok(None) };
            let foreign = match self.share {
                Share::Parts { lane, lanes } => self.at % lanes != lane,
                Share::Part { at, .. } => self.at != at,
                Share::Records { .. } => false,
            };
            if foreign {
                self.pass();
                continue;
            }
            let (over, run) = self.share.next(self.ordinal);
            if self.reader.is_none()
                && let Some(records) = self.parts[part].records
                && let Some(left) = records.checked_sub(self.mark.number)
                && left <= over
            {
                // Nothing in it is of this share: it is not opened.
                self.ordinal += left;
                self.pass();
                continue;
            }
            if self.reader.is_none() {
                let from = (self.mark != Mark::default()).then_some(self.mark);
                match self.source.open(part, from) {
                    Ok(reader) => self.reader = Some(reader),
                    Err(error) => match self.unreadable(part, error, over == 0) {
                        Some(failure) => return Err(failure),
                        None => continue,
                    },
                }
            }
            let Some(reader) = self.reader.as_mut() else { continue };
            if over == 0 {
                return Ok(Some((part, run)));
            }
            let before = reader.mark().number;
            match reader.skip(over) {
                Ok(passed) => {
                    self.ordinal += passed;
                    if passed < over {
                        self.leave(part);
                    }
                }
                Err(error) => {
                    self.ordinal += reader.mark().number.saturating_sub(before);
                    if let Some(failure) = self.unreadable(part, error, false) {
                        return Err(failure);
                    }
                }
            }
        }
    }

    fn sample(part: usize, record: Record) -> Sample {
        let place = Place::Record {
            part: u32::try_from(part).unwrap_or(u32::MAX),
            mark: record.mark,
        };
        Sample::new(record.value, place)
    }
}

impl Stage for Reading {
    fn next(&mut self) -> Next {
        if !asking::go_on() {
            return Err(Failure::fatal(&*self.label, "interrupted"));
        }
        loop {
            let Some((part, _)) = self.ready()? else {
                return Ok(None);
            };
            self.single = self.single.saturating_sub(1);
            let Some(reader) = self.reader.as_mut() else {
                return Ok(None);
            };
            match reader.next() {
                Ok(Some(record)) => {
                    self.ordinal += 1;
                    return Ok(Some(Self::sample(part, record)));
                }
                Ok(None) => self.leave(part),
                Err(error) if error.may_continue() => {
                    self.ordinal += 1;
                    return Err(self.failed(error));
                }
                Err(error) => {
                    if let Some(failure) = self.unreadable(part, error, true) {
                        return Err(failure);
                    }
                }
            }
        }
    }

    fn cursor(&self) -> State {
        let mark = self.here();
        State::map([
            ("at", self.at.into()),
            ("number", mark.number.into()),
            ("offset", mark.offset.into()),
            ("ordinal", self.ordinal.into()),
        ])
    }

    fn origin(&mut self, place: &Place) -> Option<Origin> {
        origin(&*self.source, place)
    }

    fn again(&mut self, places: &[Place]) -> Result<Vec<Sample>, Failure> {
        reread(&self.label, &*self.source, self.parts.len(), places, &mut self.kept)
    }

    fn columns(&mut self, rows: usize) -> Option<Result<(Columns, Place), Failure>> {
        loop {
            let (part, run) = match self.ready() {
                Ok(Some(ready)) => ready,
                Ok(None) => {
                    let none = Columns {
                        rows: 0,
                        fields: Vec::new(),
                        first: 0,
                    };
                    return Some(Ok((none, Place::Group(Vec::new()))));
                }
                Err(failure) => return Some(Err(failure)),
            };
            let reader = self.reader.as_mut()?;
            let mark = reader.mark();
            let most = if self.single > 0 { 1 } else { rows };
            let most = most.min(usize::try_from(run).unwrap_or(usize::MAX));
            let found = reader.columns(most)?;
            match found {
                Ok(columns) if columns.rows == 0 => self.leave(part),
                Ok(columns) => {
                    self.single = self.single.saturating_sub(columns.rows);
                    self.ordinal += columns.rows as u64;
                    let place = Place::Record {
                        part: u32::try_from(part).unwrap_or(u32::MAX),
                        mark,
                    };
                    let rows = u32::try_from(columns.rows).unwrap_or(u32::MAX);
                    return Some(Ok((columns, place.child(rows))));
                }
                Err(error) if error.may_continue() && reader.mark().number == mark.number + 1 => {
                    // It is behind one row, which is the bad one.
                    self.single = self.single.saturating_sub(1);
                    self.ordinal += 1;
                    return Some(Err(self.failed(error)));
                }
                Err(_) if most > 1 => {
                    // Rows before the bad one are as good as ever.
                    self.single = most;
                    self.mark = mark;
                    self.reader = None;
                }
                Err(error) if error.may_continue() => {
                    self.single = self.single.saturating_sub(1);
                    match reader.skip(1) {
                        Ok(_) => self.ordinal += 1,
                        Err(_) => self.abandon(part),
                    }
                    return Some(Err(self.failed(error)));
                }
                Err(error) => {
                    if let Some(failure) = self.unreadable(part, error, true) {
                        return Some(Err(failure));
                    }
                }
            }
        }
    }

    fn columns_again(&mut self, place: &Place) -> Option<Result<Columns, Failure>> {
        let Place::Child(inner, rows) = place else {
            return Some(Err(foreign(&self.label, place)));
        };
        let Place::Record { part, mark } = **inner else {
            return Some(Err(foreign(&self.label, place)));
        };
        let reader = self.source.open(part as usize, Some(mark));
        let found = reader.and_then(|mut reader| reader.columns(*rows as usize).transpose());
        match found {
            Ok(Some(columns)) if columns.rows == *rows as usize => Some(Ok(columns)),
            Ok(_) => Some(Err(foreign(&self.label, place))),
            Err(error) => Some(Err(self.failed(error))),
        }
    }
}

/// The name of the part and of the record.
pub(super) fn origin(source: &dyn Source, place: &Place) -> Option<Origin> {
    let Place::Record { part, mark } = place else {
        return None;
    };
    let part = *part as usize;
    let shard = source.parts().ok()?.get(part)?.name.clone();
    let named = source.open(part, Some(*mark)).and_then(|mut reader| reader.next());
    let key = named.ok().flatten().and_then(|record| record.key);
    Some(Origin {
        shard,
        key: key.unwrap_or_else(|| format!("record {}", mark.number)),
    })
}

/// A reader that is kept for the next call of [`reread`], with its part.
pub(super) type Kept = Option<(u32, Box<dyn Reader>)>;

/// Reads records again, each part once, from front to back. Where any place is found by reading all that lies before, the reader is kept:
/// who asks for one run of records after the other does not pay for that each time.
pub(super) fn reread(
    label: &str,
    source: &dyn Source,
    parts: usize,
    places: &[Place],
    kept: &mut Kept,
) -> Result<Vec<Sample>, Failure> {
    let mut wanted = Vec::with_capacity(places.len());
    for (at, place) in places.iter().enumerate() {
        match place {
            Place::Record { part, mark } if (*part as usize) < parts => wanted.push((*part, *mark, at)),
            _ => return Err(foreign(label, place)),
        }
    }
    wanted.sort_unstable();
    let mut found: Vec<Option<Sample>> = vec![None; places.len()];
    let mut open = kept.take();
    let failed = |error: SourceError| {
        let mut failure = Failure::reading(label, error);
        failure.may_continue = false;
        failure
    };
    let mut last: Option<(u32, Mark, usize)> = None;
    for (part, mark, at) in wanted {
        if let Some((same, before, from)) = last
            && (same, before) == (part, mark)
        {
            let same = found[from].clone();
            found[at] = same;
            continue;
        }
        last = Some((part, mark, at));
        let reader = match open.take() {
            Some((same, mut reader)) if same == part && reader.mark().number <= mark.number => {
                let ahead = mark.number - reader.mark().number;
                if source.indexed() && reader.seek(mark.number).map_err(failed)? {
                    reader
                } else if ahead <= NEAR {
                    reader.skip(ahead).map_err(failed)?;
                    reader
                } else if reader.go_to(mark).map_err(failed)? {
                    reader
                } else if far(source, &*reader) {
                    reader.skip(ahead).map_err(failed)?;
                    reader
                } else {
                    source.open(part as usize, Some(mark)).map_err(failed)?
                }
            }
            _ => source.open(part as usize, Some(mark)).map_err(failed)?,
        };
        let (_, reader) = open.insert((part, reader));
        let Some(record) = reader.next().map_err(failed)? else {
            let name = source
                .parts()
                .map_or_else(|_| String::new(), |parts| parts[part as usize].name.clone());
            let message = format!(
                "the state names record {} of {name}, which is not there: the data is not the same",
                mark.number
            );
            return Err(Failure::fatal(label, message));
        };
        found[at] = Some(Reading::sample(part as usize, record));
    }
    *kept = open.filter(|(_, reader)| far(source, &**reader));
    found
        .into_iter()
        .zip(places)
        .map(|(sample, place)| sample.ok_or_else(|| foreign(label, place)))
        .collect()
}

/// Whether a place in this part is found only by reading what lies before.
fn far(source: &dyn Source, reader: &dyn Reader) -> bool {
    !source.seeks() || reader.packed().is_some()
}

/// Records that are passed over rather than opening the part again behind them.
const NEAR: u64 = 16;
