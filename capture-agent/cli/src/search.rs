//! Snapshots below a folder: told by their names, and where a name tells little, by their first bytes.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fs::{self, File, Metadata},
    io::{self, Read as _},
    ops::ControlFlow,
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
    let mut trouble = None;
    walk(path, &mut |step| {
        match step {
            Step::File(found, _) => files.push(found),
            Step::Unlisted(folder, error) => trouble = Some((folder, error)),
        }
        if trouble.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if let Some((folder, error)) = trouble {
        return Err(error).with_context(|| format!("cannot list {}", folder.display()));
    }
    files.sort();
    Ok(files)
}

/// What a walk comes past.
pub(crate) enum Step {
    File(Found, Metadata),
    /// A folder that cannot be listed, or not to its end.
    Unlisted(PathBuf, io::Error),
}

/// Comes past everything below a folder that may be a snapshot, in no order, until `visit` breaks.
pub(crate) fn walk(folder: &Path, visit: &mut dyn FnMut(Step) -> ControlFlow<()>) {
    let root = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        if walk_one(&root, &folder, depth, &mut folders, visit).is_break() {
            return;
        }
    }
}

fn walk_one(
    root: &Path,
    folder: &Path,
    depth: usize,
    folders: &mut Vec<(PathBuf, usize)>,
    visit: &mut dyn FnMut(Step) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return visit(Step::Unlisted(folder.to_owned(), error)),
    };
    let mut files = Vec::new();
    let mut unlisted = None;
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                unlisted = Some(error);
                break;
            }
        };
        let path = entry.path();
        let named = named(&path);
        let kind = entry.file_type().ok();
        // A plain file with a name of no interest costs a network's file server nothing.
        if kind.is_some_and(|kind| kind.is_file()) && named.is_none() {
            continue;
        }
        if kind.is_some_and(|kind| kind.is_symlink()) && leads_back(&path, root) {
            continue;
        }
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() && depth < MAX_DEPTH => folders.push((path, depth + 1)),
            Ok(metadata) if metadata.is_file() => files.extend(named.map(|named| (path, named, metadata))),
            _ => {}
        }
    }
    let sure = files.iter().filter(|(_, named, _)| *named == Named::ForSure);
    let snapshots: HashSet<_> = sure.filter_map(|(path, ..)| stem(path).map(str::to_owned)).collect();
    for (path, named, metadata) in files {
        let is_guess = named == Named::AsOthersToo;
        if !is_guess || !is_companion(&path, &snapshots) {
            visit(Step::File(Found { path, is_guess }, metadata))?;
        }
    }
    match unlisted {
        Some(error) => visit(Step::Unlisted(folder.to_owned(), error)),
        None => ControlFlow::Continue(()),
    }
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

/// Whether a link, such as "latest", leads to what the walk comes past anyway.
fn leads_back(link: &Path, root: &Path) -> bool {
    link.canonicalize().is_ok_and(|target| target.starts_with(root) || root.starts_with(target))
}

/// How sure a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    ForSure,
    AsOthersToo,
}

fn named(path: &Path) -> Option<Named> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    // A name that begins with a dot is still being written, or hidden for another reason.
    if name.starts_with('.') {
        return None;
    }
    let stem = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    if stem.ends_with(".pickle") || stem.ends_with(".pkl") {
        return Some(Named::ForSure);
    }
    let is_guess = GUESSES.iter().any(|ending| stem.ends_with(ending) || name.ends_with(ending));
    is_guess.then_some(Named::AsOthersToo)
}

/// "X" of the snapshot "X.pickle.zst".
fn stem(snapshot: &Path) -> Option<&str> {
    const SNAPSHOTS: [&str; 6] = [".pickle", ".pickle.zst", ".pickle.gz", ".pkl", ".pkl.zst", ".pkl.gz"];
    let name = snapshot.file_name()?.to_str()?;
    SNAPSHOTS.iter().find_map(|ending| name.strip_suffix(ending))
}

/// Whether it is `X.json`, the sidecar of a snapshot X beside it, or `X.html`, the page that composer makes of one.
fn is_companion(path: &Path, snapshots: &HashSet<String>) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let stem = [".json", ".html"].iter().find_map(|ending| name.strip_suffix(ending));
    stem.is_some_and(|stem| snapshots.contains(stem))
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
            "a/rank0.html",
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

    #[cfg(unix)]
    #[test]
    fn a_link_is_followed_unless_it_leads_back() {
        use std::os::unix::fs::symlink;
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = folder.path().join("run-7");
        fs::create_dir(&run).unwrap();
        fs::write(run.join("a.pickle"), "x").unwrap();
        fs::write(elsewhere.path().join("b.pickle"), "x").unwrap();
        symlink(&run, folder.path().join("latest")).unwrap();
        symlink(folder.path(), run.join("loop")).unwrap();
        symlink(run.join("a.pickle"), folder.path().join("newest.pickle")).unwrap();
        symlink(elsewhere.path(), folder.path().join("scratch")).unwrap();
        let found = files_at(folder.path()).unwrap();
        let paths = found.iter().map(|found| found.path.strip_prefix(folder.path()).unwrap());
        assert_eq!(paths.collect::<Vec<_>>(), [Path::new("run-7/a.pickle"), Path::new("scratch/b.pickle")]);
    }

    #[test]
    fn an_archive_is_named_for_the_folder_it_was_made_of() {
        assert_eq!(without_archive_ending("/runs/gpt.tar.gz"), "/runs/gpt");
        assert_eq!(without_archive_ending("/runs/gpt.zip"), "/runs/gpt");
        assert_eq!(without_archive_ending("/runs/gpt"), "/runs/gpt");
    }
}
