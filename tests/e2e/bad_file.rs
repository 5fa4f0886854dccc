//! Someone gives us a file that is no snapshot; all doors say the same sentence.

use std::{fs, process::Command};

use tidegauge_api::{Place, paths::page, snapshot::State};
use tidegauge_tests::{
    Browser, Server,
    place::{self, fixture},
};

/// A pickle that asks for `os.system`.
const EVIL: &[u8] = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.";

/// What `tidegauge inspect` says on stderr, without the file's name.
fn sentence_of_inspect(file: &std::path::Path) -> String {
    let output = Command::new(place::cli()).arg("inspect").arg("--json").arg(file).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sentence = answer["error"]["message"].as_str().unwrap().to_owned();
    assert!(String::from_utf8_lossy(&output.stderr).contains(&sentence), "stderr and JSON differ");
    sentence
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pickle_that_would_run_code_is_refused_with_one_sentence_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evil_rank0_step1.pickle");
    fs::write(&file, EVIL).unwrap();
    let sentence = sentence_of_inspect(&file);

    let server = Server::start();
    let problem = server.upload(&file, &Place::default()).unwrap_err();
    assert!((400..500).contains(&problem.status), "{problem:?}");
    assert!(problem.detail.contains(&sentence), "server: {}; inspect: {sentence}", problem.detail);
    assert!(server.runs().is_empty(), "something was stored of it");

    let browser = Browser::open(server.address()).await;
    browser.read("Tidegauge").await;
    browser.drop_files(&[&file]).await;
    browser.find("problem").await;
    browser.read(&sentence).await;
    browser.screenshot("refused").await;

    browser.goto(&format!("{}{}", server.address(), page::UPLOAD)).await;
    let input = browser.find_css("[data-testid='upload-form'] input[type='file']").await;
    input.send_keys(file.display().to_string()).await.unwrap();
    browser.find("upload-submit").await.click().await.unwrap();
    browser.read(&sentence).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_cut_short_is_a_failed_cell_with_the_same_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cut_rank0_step1.pickle");
    let whole = fs::read(fixture("streams_2dev_lag40.pickle")).unwrap();
    fs::write(&file, &whole[..whole.len() * 9 / 10]).unwrap();
    let sentence = sentence_of_inspect(&file);

    let server = Server::start();
    let place = Place { run: Some("cut".to_owned()), rank: Some(0), last_step: Some(1), ..Place::default() };
    let accepted = server.upload(&file, &place).unwrap();
    let details = server.read(&accepted.id).await;
    assert_eq!(details.state, State::Failed);
    assert_eq!(details.problem.as_deref(), Some(sentence.as_str()));

    let browser = Browser::open(&format!("{}{}", server.address(), page::run(&accepted.run_id))).await;
    browser.find_css("[data-testid='cell'][data-state='failed']").await;
    browser.goto(&format!("{}{}", server.address(), page::snapshot(&accepted.id))).await;
    browser.read(&sentence).await;
    browser.drop_files(&[&file]).await;
    browser.find("problem").await;
    browser.read(&sentence).await;
}
