//! The four curves equal `torch.cuda.memory_stats()`, current and peak, on every committed fixture.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tidegauge_snapshot::model::Device;
use tidegauge_snapshot::replay::{Fragmentation, Levels, fragmentation, replay};

/// Every snapshot in a folder that has an oracle beside it, with the oracle.
fn with_oracle(folder: &Path) -> Vec<(PathBuf, Value)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(with_oracle(&path));
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some(stem) = name.strip_suffix(".oracle.json") {
            let oracle = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let snapshot = [format!("{stem}.pickle"), format!("{stem}.pickle.zst")]
                .map(|file| path.with_file_name(file))
                .into_iter()
                .find(|file| file.exists());
            found.extend(snapshot.map(|snapshot| (snapshot, oracle)));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn level(stats: &Value, kind: &str) -> Option<Levels> {
    let of = |what: &str| stats.get(format!("{what}_bytes.all.{kind}"))?.as_u64();
    Some(Levels {
        requested: of("requested")?,
        allocated: of("allocated")?,
        active: of("active")?,
        reserved: of("reserved")?,
    })
}

/// Compares one file with its oracle; returns the number of device traces compared.
fn check(path: &Path, oracle: &Value, wrong: &mut Vec<String>) -> usize {
    let name = path.file_name().unwrap().to_str().unwrap();
    let snapshot = match tidegauge_snapshot::read::open(std::fs::File::open(path).unwrap()) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            wrong.push(format!("{name}: {error}"));
            return 0;
        }
    };
    // The peak of memory_stats() is the trace's only when nothing happened before it; skipping actions takes away
    // what "allocated" is made of.
    let is_whole = oracle["row"]["history_lossless"] == Value::Bool(true);
    let skips = name.contains("skip_actions");
    let mut n = 0;
    for (ordinal, stats) in oracle["stats"].as_array().unwrap().iter().enumerate() {
        let Some(end) = level(stats, "current") else { continue };
        let nothing = Device { ordinal: ordinal as u32, events: 0..0, segments: 0..0 };
        let device = snapshot.device(ordinal as u32).unwrap_or(&nothing);
        let replay = replay(&snapshot, device);
        if replay.end != end && !skips {
            wrong.push(format!("{name} device {ordinal}: ends {:?}, torch says {end:?}", replay.end));
        }
        if device.events.is_empty() {
            continue;
        }
        n += 1;
        if let (true, false, Some(peak)) = (is_whole, skips, level(stats, "peak"))
            && replay.peak != peak
        {
            wrong.push(format!("{name} device {ordinal}: peak {:?}, torch says {peak:?}", replay.peak));
        }
        if replay.doubts.end_mismatch > 0 && !skips {
            wrong.push(format!("{name} device {ordinal}: {:?}", replay.doubts));
        }
        check_split(
            &name_of(name, ordinal),
            stats,
            is_whole && !skips,
            &fragmentation(&snapshot, device),
            wrong,
        );
    }
    n
}

fn name_of(name: &str, ordinal: usize) -> String {
    format!("{name} device {ordinal}")
}

/// `inactive_split_bytes` counts the free blocks that share their segment.
fn check_split(name: &str, stats: &Value, is_whole: bool, found: &Fragmentation, wrong: &mut Vec<String>) {
    let of = |kind: &str| stats[format!("inactive_split_bytes.all.{kind}")].as_u64();
    let end = found.inactive_split.last().copied();
    if of("current").is_some() && end != of("current") {
        wrong.push(format!("{name}: {end:?} inactive split at the end, torch says {:?}", of("current")));
    }
    let peak = found.inactive_split.iter().max().copied();
    if is_whole && of("peak").is_some() && peak != of("peak") {
        wrong.push(format!("{name}: {peak:?} inactive split at most, torch says {:?}", of("peak")));
    }
}

#[test]
fn every_fixture_with_an_oracle_is_exact_current_and_peak() {
    let fixtures = with_oracle(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures")));
    assert!(fixtures.len() >= 20, "the fixtures are missing: {} found", fixtures.len());
    let mut wrong = Vec::new();
    let n: usize = fixtures.iter().map(|(path, oracle)| check(path, oracle, &mut wrong)).sum();
    assert!(wrong.is_empty(), "{} of {n} traces:\n{}", wrong.len(), wrong.join("\n"));
    for kind in [
        "llama8b",
        "fsdp1_w2_clear",
        "fsdp1_w2_noclear",
        "oom",
        "streams",
        "pools",
        "expandable",
        "ring",
        "settings_roundup4",
    ] {
        assert!(
            fixtures.iter().any(|(path, _)| path.to_str().unwrap().contains(kind)),
            "no fixture shows {kind}"
        );
    }
}

/// A folder of snapshots that are not part of the project: the variable names it, or it lies beside the project.
fn beside(variable: &str, name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let folder =
        named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(name));
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: there is no folder {}; {variable} can name another", folder.display());
    None
}

#[test]
fn more_snapshots_of_the_allocator_are_exact_where_someone_has_them() {
    let Some(folder) = beside("TIDEGAUGE_MORE_SNAPSHOTS", "generated") else { return };
    let found = with_oracle(&folder);
    let mut wrong = Vec::new();
    let n: usize = found.iter().map(|(path, oracle)| check(path, oracle, &mut wrong)).sum();
    assert!(n > 0, "no traces with an oracle in {}", folder.display());
    println!("{n} device traces of {} files", found.len());
    assert!(wrong.is_empty(), "{} of {n} traces:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn public_snapshots_are_as_expected_where_someone_has_them() {
    let Some(folder) = beside("TIDEGAUGE_PUBLIC_SNAPSHOTS", "corpus") else { return };
    let expected: Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let mut wrong = Vec::new();
    let mut n_replays = 0;
    for (name, file) in expected.as_object().unwrap() {
        let snapshot = match tidegauge_snapshot::read::open(std::fs::File::open(folder.join(name)).unwrap()) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for (ordinal, device) in file["devices"].as_object().unwrap() {
            let Some(found) = snapshot.device(ordinal.parse().unwrap()) else {
                if device["segments"] != 0 || device["events"] != 0 {
                    wrong.push(format!("{name}: device {ordinal} is missing"));
                }
                continue;
            };
            let replay = replay(&snapshot, found);
            let expected = device.get("replay").filter(|replay| !replay.is_null());
            n_replays += usize::from(expected.is_some());
            let of = |levels: &Value| Levels {
                requested: levels["requested"].as_u64().unwrap(),
                allocated: levels["allocated"].as_u64().unwrap(),
                active: levels["active"].as_u64().unwrap(),
                reserved: levels["reserved"].as_u64().unwrap(),
            };
            if replay.end != of(device) {
                wrong.push(format!(
                    "{name} device {ordinal}: ends {:?}, expected {:?}",
                    replay.end,
                    of(device)
                ));
            }
            if let Some(expected) = expected {
                let (head, peak) = (of(&expected["head"]), of(&expected["peak"]));
                // The expectations give a block of the head its rounded size. Where the rest behind it is no free block,
                // or a later event begins inside that rest (an anomaly to them), up to 1 MiB of it is the block's.
                let of_file = |name: &str| device["replay"][name].as_u64().unwrap();
                let most = (of_file("ambiguous") + of_file("anomalies")) << 20;
                for (found, expected) in [(replay.head, head), (replay.peak, peak)] {
                    let is_near = |found: u64, expected: u64| (expected..=expected + most).contains(&found);
                    let is_as_expected = found.requested == expected.requested
                        && found.reserved == expected.reserved
                        && is_near(found.active, expected.active)
                        && is_near(found.allocated, expected.allocated);
                    if !is_as_expected {
                        wrong.push(format!(
                            "{name} device {ordinal}: {found:?}, expected {expected:?} ({:?})",
                            replay.doubts
                        ));
                    }
                }
                if replay.doubts.end_mismatch > 0 {
                    wrong.push(format!("{name} device {ordinal}: {:?}", replay.doubts));
                }
            }
        }
    }
    println!("{n_replays} device traces of {} files", expected.as_object().unwrap().len());
    assert!(n_replays > 0 && wrong.is_empty(), "{}", wrong.join("\n"));
}
