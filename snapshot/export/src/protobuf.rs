//! Messages of Protocol Buffers, written field by field: the few kinds that pprof and Perfetto need.

use std::io::{self, Write};

/// The wire types of fields.
const VARINT: u32 = 0;
const LENGTH_DELIMITED: u32 = 2;

/// A message under construction.
#[derive(Debug, Default, Clone)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Adds a number.
    pub(crate) fn uint(mut self, field: u32, number: u64) -> Self {
        self.key(field, VARINT);
        self.varint(number);
        self
    }

    /// Adds a signed number, as `int64` has it.
    pub(crate) fn int(self, field: u32, number: i64) -> Self {
        self.uint(field, number.cast_unsigned())
    }

    /// Adds a text.
    pub(crate) fn text(mut self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes());
        self
    }

    /// Adds a message.
    pub(crate) fn message(mut self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0);
        self
    }

    /// Adds numbers, packed.
    pub(crate) fn packed(self, field: u32, numbers: impl IntoIterator<Item = u64>) -> Self {
        let mut packed = Self::default();
        numbers.into_iter().for_each(|number| packed.varint(number));
        self.message(field, &packed)
    }

    /// Writes it as a field of the message that a whole file is.
    pub(crate) fn write_as(&self, field: u32, out: &mut impl Write) -> io::Result<()> {
        let mut head = Self::default();
        head.key(field, LENGTH_DELIMITED);
        head.varint(self.0.len() as u64);
        out.write_all(&head.0)?;
        out.write_all(&self.0)
    }

    /// Writes its fields as fields of the message that a whole file is.
    pub(crate) fn write_bare(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.0)
    }

    fn key(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            // The lowest seven bits, and the sign that more follow.
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

/// Writes a text as a field of the message that a whole file is.
pub(crate) fn write_text(field: u32, text: &str, out: &mut impl Write) -> io::Result<()> {
    Message(text.as_bytes().to_vec()).write_as(field, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_look_as_the_encoding_says() {
        let message = Message::default().uint(1, 150).text(2, "testing").packed(6, [3, 270, 86942]);
        let expected = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 0x07],
            b"testing",
            &[0x32, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05],
        ];
        assert_eq!(message.0, expected.concat());
        let mut out = Vec::new();
        Message::default().int(1, -1).write_as(3, &mut out).unwrap();
        assert_eq!(out, [&[0x1a, 11, 0x08][..], &[0xff; 9], &[0x01]].concat());
    }
}
