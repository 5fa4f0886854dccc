//! What an allocator was told: how it rounds, splits and grows.

/// Sizes are multiples of this, bytes.
const ROUND: u64 = 512;
/// Requests up to this, rounded, come from the small pool, bytes; what is left of a large block is split off when
/// it is more than this.
const SMALL: u64 = 1 << 20;
/// A segment of the small pool, and what an expandable one of it grows by, bytes.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests below this share a segment of [`LARGE_SEGMENT`], bytes.
const MIDDLE: u64 = 10 << 20;
/// A segment that several middle-sized blocks share, and what an expandable one grows by, bytes.
const LARGE_SEGMENT: u64 = 20 << 20;
/// Larger segments are multiples of this, bytes.
const ROUND_LARGE: u64 = 2 << 20;

/// The settings of an allocator, and the device it works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Bytes added to a request before it is rounded: 32 in torch_npu, else 0.
    pub padding: u64,
    /// `roundup_power2_divisions` by power of two, from 1 MiB to 32 GiB; 0 is off.
    pub divisions: [u64; 16],
    /// `max_split_size`, bytes: blocks from here on are neither split nor handed out for less.
    pub max_split: Option<u64>,
    /// `expandable_segments`.
    pub is_expandable: bool,
    /// Bytes of the device's memory.
    pub capacity: u64,
    /// Bytes of addresses an expandable segment reserves; a multiple of 20 MiB.
    pub reservation: u64,
    /// Bytes the driver leaves free between segments; 0 lets them touch.
    pub spacing: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            padding: 0,
            divisions: [0; 16],
            max_split: None,
            is_expandable: false,
            capacity: 80 << 30,
            reservation: 4096 * LARGE_SEGMENT,
            spacing: 2 << 20,
        }
    }
}

impl Rules {
    /// Bytes of the block for a request.
    pub fn round(&self, requested: u64) -> u64 {
        let size = requested + self.padding;
        let divisions = self.divisions[(size.max(SMALL).ilog2() - SMALL.ilog2()).min(15) as usize];
        if divisions > 1 && size > ROUND * divisions && !size.is_power_of_two() {
            let power = 1 << size.ilog2();
            return size.next_multiple_of(power >> divisions.ilog2());
        }
        size.next_multiple_of(ROUND).max(ROUND)
    }

    /// Whether a block of this size comes from the small pool.
    pub fn is_small(&self, size: u64) -> bool {
        size <= SMALL
    }

    /// Whether the rest of a free block becomes one of its own.
    pub fn splits(&self, size: u64, rest: u64, is_small: bool) -> bool {
        if is_small || self.is_expandable { rest >= ROUND } else { !self.is_oversize(size) && rest > SMALL }
    }

    /// Whether blocks of this size are kept whole.
    pub fn is_oversize(&self, size: u64) -> bool {
        self.max_split.is_some_and(|max_split| size >= max_split)
    }

    /// Whether a free block may be handed out for a request of `size`.
    pub fn may_serve(&self, block: u64, size: u64) -> bool {
        if self.is_oversize(size) { block < size + LARGE_SEGMENT } else { !self.is_oversize(block) }
    }

    /// Bytes of the segment that is taken for a block.
    pub fn segment(&self, size: u64) -> u64 {
        match size {
            _ if self.is_small(size) => SMALL_SEGMENT,
            ..MIDDLE => LARGE_SEGMENT,
            _ => size.next_multiple_of(ROUND_LARGE),
        }
    }

    /// Bytes an expandable segment is mapped by.
    pub fn page(&self, is_small: bool) -> u64 {
        if is_small { SMALL_SEGMENT } else { LARGE_SEGMENT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rounded_as_torch_and_torch_npu_do() {
        let (cuda, npu) = (Rules::default(), Rules { padding: 32, ..Rules::default() });
        assert_eq!([1, 512, 513].map(|n| cuda.round(n)), [512, 512, 1024]);
        assert_eq!([480, 481].map(|n| npu.round(n)), [512, 1024]);
        let divided = Rules { divisions: [4; 16], ..Rules::default() };
        assert_eq!([1200 << 20, 1 << 30, 3000].map(|n| divided.round(n)), [1280 << 20, 1 << 30, 3072]);
    }
}
