//! `tidegauge inspect` and the exit statuses that scripts rely on.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

fn tidegauge(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegauge"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGAUGE_")) {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("the program starts")
}

fn status(arguments: &[&str]) -> Option<i32> {
    tidegauge(arguments).status.code()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("standard output is JSON")
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../snapshot/fixtures").join(name)
}

#[test]
fn a_snapshot_is_printed_under_the_names_that_stay() {
    let path = fixture("fsdp1_w2_clear_rank0_step5.pickle");
    let output = tidegauge(&["inspect", "--json", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let inspection = json(&output);
    assert_eq!(inspection["file"], "fsdp1_w2_clear_rank0_step5.pickle");
    assert_eq!(inspection["bytes"], fs::metadata(&path).unwrap().len());
    assert_eq!(inspection["wrapping"], serde_json::json!(["pickle4"]));
    assert!(inspection["producer"].as_str().unwrap().starts_with("torch"));
    assert!(inspection["annotations"].is_u64());
    let device = &inspection["devices"][0];
    for count in ["device", "segments", "blocks", "events", "peak_event", "preexisting_blocks"] {
        assert!(device[count].is_u64(), "{count}: {}", device[count]);
    }
    for curve in ["requested", "allocated", "active", "reserved"] {
        for level in ["head", "peak", "end"] {
            assert!(device[curve][level].is_u64(), "{curve}.{level}");
        }
    }
    assert_eq!(device["actions"]["alloc"], 1644);
    for finding in inspection["findings"].as_array().unwrap() {
        assert!(finding["code"].is_string() && finding["count"].is_u64() && finding["message"].is_string());
    }
}

#[test]
fn what_is_no_snapshot_is_refused_with_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.pickle");
    fs::write(&path, "<!doctype html>").unwrap();
    let output = tidegauge(&["inspect", "--json", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let error = &json(&output)["error"];
    let sentence = error["message"].as_str().unwrap();
    assert!(error["code"].is_string() && error["offset"].is_u64());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, format!("{}: {sentence}\n", path.display()));

    let output = tidegauge(&["inspect", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!((output.stdout.as_slice(), String::from_utf8(output.stderr).unwrap()), (&b""[..], said));
}

#[test]
fn compressed_and_plain_are_the_same_snapshot() {
    let plain = fixture("fsdp1_w2_clear_rank0_step5.pickle");
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("packed.gz");
    let mut encoder =
        flate2::write::GzEncoder::new(fs::File::create(&packed).unwrap(), flate2::Compression::fast());
    std::io::copy(&mut fs::File::open(&plain).unwrap(), &mut encoder).unwrap();
    encoder.finish().unwrap();
    let [plain, packed] =
        [plain, packed].map(|path| json(&tidegauge(&["inspect", "--json", path.to_str().unwrap()])));
    assert_eq!(packed["wrapping"], serde_json::json!(["gzip", "pickle4"]));
    assert_eq!(plain["devices"], packed["devices"]);
}

#[test]
fn an_archive_is_listed_and_each_of_its_snapshots_can_be_shown() {
    let path = fixture("wrapped/run.tar.gz");
    let path = path.to_str().unwrap();
    let output = tidegauge(&["inspect", path]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("run.tar.gz   5.71 KiB   3 snapshots, 3 other files\n"), "{table}");
    let second = "gpt-small/step1/torch_memory_rank1_pid12.pickle.gz";
    assert_eq!(table.lines().filter(|line| line.ends_with(second)).count(), 1, "{table}");

    let listed = json(&tidegauge(&["inspect", "--json", path]));
    let shown = json(&tidegauge(&["inspect", "--json", path, "--member", second]));
    assert_eq!(listed["members"].as_array().unwrap().len(), 3);
    assert_eq!(listed["members"][1]["devices"], shown["devices"]);
    assert_eq!(shown["file"], second);
    assert_eq!(shown["wrapping"], serde_json::json!(["gzip", "tar", "gzip", "pickle4"]));

    let missing = tidegauge(&["inspect", path, "--member", "step9.pickle"]);
    assert_eq!(missing.status.code(), Some(2));
    let one = json(&tidegauge(&["inspect", "--json", fixture("wrapped/one_streamed.zip").to_str().unwrap()]));
    assert_eq!(one["wrapping"], serde_json::json!(["zip", "pickle5"]));
}

#[test]
fn a_command_line_nobody_understands_is_a_usage_error() {
    assert_eq!(status(&[]), Some(64));
    assert_eq!(status(&["inspect"]), Some(64));
    assert_eq!(status(&["inspect", "a", "b"]), Some(64));
    assert_eq!(status(&["push"]), Some(64));
    assert_eq!(status(&["push", "a.pickle", "--outbox", "b"]), Some(64));
    assert_eq!(status(&["push", "--rank", "three", "a.pickle"]), Some(64));
    assert_eq!(status(&["frobnicate"]), Some(64));
    assert_eq!(status(&["--help"]), Some(0));
    assert_eq!(status(&["--version"]), Some(0));
}

#[test]
fn what_is_not_the_inputs_fault_is_neither_refusal_nor_usage() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    assert_eq!(status(&["inspect", "/nowhere/at/all"]), Some(1));
    assert_eq!(status(&["inspect", folder]), Some(1));
    assert_eq!(status(&["push", "/nowhere/at/all"]), Some(1));
    assert_eq!(status(&["push", folder]), Some(1));
    assert_eq!(status(&["push", "--server", "gauge:8642", folder]), Some(1));
}

#[test]
fn a_token_is_not_pushed_in_the_clear() {
    let path = fixture("fsdp1_w2_clear_rank0_step5.pickle");
    let output =
        tidegauge(&["push", "--server", "http://gauge.example", "--token", "secret", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("unencrypted to gauge.example") && !said.contains("secret"), "{said}");
}
