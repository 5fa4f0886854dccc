//! What people give instead of a snapshot, told by its first bytes and named in one sentence.

use super::ReadError;

/// First bytes that the names below need; a tar archive says what it is at byte 257.
pub(crate) const HEAD_BYTES: usize = 512;

const DUMP: &str = "snapshots come from torch.cuda.memory._dump_snapshot()";

/// The beginning of a file torch.save wrote before torch 1.6, or with `_use_new_zipfile_serialization=False`:
/// protocol 2 and a number of ten bytes.
const LEGACY_CHECKPOINT: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// First bytes that other kinds of files always begin with, and what those are.
const SIGNATURES: [(&[u8], &str); 24] = [
    (LEGACY_CHECKPOINT, "a checkpoint in the older form of torch.save"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras and h5py write weights"),
    (b"\x93NUMPY", "an array that NumPy saved"),
    (b"GGUF", "a GGUF file, which holds a model's weights"),
    (b"SQLite format 3\0", "an SQLite database"),
    (
        b"version https://git-lfs.github.com/spec/",
        "a pointer of Git LFS in place of the file; run git lfs pull",
    ),
    (b"tidepack", "a pack, which Tidegauge made of a snapshot; give the snapshot it was made of"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x7fELF", "a program or library"),
    (b"MZ", "a program or library"),
    (b"%PDF-", "a PDF document"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"\xfd7zXZ\0", "compressed by xz, which is not read here; unpack it first"),
    (b"BZh", "compressed by bzip2, which is not read here; unpack it first"),
    (b"\x04\x22\x4d\x18", "compressed by LZ4, which is not read here; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive, which is not read here; unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive, which is not read here; unpack it first"),
    (b"\xff\xfe", "text in UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16; save it as UTF-8"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"PK\x07\x08", "a zip archive in several parts; join them first"),
];

/// Lets pass what can be a pickle or JSON; names everything else.
pub(crate) fn check(head: &[u8]) -> Result<(), ReadError> {
    if head.is_empty() {
        let message = "the file is empty: the dump was probably interrupted; take the snapshot again";
        return Err(ReadError::new(ReadError::EMPTY, 0, message));
    }
    if let Some((_, what)) = SIGNATURES.iter().find(|(signature, _)| head.starts_with(signature)) {
        return Err(no_snapshot(what));
    }
    if is_safetensors(head) {
        return Err(no_snapshot("a safetensors file, which holds a model's weights"));
    }
    match head {
        // A pickle of protocol 2 and later.
        [0x80, ..] => Ok(()),
        _ if begins_json(head) => json(head),
        // Other JSON, a log's "[2026-01-01 …", a dict as Python prints it.
        [b'{' | b'[', ..] => Err(text(head)),
        // What protocols 0 and 1 begin with. "c" would import something; the machine refuses that by name.
        [b'(' | b']' | b'}', ..] => Ok(()),
        [b'c', ..] if is_import(head) => Ok(()),
        _ if head.iter().all(|byte| *byte == 0) => {
            Err(no_snapshot("nothing but zeros: its bytes were never written"))
        }
        _ if is_text(head) => Err(text(head)),
        _ => {
            let message = "this is not a pickle: the first byte is not one that torch.cuda.memory._dump_snapshot() \
                           writes";
            Err(ReadError::new(ReadError::NOT_A_SNAPSHOT, 0, message))
        }
    }
}

/// Whether this begins like JSON that can hold a snapshot: an object, or a list of objects.
pub(crate) fn begins_json(head: &[u8]) -> bool {
    let text = without_mark(head);
    let inner = |text: &[u8]| text.get(1..).unwrap_or_default().trim_ascii_start().first().copied();
    match text.first() {
        Some(b'{') => matches!(inner(text), None | Some(b'"' | b'}')),
        // A lone "]" in a pickle is followed by opcodes, "[" is no opcode.
        Some(b'[') => matches!(inner(text), None | Some(b'{' | b'[' | b']')),
        _ => false,
    }
}

/// The bytes after a byte order mark, which editors and PowerShell put before UTF-8.
pub(crate) fn without_mark(head: &[u8]) -> &[u8] {
    head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head)
}

/// Whether JSON with this beginning can be a snapshot: one has one of these keys in its first few thousand bytes.
pub(crate) fn has_a_key_of_snapshots(json: &[u8]) -> bool {
    const KEYS: [&[u8]; 5] =
        [b"\"segments\"", b"\"device_traces\"", b"\"blocks\"", b"\"total_size\"", b"\"action\""];
    KEYS.iter().any(|key| contains(json, key))
}

/// The sentence for a zip archive whose members have names like these.
pub(crate) fn zip_of(names: &[u8]) -> Option<ReadError> {
    // torch.save puts everything into one folder, with data.pkl first.
    if [&b"/data.pkl"[..], b"/.format_version", b"/byteorder"].iter().any(|name| contains(names, name)) {
        return Some(no_snapshot("a checkpoint of torch.save"));
    }
    if contains(names, b".npy") {
        return Some(no_snapshot("an archive of arrays that NumPy saved"));
    }
    None
}

/// The name of the first member, which stands at the beginning of a zip archive.
pub(crate) fn first_zip_name(head: &[u8]) -> Option<&[u8]> {
    let len = u16::from_le_bytes([*head.get(26)?, *head.get(27)?]);
    let name = head.get(30..)?;
    Some(&name[..name.len().min(usize::from(len))])
}

pub(crate) fn no_snapshot(what: &str) -> ReadError {
    let message = format!("this is {what}, not a memory snapshot; {DUMP}");
    ReadError::new(ReadError::NOT_A_SNAPSHOT, 0, message)
}

fn json(head: &[u8]) -> Result<(), ReadError> {
    let begins_a_trace = |key: &[u8]| contains(&head[..head.len().min(256)], key);
    if begins_a_trace(b"\"traceEvents\"") || begins_a_trace(b"\"schemaVersion\"") {
        let message = "this is a timeline of torch.profiler (a Chrome trace), not a memory snapshot; record with \
                       torch.cuda.memory._record_memory_history() and give the pickle of _dump_snapshot()";
        return Err(ReadError::new(ReadError::NOT_A_SNAPSHOT, 0, message));
    }
    Ok(())
}

fn text(head: &[u8]) -> ReadError {
    match head {
        [b'{', b'\'', ..] => {
            no_snapshot("a dict as Python prints it; write it with pickle.dump or json.dump instead of print")
        }
        _ => no_snapshot("text"),
    }
}

/// Eight bytes of length, then a JSON object. The format's own reader takes at most 100 MB of it.
fn is_safetensors(head: &[u8]) -> bool {
    const MAX_HEADER_BYTES: u64 = 100_000_000;
    let Some((len, rest)) = head.split_first_chunk::<8>() else { return false };
    (2..=MAX_HEADER_BYTES).contains(&u64::from_le_bytes(*len)) && rest.starts_with(b"{\"")
}

/// GLOBAL and two lines that name a module and something in it.
fn is_import(head: &[u8]) -> bool {
    let line = head[1..].split(|byte| *byte == b'\n').next().unwrap_or_default();
    !line.is_empty() && line.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
}

/// UTF-8 without control characters, but for a character that the end of the head cuts.
fn is_text(head: &[u8]) -> bool {
    let whole = match std::str::from_utf8(head) {
        Err(error) if error.error_len().is_some() => return false,
        Err(error) => &head[..error.valid_up_to()],
        Ok(_) => head,
    };
    let text = std::str::from_utf8(whole).unwrap_or_default();
    !text.is_empty() && !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\x1b'))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
