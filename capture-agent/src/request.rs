//! Asking trainings that run for a snapshot: the file `take-now` in their outbox.
//!
//! The file is a bell, not a queue. Whoever asks puts a new one in its place; each process notices that it is
//! another than before, and nobody removes it, so that all ranks on a shared disk see the same one. A process
//! that starts later does not answer what was asked before it.
//!
//! A disk may be far away and slow, and training never waits for one: a thread looks at the file, once a second,
//! and training reads one flag.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

/// The file's name in an outbox.
pub const FILE: &str = "take-now";

/// How often each process looks. A thousand ranks on one disk are then a thousand small questions a second.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The most that is read of the file, bytes. It holds the name of a run; what is longer is not ours, and is for
/// everyone as an empty file is.
const MAX_BYTES: u64 = 4096;

/// Asks the processes that record with the outbox at `root`: those of `run`, or all. Any file of this name does;
/// `touch` asks all.
///
/// # Errors
/// When the file cannot be written.
pub fn ask(root: &Path, run: Option<&str>) -> io::Result<PathBuf> {
    let path = root.join(FILE);
    let part = root.join(format!(".{FILE}-{}.part", std::process::id()));
    let write = || {
        File::create(&part)?.write_all(format!("{}\n", json!({ "run": run })).as_bytes())?;
        fs::rename(&part, &path)
    };
    write().inspect_err(|_| {
        // The error is told; what cannot be removed either is a few bytes.
        fs::remove_file(&part).ok();
    })?;
    Ok(path)
}

/// Looks whether somebody asks. Dropped, its thread ends by itself.
#[derive(Debug)]
pub struct Lookout {
    shared: Arc<Shared>,
    thread: Thread,
}

/// Without a lock: a forked child inherits locks as they stood, and nobody who would open them.
#[derive(Debug, Default)]
struct Shared {
    is_asked: AtomicBool,
    is_over: AtomicBool,
}

/// What tells one request from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    modified: SystemTime,
    len: u64,
}

impl Lookout {
    /// Begins to look, on behalf of a process of `run`. What stands in the outbox at `root` already was asked of
    /// others.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(root: &Path, run: &str) -> io::Result<Self> {
        Self::start_looking(root, run, LOOK_EVERY)
    }

    fn start_looking(root: &Path, run: &str, every: Duration) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (path, run, seen) = (root.join(FILE), run.to_owned(), mark(&root.join(FILE)));
        let looking = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("tidegauge-look".to_owned())
            .spawn(move || look(&looking, &path, &run, seen, every))?;
        Ok(Self { shared, thread: thread.thread().clone() })
    }

    /// Whether a snapshot is asked for that was not taken yet.
    pub fn is_asked(&self) -> bool {
        self.shared.is_asked.load(Ordering::Relaxed)
    }

    /// The snapshot that was asked for is taken.
    pub fn is_done(&self) {
        self.shared.is_asked.store(false, Ordering::Relaxed);
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Not waited for: it may be held up by the disk.
        self.thread.unpark();
    }
}

fn look(shared: &Shared, path: &Path, run: &str, mut seen: Option<Mark>, every: Duration) {
    loop {
        // May end early for no reason: one look more.
        thread::park_timeout(every);
        if shared.is_over.load(Ordering::Relaxed) {
            return;
        }
        let now = mark(path);
        if now.is_some() && now != seen && is_for(path, run) {
            shared.is_asked.store(true, Ordering::Relaxed);
        }
        seen = now;
    }
}

fn mark(path: &Path) -> Option<Mark> {
    let metadata = fs::metadata(path).ok()?;
    Some(Mark { modified: metadata.modified().ok()?, len: metadata.len() })
}

/// A file that names no run, or cannot be read, is for everyone: a snapshot too many is better than none.
fn is_for(path: &Path, run: &str) -> bool {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    let asked = read.ok().and_then(|_| serde_json::from_str::<Value>(&text).ok());
    asked.as_ref().and_then(|asked| asked.get("run")?.as_str()).is_none_or(|asked| asked == run)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tempfile::TempDir;

    use super::*;

    const OFTEN: Duration = Duration::from_millis(2);

    fn lookout(root: &TempDir, run: &str) -> Lookout {
        Lookout::start_looking(root.path(), run, OFTEN).unwrap()
    }

    fn is_asked_soon(lookout: &Lookout) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !lookout.is_asked() && Instant::now() < deadline {
            thread::sleep(OFTEN);
        }
        lookout.is_asked()
    }

    #[test]
    fn one_request_reaches_every_process_once() {
        let root = TempDir::new().unwrap();
        let ranks: Vec<_> = (0..64).map(|_| lookout(&root, "gpt")).collect();
        assert!(ranks.iter().all(|rank| !rank.is_asked()));
        ask(root.path(), None).unwrap();
        assert!(ranks.iter().all(is_asked_soon));
        ranks.iter().for_each(Lookout::is_done);
        thread::sleep(20 * OFTEN);
        assert!(ranks.iter().all(|rank| !rank.is_asked()));
        ask(root.path(), None).unwrap();
        assert!(ranks.iter().all(is_asked_soon));
    }

    #[test]
    fn what_was_asked_before_a_process_began_is_not_for_it() {
        let root = TempDir::new().unwrap();
        ask(root.path(), None).unwrap();
        let late = lookout(&root, "gpt");
        thread::sleep(20 * OFTEN);
        assert!(!late.is_asked());
    }

    #[test]
    fn a_request_can_name_a_run_and_an_empty_file_asks_all() {
        let root = TempDir::new().unwrap();
        let (gpt, bert) = (lookout(&root, "gpt"), lookout(&root, "bert"));
        ask(root.path(), Some("bert")).unwrap();
        assert!(is_asked_soon(&bert) && !gpt.is_asked());
        bert.is_done();
        fs::write(root.path().join(FILE), "").unwrap();
        assert!(is_asked_soon(&bert) && is_asked_soon(&gpt));
    }

    #[test]
    fn its_thread_ends_with_it() {
        let root = TempDir::new().unwrap();
        let lookout = Lookout::start(root.path(), "gpt").unwrap();
        let shared = Arc::downgrade(&lookout.shared);
        let started = Instant::now();
        drop(lookout);
        while shared.upgrade().is_some() {
            assert!(started.elapsed() < Duration::from_secs(20), "it looks for ever");
            thread::sleep(OFTEN);
        }
    }

    #[test]
    fn asking_leaves_one_file_and_says_where_it_could_not() {
        let root = TempDir::new().unwrap();
        for _ in 0..3 {
            assert_eq!(ask(root.path(), Some("gpt")).unwrap(), root.path().join(FILE));
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        assert!(ask(&root.path().join("missing"), None).is_err());
    }
}
