//! A server for tests, which answers as it is told and remembers what it was sent.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
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
        Self::serve(listener, move |n, _| answer(n))
    }

    fn serve(listener: TcpListener, answer: impl Fn(usize, &Received) -> Answer + Send + 'static) -> Self {
        let address = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&received);
        thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let Some(head) = receive_head(&mut stream) else { continue };
                let answer = answer(n, &head);
                // Written down first: whoever has the answer may ask at once what was received.
                let request = receive_body(&mut stream, head, &answer);
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

    /// `answer` is asked with the head of each request; only what is answered with success has its body taken.
    pub(crate) fn that_asks(answer: impl Fn(&Received) -> Answer + Send + 'static) -> Self {
        Self::serve(TcpListener::bind("127.0.0.1:0").unwrap(), move |_, head| answer(head))
    }

    /// Takes everything.
    pub(crate) fn that_takes_all() -> Self {
        Self::start(|_| Answer::created())
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

/// What a server says of a snapshot that it has.
pub(crate) fn details(id: &str, already_here: bool) -> String {
    let details = SnapshotDetails {
        id: id.to_owned(),
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
        already_here,
    };
    serde_json::to_string(&details).unwrap()
}

impl Answer {
    pub(crate) fn new(head: &str, body: impl Into<String>) -> Self {
        Self { head: head.to_owned(), body: body.into(), before_body: false }
    }

    pub(crate) fn created() -> Self {
        Self::new("201 Created\r\nContent-Type: application/json", details("01J", false))
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

/// A request without its body. Read byte by byte, so that nothing of the body is read with it.
pub(crate) fn receive_head(stream: &mut TcpStream) -> Option<Received> {
    let mut lines = vec![read_line(stream)?];
    loop {
        match read_line(stream)? {
            line if line.is_empty() => break,
            line => lines.push(line),
        }
    }
    let line = lines.remove(0);
    let headers = lines.iter().filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    Some(Received { line, headers, body: Vec::new() })
}

fn read_line(stream: &mut TcpStream) -> Option<String> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte).ok()?;
        line.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&line).trim_end().to_owned())
}

fn receive_body(stream: &mut TcpStream, mut head: Received, answer: &Answer) -> Option<Received> {
    if answer.before_body {
        return Some(head);
    }
    if head.headers.contains_key("expect") {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let length = head.headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    head.body.resize(length, 0);
    stream.read_exact(&mut head.body).ok()?;
    Some(head)
}

fn respond(stream: &mut TcpStream, answer: &Answer) -> std::io::Result<()> {
    let Answer { head, body, .. } = answer;
    write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}
