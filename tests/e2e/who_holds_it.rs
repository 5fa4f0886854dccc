//! Someone wants to know which line of code holds the memory at the peak.

use thirtyfour::{By, Key};
use tidegauge_api::Place;
use tidegauge_tests::{Browser, Server, eventually, place::fixture};

/// The bytes that elements of a kind say, in their `data-bytes`.
async fn bytes_of(browser: &Browser, selector: &str) -> Vec<u64> {
    let script =
        "return [...document.querySelectorAll(arguments[0])].map((found) => Number(found.dataset.bytes))";
    let found = browser.run(script, vec![selector.into()]).await;
    found.as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap()).collect()
}

/// The exact bytes in the title of an element: "1,536 bytes".
async fn exact_bytes(browser: &Browser, selector: &str) -> u64 {
    let title = browser.find_css(selector).await.attr("title").await.unwrap().unwrap_or_default();
    title.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// How many allocations stay in full color.
async fn n_marked(browser: &Browser) -> u64 {
    eventually("allocations to be marked", || async {
        let timeline = browser.find("timeline").await;
        let n = timeline.attr("data-marked").await.ok().flatten();
        n.and_then(|n| n.parse().ok()).ok_or_else(|| "none".to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stack_with_most_bytes_at_the_peak_is_two_actions_from_the_door() {
    let server = Server::start();
    let place = Place { run: Some("llama8b".to_owned()), rank: Some(0), ..Place::default() };
    let id = server.upload(&fixture("llama8b_fsdp8_rank0_step3.pickle.zst"), &place).unwrap().id;
    server.read(&id).await;

    // The first action: opening it. What holds most at the peak is there to read.
    let browser = Browser::open(&format!("{}/snapshots/{id}", server.address())).await;
    let first = browser.find("holder").await;
    let told = first.attr("aria-label").await.unwrap().unwrap();
    assert!(told.contains("GiB") && told.contains('%') && told.contains(".py:"), "{told}");
    let levels = browser.find_css("[data-testid='facts'] strong .number").await.text().await.unwrap();
    browser.read(&levels).await;

    // What is listed adds up to the level that the page shows.
    let level = exact_bytes(&browser, "#levels tr:nth-child(3) td").await;
    assert_eq!(exact_bytes(&browser, "[data-testid='holders-total']").await, level);
    let groups = bytes_of(&browser, "[data-testid='holder']").await;
    let others = match browser.count(".holder-rest").await {
        2 => exact_bytes(&browser, ".holder-rest .number").await,
        _ => 0,
    };
    assert_eq!(groups.iter().sum::<u64>() + others, level);
    assert!(groups.is_sorted_by(|a, b| a >= b), "{groups:?}");

    // The second action: choosing it marks it, and lists its allocations, of which one can be pinned.
    first.send_keys(Key::Enter + "").await.unwrap();
    assert!(n_marked(&browser).await > 0);
    let held = browser.find("held").await;
    browser.screenshot("holder").await;
    held.send_keys(Key::Enter + "").await.unwrap();
    browser.find_css("[data-testid='pinned'] .stack li").await;

    // Esc, as WebDriver writes it, lets go of the allocation, then of the holder.
    for gone in ["pinned", "closely"] {
        browser.press("\u{e00c}").await;
        eventually(&format!("{gone} to be gone"), || async {
            match browser.count(&format!("[data-testid='{gone}']")).await {
                0 => Ok(()),
                n => Err(format!("{n} of it")),
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_narrows_the_groups_and_a_colleague_gets_it_with_the_address() {
    let server = Server::start();
    let browser = Browser::open(server.address()).await;
    browser.read("Tidegauge").await;
    browser.drop_files(&[&fixture("fsdp1_w2_noclear_rank0_step10.pickle")]).await;
    browser.find("holder").await;

    browser.press("/").await;
    let filter = browser.driver().active_element().await.unwrap();
    filter.send_keys("size>").await.unwrap();
    browser.read("after the sign stands a size such as 1MiB").await;
    filter.send_keys("64KiB").await.unwrap();
    browser.read("at the cursor, in").await;
    browser.read("in all").await;
    let n = n_marked(&browser).await;
    assert!(n > 0);
    let level = exact_bytes(&browser, "#levels tr:nth-child(3) td").await;
    eventually("fewer bytes than the level", || async {
        let total = exact_bytes(&browser, "[data-testid='holders-total']").await;
        if 0 < total && total < level { Ok(()) } else { Err(format!("{total} of {level}")) }
    })
    .await;
    browser.screenshot("filter").await;
    eventually("the filter to be in the address", || async {
        let address = browser.address().await;
        if address.contains("where=size%3E64KiB") { Ok(()) } else { Err(address) }
    })
    .await;

    filter.send_keys(Key::Escape + "").await.unwrap();
    eventually("all groups to be back", || async {
        let total = exact_bytes(&browser, "[data-testid='holders-total']").await;
        if total == level { Ok(()) } else { Err(total.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_icicle_is_walked_by_keys() {
    let server = Server::start();
    let browser = Browser::open(server.address()).await;
    browser.read("Tidegauge").await;
    browser.drop_files(&[&fixture("fsdp1_w2_noclear_rank0_step10.pickle")]).await;
    let tree = browser.find("icicle-tree").await;
    let walked =
        || async { browser.find_css(".call.walked").await.attr("aria-level").await.unwrap().unwrap() };
    assert_eq!(walked().await, "1");
    for (key, level) in [(Key::Down, "2"), (Key::Down, "3"), (Key::Up, "2")] {
        tree.send_keys(key + "").await.unwrap();
        assert_eq!(walked().await, level);
    }
    // Enter zooms to it and marks it; what it holds is listed.
    tree.send_keys(Key::Enter + "").await.unwrap();
    browser.find("closely").await;
    assert!(n_marked(&browser).await > 0);
    let chosen = browser.find_css(".call[aria-selected='true']").await;
    assert!(chosen.attr("style").await.unwrap().unwrap().contains("width:100.000%"));

    browser.find("icicle-inside-out").await.click().await.unwrap();
    browser.find_css("[data-testid='icicle-inside-out'][aria-pressed='true']").await;
    assert!(browser.driver().find_all(By::Css(".call")).await.unwrap().len() > 3);
}
