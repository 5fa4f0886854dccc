//! Finds, for any window, the highest state in each column and the allocations alive there.

use crate::replay::{NEVER, Replay};

/// Ends per block of a class; a leaf of its tree.
const LEAF: usize = 16;

/// States per entry of the lowest level of the mipmap, and entries per entry of the next.
const FAN: usize = 8;

/// What a picture of a replay needs to be quick. Built once, in time proportional to the trace.
#[derive(Debug)]
pub struct Index {
    /// Allocations by the power of two of their size, largest first.
    classes: Vec<Class>,
    /// Level `l` holds the highest state of each `8^(l+1)` states.
    mipmap: Vec<Vec<u32>>,
}

/// Allocations of about one size.
#[derive(Debug)]
pub(super) struct Class {
    /// No allocation in it is larger than this.
    pub(super) largest: u64,
    /// Rows by first state.
    rows: Vec<u32>,
    from: Vec<u32>,
    /// Binary tree over blocks of rows: the latest end below each node.
    latest_end: Vec<u32>,
    n_leaves: usize,
}

impl Index {
    /// Indexes a replay.
    pub fn new(replay: &Replay) -> Self {
        let allocations = &replay.allocations;
        let mut by_power: Vec<Vec<u32>> = vec![Vec::new(); 65];
        for (row, size) in (0..).zip(&allocations.size) {
            by_power[(u64::BITS - size.leading_zeros()) as usize].push(row);
        }
        let classes = by_power
            .into_iter()
            .enumerate()
            .rev()
            .filter(|(power, rows)| *power > 0 && !rows.is_empty())
            .map(|(_, rows)| Class::new(rows, replay))
            .collect();
        Self { classes, mipmap: mipmap(&replay.curves.active) }
    }

    /// Rows of the allocations that are alive at a state, in order of allocation.
    pub fn alive_at(&self, replay: &Replay, state: u32) -> Vec<u32> {
        let mut alive = Vec::new();
        for class in &self.classes {
            class.alive_after(state, 0, class.n_begun(state, 0), &replay.allocations.to, |row| {
                alive.push(row)
            });
        }
        alive.sort_unstable();
        alive
    }

    pub(super) fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The first state in `from..to` with the most active bytes.
    pub(super) fn highest(&self, active: &[u64], from: u32, to: u32) -> u32 {
        let (mut at, to) = (from as usize, to as usize);
        let mut best = at;
        while at < to {
            // The largest aligned group that begins here and fits.
            let mut found = None;
            let mut span = FAN;
            for level in &self.mipmap {
                if !at.is_multiple_of(span) || at + span > to {
                    break;
                }
                found = Some((level[at / span] as usize, span));
                span *= FAN;
            }
            let (candidate, span) = found.unwrap_or((at, 1));
            if active[candidate] > active[best] {
                best = candidate;
            }
            at += span;
        }
        best as u32
    }
}

fn mipmap(active: &[u64]) -> Vec<Vec<u32>> {
    let highest = |group: &[u32]| {
        // The first of equals: columns of one level then show the same state at any zoom.
        group
            .iter()
            .copied()
            .reduce(|best, at| if active[at as usize] > active[best as usize] { at } else { best })
    };
    let states: Vec<u32> = (0..active.len() as u32).collect();
    let mut levels: Vec<Vec<u32>> = Vec::new();
    let mut level: Vec<u32> = states.chunks(FAN).filter_map(highest).collect();
    while level.len() > 1 {
        let next = level.chunks(FAN).filter_map(highest).collect();
        levels.push(std::mem::replace(&mut level, next));
    }
    levels.push(level);
    levels
}

impl Class {
    fn new(rows: Vec<u32>, replay: &Replay) -> Self {
        let allocations = &replay.allocations;
        let n_leaves = rows.len().div_ceil(LEAF).next_power_of_two();
        let mut latest_end = vec![0; 2 * n_leaves];
        for (leaf, block) in rows.chunks(LEAF).enumerate() {
            let ends = block.iter().map(|row| allocations.to[*row as usize]);
            latest_end[n_leaves + leaf] = ends.max().unwrap_or(0);
        }
        for node in (1..n_leaves).rev() {
            latest_end[node] = latest_end[2 * node].max(latest_end[2 * node + 1]);
        }
        Self {
            largest: rows.iter().map(|row| allocations.size[*row as usize]).max().unwrap_or(0),
            from: rows.iter().map(|row| allocations.from[*row as usize]).collect(),
            rows,
            latest_end,
            n_leaves,
        }
    }

    /// How many begin at or before a state; rows before that position are candidates. `hint` is the answer for an
    /// earlier state.
    pub(super) fn n_begun(&self, state: u32, hint: usize) -> usize {
        // Columns follow one another closely: gallop from the last answer, then halve.
        let mut step = 1;
        let mut low = hint;
        while low + step <= self.from.len() && self.from[low + step - 1] <= state {
            low += step;
            step *= 2;
        }
        let high = (low + step - 1).min(self.from.len());
        low + self.from[low..high].partition_point(|from| *from <= state)
    }

    /// Gives the rows at positions `from..to` that end after a state, in order.
    pub(super) fn alive_after(
        &self,
        state: u32,
        from: usize,
        to: usize,
        ends: &[u32],
        mut give: impl FnMut(u32),
    ) {
        if from >= to {
            return;
        }
        let mut nodes = vec![(1usize, 0usize, self.n_leaves)];
        while let Some((node, first, last)) = nodes.pop() {
            if self.latest_end[node] <= state || last * LEAF <= from || first * LEAF >= to {
                continue;
            }
            if node >= self.n_leaves {
                for at in (first * LEAF).max(from)..(last * LEAF).min(to) {
                    let row = self.rows[at];
                    if ends[row as usize] > state {
                        give(row);
                    }
                }
                continue;
            }
            let middle = first.midpoint(last);
            nodes.push((2 * node + 1, middle, last));
            nodes.push((2 * node, first, middle));
        }
    }
}

const _: () = assert!(NEVER == u32::MAX, "an allocation that never ends must end after every state");
