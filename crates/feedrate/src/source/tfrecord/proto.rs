//! As much of protocol buffers as `tf.train.Example` needs: fields by number, nothing copied, nothing trusted.

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// The message is not one. Says what was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source) struct Malformed(pub(super) &'static str);

/// The fields of a message, in order.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(Malformed("a field is longer than what holds it"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next field: its number and what it holds.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = varint(&mut self.rest)?;
        let field = match tag & 7 {
            0 => Field::Varint(varint(&mut self.rest)?),
            1 => {
                let mut eight = [0; 8];
                eight.copy_from_slice(self.take(8)?);
                Field::Fixed64(u64::from_le_bytes(eight))
            }
            2 => {
                let len = varint(&mut self.rest)?;
                Field::Bytes(self.take(usize::try_from(len).unwrap_or(usize::MAX))?)
            }
            5 => {
                let mut four = [0; 4];
                four.copy_from_slice(self.take(4)?);
                Field::Fixed32(four)
            }
            _ => return Err(Malformed("a field has a type that protocol buffers do not have")),
        };
        match tag >> 3 {
            0 => Err(Malformed("a field has the number 0")),
            number => Ok(Some((number, field))),
        }
    }
}

/// A number of up to ten bytes, off the front.
pub(in crate::source) fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    // Most are one byte.
    if let [first @ 0..0x80, rest @ ..] = *bytes {
        *bytes = rest;
        return Ok(u64::from(*first));
    }
    let mut value = 0_u64;
    for (i, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            *bytes = &bytes[i + 1..];
            return Ok(value);
        }
    }
    Err(Malformed("a number does not end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_order_and_unknown_types_are_refused() {
        let message = [
            0x08, 0x96, 0x01, 0x12, 2, b'a', b'b', 0x1d, 1, 0, 0, 0, 0x21, 1, 0, 0, 0, 0, 0, 0, 0,
        ];
        let mut fields = Fields::new(&message);
        assert_eq!(fields.next(), Ok(Some((1, Field::Varint(150)))));
        assert_eq!(fields.next(), Ok(Some((2, Field::Bytes(b"ab")))));
        assert_eq!(fields.next(), Ok(Some((3, Field::Fixed32([1, 0, 0, 0])))));
        assert_eq!(fields.next(), Ok(Some((4, Field::Fixed64(1)))));
        assert_eq!(fields.next(), Ok(None));
        for bad in [&[0x0b][..], &[0x0a, 5, 1], &[0x00, 0], &[0xff; 11], &[0x0d, 1], &[0x08]] {
            assert!(Fields::new(bad).next().is_err(), "{bad:?}");
        }
        assert_eq!(
            varint(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1][..]),
            Ok(u64::MAX)
        );
    }
}
