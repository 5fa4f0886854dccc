//! Numbers as bytes: variable length, differences, little endian.

use super::PackError;

/// Appends a number in groups of 7 bits, lowest first.
pub(super) fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends a text or other bytes with their length.
pub(super) fn put_bytes(bytes: &mut Vec<u8>, text: &[u8]) {
    put_varint(bytes, text.len() as u64);
    bytes.extend(text);
}

/// Appends a column as differences, each small in either direction.
pub(super) fn put_differences(bytes: &mut Vec<u8>, column: impl IntoIterator<Item = u64>) {
    let mut last = 0u64;
    for number in column {
        let difference = number.wrapping_sub(last) as i64;
        put_varint(bytes, ((difference << 1) ^ (difference >> 63)) as u64);
        last = number;
    }
}

/// Reads what the functions above wrote. Never beyond the end.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn is_done(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PackError> {
        let found = self.bytes[self.at..].first_chunk::<N>().copied().ok_or_else(cut)?;
        self.at += N;
        Ok(found)
    }

    pub(super) fn u8(&mut self) -> Result<u8, PackError> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, PackError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, PackError> {
        self.array().map(u64::from_le_bytes)
    }

    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, PackError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or_else(cut)?;
            self.at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(PackError::new("a number in the pack is too long; build the pack again"))
    }

    pub(super) fn number<T: TryFrom<u64>>(&mut self) -> Result<T, PackError> {
        T::try_from(self.varint()?)
            .map_err(|_too_large| PackError::new("a number in the pack is too large; build the pack again"))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], PackError> {
        let len: usize = self.number()?;
        let found = self.bytes[self.at..].get(..len).ok_or_else(cut)?;
        self.at += len;
        Ok(found)
    }

    pub(super) fn text(&mut self) -> Result<String, PackError> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// How many items a list claims; never more than there are bytes left, so that a list costs no more memory
    /// than a few times its chunk.
    pub(super) fn count(&mut self) -> Result<usize, PackError> {
        let count: usize = self.number()?;
        if count > self.bytes.len() - self.at {
            return Err(cut());
        }
        Ok(count)
    }

    pub(super) fn differences(&mut self, n: usize, mut give: impl FnMut(u64)) -> Result<(), PackError> {
        let mut last = 0u64;
        for _ in 0..n {
            let coded = self.varint()?;
            last = last.wrapping_add((coded >> 1) ^ (coded & 1).wrapping_neg());
            give(last);
        }
        Ok(())
    }
}

fn cut() -> PackError {
    PackError::new("a chunk of the pack is cut; build the pack again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_survive_at_both_ends_of_the_range() {
        let column = [0, u64::MAX, 1, 1 << 63, 5, 4];
        let mut bytes = Vec::new();
        put_differences(&mut bytes, column);
        let mut read = Vec::new();
        Reader::new(&bytes).differences(column.len(), |number| read.push(number)).unwrap();
        assert_eq!(read, column);
    }
}
