//! Turns a wasm module into what a browser loads, and compresses a folder.
//!
//! A program of its own because wasm-bindgen takes a minute and a half to compile, and most chores don't need it.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use wasm_bindgen_cli_support::Bindgen;

/// Endings of files that are worth compressing.
const COMPRESSED: [&str; 7] = ["html", "css", "js", "wasm", "svg", "json", "txt"];

fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let arguments: Vec<&Path> = arguments.iter().map(PathBuf::as_path).collect();
    match *arguments.as_slice() {
        [chore, module, name, folder] if chore == Path::new("bind") => bind(module, name, folder),
        [chore, folder] if chore == Path::new("compress") => compress(folder),
        _ => bail!("usage: xtask-bindgen bind MODULE.wasm NAME FOLDER | xtask-bindgen compress FOLDER"),
    }
}

/// Writes `NAME.js` and `NAME_bg.wasm` into the folder, as a browser loads them without a bundler.
fn bind(module: &Path, name: &Path, folder: &Path) -> Result<()> {
    let name = name.to_str().context("the name is not UTF-8")?;
    Bindgen::new()
        .input_path(module)
        .out_name(name)
        .web(true)?
        .typescript(false)
        .remove_producers_section(true)
        .generate(folder)
        .with_context(|| format!("cannot make {name}.js from {}", module.display()))
}

/// Writes `X.br` and `X.gz` beside each file that gets smaller by it.
fn compress(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            compress(&path)?;
            continue;
        }
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if !COMPRESSED.contains(&ending) {
            continue;
        }
        let bytes = fs::read(&path)?;
        for (suffix, compressed) in [("br", brotli(&bytes)?), ("gz", gzip(&bytes)?)] {
            if compressed.len() < bytes.len() {
                fs::write(path.with_extension(format!("{ending}.{suffix}")), compressed)?;
            }
        }
    }
    Ok(())
}

fn brotli(bytes: &[u8]) -> Result<Vec<u8>> {
    // Quality 11 and the window of browsers: made once, loaded by everyone.
    let mut out = brotli::CompressorWriter::new(Vec::new(), 64 * 1024, 11, 22);
    out.write_all(bytes)?;
    out.flush()?;
    Ok(out.into_inner())
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    out.write_all(bytes)?;
    Ok(out.finish()?)
}
