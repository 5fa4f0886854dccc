//! Samples between snapshots.

use serde_json::{Value, json};
use tidegauge_api::paths;
use tidegauge_api::run::GridRow;
use tidegauge_api::samples::{
    GridSamples, MAX_BATCH_BYTES, MAX_BATCH_SAMPLES, SampleColumn, SamplesTaken, Trouble,
};

use crate::app::{TestApp, oom};

/// A batch of a rank whose allocated bytes are a thousand times the step, and their peak ten more.
fn batch(rank: u32, steps: &[u64]) -> Value {
    json!({
        "run": "gpt", "rank": rank, "host": "node1", "pid": 40 + rank, "attempt": 0,
        "samples": {
            "step": steps,
            "at_us": steps.iter().map(|step| 1_700_000_000_000_000 + step * 1_000_000).collect::<Vec<_>>(),
            "device": steps.iter().map(|_| rank).collect::<Vec<_>>(),
            "allocated": steps.iter().map(|step| step * 1_000).collect::<Vec<_>>(),
            "allocated_peak": steps.iter().map(|step| step * 1_000 + 10).collect::<Vec<_>>(),
            "reserved": steps.iter().map(|_| 50_000).collect::<Vec<_>>(),
            "device_free": steps.iter().map(|_| 20_000).collect::<Vec<_>>(),
            "device_total": steps.iter().map(|_| 100_000).collect::<Vec<_>>(),
        },
    })
}

fn taken(app: &TestApp, batch: &Value) -> SamplesTaken {
    let reply = app.send_samples(batch);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn samples(app: &TestApp, run_id: &str) -> GridSamples {
    app.get(&paths::run_samples(run_id, 0, 128, 100)).json()
}

fn labels(samples: &GridSamples) -> Vec<String> {
    samples.columns.iter().map(SampleColumn::label).collect()
}

#[test]
fn samples_make_their_run_and_fill_the_rows_of_its_grid() {
    let app = TestApp::start();
    let run_id = taken(&app, &batch(1, &[1, 2])).run_id;
    taken(&app, &batch(0, &[2, 3]));
    let [run] = app.runs().try_into().unwrap();
    assert_eq!((run.id.as_str(), run.name.as_str()), (run_id.as_str(), "gpt"));
    assert_eq!((run.n_ranks, run.n_snapshots, run.n_samples, run.latest_step), (2, 0, 4, Some(3)));
    let grid = app.grid(&run_id);
    assert_eq!(grid.rows, [0, 1].map(|rank| GridRow { role: String::new(), rank: Some(rank) }));
    assert!(grid.columns.is_empty() && grid.cells.is_empty());

    let samples = samples(&app, &run_id);
    assert_eq!(labels(&samples), ["1", "2", "3"]);
    assert_eq!((samples.n_samples, samples.first_step, samples.last_step), (4, Some(1), Some(3)));
    assert_eq!((samples.lowest_peak, samples.highest_peak), (Some(1_010), Some(3_010)));
    assert_eq!(samples.sampled_at.as_deref(), Some("2023-11-14T22:13:23Z"));
    let ranks: Vec<_> = samples.rows.iter().map(|row| row.rank).collect();
    assert_eq!(ranks, [Some(0), Some(1)]);
    assert_eq!(samples.rows[0].allocated, [None, Some(2_000), Some(3_000)]);
    assert_eq!(samples.rows[1].allocated_peak, [Some(1_010), Some(2_010), None]);
    // The device's used bytes beside what the process has reserved.
    assert_eq!(samples.rows[0].outside, [None, Some(30_000), Some(30_000)]);
}

#[test]
fn a_batch_that_was_sent_before_changes_nothing() {
    let app = TestApp::start();
    let first = taken(&app, &batch(0, &[1, 2]));
    assert_eq!(first.n_new, 2);
    let address = paths::run_samples(&first.run_id, 0, 128, 100);
    let reply = app.get(&address);
    let etag = reply.header("etag").to_owned();
    let (before, run) = (reply.json::<GridSamples>(), app.runs());
    assert_eq!(taken(&app, &batch(0, &[1, 2])).n_new, 0);
    // Nor does one that tells something else of a step that is known.
    let mut other = batch(0, &[2]);
    other["samples"]["allocated"] = json!([7]);
    other["samples"]["allocated_peak"] = json!([2_010]);
    assert_eq!(taken(&app, &other).n_new, 0);
    assert_eq!(app.get_with(&address, &[("If-None-Match", &etag)]).status, 304);
    assert_eq!((samples(&app, &first.run_id), app.runs()), (before, run));
    // One that overlaps brings its new part.
    assert_eq!(taken(&app, &batch(0, &[2, 3])).n_new, 1);
    assert_eq!(app.get_with(&address, &[("If-None-Match", &etag)]).status, 200);
}

#[test]
fn samples_of_known_ranks_leave_the_grid_s_tag_alone() {
    let app = TestApp::start();
    let run_id = taken(&app, &batch(0, &[1])).run_id;
    let etag = app.get(&paths::grid(&run_id)).header("etag").to_owned();
    let status = || app.get_with(&paths::grid(&run_id), &[("If-None-Match", &etag)]).status;
    taken(&app, &batch(0, &[2]));
    assert_eq!(status(), 304);
    taken(&app, &batch(1, &[2]));
    assert_eq!(status(), 200);
}

#[test]
fn many_steps_are_put_together_and_those_of_snapshots_stand_alone_too() {
    let app = TestApp::start();
    let all: Vec<u64> = (1..=1_000).collect();
    let run_id = taken(&app, &batch(0, &all)).run_id;
    taken(&app, &batch(1, &all));
    app.read("run=gpt&rank=1&step=515", &oom());
    let found = samples(&app, &run_id);
    assert_eq!((found.columns.len(), found.n_samples), (101, 2_000));
    let labels = labels(&found);
    assert_eq!([&labels[0], &labels[51], &labels[52], &labels[100]], ["1–10", "511–520", "515", "991–1000"]);
    assert_eq!([found.rows[0].allocated[51], found.rows[0].allocated[52]], [Some(520_000), Some(515_000)]);

    // Of fewer steps each stands alone.
    let address = paths::run_samples_within(&paths::run_samples(&run_id, 0, 128, 100), (511, 520));
    let few: GridSamples = app.get(&address).json();
    assert_eq!((few.columns.len(), self::labels(&few)[4].as_str()), (10, "515"));
    assert_eq!(few.rows[0].allocated[4], Some(515_000));

    // However far apart they are.
    let far = json!({"step": [i64::MAX], "at_us": [0], "device": [0], "allocated": [5]});
    taken(&app, &json!({"run": "gpt", "rank": 0, "samples": far}));
    assert_eq!(samples(&app, &run_id).columns.len(), 3);

    // A part of the rows, as the grid orders them; a row without samples is there and empty.
    app.read("run=gpt&rank=7&step=1", &oom());
    let part: GridSamples = app.get(&paths::run_samples(&run_id, 1, 2, 10)).json();
    let ranks: Vec<_> = part.rows.iter().map(|row| row.rank).collect();
    assert_eq!(ranks, [Some(1), Some(7)]);
    assert!(part.columns.len() <= 12, "{:?}", part.columns);
    assert!(part.rows[1].allocated.iter().all(Option::is_none));
}

#[test]
fn memory_that_ran_out_and_tries_again_are_counted_where_they_happened() {
    let app = TestApp::start();
    let mut batch = batch(0, &[1, 2, 3]);
    batch["samples"]["n_ooms"] = json!([0, 1, 1]);
    batch["samples"]["n_alloc_retries"] = json!([2, 2, 4]);
    let run_id = taken(&app, &batch).run_id;
    let trouble = |column, n_ooms, n_alloc_retries| Trouble { column, n_ooms, n_alloc_retries };
    let expected = [trouble(0, 0, 2), trouble(1, 1, 0), trouble(2, 0, 2)];
    assert_eq!(samples(&app, &run_id).rows[0].troubles, expected);
}

#[test]
fn snapshots_that_nobody_will_see_are_counted_and_stand_in_the_grid() {
    let app = TestApp::start();
    let lost = json!([{"first_step": 6, "last_step": 10, "why": "the outbox is full"}]);
    let batch = json!({"run": "gpt", "rank": 3, "n_dropped": 5, "n_lost": 2, "lost": lost});
    let run_id = taken(&app, &batch).run_id;
    taken(&app, &batch);
    let grid = app.grid(&run_id);
    assert_eq!((grid.run.n_lost, grid.rows.len(), grid.columns[0].label.as_str()), (2, 1, "6–10"));
    assert_eq!(grid.lost.len(), 1);
    assert_eq!(grid.lost[0].why, "the outbox is full");
    assert_eq!(samples(&app, &run_id).n_dropped, 5);
    // Counts are the process's own and only grow.
    taken(&app, &json!({"run": "gpt", "rank": 3, "n_dropped": 4, "n_lost": 1}));
    assert_eq!((app.grid(&run_id).run.n_lost, samples(&app, &run_id).n_dropped), (2, 5));
}

#[test]
fn what_nobody_has_heard_of_is_kept_out() {
    let app = TestApp::start();
    let mut batch = batch(0, &[1]);
    batch["colour"] = json!("blue");
    batch["samples"]["watts"] = json!([700, 800]);
    let run_id = taken(&app, &batch).run_id;
    let text = app.get(&paths::run_samples(&run_id, 0, 1, 1)).text();
    assert!(!text.contains("watts") && !text.contains("blue"), "{text}");
}

#[test]
fn a_batch_that_cannot_be_kept_whole_is_refused_with_a_sentence_and_leaves_nothing() {
    let app = TestApp::start();
    let refused = |status: u16, body: &[u8]| {
        let problem = app.post(paths::SAMPLES, body).problem();
        assert_eq!(problem.status, status, "{}", problem.detail);
        problem.detail
    };
    assert!(refused(400, b"[1, 2").starts_with("the batch of samples is not its JSON: "));
    let mut uneven = batch(0, &[1, 2]);
    uneven["samples"]["active"] = json!([1]);
    assert_eq!(
        refused(400, uneven.to_string().as_bytes()),
        r#"the column "active" has 1 entries and "step" has 2"#
    );
    let many: Vec<u64> = (0..=MAX_BATCH_SAMPLES as u64).collect();
    let many = json!({"samples": {"step": many, "at_us": many, "device": vec![0; many.len()]}});
    assert_eq!(
        refused(400, many.to_string().as_bytes()),
        "the batch holds 4097 samples, at most 4096 are taken"
    );
    let negative = br#"{"samples":{"step":[-1],"at_us":[0],"device":[0]}}"#;
    assert!(refused(400, negative).contains("-1"));
    let huge = br#"{"samples":{"step":[18446744073709551615],"at_us":[0],"device":[0]}}"#;
    assert_eq!(refused(400, huge), "step 18446744073709551615 is more than can be kept");
    assert!(refused(400, br#"{"role":"a\nb"}"#).contains("control character"));
    let large = refused(413, &vec![b' '; MAX_BATCH_BYTES + 1]);
    assert_eq!(large, "a batch of samples may be at most 1.00 MiB (1048576 bytes); send it in parts");
    assert_eq!(app.runs(), []);
}

#[test]
fn a_part_that_cannot_be_read_is_refused() {
    let app = TestApp::start();
    let run_id = taken(&app, &batch(0, &[1])).run_id;
    let address = format!("/api/v1/runs/{run_id}/samples?first_row=-1");
    assert_eq!(app.get(&address).problem().kind, "bad-request");
    let nobody = app.get(&paths::run_samples("01ARZ3NDEKTSV4RRFFQ69G5FAV", 0, 1, 1)).problem();
    assert_eq!(nobody.status, 404);
}
