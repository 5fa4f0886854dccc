//! `tidegauge agent`: outboxes of the dead and of the living, servers that go and come, and more than one agent.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by it, with a message")]

#[expect(dead_code, reason = "the agent's tests ask it for more")]
#[path = "../../src/fake_server.rs"]
mod fake_server;

use std::{
    fs,
    io::{BufRead as _, BufReader, Read, Write as _},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use fake_server::{Answer, FakeServer};
use tempfile::TempDir;
use tidegauge_api::{Place, Sidecar};
use tidegauge_capture_agent::{outbox::Outbox, settings::SentBy};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running program.
struct Running {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegauge"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGAUGE_")) {
            command.env_remove(name);
        }
        let command = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = Arc::default();
        collect(child.stdout.take().unwrap(), &said);
        collect(child.stderr.take().unwrap(), &said);
        Self { child, said }
    }

    fn agent(outbox: &Path, server: &str, more: &[&str]) -> Self {
        let base = ["agent", outbox.to_str().unwrap(), "--server", server, "--interval", "0.1"];
        Self::start(&[&base[..], more].concat())
    }

    fn wait_for(&self, text: &str) {
        until(
            || self.said.lock().unwrap().iter().any(|line| line.contains(text)),
            || format!("{text:?} in {:#?}", self.said.lock().unwrap()),
        );
    }

    /// Ends it as a cluster does; what it said, and its exit status.
    fn end(mut self) -> (Option<i32>, Vec<String>) {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        let status = self.child.wait().unwrap().code();
        until(|| Arc::strong_count(&self.said) == 1, || "the end of what it says".to_owned());
        (status, self.said.lock().unwrap().clone())
    }
}

impl Drop for Running {
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
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it does not come about: {}", what());
        thread::sleep(Duration::from_millis(20));
    }
}

/// A process's part of an outbox; it lives as long as this does.
fn process(root: &Path, run: &str, owner: &str) -> Outbox {
    Outbox::open(root, run, owner, u64::MAX).unwrap()
}

fn write(outbox: &Outbox, run: &str, step: u64) {
    let mut draft = outbox.draft(&format!("rank0_step{step}")).unwrap();
    draft.write_all(format!("{run} {step}").as_bytes()).unwrap();
    let place = Place { run: Some(run.to_owned()), last_step: Some(step), ..Place::default() };
    draft.finish(Sidecar { sidecar: 1, place, ..Sidecar::default() }).unwrap();
}

fn received(server: &FakeServer) -> Vec<String> {
    let texts = server.received().into_iter().filter(|request| request.line.starts_with("POST"));
    let mut texts: Vec<_> = texts.map(|request| String::from_utf8(request.pickle()).unwrap()).collect();
    texts.sort();
    texts
}

#[test]
fn what_the_dead_left_and_the_living_hand_over_is_sent_and_what_the_living_send_is_not() {
    let (root, server) = (TempDir::new().unwrap(), FakeServer::that_takes_all());
    let dead = process(root.path(), "gpt", "host-1");
    write(&dead, "dead", 1);
    drop(dead);
    let (own, hands_over) = (process(root.path(), "gpt", "host-2"), process(root.path(), "gpt", "host-3"));
    hands_over.hand_over_to(SentBy::Sidecar).unwrap();
    write(&own, "own", 1);
    write(&hands_over, "handed", 1);

    let agent = Running::agent(root.path(), &server.address, &[]);
    until(|| received(&server) == ["dead 1", "handed 1"], || format!("{:?}", received(&server)));
    // It stays, and so does the process.
    write(&hands_over, "handed", 2);
    until(|| received(&server).len() == 3, || format!("{:?}", received(&server)));
    until(|| hands_over.items().is_empty(), || "the end of the last one".to_owned());
    drop(hands_over);
    until(|| !root.path().join("gpt/host-3").exists(), || "its folder to go".to_owned());
    let (status, said) = agent.end();
    assert_eq!(status, Some(0));
    let last = said.last().unwrap();
    assert!(last.starts_with("health: 0 snapshots waiting (0 B), 1 process alive, 3 sent ("), "{last}");
    assert!(last.ends_with("0 refused, all is well"), "{last}");
    assert_eq!(own.items().len(), 1);
}

#[test]
fn several_outboxes_are_emptied_and_one_that_is_not_there_yet_is_waited_for() {
    let (root, server) = (TempDir::new().unwrap(), FakeServer::that_takes_all());
    let [first, later, status] = ["first", "later", "status.json"].map(|name| root.path().join(name));
    write(&process(&first, "a", "host-1"), "a", 1);
    let more = [later.to_str().unwrap(), "--status", status.to_str().unwrap(), "--report", "0.1"];
    let agent = Running::agent(&first, &server.address, &more);
    until(|| received(&server) == ["a 1"], || format!("{:?}", received(&server)));
    write(&process(&later, "b", "host-1"), "b", 1);
    until(|| received(&server).len() == 2, || format!("{:?}", received(&server)));
    agent.wait_for("health: 0 snapshots waiting (0 B), 0 processes alive, 2 sent");
    until(
        || fs::read_to_string(&status).is_ok_and(|text| text.contains(r#""n_sent":2"#)),
        || fs::read_to_string(&status).unwrap_or_default(),
    );
    assert_eq!(agent.end().0, Some(0));
}

#[test]
fn while_the_server_is_away_everything_waits_and_then_it_is_sent() {
    let root = TempDir::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    for step in 1..=3 {
        write(&process(root.path(), "gpt", "host-1"), "gpt", step);
    }
    let server = FakeServer::listen(listener, |n| match n {
        0 | 1 => Answer { before_body: true, ..Answer::new("503 Busy\r\nRetry-After: 0", "") },
        _ => Answer::created(),
    });
    let agent = Running::agent(root.path(), &address, &[]);
    agent.wait_for("snapshots stay in the outbox until that changes");
    agent.wait_for("takes snapshots again");
    until(|| fs::read_dir(root.path()).unwrap().count() == 0, || format!("{:?}", server.received().len()));
    let (_, said) = agent.end();
    assert_eq!(said.iter().filter(|line| line.contains("until that changes")).count(), 1, "{said:?}");
}

#[test]
fn what_the_server_refuses_is_kept_aside_and_a_token_that_is_wrong_is_not_held_against_it() {
    let root = TempDir::new().unwrap();
    write(&process(root.path(), "gpt", "host-1"), "gpt", 1);
    let server = FakeServer::start(|_| Answer::problem(413, "it is too large"));
    let agent = Running::agent(root.path(), &server.address, &[]);
    agent.wait_for("it is too large; kept as");
    assert!(root.path().join(".rejected/gpt-host-1/000001_rank0_step1.pickle.zst").exists());
    agent.end();

    write(&process(root.path(), "gpt", "host-2"), "gpt", 2);
    let server = FakeServer::start(|_| Answer::problem(401, "this server asks for its token"));
    let agent = Running::agent(root.path(), &server.address, &[]);
    agent.wait_for("this server asks for its token; snapshots stay in the outbox");
    let (status, said) = agent.end();
    assert_eq!((status, said.last().unwrap().contains("1 snapshot waiting")), (Some(0), true), "{said:?}");
}

#[test]
fn what_was_written_last_is_still_sent_when_it_is_told_to_end_and_then_it_ends_at_once() {
    let (root, server) = (TempDir::new().unwrap(), FakeServer::that_takes_all());
    // It looks once, and would look again in an hour.
    let outbox = root.path().to_str().unwrap();
    let arguments = ["agent", outbox, "--server", &server.address, "--interval", "3600", "--grace", "3600"];
    write(&process(root.path(), "gpt", "host-1"), "gpt", 1);
    let agent = Running::start(&arguments);
    until(|| received(&server).len() == 1, || "the first one".to_owned());
    write(&process(root.path(), "gpt", "host-2"), "gpt", 2);
    assert_eq!(agent.end().0, Some(0));
    assert_eq!(received(&server), ["gpt 1", "gpt 2"]);
}

#[test]
fn two_agents_on_one_outbox_send_everything_once() {
    let (root, server) = (TempDir::new().unwrap(), FakeServer::that_takes_all());
    for owner in 1..=20 {
        let outbox = process(root.path(), "gpt", &format!("host-{owner}"));
        for step in 1..=3 {
            write(&outbox, &format!("{owner:02}"), step);
        }
    }
    let agents = [1, 2].map(|_| Running::agent(root.path(), &server.address, &[]));
    until(|| fs::read_dir(root.path()).unwrap().count() == 0, || format!("{}", received(&server).len()));
    for agent in agents {
        assert_eq!(agent.end().0, Some(0));
    }
    let received = received(&server);
    let mut once = received.clone();
    once.dedup();
    assert_eq!((received.len(), once.len()), (60, 60));
}

#[test]
fn push_with_an_outbox_stays_when_it_is_asked_to() {
    let (root, server) = (TempDir::new().unwrap(), FakeServer::that_takes_all());
    let outbox = root.path().to_str().unwrap();
    let push = Running::start(&["push", "--outbox", outbox, "--watch", "--server", &server.address]);
    push.wait_for("sending what is left in");
    write(&process(root.path(), "gpt", "host-1"), "gpt", 1);
    until(|| received(&server) == ["gpt 1"], || format!("{:?}", received(&server)));
    assert_eq!(push.end().0, Some(0));
    let push = Running::start(&["push", "--outbox", outbox, "--watch", "--rank", "3"]);
    push.wait_for("cannot be used with");
}
