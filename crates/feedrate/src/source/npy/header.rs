//! The header of an array in NumPy's format: a Python literal, read by hand and never evaluated.

use crate::batch::DType;

/// NumPy itself refuses more than 10,000 characters unless told otherwise; structured types can be long.
const LONGEST: usize = 1 << 16;

/// What an element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source) enum Kind {
    Numbers(DType),
    /// Text of so many 4-byte characters.
    Text(usize),
    /// Byte strings of that length.
    Bytes(usize),
}

impl Kind {
    /// Bytes of one element.
    pub(in crate::source) fn size(self) -> usize {
        match self {
            Self::Numbers(dtype) => dtype.size(),
            Self::Text(chars) => chars.saturating_mul(4),
            Self::Bytes(len) => len,
        }
    }
}

/// What an array is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) struct Header {
    pub(in crate::source) kind: Kind,
    /// Whether its bytes are in the other order than this machine's.
    pub(in crate::source) swap: bool,
    pub(in crate::source) fortran: bool,
    pub(in crate::source) shape: Vec<usize>,
    /// Where the elements begin, after the first byte of the header.
    pub(in crate::source) data: u64,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) enum Refused {
    /// So many bytes are needed to say.
    Short(usize),
    Damaged(String),
    Unsupported(String),
}

impl Header {
    /// From the first bytes of the array.
    pub(in crate::source) fn read(head: &[u8]) -> Result<Self, Refused> {
        let Some(start) = head.get(..8) else {
            return Err(Refused::Short(8));
        };
        if start[..6] != *b"\x93NUMPY" {
            return Err(Refused::Damaged("it does not begin as a .npy array does".into()));
        }
        let (at, len) = match (start[6], head.get(8..12)) {
            (1, _) if head.len() < 10 => return Err(Refused::Short(10)),
            (1, _) => (10, usize::from(u16::from_le_bytes([head[8], head[9]]))),
            (2 | 3, None) => return Err(Refused::Short(12)),
            (2 | 3, Some(len)) => {
                let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]);
                (12, usize::try_from(len).unwrap_or(usize::MAX))
            }
            (version, _) => return Err(Refused::Unsupported(format!(".npy version {version}: 1 to 3 are read"))),
        };
        if len > LONGEST {
            return Err(Refused::Damaged(format!(
                "its header says that it has {len} bytes, the most is {LONGEST}"
            )));
        }
        let Some(text) = head.get(at..at + len) else {
            return Err(Refused::Short(at + len));
        };
        let text = String::from_utf8_lossy(text);
        let mut header = Literal { rest: text.trim_end() }.header()?;
        header.data = (at + len) as u64;
        Ok(header)
    }

    /// Elements of the dimensions behind the first.
    pub(in crate::source) fn inner(&self) -> Option<usize> {
        let rest = self.shape.get(1..).unwrap_or_default();
        rest.iter().try_fold(1_usize, |product, n| product.checked_mul(*n))
    }

    /// Lists and strings that it becomes; numbers become one tensor.
    pub(in crate::source) fn values(&self) -> Option<usize> {
        if let Kind::Numbers(_) = self.kind {
            return Some(1);
        }
        let mut all = 0_usize;
        let mut wide = 1_usize;
        for n in &self.shape {
            wide = wide.checked_mul(*n)?;
            all = all.checked_add(wide)?;
        }
        Some(all)
    }

    /// Bytes of one row.
    pub(in crate::source) fn row(&self) -> Option<usize> {
        self.inner()?.checked_mul(self.kind.size())
    }
}

struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    fn damaged(&self, expected: &str) -> Refused {
        let found: String = self.rest.chars().take(20).collect();
        Refused::Damaged(format!("its header has {found:?} where {expected} should be"))
    }

    fn take(&mut self, token: char) -> bool {
        self.rest = self.rest.trim_start();
        let behind = self.rest.strip_prefix(token);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    fn want(&mut self, token: char) -> Result<(), Refused> {
        if self.take(token) {
            return Ok(());
        }
        Err(self.damaged(&format!("{token:?}")))
    }

    fn text(&mut self) -> Result<&'a str, Refused> {
        self.rest = self.rest.trim_start();
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let quote = quote.ok_or_else(|| self.damaged("a string"))?;
        let (text, rest) = self.rest[1..]
            .split_once(quote)
            .ok_or_else(|| self.damaged("a string's end"))?;
        self.rest = rest;
        Ok(text)
    }

    fn number(&mut self) -> Result<usize, Refused> {
        self.rest = self.rest.trim_start();
        let len = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let number = self.rest[..len].parse().map_err(|_| self.damaged("a dimension"))?;
        // What Python 2 wrote has an L.
        self.rest = self.rest[len..].strip_prefix('L').unwrap_or(&self.rest[len..]);
        Ok(number)
    }

    fn header(mut self) -> Result<Header, Refused> {
        let (mut kind, mut fortran, mut shape) = (None, None, None);
        self.want('{')?;
        while !self.take('}') {
            let key = self.text()?;
            self.want(':')?;
            match key {
                "descr" => {
                    self.rest = self.rest.trim_start();
                    if self.rest.starts_with('[') {
                        return Err(Refused::Unsupported(
                            "it is a structured array: store each field as an array of its own".into(),
                        ));
                    }
                    kind = Some(element(self.text()?)?);
                }
                "fortran_order" => {
                    self.rest = self.rest.trim_start();
                    let (value, rest) = match (self.rest.strip_prefix("True"), self.rest.strip_prefix("False")) {
                        (Some(rest), _) => (true, rest),
                        (_, Some(rest)) => (false, rest),
                        _ => return Err(self.damaged("True or False")),
                    };
                    fortran = Some(value);
                    self.rest = rest;
                }
                "shape" => {
                    self.want('(')?;
                    let mut dimensions = Vec::new();
                    while !self.take(')') {
                        dimensions.push(self.number()?);
                        if !self.take(',') {
                            self.want(')')?;
                            break;
                        }
                    }
                    if dimensions.len() > 64 {
                        return Err(self.damaged("at most 64 dimensions"));
                    }
                    shape = Some(dimensions);
                }
                _ => return Err(self.damaged("descr, fortran_order or shape")),
            }
            if !self.take(',') {
                self.want('}')?;
                break;
            }
        }
        let (Some((kind, swap)), Some(fortran), Some(shape)) = (kind, fortran, shape) else {
            return Err(self.damaged("descr, fortran_order and shape"));
        };
        Ok(Header {
            kind,
            swap,
            fortran,
            shape,
            data: 0,
        })
    }
}

/// From a type string, such as `<f4`.
fn element(descr: &str) -> Result<(Kind, bool), Refused> {
    let unsupported = |why: &str| Refused::Unsupported(format!("its elements are {descr:?}: {why}"));
    let mut chars = descr.chars();
    let (order, rest) = match chars.next() {
        Some(order @ ('<' | '>' | '|' | '=')) => (order, chars.as_str()),
        _ => ('=', descr),
    };
    let swap = match order {
        '<' => cfg!(target_endian = "big"),
        '>' => cfg!(target_endian = "little"),
        _ => false,
    };
    let dtype = match rest {
        "b1" | "?" => DType::Bool,
        "i1" => DType::I8,
        "u1" => DType::U8,
        "i2" => DType::I16,
        "u2" => DType::U16,
        "i4" => DType::I32,
        "u4" => DType::U32,
        "i8" => DType::I64,
        "u8" => DType::U64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "c8" => DType::Complex64,
        "c16" => DType::Complex128,
        _ if rest.starts_with('O') => {
            return Err(unsupported("objects are a pickle, and pickles are never read"));
        }
        _ => {
            let (kind, len) = rest.split_at_checked(1).ok_or_else(|| unsupported("no type"))?;
            return match (kind, len.parse::<usize>()) {
                ("U", Ok(len)) => Ok((Kind::Text(len), swap)),
                ("S", Ok(len)) => Ok((Kind::Bytes(len), false)),
                _ => Err(unsupported("only numbers, bools, text and byte strings are read")),
            };
        }
    };
    Ok((Kind::Numbers(dtype), swap))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Header, Refused> {
        let len = u16::try_from(text.len()).unwrap().to_le_bytes();
        Header::read(&[b"\x93NUMPY\x01\x00", &len[..], text.as_bytes()].concat())
    }

    #[test]
    fn headers() {
        let header = read("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n").unwrap();
        assert_eq!(
            (header.kind, header.shape.as_slice()),
            (Kind::Numbers(DType::F32), &[3, 4][..])
        );
        assert!(!header.swap && !header.fortran);
        assert_eq!(header.data, 10 + 63);
        let header = read("{\"shape\":(7L,),'fortran_order':True,'descr':'>U3'}").unwrap();
        assert_eq!((header.kind, header.shape.as_slice()), (Kind::Text(3), &[7][..]));
        assert!(header.swap && header.fortran);
        assert_eq!(
            read("{'descr': '|u1', 'fortran_order': False, 'shape': ()}")
                .unwrap()
                .shape,
            [0; 0]
        );
        for (text, needle) in [
            ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "pickle"),
            (
                "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,)}",
                "structured",
            ),
            ("{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,)}", "M8"),
        ] {
            assert!(
                matches!(read(text), Err(Refused::Unsupported(why)) if why.contains(needle)),
                "{text}"
            );
        }
        for text in [
            "",
            "{",
            "{'descr'",
            "{'descr': '<f4'}",
            "{'shape': (1 2)}",
            "{'shape': (-1,)}",
            "{'x': 1}",
            "{'shape': (99999999999999999999999,)}",
        ] {
            assert!(matches!(read(text), Err(Refused::Damaged(_))), "{text}");
        }
        assert_eq!(Header::read(b"\x93NUM"), Err(Refused::Short(8)));
        assert!(matches!(Header::read(&[b'x'; 90]), Err(Refused::Damaged(_))));
    }
}
