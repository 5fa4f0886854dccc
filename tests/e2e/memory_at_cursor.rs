//! Someone asks what lies in memory at a moment, and which allocation holds a segment.

use thirtyfour::WebElement;
use tidegauge_tests::{Browser, Server, eventually, place::fixture};

/// The pixels of a canvas, as text to compare.
async fn pixels(browser: &Browser, canvas: &WebElement) -> String {
    let script = "return arguments[0].toDataURL()";
    browser.run(script, vec![canvas.to_json().unwrap()]).await.as_str().unwrap().to_owned()
}

/// Waits until the blocks of another state are shown than before.
async fn state_after(browser: &Browser, before: &str) -> String {
    eventually("the blocks of another state", || async {
        let rows = browser.find("memory-rows").await;
        match rows.attr("data-state").await.unwrap() {
            Some(state) if state != before => Ok(state),
            state => Err(format!("those of {state:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_blocks_follow_the_cursor_and_a_click_on_one_selects_its_allocation() {
    let server = Server::start();
    let browser = Browser::open(server.address()).await;
    // A window in which the timeline and the blocks are both seen.
    browser.driver().set_window_rect(0, 0, 1440, 1900).await.unwrap();
    browser.read("Tidegauge").await;
    browser.drop_files(&[&fixture("llama8b_fsdp8_rank0_step3.pickle.zst")]).await;
    let canvas = browser.find("memory-canvas").await;
    let at_peak = state_after(&browser, "").await;
    let peak_pixels = pixels(&browser, &canvas).await;

    // The arrow keys move the cursor, and the blocks with it.
    let mut state = at_peak.clone();
    for _ in 0..8 {
        browser.press("\u{e014}").await;
        state = state_after(&browser, &state).await;
    }
    assert_ne!(state, at_peak);
    eventually("other blocks to be drawn", || async {
        if pixels(&browser, &canvas).await == peak_pixels {
            Err("the same pixels".to_owned())
        } else {
            Ok(())
        }
    })
    .await;

    // The table's sums are the levels at the cursor.
    browser.find_css("[data-testid='memory-table'] summary").await.click().await.unwrap();
    for (sum, row) in [("memory-reserved", 1), ("memory-active", 2)] {
        let level = browser.find_css(&format!("#levels tr:nth-child({row}) td")).await;
        eventually("a sum that equals its level", || async {
            let sum = browser.find(sum).await.attr("title").await.unwrap();
            let level = level.attr("title").await.unwrap();
            if sum == level && sum.is_some() { Ok(()) } else { Err(format!("{sum:?}, but {level:?}")) }
        })
        .await;
    }

    // A click on a block selects its allocation, which the timeline then marks.
    let timeline = browser.find("timeline").await;
    let unmarked = pixels(&browser, &timeline).await;
    // The thirteenth row is one block, which is there from before the first event to the end.
    let named = eventually("the name of a block in use", || async {
        let mut seen = String::new();
        for x_css in [180, 170, 190] {
            browser.hover(&canvas, x_css, 12 * 18 + 9).await;
            seen = browser.find("memory-block").await.text().await.unwrap();
            if seen.contains(" in use at 0x") {
                browser.driver().action_chain().click().perform().await.unwrap();
                return Ok(seen);
            }
        }
        Err(seen)
    })
    .await;
    let address = named.split_whitespace().find(|word| word.starts_with("0x")).unwrap();
    eventually("the selected allocation to be told", || async {
        let pinned = browser.find("pinned").await.text().await.unwrap();
        if pinned.contains(address) { Ok(()) } else { Err(format!("{pinned}, not {address}")) }
    })
    .await;
    eventually("the timeline to mark it", || async {
        if pixels(&browser, &timeline).await == unmarked { Err("the same pixels".to_owned()) } else { Ok(()) }
    })
    .await;
    browser.screenshot("memory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_out_of_memory_is_explained_where_it_happened() {
    let server = Server::start();
    let browser = Browser::open(server.address()).await;
    browser.read("Tidegauge").await;
    browser.drop_files(&[&fixture("oom_plain_2gib.pickle")]).await;
    let at_peak = state_after(&browser, "").await;
    assert_eq!(at_peak, "149");
    // In this file the request after the peak is the one that fails.
    browser.press("\u{e014}").await;
    browser.read("The program asked for 3.00 MiB").await;
    browser.read("These stacks hold most").await;
    browser.screenshot("out-of-memory").await;
}
