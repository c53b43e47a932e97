//! What a message says about a slot.

/// Names the contents of one slot. Small and plain: it travels in messages. It gives the right to take one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The segment's number, unique in the life of its arena.
    pub segment: u32,
    /// The slot's index in its segment.
    pub slot: u32,
    /// Which use of the slot is meant.
    pub generation: u32,
    /// Bytes in use, from the start of the slot.
    pub len: u64,
}

impl Token {
    /// Size of the encoded token in bytes.
    pub const SIZE: usize = 24;

    /// Little-endian: segment, slot, generation (4 bytes each), 4 zero bytes, len (8 bytes).
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0..4].copy_from_slice(&self.segment.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// The inverse of [`Token::to_bytes`]. Any bytes give a token; whether it means something is found out by
    /// [`View::lease`](crate::View::lease).
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            segment: word(0),
            slot: word(4),
            generation: word(8),
            len: u64::from(word(16)) | u64::from(word(20)) << 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Token;

    #[test]
    fn bytes_are_fixed_and_come_back() {
        let token = Token {
            segment: 1,
            slot: 0x0203,
            generation: u32::MAX,
            len: 0x0102_0304_0506_0708,
        };
        let bytes = token.to_bytes();
        assert_eq!(
            bytes,
            [
                1, 0, 0, 0, 3, 2, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1
            ]
        );
        assert_eq!(Token::from_bytes(&bytes), token);
    }
}
