//! `tidegauge inspect` and the exit statuses that scripts rely on.

#![expect(clippy::unwrap_used, reason = "a test fails by it, with a message")]

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
    let top = &inspection["top"][0];
    assert_eq!((&top["by"], &top["levels"]["allocated"]), (&"stack".into(), &device["allocated"]["peak"]));
    assert!(top["groups"][0]["label"].is_string());
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

/// The groups of `--by`, which must add up to the level at the moment.
fn groups(arguments: &[&str]) -> Vec<Value> {
    let path = fixture("fsdp1_w2_clear_rank0_step5.pickle");
    let output = tidegauge(&[&["inspect", path.to_str().unwrap(), "--json"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found = json(&output);
    let found = &found["groups"][0];
    let groups = found["groups"].as_array().unwrap();
    let sum: u64 = groups.iter().map(|group| group["allocated"].as_u64().unwrap()).sum();
    let others = found["others"]["allocated"].as_u64().unwrap();
    assert_eq!(sum + others, found["levels"]["allocated"].as_u64().unwrap(), "{arguments:?}");
    groups.clone()
}

#[test]
fn whatever_blocks_are_summed_up_by_they_add_up_to_the_level() {
    for by in ["stack", "file", "module", "pool", "stream", "size"] {
        for at in ["peak", "end", "0", "4934"] {
            let found = groups(&["--by", by, "--at", at, "--top", "3"]);
            assert!(!found.is_empty() && found.len() <= 3);
            assert!(found.is_sorted_by_key(|group| std::cmp::Reverse(group["allocated"].as_u64())));
        }
    }
    let modules = groups(&["--by", "module"]);
    assert!(modules.iter().any(|group| group["label"] == "torch.optim.adam"), "{modules:?}");
    assert_eq!(groups(&["--by", "pool"])[0]["label"], "default");
}

#[test]
fn events_are_listed_for_people_and_for_programs() {
    let path = fixture("oom_plain_2gib.pickle");
    let path = path.to_str().unwrap();
    let all = json(&tidegauge(&["inspect", path, "--events", "--json"]));
    let events = all["events"].as_array().unwrap();
    assert_eq!(all["n_events"], events.len());
    assert!(events.iter().enumerate().all(|(at, event)| event["event"] == at));
    let oom = events.iter().find(|event| event["action"] == "oom").unwrap();
    assert!(oom["device_free"].is_u64() && oom["address"].is_null());

    let some = json(&tidegauge(&["inspect", path, "--events", "2..5", "--json"]));
    assert_eq!(some["events"].as_array().unwrap()[..], events[2..5]);
    let output = tidegauge(&["inspect", path, "--events", "2..", "--top", "3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<&str> =
        text.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(numbers, ["2", "3", "4"]);
    assert!(!text.contains('\x1b'), "no colors where nobody sees them");
}

#[test]
fn an_earlier_snapshot_of_the_same_process_takes_its_events_out() {
    let [earlier, later] =
        ["fsdp1_w2_clear_rank0_step5.pickle", "fsdp1_w2_noclear_rank0_step10.pickle"].map(fixture);
    let [earlier, later] = [&earlier, &later].map(|path| path.to_str().unwrap());
    let same = json(&tidegauge(&["inspect", "--json", later, "--since", later]));
    assert_eq!(same["since"][0]["known_events"], same["devices"][0]["events"], "all of it is known");
    let other = json(&tidegauge(&["inspect", "--json", later, "--since", earlier]));
    assert_eq!(other["since"][0]["known_events"], 0);
    assert_eq!(status(&["inspect", later, "--since", "/nowhere/at/all"]), Some(1));
}

#[test]
fn what_the_agent_wrote_down_beside_a_snapshot_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("rank0_step5.pickle");
    fs::copy(fixture("fsdp1_w2_clear_rank0_step5.pickle"), &snapshot).unwrap();
    let codes = || -> Vec<String> {
        let shown = json(&tidegauge(&["inspect", "--json", snapshot.to_str().unwrap()]));
        let findings = shown["findings"].as_array().unwrap();
        findings.iter().map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
    };
    assert!(!codes().contains(&"above-capacity".to_owned()));
    let sidecar = r#"{"sidecar": 1, "mem_get_info": {"0": [0, 1048576]}, "recording": {"max_entries": 10}}"#;
    fs::write(snapshot.with_extension("json"), sidecar).unwrap();
    assert!(codes().contains(&"above-capacity".to_owned()));
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
    assert_eq!(status(&["inspect", "--events", "a.pickle"]), Some(64));
    assert_eq!(status(&["inspect", "a.pickle", "--by", "color"]), Some(64));
    assert_eq!(status(&["inspect", "a.pickle", "--events", "--at", "end"]), Some(64));
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

#[test]
fn a_filter_leaves_the_blocks_that_match_and_their_sums_add_up() {
    let path = fixture("fsdp1_w2_clear_rank0_step5.pickle");
    let path = path.to_str().unwrap();
    let held = |filter: &str| {
        let output = tidegauge(&["inspect", "--json", "--where", filter, path]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let found = json(&output)["groups"][0].clone();
        let totals = found["groups"].as_array().unwrap().iter().chain([&found["others"]]);
        let bytes: u64 = totals.map(|total| total["allocated"].as_u64().unwrap()).sum();
        assert_eq!(found["filter"], filter);
        (bytes, found["levels"]["allocated"].as_u64().unwrap())
    };
    let ((large, all), (small, _)) = (held("size>1.00MiB"), held("size<=1.00MiB"));
    assert!(0 < large && large < all, "{large} of {all}");
    assert_eq!(large + small, all);
    let page = tidegauge(&["inspect", "--where", "size>1MiB", path]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("match size>1.00MiB"), "{page}");

    let refused = tidegauge(&["inspect", "--where", "size>much", path]);
    assert_eq!(refused.status.code(), Some(64));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("after the sign stands a size such as 1MiB"), "{said}");
}
