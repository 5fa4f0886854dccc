//! What is alive in each pixel column, in stacking order.

use super::{Index, View};
use crate::replay::Replay;

/// The columns of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Bands {
    /// The view that was really used: inside the trace, `top` filled in.
    pub view: View,
    /// Bytes at the upper edge.
    pub top: u64,
    /// For each column the state it shows.
    pub states: Vec<u32>,
    /// Allocations smaller than this, bytes, are in `other`.
    pub smallest: u64,
    /// For each column one past its last band in [`Bands::bands`].
    pub ends: Vec<usize>,
    /// The bands of all columns, from the bottom up.
    pub bands: Vec<Band>,
    /// For each column the bytes of allocations too small to draw; they lie on top.
    pub other: Vec<u64>,
    /// Different allocations that were drawn.
    pub n_drawn: u32,
}

/// One allocation in one column, with what drawing asks of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Band {
    /// Row of [`crate::replay::Allocations`].
    pub allocation: u32,
    /// First state it is gone in.
    to: u32,
    /// Bytes.
    pub size: u64,
}

impl Bands {
    /// The bands of a column, from the bottom up.
    pub fn column(&self, column: usize) -> &[Band] {
        let from = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.bands[from..self.ends[column]]
    }
}

/// Allocations drawn in one column, about. Many small ones side by side still make a picture, in the colors of
/// those that fall on a pixel's edge; more than this only cost time.
const MAX_LIVE: usize = 2048;

/// Columns in which is counted how small an allocation can be and still be among [`MAX_LIVE`].
const N_SAMPLES: usize = 24;

/// Nothing smaller than this part of a pixel is drawn: its color would be a matter of chance.
const FINEST: u64 = 64;

/// Bytes above the highest level when the view leaves it open: 1/20 of it.
const HEADROOM: u64 = 20;

impl Index {
    /// The bands of a view. In each column they and `other` add up exactly to the active bytes of its state.
    pub fn bands(&self, replay: &Replay, view: View) -> Bands {
        let active = &replay.curves.active;
        let view = view.within(u32::try_from(active.len()).unwrap_or(u32::MAX));
        let states: Vec<u32> = (0..view.width)
            .map(|column| {
                let (from, to) = view.column(column);
                self.highest(active, from, to)
            })
            .collect();
        let highest = states.iter().map(|state| active[*state as usize]).max().unwrap_or(0);
        let top = view.top.unwrap_or(highest.saturating_add(highest / HEADROOM)).max(1);
        let finest = top / (FINEST * u64::from(view.height));
        let smallest = self.smallest(replay, &states).max(finest).max(1);
        let mut bands = Bands {
            view: View { top: Some(top), ..view },
            top,
            ends: Vec::with_capacity(states.len()),
            smallest,
            bands: Vec::new(),
            other: Vec::with_capacity(states.len()),
            n_drawn: 0,
            states,
        };
        self.fill(replay, &mut bands);
        bands
    }

    /// The size that leaves about [`MAX_LIVE`] allocations in the fullest of some columns.
    fn smallest(&self, replay: &Replay, states: &[u32]) -> u64 {
        let step = states.len().div_ceil(N_SAMPLES).max(1);
        states.iter().step_by(step).map(|state| self.smallest_at(replay, *state)).max().unwrap_or(0)
    }

    fn smallest_at(&self, replay: &Replay, state: u32) -> u64 {
        let allocations = &replay.allocations;
        let mut n_larger = 0;
        for class in self.classes() {
            let mut sizes = Vec::new();
            let until = class.n_begun(state, 0);
            class.alive_after(state, 0, until, &allocations.to, |row| {
                sizes.push(allocations.size[row as usize])
            });
            if n_larger + sizes.len() > MAX_LIVE {
                sizes.sort_unstable_by(|a, b| b.cmp(a));
                // One past what fits: of equal sizes either all are drawn or none.
                return sizes[MAX_LIVE - n_larger] + 1;
            }
            n_larger += sizes.len();
        }
        0
    }

    fn fill(&self, replay: &Replay, bands: &mut Bands) {
        let allocations = &replay.allocations;
        let smallest = bands.smallest;
        let classes = self.classes();
        let n_classes = classes.iter().take_while(|class| class.largest >= smallest).count();
        let mut begun = vec![0; n_classes];
        // Rows stand in order of their first state, so a stack in order of rows is one in order of allocation.
        let mut live: Vec<Band> = Vec::new();
        let mut fresh: Vec<u32> = Vec::new();
        let mut drawn = 0u64;
        for column in 0..bands.states.len() {
            let state = bands.states[column];
            live.retain(|band| {
                let stays = band.to > state;
                if !stays {
                    drawn = drawn.saturating_sub(band.size);
                }
                stays
            });
            fresh.clear();
            for (class, begun) in classes[..n_classes].iter().zip(&mut begun) {
                let until = class.n_begun(state, *begun);
                class.alive_after(state, *begun, until, &allocations.to, |row| {
                    if allocations.size[row as usize] >= smallest {
                        fresh.push(row);
                    }
                });
                *begun = until;
            }
            fresh.sort_unstable();
            bands.n_drawn += fresh.len() as u32;
            for allocation in &fresh {
                let row = *allocation as usize;
                let (to, size) = (allocations.to[row], allocations.size[row]);
                drawn = drawn.saturating_add(size);
                live.push(Band { allocation: *allocation, to, size });
            }
            bands.bands.extend_from_slice(&live);
            bands.ends.push(bands.bands.len());
            bands.other.push(replay.curves.active[state as usize].saturating_sub(drawn));
        }
    }
}
