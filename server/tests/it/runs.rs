//! The list of runs and the grid of one.

use tidegauge_api::paths;
use tidegauge_api::run::GridRow;
use tidegauge_api::snapshot::State;

use crate::app::{TestApp, fixture, oom, streams};

#[test]
fn a_server_without_runs_lists_none() {
    let app = TestApp::start();
    assert_eq!(app.runs(), []);
    let problem = app.get(&paths::grid("01ARZ3NDEKTSV4RRFFQ69G5FAV")).problem();
    assert_eq!((problem.status, problem.kind.as_str()), (404, "not-found"));
    assert_eq!(app.get(&paths::grid("nonsense")).problem().status, 404);
}

#[test]
fn runs_come_with_their_counts_latest_arrival_first() {
    let app = TestApp::start();
    let first = app.read("run=first&rank=0", &oom());
    app.read("run=second&rank=0", &streams());
    app.read("run=first&rank=1", &streams());
    app.read("run=first&rank=1&step=4", &streams()[..90_000]);
    app.read("run=first", &oom());
    let runs = app.runs();
    let names: Vec<_> = runs.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
    assert_eq!((runs[0].n_ranks, runs[0].n_snapshots, runs[0].n_failed, runs[0].n_pending), (2, 4, 1, 0));
    assert_eq!(runs[0].peak_allocated, Some(1_610_612_736));
    let inspection = first.inspection.unwrap();
    assert_eq!(runs[0].producer, Some(inspection.producer));
    assert!(runs[0].created_at.ends_with('Z') && runs[0].updated_at >= runs[0].created_at);
}

#[test]
fn a_grid_shows_ranks_by_steps_with_their_peaks() {
    let app = TestApp::start();
    for rank in 0..2 {
        for (query, step) in [("step=1", 1), ("first_step=2&step=3", 3), ("first_step=4&step=5", 5)] {
            let body = fixture(&format!("llama8b_fsdp8_rank{rank}_step{step}.pickle.zst"));
            app.read(&format!("run=llama&rank={rank}&{query}"), &body);
        }
    }
    let oom = app.read("run=llama&rank=1&reason=oom", &oom());
    let grid = app.grid(&oom.run_id);
    assert_eq!(grid.rows, [0, 1].map(|rank| GridRow { role: String::new(), rank: Some(rank) }));
    let heads: Vec<_> = grid.columns.iter().map(|column| (column.label.as_str(), column.last_step)).collect();
    assert_eq!(heads, [("1", Some(1)), ("2–3", Some(3)), ("4–5", Some(5)), ("oom", None)]);
    assert_eq!(grid.cells.len(), 7);
    for cell in &grid.cells {
        let details: tidegauge_api::snapshot::SnapshotDetails =
            app.get(&paths::snapshot(&cell.snapshots[0])).json();
        let inspection = details.inspection.unwrap();
        let device = inspection.busiest_device().unwrap();
        assert_eq!(cell.state, State::Ready);
        assert_eq!(cell.peak_allocated, Some(device.allocated.peak));
        assert_eq!(cell.peak_reserved, Some(device.reserved.peak));
        assert_eq!(cell.n_events, Some(inspection.devices.iter().map(|device| device.events).sum()));
        assert_eq!(cell.n_findings, Some(inspection.findings.len() as u64));
    }
    assert_eq!(grid.run, app.runs()[0]);
}

#[test]
fn an_unchanged_grid_is_not_sent_again() {
    let app = TestApp::start();
    let first = app.read("run=a&rank=0", &oom());
    app.read("run=b&rank=0", &oom());
    let address = paths::grid(&first.run_id);
    let reply = app.get(&address);
    let etag = reply.header("etag").to_owned();
    assert!(etag.starts_with('"'), "{etag}");
    let unchanged = app.get_with(&address, &[("If-None-Match", &etag)]);
    assert_eq!((unchanged.status, unchanged.header("etag")), (304, etag.as_str()));
    // Another run's news are none of this one's.
    app.read("run=b&rank=1", &oom());
    assert_eq!(app.get_with(&address, &[("If-None-Match", &etag)]).status, 304);
    app.read("run=a&rank=1", &oom());
    let changed = app.get_with(&address, &[("If-None-Match", &etag)]);
    assert_eq!(changed.status, 200);
    assert_ne!(changed.header("etag"), etag);
}
