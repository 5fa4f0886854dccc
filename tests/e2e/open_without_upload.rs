//! Someone wants a look at a file that must not leave their machine.

use tidegauge_tests::{Browser, Server, Wire, eventually, place::fixture};

async fn is_drawn(browser: &Browser, name: &str) {
    browser.read(name).await;
    let timeline = browser.find("timeline").await;
    eventually("the dropped file to be drawn", || async {
        match browser.n_colors(&timeline).await {
            n @ 0..6 => Err(format!("{n} colors; {}", browser.seen().await)),
            n => Ok(n),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_file_is_drawn_and_nothing_of_it_reaches_the_server() {
    let server = Server::start();
    let wire = Wire::to(server.address()).await;
    let browser = Browser::open(wire.address()).await;
    browser.read("Tidegauge").await;

    browser.drop_files(&[&fixture("llama8b_fsdp8_rank0_step3.pickle.zst")]).await;
    is_drawn(&browser, "llama8b_fsdp8_rank0_step3").await;
    assert!(browser.address().await.contains("/file"), "{}", browser.address().await);
    browser.screenshot("dropped").await;
    let requests = wire.requests();
    assert!(
        requests.iter().any(|request| request == "GET /engine_bg.wasm"),
        "the wire saw too little: {requests:?}"
    );
    assert!(requests.iter().all(|request| request.starts_with("GET ")), "{requests:?}");
    assert!(!requests.iter().any(|request| request.contains("/snapshots")), "{requests:?}");

    // The page and its worker are here now: from now on not a byte is sent, whatever is opened.
    let n_bytes = wire.n_bytes_sent();
    browser.drop_files(&[&fixture("oom_plain_2gib.pickle")]).await;
    is_drawn(&browser, "oom_plain_2gib").await;
    browser.press("w").await;
    eventually("the zoom to be in the address", || async {
        let address = browser.address().await;
        if address.contains("from=") { Ok(()) } else { Err(address) }
    })
    .await;
    let after = &wire.requests()[requests.len()..];
    assert_eq!(wire.n_bytes_sent(), n_bytes, "the page sent {after:?}");
    assert!(server.runs().is_empty(), "looking at a file made a run");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_file_is_drawn_with_the_server_gone() {
    let mut server = Server::start();
    let browser = Browser::open(server.address()).await;
    browser.read("Tidegauge").await;
    browser.drop_files(&[&fixture("oom_plain_2gib.pickle")]).await;
    is_drawn(&browser, "oom_plain_2gib").await;

    server.kill();
    browser.drop_files(&[&fixture("streams_2dev_lag40.pickle")]).await;
    is_drawn(&browser, "streams_2dev_lag40").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_archive_of_several_one_is_chosen() {
    let server = Server::start();
    let browser = Browser::open(server.address()).await;
    browser.read("Tidegauge").await;
    browser.drop_files(&[&fixture("wrapped/run.zip")]).await;
    browser.read("This archive holds 3 snapshots").await;
    browser.screenshot("archive").await;
    browser.find("archive-member").await.click().await.unwrap();
    is_drawn(&browser, "gpt-small/step1/torch_memory_rank0_pid11.pickle").await;
}
