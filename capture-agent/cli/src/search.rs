//! Snapshots below a folder: told by their names, and where a name tells little, by their first bytes.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use tidegauge_snapshot::read;

/// Folders inside folders are followed this deep; deeper ones are somebody's mistake, or a loop of links.
const MAX_DEPTH: usize = 32;

/// Endings of what may hold a snapshot, and more often holds something else.
const GUESSES: [&str; 9] = [".json", ".html", ".htm", ".zip", ".tar", ".tgz", ".tar.gz", ".tar.zst", ".tzst"];

/// A file to send.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// Found by a name that other files have, too: no harm if it is one of those.
    pub(crate) is_guess: bool,
}

/// The files at a path: itself, or what may be snapshots below a folder, in order of their names.
pub(crate) fn files_at(path: &Path) -> Result<Vec<Found>> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot open {}", path.display()))?;
    if !metadata.is_dir() {
        return Ok(vec![Found { path: path.to_owned(), is_guess: false }]);
    }
    let mut files = Vec::new();
    let mut folders = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() && depth < MAX_DEPTH => folders.push((path, depth + 1)),
                Ok(metadata) if metadata.is_file() => files.extend(found(path)),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Whether the beginning of a file lets it be a snapshot, or an archive. One that cannot be read is left to whoever
/// tries.
pub(crate) fn may_be_snapshot(path: &Path) -> bool {
    let mut head = Vec::with_capacity(read::HEAD_BYTES);
    let read = File::open(path).and_then(|file| file.take(read::HEAD_BYTES as u64).read_to_end(&mut head));
    read.is_err() || read::recognize(&head).is_ok()
}

/// "runs/gpt" of "runs/gpt.tar.gz": the folder that an archive was made of, most likely.
pub(crate) fn without_archive_ending(path: &str) -> &str {
    const ENDINGS: [&str; 6] = [".tar.gz", ".tar.zst", ".tgz", ".tzst", ".tar", ".zip"];
    ENDINGS.iter().find_map(|ending| path.strip_suffix(ending)).unwrap_or(path)
}

fn found(path: PathBuf) -> Option<Found> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    // A name that begins with a dot is still being written, or hidden for another reason.
    if name.starts_with('.') {
        return None;
    }
    let stem = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    let is_sure = stem.ends_with(".pickle") || stem.ends_with(".pkl");
    let is_guess = GUESSES.iter().any(|ending| stem.ends_with(ending) || name.ends_with(ending));
    let is_found = is_sure || is_guess && !is_sidecar(&path);
    is_found.then_some(Found { path, is_guess: !is_sure })
}

/// `X.json` of a snapshot beside it.
fn is_sidecar(path: &Path) -> bool {
    const SNAPSHOTS: [&str; 6] = [".pickle", ".pickle.zst", ".pickle.gz", ".pkl", ".pkl.zst", ".pkl.gz"];
    let Some(stem) = path.to_str().and_then(|path| path.strip_suffix(".json")) else { return false };
    SNAPSHOTS.iter().any(|ending| Path::new(&format!("{stem}{ending}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_finds_snapshots_and_what_may_hold_some() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "a/rank0.pickle.zst",
            "a/rank0.json",
            "b/rank1.PKL",
            "converted.json",
            "page.html",
            "run.tar.gz",
            "run.zip",
            ".hidden.pickle",
            "train.py",
            "loss.csv",
            "c/model.safetensors",
        ];
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let found = files_at(folder.path()).unwrap();
        let said = found.iter().map(|found| {
            let path = found.path.strip_prefix(folder.path()).unwrap().display();
            format!("{path}{}", if found.is_guess { " ?" } else { "" })
        });
        let expected = [
            "a/rank0.pickle.zst",
            "b/rank1.PKL",
            "converted.json ?",
            "page.html ?",
            "run.tar.gz ?",
            "run.zip ?",
        ];
        assert_eq!(said.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_archive_is_named_for_the_folder_it_was_made_of() {
        assert_eq!(without_archive_ending("/runs/gpt.tar.gz"), "/runs/gpt");
        assert_eq!(without_archive_ending("/runs/gpt.zip"), "/runs/gpt");
        assert_eq!(without_archive_ending("/runs/gpt"), "/runs/gpt");
    }
}
