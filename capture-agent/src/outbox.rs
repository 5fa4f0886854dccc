//! Snapshots on disk that wait to be sent.
//!
//! What was captured is here before anything is sent, so a kill, a server that is away or a full queue loses
//! nothing. Each process has a folder of its own and holds a lock in it while it lives:
//!
//! ```text
//! <outbox>/<run>/<host>-<pid>/lock                             held by its process, free once that is dead
//!                             000001_rank3_step5.pickle.zst    the snapshot; there once it is whole
//!                             000001_rank3_step5.json          its sidecar; there before the snapshot is
//!                             .000001_rank3_step5.part         a snapshot being written
//! <outbox>/.rejected/…                                         what a server refused, with its sentence
//! <outbox>/take-now                                            asks for a snapshot: see [`crate::request`]
//! ```
//!
//! Files become visible by renaming, after their bytes are on the disk. Sending one twice is harmless: the
//! server knows its content.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegauge_api::Sidecar;
use tidegauge_snapshot::words::size;

use crate::redaction::{self, Redaction};

/// The most that all processes together keep in an outbox, bytes: 16 GiB. A snapshot that would pass it is not
/// written, and that is said. Processes that write at the same moment can pass it by what they are writing.
pub const DEFAULT_MAX_BYTES: u64 = 16 << 30;

/// Level 3: later levels win little on pickles, whose frames repeat, and cost much.
const ZSTD_LEVEL: i32 = 3;

/// Where refused snapshots go, below the outbox. No run can be named so: its folder would lose the dot.
const REJECTED: &str = ".rejected";
const LOCK: &str = "lock";
const SNAPSHOT_ENDING: &str = ".pickle.zst";

/// One process's folder in an outbox.
#[derive(Debug)]
pub struct Outbox {
    root: PathBuf,
    folder: Folder,
    max_bytes: u64,
    redaction: Option<Arc<Redaction>>,
    next: AtomicU64,
}

/// A process's folder, locked by whoever holds this.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

/// A snapshot that waits to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The compressed pickle.
    pub snapshot: PathBuf,
    /// Its size, bytes.
    pub bytes: u64,
}

/// A snapshot being written. Its bytes are compressed and digested on the way. Dropped before it is finished, it
/// leaves nothing behind.
pub struct Draft {
    name: String,
    folder: PathBuf,
    part: Part,
    encoder: zstd::Encoder<'static, Measured>,
    digest: blake3::Hasher,
    /// The whole pickle, where its paths are redacted before it is written; at most [`redaction::MAX_BYTES`].
    to_redact: Option<(Arc<Redaction>, Vec<u8>)>,
}

/// What became of the folders of processes that are gone.
#[derive(Debug)]
pub enum Found {
    /// Its process is gone; it is ours now.
    Abandoned(Folder),
    /// Its process lives and sends what is in it.
    InUse(PathBuf),
}

/// Why an outbox does not take a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// The disk said no.
    #[error("cannot write to the outbox {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Outbox {
    /// The folder of process `owner` ("host-pid") in run `run`, made and locked.
    ///
    /// # Errors
    /// When the folder cannot be made or locked.
    pub fn open(root: &Path, run: &str, owner: &str, max_bytes: u64) -> Result<Self, OutboxError> {
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let run = root.join(run_folder(run));
        // Containers may share a host name and a pid; a hundred of them on one outbox is nobody's cluster.
        let mut candidates = (1..=100).map(|n| match n {
            1 => run.join(file_name_from(owner)),
            n => run.join(format!("{}-{n}", file_name_from(owner))),
        });
        let failed = |path: &Path, source| OutboxError::Io { path: path.to_owned(), source };
        let folder = candidates
            .find_map(|path| Folder::lock(&path, true).map_err(|error| failed(&path, error)).transpose());
        match folder {
            Some(folder) => {
                let folder = folder?;
                let next = folder.items().iter().filter_map(Item::number).max().unwrap_or(0) + 1;
                Ok(Self { root, folder, max_bytes, redaction: None, next: AtomicU64::new(next) })
            }
            None => Err(failed(&run, io::Error::other("a hundred processes hold folders of this name"))),
        }
    }

    /// What is written from now on has its paths redacted.
    #[must_use]
    pub fn redacting(self, redaction: Option<Redaction>) -> Self {
        Self { redaction: redaction.map(Arc::new), ..self }
    }

    /// The whole outbox, for `tidegauge push --outbox`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What this process has still to send.
    pub fn items(&self) -> Vec<Item> {
        self.folder.items()
    }

    /// The folder of this process.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Leaves the outbox; the folder goes when nothing waits in it.
    pub fn tidy(self) {
        self.folder.tidy();
    }

    /// Begins a snapshot. Its file is named `name`, after a number that keeps snapshots in order.
    ///
    /// # Errors
    /// When the outbox is full or the disk says no.
    pub fn draft(&self, name: &str) -> Result<Draft, OutboxError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{number:06}_{}", file_name_from(name));
        let folder = self.folder.path.clone();
        let part = Part(folder.join(format!(".{name}.part")));
        let failed = |source| OutboxError::Io { path: part.0.clone(), source };
        let room = self.max_bytes.saturating_sub(bytes_below(&self.root));
        let file = Measured { file: File::create(&part.0).map_err(failed)?, room, max_bytes: self.max_bytes };
        let encoder = zstd::Encoder::new(file, ZSTD_LEVEL).map_err(failed)?;
        let to_redact = self.redaction.clone().map(|redaction| (redaction, Vec::new()));
        Ok(Draft { name, folder, part, encoder, digest: blake3::Hasher::new(), to_redact })
    }

    /// Folders of other processes of the same run, now gone. Those still alive are left to themselves.
    pub fn abandoned_in_run(&self) -> Vec<Folder> {
        let Some(run) = self.folder.path.parent() else { return Vec::new() };
        folders_in(run)
            .filter(|path| *path != self.folder.path)
            .filter_map(|path| Folder::lock(&path, false).ok().flatten())
            .collect()
    }
}

/// The name of a run's folder in an outbox.
pub fn run_folder(run: &str) -> String {
    file_name_from(run)
}

/// The folders of all processes in the outbox at `root`.
///
/// # Errors
/// When `root` cannot be listed.
pub fn folders(root: &Path) -> io::Result<Vec<Found>> {
    fs::read_dir(root)?;
    let mut found = Vec::new();
    for path in folders_in(root).filter(|path| !path.ends_with(REJECTED)).flat_map(|run| folders_in(&run)) {
        found.extend(match Folder::lock(&path, false)? {
            Some(folder) => Some(Found::Abandoned(folder)),
            None if path.join(LOCK).exists() => Some(Found::InUse(path)),
            None => None,
        });
    }
    Ok(found)
}

/// What is in an outbox, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Snapshots that wait to be sent.
    pub n_snapshots: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them whose process is gone.
    pub n_abandoned: u64,
    /// Processes that live.
    pub n_alive: u64,
    /// Snapshots that a server refused and that are kept aside.
    pub n_rejected: u64,
}

/// What is in the outbox at `root`.
///
/// # Errors
/// When `root` cannot be listed.
pub fn waiting(root: &Path) -> io::Result<Waiting> {
    let mut waiting = Waiting::default();
    for found in folders(root)? {
        let items = match &found {
            Found::Abandoned(folder) => folder.items(),
            Found::InUse(path) => items_in(path),
        };
        waiting.n_snapshots += items.len() as u64;
        waiting.bytes += items.iter().map(|item| item.bytes).sum::<u64>();
        match found {
            Found::Abandoned(_) => waiting.n_abandoned += items.len() as u64,
            Found::InUse(_) => waiting.n_alive += 1,
        }
    }
    let rejected = folders_in(&root.join(REJECTED)).map(|folder| items_in(&folder).len() as u64);
    waiting.n_rejected = rejected.sum();
    Ok(waiting)
}

impl Folder {
    /// `None` when another process holds it, or when it is no process's folder and `make` is not asked for.
    fn lock(path: &Path, make: bool) -> io::Result<Option<Self>> {
        if make {
            fs::create_dir_all(path)?;
        }
        let lock = match File::options().write(true).create(make).truncate(false).open(path.join(LOCK)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !make => return Ok(None),
            Err(error) => return Err(error),
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self { path: path.to_owned(), _lock: lock })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The snapshots in it, oldest first.
    pub fn items(&self) -> Vec<Item> {
        items_in(&self.path)
    }

    /// Moves a snapshot that a server refused out of the way, with its sentence beside it.
    ///
    /// # Errors
    /// When the files cannot be moved.
    pub fn reject(&self, item: &Item, sentence: &str) -> io::Result<PathBuf> {
        let mut parts = self.path.iter().rev().take(2).map(|part| part.to_string_lossy());
        let (owner, run) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let root = self.path.ancestors().nth(2).unwrap_or(&self.path);
        let rejected = root.join(REJECTED).join(format!("{run}-{owner}"));
        fs::create_dir_all(&rejected)?;
        let place = |path: &Path| rejected.join(path.file_name().unwrap_or_default());
        let sidecar = item.sidecar_path();
        match fs::rename(&sidecar, place(&sidecar)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let moved = place(&item.snapshot);
        fs::rename(&item.snapshot, &moved)?;
        fs::write(moved.with_extension("refused.txt"), format!("{sentence}\n"))?;
        Ok(moved)
    }

    /// Removes the folder when nothing waits in it any more, with what a killed process left half written.
    pub fn tidy(self) {
        if !self.items().is_empty() {
            return;
        }
        // What cannot be removed costs some bytes, and the next one tries again.
        for path in files_in(&self.path)
            .filter(|path| path.extension().is_some_and(|end| end == "part" || end == "json"))
        {
            fs::remove_file(path).ok();
        }
        fs::remove_file(self.path.join(LOCK)).ok();
        fs::remove_dir(&self.path).ok();
        if let Some(run) = self.path.parent() {
            fs::remove_dir(run).ok();
        }
    }
}

impl Item {
    /// The sidecar beside the snapshot, if there is one that can be read.
    pub fn sidecar(&self) -> Option<Sidecar> {
        serde_json::from_slice(&fs::read(self.sidecar_path()).ok()?).ok()
    }

    /// The name of the snapshot's file.
    pub fn name(&self) -> String {
        self.snapshot.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Removes the snapshot, now that the server has it.
    ///
    /// # Errors
    /// When a file cannot be removed; one that is gone already is fine.
    pub fn remove(&self) -> io::Result<()> {
        for path in [&self.snapshot, &self.sidecar_path()] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn number(&self) -> Option<u64> {
        self.name().split('_').next()?.parse().ok()
    }

    fn sidecar_path(&self) -> PathBuf {
        let stem = self.name().strip_suffix(SNAPSHOT_ENDING).map(str::to_owned).unwrap_or_default();
        self.snapshot.with_file_name(format!("{stem}.json"))
    }
}

impl Draft {
    /// Makes the snapshot visible, with its sidecar, once both are on the disk. The sidecar gets the content's
    /// digest and the file's name.
    ///
    /// # Errors
    /// When the disk says no; nothing is visible then.
    pub fn finish(mut self, mut sidecar: Sidecar) -> Result<Item, OutboxError> {
        let snapshot = self.folder.join(format!("{}{SNAPSHOT_ENDING}", self.name));
        let failed = |source| OutboxError::Io { path: snapshot.clone(), source };
        if let Some((redaction, pickle)) = self.to_redact.take() {
            redaction.rewrite(&pickle, &mut self).map_err(failed)?;
            sidecar.redaction = Some(redaction.describe());
        }
        let finish = || -> io::Result<u64> {
            let file = self.encoder.finish()?.file;
            file.sync_all()?;
            sidecar.content_digest = Some(self.digest.finalize().to_hex().to_string());
            sidecar.file_name = Some(format!("{}{SNAPSHOT_ENDING}", self.name));
            let sidecar_part = self.folder.join(format!(".{}.json.part", self.name));
            let mut sidecar_file = File::create(&sidecar_part)?;
            sidecar_file.write_all(&serde_json::to_vec_pretty(&sidecar)?)?;
            sidecar_file.sync_all()?;
            fs::rename(&sidecar_part, self.folder.join(format!("{}.json", self.name)))?;
            fs::rename(&self.part.0, &snapshot)?;
            File::open(&self.folder)?.sync_all()?;
            Ok(file.metadata()?.len())
        };
        let bytes = finish().map_err(failed)?;
        Ok(Item { snapshot, bytes })
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some((_, pickle)) = &mut self.to_redact {
            if pickle.len() + bytes.len() > redaction::MAX_BYTES {
                let limit = size(redaction::MAX_BYTES as u64);
                return Err(io::Error::other(format!(
                    "its paths cannot be redacted, so it is not written: it is larger than {limit}; lower max_entries"
                )));
            }
            pickle.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        self.encoder.write_all(bytes)?;
        self.digest.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.flush()
    }
}

/// A file that goes with its owner, unless it was renamed.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        // What cannot be removed now is removed with the folder.
        fs::remove_file(&self.0).ok();
    }
}

/// A file that keeps to the outbox's bound.
#[derive(Debug)]
struct Measured {
    file: File,
    room: u64,
    max_bytes: u64,
}

impl Write for Measured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(room) = self.room.checked_sub(bytes.len() as u64) else {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "the outbox is full ({} MiB): send what is in it, or raise outbox_bytes",
                    self.max_bytes >> 20
                ),
            ));
        };
        self.room = room;
        self.file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A name that any file system takes and nobody mistakes for a path.
fn file_name_from(text: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "-_.+=".contains(c) { c } else { '_' };
    let name: String = text.chars().map(plain).take(120).collect();
    match name.trim_matches('.') {
        "" => "_".to_owned(),
        name => name.to_owned(),
    }
}

fn entries_in(folder: &Path) -> impl Iterator<Item = (PathBuf, fs::FileType)> + use<> {
    let entries = fs::read_dir(folder).ok().into_iter().flatten();
    entries.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.path(), entry.file_type().ok()?))
    })
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries_in(folder).filter(|(_, kind)| kind.is_dir()).map(|(path, _)| path)
}

fn files_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries_in(folder).filter(|(_, kind)| kind.is_file()).map(|(path, _)| path)
}

/// The snapshots in a process's folder, oldest first.
fn items_in(folder: &Path) -> Vec<Item> {
    let mut items: Vec<_> = files_in(folder)
        .filter(|path| path.to_str().is_some_and(|path| path.ends_with(SNAPSHOT_ENDING)))
        .filter_map(|snapshot| {
            let bytes = fs::metadata(&snapshot).ok()?.len();
            Some(Item { snapshot, bytes })
        })
        .collect();
    items.sort_by(|a, b| a.snapshot.cmp(&b.snapshot));
    items
}

fn bytes_below(folder: &Path) -> u64 {
    let sizes = files_in(folder).filter_map(|path| fs::metadata(path).ok()).map(|metadata| metadata.len());
    sizes.sum::<u64>() + folders_in(folder).map(|folder| bytes_below(&folder)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use tidegauge_api::Place;

    use super::*;

    fn written(outbox: &Outbox, name: &str, bytes: &[u8]) -> Result<Item, OutboxError> {
        let mut draft = outbox.draft(name)?;
        draft.write_all(bytes).map_err(|source| OutboxError::Io { path: name.into(), source })?;
        draft.finish(Sidecar { place: Place { rank: Some(3), ..Place::default() }, ..Sidecar::default() })
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_snapshot_appears_whole_with_its_sidecar_and_goes_when_it_was_sent() {
        let root = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(root.path(), "gpt", "host-7", DEFAULT_MAX_BYTES).unwrap();
        let mut draft = outbox.draft("rank3_step5").unwrap();
        draft.write_all(b"a pickle").unwrap();
        assert_eq!(outbox.items(), []);

        let item = draft.finish(Sidecar::default()).unwrap();
        assert_eq!(outbox.items(), std::slice::from_ref(&item));
        assert_eq!(zstd::decode_all(File::open(&item.snapshot).unwrap()).unwrap(), b"a pickle");
        let sidecar = item.sidecar().unwrap();
        assert_eq!(sidecar.content_digest.unwrap(), blake3::hash(b"a pickle").to_hex().as_str());
        assert_eq!(sidecar.file_name.as_deref(), Some("000001_rank3_step5.pickle.zst"));

        item.remove().unwrap();
        assert_eq!(names(outbox.folder.path()), ["lock"]);
    }

    #[test]
    fn a_folder_is_left_alone_while_its_process_lives_and_found_when_it_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(root.path(), "gpt", "host-7", DEFAULT_MAX_BYTES).unwrap();
        let item = written(&outbox, "rank3_step5", b"bytes").unwrap();
        fs::write(outbox.folder.path().join(".000002_rank3_step6.part"), b"half").unwrap();
        let other = Outbox::open(root.path(), "gpt", "host-8", DEFAULT_MAX_BYTES).unwrap();
        assert!(other.abandoned_in_run().is_empty());
        assert!(folders(root.path()).unwrap().iter().all(|found| matches!(found, Found::InUse(_))));

        drop(outbox);
        let [folder] = other.abandoned_in_run().try_into().unwrap();
        assert_eq!(folder.items(), std::slice::from_ref(&item));
        item.remove().unwrap();
        folder.tidy();
        assert_eq!(names(&root.path().join("gpt")), ["host-8"]);
    }

    #[test]
    fn what_waits_is_counted_by_whether_its_process_lives() {
        let root = tempfile::tempdir().unwrap();
        let count = || waiting(root.path()).unwrap();
        assert_eq!(count(), Waiting::default());
        let dead = Outbox::open(root.path(), "gpt", "host-7", DEFAULT_MAX_BYTES).unwrap();
        let items = ["rank0_step1", "rank0_step2"].map(|name| written(&dead, name, b"bytes").unwrap());
        dead.folder.reject(&items[0], "too large").unwrap();
        drop(dead);
        let alive = Outbox::open(root.path(), "bert", "host-8", DEFAULT_MAX_BYTES).unwrap();
        let last = written(&alive, "rank1_step1", b"bytes").unwrap();
        let (n_snapshots, bytes) = (2, items[1].bytes + last.bytes);
        assert_eq!(count(), Waiting { n_snapshots, bytes, n_abandoned: 1, n_alive: 1, n_rejected: 1 });
        assert!(waiting(&root.path().join("missing")).is_err());
    }

    #[test]
    fn two_processes_of_one_name_get_two_folders() {
        let root = tempfile::tempdir().unwrap();
        let _first = Outbox::open(root.path(), "gpt", "pod-1", DEFAULT_MAX_BYTES).unwrap();
        let second = Outbox::open(root.path(), "gpt", "pod-1", DEFAULT_MAX_BYTES).unwrap();
        assert!(second.folder.path().ends_with("pod-1-2"));
    }

    #[test]
    fn a_full_outbox_takes_nothing_and_says_so() {
        let root = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(root.path(), "gpt", "host-7", 40).unwrap();
        let mut draft = outbox.draft("rank3_step5").unwrap();
        let noise: Vec<u8> = blake3::hash(b"incompressible").as_bytes().to_vec();
        draft.write_all(&noise).unwrap();
        draft.write_all(blake3::hash(b"more").as_bytes()).unwrap();
        let error = draft.finish(Sidecar::default()).unwrap_err().to_string();
        assert!(error.contains("the outbox is full"), "{error}");
        assert_eq!(outbox.items(), []);
    }

    #[test]
    fn a_refused_snapshot_is_kept_aside_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(root.path(), "gpt", "host-7", DEFAULT_MAX_BYTES).unwrap();
        let item = written(&outbox, "rank3_step5", b"bytes").unwrap();
        outbox.folder.reject(&item, "too large").unwrap();
        assert_eq!(outbox.items(), []);
        assert_eq!(
            names(&root.path().join(".rejected/gpt-host-7")),
            [
                "000001_rank3_step5.json",
                "000001_rank3_step5.pickle.refused.txt",
                "000001_rank3_step5.pickle.zst"
            ]
        );
    }

    #[test]
    fn paths_are_redacted_before_anything_is_on_the_disk() {
        let pickle = include_bytes!("../../snapshot/fixtures/oom_plain_2gib.pickle");
        let root = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(root.path(), "gpt", "host-7", DEFAULT_MAX_BYTES).unwrap();
        let outbox = outbox.redacting(Redaction::new("", redaction::Paths::Drop));
        let item = written(&outbox, "rank3_step5", pickle).unwrap();
        let content = zstd::decode_all(File::open(&item.snapshot).unwrap()).unwrap();
        let snapshot = tidegauge_snapshot::read::open(&content[..]).unwrap();
        assert!(snapshot.stacks.all_frames().iter().all(|frame| {
            let path = snapshot.strings.text(frame.filename);
            path.is_empty() || path.starts_with(['<', '?'])
        }));
        let sidecar = item.sidecar().unwrap();
        assert_eq!(sidecar.content_digest.unwrap(), blake3::hash(&content).to_hex().as_str());
        assert_eq!(sidecar.redaction.as_deref(), Some("paths dropped"));

        let error = written(&outbox, "rank3_step6", b"no pickle").unwrap_err().to_string();
        assert!(error.contains("cannot be redacted, so it is not written"), "{error}");
        assert_eq!(outbox.items(), [item]);
    }

    #[test]
    fn names_cannot_leave_the_outbox() {
        assert_eq!(file_name_from("../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(file_name_from(".."), "_");
        assert_eq!(file_name_from("GPT small, 8×H200"), "GPT_small__8_H200");
    }
}
