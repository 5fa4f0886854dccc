//! A server for tests that takes snapshots as the real one does, at once and in parts, and has bad moments.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use base64::Engine as _;
use tidegauge_api::{Sidecar, paths, sidecar, tus};

use crate::fake_server::{self, Received, receive_head};

/// A bad moment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Answers so, without taking the body.
    Status(&'static str),
    /// Reads everything and says nothing.
    Hang,
    CutBeforeBody,
    /// Half of it comes; of an upload in parts that half is kept.
    CutInBody,
    /// Takes it, and the answer is lost.
    CutAfterBody,
    /// Has given up all unfinished uploads, and goes on.
    ForgetUploads,
}

/// A snapshot that was taken in.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) sidecar: Sidecar,
    /// As they came.
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct FakeGauge {
    pub(crate) address: String,
    state: Arc<Mutex<Inside>>,
}

#[derive(Default)]
struct Inside {
    faults: BTreeMap<usize, Fault>,
    /// The first line of each request.
    heads: Vec<String>,
    taken: Vec<Taken>,
    /// Snapshots that were there already.
    n_repeats: usize,
    uploads: BTreeMap<String, (Sidecar, usize, Vec<u8>)>,
    received_bytes: u64,
    /// Connections that nobody answers, kept open.
    hanging: Vec<TcpStream>,
}

impl FakeGauge {
    /// `faults` by the number of the request, from 0.
    pub(crate) fn start(faults: &[(usize, Fault)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let inside = Inside { faults: faults.iter().copied().collect(), ..Inside::default() };
        let state = Arc::new(Mutex::new(inside));
        let serving = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A caller who is gone has no use for the rest.
                serve(&mut serving.lock().unwrap(), stream.unwrap());
            }
        });
        Self { address, state }
    }

    pub(crate) fn taken(&self) -> Vec<Taken> {
        self.state.lock().unwrap().taken.clone()
    }

    pub(crate) fn n_repeats(&self) -> usize {
        self.state.lock().unwrap().n_repeats
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.state.lock().unwrap().heads.clone()
    }

    /// Bytes of bodies in all.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.state.lock().unwrap().received_bytes
    }
}

fn serve(inside: &mut Inside, mut stream: TcpStream) -> Option<()> {
    let mut request = receive_head(&mut stream)?;
    let fault = inside.faults.remove(&inside.heads.len());
    inside.heads.push(request.line.clone());
    match fault {
        Some(Fault::Status(head)) => return answer(&mut stream, head, ""),
        Some(Fault::CutBeforeBody) => return None,
        Some(Fault::ForgetUploads) => inside.uploads.clear(),
        _ => {}
    }
    if request.headers.contains_key("expect") {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let length: usize = request.headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let is_cut = matches!(fault, Some(Fault::CutInBody));
    let wanted = if is_cut { length / 2 } else { length };
    (&stream).take(wanted as u64).read_to_end(&mut request.body).ok()?;
    inside.received_bytes += request.body.len() as u64;
    if is_cut {
        inside.keep_part(&request);
        return None;
    }
    if matches!(fault, Some(Fault::Hang)) {
        inside.hanging.push(stream);
        return None;
    }
    let (head, body) = inside.respond(&request);
    match fault {
        Some(Fault::CutAfterBody) => None,
        _ => answer(&mut stream, &head, &body),
    }
}

impl Inside {
    fn respond(&mut self, request: &Received) -> (String, String) {
        let mut words = request.line.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let no = |status: &str| (status.to_owned(), String::new());
        match method {
            "GET" => {
                let n: usize = path.rsplit('/').next().unwrap().parse().unwrap();
                details("200 OK", n, false)
            }
            "POST" if path == paths::SNAPSHOTS => {
                let sidecar = unpadded(&request.headers[&sidecar::HEADER.to_lowercase()]);
                let (n, is_new) = self.take(serde_json::from_slice(&sidecar).unwrap(), request.body.clone());
                details(if is_new { "201 Created" } else { "200 OK" }, n, !is_new)
            }
            "POST" => {
                let sidecar = sidecar_in_metadata(&request.headers["upload-metadata"]);
                if let Some(n) = self.find(&sidecar) {
                    return no(&format!("303 See Other\r\nLocation: {}", paths::snapshot(&n.to_string())));
                }
                let id = format!("U{}", self.heads.len());
                let length = request.headers["upload-length"].parse().unwrap();
                self.uploads.insert(id.clone(), (sidecar, length, Vec::new()));
                no(&format!("201 Created\r\nLocation: /behind/a/proxy{}", paths::upload(&id)))
            }
            _ => {
                let id = path.rsplit('/').next().unwrap().to_owned();
                let Some((_, _, here)) = self.uploads.get(&id) else { return no("404 Not Found") };
                if method == "HEAD" {
                    return no(&format!("200 OK\r\n{}: {}", tus::OFFSET, here.len()));
                }
                if request.headers["upload-offset"] != here.len().to_string() {
                    return no("409 Conflict");
                }
                self.keep_part(request);
                let (sidecar, length, here) = self.uploads[&id].clone();
                let offset = format!("204 No Content\r\n{}: {}", tus::OFFSET, here.len());
                if here.len() < length {
                    return no(&offset);
                }
                self.uploads.remove(&id);
                let (n, _) = self.take(sidecar, here);
                no(&format!("{offset}\r\n{}: {}", tus::SNAPSHOT, paths::snapshot(&n.to_string())))
            }
        }
    }

    fn keep_part(&mut self, request: &Received) {
        let id = request.line.split(' ').nth(1).unwrap().rsplit('/').next().unwrap();
        if let Some((_, _, here)) = self.uploads.get_mut(id) {
            here.extend(&request.body);
        }
    }

    fn find(&self, sidecar: &Sidecar) -> Option<usize> {
        let is_same = |taken: &Taken| {
            taken.sidecar.place == sidecar.place && taken.sidecar.content_digest == sidecar.content_digest
        };
        sidecar.content_digest.as_ref()?;
        self.taken.iter().position(is_same)
    }

    fn take(&mut self, sidecar: Sidecar, bytes: Vec<u8>) -> (usize, bool) {
        if let Some(n) = self.find(&sidecar) {
            self.n_repeats += 1;
            return (n, false);
        }
        self.taken.push(Taken { sidecar, bytes });
        (self.taken.len() - 1, true)
    }
}

fn details(status: &str, n: usize, already_here: bool) -> (String, String) {
    let body = fake_server::details(&n.to_string(), already_here);
    (format!("{status}\r\nContent-Type: application/json"), body)
}

fn unpadded(base64url: &str) -> Vec<u8> {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(base64url).unwrap()
}

fn sidecar_in_metadata(metadata: &str) -> Sidecar {
    let value = metadata.strip_prefix(tus::SIDECAR_ZSTD).unwrap().trim();
    let zstd = base64::engine::general_purpose::STANDARD.decode(value).unwrap();
    serde_json::from_slice(&zstd::decode_all(zstd.as_slice()).unwrap()).unwrap()
}

fn answer(stream: &mut TcpStream, head: &str, body: &str) -> Option<()> {
    let length =
        if head.starts_with("204") { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    write!(stream, "HTTP/1.1 {head}\r\n{length}Connection: close\r\n\r\n{body}").ok()
}
