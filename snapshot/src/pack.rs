//! Our own columnar file: a snapshot that has been read once, ready to be looked at.
//!
//! A pack is derived from the original and can be rebuilt from it at any time, so there is one version, and no
//! way to upgrade: another version is built anew. `docs/pack-format.md` describes the bytes.
//!
//! Everything a first picture needs comes before the texts of the stacks ([`Header::first_bytes`]), so a page
//! can draw while the rest is still on its way.

mod bytes;
mod chunks;

use crate::Snapshot;
use crate::picture::Palette;
use bytes::Reader;
use chunks::Kind;

/// The version of the format; it is part of a pack's address.
pub const VERSION: u32 = 2;

const MAGIC: &[u8; 8] = b"tidepack";

/// Magic, version, directory length, directory checksum.
const FIXED_BYTES: usize = 8 + 4 + 4 + 4;

/// A directory entry: kind, codec, checksum, first row, rows, stored bytes, raw bytes.
const ENTRY_BYTES: usize = 1 + 1 + 4 + 8 + 8 + 8 + 8;

/// No chunk may unpack to more than this: strings of a file with a billion events stay far below.
const MAX_CHUNK_BYTES: u64 = 4 << 30;

/// Why a pack cannot be used. All of them mean: build it again from the original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackError(String);

impl PackError {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl std::fmt::Display for PackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PackError {}

/// The directory of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    chunks: Vec<Chunk>,
    /// Bytes from the beginning of the file that hold all a first picture needs.
    pub first_bytes: u64,
    /// Bytes of the file.
    pub total_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Chunk {
    kind: Kind,
    codec: u8,
    checksum: u32,
    first_row: u64,
    n_rows: u64,
    raw_bytes: u64,
    range: std::ops::Range<u64>,
}

/// Writes a snapshot as a pack.
pub fn write(snapshot: &Snapshot) -> Vec<u8> {
    let palette = Palette::new(snapshot);
    let mut directory = Vec::new();
    let mut body = Vec::new();
    for chunk in chunks::encode(snapshot, &palette) {
        let (codec, stored) = compress(&chunk.bytes);
        directory.push(chunk.kind as u8);
        directory.push(codec);
        directory.extend(crc32fast::hash(&stored).to_le_bytes());
        directory.extend(chunk.first_row.to_le_bytes());
        directory.extend(chunk.n_rows.to_le_bytes());
        directory.extend((stored.len() as u64).to_le_bytes());
        directory.extend((chunk.bytes.len() as u64).to_le_bytes());
        body.extend(stored);
    }
    let mut pack = Vec::with_capacity(FIXED_BYTES + directory.len() + body.len());
    pack.extend(MAGIC);
    pack.extend(VERSION.to_le_bytes());
    pack.extend((directory.len() as u32).to_le_bytes());
    pack.extend(crc32fast::hash(&directory).to_le_bytes());
    pack.extend(directory);
    pack.extend(body);
    pack
}

/// Reads the directory from the first bytes of a pack; `None` when more bytes are needed.
///
/// # Errors
/// [`PackError`] when this is no pack, one of another version, or a damaged one.
pub fn header(bytes: &[u8]) -> Result<Option<Header>, PackError> {
    if bytes.len() < FIXED_BYTES {
        return Ok(None);
    }
    let mut fixed = Reader::new(&bytes[MAGIC.len()..FIXED_BYTES]);
    let (version, directory_bytes, checksum) = (fixed.u32()?, fixed.u32()? as usize, fixed.u32()?);
    if &bytes[..MAGIC.len()] != MAGIC {
        return Err(PackError::new("this is not a pack: it does not begin with \"tidepack\""));
    }
    if version != VERSION {
        let message =
            format!("the pack has version {version}, and this program reads {VERSION}; build it again");
        return Err(PackError::new(message));
    }
    let Some(directory) = bytes[FIXED_BYTES..].get(..directory_bytes) else { return Ok(None) };
    if crc32fast::hash(directory) != checksum || !directory_bytes.is_multiple_of(ENTRY_BYTES) {
        return Err(PackError::new("the pack's directory is damaged; build the pack again"));
    }
    let mut at = (FIXED_BYTES + directory_bytes) as u64;
    let mut first_bytes = at;
    let mut chunks = Vec::new();
    let mut reader = Reader::new(directory);
    while !reader.is_done() {
        let kind = Kind::from_byte(reader.u8()?)
            .ok_or_else(|| PackError::new("the pack has a chunk of an unknown kind; build it again"))?;
        let codec = reader.u8()?;
        let checksum = reader.u32()?;
        let (first_row, n_rows) = (reader.u64()?, reader.u64()?);
        let (stored_bytes, raw_bytes) = (reader.u64()?, reader.u64()?);
        let end = at.checked_add(stored_bytes).filter(|_| raw_bytes <= MAX_CHUNK_BYTES);
        let end =
            end.ok_or_else(|| PackError::new("the pack has a chunk of an impossible size; build it again"))?;
        chunks.push(Chunk { kind, codec, checksum, first_row, n_rows, raw_bytes, range: at..end });
        at = end;
        if kind.is_first() {
            first_bytes = at;
        }
    }
    Ok(Some(Header { chunks, first_bytes, total_bytes: at }))
}

/// Reads a whole pack.
///
/// # Errors
/// [`PackError`] when it is damaged, cut or of another version.
pub fn read(bytes: &[u8]) -> Result<Snapshot, PackError> {
    let header = header(bytes)?.ok_or_else(|| PackError::new("the pack is cut; build it again"))?;
    let (mut snapshot, _) = read_first(&header, bytes)?;
    let rest = bytes.get(header.first_bytes as usize..);
    add_stacks(
        &mut snapshot,
        &header,
        rest.ok_or_else(|| PackError::new("the pack is cut; build it again"))?,
    )?;
    Ok(snapshot)
}

/// Reads what a first picture needs: all but the texts, frames and stacks. `bytes` are the first
/// [`Header::first_bytes`] of the pack.
///
/// # Errors
/// [`PackError`] when they are damaged or too few.
pub fn read_first(header: &Header, bytes: &[u8]) -> Result<(Snapshot, Palette), PackError> {
    let mut snapshot = Snapshot::default();
    let mut palette = Palette::default();
    for chunk in header.chunks.iter().filter(|chunk| chunk.kind.is_first()) {
        chunks::decode(&mut snapshot, &mut palette, chunk, &unpack(chunk, bytes, 0)?)?;
    }
    chunks::check(&snapshot)?;
    Ok((snapshot, palette))
}

/// Adds texts, frames and stacks. `rest` are the bytes from [`Header::first_bytes`] to the end.
///
/// # Errors
/// [`PackError`] when they are damaged or too few.
pub fn add_stacks(snapshot: &mut Snapshot, header: &Header, rest: &[u8]) -> Result<(), PackError> {
    let mut palette = Palette::default();
    for chunk in header.chunks.iter().filter(|chunk| !chunk.kind.is_first()) {
        chunks::decode(snapshot, &mut palette, chunk, &unpack(chunk, rest, header.first_bytes)?)?;
    }
    Ok(())
}

fn unpack(chunk: &Chunk, bytes: &[u8], base: u64) -> Result<Vec<u8>, PackError> {
    let cut = || PackError::new("the pack is cut; build it again");
    let from = chunk.range.start.checked_sub(base).ok_or_else(cut)? as usize;
    let to = chunk.range.end.checked_sub(base).ok_or_else(cut)? as usize;
    let stored = bytes.get(from..to).ok_or_else(cut)?;
    if crc32fast::hash(stored) != chunk.checksum {
        return Err(PackError::new("a chunk of the pack is damaged; build the pack again"));
    }
    let raw = decompress(chunk.codec, stored, chunk.raw_bytes)?;
    if raw.len() as u64 != chunk.raw_bytes {
        return Err(PackError::new("a chunk of the pack has the wrong size; build the pack again"));
    }
    Ok(raw)
}

const STORED: u8 = 0;
const ZSTD: u8 = 1;

#[cfg(not(target_arch = "wasm32"))]
fn compress(raw: &[u8]) -> (u8, Vec<u8>) {
    const LEVEL: i32 = 3;
    match zstd::bulk::compress(raw, LEVEL) {
        Ok(packed) if packed.len() < raw.len() => (ZSTD, packed),
        _ => (STORED, raw.to_vec()),
    }
}

#[cfg(target_arch = "wasm32")]
fn compress(raw: &[u8]) -> (u8, Vec<u8>) {
    (STORED, raw.to_vec())
}

fn decompress(codec: u8, stored: &[u8], raw_bytes: u64) -> Result<Vec<u8>, PackError> {
    use std::io::Read as _;
    let damaged = |error: &dyn std::fmt::Display| {
        PackError::new(format!("a chunk of the pack is damaged ({error}); build the pack again"))
    };
    match codec {
        STORED => Ok(stored.to_vec()),
        ZSTD => {
            #[cfg(not(target_arch = "wasm32"))]
            let decoder =
                zstd::stream::read::Decoder::with_buffer(stored).map_err(|error| damaged(&error))?;
            #[cfg(target_arch = "wasm32")]
            let decoder = ruzstd::decoding::StreamingDecoder::new(stored).map_err(|error| damaged(&error))?;
            let mut raw = Vec::new();
            decoder.take(raw_bytes + 1).read_to_end(&mut raw).map_err(|error| damaged(&error))?;
            Ok(raw)
        }
        other => {
            Err(PackError::new(format!("a chunk of the pack has the unknown codec {other}; build it again")))
        }
    }
}
