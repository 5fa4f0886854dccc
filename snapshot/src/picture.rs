//! The stacked picture of memory over time: which allocation lies where in each pixel column.
//!
//! The x axis is the state index, the y axis bytes; allocations lie on one another in the order they were made.
//! Drawing every life of a block as a polygon costs over a hundred corners each, since every free moves all
//! that lies above. Instead each pixel column is a sample ([`index`]): it shows the state in it with the most
//! active bytes, so that no peak vanishes, and stacks what is alive there ([`bands`]). Beyond some two thousand in a
//! column, the smallest allocations are summed up in one exact "other" band. [`raster`] fills pixels, and for each the number of the
//! allocation it shows.
//!
//! The other picture is of one moment, its segments as rows and in them their blocks ([`Map`]).

mod index;
mod bands;
mod raster;
mod map;

pub use bands::{Band, Bands};
pub use index::Index;
pub use map::{Map, MapKind, MapOrder, MapRect, MapScale, MapView, Spot};
pub use raster::{ID_NONE, ID_OTHER, Palette, Raster};

/// A window onto a trace, and the pixels to fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// First state.
    pub from: u32,
    /// One past the last state.
    pub to: u32,
    /// Pixel columns.
    pub width: u32,
    /// Pixel rows.
    pub height: u32,
    /// Bytes at the upper edge; `None` leaves 5 % above the highest level in the window.
    pub top: Option<u64>,
}

/// Neither side of a picture is larger than this many pixels.
pub const MAX_SIDE: u32 = 16_384;

impl View {
    /// This view, inside a trace of so many states, with at least one state and one pixel.
    pub(crate) fn within(self, n_states: u32) -> Self {
        let from = self.from.min(n_states.saturating_sub(1));
        Self {
            from,
            to: self.to.clamp(from + 1, n_states.max(from + 1)),
            width: self.width.clamp(1, MAX_SIDE),
            height: self.height.clamp(1, MAX_SIDE),
            top: self.top,
        }
    }

    /// The states of a pixel column: at least one, also when columns outnumber states.
    pub(crate) fn column(&self, column: u32) -> (u32, u32) {
        let span = u64::from(self.to - self.from);
        let at = |column: u64| self.from + (span * column / u64::from(self.width)) as u32;
        let from = at(u64::from(column)).min(self.to - 1);
        (from, at(u64::from(column) + 1).clamp(from + 1, self.to))
    }
}
