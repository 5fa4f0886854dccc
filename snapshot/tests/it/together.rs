//! Several snapshots of one process.

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::model::{Action, Device};
use tidegauge_snapshot::overlap::overlap;
use tidegauge_snapshot::read::open;

fn fixture(name: &str) -> Snapshot {
    let path = format!("{}/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    open(std::fs::File::open(path).unwrap()).unwrap()
}

fn overlap_of(earlier: &Snapshot, later: &Snapshot) -> usize {
    let device = |snapshot: &Snapshot| {
        snapshot.devices.iter().max_by_key(|device| device.events.len()).unwrap().clone()
    };
    overlap((earlier, &device(earlier)), (later, &device(later)))
}

#[test]
fn a_history_that_was_not_cleared_holds_the_earlier_snapshot_again() {
    let step10 = fixture("fsdp1_w2_noclear_rank0_step10.pickle");
    let whole = &step10.devices[0];
    let n_step1 =
        whole.events.clone().position(|event| step10.trace.action[event] == Action::SNAPSHOT).unwrap();
    let step1 = Device { events: 0..n_step1, ..whole.clone() };
    assert_eq!(overlap((&step10, &step1), (&step10, whole)), n_step1);
    // A full ring has lost the oldest of them.
    let ring = Device { events: 100..whole.events.end, ..whole.clone() };
    assert_eq!(overlap((&step10, &step1), (&step10, &ring)), n_step1 - 100);
    // The other way round, nothing is held twice.
    assert_eq!(overlap((&step10, whole), (&step10, &step1)), 0);
}

#[test]
fn the_same_event_at_a_slightly_other_time_is_the_same_and_at_another_time_is_not() {
    let step10 = fixture("fsdp1_w2_noclear_rank0_step10.pickle");
    let whole = &step10.devices[0];
    let n_step1 =
        whole.events.clone().position(|event| step10.trace.action[event] == Action::SNAPSHOT).unwrap();
    let step1 = Device { events: 0..n_step1, ..whole.clone() };
    for (later_by, expected) in [(3, n_step1), (5_000_000, 0)] {
        let mut moved = step10.clone();
        moved.trace.time_us.iter_mut().for_each(|time| *time += later_by);
        assert_eq!(overlap((&step10, &step1), (&moved, whole)), expected, "{later_by} us");
    }
    // Without times only the marker of the snapshot tells.
    let mut timeless = step10.clone();
    timeless.trace.time_us.clear();
    assert_eq!(overlap((&timeless, &step1), (&timeless, whole)), n_step1);
}

#[test]
fn a_cleared_history_holds_nothing_twice() {
    let steps =
        ["step1", "step5", "step10"].map(|step| fixture(&format!("fsdp1_w2_clear_rank0_{step}.pickle")));
    assert_eq!(overlap_of(&steps[0], &steps[1]), 0);
    assert_eq!(overlap_of(&steps[1], &steps[2]), 0);
    assert_eq!(overlap_of(&steps[0], &steps[2]), 0);
}
