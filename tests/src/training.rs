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
        Self::of_ranks(2, n_steps, env)
    }

    /// The same with more ranks.
    pub fn of_ranks(n_ranks: u32, n_steps: u32, env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let (port, world_size) = (free_port().to_string(), n_ranks.to_string());
        let ranks = (0..n_ranks).map(|rank| {
            let mut command = on_fake_cuda(TORCH);
            command.envs([("FAKECUDA_DEVICES", world_size.as_str()), ("WORLD_SIZE", &world_size)]);
            command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
            command.env("RANK", rank.to_string());
            start(command, "fsdp.py", n_steps, folder.path(), rank, env)
        });
        Self { ranks: ranks.collect(), folder }
    }

    /// Starts one rank of `script`, with settings for the agent as environment variables.
    pub fn one(script: &str, n_steps: u32, env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let rank = start(on_fake_cuda(TORCH), script, n_steps, folder.path(), 0, env);
        Self { ranks: vec![rank], folder }
    }

    /// Starts `alone.py` on a release of PyTorch, in one of its ways.
    pub fn alone(torch: &str, way: &str, n_steps: u32, env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let mut command = on_fake_cuda(torch);
        command.env("TRAINING_WAY", way);
        let rank = start(command, "alone.py", n_steps, folder.path(), 0, env);
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

    /// Where a rank left all that was in its history at the end.
    pub fn whole(&self, rank: u32) -> PathBuf {
        let mut path = witness(self.folder.path(), rank).into_os_string();
        path.push(".pickle");
        path.into()
    }

    /// The snapshots that wait in the outbox, in order, unpacked, with their sidecars.
    pub fn waiting(&self) -> Vec<(PathBuf, Value)> {
        let mut paths = Vec::new();
        find_snapshots(&self.outbox(), &mut paths);
        paths.sort();
        let unpack = |path: PathBuf| {
            let packed = fs::read(&path).expect("a snapshot can be read");
            let name = path.to_string_lossy().replace(".pickle.zst", "");
            let pickle = PathBuf::from(format!("{name}.pickle"));
            let bytes = zstd::decode_all(packed.as_slice()).expect("a snapshot is whole");
            fs::write(&pickle, bytes).expect("there is room beside it");
            let sidecar = fs::read(format!("{name}.json")).expect("there is a sidecar");
            (pickle, serde_json::from_slice(&sidecar).expect("a sidecar is JSON"))
        };
        paths.into_iter().map(unpack).collect()
    }

    /// The outbox of all ranks.
    pub fn outbox(&self) -> PathBuf {
        self.folder.path().join("outbox")
    }

    /// Snapshots that wait in the outbox.
    pub fn n_waiting(&self) -> usize {
        let mut found = Vec::new();
        find_snapshots(&self.outbox(), &mut found);
        found.len()
    }

    /// `tidegauge push --outbox`, as the line at the end of training says.
    pub fn push_outbox(&self, server: &str) -> Output {
        let mut command = Command::new(cli());
        command.args(["push", "--server", server, "--outbox"]).arg(self.outbox());
        command.output().expect("the program starts")
    }
}

/// Whether the events of pickles, one after the other, are the first that a rank's whole history holds: of each
/// device their number, the number of all, and where the first difference is.
pub fn compared(whole: &Path, pickles: &[PathBuf]) -> Vec<Value> {
    let mut command = Command::new(torch_venv().join(format!("torch-{TORCH}/bin/python")));
    command.arg(ours("training/witness.py")).arg("--of").arg(whole).args(pickles);
    let output = command.output().expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a witness speaks JSON")
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

/// Python with a release of PyTorch, on a stand-in for CUDA.
fn on_fake_cuda(torch: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg(ours("fake-cuda/run.sh")).arg(torch_venv()).arg(torch);
    command
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
    // Unless the test says otherwise, snapshots are taken the Python way, whose witness sees what `_snapshot()` returns.
    command.env("TIDEGAUGE_WAY", "python");
    command.env("TIDEGAUGE_OUTBOX", folder.join("outbox")).envs(env.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Rank(Some(command.spawn().expect("training starts")))
}

fn witness(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("witness-{rank}.jsonl"))
}

fn find_snapshots(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        match entry.path() {
            path if path.is_dir() => find_snapshots(&path, found),
            path if path.to_string_lossy().ends_with(".pickle.zst") => found.push(path),
            _ => {}
        }
    }
}

/// A file of the tests.
fn ours(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}
