//! Paths that must not leave the machine: stripped of a prefix, hashed or dropped before a snapshot is written.
//!
//! The pickle is read into tables, its paths are replaced, and it is written again: field by field as it was, in
//! protocol 4. What cannot be read is not written at all, since it might hold what was to stay here.

use std::io::{self, Write};

use tidegauge_snapshot::{paths, read, write};

/// The largest pickle that is redacted, bytes: it is held in memory for that. A larger one is not written, and that
/// is said.
pub const MAX_BYTES: usize = 1 << 30;

/// Hex digits of a hash: 48 bits, so that a million different files hardly ever share one.
const HASH_DIGITS: usize = 12;

/// What stands for a path that was dropped.
const DROPPED: &str = "<dropped>";

/// What becomes of the paths in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redaction {
    /// Beginnings that are left out of paths, longest first.
    strip: Vec<String>,
    paths: Paths,
}

/// What becomes of a path after a prefix was stripped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Paths {
    /// It stays.
    #[default]
    Keep,
    /// A hash stands for it: the same for the same path everywhere, so stacks can still be compared. Who guesses a path
    /// can check the guess.
    Hash,
    /// Nothing stands for it.
    Drop,
}

impl Paths {
    /// The words of the setting.
    pub const WORDS: &[&str] = &["keep", "hash", "drop"];

    /// From one of [`Paths::WORDS`].
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "keep" => Some(Self::Keep),
            "hash" => Some(Self::Hash),
            "drop" => Some(Self::Drop),
            _ => None,
        }
    }

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Hash => "hash",
            Self::Drop => "drop",
        }
    }
}

impl Redaction {
    /// From a list of prefixes with commas between them; `None` when everything stays as it is.
    pub fn new(strip: &str, paths: Paths) -> Option<Self> {
        let mut strip: Vec<String> =
            strip.split(',').map(str::trim).filter(|prefix| !prefix.is_empty()).map(str::to_owned).collect();
        strip.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
        let redaction = Self { strip, paths };
        (redaction != Self::default()).then_some(redaction)
    }

    /// What is stripped, longest first.
    pub fn prefixes(&self) -> &[String] {
        &self.strip
    }

    /// What becomes of the rest.
    pub fn paths(&self) -> Paths {
        self.paths
    }

    /// In words: "3 prefixes stripped, paths hashed".
    pub fn describe(&self) -> String {
        let prefixes = match self.strip.len() {
            0 => None,
            1 => Some("1 prefix stripped".to_owned()),
            n => Some(format!("{n} prefixes stripped")),
        };
        let paths = match self.paths {
            Paths::Keep => None,
            Paths::Hash => Some("paths hashed".to_owned()),
            Paths::Drop => Some("paths dropped".to_owned()),
        };
        prefixes.into_iter().chain(paths).collect::<Vec<_>>().join(", ")
    }

    /// A path as it may leave.
    pub fn path(&self, path: &str) -> String {
        let rest = self.strip.iter().find_map(|prefix| path.strip_prefix(prefix.as_str())).unwrap_or(path);
        match self.paths {
            Paths::Keep => rest.to_owned(),
            Paths::Hash => format!("path-{}", &blake3::hash(rest.as_bytes()).to_hex()[..HASH_DIGITS]),
            Paths::Drop => DROPPED.to_owned(),
        }
    }

    /// Writes a pickle with its paths replaced.
    ///
    /// # Errors
    /// When it cannot be read, or not be written.
    pub fn rewrite(&self, pickle: &[u8], out: impl Write) -> io::Result<()> {
        let mut snapshot = read::open(pickle).map_err(|error| {
            io::Error::other(format!("its paths cannot be redacted, so it is not written: {error}"))
        })?;
        paths::replace(&mut snapshot, &|path| self.path(path));
        write::pickle(&snapshot, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICKLE: &[u8] = include_bytes!("../../snapshot/fixtures/oom_plain_2gib.pickle");

    fn redaction(strip: &str, paths: Paths) -> Redaction {
        Redaction::new(strip, paths).unwrap()
    }

    #[test]
    fn the_longest_prefix_is_stripped_before_anything_else() {
        let keep = redaction("/home/me/, /home/me/project/src/", Paths::Keep);
        assert_eq!(keep.path("/home/me/project/src/train.py"), "train.py");
        assert_eq!(keep.path("/home/me/lib.py"), "lib.py");
        assert_eq!(keep.path("/usr/lib/os.py"), "/usr/lib/os.py");
        assert_eq!(keep.describe(), "2 prefixes stripped");
    }

    #[test]
    fn a_hash_is_the_same_on_machines_that_keep_the_project_elsewhere() {
        let here = redaction("/home/me/", Paths::Hash);
        let there = redaction("/mnt/job/", Paths::Hash);
        assert_eq!(here.path("/home/me/train.py"), there.path("/mnt/job/train.py"));
        assert_ne!(here.path("/home/me/train.py"), here.path("/home/me/model.py"));
        assert_eq!(here.path("/home/me/train.py").len(), "path-".len() + HASH_DIGITS);
        assert_eq!(here.describe(), "1 prefix stripped, paths hashed");
    }

    #[test]
    fn nothing_to_redact_is_no_redaction() {
        assert_eq!(Redaction::new(" , ", Paths::Keep), None);
        assert!(Redaction::new("", Paths::Drop).is_some());
    }

    /// A snapshot's frames: name, file and line.
    fn frames(pickle: &[u8]) -> Vec<(String, String, u32)> {
        let snapshot = read::open(pickle).unwrap();
        let text = |id| snapshot.strings.text(id).into_owned();
        let frames = snapshot.stacks.all_frames().iter();
        frames.map(|frame| (text(frame.name), text(frame.filename), frame.line)).collect()
    }

    #[test]
    fn no_path_of_a_real_snapshot_leaves_and_everything_else_stays() {
        let before = frames(PICKLE);
        let paths: Vec<&str> =
            before.iter().map(|(_, path, _)| path.as_str()).filter(|path| path.starts_with('/')).collect();
        assert!(!paths.is_empty());
        for how in [Paths::Hash, Paths::Drop] {
            let mut redacted = Vec::new();
            redaction("", how).rewrite(PICKLE, &mut redacted).unwrap();
            for path in &paths {
                let is_there = redacted.windows(path.len()).any(|bytes| bytes == path.as_bytes());
                assert!(!is_there, "{path} is in the file");
            }
            let (original, snapshot) = (read::open(PICKLE).unwrap(), read::open(&redacted[..]).unwrap());
            assert_eq!(snapshot.trace.len(), original.trace.len());
            assert_eq!(snapshot.segments, original.segments);
        }
        let mut hashed = Vec::new();
        redaction("", Paths::Hash).rewrite(PICKLE, &mut hashed).unwrap();
        let after = frames(&hashed);
        let expected: Vec<_> = before
            .iter()
            .map(|(name, path, line)| {
                let path = if path.starts_with(['<', '?']) || path.is_empty() {
                    path.clone()
                } else {
                    redaction("", Paths::Hash).path(path)
                };
                (name.clone(), path, *line)
            })
            .collect();
        assert_eq!(after, expected);
    }

    #[test]
    fn what_cannot_be_read_is_not_written() {
        let mut out = Vec::new();
        let error = redaction("", Paths::Drop).rewrite(b"no pickle: /home/me", &mut out).unwrap_err();
        assert!(
            error.to_string().starts_with("its paths cannot be redacted, so it is not written: "),
            "{error}"
        );
        assert!(out.is_empty());
    }
}
