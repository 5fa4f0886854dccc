//! The whole product in a real browser: `tests/e2e`.

use std::process::{Command, Stdio};

use anyhow::Result;

use crate::{
    site::{self, Build},
    test::{Tally, counted},
    workspace::{self, Workspace, is_installed},
};

/// Debian's names of the browser and its driver.
const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

/// Runs all but the training tests, which need PyTorch and have a tier of their own.
pub(crate) fn run(workspace: &Workspace) -> Result<Tally> {
    if let Some(why) = missing_browser()? {
        return Ok(Tally::skipped(why));
    }
    counted(product_tests(workspace)?.args(["--", "--skip", "training::", "--skip", "frameworks::"]))
}

/// `cargo test` of the whole product, told where its programs and the page are; test names may follow after `--`.
pub(crate) fn product_tests(workspace: &Workspace) -> Result<Command> {
    let site = site::build_site(workspace, Build::Shipped)?;
    let server = workspace.build("tidegauge-server", "tidegauge-server", "dev")?;
    let cli = workspace.build("tidegauge-cli", "tidegauge", "dev")?;
    let mut command = workspace.cargo("test");
    command.args(["--package", "tidegauge-tests", "--no-fail-fast"]);
    command.env("TIDEGAUGE_TEST_SITE", site);
    command.env("TIDEGAUGE_TEST_SERVER", server);
    command.env("TIDEGAUGE_TEST_CLI", cli);
    // A browser takes more than a core while it draws.
    command.env("RUST_TEST_THREADS", "2");
    Ok(command)
}

/// Installs the browser where we may; says what is missing where we may not.
pub(crate) fn missing_browser() -> Result<Option<String>> {
    let is_there = || is_installed("chromedriver") && is_installed("chromium");
    if is_there() {
        return Ok(None);
    }
    let install = "apt-get install --yes --no-install-recommends chromium chromium-driver";
    if !is_root()? || !is_installed("apt-get") {
        return Ok(Some(format!("needs chromium and chromedriver; as root: {install}")));
    }
    let mut update = Command::new("apt-get");
    let mut command = Command::new("apt-get");
    command
        .args(["install", "--yes", "--no-install-recommends"])
        .args(PACKAGES)
        .env("DEBIAN_FRONTEND", "noninteractive");
    let installed = workspace::run(update.args(["update", "--quiet"]).stdout(Stdio::null()))
        .and_then(|()| workspace::run(command.stdout(Stdio::null())));
    Ok(match installed {
        Ok(()) if is_there() => None,
        Ok(()) => Some("chromium is installed but does not start".to_owned()),
        Err(error) => Some(format!("cannot install chromium: {error:#}")),
    })
}

fn is_root() -> Result<bool> {
    let id = workspace::output(Command::new("id").arg("-u"))?;
    Ok(id.stdout.trim_ascii() == b"0")
}
