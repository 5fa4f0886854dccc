//! Room on the disk: what is stored, what is promised to uploads under way, and when to say no.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegauge_snapshot::words::size;

/// An upload of unknown length asks for room in steps of this many bytes.
const STEP_BYTES: u64 = 16 << 20;

/// Keeps the data folder under its cap and leaves some of the disk free.
#[derive(Debug)]
pub(crate) struct Space {
    folder: PathBuf,
    cap: Option<u64>,
    min_free: u64,
    ledger: Mutex<Ledger>,
}

#[derive(Debug)]
struct Ledger {
    /// Bytes of originals and packs.
    stored: u64,
    /// Bytes promised to uploads under way. What of it is written already counts twice against the disk's free
    /// space: rather refuse a little early than fill the disk.
    promised: u64,
}

/// Why there is no room.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error(
        "the server is full ({} of {}): {} more do not fit; remove runs or raise --max-data-bytes",
        size(*used), size(*cap), size(*asked)
    )]
    Cap { used: u64, cap: u64, asked: u64 },
    #[error(
        "the server's disk is full: {} are free, {} more are asked for, and {} stay free by --min-free-bytes",
        size(*free), size(*asked), size(*min_free)
    )]
    Disk { free: u64, asked: u64, min_free: u64 },
}

/// Room promised to one upload; given back when dropped.
#[derive(Debug)]
pub(crate) struct Promise {
    space: Arc<Space>,
    bytes: u64,
}

impl Space {
    pub(crate) fn new(folder: PathBuf, cap: Option<u64>, min_free: u64, stored: u64) -> Arc<Self> {
        Arc::new(Self { folder, cap, min_free, ledger: Mutex::new(Ledger { stored, promised: 0 }) })
    }

    /// Promises room for `bytes` more.
    pub(crate) fn promise(self: &Arc<Self>, bytes: u64) -> Result<Promise, Full> {
        let mut promise = Promise { space: Arc::clone(self), bytes: 0 };
        promise.add(bytes)?;
        Ok(promise)
    }

    /// Counts bytes that were stored.
    pub(crate) fn add_stored(&self, bytes: u64) {
        let mut ledger = self.ledger();
        ledger.stored = ledger.stored.saturating_add(bytes);
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Two numbers cannot be left half changed.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Promise {
    /// Makes sure that the promise covers `bytes` in all, in generous steps.
    pub(crate) fn cover(&mut self, bytes: u64) -> Result<(), Full> {
        match bytes.checked_sub(self.bytes) {
            None | Some(0) => Ok(()),
            Some(missing) => self.add(missing.max(STEP_BYTES)).or_else(|_| self.add(missing)),
        }
    }

    fn add(&mut self, bytes: u64) -> Result<(), Full> {
        let mut ledger = self.space.ledger();
        let used = ledger.stored.saturating_add(ledger.promised);
        if let Some(cap) = self.space.cap
            && used.saturating_add(bytes) > cap
        {
            return Err(Full::Cap { used, cap, asked: bytes });
        }
        // A disk that does not tell its free space will tell when it is full.
        if let Ok(free) = fs4::available_space(&self.space.folder)
            && free < ledger.promised.saturating_add(bytes).saturating_add(self.space.min_free)
        {
            return Err(Full::Disk { free, asked: bytes, min_free: self.space.min_free });
        }
        ledger.promised += bytes;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut ledger = self.space.ledger();
        ledger.promised = ledger.promised.saturating_sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_counts_until_it_is_stored_or_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::new(folder.path().to_owned(), Some(100), 0, 40);
        let first = space.promise(50).unwrap();
        assert_eq!(space.promise(11).unwrap_err(), Full::Cap { used: 90, cap: 100, asked: 11 });
        drop(first);
        space.add_stored(50);
        assert!(space.promise(11).is_err());
        assert!(space.promise(10).is_ok());
    }

    #[test]
    fn an_upload_of_unknown_length_may_use_the_last_byte() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::new(folder.path().to_owned(), Some(100), 0, 0);
        let mut promise = space.promise(0).unwrap();
        promise.cover(60).unwrap();
        promise.cover(100).unwrap();
        assert!(
            promise.cover(101).unwrap_err().to_string().starts_with("the server is full (100 B of 100 B)")
        );
    }

    #[test]
    fn some_of_the_disk_stays_free() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::new(folder.path().to_owned(), None, u64::MAX / 2, 0);
        assert!(matches!(space.promise(1), Err(Full::Disk { .. })));
    }
}
