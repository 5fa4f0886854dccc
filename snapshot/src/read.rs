//! The door: bytes in, a [`Snapshot`] and its findings out, or one sentence that says why not.
//!
//! [`open`] takes off the wrapping (gzip, zstd, one inside the other), runs a small machine over the pickle's
//! opcodes ([`pickle`]) and fills the tables while the bytes stream past ([`shape`]). Nothing in a pickle is
//! ever called: opcodes that would are refused by name and offset. Every length, depth and count is bounded by
//! the bytes that were really there.

pub mod error;
mod findings;
mod html;
mod json;
mod pickle;
mod shape;
mod tables;
mod source;
mod unwrap;

pub use error::ReadError;
pub use unwrap::{MAX_CONTENT_BYTES, MAX_RATIO};

use std::io::Read;

use crate::Snapshot;

/// Bytes of a file that [`recognize`] wants to see.
pub const HEAD_BYTES: usize = 64 * 1024;

/// Reads a snapshot from the bytes of a file: a pickle of any protocol, a page that `trace_plot` made around one, or
/// JSON of the same shape; plain or inside gzip or zstd.
///
/// # Errors
/// [`ReadError`] when there is nothing to show: not a snapshot, cut, damaged, or refused.
pub fn open(bytes: impl Read) -> Result<Snapshot, ReadError> {
    let (content, wrapping) = unwrap::unwrap(bytes)?;
    let mut content = std::io::BufReader::with_capacity(64, content);
    let beginning = std::io::BufRead::fill_buf(&mut content).map_err(|error| unwrap::from_io(&error, 0))?;
    let is_json = matches!(beginning.first(), Some(b'{' | b'['));
    let mut snapshot = if is_json { json::run(content)? } else { pickle::run(content)? };
    let protocol = std::mem::take(&mut snapshot.wrapping);
    snapshot.wrapping = wrapping.into_iter().map(str::to_owned).chain(protocol).collect();
    Ok(snapshot)
}

/// The bytes inside gzip or zstd, or the bytes themselves; the same snapshot has the same content however it
/// was packed. Reading fails past the bounds of [`MAX_CONTENT_BYTES`] and [`MAX_RATIO`].
///
/// # Errors
/// [`ReadError`] when the first bytes cannot be read.
pub fn content<'a>(bytes: impl Read + 'a) -> Result<impl Read + 'a, ReadError> {
    unwrap::unwrap(bytes).map(|(content, _)| content)
}

/// Says whether a file that begins like this can be a snapshot. A file that is cut passes: only reading all of
/// it can tell where.
///
/// `head` holds the first [`HEAD_BYTES`] of the file, or all of a smaller one.
///
/// # Errors
/// [`ReadError`] that names what the file is instead, as far as its beginning tells.
pub fn recognize(head: &[u8]) -> Result<(), ReadError> {
    match open(head) {
        Ok(_) => Ok(()),
        Err(error) if error.code() == ReadError::CUT => Ok(()),
        Err(error) => Err(error),
    }
}
