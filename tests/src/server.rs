//! A real server on a free port, with a data folder of its own.

use std::{
    fs::{self, OpenOptions},
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use serde::de::DeserializeOwned;
use tempfile::{NamedTempFile, TempDir};
use tidegauge_api::{
    paths,
    place::Place,
    problem::Problem,
    run::{Grid, RunRow, Runs},
    samples::SamplesTaken,
    snapshot::{SnapshotDetails, State},
};

use crate::{eventually, place};

/// A server; its process ends and its data goes with it.
#[derive(Debug)]
pub struct Server {
    process: Process,
    address: String,
    data: TempDir,
    /// What it says on stderr: shown when its test fails.
    log: NamedTempFile,
}

impl Server {
    /// Starts one and waits until it listens.
    pub fn start() -> Self {
        let data = tempfile::tempdir().expect("a temporary folder can be made");
        let log = NamedTempFile::new().expect("a temporary file can be made");
        let (process, address) = spawn(data.path(), &log);
        Self { process, address, data, log }
    }

    /// Kills it, as a power cut would, and starts it again on the same data and another port.
    pub fn kill_and_start_again(&mut self) {
        self.kill();
        (self.process, self.address) = spawn(self.data.path(), &self.log);
    }

    /// Kills it, as a power cut would.
    pub fn kill(&mut self) {
        self.process.end();
    }

    /// `http://127.0.0.1:PORT`
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Uploads a file's bytes, as curl would.
    ///
    /// # Errors
    /// The server's own words when it refuses.
    pub fn upload(&self, file: &Path, place: &Place) -> Result<SnapshotDetails, Problem> {
        let bytes = fs::read(file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        let fields = [
            ("run", text(&place.run)),
            ("role", text(&place.role)),
            ("rank", number(place.rank.map(u64::from))),
            ("first_step", number(place.first_step)),
            ("step", number(place.last_step)),
            ("reason", text(&place.reason)),
            (
                "file_name",
                file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            ),
        ];
        let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
        let request = ureq::post(format!("{}{}", self.address, paths::SNAPSHOTS)).query_pairs(fields);
        let mut answer = request
            .config()
            .http_status_as_error(false)
            .build()
            .send(bytes.as_slice())
            .expect("the server answers an upload");
        if answer.status().is_success() {
            Ok(answer.body_mut().read_json().expect("an upload is answered with the snapshot's details"))
        } else {
            Err(answer.body_mut().read_json().expect("a refusal is a problem in JSON"))
        }
    }

    /// Sends a batch of samples, which must be taken; the id of its run.
    pub fn send_samples(&self, batch: &serde_json::Value) -> String {
        let answer = ureq::post(format!("{}{}", self.address, paths::SAMPLES)).send_json(batch);
        let mut answer = answer.unwrap_or_else(|error| panic!("samples are not taken: {error}"));
        let taken: SamplesTaken = answer.body_mut().read_json().expect("samples are answered in JSON");
        taken.run_id
    }

    /// All runs.
    pub fn runs(&self) -> Vec<RunRow> {
        self.get::<Runs>(paths::RUNS).runs
    }

    /// One run's grid.
    pub fn grid(&self, run_id: &str) -> Grid {
        self.get(&paths::grid(run_id))
    }

    /// One snapshot's details.
    pub fn snapshot(&self, id: &str) -> SnapshotDetails {
        self.get(&paths::snapshot(id))
    }

    /// Waits until a snapshot is ready or failed.
    pub async fn read(&self, id: &str) -> SnapshotDetails {
        eventually("the server to read a snapshot", || async {
            let details = self.snapshot(id);
            match details.state {
                State::Ready | State::Failed => Ok(details),
                state @ (State::Received | State::Reading) => Err(state.as_str().to_owned()),
            }
        })
        .await
    }

    /// `GET`s JSON.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        let mut answer = ureq::get(format!("{}{path}", self.address))
            .call()
            .unwrap_or_else(|error| panic!("GET {path}: {error}"));
        answer.body_mut().read_json().unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }
}

impl Drop for Server {
    #[expect(clippy::print_stderr, reason = "the story behind a failed test")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the server said:\n{}", fs::read_to_string(self.log.path()).unwrap_or_default());
        }
    }
}

/// A process that ends with its owner.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn end(&mut self) {
        // It may be dead already, which is what we want.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(data: &Path, log: &NamedTempFile) -> (Process, String) {
    let mut command = Command::new(place::server());
    command.args(["--listen", "127.0.0.1:0", "--data"]).arg(data).arg("--site").arg(place::site());
    let log = OpenOptions::new().append(true).open(log.path()).expect("the log is ours");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut process = Process(command.spawn().expect("the server starts"));
    let mut stdout = BufReader::new(process.0.stdout.take().expect("its output is piped"));
    let mut line = String::new();
    loop {
        line.clear();
        let n_bytes = stdout.read_line(&mut line).expect("the server prints text");
        assert!(n_bytes > 0, "the server ended before it listened");
        if let Some(address) = line.trim().strip_prefix("listening on ") {
            return (process, address.trim_end_matches('/').to_owned());
        }
    }
}
