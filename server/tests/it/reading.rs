//! What becomes of an upload after it was taken in.

use tidegauge_api::paths;
use tidegauge_api::snapshot::State;

use crate::app::{TestApp, fixture, oom, streams};

#[test]
fn a_cut_snapshot_becomes_a_failed_row_whose_original_can_be_had() {
    let app = TestApp::start();
    let body = &streams()[..100_000];
    let failed = app.read("run=a&rank=2&step=3", body);
    assert_eq!(failed.state, State::Failed);
    let error = tidegauge_snapshot::read::open(body).unwrap_err();
    assert_eq!(failed.problem, Some(error.to_string()), "the same sentence as on the command line");
    assert_eq!(failed.inspection, None);
    assert_eq!(app.get(&paths::original(&failed.id)).body, body);

    let run = &app.runs()[0];
    assert_eq!((run.n_snapshots, run.n_failed, run.n_pending), (1, 1, 0));
    let cell = app.grid(&failed.run_id).cells.remove(0);
    assert_eq!(
        (cell.state, cell.problem, cell.peak_allocated),
        (State::Failed, failed.problem.clone(), None)
    );
    let problem = app.get(&paths::pack(&failed.id, tidegauge_snapshot::pack::VERSION)).problem();
    assert_eq!((problem.status, Some(problem.detail)), (409, failed.problem));

    let again = app.upload("run=a&rank=2&step=3", body);
    assert_eq!(again.status, 200);
}

#[test]
fn a_snapshot_that_would_run_code_further_on_is_kept_and_fails() {
    let app = TestApp::start();
    // Past what is looked at before it is taken: a long text first, then the call.
    let mut body = b"\x80\x04}(\x8c\x08segments]\x8c\x04textX".to_vec();
    body.extend(200_000_u32.to_le_bytes());
    body.extend(std::iter::repeat_n(b'x', 200_000));
    body.extend(b"cos\nsystem\n(S'true'\ntRu.");
    let failed = app.read("run=a", &body);
    assert_eq!(failed.state, State::Failed);
    assert_eq!(failed.problem, Some(tidegauge_snapshot::read::open(&body[..]).unwrap_err().to_string()));
}

#[test]
fn a_missing_pack_is_made_again() {
    let app = TestApp::start();
    let ready = app.read("run=a", &oom());
    let address = paths::pack(&ready.id, tidegauge_snapshot::pack::VERSION);
    let pack = app.get(&address);
    std::fs::remove_dir_all(app.folder.path().join("data/packs")).unwrap();
    std::fs::create_dir_all(
        app.folder.path().join(format!("data/packs/v{}", tidegauge_snapshot::pack::VERSION)),
    )
    .unwrap();
    assert_eq!(app.get(&address).body, pack.body);
    assert_eq!(app.n_files("packs"), 1);
}

#[test]
fn several_readers_share_a_burst() {
    let app = TestApp::start_with(&["--readers", "2"]);
    let ids: Vec<_> = (0..8)
        .map(|rank| {
            let body = fixture(&format!("llama8b_fsdp8_rank{rank}_step1.pickle.zst"));
            app.accepted(&format!("run=llama&rank={rank}&step=1"), &body).id
        })
        .collect();
    for id in ids {
        assert_eq!(app.until_read(&id).state, State::Ready);
    }
    let run = &app.runs()[0];
    assert_eq!((run.n_snapshots, run.n_ranks, run.n_pending, run.n_failed), (8, 8, 0, 0));
}
