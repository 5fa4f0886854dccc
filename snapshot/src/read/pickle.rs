//! The small safe part of pickle: a stack machine that builds plain values and never calls anything.
//!
//! Protocols 0 to 5. Values are 8 bytes: a tag and a number. Dicts become table rows the moment they are
//! filled, and lists of frames become stacks ([`super::shape`]), so that a million events never exist as a tree of
//! values. A real snapshot uses some 22 opcodes; those that would import or call are refused by name.

use std::io::Read;

use super::shape::{Builder, Row};
use super::source::Source;
use super::{ReadError, findings::Findings};
use crate::Snapshot;
use crate::model::{FrameId, StackId, StrId};

/// A value on the stack or in the memo: 4 bits of tag, 60 of payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Val(u64);

/// What a [`Val`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `None`, or bytes, which no snapshot holds.
    None,
    Bool(bool),
    Int(i64),
    /// Row of [`Heap::bigs`]: an integer that needs more than 60 bits.
    Big(u32),
    /// Row of [`Heap::floats`].
    Float(u32),
    Str(StrId),
    Frame(FrameId),
    Stack(StackId),
    /// A dict that became a row of a table.
    Row(Row, u32),
    /// A list nothing was put into yet, and its memo slot.
    EmptyList(u32),
    /// A dict nothing was put into yet, and its memo slot.
    EmptyDict(u32),
    /// Row of [`Heap::objects`].
    Object(u32),
    /// Row of [`Heap::pairs`]: a tuple of two integers.
    Pair(u32),
    EmptyTuple,
}

const NO_SLOT: u32 = u32::MAX;
const PAYLOAD: u64 = (1 << 60) - 1;

impl Val {
    pub(crate) const NONE: Self = Self(0);
    const TAG_FRAME: u64 = 6;
    /// What fills the memo where nothing was stored.
    const UNSET: Self = Self(15 << 60);

    #[inline]
    fn tagged(tag: u64, payload: u64) -> Self {
        Self(tag << 60 | payload & PAYLOAD)
    }

    /// This frame's number, the one question asked fifty million times.
    #[inline]
    fn frame(self) -> Option<u32> {
        (self.0 >> 60 == Self::TAG_FRAME).then_some(self.0 as u32)
    }

    pub(crate) fn kind(self) -> Kind {
        let payload = self.0 & PAYLOAD;
        let small = payload as u32;
        match self.0 >> 60 {
            1 => Kind::Bool(payload != 0),
            2 => Kind::Int((self.0 << 4) as i64 >> 4),
            3 => Kind::Big(small),
            4 => Kind::Float(small),
            5 => Kind::Str(StrId(small)),
            6 => Kind::Frame(FrameId(small)),
            7 => Kind::Stack(StackId(small)),
            8 => Kind::Row(Row::from_index(payload >> 32), small),
            9 => Kind::EmptyList(small),
            10 => Kind::EmptyDict(small),
            11 => Kind::Object(small),
            12 => Kind::Pair(small),
            13 => Kind::EmptyTuple,
            _ => Kind::None,
        }
    }
}

impl From<Kind> for Val {
    #[inline]
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::None => Self::NONE,
            Kind::Bool(is_true) => Self::tagged(1, u64::from(is_true)),
            Kind::Int(number) => Self::tagged(2, number as u64),
            Kind::Big(row) => Self::tagged(3, u64::from(row)),
            Kind::Float(row) => Self::tagged(4, u64::from(row)),
            Kind::Str(id) => Self::tagged(5, u64::from(id.0)),
            Kind::Frame(id) => Self::tagged(Self::TAG_FRAME, u64::from(id.0)),
            Kind::Stack(id) => Self::tagged(7, u64::from(id.0)),
            Kind::Row(row, at) => Self::tagged(8, (row as u64) << 32 | u64::from(at)),
            Kind::EmptyList(slot) => Self::tagged(9, u64::from(slot)),
            Kind::EmptyDict(slot) => Self::tagged(10, u64::from(slot)),
            Kind::Object(row) => Self::tagged(11, u64::from(row)),
            Kind::Pair(row) => Self::tagged(12, u64::from(row)),
            Kind::EmptyTuple => Self::tagged(13, 0),
        }
    }
}

/// A container that is not a row or a stack.
#[derive(Debug)]
pub(crate) enum Object {
    /// A list of anything.
    List(Vec<Val>),
    /// A tuple of anything but two integers.
    Tuple(Vec<Val>),
    /// A list of rows of one table that stand one after the other: `start..end`.
    Run(Row, u32, u32),
    /// A dict of anything.
    Dict(Vec<(Val, Val)>),
    /// A dict that was filled entry by entry and has become a row or frame since.
    Became(Val),
}

impl Object {
    fn content_bytes(&self) -> u64 {
        let bytes = match self {
            Self::List(items) | Self::Tuple(items) => size_of_val(&items[..]),
            Self::Dict(entries) => size_of_val(&entries[..]),
            Self::Run(..) | Self::Became(_) => 0,
        };
        bytes as u64
    }
}

impl std::fmt::Debug for Val {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind().fmt(f)
    }
}

/// What values point to.
#[derive(Default)]
pub(crate) struct Heap {
    pub(crate) bigs: Vec<i128>,
    pub(crate) floats: Vec<f64>,
    pub(crate) pairs: Vec<(u64, u64)>,
    pub(crate) objects: Vec<Object>,
    /// What the objects take, bytes.
    held: u64,
}

impl Heap {
    /// A value as a number.
    pub(crate) fn int(&self, val: Val) -> Option<i128> {
        match val.kind() {
            Kind::Int(number) => Some(i128::from(number)),
            Kind::Big(row) => self.bigs.get(row as usize).copied(),
            Kind::Bool(is_true) => Some(i128::from(is_true)),
            _ => None,
        }
    }

    /// A value as an unsigned number; a negative one is an address that torch's C++ pickler wrote as signed.
    pub(crate) fn unsigned(&self, val: Val) -> Option<u64> {
        if let Kind::Int(number) = val.kind() {
            return Some(number as u64);
        }
        let number = self.int(val)?;
        u64::try_from(number).ok().or_else(|| i64::try_from(number).ok().map(|signed| signed as u64))
    }

    /// The row of this pair; a process has a handful of pools, so the latest few are looked through.
    fn pair(&mut self, pair: (u64, u64)) -> u32 {
        const LOOKBACK: usize = 64;
        let from = self.pairs.len().saturating_sub(LOOKBACK);
        if let Some(at) = self.pairs[from..].iter().rposition(|known| *known == pair) {
            return (from + at) as u32;
        }
        self.pairs.push(pair);
        self.pairs.len() as u32 - 1
    }

    fn add(&mut self, object: Object) -> Val {
        self.held += OBJECT_BYTES + object.content_bytes();
        self.objects.push(object);
        Kind::Object(self.objects.len() as u32 - 1).into()
    }
}

/// Runs a pickle to its STOP and returns what it described.
pub(crate) fn run(bytes: impl Read) -> Result<Snapshot, ReadError> {
    let mut machine = machine(bytes);
    let top = machine.run()?;
    let wrapping = format!("pickle{}", machine.protocol);
    machine.finish(top, wrapping)
}

/// A machine at the beginning of these bytes.
pub(super) fn machine<R: Read>(bytes: R) -> Machine<R> {
    Machine {
        source: Source::new(bytes),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        heap: Heap::default(),
        builder: Builder::new(),
        findings: Findings::default(),
        frame_ids: Vec::new(),
        protocol: 0,
    }
}

pub(super) struct Machine<R> {
    pub(super) source: Source<R>,
    stack: Vec<Val>,
    marks: Vec<usize>,
    memo: Vec<Val>,
    heap: Heap,
    builder: Builder,
    findings: Findings,
    /// Scratch for interning a stack.
    frame_ids: Vec<u32>,
    protocol: u8,
}

impl<R: Read> Machine<R> {
    /// Reads what follows the end, and puts the tables together.
    pub(super) fn finish(mut self, top: Val, wrapping: String) -> Result<Snapshot, ReadError> {
        let trailing = self.source.drain()?;
        if trailing > 0 {
            self.findings.add("trailing-bytes", "", trailing);
        }
        let content_bytes = self.source.offset();
        let Self { heap, builder, findings, memo, .. } = self;
        drop(memo);
        builder.finish(heap, findings, top, wrapping, content_bytes)
    }

    fn run(&mut self) -> Result<Val, ReadError> {
        loop {
            if let Some(top) = self.burst()? {
                return Ok(top);
            }
        }
    }

    /// Some thousand opcodes; gives what is on top at the end of the pickle.
    ///
    /// A loop of its own for every call: a browser runs wasm slowly at first and changes to the quick code only when
    /// a function is entered anew, never in the middle of a loop.
    #[inline(never)]
    fn burst(&mut self) -> Result<Option<Val>, ReadError> {
        for _ in 0..BURST {
            let at = self.source.offset();
            let op = self.source.byte("the next opcode")?;
            match op {
                // Ordered as often as they come in a real file.
                b'h' => {
                    let slot = u32::from(self.source.byte("a memo number")?);
                    self.recall(slot, at)?;
                    self.recall_more();
                }
                b'j' => {
                    let slot = u32::from_le_bytes(self.source.array("a memo number")?);
                    self.recall(slot, at)?;
                    self.recall_more();
                }
                0x94 => self.memoize(self.memo.len(), at)?,
                b'q' => {
                    let slot = usize::from(self.source.byte("a memo number")?);
                    self.memoize(slot, at)?;
                }
                b'r' => {
                    let slot = u32::from_le_bytes(self.source.array("a memo number")?);
                    self.memoize(slot as usize, at)?;
                }
                b'(' => self.marks.push(self.stack.len()),
                b'K' => {
                    let number = self.source.byte("a number")?;
                    self.push(Kind::Int(i64::from(number)));
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.source.array("a number")?);
                    self.push(Kind::Int(i64::from(number)));
                }
                b'J' => {
                    let number = i32::from_le_bytes(self.source.array("a number")?);
                    self.push(Kind::Int(i64::from(number)));
                }
                0x8a => {
                    let len = self.source.byte("the length of a number")?;
                    self.long(u64::from(len))?;
                }
                0x8b => {
                    let len = i32::from_le_bytes(self.source.array("the length of a number")?);
                    let len = u64::try_from(len)
                        .map_err(|_negative| self.damaged(at, "a number has a negative length"))?;
                    self.long(len)?;
                }
                b'}' => {
                    self.protocol = self.protocol.max(1);
                    self.push(Kind::EmptyDict(NO_SLOT));
                }
                b']' => {
                    self.protocol = self.protocol.max(1);
                    self.push(Kind::EmptyList(NO_SLOT));
                }
                b')' => self.push(Kind::EmptyTuple),
                b'u' => {
                    let from = self.pop_mark(at)?;
                    self.set_items(from, at)?;
                }
                b's' => {
                    let from = self.depth_of(2, at)?;
                    self.set_items(from, at)?;
                }
                b'e' => {
                    let from = self.pop_mark(at)?;
                    self.append_items(from, at, false)?;
                }
                b'a' => {
                    let from = self.depth_of(1, at)?;
                    self.append_items(from, at, true)?;
                }
                0x8c => {
                    let len = self.source.byte("the length of a text")?;
                    self.text(u64::from(len))?;
                }
                b'X' => {
                    let len = u32::from_le_bytes(self.source.array("the length of a text")?);
                    self.text(u64::from(len))?;
                }
                0x8d => {
                    let len = u64::from_le_bytes(self.source.array("the length of a text")?);
                    self.text(len)?;
                }
                0x88 => self.push(Kind::Bool(true)),
                0x89 => self.push(Kind::Bool(false)),
                b'N' => self.stack.push(Val::NONE),
                b'G' => {
                    let number = f64::from_be_bytes(self.source.array("a number")?);
                    self.float(number);
                }
                0x85 => self.tuple_of(1, at)?,
                0x86 => self.tuple_of(2, at)?,
                0x87 => self.tuple_of(3, at)?,
                b't' => {
                    let from = self.pop_mark(at)?;
                    self.tuple_from(from);
                }
                b'l' => {
                    let from = self.pop_mark(at)?;
                    self.stack.insert(from, Kind::EmptyList(NO_SLOT).into());
                    self.append_items(from + 1, at, false)?;
                }
                b'd' => {
                    let from = self.pop_mark(at)?;
                    self.stack.insert(from, Kind::EmptyDict(NO_SLOT).into());
                    self.set_items(from + 1, at)?;
                }
                0x95 => {
                    // The promised length of a frame of bytes; nothing depends on it.
                    let _: [u8; 8] = self.source.array("the length of a pickle frame")?;
                }
                0x80 => {
                    self.protocol = self.source.byte("the protocol")?;
                    if self.protocol > 5 {
                        let message = format!(
                            "the pickle says protocol {} at byte {at}, and 0 to 5 can be read: it is damaged or \
                             written by something newer; write it again with pickle.dump(snapshot, file, protocol=4)",
                            self.protocol
                        );
                        return Err(ReadError::new(ReadError::REFUSED, at, message));
                    }
                }
                b'0' => {
                    self.pop(at)?;
                }
                b'1' => {
                    let from = self.pop_mark(at)?;
                    self.stack.truncate(from);
                }
                b'.' => return self.pop(at).map(Some),
                b'I' | b'L' | b'F' | b'S' | b'V' | b'g' | b'p' => self.line(op, at)?,
                _ => return Err(refusal(op, at)),
            }
        }
        // Between two looks a few thousand values can come, no more.
        self.check_waiting(self.source.offset())?;
        Ok(None)
    }

    /// A byte can ask for many bytes of memory. What real files ask for is far below these bounds, and together they
    /// keep reading within four times the input: 8 bytes for each 8 of input on the stack, 2 for each in containers
    /// that are neither rows nor stacks.
    #[inline]
    pub(super) fn check_waiting(&self, at: u64) -> Result<(), ReadError> {
        let n_waiting = (self.stack.len() + self.marks.len()) as u64;
        if n_waiting <= FREE_VALUES + at / 8 && self.heap.held <= FREE_OBJECT_BYTES + 2 * at {
            return Ok(());
        }
        Err(self.too_much(at))
    }

    #[cold]
    fn too_much(&self, at: u64) -> ReadError {
        let n = self.stack.len();
        let what = if self.heap.held > FREE_OBJECT_BYTES + 2 * at {
            "more small lists and dicts than a snapshot has are held".to_owned()
        } else {
            format!("more than {n} values wait to be used")
        };
        ReadError::new(ReadError::REFUSED, at, format!("{what} at byte {at}: no snapshot is built like that"))
    }

    /// An opcode of protocol 0: its argument is text up to the end of the line.
    fn line(&mut self, op: u8, at: u64) -> Result<(), ReadError> {
        let line = self.source.line("a line of protocol 0")?;
        let text = std::str::from_utf8(&line).unwrap_or("").trim_end();
        match op {
            // Protocol 0 writes booleans as these two.
            b'I' if text == "00" || text == "01" => self.push(Kind::Bool(text == "01")),
            b'I' | b'L' => {
                let digits = text.trim_end_matches('L');
                self.integer(
                    decimal(digits).ok_or_else(|| self.damaged(at, "a number is not written as one"))?,
                );
            }
            b'F' => {
                let number =
                    text.parse().map_err(|_not_one| self.damaged(at, "a number is not written as one"))?;
                self.float(number);
            }
            b'S' => {
                let id = self.builder.strings.intern(&unquoted(text));
                self.push(Kind::Str(id));
            }
            b'V' => {
                let id = self.builder.strings.intern(unescaped(&String::from_utf8_lossy(&line)).as_bytes());
                self.push(Kind::Str(id));
            }
            _ => {
                let slot: u32 = text
                    .parse()
                    .map_err(|_not_one| self.damaged(at, "a memo number is not written as one"))?;
                if op == b'g' {
                    self.recall(slot, at)?;
                } else {
                    self.memoize(slot as usize, at)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn integer(&mut self, number: i128) {
        const SMALL: std::ops::Range<i128> = -(1 << 59)..1 << 59;
        if SMALL.contains(&number) {
            self.push(Kind::Int(number as i64));
        } else {
            self.heap.bigs.push(number);
            self.push(Kind::Big(self.heap.bigs.len() as u32 - 1));
        }
    }

    pub(super) fn push_text(&mut self, text: &[u8]) {
        let id = self.builder.strings.intern(text);
        self.push(Kind::Str(id));
    }

    pub(super) fn depth(&self) -> usize {
        self.stack.len()
    }

    pub(super) fn take_top(&mut self, at: u64) -> Result<Val, ReadError> {
        self.pop(at)
    }

    pub(super) fn float(&mut self, number: f64) {
        self.heap.floats.push(number);
        self.push(Kind::Float(self.heap.floats.len() as u32 - 1));
    }

    #[inline]
    pub(super) fn push(&mut self, kind: Kind) {
        self.stack.push(kind.into());
    }

    #[inline]
    fn recall(&mut self, slot: u32, at: u64) -> Result<(), ReadError> {
        match self.memo.get(slot as usize) {
            Some(val) if *val != Val::UNSET => {
                self.stack.push(*val);
                Ok(())
            }
            _ => Err(self.damaged(at, "a value is recalled that was never stored")),
        }
    }

    /// Recalls come in long runs: nine of ten opcodes of a real file recall the frames of a stack. Takes those that lie in
    /// the window as a whole; whatever is odd is left to the next opcode.
    #[inline]
    fn recall_more(&mut self) {
        let mut window = self.source.window();
        let all = window.len();
        loop {
            let (slot, rest) = match window {
                [b'h', slot, rest @ ..] => (usize::from(*slot), rest),
                [b'j', a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
                _ => break,
            };
            match self.memo.get(slot) {
                Some(val) if *val != Val::UNSET => self.stack.push(*val),
                _ => break,
            }
            window = rest;
        }
        let taken = all - window.len();
        self.source.skip(taken);
    }

    #[inline]
    fn memoize(&mut self, slot: usize, at: u64) -> Result<(), ReadError> {
        let Some(top) = self.stack.last_mut() else {
            return Err(self.damaged(at, "there is no value to store"));
        };
        // A container that is still empty must know where to announce what it becomes.
        match top.kind() {
            Kind::EmptyList(NO_SLOT) => *top = Kind::EmptyList(slot as u32).into(),
            Kind::EmptyDict(NO_SLOT) => *top = Kind::EmptyDict(slot as u32).into(),
            _ => {}
        }
        let val = *top;
        if self.memo.len() as u64 > FREE_VALUES + at / 4 {
            let message = format!(
                "more values are stored for later by byte {at} than a snapshot has: the file is refused, since it \
                 would take more memory than it is worth"
            );
            return Err(ReadError::new(ReadError::REFUSED, at, message));
        }
        if slot == self.memo.len() {
            self.memo.push(val);
        } else if (slot as u64) <= at / 2 {
            // Each value stored so far took at least two bytes, so a larger number is none of a pickler's.
            if slot > self.memo.len() {
                self.memo.resize(slot + 1, Val::UNSET);
            }
            self.memo[slot] = val;
        } else {
            return Err(self.damaged(at, "a value is stored under a number larger than the file"));
        }
        Ok(())
    }

    fn long(&mut self, len: u64) -> Result<(), ReadError> {
        let number = self.source.take(len, "a number", signed_little_endian)?;
        self.integer(number);
        Ok(())
    }

    fn text(&mut self, len: u64) -> Result<(), ReadError> {
        let strings = &mut self.builder.strings;
        let id = self.source.take(len, "a text", |bytes| strings.intern(bytes))?;
        self.push(Kind::Str(id));
        Ok(())
    }

    fn pop(&mut self, at: u64) -> Result<Val, ReadError> {
        self.stack.pop().ok_or_else(|| self.damaged(at, "a value is used that is not there"))
    }

    fn pop_mark(&mut self, at: u64) -> Result<usize, ReadError> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(mark),
            _ => Err(self.damaged(at, "the beginning of a list of values is missing")),
        }
    }

    fn depth_of(&self, n: usize, at: u64) -> Result<usize, ReadError> {
        self.stack.len().checked_sub(n).ok_or_else(|| self.damaged(at, "a value is used that is not there"))
    }

    fn tuple_of(&mut self, n: usize, at: u64) -> Result<(), ReadError> {
        let from = self.depth_of(n, at)?;
        self.tuple_from(from);
        Ok(())
    }

    fn tuple_from(&mut self, from: usize) {
        let items = &self.stack[from..];
        let pair = match items {
            [first, second] => self.heap.unsigned(*first).zip(self.heap.unsigned(*second)),
            _ => None,
        };
        let tuple = if let Some(pair) = pair {
            Kind::Pair(self.heap.pair(pair)).into()
        } else if items.is_empty() {
            Kind::EmptyTuple.into()
        } else {
            let items = items.to_vec();
            self.heap.add(Object::Tuple(items))
        };
        self.stack.truncate(from);
        self.stack.push(tuple);
    }

    /// SETITEM and SETITEMS: the values from `from` on, in pairs, into the dict below them.
    pub(super) fn set_items(&mut self, from: usize, at: u64) -> Result<(), ReadError> {
        let (Some(below), true) = (from.checked_sub(1), (self.stack.len() - from).is_multiple_of(2)) else {
            return Err(self.damaged(at, "the values of a dict do not come in pairs"));
        };
        let target = self.current(self.stack[below]);
        match target.kind() {
            Kind::EmptyDict(slot) => {
                let items = &self.stack[from..];
                if items.is_empty() {
                    return Ok(());
                }
                let row = self.builder.row(items, &self.heap, &mut self.findings, at)?;
                let filled = row.unwrap_or_else(|| {
                    let entries = items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
                    self.heap.add(Object::Dict(entries))
                });
                self.replace(below, slot, filled);
            }
            Kind::Object(object) => {
                let Some(Object::Dict(entries)) = self.heap.objects.get_mut(object as usize) else {
                    return Err(self.damaged(at, "values are put into a dict that is none"));
                };
                self.heap.held += size_of_val(&self.stack[from..]) as u64;
                entries.extend(self.stack[from..].chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            _ => return Err(self.damaged(at, "values are put into a dict that is none, or is finished")),
        }
        self.stack.truncate(from);
        Ok(())
    }

    /// APPEND and APPENDS: the values from `from` on to the list below them. A list that is filled one by one, or in
    /// parts of a thousand, may still grow; any other is complete.
    pub(super) fn append_items(&mut self, from: usize, at: u64, is_one: bool) -> Result<(), ReadError> {
        let Some(below) = from.checked_sub(1) else {
            return Err(self.damaged(at, "values are put into a list that is not there"));
        };
        if self.stack.len() == from {
            return Ok(());
        }
        self.finish_dicts(from, at)?;
        let target = self.current(self.stack[below]);
        match target.kind() {
            Kind::EmptyList(slot) => {
                let may_grow = is_one || self.stack.len() - from == BATCH;
                let stack = if may_grow { None } else { self.stack_of_frames(from) };
                let filled = match stack {
                    Some(stack) => Kind::Stack(stack).into(),
                    None => {
                        let object = self.list_from(from);
                        self.heap.add(object)
                    }
                };
                self.replace(below, slot, filled);
            }
            Kind::Stack(stack) => {
                // No pickler of Python's goes on after a short part; whoever does gets a plain list.
                let frames = self.builder.stacks.frame_ids(stack).iter();
                let mut items: Vec<Val> = frames.map(|id| Kind::Frame(FrameId(*id)).into()).collect();
                items.extend_from_slice(&self.stack[from..]);
                self.stack[below] = self.heap.add(Object::List(items));
            }
            Kind::Object(object) => {
                let more = self.list_from(from);
                self.heap.held += size_of_val(&self.stack[from..]) as u64;
                match self.heap.objects.get_mut(object as usize) {
                    Some(Object::List(items)) => items.extend_from_slice(&self.stack[from..]),
                    Some(Object::Run(row, start, end)) => match more {
                        Object::Run(more_row, more_start, more_end)
                            if more_row == *row && more_start == *end =>
                        {
                            *end = more_end;
                        }
                        _ => {
                            let mut items: Vec<Val> =
                                (*start..*end).map(|at| Kind::Row(*row, at).into()).collect();
                            items.extend_from_slice(&self.stack[from..]);
                            self.heap.objects[object as usize] = Object::List(items);
                        }
                    },
                    _ => return Err(self.damaged(at, "values are put into a list that is none")),
                }
            }
            _ => return Err(self.damaged(at, "values are put into a list that is none")),
        }
        self.stack.truncate(from);
        Ok(())
    }

    /// Makes rows and frames of dicts that were filled entry by entry, as protocol 0 does: they are complete once
    /// they go into a list.
    fn finish_dicts(&mut self, from: usize, at: u64) -> Result<(), ReadError> {
        for place in from..self.stack.len() {
            let Kind::Object(object) = self.stack[place].kind() else { continue };
            match &self.heap.objects[object as usize] {
                Object::Became(val) => self.stack[place] = *val,
                Object::Dict(entries) if entries.len() > 1 => {
                    let items: Vec<Val> = entries.iter().flat_map(|(key, val)| [*key, *val]).collect();
                    if let Some(val) = self.builder.row(&items, &self.heap, &mut self.findings, at)? {
                        self.heap.held -= self.heap.objects[object as usize].content_bytes();
                        self.heap.objects[object as usize] = Object::Became(val);
                        self.stack[place] = val;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What an empty container has become since this copy of it was pushed.
    fn current(&self, val: Val) -> Val {
        match val.kind() {
            Kind::EmptyList(slot) | Kind::EmptyDict(slot) if slot != NO_SLOT => {
                self.memo.get(slot as usize).copied().unwrap_or(val)
            }
            _ => val,
        }
    }

    fn replace(&mut self, below: usize, slot: u32, filled: Val) {
        if let Some(remembered) = self.memo.get_mut(slot as usize) {
            *remembered = filled;
        }
        self.stack[below] = filled;
    }

    fn stack_of_frames(&mut self, from: usize) -> Option<StackId> {
        self.frame_ids.clear();
        for val in &self.stack[from..] {
            self.frame_ids.push(val.frame()?);
        }
        Some(self.builder.stacks.intern(&self.frame_ids))
    }

    fn list_from(&self, from: usize) -> Object {
        let items = &self.stack[from..];
        if let Kind::Row(row, start) = items[0].kind() {
            let is_run = (start..)
                .zip(items)
                .all(|(at, val)| matches!(val.kind(), Kind::Row(r, i) if r == row && i == at));
            if is_run {
                return Object::Run(row, start, start + items.len() as u32);
            }
        }
        Object::List(items.to_vec())
    }

    #[cold]
    pub(super) fn damaged(&self, at: u64, what: &str) -> ReadError {
        ReadError::new(ReadError::DAMAGED, at, format!("the pickle is damaged at byte {at}: {what}"))
    }
}

/// Values that may wait on the stack, and in the memo, of even the smallest file.
const FREE_VALUES: u64 = 65_536;

/// Bytes that containers of even the smallest file may take.
const FREE_OBJECT_BYTES: u64 = 16 << 20;

/// What a container takes besides its values: its own row, and the allocator's overhead for its values.
const OBJECT_BYTES: u64 = (size_of::<Object>() + 16) as u64;

/// Opcodes that are run in one go.
const BURST: usize = 4096;

/// Python's picklers fill containers in parts of this many.
const BATCH: usize = 1000;

/// A two's complement number of any length; beyond 16 bytes it is cut to the range of an `i128`.
fn signed_little_endian(bytes: &[u8]) -> i128 {
    let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
    if bytes.len() > 16 {
        return if is_negative { i128::MIN } else { i128::MAX };
    }
    let mut number = [if is_negative { 0xff } else { 0 }; 16];
    number[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(number)
}

/// A number as digits; beyond the range of an `i128` it is cut to it, as the binary forms are.
fn decimal(digits: &str) -> Option<i128> {
    digits.parse::<i128>().map_or_else(
        |error| match error.kind() {
            std::num::IntErrorKind::PosOverflow => Some(i128::MAX),
            std::num::IntErrorKind::NegOverflow => Some(i128::MIN),
            _ => None,
        },
        Some,
    )
}

/// A text as Python 2 quotes it.
fn unquoted(text: &str) -> Vec<u8> {
    let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or("");
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b'x') => {
                let digits = [rest.next(), rest.next()].map(|digit| digit.map_or(0, |digit| digit));
                let code = std::str::from_utf8(&digits).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok());
                bytes.push(code.unwrap_or(b'?'));
            }
            Some(other) => bytes.push(other),
            None => {}
        }
    }
    bytes
}

/// A text of which some characters are written as `\uXXXX` or `\UXXXXXXXX`.
fn unescaped(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        whole.push_str(&rest[..at]);
        let digits = match rest.as_bytes().get(at + 1) {
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        let code = rest.get(at + 2..at + 2 + digits).filter(|hex| !hex.is_empty());
        if let Some(code) = code.and_then(|hex| u32::from_str_radix(hex, 16).ok()) {
            whole.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            rest = &rest[at + 2 + digits..];
        } else {
            whole.push('\\');
            rest = &rest[at + 1..];
        }
    }
    whole + rest
}

/// The sentence for an opcode that no snapshot has.
fn refusal(op: u8, at: u64) -> ReadError {
    let calls = match op {
        b'c' => Some("GLOBAL"),
        0x93 => Some("STACK_GLOBAL"),
        b'R' => Some("REDUCE"),
        b'b' => Some("BUILD"),
        b'i' => Some("INST"),
        b'o' => Some("OBJ"),
        0x81 => Some("NEWOBJ"),
        0x92 => Some("NEWOBJ_EX"),
        0x82 => Some("EXT1"),
        0x83 => Some("EXT2"),
        0x84 => Some("EXT4"),
        b'P' => Some("PERSID"),
        b'Q' => Some("BINPERSID"),
        _ => None,
    };
    if let Some(name) = calls {
        let message = format!(
            "{name} at byte {at} would load or call code, and no memory snapshot needs that: the file is refused, \
             and nothing in it was run"
        );
        return ReadError::new(ReadError::REFUSED, at, message);
    }
    let unread = match op {
        b'T' | b'U' => Some("a text of Python 2"),
        b'B' | b'C' | 0x8e | 0x96..=0x98 => Some("a bytes object, which no memory snapshot holds"),
        0x8f..=0x91 => Some("a set, which no memory snapshot holds"),
        b'2' => Some("DUP, which no pickler of snapshots writes"),
        _ => None,
    };
    match unread {
        Some(what) => {
            let message = format!(
                "byte {at} begins {what}; write the snapshot again with pickle.dump(snapshot, file, protocol=4)"
            );
            ReadError::new(ReadError::REFUSED, at, message)
        }
        None => {
            let message = format!("the pickle is damaged at byte {at}: {op:#04x} is not an opcode");
            ReadError::new(ReadError::DAMAGED, at, message)
        }
    }
}
