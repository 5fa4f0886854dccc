//! A real server on a free port of this process, and a caller for it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser as _;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tidegauge_api::run::{Grid, RunRow, Runs};
use tidegauge_api::snapshot::{SnapshotDetails, State};
use tidegauge_api::{Problem, paths, problem};
use tidegauge_server::clock::{self, Clock};
use tidegauge_server::{App, Config, serve};
use tokio::net::TcpListener;
use ureq::SendBody;

/// Longest wait for a snapshot to be read; a test that gets here has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A snapshot of 13 KB: two devices' worth of nothing much, one out-of-memory event.
pub(crate) fn oom() -> Vec<u8> {
    fixture("oom_plain_2gib.pickle")
}

/// A snapshot of 173 KB of two devices.
pub(crate) fn streams() -> Vec<u8> {
    fixture("streams_2dev_lag40.pickle")
}

pub(crate) fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../snapshot/fixtures").join(name)).unwrap()
}

/// The same content in other bytes for every `stamp`.
pub(crate) fn gzipped(content: &[u8], stamp: u32) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new().mtime(stamp).write(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// A server, gone when dropped.
pub(crate) struct TestApp {
    pub(crate) caller: Caller,
    pub(crate) folder: TempDir,
    runtime: Option<tokio::runtime::Runtime>,
}

impl TestApp {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts with further flags.
    pub(crate) fn start_with(flags: &[&str]) -> Self {
        Self::start_at(clock::system(), flags)
    }

    /// Starts with a clock of the test's.
    pub(crate) fn start_at(clock: Clock, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let base = ["tidegauge-server", "--listen", "127.0.0.1:0", "--min-free-bytes", "0", "--data"];
        let mut config = Config::parse_from([&base[..], &[data.to_str().unwrap()], flags].concat());
        config.site = config.site.or_else(|| Some(folder.path().join("no-site")));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let address = runtime.block_on(async {
            let listener = TcpListener::bind(config.listen).await.unwrap();
            let app = App::open(config, clock).await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(
                async move { serve(Arc::clone(&app), listener, std::future::pending()).await.unwrap() },
            );
            address
        });
        Self { caller: Caller::new(address), folder, runtime: Some(runtime) }
    }

    /// Files under a folder of the data folder, at any depth.
    pub(crate) fn n_files(&self, folder: &str) -> usize {
        count_files(&self.folder.path().join("data").join(folder))
    }
}

impl std::ops::Deref for TestApp {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) fn count_files(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries
        .map(Result::unwrap)
        .map(|entry| if entry.file_type().unwrap().is_dir() { count_files(&entry.path()) } else { 1 })
        .sum()
}

/// Calls a server.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) address: SocketAddr,
    agent: ureq::Agent,
}

impl Caller {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // For sidecar headers of the greatest length.
            .output_buffer_size(512 * 1024)
            .build();
        Self { address, agent: config.into() }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[])
    }

    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = self.agent.get(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.call().and_then(Reply::from).unwrap()
    }

    /// Any request.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut request = ureq::http::Request::builder().method(method).uri(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.agent.run(request.body(body).unwrap()).and_then(Reply::from).unwrap()
    }

    /// Sends a batch of samples.
    pub(crate) fn send_samples(&self, batch: &serde_json::Value) -> Reply {
        self.post(paths::SAMPLES, batch.to_string().as_bytes())
    }

    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Reply {
        let request = self.agent.post(self.url(path)).header("Content-Type", "application/json");
        request.send(body).and_then(Reply::from).unwrap()
    }

    pub(crate) fn upload(&self, query: &str, body: &[u8]) -> Reply {
        self.upload_with(query, &[], body)
    }

    pub(crate) fn upload_with(&self, query: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.try_upload(query, headers, body).unwrap()
    }

    pub(crate) fn try_upload(
        &self,
        query: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Reply, ureq::Error> {
        let mut request = self.agent.post(self.url(&format!("{}?{query}", paths::SNAPSHOTS)));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send(body).and_then(Reply::from)
    }

    /// Uploads without saying how long the body is.
    pub(crate) fn upload_stream(
        &self,
        query: &str,
        mut body: impl std::io::Read,
    ) -> Result<Reply, ureq::Error> {
        let request = self.agent.post(self.url(&format!("{}?{query}", paths::SNAPSHOTS)));
        request.send(SendBody::from_reader(&mut body)).and_then(Reply::from)
    }

    /// Uploads what must be accepted.
    pub(crate) fn accepted(&self, query: &str, body: &[u8]) -> SnapshotDetails {
        let reply = self.upload(query, body);
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply.json()
    }

    /// Uploads what must be accepted, and waits until it was read.
    pub(crate) fn read(&self, query: &str, body: &[u8]) -> SnapshotDetails {
        self.until_read(&self.accepted(query, body).id)
    }

    pub(crate) fn until_read(&self, id: &str) -> SnapshotDetails {
        let begun = Instant::now();
        loop {
            let details: SnapshotDetails = self.get(&paths::snapshot(id)).json();
            if matches!(details.state, State::Ready | State::Failed) {
                return details;
            }
            assert!(begun.elapsed() < PATIENCE, "{id} is not read: {:?}", details.state);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn runs(&self) -> Vec<RunRow> {
        self.get(paths::RUNS).json::<Runs>().runs
    }

    pub(crate) fn grid(&self, run_id: &str) -> Grid {
        self.get(&paths::grid(run_id)).json()
    }

    /// Sends bytes as they are and reads until the server closes or says nothing for a while.
    pub(crate) fn raw(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        String::from_utf8(reply).unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    fn from(response: ureq::http::Response<ureq::Body>) -> Result<Self, ureq::Error> {
        let (parts, mut body) = response.into_parts();
        let body = body.with_config().limit(1 << 30).read_to_vec()?;
        Ok(Self { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text()))
    }

    /// The problem that this must be.
    pub(crate) fn problem(&self) -> Problem {
        assert_eq!(self.header("content-type"), problem::MEDIA_TYPE, "{}", self.text());
        let problem: Problem = self.json();
        assert_eq!(problem.status, self.status);
        problem
    }
}
