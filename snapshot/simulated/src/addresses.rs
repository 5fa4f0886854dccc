//! The addresses a driver gives out: the lowest hole that is large enough, so that addresses come again.

use std::collections::BTreeMap;

/// Where the simulated device's memory begins.
const FIRST: u64 = 0x7f00_0000_0000;

/// What a driver aligns to, bytes.
const ALIGNMENT: u64 = 2 << 20;

/// Ranges that are taken: start → end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Addresses(BTreeMap<u64, u64>);

impl Addresses {
    /// Takes the lowest hole with room for `size` bytes, leaving at least `spacing` bytes on both sides.
    pub(crate) fn take(&mut self, size: u64, spacing: u64) -> u64 {
        let mut at = FIRST;
        for (start, end) in &self.0 {
            if at + size + spacing <= *start {
                break;
            }
            at = (end + spacing).next_multiple_of(ALIGNMENT);
        }
        self.0.insert(at, at + size);
        at
    }

    /// Gives back what [`Self::take`] gave.
    pub(crate) fn give_back(&mut self, start: u64) {
        self.0.remove(&start).expect("only what was taken is given back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_used_again_and_neighbors_touch_only_where_asked() {
        let mut addresses = Addresses::default();
        let [a, b, c] = [0; 3].map(|spacing| addresses.take(ALIGNMENT, spacing));
        assert_eq!((b, c), (a + ALIGNMENT, b + ALIGNMENT));
        addresses.give_back(b);
        assert_eq!(addresses.take(2 * ALIGNMENT, 0), c + ALIGNMENT);
        assert_eq!(addresses.take(ALIGNMENT, ALIGNMENT), c + 4 * ALIGNMENT);
        assert_eq!(addresses.take(ALIGNMENT, 0), b);
    }
}
