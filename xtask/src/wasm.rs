//! The page's modules: their size, and the engine's answers under Node beside the native ones.

use std::process::Command;

use anyhow::Result;

use crate::{
    site::{self, Build},
    test::{Tally, counted},
    workspace::{Workspace, is_installed},
};

/// The whole page as a browser loads it, compressed, bytes: on a hotel's network it is there in a few seconds.
const MAX_PAGE_BYTES: u64 = 1024 * 1024;

/// Builds the page and runs `tests/wasm`.
pub(crate) fn run(workspace: &Workspace) -> Result<Tally> {
    let site = site::build_site(workspace, Build::Shipped)?;
    let bytes = site::compressed_bytes(&site)?;
    println!("the page is {bytes} bytes compressed, of {MAX_PAGE_BYTES} allowed");
    let size = Tally::of(if bytes <= MAX_PAGE_BYTES {
        Vec::new()
    } else {
        vec![format!("the page is {bytes} bytes compressed, more than {MAX_PAGE_BYTES}")]
    });
    if !is_installed("node") {
        return Ok(size.and(Tally::skipped("the engine's tests need node; install it and start again")));
    }
    let native = workspace.build("tidegauge-cli", "tidegauge", "dev")?;
    let bench = workspace.build("xtask-bench", "xtask-bench", "dev")?;
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter", "tap"]).arg(workspace.root.join("tests/wasm/engine.test.mjs"));
    node.env("TIDEGAUGE_TEST_SITE", site)
        .env("TIDEGAUGE_TEST_CLI", native)
        .env("TIDEGAUGE_TEST_BENCH", bench);
    node.env("TIDEGAUGE_TEST_FIXTURES", workspace.root.join("snapshot/fixtures"));
    Ok(size.and(counted(&mut node)?))
}
