//! Someone opens the dashboard and looks for the rank that needs the most memory.

use std::time::Duration;

use thirtyfour::By;
use tidegauge_api::{Place, snapshot::State};
use tidegauge_tests::{Browser, Server, eventually, place::fixture};

/// Ranks of the Llama run among the fixtures, and the windows of its snapshots.
const RANKS: u32 = 8;
const WINDOWS: [(u64, u64); 3] = [(1, 1), (2, 3), (4, 5)];

/// Uploads the Llama run and waits until the server has read all of it; its id.
async fn llama_run(server: &Server) -> String {
    let mut ids = Vec::new();
    let mut run_id = String::new();
    for rank in 0..RANKS {
        for (first, last) in WINDOWS {
            let place = Place {
                run: Some("llama8b-fsdp8".to_owned()),
                rank: Some(rank),
                first_step: Some(first),
                last_step: Some(last),
                ..Place::default()
            };
            let file = fixture(&format!("llama8b_fsdp8_rank{rank}_step{last}.pickle.zst"));
            let details = server.upload(&file, &place).unwrap();
            run_id = details.run_id;
            ids.push(details.id);
        }
    }
    for id in &ids {
        let details = server.read(id).await;
        assert_eq!(details.state, State::Ready, "{:?}", details.problem);
    }
    run_id
}

#[tokio::test(flavor = "multi_thread")]
async fn from_the_dashboard_to_the_grid_to_a_timeline_and_into_it() {
    let server = Server::start();
    llama_run(&server).await;

    let browser = Browser::open(server.address()).await;
    browser.find("runs-table").await;
    browser.screenshot("runs").await;
    browser.find("run-link").await.click().await.unwrap();

    browser.find("grid").await;
    eventually("24 ready cells", || async {
        match browser.count("[data-testid='cell'][data-state='ready']").await {
            24 => Ok(()),
            n => Err(format!("{n} ready cells")),
        }
    })
    .await;
    browser.screenshot("grid").await;

    browser
        .find_css("[data-testid='cell'][data-rank='5'][data-step-label='2–3']")
        .await
        .click()
        .await
        .unwrap();
    let timeline = browser.find("timeline").await;
    eventually("the timeline to be drawn", || async {
        match browser.n_colors(&timeline).await {
            n @ 0..6 => Err(format!("{n} colors; {}", browser.seen().await)),
            n => Ok(n),
        }
    })
    .await;
    browser.screenshot("timeline").await;

    let size = timeline.rect().await.unwrap();
    #[expect(clippy::cast_possible_truncation, reason = "CSS pixels of a window")]
    let (width, height) = (size.width as i64, size.height as i64);
    let tooltip = eventually("a tooltip that names an allocation", || async {
        // Large allocations lie at the bottom of the picture; a tooltip follows a mouse that moves.
        let mut seen = String::new();
        for percent in [92, 88, 84, 80, 76, 72] {
            browser.hover(&timeline, width * 40 / 100, height * percent / 100).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            let shown = browser.driver().find(By::Css("[data-testid='tooltip']")).await;
            seen = match shown {
                Ok(tooltip) => tooltip.text().await.unwrap_or_default(),
                Err(_) => String::new(),
            };
            if seen.contains("click to pin") {
                return Ok(seen);
            }
        }
        Err(format!("a tooltip of `{seen}`"))
    })
    .await;
    let title = tooltip.lines().next().unwrap_or_default();
    assert!(["KiB", "MiB", "GiB"].iter().any(|unit| title.contains(unit)), "no size in `{title}`");
    assert!(tooltip.contains("event"), "no lifetime in `{tooltip}`");
    browser.screenshot("tooltip").await;

    let before = browser.address().await;
    browser.press("w").await;
    browser.press("w").await;
    let zoomed = eventually("the address to hold the zoomed window", || async {
        let address = browser.address().await;
        if address.contains("from=") && address.contains("to=") && address != before {
            Ok(address)
        } else {
            Err(address)
        }
    })
    .await;

    // A colleague who is sent the address sees the same picture.
    browser.goto(&zoomed).await;
    let timeline = browser.find("timeline").await;
    eventually("the zoomed timeline to be drawn", || async {
        match browser.n_colors(&timeline).await {
            n @ 0..4 => Err(format!("{n} colors")),
            n => Ok(n),
        }
    })
    .await;
    assert_eq!(browser.address().await, zoomed);
}
