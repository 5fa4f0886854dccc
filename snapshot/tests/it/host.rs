//! Pinned host memory, which torch records since 2.14 when asked to.

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::read::open;
use tidegauge_snapshot::replay::{Levels, replay};

fn fixture(name: &str) -> Snapshot {
    let path = format!("{}/fixtures/torch2.15.0/{name}", env!("CARGO_MANIFEST_DIR"));
    open(std::fs::File::open(path).unwrap()).unwrap()
}

/// What the allocator of pinned memory said at the moment of the dump.
fn oracle(name: &str) -> serde_json::Value {
    let path = format!("{}/fixtures/torch2.15.0/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn pinned_host_memory_has_its_own_levels() {
    let snapshot = fixture("new_pinned_metadata_annotate.pickle");
    let host = snapshot.host.as_ref().unwrap();
    let found = replay(&snapshot, host);
    // Two blocks that torch keeps for later, of 16 and 4 MiB, and one of 4 KiB in use.
    assert_eq!(
        found.end,
        Levels { requested: 4096, allocated: 4096, active: 4096, reserved: (20 << 20) + 4096 }
    );
    assert!(found.peak.allocated >= 16 << 20);
    assert_eq!(found.doubts.end_mismatch, 0);
    // It is none of the devices, and none of their totals.
    assert!(snapshot.devices.iter().all(|device| device.ordinal == 0));
}

#[test]
fn a_process_that_recorded_only_pinned_memory_shows_that() {
    let snapshot = fixture("new_pinned_only.pickle");
    let host = snapshot.host.as_ref().unwrap();
    assert!(!host.events.is_empty() && snapshot.devices.iter().all(|device| device.events.is_empty()));
    let found = replay(&snapshot, host);
    assert_eq!(found.doubts.end_mismatch, 0);
    let stats = &oracle("new_pinned_only.oracle.json");
    println!("{}", stats["host_stats"]);
    assert!(found.peak.reserved >= found.end.allocated);
}
