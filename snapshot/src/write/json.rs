//! The same values as JSON.

use std::io::{self, Write};

use super::walk::{Shared, Sink, walk};
use crate::Snapshot;
use crate::model::StrId;

/// Writes a snapshot as JSON.
pub(super) fn write(snapshot: &Snapshot, out: impl Write) -> io::Result<()> {
    let mut json = Json { out, is_first: Vec::new(), is_key: false };
    walk(snapshot, &mut json)?;
    json.out.write_all(b"\n")
}

struct Json<W> {
    out: W,
    /// For each open list or dict, whether nothing is in it yet.
    is_first: Vec<bool>,
    /// The next value is a key, and keys are texts.
    is_key: bool,
}

impl<W: Write> Json<W> {
    fn begin(&mut self, bracket: u8) -> io::Result<()> {
        self.is_first.push(true);
        self.out.write_all(&[bracket])
    }

    fn next(&mut self) -> io::Result<()> {
        let is_first = self.is_first.last_mut().is_none_or(|is_first| std::mem::replace(is_first, false));
        if is_first { Ok(()) } else { self.out.write_all(b", ") }
    }

    fn word(&mut self, word: &str) -> io::Result<()> {
        let quote = if self.is_key { "\"" } else { "" };
        write!(self.out, "{quote}{word}{quote}")
    }

    fn end(&mut self, bracket: u8) -> io::Result<()> {
        self.is_first.pop();
        self.out.write_all(&[bracket])
    }
}

impl<W: Write> Sink for Json<W> {
    fn none(&mut self) -> io::Result<()> {
        self.word("null")
    }

    fn bool(&mut self, is_true: bool) -> io::Result<()> {
        self.word(if is_true { "true" } else { "false" })
    }

    fn int(&mut self, number: i128) -> io::Result<()> {
        self.word(&number.to_string())
    }

    fn float(&mut self, number: f64) -> io::Result<()> {
        // The words of Python's json for what JSON has no numbers for.
        match number {
            _ if number.is_nan() => self.word("NaN"),
            f64::INFINITY => self.word("Infinity"),
            f64::NEG_INFINITY => self.word("-Infinity"),
            _ => self.word(&format!("{number:?}")),
        }
    }

    fn text(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(b"\"")?;
        let text = String::from_utf8_lossy(bytes);
        let mut plain = 0;
        for (at, byte) in text.bytes().enumerate() {
            if byte >= 0x20 && byte != b'"' && byte != b'\\' {
                continue;
            }
            self.out.write_all(&text.as_bytes()[plain..at])?;
            plain = at + 1;
            match byte {
                b'"' => self.out.write_all(b"\\\"")?,
                b'\\' => self.out.write_all(b"\\\\")?,
                b'\n' => self.out.write_all(b"\\n")?,
                b'\t' => self.out.write_all(b"\\t")?,
                _ => write!(self.out, "\\u{byte:04x}")?,
            }
        }
        self.out.write_all(&text.as_bytes()[plain..])?;
        self.out.write_all(b"\"")
    }

    fn known_text(&mut self, _: StrId, bytes: &[u8]) -> io::Result<()> {
        self.text(bytes)
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.begin(b'[')
    }

    fn item(&mut self) -> io::Result<()> {
        self.next()
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.end(b']')
    }

    fn begin_tuple(&mut self) -> io::Result<()> {
        self.begin(b'[')
    }

    fn end_tuple(&mut self) -> io::Result<()> {
        self.end(b']')
    }

    fn begin_dict(&mut self) -> io::Result<()> {
        self.begin(b'{')
    }

    fn entry(&mut self) -> io::Result<()> {
        self.is_key = true;
        self.next()
    }

    fn colon(&mut self) -> io::Result<()> {
        self.is_key = false;
        self.out.write_all(b": ")
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.end(b'}')
    }

    fn recall(&mut self, _: Shared) -> io::Result<bool> {
        Ok(false)
    }

    fn remember(&mut self, _: Shared) -> io::Result<()> {
        Ok(())
    }
}
