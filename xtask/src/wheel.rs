//! `cargo xtask wheel`: the Python package as other people install it.
//!
//! maturin builds it, with zig as the linker: that is how a wheel from this machine runs on older ones and on another
//! architecture. maturin refuses one that needs a newer C library than it says.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    arguments::Arguments,
    python,
    test::{Tally, counted},
    workspace::{self, Workspace, is_installed},
};

/// What builds: pinned, since a newer one may build something else.
const BUILDERS: [&str; 2] = ["maturin==1.16.0", "ziglang==0.17.1"];

/// The C library of RHEL 8, Debian 10 and Ubuntu 18.10, or any later one.
const COMPATIBILITY: &str = "manylinux_2_28";

/// Architectures there are wheels for.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// Releases of Python the package is for and looks for on this machine: `requires-python` in its `pyproject.toml`.
const PYTHONS: std::ops::RangeInclusive<u32> = 9..=14;

/// The chore.
pub(crate) fn run(workspace: &Workspace, mut arguments: Arguments) -> Result<ExitCode> {
    let only = arguments.value("--arch")?;
    let checks = arguments.flag("--check");
    arguments.end()?;
    if let Some(only) = &only
        && !ARCHITECTURES.contains(&only.as_str())
    {
        bail!("there are wheels for {}, not for {only}", ARCHITECTURES.join(" and "));
    }
    let mut passed = true;
    for architecture in
        ARCHITECTURES.into_iter().filter(|known| only.as_deref().is_none_or(|only| only == *known))
    {
        let wheel = build(workspace, architecture)?;
        println!("{} ({} KiB)", wheel.display(), fs::metadata(&wheel)?.len() >> 10);
        if !checks {
            continue;
        }
        if architecture == env::consts::ARCH {
            let tally = check(workspace, &wheel)?;
            println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
            tally.notes.iter().for_each(|note| println!("{note}"));
            passed &= tally.failed == 0;
        } else {
            println!("not tried: this machine is no {architecture}");
        }
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The tier: the wheel for this machine, in a clean environment of each Python at hand.
pub(crate) fn tier(workspace: &Workspace) -> Result<Tally> {
    if !is_installed("python3") {
        return Ok(Tally::skipped("needs python3"));
    }
    if !ARCHITECTURES.contains(&env::consts::ARCH) {
        return Ok(Tally::skipped(format!("there is no wheel for {}", env::consts::ARCH)));
    }
    check(workspace, &build(workspace, env::consts::ARCH)?)
}

fn build(workspace: &Workspace, architecture: &str) -> Result<PathBuf> {
    let folder = workspace.folder("wheel")?;
    let builders = folder.join("venv");
    python::make_venv(&builders, &BUILDERS).context("cannot install what builds wheels")?;
    let target = format!("{architecture}-unknown-linux-gnu");
    workspace::run(Command::new("rustup").args(["target", "add", &target])).with_context(|| {
        format!("the Rust library for {target} is missing: rustup target add {target}, and start again")
    })?;
    let dist = folder.join(architecture);
    if dist.exists() {
        fs::remove_dir_all(&dist).with_context(|| format!("cannot empty {}", dist.display()))?;
    }
    let mut maturin = Command::new(builders.join("bin/maturin"));
    maturin.current_dir(workspace.root.join("capture-agent/python")).args(["build", "--release", "--zig"]);
    maturin.args(["--target", &target, "--compatibility", COMPATIBILITY, "--out"]).arg(&dist);
    maturin.env("CARGO_TARGET_DIR", &workspace.target).env("PATH", with_first(&builders.join("bin"))?);
    workspace::run(&mut maturin)?;
    let wheel = fs::read_dir(&dist)?.next().context("maturin built no wheel")??.path();
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(
        name.contains(&format!("{COMPATIBILITY}_{architecture}")),
        "maturin built {name}, which is something else"
    );
    Ok(wheel)
}

/// Zig is found by its name.
fn with_first(folder: &Path) -> Result<std::ffi::OsString> {
    let others = env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(folder.to_owned()).chain(env::split_paths(&others));
    env::join_paths(all).context("PATH cannot be made longer")
}

/// One test for each Python at hand: the wheel in an environment with nothing else, in a small training process.
fn check(workspace: &Workspace, wheel: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    for (minor, interpreter) in pythons() {
        let venv = workspace.folder("wheel")?.join(format!("clean-3.{minor}"));
        if venv.exists() {
            fs::remove_dir_all(&venv).with_context(|| format!("cannot empty {}", venv.display()))?;
        }
        println!("Python 3.{minor}: {}", interpreter.display());
        if let Err(error) = workspace::run(Command::new(&interpreter).args(["-m", "venv"]).arg(&venv)) {
            tally = tally.and(Tally::skipped(format!("Python 3.{minor} makes no environment: {error:#}")));
            continue;
        }
        let python = venv.join("bin/python");
        python::install(&python, wheel)?;
        let mut tests = Command::new(&python);
        tests.current_dir(&workspace.root).args(["-B", "tests/python/wheel.py"]);
        tally = tally.and(counted(&mut tests)?);
    }
    match tally.passed + tally.failed {
        0 => Ok(tally.and(Tally::skipped("no Python that the package is for is at hand"))),
        _ => Ok(tally),
    }
}

/// The interpreters at hand, by minor release: on the path, and where pyenv keeps them.
fn pythons() -> Vec<(u32, PathBuf)> {
    let kept = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let kept = kept.or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv")));
    let versions = kept.and_then(|root| fs::read_dir(root.join("versions")).ok()).into_iter().flatten();
    let versions: Vec<PathBuf> = versions.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let found = |minor| {
        let name = format!("python3.{minor}");
        let below =
            versions.iter().map(|version| version.join("bin").join(&name)).find(|path| path.is_file());
        let path = below.or_else(|| is_installed(&name).then(|| PathBuf::from(&name)))?;
        Some((minor, path))
    };
    PYTHONS.filter_map(found).collect()
}
