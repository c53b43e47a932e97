//! Parquet's pages, looked at before they are decoded.

use std::sync::Arc;

use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::Encoding;
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
///   values of others.
pub(super) struct Counted<R> {
    pub(super) file: Arc<R>,
    pub(super) metadata: Arc<ParquetMetaData>,
    pub(super) groups: Vec<usize>,
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
        let most = column.column_descr().max_rep_level().unsigned_abs();
        let checked = |inner| -> Box<dyn PageReader> {
            Box::new(Checked {
                inner,
                width: u16::BITS - most.leading_zeros(),
                left: rows as u64,
            })
        };
        Some(SerializedPageReader::new(Arc::clone(&self.file), column, rows, pages).map(checked))
    }
}

impl<R: ChunkReader + 'static> PageIterator for Chunks<R> {}

/// A chunk's pages.
struct Checked<P> {
    inner: P,
    /// Bits of a repetition level; 0 where there are none.
    width: u32,
    /// Rows of the row group that no page has had, where there are no levels.
    left: u64,
}

impl<P> Checked<P> {
    /// Books a page of this many rows.
    fn pass(&mut self, rows: u64) -> Result<(), ParquetError> {
        let left = self.left.checked_sub(rows).ok_or_else(|| {
            let message = format!("a page has {rows} rows, and its row group has {} more", self.left);
            ParquetError::General(message)
        })?;
        self.left = left;
        Ok(())
    }
}

impl<P: PageReader> PageReader for Checked<P> {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.inner.get_next_page()?;
        match &page {
            Some(page) if self.width > 0 => check(page, self.width)?,
            Some(Page::DataPage { num_values, .. } | Page::DataPageV2 { num_values, .. }) => {
                self.pass(u64::from(*num_values))?;
            }
            None if self.width == 0 && self.left > 0 => {
                let message = format!("the pages of a column end {} rows before its row group", self.left);
                return Err(ParquetError::General(message));
            }
            _ => {}
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
