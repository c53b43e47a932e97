//! One block of 512 bytes that describes a member.

/// Size of a block: headers take one, bodies are padded to a multiple.
pub(super) const BLOCK: usize = 512;

/// What kind of member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An ordinary file.
    File,
    /// An ordinary file with holes, in the old format of GNU tar.
    OldSparse,
    /// The next member's name is the body.
    LongName,
    /// The next member's target is the body; of no use here.
    LongLink,
    /// Records for the next member.
    Pax,
    /// Records for all members behind it.
    PaxGlobal,
    /// A folder, link or device: it has no body, whatever its size says.
    NoBody,
    /// Something else, with a body that is passed over.
    Other,
}

/// What the block says. Names are bytes as they stand.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header<'a> {
    pub(super) kind: Kind,
    /// Bytes of the body in the archive, without padding.
    pub(super) stored: u64,
    /// In the format of POSIX, where a prefix stands before the name.
    prefix: &'a [u8],
    name: &'a [u8],
}

/// What is wrong with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadHeader {
    Checksum { said: u64, is: u64 },
    Number(&'static str),
}

impl std::fmt::Display for BadHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Checksum { said, is } => write!(
                f,
                "this is no tar header: its checksum is {is} where it says {said}; the archive is damaged here or before"
            ),
            Self::Number(field) => write!(f, "the {field} in the tar header is no number"),
        }
    }
}

impl<'a> Header<'a> {
    /// Reads a block, checking its sum.
    pub(super) fn parse(block: &'a [u8; BLOCK]) -> Result<Self, BadHeader> {
        let bad = BadHeader::Number("checksum");
        let said = number(&block[148..156]).ok_or(bad)?;
        let field: u32 = block[148..156].iter().copied().map(u32::from).sum();
        let sum: u32 = block.iter().copied().map(u32::from).sum();
        let is = u64::from(sum - field + 8 * u32::from(b' '));
        if said != is && Some(said) != signed_sum(block) {
            return Err(BadHeader::Checksum { said, is });
        }
        let name = until_nul(&block[..100]);
        let kind = match block[156] {
            // Before types, a folder was a file whose name ends so.
            0 if name.ends_with(b"/") => Kind::NoBody,
            0 | b'0' | b'7' => Kind::File,
            b'1'..=b'6' => Kind::NoBody,
            b'S' => Kind::OldSparse,
            b'L' => Kind::LongName,
            b'K' => Kind::LongLink,
            b'x' | b'X' => Kind::Pax,
            b'g' => Kind::PaxGlobal,
            _ => Kind::Other,
        };
        let stored = number(&block[124..136]).ok_or(BadHeader::Number("size"))?;
        // GNU's magic ends in spaces, and the prefix's place holds other things there.
        let posix = &block[257..263] == b"ustar\0";
        let prefix = if posix { until_nul(&block[345..500]) } else { &[] };
        Ok(Self {
            kind,
            stored,
            prefix,
            name,
        })
    }

    /// Writes the whole name.
    pub(super) fn name_into(&self, name: &mut Vec<u8>) {
        name.clear();
        if !self.prefix.is_empty() {
            name.extend_from_slice(self.prefix);
            name.push(b'/');
        }
        name.extend_from_slice(self.name);
    }
}

/// Some old tools summed the bytes as signed.
fn signed_sum(block: &[u8; BLOCK]) -> Option<u64> {
    let signed = |byte: &u8| i64::from(byte.cast_signed());
    let sum: i64 = block.iter().map(signed).sum();
    let field: i64 = block[148..156].iter().map(signed).sum();
    u64::try_from(sum - field + 8 * i64::from(b' ')).ok()
}

pub(super) fn until_nul(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
}

/// Octal digits among spaces and zeros, or a large number in base 256. An empty field is 0.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    if let Some((first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        // Negative ones begin with 0xff; nothing here is negative.
        let mut value = u64::from(first & 0x7f);
        for byte in rest {
            value = value.checked_mul(256)? | u64::from(*byte);
        }
        return i64::try_from(value).is_ok().then_some(value);
    }
    let digits = field.trim_ascii_start();
    let mut value = 0_u64;
    for (at, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'7' => value = value.checked_mul(8)? | u64::from(byte - b'0'),
            b' ' | 0 => {
                let rest = &digits[at..];
                return rest.iter().all(|byte| matches!(byte, b' ' | 0)).then_some(value);
            }
            _ => return None,
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_all_their_forms() {
        for (field, value) in [
            (&b"0000017\0"[..], Some(15)),
            (b"   17 \0", Some(15)),
            (b"17", Some(15)),
            (b"\0\0\0\0", Some(0)),
            (b"", Some(0)),
            (b"18", None),
            (b"1 7", None),
            (b"-1", None),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\x02", Some(258)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"77777777777", Some(0o77_777_777_777)),
        ] {
            assert_eq!(number(field), value, "{field:?}");
        }
    }
}
