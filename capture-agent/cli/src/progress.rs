//! A line on a terminal that says how far something is; nothing elsewhere.

use std::io::{self, IsTerminal as _, Read, Seek, SeekFrom, Write};

use tidegauge_snapshot::words::size;

/// Work on fewer bytes is over before anyone has read the line.
const WORTH_TELLING_BYTES: u64 = 16 << 20;

/// The line. It goes when this is dropped.
pub(crate) struct Progress {
    head: Option<String>,
    /// Bytes of all of it, if known.
    total: Option<u64>,
    done: u64,
    /// Percent, or mebibytes where the total is unknown.
    shown: Option<u64>,
}

impl Progress {
    /// A line that begins with `head`.
    pub(crate) fn new(head: String, total: Option<u64>) -> Self {
        let is_seen = io::stderr().is_terminal();
        Self { head: is_seen.then_some(head), total, done: 0, shown: None }
    }

    /// The same for work that is usually short: told only when it is much.
    pub(crate) fn of_much(head: String, total: Option<u64>) -> Self {
        match total {
            Some(total) if total < WORTH_TELLING_BYTES => {
                Self { head: None, total: None, done: 0, shown: None }
            }
            _ => Self::new(head, total),
        }
    }

    /// So many more bytes are done.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        let Some(head) = &self.head else { return };
        let (now, text) = match self.total {
            Some(total) => {
                let percent = self.done.saturating_mul(100).checked_div(total).unwrap_or(100).min(100);
                (percent, format!("{} of {}, {percent} %", size(self.done), size(total)))
            }
            None if self.done < WORTH_TELLING_BYTES => return,
            None => (self.done >> 20, size(self.done)),
        };
        if self.shown.replace(now) != Some(now) {
            eprint!("\r\x1b[K{head}  {text}");
            // A terminal that does not take it misses a number.
            io::stderr().flush().ok();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

/// Bytes that are counted on their way.
pub(crate) struct Counted<T> {
    inner: T,
    progress: Progress,
}

impl<T> Counted<T> {
    pub(crate) fn new(inner: T, progress: Progress) -> Self {
        Self { inner, progress }
    }
}

impl<T: Read> Read for Counted<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.progress.advance(n as u64);
        Ok(n)
    }
}

impl<T: Seek> Seek for Counted<T> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

impl<T: Write> Write for Counted<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.progress.advance(n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
