//! What happens to processes that train, on real PyTorch: memory runs out, they are terminated, killed, have
//! workers, or record by themselves.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};
use tidegauge_api::snapshot::SnapshotDetails;
use tidegauge_tests::{Server, Training, eventually, training::EXIT_CODE};

use super::{all_of, check_levels};

/// A run of one rank, to its end or to where it waits.
fn life(server: &str, turn: &str, n_steps: u32, more: &[(&str, &str)]) -> Training {
    let mut env = vec![
        ("TIDEGAUGE_RUN", turn),
        ("TIDEGAUGE_SERVER", server),
        ("TIDEGAUGE_STEPS", "all"),
        ("TRAINING_LIFE", turn),
        ("FAKECUDA_MEM_GIB", "4"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512"),
    ];
    env.extend(more);
    Training::one("life.py", n_steps, &env)
}

fn labels(snapshots: &[SnapshotDetails]) -> Vec<String> {
    snapshots.iter().map(|snapshot| snapshot.place.step_label()).collect()
}

fn field(snapshot: &SnapshotDetails, name: &str) -> Value {
    snapshot.sidecar.as_ref().unwrap().more.get(name).cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_runs_out_ends_training_as_before_and_its_snapshot_arrives() {
    let server = Server::start();
    let mut training = life(server.address(), "oom", 2, &[]);
    let [ended] = training.end().try_into().unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.said);
    assert!(ended.said.contains("torch.OutOfMemoryError: CUDA out of memory"), "{}", ended.said);

    let snapshots = &all_of(&server, "oom", 3).await[&0];
    assert_eq!(labels(snapshots), ["1", "2", "3 oom"]);
    let oom = &snapshots[2];
    let device = &oom.inspection.as_ref().unwrap().devices[0];
    assert_eq!(device.actions["oom"], 1);
    // Levels at the end, and their peaks, are the allocator's own.
    check_levels(snapshots);
    assert!(device.allocated.end > 2 << 30);

    let owned = field(oom, "ownership");
    let names: Vec<_> = owned["owned"].as_array().unwrap().iter().map(|row| &row[1]).collect();
    assert!(names.contains(&&json!("0.weight")) && names.contains(&&json!("2.weight.exp_avg")), "{owned}");
    let gpu = &field(oom, "devices")["0"];
    assert_eq!(gpu["outside_bytes"], 500 << 20, "{gpu}");
    assert_eq!(field(oom, "environment"), json!({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_owned_lies_in_blocks_of_the_snapshot() {
    let server = Server::start();
    let mut training = life(server.address(), "oom", 1, &[]);
    training.end();
    let snapshots = &all_of(&server, "oom", 2).await[&0];
    let folder = tempfile::tempdir().unwrap();
    let pickle = super::original(&server, &folder, &snapshots[0].id);
    let blocks = blocks_of(&pickle);
    for row in field(&snapshots[0], "ownership")["owned"].as_array().unwrap() {
        let (address, bytes) = (row[3].as_u64().unwrap(), row[4].as_u64().unwrap());
        let is_there = blocks.iter().any(|(at, size)| *at == address && *size >= bytes);
        assert!(is_there, "{row}");
    }
}

/// Address and size of each allocated block, as Python reads them.
fn blocks_of(pickle: &Path) -> Vec<(u64, u64)> {
    let script = "import json, pickle, sys; s = pickle.load(open(sys.argv[1], 'rb')); print(json.dumps([
        [b['address'], b['size']] for t in s['segments'] for b in t['blocks'] if b['state'] == 'active_allocated']))";
    let output = Command::new("python3").args(["-c", script]).arg(pickle).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_takes_a_last_snapshot_and_ends_as_it_would_have() {
    let server = Server::start();
    let mut training = life(server.address(), "waits", 2, &[("TIDEGAUGE_ALSO", "oom,sigterm")]);
    super::grid_of(&server, "waits", 2).await;
    training.signal("TERM");
    let [ended] = training.end().try_into().unwrap();
    // No code: it ended by the signal.
    assert_eq!(ended.code, None, "{}", ended.said);
    let snapshots = &all_of(&server, "waits", 3).await[&0];
    assert_eq!(labels(snapshots), ["1", "2", "3 sigterm"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_a_kill_and_is_sent_again_is_there_once() {
    let server = Server::start();
    let nobody = format!("http://127.0.0.1:{}", tidegauge_tests::training::free_port());
    let mut training = life(&nobody, "waits", 3, &[]);
    eventually("three snapshots in the outbox", || async {
        match training.n_waiting() {
            3 => Ok(()),
            n => Err(format!("{n} snapshots")),
        }
    })
    .await;
    training.kill();
    training.end();
    // Killed after the server took them and before they were removed: they are still there.
    let kept = tempfile::tempdir().unwrap();
    let copy = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    copy(&training.outbox(), &kept.path().join("outbox"));
    assert!(training.push_outbox(server.address()).status.success());
    all_of(&server, "waits", 3).await;
    fs::remove_dir_all(training.outbox()).ok();
    copy(&kept.path().join("outbox"), &training.outbox());
    assert_eq!(training.n_waiting(), 3);
    assert!(training.push_outbox(server.address()).status.success());
    assert_eq!(training.n_waiting(), 0);
    assert_eq!(labels(&all_of(&server, "waits", 3).await[&0]), ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_data_loaders_are_silent_forked_and_spawned() {
    let server = Server::start();
    let mut training = life(server.address(), "loader", 4, &[("RANK", "0")]);
    let [ended] = training.end().try_into().unwrap();
    assert_eq!(ended.code, Some(EXIT_CODE), "{}", ended.said);
    let n_called = training.witness(0).iter().filter(|line| line["worker"] == true).count();
    assert_eq!(n_called, 16);
    let snapshots = &all_of(&server, "loader", 4).await[&0];
    assert_eq!(labels(snapshots), ["1", "2", "3", "4"]);
    assert_eq!(ended.said.matches("tidegauge:").count(), 1, "{}", ended.said);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_of_somebody_else_is_left_alone_and_its_windows_are_stated() {
    let server = Server::start();
    let mut training = life(server.address(), "guest", 3, &[]);
    let [ended] = training.end().try_into().unwrap();
    assert_eq!(ended.code, Some(EXIT_CODE), "{}", ended.said);
    assert!(ended.said.contains("somebody else records already"), "{}", ended.said);
    let witness = training.witness(0);
    let last = witness.last().unwrap();
    assert_eq!(last["records"], true);
    let snapshots = &all_of(&server, "guest", 3).await[&0];
    let n_events: Vec<_> = witness.iter().filter_map(|line| line.get("n_events")?.get(0)?.as_u64()).collect();
    // Each window starts where the reading before ended.
    let starts: Vec<_> = snapshots
        .iter()
        .map(|snapshot| snapshot.sidecar.as_ref().unwrap().window_starts.get("0").copied().unwrap_or(0))
        .collect();
    assert_eq!(starts, [0, n_events[0], n_events[1]]);
    // The program's own peak is still that of the program.
    let stats = &snapshots[2].sidecar.as_ref().unwrap().memory_stats["0"];
    assert_eq!(stats["allocated_bytes.all.peak"], last["peak"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_by_somebody_else_is_noticed_and_what_is_whole_is_not_accused() {
    let server = Server::start();
    let mut training = life(server.address(), "amid", 3, &[]);
    let [ended] = training.end().try_into().unwrap();
    assert_eq!(ended.code, Some(EXIT_CODE), "{}", ended.said);
    assert!(ended.said.contains("somebody else cleared the history"), "{}", ended.said);
    let snapshots = &all_of(&server, "amid", 3).await[&0];
    assert_eq!(field(&snapshots[0], "missing"), Value::Null);
    assert_eq!(field(&snapshots[1], "missing"), Value::Null);
    assert!(field(&snapshots[2], "missing")["0"]["events_at_least"].as_u64().unwrap() > 10);
}
