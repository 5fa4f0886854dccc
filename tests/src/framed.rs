//! Trainings with frameworks as published, which `tidegauge run` starts and which know nothing of the agent.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    place::{cli, torch_venv},
    training::{Ended, TORCH},
};

/// Where the agent remembers, in an outbox, that the native way was proved with a build of torch. A proof takes seconds,
/// and each of these trainings has an outbox of its own.
const PROOF: &str = ".native-way";

/// A training that has ended.
#[derive(Debug)]
pub struct Framed {
    folder: TempDir,
    /// How it ended.
    pub ended: Ended,
}

impl Framed {
    /// Trains `n_steps` steps with a script of `tests/training`, to the end. `launcher` stands before the script, as in
    /// `python -m torch.distributed.run …`; `settings` are those of `tidegauge run`.
    pub fn train(
        launcher: &[&str],
        script: &str,
        n_steps: u32,
        settings: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(cli());
        command.arg("run").args(settings).args(["--", "bash"]).arg(ours.join("fake-cuda/run.sh"));
        command.arg(torch_venv()).arg(TORCH).args(launcher).arg(ours.join("training").join(script));
        command.arg(n_steps.to_string()).arg(folder.path().join("witness-0.jsonl"));
        command.env("PYTHONPATH", torch_venv().join(format!("clients-{TORCH}")));
        command.env("TIDEGAUGE_OUTBOX", folder.path().join("outbox")).env("OMP_NUM_THREADS", "1");
        // Its witness sees what `_snapshot()` returns.
        command.env("TIDEGAUGE_WAY", "python");
        command.envs(env.iter().copied()).stdin(Stdio::null());
        let (outbox, proof) = (folder.path().join("outbox"), torch_venv().join(PROOF));
        if proof.exists() {
            fs::create_dir(&outbox).expect("the folder is new");
            fs::copy(&proof, outbox.join(PROOF)).expect("a proof can be copied");
        }
        let output = command.output().expect("the program starts");
        // A trial that something killed is not what the next training is to know.
        if fs::read_to_string(outbox.join(PROOF)).is_ok_and(|verdict| !verdict.contains("refused")) {
            fs::copy(outbox.join(PROOF), &proof).expect("a proof can be copied");
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let ended =
            Ended { code: output.status.code(), printed: text(output.stdout), said: text(output.stderr) };
        Self { folder, ended }
    }

    /// What a rank's witness was told, line by line.
    pub fn witness(&self, rank: u32) -> Vec<Value> {
        let path = self.folder.path().join(format!("witness-{rank}.jsonl"));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a witness speaks JSON")).collect()
    }

    /// Allocations that a rank's witness counted from the end of step `first - 1` to that of step `last`.
    pub fn allocations(&self, rank: u32, first: u64, last: u64) -> u64 {
        let witness = self.witness(rank);
        let so_far = |step: u64| {
            let line = witness.iter().find(|line| line["step"] == step);
            line.map_or(0, |line| line["allocations_so_far"].as_u64().expect("a witness counts"))
        };
        so_far(last) - so_far(first - 1)
    }

    /// Whether there is a run in the outbox.
    pub fn has_recorded(&self) -> bool {
        let entries = fs::read_dir(self.folder.path().join("outbox")).into_iter().flatten();
        entries.filter_map(Result::ok).any(|entry| entry.path().is_dir())
    }
}
