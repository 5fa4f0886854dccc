//! Where bytes lie: a folder of files named for their content. Storage keys are made here and nowhere else.
//!
//! ```text
//! lock                          held by the server that uses the folder
//! catalog.sqlite                the catalog
//! spool/…                       uploads under way; emptied at the start
//! unfinished/ID.json, ID.part   uploads that may be cut and go on: what was announced, and the bytes so far
//! originals/ab/abcdef…          bytes as they came, by BLAKE3
//! packs/v1/abcdef….tgpack       made from the original of that digest; can be made again
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use tempfile::{NamedTempFile, TempPath};
use tidegauge_snapshot::pack;
use tidegauge_snapshot::read::{self, ReadError};

/// BLAKE3 of some bytes, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digest(String);

impl Digest {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A digest that the catalog kept; it came from [`Digest::from`] once.
    pub(crate) fn from_catalog(text: String) -> Self {
        Self(text)
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(hash.to_hex().as_str().to_owned())
    }
}

/// The data folder, locked.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    lock: File,
}

/// What lay in the folder at the start.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Contents {
    pub(crate) bytes: u64,
    pub(crate) n_originals: u64,
}

impl Store {
    /// Opens or makes the folder, takes its lock, and removes what uploads left that a crash cut short.
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the data folder {}", folder.display()))?;
        let lock = lock(folder)?;
        let store = Self { folder: folder.to_owned(), lock };
        let spool = store.spool_folder();
        if spool.exists() {
            fs::remove_dir_all(&spool).with_context(|| format!("cannot empty {}", spool.display()))?;
        }
        for sub in [spool, store.unfinished_folder(), store.originals_folder(), store.packs_folder()] {
            fs::create_dir_all(&sub).with_context(|| format!("cannot make the folder {}", sub.display()))?;
        }
        Ok(store)
    }

    /// Writes down who holds the folder, for a second server's sentence.
    pub(crate) fn sign_lock(&self, address: &str) -> io::Result<()> {
        (&self.lock).write_all(format!("process {}, {address}", std::process::id()).as_bytes())
    }

    /// The catalog's file.
    pub(crate) fn catalog_path(&self) -> PathBuf {
        self.folder.join("catalog.sqlite")
    }

    /// An original's file.
    pub(crate) fn original_path(&self, digest: &Digest) -> PathBuf {
        self.originals_folder().join(&digest.0[..2]).join(&digest.0)
    }

    /// The file of the pack made from an original.
    pub(crate) fn pack_path(&self, digest: &Digest) -> PathBuf {
        self.packs_folder().join(format!("{}.tgpack", digest.0))
    }

    /// A new file for an upload under way; gone when dropped.
    pub(crate) fn spool(&self) -> io::Result<Spool> {
        let file = NamedTempFile::new_in(self.spool_folder())?;
        let mut writer = tokio::fs::File::from_std(file.as_file().try_clone()?);
        writer.set_max_buf_size(SPOOL_BUFFER_BYTES);
        Ok(Spool { file, writer, hasher: blake3::Hasher::new(), head: Vec::new(), bytes: 0 })
    }

    /// Moves an upload to its place and makes that last. Says whether the bytes are new here.
    pub(crate) fn keep(&self, spooled: Spooled) -> io::Result<bool> {
        let path = self.original_path(&spooled.digest);
        let is_new = !path.exists();
        let folder = path.parent().expect("an original lies in a folder of its store");
        if !folder.exists() {
            fs::create_dir_all(folder)?;
            sync_folder(&self.originals_folder())?;
        }
        // Over a file of the same digest, too: its bytes are the same.
        spooled.file.persist(&path)?;
        sync_folder(folder)?;
        Ok(is_new)
    }

    /// Opens an original.
    pub(crate) fn original(&self, digest: &Digest) -> io::Result<File> {
        File::open(self.original_path(digest))
    }

    /// Writes a pack. A crash leaves the whole of it or nothing. Says whether it is new here.
    pub(crate) fn write_pack(&self, digest: &Digest, pack: &[u8]) -> io::Result<bool> {
        let path = self.pack_path(digest);
        let is_new = !path.exists();
        let mut file = NamedTempFile::new_in(self.spool_folder())?;
        file.write_all(pack)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(is_new)
    }

    /// Counts what is stored.
    pub(crate) fn contents(&self) -> io::Result<Contents> {
        let mut contents = Contents::default();
        for entry in files(&self.originals_folder())? {
            contents.bytes += entry.metadata()?.len();
            contents.n_originals += 1;
        }
        for entry in files(&self.folder.join("packs"))? {
            contents.bytes += entry.metadata()?.len();
        }
        Ok(contents)
    }

    /// Begins an upload that may be cut and go on. What was announced lasts from here on.
    pub(crate) fn begin_unfinished(&self, id: &str, announced: &[u8]) -> io::Result<()> {
        File::create_new(self.part_path(id))?;
        let mut file = NamedTempFile::new_in(self.spool_folder())?;
        file.write_all(announced)?;
        file.as_file().sync_all()?;
        // Last: a part without this file is removed at the next start.
        file.persist(self.announced_path(id))?;
        sync_folder(&self.unfinished_folder())
    }

    /// The unfinished uploads at the start. What a crash left of others is removed.
    pub(crate) fn unfinished(&self) -> io::Result<Vec<Unfinished>> {
        let mut unfinished = Vec::new();
        for entry in fs::read_dir(self.unfinished_folder())? {
            let path = entry?.path();
            let id = path.file_stem().and_then(|id| id.to_str()).unwrap_or_default().to_owned();
            let has_both = self.announced_path(&id).exists() && self.part_path(&id).exists();
            if !has_both {
                fs::remove_file(&path)?;
            } else if path == self.part_path(&id) {
                let (announced, part) = (fs::read(self.announced_path(&id))?, path.metadata()?);
                unfinished.push(Unfinished { announced, n_bytes: part.len(), touched: part.modified()?, id });
            }
        }
        Ok(unfinished)
    }

    /// What was announced of an unfinished upload, as it was written down.
    pub(crate) fn announced(&self, id: &str) -> io::Result<Vec<u8>> {
        fs::read(self.announced_path(id))
    }

    /// How many bytes of an unfinished upload are here.
    pub(crate) fn unfinished_bytes(&self, id: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.part_path(id))?.len())
    }

    /// The first bytes of an unfinished upload, as many as are here and are needed to recognize a snapshot.
    pub(crate) fn unfinished_head(&self, id: &str) -> io::Result<Vec<u8>> {
        let mut head = Vec::new();
        File::open(self.part_path(id))?.take(read::HEAD_BYTES as u64).read_to_end(&mut head)?;
        Ok(head)
    }

    /// Where the next bytes of an unfinished upload go.
    pub(crate) fn append_to_unfinished(&self, id: &str) -> io::Result<tokio::fs::File> {
        let mut file = tokio::fs::File::from_std(File::options().append(true).open(self.part_path(id))?);
        file.set_max_buf_size(SPOOL_BUFFER_BYTES);
        Ok(file)
    }

    /// An unfinished upload whose bytes are all here, as any other. They go with what is returned.
    pub(crate) fn finish_unfinished(&self, id: &str) -> io::Result<Spooled> {
        let path = self.part_path(id);
        let mut hasher = blake3::Hasher::new();
        let mut file = File::open(&path)?;
        let bytes = io::copy(&mut file, &mut hasher)?;
        let file = NamedTempFile::from_parts(file, TempPath::try_from_path(path)?);
        Ok(Spooled { file, digest: hasher.finalize().into(), bytes })
    }

    /// Removes what is left of an unfinished upload.
    pub(crate) fn remove_unfinished(&self, id: &str) -> io::Result<()> {
        for path in [self.announced_path(id), self.part_path(id)] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn announced_path(&self, id: &str) -> PathBuf {
        self.unfinished_folder().join(format!("{id}.json"))
    }

    fn part_path(&self, id: &str) -> PathBuf {
        self.unfinished_folder().join(format!("{id}.part"))
    }

    fn unfinished_folder(&self) -> PathBuf {
        self.folder.join("unfinished")
    }

    fn spool_folder(&self) -> PathBuf {
        self.folder.join("spool")
    }

    fn originals_folder(&self) -> PathBuf {
        self.folder.join("originals")
    }

    fn packs_folder(&self) -> PathBuf {
        self.folder.join("packs").join(format!("v{}", pack::VERSION))
    }
}

/// An upload that was cut, as it lay in the folder at the start.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) id: String,
    /// What was announced, as it was written down.
    pub(crate) announced: Vec<u8>,
    pub(crate) n_bytes: u64,
    /// When the last bytes came.
    pub(crate) touched: SystemTime,
}

/// Bytes an upload may hold back before they are written; with it go the uploads' share of the server's memory.
const SPOOL_BUFFER_BYTES: usize = 256 * 1024;

/// An upload under way: written to a file, digested on the way.
#[derive(Debug)]
pub(crate) struct Spool {
    file: NamedTempFile,
    writer: tokio::fs::File,
    hasher: blake3::Hasher,
    head: Vec<u8>,
    bytes: u64,
}

impl Spool {
    /// Takes some more bytes.
    pub(crate) async fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        tokio::io::AsyncWriteExt::write_all(&mut self.writer, chunk).await?;
        self.hasher.update(chunk);
        let missing = read::HEAD_BYTES.saturating_sub(self.head.len());
        self.head.extend_from_slice(&chunk[..missing.min(chunk.len())]);
        self.bytes += chunk.len() as u64;
        Ok(())
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first bytes, enough to recognize a snapshot once [`Spool::has_head`] or at the end.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Whether all of the head is here.
    pub(crate) fn has_head(&self) -> bool {
        self.head.len() == read::HEAD_BYTES
    }

    /// The upload is complete: makes it last.
    pub(crate) async fn finish(mut self) -> io::Result<Spooled> {
        tokio::io::AsyncWriteExt::flush(&mut self.writer).await?;
        self.writer.sync_all().await?;
        Ok(Spooled { file: self.file, digest: self.hasher.finalize().into(), bytes: self.bytes })
    }
}

/// A complete upload that is not kept yet; gone when dropped.
#[derive(Debug)]
pub(crate) struct Spooled {
    file: NamedTempFile,
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
}

impl Spooled {
    /// BLAKE3 of the snapshot's own bytes, whatever they are wrapped in. What is cut or damaged counts as it is:
    /// reading it will say why.
    ///
    /// The inner error says that there is no snapshot in it, or more than one.
    pub(crate) fn content_digest(&self) -> io::Result<Result<Digest, ReadError>> {
        let mut hasher = blake3::Hasher::new();
        Ok(match read::copy_content(self.file.reopen()?, &mut hasher) {
            Ok(_) => Ok(hasher.finalize().into()),
            Err(error) if IS_NONE.contains(&error.code()) => Err(error),
            Err(_) => Ok(self.digest.clone()),
        })
    }
}

/// Codes of files that hold no snapshot, or several.
const IS_NONE: [&str; 3] = [ReadError::EMPTY, ReadError::NOT_A_SNAPSHOT, ReadError::ARCHIVE];

fn lock(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join("lock");
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(|| format!("cannot open the lock file {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {
            // Until this server signs it, nobody shall read who held it last.
            file.set_len(0).with_context(|| format!("cannot write to {}", path.display()))?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let holder = match fs::read_to_string(&path) {
                Ok(holder) if !holder.is_empty() => format!(" ({holder})"),
                _ => String::new(),
            };
            bail!(
                "the data folder {} is in use by another tidegauge-server{holder}; stop that one, or give this one \
                 another folder with --data",
                folder.display()
            )
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Makes the names in a folder last; where folders cannot be opened (Windows) there is nothing to do.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// The files one folder below `folder`.
fn files(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    let mut files = Vec::new();
    for sub in fs::read_dir(folder)? {
        let sub = sub?;
        if sub.file_type()?.is_dir() {
            files.extend(fs::read_dir(sub.path())?.collect::<Result<Vec<_>, _>>()?);
        }
    }
    Ok(files)
}
