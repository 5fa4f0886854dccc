//! Whether a file is a whole snapshot: it is read to its end.

use std::{
    fs::{self, File},
    io,
    ops::ControlFlow,
    path::Path,
};

use tidegauge_snapshot::read::{self, ReadError, archive};

use crate::search;

/// As many bytes as the longest mark at the beginning of a compressed file has, zstd's. Fewer may yet become anything.
const TELLING_BYTES: u64 = 4;

/// What reading a file showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A snapshot or an archive of some, complete. The digest tells its content from another's.
    Whole { digest: String },
    /// It ends too early, or contradicts itself: it is still being written, or never was to its end. A network's
    /// file system can show the end of a file before its middle.
    NotWhole(String),
    /// The disk says no.
    Unreadable(String),
    /// Something else.
    Other(String),
}

impl Verdict {
    /// Reads the file at `path`. With `is_guess`, its beginning alone may tell that it is something else.
    pub(super) fn of(path: &Path, is_guess: bool) -> Self {
        if is_guess && !search::may_be_snapshot(path) {
            return Self::Other("it is not named like a snapshot, nor does it begin like one".to_owned());
        }
        // Its tables can be large and are of no use here.
        match File::open(path).map(|file| read::open_file(file).map(drop)) {
            Err(error) => Self::Unreadable(format!("it cannot be opened: {error}")),
            Ok(Err(error)) if error.code() != ReadError::EMPTY && is_too_short_to_tell(path) => {
                Self::NotWhole("the file ends after its first bytes".to_owned())
            }
            Ok(Ok(())) => digest(path, content_digest),
            Ok(Err(error)) if error.code() == ReadError::ARCHIVE => digest(path, archive_digest),
            Ok(Err(error)) => Self::from(error),
        }
    }
}

impl From<ReadError> for Verdict {
    fn from(error: ReadError) -> Self {
        let sentence = error.to_string();
        match error.code() {
            ReadError::EMPTY | ReadError::CUT | ReadError::DAMAGED => Self::NotWhole(sentence),
            ReadError::IO => Self::Unreadable(sentence),
            _ => Self::Other(sentence),
        }
    }
}

fn is_too_short_to_tell(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.len() < TELLING_BYTES)
}

fn digest(path: &Path, of: fn(File) -> Result<blake3::Hash, ReadError>) -> Verdict {
    match File::open(path).map(of) {
        Err(error) => Verdict::Unreadable(format!("it cannot be opened: {error}")),
        Ok(Ok(digest)) => Verdict::Whole { digest: digest.to_hex().to_string() },
        Ok(Err(error)) => Verdict::from(error),
    }
}

/// The digest that a server computes, too: of what is inside the wrappings.
fn content_digest(file: File) -> Result<blake3::Hash, ReadError> {
    let mut hasher = blake3::Hasher::new();
    read::copy_content(file, &mut hasher)?;
    Ok(hasher.finalize())
}

/// The digest of every snapshot in the archive and its path, in their order.
fn archive_digest(file: File) -> Result<blake3::Hash, ReadError> {
    let mut hasher = blake3::Hasher::new();
    archive::each(file, |member, bytes| {
        hasher.update(member.path.as_bytes());
        // One that ends early will do so whenever it is looked at: the archive around it is the file that is written.
        io::copy(bytes, &mut hasher).ok();
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, path::PathBuf};

    use super::*;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../snapshot/fixtures").join(name)
    }

    fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn of(name: &str, bytes: &[u8], is_guess: bool) -> Verdict {
        let (_folder, path) = written(name, bytes);
        Verdict::of(&path, is_guess)
    }

    fn pickle() -> Vec<u8> {
        fs::read(fixture("settings_default.pickle")).unwrap()
    }

    fn gzipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_whole_snapshot_has_one_digest_however_it_is_wrapped() {
        let pickle = pickle();
        let expected = Verdict::Whole { digest: blake3::hash(&pickle).to_hex().to_string() };
        assert_eq!(of("a.pickle", &pickle, false), expected);
        assert_eq!(of("a.pickle.gz", &gzipped(&pickle), false), expected);
    }

    #[test]
    fn a_pickle_cut_anywhere_is_not_whole() {
        let pickle = pickle();
        for n in 0..40 {
            let cut = n * pickle.len() / 40;
            let verdict = of("a.pickle", &pickle[..cut], false);
            assert!(matches!(verdict, Verdict::NotWhole(_)), "cut at {cut}: {verdict:?}");
        }
        let verdict = of("a.pickle", &pickle[..pickle.len() - 1], false);
        assert!(matches!(verdict, Verdict::NotWhole(_)), "{verdict:?}");
    }

    #[test]
    fn a_compressed_file_cut_anywhere_is_not_whole() {
        let gzipped = gzipped(&pickle());
        let zstd = fs::read(fixture("llama8b_fsdp8_rank0_step1.pickle.zst")).unwrap();
        for (name, bytes) in [("a.pickle.gz", gzipped), ("a.pickle.zst", zstd)] {
            for cut in [1, 3, 11, bytes.len() / 2, bytes.len() - 9, bytes.len() - 1] {
                let verdict = of(name, &bytes[..cut], false);
                assert!(matches!(verdict, Verdict::NotWhole(_)), "{name} cut at {cut}: {verdict:?}");
            }
        }
    }

    #[test]
    fn a_file_whose_middle_is_not_there_yet_is_not_whole() {
        let mut pickle = pickle();
        let middle = pickle.len() / 4..pickle.len() / 2;
        pickle[middle].fill(0);
        let verdict = of("a.pickle", &pickle, false);
        assert!(matches!(verdict, Verdict::NotWhole(_)), "{verdict:?}");
    }

    #[test]
    fn a_stranger_is_told_by_its_content() {
        assert!(matches!(of("a.pickle", b"<!doctype html><p>Sign in", false), Verdict::Other(_)));
        assert!(matches!(of("a.json", br#"{"layers": 4}"#, true), Verdict::Other(_)));
    }

    #[test]
    fn an_archive_is_whole_when_it_can_be_listed_to_its_end() {
        let zip = fs::read(fixture("wrapped/run.zip")).unwrap();
        let verdict = of("run.zip", &zip, true);
        assert!(matches!(verdict, Verdict::Whole { .. }), "{verdict:?}");
        let tar = fs::read(fixture("wrapped/run.tar.gz")).unwrap();
        assert!(matches!(of("run.tar.gz", &tar, true), Verdict::Whole { .. }));
        for (name, bytes) in [("run.zip", zip), ("run.tar.gz", tar)] {
            let verdict = of(name, &bytes[..bytes.len() / 2], true);
            assert!(matches!(verdict, Verdict::NotWhole(_)), "{name}: {verdict:?}");
        }
    }

    #[test]
    fn a_file_that_is_gone_is_unreadable() {
        assert!(matches!(Verdict::of(Path::new("/nowhere/a.pickle"), false), Verdict::Unreadable(_)));
    }
}
