//! Protocol Buffers, read: enough to look into what was written.

/// The fields of a message, in order.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a>(Vec<(u64, Value<'a>)>);

#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    /// Takes a message apart; panics where it is no message.
    pub(crate) fn of(mut bytes: &'a [u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = match key & 7 {
                0 => Value::Number(varint(&mut bytes)),
                2 => {
                    let length = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Value::Bytes(value)
                }
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, value));
        }
        Self(fields)
    }

    pub(crate) fn numbers(&self, field: u64) -> Vec<u64> {
        self.values(field)
            .map(|value| match value {
                Value::Number(number) => number,
                Value::Bytes(_) => panic!("field {field} is no number"),
            })
            .collect()
    }

    pub(crate) fn number(&self, field: u64) -> Option<u64> {
        self.numbers(field).first().copied()
    }

    pub(crate) fn bytes(&self, field: u64) -> Vec<&'a [u8]> {
        self.values(field)
            .map(|value| match value {
                Value::Bytes(bytes) => bytes,
                Value::Number(_) => panic!("field {field} is a number"),
            })
            .collect()
    }

    pub(crate) fn text(&self, field: u64) -> Option<&'a str> {
        self.bytes(field).first().map(|bytes| str::from_utf8(bytes).unwrap())
    }

    pub(crate) fn messages(&self, field: u64) -> Vec<Fields<'a>> {
        self.bytes(field).into_iter().map(Fields::of).collect()
    }

    pub(crate) fn message(&self, field: u64) -> Option<Fields<'a>> {
        self.messages(field).into_iter().next()
    }

    pub(crate) fn packed(&self, field: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for mut bytes in self.bytes(field) {
            while !bytes.is_empty() {
                numbers.push(varint(&mut bytes));
            }
        }
        numbers
    }

    fn values(&self, field: u64) -> impl Iterator<Item = Value<'a>> + '_ {
        self.0.iter().filter(move |(number, _)| *number == field).map(|(_, value)| *value)
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for at in 0.. {
        let byte = bytes[at];
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *bytes = &bytes[at + 1..];
            break;
        }
    }
    number
}
