//! Names of members, and what keys and fields are made of them.

use std::borrow::Cow;

/// Characters that stand for bytes which are not UTF-8: U+EF80 for 0x80 to U+EFFF for 0xFF.
const ESCAPES: std::ops::RangeInclusive<char> = '\u{ef80}'..='\u{efff}';

/// How names that are not UTF-8 become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Names {
    /// Names are UTF-8. A byte `b` that is not is written as the character U+EF00 + `b` (a place in the private use area), and so are the
    /// bytes of such characters themselves: different names stay different, text can be printed, and [`name_bytes`] gives the bytes back.
    #[default]
    Utf8,
    /// Names that are not UTF-8 as a whole are read as ISO 8859-1.
    Latin1,
}

/// The bytes that a name was made of, when names are read as [`Names::Utf8`].
///
/// ```
/// use feedrate::source::tar::name_bytes;
///
/// assert_eq!(name_bytes("caf\u{efe9}"), b"caf\xe9");
/// ```
pub fn name_bytes(name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len());
    for c in name.chars() {
        if ESCAPES.contains(&c) {
            bytes.push((u32::from(c) & 0xff) as u8);
        } else {
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    bytes
}

/// A name as text.
pub(super) fn text(name: &[u8], names: Names) -> Cow<'_, str> {
    let whole = std::str::from_utf8(name);
    match (whole, names) {
        (Ok(text), _) if name.is_ascii() || !text.contains(|c| ESCAPES.contains(&c)) => Cow::Borrowed(text),
        (Err(_), Names::Latin1) => Cow::Owned(name.iter().copied().map(char::from).collect()),
        _ => {
            let mut text = String::with_capacity(name.len() + 8);
            for chunk in name.utf8_chunks() {
                for c in chunk.valid().chars() {
                    if ESCAPES.contains(&c) {
                        c.encode_utf8(&mut [0; 4])
                            .bytes()
                            .for_each(|byte| text.push(escaped(byte)));
                    } else {
                        text.push(c);
                    }
                }
                chunk.invalid().iter().for_each(|byte| text.push(escaped(*byte)));
            }
            Cow::Owned(text)
        }
    }
}

fn escaped(byte: u8) -> char {
    char::from_u32(0xef00 + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Where a name is split into key and field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Split {
    /// At the first dot of the base name, as WebDataset has it: `a/1.seg.png` is field `seg.png` of `a/1`.
    #[default]
    FirstDot,
    /// At the last dot of the base name: `a/1.seg.png` is field `png` of `a/1.seg`.
    LastDot,
}

/// Without leading `./` and `/`.
pub(super) fn trimmed(mut name: &[u8]) -> &[u8] {
    loop {
        name = match name {
            [b'.', b'/', rest @ ..] | [b'/', rest @ ..] => rest,
            _ => return name,
        };
    }
}

/// Key and field of a trimmed name, the field as it is written; `None` if there is no dot to split at, or nothing before it.
pub(super) fn split(name: &[u8], at: Split) -> Option<(&[u8], &[u8])> {
    let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = match at {
        Split::FirstDot => name[base..].iter().position(|byte| *byte == b'.'),
        Split::LastDot => name[base..].iter().rposition(|byte| *byte == b'.'),
    };
    let dot = base + dot.filter(|dot| *dot > 0)?;
    Some((&name[..dot], &name[dot + 1..]))
}

/// Whether a trimmed name is none of the data: its base name begins with a dot (`._a.jpg`, `.DS_Store`), its first component is written
/// `__so__` (metadata, by WebDataset's rule), or a component is `__MACOSX`.
pub(super) fn is_hidden(name: &[u8]) -> bool {
    let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    if name.get(base) == Some(&b'.') {
        return true;
    }
    if !name.windows(2).any(|pair| pair == b"__") {
        return false;
    }
    let mut parts = name.split(|byte| *byte == b'/');
    let meta = parts
        .clone()
        .next()
        .is_some_and(|first| first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__"));
    meta || parts.any(|part| part == b"__MACOSX")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_and_fields() {
        let cases: [(&str, Option<(&str, &str)>); 8] = [
            ("a.jpg", Some(("a", "jpg"))),
            ("v1.0/Track 2.0.mp3", Some(("v1.0/Track 2", "0.mp3"))),
            ("a/b.seg.png", Some(("a/b", "seg.png"))),
            ("noext", None),
            ("d.x/noext", None),
            (".hidden", None),
            ("d/.hidden.jpg", None),
            ("a.", Some(("a", ""))),
        ];
        for (name, right) in cases {
            let right = right.map(|(key, field)| (key.as_bytes(), field.as_bytes()));
            assert_eq!(split(name.as_bytes(), Split::FirstDot), right, "{name}");
        }
        assert_eq!(
            split(b"a/b.seg.png", Split::LastDot),
            Some((&b"a/b.seg"[..], &b"png"[..]))
        );
    }

    #[test]
    fn hidden_names() {
        for name in [
            "._a.jpg",
            ".DS_Store",
            "__MACOSX/a.jpg",
            "x/__MACOSX/a.jpg",
            "d/.a.jpg",
            "__meta__/x.json",
            "__x__",
        ] {
            assert!(is_hidden(name.as_bytes()), "{name}");
        }
        for name in ["a.jpg", "__a.jpg", "d/__init__.py", ".git/x.jpg", "a__b.jpg"] {
            assert!(!is_hidden(name.as_bytes()), "{name}");
        }
        assert_eq!(trimmed(b".//./a/./b"), b"a/./b");
    }

    proptest! {
        #[test]
        fn text_gives_its_bytes_back(name in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(name_bytes(&text(&name, Names::Utf8)), name);
        }

        #[test]
        fn usual_names_stay(name in "[a-zA-Z0-9é猫 ._/]*") {
            prop_assert_eq!(text(name.as_bytes(), Names::Utf8), name.as_str());
        }
    }

    #[test]
    fn odd_names() {
        assert_eq!(text("\u{ef80}".as_bytes(), Names::Utf8).chars().count(), 3);
        assert_eq!(
            name_bytes(&text("\u{ef80}".as_bytes(), Names::Utf8)),
            "\u{ef80}".as_bytes()
        );
        assert_eq!(text(b"caf\xe9", Names::Latin1), "café");
        assert_eq!(text("café".as_bytes(), Names::Latin1), "café");
    }
}
