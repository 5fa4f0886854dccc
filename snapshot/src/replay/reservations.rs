//! Memory taken from the device: every segment's life, and what is mapped of expandable ones.

use std::collections::BTreeMap;

use super::NEVER;
use super::head::Area;
use crate::model::StackId;

/// One row per life of a segment, or of a mapped piece of an expandable one, in order of [`Reservations::from`]. A
/// piece of which a part is unmapped ends there; what is left of it goes on as rows of its own.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Reservations {
    /// First byte.
    pub address: Vec<u64>,
    /// Bytes.
    pub size: Vec<u64>,
    /// First state it is there in; 0 when it is older than the trace.
    pub from: Vec<u32>,
    /// First state it is gone in; [`NEVER`] when it outlives the trace.
    pub to: Vec<u32>,
    /// Row of [`crate::Snapshot::streams`].
    pub stream: Vec<u32>,
    /// Pool, where the event or the segment at the end says it.
    pub pool: Vec<Option<(u64, u64)>>,
    /// True of pieces of an expandable segment.
    pub is_expandable: Vec<bool>,
    /// Where it was taken.
    pub stack: Vec<StackId>,
    /// Row of [`crate::model::Segments`] it is part of at the end; [`NEVER`] when it is gone by then.
    pub segment: Vec<u32>,
}

impl Reservations {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.address.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.address.is_empty()
    }

    /// The pool of a row, if it is known.
    pub fn pool(&self, row: u32) -> Option<(u64, u64)> {
        self.pool.get(row as usize).copied().flatten()
    }

    fn push(&mut self, area: Area, from: u32) -> u32 {
        self.address.push(area.address);
        self.size.push(area.size);
        self.from.push(from);
        self.to.push(NEVER);
        self.stream.push(area.stream);
        self.pool.push(area.pool);
        self.is_expandable.push(area.is_expandable);
        self.stack.push(area.stack);
        self.segment.push(NEVER);
        self.len() as u32 - 1
    }

    fn area(&self, row: usize) -> Area {
        Area {
            address: self.address[row],
            size: self.size[row],
            is_expandable: self.is_expandable[row],
            stream: self.stream[row],
            pool: self.pool[row],
            stack: self.stack[row],
        }
    }
}

/// Reservations while the trace goes on.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) rows: Reservations,
    /// Rows that are there now, by first byte.
    open: BTreeMap<u64, u32>,
}

impl Ledger {
    /// Adds one that is there from a state on.
    pub(super) fn open(&mut self, area: Area, from: u32) -> u32 {
        let row = self.rows.push(area, from);
        self.open.insert(area.address, row);
        row
    }

    /// Bytes of the one that begins at an address now.
    pub(super) fn size_at(&self, address: u64) -> Option<u64> {
        self.open.get(&address).map(|row| self.rows.size[*row as usize])
    }

    /// Ends what is there between two addresses. What sticks out goes on as a new row.
    pub(super) fn close_range(&mut self, start: u64, end: u64, state: u32) {
        for row in self.rows_between(start, end) {
            let area = self.rows.area(row);
            self.open.remove(&area.address);
            self.rows.to[row] = state;
            let area_end = area.address.saturating_add(area.size);
            if area.address < start {
                self.open(Area { size: start - area.address, ..area }, state);
            }
            if area_end > end {
                self.open(Area { address: end, size: area_end - end, ..area }, state);
            }
        }
    }

    /// Says which segment of the snapshot what lies there now is part of.
    pub(super) fn name(&mut self, address: u64, size: u64, pool: (u64, u64), segment: u32) {
        for row in self.rows_between(address, address.saturating_add(size)) {
            self.rows.segment[row] = segment;
            self.rows.pool[row].get_or_insert(pool);
        }
    }

    /// Rows that are there now and overlap a range.
    fn rows_between(&self, start: u64, end: u64) -> Vec<usize> {
        let before = self.open.range(..start).next_back().map(|(_, row)| *row as usize);
        let before =
            before.filter(|row| self.rows.address[*row].saturating_add(self.rows.size[*row]) > start);
        let inside = if start < end { Some(self.open.range(start..end)) } else { None };
        before.into_iter().chain(inside.into_iter().flatten().map(|(_, row)| *row as usize)).collect()
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
        while from < end
            && let Some((found, found_end)) = self.by_start.range(from..end).next()
        {
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
    fn a_piece_of_which_the_middle_is_unmapped_goes_on_as_two() {
        let mut ledger = Ledger::default();
        let area = Area {
            address: 100,
            size: 50,
            is_expandable: true,
            stream: 3,
            pool: Some((0, 1)),
            stack: StackId::NONE,
        };
        ledger.open(area, 0);
        ledger.close_range(110, 120, 7);
        assert_eq!(ledger.rows.to, [7, NEVER, NEVER]);
        assert_eq!((ledger.rows.address[1], ledger.rows.size[1]), (100, 10));
        assert_eq!((ledger.rows.address[2], ledger.rows.size[2]), (120, 30));
        ledger.name(100, 50, (0, 1), 4);
        assert_eq!(ledger.rows.segment, [NEVER, 4, 4]);
    }
}
