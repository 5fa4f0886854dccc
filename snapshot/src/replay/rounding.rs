//! How many bytes a request really occupies.

use crate::Snapshot;
use crate::model::Value;

/// Sizes are multiples of this: `kMinBlockSize`.
const MIN_BLOCK: u64 = 512;

/// Requests up to this come from small segments: `kSmallSize`.
pub(super) const SMALL_SIZE: u64 = 1 << 20;

/// torch_npu adds this to a request before rounding it.
const NPU_PADDING: u64 = 32;

/// The allocator's rules for rounding and splitting, from the settings in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rounding {
    /// Bytes added to a request before rounding: 0, or 32 on NPU.
    pub padding: u64,
    /// `roundup_power2_divisions`, by the power of two from 1 MiB on; 0 is off.
    divisions: [u64; 16],
    /// `max_split_size`: larger free ranges are handed out whole.
    max_split: u64,
    /// `expandable_segments`: everything is split as in small segments.
    is_expandable: bool,
    /// Pinned host memory: a block is always a whole segment.
    is_whole: bool,
    /// What torch.profiler recorded: sizes are what they are, and any rest is free.
    is_exact: bool,
}

impl Rounding {
    /// The rules of the allocator that wrote this snapshot.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut divisions = [0; 16];
        if let Some(setting) = snapshot.setting("roundup_power2_divisions") {
            for (power, slot) in divisions.iter_mut().enumerate() {
                *slot = setting.entry(&(1u32 << power).to_string()).and_then(Value::as_u64).unwrap_or(0);
            }
        }
        let max_split = snapshot.setting("max_split_size").and_then(Value::as_u64).unwrap_or(u64::MAX);
        let is_expandable = snapshot.setting("expandable_segments") == Some(&Value::Bool(true));
        let padding = if snapshot.producer == "torch_npu" { NPU_PADDING } else { 0 };
        let is_exact = snapshot.producer == "torch.profiler";
        Self { padding, divisions, max_split, is_expandable, is_whole: false, is_exact }
    }

    /// The rules of the allocator of pinned host memory: every block is a segment of its own.
    pub(super) fn whole_segments() -> Self {
        Self {
            padding: 0,
            divisions: [0; 16],
            max_split: u64::MAX,
            is_expandable: false,
            is_whole: true,
            is_exact: false,
        }
    }

    /// The same rules with NPU's padding switched.
    pub(super) fn other_padding(&self) -> Self {
        Self { padding: NPU_PADDING - self.padding, ..self.clone() }
    }

    /// Bytes of the block for a request (`round_size`).
    pub(super) fn round(&self, requested: u64) -> u64 {
        if self.is_exact {
            return requested.max(1);
        }
        let size = requested.saturating_add(self.padding);
        if size < MIN_BLOCK {
            return MIN_BLOCK;
        }
        // The table begins at 1 MiB; smaller sizes share its first entry.
        let power = size.ilog2().saturating_sub(SMALL_SIZE.ilog2()).min(15);
        let divisions = self.divisions[power as usize];
        if divisions > 1 && size > MIN_BLOCK.saturating_mul(divisions) {
            return round_to_division(size, divisions);
        }
        size.div_ceil(MIN_BLOCK).saturating_mul(MIN_BLOCK)
    }

    /// Whether a block of this size comes from small segments.
    pub(super) fn is_small(&self, rounded: u64) -> bool {
        rounded <= SMALL_SIZE
    }

    /// The smallest rest of a free block that is split off; with none, a block is always handed out whole
    /// (`should_split`).
    pub(super) fn smallest_rest(&self, rounded: u64, in_expandable: bool) -> Option<u64> {
        if self.is_whole {
            None
        } else if self.is_exact {
            Some(1)
        } else if self.is_small(rounded) || in_expandable || self.is_expandable {
            Some(MIN_BLOCK)
        } else {
            (rounded < self.max_split).then_some(SMALL_SIZE + 1)
        }
    }
}

/// The next size that divides the power of two below evenly (`roundup_power2_next_division`).
fn round_to_division(size: u64, divisions: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let floor = 1u64 << size.ilog2();
    let step = floor >> divisions.ilog2();
    if step == 0 {
        return floor.saturating_mul(2);
    }
    size.div_ceil(step).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounding(padding: u64, divisions: u64) -> Rounding {
        Rounding {
            padding,
            divisions: [divisions; 16],
            max_split: u64::MAX,
            is_expandable: false,
            is_whole: false,
            is_exact: false,
        }
    }

    #[test]
    fn a_request_is_rounded_up_to_512_bytes_and_on_npu_after_adding_32() {
        let (cuda, npu) = (rounding(0, 0), rounding(32, 0));
        assert_eq!([0, 1, 512, 513].map(|n| cuda.round(n)), [512, 512, 512, 1024]);
        assert_eq!([1, 480, 481, 512].map(|n| npu.round(n)), [512, 512, 1024, 1024]);
    }

    #[test]
    fn four_divisions_round_1200_mib_to_1280() {
        // The example in torch's notes on roundup_power2_divisions: 1200 lies between 1024 and 2048.
        let mib = 1 << 20;
        assert_eq!(rounding(0, 4).round(1200 * mib), 1280 * mib);
        assert_eq!(rounding(0, 4).round(1024 * mib), 1024 * mib);
    }
}
