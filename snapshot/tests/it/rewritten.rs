//! Snapshots written out again, whole and in part.

use tidegauge_snapshot::model::KeptOf;
use tidegauge_snapshot::read::open;
use tidegauge_snapshot::replay::{Replay, replay};
use tidegauge_snapshot::window::{cut, trim};
use tidegauge_snapshot::{Snapshot, write};

use crate::pack::fixtures;

fn pickled(snapshot: &Snapshot) -> Snapshot {
    let mut bytes = Vec::new();
    write::pickle(snapshot, &mut bytes).unwrap();
    open(&bytes[..]).unwrap()
}

/// A replay without what depends on the order in which a file names its stacks and streams.
fn comparable(mut replay: Replay) -> Replay {
    replay.allocations.stack.clear();
    replay.reservations.stack.clear();
    replay.reservations.stream.clear();
    replay
}

fn replays(snapshot: &Snapshot) -> Vec<Replay> {
    let devices = snapshot.devices.iter().chain(&snapshot.host);
    devices.map(|device| comparable(replay(snapshot, device))).collect()
}

#[test]
fn a_snapshot_written_again_as_a_pickle_or_json_is_the_same() {
    for (name, snapshot) in fixtures() {
        let again = pickled(&snapshot);
        assert!(replays(&again) == replays(&snapshot), "{name}");
        assert_eq!(again.findings, snapshot.findings, "{name}");
        assert_eq!(again.settings, snapshot.settings, "{name}");
        assert_eq!(again.top, snapshot.top, "{name}");
        assert_eq!(again.kept.len(), snapshot.kept.len(), "{name}");
        if snapshot.trace.len() < 5000 {
            let mut json = Vec::new();
            write::json(&snapshot, &mut json).unwrap();
            assert!(replays(&open(&json[..]).unwrap()) == replays(&snapshot), "{name} as JSON");
        }
    }
}

#[test]
fn writing_again_what_was_written_changes_nothing_any_more() {
    for (name, snapshot) in fixtures().into_iter().filter(|(_, snapshot)| snapshot.trace.len() < 5000) {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        write::pickle(&snapshot, &mut first).unwrap();
        write::pickle(&open(&first[..]).unwrap(), &mut second).unwrap();
        assert!(first == second, "{name}");
    }
}

#[test]
fn a_window_has_the_levels_that_the_whole_trace_has_there() {
    let mut n_windows = 0;
    for (name, snapshot) in fixtures() {
        // A converted profile has allocations outside of all segments, which no snapshot can say of a moment.
        for device in snapshot.devices.iter().filter(|_| snapshot.producer != "torch.profiler") {
            let n = device.events.len();
            let whole = replay(&snapshot, device);
            for window in [0..n, n / 3..n / 2, n / 2..n / 2, n / 5..n - n / 7] {
                let part = pickled(&cut(&snapshot, device, &whole, window.clone()));
                let Some(found) = part.device(device.ordinal) else {
                    let levels = whole.curves.at(window.end);
                    assert!(window.is_empty() && levels.reserved == 0, "{name}, {window:?}");
                    continue;
                };
                let alone = replay(&part, found);
                assert_eq!(alone.curves.n_states(), window.len() + 1, "{name}, {window:?}");
                for state in 0..=window.len() {
                    let expected = whole.curves.at(window.start + state);
                    assert_eq!(alone.curves.at(state), expected, "{name}, {window:?}, state {state}");
                }
                assert_eq!(alone.doubts.end_mismatch, 0, "{name}, {window:?}");
                n_windows += 1;
            }
        }
    }
    assert!(n_windows > 150, "{n_windows}");
}

#[test]
fn trimmed_traces_of_all_devices_have_the_levels_that_the_whole_ones_have_there() {
    let mut n_windows = 0;
    for (name, snapshot) in fixtures() {
        if snapshot.producer == "torch.profiler" {
            continue;
        }
        let wholes: Vec<_> = snapshot.devices.iter().map(|device| replay(&snapshot, device)).collect();
        for share in [|n| n / 3..n, |n| n / 5..n - n / 7, |n| 0..n / 2, |n: usize| n..n + 7] {
            let windows: Vec<_> = snapshot.devices.iter().map(|device| share(device.events.len())).collect();
            let part = pickled(&trim(snapshot.clone(), &windows, i64::MIN));
            for ((device, whole), window) in snapshot.devices.iter().zip(&wholes).zip(&windows) {
                let window = window.start..window.end.min(device.events.len());
                let Some(found) = part.device(device.ordinal) else {
                    assert!(
                        window.is_empty() && whole.curves.at(window.end).reserved == 0,
                        "{name}, {window:?}"
                    );
                    continue;
                };
                let alone = replay(&part, found);
                assert_eq!(alone.curves.n_states(), window.len() + 1, "{name}, {window:?}");
                for state in 0..=window.len() {
                    let expected = whole.curves.at(window.start + state);
                    assert_eq!(alone.curves.at(state), expected, "{name}, {window:?}, state {state}");
                }
                n_windows += 1;
            }
        }
    }
    assert!(n_windows > 150, "{n_windows}");
}

#[test]
fn a_window_that_reaches_to_the_end_keeps_the_segments_and_one_of_all_events_keeps_everything() {
    for (name, snapshot) in fixtures() {
        let all: Vec<_> = snapshot.devices.iter().map(|device| 0..device.events.len()).collect();
        assert!(trim(snapshot.clone(), &all, i64::MAX) == snapshot, "{name}");
        let later: Vec<_> = all.iter().map(|all| all.end / 2..all.end).collect();
        let part = trim(snapshot.clone(), &later, i64::MIN);
        assert!(part.segments == snapshot.segments && part.blocks == snapshot.blocks, "{name}");
        let memory = |snapshot: &Snapshot| {
            snapshot.kept.iter().filter(|kept| kept.of != KeptOf::Event).cloned().collect::<Vec<_>>()
        };
        assert!(memory(&part) == memory(&snapshot) && part.annotations == snapshot.annotations, "{name}");
    }
}
