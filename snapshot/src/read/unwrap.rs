//! Takes off gzip, zstd and HTML, and bounds what may come out.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ReadError;

/// No file may decompress to more than this: 64 GiB, about 600 million events.
pub const MAX_CONTENT_BYTES: u64 = 64 << 30;

/// Nor to more than this many times its own size, once past [`FREE_BYTES`]. Real snapshots reach 150.
pub const MAX_RATIO: u64 = 2000;

/// Below this the ratio is not looked at: small files of one repeated event compress very well.
const FREE_BYTES: u64 = 256 << 20;

/// gzip inside zstd inside gzip…: deeper than this is no accident.
const MAX_LAYERS: usize = 4;

/// The innermost bytes and the names of the wrappings, outermost first.
pub(crate) fn unwrap<'a>(
    bytes: impl Read + 'a,
) -> Result<(Box<dyn Read + 'a>, Vec<&'static str>), ReadError> {
    let taken = Arc::new(AtomicU64::new(0));
    let mut reader: Box<dyn Read + 'a> = Box::new(Counted { inner: bytes, count: Arc::clone(&taken) });
    let mut wrapping = Vec::new();
    loop {
        let (head, rest) = peek(reader)?;
        let Some(wrapper) = wrapper(&head) else {
            stranger(&head)?;
            let reader: Box<dyn Read> = if wrapping.is_empty() {
                Box::new(rest)
            } else {
                Box::new(Bounded { inner: rest, taken, given: 0 })
            };
            return Ok((reader, wrapping));
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

/// Names what the file is when its first bytes say that it is not a pickle.
fn stranger(head: &[u8]) -> Result<(), ReadError> {
    let message = match head {
        [] => {
            let message = "the file is empty: the dump was probably interrupted; take the snapshot again";
            return Err(ReadError::new(ReadError::EMPTY, 0, message));
        }
        // A pickle, protocol 2 and later; the opcodes that protocols 0 and 1 begin with; JSON.
        [0x80 | b'(' | b'c' | b']' | b'}' | b'{' | b'[', ..] => return Ok(()),
        [b'P', b'K', 3, 4, ..] => {
            "this is a zip archive, as torch.save writes checkpoints, not a memory snapshot; \
             snapshots come from torch.cuda.memory._dump_snapshot()"
        }
        _ => {
            "this is not a pickle: the first byte is not one that torch.cuda.memory._dump_snapshot() \
             writes"
        }
    };
    Err(ReadError::new(ReadError::NOT_A_SNAPSHOT, 0, message))
}

fn looks_like_html(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    text.first() == Some(&b'<')
}

#[cfg(not(target_arch = "wasm32"))]
fn zstd_reader<'a>(bytes: impl Read + 'a) -> Result<Box<dyn Read + 'a>, ReadError> {
    let decoder = zstd::stream::read::Decoder::new(bytes).map_err(|error| from_io(&error, 0))?;
    Ok(Box::new(decoder))
}

#[cfg(target_arch = "wasm32")]
fn zstd_reader<'a>(bytes: impl Read + 'a) -> Result<Box<dyn Read + 'a>, ReadError> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(bytes).map_err(|error| {
        let message = format!("the zstd wrapping is damaged: {error}");
        ReadError::new(ReadError::DAMAGED, 0, message)
    })?;
    Ok(Box::new(decoder))
}

/// The sentence for a failed read at this offset of the decompressed bytes.
pub(crate) fn from_io(error: &io::Error, offset: u64) -> ReadError {
    if let Some(bound) = error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>()) {
        return bound.clone();
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
    if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other)
    {
        let message = format!("the compressed file is damaged after {offset} decompressed bytes: {text}");
        return ReadError::new(ReadError::DAMAGED, offset, message);
    }
    ReadError::new(ReadError::IO, offset, format!("reading the file failed after {offset} bytes: {text}"))
}

/// The first bytes, at most 64, and a reader that still gives all.
fn peek<'a>(mut reader: Box<dyn Read + 'a>) -> Result<(Vec<u8>, impl Read + 'a), ReadError> {
    let mut head = [0; 64];
    let mut len = 0;
    while len < head.len() {
        match reader.read(&mut head[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(from_io(&error, len as u64)),
        }
    }
    let head = head[..len].to_vec();
    Ok((head.clone(), io::Cursor::new(head).chain(reader)))
}

struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.count.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

struct Bounded<R> {
    inner: R,
    taken: Arc<AtomicU64>,
    given: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.given += n as u64;
        let by_ratio = self.taken.load(Ordering::Relaxed).saturating_mul(MAX_RATIO).max(FREE_BYTES);
        if self.given > by_ratio.min(MAX_CONTENT_BYTES) {
            let message = format!(
                "the file decompresses to more than {} times its own size ({} bytes so far), which no snapshot \
                 does; it is refused as a decompression bomb",
                MAX_RATIO, self.given
            );
            return Err(io::Error::other(ReadError::new(ReadError::TOO_LARGE, self.given, message)));
        }
        Ok(n)
    }
}
