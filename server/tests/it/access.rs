//! Who may push and look.

use tidegauge_api::paths;

use crate::app::{TestApp, oom};

#[test]
fn a_token_is_asked_for_where_one_is_set() {
    let app = TestApp::start_with(&["--token", "open sesame"]);
    let refused = app.get(paths::RUNS);
    let problem = refused.problem();
    assert_eq!((problem.status, problem.kind.as_str()), (401, "no-token"));
    assert_eq!(refused.header("www-authenticate"), "Bearer");
    assert_eq!(app.get_with(paths::RUNS, &[("Authorization", "Bearer wrong")]).status, 401);
    assert_eq!(app.get_with(paths::RUNS, &[("Authorization", "Bearer ")]).status, 401);
    assert_eq!(app.upload("run=a", &oom()).status, 401);
    assert_eq!(app.get("/api/v1/nothing").status, 401);

    assert_eq!(app.get_with(paths::RUNS, &[("Authorization", "Bearer open sesame")]).status, 200);
    assert_eq!(app.get_with(paths::RUNS, &[("Cookie", "a=b; tidegauge_token=open sesame")]).status, 200);
    let taken = app.upload_with("run=a", &[("Authorization", "Bearer open sesame")], &oom());
    assert_eq!(taken.status, 201);

    // Neither says anything of what is stored.
    assert_eq!(app.get(paths::HEALTHZ).status, 200);
    assert_eq!(app.get(paths::READYZ).status, 200);
}

#[test]
fn a_local_server_answers_to_the_names_of_this_machine_only() {
    let app = TestApp::start();
    let status = |host: &str| {
        let reply =
            app.raw(&format!("GET /api/v1/runs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        reply[9..12].to_owned()
    };
    assert_eq!(status("localhost:8642"), "200");
    assert_eq!(status("[::1]:1"), "200");
    assert_eq!(status("127.0.0.1"), "200");
    assert_eq!(status("tide.example.com"), "421");
    assert_eq!(status("127.0.0.1.example.com:8642"), "421");
    let page = app.raw("GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 421 "), "{page}");
}

#[test]
fn another_page_may_not_send_anything() {
    let app = TestApp::start();
    let own = app.url("");
    let other = "http://evil.example";
    let problem = app.upload_with("run=a", &[("Origin", other)], &oom()).problem();
    assert_eq!((problem.status, problem.kind.as_str()), (403, "foreign-page"));
    assert_eq!(app.upload_with("run=a", &[("Origin", "null")], &oom()).status, 403);
    assert_eq!(app.upload_with("run=a", &[("Origin", "http://127.0.0.1:1")], &oom()).status, 403);
    assert_eq!(app.runs(), []);
    assert_eq!(app.upload_with("run=a", &[("Origin", &own)], &oom()).status, 201);
}

#[test]
fn every_answer_tells_the_browser_to_be_careful() {
    let app = TestApp::start();
    for address in ["/", paths::RUNS, "/api/v1/nothing", paths::HEALTHZ] {
        let reply = app.get(address);
        let policy = reply.header("content-security-policy");
        assert!(policy.contains("script-src 'self' 'wasm-unsafe-eval'"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
        assert_eq!(reply.header("referrer-policy"), "no-referrer");
        assert_eq!(reply.header("cross-origin-opener-policy"), "same-origin");
    }
}
