//! Archives of snapshots: tar (plain or compressed) and zip, as people pack the folders of a run.
//!
//! An archive is passed once, from its beginning to its end, and its files are looked at where they lie: nothing
//! is unpacked, and a path in it is a name and never a place. What in it is no snapshot is counted. Archives
//! inside archives are not opened.

use std::cell::RefCell;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;

use rawzip::CompressionMethod;

use super::unwrap::{self, Budget, Content};
use super::{Judged, ReadError, judge, open_inside, strangers};
use crate::Snapshot;

/// Files of any kind that an archive may hold; one with more is refused.
pub const MAX_FILES: u64 = 1_000_000;

/// Snapshots that are listed of an archive; one with more is refused. 1,024 ranks with 64 steps each.
pub const MAX_SNAPSHOTS: usize = 65_536;

/// Longest path of a file, bytes: Linux's own limit. A file with a longer one is passed over.
const MAX_PATH_BYTES: usize = 4096;

/// Bytes of a file that tell whether it may be a snapshot.
const LOOK_BYTES: usize = 16 * 1024;

/// Snapshots that a sentence names.
const N_NAMED: usize = 3;

/// A snapshot in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its path in the archive, with `/` between the parts and without control characters.
    pub path: String,
    /// Its bytes as they lie in the archive's folders, so before its own gzip or zstd is taken off.
    pub bytes: u64,
}

/// What an archive holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// What may be snapshots, in the archive's order. Only opening one says for sure.
    pub snapshots: Vec<Member>,
    /// Files that are none.
    pub n_others: u64,
}

/// What passing through an archive calls for each snapshot, with its bytes. `Break` ends the pass.
type Visit<'v> = dyn FnMut(&Member, &mut dyn Read) -> Result<ControlFlow<()>, ReadError> + 'v;

/// Lists the snapshots of an archive; nothing when the file is no archive.
///
/// # Errors
/// [`ReadError`] when the archive is damaged, cut, or beyond the bounds of this module.
pub fn list(file: impl Read + Seek) -> Result<Option<Listing>, ReadError> {
    each(file, |_, _| Ok(ControlFlow::Continue(())))
}

/// Calls `visit` for each snapshot of an archive, with its bytes as they lie in it; nothing when the file is no
/// archive. What `visit` leaves unread is passed over.
///
/// # Errors
/// The errors of `visit`, and [`ReadError`] when the archive is damaged, cut, or beyond the bounds of this module.
pub fn each(
    file: impl Read + Seek,
    mut visit: impl FnMut(&Member, &mut dyn Read) -> Result<ControlFlow<()>, ReadError>,
) -> Result<Option<Listing>, ReadError> {
    let Some(mut archive) = Archive::find(file)? else { return Ok(None) };
    let pass = archive.pass(&mut visit)?;
    Ok(Some(pass.listing))
}

/// Opens one snapshot of an archive.
///
/// # Errors
/// [`ReadError`] when the file is no archive, has no such snapshot, or that one does not open.
pub fn open_member(file: impl Read + Seek, path: &str) -> Result<Snapshot, ReadError> {
    let Some(mut archive) = Archive::find(file)? else {
        let message = "this is no archive, so nothing can be chosen from it; open the file itself";
        return Err(ReadError::new(ReadError::NOT_A_SNAPSHOT, None, message));
    };
    let budget = archive.inside();
    let mut found = None;
    let pass = archive.pass(&mut |member, bytes| {
        if member.path != path {
            return Ok(ControlFlow::Continue(()));
        }
        found = Some(open_inside(bytes, &budget).map_err(|error| error.within(&member.path))?);
        Ok(ControlFlow::Break(()))
    })?;
    match found {
        Some(snapshot) => Ok(archive.around(snapshot)),
        None => {
            let message = format!("no snapshot in the archive is called {path}; it holds {}", pass.said());
            Err(ReadError::new(ReadError::NOT_A_SNAPSHOT, None, message))
        }
    }
}

/// An archive about to be passed.
pub(crate) struct Archive<'a> {
    files: Box<dyn Files + 'a>,
    wrapping: Vec<&'static str>,
    budget: Budget,
}

impl<'a> Archive<'a> {
    /// The archive that a file is; nothing when it is none.
    fn find(mut file: impl Read + Seek + 'a) -> Result<Option<Self>, ReadError> {
        if is_zip(&mut file)? {
            return Self::of_zip(file).map(Some);
        }
        let budget = Budget::default();
        let (content, wrapping) = unwrap::unwrap(budget.count(file), &budget)?;
        Ok(match content {
            Content::Tar(bytes) => Some(Self::of_tar(bytes, wrapping, budget)),
            _ => None,
        })
    }

    /// A tar archive that stands inside these wrappings.
    pub(crate) fn of_tar(bytes: Box<dyn Read + 'a>, wrapping: Vec<&'static str>, budget: Budget) -> Self {
        Self { files: Box::new(Tar(bytes)), wrapping, budget }
    }

    /// A zip archive, which is a file of its own.
    pub(crate) fn of_zip(mut file: impl Read + Seek + 'a) -> Result<Self, ReadError> {
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| unwrap::from_io(&error, 0))?;
        let files = Box::new(Zip { file: At(RefCell::new(file)), bytes });
        Ok(Self { files, wrapping: vec!["zip"], budget: Budget::of_file(bytes) })
    }

    /// A budget for the bytes of its files.
    pub(crate) fn inside(&self) -> Budget {
        self.budget.inside()
    }

    /// The one snapshot that is inside.
    ///
    /// # Errors
    /// [`ReadError`] when there is none, or more than one.
    pub(crate) fn open_only(mut self) -> Result<Snapshot, ReadError> {
        let budget = self.inside();
        let mut only = None;
        self.pass_for_only(&mut |member, bytes| {
            only = Some(open_inside(bytes, &budget).map_err(|error| error.within(&member.path)));
            Ok(ControlFlow::Continue(()))
        })?;
        let snapshot = only.expect("the pass found one, or failed")?;
        Ok(self.around(snapshot))
    }

    /// Passes the whole archive; `visit` gets the first snapshot, and the pass fails unless it is the only one.
    pub(crate) fn pass_for_only(&mut self, visit: &mut Visit<'_>) -> Result<(), ReadError> {
        let mut n = 0_u32;
        let mut failed = None;
        let pass = self.pass(&mut |member, bytes| {
            n += 1;
            if n == 1 {
                failed = visit(member, bytes).err();
            }
            Ok(ControlFlow::Continue(()))
        });
        // A snapshot that is cut ends a cut archive: its own sentence says more.
        match (pass, failed) {
            (Ok(pass), _) if n > 1 => {
                let message = format!("this archive holds {}; choose one of them, or unpack it", pass.said());
                Err(ReadError::new(ReadError::ARCHIVE, None, message))
            }
            (Ok(pass), _) if n == 0 => Err(pass.refusal()),
            (_, Some(error)) => Err(error),
            (pass, None) => pass.map(|_| ()),
        }
    }

    /// Calls `visit` for each snapshot.
    fn pass(&mut self, visit: &mut Visit<'_>) -> Result<Pass, ReadError> {
        let mut pass = Pass::default();
        let inside = self.inside();
        let mut n_files = 0;
        self.files.each(&mut |file, bytes| {
            n_files += 1;
            if n_files > MAX_FILES {
                let message = format!(
                    "the archive holds more than {MAX_FILES} files; unpack it, and open or send what \
                                       is needed"
                );
                return Err(ReadError::new(ReadError::TOO_LARGE, None, message));
            }
            pass.look(file, inside.bound(bytes), visit)
        })?;
        Ok(pass)
    }

    fn around(&self, mut snapshot: Snapshot) -> Snapshot {
        let inner = std::mem::take(&mut snapshot.wrapping);
        snapshot.wrapping = self.wrapping.iter().map(|&name| name.to_owned()).chain(inner).collect();
        snapshot
    }
}

/// A file of an archive, of whatever kind.
struct Entry<'e> {
    path: &'e [u8],
    bytes: u64,
    /// Why it cannot be read, when it cannot.
    unread: Option<&'static str>,
}

/// What passing through an archive's files calls for each. `Break` ends the pass.
type VisitFile<'v> = dyn FnMut(&Entry<'_>, &mut dyn Read) -> Result<ControlFlow<()>, ReadError> + 'v;

/// The files of an archive, in its order.
trait Files {
    fn each(&mut self, visit: &mut VisitFile<'_>) -> Result<(), ReadError>;
}

/// What a pass has seen so far.
#[derive(Default)]
struct Pass {
    listing: Listing,
    names: Vec<u8>,
    /// The first file that is named like a snapshot and is none, and why.
    first_refused: Option<ReadError>,
}

impl Pass {
    fn look(
        &mut self,
        file: &Entry<'_>,
        bytes: Box<dyn Read + '_>,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, ReadError> {
        if self.names.len() < 4 * MAX_PATH_BYTES {
            self.names.extend_from_slice(file.path);
            self.names.push(b'\n');
        }
        if file.path.len() > MAX_PATH_BYTES {
            self.listing.n_others += 1;
            return Ok(ControlFlow::Continue(()));
        }
        let member = Member { path: shown(file.path), bytes: file.bytes };
        let look = match file.unread {
            Some(why) => Err(ReadError::new(ReadError::REFUSED, None, why)),
            None => unwrap::peek(bytes, LOOK_BYTES).and_then(|(head, rest)| {
                match judge(&head, head.len() < LOOK_BYTES)? {
                    Judged::MayBeSnapshot => Ok(rest),
                    Judged::Archive => {
                        let message = "it is an archive in an archive; unpack the outer one";
                        Err(ReadError::new(ReadError::REFUSED, None, message))
                    }
                }
            }),
        };
        match look {
            Ok(mut bytes) => {
                if self.listing.snapshots.len() == MAX_SNAPSHOTS {
                    let message = format!(
                        "the archive holds more than {MAX_SNAPSHOTS} snapshots; unpack it, or split it"
                    );
                    return Err(ReadError::new(ReadError::TOO_LARGE, None, message));
                }
                let went_on = visit(&member, &mut bytes);
                self.listing.snapshots.push(member);
                went_on
            }
            Err(error) if error.code() == ReadError::TOO_LARGE || error.code() == ReadError::IO => Err(error),
            Err(error) => {
                self.listing.n_others += 1;
                if self.first_refused.is_none() && is_named_like_a_snapshot(&member.path) {
                    self.first_refused = Some(error.within(&member.path));
                }
                Ok(ControlFlow::Continue(()))
            }
        }
    }

    /// "24 snapshots: a.pickle, b.pickle, c.pickle and 21 more"
    fn said(&self) -> String {
        let snapshots = &self.listing.snapshots;
        let named: Vec<&str> = snapshots.iter().take(N_NAMED).map(|member| &*member.path).collect();
        match snapshots.len() {
            0 => "no snapshots".to_owned(),
            1 => format!("1 snapshot: {}", named[0]),
            n if n <= N_NAMED => format!("{n} snapshots: {}", named.join(", ")),
            n => format!("{n} snapshots: {} and {} more", named.join(", "), n - N_NAMED),
        }
    }

    /// Why nothing in the archive can be shown.
    fn refusal(self) -> ReadError {
        if let Some(error) = strangers::zip_of(&self.names) {
            return error;
        }
        self.first_refused.unwrap_or_else(|| {
            let message = format!(
                "this archive holds no memory snapshot among its {} files; snapshots come from \
                 torch.cuda.memory._dump_snapshot()",
                self.listing.n_others
            );
            ReadError::new(ReadError::NOT_A_SNAPSHOT, None, message)
        })
    }
}

struct Tar<R>(R);

impl<R: Read> Files for Tar<R> {
    fn each(&mut self, visit: &mut VisitFile<'_>) -> Result<(), ReadError> {
        let mut archive = tar::Archive::new(&mut self.0);
        let entries = archive.entries().map_err(|error| broken_tar(&error))?;
        for entry in entries {
            let mut entry = entry.map_err(|error| broken_tar(&error))?;
            if !entry.header().entry_type().is_file() && !entry.header().entry_type().is_gnu_sparse() {
                continue;
            }
            let path = entry.path_bytes().into_owned();
            let file = Entry { path: &path, bytes: entry.size(), unread: None };
            if visit(&file, &mut entry)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

struct Zip<R> {
    file: At<R>,
    bytes: u64,
}

impl<R: Read + Seek> Files for Zip<R> {
    fn each(&mut self, visit: &mut VisitFile<'_>) -> Result<(), ReadError> {
        // The comment after the table of contents has at most 64 KiB.
        const MAX_TAIL_BYTES: u64 = 66 * 1024;
        let mut buffer = vec![0; rawzip::MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
        let locator = rawzip::ZipArchive::with_max_search_space(MAX_TAIL_BYTES);
        let archive = locator
            .locate_in_reader(&self.file, &mut buffer, self.bytes)
            .map_err(|(_, error)| broken_zip(&error))?;
        let mut entries = archive.entries(&mut buffer);
        while let Some(entry) = entries.next_entry().map_err(|error| broken_zip(&error))? {
            if entry.is_dir() {
                continue;
            }
            let path = entry.file_path().as_bytes().to_owned();
            let method = entry.compression_method();
            let unread = if entry.flags().is_encrypted() {
                Some("it is encrypted; unpack the archive first")
            } else if ![CompressionMethod::STORE, CompressionMethod::DEFLATE, CompressionMethod::ZSTD]
                .contains(&method)
            {
                Some("it is compressed in a way that is not read here; unpack the archive first")
            } else {
                None
            };
            let file = Entry { path: &path, bytes: entry.uncompressed_size_hint(), unread };
            let place = archive.get_entry(entry.wayfinder()).map_err(|error| broken_zip(&error))?;
            let raw = io::BufReader::with_capacity(WINDOW, place.reader());
            let mut bytes: Box<dyn Read + '_> = match method {
                CompressionMethod::DEFLATE => {
                    Box::new(place.verifying_reader(flate2::bufread::DeflateDecoder::new(raw)))
                }
                CompressionMethod::ZSTD if unread.is_none() => {
                    Box::new(place.verifying_reader(unwrap::zstd_reader(raw)?))
                }
                _ => Box::new(place.verifying_reader(raw)),
            };
            if visit(&file, &mut bytes)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// Bytes of a zip archive read at a time.
const WINDOW: usize = 64 * 1024;

/// A file that is read here and there.
struct At<R>(RefCell<R>);

impl<R: Read + Seek> rawzip::ReaderAt for At<R> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut file = self.0.borrow_mut();
        file.seek(SeekFrom::Start(offset))?;
        file.read(buf)
    }
}

/// Whether a file is a zip archive; leaves it at its beginning.
///
/// # Errors
/// [`ReadError`] when it is one that holds something else for sure, or cannot be read.
pub(crate) fn is_zip(file: &mut (impl Read + Seek)) -> Result<bool, ReadError> {
    let failed = |error: io::Error| unwrap::from_io(&error, 0);
    let mut head = Vec::with_capacity(strangers::HEAD_BYTES);
    file.by_ref().take(strangers::HEAD_BYTES as u64).read_to_end(&mut head).map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    unwrap::is_zip(&head)
}

fn broken_tar(error: &io::Error) -> ReadError {
    let read = unwrap::from_io(error, 0);
    if [ReadError::TOO_LARGE, ReadError::IO].contains(&read.code()) {
        return read;
    }
    // What tar 0.4 says, as errors of kind Other, of a header and of a file that end early.
    const ENDS_EARLY: [&str; 2] = ["failed to read entire block", "unexpected EOF"];
    let text = error.to_string();
    if read.code() == ReadError::CUT || ENDS_EARLY.iter().any(|known| text.contains(known)) {
        let message = "the archive ends early: it was cut while being written or copied";
        return ReadError::new(ReadError::CUT, None, message);
    }
    ReadError::new(ReadError::DAMAGED, None, format!("the archive is damaged: {error}"))
}

fn broken_zip(error: &rawzip::Error) -> ReadError {
    match error.kind() {
        rawzip::ErrorKind::IO(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            unwrap::from_io(error, 0)
        }
        rawzip::ErrorKind::MissingEndOfCentralDirectory => {
            let message = "the archive ends early: a zip archive ends with its table of contents, and there is none; \
                           it was cut while being written or copied";
            ReadError::new(ReadError::CUT, None, message)
        }
        _ => ReadError::new(ReadError::DAMAGED, None, format!("the archive is damaged: {error}")),
    }
}

/// A path as text for people and flags: control characters could speak to a terminal.
fn shown(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let text = text.strip_prefix("./").unwrap_or(&text);
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn is_named_like_a_snapshot(path: &str) -> bool {
    let stem = [".gz", ".zst"].iter().find_map(|ending| path.strip_suffix(ending)).unwrap_or(path);
    stem.ends_with(".pickle") || stem.ends_with(".pkl")
}
