//! How usable the free memory is, at every state.

use std::collections::BTreeMap;

use super::heap::Watch;
use super::replay_watched;
use crate::Snapshot;
use crate::model::Device;

/// What the four levels do not tell of a state; one entry per state.
///
/// The rest follows from [`super::Curves`]: rounding waste is `active - requested`, memory that waits for another
/// stream is `active - allocated`, free memory inside segments is `reserved - active`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Fragmentation {
    /// Bytes of the largest free block: the largest request of its pool and stream that needs no new segment.
    pub largest_free: Vec<u64>,
    /// Bytes of free blocks that share their segment with others: `inactive_split_bytes` of
    /// `torch.cuda.memory_stats()`. Blocks of expandable segments do not count, as in torch.
    pub inactive_split: Vec<u64>,
}

/// Replays a device and follows its free blocks.
pub fn fragmentation(snapshot: &Snapshot, device: &Device) -> Fragmentation {
    replay_watched(snapshot, device, Seen::default).1.found
}

#[derive(Default)]
struct Seen {
    /// How many free blocks there are of each size.
    free: BTreeMap<u64, u32>,
    split: u64,
    found: Fragmentation,
}

impl Watch for Seen {
    fn added(&mut self, size: u64, is_split: bool) {
        *self.free.entry(size).or_default() += 1;
        if is_split {
            self.split = self.split.saturating_add(size);
        }
    }

    fn removed(&mut self, size: u64, is_split: bool) {
        if let Some(n) = self.free.get_mut(&size) {
            *n -= 1;
            if *n == 0 {
                self.free.remove(&size);
            }
        }
        if is_split {
            self.split = self.split.saturating_sub(size);
        }
    }

    fn state(&mut self) {
        self.found.largest_free.push(self.free.last_key_value().map_or(0, |(size, _)| *size));
        self.found.inactive_split.push(self.split);
    }
}
