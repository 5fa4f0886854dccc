//! Named ranges that the program marked: both ends found for each other.

use std::collections::BTreeMap;

use crate::Snapshot;
use crate::model::StrId;

/// A named range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// Device that was current in the thread.
    pub device: u32,
    /// Its name.
    pub name: StrId,
    /// Unix epoch, microseconds; absent when it began before recording did.
    pub start_us: Option<i64>,
    /// Unix epoch, microseconds; absent when it had not ended.
    pub end_us: Option<i64>,
}

/// All ranges, in the order of their first ends. Ranges of the same name on one device nest: an end belongs to the last
/// beginning that is still open.
pub fn paired(snapshot: &Snapshot) -> Vec<Named> {
    let mut ranges: Vec<Named> = Vec::new();
    let mut open: BTreeMap<(u32, StrId), Vec<usize>> = BTreeMap::new();
    for annotation in &snapshot.annotations {
        let (device, name, time_us) = (annotation.device, annotation.name, annotation.time_us);
        let open = open.entry((device, name)).or_default();
        if annotation.is_start {
            open.push(ranges.len());
            ranges.push(Named { device, name, start_us: Some(time_us), end_us: None });
            continue;
        }
        match open.pop() {
            Some(range) => ranges[range].end_us = Some(time_us),
            None => ranges.push(Named { device, name, start_us: None, end_us: Some(time_us) }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use crate::model::{Annotation, ShapeId};

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
        let named = |name, start_us, end_us| Named { device: 0, name, start_us, end_us };
        let expected = [
            named(b, None, Some(1)),
            named(a, Some(2), None),
            named(a, Some(3), Some(4)),
            named(b, Some(5), None),
        ];
        assert_eq!(paired(&snapshot), expected);
    }
}
