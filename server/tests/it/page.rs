//! The dashboard's files.

use std::fs;

use crate::app::TestApp;

fn app_with_page() -> (TestApp, tempfile::TempDir) {
    let site = tempfile::tempdir().unwrap();
    fs::write(site.path().join("index.html"), "<p>the page").unwrap();
    fs::create_dir(site.path().join("pkg")).unwrap();
    fs::write(site.path().join("pkg/page.wasm"), "\0asm").unwrap();
    fs::write(site.path().join("pkg/page.wasm.br"), "squeezed").unwrap();
    fs::write(site.path().parent().unwrap().join("outside.txt"), "secret").unwrap();
    (TestApp::start_with(&["--site", site.path().to_str().unwrap()]), site)
}

#[test]
fn every_address_of_the_page_is_the_page() {
    let (app, _site) = app_with_page();
    for address in
        ["/", "/index.html", "/upload", "/runs/01ARZ3NDEKTSV4RRFFQ69G5FAV", "/snapshots/x?device=1"]
    {
        let reply = app.get(address);
        assert_eq!((reply.status, reply.text().as_str()), (200, "<p>the page"), "{address}");
        assert!(reply.header("content-type").starts_with("text/html"));
        assert_eq!(reply.header("cache-control"), "no-cache");
    }
}

#[test]
fn files_come_with_their_type_and_squeezed_where_that_is_understood() {
    let (app, _site) = app_with_page();
    let plain = app.get_with("/pkg/page.wasm", &[("Accept-Encoding", "identity")]);
    assert_eq!((plain.status, plain.header("content-type")), (200, "application/wasm"));
    assert_eq!(plain.body, b"\0asm");
    let squeezed = app.get_with("/pkg/page.wasm", &[("Accept-Encoding", "gzip, br")]);
    assert_eq!(
        (squeezed.header("content-encoding"), squeezed.header("content-type")),
        ("br", "application/wasm")
    );
    assert_eq!(squeezed.body, b"squeezed");
    let etag = plain.header("etag").to_owned();
    let again = app.get_with("/pkg/page.wasm", &[("Accept-Encoding", "identity"), ("If-None-Match", &etag)]);
    assert_eq!((again.status, again.header("cache-control")), (304, "no-cache"));
}

#[test]
fn what_is_not_in_the_folder_is_not_served() {
    let (app, _site) = app_with_page();
    assert_eq!(app.get("/pkg/missing.js").status, 404);
    let reply = app
        .raw(&format!("GET /../outside.txt HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", app.address));
    assert!(reply.starts_with("HTTP/1.1 404 "), "{reply}");
    assert_eq!(app.get("/%2e%2e/outside.txt").status, 404);
}

#[test]
fn without_a_page_the_server_says_how_to_get_one() {
    let app = TestApp::start();
    let reply = app.get("/");
    assert_eq!(reply.status, 404);
    assert!(reply.text().contains("cargo xtask serve"), "{}", reply.text());
}
