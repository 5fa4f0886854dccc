//! Where the fuzzer begins: the committed snapshots in every wrapping, small ones first.
//!
//! `seeds FIXTURES CORPUS` writes `CORPUS/TARGET/…`.

use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tidegauge_snapshot::{pack, read};

/// Larger files slow every execution down and teach nothing new, bytes.
const MAX_SEED_BYTES: u64 = 32 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(fixtures), Some(corpus)) = (arguments.next(), arguments.next()) else {
        return Err("usage: seeds FIXTURES CORPUS".into());
    };
    let mut files = Vec::new();
    collect(&fixtures, &mut files)?;
    files.sort();
    let mut n = 0;
    for path in files {
        let bytes = fs::read(&path)?;
        let name = path.strip_prefix(&fixtures)?.to_string_lossy().replace('/', "-");
        let mut keep = |target: &str, name: &str, bytes: &[u8]| -> Result<(), Box<dyn Error>> {
            let folder = corpus.join(target);
            fs::create_dir_all(&folder)?;
            n += 1;
            Ok(fs::write(folder.join(name), bytes)?)
        };
        let found_by =
            path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
        let is_found = path.starts_with(fixtures.join("found"));
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if is_found => keep(found_by, &name, &bytes)?,
            Some("pickle" | "pkl") => {
                keep("pickle", &name, &bytes)?;
                if let Ok(snapshot) = read::open(&bytes[..]) {
                    keep("pack", &name, &pack::write(&snapshot))?;
                    keep("pack", &format!("{name}.stored"), &stored(&pack::write(&snapshot))?)?;
                }
                keep("archive", &format!("{name}.tar"), &tar(&name, &bytes)?)?;
                keep("archive", &format!("{name}.zip"), &zip(&name, &bytes)?)?;
                keep("pickle", &format!("{name}.zst"), &zstd::bulk::compress(&bytes, 3)?)?;
                keep("pickle", &format!("{name}.gz"), &gzip(&bytes)?)?;
            }
            Some("json") => keep("json", &name, &bytes)?,
            Some("html") => keep("html", &name, &bytes)?,
            Some("zip" | "tar" | "gz") => keep("archive", &name, &bytes)?,
            _ => {}
        }
    }
    // Shapes that no fixture is small enough to teach quickly.
    for (i, json) in SMALL_JSON.iter().enumerate() {
        fs::write(corpus.join("json").join(format!("small{i}")), json)?;
    }
    println!("{n} seeds in {}", corpus.display());
    Ok(())
}

const SMALL_JSON: [&str; 3] = [
    r#"{"segments": [], "device_traces": [[{"action": "alloc", "addr": 1024, "size": 512, "stream": 0}]]}"#,
    r#"[{"device": 0, "address": 1024, "total_size": 2048, "stream": 0, "segment_type": "small", "blocks": [{"size": 2048, "state": "inactive"}]}]"#,
    r#"{"segments": [], "device_traces": [[]], "allocator_settings": {"a": 1e3, "b": [true, null, "\ud83d\ude00"]}, "external_annotations": []}"#,
];

fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), found)?;
        } else if entry.metadata()?.len() <= MAX_SEED_BYTES {
            found.push(entry.path());
        }
    }
    Ok(())
}

fn tar(name: &str, bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    builder.append_data(&mut header, name, bytes)?;
    Ok(builder.into_inner()?)
}

fn zip(name: &str, bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut output = Vec::new();
    let mut archive = rawzip::ZipArchiveWriter::new(&mut output);
    let (mut entry, config) = archive.new_file(name).start()?;
    let mut writer = config.wrap(&mut entry);
    writer.write_all(bytes)?;
    let (_, descriptor) = writer.finish()?;
    entry.finish(descriptor)?;
    archive.finish()?;
    Ok(output)
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes)?;
    Ok(packed.finish()?)
}

/// The same pack with its chunks uncompressed, so that a changed byte changes a value and not a frame of zstd. Its
/// checksums are left wrong: the target puts them right.
fn stored(pack: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    const FIXED_BYTES: usize = 20;
    const ENTRY_BYTES: usize = 38;
    let len = u32::from_le_bytes(pack[12..16].try_into()?) as usize;
    let mut directory = pack[FIXED_BYTES..FIXED_BYTES + len].to_vec();
    let mut rest = &pack[FIXED_BYTES + len..];
    let mut body = Vec::new();
    for entry in directory.chunks_exact_mut(ENTRY_BYTES) {
        let (chunk, after) = rest.split_at(u64::from_le_bytes(entry[22..30].try_into()?) as usize);
        let raw = match entry[1] {
            0 => chunk.to_vec(),
            _ => zstd::stream::decode_all(chunk)?,
        };
        entry[1] = 0;
        entry[22..30].copy_from_slice(&(raw.len() as u64).to_le_bytes());
        body.extend(raw);
        rest = after;
    }
    Ok([&pack[..FIXED_BYTES], &directory, &body].concat())
}
