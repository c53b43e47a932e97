//! Parquet's pages, looked at before they are decoded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;

use super::tfrecord::varint;

/// Some row groups of a file, of which the crate (60.1) believes too much. Errors here are
///
/// - a page that has fewer repetition levels than it says: where rows are passed over, the crate asks for the next one again and again, and
///   never ends;
/// - a column without levels that has more or fewer rows than its row group: the crate goes on with the next group, so that rows have the
///   values of others;
/// - lists of lengths in front of texts that say they are longer than the page: the crate makes room for all of them, and where there is none,
///   the process ends.
///
/// Texts that go beyond the end of their page are cut off: the crate passes over them, and asks for nearly 2⁶⁴ bytes for the next one.
pub(super) struct Counted<R> {
    pub(super) file: Arc<R>,
    pub(super) metadata: Arc<ParquetMetaData>,
    pub(super) groups: Vec<usize>,
    /// Whether rows are passed over.
    pub(super) skips: bool,
    pub(super) miscounted: Miscounted,
}

/// The row group that was found to have other rows than the footer says.
#[derive(Debug, Clone, Default)]
pub(super) struct Miscounted(Arc<AtomicUsize>);

impl Miscounted {
    pub(super) fn set(&self, group: Option<usize>) {
        self.0.store(group.map_or(0, |group| group + 1), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<usize> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

impl<R: ChunkReader + 'static> RowGroups for Counted<R> {
    fn num_rows(&self) -> usize {
        let rows = self
            .row_groups()
            .map(|group| usize::try_from(group.num_rows()).unwrap_or(0));
        rows.sum()
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>, ParquetError> {
        Ok(Box::new(Chunks {
            file: Arc::clone(&self.file),
            metadata: Arc::clone(&self.metadata),
            groups: self.groups.clone().into_iter(),
            column,
            skips: self.skips,
            miscounted: self.miscounted.clone(),
        }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.groups.iter().map(|at| self.metadata.row_group(*at)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// The chunks of a column, one for each row group.
struct Chunks<R> {
    file: Arc<R>,
    metadata: Arc<ParquetMetaData>,
    groups: std::vec::IntoIter<usize>,
    column: usize,
    skips: bool,
    miscounted: Miscounted,
}

impl<R: ChunkReader + 'static> Iterator for Chunks<R> {
    type Item = Result<Box<dyn PageReader>, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.groups.next()?;
        let group = self.metadata.row_group(at);
        let column = group.column(self.column);
        let pages = self
            .metadata
            .page_index_for_row_group(at)
            .page_locations(self.column)
            .cloned();
        let rows = usize::try_from(group.num_rows()).unwrap_or(0);
        let leaf = column.column_descr();
        let width = |most: i16| u16::BITS - most.unsigned_abs().leading_zeros();
        let checked = |inner| -> Box<dyn PageReader> {
            Box::new(Checked {
                inner,
                width: width(leaf.max_rep_level()),
                definitions: width(leaf.max_def_level()),
                kind: leaf.physical_type(),
                skips: self.skips,
                left: rows as u64,
                group: at,
                miscounted: self.miscounted.clone(),
            })
        };
        Some(SerializedPageReader::new(Arc::clone(&self.file), column, rows, pages).map(checked))
    }
}

impl<R: ChunkReader + 'static> PageIterator for Chunks<R> {}

/// A chunk's pages.
struct Checked<P> {
    inner: P,
    /// Bits of a repetition level, and of a definition level; 0 where there are none.
    width: u32,
    definitions: u32,
    kind: Type,
    skips: bool,
    /// Rows of the row group that no page has had, where there are no levels.
    left: u64,
    group: usize,
    miscounted: Miscounted,
}

impl<P> Checked<P> {
    /// Books a page of this many rows.
    fn pass(&mut self, rows: u64) -> Result<(), ParquetError> {
        let left = self.left.checked_sub(rows).ok_or_else(|| {
            self.miscounted.set(Some(self.group));
            let message = format!("a page has {rows} rows, and its row group has {} more", self.left);
            ParquetError::General(message)
        })?;
        self.left = left;
        Ok(())
    }

    /// Looks through the lengths of a page of texts.
    fn texts(&self, page: Page) -> Result<Page, ParquetError> {
        let (buf, values, encoding) = match &page {
            Page::DataPage {
                buf,
                num_values,
                encoding,
                ..
            }
            | Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                ..
            } => (buf, u64::from(*num_values), *encoding),
            Page::DictionaryPage { .. } => return Ok(page),
        };
        // Without its levels the crate takes no page.
        let Some(texts) = self.values_at(&page).and_then(|at| buf.get(at..)) else {
            return Ok(page);
        };
        let bounded = |lengths: Option<Lengths>| match lengths {
            Some(Lengths { count, .. }) if count > values => {
                let message = format!("a page of {values} values has {count} lengths");
                Err(ParquetError::General(message))
            }
            _ => Ok(()),
        };
        match encoding {
            Encoding::PLAIN if self.skips && self.kind == Type::BYTE_ARRAY => {
                let end = buf.len() - texts.len() + whole(texts);
                return Ok(cut(page, end));
            }
            Encoding::DELTA_LENGTH_BYTE_ARRAY => bounded(Lengths::of(texts))?,
            Encoding::DELTA_BYTE_ARRAY => {
                let shared = Lengths::of(texts);
                bounded(shared)?;
                let own = shared.and_then(|shared| texts.get(shared.end?..));
                bounded(own.and_then(Lengths::of))?;
            }
            _ => {}
        }
        Ok(page)
    }

    /// Where the values of a page begin.
    fn values_at(&self, page: &Page) -> Option<usize> {
        match page {
            Page::DataPage {
                buf,
                num_values,
                def_level_encoding,
                rep_level_encoding,
                ..
            } => {
                let levels = [(self.width, rep_level_encoding), (self.definitions, def_level_encoding)];
                levels.iter().try_fold(0, |at: usize, (width, encoding)| {
                    let bytes = match encoding {
                        _ if *width == 0 => 0,
                        Encoding::RLE => {
                            let len = buf.get(at..)?.first_chunk()?;
                            usize::try_from(u32::from_le_bytes(*len)).ok()?.checked_add(4)?
                        }
                        _ => usize::try_from((u64::from(*num_values) * u64::from(*width)).div_ceil(8)).ok()?,
                    };
                    at.checked_add(bytes)
                })
            }
            Page::DataPageV2 {
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => usize::try_from(u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len)).ok(),
            Page::DictionaryPage { .. } => None,
        }
    }
}

/// What stands in front of lengths that are packed as differences (Parquet's `DELTA_BINARY_PACKED`).
#[derive(Clone, Copy)]
struct Lengths {
    count: u64,
    /// Behind the last of them, if they are all there.
    end: Option<usize>,
}

impl Lengths {
    fn of(data: &[u8]) -> Option<Self> {
        let mut rest = data;
        let [block, minis, count] = [
            varint(&mut rest).ok()?,
            varint(&mut rest).ok()?,
            varint(&mut rest).ok()?,
        ];
        let mut blocks = || {
            varint(&mut rest).ok()?;
            let (per, mut left) = (block.checked_div(minis)?, count.saturating_sub(1));
            while left > 0 {
                varint(&mut rest).ok()?;
                let (widths, packed) = rest.split_at_checked(usize::try_from(minis).ok()?)?;
                let mut bytes = 0_u64;
                for width in widths {
                    // Those behind the last value have none, whatever their widths are.
                    if left > 0 {
                        bytes = bytes.checked_add(per.checked_mul(u64::from(*width))? / 8)?;
                    }
                    left = left.saturating_sub(per);
                }
                if per == 0 {
                    return None;
                }
                rest = packed.get(usize::try_from(bytes).ok()?..)?;
            }
            Some(data.len() - rest.len())
        };
        Some(Self { count, end: blocks() })
    }
}

/// Bytes of those texts, each behind its length in four bytes, that are whole.
fn whole(texts: &[u8]) -> usize {
    let mut rest = texts;
    while let Some((len, behind)) = rest.split_first_chunk()
        && let Ok(len) = usize::try_from(u32::from_le_bytes(*len))
        && let Some(behind) = behind.get(len..)
    {
        rest = behind;
    }
    texts.len() - rest.len()
}

/// A page's first bytes.
fn cut(mut page: Page, end: usize) -> Page {
    match &mut page {
        Page::DataPage { buf, .. } | Page::DataPageV2 { buf, .. } | Page::DictionaryPage { buf, .. } => {
            buf.truncate(end);
        }
    }
    page
}

impl<P: PageReader> PageReader for Checked<P> {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let mut page = self.inner.get_next_page()?;
        match &page {
            Some(page) if self.width > 0 => check(page, self.width)?,
            Some(Page::DataPage { num_values, .. } | Page::DataPageV2 { num_values, .. }) => {
                self.pass(u64::from(*num_values))?;
            }
            None if self.width == 0 && self.left > 0 => {
                self.miscounted.set(Some(self.group));
                let message = format!("the pages of a column end {} rows before its row group", self.left);
                return Err(ParquetError::General(message));
            }
            _ => {}
        }
        if matches!(self.kind, Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY) {
            page = page.map(|page| self.texts(page)).transpose()?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        if self.width == 0
            && let Some(page) = self.inner.peek_next_page()?
            && !page.is_dict
        {
            // What the crate takes for the rows that it has passed.
            let rows = page.num_rows.or(page.num_levels).unwrap_or(0);
            self.pass(rows as u64)?;
        }
        self.inner.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.inner.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>, ParquetError> {
        self.inner.take_deferred_dictionary()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.inner.at_record_boundary()
    }
}

impl<P: PageReader> Iterator for Checked<P> {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

fn check(page: &Page, width: u32) -> Result<(), ParquetError> {
    let (values, levels) = match page {
        // Their length stands in front of them.
        Page::DataPage {
            buf,
            num_values,
            rep_level_encoding: Encoding::RLE,
            ..
        } => {
            let levels = buf.split_first_chunk().and_then(|(len, rest)| {
                let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
                rest.get(..len)
            });
            (*num_values, levels.map(|levels| count(levels, width)))
        }
        Page::DataPage { buf, num_values, .. } => (*num_values, Some(buf.len() as u64 * 8 / u64::from(width))),
        Page::DataPageV2 {
            buf,
            num_values,
            rep_levels_byte_len,
            ..
        } => {
            let len = usize::try_from(*rep_levels_byte_len).unwrap_or(usize::MAX);
            (*num_values, buf.get(..len).map(|levels| count(levels, width)))
        }
        Page::DictionaryPage { .. } => return Ok(()),
    };
    let found = levels.unwrap_or(0);
    if found < u64::from(values) {
        let message = format!("a page of {values} values has {found} repetition levels");
        return Err(ParquetError::General(message));
    }
    Ok(())
}

/// How many levels there are in runs and packed groups (Parquet's "RLE/bit-packing hybrid"), as far as the crate reads them: to a head of 0,
/// which some writers pad with.
fn count(mut data: &[u8], width: u32) -> u64 {
    let mut found = 0_u64;
    while let Some(head) = varint(&mut data).ok().filter(|head| *head > 0) {
        let many = head >> 1;
        let (levels, bytes) = if head & 1 == 1 {
            // Groups of eight; writers may cut off the last one.
            let bytes = many.saturating_mul(u64::from(width)).min(data.len() as u64);
            (bytes * 8 / u64::from(width), bytes)
        } else {
            (many, u64::from(width.div_ceil(8)))
        };
        let Some(rest) = usize::try_from(bytes).ok().and_then(|bytes| data.get(bytes..)) else {
            break;
        };
        found = found.saturating_add(levels);
        data = rest;
    }
    found
}
