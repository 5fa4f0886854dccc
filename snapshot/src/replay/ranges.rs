//! Ranges of addresses: what is free inside segments, and what is mapped of expandable ones.

use std::collections::BTreeMap;

/// The segment number of all expandable memory: its free ranges merge wherever they touch.
pub(super) const EXPANDABLE: u32 = 1 << 31;

/// Free ranges, none touching another of the same segment.
#[derive(Default)]
pub(super) struct FreeRanges {
    /// Start → (end, segment).
    by_start: BTreeMap<u64, (u64, u32)>,
}

impl FreeRanges {
    /// Gives a range back and merges it with its neighbors in the same segment.
    pub(super) fn add(&mut self, mut start: u64, mut end: u64, segment: u32) {
        if start >= end {
            return;
        }
        if let Some((before, (before_end, before_segment))) = self.by_start.range(..start).next_back()
            && *before_end == start
            && *before_segment == segment
        {
            start = *before;
        }
        if let Some((after_end, after_segment)) = self.by_start.get(&end)
            && *after_segment == segment
        {
            let after = end;
            end = *after_end;
            self.by_start.remove(&after);
        }
        self.by_start.insert(start, (end, segment));
    }

    /// Takes out the whole range that covers an address.
    pub(super) fn take(&mut self, address: u64) -> Option<(u64, u64, u32)> {
        if let Some((end, segment)) = self.by_start.remove(&address) {
            return Some((address, end, segment));
        }
        let (start, (end, segment)) = self.by_start.range(..address).next_back()?;
        let (start, end, segment) = (*start, *end, *segment);
        if end <= address {
            return None;
        }
        self.by_start.remove(&start);
        Some((start, end, segment))
    }

    /// Puts the rest of a range back that [`Self::take`] took out: nothing touches it.
    pub(super) fn put_back(&mut self, start: u64, end: u64, segment: u32) {
        self.by_start.insert(start, (end, segment));
    }

    /// Forgets everything between two addresses: the memory is gone.
    pub(super) fn cut(&mut self, start: u64, end: u64) {
        if let Some((found, found_end, segment)) = self.take(start) {
            if found < start {
                self.by_start.insert(found, (start, segment));
            }
            if found_end > end {
                self.by_start.insert(end, (found_end, segment));
                return;
            }
        }
        while let Some((found, (found_end, segment))) = self.by_start.range(start..end).next() {
            let (found, found_end, segment) = (*found, *found_end, *segment);
            self.by_start.remove(&found);
            if found_end > end {
                self.by_start.insert(end, (found_end, segment));
            }
        }
    }
}

/// Mapped parts of expandable segments, merged where they touch.
#[derive(Default)]
pub(super) struct Mapped {
    by_start: BTreeMap<u64, u64>,
}

impl Mapped {
    pub(super) fn add(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        if let Some((before, before_end)) = self.by_start.range(..=start).next_back()
            && *before_end >= start
        {
            (start, end) = (*before, end.max(*before_end));
        }
        while let Some((after, after_end)) = self.by_start.range(start..=end).next() {
            let after = *after;
            end = end.max(*after_end);
            self.by_start.remove(&after);
        }
        self.by_start.insert(start, end);
    }

    pub(super) fn remove(&mut self, start: u64, end: u64) {
        let before = self.by_start.range(..start).next_back().filter(|(_, before_end)| **before_end > start);
        let mut from = before.map_or(start, |(before, _)| *before);
        while let Some((found, found_end)) = self.by_start.range(from..end).next() {
            let (found, found_end) = (*found, *found_end);
            self.by_start.remove(&found);
            if found < start {
                self.by_start.insert(found, start);
            }
            if found_end > end {
                self.by_start.insert(end, found_end);
            }
            from = start;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapping_the_middle_leaves_both_ends() {
        let mut mapped = Mapped::default();
        mapped.add(0, 10);
        mapped.add(10, 20);
        mapped.add(30, 40);
        mapped.remove(5, 35);
        assert_eq!(mapped.iter().collect::<Vec<_>>(), [(0, 5), (35, 40)]);
        mapped.remove(0, 100);
        assert_eq!(mapped.iter().count(), 0);
    }

    #[test]
    fn free_ranges_merge_inside_a_segment_and_not_across() {
        let mut free = FreeRanges::default();
        free.add(0, 10, 1);
        free.add(20, 30, 1);
        free.add(10, 20, 1);
        free.add(30, 40, 2);
        assert_eq!(free.take(15), Some((0, 30, 1)));
        assert_eq!(free.take(30), Some((30, 40, 2)));
        free.add(0, 30, 1);
        free.cut(10, 20);
        assert_eq!(free.take(0), Some((0, 10, 1)));
        assert_eq!(free.take(25), Some((20, 30, 1)));
        assert_eq!(free.take(15), None);
    }
}
