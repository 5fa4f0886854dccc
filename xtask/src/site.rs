//! `cargo xtask site`: the page, as a server hands it out.
//!
//! Two wasm modules, what binds them to JavaScript, the hand-written files, and everything once more compressed.
//! The folder is made beside the old one and then takes its place, so a running server never serves half a page.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::UNIX_EPOCH,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{
    arguments::Arguments,
    workspace::{self, Workspace, is_installed},
};

/// Where the page's modules run.
const WASM: &str = "wasm32-unknown-unknown";

/// npm's build of Binaryen, whose wasm-opt makes modules a tenth smaller.
const BINARYEN: &str = "binaryen@132.0.0";

/// What rustc emits for this target since 1.87; wasm-opt keeps to it.
const WASM_FEATURES: [&str; 6] = [
    "--enable-bulk-memory",
    "--enable-nontrapping-float-to-int",
    "--enable-sign-ext",
    "--enable-mutable-globals",
    "--enable-reference-types",
    "--enable-multivalue",
];

/// How much time the compiler takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// As people get it: small, fast, slow to compile.
    Shipped,
    /// For the desk: soon there, larger and slower.
    Quick,
}

/// One wasm module of the page.
struct Module {
    package: &'static str,
    /// `NAME.js` and `NAME_bg.wasm`.
    name: &'static str,
    /// Cargo's profile when it is shipped.
    profile: &'static str,
    /// wasm-opt's level when it is shipped.
    level: &'static str,
}

const MODULES: [Module; 2] = [
    Module { package: "tidegauge-viewer", name: "page", profile: "page", level: "-Oz" },
    Module { package: "tidegauge-engine", name: "engine", profile: "engine", level: "-O3" },
];

/// The chore.
pub(crate) fn run(workspace: &Workspace, mut arguments: Arguments) -> Result<ExitCode> {
    let build = if arguments.flag("--quick") { Build::Quick } else { Build::Shipped };
    arguments.end()?;
    let site = build_site(workspace, build)?;
    print!("{}", sizes(&site)?);
    println!("the page is in {}", workspace.shown(&site));
    Ok(ExitCode::SUCCESS)
}

/// Builds what changed, and says where the page is.
pub(crate) fn build_site(workspace: &Workspace, build: Build) -> Result<PathBuf> {
    let _turn = wait_for_turn(workspace)?;
    ensure_target(workspace)?;
    let bindgen = workspace.build("xtask-bindgen", "xtask-bindgen", "dev")?;
    let modules = MODULES
        .iter()
        .map(|module| Ok((module, compile(workspace, module, build)?)))
        .collect::<Result<Vec<_>>>()?;

    let site = workspace.target.join("site");
    let stamp_path = workspace.target.join("site.stamp");
    let mut inputs: Vec<PathBuf> = modules.iter().map(|(_, wasm)| wasm.clone()).collect();
    inputs.push(bindgen.clone());
    let by_hand = workspace.root.join("static");
    inputs.extend(files_under(&by_hand)?);
    let stamp = stamp(&inputs)?;
    if site.is_dir() && fs::read_to_string(&stamp_path).is_ok_and(|last| last == stamp) {
        return Ok(site);
    }

    let next = workspace.target.join("site.next");
    remove_folder(&next)?;
    copy_folder(&by_hand, &next)?;
    for (module, wasm) in &modules {
        workspace::run(Command::new(&bindgen).arg("bind").arg(wasm).arg(module.name).arg(&next))?;
        if build == Build::Shipped {
            shrink(workspace, &next.join(format!("{}_bg.wasm", module.name)), module.level)?;
        }
    }
    if build == Build::Shipped {
        workspace::run(Command::new(&bindgen).arg("compress").arg(&next))?;
    }
    remove_folder(&site)?;
    fs::rename(&next, &site).with_context(|| format!("cannot put the page at {}", site.display()))?;
    fs::write(&stamp_path, stamp).context("cannot note what the page was made of")?;
    Ok(site)
}

/// Held while the page is built: two builds at once would write into the same folder.
fn wait_for_turn(workspace: &Workspace) -> Result<File> {
    let path = workspace.folder("tmp")?.join("site.lock");
    let lock = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    if lock.try_lock().is_err() {
        println!("waiting for another build of the page");
        lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(lock)
}

/// The compiler's target for the page: there, or fetched by rustup, or a sentence with the line to run.
fn ensure_target(workspace: &Workspace) -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(&workspace.root).args(["--print", "target-libdir", "--target", WASM]);
    let libraries = workspace::output(&mut rustc)?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&libraries.stdout).trim());
    let is_there = || {
        let names = fs::read_dir(&libraries).into_iter().flatten().flatten();
        names.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
    };
    if is_there() {
        return Ok(());
    }
    let added = Command::new("rustup").current_dir(&workspace.root).args(["target", "add", WASM]).status();
    if added.is_ok_and(|status| status.success()) && is_there() {
        return Ok(());
    }
    bail!("the page needs the compiler's target {WASM}; run `rustup target add {WASM}` and start again")
}

/// Compiles one module, and says where cargo put it.
fn compile(workspace: &Workspace, module: &Module, build: Build) -> Result<PathBuf> {
    let profile = match build {
        Build::Shipped => module.profile,
        Build::Quick => "dev",
    };
    let mut cargo = workspace.cargo("build");
    cargo.args(["--package", module.package, "--target", WASM, "--profile", profile]);
    cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = workspace::output(&mut cargo)?;
    let id_part = format!("#{}@", module.package);
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["package_id"].as_str().is_some_and(|id| id.contains(&id_part)))
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|file| file.as_str().map(PathBuf::from))
        .find(|file| file.extension().is_some_and(|ending| ending == "wasm"))
        .with_context(|| format!("cargo built {} but made no wasm module of it", module.package))
}

/// Makes a module smaller where Node is at hand; a page without it is larger and works the same.
fn shrink(workspace: &Workspace, wasm: &Path, level: &str) -> Result<()> {
    let Some(wasm_opt) = wasm_opt(workspace)? else { return Ok(()) };
    let smaller = wasm.with_extension("opt");
    let mut command = Command::new("node");
    command.arg(wasm_opt).arg(level).args(WASM_FEATURES).arg(wasm).arg("-o").arg(&smaller);
    workspace::run(&mut command)?;
    fs::rename(&smaller, wasm).with_context(|| format!("cannot replace {}", wasm.display()))
}

/// npm's wasm-opt, installed under the target folder at first use; `None`, and a line, when that cannot be.
fn wasm_opt(workspace: &Workspace) -> Result<Option<PathBuf>> {
    let folder = workspace.folder("npm")?;
    let program = folder.join("node_modules/binaryen/bin/wasm-opt");
    if program.is_file() {
        return Ok(Some(program));
    }
    if !is_installed("node") || !is_installed("npm") {
        println!("wasm-opt: skipped (needs node and npm); the page is about a tenth larger");
        return Ok(None);
    }
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--silent", "--prefix"]).arg(&folder).arg(BINARYEN);
    if npm.status().is_ok_and(|status| status.success()) && program.is_file() {
        return Ok(Some(program));
    }
    println!("wasm-opt: skipped (npm could not install {BINARYEN}); the page is about a tenth larger");
    Ok(None)
}

/// A table of what a browser loads.
fn sizes(site: &Path) -> Result<String> {
    let mut table = String::new();
    for (name, (plain, brotli)) in measured(site)? {
        writeln!(table, "{name:<24} {plain:>10} B {brotli:>10} B br")?;
    }
    Ok(table)
}

/// Bytes of each file, plain and as a browser gets them.
fn measured(site: &Path) -> Result<BTreeMap<String, (u64, u64)>> {
    let mut sizes = BTreeMap::new();
    for path in files_under(site)? {
        if path.extension().is_some_and(|ending| ending == "br" || ending == "gz") {
            continue;
        }
        let plain = fs::metadata(&path)?.len();
        let mut brotli = path.clone().into_os_string();
        brotli.push(".br");
        let brotli = fs::metadata(brotli).map_or(plain, |metadata| metadata.len());
        let name = path.strip_prefix(site).unwrap_or(&path).display().to_string();
        sizes.insert(name, (plain, brotli));
    }
    Ok(sizes)
}

/// Bytes a browser loads for the whole page, compressed.
pub(crate) fn compressed_bytes(site: &Path) -> Result<u64> {
    Ok(measured(site)?.values().map(|(_, brotli)| brotli).sum())
}

/// What the inputs looked like: a path, a size and a time each.
fn stamp(inputs: &[PathBuf]) -> Result<String> {
    let mut stamp = String::new();
    for input in inputs {
        let metadata = fs::metadata(input).with_context(|| format!("cannot look at {}", input.display()))?;
        let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        writeln!(stamp, "{} {} {changed}", input.display(), metadata.len())?;
    }
    Ok(stamp)
}

/// Every file under a folder, in order.
pub(crate) fn files_under(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    Ok(files)
}

/// Copies what a browser loads; notes for people who edit the files stay behind.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for path in files_under(from)? {
        if path.extension().is_some_and(|ending| ending == "md") {
            continue;
        }
        let target = to.join(path.strip_prefix(from).unwrap_or(&path));
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(&path, &target).with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(())
}

fn remove_folder(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}
