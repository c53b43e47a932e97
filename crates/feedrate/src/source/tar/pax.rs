//! Records of extended headers.

use super::sparse::Extent;

/// What the records say that matters here.
#[derive(Debug, Clone, Default)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) sparse: Option<PaxSparse>,
}

/// Holes, as GNU tar writes them in three versions.
#[derive(Debug, Clone, Default)]
pub(super) struct PaxSparse {
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    /// The map is in front of the body.
    pub(super) in_body: bool,
    pub(super) map: Vec<Extent>,
    /// An offset whose length has not come yet.
    offset: Option<u64>,
}

impl Pax {
    /// Adds the records of a body: `length key=value\n`, one behind the other.
    pub(super) fn add(&mut self, mut body: &[u8]) -> Result<(), &'static str> {
        // Padding of zeros behind the records is seen in the wild.
        while body.first().is_some_and(|byte| *byte != 0) {
            let space = body
                .iter()
                .take(20)
                .position(|byte| *byte == b' ')
                .ok_or("has no length")?;
            let length = decimal(&body[..space]).and_then(|length| usize::try_from(length).ok());
            let length = length.ok_or("has a length that is no number")?;
            let record = body.get(space + 1..length).ok_or("is longer than its header")?;
            let record = record.strip_suffix(b"\n").ok_or("does not end its line")?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or("has no value")?;
            self.set(&record[..equals], &record[equals + 1..])?;
            body = &body[length..];
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let whole = || decimal(value).ok_or("has a value that is no number");
        match key {
            // An empty value takes back what a global header said.
            b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
            b"size" => self.size = if value.is_empty() { None } else { Some(whole()?) },
            _ => {
                if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.get_or_insert_default().set(key, value)?;
                }
            }
        }
        Ok(())
    }
}

impl PaxSparse {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let whole = || decimal(value).ok_or("has a value that is no number");
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(whole()?),
            b"major" => self.in_body = whole()? >= 1,
            b"offset" => self.offset = Some(whole()?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or("has a length of data without its offset")?;
                self.map.push(Extent {
                    offset,
                    length: whole()?,
                });
            }
            b"map" => {
                let mut numbers = value.split(|byte| *byte == b',').map(decimal);
                while let Some(offset) = numbers.next() {
                    let (Some(offset), Some(Some(length))) = (offset, numbers.next()) else {
                        return Err("has a map of data that is no list of pairs");
                    };
                    self.map.push(Extent { offset, length });
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Decimal digits and nothing else.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records() {
        let mut pax = Pax::default();
        pax.add(b"13 path=a/b=\n12 size=123\n19 atime=1.5000000\n").unwrap();
        assert_eq!((pax.path.as_deref(), pax.size), (Some(&b"a/b="[..]), Some(123)));
        pax.add(b"8 path=\n\0\0").unwrap();
        assert_eq!(pax.path, None);
        for bad in [
            &b"path=x\n"[..],
            b"99 path=x\n",
            b"9 path=xy\n",
            b"7 path\n",
            b"0 path=x\n",
            b"10 size=-1\n",
            b"18446744073709551615 size=1\n",
            b"1 \n",
        ] {
            assert!(Pax::default().add(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn maps() {
        let mut pax = Pax::default();
        pax.add(b"26 GNU.sparse.map=0,1,5,2\n").unwrap();
        let map = &pax.sparse.as_ref().unwrap().map;
        assert_eq!(map.len(), 2);
        assert!(Pax::default().add(b"24 GNU.sparse.map=0,1,5\n").is_err());
        assert!(Pax::default().add(b"25 GNU.sparse.numbytes=5\n").is_err());
    }
}
