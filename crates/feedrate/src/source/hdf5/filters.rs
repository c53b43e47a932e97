//! What chunks are packed by.

use hdf5_reader::FilterRegistry;
use hdf5_reader::error::Error;

/// h5py's own filter, which the crate has not.
const LZF: u16 = 32000;

/// All that are read: deflate, shuffle, Fletcher's checksum, szip, N-bit, scale and offset; LZF.
pub(super) fn registry() -> FilterRegistry {
    let mut registry = FilterRegistry::new();
    registry.register(
        LZF,
        Box::new(|_, packed, _| lzf(packed).ok_or_else(|| Error::DecompressionError("the LZF data is damaged".into()))),
    );
    registry
}

/// What a filter that is not read is called.
pub(super) fn called(id: u16) -> Option<&'static str> {
    Some(match id {
        305 => "LZO",
        307 => "bzip2",
        32001 => "Blosc",
        32004 => "LZ4",
        32008 => "bitshuffle",
        32013 => "ZFP",
        32015 => "Zstandard",
        32026 => "Blosc 2",
        _ => return None,
    })
}

/// A byte above 31 stands for a copy of what came before, a smaller one for that many bytes and one more. So little becomes at most 88 times
/// as much.
fn lzf(packed: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(packed.len().saturating_mul(2));
    let mut rest = packed;
    let byte = |rest: &mut &[u8]| {
        let (first, behind) = rest.split_first()?;
        *rest = behind;
        Some(usize::from(*first))
    };
    while !rest.is_empty() {
        let control = byte(&mut rest)?;
        if control < 32 {
            let (literal, behind) = rest.split_at_checked(control + 1)?;
            out.extend_from_slice(literal);
            rest = behind;
            continue;
        }
        let mut len = control >> 5;
        if len == 7 {
            len += byte(&mut rest)?;
        }
        let back = ((control & 31) << 8) + byte(&mut rest)? + 1;
        let from = out.len().checked_sub(back)?;
        for at in from..from + len + 2 {
            out.push(out[at]);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lzf_copies_and_repeats() {
        assert_eq!(lzf(b"\x02abc\x20\x02").as_deref(), Some(&b"abcabc"[..]));
        assert_eq!(lzf(b"\x00x\xe0\x03\x00").as_deref(), Some(&[b'x'; 13][..]));
        assert_eq!(lzf(b"").as_deref(), Some(&b""[..]));
        for damaged in [&b"\x02ab"[..], b"\x00x\x20\x01", b"\x00x\xe0", b"\x20"] {
            assert_eq!(lzf(damaged), None, "{damaged:?}");
        }
    }
}
