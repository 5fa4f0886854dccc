//! Memory at the cursor: finding one's way among blocks, and what is said about them.

use std::ops::Range;

use tidegauge_api::memory::{Block, BlockKind, MemoryAnswer, OomAnswer, SegmentAnswer};

use crate::format::{bytes, count, counted, percent};

/// The rectangles of a picture, by row and from left to right in each.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Blocks(Vec<Block>);

/// Where a key leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// The block on the left; from a row's first to the last of the row above.
    Left,
    /// The block on the right.
    Right,
    /// The row above, at the same place.
    Up,
    /// The row below.
    Down,
}

impl Walk {
    /// What a key stands for. The arrows to the left and right move the cursor, here too.
    pub fn from_key(key: &str) -> Option<Self> {
        match key {
            "," | "<" => Some(Self::Left),
            "." | ">" => Some(Self::Right),
            "ArrowUp" => Some(Self::Up),
            "ArrowDown" => Some(Self::Down),
            _ => None,
        }
    }
}

impl Blocks {
    /// Rectangles from the numbers that travelled; none when they are of another build.
    pub fn from_numbers(cells: &[u32], sizes: &[f64]) -> Option<Self> {
        let pairs = cells.chunks(Block::N_CELLS).zip(sizes.chunks(Block::N_SIZES));
        pairs.map(|(cells, sizes)| Block::from_numbers(cells, sizes)).collect::<Option<_>>().map(Self)
    }

    /// All of them.
    pub fn all(&self) -> &[Block] {
        &self.0
    }

    /// The one with a number.
    pub fn get(&self, at: usize) -> Option<&Block> {
        self.0.get(at)
    }

    /// The numbers of those in some rows.
    pub fn in_rows(&self, rows: Range<u32>) -> Range<usize> {
        let before = |row: u32| self.0.partition_point(|block| block.row < row);
        before(rows.start)..before(rows.end)
    }

    /// The number of the one at a point.
    pub fn at(&self, row: u32, x: u32) -> Option<usize> {
        let mut in_row = self.in_rows(row..row.saturating_add(1));
        in_row.find(|at| (self.0[*at].x..self.0[*at].x + self.0[*at].width).contains(&x))
    }

    /// The number of the one that a step leads to; from nowhere, of the first. The last stays the last.
    pub fn walk(&self, from: Option<usize>, step: Walk) -> Option<usize> {
        let Some(at) = from.filter(|at| *at < self.0.len()) else { return (!self.0.is_empty()).then_some(0) };
        let block = self.0[at];
        let is_seen = |at: &usize| self.0[*at].width > 0;
        let there = match step {
            Walk::Left => (0..at).rev().find(is_seen),
            Walk::Right => (at + 1..self.0.len()).find(is_seen),
            Walk::Up => block.row.checked_sub(1).and_then(|row| self.nearest(row, block.x)),
            Walk::Down => self.nearest(block.row + 1, block.x),
        };
        there.or(Some(at))
    }

    /// The one at a place of a row or, where the row is shorter, its last.
    fn nearest(&self, row: u32, x: u32) -> Option<usize> {
        let in_row = self.in_rows(row..row.saturating_add(1));
        self.at(row, x).or_else(|| in_row.rev().find(|at| self.0[*at].width > 0))
    }
}

/// The line above the picture.
pub fn summary(memory: &MemoryAnswer) -> String {
    let total = &memory.total;
    if total.segments == 0 {
        return "No memory is reserved here".to_owned();
    }
    let free = total.size.saturating_sub(total.active);
    let mut parts = vec![
        format!("{}, {}", counted(total.segments, "segment", "segments"), bytes(total.size)),
        format!("{} in use", bytes(total.active)),
    ];
    if memory.pending > 0 {
        parts.push(format!("{} of it waits for another stream", bytes(memory.pending)));
    }
    if memory.waste > 0 {
        parts.push(format!("{} of it is rounding", bytes(memory.waste)));
    }
    match &memory.roomiest {
        Some(roomiest) => {
            parts.push(format!(
                "largest free range {} in {}",
                bytes(roomiest.largest_free),
                segment_name(roomiest)
            ));
            parts.push(format!("{} of the reserved memory is free", percent(free, total.size)));
        }
        None => parts.push("nothing in them is free".to_owned()),
    }
    parts.join("; ")
}

/// What the picture leaves out or puts together.
pub fn left_out(memory: &MemoryAnswer) -> Vec<String> {
    let mut said = Vec::new();
    if memory.n_merged > 0 {
        let than = if memory.grain == 1 { "a pixel".to_owned() } else { format!("{} pixels", memory.grain) };
        said.push(format!(
            "{} narrower than {than} {} drawn together",
            counted(memory.n_merged, "block", "blocks"),
            if memory.n_merged == 1 { "is" } else { "are" },
        ));
    }
    if memory.others.segments > 0 {
        said.push(format!(
            "{} with {} have no row: they are smaller",
            counted(memory.others.segments, "further segment", "further segments"),
            bytes(memory.others.size)
        ));
    }
    if memory.n_strays > 0 {
        said.push(format!(
            "{} in no segment of the file",
            counted(memory.n_strays, "allocation lies", "allocations lie")
        ));
    }
    if memory.question.pinned.is_some() && memory.pinned.is_none() {
        said.push("the selected allocation is not in memory here, or in a segment without a row".to_owned());
    }
    said
}

/// A segment by its address and, where that is not the default, its pool and stream.
pub fn segment_name(segment: &SegmentAnswer) -> String {
    match belonging(segment) {
        belonging if belonging.is_empty() => segment.address.clone(),
        belonging => format!("{} ({belonging})", segment.address),
    }
}

/// What a segment is apart from the usual: "graph 1, stream 2, expandable".
pub fn belonging(segment: &SegmentAnswer) -> String {
    let pool = segment.pool.clone().filter(|pool| pool != "default");
    let stream = segment.stream.as_ref().map(|_| format!("stream {}", segment.stream_number));
    let expandable = segment.is_expandable.then(|| "expandable".to_owned());
    pool.into_iter().chain(stream).chain(expandable).collect::<Vec<_>>().join(", ")
}

/// A segment's stream, for a table: "default", "1 (0x55d0)".
pub fn stream_name(segment: &SegmentAnswer) -> String {
    match &segment.stream {
        Some(handle) => format!("{} ({handle})", segment.stream_number),
        None => "default".to_owned(),
    }
}

/// One block: "512 MiB in use at 0x7f0000200000".
pub fn block_phrase(block: &Block, segment: &SegmentAnswer) -> String {
    let size = bytes(block.bytes);
    let address = address(segment, block.offset);
    match block.kind {
        BlockKind::Free => format!("{size} free at {address}"),
        BlockKind::Allocated => format!("{size} in use at {address}"),
        BlockKind::Pending => format!("{size} at {address}, freed and waiting for another stream"),
        BlockKind::Several => format!(
            "{} too small to draw from {address}: {size}, {} of it in use",
            counted(block.n_blocks.into(), "block", "blocks"),
            bytes(block.active)
        ),
    }
}

fn address(segment: &SegmentAnswer, offset: u64) -> String {
    let digits = segment.address.strip_prefix("0x").unwrap_or(&segment.address);
    match u64::from_str_radix(digits, 16) {
        Ok(first) => format!("{:#x}", first.saturating_add(offset)),
        Err(_) => format!("{} + {}", segment.address, count(offset)),
    }
}

/// Why a request could not be met, sentence by sentence.
pub fn out_of_memory(oom: &OomAnswer, memory: &MemoryAnswer) -> Vec<String> {
    let free = memory.total.size.saturating_sub(memory.total.active);
    let device = format!(
        "The program asked for {}, and the device had {} left",
        bytes(oom.asked),
        bytes(oom.device_free)
    );
    let inside = match &memory.roomiest {
        None => format!("PyTorch held {}, all of it in use", bytes(memory.total.size)),
        Some(roomiest) => format!(
            "PyTorch held {}, of which {} was free, the largest range {} in {}",
            bytes(memory.total.size),
            bytes(free),
            bytes(roomiest.largest_free),
            segment_name(roomiest)
        ),
    };
    let mut said = vec![device, inside];
    if oom.device_free >= oom.asked {
        said.insert(
            1,
            "That is more than was asked for, but memory is taken from the device in whole segments, which are \
             larger than small requests, and a process can have a limit of its own"
                .to_owned(),
        );
    }
    if memory.roomiest.as_ref().is_some_and(|roomiest| roomiest.largest_free >= oom.asked) {
        said.push(
            "That range is large enough but was not used: a request is met only from blocks of its own pool and stream"
                .to_owned(),
        );
    } else if free >= oom.asked {
        said.push("There was enough free memory in all, but in no range that is large enough".to_owned());
    }
    if memory.inactive_split > 0 {
        said.push(format!(
            "{} of the free memory shares its segments with blocks in use and cannot go back to the device",
            bytes(memory.inactive_split)
        ));
    }
    if memory.pending > 0 {
        said.push(format!("{} was freed but still waited for another stream", bytes(memory.pending)));
    }
    said
}

#[cfg(test)]
mod tests {
    use tidegauge_api::memory::{MemoryQuestion, Order, Scale, SegmentTotal};

    use super::*;

    fn block(row: u32, x: u32, width: u32) -> Block {
        Block {
            row,
            x,
            width,
            waste: 0,
            kind: BlockKind::Allocated,
            color: [0; 3],
            allocation: Some(x),
            n_blocks: 1,
            offset: 0x200,
            bytes: 1 << 20,
            active: 1 << 20,
        }
    }

    fn segment(largest_free: u64) -> SegmentAnswer {
        SegmentAnswer {
            address: "0x7f00".to_owned(),
            size: 20 << 20,
            active: 12 << 20,
            largest_free,
            pool: Some("graph 1".to_owned()),
            stream: None,
            stream_number: 0,
            is_expandable: false,
        }
    }

    fn memory() -> MemoryAnswer {
        MemoryAnswer {
            question: MemoryQuestion {
                device: 0,
                state: 9,
                width: 100,
                scale: Scale::Common,
                order: Order::Largest,
                pinned: None,
            },
            segments: vec![segment(6 << 20)],
            total: SegmentTotal { segments: 1, size: 20 << 20, active: 12 << 20 },
            others: SegmentTotal::default(),
            pending: 0,
            waste: 0,
            inactive_split: 8 << 20,
            roomiest: Some(segment(6 << 20)),
            n_merged: 0,
            grain: 1,
            n_strays: 0,
            pinned: None,
            oom: None,
        }
    }

    #[test]
    fn a_point_finds_its_block_and_a_key_the_next_one() {
        let blocks =
            Blocks(vec![block(0, 0, 10), block(0, 10, 30), block(1, 0, 0), block(1, 0, 5), block(2, 0, 40)]);
        assert_eq!(blocks.at(0, 9), Some(0));
        assert_eq!(blocks.at(0, 10), Some(1));
        assert_eq!(blocks.at(1, 0), Some(3));
        assert_eq!(blocks.at(1, 5), None);
        assert_eq!(blocks.in_rows(1..3), 2..5);
        assert_eq!(blocks.walk(None, Walk::Down), Some(0));
        assert_eq!(blocks.walk(Some(1), Walk::Right), Some(3), "one without a width is passed over");
        assert_eq!(blocks.walk(Some(3), Walk::Left), Some(1));
        assert_eq!(blocks.walk(Some(1), Walk::Down), Some(3), "the row is shorter");
        assert_eq!(blocks.walk(Some(4), Walk::Down), Some(4));
        assert_eq!(blocks.walk(Some(0), Walk::Up), Some(0));
        assert_eq!(blocks.walk(Some(99), Walk::Up), Some(0), "a block of an earlier picture");
        assert_eq!(Blocks::default().walk(None, Walk::Right), None);
    }

    #[test]
    fn the_line_says_what_is_held_used_and_free() {
        assert_eq!(
            summary(&memory()),
            "1 segment, 20.0 MiB; 12.0 MiB in use; largest free range 6.00 MiB in 0x7f00 (graph 1); 40 % of the reserved memory is free"
        );
        let full = MemoryAnswer { roomiest: None, pending: 1 << 20, waste: 512, ..memory() };
        assert_eq!(
            summary(&full),
            "1 segment, 20.0 MiB; 12.0 MiB in use; 1.00 MiB of it waits for another stream; 512 B of it is rounding; nothing in them is free"
        );
        let none = MemoryAnswer { total: SegmentTotal::default(), roomiest: None, ..memory() };
        assert_eq!(summary(&none), "No memory is reserved here");
    }

    #[test]
    fn a_segment_is_named_by_what_is_unusual_about_it() {
        let plain = segment(0);
        let segment = SegmentAnswer {
            pool: Some("default".to_owned()),
            stream: Some("0x55d0".to_owned()),
            stream_number: 2,
            is_expandable: true,
            ..plain.clone()
        };
        assert_eq!(segment_name(&segment), "0x7f00 (stream 2, expandable)");
        assert_eq!(stream_name(&segment), "2 (0x55d0)");
        assert_eq!(stream_name(&plain), "default");
    }

    #[test]
    fn what_is_left_out_is_said() {
        assert!(left_out(&memory()).is_empty());
        let crowded = MemoryAnswer {
            n_merged: 1_200,
            grain: 2,
            others: SegmentTotal { segments: 3, size: 6 << 20, active: 0 },
            ..memory()
        };
        assert_eq!(
            left_out(&crowded),
            [
                "1,200 blocks narrower than 2 pixels are drawn together",
                "3 further segments with 6.00 MiB have no row: they are smaller"
            ]
        );
    }

    #[test]
    fn a_block_says_what_it_is_and_where() {
        let told = |kind| block_phrase(&Block { kind, n_blocks: 4, ..block(0, 0, 1) }, &segment(0));
        assert_eq!(told(BlockKind::Free), "1.00 MiB free at 0x8100");
        assert_eq!(told(BlockKind::Allocated), "1.00 MiB in use at 0x8100");
        assert_eq!(
            told(BlockKind::Several),
            "4 blocks too small to draw from 0x8100: 1.00 MiB, 1.00 MiB of it in use"
        );
    }

    #[test]
    fn running_out_is_explained_by_what_stood_in_the_way() {
        let oom = |asked| OomAnswer { asked, device_free: 1 << 20 };
        let told = out_of_memory(&oom(7 << 20), &memory());
        assert_eq!(told[0], "The program asked for 7.00 MiB, and the device had 1.00 MiB left");
        assert_eq!(told[2], "There was enough free memory in all, but in no range that is large enough");
        assert!(told[3].starts_with("8.00 MiB of the free memory shares"), "{told:?}");
        let other = out_of_memory(&oom(5 << 20), &memory());
        assert!(other[2].contains("of its own pool and stream"), "{other:?}");
        let small = out_of_memory(&oom(1 << 19), &memory());
        assert!(small[1].starts_with("That is more than was asked for"), "{small:?}");
        let large = out_of_memory(&oom(64 << 20), &memory());
        assert!(large[2].starts_with("8.00 MiB of the free"), "{large:?}");
    }
}
