//! Memory at one moment as rows of rectangles: a segment is a row, its blocks lie in it to scale.
//!
//! A block that is at least a pixel wide has a rectangle of its own; neighbors that are narrower share one, which
//! says how many they are. Rectangles of a row never overlap, leave nothing out and add up to its segment's bytes.

use super::MAX_SIDE;
use crate::model::BlockState;
use crate::replay::{BlockAt, NEVER, Replay, SegmentAt, StateAt};

/// Rows that are drawn: the largest segments. What the others hold, the answer sums up.
const MAX_ROWS: usize = 500;

/// Rectangles of a map. Where there would be more, blocks share one below two pixels, four pixels, and so on.
const MAX_RECTS: usize = 40_000;

/// In what order rows stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapOrder {
    /// The largest segment first.
    Largest,
    /// By address.
    Address,
}

/// How wide rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapScale {
    /// A byte is as wide in every row; the largest segment takes the whole width.
    Common,
    /// Every segment takes the whole width.
    Own,
}

/// What is asked of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapView {
    /// Pixels of a row.
    pub width: u32,
    /// How wide rows are.
    pub scale: MapScale,
    /// In what order they stand.
    pub order: MapOrder,
}

/// What a rectangle shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapKind {
    /// A free block.
    Free,
    /// A block in use.
    Allocated,
    /// A block that waits for another stream.
    Pending,
    /// Several blocks, each too small to draw.
    Several,
}

/// A rectangle of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRect {
    /// The row it lies in.
    pub row: u32,
    /// Its left edge, pixels.
    pub x: u32,
    /// Its width, pixels.
    pub width: u32,
    /// Of that, at its right end, what rounding added to the request.
    pub waste: u32,
    /// What it shows.
    pub kind: MapKind,
    /// The one allocation it shows; [`NEVER`] when that is none or several.
    pub allocation: u32,
    /// Blocks it shows.
    pub n_blocks: u32,
    /// Its first byte, from the beginning of the segment.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Of those, bytes that are not free.
    pub active: u64,
}

/// Where something lies on a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// The row.
    pub row: u32,
    /// Left edge, pixels.
    pub x: u32,
    /// Width, pixels; never zero.
    pub width: u32,
}

/// The rows and rectangles of one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Map {
    /// What was asked, inside its bounds.
    pub view: MapView,
    /// Rows of [`StateAt::segments`] that are drawn, from the top down.
    pub segments: Vec<usize>,
    /// By row, from left to right in each.
    pub rects: Vec<MapRect>,
    /// Pixels a block needs to have a rectangle of its own.
    pub grain: u32,
    /// Bytes of the largest segment, which is as wide as the map.
    largest: u64,
}

impl Map {
    /// The map of a moment.
    pub fn new(replay: &Replay, state: &StateAt, view: MapView) -> Self {
        let view = MapView { width: view.width.clamp(1, MAX_SIDE), ..view };
        let mut segments: Vec<usize> = (0..state.segments.len()).collect();
        segments.sort_by_key(|segment| std::cmp::Reverse(state.segments[*segment].size));
        segments.truncate(MAX_ROWS);
        let largest = segments.first().map_or(1, |segment| state.segments[*segment].size.max(1));
        if view.order == MapOrder::Address {
            segments.sort_unstable();
        }
        let mut map = Self { view, segments, rects: Vec::new(), grain: 1, largest };
        while !map.fill(replay, state) {
            map.grain *= 2;
        }
        map
    }

    /// Blocks that have no rectangle of their own.
    pub fn n_merged(&self) -> u64 {
        let merged = self.rects.iter().filter(|rect| rect.kind == MapKind::Several || rect.width == 0);
        merged.map(|rect| u64::from(rect.n_blocks)).sum()
    }

    /// Where an allocation lies, also where it shares a rectangle.
    pub fn spot(&self, state: &StateAt, allocation: u32) -> Option<Spot> {
        let at = state.blocks.iter().position(|block| block.allocation == Some(allocation))?;
        let row = self.segments.iter().position(|segment| state.segments[*segment].blocks.contains(&at))?;
        let (segment, block) = (&state.segments[self.segments[row]], state.blocks[at]);
        let edges = self.edges(segment);
        let x = edges.x(block.address - segment.address).min(self.view.width - 1);
        let end = edges.x(block.address - segment.address + block.size);
        Some(Spot { row: row as u32, x, width: end.saturating_sub(x).max(1) })
    }

    /// False when there are too many rectangles at this grain. One as coarse as the map is wide always does: it
    /// leaves two in a row at most.
    fn fill(&mut self, replay: &Replay, state: &StateAt) -> bool {
        self.rects.clear();
        for row in 0..self.segments.len() {
            let segment = &state.segments[self.segments[row]];
            let edges = self.edges(segment);
            let mut line = Line { row: row as u32, edges, grain: self.grain, rects: &mut self.rects };
            line.draw(replay, segment, state.blocks_of(segment));
            if self.rects.len() > MAX_RECTS && self.grain < self.view.width {
                return false;
            }
        }
        true
    }

    fn edges(&self, segment: &SegmentAt) -> Edges {
        let bytes = match self.view.scale {
            MapScale::Common => self.largest,
            MapScale::Own => segment.size.max(1),
        };
        Edges { pixels_per_byte: f64::from(self.view.width) / bytes as f64, width: self.view.width }
    }
}

/// Bytes of a segment to pixels of its row.
#[derive(Debug, Clone, Copy)]
struct Edges {
    pixels_per_byte: f64,
    width: u32,
}

impl Edges {
    /// Rounded, so that what is at least a pixel wide stays it.
    fn x(self, offset: u64) -> u32 {
        ((offset as f64 * self.pixels_per_byte).round() as u32).min(self.width)
    }
}

/// A row that is being drawn.
struct Line<'a> {
    row: u32,
    edges: Edges,
    grain: u32,
    rects: &'a mut Vec<MapRect>,
}

impl Line<'_> {
    fn draw(&mut self, replay: &Replay, segment: &SegmentAt, blocks: &[BlockAt]) {
        let first = self.rects.len();
        let mut small: Option<MapRect> = None;
        for block in blocks {
            let rect = self.rect(replay, segment, block);
            if rect.width >= self.grain {
                self.push(small.take(), first);
                self.rects.push(rect);
                continue;
            }
            let joined = small.map_or(rect, |small| joined(small, rect));
            small = if joined.width >= self.grain { self.push(Some(joined), first) } else { Some(joined) };
        }
        self.push(small, first);
    }

    /// Adds what was too small alone. Without any width it goes to a shared rectangle on its left; where there is
    /// none it stays without a width, so that the row adds up.
    fn push(&mut self, small: Option<MapRect>, first: usize) -> Option<MapRect> {
        let small = small?;
        match self.rects.get_mut(first..).and_then(<[MapRect]>::last_mut) {
            Some(left) if small.width == 0 && left.kind == MapKind::Several => *left = joined(*left, small),
            _ => self.rects.push(small),
        }
        None
    }

    fn rect(&self, replay: &Replay, segment: &SegmentAt, block: &BlockAt) -> MapRect {
        let offset = block.address - segment.address;
        let (x, end) = (self.edges.x(offset), self.edges.x(offset + block.size));
        let requested = block.allocation.map_or(block.size, |row| replay.allocations.requested[row as usize]);
        let kind = match block.state {
            BlockState::Inactive => MapKind::Free,
            BlockState::Allocated => MapKind::Allocated,
            BlockState::PendingFree => MapKind::Pending,
        };
        MapRect {
            row: self.row,
            x,
            width: end - x,
            waste: end - self.edges.x(offset + requested.min(block.size)),
            kind,
            allocation: block.allocation.unwrap_or(NEVER),
            n_blocks: 1,
            offset,
            bytes: block.size,
            active: if kind == MapKind::Free { 0 } else { block.size },
        }
    }
}

/// Two neighbors as one.
fn joined(left: MapRect, right: MapRect) -> MapRect {
    MapRect {
        width: right.x + right.width - left.x,
        waste: 0,
        kind: MapKind::Several,
        allocation: NEVER,
        n_blocks: left.n_blocks.saturating_add(right.n_blocks),
        bytes: left.bytes.saturating_add(right.bytes),
        active: left.active.saturating_add(right.active),
        ..left
    }
}
