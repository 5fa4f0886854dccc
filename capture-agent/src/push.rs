//! Sending one snapshot to a server.
//!
//! One request per snapshot: the file's bytes as the body, the sidecar in a header. The server tells a repeat
//! from a new snapshot by its content, so a snapshot may be sent again whenever the answer was lost. Who sends
//! again, and when, is the caller's choice: [`PushError::Later`] says that it makes sense.

use std::{
    fs::File,
    io::{self, Read, Take},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::Engine as _;
use tidegauge_api::{Problem, Sidecar, paths, problem, sidecar, snapshot::SnapshotDetails};
use ureq::{
    SendBody,
    http::{Response, StatusCode, Uri},
    typestate::WithBody,
};

/// The server that is used when none is named.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8642";

/// A machine in the same cluster answers much sooner; one that does not is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest silence, while sending and before the answer. The server answers once the bytes are on its disk.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The most that is read of an answer, bytes: details hold a sidecar and an inspection. A longer one is an error.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

/// A server to push to.
#[derive(Debug, Clone)]
pub struct Server {
    base: String,
    authorization: Option<String>,
    agent: ureq::Agent,
}

/// Why an address is not used.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Not an address.
    #[error("the server's address must look like {DEFAULT_SERVER}, found {0:?}")]
    NotHttp(String),
    /// A token would travel where others can read it.
    #[error(
        "the token would travel unencrypted to {0}: use an https address, or allow it with --insecure \
         (TIDEGAUGE_INSECURE=1)"
    )]
    TokenInTheClear(String),
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

    /// Whether the server refused this very snapshot, rather than whoever sends it.
    pub fn is_about_the_snapshot(&self) -> bool {
        matches!(self, Self::Refused(problem) if matches!(problem.status, 400 | 409 | 413 | 415 | 422))
    }
}

impl Server {
    /// A server at `address`, which may have a path. Without `insecure`, a token is sent only over https or to
    /// this machine.
    ///
    /// # Errors
    /// [`AddressError`] when the address is none, or the token would be readable on its way.
    pub fn new(address: &str, token: Option<&str>, insecure: bool) -> Result<Self, AddressError> {
        let not_http = || AddressError::NotHttp(address.to_owned());
        let base = address.trim_end_matches('/');
        let uri: Uri = base.parse().ok().ok_or_else(not_http)?;
        let (Some(scheme @ ("http" | "https")), Some(host)) = (uri.scheme_str(), uri.host()) else {
            return Err(not_http());
        };
        if uri.query().is_some() {
            return Err(not_http());
        }
        let is_here = is_loopback(host);
        if token.is_some() && scheme == "http" && !is_here && !insecure {
            return Err(AddressError::TokenInTheClear(host.to_owned()));
        }
        let mut config = ureq::Agent::config_builder()
            .user_agent(concat!("tidegauge/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // A redirected POST would lose its body; its sender should be given the right address instead.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .output_buffer_size(sidecar::MAX_HEADER_BYTES + 16 * 1024)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_send_request(Some(IDLE_TIMEOUT))
            .timeout_per_write(Some(IDLE_TIMEOUT))
            .timeout_recv_response(Some(IDLE_TIMEOUT))
            .timeout_recv_body(Some(IDLE_TIMEOUT));
        if is_here {
            config = config.proxy(None);
        }
        Ok(Self {
            base: base.to_owned(),
            authorization: token.map(|token| format!("Bearer {token}")),
            agent: config.build().into(),
        })
    }

    /// The address, without a slash at its end.
    pub fn address(&self) -> &str {
        &self.base
    }

    /// Whether a token was given.
    pub fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// Whether it is there, can take snapshots, and knows the token.
    ///
    /// # Errors
    /// [`PushError::Later`] when it is away, busy or full; [`PushError::Refused`] when it does not know the token
    /// or is another kind of server.
    pub fn check(&self) -> Result<(), PushError> {
        self.get(paths::READYZ)?;
        let answer = self.get(paths::RUNS)?;
        match has_media_type(&answer, "application/json") {
            true => Ok(()),
            false => Err(self.refused_without_reason(answer.status())),
        }
    }

    fn get(&self, path: &str) -> Result<Response<ureq::Body>, PushError> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let answer = request.call().map_err(|error| self.unanswered(&error))?;
        if answer.status().is_success() { Ok(answer) } else { Err(self.failure(answer)) }
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
        let cannot_read = |source| PushError::File { path: file.to_owned(), source };
        let bytes = File::open(file).map_err(cannot_read)?;
        let length = bytes.metadata().map_err(cannot_read)?.len();
        let mut failed_read = None;
        let mut body = Body { bytes: bytes.take(length), progress, failed: &mut failed_read };
        let answer = self.request(sidecar, length).send(SendBody::from_reader(&mut body));
        match (answer, failed_read) {
            (_, Some(source)) => Err(cannot_read(source)),
            (Ok(answer), None) => self.understand(answer),
            (Err(error), None) => Err(self.unanswered(&error)),
        }
    }

    fn request(&self, sidecar: &Sidecar, length: u64) -> ureq::RequestBuilder<WithBody> {
        let request = self
            .agent
            .post(format!("{}{}", self.base, paths::SNAPSHOTS))
            .header("Content-Type", "application/octet-stream")
            .header("Content-Length", length.to_string())
            // A server that is full says so before the body is on its way.
            .header("Expect", "100-continue")
            .header(sidecar::HEADER, header(sidecar));
        match &self.authorization {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        }
    }

    fn understand(&self, answer: Response<ureq::Body>) -> Result<SnapshotDetails, PushError> {
        let status = answer.status();
        if !status.is_success() {
            return Err(self.failure(answer));
        }
        let bytes = bytes_of(answer).map_err(|error| self.unanswered(&error))?;
        serde_json::from_slice(&bytes).map_err(|_not_details| self.refused_without_reason(status))
    }

    /// What an answer means that is no success.
    fn failure(&self, answer: Response<ureq::Body>) -> PushError {
        let status = answer.status();
        let retry_after = retry_after(&answer);
        let is_problem = has_media_type(&answer, problem::MEDIA_TYPE);
        let bytes = match bytes_of(answer) {
            Ok(bytes) => bytes,
            Err(error) => return self.unanswered(&error),
        };
        let problem = is_problem.then(|| serde_json::from_slice::<Problem>(&bytes).ok()).flatten();
        if status.is_server_error()
            || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
        {
            let reason = match problem {
                Some(problem) => problem.detail,
                None => format!("{} answered {status}", self.base),
            };
            return PushError::Later { reason, retry_after };
        }
        problem.map_or_else(|| self.refused_without_reason(status), PushError::Refused)
    }

    fn unanswered(&self, error: &ureq::Error) -> PushError {
        PushError::Later { reason: format!("no answer from {}: {error}", self.base), retry_after: None }
    }

    fn refused_without_reason(&self, status: StatusCode) -> PushError {
        PushError::Refused(Problem {
            kind: "not-a-tidegauge-server".to_owned(),
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
    failed: &'a mut Option<io::Error>,
}

impl Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.bytes.read(buffer) {
            // The server would wait for the rest.
            Ok(0) if self.bytes.limit() > 0 && !buffer.is_empty() => {
                *self.failed = Some(io::Error::other("it got shorter while it was sent"));
                Err(io::Error::other("the file got shorter"))
            }
            Ok(n) => {
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
    if header.len() <= sidecar::MAX_HEADER_BYTES {
        return header;
    }
    let mut shorter = sidecar.clone();
    shorter.memory_stats.clear();
    shorter.more.clear();
    shorter.more.insert("left_out".to_owned(), "memory_stats: the sidecar was too long for a header".into());
    encoded(&shorter)
}

fn bytes_of(answer: Response<ureq::Body>) -> Result<Vec<u8>, ureq::Error> {
    answer.into_body().into_with_config().limit(MAX_ANSWER_BYTES).read_to_vec()
}

fn retry_after(answer: &Response<ureq::Body>) -> Option<Duration> {
    // The other form, a date, would need a calendar; our server does not send it.
    let seconds = answer.headers().get("Retry-After")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn has_media_type(answer: &Response<ureq::Body>, media_type: &str) -> bool {
    let found = answer.headers().get("Content-Type").and_then(|value| value.to_str().ok());
    found.is_some_and(|found| found.split(';').next().is_some_and(|found| found.trim() == media_type))
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, net::TcpListener};

    use tidegauge_api::Place;

    use super::*;
    use crate::fake_server::{Answer, FakeServer};

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
    fn only_http_addresses_are_servers() {
        for wrong in ["", "gauge:8642", "ftp://gauge", "/tmp", "http://", "http://gauge/?a=b"] {
            assert!(matches!(Server::new(wrong, None, false), Err(AddressError::NotHttp(_))), "{wrong}");
        }
        assert_eq!(Server::new("https://gauge/tide/", None, false).unwrap().address(), "https://gauge/tide");
        assert!(Server::new("http://[::1]:8642", Some("secret"), false).is_ok());
        assert!(Server::new("http://localhost:8642", Some("secret"), false).is_ok());
    }
}
