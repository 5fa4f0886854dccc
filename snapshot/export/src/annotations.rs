//! The annotations that belong to a part.

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::annotations::{Named, paired};

use crate::DevicePart;

/// The ranges of a device that touch its window, by their beginning. Times are all that ties annotations to
/// events: without them in the trace, every range counts.
pub(crate) fn within(snapshot: &Snapshot, device: &DevicePart<'_>) -> Vec<Named> {
    let time = |event: u32| snapshot.trace.time_us(device.trace_row(event));
    let mut ranges = paired(snapshot);
    ranges.retain(|range| range.device == device.origins.device.ordinal);
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
