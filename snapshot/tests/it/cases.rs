//! Reports of people whose numbers were wrong, each with the right one.

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::replay::{Doubts, Skipped};
use tidegauge_snapshot::sites;

use crate::story::{HERE, KIB, MIB, Story, at, codes, replayed, story};

fn small() -> Story {
    story().segment(HERE, &[(2 * MIB, 0, "inactive")]).event("segment_alloc", HERE, 2 * MIB)
}

/// Bytes asked for by what is alive at the highest level.
fn requested_at_peak(snapshot: &Snapshot) -> u64 {
    let replay = replayed(snapshot);
    let alive = replay.alive_at(replay.peak_state);
    alive.iter().map(|row| replay.allocations.requested[*row as usize]).sum()
}

#[test]
fn who_holds_the_peak_adds_up_to_it_though_part_of_it_is_older_than_the_trace() {
    // 100 bytes that stay, then a step with 20 that do not: the peak is 120, and both are named.
    let blocks = [(512, 100, "active_allocated"), (2 * MIB - 512, 0, "inactive")];
    let snapshot = story().segment(HERE, &blocks).event("alloc", HERE + 512, 20).free(HERE + 512, 20).read();
    assert_eq!(replayed(&snapshot).peak.requested, 120);
    assert_eq!(requested_at_peak(&snapshot), 120);
}

#[test]
fn frees_whose_allocations_a_ring_has_lost_never_make_a_level_negative() {
    let lost = (0..100)
        .fold(story().segment(HERE, &[(2 * MIB, 0, "inactive")]), |story, n| story.free(HERE + n * KIB, KIB));
    let snapshot = lost.read();
    let replay = replayed(&snapshot);
    assert_eq!((replay.head.active, replay.end.active), (100 * KIB, 0));
    assert!(replay.curves.active.iter().all(|level| *level <= replay.head.reserved));
    assert!(codes(&snapshot).contains(&"older-than-trace".to_owned()));
}

#[test]
fn a_segment_taken_for_an_allocation_counts_once_in_each_curve() {
    let snapshot = small().event("alloc", HERE, KIB).free(HERE, KIB).read();
    let peak = replayed(&snapshot).peak;
    assert_eq!((peak.allocated, peak.reserved), (KIB, 2 * MIB));
}

#[test]
fn memory_that_waits_for_another_stream_is_neither_allocated_nor_free() {
    let blocks = [(KIB, KIB, "active_pending_free"), (2 * MIB - KIB, 0, "inactive")];
    let snapshot = story().segment(HERE, &blocks).read();
    let replay = replayed(&snapshot);
    assert_eq!((replay.end.allocated, replay.end.active, replay.end.reserved), (0, KIB, 2 * MIB));
    let fragmentation = tidegauge_snapshot::replay::fragmentation(&snapshot, &snapshot.devices[0]);
    assert_eq!(fragmentation.largest_free, [2 * MIB - KIB]);
}

/// Ten allocations, freed, without events of one kind.
fn without(skipped: &str) -> Snapshot {
    let mut story = story().segment(HERE, &[(2 * MIB, 0, "inactive")]);
    for _ in 0..10 {
        for action in ["alloc", "free_requested", "free_completed"].into_iter().filter(|it| *it != skipped) {
            story = story.event(action, HERE, KIB);
        }
    }
    story.read()
}

#[test]
fn actions_that_the_recorder_was_told_to_skip_make_no_leak() {
    for skipped in ["free_requested", "free_completed"] {
        let snapshot = without(skipped);
        let replay = replayed(&snapshot);
        assert_eq!((replay.peak.active, replay.end.active), (KIB, 0), "without {skipped}");
        assert_eq!(replay.end.allocated, 0, "without {skipped}");
        assert_eq!(replay.doubts, Doubts::default(), "without {skipped}");
        assert!(codes(&snapshot).contains(&"actions-skipped".to_owned()), "without {skipped}");
    }
    let snapshot = without("alloc");
    let replay = replayed(&snapshot);
    assert_eq!(replay.skipped, Skipped { allocs: true, ..Skipped::default() });
    assert_eq!(replay.end.active, 0);
}

#[test]
fn a_segment_without_a_stack_has_the_one_of_the_event_that_took_it() {
    let snapshot = story()
        .segment(HERE, &[(2 * MIB, 0, "inactive")])
        .event_with("segment_alloc", HERE, 2 * MIB, &at("load_model"))
        .read();
    let reservations = replayed(&snapshot).reservations;
    let first = snapshot.stacks.frames(reservations.stack[0]).next().unwrap();
    assert_eq!(snapshot.strings.text(first.name), "load_model");
    assert_eq!(reservations.segment, [0]);
}

#[test]
fn paths_of_windows_are_paths() {
    let frame = r#"{"name": "step", "filename": "D:\\work\\site-packages\\torch\\nn\\linear.py", "line": 3}"#;
    let own = r#"{"name": "train", "filename": "D:\\work\\train.py", "line": 9}"#;
    let snapshot = small()
        .event_with("alloc", HERE, KIB, &format!(r#""frames": [{frame}, {own}]"#))
        .free(HERE, KIB)
        .read();
    let site = sites::site(&snapshot, snapshot.trace.stack[1]).unwrap();
    assert_eq!(sites::place(&snapshot, site).file, r"D:\work\train.py");
}
