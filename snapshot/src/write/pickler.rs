//! Opcodes of protocol 4, those that every reader of snapshots knows.

use std::io::{self, Write};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::walk::{Shared, Sink, walk};
use crate::Snapshot;
use crate::model::StrId;

/// Containers are filled in parts of this many, as Python's pickler does; some readers fail at a hundred thousand.
const BATCH: usize = 1000;

/// Writes a snapshot as a pickle.
pub(super) fn write(snapshot: &Snapshot, out: impl Write) -> io::Result<()> {
    let mut pickler = Pickler {
        out,
        memo: 0,
        texts: HashMap::default(),
        known_texts: HashMap::default(),
        shared: HashMap::default(),
        open: Vec::new(),
    };
    pickler.out.write_all(&[0x80, 4])?;
    walk(snapshot, &mut pickler)?;
    pickler.out.write_all(b".")
}

/// How far a container around the next value is filled.
enum Open {
    /// A list or dict: items or entries since the last mark.
    Parts(usize),
    /// A tuple is not filled in parts: its mark is there from the beginning.
    Tuple,
}

struct Pickler<W> {
    out: W,
    /// Values remembered so far.
    memo: u32,
    /// Texts that are not of the snapshot's table, such as the names of actions; a handful.
    texts: HashMap<Vec<u8>, u32, RandomState>,
    known_texts: HashMap<u32, u32, RandomState>,
    shared: HashMap<Shared, u32, RandomState>,
    open: Vec<Open>,
}

impl<W: Write> Pickler<W> {
    fn memoize(&mut self) -> io::Result<u32> {
        self.out.write_all(&[0x94])?;
        self.memo += 1;
        Ok(self.memo - 1)
    }

    fn get(&mut self, slot: u32) -> io::Result<()> {
        match u8::try_from(slot) {
            Ok(slot) => self.out.write_all(&[b'h', slot]),
            Err(_) => {
                self.out.write_all(b"j")?;
                self.out.write_all(&slot.to_le_bytes())
            }
        }
    }

    fn put_text(&mut self, bytes: &[u8]) -> io::Result<u32> {
        let replaced;
        let bytes = if is_text(bytes) {
            bytes
        } else {
            replaced = String::from_utf8_lossy(bytes);
            replaced.as_bytes()
        };
        match (u8::try_from(bytes.len()), u32::try_from(bytes.len())) {
            (Ok(len), _) => self.out.write_all(&[0x8c, len])?,
            (_, Ok(len)) => {
                self.out.write_all(b"X")?;
                self.out.write_all(&len.to_le_bytes())?;
            }
            _ => {
                self.out.write_all(&[0x8d])?;
                self.out.write_all(&(bytes.len() as u64).to_le_bytes())?;
            }
        }
        self.out.write_all(bytes)?;
        self.memoize()
    }

    /// Before each item or entry: begins a part, and ends the one before when it is full.
    fn part(&mut self, fill: u8) -> io::Result<()> {
        let Some(Open::Parts(n)) = self.open.last_mut() else { return Ok(()) };
        if *n == BATCH {
            self.out.write_all(&[fill])?;
            *n = 0;
        }
        *n += 1;
        if *n == 1 { self.out.write_all(b"(") } else { Ok(()) }
    }

    fn end(&mut self, fill: u8) -> io::Result<()> {
        match self.open.pop() {
            Some(Open::Parts(1..)) => self.out.write_all(&[fill]),
            _ => Ok(()),
        }
    }
}

impl<W: Write> Sink for Pickler<W> {
    fn none(&mut self) -> io::Result<()> {
        self.out.write_all(b"N")
    }

    fn bool(&mut self, is_true: bool) -> io::Result<()> {
        self.out.write_all(&[if is_true { 0x88 } else { 0x89 }])
    }

    fn int(&mut self, number: i128) -> io::Result<()> {
        if let Ok(small) = u8::try_from(number) {
            return self.out.write_all(&[b'K', small]);
        }
        if let Ok(small) = u16::try_from(number) {
            self.out.write_all(b"M")?;
            return self.out.write_all(&small.to_le_bytes());
        }
        if let Ok(small) = i32::try_from(number) {
            self.out.write_all(b"J")?;
            return self.out.write_all(&small.to_le_bytes());
        }
        // As few bytes as hold the number and its sign.
        let bytes = number.to_le_bytes();
        let sign = if number < 0 { 0xff } else { 0 };
        let mut len = bytes.len();
        while len > 1 && bytes[len - 1] == sign && (bytes[len - 2] ^ sign) < 0x80 {
            len -= 1;
        }
        self.out.write_all(&[0x8a, len as u8])?;
        self.out.write_all(&bytes[..len])
    }

    fn float(&mut self, number: f64) -> io::Result<()> {
        self.out.write_all(b"G")?;
        self.out.write_all(&number.to_be_bytes())
    }

    fn text(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(slot) = self.texts.get(bytes) {
            return self.get(*slot);
        }
        let slot = self.put_text(bytes)?;
        /// Kept values may hold any number of texts; the first ones are remembered.
        const MOST: usize = 1024;
        if self.texts.len() < MOST {
            self.texts.insert(bytes.to_vec(), slot);
        }
        Ok(())
    }

    fn known_text(&mut self, id: StrId, bytes: &[u8]) -> io::Result<()> {
        if let Some(slot) = self.known_texts.get(&id.0) {
            return self.get(*slot);
        }
        let slot = self.put_text(bytes)?;
        self.known_texts.insert(id.0, slot);
        Ok(())
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.open.push(Open::Parts(0));
        self.out.write_all(b"]")
    }

    fn item(&mut self) -> io::Result<()> {
        self.part(b'e')
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.end(b'e')
    }

    fn begin_tuple(&mut self) -> io::Result<()> {
        self.open.push(Open::Tuple);
        self.out.write_all(b"(")
    }

    fn end_tuple(&mut self) -> io::Result<()> {
        self.open.pop();
        self.out.write_all(b"t")
    }

    fn begin_dict(&mut self) -> io::Result<()> {
        self.open.push(Open::Parts(0));
        self.out.write_all(b"}")
    }

    fn entry(&mut self) -> io::Result<()> {
        self.part(b'u')
    }

    fn colon(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.end(b'u')
    }

    fn recall(&mut self, shared: Shared) -> io::Result<bool> {
        let slot = self.shared.get(&shared).copied();
        if let Some(slot) = slot {
            self.get(slot)?;
        }
        Ok(slot.is_some())
    }

    fn remember(&mut self, shared: Shared) -> io::Result<()> {
        let slot = self.memoize()?;
        self.shared.insert(shared, slot);
        Ok(())
    }
}

/// Whether Python decodes these bytes: UTF-8, or the halves of pairs that its pickler lets pass.
fn is_text(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        let Err(error) = std::str::from_utf8(rest) else { return true };
        rest = &rest[error.valid_up_to()..];
        match rest {
            [0xed, 0xa0..=0xbf, 0x80..=0xbf, after @ ..] => rest = after,
            _ => return false,
        }
    }
}
