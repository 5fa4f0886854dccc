//! Uploads in parts, by tus 1.0.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use tidegauge_api::snapshot::{SnapshotDetails, State};
use tidegauge_api::{paths, tus};

use crate::app::{Caller, Reply, TestApp, count_files, gzipped, oom, streams};
use crate::process::Process;

const VERSION: (&str, &str) = (tus::RESUMABLE, tus::VERSION);
const PART: (&str, &str) = ("Content-Type", tus::PART);

/// "run Z3B0,rank Mw=="
fn metadata(pairs: &[(&str, &[u8])]) -> String {
    let pairs: Vec<_> =
        pairs.iter().map(|(key, value)| format!("{key} {}", BASE64_STANDARD.encode(value))).collect();
    pairs.join(",")
}

fn create(caller: &Caller, length: usize, metadata: &str) -> Reply {
    let length = length.to_string();
    let headers = [VERSION, (tus::LENGTH, length.as_str()), (tus::METADATA, metadata)];
    caller.request("POST", paths::UPLOADS, &headers, &[])
}

fn begin(caller: &Caller, length: usize, metadata: &str) -> String {
    let reply = create(caller, length, metadata);
    assert_eq!(reply.status, 201, "{}", reply.text());
    reply.header("location").to_owned()
}

fn patch(caller: &Caller, upload: &str, offset: usize, bytes: &[u8]) -> Reply {
    let offset = offset.to_string();
    caller.request("PATCH", upload, &[VERSION, PART, (tus::OFFSET, &offset)], bytes)
}

fn head(caller: &Caller, upload: &str) -> Reply {
    caller.request("HEAD", upload, &[VERSION], &[])
}

fn offset(caller: &Caller, upload: &str) -> usize {
    head(caller, upload).header(tus::OFFSET).parse().unwrap()
}

/// Sends what is missing, and gives the snapshot.
fn finish(caller: &Caller, upload: &str, body: &[u8]) -> SnapshotDetails {
    let offset = offset(caller, upload);
    let reply = patch(caller, upload, offset, &body[offset..]);
    assert_eq!(reply.status, 204, "{}", reply.text());
    assert_eq!(reply.header(tus::OFFSET), body.len().to_string());
    caller.get(reply.header(tus::SNAPSHOT)).json()
}

#[test]
fn an_upload_in_parts_becomes_the_same_snapshot_as_in_one() {
    let app = TestApp::start();
    let body = streams();
    let upload = begin(&app, body.len(), &metadata(&[("run", b"gpt"), ("rank", b"3"), ("step", b"5")]));
    for part in [0..1, 1..100_000, 100_000..120_000] {
        let reply = patch(&app, &upload, part.start, &body[part.clone()]);
        assert_eq!((reply.status, reply.header(tus::OFFSET)), (204, part.end.to_string().as_str()));
        assert_eq!(reply.header(tus::RESUMABLE), "1.0.0");
        assert!(reply.header(tus::EXPIRES).ends_with(" GMT"));
        assert_eq!(offset(&app, &upload), part.end);
    }
    let details = finish(&app, &upload, &body);
    assert_eq!((details.run_name.as_str(), details.place.rank), ("gpt", Some(3)));
    assert_eq!(details.digest, blake3::hash(&body).to_hex().as_str());
    assert_eq!(app.until_read(&details.id).state, State::Ready);
    assert_eq!(app.get(&paths::original(&details.id)).body, body);

    let again: SnapshotDetails = app.upload("run=gpt&rank=3&step=5", &body).json();
    assert_eq!((again.id, again.already_here), (details.id, true));
    assert_eq!((app.n_files("spool"), app.n_files("unfinished"), app.n_files("originals")), (0, 0, 1));
    assert_eq!(head(&app, &upload).status, 404);
}

#[test]
fn what_the_server_can_do_is_told_to_who_asks() {
    let app = TestApp::start_with(&["--max-upload-bytes", "1MiB"]);
    let reply = app.request("OPTIONS", paths::UPLOADS, &[], &[]);
    assert_eq!((reply.status, reply.header(tus::VERSIONS)), (204, "1.0.0"));
    assert_eq!(reply.header(tus::EXTENSION), "creation,creation-with-upload,termination,expiration");
    assert_eq!(reply.header(tus::MAX_SIZE), "1048576");
    let reply = app.request("POST", paths::UPLOADS, &[(tus::LENGTH, "1")], &[]);
    assert_eq!((reply.status, reply.header(tus::VERSIONS)), (412, "1.0.0"));
}

#[test]
fn bytes_may_come_with_the_beginning() {
    let app = TestApp::start();
    let body = oom();
    let length = body.len().to_string();
    let said = metadata(&[("run", b"gpt"), ("filename", b"out/steps4-5/torch_memory_rank3_pid9.pickle")]);
    let headers = [VERSION, PART, (tus::LENGTH, length.as_str()), (tus::METADATA, said.as_str())];
    let reply = app.request("POST", paths::UPLOADS, &headers, &body[..5000]);
    assert_eq!((reply.status, reply.header(tus::OFFSET)), (201, "5000"));
    let details = finish(&app, reply.header("location"), &body);
    assert_eq!((details.place.rank, details.place.step_label().as_str()), (Some(3), "4–5"));

    let reply = app.request("POST", paths::UPLOADS, &headers, &body);
    assert_eq!((reply.status, reply.header(tus::SNAPSHOT)), (201, paths::snapshot(&details.id).as_str()));
    let page = app.request("POST", paths::UPLOADS, &headers, b"<!doctype html>");
    assert_eq!(page.status, 201);
    app.request("DELETE", page.header("location"), &[VERSION], &[]);
    assert_eq!((app.runs()[0].n_snapshots, app.n_files("unfinished")), (1, 0));
}

#[test]
fn a_sidecar_comes_in_the_metadata_plain_or_compressed_or_in_its_header() {
    let app = TestApp::start();
    // Far longer than any header before it is compressed.
    let json = format!(r#"{{"run": "gpt", "rank": 7, "text": "{}"}}"#, "statistics ".repeat(60_000));
    let packed = zstd::encode_all(json.as_bytes(), 3).unwrap();
    let upload = begin(&app, oom().len(), &metadata(&[("sidecar_zstd", &packed), ("rank", b"8")]));
    let details = finish(&app, &upload, &oom());
    assert_eq!((details.run_name.as_str(), details.place.rank), ("gpt", Some(8)));
    assert_eq!(details.sidecar.unwrap().more["text"].as_str().unwrap().len(), 660_000);

    let plain = begin(&app, oom().len(), &metadata(&[("sidecar", br#"{"run": "gpt", "rank": 9}"#)]));
    assert_eq!(finish(&app, &plain, &oom()).place.rank, Some(9));

    let (length, header) = (oom().len().to_string(), BASE64_URL_SAFE_NO_PAD.encode(r#"{"rank": 10}"#));
    let headers = [VERSION, (tus::LENGTH, length.as_str()), ("Tidegauge-Sidecar", &header)];
    let reply = app.request("POST", paths::UPLOADS, &headers, &[]);
    assert_eq!(finish(&app, reply.header("location"), &oom()).place.rank, Some(10));
}

#[test]
fn metadata_that_cannot_be_read_is_named() {
    let app = TestApp::start();
    let bomb = zstd::encode_all(vec![b' '; 2 << 20].as_slice(), 3).unwrap();
    for (said, sentence) in [
        ("rank three".to_owned(), "the value of \"rank\" is not base64"),
        (metadata(&[("rank", b"three")]), "the parameter \"rank\" should be a whole number"),
        (metadata(&[("stpe", b"3")]), "the parameter \"stpe\" is not known"),
        (metadata(&[("rank", b"1"), ("rank", b"1")]), "the parameter \"rank\" is there twice"),
        (metadata(&[("sidecar", b"{")]), "sidecar does not hold a sidecar's JSON"),
        (metadata(&[("sidecar_zstd", b"{")]), "sidecar_zstd is not zstd"),
        (metadata(&[("sidecar_zstd", &bomb)]), "the sidecar is longer than the 1048576 bytes"),
        (metadata(&[("run", &[0xFF])]), "the value of \"run\" is no text"),
    ] {
        let problem = create(&app, 10, &said).problem();
        assert_eq!(problem.status, 400);
        assert!(problem.detail.contains(sentence), "{}", problem.detail);
    }
    let reply = app.request("POST", paths::UPLOADS, &[VERSION], &[]);
    assert!(reply.problem().detail.contains("Upload-Length"), "{}", reply.text());
    assert_eq!(app.n_files("unfinished"), 0);
}

#[test]
fn content_that_is_there_already_is_not_asked_for() {
    let app = TestApp::start();
    let first = app.accepted("run=gpt&rank=3&step=5", &oom());
    // Other bytes, the same content.
    let zipped = gzipped(&oom(), 1);
    let digest = blake3::hash(&oom()).to_hex().to_uppercase();
    let said = |rank: &[u8]| {
        metadata(&[("run", b"gpt"), ("rank", rank), ("step", b"5"), ("content_digest", digest.as_bytes())])
    };
    let reply = create(&app, zipped.len(), &said(b"3"));
    assert_eq!((reply.status, reply.header("location")), (303, paths::snapshot(&first.id).as_str()));
    // Elsewhere it is another snapshot.
    let elsewhere = finish(&app, &begin(&app, zipped.len(), &said(b"4")), &zipped);
    assert_ne!(elsewhere.id, first.id);
    assert_eq!(app.n_files("unfinished"), 0);
}

#[test]
fn a_wrong_offset_is_refused_and_changes_nothing() {
    let app = TestApp::start();
    let body = oom();
    let upload = begin(&app, body.len(), "");
    patch(&app, &upload, 0, &body[..1000]);
    for wrong in [0, 999, 1001] {
        let problem = patch(&app, &upload, wrong, &body[wrong..]).problem();
        assert_eq!((problem.status, problem.kind.as_str()), (409, "offset"));
    }
    let reply = app.request("PATCH", &upload, &[VERSION, (tus::OFFSET, "1000")], &body);
    assert_eq!(reply.problem().status, 415);
    // More than was announced.
    assert_eq!(patch(&app, &upload, 1000, &body).problem().status, 400);
    assert_eq!(offset(&app, &upload), 1000);
    finish(&app, &upload, &body);
}

#[test]
fn what_had_come_when_the_connection_broke_is_kept_and_one_caller_adds_at_a_time() {
    let app = TestApp::start();
    let body = streams();
    let upload = begin(&app, body.len(), &metadata(&[("run", b"gpt")]));
    let mut stream = app.connect();
    let text = format!(
        "PATCH {upload} HTTP/1.1\r\nHost: {}\r\nTus-Resumable: 1.0.0\r\nContent-Type: {}\r\nUpload-Offset: 0\r\n\
         Content-Length: {}\r\n\r\n",
        app.address,
        tus::PART,
        body.len()
    );
    stream.write_all(text.as_bytes()).unwrap();
    stream.write_all(&body[..50_000]).unwrap();
    until(|| offset(&app, &upload) > 0 || patch(&app, &upload, 0, b"").status == 423);
    let problem = patch(&app, &upload, 0, &body).problem();
    assert_eq!((problem.status, problem.kind.as_str()), (423, "in-use"));
    assert_eq!(app.request("DELETE", &upload, &[VERSION], &[]).status, 423);

    stream.shutdown(std::net::Shutdown::Both).unwrap();
    until(|| offset(&app, &upload) == 50_000);
    until(|| patch(&app, &upload, 50_000, b"").status == 204);
    finish(&app, &upload, &body);
    assert_eq!(app.runs()[0].n_snapshots, 1);
}

#[test]
fn a_killed_server_goes_on_where_an_upload_was() {
    let folder = tempfile::tempdir().unwrap();
    let server = Process::start(folder.path());
    let body = streams();
    let upload = begin(&server.caller, body.len(), &metadata(&[("run", b"gpt"), ("rank", b"2")]));
    patch(&server.caller, &upload, 0, &body[..70_000]);
    // What a crash leaves of others.
    std::fs::write(folder.path().join("unfinished/01ARZ3NDEKTSV4RRFFQ69G5FAV.part"), b"half").unwrap();
    server.kill();

    let server = Process::start(folder.path());
    assert_eq!(count_files(&folder.path().join("unfinished")), 2);
    assert_eq!(offset(&server.caller, &upload), 70_000);
    assert_eq!(finish(&server.caller, &upload, &body).place.rank, Some(2));
    assert_eq!(count_files(&folder.path().join("unfinished")), 0);
}

#[test]
fn an_upload_that_was_complete_when_the_server_was_killed_is_taken_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let server = Process::start(folder.path());
    let body = oom();
    let upload = begin(&server.caller, body.len(), &metadata(&[("run", b"gpt")]));
    server.kill();
    let part = format!("unfinished/{}.part", upload.rsplit('/').next().unwrap());
    std::fs::write(folder.path().join(part), &body).unwrap();

    let server = Process::start(folder.path());
    until(|| server.caller.runs().len() == 1);
    assert_eq!(server.caller.runs()[0].n_snapshots, 1);
    until(|| count_files(&folder.path().join("unfinished")) == 0);
}

#[test]
fn an_upload_is_given_up_when_asked_and_after_a_day_without_bytes() {
    let now = Arc::new(AtomicI64::new(Timestamp::now().as_second()));
    let clock = Arc::clone(&now);
    let clock = Arc::new(move || Timestamp::from_second(clock.load(Ordering::Relaxed)).unwrap());
    let app = TestApp::start_at(clock, &[]);
    let [asked, idle, busy] = [1, 2, 3].map(|_| begin(&app, oom().len(), ""));
    assert_eq!(app.request("DELETE", &asked, &[VERSION], &[]).status, 204);
    assert_eq!(head(&app, &asked).status, 404);
    now.fetch_add(20 * 3600, Ordering::Relaxed);
    patch(&app, &busy, 0, &oom()[..10]);
    now.fetch_add(5 * 3600, Ordering::Relaxed);
    let latest = begin(&app, oom().len(), "");
    assert_eq!((head(&app, &idle).status, head(&app, &busy).status), (404, 200));
    assert_eq!(app.n_files("unfinished"), 4);
    for upload in [busy, latest] {
        finish(&app, &upload, &oom());
    }
    assert_eq!(app.n_files("unfinished"), 0);
}

#[test]
fn what_cannot_be_taken_is_refused_before_a_byte_of_it() {
    let app = TestApp::start_with(&["--max-upload-bytes", "100KiB", "--max-data-bytes", "150KiB"]);
    assert_eq!(create(&app, 200_000, "").problem().status, 413);
    let first = begin(&app, 100_000, "");
    let full = create(&app, 100_000, "");
    assert_eq!((full.problem().status, full.header("retry-after")), (507, "60"));
    // What is given up gives its room back.
    app.request("DELETE", &first, &[VERSION], &[]);
    begin(&app, 100_000, "");
}

#[test]
fn what_is_no_snapshot_is_refused_as_soon_as_that_shows() {
    let app = TestApp::start();
    let noise = vec![b'x'; 300_000];
    let upload = begin(&app, noise.len(), "");
    let problem = patch(&app, &upload, 0, &noise[..100_000]).problem();
    assert_eq!((problem.status, problem.kind.as_str()), (422, "not-a-snapshot"));
    assert_eq!(head(&app, &upload).status, 404);
    let short = begin(&app, 10, "");
    assert_eq!(patch(&app, &short, 0, &noise[..10]).problem().status, 422);
    let damaged = begin(&app, oom().len(), &metadata(&[("content_digest", b"00")]));
    assert_eq!(patch(&app, &damaged, 0, &oom()).problem().kind, "digest-mismatch");
    assert_eq!(create(&app, 0, "").problem().status, 422);
    assert_eq!((app.n_files("unfinished"), app.n_files("originals"), app.runs().len()), (0, 0, 0));
}

#[test]
fn uploads_need_the_token_and_our_own_page() {
    let app = TestApp::start_with(&["--token", "secret"]);
    assert_eq!(create(&app, 10, "").problem().status, 401);
    assert_eq!(
        app.request("PATCH", &paths::upload("01ARZ3NDEKTSV4RRFFQ69G5FAV"), &[VERSION], &[]).status,
        401
    );
    let headers = [VERSION, (tus::LENGTH, "10"), ("Origin", "http://evil.example")];
    assert_eq!(app.request("POST", paths::UPLOADS, &headers, &[]).problem().status, 403);
}

#[test]
fn equal_uploads_in_parts_and_in_one_at_the_same_moment_become_one_snapshot() {
    let app = TestApp::start();
    let ids: Vec<String> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..6)
            .map(|stamp| {
                let caller = app.caller.clone();
                scope.spawn(move || {
                    let body = gzipped(&oom(), stamp);
                    match stamp % 2 {
                        0 => caller.upload("run=a&rank=1", &body).json::<SnapshotDetails>().id,
                        _ => {
                            let upload =
                                begin(&caller, body.len(), &metadata(&[("run", b"a"), ("rank", b"1")]));
                            patch(&caller, &upload, 0, &body[..100]);
                            finish(&caller, &upload, &body).id
                        }
                    }
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!((app.runs()[0].n_snapshots, app.n_files("originals")), (1, 1));
}

fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}
