//! Braces and wildcards in names.

use crate::source::{Fault, SourceError};

/// No pattern may stand for more names than this.
const MOST: usize = 1 << 22;

/// Writes out `{0000..0009}`, `{9..0}`, `{a,b,c}` and their nesting, as a shell does: numbers keep their leading zeros, both ends belong to
/// the range, and a brace that is neither a range nor a list stands for itself. Errors: a pattern of more than about four million names.
///
/// ```
/// use feedrate::store::braces;
///
/// assert_eq!(braces("s-{08..10}.tar")?, ["s-08.tar", "s-09.tar", "s-10.tar"]);
/// assert_eq!(braces("{train,val{1..2}}/x")?, ["train/x", "val1/x", "val2/x"]);
/// assert_eq!(braces("plain{}.tar")?, ["plain{}.tar"]);
/// # Ok::<(), feedrate::source::SourceError>(())
/// ```
pub fn braces(pattern: &str) -> Result<Vec<String>, SourceError> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some(open) = rest.find('{') {
        let inside = &rest[open + 1..];
        let group = closing(inside).and_then(|close| {
            let choices = choices(&inside[..close], pattern)?;
            Some((close, choices))
        });
        if let Some((close, choices)) = group {
            let choices = choices?;
            if names.len().saturating_mul(choices.len()) > MOST {
                return Err(too_many(pattern));
            }
            append(&mut names, &rest[..open]);
            names = names
                .iter()
                .flat_map(|name| choices.iter().map(move |choice| format!("{name}{choice}")))
                .collect();
            rest = &inside[close + 1..];
        } else {
            append(&mut names, &rest[..=open]);
            rest = inside;
        }
    }
    append(&mut names, rest);
    Ok(names)
}

fn append(names: &mut [String], text: &str) {
    for name in names {
        name.push_str(text);
    }
}

fn too_many(pattern: &str) -> SourceError {
    let message = format!("the braces stand for more than {MOST} names");
    SourceError::new(Fault::TooLarge, pattern, message)
}

/// Where the brace that was opened before `text` closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// What the text between braces stands for; `None` if for itself.
fn choices(inside: &str, pattern: &str) -> Option<Result<Vec<String>, SourceError>> {
    if let Some((first, last)) = inside.split_once("..")
        && let Some(names) = range(first, last, pattern)
    {
        return Some(names);
    }
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_usize, 0);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&inside[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    if parts.is_empty() {
        return None;
    }
    parts.push(&inside[from..]);
    let mut all = Vec::new();
    for part in parts {
        match braces(part) {
            Ok(names) => all.extend(names),
            Err(_) => return Some(Err(too_many(pattern))),
        }
    }
    Some(Ok(all))
}

fn range(first: &str, last: &str, pattern: &str) -> Option<Result<Vec<String>, SourceError>> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(first) || !digits(last) {
        return None;
    }
    let (from, to) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    if from.abs_diff(to) >= MOST as u64 {
        return Some(Err(too_many(pattern)));
    }
    let padded = |text: &str| text.len() > 1 && text.starts_with('0');
    let width = if padded(first) || padded(last) {
        first.len().max(last.len())
    } else {
        0
    };
    let name = |number: u64| format!("{number:0width$}");
    Some(Ok(if from <= to {
        (from..=to).map(name).collect()
    } else {
        (to..=from).rev().map(name).collect()
    }))
}

/// Whether a name has wildcards: `*`, `?`, `[`.
pub(super) fn is_wild(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// Whether one component of a path fits: `*` is any run of characters, `?` one, `[a-c]` and `[!a-c]` one of (or none of) a set. Takes time
/// that is proportional to the product of both lengths at worst.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go back to: behind the last star, and the name's place that it is tried at.
    let mut star = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some('?') => Some(p + 1),
            Some('[') => match set(&pattern[p..], name[n]) {
                Some((true, length)) => Some(p + length),
                Some((false, _)) => None,
                None => (name[n] == '[').then_some(p + 1),
            },
            Some(c) => (*c == name[n]).then_some(p + 1),
            None => None,
        };
        match (step, star) {
            (Some(next), _) => {
                p = next;
                n += 1;
            }
            (None, Some((behind, tried))) => {
                star = Some((behind, tried + 1));
                p = behind;
                n = tried + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Whether the set at the start of `pattern` has `c`, and its length; `None` if the bracket does not close.
fn set(pattern: &[char], c: char) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let first = 1 + usize::from(negated);
    let close = first + 1 + pattern.get(first + 1..)?.iter().position(|c| *c == ']')?;
    let inside = &pattern[first..close];
    let (mut at, mut found) = (0, false);
    while at < inside.len() {
        if at + 2 < inside.len() && inside[at + 1] == '-' {
            found |= (inside[at]..=inside[at + 2]).contains(&c);
            at += 3;
        } else {
            found |= inside[at] == c;
            at += 1;
        }
    }
    Some((found != negated, close + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_keep_their_zeros_and_run_both_ways() {
        assert_eq!(braces("{3..1}").unwrap(), ["3", "2", "1"]);
        assert_eq!(braces("{0..2}-{a,b}").unwrap().len(), 6);
        assert_eq!(braces("{00..10}").unwrap()[9], "09");
        assert_eq!(braces("a{b").unwrap(), ["a{b"]);
        assert_eq!(braces("a}b").unwrap(), ["a}b"]);
        assert_eq!(braces("{,x}").unwrap(), ["", "x"]);
        assert_eq!(braces("{a..c}").unwrap(), ["{a..c}"]);
        assert_eq!(braces("{{1..2},9}").unwrap(), ["1", "2", "9"]);
        assert!(braces("{0..99999999}").is_err());
        assert!(braces("{0..9999}{0..9999}").is_err());
    }

    #[test]
    fn wildcards_fit_as_in_a_shell() {
        for (pattern, name, right) in [
            ("*.tar", "a.tar", true),
            ("*.tar", "a.tar.gz", false),
            ("a*b*c", "aXbYbZc", true),
            ("?", "é", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[", "[", true),
            ("[x", "[x", true),
            ("", "", true),
            ("**", "", true),
        ] {
            assert_eq!(fits(pattern, name), right, "{pattern} {name}");
        }
        assert!(!fits(&"*a".repeat(40), &"a".repeat(30)));
    }
}
