//! Where samples begin.

use std::collections::HashMap;

use super::reader::TarReader;
use crate::source::SourceError;
use crate::source::index::Index;

/// By one pass over the headers of samples that lie together.
pub(super) fn consecutive(reader: &mut TarReader) -> Result<Index, SourceError> {
    let mut offsets = Vec::new();
    reader.members().hop(true);
    loop {
        // What is passed over by choice lies in front of the next sample, or of the end.
        let mark = reader.place();
        SourceError::unless_interrupted(reader.name())?;
        match reader.group(false) {
            None => {
                offsets.push(mark.offset);
                break;
            }
            Some(Err(error)) if !error.may_continue() => return Err(error),
            Some(_) if reader.place().number == mark.number => {}
            Some(_) => offsets.push(mark.offset),
        }
    }
    Ok(Index {
        offsets,
        firsts: Vec::new(),
    })
}

/// By one pass over the headers, of samples whose members may lie apart.
pub(super) fn scattered(reader: &mut TarReader) -> Result<Index, SourceError> {
    let mut numbers: HashMap<Vec<u8>, usize> = HashMap::new();
    // Where the members of each are, and what fields they are.
    let mut samples: Vec<(Vec<u64>, Vec<String>)> = Vec::new();
    while reader.next_member()? {
        SourceError::unless_interrupted(reader.name())?;
        let offset = reader.members().member().offset;
        reader.members().pass_over()?;
        let known = numbers.get(reader.raw_key()).copied();
        let number = known.unwrap_or_else(|| {
            numbers.insert(reader.raw_key().to_vec(), samples.len());
            samples.push((Vec::new(), Vec::new()));
            samples.len() - 1
        });
        samples[number].0.push(offset);
        samples[number].1.push(reader.raw_field());
    }
    let mut firsts = vec![0];
    let mut offsets = Vec::new();
    for (members, fields) in samples {
        if reader.skips(&fields) {
            continue;
        }
        offsets.extend(members);
        firsts.push(offsets.len() as u64);
    }
    Ok(Index { offsets, firsts })
}
