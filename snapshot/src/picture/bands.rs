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
    /// For each column one past its last band in [`Bands::bands`].
    pub ends: Vec<usize>,
    /// The bands of all columns, from the bottom up.
    pub bands: Vec<Band>,
    /// For each column the bytes of allocations too small to draw; they lie on top.
    pub other: Vec<u64>,
    /// Different allocations that were drawn.
    pub n_drawn: u32,
}

/// One allocation in one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Band {
    /// Row of [`crate::replay::Allocations`].
    pub allocation: u32,
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
        // Half a pixel.
        let smallest = top / (2 * u64::from(view.height));
        let mut bands = Bands {
            view: View { top: Some(top), ..view },
            top,
            ends: Vec::with_capacity(states.len()),
            bands: Vec::new(),
            other: Vec::with_capacity(states.len()),
            n_drawn: 0,
            states,
        };
        self.fill(replay, smallest.max(1), &mut bands);
        bands
    }

    fn fill(&self, replay: &Replay, smallest: u64, bands: &mut Bands) {
        let allocations = &replay.allocations;
        let classes = self.classes();
        let n_classes = classes.iter().take_while(|class| class.largest >= smallest).count();
        let mut begun = vec![0; n_classes];
        // Rows stand in order of their first state, so a stack in order of rows is one in order of allocation.
        let mut live: Vec<Band> = Vec::new();
        let mut fresh: Vec<u32> = Vec::new();
        for column in 0..bands.states.len() {
            let state = bands.states[column];
            live.retain(|band| allocations.to[band.allocation as usize] > state);
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
            live.extend(
                fresh.iter().map(|row| Band { allocation: *row, size: allocations.size[*row as usize] }),
            );
            let drawn: u64 = live.iter().fold(0, |sum, band| sum.saturating_add(band.size));
            bands.bands.extend_from_slice(&live);
            bands.ends.push(bands.bands.len());
            bands.other.push(replay.curves.active[state as usize].saturating_sub(drawn));
        }
    }
}
