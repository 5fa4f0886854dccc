//! `cargo xtask fuzz TARGET`: bytes of strangers against one door of the reader.
//!
//! The targets are in `snapshot/fuzz`, a workspace of its own. The fuzzer begins from the committed snapshots; what
//! it learns stays in the target folder, so the next run goes on from there.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Result, bail, ensure};

use crate::{
    arguments::Arguments,
    workspace::{self, Workspace, is_installed},
};

/// The doors, as `snapshot/fuzz/fuzz_targets` has them.
const TARGETS: [&str; 5] = ["pickle", "json", "html", "archive", "pack"];

/// A look, not a night.
const DEFAULT_SECONDS: &str = "60";

/// What counts as a crash beside a panic. An input may decompress to 256 MiB before its ratio is looked at, and
/// reading may take four times that.
const LIMITS: [&str; 4] = ["-rss_limit_mb=1536", "-malloc_limit_mb=1024", "-timeout=25", "-max_len=131072"];

/// The chore.
pub(crate) fn run(workspace: &Workspace, mut arguments: Arguments) -> Result<ExitCode> {
    let seconds = arguments.value("--seconds")?;
    let to_minimize = arguments.value("--minimize")?;
    let target = arguments.word();
    arguments.end()?;
    let Some(target) = target.filter(|target| TARGETS.contains(&target.as_str())) else {
        bail!("say which door: cargo xtask fuzz {}", TARGETS.join("|"));
    };
    ensure!(
        is_installed("cargo-fuzz"),
        "fuzzing needs cargo-fuzz and a C++ compiler: cargo install cargo-fuzz, and start again"
    );
    let fuzz = Fuzz { workspace, target, built: workspace.folder("fuzz")? };
    match to_minimize {
        Some(input) => fuzz.minimize(Path::new(&input)),
        None => fuzz.run(seconds.as_deref().unwrap_or(DEFAULT_SECONDS)),
    }
}

struct Fuzz<'a> {
    workspace: &'a Workspace,
    target: String,
    /// Programs, corpora and what was found.
    built: PathBuf,
}

impl Fuzz<'_> {
    fn run(&self, seconds: &str) -> Result<ExitCode> {
        self.seed()?;
        let found = self.folder("found")?;
        let mut command = self.cargo_fuzz("run");
        command.arg(self.folder("corpus")?).arg("--").args(LIMITS).args([
            format!("-max_total_time={seconds}"),
            format!("-dict={}", self.fuzz_folder().join("snapshot.dict").display()),
            format!("-artifact_prefix={}/", found.display()),
            "-print_final_stats=1".to_owned(),
        ]);
        let status = command.status()?;
        if status.success() {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!(
            "what it broke on lies in {}; make it small with `cargo xtask fuzz {} --minimize FILE`, mend the code, and \
             keep it in snapshot/fixtures/found/{}",
            self.workspace.shown(&found),
            self.target,
            self.target
        );
        Ok(ExitCode::FAILURE)
    }

    fn minimize(&self, input: &Path) -> Result<ExitCode> {
        let input = std::path::absolute(input)?;
        ensure!(input.is_file(), "there is no file {}", input.display());
        let mut command = self.cargo_fuzz("tmin");
        command.arg(input).args(["--runs", "20000", "--"]).args(LIMITS);
        command.arg(format!("-artifact_prefix={}/", self.folder("found")?.display()));
        workspace::run(&mut command)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the first inputs, for all targets.
    fn seed(&self) -> Result<()> {
        let mut command = self.workspace.cargo("run");
        command.args(["--quiet", "--release", "--bin", "seeds", "--manifest-path"]);
        command.arg(self.fuzz_folder().join("Cargo.toml")).arg("--target-dir").arg(&self.built).arg("--");
        command.arg(self.workspace.root.join("snapshot/fixtures")).arg(self.built.join("corpus"));
        workspace::run(&mut command)
    }

    /// Without a sanitizer: there is no unsafe code to watch, and inputs go through twice as fast. Panics, overflows
    /// and the limits are what is looked for.
    fn cargo_fuzz(&self, what: &str) -> Command {
        let mut command = self.workspace.cargo("fuzz");
        command.args([what, "--sanitizer", "none", "--fuzz-dir"]).arg(self.fuzz_folder());
        command.arg("--target-dir").arg(&self.built).arg(&self.target);
        // cargo-fuzz asks for flags that only a nightly compiler takes from everyone.
        if env::var_os("RUSTUP_TOOLCHAIN").is_none_or(|name| !name.to_string_lossy().contains("nightly")) {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.built.join(name).join(&self.target);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    fn fuzz_folder(&self) -> PathBuf {
        self.workspace.root.join("snapshot/fuzz")
    }
}
