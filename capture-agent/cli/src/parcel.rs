//! What is sent: a file, or a snapshot out of an archive.

use std::{
    fs::{self, File},
    io::{self, Read},
    ops::ControlFlow,
    path::Path,
};

use tempfile::NamedTempFile;
use tidegauge_api::Sidecar;
use tidegauge_snapshot::{
    read::archive::{self, Member},
    words::counted,
};

use crate::search;

/// Something to send.
pub(crate) struct Parcel<'p> {
    /// The file with its bytes.
    pub(crate) file: &'p Path,
    /// What it is called in messages.
    pub(crate) shown: String,
    /// The path that tells its place.
    pub(crate) path: String,
    pub(crate) sidecar: Sidecar,
    /// Whether it may turn out to be something else without harm.
    pub(crate) is_guess: bool,
    /// Which snapshot of its archive it is, from 1.
    pub(crate) number: Option<u64>,
}

/// A part of what a file holds.
pub(crate) enum Part<'p> {
    Parcel(&'p Parcel<'p>),
    /// A snapshot of an archive, or the rest of them, cannot be had; the sentence says which and why.
    Lost(String),
}

/// Hands over the file, or every snapshot in it if it is an archive, until `visit` breaks. Otherwise returns how many
/// other files are in the archive.
pub(crate) fn each<B>(
    path: &Path,
    is_guess: bool,
    visit: &mut dyn FnMut(Part<'_>) -> ControlFlow<B>,
) -> ControlFlow<B, u64> {
    match each_member(path, visit) {
        Some(visited) => visited,
        None => visit(Part::Parcel(&Parcel::of_file(path, is_guess))).map_continue(|()| 0),
    }
}

/// `None` when the file is no archive.
fn each_member<B>(
    path: &Path,
    visit: &mut dyn FnMut(Part<'_>) -> ControlFlow<B>,
) -> Option<ControlFlow<B, u64>> {
    let file = File::open(path).ok()?;
    let mut visited = ControlFlow::Continue(());
    let mut n = 0;
    let listed = archive::each(file, |member, bytes| {
        n += 1;
        visited = each_copied(path, member, n, bytes, visit);
        Ok(if visited.is_continue() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    });
    match listed {
        Ok(None) => None,
        // Nothing came of it: the server will say what it is.
        Err(_) if n == 0 => None,
        Ok(Some(listing)) => Some(visited.map_continue(|()| listing.n_others)),
        Err(_) if visited.is_break() => Some(visited.map_continue(|()| 0)),
        Err(error) => {
            let lost = format!("{}: after {}: {error}", path.display(), counted(n, "snapshot"));
            Some(visit(Part::Lost(lost)).map_continue(|()| 0))
        }
    }
}

fn each_copied<B>(
    archive: &Path,
    member: &Member,
    number: u64,
    bytes: &mut dyn Read,
    visit: &mut dyn FnMut(Part<'_>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let shown = format!("{}: {}", archive.display(), member.path);
    // A file of its own, so that it can be sent again; its name is the system's, never the archive's.
    let copied = NamedTempFile::new().and_then(|mut file| {
        io::copy(bytes, &mut file)?;
        Ok(file)
    });
    let file = match copied {
        Ok(file) => file,
        Err(error) => {
            return visit(Part::Lost(format!("{shown}: cannot be copied out of the archive: {error}")));
        }
    };
    let path = format!("{}/{}", search::without_archive_ending(&absolute(archive)), member.path);
    let sidecar = Sidecar { file_name: Some(member.path.clone()), ..Sidecar::default() };
    let number = Some(number);
    visit(Part::Parcel(&Parcel { file: file.path(), shown, path, sidecar, is_guess: false, number }))
}

impl<'p> Parcel<'p> {
    pub(crate) fn of_file(file: &'p Path, is_guess: bool) -> Self {
        let mut sidecar = sidecar_beside(file).unwrap_or_default();
        let name = || Some(file.file_name()?.to_string_lossy().into_owned());
        sidecar.file_name = sidecar.file_name.or_else(name);
        let shown = file.display().to_string();
        Self { file, shown, path: absolute(file), sidecar, is_guess, number: None }
    }
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

/// `X.json` beside `X.pickle.zst`, if it is a sidecar.
pub(crate) fn sidecar_beside(file: &Path) -> Option<Sidecar> {
    let name = file.file_name()?.to_string_lossy();
    let stem = name.split_once(".pickle").or_else(|| name.split_once(".pkl"))?.0;
    let sidecar: Sidecar =
        serde_json::from_slice(&fs::read(file.with_file_name(format!("{stem}.json"))).ok()?).ok()?;
    (sidecar.sidecar > 0).then_some(sidecar)
}
