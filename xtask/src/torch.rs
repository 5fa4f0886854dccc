//! The agent in real training: `tests/e2e/training.rs` on PyTorch and a stand-in for CUDA.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    browser, python,
    test::{Tally, counted},
    workspace::{self, Workspace, is_installed},
};

/// The release the tests run on; also in `tests/src/training.rs`.
const TORCH: &str = "2.9.1";

/// Further releases, each with the test that drives it: around each change of what recording takes.
const OTHERS: [(&str, &str); 3] =
    [("2.4.1", "torch_2_4_"), ("2.7.1", "torch_2_7_"), ("2.15.0", "torch_2_15_")];

/// What the stand-in is built with.
const TOOLS: [&str; 4] = ["python3", "gcc", "nm", "readelf"];

/// The frameworks whose trainings are tested, as published.
const CLIENTS: &str = "tests/training/clients.txt";

/// Runs the training tests. The first time this downloads one gigabyte for each release.
pub(crate) fn run(workspace: &Workspace) -> Result<Tally> {
    if let Some(tool) = TOOLS.into_iter().find(|tool| !is_installed(tool)) {
        return Ok(Tally::skipped(format!("needs {tool}")));
    }
    if let Some(why) = browser::missing_browser()? {
        return Ok(Tally::skipped(why));
    }
    let folder = workspace.folder("fake-cuda")?;
    if let Err(error) = set_up(workspace, &folder, TORCH) {
        return Ok(Tally::skipped(format!("cannot set up PyTorch {TORCH}: {error:#}")));
    }
    let interpreter = interpreter(&folder);
    let wheel = python::wheel(workspace, &interpreter)?;
    python::install(&interpreter, &wheel)?;

    let mut tests = browser::product_tests(workspace)?;
    // Each test trains on two ranks or more: one at a time is enough for any desk.
    tests.env("TIDEGAUGE_TEST_TORCH", &folder).env("RUST_TEST_THREADS", "1");
    tests.args(["--", "training::"]);
    let mut without = Tally::default();
    match install_clients(workspace, &folder, &interpreter) {
        Ok(()) => {
            tests.arg("frameworks::");
        }
        Err(error) => {
            without = Tally::skipped(format!("cannot install what {CLIENTS} names: {error:#}"));
        }
    }
    for (release, test) in OTHERS {
        match set_up(workspace, &folder, release) {
            Ok(()) => python::install(&folder.join(format!("torch-{release}/bin/python")), &wheel)?,
            Err(error) => {
                let why = format!("cannot set up PyTorch {release}: {error:#}");
                without = without.and(Tally::skipped(why));
                tests.args(["--skip", test]);
            }
        }
    }
    Ok(counted(&mut tests)?.and(without))
}

/// A release on the stand-in for CUDA, made once.
fn set_up(workspace: &Workspace, folder: &Path, release: &str) -> Result<()> {
    let ready = folder.join(format!("ready-{release}"));
    if ready.exists() {
        return Ok(());
    }
    let mut setup = Command::new("bash");
    setup.arg(workspace.root.join("tests/fake-cuda/setup.sh")).arg(release).arg(folder);
    workspace::run(&mut setup)?;
    Ok(fs::write(&ready, "")?)
}

/// Frameworks in a folder of their own, which the tests put beside torch with `PYTHONPATH`; again when another
/// release is named.
fn install_clients(workspace: &Workspace, folder: &Path, interpreter: &Path) -> Result<()> {
    let wanted = fs::read_to_string(workspace.root.join(CLIENTS))?;
    let clients = folder.join(format!("clients-{TORCH}"));
    let installed = clients.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    if clients.exists() {
        fs::remove_dir_all(&clients).with_context(|| format!("cannot empty {}", clients.display()))?;
    }
    let mut pip = Command::new(interpreter);
    // Their dependencies would bring another torch, and gigabytes beside it.
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&clients);
    pip.arg("--requirement").arg(workspace.root.join(CLIENTS));
    workspace::run(&mut pip)?;
    Ok(fs::write(installed, wanted)?)
}

/// The folder with PyTorch and the stand-in, if they have been set up.
pub(crate) fn ready(workspace: &Workspace) -> Result<Option<PathBuf>> {
    let folder = workspace.folder("fake-cuda")?;
    Ok(folder.join(format!("ready-{TORCH}")).exists().then_some(folder))
}

/// The Python that has PyTorch.
pub(crate) fn interpreter(folder: &Path) -> PathBuf {
    folder.join(format!("torch-{TORCH}/bin/python"))
}

/// A script of ours on the stand-in.
pub(crate) fn script(workspace: &Workspace, folder: &Path, script: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg(workspace.root.join("tests/fake-cuda/run.sh")).arg(folder).arg(TORCH);
    command.arg(workspace.root.join(script));
    command
}
