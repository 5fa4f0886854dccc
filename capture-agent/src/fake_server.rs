//! A server for tests, which answers as it is told and remembers what it was sent.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use base64::Engine as _;
use tidegauge_api::{
    Problem, Sidecar, problem, sidecar,
    snapshot::{SnapshotDetails, State},
};

pub(crate) struct FakeServer {
    pub(crate) address: String,
    received: Arc<Mutex<Vec<Received>>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) line: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: String,
    /// Answer without taking the body.
    pub(crate) before_body: bool,
}

impl FakeServer {
    /// `answer` is asked with the number of the request, from 0.
    pub(crate) fn start(answer: impl Fn(usize) -> Answer + Send + 'static) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    pub(crate) fn listen(listener: TcpListener, answer: impl Fn(usize) -> Answer + Send + 'static) -> Self {
        let address = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&received);
        thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                let (mut stream, answer) = (stream.unwrap(), answer(n));
                // Written down first: whoever has the answer may ask at once what was received.
                let request = receive(&mut stream, &answer);
                let is_whole = request.is_some();
                log.lock().unwrap().extend(request);
                if is_whole {
                    // A client that is gone already has no use for the answer.
                    respond(&mut stream, &answer).ok();
                }
            }
        });
        Self { address, received }
    }

    /// Takes everything.
    pub(crate) fn that_takes_all() -> Self {
        Self::start(|_| Answer::created())
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

impl Answer {
    pub(crate) fn new(head: &str, body: impl Into<String>) -> Self {
        Self { head: head.to_owned(), body: body.into(), before_body: false }
    }

    pub(crate) fn created() -> Self {
        let details = SnapshotDetails {
            id: "01J".to_owned(),
            run_id: "01R".to_owned(),
            run_name: "gpt".to_owned(),
            place: Default::default(),
            seq: 0,
            state: State::Received,
            problem: None,
            file_name: None,
            bytes: 8,
            digest: String::new(),
            received_at: "2026-01-01T00:00:00Z".to_owned(),
            inspection: None,
            sidecar: None,
            already_here: false,
        };
        Self::new("201 Created\r\nContent-Type: application/json", serde_json::to_string(&details).unwrap())
    }

    pub(crate) fn problem(status: u16, detail: &str) -> Self {
        let (kind, title) = ("a-kind".to_owned(), "A kind".to_owned());
        let problem = Problem { kind, title, status, detail: detail.to_owned() };
        let head = format!("{status} No\r\nContent-Type: {}; charset=utf-8", problem::MEDIA_TYPE);
        Self::new(&head, serde_json::to_string(&problem).unwrap())
    }
}

impl Received {
    pub(crate) fn sidecar(&self) -> Sidecar {
        let header = &self.headers[&sidecar::HEADER.to_lowercase()];
        let json = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(header).unwrap();
        serde_json::from_slice(&json).unwrap()
    }

    pub(crate) fn pickle(&self) -> Vec<u8> {
        zstd::decode_all(self.body.as_slice()).unwrap()
    }
}

fn receive(stream: &mut TcpStream, answer: &Answer) -> Option<Received> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let mut body = Vec::new();
    if !answer.before_body {
        if headers.contains_key("expect") {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
        }
        body.resize(headers["content-length"].parse().unwrap(), 0);
        reader.read_exact(&mut body).ok()?;
    }
    Some(Received { line: line.trim_end().to_owned(), headers, body })
}

fn respond(stream: &mut TcpStream, answer: &Answer) -> std::io::Result<()> {
    let Answer { head, body, .. } = answer;
    write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}
