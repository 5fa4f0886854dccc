//! A snapshot's pickle as CPython 3.11 writes it: protocol 4, framed, everything memoized.

use std::{
    collections::HashMap,
    io::{self, Write},
};

/// CPython closes a frame once it has this many bytes.
const FRAME_BYTES: usize = 64 * 1024;
/// CPython writes this many items of a list or dict at a time.
const BATCH: usize = 1000;

/// Number of a value written before.
pub(crate) type Memo = u32;

/// Writes opcodes. Values that torch shares between entries are written once and fetched by their [`Memo`].
pub(crate) struct Pickler<W> {
    out: W,
    frame: Vec<u8>,
    n_memos: Memo,
    names: HashMap<&'static str, Memo>,
    /// Items of the open batch of a list that is streamed.
    n_streamed: usize,
}

impl<W: Write> Pickler<W> {
    /// Begins a pickle.
    pub(crate) fn start(mut out: W) -> io::Result<Self> {
        out.write_all(b"\x80\x04")?;
        Ok(Self {
            out,
            frame: Vec::with_capacity(FRAME_BYTES),
            n_memos: 0,
            names: HashMap::new(),
            n_streamed: 0,
        })
    }

    /// Ends it.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.frame.push(b'.');
        self.close_frame()?;
        self.out.flush()
    }

    pub(crate) fn dict(&mut self) -> Memo {
        self.code(b'}')
    }

    pub(crate) fn list(&mut self) -> Memo {
        self.code(b']')
    }

    /// `(` before several keys with their values, [`Self::set_items`] after them.
    pub(crate) fn mark(&mut self) {
        self.frame.push(b'(');
    }

    pub(crate) fn set_items(&mut self) -> io::Result<()> {
        self.frame.push(b'u');
        self.close_full_frame()
    }

    /// Parts of a list that are written together: [`Self::start_items`], the items, [`Self::end_items`].
    pub(crate) fn batches<T>(items: &[T]) -> impl Iterator<Item = &[T]> {
        items.chunks(BATCH)
    }

    pub(crate) fn start_items<T>(&mut self, batch: &[T]) {
        if batch.len() != 1 {
            self.mark();
        }
    }

    pub(crate) fn end_items<T>(&mut self, batch: &[T]) -> io::Result<()> {
        self.frame.push(if batch.len() == 1 { b'a' } else { b'e' });
        self.close_full_frame()
    }

    /// Begins the items of a list whose length nobody knows yet, for [`Self::start_streamed`].
    pub(crate) fn start_stream(&mut self) {
        self.n_streamed = 0;
    }

    /// `(` before the first of a batch; the item follows.
    pub(crate) fn start_streamed(&mut self) {
        if self.n_streamed == 0 {
            self.mark();
        }
        self.n_streamed += 1;
    }

    /// Ends a batch that is full.
    pub(crate) fn end_streamed(&mut self) -> io::Result<()> {
        if self.n_streamed < BATCH { Ok(()) } else { self.end_stream() }
    }

    /// Ends the items.
    pub(crate) fn end_stream(&mut self) -> io::Result<()> {
        if self.n_streamed > 0 {
            self.frame.push(b'e');
            self.n_streamed = 0;
        }
        self.close_full_frame()
    }

    /// A string.
    pub(crate) fn text(&mut self, text: &str) -> Memo {
        if let Ok(len) = u8::try_from(text.len()) {
            self.frame.extend_from_slice(&[0x8c, len]);
        } else {
            self.frame.push(b'X');
            let len = u32::try_from(text.len()).expect("no name has 4 GiB");
            self.frame.extend_from_slice(&len.to_le_bytes());
        }
        self.frame.extend_from_slice(text.as_bytes());
        self.memoize()
    }

    /// torch's word for "no limit".
    pub(crate) fn minus_one(&mut self) {
        self.frame.push(b'J');
        self.frame.extend_from_slice(&(-1i32).to_le_bytes());
    }

    /// A string of torch's own, which it makes once.
    pub(crate) fn name(&mut self, name: &'static str) {
        if let Some(memo) = self.names.get(name) {
            return self.again(*memo);
        }
        let memo = self.text(name);
        self.names.insert(name, memo);
    }

    pub(crate) fn int(&mut self, value: u64) {
        if let Ok(byte) = u8::try_from(value) {
            self.frame.extend_from_slice(&[b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.frame.push(b'M');
            self.frame.extend_from_slice(&short.to_le_bytes());
        } else if let Ok(signed) = i32::try_from(value) {
            self.frame.push(b'J');
            self.frame.extend_from_slice(&signed.to_le_bytes());
        } else {
            // As many bytes as the number needs, and one more where its top bit would read as a sign.
            let n_bytes =
                8 - value.leading_zeros() as usize / 8 + usize::from(value.leading_zeros().is_multiple_of(8));
            let mut bytes = value.to_le_bytes().to_vec();
            bytes.push(0);
            self.frame.extend_from_slice(&[0x8a, u8::try_from(n_bytes).expect("at most nine")]);
            self.frame.extend_from_slice(&bytes[..n_bytes]);
        }
    }

    pub(crate) fn boolean(&mut self, value: bool) {
        self.frame.push(if value { 0x88 } else { 0x89 });
    }

    /// The two values before it as a tuple.
    pub(crate) fn pair(&mut self) -> Memo {
        self.code(0x86)
    }

    /// A value written before.
    pub(crate) fn again(&mut self, memo: Memo) {
        if let Ok(byte) = u8::try_from(memo) {
            self.frame.extend_from_slice(&[b'h', byte]);
        } else {
            self.frame.push(b'j');
            self.frame.extend_from_slice(&memo.to_le_bytes());
        }
    }

    fn code(&mut self, opcode: u8) -> Memo {
        self.frame.push(opcode);
        self.memoize()
    }

    fn memoize(&mut self) -> Memo {
        self.frame.push(0x94);
        self.n_memos += 1;
        self.n_memos - 1
    }

    fn close_full_frame(&mut self) -> io::Result<()> {
        if self.frame.len() < FRAME_BYTES { Ok(()) } else { self.close_frame() }
    }

    fn close_frame(&mut self) -> io::Result<()> {
        self.out.write_all(&[0x95])?;
        self.out.write_all(&(self.frame.len() as u64).to_le_bytes())?;
        self.out.write_all(&self.frame)?;
        self.frame.clear();
        Ok(())
    }
}
