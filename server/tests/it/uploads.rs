//! What is taken in, and what is refused.

use std::io::{Cursor, Read as _, Write as _};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use tidegauge_api::snapshot::{SnapshotDetails, State};
use tidegauge_api::{Place, Problem, paths};

use crate::app::{TestApp, fixture, gzipped, oom, streams};

#[test]
fn an_upload_is_kept_as_it_came_and_is_read() {
    let app = TestApp::start();
    let body = oom();
    let reply = app.upload("run=llama&role=actor&rank=3&first_step=2&step=5&file_name=a/b.pickle", &body);
    assert_eq!(reply.status, 201);
    let accepted: SnapshotDetails = reply.json();
    assert_eq!(reply.header("location"), paths::snapshot(&accepted.id));
    assert_eq!((accepted.seq, accepted.bytes, accepted.already_here), (0, body.len() as u64, false));
    assert_eq!(accepted.digest, blake3::hash(&body).to_hex().as_str());
    assert_eq!(accepted.run_name, "llama");
    assert_eq!(accepted.file_name.as_deref(), Some("a/b.pickle"));
    assert_eq!(
        accepted.place,
        Place {
            run: Some("llama".to_owned()),
            role: Some("actor".to_owned()),
            rank: Some(3),
            first_step: Some(2),
            last_step: Some(5),
            reason: Some("step".to_owned()),
            ..Place::default()
        }
    );

    let ready = app.until_read(&accepted.id);
    assert_eq!((ready.state, &ready.problem), (State::Ready, &None));
    let inspection = ready.inspection.unwrap();
    assert_eq!((inspection.file.as_str(), inspection.bytes), ("a/b.pickle", body.len() as u64));
    // As torch.cuda.memory_stats() said when the fixture was made.
    assert_eq!(inspection.devices[0].allocated.peak, 1_610_612_736);
    assert_eq!(app.get(&paths::original(&ready.id)).body, body);
    assert_eq!(app.n_files("spool"), 0);
}

#[test]
fn a_body_of_unknown_length_is_taken_too() {
    let app = TestApp::start();
    let reply = app.upload_stream("rank=0", &streams()[..]).unwrap();
    assert_eq!(reply.status, 201, "{}", reply.text());
    assert_eq!(app.until_read(&reply.json::<SnapshotDetails>().id).state, State::Ready);
}

#[test]
fn a_repeat_is_the_same_snapshot_however_it_is_packed() {
    let app = TestApp::start();
    let first = app.accepted("run=a&rank=1&step=5", &oom());
    for body in [oom(), gzipped(&oom(), 1)] {
        let reply = app.upload("run=a&rank=1&step=5&first_step=5&reason=step", &body);
        assert_eq!(reply.status, 200);
        let again: SnapshotDetails = reply.json();
        assert_eq!((again.id.as_str(), again.already_here), (first.id.as_str(), true));
    }
    assert_eq!(app.runs()[0].n_snapshots, 1);
    assert_eq!(app.n_files("originals"), 1);
}

#[test]
fn a_run_is_found_by_its_name_and_by_its_id() {
    let app = TestApp::start();
    let first = app.accepted("run=a&rank=1", &oom());
    let second = app.accepted(&format!("run={}&rank=2", first.run_id), &oom());
    assert_eq!((second.run_id, second.run_name.as_str()), (first.run_id, "a"));
    assert_eq!(app.runs().len(), 1);
}

#[test]
fn other_content_for_the_same_place_gets_the_next_number() {
    let app = TestApp::start();
    let first = app.accepted("run=a&rank=1&step=5", &oom());
    let second = app.accepted("run=a&rank=1&step=5", &streams());
    assert_eq!((first.seq, second.seq), (0, 1));
    assert_ne!(first.id, second.id);
}

#[test]
fn the_same_content_for_other_places_is_stored_once() {
    let app = TestApp::start();
    let ids: Vec<_> = (0..3).map(|rank| app.read(&format!("run=a&rank={rank}"), &oom()).id).collect();
    assert_eq!(app.runs()[0].n_snapshots, 3);
    assert_eq!((app.n_files("originals"), app.n_files("packs")), (1, 1));
    assert_eq!(app.get(&paths::original(&ids[2])).body, oom());
}

#[test]
fn equal_uploads_at_the_same_moment_become_one_snapshot() {
    let app = TestApp::start();
    let ids: Vec<SnapshotDetails> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|stamp| {
                let caller = app.caller.clone();
                scope.spawn(move || caller.upload("run=a&rank=1", &gzipped(&oom(), stamp)).json())
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(ids.iter().filter(|details| !details.already_here).count(), 1);
    assert!(ids.iter().all(|details| details.id == ids[0].id));
    assert_eq!((app.runs()[0].n_snapshots, app.n_files("originals")), (1, 1));
}

#[test]
fn a_sidecar_says_where_a_snapshot_belongs_and_is_kept() {
    let app = TestApp::start();
    let content = blake3::hash(&oom()).to_hex();
    let json = format!(
        r#"{{"sidecar": 1, "run": "b", "rank": 7, "last_step": 9, "backend": "npu", "content_digest": "{content}",
             "weather": "fine"}}"#
    );
    let header = BASE64_URL_SAFE_NO_PAD.encode(json);
    // The query wins.
    let reply = app.upload_with("rank=8", &[("Tidegauge-Sidecar", &header)], &gzipped(&oom(), 0));
    assert_eq!(reply.status, 201, "{}", reply.text());
    let details: SnapshotDetails = app.get(&paths::snapshot(&reply.json::<SnapshotDetails>().id)).json();
    assert_eq!(
        (details.run_name.as_str(), details.place.rank, details.place.last_step),
        ("b", Some(8), Some(9))
    );
    let sidecar = details.sidecar.unwrap();
    assert_eq!((sidecar.backend.as_deref(), &sidecar.more["weather"]), (Some("npu"), &"fine".into()));
}

#[test]
fn a_sidecar_may_be_as_long_as_eight_devices_make_it() {
    let app = TestApp::start();
    let json = format!(r#"{{"rank": 1, "memory_stats": {{"0": {{"text": "{}"}}}}}}"#, "x".repeat(190_000));
    let reply = app.upload_with("", &[("Tidegauge-Sidecar", &BASE64_URL_SAFE_NO_PAD.encode(json))], &oom());
    assert_eq!((reply.status, reply.json::<SnapshotDetails>().place.rank), (201, Some(1)));
    let json = format!(r#"{{"text": "{}"}}"#, "x".repeat(200_000));
    let reply = app.upload_with("", &[("Tidegauge-Sidecar", &BASE64_URL_SAFE_NO_PAD.encode(json))], &oom());
    assert_eq!(reply.problem().status, 400);
}

#[test]
fn a_path_tells_what_nobody_said() {
    let app = TestApp::start();
    let details = app.accepted("file_name=out/steps4-5/torch_memory_rank3_pid9.pickle", &oom());
    assert_eq!(
        (details.run_name.as_str(), details.place.rank, details.place.pid),
        ("unnamed", Some(3), Some(9))
    );
    assert_eq!(details.place.step_label(), "4–5");
}

#[test]
fn a_sidecar_that_cannot_be_read_is_refused_with_its_fault() {
    let app = TestApp::start();
    let problem = app.upload_with("", &[("Tidegauge-Sidecar", "%%%")], &oom()).problem();
    assert_eq!((problem.status, problem.kind.as_str()), (400, "bad-request"));
    assert!(problem.detail.contains("base64url"), "{}", problem.detail);
    let json = BASE64_URL_SAFE_NO_PAD.encode(r#"{"rank": "three"}"#);
    let problem = app.upload_with("", &[("Tidegauge-Sidecar", &json)], &oom()).problem();
    assert!(problem.detail.contains("does not hold a sidecar's JSON"), "{}", problem.detail);
    let wrong = BASE64_URL_SAFE_NO_PAD.encode(r#"{"content_digest": "00"}"#);
    let problem = app.upload_with("", &[("Tidegauge-Sidecar", &wrong)], &oom()).problem();
    assert_eq!((problem.status, problem.kind.as_str()), (422, "digest-mismatch"));
    nothing_is_stored(&app);
}

#[test]
fn a_parameter_that_cannot_be_read_is_named() {
    let app = TestApp::start();
    let problem = app.upload("rank=three", &oom()).problem();
    assert_eq!(problem.status, 400);
    assert_eq!(problem.detail, "the parameter \"rank\" should be a whole number from 0, found \"three\"");
}

#[test]
fn what_is_no_snapshot_is_refused_and_nothing_is_stored() {
    let app = TestApp::start();
    let mut torch_save = b"PK\x03\x04\x00\x00\x08\x08".to_vec();
    torch_save.extend([0; 18]);
    torch_save.extend(b"\x10\x00\x00\x00archive/data.pkl");
    let global = b"\x80\x04cos\nsystem\n(S'true'\ntR.".to_vec();
    let page = b"<!doctype html><html><body>Sign in</body></html>".to_vec();
    for body in [Vec::new(), page, torch_save, global] {
        let reply = app.upload("run=a", &body);
        let problem = reply.problem();
        assert_eq!((problem.status, problem.kind.as_str()), (422, "not-a-snapshot"));
        let error = tidegauge_snapshot::read::open_file(Cursor::new(&body)).unwrap_err();
        assert_eq!(problem.detail, error.to_string(), "the same sentence as on the command line");
    }
    nothing_is_stored(&app);
}

#[test]
fn an_archive_of_one_snapshot_is_that_snapshot() {
    let app = TestApp::start();
    let plain = app.accepted("run=a&rank=0", &fixture("wrapped/protocol5.pickle"));
    for (name, rank) in [("wrapped/one_streamed.zip", 1), ("wrapped/one_gnu.tar.gz", 2)] {
        let reply = app.upload("run=a&rank=0", &fixture(name));
        assert_eq!((reply.status, reply.json::<SnapshotDetails>().id), (200, plain.id.clone()), "{name}");
        let ready = app.read(&format!("run=a&rank={rank}"), &fixture(name));
        assert_eq!((ready.state, &ready.problem), (State::Ready, &None), "{name}");
    }
}

#[test]
fn an_archive_of_several_is_refused_with_their_names_and_what_to_do() {
    let app = TestApp::start();
    for name in ["wrapped/run.zip", "wrapped/run.tar.gz"] {
        let problem = app.upload("run=a", &fixture(name)).problem();
        assert_eq!((problem.status, problem.kind.as_str()), (422, "archive"));
        assert!(
            problem.detail.starts_with("this archive holds 3 snapshots: gpt-small/step1/"),
            "{}",
            problem.detail
        );
        assert!(
            problem.detail.ends_with("tidegauge push sends each of them to its place"),
            "{}",
            problem.detail
        );
    }
    nothing_is_stored(&app);
}

#[test]
fn a_page_is_read_on_until_its_pickle_comes_or_it_ends() {
    let app = TestApp::start();
    let page = String::from_utf8(fixture("wrapped/trace_plot.html")).unwrap();
    let script = format!("<script>{}</script>", "/* a long script */".repeat(20_000));
    let ready = app.read("run=a", format!("<!doctype html>{script}{page}").as_bytes());
    assert_eq!((ready.state, &ready.problem), (State::Ready, &None));
    let problem = app.upload("run=b", format!("<!doctype html>{script}<p>Sign in").as_bytes()).problem();
    assert_eq!((problem.status, problem.kind.as_str()), (422, "not-a-snapshot"));
}

#[test]
fn too_large_an_upload_is_refused_with_the_limit_and_its_flag() {
    let app = TestApp::start_with(&["--max-upload-bytes", "100KiB"]);
    let known = app.upload("run=a", &streams());
    let unknown = app.upload_stream("run=a", &streams()[..]).unwrap();
    for reply in [known, unknown] {
        let problem = reply.problem();
        assert_eq!((problem.status, problem.kind.as_str()), (413, "too-large"));
        assert_eq!(
            problem.detail,
            "an upload may be at most 100 KiB (102400 bytes) here; raise the server's --max-upload-bytes or \
             TIDEGAUGE_MAX_UPLOAD_BYTES"
        );
    }
    nothing_is_stored(&app);
    app.accepted("run=a", &oom());
}

#[test]
fn a_full_server_says_so_before_it_reads_the_body() {
    let app = TestApp::start_with(&["--max-data-bytes", "20000"]);
    app.read("run=a&rank=0", &oom());
    let mut stream = app.connect();
    let head = format!(
        "POST /api/v1/snapshots?run=a&rank=1 HTTP/1.1\r\nHost: {}\r\nContent-Length: 100000000\r\n\
         Expect: 100-continue\r\nConnection: close\r\n\r\n",
        app.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    // Not one byte of the body was sent.
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 507 "), "{reply}");
    let problem: Problem = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(problem.kind, "full");
    assert!(problem.detail.starts_with("the server is full ("), "{}", problem.detail);
    assert!(problem.detail.contains("--max-data-bytes"), "{}", problem.detail);

    let unknown = app.upload_stream("run=a&rank=1", &streams()[..]).unwrap().problem();
    assert_eq!((unknown.status, unknown.kind.as_str()), (507, "full"));
    assert_eq!(app.runs()[0].n_snapshots, 1);
}

#[test]
fn a_caller_who_waits_for_a_word_gets_it_and_then_sends() {
    let app = TestApp::start();
    let body = oom();
    let mut stream = app.connect();
    let head = format!(
        "POST /api/v1/snapshots?run=a HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\
         Connection: close\r\n\r\n",
        app.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut word = [0; 25];
    stream.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(&body).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 201 "), "{reply}");
}

#[test]
fn a_caller_who_sends_everything_first_still_reads_why_it_was_refused() {
    let app = TestApp::start_with(&["--max-upload-bytes", "1MiB"]);
    let mut stream = app.connect();
    // More than the kernel's buffers on both sides take, so that the server must go on reading.
    let body = vec![b'x'; 32 << 20];
    let head = format!(
        "POST /api/v1/snapshots HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        app.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
}

#[test]
fn an_upload_that_breaks_off_leaves_nothing() {
    let app = TestApp::start();
    let mut stream = app.connect();
    let head = format!(
        "POST /api/v1/snapshots?run=a HTTP/1.1\r\nHost: {}\r\nContent-Length: 100000\r\n\r\n",
        app.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&streams()[..50_000]).unwrap();
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    drop(stream);
    // The next one goes through all the same, and by then the first is cleared away.
    app.read("run=b", &oom());
    assert_eq!(app.runs().len(), 1);
    assert_eq!(app.n_files("originals"), 1);
}

fn nothing_is_stored(app: &TestApp) {
    assert_eq!(app.runs(), []);
    assert_eq!((app.n_files("spool"), app.n_files("originals"), app.n_files("packs")), (0, 0, 0));
}
