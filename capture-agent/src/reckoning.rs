//! What the allocator counted, held against what a trace holds.
//!
//! The allocator's counts go on whether or not anything is recorded, so events that a trace should hold and does
//! not are found without looking at one of them: pushed out by later ones where the ring is full, and lost where
//! somebody else cleared the history or switched it off.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::recorder::Statistics;

/// What was read, by device ordinal.
pub type Seen = BTreeMap<String, SeenTrace>;

/// What a trace holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SeenTrace {
    /// Its events.
    pub n_events: u64,
    /// The number of leading events that the previous reading held already, where the history was not cleared and
    /// where they could be told.
    pub n_older: Option<u64>,
}

/// Events that are not in the trace, by device ordinal, at least.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lacking {
    /// Pushed out by later ones: the ring is full. Zero says that it is full, and that nothing tells how many.
    pub dropped: BTreeMap<String, u64>,
    /// Not there although the ring has room: somebody else cleared the history, or switched it off for a while.
    pub missing: BTreeMap<String, u64>,
}

/// What the allocator had counted when the history was last empty.
#[derive(Debug, Clone, Default)]
pub struct Reckoning {
    since: Statistics,
}

impl Reckoning {
    /// From a moment just after the history was emptied: events in between are then in the trace, and not expected.
    pub fn since(statistics: Statistics) -> Self {
        Self { since: statistics }
    }

    /// What a trace should hold by `now`, a moment just before it was read, and does not.
    pub fn lacking(&self, now: &Statistics, seen: &Seen, max_entries: u64) -> Lacking {
        let mut lacking = Lacking::default();
        for (device, trace) in seen {
            let Some(now) = now.memory_stats.get(device) else { continue };
            let Some(n_counted) = n_events(now) else { continue };
            let n_before = self.since.memory_stats.get(device).and_then(n_events).unwrap_or(0);
            // A program that resets these counts gets no reckoning until the next empty history.
            let n_lacking = n_counted.saturating_sub(n_before).saturating_sub(trace.n_events);
            if trace.n_events >= max_entries {
                lacking.dropped.insert(device.clone(), n_lacking);
            } else if n_lacking > 0 {
                lacking.missing.insert(device.clone(), n_lacking);
            }
        }
        lacking
    }
}

/// The events that these counts make at least: one for an allocation, one for each half of a free. Segments come
/// on top, and marks.
fn n_events(stats: &Value) -> Option<u64> {
    let count = |key: &str| stats.get(key).and_then(Value::as_u64);
    let n_completed = count("active.all.freed").unwrap_or(0);
    Some(count("allocation.all.allocated")? + count("allocation.all.freed")? + n_completed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counted(allocated: u64, freed: u64) -> Statistics {
        let stats = json!({
            "allocation.all.allocated": allocated, "allocation.all.freed": freed, "active.all.freed": freed,
        });
        Statistics { memory_stats: BTreeMap::from([("0".to_owned(), stats)]), ..Statistics::default() }
    }

    fn seen(n_events: u64) -> Seen {
        BTreeMap::from([("0".to_owned(), SeenTrace { n_events, n_older: None })])
    }

    #[test]
    fn a_whole_trace_lacks_nothing() {
        let reckoning = Reckoning::since(counted(100, 90));
        assert_eq!(reckoning.lacking(&counted(110, 95), &seen(22), 1000), Lacking::default());
    }

    #[test]
    fn a_full_ring_tells_how_many_were_pushed_out() {
        let lacking = Reckoning::since(counted(0, 0)).lacking(&counted(100, 50), &seen(60), 60);
        assert_eq!(lacking.dropped, BTreeMap::from([("0".to_owned(), 140)]));
        assert!(lacking.missing.is_empty());
    }

    #[test]
    fn what_somebody_else_cleared_is_missing() {
        let lacking = Reckoning::since(counted(10, 0)).lacking(&counted(20, 0), &seen(4), 60);
        assert_eq!(lacking.missing, BTreeMap::from([("0".to_owned(), 6)]));
    }

    #[test]
    fn counts_that_were_reset_or_are_not_told_accuse_nobody() {
        let reset = Reckoning::since(counted(1000, 0)).lacking(&counted(5, 0), &seen(0), 60);
        assert_eq!(reset, Lacking::default());
        let silent = Reckoning::default().lacking(&Statistics::default(), &seen(60), 60);
        assert_eq!(silent, Lacking::default());
    }
}
