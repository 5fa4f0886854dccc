//! Training runs that need no accelerator: real PyTorch on a stand-in for CUDA, or a double of torch_npu.

use std::{
    fs,
    io::Write as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::place::{cli, torch_venv};

/// The torch release of the tests.
pub(crate) const TORCH: &str = "2.9.1";

/// How training ends by itself: its own exit code, not the agent's.
pub const EXIT_CODE: i32 = 7;

/// Ranks that train, with an outbox and witnesses of their own.
#[derive(Debug)]
pub struct Training {
    ranks: Vec<Rank>,
    folder: TempDir,
}

/// How a rank ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; none when it was killed.
    pub code: Option<i32>,
    /// What it printed.
    pub printed: String,
    /// What it, or the agent in it, said on standard error.
    pub said: String,
}

#[derive(Debug)]
struct Rank(Option<Child>);

impl Training {
    /// Starts two ranks of `fsdp.py`, with settings for the agent as environment variables.
    pub fn fsdp(n_steps: u32, env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let port = free_port().to_string();
        let ranks = (0..2).map(|rank| {
            let mut command = Command::new("bash");
            command.arg(ours("fake-cuda/run.sh")).arg(torch_venv()).arg(TORCH);
            command.envs([("FAKECUDA_DEVICES", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
            command.env("RANK", rank.to_string()).env("MASTER_PORT", &port);
            start(command, "fsdp.py", n_steps, folder.path(), rank, env)
        });
        Self { ranks: ranks.collect(), folder }
    }

    /// Starts one rank of `script`, with settings for the agent as environment variables.
    pub fn one(script: &str, n_steps: u32, env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let mut command = Command::new("bash");
        command.arg(ours("fake-cuda/run.sh")).arg(torch_venv()).arg(TORCH);
        let rank = start(command, script, n_steps, folder.path(), 0, env);
        Self { ranks: vec![rank], folder }
    }

    /// Starts `npu.py`, which trains on a double of torch_npu.
    pub fn npu(n_steps: u32, env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let mut command = Command::new(torch_venv().join(format!("torch-{TORCH}/bin/python")));
        command.env("PYTHONPATH", ours("python/doubles"));
        let rank = start(command, "npu.py", n_steps, folder.path(), 0, env);
        Self { ranks: vec![rank], folder }
    }

    /// Lets all ranks go on that wait after a step of `TRAINING_WAITS`.
    pub fn go_on(&mut self) {
        for Rank(child) in &mut self.ranks {
            let stdin = child.as_mut().and_then(|child| child.stdin.as_mut());
            stdin.expect("the rank still runs").write_all(b"\n").expect("the rank listens");
        }
    }

    /// Sends all ranks a signal by its name.
    pub fn signal(&self, name: &str) {
        for Rank(child) in &self.ranks {
            let pid = child.as_ref().expect("the rank still runs").id().to_string();
            let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("there is a kill");
            assert!(sent.success(), "no signal for {pid}");
        }
    }

    /// Kills all ranks, as the system does when memory runs out.
    pub fn kill(&mut self) {
        for Rank(child) in &mut self.ranks {
            let child = child.as_mut().expect("the rank still runs");
            child.kill().expect("a child can be killed");
        }
    }

    /// Waits until all ranks have ended.
    pub fn end(&mut self) -> Vec<Ended> {
        let end = |Rank(child): &mut Rank| {
            let child = child.take().expect("the rank was not waited for before");
            let Output { status, stdout, stderr } =
                child.wait_with_output().expect("a child can be waited for");
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            Ended { code: status.code(), printed: text(stdout), said: text(stderr) }
        };
        self.ranks.iter_mut().map(end).collect()
    }

    /// What a rank's witness was told, line by line.
    pub fn witness(&self, rank: u32) -> Vec<Value> {
        let text = fs::read_to_string(witness(self.folder.path(), rank)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a witness speaks JSON")).collect()
    }

    /// The outbox of all ranks.
    pub fn outbox(&self) -> PathBuf {
        self.folder.path().join("outbox")
    }

    /// Snapshots that wait in the outbox.
    pub fn n_waiting(&self) -> usize {
        count_snapshots(&self.outbox())
    }

    /// `tidegauge push --outbox`, as the line at the end of training says.
    pub fn push_outbox(&self, server: &str) -> Output {
        let mut command = Command::new(cli());
        command.args(["push", "--server", server, "--outbox"]).arg(self.outbox());
        command.output().expect("the program starts")
    }
}

/// What `witness.py` says of pickles: one line each, and one for all of them.
pub fn described(pickles: &[PathBuf]) -> Vec<Value> {
    let mut command = Command::new(torch_venv().join(format!("torch-{TORCH}/bin/python")));
    let output = command.arg(ours("training/witness.py")).args(pickles).output().expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("a witness speaks UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("a witness speaks JSON")).collect()
}

/// A port nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.local_addr().expect("a listener has an address").port()
}

impl Drop for Rank {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // A test that failed leaves its training behind.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn start(
    mut command: Command,
    script: &str,
    n_steps: u32,
    folder: &Path,
    rank: u32,
    env: &[(&str, &str)],
) -> Rank {
    command.arg(ours("training").join(script)).arg(n_steps.to_string()).arg(witness(folder, rank));
    command.env("TIDEGAUGE_OUTBOX", folder.join("outbox")).envs(env.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Rank(Some(command.spawn().expect("training starts")))
}

fn witness(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("witness-{rank}.jsonl"))
}

fn count_snapshots(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let count = |entry: fs::DirEntry| match entry.path() {
        path if path.is_dir() => count_snapshots(&path),
        path => usize::from(path.to_string_lossy().ends_with(".pickle.zst")),
    };
    entries.map(count).sum()
}

/// A file of the tests.
fn ours(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}
