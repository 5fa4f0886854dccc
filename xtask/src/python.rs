//! The Python face's own tests: the wheel, and `tests/python` against doubles of torch.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    test::{Tally, counted},
    workspace::{self, Workspace, is_installed},
};

/// What the tests need beside the wheel.
const PACKAGES: [&str; 3] = ["pytest", "zstandard", "mypy"];

/// Packages of other people that some tests need, and these tests: what opens exported tables, and an upload client.
const OTHERS: [(&[&str], &str); 2] = [
    (&["pyarrow", "pandas", "duckdb", "polars"], "tests/python/test_export.py"),
    (&["tuspy"], "tests/python/test_tus.py"),
];

/// Runs `tests/python`.
pub(crate) fn run(workspace: &Workspace) -> Result<Tally> {
    if !is_installed("python3") {
        return Ok(Tally::skipped("needs python3"));
    }
    let venv = workspace.folder("python")?.join("venv");
    if let Err(error) = make_venv(&venv, &PACKAGES) {
        return Ok(Tally::skipped(format!("cannot install {}: {error:#}", PACKAGES.join(", "))));
    }
    let python = venv.join("bin/python");
    // Without them the agent's tests still run.
    let others = OTHERS.map(|(packages, tests)| (pip_install(&python, packages), packages, tests));
    install(&python, &wheel(workspace, &python)?)?;
    let bench = workspace.build("xtask-bench", "xtask-bench", "dev")?;
    let server = workspace.build("tidegauge-server", "tidegauge-server", "dev")?;
    let mut pytest = Command::new(&python);
    pytest.current_dir(&workspace.root).env("TIDEGAUGE_TEST_BENCH", bench);
    pytest.env("TIDEGAUGE_TEST_SERVER", server).args([
        "-B",
        "-m",
        "pytest",
        // The closing line with its frame is the one that is counted.
        "-v",
        "-p",
        "no:cacheprovider",
        "tests/python",
    ]);
    let mut without = Tally::default();
    for (installed, packages, tests) in others {
        if let Err(error) = installed {
            pytest.args(["--ignore", tests]);
            without =
                without.and(Tally::skipped(format!("cannot install {}: {error:#}", packages.join(", "))));
        }
    }
    Ok(counted(&mut pytest)?.and(without))
}

/// Builds the wheel as `pip install ./capture-agent/python` does, only quicker to compile.
pub(crate) fn wheel(workspace: &Workspace, python: &Path) -> Result<PathBuf> {
    wheel_by(workspace, python, "dev")
}

/// Builds the wheel by a profile: "release" as people have it.
pub(crate) fn wheel_by(workspace: &Workspace, python: &Path, profile: &str) -> Result<PathBuf> {
    let folder = workspace.folder("python")?.join("wheels");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let mut pip = Command::new(python);
    pip.current_dir(&workspace.root).args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]);
    pip.arg(&folder).arg("./capture-agent/python");
    pip.env("MATURIN_PEP517_ARGS", format!("--profile {profile}")).env("CARGO_TARGET_DIR", &workspace.target);
    workspace::run(&mut pip)?;
    let wheel = std::fs::read_dir(&folder)?.next().context("pip built no wheel")??;
    Ok(wheel.path())
}

/// Installs a wheel over the one that is there.
pub(crate) fn install(python: &Path, wheel: &Path) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]).arg(wheel);
    workspace::run(&mut pip)
}

/// A virtual environment with these packages.
pub(crate) fn make_venv(venv: &Path, packages: &[&str]) -> Result<()> {
    if !venv.join("bin/python").exists() {
        workspace::run(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
    }
    pip_install(&venv.join("bin/python"), packages)
}

fn pip_install(python: &Path, packages: &[&str]) -> Result<()> {
    workspace::run(Command::new(python).args(["-m", "pip", "install", "--quiet"]).args(packages))
}
