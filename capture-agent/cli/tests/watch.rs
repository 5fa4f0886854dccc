//! `tidegauge watch`: files that appear, grow, change and stay cut, and servers that go and come.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by it, with a message")]

#[expect(dead_code, reason = "the agent's tests ask it for more")]
#[path = "../../src/fake_server.rs"]
mod fake_server;

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use fake_server::{Answer, FakeServer, Received};
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The shortest interval: fifteen looks, after which a file counts as cut, take a second and a half.
const INTERVAL: &str = "0.1";
const SOME_LOOKS: Duration = Duration::from_millis(500);
const LOOKS_UNTIL_CUT: Duration = Duration::from_millis(2500);

/// A folder that is watched, with the file that keeps what was sent.
struct Place {
    root: TempDir,
}

/// A running `tidegauge watch`.
struct Watching {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("runs")).unwrap();
        Self { root }
    }

    fn folder(&self) -> PathBuf {
        self.root.path().join("runs")
    }

    fn state(&self) -> PathBuf {
        self.root.path().join("state/watch.jsonl")
    }

    /// A path below the watched folder; its own folder is made.
    fn file(&self, path: &str) -> PathBuf {
        let path = self.folder().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn write(&self, path: &str, bytes: &[u8]) -> PathBuf {
        let path = self.file(path);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn command(&self, server: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegauge"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGAUGE_")) {
            command.env_remove(name);
        }
        command.arg("watch").arg(self.folder()).args(["--server", server, "--interval", INTERVAL]);
        command.arg("--state").arg(self.state());
        command
    }

    fn watch(&self, server: &str) -> Watching {
        Watching::start(self.command(server))
    }

    fn once(&self, server: &str) -> Output {
        self.command(server).arg("--once").output().unwrap()
    }

    fn is_remembered(&self, path: &Path) -> bool {
        fs::read_to_string(self.state()).is_ok_and(|state| state.contains(path.to_str().unwrap()))
    }
}

impl Watching {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        collect(child.stdout.take().unwrap(), &said);
        collect(child.stderr.take().unwrap(), &said);
        Self { child, said }
    }

    fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    fn n_said(&self, text: &str) -> usize {
        self.said().iter().filter(|line| line.contains(text)).count()
    }

    fn wait_for(&self, text: &str) {
        self.wait_for_many(text, 1);
    }

    fn wait_for_many(&self, text: &str, n: usize) {
        until(|| self.n_said(text) >= n, || format!("{n} × {text:?} in {:#?}", self.said()));
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Ends it as a person or a cluster does.
    fn end(mut self, signal: &str) -> (ExitStatus, Vec<String>) {
        self.signal(signal);
        let status = self.child.wait().unwrap();
        // The last lines may still be on their way.
        until(|| Arc::strong_count(&self.said) == 1, || "the end of what it says".to_owned());
        (status, self.said())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn collect(lines: impl Read + Send + 'static, said: &Arc<Mutex<Vec<String>>>) {
    let said = Arc::clone(said);
    thread::spawn(move || {
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            said.lock().unwrap().push(line);
        }
    });
}

fn until(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "waited in vain for {}", what());
        thread::sleep(Duration::from_millis(10));
    }
}

fn pickle(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../snapshot/fixtures").join(name)).unwrap()
}

fn a_pickle() -> Vec<u8> {
    pickle("settings_default.pickle")
}

fn another_pickle() -> Vec<u8> {
    pickle("settings_expandable_gc05.pickle")
}

/// "gpt actor rank 3 step 5 oom", as the sidecar says.
fn told(request: &Received) -> String {
    let place = request.sidecar().place;
    let mut words = vec![place.run.clone().unwrap(), place.role.clone().unwrap_or_default()];
    words.push(place.rank.map_or(String::new(), |rank| format!("rank {rank}")));
    words.push(place.step_label());
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

fn all_told(server: &FakeServer) -> Vec<String> {
    let mut all: Vec<_> = server.received().iter().map(told).collect();
    all.sort();
    all
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_file_that_is_written_slowly_is_sent_once_and_whole() {
    let (place, server, bytes) = (Place::new(), FakeServer::that_takes_all(), a_pickle());
    let watching = place.watch(&server.address);
    watching.wait_for("watching ");
    let path = place.file("gpt/step5/torch_memory_rank3_pid9.pickle");
    let mut file = File::create(&path).unwrap();
    for part in bytes.chunks(bytes.len() / 4) {
        thread::sleep(SOME_LOOKS);
        assert!(server.received().is_empty(), "sent before it was whole");
        file.write_all(part).unwrap();
    }
    watching.wait_for("sent: ");
    thread::sleep(SOME_LOOKS);
    let [request] = server.received().try_into().unwrap();
    assert_eq!(request.body, bytes);
    assert_eq!(told(&request), "gpt rank 3 5");
    assert_eq!(request.sidecar().content_digest.unwrap(), blake3::hash(&bytes).to_hex().as_str());
    assert_eq!(watching.n_said("not"), 0, "{:#?}", watching.said());
}

#[test]
fn a_restart_sends_what_is_new_and_nothing_twice() {
    let (place, server) = (Place::new(), FakeServer::that_takes_all());
    for (rank, signal) in ["-TERM", "-INT"].into_iter().enumerate() {
        place.write(&format!("gpt/step1/torch_memory_rank{rank}_pid1.pickle"), &a_pickle());
        let watching = place.watch(&server.address);
        watching.wait_for("sent: ");
        thread::sleep(SOME_LOOKS);
        let (status, said) = watching.end(signal);
        assert_eq!(status.code(), Some(0), "{said:#?}");
        assert!(said.last().unwrap().starts_with("1 snapshot sent to "), "{said:#?}");
        assert_eq!(server.received().len(), rank + 1);
    }
    // A kill leaves no time for anything.
    let path = place.write("gpt/step1/torch_memory_rank2_pid1.pickle", &a_pickle());
    let watching = place.watch(&server.address);
    until(|| place.is_remembered(&path), || "the file to be remembered".to_owned());
    drop(watching);
    let output = place.once(&server.address);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "nothing new to send\n");
    assert_eq!(all_told(&server), ["gpt rank 0 1", "gpt rank 1 1", "gpt rank 2 1"]);
}

#[test]
fn a_file_overwritten_with_other_content_is_sent_again_and_with_its_own_is_not() {
    let (place, server) = (Place::new(), FakeServer::that_takes_all());
    place.write("gpt/snapshot_0.pickle", &a_pickle());
    let watching = place.watch(&server.address);
    watching.wait_for("sent: ");
    place.write("gpt/snapshot_0.pickle", &another_pickle());
    watching.wait_for_many("sent: ", 2);
    let path = place.write("gpt/snapshot_0.pickle", &another_pickle());
    thread::sleep(SOME_LOOKS);
    let (_, said) = watching.end("-TERM");
    let bodies: Vec<_> = server.received().into_iter().map(|request| request.body).collect();
    assert!(bodies == [a_pickle(), another_pickle()], "{said:#?}");
    // What was only touched is known in its new form, too.
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let nanoseconds = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos().to_string();
    assert!(fs::read_to_string(place.state()).unwrap().contains(&nanoseconds));
}

#[test]
fn a_file_that_stays_cut_is_said_once_and_sent_when_it_is_complete() {
    let (place, server, bytes) = (Place::new(), FakeServer::that_takes_all(), a_pickle());
    place.write("gpt/step1/torch_memory_rank0_pid1.pickle", &bytes[..bytes.len() / 2]);
    place.write("gpt/step1/torch_memory_rank1_pid1.pickle", b"");
    let watching = place.watch(&server.address);
    watching.wait_for_many("it is sent when it is complete", 2);
    thread::sleep(LOOKS_UNTIL_CUT);
    let (_, said) = watching.end("-TERM");
    let n_said = said.iter().filter(|line| line.contains("it is sent when it is complete")).count();
    assert_eq!(n_said, 2, "{said:#?}");
    assert!(said.iter().any(|line| line.contains("rank0_pid1.pickle: ")), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("rank1_pid1.pickle: the file is empty")), "{said:#?}");

    let watching = place.watch(&server.address);
    thread::sleep(LOOKS_UNTIL_CUT);
    assert_eq!(watching.n_said("complete"), 0, "said again after a restart: {:#?}", watching.said());
    assert!(server.received().is_empty());
    place.write("gpt/step1/torch_memory_rank0_pid1.pickle", &bytes);
    watching.wait_for("sent: ");
    assert_eq!(all_told(&server), ["gpt rank 0 1"]);
}

#[test]
fn strangers_are_not_sent_and_those_named_like_snapshots_are_said_once() {
    let (place, server) = (Place::new(), FakeServer::that_takes_all());
    place.write("gpt/config.json", br#"{"layers": 4}"#);
    place.write("gpt/report.html", b"<!doctype html><p>Loss");
    place.write("gpt/train.log", b"step 1");
    place.write("gpt/empty.json", b"");
    // What pickle.dumps(len) makes: it would import something.
    let import = b"\x80\x04\x95\x14\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94\x8c\x03len\x94\x93\x94.";
    place.write("gpt/sampler.pkl", import);
    place.write("gpt/step1/torch_memory_rank0_pid1.pickle", &a_pickle());
    for n_said in [1, 0] {
        let watching = place.watch(&server.address);
        match n_said {
            1 => watching.wait_for("sent: "),
            _ => watching.wait_for("watching "),
        }
        thread::sleep(LOOKS_UNTIL_CUT);
        assert_eq!(watching.n_said("sampler.pkl: passed over: "), n_said, "{:#?}", watching.said());
        let strangers = ["config.json", "report.html", "train.log", "empty.json"];
        assert!(strangers.iter().all(|name| watching.n_said(name) == 0), "{:#?}", watching.said());
    }
    assert_eq!(all_told(&server), ["gpt rank 0 1"]);
}

#[test]
fn a_server_that_is_away_is_said_once_and_nothing_is_lost() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let place = Place::new();
    place.write("gpt/step1/torch_memory_rank0_pid1.pickle", &a_pickle());
    let watching = place.watch(&format!("http://{address}"));
    watching.wait_for("snapshots stay where they are until that changes");
    place.write("gpt/step1/torch_memory_rank1_pid1.pickle", &another_pickle());
    thread::sleep(3 * SOME_LOOKS);
    assert_eq!(watching.n_said("stay where they are"), 1, "{:#?}", watching.said());
    let server = FakeServer::listen(TcpListener::bind(address).unwrap(), |_| Answer::created());
    watching.wait_for("takes snapshots again");
    watching.wait_for_many("sent: ", 2);
    assert_eq!(all_told(&server), ["gpt rank 0 1", "gpt rank 1 1"]);
}

#[test]
fn snapshots_of_several_frameworks_arrive_at_their_places() {
    let (place, server) = (Place::new(), FakeServer::that_takes_all());
    let paths = [
        "llama/steps4-5/torch_memory_rank0_pid9.pickle",
        "llama/oom_20261001-101112-123456/torch_memory_oom_rank7_pid55.pickle",
        "titan-8b/profiling/memory_snapshot/step_000000000010/000003_step_10.pickle",
        "titan-8b/profiling/memory_snapshot/step_000000000012_exit/000001_step_12.pickle",
        "ppo/actor_train-2/train_step/snapshot_20260101_101112.pickle",
        "megatron/snapshot_6.pickle",
    ];
    for path in paths {
        place.write(path, &a_pickle());
    }
    let watching = place.watch(&server.address);
    watching.wait_for_many("sent: ", paths.len());
    let expected = [
        "llama rank 0 4–5",
        "llama rank 7 oom",
        "megatron rank 6 no step",
        "ppo actor_train rank 2 train_step",
        "titan-8b rank 1 12 exit",
        "titan-8b rank 3 10",
    ];
    assert_eq!(all_told(&server), expected);
}

#[test]
fn flags_win_and_a_folder_may_appear_later() {
    let (place, server) = (Place::new(), FakeServer::that_takes_all());
    fs::remove_dir(place.folder()).unwrap();
    let mut command = place.command(&server.address);
    command.args(["--run", "mine", "--role", "critic", "--rank", "4"]);
    let watching = Watching::start(command);
    watching.wait_for("it is tried again");
    place.write("snapshot.pickle", &a_pickle());
    watching.wait_for("sent: ");
    assert_eq!(all_told(&server), ["mine critic rank 4 no step"]);
    assert_eq!(watching.n_said("it is tried again"), 1);
}

#[test]
fn a_refused_snapshot_is_said_once_and_the_others_are_sent() {
    let place = Place::new();
    let server = FakeServer::start(|n| match n {
        0 => Answer::problem(413, "it is too large for this server"),
        _ => Answer::created(),
    });
    place.write("gpt/step1/torch_memory_rank0_pid1.pickle", &a_pickle());
    place.write("gpt/step1/torch_memory_rank1_pid1.pickle", &another_pickle());
    let watching = place.watch(&server.address);
    watching.wait_for("sent: ");
    thread::sleep(SOME_LOOKS);
    assert_eq!(watching.n_said("rank0_pid1.pickle: it is too large for this server"), 1);
    assert_eq!(server.received().len(), 2, "{:#?}", watching.said());
    drop(watching);
    // A server with more room takes it at the next start.
    assert_eq!(place.once(&server.address).status.code(), Some(0));
    assert_eq!(server.received().len(), 3);
}

#[test]
fn one_snapshot_that_a_server_stumbles_over_does_not_hold_up_the_others() {
    let place = Place::new();
    let server = FakeServer::start(|n| match n {
        0 => Answer::new("500 Oops", ""),
        _ => Answer::created(),
    });
    place.write("gpt/step1/torch_memory_rank0_pid1.pickle", &a_pickle());
    place.write("gpt/step1/torch_memory_rank1_pid1.pickle", &another_pickle());
    let watching = place.watch(&server.address);
    watching.wait_for_many("sent: ", 2);
    let order: Vec<_> = server.received().iter().map(told).collect();
    assert_eq!(order, ["gpt rank 0 1", "gpt rank 1 1", "gpt rank 0 1"]);
}

#[test]
fn bytes_that_were_damaged_on_their_way_are_sent_again() {
    let place = Place::new();
    let server = FakeServer::start(|n| match n {
        0 => {
            let mismatch = Answer::problem(422, "what arrived is something else");
            Answer { body: mismatch.body.replace("a-kind", "digest-mismatch"), ..mismatch }
        }
        _ => Answer::created(),
    });
    place.write("gpt/step1/torch_memory_rank0_pid1.pickle", &a_pickle());
    let watching = place.watch(&server.address);
    watching.wait_for("sent: ");
    assert_eq!(server.received().len(), 2);
}

#[test]
fn a_file_overwritten_while_it_is_sent_is_sent_again() {
    for (first, second) in [(a_pickle(), another_pickle()), (another_pickle(), a_pickle())] {
        let place = Place::new();
        let path = place.write("gpt/snapshot_0.pickle", &first);
        let (overwritten, content) = (path.clone(), second.clone());
        let server = FakeServer::start(move |n| {
            // The request has begun, its body has not.
            if n == 0 {
                fs::write(&overwritten, &content).unwrap();
            }
            Answer::created()
        });
        let watching = place.watch(&server.address);
        until(|| place.is_remembered(&path), || format!("the file to be remembered: {:#?}", watching.said()));
        let last = server.received().pop().unwrap();
        assert!(last.body == second, "{:#?}", watching.said());
        assert_eq!(watching.n_said("stay where they are"), 0, "{:#?}", watching.said());
    }
}

#[test]
fn a_sidecar_that_does_not_fit_its_snapshot_is_a_refusal_and_not_a_server_that_is_away() {
    let place = Place::new();
    let server = FakeServer::start(|_| {
        let mismatch = Answer::problem(422, "what arrived is something else");
        Answer { body: mismatch.body.replace("a-kind", "digest-mismatch"), ..mismatch }
    });
    place.write("gpt/rank0_step1.json", br#"{"sidecar": 1, "rank": 2, "content_digest": "of another"}"#);
    place.write("gpt/rank0_step1.pickle", &a_pickle());
    let watching = place.watch(&server.address);
    watching.wait_for("what arrived is something else");
    thread::sleep(3 * SOME_LOOKS);
    let [request] = server.received().try_into().unwrap();
    assert_eq!(told(&request), "gpt rank 2 1", "the sidecar wins over the path");
    assert_eq!(watching.n_said("stay where they are"), 0);
}

#[test]
fn a_hangup_that_nohup_keeps_away_does_not_end_it() {
    let (place, server) = (Place::new(), FakeServer::that_takes_all());
    let command = place.command(&server.address);
    let mut nohup = Command::new("nohup");
    nohup.arg(command.get_program()).args(command.get_args());
    let watching = Watching::start(nohup);
    watching.wait_for("watching ");
    watching.signal("-HUP");
    place.write("gpt/rank0_step1.pickle", &a_pickle());
    watching.wait_for("sent: ");
}

#[test]
fn the_end_does_not_wait_for_a_server_that_hangs() {
    let place = Place::new();
    // The system takes the connection; nobody answers.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    place.write("gpt/step1/torch_memory_rank0_pid1.pickle", &a_pickle());
    let watching = place.watch(&format!("http://{}", hanging.local_addr().unwrap()));
    let _connection = hanging.accept().unwrap();
    let began = Instant::now();
    let (status, said) = watching.end("-TERM");
    assert_eq!(status.code(), Some(0), "{said:#?}");
    assert!(said.last().unwrap().contains("the next start sends it"), "{said:#?}");
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
}

#[test]
fn once_sends_what_is_there_and_says_by_its_status_what_became_of_it() {
    let (place, server, bytes) = (Place::new(), FakeServer::that_takes_all(), a_pickle());
    place.write("gpt/step1/torch_memory_rank0_pid1.pickle", &bytes);
    let output = place.once(&server.address);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stderr).contains("1 snapshot sent to "), "{output:?}");
    assert!(text(&output.stdout).contains("rank0_pid1.pickle: sent: "), "{output:?}");

    place.write("gpt/step1/torch_memory_rank1_pid1.pickle", &bytes[..bytes.len() / 2]);
    place.write("gpt/step1/torch_memory_rank2_pid1.pickle", &bytes);
    let output = place.once(&server.address);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("rank1_pid1.pickle: ") && said.contains("1 not sent"), "{said}");
    assert_eq!(all_told(&server), ["gpt rank 0 1", "gpt rank 2 1"]);
}

#[test]
fn once_gives_up_on_a_server_that_wants_a_token() {
    let place = Place::new();
    let server = FakeServer::start(|_| Answer::problem(401, "a token is needed"));
    for rank in 0..3 {
        place.write(&format!("gpt/step1/torch_memory_rank{rank}_pid1.pickle"), &a_pickle());
    }
    let output = place.once(&server.address);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("a token is needed") && said.contains("3 not sent"), "{said}");
    assert_eq!(server.received().len(), 1);
}

#[test]
fn an_archive_is_sent_snapshot_by_snapshot_and_once() {
    let (place, server) = (Place::new(), FakeServer::that_takes_all());
    place.write("run.zip", &pickle("wrapped/run.zip"));
    assert_eq!(place.once(&server.address).status.code(), Some(0));
    assert_eq!(place.once(&server.address).status.code(), Some(0));
    assert_eq!(server.received().len(), 3);
}

#[test]
fn a_second_watch_with_the_same_state_is_told_to_take_another() {
    let (place, server) = (Place::new(), FakeServer::that_takes_all());
    let watching = place.watch(&server.address);
    watching.wait_for("watching ");
    let output = place.once(&server.address);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("another tidegauge watch"), "{output:?}");
}

#[test]
fn a_file_instead_of_a_folder_is_named() {
    let (place, server) = (Place::new(), FakeServer::that_takes_all());
    fs::remove_dir(place.folder()).unwrap();
    fs::write(place.folder(), "x").unwrap();
    let output = place.once(&server.address);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("tidegauge push sends files"), "{output:?}");
}
