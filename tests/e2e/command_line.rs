//! Snapshots sent from a shell.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tidegauge_api::snapshot::SnapshotDetails;
use tidegauge_tests::{
    Server,
    place::{self, fixture},
    training::free_port,
};

fn push(arguments: &[&str], server: &str) -> Output {
    Command::new(place::cli()).arg("push").args(arguments).args(["--server", server]).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder as verl leaves it, in a folder named for the run.
fn verl_run(root: &Path) {
    for (step, rank) in [(1, 0), (1, 1), (5, 0)] {
        let folder = root.join(format!("gpt-small/step{step}"));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("torch_memory_rank{rank}_pid{}.pickle", 100 + rank));
        fs::copy(fixture(&format!("fsdp1_w2_clear_rank0_step{step}.pickle")), file).unwrap();
    }
    fs::write(root.join("gpt-small/notes.txt"), "no snapshot, and not named like one").unwrap();
}

/// "rank 0 step 1 pid 100", of every snapshot in a run.
fn places(server: &Server, run: &str) -> Vec<String> {
    let run = server.runs().into_iter().find(|row| row.name == run).unwrap_or_else(|| panic!("no run {run}"));
    let grid = server.grid(&run.id);
    let ids = grid.cells.iter().flat_map(|cell| &cell.snapshots);
    let place = |SnapshotDetails { place, .. }: SnapshotDetails| {
        format!("rank {} step {} pid {}", place.rank.unwrap(), place.step_label(), place.pid.unwrap_or(0))
    };
    let mut places: Vec<_> = ids.map(|id| place(server.snapshot(id))).collect();
    places.sort();
    places
}

#[test]
fn a_folder_is_sent_under_the_places_that_its_paths_tell() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    verl_run(root.path());
    let root = root.path().to_str().unwrap();

    let output = push(&[root], server.address());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("3 snapshots sent"), "{}", said(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(lines.contains("sent: gpt-small, rank 1, step 1\n"), "{lines}");
    let expected = ["rank 0 step 1 pid 100", "rank 0 step 5 pid 100", "rank 1 step 1 pid 101"];
    assert_eq!(places(&server, "gpt-small"), expected);

    let again = push(&[root], server.address());
    assert_eq!(again.status.code(), Some(0));
    assert!(said(&again).contains("3 there already"), "{}", said(&again));
    assert_eq!(places(&server, "gpt-small"), expected);
}

#[test]
fn an_archive_is_sent_snapshot_by_snapshot_and_what_is_none_is_passed_over() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../snapshot/fixtures/wrapped");
    fs::create_dir_all(root.path().join("old")).unwrap();
    fs::copy(fixtures.join("run.tar.gz"), root.path().join("old/run.tar.gz")).unwrap();
    fs::copy(fixtures.join("run.zip"), root.path().join("run.zip")).unwrap();
    fs::write(root.path().join("config.json"), "{\"layers\": 4}").unwrap();
    fs::write(root.path().join("report.html"), "<!doctype html><p>Loss").unwrap();

    let output = push(&[root.path().to_str().unwrap()], server.address());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // Both archives hold the same three.
    assert!(said(&output).contains("6 snapshots sent"), "{}", said(&output));
    assert!(said(&output).contains("3 there already"), "{}", said(&output));
    // Three other files in each archive, and two beside them.
    assert!(said(&output).contains("8 passed over as something else"), "{}", said(&output));
    let expected = ["rank 0 step 1 pid 11", "rank 0 step 2 pid 11", "rank 1 step 1 pid 12"];
    assert_eq!(places(&server, "gpt-small"), expected);
}

#[test]
fn flags_win_over_paths() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    verl_run(root.path());
    let file = root.path().join("gpt-small/step5/torch_memory_rank0_pid100.pickle");
    let flags = ["--run", "mine", "--rank", "7", "--first-step", "2", "--step", "6", "--role", "actor"];
    let output = push(&[&[file.to_str().unwrap()], &flags[..]].concat(), server.address());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(places(&server, "mine"), ["rank 7 step 2–6 pid 100"]);
}

#[test]
fn what_is_no_snapshot_is_exit_status_2_and_the_rest_is_sent() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    verl_run(root.path());
    fs::write(root.path().join("gpt-small/step1/page_rank2_pid1.pickle"), "<!doctype html>").unwrap();
    let output = push(&[root.path().to_str().unwrap()], server.address());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("3 snapshots sent"), "{}", said(&output));
    assert!(said(&output).contains("1 refused as no snapshots"), "{}", said(&output));
}

#[test]
fn a_server_that_is_away_is_exit_status_1_and_named() {
    let root = tempfile::tempdir().unwrap();
    verl_run(root.path());
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let output = push(&[root.path().to_str().unwrap()], &nobody);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains(&format!("no answer from {nobody}")), "{}", said(&output));
    assert!(said(&output).contains("trying again in"), "{}", said(&output));
    assert!(
        said(&output).contains("0 snapshots sent") && said(&output).contains("3 not sent"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_watched_folder_is_sent_to_its_places_and_once() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let (runs, state) = (root.path().join("runs"), root.path().join("watch.jsonl"));
    let watch = || {
        let mut command = Command::new(place::cli());
        command.arg("watch").arg(&runs).arg("--state").arg(&state);
        command.args(["--once", "--interval", "0.1", "--server", server.address()]).output().unwrap()
    };
    verl_run(&runs);
    let output = watch();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("3 snapshots sent"), "{}", said(&output));
    let expected = ["rank 0 step 1 pid 100", "rank 0 step 5 pid 100", "rank 1 step 1 pid 101"];
    assert_eq!(places(&server, "gpt-small"), expected);
    assert_eq!(said(&watch()), "nothing new to send\n");

    let overwritten = runs.join("gpt-small/step5/torch_memory_rank0_pid100.pickle");
    fs::copy(fixture("fsdp1_w2_clear_rank0_step10.pickle"), overwritten).unwrap();
    let output = watch();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("1 snapshot sent"), "{}", said(&output));
    assert_eq!(places(&server, "gpt-small").len(), 4);
}
