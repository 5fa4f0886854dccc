//! Snapshots taken beside training: four ranks both ways, each release of PyTorch, and what a process can do meanwhile.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tidegauge_tests::{
    Server, Training,
    training::{EXIT_CODE, Ended, compared},
};

use super::{all_of, check_against_witness, check_levels, check_window, original};

/// Nobody listens there: what is taken stays in the outbox.
const NOBODY: [(&str, &str); 2] = [("TIDEGAUGE_SERVER", "http://127.0.0.1:9"), ("TIDEGAUGE_FLUSH_SECS", "0")];

const NATIVE: (&str, &str) = ("TIDEGAUGE_WAY", "native");

fn check_ended(ended: &[Ended]) {
    for rank in ended {
        assert_eq!(rank.code, Some(EXIT_CODE), "{}", rank.said);
        assert!(!rank.said.contains("Traceback"), "{}", rank.said);
    }
}

/// Nothing is missing, and nothing was found by the clock.
fn check_exact(sidecar: &Value, way: &str) {
    assert_eq!(sidecar["recording"]["way"], way, "{sidecar}");
    assert!(sidecar["dropped"].is_null() && sidecar["window_by_clock"].is_null(), "{sidecar}");
}

/// The windows, one after the other, are the first events that the whole history holds.
fn check_against_whole(whole: &Path, pickles: &[PathBuf], n_events_at_least: u64) {
    let mut n_events = 0;
    for device in compared(whole, pickles) {
        assert!(device["differs"].is_null(), "{device}");
        n_events += device["events"].as_u64().unwrap();
        assert!(device["events"].as_u64() <= device["of"].as_u64(), "{device}");
    }
    assert!(n_events >= n_events_at_least, "{n_events} events");
}

/// Four ranks in the native way: every event of the history that nobody emptied is in its window, and the levels
/// are the allocator's own.
async fn four_ranks_beside_training(kind: &str) {
    let server = Server::start();
    let run = format!("native-{kind}");
    let env = [
        ("TIDEGAUGE_RUN", run.as_str()),
        ("TIDEGAUGE_SERVER", server.address()),
        ("TIDEGAUGE_STEPS", "1,5,6,10"),
        ("TRAINING_KIND", kind),
        NATIVE,
    ];
    let mut training = Training::of_ranks(4, 10, &env);
    check_ended(&training.end());
    let ranks = all_of(&server, &run, 16).await;
    assert_eq!(ranks.len(), 4);
    let folder = tempfile::tempdir().unwrap();
    for (rank, snapshots) in &ranks {
        let labels: Vec<_> = snapshots.iter().map(|snapshot| snapshot.place.step_label()).collect();
        assert_eq!(labels, ["1", "2–5", "6", "7–10"]);
        let pickles: Vec<_> =
            snapshots.iter().map(|snapshot| original(&server, &folder, &snapshot.id)).collect();
        check_against_whole(&training.whole(*rank), &pickles, 1000);
        for snapshot in snapshots {
            check_window(&training.witness(*rank), snapshot);
            check_exact(&serde_json::to_value(snapshot.sidecar.as_ref().unwrap()).unwrap(), "native");
        }
        check_levels(snapshots);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn four_ranks_of_fsdp_are_read_beside_training_and_no_event_is_lost_or_doubled() {
    four_ranks_beside_training("fsdp").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_ranks_of_ddp_are_read_beside_training_and_no_event_is_lost_or_doubled() {
    four_ranks_beside_training("ddp").await;
}

/// The same in the Python way, held against what `_snapshot()` returned.
async fn four_ranks_in_training(kind: &str) {
    let server = Server::start();
    let run = format!("python-{kind}");
    let env =
        [("TIDEGAUGE_RUN", run.as_str()), ("TIDEGAUGE_SERVER", server.address()), ("TRAINING_KIND", kind)];
    let mut training = Training::of_ranks(4, 10, &env);
    check_ended(&training.end());
    let ranks = all_of(&server, &run, 12).await;
    assert_eq!(ranks.len(), 4);
    check_against_witness(&server, &training, &ranks);
}

#[tokio::test(flavor = "multi_thread")]
async fn four_ranks_of_fsdp_arrive_as_snapshot_returned_them() {
    four_ranks_in_training("fsdp").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_ranks_of_ddp_arrive_as_snapshot_returned_them() {
    four_ranks_in_training("ddp").await;
}

/// A release in both ways: allocations from three threads, ten windows.
fn drive(torch: &str) {
    let env = |way| [NOBODY[0], NOBODY[1], ("TIDEGAUGE_STEPS", "all"), ("TIDEGAUGE_WAY", way)];
    let mut training = Training::alone(torch, "steps", 10, &env("native"));
    let ended = training.end();
    check_ended(&ended);
    let waiting = training.waiting();
    assert_eq!(waiting.len(), 10, "{}", ended[0].said);
    waiting.iter().for_each(|(_, sidecar)| check_exact(sidecar, "native"));
    let pickles: Vec<_> = waiting.into_iter().map(|(pickle, _)| pickle).collect();
    check_against_whole(&training.whole(0), &pickles, 10_000);

    let mut training = Training::alone(torch, "steps", 10, &env("python"));
    check_ended(&training.end());
    let waiting = training.waiting();
    assert_eq!(waiting.len(), 10);
    for (_, sidecar) in &waiting {
        check_exact(sidecar, "python");
        // What the gap can have cost is said.
        assert!(sidecar["gap_us"].is_u64() && sidecar["gap_events_at_most"].is_u64(), "{sidecar}");
    }
}

#[test]
fn torch_2_4_is_read_both_ways() {
    drive("2.4.1");
}

#[test]
fn torch_2_7_is_read_both_ways() {
    drive("2.7.1");
}

#[test]
fn torch_2_9_is_read_both_ways() {
    drive("2.9.1");
}

#[test]
fn torch_2_15_is_read_both_ways() {
    drive("2.15.0");
}

#[test]
fn a_program_that_ends_amid_a_snapshot_still_leaves_it_whole() {
    let env = [NOBODY[0], NOBODY[1], NATIVE, ("TIDEGAUGE_STEPS", "1,2"), ("TIDEGAUGE_MAX_ENTRIES", "800000")];
    let mut training = Training::alone("2.9.1", "exit", 2, &env);
    let ended = training.end();
    check_ended(&ended);
    let waiting = training.waiting();
    assert_eq!(waiting.len(), 2, "{}", ended[0].said);
    for (pickle, sidecar) in &waiting {
        check_exact(sidecar, "native");
        let described = &tidegauge_tests::training::described(std::slice::from_ref(pickle))[0];
        assert_eq!(described["allocations"], 60_000, "{described}");
    }
}

#[test]
fn a_fork_amid_a_snapshot_waits_for_it_and_both_go_on() {
    let env = [NOBODY[0], NOBODY[1], NATIVE, ("TIDEGAUGE_STEPS", "all"), ("TIDEGAUGE_MAX_ENTRIES", "800000")];
    let mut training = Training::alone("2.9.1", "fork", 2, &env);
    let ended = training.end();
    check_ended(&ended);
    let waiting = training.waiting();
    // None of the child's.
    assert_eq!(waiting.len(), 2, "{}", ended[0].said);
    waiting.iter().for_each(|(_, sidecar)| check_exact(sidecar, "native"));
    let pickles: Vec<_> = waiting.into_iter().map(|(pickle, _)| pickle).collect();
    check_against_whole(&training.whole(0), &pickles, 300_000);
    // While the process forked, the thread that reads did nothing.
    let ticks = training.witness(0)[0]["ticks"].as_u64();
    assert!(ticks.is_some_and(|ticks| ticks <= 1), "{ticks:?}");
}

/// An allocator of another kind costs training nothing but snapshots.
fn survive(allocator: (&str, &str)) -> String {
    let env = [NOBODY[0], NOBODY[1], NATIVE, ("TIDEGAUGE_STEPS", "all"), allocator];
    let mut training = Training::alone("2.9.1", "exit", 2, &env);
    let mut ended = training.end();
    check_ended(&ended);
    ended.remove(0).said
}

#[test]
fn an_allocator_that_takes_no_snapshots_is_survived_with_a_sentence() {
    let said = survive(("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"));
    assert!(
        said.contains("nothing more is recorded: RuntimeError: cudaMallocAsync does not yet support"),
        "{said}"
    );
}

#[test]
fn without_a_caching_allocator_snapshots_are_empty_and_training_goes_on() {
    let said = survive(("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"));
    assert!(said.contains("2 snapshots wait"), "{said}");
}

#[test]
fn a_trial_that_dies_means_the_python_way_and_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    // In the child, and only there, the module that would try it is another.
    let sitecustomize = "import os\nif os.environ.get('TIDEGAUGE_ENABLED') == '0':\n    os.abort()\n";
    fs::write(folder.path().join("sitecustomize.py"), sitecustomize).unwrap();
    let path = folder.path().to_string_lossy().into_owned();
    let env = [
        NOBODY[0],
        NOBODY[1],
        NATIVE,
        ("TIDEGAUGE_STEPS", "all"),
        ("TIDEGAUGE_MAX_ENTRIES", "400000"),
        ("PYTHONPATH", path.as_str()),
    ];
    let mut training = Training::alone("2.9.1", "exit", 2, &env);
    let ended = training.end();
    check_ended(&ended);
    let sentence = "snapshots are taken the Python way, which training waits for: its trial died of signal 6";
    assert_eq!(ended[0].said.matches(sentence).count(), 1, "{}", ended[0].said);
    let waiting = training.waiting();
    assert_eq!(waiting.len(), 2);
    for (_, sidecar) in &waiting {
        check_exact(sidecar, "python");
        assert_eq!(sidecar["recording"]["native"], "refused: its trial died of signal 6");
    }
}
