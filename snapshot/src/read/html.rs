//! The pickle inside a page of `torch.cuda._memory_viz.trace_plot`: base64 in a script.

use std::io::{self, Read};

use base64::engine::general_purpose::STANDARD;
use base64::read::DecoderReader;

use super::ReadError;
use super::source::Source;

/// What stands before the pickle: `[{"name": "snapshot.pickle", "base64": "…"}]`.
const MARK: &[u8] = b"\"base64\":";

/// What stands before the picture in a page of `torch.profiler`'s `export_memory_timeline`.
const PICTURE: &[u8] = b"data:image/png;base64,";

/// The decoded bytes of the first pickle in a page.
///
/// # Errors
/// [`ReadError`] that says what the page is instead, when there is none.
pub(crate) fn pickle_inside<'a>(page: impl Read + 'a) -> Result<Box<dyn Read + 'a>, ReadError> {
    let mut page = Source::new(page);
    let mut has_picture = false;
    // The latest bytes, as many as the longer of the two marks has.
    let mut latest = Vec::with_capacity(2 * PICTURE.len());
    loop {
        if page.peek()?.is_none() {
            return Err(stranger(has_picture, page.offset()));
        }
        latest.push(page.byte("a page")?);
        has_picture |= latest.ends_with(PICTURE);
        if latest.ends_with(MARK) {
            break;
        }
        if latest.len() == latest.capacity() {
            latest.drain(..PICTURE.len());
        }
    }
    while page.byte("the pickle in a page")? != b'"' {}
    Ok(Box::new(DecoderReader::new(UntilQuote { page }, &STANDARD)))
}

fn stranger(has_picture: bool, at: u64) -> ReadError {
    let message = if has_picture {
        "this is a memory timeline of torch.profiler, a picture in a page, not a memory snapshot; record with \
         torch.cuda.memory._record_memory_history() and give the pickle of _dump_snapshot()"
    } else {
        "this is an HTML page without a snapshot in it; download the pickle itself (a login page in its place is a \
         common cause)"
    };
    ReadError::new(ReadError::NOT_A_SNAPSHOT, at, message)
}

struct UntilQuote<R> {
    page: Source<R>,
}

impl<R: Read> Read for UntilQuote<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut n = 0;
        while n < buf.len() {
            match self.page.peek().map_err(io::Error::other)? {
                Some(b'"') => break,
                Some(byte) => buf[n] = byte,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            self.page.byte("the pickle in a page").map_err(io::Error::other)?;
            n += 1;
        }
        Ok(n)
    }
}
