//! Whether the native way can be trusted with this build of torch: proved once and remembered.
//!
//! A child process records for a moment, takes a snapshot both ways and compares them entry by entry. What can go
//! wrong there (an exception that nobody catches, a crash, a lock that is never let go) goes wrong in the child. Its
//! verdict is kept in a file of the outbox under everything that it depends on, so that a thousand ranks and the next
//! run ask it only once.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidegauge_snapshot::{
    Snapshot,
    model::{BlockState, Device, StackId},
    read,
};

/// The file in an outbox that remembers.
pub const FILE: &str = ".native-way";

/// Builds that are remembered; the oldest is forgotten. One machine trains with a few.
const MAX_REMEMBERED: usize = 16;

/// The most that is read of the file, bytes; a longer one is not ours and begins anew.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The longest that the child may take. Importing torch from a slow disk takes a minute at worst.
const PATIENCE: Duration = Duration::from_secs(120);

/// The most that is read of what the child says, bytes.
const MAX_SAID_BYTES: u64 = 64 * 1024;

/// Signals by which others end a process: hangup, interrupt, kill and terminate. They say nothing about the way.
const FROM_OUTSIDE: [i32; 4] = [1, 2, 9, 15];

/// What the child's answer begins with.
pub const MARKER: &str = "tidegauge-proof ";

/// How far the two may differ in the time of an event, microseconds. Torch measures its clock anew for each.
const MAX_TIME_DIFFERENCE_US: u64 = 1000;

/// What a proof says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Both ways gave the same.
    Proven,
    /// They did not, or the native one failed; a sentence.
    Refused(String),
    /// Nothing can be said: the child had no device, or could not be started. Asked again next time.
    Open(String),
}

impl Verdict {
    /// As the child prints it.
    pub fn to_line(&self) -> String {
        format!("{MARKER}{}", self.to_json())
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Proven => json!({"verdict": "proven"}),
            Self::Refused(why) => json!({"verdict": "refused", "why": why}),
            Self::Open(why) => json!({"verdict": "open", "why": why}),
        }
    }

    fn from_json(value: &Value) -> Option<Self> {
        let why = || value["why"].as_str().unwrap_or("it gave no reason").to_owned();
        match value["verdict"].as_str()? {
            "proven" => Some(Self::Proven),
            "refused" => Some(Self::Refused(why())),
            "open" => Some(Self::Open(why())),
            _ => None,
        }
    }
}

/// The verdict on the build that `key` names: the one remembered in `folder`, or that of the child. While one process
/// asks its child, others wait for the answer.
pub fn judge(folder: &Path, key: &str, child: &mut Command) -> Verdict {
    judge_within(PATIENCE, folder, key, child)
}

fn judge_within(patience: Duration, folder: &Path, key: &str, child: &mut Command) -> Verdict {
    // An outbox that cannot be written to remembers nothing; the verdict is good all the same.
    let Ok(mut file) = remembering(folder) else { return ask(patience, child) };
    let mut remembered = remembered(&mut file);
    let known = remembered.iter().find(|entry| entry["key"] == key).and_then(Verdict::from_json);
    if let Some(known) = known {
        return known;
    }
    let verdict = ask(patience, child);
    if !matches!(verdict, Verdict::Open(_)) {
        let mut entry = verdict.to_json();
        entry["key"] = key.into();
        remembered.push(entry);
        let too_many = remembered.len().saturating_sub(MAX_REMEMBERED);
        remembered.drain(..too_many);
        // What cannot be remembered is proved again.
        remember(&mut file, remembered).ok();
    }
    verdict
}

/// The file, locked until it is dropped.
fn remembering(folder: &Path) -> io::Result<File> {
    std::fs::create_dir_all(folder)?;
    let file = File::options().read(true).write(true).create(true).truncate(false).open(folder.join(FILE))?;
    file.lock()?;
    Ok(file)
}

fn remembered(file: &mut File) -> Vec<Value> {
    let mut text = Vec::new();
    let read = file.take(MAX_FILE_BYTES).read_to_end(&mut text);
    let value = read.ok().and_then(|_| serde_json::from_slice::<Vec<Value>>(&text).ok());
    value.unwrap_or_default()
}

fn remember(file: &mut File, entries: Vec<Value>) -> io::Result<()> {
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(format!("{:#}\n", Value::from(entries)).as_bytes())
}

fn ask(patience: Duration, child: &mut Command) -> Verdict {
    let open = |what: &str, error: io::Error| Verdict::Open(format!("the trial {what}: {error}"));
    let started = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => return open("does not start", error),
    };
    let stdout = child.stdout.take().map(|stream| thread::spawn(move || text(stream)));
    let stderr = child.stderr.take().map(|stream| thread::spawn(move || text(stream)));
    let ended = wait(patience, &mut child);
    let said = |reading: Option<thread::JoinHandle<String>>| {
        reading.and_then(|reading| reading.join().ok()).unwrap_or_default()
    };
    let (stdout, stderr) = (said(stdout), said(stderr));
    let status = match ended {
        Ok(Some(status)) => status,
        Ok(None) => {
            return Verdict::Refused(format!("its trial did not end within {} s", patience.as_secs()));
        }
        Err(error) => return open("cannot be waited for", error),
    };
    let answer = stdout.lines().find_map(|line| line.strip_prefix(MARKER));
    let answer = answer.and_then(|answer| Verdict::from_json(&serde_json::from_str(answer).ok()?));
    match (answer, status.signal()) {
        (_, Some(signal)) if FROM_OUTSIDE.contains(&signal) => {
            Verdict::Open(format!("its trial was ended by signal {signal}"))
        }
        (_, Some(signal)) => Verdict::Refused(format!("its trial died of signal {signal}")),
        (Some(verdict), None) => verdict,
        (None, None) => Verdict::Open(format!("its trial answered nothing: {}", last_line(&stderr))),
    }
}

/// `None` when it was killed because it did not end.
fn wait(patience: Duration, child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn text(mut stream: impl io::Read) -> String {
    let mut bytes = Vec::new();
    // What could be read until something failed is what there is. The rest is read, so that nobody waits, and forgotten.
    stream.by_ref().take(MAX_SAID_BYTES).read_to_end(&mut bytes).ok();
    io::copy(&mut stream, &mut io::sink()).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing")
}

/// The verdict on two snapshots, as pickles: one taken natively, and one by `_snapshot()` right after it.
pub fn compare(native: &[u8], python: &[u8]) -> Verdict {
    match (read::open(native), read::open(python)) {
        (Err(error), _) => Verdict::Refused(format!("its bytes cannot be read: {error}")),
        (_, Err(error)) => Verdict::Open(format!("what _snapshot() returned cannot be read: {error}")),
        (Ok(native), Ok(python)) => difference(&native, &python).map_or(Verdict::Proven, Verdict::Refused),
    }
}

/// Where a snapshot taken natively differs from one taken by `_snapshot()` right after it; a sentence. The later one
/// has the earlier one's mark as the last event of every device, used or not.
fn difference(native: &Snapshot, python: &Snapshot) -> Option<String> {
    if native.top.len() != python.top.len() || native.settings.len() != python.settings.len() {
        return Some(format!("its parts are {:?} instead of {:?}", native.top, python.top));
    }
    let unused = |device: &&Device| device.events.len() == 1 && device.segments.is_empty();
    let n_used = python.devices.iter().filter(|device| !unused(device)).count();
    if native.devices.len() != n_used || native.devices.is_empty() {
        return Some(format!("{} devices instead of {n_used}", native.devices.len()));
    }
    native.devices.iter().find_map(|left| match python.device(left.ordinal) {
        Some(right) => of_device(native, left, python, right),
        None => Some(format!("device {} is not there otherwise", left.ordinal)),
    })
}

fn of_device(native: &Snapshot, left: &Device, python: &Snapshot, right: &Device) -> Option<String> {
    if left.events.is_empty() || left.events.len() >= right.events.len() {
        return Some(format!(
            "{} events instead of one fewer than {}",
            left.events.len(),
            right.events.len()
        ));
    }
    let mut events = left.events.clone().zip(right.events.clone());
    if let Some((at, _)) =
        events.find(|(l, r)| event(native, *l) != event(python, *r) || differ_in_time(native, *l, python, *r))
    {
        return Some(format!("event {} differs", at - left.events.start));
    }
    if left.segments.len() != right.segments.len() {
        return Some(format!("{} segments instead of {}", left.segments.len(), right.segments.len()));
    }
    let mut segments = left.segments.clone().zip(right.segments.clone());
    let (at, _) = segments.find(|(l, r)| segment(native, *l) != segment(python, *r))?;
    Some(format!("segment {} differs", at - left.segments.start))
}

fn differ_in_time(native: &Snapshot, left: usize, python: &Snapshot, right: usize) -> bool {
    match (native.trace.time_us(left), python.trace.time_us(right)) {
        (Some(left), Some(right)) => left.abs_diff(right) > MAX_TIME_DIFFERENCE_US,
        (left, right) => left != right,
    }
}

/// An event in its own words.
fn event(snapshot: &Snapshot, row: usize) -> impl PartialEq + use<> {
    let trace = &snapshot.trace;
    let extra = trace.extra(row);
    let text = |id: Option<_>| id.map(|id| snapshot.strings.text(id).into_owned());
    (
        snapshot.action_name(trace.action[row]).to_owned(),
        (trace.address[row], trace.size[row], stream(snapshot, trace.stream[row])),
        stack(snapshot, trace.stack[row]),
        (text(extra.compile_context), text(extra.user_metadata), extra.pool),
    )
}

/// A segment and its blocks in their own words.
fn segment(snapshot: &Snapshot, row: usize) -> impl PartialEq + use<> {
    let (segments, blocks) = (&snapshot.segments, &snapshot.blocks);
    let block = |row: u32| {
        let row = row as usize;
        let requested = if blocks.state[row] == BlockState::Inactive { 0 } else { blocks.requested[row] };
        (
            blocks.address[row],
            blocks.size[row],
            requested,
            blocks.state[row],
            stack(snapshot, blocks.stack[row]),
        )
    };
    (
        (segments.address[row], segments.total_size[row], stream(snapshot, segments.stream[row])),
        snapshot.strings.text(segments.kind[row]).into_owned(),
        (segments.pool[row], segments.is_expandable[row]),
        segments.blocks[row].clone().map(block).collect::<Vec<_>>(),
    )
}

fn stream(snapshot: &Snapshot, stream: u32) -> Option<u64> {
    snapshot.streams.get(stream as usize).copied()
}

/// Function, file and line of each frame.
fn stack(snapshot: &Snapshot, stack: StackId) -> Vec<(String, String, u32)> {
    if stack == StackId::NONE {
        return Vec::new();
    }
    let text = |id| snapshot.strings.text(id).into_owned();
    let frames = snapshot.stacks.frames(stack);
    frames.map(|frame| (text(frame.name), text(frame.filename), frame.line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn judged(folder: &Path, key: &str, script: &str) -> Verdict {
        judge_within(Duration::from_secs(30), folder, key, &mut shell(script))
    }

    const PROVEN: &str = r#"echo noise; echo 'tidegauge-proof {"verdict": "proven"}'"#;

    #[test]
    fn a_verdict_is_asked_for_once_for_each_build() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(judged(folder.path(), "torch 2.9.1", PROVEN), Verdict::Proven);
        assert_eq!(judged(folder.path(), "torch 2.9.1", "exit 3"), Verdict::Proven);
        let refused = r#"echo 'tidegauge-proof {"verdict": "refused", "why": "event 3 differs"}'"#;
        let expected = Verdict::Refused("event 3 differs".to_owned());
        assert_eq!(judged(folder.path(), "torch 2.9.2", refused), expected);
        assert_eq!(judged(folder.path(), "torch 2.9.2", PROVEN), expected);
        assert_eq!(judged(folder.path(), "torch 2.9.1", "exit 3"), Verdict::Proven);
    }

    #[test]
    fn a_trial_that_dies_or_hangs_refuses_and_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let died = Verdict::Refused("its trial died of signal 6".to_owned());
        assert_eq!(judged(folder.path(), "a", "kill -ABRT $$"), died);
        assert_eq!(judged(folder.path(), "a", PROVEN), died);
        let hung = judge_within(Duration::from_millis(50), folder.path(), "b", &mut shell("exec sleep 600"));
        assert!(matches!(&hung, Verdict::Refused(why) if why.contains("did not end")), "{hung:?}");
        assert_eq!(judged(folder.path(), "b", PROVEN), hung);
    }

    #[test]
    fn a_trial_that_could_say_nothing_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let open = judged(folder.path(), "a", "echo no such module >&2; exit 1");
        assert_eq!(open, Verdict::Open("its trial answered nothing: no such module".to_owned()));
        assert_eq!(judged(folder.path(), "a", PROVEN), Verdict::Proven);
        for signal in ["HUP", "INT", "KILL", "TERM"] {
            let ended = judged(folder.path(), signal, &format!("kill -{signal} $$; sleep 5"));
            assert!(matches!(&ended, Verdict::Open(why) if why.contains("was ended by signal")), "{ended:?}");
            assert_eq!(judged(folder.path(), signal, PROVEN), Verdict::Proven);
        }
        let missing = judge(folder.path(), "b", &mut Command::new("/nowhere/python"));
        assert!(matches!(missing, Verdict::Open(_)), "{missing:?}");
    }

    #[test]
    fn a_few_builds_are_remembered_and_a_file_that_is_not_ours_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "no JSON").unwrap();
        for n in 0..MAX_REMEMBERED + 3 {
            judged(folder.path(), &n.to_string(), PROVEN);
        }
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!((entries.len(), &entries[0]["key"]), (MAX_REMEMBERED, &"3".into()));
    }

    #[test]
    fn an_outbox_that_cannot_be_written_to_remembers_nothing() {
        assert_eq!(judged(Path::new("/proc/nowhere"), "a", PROVEN), Verdict::Proven);
    }

    #[test]
    fn a_snapshot_differs_from_a_later_one_only_by_what_is_said() {
        let bytes: &[u8] = include_bytes!("../../snapshot/fixtures/oom_plain_2gib.pickle");
        let python = tidegauge_snapshot::read::open(bytes).unwrap();
        assert!(
            matches!(compare(bytes, bytes), Verdict::Refused(why) if why.contains("instead of one fewer"))
        );
        assert!(
            matches!(compare(b"no pickle", bytes), Verdict::Refused(why) if why.contains("cannot be read"))
        );

        // One event fewer in the native one, and nothing else.
        let mut native = python.clone();
        native.devices[0].events.end -= 1;
        assert_eq!(difference(&native, &python), None);
        // The later one has a mark on a device that was not used.
        let mut marked = python.clone();
        marked.devices.push(Device { ordinal: 1, events: 0..1, segments: 0..0 });
        assert_eq!(difference(&native, &marked), None);
        marked.devices[1].events.end = 2;
        assert_eq!(difference(&native, &marked).as_deref(), Some("1 devices instead of 2"));
        native.trace.size[1] += 1;
        assert_eq!(difference(&native, &python).as_deref(), Some("event 1 differs"));
        native.trace.size[1] -= 1;
        native.blocks.size[0] += 512;
        assert_eq!(difference(&native, &python).as_deref(), Some("segment 0 differs"));
    }
}
