//! What can be chosen when archives are read.

use super::{Names, Split};

/// Which members make one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Grouping {
    /// Members of the same key that follow each other, as WebDataset has it. A key that comes again later in the shard is an error, unless
    /// [`Tar::repeats`](super::Tar::repeats) allows it.
    #[default]
    Consecutive,
    /// Each file is a sample: its key is its whole name, its field is called `bytes`.
    Whole,
    /// All members of the same key, wherever they lie. Takes one pass over the headers first, and jumps while reading, so that a compressed
    /// shard is refused. Samples come in the order of their first members.
    Scattered,
}

/// What becomes of a field that comes twice in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Duplicates {
    /// An error that names shard and member; the next sample can be read.
    #[default]
    Error,
    /// The first stays.
    First,
    /// The last stays, at the place of the first.
    Last,
}

/// What becomes of a sample that lacks a field that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Missing {
    /// An error that says which fields there are; the next sample can be read.
    #[default]
    Error,
    /// It is passed over, counted in [`Notes`](super::Notes), and is no record.
    Skip,
    /// It comes without the field.
    Leave,
}

/// When an archive that ends without the zeros that should end it is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EndMark {
    /// Archives without any of the zeros are right, if their last sample has at least the fields of the shard's first. Otherwise the last sample
    /// may have lost members, and the archive counts as truncated; so does one with a single sample, and one that ends within a block.
    #[default]
    Checked,
    /// An archive without zeros at its end is truncated.
    Required,
    /// An archive that ends behind a member is right.
    Optional,
}

/// A field that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    /// What it is called in the sample; `None` for what it is called in the archive.
    pub(super) name: Option<String>,
    /// Any of these, in lower case.
    pub(super) of: Vec<String>,
}

impl Field {
    /// `jpg`, `jpg;png`, or `image=jpg;png`.
    pub(super) fn parse(text: &str) -> Self {
        let (name, of) = match text.split_once('=') {
            Some((name, of)) => (Some(name.trim().to_owned()), of),
            None => (None, text),
        };
        let of = of
            .split(';')
            .map(|one| one.trim().trim_start_matches('.').to_lowercase());
        Self { name, of: of.collect() }
    }

    pub(super) fn describe(&self) -> String {
        match &self.name {
            Some(name) => format!("{name}={}", self.of.join(";")),
            None => self.of.join(";"),
        }
    }
}

/// All that can be chosen.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct Options {
    pub(super) grouping: Grouping,
    pub(super) split: Split,
    pub(super) names: Names,
    pub(super) duplicates: Duplicates,
    pub(super) missing: Missing,
    pub(super) end: EndMark,
    pub(super) fields: Option<Vec<Field>>,
    pub(super) repeats: bool,
    pub(super) hidden: bool,
    pub(super) past_end: bool,
    pub(super) url: bool,
    pub(super) decompress: bool,
    pub(super) max_sample_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            grouping: Grouping::default(),
            split: Split::default(),
            names: Names::default(),
            duplicates: Duplicates::default(),
            missing: Missing::default(),
            end: EndMark::default(),
            fields: None,
            repeats: false,
            hidden: false,
            past_end: false,
            url: true,
            decompress: false,
            max_sample_bytes: 1 << 30,
        }
    }
}

impl Options {
    /// What decides where samples begin: an index made with other choices is of no use.
    pub(super) fn layout(&self) -> String {
        let mut text = format!(
            "{:?} {:?} hidden={} past_end={} repeats={}",
            self.grouping, self.split, self.hidden, self.past_end, self.repeats
        );
        if self.missing == Missing::Skip {
            text += " only=";
            text += &self.fields_text();
        }
        text
    }

    fn fields_text(&self) -> String {
        let fields = self.fields.iter().flatten().map(Field::describe);
        fields.collect::<Vec<_>>().join(",")
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{} {:?} {:?} {:?} {:?} url={} decompress={} max_sample_bytes={} fields={}",
            self.layout(),
            self.names,
            self.duplicates,
            self.missing,
            self.end,
            self.url,
            self.decompress,
            self.max_sample_bytes,
            if self.fields.is_some() {
                self.fields_text()
            } else {
                "all".to_owned()
            },
        )
    }
}
