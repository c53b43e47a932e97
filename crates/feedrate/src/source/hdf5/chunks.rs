//! Rows that are stored in chunks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use hdf5_reader::chunk_index::{self, ChunkEntry};
use hdf5_reader::error::Error;
use hdf5_reader::filters::apply_pipeline_with_limit;
use hdf5_reader::messages::filter_pipeline::FilterDescription;
use hdf5_reader::messages::layout::ChunkIndexing;
use hdf5_reader::{FilterRegistry, Hdf5File, btree_v1, extensible_array, fixed_array};

use super::file::{File, RATIO, SMALL, failed};
use super::rows::repeat;
use crate::source::window::{Window, fill_at};
use crate::source::{Fault, SourceError};

/// What is held decoded of a dataset whose rows are spread over several chunks, but at least one row.
const HELD: usize = 64 << 20;

/// How a dataset is cut into chunks.
pub(super) struct Grid {
    shape: Vec<u64>,
    dims: Vec<u32>,
    /// Chunks in each dimension.
    counts: Vec<u64>,
    element: usize,
    /// Bytes of a chunk.
    bytes: usize,
    /// Bytes of a row of the dataset.
    row: usize,
}

impl Grid {
    /// Of a shape, with at least one dimension, and a layout's dimensions, of which the last may be the element's bytes.
    pub(super) fn new(shape: &[u64], dims: &[u32], element: usize) -> Result<Self, String> {
        let given = dims;
        let dims = dims.get(..shape.len()).filter(|_| given.len() <= shape.len() + 1);
        let Some(dims) = dims.filter(|dims| !dims.contains(&0)) else {
            return Err(format!("chunks of {given:?} are none of shape {shape:?}"));
        };
        let counts: Vec<u64> = shape
            .iter()
            .zip(dims)
            .map(|(n, dim)| n.div_ceil(u64::from(*dim)))
            .collect();
        let all = counts.iter().try_fold(1_u64, |all, n| all.checked_mul(*n));
        let bytes = dims.iter().try_fold(element, |bytes, dim| {
            bytes
                .checked_mul(usize::try_from(*dim).ok()?)
                .filter(|bytes| u32::try_from(*bytes).is_ok())
        });
        let row = shape[1..]
            .iter()
            .try_fold(element, |row, n| row.checked_mul(usize::try_from(*n).ok()?));
        let (Some(_), Some(bytes), Some(row)) = (all, bytes, row) else {
            return Err(format!(
                "chunks of {given:?} in shape {shape:?} are more than there can be"
            ));
        };
        Ok(Self {
            shape: shape.to_vec(),
            dims: dims.to_vec(),
            counts,
            element,
            bytes,
            row,
        })
    }

    /// Rows of a chunk.
    fn deep(&self) -> u64 {
        u64::from(self.dims[0])
    }

    /// Chunks that have the same rows.
    fn abreast(&self) -> u64 {
        self.counts[1..].iter().product()
    }

    /// The number of the chunk that begins here, `None` behind the end: what was cut off later may still be listed.
    fn number(&self, offsets: &[u64]) -> Result<Option<u64>, String> {
        let aligned = offsets
            .iter()
            .zip(&self.dims)
            .all(|(at, dim)| at % u64::from(*dim) == 0);
        if offsets.len() != self.dims.len() || !aligned {
            return Err(format!(
                "a chunk begins at {offsets:?}, and chunks have {:?}",
                self.dims
            ));
        }
        if offsets.iter().zip(&self.shape).any(|(at, n)| at >= n) {
            return Ok(None);
        }
        let places = offsets.iter().zip(&self.dims).zip(&self.counts);
        Ok(Some(
            places.fold(0, |sum, ((at, dim), count)| sum * count + at / u64::from(*dim)),
        ))
    }

    /// Where the chunk of this number begins in the dimensions behind the first.
    fn beside(&self, number: u64) -> Vec<u64> {
        let mut left = number;
        let mut places = vec![0; self.dims.len()];
        for (place, (dim, count)) in places.iter_mut().zip(self.dims.iter().zip(&self.counts)).rev() {
            *place = left % count * u64::from(*dim);
            left /= count;
        }
        places.remove(0);
        places
    }

    /// Copies the rows of a chunk from `skip` on to where they are among whole rows.
    fn paste(&self, chunk: &[u8], number: u64, skip: usize, out: &mut [u8]) {
        let long = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let rows = out.len() / self.row.max(1);
        let beside = self.beside(number);
        // For each dimension behind the first: elements of a chunk's, of the dataset's, where it begins, how many there are.
        let mut inner: Vec<[usize; 4]> = beside
            .iter()
            .zip(self.dims[1..].iter().zip(&self.shape[1..]))
            .map(|(at, (dim, n))| {
                [
                    long(u64::from(*dim)),
                    long(*n),
                    long(*at),
                    long((n - at).min(u64::from(*dim))),
                ]
            })
            .collect();
        // Dimensions that are whole are a larger element.
        let mut size = self.element;
        while let Some(&[dim, n, _, _]) = inner.last().filter(|[dim, n, _, _]| dim == n) {
            debug_assert_eq!(dim, n);
            size *= n;
            inner.pop();
        }
        let Some(([_, _, start, run], outer)) = inner.split_last().map(|(last, outer)| (*last, outer)) else {
            out.copy_from_slice(&chunk[skip * size..][..rows * size]);
            return;
        };
        let mut index = vec![0; outer.len()];
        let [width, all, ..] = inner[inner.len() - 1];
        for row in 0..rows {
            loop {
                let (mut from, mut to) = (row + skip, row);
                for (at, [dim, n, start, _]) in index.iter().zip(outer) {
                    from = from * dim + at;
                    to = to * n + start + at;
                }
                let (from, to) = (from * width * size, (to * all + start) * size);
                out[to..to + run * size].copy_from_slice(&chunk[from..from + run * size]);
                let mut carried = true;
                for (at, [.., len]) in index.iter_mut().zip(outer).rev() {
                    *at += 1;
                    if *at < *len {
                        carried = false;
                        break;
                    }
                    *at = 0;
                }
                if carried {
                    break;
                }
            }
        }
    }
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy)]
struct Slot {
    number: u64,
    /// In the file.
    address: u64,
    /// As it is stored; 0 for a chunk without filters.
    size: u64,
    /// The filters that were left out.
    mask: u32,
}

/// A dataset: the file's part, and the address of its header.
type Place = (usize, u64);
/// What tells that a file is as it was: its size and time.
pub(super) type Stamp = (u64, Option<SystemTime>);
type Listed = HashMap<Place, (Stamp, Arc<[Slot]>)>;

/// What indexes list, for all readers of a source: opening a file for one row would else walk them each time.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Listed>);

impl Known {
    /// What is known. Nobody waits: a lock that was held during a fork is held for ever in the child.
    fn get(&self, place: Place, stamp: Stamp) -> Option<Arc<[Slot]>> {
        let known = self.0.try_lock().ok()?;
        let (found, slots) = known.get(&place)?;
        (*found == stamp).then(|| Arc::clone(slots))
    }

    fn put(&self, place: Place, stamp: Stamp, slots: &Arc<[Slot]>) {
        if let Ok(mut known) = self.0.try_lock() {
            known.insert(place, (stamp, Arc::clone(slots)));
        }
    }
}

/// Where a dataset's index is: its address, its kind (none is the older B-tree), and the most that the dataset may grow to; and the
/// address of the dataset's header.
pub(super) struct Index {
    pub(super) address: u64,
    pub(super) kind: Option<ChunkIndexing>,
    pub(super) most: Option<Vec<u64>>,
    pub(super) header: u64,
}

/// Rows that are decoded: all that are abreast, so that no chunk is decoded again for the next row.
struct Block {
    first: u64,
    rows: usize,
    bytes: Vec<u8>,
}

/// A dataset's chunks, and those rows of it that are decoded.
pub(super) struct Chunks {
    file: Hdf5File,
    name: Arc<str>,
    path: String,
    base: u64,
    grid: Grid,
    index: Index,
    filters: Vec<FilterDescription>,
    registry: Arc<FilterRegistry>,
    known: Arc<Known>,
    place: Place,
    stamp: Stamp,
    /// By number, once they have been looked for.
    slots: Option<Arc<[Slot]>>,
    block: Option<Block>,
    packed: Vec<u8>,
}

impl Chunks {
    pub(super) fn new(file: &File, path: &str, grid: Grid, index: Index, filters: Vec<FilterDescription>) -> Self {
        Self {
            file: file.inner.clone(),
            name: Arc::clone(&file.name),
            path: path.to_owned(),
            base: file.base,
            grid,
            place: (file.part, index.header),
            index,
            filters,
            registry: Arc::clone(&file.registry),
            known: Arc::clone(&file.known),
            stamp: file.stamp,
            slots: None,
            block: None,
            packed: Vec::new(),
        }
    }

    fn wrong(&self, fault: Fault, row: u64, message: impl Into<String>) -> SourceError {
        SourceError::new(fault, &*self.name, message).of(format!("dataset {}, row {row}", self.path))
    }

    /// The bytes of rows from `first` on, as they are stored.
    pub(super) fn fill(
        &mut self,
        window: &Window,
        first: u64,
        fill: &[u8],
        mut out: &mut [u8],
    ) -> Result<(), SourceError> {
        if self.grid.row == 0 {
            return Ok(());
        }
        let mut row = first;
        while !out.is_empty() {
            let held = |block: &Block| row >= block.first && row - block.first < block.rows as u64;
            if !self.block.as_ref().is_some_and(held) {
                let block = self.load(window, row, fill);
                self.block = Some(block?);
            }
            let Some(block) = &self.block else { break };
            let skip = usize::try_from(row - block.first).unwrap_or(usize::MAX) * self.grid.row;
            let found = &block.bytes[skip..];
            let len = found.len().min(out.len());
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(&found[..len]);
            out = later;
            row += (len / self.grid.row) as u64;
        }
        Ok(())
    }

    /// Decodes the rows around one.
    fn load(&mut self, window: &Window, row: u64, fill: &[u8]) -> Result<Block, SourceError> {
        let slots = if let Some(slots) = &self.slots {
            Arc::clone(slots)
        } else {
            let slots = if let Some(known) = self.known.get(self.place, self.stamp) {
                known
            } else {
                let entries = self.entries();
                let entries =
                    entries.map_err(|error| failed(&self.name, &error).of(format!("dataset {}", self.path)))?;
                let slots = self.slots(&entries)?.into();
                self.known.put(self.place, self.stamp, &slots);
                slots
            };
            self.slots.insert(slots).clone()
        };
        let (deep, abreast) = (self.grid.deep(), self.grid.abreast());
        let line = row / deep;
        let most = if abreast == 1 {
            deep
        } else {
            (HELD / self.grid.row).max(1) as u64
        };
        let start = line * deep;
        // Either all rows of the chunk, or so many of them, always cut at the same places.
        let first = start + (row - start) / most * most;
        let rows = most.min(start + deep - first).min(self.grid.shape[0] - first);
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        let skip = usize::try_from(first - start).unwrap_or(usize::MAX);
        let from = slots.partition_point(|slot| slot.number < line * abreast);
        let found: Vec<Slot> = slots[from..]
            .iter()
            .take_while(|slot| slot.number < (line + 1) * abreast)
            .copied()
            .collect();
        // The block before gives its memory.
        let mut bytes = self.block.take().map(|block| block.bytes).unwrap_or_default();
        let whole = rows * self.grid.row;
        if let [slot] = found[..]
            && abreast == 1
            && self.grid.bytes == self.grid.row * usize::try_from(deep).unwrap_or(usize::MAX)
        {
            // The chunk is those rows.
            let mut chunk = self.decode(window, slot, first)?;
            if self.filters.is_empty() {
                self.packed = bytes;
            }
            chunk.drain(..skip * self.grid.row);
            chunk.truncate(whole);
            return Ok(Block {
                first,
                rows,
                bytes: chunk,
            });
        }
        bytes.resize(whole, 0);
        if found.len() as u64 != abreast {
            repeat(fill, &mut bytes);
        }
        for slot in found {
            let chunk = self.decode(window, slot, first)?;
            self.grid.paste(&chunk, slot.number, skip, &mut bytes);
            if self.filters.is_empty() {
                self.packed = chunk;
            }
        }
        Ok(Block { first, rows, bytes })
    }

    /// The bytes of a chunk.
    fn decode(&mut self, window: &Window, slot: Slot, row: u64) -> Result<Vec<u8>, SourceError> {
        let wanted = self.grid.bytes;
        let stored = if slot.size == 0 { wanted as u64 } else { slot.size };
        let start = slot.address.saturating_add(self.base);
        if start.checked_add(stored).is_none_or(|end| end > window.len()) {
            let message = format!(
                "its chunk has {stored} bytes from {start} on, and the file ends at {}",
                window.len()
            );
            return Err(self.wrong(Fault::Truncated, row, message));
        }
        if wanted as u64 > stored.saturating_mul(RATIO).max(SMALL)
            || (self.filters.is_empty() && wanted as u64 != stored)
        {
            let message = format!("{stored} bytes cannot become the {wanted} of a chunk");
            return Err(self.wrong(Fault::Damaged, row, message));
        }
        let mut packed = std::mem::take(&mut self.packed);
        packed.resize(usize::try_from(stored).unwrap_or(usize::MAX), 0);
        let read = fill_at(window.file(), &mut packed, start);
        let read = read.map_err(|error| SourceError::io(&*self.name, &error).at(start))?;
        if read < packed.len() {
            return Err(self.wrong(
                Fault::Truncated,
                row,
                format!("the file ended at {}", start + read as u64),
            ));
        }
        if self.filters.is_empty() {
            return Ok(packed);
        }
        let (filters, registry) = (&self.filters, &self.registry);
        let size = self.grid.element;
        let limit = Some(wanted.saturating_add(1));
        let chunk = apply_pipeline_with_limit(&packed, filters, slot.mask, size, Some(registry), limit);
        self.packed = packed;
        let chunk =
            chunk.map_err(|error| failed(&self.name, &error).of(format!("dataset {}, row {row}", self.path)))?;
        if chunk.len() != wanted {
            let message = format!("its chunk has {} bytes unpacked, and should have {wanted}", chunk.len());
            return Err(self.wrong(Fault::Damaged, row, message));
        }
        Ok(chunk)
    }

    /// All that the index lists.
    fn entries(&self) -> Result<Vec<ChunkEntry>, Error> {
        let Index {
            address, kind, most, ..
        } = &self.index;
        let (storage, block) = (self.file.storage(), self.file.superblock());
        let (offsets, lengths) = (block.offset_size, block.length_size);
        let (shape, dims) = (&self.grid.shape[..], &self.grid.dims[..]);
        let rank = u32::try_from(dims.len()).unwrap_or(u32::MAX);
        match kind {
            None => {
                let leaves = btree_v1::collect_btree_v1_leaves_storage(
                    storage,
                    *address,
                    offsets,
                    lengths,
                    Some(rank),
                    dims,
                    None,
                )?;
                let entry = |(key, address)| match key {
                    btree_v1::BTreeV1Key::RawData {
                        chunk_size,
                        filter_mask,
                        mut offsets,
                    } => {
                        offsets.truncate(dims.len());
                        Ok(ChunkEntry {
                            address,
                            size: chunk_size.into(),
                            filter_mask,
                            offsets,
                        })
                    }
                    btree_v1::BTreeV1Key::Group { .. } => Err(Error::InvalidBTreeSignature),
                };
                leaves.into_iter().map(entry).collect()
            }
            Some(ChunkIndexing::SingleChunk { filtered_size, filters }) => Ok(vec![chunk_index::single_chunk_entry(
                *address,
                *filtered_size,
                *filters,
                dims.len(),
            )]),
            Some(ChunkIndexing::BTreeV2) => {
                chunk_index::collect_v2_chunk_entries_storage(storage, *address, offsets, lengths, rank, dims, None)
            }
            Some(ChunkIndexing::Implicit) => {
                let size = self.grid.element;
                chunk_index::collect_implicit_chunk_entries(*address, shape, dims, size, None, storage.len())
            }
            Some(ChunkIndexing::FixedArray { .. }) => fixed_array::collect_fixed_array_chunk_entries_storage(
                storage, *address, offsets, lengths, shape, dims, None,
            ),
            Some(ChunkIndexing::ExtensibleArray { .. }) => {
                extensible_array::collect_extensible_array_chunk_entries_storage(
                    storage,
                    *address,
                    offsets,
                    lengths,
                    shape,
                    most.as_deref(),
                    dims,
                    None,
                )
            }
        }
    }

    /// What the index lists, by number.
    fn slots(&self, entries: &[ChunkEntry]) -> Result<Vec<Slot>, SourceError> {
        let wrong =
            |why: String| SourceError::new(Fault::Damaged, &*self.name, why).of(format!("dataset {}", self.path));
        let mut slots = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some(number) = self.grid.number(&entry.offsets).map_err(wrong)? {
                slots.push(Slot {
                    number,
                    address: entry.address,
                    size: entry.size,
                    mask: entry.filter_mask,
                });
            }
        }
        slots.sort_unstable_by_key(|slot| slot.number);
        if slots.windows(2).any(|pair| pair[0].number == pair[1].number) {
            return Err(wrong("its index has a chunk twice".into()));
        }
        Ok(slots)
    }
}
