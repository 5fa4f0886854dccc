//! Segments and blocks at the end of a window.

use std::ops::Range;

use tidegauge_snapshot::model::{BlockState, StackId, StrId};
use tidegauge_snapshot::replay::NEVER;

use crate::DevicePart;

/// Segments and blocks of one device at one moment.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) segments: Vec<Segment>,
    /// Those of a segment stand together, by address.
    pub(crate) blocks: Vec<Block>,
}

/// A segment, or a contiguous mapped range of an expandable one.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Raw handle.
    pub(crate) stream: Option<u64>,
    pub(crate) kind: Option<StrId>,
    pub(crate) pool: Option<(u64, u64)>,
    pub(crate) is_expandable: bool,
    pub(crate) stack: StackId,
    /// Its rows in [`Memory::blocks`].
    pub(crate) blocks: Range<usize>,
}

/// A block, free or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Absent for inactive blocks: the file still names there what the last one in it asked for.
    pub(crate) requested: Option<u64>,
    pub(crate) state: BlockState,
    pub(crate) stack: StackId,
    /// Row of [`Memory::segments`].
    pub(crate) segment: usize,
}

impl Memory {
    /// What the file says of the end; of any other moment, what the replay does.
    pub(crate) fn of(device: &DevicePart<'_>) -> Self {
        if device.is_to_the_end() { Self::in_the_file(device) } else { Self::replayed(device) }
    }

    fn in_the_file(device: &DevicePart<'_>) -> Self {
        let snapshot = device.origins.snapshot;
        let (segments, blocks) = (&snapshot.segments, &snapshot.blocks);
        let mut memory = Self::default();
        for row in device.origins.device.segments.clone() {
            let first = memory.blocks.len();
            let segment = memory.segments.len();
            memory.blocks.extend(segments.blocks[row].clone().map(|block| {
                let block = block as usize;
                let state = blocks.state[block];
                Block {
                    address: blocks.address[block],
                    size: blocks.size[block],
                    requested: (state != BlockState::Inactive).then_some(blocks.requested[block]),
                    state,
                    stack: blocks.stack[block],
                    segment,
                }
            }));
            memory.segments.push(Segment {
                address: segments.address[row],
                size: segments.total_size[row],
                stream: snapshot.streams.get(segments.stream[row] as usize).copied(),
                kind: Some(segments.kind[row]),
                pool: Some(segments.pool[row]),
                is_expandable: segments.is_expandable[row],
                stack: segments.stack[row],
                blocks: first..memory.blocks.len(),
            });
        }
        memory
    }

    fn replayed(device: &DevicePart<'_>) -> Self {
        let snapshot = device.origins.snapshot;
        let replay = device.origins.replay;
        let (reservations, allocations) = (&replay.reservations, &replay.allocations);
        let found = replay.state_at(device.events.end);
        let mut memory = Self::default();
        for (number, segment) in found.segments.into_iter().enumerate() {
            let row = segment.reservation as usize;
            // Small or large is only said of segments that are there at the end.
            let at_end = Some(reservations.segment[row]).filter(|segment| *segment != NEVER);
            memory.blocks.extend(found.blocks[segment.blocks.clone()].iter().map(|block| {
                let allocation = block.allocation.map(|row| row as usize);
                Block {
                    address: block.address,
                    size: block.size,
                    requested: allocation.map(|row| allocations.requested[row]),
                    state: block.state,
                    stack: allocation.map_or(StackId::NONE, |row| allocations.stack[row]),
                    segment: number,
                }
            }));
            memory.segments.push(Segment {
                address: segment.address,
                size: segment.size,
                stream: snapshot.streams.get(reservations.stream[row] as usize).copied(),
                kind: at_end.map(|segment| snapshot.segments.kind[segment as usize]),
                pool: reservations.pool[row],
                is_expandable: reservations.is_expandable[row],
                stack: reservations.stack[row],
                blocks: segment.blocks,
            });
        }
        memory
    }
}
