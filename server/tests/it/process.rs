//! The program itself, as a process that can be killed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::app::Caller;

/// A running `tidegauge-server`, killed when dropped.
pub(crate) struct Process {
    pub(crate) caller: Caller,
    child: Child,
}

pub(crate) fn command(data: &Path) -> Command {
    command_on("127.0.0.1:0", data)
}

pub(crate) fn command_on(listen: &str, data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegauge-server"));
    command
        .args(["--listen", listen, "--min-free-bytes", "0", "--data"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Process {
    pub(crate) fn start(data: &Path) -> Self {
        let mut child = command(data).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("it said {line:?}"));
        Self { caller: Caller::new(address.parse().unwrap()), child }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and gives what it exits with.
    #[cfg(unix)]
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let status = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs a server that must refuse to start: its exit code and what it said.
pub(crate) fn refused(command: &mut Command) -> (Option<i32>, String) {
    let mut child = command.spawn().unwrap();
    let code = child.wait().unwrap().code();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let sentence = said.lines().last().unwrap_or_default().to_owned();
    (code, sentence)
}
