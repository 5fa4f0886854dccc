//! What a snapshot costs at most, told from its settings: the ring that fills up decides.

use serde::Serialize;
use tidegauge_capture_agent::backend::Recording;

/// Python objects that `_snapshot()` makes of an event, with python stacks.
const OBJECTS_BYTES: u64 = 600;
/// An event in a pickle: python stacks, and all.
const PICKLE_BYTES: [u64; 2] = [102, 150];
/// The part that zstd leaves of a pickle: a tenth with python stacks, as docs/performance.md shows; a little more
/// with C++ frames.
const COMPRESSION: [u64; 2] = [10, 9];
/// Time per event until the pickle is made: python stacks, and all, whose C++ frames are looked up one by one.
const NANOSECONDS: [u64; 2] = [7_000, 460_000];

/// At most, per snapshot and process; a ring that is not full costs less in proportion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Cost {
    /// Events in the ring.
    pub(super) n_events: u64,
    /// Host memory while a snapshot is taken and written.
    pub(super) host_bytes: u64,
    /// The pickle.
    pub(super) pickle_bytes: u64,
    /// The file in the outbox.
    pub(super) file_bytes: u64,
    /// Time until it is written; only a part of it stops training.
    pub(super) millis: u64,
}

impl Cost {
    pub(super) fn of(recording: &Recording) -> Self {
        let i = usize::from(recording.stacks == "all");
        let n_events = recording.max_entries;
        let pickle_bytes = n_events.saturating_mul(PICKLE_BYTES[i]);
        Self {
            n_events,
            host_bytes: n_events.saturating_mul(OBJECTS_BYTES),
            pickle_bytes,
            file_bytes: pickle_bytes / COMPRESSION[i],
            millis: n_events.saturating_mul(NANOSECONDS[i]) / 1_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(stacks: &str, max_entries: u64) -> Cost {
        Cost::of(&Recording { context: "all".to_owned(), stacks: stacks.to_owned(), max_entries })
    }

    #[test]
    fn a_full_ring_costs_what_its_events_cost() {
        let expected = Cost {
            n_events: 100_000,
            host_bytes: 60_000_000,
            pickle_bytes: 10_200_000,
            file_bytes: 1_020_000,
            millis: 700,
        };
        assert_eq!(cost("python", 100_000), expected);
        let all = cost("all", 100_000);
        assert_eq!((all.pickle_bytes, all.millis), (15_000_000, 46_000));
    }

    #[test]
    fn a_ring_without_a_bound_has_a_cost_without_an_overflow() {
        assert_eq!(cost("all", u64::MAX).host_bytes, u64::MAX);
    }
}
