//! Bands to pixels, and which allocation owns each pixel.

use super::{Bands, Index, View};
use crate::model::StackId;
use crate::replay::Replay;

/// Number of pixels that show the "other" band.
pub const ID_OTHER: u32 = u32::MAX - 1;
/// Number of pixels above the level.
pub const ID_NONE: u32 = u32::MAX;

/// A finished picture, top row first.
#[derive(Debug, Clone, PartialEq)]
pub struct Raster {
    /// Four bytes a pixel; alpha 0 above the level.
    pub rgba: Vec<u8>,
    /// The allocation that each pixel shows, or [`ID_OTHER`] or [`ID_NONE`].
    pub ids: Vec<u32>,
}

/// Colors told apart also with deuteranopia, after Okabe and Ito: each with a lighter variant, sixteen in all.
/// Which one a stack gets follows from its frames, so it is the same in every file and on every visit.
const COLORS: [[u8; 3]; 16] = [
    [0, 114, 178],
    [230, 159, 0],
    [0, 158, 115],
    [204, 121, 167],
    [86, 180, 233],
    [213, 94, 0],
    [150, 140, 60],
    [120, 94, 200],
    [64, 150, 204],
    [240, 188, 80],
    [70, 186, 152],
    [222, 162, 196],
    [134, 204, 242],
    [228, 140, 76],
    [184, 176, 110],
    [160, 140, 222],
];

/// Of allocations without a stack: neutral, told apart from "other" by being lighter.
const NO_STACK: [u8; 3] = [168, 172, 178];

/// The "other" band.
const OTHER: [u8; 3] = [120, 124, 130];

/// Columns painted before they are turned into rows: a cache line of 32-bit pixels.
const STRIP: usize = 16;

/// The color of each stack of a snapshot, as a number into the sixteen colors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Palette(Vec<u8>);

/// In a [`Palette`]: a stack without frames.
const COLORLESS: u8 = u8::MAX;

impl Palette {
    /// Colors for all stacks, from the texts of their innermost frames of the program.
    pub fn new(snapshot: &crate::Snapshot) -> Self {
        let strings = &snapshot.strings;
        let frame_hashes: Vec<u32> = snapshot
            .stacks
            .all_frames()
            .iter()
            .map(|frame| {
                let line = frame.known_line().unwrap_or(0).to_le_bytes();
                hash(&[file_name(strings.bytes(frame.filename)), strings.bytes(frame.name), &line])
            })
            .collect();
        let color = |stack: u32| {
            let frames = snapshot.stacks.frame_ids(StackId(stack));
            // Two stacks that differ only far out are the same place in the program to most readers, but the
            // innermost frame alone is often the same library function: six tell layers apart.
            let hashes = frames.iter().take(6).map(|frame| frame_hashes[*frame as usize]);
            let mixed = hashes.fold(0x811c_9dc5u32, |mixed, hash| (mixed ^ hash).wrapping_mul(0x0100_0193));
            if frames.is_empty() { COLORLESS } else { (mixed >> 16) as u8 % COLORS.len() as u8 }
        };
        Self((0..snapshot.stacks.len() as u32).map(color).collect())
    }

    /// Red, green and blue of a stack's allocations.
    pub fn color(&self, stack: StackId) -> [u8; 3] {
        let index = self.0.get(stack.0 as usize).copied().unwrap_or(COLORLESS);
        COLORS.get(usize::from(index)).copied().unwrap_or(NO_STACK)
    }

    pub(crate) fn indices(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn from_indices(indices: Vec<u8>) -> Self {
        Self(indices)
    }
}

/// Paths differ between machines; the last part of one does not.
fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| matches!(byte, b'/' | b'\\')).next().unwrap_or(path)
}

/// FNV-1a: stable across releases and machines, unlike the hashers of hash maps.
fn hash(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Pixels of one strip, bottom row first, column after column.
struct Strip {
    height: usize,
    pixels: Vec<[u8; 4]>,
    ids: Vec<u32>,
}

impl Raster {
    /// The picture of a view.
    pub fn draw(index: &Index, replay: &Replay, palette: &Palette, view: View) -> (Self, Bands) {
        let bands = index.bands(replay, view);
        let raster = Self::of(&bands, replay, palette);
        (raster, bands)
    }

    /// Fills the pixels of bands.
    pub fn of(bands: &Bands, replay: &Replay, palette: &Palette) -> Self {
        let (width, height) = (bands.view.width as usize, bands.view.height as usize);
        let mut raster = Self { rgba: vec![0; 4 * width * height], ids: vec![ID_NONE; width * height] };
        let mut strip =
            Strip { height, pixels: vec![[0; 4]; STRIP * height], ids: vec![ID_NONE; STRIP * height] };
        for first in (0..width).step_by(STRIP) {
            let n = STRIP.min(width - first);
            strip.pixels.fill([0; 4]);
            strip.ids.fill(ID_NONE);
            for column in 0..n {
                strip.paint(column, bands, first + column, replay, palette);
            }
            raster.copy(&strip, first, n, width);
        }
        raster
    }

    fn copy(&mut self, strip: &Strip, first: usize, n: usize, width: usize) {
        for row in 0..strip.height {
            let to = (strip.height - 1 - row) * width + first;
            for column in 0..n {
                let from = column * strip.height + row;
                self.ids[to + column] = strip.ids[from];
                self.rgba[4 * (to + column)..4 * (to + column) + 4].copy_from_slice(&strip.pixels[from]);
            }
        }
    }
}

impl Strip {
    fn paint(&mut self, at: usize, bands: &Bands, column: usize, replay: &Replay, palette: &Palette) {
        let pixels = &mut self.pixels[at * self.height..(at + 1) * self.height];
        let ids = &mut self.ids[at * self.height..(at + 1) * self.height];
        // Floats: a picture has half a million edges, and dividing 128-bit numbers in wasm took most of its time.
        // A level within one part in 2^53 of an edge may fall on either side, natively and in wasm alike.
        let rows_per_byte = self.height as f64 / bands.top as f64;
        let row_of = |level: u64| ((level as f64 * rows_per_byte) as usize).min(self.height);
        let mut level = 0u64;
        let mut row = 0;
        for band in bands.column(column) {
            level = level.saturating_add(band.size);
            let next = row_of(level);
            if next > row {
                let [r, g, b] = palette.color(replay.allocations.stack[band.allocation as usize]);
                pixels[row..next].fill([r, g, b, 255]);
                ids[row..next].fill(band.allocation);
                // A seam between neighbors of the same color, where there is room for it.
                if next - row > 3 {
                    pixels[next - 1] = [darker(r), darker(g), darker(b), 255];
                }
                row = next;
            }
        }
        let next = row_of(level.saturating_add(bands.other[column]));
        if next > row {
            let [r, g, b] = OTHER;
            pixels[row..next].fill([r, g, b, 255]);
            ids[row..next].fill(ID_OTHER);
        }
    }
}

fn darker(channel: u8) -> u8 {
    channel - channel / 5
}
