//! A trace whose beginning is missing: what its head is said to be, against what the whole trace knows.

use tidegauge_snapshot::model::Device;
use tidegauge_snapshot::replay::{Replay, replay};

use crate::pack::fixtures;

/// Calls with every replay of a fixture that is whole, and that of the same trace without its first events.
fn cut_in_ten(mut check: impl FnMut(&str, usize, &Replay, &Replay)) {
    for (name, snapshot) in fixtures() {
        for device in &snapshot.devices {
            let whole = replay(&snapshot, device);
            if whole.n_preexisting > 0 || device.events.len() < 100 {
                continue;
            }
            for tenth in 1..10 {
                let n_cut = device.events.len() * tenth / 10;
                let events = device.events.start + n_cut..device.events.end;
                let cut = replay(&snapshot, &Device { events, ..device.clone() });
                check(&format!("{name}, {n_cut} events cut"), n_cut, &whole, &cut);
            }
        }
    }
}

#[test]
fn requested_and_reserved_are_exact_however_much_of_the_beginning_is_missing() {
    let mut n_cuts = 0;
    cut_in_ten(|name, n_cut, whole, cut| {
        n_cuts += 1;
        assert_eq!(cut.end, whole.end, "{name}");
        for state in 0..cut.curves.n_states() {
            let (found, truth) = (cut.curves.at(state), whole.curves.at(state + n_cut));
            assert_eq!(found.requested, truth.requested, "{name}, state {state}");
            assert_eq!(found.reserved, truth.reserved, "{name}, state {state}");
        }
    });
    assert!(n_cuts > 100, "{n_cuts}");
}

#[test]
fn block_sizes_that_the_missing_beginning_leaves_open_are_counted_and_bounded() {
    let (mut n_exact, mut n_cuts) = (0, 0);
    cut_in_ten(|name, n_cut, whole, cut| {
        let most = cut.doubts.ambiguous_bytes;
        let mut is_exact = true;
        for state in 0..cut.curves.n_states() {
            let (found, truth) = (cut.curves.at(state), whole.curves.at(state + n_cut));
            for (found, truth) in [(found.active, truth.active), (found.allocated, truth.allocated)] {
                assert!(found <= truth && truth - found <= most, "{name}, state {state}: {found} of {truth}");
                is_exact &= found == truth;
            }
        }
        assert!(is_exact || cut.doubts.ambiguous_sizes > 0, "{name}");
        n_cuts += 1;
        n_exact += usize::from(is_exact);
    });
    // What is left open is nearly never used: the assumed sizes are right in all but a few of the cuts.
    assert!(n_exact * 20 > n_cuts * 19, "{n_exact} of {n_cuts}");
}
