//! Where things are, and how cargo is called from inside cargo.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The workspace and its target folder.
pub(crate) struct Workspace {
    /// The folder with the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Where cargo puts what it builds; chores put what they make beside it.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// The workspace this program was started in by cargo. Two clones that share a target folder share the program
    /// too, so where it was compiled says nothing.
    pub(crate) fn find() -> Result<Self> {
        let package = env::var_os("CARGO_MANIFEST_DIR").context("start this as `cargo xtask`")?;
        let root = Path::new(&package).parent().context("xtask has no parent folder")?;
        let mut workspace = Self { root: root.to_owned(), target: PathBuf::new() };
        let metadata = workspace.metadata(&["--no-deps"])?;
        let target =
            metadata["target_directory"].as_str().context("cargo metadata names no target folder")?;
        workspace.target = PathBuf::from(target);
        Ok(workspace)
    }

    /// What `cargo metadata` says.
    pub(crate) fn metadata(&self, flags: &[&str]) -> Result<Value> {
        let mut command = self.cargo("metadata");
        command.args(["--format-version", "1"]).args(flags);
        let output = output(&mut command)?;
        serde_json::from_slice(&output.stdout).context("cargo metadata does not print JSON")
    }

    /// `cargo CHORE`, in the workspace.
    pub(crate) fn cargo(&self, chore: &str) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root).arg(chore);
        // `cargo run` describes xtask in the environment; left there, build scripts that watch these names
        // would run again each time a build is started from here and then from a shell.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command
    }

    /// Builds one program of the workspace and says where it lies.
    pub(crate) fn build(&self, package: &str, program: &str, profile: &str) -> Result<PathBuf> {
        let mut command = self.cargo("build");
        command.args(["--package", package, "--bin", program, "--profile", profile]);
        run(&mut command)?;
        // Cargo's one exception: the profile named dev builds into the folder named debug.
        let folder = if profile == "dev" { "debug" } else { profile };
        let path = self.target.join(folder).join(format!("{program}{}", env::consts::EXE_SUFFIX));
        ensure!(path.is_file(), "cargo built {program}, but it is not at {}", path.display());
        Ok(path)
    }

    /// A folder under the target folder, made when missing.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.target.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    /// A path as people read it: without the part they know.
    pub(crate) fn shown(&self, path: &Path) -> String {
        if let Ok(made) = path.strip_prefix(&self.target) {
            return Path::new("target").join(made).display().to_string();
        }
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// Runs to the end, with its talk on our terminal; fails when it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", name(command)))?;
    ensure!(status.success(), "{} failed ({status})", line(command));
    Ok(())
}

/// Runs to the end and hands over what it printed; fails, with its talk, when it fails.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", name(command)))?;
    ensure!(
        output.status.success(),
        "{} failed ({}): {}",
        line(command),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output)
}

/// Whether a program of that name answers to `--version`.
pub(crate) fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
