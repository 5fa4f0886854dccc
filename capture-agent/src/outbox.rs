//! Snapshots on disk that wait to be sent.
//!
//! What was captured is here before anything is sent, so a kill, a server that is away or a full queue loses
//! nothing. Each process has a folder of its own and holds a lock in it while it lives:
//!
//! ```text
//! <outbox>/<run>/<host>-<pid>/lock                             held by its process, free once that is dead
//!                             handed-over                      there if others shall send; held by who does
//!                             000001_rank3_step5.pickle.zst    the snapshot; there once it is whole
//!                             000001_rank3_step5.json          its sidecar; there before the snapshot is
//!                             000001_rank3_step5.upload        where a cut upload of it goes on
//!                             .000001_rank3_step5.part         a snapshot being written
//! <outbox>/.rejected/…                                         what a server refused, with its sentence
//! <outbox>/take-now                                            asks for a snapshot: see [`crate::request`]
//! ```
//!
//! Files become visible by renaming, after their bytes are on the disk. Sending one twice is harmless: the
//! server knows its content.
//!
//! The outbox keeps to its [`Room`]. A snapshot that finds none is given up, whole; only a [`Worth::Precious`] one
//! takes the place of planned ones. What is given up is counted and can be told: see [`Losses`].

use std::{
    collections::VecDeque,
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tidegauge_api::{Place, Sidecar};
use tidegauge_snapshot::words::size;

use crate::{
    parts::Bookmark,
    redaction::{self, Redaction},
    settings::SentBy,
};

/// The most that all processes together keep in an outbox, bytes: 16 GiB. A snapshot that would pass it is given up,
/// or takes the place of others, and that is said. Several processes can pass it by what they write within a minute.
pub const DEFAULT_MAX_BYTES: u64 = 16 << 30;

/// What an outbox leaves free on its disk, bytes: 1 GiB. Training writes its own files there.
pub const DEFAULT_MIN_FREE_BYTES: u64 = 1 << 30;

/// Losses that are kept one by one until somebody tells them; of older ones only the number is known.
const MAX_LOSSES: usize = 256;

/// What other processes keep is counted anew after this long, or when there seems to be no room. A thousand ranks that
/// count each other's files on one disk at each snapshot would be its greatest load.
const COUNT_OTHERS_EVERY: Duration = Duration::from_secs(60);

/// After so many bytes of a snapshot the room is looked at again: others write, too.
const LOOK_AGAIN_AFTER: u64 = 16 << 20;

/// Level 3: later levels win little on pickles, whose frames repeat, and cost much.
const ZSTD_LEVEL: i32 = 3;

/// Where refused snapshots go, below the outbox. No run can be named so: its folder would lose the dot.
const REJECTED: &str = ".rejected";
const LOCK: &str = "lock";
const HANDED_OVER: &str = "handed-over";
const SNAPSHOT_ENDING: &str = ".pickle.zst";

/// How much an outbox may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The most that all processes together keep in it, bytes.
    pub max_bytes: u64,
    /// What stays free on its disk, bytes.
    pub min_free_bytes: u64,
}

/// That many bytes, whatever the disk has.
impl From<u64> for Room {
    fn from(max_bytes: u64) -> Self {
        Self { max_bytes, min_free_bytes: 0 }
    }
}

/// What a snapshot is worth when there is no room for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// One of many, as the plan or growth wants them: gives way to a precious one.
    Planned,
    /// Somebody asked for it: neither gives way nor takes a place.
    Asked,
    /// Nobody can take it again: memory ran out, or the process ended.
    Precious,
}

impl Worth {
    /// By the reason for which it was taken.
    pub fn of(reason: Option<&str>) -> Self {
        match reason {
            None | Some("step" | "growth") => Self::Planned,
            Some("oom" | "exception" | "sigterm" | "exit" | "final") => Self::Precious,
            Some(_) => Self::Asked,
        }
    }
}

/// A snapshot that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Where it would have belonged.
    pub place: Place,
    /// What became of it, in words.
    pub why: String,
}

/// The snapshots that a process gave up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Losses {
    /// How many, since its beginning.
    pub n: u64,
    /// Those of them that were not told yet, oldest first; the latest [`MAX_LOSSES`].
    pub untold: VecDeque<Loss>,
}

/// One process's folder in an outbox.
#[derive(Debug)]
pub struct Outbox {
    folder: Folder,
    shelf: Arc<Shelf>,
    redaction: Option<Arc<Redaction>>,
    next: AtomicU64,
}

/// What snapshots being written need of their outbox.
#[derive(Debug)]
struct Shelf {
    root: PathBuf,
    folder: PathBuf,
    room: Room,
    losses: Mutex<Losses>,
    /// What others kept here, bytes, when that was counted last.
    others: Mutex<Option<(Instant, u64)>>,
    /// The snapshot that is on its way to the server. It does not give way any more.
    on_its_way: Mutex<Option<PathBuf>>,
}

/// A process's folder, locked by whoever holds this.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _locks: Vec<File>,
    /// Its process lives and goes on writing; we only send.
    is_alive: bool,
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
    /// Its process lives and leaves the sending to others; that is us now.
    HandedOver(Folder),
    /// Its process lives and sends what is in it, or somebody else does.
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
    pub fn open(root: &Path, run: &str, owner: &str, room: impl Into<Room>) -> Result<Self, OutboxError> {
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let run = root.join(run_folder(run));
        // Containers may share a host name and a pid; a hundred of them on one outbox is nobody's cluster.
        let mut candidates = (1..=100).map(|n| match n {
            1 => run.join(file_name_from(owner)),
            n => run.join(format!("{}-{n}", file_name_from(owner))),
        });
        let failed = |path: &Path, source| OutboxError::Io { path: path.to_owned(), source };
        let folder =
            candidates.find_map(|path| Folder::make(&path).map_err(|error| failed(&path, error)).transpose());
        let Some(folder) = folder.transpose()? else {
            return Err(failed(&run, io::Error::other("a hundred processes hold folders of this name")));
        };
        let next = folder.items().iter().filter_map(Item::number).max().unwrap_or(0) + 1;
        let shelf = Shelf {
            root,
            folder: folder.path.clone(),
            room: room.into(),
            losses: Mutex::default(),
            others: Mutex::default(),
            on_its_way: Mutex::default(),
        };
        Ok(Self { folder, shelf: Arc::new(shelf), redaction: None, next: AtomicU64::new(next) })
    }

    /// Leaves the sending to others, as [`Found::HandedOver`] tells them, or does not.
    ///
    /// # Errors
    /// When the disk says no.
    pub fn hand_over_to(&self, sent_by: SentBy) -> Result<(), OutboxError> {
        if sent_by == SentBy::Itself {
            return Ok(());
        }
        let path = self.folder.path.join(HANDED_OVER);
        File::create(&path).map(drop).map_err(|source| OutboxError::Io { path, source })
    }

    /// What is written from now on has its paths redacted.
    #[must_use]
    pub fn redacting(self, redaction: Option<Redaction>) -> Self {
        Self { redaction: redaction.map(Arc::new), ..self }
    }

    /// The whole outbox, for `tidegauge push --outbox`.
    pub fn root(&self) -> &Path {
        &self.shelf.root
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

    /// This one is on its way to the server, and none after it.
    pub(crate) fn is_on_its_way(&self, item: Option<&Item>) {
        *lock(&self.shelf.on_its_way) = item.map(|item| item.snapshot.clone());
    }

    /// A snapshot is given up, or was before it came here.
    pub fn lose(&self, place: &Place, why: &str) {
        self.shelf.lose(place, why);
    }

    /// How many snapshots were given up so far.
    pub fn n_lost(&self) -> u64 {
        lock(&self.shelf.losses).n
    }

    /// The snapshots that were given up, for who tells the server of them. Each is given once.
    pub fn take_losses(&self) -> Losses {
        let mut losses = lock(&self.shelf.losses);
        Losses { n: losses.n, untold: std::mem::take(&mut losses.untold) }
    }

    /// Begins a planned snapshot. Its file is named `name`, after a number that keeps snapshots in order.
    ///
    /// # Errors
    /// When the outbox is full or the disk says no.
    pub fn draft(&self, name: &str) -> Result<Draft, OutboxError> {
        self.draft_worth(Worth::Planned, name)
    }

    /// Begins a snapshot that is worth something.
    ///
    /// # Errors
    /// When the outbox is full or the disk says no.
    pub fn draft_worth(&self, worth: Worth, name: &str) -> Result<Draft, OutboxError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{number:06}_{}", file_name_from(name));
        let folder = self.folder.path.clone();
        let part = Part(folder.join(format!(".{name}.part")));
        let failed = |source| OutboxError::Io { path: part.0.clone(), source };
        let file = Measured::create(&part.0, worth, Arc::clone(&self.shelf)).map_err(failed)?;
        let encoder = zstd::Encoder::new(file, ZSTD_LEVEL).map_err(failed)?;
        let to_redact = self.redaction.clone().map(|redaction| (redaction, Vec::new()));
        Ok(Draft { name, folder, part, encoder, digest: blake3::Hasher::new(), to_redact })
    }

    /// Folders of other processes of the same run, now gone. Those still alive are left to themselves.
    pub fn abandoned_in_run(&self) -> Vec<Folder> {
        let Some(run) = self.folder.path.parent() else { return Vec::new() };
        folders_in(run)
            .filter(|path| *path != self.folder.path)
            .filter_map(|path| Folder::adopt(&path).ok().flatten())
            .collect()
    }
}

impl Shelf {
    fn lose(&self, place: &Place, why: &str) {
        let mut losses = lock(&self.losses);
        losses.n += 1;
        if losses.untold.len() == MAX_LOSSES {
            losses.untold.pop_front();
        }
        losses.untold.push_back(Loss { place: place.clone(), why: why.to_owned() });
    }

    /// Bytes that may still be written; `wanted` decides how exactly that has to be known.
    fn bytes_left(&self, wanted: u64) -> u64 {
        match self.bytes_left_beside(self.others(COUNT_OTHERS_EVERY)) {
            left if left < wanted => self.bytes_left_beside(self.others(Duration::ZERO)),
            left => left,
        }
    }

    /// What others keep here, counted at most so long ago.
    fn others(&self, at_most: Duration) -> u64 {
        let mut others = lock(&self.others);
        match *others {
            Some((counted, bytes)) if counted.elapsed() < at_most => bytes,
            _ => {
                let bytes = bytes_below(&self.root).saturating_sub(bytes_below(&self.folder));
                *others = Some((Instant::now(), bytes));
                bytes
            }
        }
    }

    fn bytes_left_beside(&self, others: u64) -> u64 {
        let kept = others.saturating_add(bytes_below(&self.folder));
        let left = self.room.max_bytes.saturating_sub(kept);
        match (self.room.min_free_bytes, fs4::available_space(&self.folder)) {
            // A disk that does not tell its free space, or need not keep any, will tell when it is full.
            (0, _) | (_, Err(_)) => left,
            (min_free_bytes, Ok(free)) => left.min(free.saturating_sub(min_free_bytes)),
        }
    }

    /// Gives up the oldest planned snapshot of this process. Whether there was one.
    fn make_way(&self) -> bool {
        let on_its_way = lock(&self.on_its_way).clone();
        let waiting =
            items_in(&self.folder).into_iter().filter(|item| Some(&item.snapshot) != on_its_way.as_ref());
        for item in waiting {
            let place = item.sidecar().map(|sidecar| sidecar.place);
            let reason = place.as_ref().and_then(|place| place.reason.as_deref());
            if Worth::of(reason) == Worth::Planned && item.remove().is_ok() {
                self.lose(&place.unwrap_or_default(), "it gave way to one that cannot be taken again");
                return true;
            }
        }
        false
    }

    fn is_full(&self) -> io::Error {
        let Room { max_bytes, min_free_bytes } = self.room;
        io::Error::new(
            io::ErrorKind::StorageFull,
            format!(
                "the outbox is full (at most {}, with {} left free on its disk): send what is in it, or raise \
                 outbox_bytes",
                size(max_bytes),
                size(min_free_bytes)
            ),
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        found.extend(match Folder::adopt(&path)? {
            Some(folder) => Some(Found::Abandoned(folder)),
            None => match Folder::take_over(&path)? {
                Some(folder) => Some(Found::HandedOver(folder)),
                None => path.join(LOCK).exists().then_some(Found::InUse(path)),
            },
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
            Found::Abandoned(folder) | Found::HandedOver(folder) => folder.items(),
            Found::InUse(path) => items_in(path),
        };
        waiting.n_snapshots += items.len() as u64;
        waiting.bytes += items.iter().map(|item| item.bytes).sum::<u64>();
        match found {
            Found::Abandoned(_) => waiting.n_abandoned += items.len() as u64,
            Found::HandedOver(_) | Found::InUse(_) => waiting.n_alive += 1,
        }
    }
    let rejected = folders_in(&root.join(REJECTED)).map(|folder| items_in(&folder).len() as u64);
    waiting.n_rejected = rejected.sum();
    Ok(waiting)
}

impl Folder {
    /// A process's own. `None` when another one holds it.
    fn make(path: &Path) -> io::Result<Option<Self>> {
        // Whoever tidied it away in between leaves it to us to make it again.
        for _ in 0..MAX_MAKES {
            match fs::create_dir_all(path) {
                // It was there when it was made, and gone when it was looked at; or one above it was.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound)
                        && !path.is_file() =>
                {
                    continue;
                }
                made => made?,
            }
            let lock = path.join(LOCK);
            let file = match File::options().write(true).create(true).truncate(false).open(&lock) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            match held(file, &lock)? {
                Held::Ours(file) => {
                    return Ok(Some(Self { path: path.to_owned(), _locks: vec![file], is_alive: false }));
                }
                Held::Theirs => return Ok(None),
                Held::Gone => {}
            }
        }
        Err(io::Error::other("others remove it as often as it is made"))
    }

    /// That of a process that is gone. `None` when somebody holds it, or it is no process's folder.
    fn adopt(path: &Path) -> io::Result<Option<Self>> {
        let Some(lock) = hold(&path.join(LOCK))? else { return Ok(None) };
        // Whoever sends on its behalf finishes first.
        let mut locks = vec![lock];
        let handed_over = path.join(HANDED_OVER);
        match hold(&handed_over)? {
            Some(lock) => locks.push(lock),
            None if handed_over.exists() => return Ok(None),
            None => {}
        }
        Ok(Some(Self { path: path.to_owned(), _locks: locks, is_alive: false }))
    }

    /// That of a process that lives and leaves the sending to others. `None` when it does not, or others do.
    fn take_over(path: &Path) -> io::Result<Option<Self>> {
        let lock = hold(&path.join(HANDED_OVER))?;
        Ok(lock.map(|lock| Self { path: path.to_owned(), _locks: vec![lock], is_alive: true }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its process lives and goes on writing.
    pub fn is_alive(&self) -> bool {
        self.is_alive
    }

    /// The name of its run, as far as a folder's name can tell it.
    pub fn run(&self) -> Option<String> {
        Some(self.path.parent()?.file_name()?.to_string_lossy().into_owned())
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
        // It has been said, too; a full disk need not keep the sentence.
        fs::write(moved.with_extension("refused.txt"), format!("{sentence}\n")).ok();
        fs::remove_file(item.bookmark_path()).ok();
        Ok(moved)
    }

    /// Removes the folder when nothing waits in it any more, with what a killed process left half written.
    pub fn tidy(self) {
        if self.is_alive || !self.items().is_empty() {
            return;
        }
        // What cannot be removed costs some bytes, and the next one tries again.
        let is_left_over = |end: &std::ffi::OsStr| end == "part" || end == "json" || end == "upload";
        for path in files_in(&self.path).filter(|path| path.extension().is_some_and(is_left_over)) {
            fs::remove_file(path).ok();
        }
        fs::remove_file(self.path.join(HANDED_OVER)).ok();
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
        // The snapshot first: a sidecar alone is nothing, a snapshot without one has lost its place.
        for path in [&self.snapshot, &self.sidecar_path(), &self.bookmark_path()] {
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

    /// Where a cut upload of it goes on.
    pub fn bookmark(&self) -> Bookmark {
        Bookmark::in_file(self.bookmark_path())
    }

    fn bookmark_path(&self) -> PathBuf {
        self.beside("upload")
    }

    fn sidecar_path(&self) -> PathBuf {
        self.beside("json")
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let stem = self.name().strip_suffix(SNAPSHOT_ENDING).map(str::to_owned).unwrap_or_default();
        self.snapshot.with_file_name(format!("{stem}.{ending}"))
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
            let Measured { file, worth, shelf, .. } = self.encoder.finish()?;
            file.sync_all()?;
            sidecar.content_digest = Some(self.digest.finalize().to_hex().to_string());
            sidecar.file_name = Some(format!("{}{SNAPSHOT_ENDING}", self.name));
            let n_lost = lock(&shelf.losses).n;
            if n_lost > 0 {
                sidecar.more.insert("lost".to_owned(), n_lost.into());
            }
            let sidecar_part = Part(self.folder.join(format!(".{}.json.part", self.name)));
            let mut sidecar_file = Measured::create(&sidecar_part.0, worth, shelf)?;
            sidecar_file.write_all(&serde_json::to_vec_pretty(&sidecar)?)?;
            sidecar_file.file.sync_all()?;
            let visible = self.folder.join(format!("{}.json", self.name));
            fs::rename(&sidecar_part.0, &visible)?;
            fs::rename(&self.part.0, &snapshot).inspect_err(|_| {
                // A sidecar alone is nothing.
                fs::remove_file(&visible).ok();
            })?;
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

/// A file that keeps to the outbox's room.
#[derive(Debug)]
struct Measured {
    file: File,
    worth: Worth,
    shelf: Arc<Shelf>,
    bytes_left: u64,
    /// Written since the room was looked at.
    since: u64,
}

impl Measured {
    fn create(path: &Path, worth: Worth, shelf: Arc<Shelf>) -> io::Result<Self> {
        let file = loop {
            match File::create(path) {
                Err(error) if is_full(&error) && worth == Worth::Precious && shelf.make_way() => {}
                file => break file?,
            }
        };
        let bytes_left = shelf.bytes_left(LOOK_AGAIN_AFTER);
        Ok(Self { file, worth, shelf, bytes_left, since: 0 })
    }

    fn make_room(&mut self, n_bytes: u64) -> io::Result<()> {
        if self.since >= LOOK_AGAIN_AFTER {
            (self.bytes_left, self.since) = (self.shelf.bytes_left(LOOK_AGAIN_AFTER), 0);
        }
        while self.bytes_left < n_bytes {
            if self.worth != Worth::Precious || !self.shelf.make_way() {
                return Err(self.shelf.is_full());
            }
            self.bytes_left = self.shelf.bytes_left(n_bytes);
        }
        Ok(())
    }
}

impl Write for Measured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.make_room(bytes.len() as u64)?;
        loop {
            match self.file.write(bytes) {
                Err(error) if is_full(&error) && self.worth == Worth::Precious && self.shelf.make_way() => {}
                written => {
                    let n_bytes = written? as u64;
                    self.bytes_left = self.bytes_left.saturating_sub(n_bytes);
                    self.since += n_bytes;
                    return Ok(n_bytes as usize);
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Times that a folder is made again which others remove as they tidy up. Each of them does so once.
const MAX_MAKES: u32 = 100;

enum Held {
    Ours(File),
    Theirs,
    /// The file was removed before it was ours: it is another one by now, or none.
    Gone,
}

fn held(file: File, path: &Path) -> io::Result<Held> {
    match file.try_lock() {
        Ok(()) if is_still(&file, path) => Ok(Held::Ours(file)),
        Ok(()) => Ok(Held::Gone),
        Err(TryLockError::WouldBlock) => Ok(Held::Theirs),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Holds a lock that is there and that nobody holds.
fn hold(path: &Path) -> io::Result<Option<File>> {
    let file = match File::options().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    Ok(match held(file, path)? {
        Held::Ours(file) => Some(file),
        Held::Theirs | Held::Gone => None,
    })
}

/// Whether the path still leads to the file. Whoever tidies up removes the file before they let go of it.
#[cfg(unix)]
fn is_still(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Elsewhere a file that somebody holds open cannot be removed.
#[cfg(not(unix))]
fn is_still(_: &File, _: &Path) -> bool {
    true
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
    use super::*;

    fn written(outbox: &Outbox, name: &str, bytes: &[u8]) -> Result<Item, OutboxError> {
        written_for("step", outbox, name, bytes)
    }

    fn written_for(reason: &str, outbox: &Outbox, name: &str, bytes: &[u8]) -> Result<Item, OutboxError> {
        let mut draft = outbox.draft_worth(Worth::of(Some(reason)), name)?;
        draft.write_all(bytes).map_err(|source| OutboxError::Io { path: name.into(), source })?;
        let place = Place { rank: Some(3), reason: Some(reason.to_owned()), ..Place::default() };
        draft.finish(Sidecar { place, ..Sidecar::default() })
    }

    /// Bytes that do not get smaller.
    fn noise(n_bytes: usize) -> Vec<u8> {
        let mut noise = vec![0; n_bytes];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        noise
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
    fn a_precious_snapshot_takes_the_place_of_planned_ones_and_of_no_others() {
        let root = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(root.path(), "gpt", "host-7", 40_000).unwrap();
        for (reason, name) in
            [("step", "a"), ("oom", "b"), ("growth", "c"), ("validation", "d"), ("step", "e")]
        {
            written_for(reason, &outbox, name, &noise(5000)).unwrap();
        }
        let names = || outbox.items().iter().map(|item| item.name()[7..8].to_owned()).collect::<String>();
        outbox.is_on_its_way(Some(&outbox.items()[4]));
        // A planned one is given up itself.
        assert!(
            written_for("step", &outbox, "f", &noise(20_000)).unwrap_err().to_string().contains("is full")
        );
        assert_eq!((names().as_str(), outbox.n_lost()), ("abcde", 0));
        written_for("oom", &outbox, "g", &noise(17_000)).unwrap();
        assert_eq!((names().as_str(), outbox.n_lost()), ("bcdeg", 1));
        written_for("exit", &outbox, "h", &noise(4000)).unwrap();
        assert_eq!((names().as_str(), outbox.n_lost()), ("bdegh", 2));
        // What is on its way, was asked for or is precious itself stays.
        assert!(written_for("oom", &outbox, "i", &noise(4000)).is_err());
        assert_eq!(names(), "bdegh");
        let losses = outbox.take_losses();
        assert_eq!((losses.n, losses.untold.len(), losses.untold[0].place.rank), (2, 2, Some(3)));
        assert_eq!((outbox.take_losses().n, outbox.take_losses().untold.len()), (2, 0));
        // The next one's sidecar says how many.
        outbox.items()[0].remove().unwrap();
        let next = written_for("step", &outbox, "j", b"small").unwrap();
        assert_eq!(next.sidecar().unwrap().more["lost"], 2);
        assert!(files_in(outbox.folder.path()).all(|path| path.extension().is_none_or(|end| end != "part")));
    }

    #[test]
    fn what_others_keep_counts_and_what_they_take_away_is_seen_before_anything_is_given_up() {
        let root = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(root.path(), "gpt", "host-7", 40_000).unwrap();
        let other = Outbox::open(root.path(), "bert", "host-8", u64::MAX).unwrap();
        let theirs = written(&other, "rank0_step1", &noise(30_000)).unwrap();
        written(&outbox, "a", &noise(5000)).unwrap();
        assert!(written(&outbox, "b", &noise(20_000)).is_err());
        theirs.remove().unwrap();
        written(&outbox, "c", &noise(20_000)).unwrap();
    }

    #[test]
    fn some_of_the_disk_stays_free() {
        let root = tempfile::tempdir().unwrap();
        let room = Room { max_bytes: u64::MAX, min_free_bytes: u64::MAX };
        let outbox = Outbox::open(root.path(), "gpt", "host-7", room).unwrap();
        let error = written(&outbox, "rank3_step5", b"bytes").unwrap_err().to_string();
        assert!(error.contains("left free on its disk"), "{error}");
        assert_eq!(names(outbox.folder.path()), ["lock"]);
    }

    #[test]
    fn losses_beyond_the_last_ones_are_a_number() {
        let root = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(root.path(), "gpt", "host-7", DEFAULT_MAX_BYTES).unwrap();
        for step in 1..=300 {
            outbox.lose(&Place { last_step: Some(step), ..Place::default() }, "the outbox is full");
        }
        let losses = outbox.take_losses();
        assert_eq!((losses.n, losses.untold.len()), (300, MAX_LOSSES));
        assert_eq!(losses.untold.back().unwrap().place.last_step, Some(300));
    }

    #[test]
    fn a_disk_that_is_full_leaves_nothing_half_written_and_precious_ones_make_room_on_it() {
        let root = tempfile::tempdir().unwrap();
        let Some(mounted) = SmallDisk::mount(root.path()) else { return };
        let outbox = Outbox::open(mounted.0, "gpt", "host-7", u64::MAX).unwrap();
        let mut n_written = 0;
        let error = loop {
            match written(&outbox, "step", &noise(100_000)) {
                Ok(_) => n_written += 1,
                Err(error) => break error.to_string(),
            }
        };
        assert!(n_written > 2 && error.contains("No space left"), "{n_written} {error}");
        assert_eq!(outbox.items().len(), n_written);
        assert!(files_in(outbox.folder.path()).all(|path| path.extension().is_none_or(|end| end != "part")));
        written_for("oom", &outbox, "oom", &noise(200_000)).unwrap();
        assert!(outbox.n_lost() >= 2);
        // Each that is left is whole.
        for item in outbox.items() {
            assert!(
                zstd::decode_all(File::open(&item.snapshot).unwrap()).is_ok() && item.sidecar().is_some()
            );
        }
        drop(outbox);
    }

    /// A megabyte of disk; there for who may mount one.
    struct SmallDisk<'a>(&'a Path);

    impl<'a> SmallDisk<'a> {
        fn mount(at: &'a Path) -> Option<Self> {
            let mut mount = std::process::Command::new("mount");
            let mount = mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(at);
            mount.stderr(std::process::Stdio::null()).status().ok()?.success().then_some(Self(at))
        }
    }

    impl Drop for SmallDisk<'_> {
        fn drop(&mut self) {
            std::process::Command::new("umount").arg(self.0).status().ok();
        }
    }

    #[test]
    fn of_many_who_find_a_folder_one_adopts_it() {
        let root = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let dead = Outbox::open(root.path(), "gpt", "host-7", DEFAULT_MAX_BYTES).unwrap();
            written(&dead, "rank3_step5", b"bytes").unwrap();
            drop(dead);
            let adopted: Vec<_> = std::thread::scope(|scope| {
                let finders: Vec<_> = (0..8).map(|_| scope.spawn(|| folders(root.path()).unwrap())).collect();
                finders.into_iter().flat_map(|finder| finder.join().unwrap()).collect()
            });
            let mine = adopted.iter().filter(|found| matches!(found, Found::Abandoned(_))).count();
            assert_eq!(mine, 1, "{adopted:?}");
        }
    }

    #[test]
    fn who_tidies_up_and_who_begins_anew_never_hold_the_same_folder() {
        let root = tempfile::tempdir().unwrap();
        let open = || Outbox::open(root.path(), "gpt", "host-7", DEFAULT_MAX_BYTES);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    for found in folders(root.path()).unwrap_or_default() {
                        if let Found::Abandoned(folder) = found {
                            folder.tidy();
                        }
                    }
                }
            });
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let outbox = open().unwrap();
                        let item = written(&outbox, "rank3_step5", b"bytes").unwrap();
                        assert_eq!(outbox.items(), std::slice::from_ref(&item));
                        item.remove().unwrap();
                        outbox.tidy();
                    }
                });
            }
        });
    }

    fn only(root: &Path) -> Found {
        let [found] = <[Found; 1]>::try_from(folders(root).unwrap()).unwrap();
        found
    }

    #[test]
    fn what_is_handed_over_is_sent_by_one_other_and_stays_its_processs_own() {
        let root = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(root.path(), "gpt", "host-7", DEFAULT_MAX_BYTES).unwrap();
        outbox.hand_over_to(SentBy::Sidecar).unwrap();
        let item = written(&outbox, "rank3_step5", b"bytes").unwrap();
        let Found::HandedOver(folder) = only(root.path()) else { panic!() };
        assert_eq!((folder.items(), folder.run().as_deref()), (vec![item.clone()], Some("gpt")));
        // Others stay away, also once its process is gone, until whoever sends is done.
        assert!(matches!(only(root.path()), Found::InUse(_)));
        item.remove().unwrap();
        folder.tidy();
        assert!(outbox.folder.path().join(LOCK).exists());
        let Found::HandedOver(folder) = only(root.path()) else { panic!() };
        drop(outbox);
        assert!(matches!(only(root.path()), Found::InUse(_)));
        drop(folder);
        let Found::Abandoned(folder) = only(root.path()) else { panic!() };
        folder.tidy();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
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
