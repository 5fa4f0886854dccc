//! Someone watches a run while it trains: its grid has no holes between the snapshots.

use serde_json::json;
use thirtyfour::{By, Key};
use tidegauge_api::{Place, paths::page};
use tidegauge_tests::{Browser, Server, eventually, place::fixture};

const GIB: u64 = 1 << 30;

/// Tells of steps of a rank as its agent does: `allocated` GiB at the end of each, a peak of ten more.
fn sample(
    server: &Server,
    rank: u32,
    steps: std::ops::RangeInclusive<u64>,
    allocated: u64,
    n_ooms: u64,
) -> String {
    let column = |number: &dyn Fn(u64) -> u64| steps.clone().map(number).collect::<Vec<_>>();
    server.send_samples(&json!({
        "run": "llama8b-fsdp8", "rank": rank, "host": "node1", "pid": 100 + rank,
        "samples": {
            "step": column(&|step| step),
            "at_us": column(&|step| 1_796_000_000_000_000 + step * 1_000_000),
            "device": column(&|_| 0),
            "step_us": column(&|_| 1_000_000),
            "allocated": column(&|_| allocated * GIB),
            "allocated_peak": column(&|_| (allocated + 10) * GIB),
            "reserved": column(&|_| (allocated + 12) * GIB),
            "n_ooms": column(&|_| n_ooms),
            "device_free": column(&|_| (80 - allocated - 12 - 3) * GIB),
            "device_total": column(&|_| 80 * GIB),
        },
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_between_snapshots_appear_while_the_run_goes_on() {
    let server = Server::start();
    let place = Place {
        run: Some("llama8b-fsdp8".to_owned()),
        rank: Some(0),
        first_step: Some(2),
        last_step: Some(3),
        ..Place::default()
    };
    let snapshot = server.upload(&fixture("llama8b_fsdp8_rank0_step3.pickle.zst"), &place).unwrap();
    server.read(&snapshot.id).await;
    let run_id = sample(&server, 0, 1..=4, 20, 0);
    // Rank 1 takes no snapshots.
    sample(&server, 1, 1..=4, 21, 0);

    let browser = Browser::open(&format!("{}{}", server.address(), page::run(&run_id))).await;
    let n_sampled = |selector: &'static str, n: usize| {
        let browser = &browser;
        async move {
            eventually(&format!("{n} of {selector}"), || async {
                match browser.count(selector).await {
                    found if found == n => Ok(()),
                    found => Err(format!("{found}; {}", browser.seen().await)),
                }
            })
            .await;
        }
    };
    // Step 3 of rank 0 is a snapshot; each other step of both ranks is sampled.
    n_sampled("[data-testid='sampled']", 7).await;
    assert_eq!(browser.count("[data-testid='cell'][data-rank='0'][data-step-label='2–3']").await, 1);
    n_sampled("[data-testid='sampled'][data-rank='1'][data-step-label='2–3']", 1).await;

    // The run goes on, and the page with it; rank 1 runs out of memory and loses a snapshot.
    sample(&server, 0, 5..=8, 20, 0);
    sample(&server, 1, 5..=8, 30, 1);
    server.send_samples(&json!({
        "run": "llama8b-fsdp8", "rank": 1, "host": "node1", "pid": 101, "n_lost": 1,
        "lost": [{"first_step": 4, "last_step": 6, "why": "the outbox is full"}],
    }));
    n_sampled("[data-testid='sampled']", 14).await;
    browser.find("lost-cell").await;
    browser.read("1 snapshot lost").await;
    browser.read("step 8").await;
    browser.screenshot("sampled").await;

    // What the mouse or the keyboard is on is told beside the grid, and read out.
    let cell = browser.find_css("[data-testid='sampled'][data-rank='1'][data-step-label='5']").await;
    browser.hover(&cell, 5, 5).await;
    browser.read("ran out of memory").await;
    let facts = browser.find("sampled-facts").await.text().await.unwrap();
    for words in ["30.0 GiB", "40.0 GiB", "42.0 GiB", "3.00 GiB", "1.00 s", "once"] {
        assert!(facts.contains(words), "no {words} in {facts}");
    }
    let spoken = cell.attr("aria-label").await.unwrap().unwrap_or_default();
    assert_eq!(
        spoken,
        "rank 1, step 5: sampled, 30.0 GiB allocated at the step's end, peak so far 40.0 GiB, ran out of memory once"
    );
    cell.click().await.unwrap();
    browser.driver().find(By::Css("[data-testid='grid']")).await.unwrap().focus().await.unwrap();
    browser.press(&Key::Right.value().to_string()).await;
    browser.press(&Key::Right.value().to_string()).await;
    browser.read("rank 1 · step 7").await;

    // The list of runs says how far it is.
    browser.goto(server.address()).await;
    let step = browser.find("latest-step").await.text().await.unwrap();
    assert_eq!(step, "8");
}
