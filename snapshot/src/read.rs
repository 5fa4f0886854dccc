//! The door: bytes in, a [`Snapshot`] and its findings out, or one sentence that says why not.
//!
//! [`open`] takes off the wrapping (gzip, zstd, a page, one inside the other), runs a small machine over the
//! pickle's opcodes ([`pickle`]) and fills the tables while the bytes stream past ([`shape`]). Nothing in a pickle
//! is ever called: opcodes that would are refused by name and offset. Every length, depth and count is bounded by
//! the bytes that were really there. A file that is something else is named ([`strangers`]); an [`archive`] of one
//! snapshot opens like the snapshot, and one of several can be listed.

pub mod archive;
pub mod error;
mod findings;
mod html;
mod json;
mod pickle;
mod shape;
mod tables;
mod source;
mod strangers;
mod unwrap;

pub use error::ReadError;
pub use unwrap::{MAX_CONTENT_BYTES, MAX_RATIO};

use std::io::{self, Read, Seek, Write};
use std::ops::ControlFlow;

use self::archive::Archive;
use self::unwrap::{Budget, Content};
use crate::Snapshot;

/// Bytes of a file that [`recognize`] wants to see.
pub const HEAD_BYTES: usize = 64 * 1024;

/// Reads a snapshot from a stream of bytes: a pickle of any protocol, a page that `trace_plot` made around one, or
/// JSON of the same shape; plain, inside gzip or zstd, or alone in a tar archive. [`open_file`] reads zip archives,
/// too, for which it must jump about.
///
/// # Errors
/// [`ReadError`] when there is nothing to show: not a snapshot, cut, damaged, or refused.
pub fn open(bytes: impl Read) -> Result<Snapshot, ReadError> {
    let budget = Budget::default();
    match unwrap::unwrap(budget.count(bytes), &budget)? {
        (Content::Plain(content), wrapping) => plain(content, wrapping),
        (Content::Tar(bytes), wrapping) => Archive::of_tar(bytes, wrapping, budget).open_only(),
        (Content::Zip, _) => Err(zip_in_a_stream()),
    }
}

/// Reads a snapshot from a file: whatever [`open`] reads, or the one snapshot in a zip archive. Reading starts at
/// the file's beginning.
///
/// # Errors
/// [`ReadError`] when there is nothing to show; [`ReadError::ARCHIVE`] when there is more than one snapshot to
/// show, which [`archive`] lists and opens.
pub fn open_file(mut file: impl Read + Seek) -> Result<Snapshot, ReadError> {
    if archive::is_zip(&mut file)? { Archive::of_zip(file)?.open_only() } else { open(file) }
}

/// Copies the bytes of the snapshot inside gzip, zstd, a page or an archive, and says how many they are; the same
/// snapshot has the same content however it was packed. Whether they are a snapshot is not looked at.
///
/// # Errors
/// [`ReadError`] when the wrapping is cut or damaged, past the bounds of [`MAX_CONTENT_BYTES`] and [`MAX_RATIO`],
/// when an archive holds no snapshot or several, and when `sink` fails.
pub fn copy_content(mut file: impl Read + Seek, mut sink: impl Write) -> Result<u64, ReadError> {
    let budget = Budget::default();
    let mut archive = if archive::is_zip(&mut file)? {
        Archive::of_zip(file)?
    } else {
        match unwrap::unwrap(budget.count(file), &budget)? {
            (Content::Plain(content), _) => return copy(content, &mut sink),
            (Content::Tar(bytes), wrapping) => Archive::of_tar(bytes, wrapping, budget),
            (Content::Zip, _) => return Err(zip_in_a_stream()),
        }
    };
    let budget = archive.inside();
    let mut n = 0;
    archive.pass_for_only(&mut |_, bytes| {
        let (Content::Plain(content), _) = unwrap::unwrap(bytes, &budget)? else { return Err(nested()) };
        n = copy(content, &mut sink)?;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(n)
}

/// Says whether a file that begins like this can be a snapshot, or an archive of some. A file that is cut passes:
/// only reading all of it can tell where. So does one that does not tell yet, as a page whose pickle begins later.
///
/// `head` holds the first [`HEAD_BYTES`] of the file, or all of a smaller one.
///
/// # Errors
/// [`ReadError`] that names what the file is instead, as far as its beginning tells.
pub fn recognize(head: &[u8]) -> Result<(), ReadError> {
    judge(head, head.len() < HEAD_BYTES).map(|_| ())
}

/// What the beginning of a file tells.
enum Judged {
    MayBeSnapshot,
    Archive,
}

/// JSON that shows this many bytes and none of a snapshot's keys is something else.
const TELLING_JSON_BYTES: usize = 4096;

fn judge(head: &[u8], is_whole: bool) -> Result<Judged, ReadError> {
    let budget = Budget::default();
    let rest: &mut dyn Read = if is_whole { &mut io::empty() } else { &mut NotYet };
    let judged = unwrap::unwrap(budget.count(head.chain(rest)), &budget).and_then(|(content, wrapping)| {
        let Content::Plain(content) = content else { return Ok(Judged::Archive) };
        let (beginning, content) = unwrap::peek(content, HEAD_BYTES)?;
        let opened = plain(content, wrapping);
        if opened.is_err()
            && beginning.len() >= TELLING_JSON_BYTES
            && strangers::begins_json(&beginning)
            && !strangers::has_a_key_of_snapshots(&beginning)
        {
            return Err(strangers::no_snapshot("JSON of something else"));
        }
        opened.map(|_| Judged::MayBeSnapshot)
    });
    match judged {
        Err(error) if error.code() == ReadError::CUT => Ok(Judged::MayBeSnapshot),
        judged => judged,
    }
}

/// The end of what is known of a file, which is not its end.
struct NotYet;

impl Read for NotYet {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Reads what is inside the wrappings.
fn plain<'a>(content: impl Read + 'a, wrapping: Vec<&'static str>) -> Result<Snapshot, ReadError> {
    let (beginning, content) = unwrap::peek(Box::new(content), strangers::HEAD_BYTES)?;
    let is_json = strangers::begins_json(&beginning);
    let mut snapshot = if is_json { json::run(content)? } else { pickle::run(content)? };
    let protocol = std::mem::take(&mut snapshot.wrapping);
    snapshot.wrapping = wrapping.into_iter().map(str::to_owned).chain(protocol).collect();
    Ok(snapshot)
}

/// Opens what lies in an archive.
fn open_inside(bytes: &mut dyn Read, budget: &Budget) -> Result<Snapshot, ReadError> {
    match unwrap::unwrap(bytes, budget)? {
        (Content::Plain(content), wrapping) => plain(content, wrapping),
        _ => Err(nested()),
    }
}

fn nested() -> ReadError {
    ReadError::new(
        ReadError::REFUSED,
        None,
        "it is an archive in an archive; unpack the outer one and try again",
    )
}

fn zip_in_a_stream() -> ReadError {
    let message = "a zip archive has its table of contents at its end, and cannot be read inside another wrapping or \
                   from a stream; unpack what is around it, or it, and try again";
    ReadError::new(ReadError::REFUSED, None, message)
}

fn copy(mut content: impl Read, sink: &mut impl Write) -> Result<u64, ReadError> {
    let mut buffer = vec![0; 64 * 1024];
    let mut copied = 0;
    loop {
        let n = match content.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unwrap::from_io(&error, copied)),
        };
        sink.write_all(&buffer[..n]).map_err(|error| {
            ReadError::new(
                ReadError::IO,
                copied,
                format!("writing the content failed after {copied} bytes: {error}"),
            )
        })?;
        copied += n as u64;
    }
}
