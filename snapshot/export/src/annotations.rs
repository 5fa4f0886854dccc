//! Named ranges that the program marked: both ends found for each other.

use std::collections::BTreeMap;

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::model::StrId;

use crate::DevicePart;

/// A named range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: StrId,
    /// Unix epoch, microseconds; absent when it began before recording did.
    pub(crate) start_us: Option<i64>,
    /// Unix epoch, microseconds; absent when it had not ended.
    pub(crate) end_us: Option<i64>,
}

/// The ranges of a device that touch its window, by their beginning. Times are all that ties annotations to
/// events: without them in the trace, every range counts.
pub(crate) fn within(snapshot: &Snapshot, device: &DevicePart<'_>) -> Vec<Named> {
    let time = |event: u32| snapshot.trace.time_us(device.trace_row(event));
    let mut ranges = paired(snapshot, device.origins.device.ordinal);
    if !device.is_whole()
        && !device.events.is_empty()
        && let Some((first, last)) = time(device.events.start).zip(time(device.events.end - 1))
    {
        ranges.retain(|range| {
            range.start_us.is_none_or(|start| start <= last) && range.end_us.is_none_or(|end| end >= first)
        });
    }
    ranges.sort_by_key(|range| (range.start_us, std::cmp::Reverse(range.end_us.unwrap_or(i64::MAX))));
    ranges
}

/// Ranges of the same name nest: an end belongs to the last beginning that is still open.
fn paired(snapshot: &Snapshot, device: u32) -> Vec<Named> {
    let mut ranges: Vec<Named> = Vec::new();
    let mut open: BTreeMap<StrId, Vec<usize>> = BTreeMap::new();
    for annotation in snapshot.annotations.iter().filter(|annotation| annotation.device == device) {
        let name = annotation.name;
        if annotation.is_start {
            open.entry(name).or_default().push(ranges.len());
            ranges.push(Named { name, start_us: Some(annotation.time_us), end_us: None });
            continue;
        }
        match open.get_mut(&name).and_then(Vec::pop) {
            Some(range) => ranges[range].end_us = Some(annotation.time_us),
            None => ranges.push(Named { name, start_us: None, end_us: Some(annotation.time_us) }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use tidegauge_snapshot::model::{Annotation, ShapeId};

    use super::*;

    #[test]
    fn an_end_belongs_to_the_last_open_beginning_and_either_may_be_missing() {
        let mut snapshot = Snapshot::default();
        let (a, b) = (snapshot.strings.intern(b"a"), snapshot.strings.intern(b"b"));
        snapshot.annotations = [(b, false, 1), (a, true, 2), (a, true, 3), (a, false, 4), (b, true, 5)]
            .map(|(name, is_start, time_us)| Annotation {
                is_start,
                name,
                device: 0,
                time_us,
                shape: ShapeId::NONE,
            })
            .to_vec();
        let named = |name, start_us, end_us| Named { name, start_us, end_us };
        let expected = [
            named(b, None, Some(1)),
            named(a, Some(2), None),
            named(a, Some(3), Some(4)),
            named(b, Some(5), None),
        ];
        assert_eq!(paired(&snapshot, 0), expected);
        assert_eq!(paired(&snapshot, 1), []);
    }
}
