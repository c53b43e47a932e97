//! EXIF: the orientation and nothing else. A block that is broken says nothing; it never fails an image.

use memchr::memmem;

const ORIENTATION: u16 = 0x0112;

/// The orientation (1 to 8) of an EXIF block, which begins with a TIFF header; `Exif\0\0` may stand before it.
pub(super) fn orientation(block: &[u8]) -> Option<u8> {
    let mut tiff = block;
    while let Some(rest) = tiff.strip_prefix(b"Exif\0\0") {
        tiff = rest;
    }
    let order = match tiff.get(..4)? {
        b"II*\0" => Order::Little,
        b"MM\0*" => Order::Big,
        _ => return None,
    };
    let directory = usize::try_from(order.u32(tiff, 4)?).ok()?;
    let entries = usize::from(order.u16(tiff, directory)?);
    for entry in 0..entries {
        let at = directory.checked_add(2 + entry * 12)?;
        if order.u16(tiff, at)? != ORIENTATION {
            continue;
        }
        if order.u32(tiff, at + 4)? != 1 {
            return None;
        }
        // Byte, short, long; as they come.
        let value = match order.u16(tiff, at + 2)? {
            1 => u32::from(*tiff.get(at + 8)?),
            3 => u32::from(order.u16(tiff, at + 8)?),
            4 => order.u32(tiff, at + 8)?,
            _ => return None,
        };
        return legal(value);
    }
    None
}

/// The orientation that XMP says, for files without one in EXIF.
pub(super) fn orientation_of_xmp(xmp: &[u8]) -> Option<u8> {
    let name = b"tiff:Orientation";
    memmem::find_iter(xmp, name).find_map(|at| {
        let rest = &xmp[at + name.len()..];
        let rest = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"))?;
        let digit = *rest.first()?;
        digit.is_ascii_digit().then(|| legal(u32::from(digit - b'0')))
    })?
}

fn legal(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|value| (1..=8).contains(value))
}

#[derive(Clone, Copy)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let two = bytes.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(two),
            Self::Big => u16::from_be_bytes(two),
        })
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let four = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(four),
            Self::Big => u32::from_be_bytes(four),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(big: bool, kind: u16, value: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let two = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let four = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        bytes.extend_from_slice(if big { b"MM\0*" } else { b"II*\0" });
        bytes.extend_from_slice(&four(8));
        bytes.extend_from_slice(&two(2));
        for (tag, kind, value) in [(0x010f, 3, 7), (ORIENTATION, kind, value)] {
            bytes.extend_from_slice(&two(tag));
            bytes.extend_from_slice(&two(kind));
            bytes.extend_from_slice(&four(1));
            match kind {
                3 => {
                    bytes.extend_from_slice(&two(u16::try_from(value).unwrap()));
                    bytes.extend_from_slice(&[0, 0]);
                }
                _ => bytes.extend_from_slice(&four(value)),
            }
        }
        bytes
    }

    #[test]
    fn all_values_in_both_orders() {
        for big in [false, true] {
            for value in 1..=8 {
                for kind in [3, 4] {
                    let plain = block(big, kind, value);
                    let expected = u8::try_from(value).ok();
                    assert_eq!(orientation(&plain), expected);
                    assert_eq!(orientation(&[b"Exif\0\0", &plain[..]].concat()), expected);
                }
            }
            for value in [0, 9, 260] {
                assert_eq!(orientation(&block(big, 3, value)), None);
            }
        }
    }

    #[test]
    fn a_broken_block_says_nothing() {
        let whole = block(true, 3, 6);
        for len in 0..whole.len() - 4 {
            assert_eq!(orientation(&whole[..len]), None, "{len}");
        }
        let mut far = whole.clone();
        far[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(orientation(&far), None);
    }

    #[test]
    fn xmp() {
        assert_eq!(orientation_of_xmp(b"<x tiff:Orientation=\"6\"/>"), Some(6));
        assert_eq!(orientation_of_xmp(b"<tiff:Orientation>3</tiff:Orientation>"), Some(3));
        assert_eq!(orientation_of_xmp(b"<tiff:Orientation>9</tiff:Orientation>"), None);
        assert_eq!(orientation_of_xmp(b"tiff:Orientation"), None);
    }
}
