//! A snapshot as JSON, as people convert pickles: the same tables, filled through the same machine.

use std::io::Read;

use super::ReadError;
use super::pickle::{Kind, Machine, Val, machine};
use crate::Snapshot;

/// What is open around the next value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    /// A list; its items begin here on the stack.
    List(usize),
    /// A dict; its items begin here on the stack.
    Dict(usize),
}

/// Reads a JSON document to its end.
pub(crate) fn run(bytes: impl Read) -> Result<Snapshot, ReadError> {
    let mut machine = machine(bytes);
    // A byte order mark, which PowerShell and some editors put first.
    if machine.source.peek()? == Some(0xef) {
        let _mark: [u8; 3] = machine.source.array("a byte order mark")?;
    }
    let top = document(&mut machine)?;
    machine.finish(top, "json".to_owned())
}

fn document<R: Read>(machine: &mut Machine<R>) -> Result<Val, ReadError> {
    let mut open: Vec<Open> = Vec::new();
    loop {
        let at = machine.source.offset();
        match machine.source.byte("the next value")? {
            b' ' | b'\n' | b'\r' | b'\t' | b',' | b':' => continue,
            b'[' => {
                machine.push(Kind::EmptyList(u32::MAX));
                open.push(Open::List(machine.depth()));
            }
            b'{' => {
                machine.push(Kind::EmptyDict(u32::MAX));
                open.push(Open::Dict(machine.depth()));
            }
            b']' => match open.pop() {
                Some(Open::List(from)) => machine.append_items(from, at, false)?,
                _ => return Err(broken(at, "a list ends that did not begin")),
            },
            b'}' => match open.pop() {
                Some(Open::Dict(from)) => machine.set_items(from, at)?,
                _ => return Err(broken(at, "an object ends that did not begin")),
            },
            b'"' => text(machine, at)?,
            first @ (b'-' | b'0'..=b'9' | b'N' | b'I' | b't' | b'f' | b'n') => word(machine, first, at)?,
            _ => return Err(broken(at, "a value begins with a character that none begins with")),
        }
        if open.is_empty() {
            return machine.take_top(at);
        }
        machine.check_waiting(at)?;
    }
}

fn text<R: Read>(machine: &mut Machine<R>, at: u64) -> Result<(), ReadError> {
    let mut bytes = Vec::new();
    loop {
        match machine.source.byte("a text")? {
            b'"' => break,
            b'\\' => match machine.source.byte("a text")? {
                b'u' => escaped(machine, at, &mut bytes)?,
                other => bytes.push(unescaped(other)),
            },
            byte => bytes.push(byte),
        }
    }
    machine.push_text(&bytes);
    Ok(())
}

/// What a character after a backslash stands for.
fn unescaped(escape: u8) -> u8 {
    match escape {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 8,
        b'f' => 12,
        other => other,
    }
}

/// `\uXXXX`, or the two of a pair. A half without its other becomes the bytes that a pickle has for it.
fn escaped<R: Read>(machine: &mut Machine<R>, at: u64, bytes: &mut Vec<u8>) -> Result<(), ReadError> {
    let mut code = code(machine, at)?;
    while (0xd800..0xdc00).contains(&code) && machine.source.peek()? == Some(b'\\') {
        machine.source.byte("a text")?;
        let escape = machine.source.byte("a text")?;
        if escape != b'u' {
            lone_half(code, bytes);
            bytes.push(unescaped(escape));
            return Ok(());
        }
        let next = self::code(machine, at)?;
        if (0xdc00..0xe000).contains(&next) {
            code = 0x10000 + ((code - 0xd800) << 10 | (next - 0xdc00));
        } else {
            lone_half(code, bytes);
            code = next;
        }
    }
    match char::from_u32(code) {
        Some(character) => bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => lone_half(code, bytes),
    }
    Ok(())
}

/// Four hexadecimal digits.
fn code<R: Read>(machine: &mut Machine<R>, at: u64) -> Result<u32, ReadError> {
    let digits: [u8; 4] = machine.source.array("a text")?;
    let code = std::str::from_utf8(&digits).ok().and_then(|hex| u32::from_str_radix(hex, 16).ok());
    code.ok_or_else(|| broken(at, "a text holds \\u without four hexadecimal digits"))
}

fn lone_half(code: u32, bytes: &mut Vec<u8>) {
    bytes.extend([0xe0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3f) as u8, 0x80 | (code & 0x3f) as u8]);
}

/// A number, or one of the words of JSON and of Python's `json`.
fn word<R: Read>(machine: &mut Machine<R>, first: u8, at: u64) -> Result<(), ReadError> {
    /// Longer than any number of a snapshot.
    const MAX_BYTES: usize = 64;
    let mut word = vec![first];
    while let Some(byte @ (b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'+' | b'-' | b'.')) =
        machine.source.peek()?
    {
        word.push(byte);
        machine.source.byte("a value")?;
        if word.len() > MAX_BYTES {
            return Err(broken(at, "a number is longer than any in a snapshot"));
        }
    }
    if machine.source.peek()?.is_none() {
        // No value stands at the very end of a snapshot: this word may go on beyond the cut.
        machine.source.byte("a value")?;
    }
    let word = String::from_utf8_lossy(&word);
    match &*word {
        "true" => machine.push(Kind::Bool(true)),
        "false" => machine.push(Kind::Bool(false)),
        "null" => machine.push(Kind::None),
        "NaN" => machine.float(f64::NAN),
        "Infinity" => machine.float(f64::INFINITY),
        "-Infinity" => machine.float(f64::NEG_INFINITY),
        number => match (number.parse(), number.parse()) {
            (Ok(integer), _) => machine.integer(integer),
            (_, Ok(float)) => machine.float(float),
            _ => return Err(broken(at, "a word is neither a number nor true, false or null")),
        },
    }
    Ok(())
}

fn broken(at: u64, what: &str) -> ReadError {
    ReadError::new(ReadError::DAMAGED, at, format!("the JSON is damaged at byte {at}: {what}"))
}
