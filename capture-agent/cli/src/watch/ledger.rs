//! What was sent, on disk, so that a second start sends nothing twice.
//!
//! A text file with a line of JSON per file that was dealt with, behind a line that says what it is. A line is added
//! when a snapshot was sent; at a start, and when more than half of the lines are out of date, the whole is written
//! beside and renamed. So it is complete at any moment, but for a last line that a kill cut short, and that one is
//! passed over: at worst its snapshot is sent again, and the server knows it.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::stamp::Stamp;

/// The most files that are remembered. When another comes, those that are no longer watched are forgotten; there are
/// at most half as many that are: see `MAX_FILES`.
const MAX_ENTRIES: usize = 2 * super::watcher::MAX_FILES;

/// The most that is read of a ledger, bytes: two lines for each entry, with paths as long as Linux lets them be. What
/// is behind is forgotten.
const MAX_BYTES: u64 = MAX_ENTRIES as u64 * 2 * 5000;

/// Lines that may be out of date, however few are not.
const MAX_IDLE_LINES: usize = 1000;

/// The first line.
const HEAD: &str = r#"{"tidegauge_watch":1}"#;

/// Files that were dealt with, and how.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    lines: File,
    n_lines: usize,
    entries: BTreeMap<PathBuf, Entry>,
    _lock: File,
}

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    #[serde(flatten)]
    pub(super) stamp: Stamp,
    /// BLAKE3 of the content, hex; empty when it was not sent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) digest: String,
    pub(super) fate: Fate,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fate {
    /// The server has it.
    Sent,
    /// It is no snapshot, or only a part of one, and that was said.
    Said,
}

#[derive(Serialize, Deserialize)]
struct Line {
    path: PathBuf,
    #[serde(flatten)]
    entry: Entry,
}

/// Why a ledger is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LedgerError {
    #[error("cannot keep what was sent in {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "another tidegauge watch keeps what it sent in {}; end it, or give this one a file of its own with --state",
        .0.display()
    )]
    InUse(PathBuf),
    #[error("{} is not a file in which tidegauge watch keeps what it sent; name another with --state", .0.display())]
    SomethingElse(PathBuf),
}

impl Ledger {
    /// Opens the ledger at `path`, made when there is none, and holds it until this is dropped.
    pub(super) fn open(path: &Path) -> Result<Self, LedgerError> {
        let failed = |source| LedgerError::Io { path: path.to_owned(), source };
        fs::create_dir_all(folder(path)).map_err(failed)?;
        let lock = with_ending(path, ".lock");
        let lock = File::options().write(true).create(true).truncate(false).open(lock).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LedgerError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let entries = match File::open(path) {
            Ok(file) => entries(file).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(BTreeMap::new()),
            Err(error) => return Err(failed(error)),
        };
        let entries = entries.ok_or_else(|| LedgerError::SomethingElse(path.to_owned()))?;
        let lines = written_anew(path, &entries).map_err(failed)?;
        Ok(Self { path: path.to_owned(), lines, n_lines: entries.len(), entries, _lock: lock })
    }

    /// What became of a file, if it still looks the same.
    pub(super) fn fate(&self, path: &Path, stamp: Stamp) -> Option<Fate> {
        self.entries.get(path).filter(|entry| entry.stamp == stamp).map(|entry| entry.fate)
    }

    /// Whether this content was sent from this path.
    pub(super) fn was_sent(&self, path: &Path, digest: &str) -> bool {
        self.entries.get(path).is_some_and(|entry| entry.fate == Fate::Sent && entry.digest == digest)
    }

    /// Remembers a file, in memory whatever the disk says. `is_watched` says which are worth keeping when there are
    /// too many.
    pub(super) fn remember(
        &mut self,
        path: &Path,
        entry: Entry,
        is_watched: &dyn Fn(&Path) -> bool,
    ) -> Result<(), LedgerError> {
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.retain(|path, _| is_watched(path));
        }
        let line = line(path, &entry);
        self.entries.insert(path.to_owned(), entry);
        self.write(line).map_err(|source| LedgerError::Io { path: self.path.clone(), source })
    }

    fn write(&mut self, line: Option<Vec<u8>>) -> io::Result<()> {
        let Some(line) = line else { return Ok(()) };
        self.n_lines += 1;
        if self.n_lines > 2 * self.entries.len() + MAX_IDLE_LINES {
            self.lines = written_anew(&self.path, &self.entries)?;
            self.n_lines = self.entries.len();
            return Ok(());
        }
        self.lines.write_all(&line)?;
        self.lines.sync_data()
    }
}

/// `None` when the file is something else. An empty one is as good as none.
fn entries(file: File) -> io::Result<Option<BTreeMap<PathBuf, Entry>>> {
    let mut reader = BufReader::new(file.take(MAX_BYTES));
    let mut entries = BTreeMap::new();
    let mut line = Vec::new();
    let head = reader.by_ref().take(HEAD.len() as u64 + 1).read_until(b'\n', &mut line)?;
    if head > 0 && line.trim_ascii_end() != HEAD.as_bytes() {
        return Ok(None);
    }
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(Some(entries));
        }
        // The later line about a file is the true one. One that cannot be read was cut by a kill.
        if let Ok(Line { path, entry }) = serde_json::from_slice(&line)
            && entries.len() < MAX_ENTRIES
        {
            entries.insert(path, entry);
        }
    }
}

/// Replaces the file with these entries and opens it for more.
fn written_anew(path: &Path, entries: &BTreeMap<PathBuf, Entry>) -> io::Result<File> {
    let mut beside = NamedTempFile::new_in(folder(path))?;
    let mut writer = BufWriter::new(&mut beside);
    writeln!(writer, "{HEAD}")?;
    for (path, entry) in entries {
        writer.write_all(&line(path, entry).unwrap_or_default())?;
    }
    writer.flush()?;
    drop(writer);
    beside.as_file().sync_all()?;
    beside.persist(path).map_err(|error| error.error)?;
    File::options().append(true).open(path)
}

/// `None` for a path that is no text, which JSON cannot hold: it is remembered until the program ends.
fn line(path: &Path, entry: &Entry) -> Option<Vec<u8>> {
    let line = Line { path: path.to_owned(), entry: entry.clone() };
    let mut json = serde_json::to_vec(&line).ok()?;
    json.push(b'\n');
    Some(json)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(n: u64) -> Stamp {
        Stamp { bytes: n, modified_ns: n }
    }

    fn sent(n: u64) -> Entry {
        Entry { stamp: stamp(n), digest: format!("{n:064x}"), fate: Fate::Sent }
    }

    fn remember(ledger: &mut Ledger, path: &str, entry: Entry) {
        ledger.remember(Path::new(path), entry, &|_| true).unwrap();
    }

    #[test]
    fn what_was_remembered_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/state.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        remember(&mut ledger, "/runs/a.pickle", sent(1));
        remember(&mut ledger, "/runs/b.pickle", Entry { fate: Fate::Said, ..sent(2) });
        remember(&mut ledger, "/runs/a.pickle", sent(3));
        drop(ledger);

        let ledger = Ledger::open(&path).unwrap();
        let a = Path::new("/runs/a.pickle");
        assert_eq!(ledger.fate(a, stamp(3)), Some(Fate::Sent));
        assert_eq!(ledger.fate(a, stamp(1)), None, "it was overwritten since");
        assert_eq!(ledger.fate(Path::new("/runs/b.pickle"), stamp(2)), Some(Fate::Said));
        assert!(ledger.was_sent(a, &sent(3).digest) && !ledger.was_sent(a, &sent(1).digest));
        assert!(!ledger.was_sent(Path::new("/runs/b.pickle"), &sent(2).digest));
    }

    #[test]
    fn a_ledger_cut_at_any_byte_opens_with_its_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        let names = ["/a.pickle", "/b.pickle", "/c.pickle"];
        for (name, n) in names.iter().zip(1..) {
            remember(&mut ledger, name, sent(n));
        }
        drop(ledger);
        let whole = fs::read(&path).unwrap();
        let head = HEAD.len() + 1;
        for cut in head..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut ledger = Ledger::open(&path).unwrap();
            // A line without its end is whole, too.
            let n_lines = whole[head..cut].split(|byte| *byte == b'\n').filter(|line| line.ends_with(b"}"));
            assert_eq!(ledger.entries.len(), n_lines.count(), "cut at {cut}");
            remember(&mut ledger, "/d.pickle", sent(4));
            drop(ledger);
            let known = Ledger::open(&path).unwrap().fate(Path::new("/d.pickle"), stamp(4));
            assert_eq!(known, Some(Fate::Sent), "cut at {cut}");
        }
    }

    #[test]
    fn a_file_that_is_no_ledger_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        for text in ["dear diary", r#"{"tidegauge_watch":2}"#] {
            fs::write(&path, text).unwrap();
            assert!(matches!(Ledger::open(&path), Err(LedgerError::SomethingElse(_))));
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn two_cannot_hold_one_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.jsonl");
        let ledger = Ledger::open(&path).unwrap();
        assert!(matches!(Ledger::open(&path), Err(LedgerError::InUse(_))));
        drop(ledger);
        assert!(Ledger::open(&path).is_ok());
    }

    #[test]
    fn lines_out_of_date_go_when_there_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        for n in 0..2500 {
            remember(&mut ledger, "/overwritten.pickle", sent(n));
        }
        let n_lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(n_lines <= MAX_IDLE_LINES + 4, "{n_lines} lines");
        drop(ledger);
        let ledger = Ledger::open(&path).unwrap();
        assert_eq!(ledger.fate(Path::new("/overwritten.pickle"), stamp(2499)), Some(Fate::Sent));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    }

    #[test]
    fn what_is_no_longer_watched_is_forgotten_when_there_is_too_much() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(&folder.path().join("state.jsonl")).unwrap();
        ledger.entries = (0..MAX_ENTRIES).map(|n| (PathBuf::from(format!("/{n}")), sent(1))).collect();
        let is_watched = |path: &Path| path == Path::new("/7");
        ledger.remember(Path::new("/new"), sent(2), &is_watched).unwrap();
        let left: Vec<_> = ledger.entries.keys().map(|path| path.display().to_string()).collect();
        assert_eq!(left, ["/7", "/new"]);
    }
}
