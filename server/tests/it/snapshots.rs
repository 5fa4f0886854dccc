//! A snapshot's details, pack and original.

use tidegauge_api::paths;
use tidegauge_snapshot::pack;

use crate::app::{TestApp, streams};

#[test]
fn a_pack_holds_the_snapshot_and_is_served_in_ranges() {
    let app = TestApp::start();
    let ready = app.read("run=a", &streams());
    let address = paths::pack(&ready.id, pack::VERSION);
    let whole = app.get(&address);
    assert_eq!(whole.status, 200);
    let snapshot = pack::read(&whole.body).unwrap();
    let inspection = tidegauge_api::inspection::inspect(&snapshot, "", ready.bytes);
    assert_eq!(Some(inspection), ready.inspection);
    assert_eq!(whole.header("accept-ranges"), "bytes");
    assert_eq!(whole.header("cache-control"), "private, max-age=31536000, immutable");
    let etag = whole.header("etag").to_owned();
    assert_eq!(etag, format!("\"{}-v{}\"", ready.digest, pack::VERSION));

    let part = app.get_with(&address, &[("Range", "bytes=100-299")]);
    assert_eq!((part.status, &part.body[..]), (206, &whole.body[100..300]));
    assert_eq!(part.header("content-range"), format!("bytes 100-299/{}", whole.body.len()));
    assert_eq!(part.header("etag"), etag);
    let end = app.get_with(&address, &[("Range", "bytes=-10")]);
    assert_eq!(&end.body[..], &whole.body[whole.body.len() - 10..]);
    let held = app.get_with(&address, &[("Range", "bytes=0-9"), ("If-Range", &etag)]);
    assert_eq!((held.status, held.body.len()), (206, 10));
    let other = app.get_with(&address, &[("Range", "bytes=0-9"), ("If-Range", "\"other\"")]);
    assert_eq!((other.status, other.body.len()), (200, whole.body.len()));
    let beyond = app.get_with(&address, &[("Range", "bytes=99999999-")]);
    assert_eq!(beyond.problem().status, 416);
    assert_eq!(beyond.header("content-range"), format!("bytes */{}", whole.body.len()));
    assert_eq!(app.get_with(&address, &[("If-None-Match", &etag)]).status, 304);
}

#[test]
fn a_pack_of_another_version_is_not_there() {
    let app = TestApp::start();
    let ready = app.read("run=a", &streams());
    let problem = app.get(&paths::pack(&ready.id, pack::VERSION + 1)).problem();
    assert_eq!(problem.status, 404);
    assert!(problem.detail.contains("load the page again"), "{}", problem.detail);
    let unversioned = app.get(paths::pack(&ready.id, 0).split_once('?').unwrap().0);
    assert_eq!((unversioned.status, unversioned.header("cache-control")), (200, "private, no-cache"));
}

#[test]
fn an_original_comes_back_whole_or_in_part_under_its_own_name() {
    let app = TestApp::start();
    let body = streams();
    let ready = app.read("run=a&file_name=/home/me/r%C3%B6ntgen.pickle", &body);
    let address = paths::original(&ready.id);
    let whole = app.get(&address);
    assert!(whole.body == body);
    assert_eq!(whole.header("etag"), format!("\"{}\"", ready.digest));
    assert_eq!(whole.header("content-type"), "application/octet-stream");
    assert_eq!(
        whole.header("content-disposition"),
        "attachment; filename=\"r_ntgen.pickle\"; filename*=UTF-8''r%C3%B6ntgen.pickle"
    );
    let part = app.get_with(&address, &[("Range", "bytes=1000-")]);
    assert_eq!(part.status, 206);
    assert!(part.body == body[1000..]);
}

#[test]
fn what_nobody_sent_is_not_there() {
    let app = TestApp::start();
    for address in [
        paths::snapshot("01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        paths::original("01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        paths::pack("01ARZ3NDEKTSV4RRFFQ69G5FAV", pack::VERSION),
        paths::snapshot("..%2F..%2Fetc%2Fpasswd"),
        paths::snapshot("%FF"),
        "/api/v1/nothing".to_owned(),
        "/api".to_owned(),
    ] {
        assert_eq!(app.get(&address).problem().status, 404, "{address}");
    }
    assert_eq!(app.upload("", b"").status, 422);
    let reply = app
        .raw(&format!("DELETE /api/v1/runs HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", app.address));
    assert!(reply.starts_with("HTTP/1.1 405 ") && reply.contains("problem+json"), "{reply}");
}
