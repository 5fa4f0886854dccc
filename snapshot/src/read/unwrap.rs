//! Takes off gzip, zstd and HTML, and bounds what may come out.

use std::cell::Cell;
use std::error::Error;
use std::io::{self, Read};
use std::rc::Rc;

use super::{ReadError, strangers};

/// No file may decompress to more than this: 64 GiB, about 600 million events.
pub const MAX_CONTENT_BYTES: u64 = 64 << 30;

/// Nor to more than this many times its own size, once past [`FREE_BYTES`]. Real snapshots reach 150.
pub const MAX_RATIO: u64 = 2000;

/// Below this the ratio is not looked at: small files of one repeated event compress very well.
const FREE_BYTES: u64 = 256 << 20;

/// gzip inside zstd inside gzip…: deeper than this is no accident.
const MAX_LAYERS: usize = 4;

/// What is inside all the wrappings.
pub(crate) enum Content<'a> {
    /// What may be a pickle or JSON.
    Plain(Box<dyn Read + 'a>),
    /// A tar archive.
    Tar(Box<dyn Read + 'a>),
    /// A zip archive: its table of contents stands at its end.
    Zip,
}

/// The innermost bytes and the names of the wrappings, outermost first. `budget` counts what is read of the file
/// and what comes out of it.
pub(crate) fn unwrap<'a>(
    bytes: impl Read + 'a,
    budget: &Budget,
) -> Result<(Content<'a>, Vec<&'static str>), ReadError> {
    let mut reader: Box<dyn Read + 'a> = Box::new(bytes);
    let mut wrapping = Vec::new();
    loop {
        let (head, rest) = peek(reader, strangers::HEAD_BYTES)?;
        let Some(wrapper) = wrapper(&head) else {
            let content = if is_zip(&head)? {
                wrapping.push("zip");
                Content::Zip
            } else if is_tar(&head) {
                wrapping.push("tar");
                Content::Tar(budget.bound(rest))
            } else {
                strangers::check(&head)?;
                Content::Plain(if wrapping.is_empty() { Box::new(rest) } else { budget.bound(rest) })
            };
            return Ok((content, wrapping));
        };
        if wrapping.len() == MAX_LAYERS {
            let message = "the file is compressed more than four times over; unpack it once and try again";
            return Err(ReadError::new(ReadError::REFUSED, None, message));
        }
        wrapping.push(wrapper);
        reader = match wrapper {
            "gzip" => Box::new(flate2::read::MultiGzDecoder::new(rest)),
            "html" => super::html::pickle_inside(rest)?,
            _ => zstd_reader(rest)?,
        };
    }
}

fn wrapper(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        _ if looks_like_html(head) => Some("html"),
        _ => None,
    }
}

/// A tag, a declaration or a comment.
fn looks_like_html(head: &[u8]) -> bool {
    let text = strangers::without_mark(head.trim_ascii_start()).trim_ascii_start();
    matches!(text, [b'<', b'!' | b'?' | b'a'..=b'z' | b'A'..=b'Z', ..])
}

/// The mark of tar's archives since 1988, in the first header.
fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Whether this begins a zip archive.
///
/// # Errors
/// [`ReadError`] when the name of its first file tells that it holds something else.
pub(crate) fn is_zip(head: &[u8]) -> Result<bool, ReadError> {
    if !head.starts_with(b"PK\x03\x04") {
        return Ok(false);
    }
    strangers::first_zip_name(head).and_then(strangers::zip_of).map_or(Ok(true), Err)
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn zstd_reader<'a>(bytes: impl Read + 'a) -> Result<Box<dyn Read + 'a>, ReadError> {
    let decoder = zstd::stream::read::Decoder::new(bytes).map_err(|error| from_io(&error, 0))?;
    Ok(Box::new(decoder))
}

#[cfg(target_arch = "wasm32")]
pub(crate) fn zstd_reader<'a>(bytes: impl Read + 'a) -> Result<Box<dyn Read + 'a>, ReadError> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(bytes).map_err(|error| {
        let message = format!("the zstd wrapping is damaged: {error}");
        ReadError::new(ReadError::DAMAGED, 0, message)
    })?;
    Ok(Box::new(decoder))
}

/// The sentence for a failed read at this offset of the decompressed bytes.
pub(crate) fn from_io(error: &io::Error, offset: u64) -> ReadError {
    if let Some(ours) = ours(error) {
        return ours.clone();
    }
    let text = error.to_string();
    // zstd says "incomplete frame" as an error of kind Other.
    if error.kind() == io::ErrorKind::UnexpectedEof || text.contains("incomplete frame") {
        let message = format!(
            "the compressed file ends early, after {offset} decompressed bytes: it was cut while being written \
             or copied"
        );
        return ReadError::new(ReadError::CUT, offset, message);
    }
    if error.kind() == io::ErrorKind::IsADirectory {
        return ReadError::new(ReadError::IO, None, "this is a folder; name a file in it");
    }
    if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other)
    {
        let message = format!("the compressed file is damaged after {offset} decompressed bytes: {text}");
        return ReadError::new(ReadError::DAMAGED, offset, message);
    }
    ReadError::new(ReadError::IO, offset, format!("reading the file failed after {offset} bytes: {text}"))
}

/// An error of ours that came through a decompressor or an archive's reader.
fn ours(error: &io::Error) -> Option<&ReadError> {
    let mut cause: Option<&(dyn Error + 'static)> = error.get_ref().map(|inner| inner as _);
    while let Some(error) = cause {
        if let Some(ours) = error.downcast_ref() {
            return Some(ours);
        }
        cause = match error.downcast_ref::<io::Error>() {
            Some(io) => io.get_ref().map(|inner| inner as _),
            None => error.source(),
        };
    }
    None
}

/// The first bytes, at most `max`, and a reader that still gives all.
pub(crate) fn peek<'a>(
    mut reader: Box<dyn Read + 'a>,
    max: usize,
) -> Result<(Vec<u8>, impl Read + 'a), ReadError> {
    let mut head = Vec::with_capacity(max);
    match reader.by_ref().take(max as u64).read_to_end(&mut head) {
        Ok(_) => {}
        // What came before the failure may tell what the file is; whoever reads on meets the failure again.
        Err(error) if head.is_empty() => return Err(from_io(&error, 0)),
        Err(error) => {
            let again: Box<dyn Read + 'a> = Box::new(Failing(Some(error)));
            return Ok((head.clone(), io::Cursor::new(head).chain(again)));
        }
    }
    Ok((head.clone(), io::Cursor::new(head).chain(reader)))
}

/// Fails as another reader did.
struct Failing(Option<io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(self.0.take().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))
    }
}

/// What was read of a file and what came out of it: the measure of a decompression bomb.
#[derive(Clone, Default)]
pub(crate) struct Budget {
    taken: Rc<Cell<u64>>,
    given: Rc<Cell<u64>>,
}

impl Budget {
    /// For a file that is read here and there: all its bytes count as read, and none twice.
    pub(crate) fn of_file(bytes: u64) -> Self {
        Self { taken: Rc::new(Cell::new(bytes)), given: Rc::default() }
    }

    /// For what is inside an archive: the same file, counted anew.
    pub(crate) fn inside(&self) -> Self {
        Self { taken: Rc::clone(&self.taken), given: Rc::default() }
    }

    /// Counts what is read of the file.
    pub(crate) fn count<R: Read>(&self, inner: R) -> impl Read + use<R> {
        Counted { inner, count: Rc::clone(&self.taken) }
    }

    /// Ends with an error when more comes out than may.
    pub(crate) fn bound<'a>(&self, inner: impl Read + 'a) -> Box<dyn Read + 'a> {
        Box::new(Bounded { inner, budget: self.clone() })
    }
}

struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.count.set(self.count.get().saturating_add(n as u64));
        Ok(n)
    }
}

struct Bounded<R> {
    inner: R,
    budget: Budget,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        let given = self.budget.given.get().saturating_add(n as u64);
        self.budget.given.set(given);
        let by_ratio = self.budget.taken.get().saturating_mul(MAX_RATIO).max(FREE_BYTES);
        if given > by_ratio.min(MAX_CONTENT_BYTES) {
            let message = format!(
                "the file decompresses to more than {MAX_RATIO} times its own size ({given} bytes so far), which no \
                 snapshot does; it is refused as a decompression bomb"
            );
            return Err(io::Error::other(ReadError::new(ReadError::TOO_LARGE, given, message)));
        }
        Ok(n)
    }
}
