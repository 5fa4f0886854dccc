//! Sending a large snapshot in parts, by tus 1.0, so that a cut costs a part and not the whole.
//!
//! The beginning names the content, so that what the server has already is not sent at all. How far an upload came,
//! the server knows; we only have to remember which one it was, in a [`Bookmark`].

use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
};

use base64::Engine as _;
use serde_json::{Value, json};
use tidegauge_api::{Sidecar, paths, sidecar, snapshot::SnapshotDetails, tus};
use tidegauge_snapshot::read;
use ureq::http::{Response, StatusCode, header};

use crate::push::{PushError, Server, shortened};

/// How large a file is sent in parts, and how large a part is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InParts {
    pub(crate) from_bytes: u64,
    pub(crate) part_bytes: u64,
}

/// Smaller files are sent again in less time than asking where to go on takes; a cut costs a part at most.
impl Default for InParts {
    fn default() -> Self {
        Self { from_bytes: 8 << 20, part_bytes: 8 << 20 }
    }
}

/// Beginnings and questions where to go on within one try to send. Each means that somebody else moved the upload, or
/// that the server gave it up; past them the caller's own patience counts.
const MAX_TURNS: u32 = 4;

/// The most that is read of a bookmark's file, bytes: two addresses and a number.
const MAX_BOOKMARK_BYTES: u64 = 4096;

const ZSTD_LEVEL: i32 = 3;

/// Which upload a snapshot's bytes belong to. With a file it lasts, and another process goes on.
#[derive(Debug, Default)]
pub struct Bookmark {
    file: Option<PathBuf>,
    upload: Option<Upload>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Upload {
    server: String,
    path: String,
    length: u64,
}

/// What the server says at the beginning.
enum Begun {
    Upload(String),
    There(Box<SnapshotDetails>),
    /// It is older than uploads in parts.
    NotInParts,
}

enum Sent {
    Here(u64),
    Taken(Box<SnapshotDetails>),
    /// The upload is elsewhere than we thought.
    Moved,
    /// There is no such upload.
    Gone,
}

impl Bookmark {
    /// One that is kept in `file`. What cannot be kept there is kept in memory.
    pub fn in_file(file: PathBuf) -> Self {
        Self { upload: Upload::read(&file), file: Some(file) }
    }

    fn of(&self, server: &str, length: u64) -> Option<String> {
        let upload = self.upload.as_ref().filter(|upload| upload.server == server && upload.length == length);
        Some(upload?.path.clone())
    }

    fn put(&mut self, server: &str, path: &str, length: u64) {
        let upload = Upload { server: server.to_owned(), path: path.to_owned(), length };
        if let Some(file) = &self.file {
            // Lost, it costs sending once more what was sent.
            fs::write(file, upload.text()).ok();
        }
        self.upload = Some(upload);
    }

    fn take_out(&mut self) {
        self.upload = None;
        if let Some(file) = &self.file {
            fs::remove_file(file).ok();
        }
    }
}

impl Upload {
    fn text(&self) -> String {
        json!({ "server": self.server, "upload": self.path, "bytes": self.length }).to_string()
    }

    fn read(file: &Path) -> Option<Self> {
        if fs::metadata(file).ok()?.len() > MAX_BOOKMARK_BYTES {
            return None;
        }
        let read: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        let text = |name: &str| read.get(name)?.as_str().map(str::to_owned);
        // Only what we would have written: the file lies where others may write.
        let path = path_in(&text("upload")?, paths::UPLOADS)?;
        Some(Self { server: text("server")?, path, length: read.get("bytes")?.as_u64()? })
    }
}

impl Server {
    pub(crate) fn send_in_parts(
        &self,
        bookmark: &mut Bookmark,
        file: &Path,
        length: u64,
        sidecar: &Sidecar,
        progress: &mut dyn FnMut(u64),
    ) -> Result<SnapshotDetails, PushError> {
        let mut told = 0;
        let mut known = bookmark.of(&self.base, length);
        for _ in 0..MAX_TURNS {
            let (path, mut offset) = match known.take() {
                Some(path) => match self.offset_of(&path)? {
                    Some(offset) => (path, offset),
                    None => {
                        bookmark.take_out();
                        continue;
                    }
                },
                None => match self.begin(file, length, sidecar)? {
                    Begun::There(details) => return Ok(*details),
                    Begun::NotInParts => return self.send_at_once(file, length, sidecar, progress),
                    Begun::Upload(path) => {
                        bookmark.put(&self.base, &path, length);
                        (path, 0)
                    }
                },
            };
            if offset > told {
                progress(offset - told);
                told = offset;
            }
            loop {
                let mut count = |bytes| {
                    told += bytes;
                    progress(bytes);
                };
                match self.add(&path, file, offset, length, &mut count)? {
                    Sent::Here(now) if now > offset && now < length => offset = now,
                    Sent::Taken(details) => {
                        bookmark.take_out();
                        return Ok(*details);
                    }
                    Sent::Gone => {
                        bookmark.take_out();
                        break;
                    }
                    Sent::Here(_) | Sent::Moved => {
                        known = Some(path);
                        break;
                    }
                }
            }
        }
        Err(PushError::later(format!("{}: an upload in parts does not get on", self.base)))
    }

    fn begin(&self, file: &Path, length: u64, sidecar: &Sidecar) -> Result<Begun, PushError> {
        let request = self
            .authorized(self.agent.post(format!("{}{}", self.base, paths::UPLOADS)))?
            .header(tus::RESUMABLE, tus::VERSION)
            .header(tus::LENGTH, length.to_string())
            .header(tus::METADATA, metadata(file, sidecar));
        let answer = request.send_empty().map_err(|error| self.unanswered(&error))?;
        let status = answer.status();
        let unclear = || self.refused_without_reason(status);
        match status {
            StatusCode::CREATED => Ok(Begun::Upload(location(&answer, paths::UPLOADS).ok_or_else(unclear)?)),
            StatusCode::SEE_OTHER => {
                let here = self.details_at(&location(&answer, paths::SNAPSHOTS).ok_or_else(unclear)?)?;
                Ok(Begun::There(Box::new(SnapshotDetails { already_here: true, ..here })))
            }
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Ok(Begun::NotInParts),
            _ => Err(self.failure(answer)),
        }
    }

    /// Nothing where there is no such upload any more.
    fn offset_of(&self, path: &str) -> Result<Option<u64>, PushError> {
        let request = self.authorized(self.agent.head(format!("{}{path}", self.base)))?;
        let answer = request.header(tus::RESUMABLE, tus::VERSION).call();
        let answer = answer.map_err(|error| self.unanswered(&error))?;
        match answer.status() {
            StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::FORBIDDEN => Ok(None),
            status if status.is_success() => {
                offset_in(&answer).map(Some).ok_or_else(|| self.refused_without_reason(status))
            }
            _ => Err(self.failure(answer)),
        }
    }

    /// Sends the next part, or, where all is there, asks for it to be taken in.
    fn add(
        &self,
        path: &str,
        file: &Path,
        offset: u64,
        length: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Sent, PushError> {
        let part = (length - offset.min(length)).min(self.in_parts.part_bytes);
        let request = self
            .authorized(self.agent.patch(format!("{}{path}", self.base)))?
            .header(tus::RESUMABLE, tus::VERSION)
            .header(header::CONTENT_TYPE, tus::PART)
            .header(tus::OFFSET, offset.to_string());
        let answer = self.send_bytes(request, file, offset, part, progress)?;
        let status = answer.status();
        match (status, snapshot_in(&answer)) {
            (status, Some(snapshot)) if status.is_success() => {
                Ok(Sent::Taken(Box::new(self.details_at(&snapshot)?)))
            }
            (status, None) if status.is_success() => {
                offset_in(&answer).map(Sent::Here).ok_or_else(|| self.refused_without_reason(status))
            }
            (StatusCode::CONFLICT, _) => Ok(Sent::Moved),
            (StatusCode::NOT_FOUND | StatusCode::GONE, _) => Ok(Sent::Gone),
            _ => Err(self.failure(answer)),
        }
    }
}

/// The sidecar, compressed: proxies let headers of a few kilobytes through. One that is still too long travels without
/// its memory statistics, and says so.
fn metadata(file: &Path, sidecar: &Sidecar) -> String {
    let announced = match &sidecar.content_digest {
        Some(_) => sidecar.clone(),
        None => Sidecar { content_digest: content_digest(file), ..sidecar.clone() },
    };
    let encoded = |sidecar: &Sidecar| {
        let json = serde_json::to_vec(sidecar).expect("a sidecar's maps have strings for keys");
        let zstd =
            zstd::encode_all(json.as_slice(), ZSTD_LEVEL).expect("memory takes all that is written to it");
        let value = base64::engine::general_purpose::STANDARD.encode(zstd);
        (json.len() <= sidecar::MAX_JSON_BYTES).then(|| format!("{} {value}", tus::SIDECAR_ZSTD))
    };
    match encoded(&announced).filter(|header| header.len() <= sidecar::MAX_HEADER_BYTES) {
        Some(header) => header,
        None => encoded(&shortened(&announced)).unwrap_or_default(),
    }
}

/// What the server will find, if the file can be read to its end.
fn content_digest(file: &Path) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    read::copy_content(File::open(file).ok()?, &mut hasher).ok()?;
    Some(hasher.finalize().to_hex().to_string())
}

fn offset_in(answer: &Response<ureq::Body>) -> Option<u64> {
    answer.headers().get(tus::OFFSET)?.to_str().ok()?.parse().ok()
}

fn snapshot_in(answer: &Response<ureq::Body>) -> Option<String> {
    path_in(answer.headers().get(tus::SNAPSHOT)?.to_str().ok()?, paths::SNAPSHOTS)
}

fn location(answer: &Response<ureq::Body>, below: &str) -> Option<String> {
    path_in(answer.headers().get(header::LOCATION)?.to_str().ok()?, below)
}

/// "/api/v1/uploads/01M8…" out of an address, whatever a proxy put before it. No answer sends us to another server.
fn path_in(address: &str, below: &str) -> Option<String> {
    let id = address.split_once(below)?.1.strip_prefix('/')?;
    let is_id = !id.is_empty() && id.len() <= 64 && id.chars().all(|c| c.is_ascii_alphanumeric());
    is_id.then(|| format!("{below}/{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_gauge::{FakeGauge, Fault};

    const KIB: u64 = 1024;

    /// A server that takes parts of 64 KiB, and a snapshot of a megabyte for it.
    struct Story {
        gauge: FakeGauge,
        server: Server,
        folder: tempfile::TempDir,
    }

    impl Story {
        fn new(faults: &[(usize, Fault)]) -> Self {
            let gauge = FakeGauge::start(faults);
            let mut server = Server::new(&gauge.address, None, false).unwrap();
            server.in_parts = InParts { from_bytes: 256 * KIB, part_bytes: 64 * KIB };
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("large.pickle"), content()).unwrap();
            Self { gauge, server, folder }
        }

        fn bookmark(&self) -> Bookmark {
            Bookmark::in_file(self.folder.path().join("large.upload"))
        }

        fn send(&self, bookmark: &mut Bookmark) -> Result<SnapshotDetails, PushError> {
            let sidecar = Sidecar {
                place: tidegauge_api::Place {
                    run: Some("gpt".to_owned()),
                    rank: Some(3),
                    ..Default::default()
                },
                ..Sidecar::default()
            };
            self.server.send_from(bookmark, &self.folder.path().join("large.pickle"), &sidecar, &mut |_| {})
        }
    }

    /// Begins as a pickle does.
    fn content() -> Vec<u8> {
        let mut content = b"\x80\x04}".to_vec();
        content.extend((0..KIB * KIB).map(|i| (i % 251) as u8));
        content
    }

    #[test]
    fn a_large_snapshot_travels_in_parts_and_its_sidecar_with_the_beginning() {
        let story = Story::new(&[]);
        let details = story.send(&mut story.bookmark()).unwrap();
        assert!(!details.already_here);
        let [snapshot] = story.gauge.taken().try_into().unwrap();
        assert_eq!((snapshot.bytes, snapshot.sidecar.place.rank), (content(), Some(3)));
        let methods: Vec<_> =
            story.gauge.heads().iter().map(|head| head.split(' ').next().unwrap().to_owned()).collect();
        assert_eq!(
            (methods[0].as_str(), methods[1..].iter().filter(|m| *m == "PATCH").count()),
            ("POST", 17)
        );
        assert!(!story.folder.path().join("large.upload").exists());
    }

    #[test]
    fn content_that_the_server_has_is_not_sent() {
        let story = Story::new(&[]);
        story.send(&mut story.bookmark()).unwrap();
        assert!(story.send(&mut story.bookmark()).unwrap().already_here);
        let n_parts = story.gauge.heads().iter().filter(|head| head.starts_with("PATCH")).count();
        assert_eq!((n_parts, story.gauge.taken().len()), (17, 1));
    }

    #[test]
    fn after_a_cut_another_process_goes_on_where_the_server_is() {
        let story = Story::new(&[(5, Fault::CutInBody)]);
        let error = story.send(&mut story.bookmark()).unwrap_err();
        assert!(matches!(error, PushError::Later { .. }), "{error}");
        // Another process has nothing but the file.
        story.send(&mut story.bookmark()).unwrap();
        let heads = story.gauge.heads();
        assert_eq!(heads.iter().filter(|head| head.starts_with("POST")).count(), 1, "{heads:?}");
        assert!(heads.iter().any(|head| head.starts_with("HEAD")));
        let [snapshot] = story.gauge.taken().try_into().unwrap();
        assert_eq!(snapshot.bytes, content());
        assert!(story.gauge.received_bytes() < content().len() as u64 + 64 * KIB);
    }

    #[test]
    fn a_lost_last_answer_is_no_second_snapshot() {
        for last in [17, 18] {
            let story = Story::new(&[(last, Fault::CutAfterBody)]);
            let mut bookmark = Bookmark::default();
            assert!(matches!(story.send(&mut bookmark), Err(PushError::Later { .. })));
            assert!(story.send(&mut bookmark).unwrap().already_here);
            assert_eq!(story.gauge.taken().len(), 1);
        }
    }

    #[test]
    fn an_upload_that_the_server_gave_up_begins_anew() {
        let story = Story::new(&[(4, Fault::CutInBody), (5, Fault::ForgetUploads)]);
        let mut bookmark = Bookmark::default();
        assert!(story.send(&mut bookmark).is_err());
        story.send(&mut bookmark).unwrap();
        assert_eq!(story.gauge.taken()[0].bytes, content());
    }

    #[test]
    fn a_server_without_parts_gets_it_in_one() {
        let story = Story::new(&[(0, Fault::Status("404 Not Found"))]);
        story.send(&mut story.bookmark()).unwrap();
        let [snapshot] = story.gauge.taken().try_into().unwrap();
        assert_eq!((snapshot.bytes, snapshot.sidecar.place.rank), (content(), Some(3)));
    }

    #[test]
    fn a_refusal_at_the_beginning_costs_no_bytes() {
        let story = Story::new(&[(0, Fault::Status("507 Full\r\nRetry-After: 60"))]);
        let Err(PushError::Later { retry_after, .. }) = story.send(&mut story.bookmark()) else { panic!() };
        assert_eq!((retry_after.unwrap().as_secs(), story.gauge.received_bytes()), (60, 0));
    }

    #[test]
    fn a_bookmark_is_for_its_server_and_its_length_and_leads_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.upload");
        Bookmark::in_file(file.clone()).put("http://a", "/api/v1/uploads/01M8", 7);
        let bookmark = Bookmark::in_file(file.clone());
        assert_eq!(bookmark.of("http://a", 7).as_deref(), Some("/api/v1/uploads/01M8"));
        assert_eq!((bookmark.of("http://b", 7), bookmark.of("http://a", 8)), (None, None));
        for wrong in ["", "{", r#"{"server": "http://a", "upload": "/api/v1/uploads/../x", "bytes": 7}"#] {
            std::fs::write(&file, wrong).unwrap();
            assert_eq!(Bookmark::in_file(file.clone()).upload, None);
        }
        assert_eq!(
            path_in("https://evil/tide/api/v1/uploads/01M8", paths::UPLOADS).as_deref(),
            Some("/api/v1/uploads/01M8")
        );
    }
}
