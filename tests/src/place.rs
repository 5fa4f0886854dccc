//! Where the programs, the page and the committed snapshots are.

use std::{env, path::PathBuf};

/// The program `tidegauge-server`.
pub fn server() -> PathBuf {
    told("TIDEGAUGE_TEST_SERVER")
}

/// The program `tidegauge`.
pub fn cli() -> PathBuf {
    told("TIDEGAUGE_TEST_CLI")
}

/// The folder with the built page.
pub fn site() -> PathBuf {
    told("TIDEGAUGE_TEST_SITE")
}

/// The folder with PyTorch and the stand-in for CUDA.
pub fn torch_venv() -> PathBuf {
    let path = env::var_os("TIDEGAUGE_TEST_TORCH").map(PathBuf::from);
    path.unwrap_or_else(|| panic!("TIDEGAUGE_TEST_TORCH is not set; `cargo xtask test --torch` sets it"))
}

/// A committed snapshot by its file name.
pub fn fixture(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../snapshot/fixtures").join(name);
    path.canonicalize().unwrap_or_else(|error| panic!("there is no fixture {}: {error}", path.display()))
}

fn told(name: &str) -> PathBuf {
    let path = env::var_os(name).map(PathBuf::from);
    path.unwrap_or_else(|| {
        panic!("{name} is not set; `cargo xtask test --only browser` builds what it names and sets it")
    })
}
