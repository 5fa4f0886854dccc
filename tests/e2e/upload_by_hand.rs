//! Someone has files and no agent.

use tidegauge_api::paths::page;
use tidegauge_tests::{Browser, Server, eventually, place::fixture};

#[tokio::test(flavor = "multi_thread")]
async fn a_file_sent_by_the_form_appears_on_the_open_grid() {
    let server = Server::start();
    let first = fixture("llama8b_fsdp8_rank0_step1.pickle.zst");
    let place = tidegauge_api::Place {
        run: Some("by-hand".to_owned()),
        rank: Some(0),
        last_step: Some(1),
        ..tidegauge_api::Place::default()
    };
    let run_id = server.upload(&first, &place).unwrap().run_id;

    let grid = Browser::open(&format!("{}{}", server.address(), page::run(&run_id))).await;
    grid.find("grid").await;
    grid.find_css("[data-testid='cell'][data-rank='0'][data-state='ready']").await;
    grid.run("window.tidegaugeTestStayed = true", vec![]).await;

    let form = Browser::open(&format!("{}{}", server.address(), page::UPLOAD)).await;
    let input = form.find_css("[data-testid='upload-form'] input[type='file']").await;
    let second = fixture("llama8b_fsdp8_rank1_step1.pickle.zst");
    input.send_keys(second.display().to_string()).await.unwrap();
    // Rank and step are read from the name; the run is asked.
    let run = form.find_css("[data-testid='upload-form'] input[name='run']").await;
    eventually("the form to take the run's name", || async {
        run.clear().await.map_err(|error| error.to_string())?;
        run.send_keys("by-hand").await.map_err(|error| error.to_string())?;
        match run.value().await {
            Ok(Some(value)) if value == "by-hand" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    form.screenshot("upload").await;
    form.find("upload-submit").await.click().await.unwrap();
    form.find("upload-progress").await;

    grid.find_css("[data-testid='cell'][data-rank='1'][data-state='ready']").await;
    let stayed = grid.run("return window.tidegaugeTestStayed === true", vec![]).await;
    assert_eq!(stayed, true, "the grid was loaded anew");
    assert_eq!(server.grid(&run_id).cells.len(), 2);
}
