//! Sending one snapshot to a server.
//!
//! A small one travels in one request: the file's bytes as the body, the sidecar in a header. A large one travels in
//! [`parts`](crate::parts) and goes on after a cut. The server tells a repeat from a new snapshot by its content, so a
//! snapshot may be sent again whenever the answer was lost. Who sends again, and when, is the caller's choice:
//! [`PushError::Later`] says that it makes sense.

use std::{
    fs::File,
    io::{self, Read, Seek as _, SeekFrom, Take},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::Engine as _;
use tidegauge_api::{
    Problem, Sidecar, paths, problem, samples::SampleBatch, sidecar, snapshot::SnapshotDetails,
};
use ureq::{
    SendBody,
    http::{Response, StatusCode, header},
};

use crate::{
    connection::{Connection, Credentials, Throttle, Token},
    parts::{Bookmark, InParts},
};

pub use crate::connection::{AddressError, DEFAULT_SERVER};

/// The most that is read of an answer, bytes: details hold a sidecar and an inspection. A longer one is an error.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

/// A server to push to.
#[derive(Debug, Clone)]
pub struct Server {
    pub(crate) base: String,
    credentials: Arc<Credentials>,
    pub(crate) agent: ureq::Agent,
    throttle: Option<Arc<Throttle>>,
    pub(crate) in_parts: InParts,
}

/// Why a snapshot was not sent.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// It cannot be read here.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The server is away or busy: the same request may work later.
    #[error("{reason}")]
    Later {
        /// What happened.
        reason: String,
        /// When the server wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// The server said no and would say so again.
    #[error("{}", .0.detail)]
    Refused(Problem),
}

impl PushError {
    /// The [`Problem::kind`] of a file that is no snapshot.
    pub const NOT_A_SNAPSHOT: &'static str = "not-a-snapshot";

    /// The [`Problem::kind`] of bytes that are not those that were announced.
    pub const DIGEST_MISMATCH: &'static str = "digest-mismatch";

    /// The [`Problem::kind`] of an answer that no server of ours gave: a proxy's, say, that lets no large body through.
    const NOT_OURS: &'static str = "not-a-tidegauge-server";

    /// Whether the server refused this very snapshot, rather than whoever sends it.
    pub fn is_about_the_snapshot(&self) -> bool {
        let is_about_it = |problem: &Problem| {
            matches!(problem.status, 400 | 409 | 413 | 415 | 422) && problem.kind != Self::NOT_OURS
        };
        matches!(self, Self::Refused(problem) if is_about_it(problem))
    }

    pub(crate) fn later(reason: impl Into<String>) -> Self {
        Self::Later { reason: reason.into(), retry_after: None }
    }

    fn is_about_the_token(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.status == 401)
    }
}

impl Server {
    /// A server at `address`, which may have a path. Without `insecure` another machine is only reached over https.
    ///
    /// # Errors
    /// [`AddressError`] when the address is none, or what is sent would be readable on its way.
    pub fn new(address: &str, token: Option<&str>, insecure: bool) -> Result<Self, AddressError> {
        let token = token.map_or(Token::None, |token| Token::Given(token.to_owned()));
        Self::connect(&Connection { token, insecure, ..Connection::to(address) })
    }

    /// A server as it is described.
    ///
    /// # Errors
    /// [`AddressError`] when the description makes no sense. Whether the server is there shows later.
    pub fn connect(connection: &Connection) -> Result<Self, AddressError> {
        let (base, agent) = connection.open()?;
        let credentials = Arc::new(Credentials::new(connection.token.clone()));
        let throttle = connection.rate.map(|rate| Arc::new(Throttle::new(rate)));
        Ok(Self { base, credentials, agent, throttle, in_parts: InParts::default() })
    }

    /// The address, without a slash at its end.
    pub fn address(&self) -> &str {
        &self.base
    }

    /// Whether a token was given.
    pub fn has_token(&self) -> bool {
        self.credentials.has_token()
    }

    /// Whether it is there, can take snapshots, and knows the token.
    ///
    /// # Errors
    /// [`PushError::Later`] when it is away, busy or full; [`PushError::Refused`] when it does not know the token
    /// or is another kind of server.
    pub fn check(&self) -> Result<(), PushError> {
        self.with_the_latest_token(&mut || {
            self.get(paths::READYZ)?;
            let answer = self.get(paths::RUNS)?;
            match has_media_type(&answer, "application/json") {
                true => Ok(()),
                false => Err(self.refused_without_reason(answer.status())),
            }
        })
    }

    /// Sends a batch of samples. One that was sent before changes nothing.
    ///
    /// # Errors
    /// [`PushError`], whose kind says whether to try again.
    pub fn send_samples(&self, batch: &SampleBatch) -> Result<(), PushError> {
        let json = serde_json::to_vec(batch).expect("a batch is words and numbers");
        self.knowing_the_token(&mut || {
            let request = self.authorized(self.agent.post(format!("{}{}", self.base, paths::SAMPLES)))?;
            let answer = request.header("Content-Type", "application/json").send(&json);
            let answer = answer.map_err(|error| self.unanswered(&error))?;
            match (answer.status().is_success(), has_media_type(&answer, "application/json")) {
                (true, true) => Ok(()),
                (true, false) => Err(self.refused_without_reason(answer.status())),
                (false, _) => Err(self.failure(answer)),
            }
        })
    }

    /// Sends the snapshot in `file`. `progress` is told how many bytes went out with each read.
    ///
    /// # Errors
    /// [`PushError`], whose kind says whether to try again.
    pub fn send(
        &self,
        file: &Path,
        sidecar: &Sidecar,
        progress: &mut dyn FnMut(u64),
    ) -> Result<SnapshotDetails, PushError> {
        self.send_from(&mut Bookmark::default(), file, sidecar, progress)
    }

    /// Sends the snapshot in `file`, going on where `bookmark` says that an earlier try came to.
    ///
    /// # Errors
    /// [`PushError`], whose kind says whether to try again.
    pub fn send_from(
        &self,
        bookmark: &mut Bookmark,
        file: &Path,
        sidecar: &Sidecar,
        progress: &mut dyn FnMut(u64),
    ) -> Result<SnapshotDetails, PushError> {
        let cannot_read = |source| PushError::File { path: file.to_owned(), source };
        let length = file.metadata().map_err(cannot_read)?.len();
        self.knowing_the_token(&mut || match length >= self.in_parts.from_bytes {
            true => self.send_in_parts(bookmark, file, length, sidecar, progress),
            false => self.send_at_once(file, length, sidecar, progress),
        })
    }

    /// All of it in one request.
    pub(crate) fn send_at_once(
        &self,
        file: &Path,
        length: u64,
        sidecar: &Sidecar,
        progress: &mut dyn FnMut(u64),
    ) -> Result<SnapshotDetails, PushError> {
        let url = format!("{}{}", self.base, paths::SNAPSHOTS);
        let request = self
            .authorized(self.agent.post(url))?
            .header("Content-Type", "application/octet-stream")
            // A server that is full says so before the body is on its way.
            .header("Expect", "100-continue")
            .header(sidecar::HEADER, header(sidecar));
        let answer = self.send_bytes(request, file, 0, length, progress)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(self.failure(answer));
        }
        self.details_in(answer)
    }

    /// Sends `length` bytes of a file, from `offset` on, as a request's body.
    pub(crate) fn send_bytes(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        file: &Path,
        offset: u64,
        length: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Response<ureq::Body>, PushError> {
        let cannot_read = |source| PushError::File { path: file.to_owned(), source };
        let mut bytes = File::open(file).map_err(cannot_read)?;
        bytes.seek(SeekFrom::Start(offset)).map_err(cannot_read)?;
        let (mut failed_read, throttle) = (None, self.throttle.as_deref());
        let mut body = Body { bytes: bytes.take(length), progress, throttle, failed: &mut failed_read };
        let request = request.header("Content-Length", length.to_string());
        let answer = request.send(SendBody::from_reader(&mut body));
        match (answer, failed_read) {
            (_, Some(source)) => Err(cannot_read(source)),
            (Ok(answer), None) => Ok(answer),
            (Err(error), None) => Err(self.unanswered(&error)),
        }
    }

    /// Asks for the details at an address of this server.
    pub(crate) fn details_at(&self, path: &str) -> Result<SnapshotDetails, PushError> {
        let answer = self.get(path)?;
        self.details_in(answer)
    }

    fn details_in(&self, answer: Response<ureq::Body>) -> Result<SnapshotDetails, PushError> {
        let status = answer.status();
        let bytes = bytes_of(answer).map_err(|error| self.unanswered(&error))?;
        serde_json::from_slice(&bytes).map_err(|_not_details| self.refused_without_reason(status))
    }

    fn get(&self, path: &str) -> Result<Response<ureq::Body>, PushError> {
        let request = self.authorized(self.agent.get(format!("{}{path}", self.base)))?;
        let answer = request.call().map_err(|error| self.unanswered(&error))?;
        if answer.status().is_success() { Ok(answer) } else { Err(self.failure(answer)) }
    }

    /// A request that says who we are.
    pub(crate) fn authorized<T>(
        &self,
        request: ureq::RequestBuilder<T>,
    ) -> Result<ureq::RequestBuilder<T>, PushError> {
        match self.credentials.authorization() {
            Ok(Some(authorization)) => Ok(request.header(header::AUTHORIZATION, authorization)),
            Ok(None) => Ok(request),
            // The file may come, as a secret does that is being replaced.
            Err(sentence) => Err(PushError::later(sentence)),
        }
    }

    /// Does something with the token, and says to come back where the server does not know it yet.
    fn knowing_the_token<T>(&self, work: &mut dyn FnMut() -> Result<T, PushError>) -> Result<T, PushError> {
        match self.with_the_latest_token(work) {
            // Whoever replaces a token changes the file and the server, one after the other.
            Err(error) if error.is_about_the_token() && self.credentials.is_file() => {
                Err(PushError::later(error.to_string()))
            }
            done => done,
        }
    }

    /// Does something; once more where the server does not know the token and its file holds another one by now.
    fn with_the_latest_token<T>(
        &self,
        work: &mut dyn FnMut() -> Result<T, PushError>,
    ) -> Result<T, PushError> {
        let done = work();
        match &done {
            Err(error) if error.is_about_the_token() && self.credentials.is_renewed() => work(),
            _ => done,
        }
    }

    /// What an answer means that is no success.
    pub(crate) fn failure(&self, answer: Response<ureq::Body>) -> PushError {
        let status = answer.status();
        let retry_after = retry_after(&answer);
        let is_problem = has_media_type(&answer, problem::MEDIA_TYPE);
        let bytes = match bytes_of(answer) {
            Ok(bytes) => bytes,
            Err(error) => return self.unanswered(&error),
        };
        let problem = is_problem.then(|| serde_json::from_slice::<Problem>(&bytes).ok()).flatten();
        if status.is_server_error()
            || matches!(
                status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::LOCKED
            )
        {
            let reason = match problem {
                Some(problem) => problem.detail,
                None => format!("{} answered {status}", self.base),
            };
            return PushError::Later { reason, retry_after };
        }
        problem.map_or_else(|| self.refused_without_reason(status), PushError::Refused)
    }

    pub(crate) fn unanswered(&self, error: &ureq::Error) -> PushError {
        PushError::later(format!("no answer from {}: {error}", self.base))
    }

    pub(crate) fn refused_without_reason(&self, status: StatusCode) -> PushError {
        PushError::Refused(Problem {
            kind: PushError::NOT_OURS.to_owned(),
            title: "Not a Tidegauge server".to_owned(),
            status: status.as_u16(),
            detail: format!("{} answered {status}, but not as a Tidegauge server does", self.base),
        })
    }
}

/// A body that tells how far it is, and remembers that reading it failed: that is no fault of the server's.
struct Body<'a> {
    /// No more than was announced, should the file grow.
    bytes: Take<File>,
    progress: &'a mut dyn FnMut(u64),
    throttle: Option<&'a Throttle>,
    failed: &'a mut Option<io::Error>,
}

impl Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let longest = self.throttle.map_or(buffer.len(), Throttle::piece).min(buffer.len());
        match self.bytes.read(&mut buffer[..longest]) {
            // The server would wait for the rest.
            Ok(0) if self.bytes.limit() > 0 && !buffer.is_empty() => {
                *self.failed = Some(io::Error::other("it got shorter while it was sent"));
                Err(io::Error::other("the file got shorter"))
            }
            Ok(n) => {
                if let Some(throttle) = self.throttle {
                    throttle.pay(n);
                }
                (self.progress)(n as u64);
                Ok(n)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                *self.failed = Some(error);
                Err(io::Error::other("the file cannot be read"))
            }
        }
    }
}

/// The sidecar as its header carries it. One too long for a header travels without its memory statistics, and
/// says so.
fn header(sidecar: &Sidecar) -> String {
    let encoded = |sidecar: &Sidecar| {
        let json = serde_json::to_vec(sidecar).expect("a sidecar's maps have strings for keys");
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json)
    };
    let header = encoded(sidecar);
    if header.len() <= sidecar::MAX_HEADER_BYTES { header } else { encoded(&shortened(sidecar)) }
}

/// The sidecar without its memory statistics.
pub(crate) fn shortened(sidecar: &Sidecar) -> Sidecar {
    let mut shorter = sidecar.clone();
    shorter.memory_stats.clear();
    shorter.more.clear();
    shorter.more.insert("left_out".to_owned(), "memory_stats: the sidecar was too long for a header".into());
    shorter
}

fn bytes_of(answer: Response<ureq::Body>) -> Result<Vec<u8>, ureq::Error> {
    answer.into_body().into_with_config().limit(MAX_ANSWER_BYTES).read_to_vec()
}

/// "120", or a date. Dates are counted from the answer's own, so that clocks need not agree.
fn retry_after(answer: &Response<ureq::Body>) -> Option<Duration> {
    let text = |name| answer.headers().get(name)?.to_str().ok().map(str::trim);
    let asked = text(header::RETRY_AFTER)?;
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text| httpdate::parse_http_date(text).ok();
    let (until, now) = (date(asked)?, date(text(header::DATE)?)?);
    Some(until.duration_since(now).unwrap_or_default())
}

fn has_media_type(answer: &Response<ureq::Body>, media_type: &str) -> bool {
    let found = answer.headers().get("Content-Type").and_then(|value| value.to_str().ok());
    found.is_some_and(|found| found.split(';').next().is_some_and(|found| found.trim() == media_type))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, net::TcpListener};

    use tidegauge_api::Place;

    use super::*;
    use crate::fake_server::{Answer, FakeServer, Received};

    fn sidecar() -> Sidecar {
        Sidecar {
            place: Place {
                run: Some("gpt".to_owned()),
                rank: Some(3),
                last_step: Some(5),
                ..Place::default()
            },
            ..Sidecar::default()
        }
    }

    fn sent(address: &str, token: Option<&str>, sidecar: &Sidecar) -> Result<SnapshotDetails, PushError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("snapshot.pickle");
        std::fs::write(&file, b"a pickle").unwrap();
        Server::new(address, token, false).unwrap().send(&file, sidecar, &mut |_| {})
    }

    fn answered(answer: fn() -> Answer) -> Result<SnapshotDetails, PushError> {
        let server = FakeServer::start(move |_| answer());
        sent(&server.address, None, &sidecar())
    }

    #[test]
    fn the_bytes_travel_as_the_body_and_the_sidecar_in_its_header() {
        let server = FakeServer::that_takes_all();
        let details = sent(&server.address, Some("secret"), &sidecar()).unwrap();
        assert_eq!(details.run_name, "gpt");
        let [request] = server.received().try_into().unwrap();
        assert_eq!(request.line, "POST /api/v1/snapshots HTTP/1.1");
        assert_eq!(request.headers["authorization"], "Bearer secret");
        assert_eq!(request.headers["content-length"], "8");
        assert_eq!(request.body, b"a pickle");
        assert_eq!(request.sidecar(), sidecar());
    }

    #[test]
    fn a_file_that_gets_shorter_while_it_is_sent_is_given_up_at_once() {
        let server = FakeServer::that_takes_all();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot.pickle");
        std::fs::write(&path, vec![0; 4 << 20]).unwrap();
        let mut cut = |_| std::fs::write(&path, b"shorter").unwrap();
        let error =
            Server::new(&server.address, None, false).unwrap().send(&path, &sidecar(), &mut cut).unwrap_err();
        assert!(error.to_string().ends_with("it got shorter while it was sent"), "{error}");
        assert!(server.received().is_empty());
    }

    #[test]
    fn a_refusal_is_the_servers_own_sentence() {
        let error = answered(|| Answer::problem(422, "this is a web page")).unwrap_err();
        assert_eq!(error.to_string(), "this is a web page");
        assert!(error.is_about_the_snapshot());
        let error = answered(|| Answer::problem(401, "a token is needed")).unwrap_err();
        assert!(matches!(error, PushError::Refused(_)) && !error.is_about_the_snapshot());
    }

    #[test]
    fn a_server_that_refuses_before_the_body_is_heard() {
        let error =
            answered(|| Answer { before_body: true, ..Answer::problem(413, "it is too large") }).unwrap_err();
        assert_eq!(error.to_string(), "it is too large");
    }

    #[test]
    fn a_busy_or_broken_server_is_asked_again_later() {
        let later = |answer| match answered(answer) {
            Err(PushError::Later { reason, retry_after }) => (reason, retry_after.map(|wait| wait.as_secs())),
            other => panic!("{other:?}"),
        };
        let (reason, wait) = later(|| Answer::new("503 Busy\r\nRetry-After: 7", ""));
        assert!(reason.ends_with("answered 503 Service Unavailable"), "{reason}");
        assert_eq!(wait, Some(7));
        assert_eq!(later(|| Answer::new("500 Oops\r\nContent-Type: text/html", "<p>")).1, None);
        assert_eq!(later(|| Answer::problem(429, "too many")).0, "too many");
        assert_eq!(later(|| Answer::new("408 Slow", "")).1, None);
    }

    #[test]
    fn a_server_that_is_away_is_asked_again_later() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", free.local_addr().unwrap());
        drop(free);
        assert!(matches!(sent(&address, None, &sidecar()), Err(PushError::Later { .. })));
    }

    #[test]
    fn another_kind_of_server_is_told_apart() {
        for answer in [
            || Answer::new("404 Not Found\r\nContent-Type: text/html", "<p>"),
            || Answer::new("200 OK\r\nContent-Type: text/html", "<p>welcome"),
            || Answer::new("413 Request Entity Too Large\r\nContent-Type: text/html", "<p>nginx"),
            || Answer::new("307 Moved\r\nLocation: http://elsewhere.example/", ""),
        ] {
            let error = answered(answer).unwrap_err();
            assert!(error.to_string().ends_with("but not as a Tidegauge server does"), "{error}");
            assert!(!error.is_about_the_snapshot());
        }
    }

    #[test]
    fn a_sidecar_too_long_for_a_header_goes_without_its_statistics() {
        let stats =
            BTreeMap::from([("0".to_owned(), serde_json::json!("x".repeat(sidecar::MAX_HEADER_BYTES)))]);
        let server = FakeServer::that_takes_all();
        sent(&server.address, None, &Sidecar { memory_stats: stats, ..sidecar() }).unwrap();
        let [request] = server.received().try_into().unwrap();
        assert_eq!(request.sidecar().place, sidecar().place);
        assert!(request.sidecar().more.contains_key("left_out"));
    }

    #[test]
    fn a_large_sidecar_still_fits_its_header() {
        let stats = BTreeMap::from([("0".to_owned(), serde_json::json!("x".repeat(180 * 1024)))]);
        let server = FakeServer::that_takes_all();
        sent(&server.address, None, &Sidecar { memory_stats: stats.clone(), ..sidecar() }).unwrap();
        assert_eq!(server.received()[0].sidecar().memory_stats, stats);
    }

    #[test]
    fn a_date_to_come_back_at_is_counted_from_the_answers_own() {
        let wait = |head: &'static str| {
            let server = FakeServer::start(move |_| Answer::new(head, ""));
            match sent(&server.address, None, &sidecar()) {
                Err(PushError::Later { retry_after, .. }) => retry_after,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            wait(
                "503 Busy\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:50:37 GMT"
            ),
            Some(Duration::from_secs(60))
        );
        assert_eq!(
            wait(
                "503 Busy\r\nDate: Sun, 06 Nov 1994 08:51:00 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:50:37 GMT"
            ),
            Some(Duration::ZERO)
        );
        assert_eq!(wait("503 Busy\r\nRetry-After: soon"), None);
    }

    #[test]
    fn a_token_that_was_replaced_is_read_again_and_one_that_is_not_yet_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (token, file) = (folder.path().join("token"), folder.path().join("snapshot.pickle"));
        std::fs::write(&file, b"a pickle").unwrap();
        std::fs::write(&token, "old").unwrap();
        let gauge =
            FakeServer::that_asks(|request: &Received| match request.headers["authorization"].as_str() {
                "Bearer new" => Answer::created(),
                _ => Answer { before_body: true, ..Answer::problem(401, "a token is needed") },
            });
        let connection = Connection { token: Token::File(token.clone()), ..Connection::to(&gauge.address) };
        let server = Server::connect(&connection).unwrap();
        let send = || server.send(&file, &sidecar(), &mut |_| {});
        assert!(matches!(send(), Err(PushError::Later { .. })));
        assert!(matches!(server.check(), Err(PushError::Refused(_))));
        std::fs::write(&token, "new").unwrap();
        assert!(send().is_ok() && send().is_ok());
        // The file went: what was read is used on.
        std::fs::remove_file(&token).unwrap();
        assert!(send().is_ok());
    }
}
