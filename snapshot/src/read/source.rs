//! The pickle's bytes, a window at a time, with their offset for error messages.

use std::io::Read;

use super::{ReadError, unwrap};

/// Bytes of the window. Large reads keep the decompressor busy; more brings nothing.
const WINDOW: usize = 256 * 1024;

/// A window over the bytes of a pickle.
pub(crate) struct Source<R> {
    inner: R,
    buf: Vec<u8>,
    pos: usize,
    end: usize,
    /// Offset of `buf[0]` in the pickle.
    base: u64,
    is_done: bool,
}

impl<R: Read> Source<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, buf: vec![0; WINDOW], pos: 0, end: 0, base: 0, is_done: false }
    }

    /// Offset of the next byte.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.pos as u64
    }

    /// The next byte. `what` ends the sentence "the file ends at byte N, while reading …".
    #[inline]
    pub(crate) fn byte(&mut self, what: &'static str) -> Result<u8, ReadError> {
        if self.pos == self.end {
            self.fill(1, what)?;
        }
        let byte = self.buf[self.pos];
        self.pos += 1;
        Ok(byte)
    }

    /// The next `N` bytes; `N` is far smaller than the window.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ReadError> {
        if self.end - self.pos < N {
            self.fill(N, what)?;
        }
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.buf[self.pos..self.pos + N]);
        self.pos += N;
        Ok(bytes)
    }

    /// The next `n` bytes, given to `take`. A length beyond the file costs no memory: the window grows only as
    /// bytes arrive.
    #[inline]
    pub(crate) fn take<T>(
        &mut self,
        n: u64,
        what: &'static str,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, ReadError> {
        let have = (self.end - self.pos) as u64;
        if have < n {
            if n > WINDOW as u64 {
                return self.take_long(n, what, take);
            }
            self.fill(n as usize, what)?;
        }
        let n = n as usize;
        let taken = take(&self.buf[self.pos..self.pos + n]);
        self.pos += n;
        Ok(taken)
    }

    /// The bytes that are at hand.
    #[inline]
    pub(crate) fn window(&self) -> &[u8] {
        &self.buf[self.pos..self.end]
    }

    /// Passes over bytes of the window.
    #[inline]
    pub(crate) fn skip(&mut self, n: usize) {
        self.pos = (self.pos + n).min(self.end);
    }

    /// The bytes up to the next line feed, without it.
    pub(crate) fn line(&mut self, what: &'static str) -> Result<Vec<u8>, ReadError> {
        let mut line = Vec::new();
        loop {
            let have = &self.buf[self.pos..self.end];
            if let Some(at) = have.iter().position(|byte| *byte == b'\n') {
                line.extend_from_slice(&have[..at]);
                self.pos += at + 1;
                return Ok(line);
            }
            line.extend_from_slice(have);
            self.pos = self.end;
            self.fill(1, what)?;
        }
    }

    /// The next byte, left in place; nothing at the end.
    pub(crate) fn peek(&mut self) -> Result<Option<u8>, ReadError> {
        if self.pos == self.end {
            self.base += self.end as u64;
            (self.pos, self.end) = (0, 0);
            if !self.refill()? {
                return Ok(None);
            }
        }
        Ok(Some(self.buf[self.pos]))
    }

    fn take_long<T>(
        &mut self,
        n: u64,
        what: &'static str,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, ReadError> {
        let mut long = self.buf[self.pos..self.end].to_vec();
        self.pos = self.end;
        while (long.len() as u64) < n {
            self.fill(1, what)?;
            let want = usize::try_from(n - long.len() as u64).unwrap_or(usize::MAX).min(self.end - self.pos);
            long.extend_from_slice(&self.buf[self.pos..self.pos + want]);
            self.pos += want;
        }
        Ok(take(&long))
    }

    /// Makes at least `n` bytes available; `n` is at most the window.
    #[cold]
    fn fill(&mut self, n: usize, what: &'static str) -> Result<(), ReadError> {
        self.buf.copy_within(self.pos..self.end, 0);
        self.base += self.pos as u64;
        self.end -= self.pos;
        self.pos = 0;
        while self.end < n {
            if !self.refill()? {
                let at = self.base + self.end as u64;
                let message = format!(
                    "the file ends at byte {at}, while reading {what}: it was cut while being written or copied"
                );
                return Err(ReadError::new(ReadError::CUT, at, message));
            }
        }
        Ok(())
    }

    fn refill(&mut self) -> Result<bool, ReadError> {
        while !self.is_done {
            match self.inner.read(&mut self.buf[self.end..]) {
                Ok(0) => self.is_done = true,
                Ok(n) => {
                    self.end += n;
                    return Ok(true);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unwrap::from_io(&error, self.base + self.end as u64)),
            }
        }
        Ok(false)
    }

    /// Reads what follows the pickle and counts the bytes that are not zero.
    pub(crate) fn drain(&mut self) -> Result<u64, ReadError> {
        let mut others = 0;
        loop {
            others += self.buf[self.pos..self.end].iter().filter(|byte| **byte != 0).count() as u64;
            self.base += self.end as u64;
            (self.pos, self.end) = (0, 0);
            if !self.refill()? {
                return Ok(others);
            }
        }
    }
}
