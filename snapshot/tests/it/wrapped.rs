//! The same snapshot in every wrapping people send it in.

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::read::{ReadError, open};
use tidegauge_snapshot::replay::{Replay, replay};

const PLAIN: &[u8] = include_bytes!("../../fixtures/pools_graphs_mempool.pickle");

macro_rules! wrapped {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../fixtures/wrapped/", $name)) as &[u8])
    };
}

const WRAPPED: [(&str, &[u8]); 7] = [
    wrapped!("protocol0.pickle"),
    wrapped!("protocol1.pickle"),
    wrapped!("protocol2.pickle"),
    wrapped!("protocol3.pickle"),
    wrapped!("protocol5.pickle"),
    wrapped!("converted.json"),
    wrapped!("trace_plot.html"),
];

fn replays(snapshot: &Snapshot) -> Vec<Replay> {
    let comparable = |device| {
        let mut replay = replay(snapshot, device);
        // Numbers of stacks depend on the order in which a pickler writes lists.
        replay.allocations.stack.clear();
        replay
    };
    snapshot.devices.iter().map(comparable).collect()
}

fn stack_texts(snapshot: &Snapshot) -> Vec<Vec<(String, String, u32)>> {
    let text = |id| snapshot.strings.text(id).into_owned();
    let frames = |stack: &_| {
        snapshot.stacks.frames(*stack).map(|f| (text(f.name), text(f.filename), f.line)).collect()
    };
    snapshot.trace.stack.iter().chain(&snapshot.blocks.stack).map(frames).collect()
}

#[test]
fn every_wrapping_gives_the_same_events_levels_and_stacks() {
    let plain = open(PLAIN).unwrap();
    assert!(plain.trace.len() > 50 && plain.settings.len() > 5);
    for (name, bytes) in WRAPPED {
        let snapshot = open(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(replays(&snapshot), replays(&plain), "{name}");
        assert_eq!(stack_texts(&snapshot), stack_texts(&plain), "{name}");
        assert_eq!(snapshot.trace.time_us, plain.trace.time_us, "{name}");
        assert_eq!(snapshot.segments.pool, plain.segments.pool, "{name}");
        assert_eq!(snapshot.settings, plain.settings, "{name}");
        assert_eq!(snapshot.producer, plain.producer, "{name}");
        assert_eq!(snapshot.findings, plain.findings, "{name}");
    }
}

#[test]
fn the_wrapping_is_named_from_the_outside_in() {
    let wrapping = |bytes: &[u8]| open(bytes).unwrap().wrapping;
    assert_eq!(wrapping(PLAIN), ["pickle4"]);
    let of = |name: &str| wrapping(WRAPPED.iter().find(|(found, _)| *found == name).unwrap().1);
    assert_eq!(of("protocol0.pickle"), ["pickle0"]);
    assert_eq!(of("protocol1.pickle"), ["pickle1"]);
    assert_eq!(of("protocol5.pickle"), ["pickle5"]);
    assert_eq!(of("converted.json"), ["json"]);
    assert_eq!(of("trace_plot.html"), ["html", "pickle4"]);
    let packed = zstd::bulk::compress(WRAPPED[5].1, 3).unwrap();
    assert_eq!(wrapping(&packed), ["zstd", "json"]);
}

#[test]
fn whatever_the_wrapping_a_cut_file_says_that_it_is_cut() {
    for (name, bytes) in WRAPPED {
        for len in (40..bytes.len() - 100).step_by(bytes.len() / 50) {
            let error = open(&bytes[..len]).expect_err(name);
            let is_before_the_pickle = name.ends_with("html") && len < 200;
            assert!(error.code() == ReadError::CUT || is_before_the_pickle, "{name} cut at {len}: {error}");
        }
    }
}

#[test]
fn json_cut_amid_a_word_or_number_is_cut_and_not_damaged() {
    let (_, bytes) = WRAPPED.iter().find(|(name, _)| *name == "converted.json").unwrap();
    for len in 1..6000 {
        let error = open(&bytes[..len]).unwrap_err();
        assert_eq!(error.code(), ReadError::CUT, "cut at {len}: {error}");
    }
}

#[test]
fn no_changed_byte_of_text_makes_it_panic() {
    for (_, bytes) in WRAPPED.iter().filter(|(name, _)| !name.starts_with("protocol2")) {
        for at in (0..bytes.len()).step_by(11) {
            let mut changed = bytes.to_vec();
            changed[at] ^= 0x11;
            if let Ok(snapshot) = open(&changed[..]) {
                replays(&snapshot);
            }
        }
    }
}
