//! What people give instead of a snapshot: each is named in one sentence, by the reader and by `recognize`.

use std::io::{Cursor, Write as _};

use tidegauge_snapshot::read::{HEAD_BYTES, ReadError, copy_content, open, open_file, recognize};

const PAGE: &[u8] = include_bytes!("../../fixtures/wrapped/trace_plot.html");

/// The reader's sentence for a stranger; `recognize` must know it as well.
fn named(bytes: &[u8], words: &str) {
    let error = open_file(Cursor::new(bytes)).expect_err(words);
    assert_eq!(error.code(), ReadError::NOT_A_SNAPSHOT, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    let error = recognize(head).expect_err(words);
    assert!(error.to_string().contains(words), "{error}");
}

/// A stored zip archive of files with these names.
fn zip(names: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut archive = rawzip::ZipArchiveWriter::new(&mut bytes);
    for name in names {
        let (mut entry, config) = archive.new_file(*name).start().unwrap();
        let (_, descriptor) = config.wrap(&mut entry).finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    bytes
}

#[test]
fn checkpoints_are_named() {
    named(&zip(&["archive/data.pkl", "archive/byteorder", "archive/data/0"]), "a checkpoint of torch.save");
    let mut legacy = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
    legacy.extend(b"\x80\x02}q\x00(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03u.");
    named(&legacy, "a checkpoint in the older form of torch.save");
    let mut safetensors = 60_u64.to_le_bytes().to_vec();
    safetensors.extend(br#"{"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#);
    named(&safetensors, "a safetensors file");
    named(b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0", "an HDF5 file");
    named(b"\x93NUMPY\x01\0v\0{'descr': '<f4'}", "NumPy");
    named(&zip(&["arr_0.npy", "arr_1.npy"]), "an archive of arrays that NumPy saved");
    named(b"GGUF\x03\0\0\0", "a model's weights");
}

#[test]
fn other_recordings_are_named() {
    named(
        b"{\"schemaVersion\": 1, \"deviceProperties\": [], \"traceEvents\": [",
        "a timeline of torch.profiler",
    );
    named(b"{\n  \"traceEvents\": [{\"ph\": \"X\"}]}", "a Chrome trace");
    named(b"\n <html><img src=\"data:image/png;base64,iVBORw0KGgo=\">", "memory timeline of torch.profiler");
    named(b"tidepack\x01\0\0\0", "a pack, which Tidegauge made");
    named(b"SQLite format 3\0\x10\0", "an SQLite database");
}

#[test]
fn what_came_in_place_of_the_file_is_named() {
    named(b"<!DOCTYPE html><html><title>Log in</title>", "HTML page without a snapshot");
    named(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "run git lfs pull");
    named(b"rank 3: CUDA out of memory. Tried to allocate 20.00 MiB\n", "this is text");
    named("Rang 3: 拒绝 – kein Speicher".as_bytes(), "this is text");
    named(b"[2026-10-01 10:00:00] step 1\n", "this is text");
    named(b"{'segments': [], 'device_traces': [[]]}", "a dict as Python prints it");
    named(&[0; 4096], "nothing but zeros");
    named(b"\xff\xfe{\0\"\0", "UTF-16");
}

#[test]
fn other_files_are_named() {
    named(b"\x7fELF\x02\x01", "a program");
    named(b"%PDF-1.7\n", "a PDF");
    named(b"\x89PNG\r\n\x1a\n", "a picture");
    named(b"\xfd7zXZ\0\0\x04", "compressed by xz");
    named(b"BZh91AY&SY", "compressed by bzip2");
    named(b"7z\xbc\xaf\x27\x1c\0\x04", "a 7z archive");
    named(b"\x01\x02\x03\x04\x05", "not a pickle");
}

#[test]
fn readable_files_that_hold_something_else_say_what_is_missing() {
    named(b"{\"epoch\": 3, \"loss\": 0.25}", "holds no memory snapshot");
    named(b"\x80\x04}(\x8c\x01aK\x01\x8c\x01bK\x02u.", "holds no memory snapshot");
    named(b"\x80\x04K\x07.", "holds no memory snapshot");
}

#[test]
fn long_json_of_something_else_is_known_by_its_beginning() {
    let mut json = b"{\"memory_stats\": [".to_vec();
    json.extend(b"{\"allocated_bytes.all.current\": 12345}, ".repeat(4000));
    let error = recognize(&json[..HEAD_BYTES]).unwrap_err();
    assert!(error.to_string().contains("JSON of something else"), "{error}");
    let mut snapshot = b"{\"meta\": \"".to_vec();
    snapshot.extend(b"x".repeat(20_000));
    snapshot.extend(b"\", \"segments\": [");
    snapshot.extend(b" ".repeat(HEAD_BYTES));
    assert!(recognize(&snapshot[..HEAD_BYTES]).is_ok());
}

#[test]
fn an_empty_file_and_a_folder_say_so() {
    assert_eq!(open(&b""[..]).unwrap_err().code(), ReadError::EMPTY);
    assert_eq!(recognize(b"").unwrap_err().code(), ReadError::EMPTY);
    if cfg!(unix) {
        let folder = std::fs::File::open(env!("CARGO_MANIFEST_DIR")).unwrap();
        let error = open_file(folder).unwrap_err();
        assert!(error.to_string().starts_with("this is a folder"), "{error}");
    }
}

#[test]
fn a_page_whose_pickle_begins_late_is_waited_for() {
    let (begin, rest) = PAGE.split_at(PAGE.iter().position(|byte| *byte == b'>').unwrap() + 1);
    let mut late = begin.to_vec();
    late.extend(b"<!-- ");
    late.extend(b"a script of 200 KiB ".repeat(10_000));
    late.extend(b" -->");
    late.extend(rest);
    assert!(recognize(&late[..HEAD_BYTES]).is_ok());
    assert_eq!(open(&late[..]).unwrap().trace, open(PAGE).unwrap().trace);
    // A page of that size without a pickle is known once all of it is there.
    let login = [b"<html>", &*b"<p>Sign in</p>".repeat(10_000)].concat();
    assert!(recognize(&login[..HEAD_BYTES]).is_ok());
    let error = copy_content(Cursor::new(login), std::io::sink()).unwrap_err();
    assert_eq!(error.code(), ReadError::NOT_A_SNAPSHOT);
}

#[test]
fn a_stranger_inside_gzip_is_named_as_well() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(b"{\"schemaVersion\": 1, \"traceEvents\": []}").unwrap();
    named(&packed.finish().unwrap(), "a timeline of torch.profiler");
}
