//! `tidegauge export`: where it writes, what it refuses, and its exit statuses.

#![expect(clippy::unwrap_used, reason = "a test fails by it, with a message")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// A folder of its own, with a snapshot in it.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn with(fixture: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../snapshot/fixtures").join(fixture);
        fs::copy(&from, folder.path().join(from.file_name().unwrap())).unwrap();
        Self { folder }
    }

    fn tidegauge(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegauge"));
        command.current_dir(self.folder.path()).args(arguments).output().expect("the program starts")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Names in the folder, sorted.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn status(output: &Output) -> Option<i32> {
    output.status.code()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

const SNAPSHOT: &str = "oom_plain_2gib.pickle";

#[test]
fn a_file_is_named_after_the_snapshot_and_what_is_in_it() {
    let desk = Desk::with(SNAPSHOT);
    for (arguments, name) in [
        (&["--to", "parquet"][..], "oom_plain_2gib.allocations.parquet"),
        (&["--to", "arrow", "--table", "events"], "oom_plain_2gib.events.arrow"),
        (&["--to", "csv", "--table", "levels"], "oom_plain_2gib.levels.csv"),
        (&["--to", "collapsed"], "oom_plain_2gib.collapsed.txt"),
        (&["--to", "speedscope", "--at", "end"], "oom_plain_2gib.speedscope.json"),
        (&["--to", "pprof"], "oom_plain_2gib.pb.gz"),
        (&["--to", "perfetto"], "oom_plain_2gib.pftrace"),
    ] {
        let output = desk.tidegauge(&[&["export", SNAPSHOT], arguments].concat());
        assert_eq!(status(&output), Some(0), "{output:?}");
        assert!(output.stdout.is_empty());
        assert!(said(&output).starts_with(&format!("wrote {name} (")), "{}", said(&output));
        assert!(desk.path(name).metadata().unwrap().len() > 0);
    }
    // Nothing else is left behind.
    assert_eq!(desk.names().len(), 8, "{:?}", desk.names());
}

#[test]
fn standard_output_holds_the_same_bytes_and_nothing_else() {
    let desk = Desk::with(SNAPSHOT);
    for format in
        ["pickle", "json", "parquet", "arrow", "csv", "collapsed", "speedscope", "pprof", "perfetto"]
    {
        let piped = desk.tidegauge(&["export", SNAPSHOT, "--to", format, "-o", "-"]);
        assert_eq!(status(&piped), Some(0), "{piped:?}");
        assert_eq!(said(&piped), "");
        desk.tidegauge(&["export", SNAPSHOT, "--to", format, "-o", "out"]);
        assert!(piped.stdout == fs::read(desk.path("out")).unwrap(), "{format}");
        fs::remove_file(desk.path("out")).unwrap();
    }
    assert_eq!(desk.names(), [SNAPSHOT]);
}

#[test]
fn a_file_that_is_there_stays_unless_forced_and_the_snapshot_itself_stays_anyway() {
    let desk = Desk::with(SNAPSHOT);
    fs::write(desk.path("mine.csv"), "precious").unwrap();
    let export = ["export", SNAPSHOT, "--to", "csv", "-o", "mine.csv"];
    let output = desk.tidegauge(&export);
    assert_eq!(status(&output), Some(1));
    assert!(said(&output).contains("mine.csv is there already; --force"), "{}", said(&output));
    assert_eq!(fs::read_to_string(desk.path("mine.csv")).unwrap(), "precious");
    assert_eq!(status(&desk.tidegauge(&[&export[..], &["--force"]].concat())), Some(0));
    assert!(fs::read_to_string(desk.path("mine.csv")).unwrap().starts_with("device,allocation,"));

    let before = fs::read(desk.path(SNAPSHOT)).unwrap();
    let output = desk.tidegauge(&["export", SNAPSHOT, "--to", "csv", "-o", SNAPSHOT, "--force"]);
    assert_eq!(status(&output), Some(1));
    assert!(said(&output).contains("is the snapshot itself"), "{}", said(&output));
    assert_eq!(fs::read(desk.path(SNAPSHOT)).unwrap(), before);
}

#[test]
fn a_folder_takes_the_file_under_its_usual_name() {
    let desk = Desk::with(SNAPSHOT);
    fs::create_dir(desk.path("tables")).unwrap();
    assert_eq!(status(&desk.tidegauge(&["export", SNAPSHOT, "--to", "csv", "-o", "tables"])), Some(0));
    assert!(desk.path("tables/oom_plain_2gib.allocations.csv").exists());
}

#[test]
fn what_does_not_go_together_is_a_usage_error() {
    let desk = Desk::with(SNAPSHOT);
    for arguments in [
        &["--to", "xml"][..],
        &["--to", "csv", "--table", "chairs"],
        &["--to", "pprof", "--table", "events"],
        &["--to", "csv", "--at", "peak"],
        &["--to", "perfetto", "--at", "peak"],
        &["--to", "csv", "--table", "blocks", "--at", "peak", "--until", "3"],
        &["--to", "collapsed", "--at", "noon"],
        &["--to", "csv", "--device", "first"],
        &[],
    ] {
        let output = desk.tidegauge(&[&["export", SNAPSHOT], arguments].concat());
        assert_eq!(status(&output), Some(64), "{arguments:?}: {output:?}");
    }
    assert_eq!(desk.names(), [SNAPSHOT]);
}

#[test]
fn a_window_or_a_device_that_is_not_there_is_told_and_leaves_nothing_behind() {
    let desk = Desk::with("streams_2dev_lag40.pickle");
    for (arguments, sentence) in [
        (&["--device", "7"][..], "has nothing on device 7; it has device 0, device 1"),
        (
            &["--from", "3"],
            "a window needs one device; say which with --device: there are device 0, device 1",
        ),
        (&["--device", "0", "--until", "100000"], "the window 0..100000 is not within them"),
        (&["--device", "host"], "has nothing on host"),
    ] {
        let export = ["export", "streams_2dev_lag40.pickle", "--to", "csv"];
        let output = desk.tidegauge(&[&export[..], arguments].concat());
        assert_eq!(status(&output), Some(1), "{output:?}");
        assert!(said(&output).contains(sentence), "{}", said(&output));
    }
    assert_eq!(desk.names(), ["streams_2dev_lag40.pickle"]);
}

#[test]
fn a_window_of_one_device_holds_its_events_only() {
    let desk = Desk::with("streams_2dev_lag40.pickle");
    let window = ["--device", "1", "--from", "10", "--until", "14"];
    let export = ["export", "streams_2dev_lag40.pickle", "--to", "csv", "--table", "events", "-o", "-"];
    let output = desk.tidegauge(&[&export[..], &window[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let first_cells: Vec<String> =
        text.lines().skip(1).map(|line| line.splitn(3, ',').take(2).collect::<Vec<_>>().join(",")).collect();
    assert_eq!(first_cells, ["1,10", "1,11", "1,12", "1,13"]);
}

#[test]
fn blocks_can_be_had_as_they_stood_at_the_peak() {
    let desk = Desk::with(SNAPSHOT);
    let export = ["export", SNAPSHOT, "--to", "csv", "--table", "segments", "-o", "-"];
    let reserved = |arguments: &[&str]| {
        let output = desk.tidegauge(&[&export[..], arguments].concat());
        assert_eq!(status(&output), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let column = text.lines().next().unwrap().split(',').position(|name| name == "size_bytes").unwrap();
        text.lines()
            .skip(1)
            .map(|line| line.split(',').nth(column).unwrap().parse::<u64>().unwrap())
            .sum::<u64>()
    };
    assert_eq!(reserved(&["--at", "end"]), reserved(&[]));
    assert_eq!(reserved(&["--at", "0"]), reserved(&["--until", "1"]));
}

#[test]
fn what_is_no_snapshot_is_refused() {
    let desk = Desk::with(SNAPSHOT);
    fs::write(desk.path("page.pickle"), "<!doctype html>").unwrap();
    assert_eq!(status(&desk.tidegauge(&["export", "page.pickle", "--to", "csv"])), Some(2));
    assert_eq!(status(&desk.tidegauge(&["export", "nowhere.pickle", "--to", "csv"])), Some(1));
    assert_eq!(desk.names(), [SNAPSHOT, "page.pickle"]);
}

#[test]
fn a_window_is_a_snapshot_of_its_own_with_the_levels_it_had_in_the_whole() {
    let desk = Desk::with("streams_2dev_lag40.pickle");
    let window = ["--device", "0", "--from", "100", "--until", "300", "-o", "window.pickle"];
    let output =
        desk.tidegauge(&[&["export", "streams_2dev_lag40.pickle", "--to", "pickle"][..], &window].concat());
    assert_eq!(status(&output), Some(0), "{output:?}");
    let shown = |file: &str, event: &str| -> serde_json::Value {
        let output = desk.tidegauge(&["inspect", file, "--json", "--device", "0", "--at", event]);
        let mut shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        shown["groups"][0]["levels"]["state"].take();
        shown["groups"][0]["levels"].take()
    };
    for (event, in_window) in [("100", "0"), ("200", "100"), ("299", "199")] {
        assert_eq!(shown("streams_2dev_lag40.pickle", event), shown("window.pickle", in_window));
    }
}

#[test]
fn of_an_archive_one_snapshot_is_chosen() {
    let desk = Desk::with("wrapped/run.zip");
    let output = desk.tidegauge(&["export", "run.zip", "--to", "csv"]);
    assert_eq!(status(&output), Some(2));
    assert!(said(&output).contains("3 snapshots") && said(&output).contains("--member"), "{}", said(&output));
    let member = ["--member", "gpt-small/step2/torch_memory_rank0_pid11.pickle"];
    let output = desk.tidegauge(&[&["export", "run.zip", "--to", "csv"][..], &member].concat());
    assert_eq!(status(&output), Some(0), "{output:?}");
    assert!(desk.path("torch_memory_rank0_pid11.allocations.csv").exists());
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let desk = Desk::with("fsdp1_w2_clear_rank0_step5.pickle");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegauge"))
        .current_dir(desk.folder.path())
        .args(["export", "fsdp1_w2_clear_rank0_step5.pickle", "--to", "csv", "--table", "frames", "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((status(&output), said(&output)), (Some(0), String::new()));
}
