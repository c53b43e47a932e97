//! What elements are: HDF5's description of a datatype, read by hand, since the crate's own leaves out what tells `float16` from `bfloat16` and
//! a whole number from some bits of one.

use crate::batch::DType;

/// Types within types.
const DEEPEST: usize = 8;
/// Names of an enumeration's members that are looked at.
const MEMBERS: usize = 1 << 16;

/// What an element comes as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Numbers(DType),
    /// Characters of a fixed number of bytes.
    Fixed(Padding, Charset),
    /// Characters that lie elsewhere.
    Text(Charset),
    /// So many numbers that lie elsewhere.
    Ragged(DType),
}

/// What follows the characters of a string that is shorter than its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Padding {
    /// A zero and then anything.
    Ended,
    Zeros,
    Spaces,
}

/// What characters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Charset {
    Ascii,
    Utf8,
}

/// What an element is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) kind: Kind,
    /// Bytes of one as it is stored, without the dimensions of its own.
    pub(super) size: usize,
    /// Whether numbers are in the other byte order than this machine's.
    pub(super) swap: bool,
    /// Dimensions of an array that is one element.
    pub(super) inner: Vec<usize>,
}

/// Why it is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    Damaged(String),
    Unsupported(String),
}

impl Element {
    /// From the bytes of a datatype message. `reference` is the size of what stands for an element that lies elsewhere.
    pub(super) fn read(description: &[u8], reference: usize) -> Result<Self, Refused> {
        Description(description).element(reference, 0)
    }
}

struct Description<'a>(&'a [u8]);

fn unsupported<T>(what: &str) -> Result<T, Refused> {
    Err(Refused::Unsupported(what.to_owned()))
}

impl<'a> Description<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Refused> {
        let Some((taken, rest)) = self.0.split_at_checked(len) else {
            let message = format!("its type's description ends {} bytes early", len - self.0.len());
            return Err(Refused::Damaged(message));
        };
        self.0 = rest;
        Ok(taken)
    }

    /// An unsigned number of some bytes.
    fn number(&mut self, len: usize) -> Result<u64, Refused> {
        let bytes = self.take(len)?;
        Ok(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn count(&mut self, len: usize) -> Result<usize, Refused> {
        self.number(len).map(|n| usize::try_from(n).unwrap_or(usize::MAX))
    }

    /// A name and the zero behind it; before version 3 with zeros up to a multiple of eight.
    fn name(&mut self, version: u8) -> Result<&'a [u8], Refused> {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        let whole = if version < 3 { (len + 8) / 8 * 8 } else { len + 1 };
        self.take(whole).map(|name| &name[..len])
    }

    fn element(&mut self, reference: usize, depth: usize) -> Result<Element, Refused> {
        if depth > DEEPEST {
            return unsupported("its type is nested too deeply");
        }
        let (class, version) = {
            let byte = self.take(1)?[0];
            (byte & 15, byte >> 4)
        };
        let bits = self.number(3)?;
        let size = self.count(4)?;
        let plain = |kind, size, swap| Element {
            kind,
            size,
            swap,
            inner: Vec::new(),
        };
        let other_order = |big: bool| big == cfg!(target_endian = "little");
        match class {
            0 => {
                let (offset, precision) = (self.count(2)?, self.count(2)?);
                let dtype = match (size, bits & 8 != 0) {
                    (1, true) => DType::I8,
                    (1, false) => DType::U8,
                    (2, true) => DType::I16,
                    (2, false) => DType::U16,
                    (4, true) => DType::I32,
                    (4, false) => DType::U32,
                    (8, true) => DType::I64,
                    (8, false) => DType::U64,
                    _ => return unsupported(&format!("its elements are whole numbers of {size} bytes")),
                };
                if offset != 0 || precision != size * 8 {
                    return unsupported(&format!(
                        "its elements are {precision} bits of whole numbers of {size} bytes"
                    ));
                }
                Ok(plain(Kind::Numbers(dtype), size, other_order(bits & 1 != 0)))
            }
            1 => {
                let parts = self.take(8)?;
                let middle = self.number(4)?;
                // Where the exponent and the fraction begin and how long they are, behind the offset and the precision; and which exponent stands for none.
                let layout = [parts[4], parts[5], parts[6], parts[7]];
                let sign = (bits >> 8) & 0xff;
                let dtype = match (size, layout, middle, sign) {
                    (2, [10, 5, 0, 10], 15, 15) => DType::F16,
                    (2, [7, 8, 0, 7], 127, 15) => DType::BF16,
                    (4, [23, 8, 0, 23], 127, 31) => DType::F32,
                    (8, [52, 11, 0, 52], 1023, 63) => DType::F64,
                    _ => return unsupported(&format!("its elements are floats of {size} bytes that are not IEEE's")),
                };
                // Bit 6 with bit 0 is the order of the VAX; bits 4 and 5 say that the fraction's first bit is left out.
                if bits & 0x40 != 0 || (bits >> 4) & 3 != 2 || parts[..2] != [0, 0] {
                    return unsupported("its elements are floats that are not IEEE's");
                }
                Ok(plain(Kind::Numbers(dtype), size, other_order(bits & 1 != 0)))
            }
            3 => {
                let padding = match bits & 15 {
                    0 => Padding::Ended,
                    1 => Padding::Zeros,
                    2 => Padding::Spaces,
                    _ => return unsupported("its strings are padded in a way that is not known"),
                };
                Ok(plain(Kind::Fixed(padding, charset(bits >> 4)?), size, false))
            }
            6 => self.complex(version, size, (bits & 0xffff) as usize, reference, depth),
            8 => self.named(version, (bits & 0xffff) as usize, reference, depth),
            9 => {
                let base = self.element(reference, depth + 1)?;
                let kind = match (bits & 15, base.kind, base.inner.as_slice()) {
                    (1, _, _) => Kind::Text(charset(bits >> 8)?),
                    (0, Kind::Numbers(dtype), []) => Kind::Ragged(dtype),
                    _ => return unsupported("its elements are sequences of something else than numbers"),
                };
                Ok(plain(kind, reference, base.swap))
            }
            10 => {
                let rank = self.count(1)?;
                if version < 3 {
                    self.take(3)?;
                }
                let mut inner = (0..rank).map(|_| self.count(4)).collect::<Result<Vec<_>, _>>()?;
                if version < 3 {
                    self.take(4 * rank)?;
                }
                let base = self.element(reference, depth + 1)?;
                inner.extend_from_slice(&base.inner);
                Ok(Element { inner, ..base })
            }
            2 => unsupported("its elements are times"),
            4 => unsupported("its elements are bit fields"),
            5 => unsupported("its elements are opaque bytes"),
            7 => unsupported("its elements are references to other objects"),
            11 => unsupported("its elements are HDF5 2's complex numbers"),
            _ => Err(Refused::Damaged(format!(
                "its type is of class {class}, which there is not"
            ))),
        }
    }

    /// A compound, if it is what h5py makes of complex numbers.
    fn complex(
        &mut self,
        version: u8,
        size: usize,
        members: usize,
        reference: usize,
        depth: usize,
    ) -> Result<Element, Refused> {
        let refused = || unsupported("its elements are compounds: store each field as a dataset of its own");
        if members != 2 {
            return refused();
        }
        let offset_len = match size {
            _ if version < 3 => 4,
            0..=0xff => 1,
            0x100..=0xffff => 2,
            0x1_0000..=0xff_ffff => 3,
            _ => 4,
        };
        let mut parts = Vec::with_capacity(2);
        for _ in 0..2 {
            let name = self.name(version)?;
            let offset = self.count(offset_len)?;
            if version == 1 {
                self.take(28)?;
            }
            match self.element(reference, depth + 1) {
                Ok(element) => parts.push((name, offset, element)),
                Err(Refused::Unsupported(_)) => return refused(),
                Err(damaged) => return Err(damaged),
            }
        }
        let (real, imaginary) = (&parts[0], &parts[1]);
        let named = real.0 == b"r" && imaginary.0 == b"i" && real.1 == 0 && imaginary.1 == real.2.size;
        let dtype = match real.2.kind {
            Kind::Numbers(DType::F32) => DType::Complex64,
            Kind::Numbers(DType::F64) => DType::Complex128,
            _ => return refused(),
        };
        if !named || real.2 != imaginary.2 || !real.2.inner.is_empty() || size != dtype.size() {
            return refused();
        }
        Ok(Element {
            kind: Kind::Numbers(dtype),
            size,
            swap: real.2.swap,
            inner: Vec::new(),
        })
    }

    /// An enumeration: its numbers, or truth values if those are what it names.
    fn named(&mut self, version: u8, members: usize, reference: usize, depth: usize) -> Result<Element, Refused> {
        let base = self.element(reference, depth + 1)?;
        let integer = matches!(base.kind, Kind::Numbers(dtype) if dtype.size() == base.size) && base.inner.is_empty();
        if !integer || members > MEMBERS {
            return unsupported("its elements are an enumeration of something else than whole numbers");
        }
        let mut names = Vec::new();
        for _ in 0..members {
            names.push(self.name(version)?);
        }
        let values = self.take(members * base.size)?;
        let truth = base.size == 1 && names == [&b"FALSE"[..], b"TRUE"] && values == [0, 1];
        Ok(if truth {
            Element {
                kind: Kind::Numbers(DType::Bool),
                ..base
            }
        } else {
            base
        })
    }
}

fn charset(bits: u64) -> Result<Charset, Refused> {
    match bits & 15 {
        0 => Ok(Charset::Ascii),
        1 => Ok(Charset::Utf8),
        _ => unsupported("its strings have characters that are not known"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(size: u8, sign: u8, parts: [u8; 4], bias: u32) -> Vec<u8> {
        let head = [0x11, 0x20, sign, 0, size, 0, 0, 0, 0, 0, size * 8, 0];
        [&head[..], &parts, &bias.to_le_bytes()].concat()
    }

    #[test]
    fn floats_are_told_by_their_bits() {
        let kind = |bytes: &[u8]| Element::read(bytes, 16).map(|element| element.kind);
        assert_eq!(kind(&float(2, 15, [10, 5, 0, 10], 15)), Ok(Kind::Numbers(DType::F16)));
        assert_eq!(kind(&float(2, 15, [7, 8, 0, 7], 127)), Ok(Kind::Numbers(DType::BF16)));
        assert!(matches!(
            kind(&float(2, 15, [9, 6, 0, 9], 31)),
            Err(Refused::Unsupported(_))
        ));
        let mut complex = [0x36, 2, 0, 0, 8, 0, 0, 0].to_vec();
        for (name, offset) in [(b'r', 0), (b'i', 4)] {
            complex.extend_from_slice(&[name, 0, offset]);
            complex.extend_from_slice(&float(4, 31, [23, 8, 0, 23], 127));
        }
        assert_eq!(kind(&complex), Ok(Kind::Numbers(DType::Complex64)));
        for len in 0..complex.len() {
            assert!(matches!(kind(&complex[..len]), Err(Refused::Damaged(_))), "{len}");
        }
        complex[8] = b'x';
        assert!(matches!(kind(&complex), Err(Refused::Unsupported(_))));
    }

    #[test]
    fn parts_of_whole_numbers_are_refused() {
        let integer = |offset, precision| [0x10, 8, 0, 0, 2, 0, 0, 0, offset, 0, precision, 0];
        assert_eq!(
            Element::read(&integer(0, 16), 16).unwrap().kind,
            Kind::Numbers(DType::I16)
        );
        for (offset, precision) in [(0, 12), (4, 12)] {
            let refused = Element::read(&integer(offset, precision), 16);
            assert!(matches!(refused, Err(Refused::Unsupported(why)) if why.contains("12 bits")));
        }
    }
}
