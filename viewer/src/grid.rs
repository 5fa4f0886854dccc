//! One run's grid as the page uses it: which cell is where, what is next to it, what is usual in its column.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;

use tidegauge_api::run::{Grid, GridCell, GridColumn, GridLost, GridRow};
use tidegauge_api::samples::GridSamples;
use tidegauge_api::snapshot::State;

use crate::heat::Scale;
use crate::samples::{Beside, Sampled, stretch_of};

/// A place on the grid: row, then column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// Index into [`Grid::rows`].
    pub row: u32,
    /// Index into [`Grid::columns`].
    pub column: u32,
}

/// A grid with what is looked up in it again and again.
#[derive(Debug, Clone, PartialEq)]
pub struct Board {
    /// As the server sent it, with columns for samples between those of snapshots.
    pub grid: Grid,
    /// The samples.
    pub beside: Beside,
    /// Index into [`Grid::cells`] of each spot that holds something.
    by_spot: BTreeMap<Spot, usize>,
    /// Indices into [`Grid::lost`] by spot.
    lost_by_spot: BTreeMap<Spot, Vec<usize>>,
    /// Of each column, the median of its ready cells' allocated peaks.
    medians: Vec<Option<u64>>,
    /// Colors of allocated peaks, once a cell has one.
    pub scale: Option<Scale>,
}

impl Board {
    /// Indexes a grid without samples.
    pub fn new(grid: Grid) -> Self {
        Self::with_samples(grid, GridSamples::default())
    }

    /// Indexes a grid with samples between its snapshots.
    pub fn with_samples(grid: Grid, samples: GridSamples) -> Self {
        let (grid, beside) = Beside::join(grid, samples);
        let spot = |cell: &GridCell| Spot { row: cell.row, column: cell.column };
        let by_spot = grid.cells.iter().enumerate().map(|(i, cell)| (spot(cell), i)).collect();
        let mut by_column = vec![Vec::new(); grid.columns.len()];
        for cell in &grid.cells {
            if let (Some(peaks), Some(peak)) = (by_column.get_mut(cell.column as usize), cell.peak_allocated)
            {
                peaks.push(peak);
            }
        }
        let medians = by_column.into_iter().map(median).collect();
        let sampled = [beside.samples().lowest_peak, beside.samples().highest_peak];
        let peaks = grid.cells.iter().filter_map(|cell| cell.peak_allocated);
        let scale = Scale::over(peaks.chain(sampled.into_iter().flatten()));
        let mut lost_by_spot = BTreeMap::<Spot, Vec<usize>>::new();
        for (i, lost) in grid.lost.iter().enumerate() {
            lost_by_spot.entry(Spot { row: lost.row, column: lost.column }).or_default().push(i);
        }
        Self { grid, beside, by_spot, lost_by_spot, medians, scale }
    }

    /// The cell at a spot, if it holds something.
    pub fn cell(&self, spot: Spot) -> Option<&GridCell> {
        self.by_spot.get(&spot).map(|i| &self.grid.cells[*i])
    }

    /// What was sampled at a spot.
    pub fn sampled(&self, spot: Spot) -> Option<Sampled> {
        self.beside.sampled(spot.row, spot.column)
    }

    /// The steps that were put together at a spot, if there are several and some were sampled.
    pub fn stretch(&self, spot: Spot) -> Option<(u64, u64)> {
        self.sampled(spot)?;
        stretch_of(self.grid.columns.get(spot.column as usize)?)
    }

    /// The snapshots of a spot that nobody will see.
    pub fn lost(&self, spot: Spot) -> impl Iterator<Item = &GridLost> {
        self.lost_by_spot.get(&spot).into_iter().flatten().map(|i| &self.grid.lost[*i])
    }

    /// The part of the highest peak that a number of bytes is, from 0 to 1.
    pub fn part_of_highest(&self, bytes: u64) -> f64 {
        let highest = self.scale.map_or(0, |scale| scale.high).max(1);
        (bytes as f64 / highest as f64).min(1.0)
    }

    /// Where `spot` of an earlier board is now: the same row and column, or the nearest that is left.
    pub fn same_place(&self, earlier: &Self, spot: Spot) -> Spot {
        let row = earlier.grid.rows.get(spot.row as usize);
        let column = earlier.grid.columns.get(spot.column as usize);
        let same_row = row.and_then(|row| self.grid.rows.iter().position(|now| now == row));
        let same_column = column.and_then(|column| {
            let columns = || self.grid.columns.iter();
            let same = |now: &GridColumn| (now.last_step, &now.reason) == (column.last_step, &column.reason);
            // Steps that were put together with others since.
            let holds = |now: &GridColumn| now.last_step.is_some() && now.last_step >= column.last_step;
            columns().position(same).or_else(|| columns().position(holds))
        });
        let index = |same: Option<usize>, was: u32, n: usize| {
            let last = u32::try_from(n.saturating_sub(1)).unwrap_or(u32::MAX);
            same.and_then(|i| u32::try_from(i).ok()).unwrap_or(was).min(last)
        };
        Spot {
            row: index(same_row, spot.row, self.grid.rows.len()),
            column: index(same_column, spot.column, self.grid.columns.len()),
        }
    }

    /// A number that changes with whatever a row shows, so that only rows that changed are built again.
    pub fn row_fingerprint(&self, row: u32) -> u64 {
        let mut hasher = DefaultHasher::new();
        let spots = Spot { row, column: 0 }..=Spot { row, column: u32::MAX };
        for (spot, i) in self.by_spot.range(spots) {
            let cell = &self.grid.cells[*i];
            (spot.column, cell.state.as_str(), cell.peak_allocated, &cell.label, &cell.snapshots)
                .hash(&mut hasher);
        }
        for column in 0..u32::try_from(self.grid.columns.len()).unwrap_or(u32::MAX) {
            let spot = Spot { row, column };
            (self.sampled(spot), self.lost(spot).count()).hash(&mut hasher);
        }
        (self.grid.rows.get(row as usize).map(row_label), self.grid.columns.len()).hash(&mut hasher);
        self.scale.map(|scale| (scale.low, scale.high)).hash(&mut hasher);
        hasher.finish()
    }

    /// Median of the allocated peaks in a column.
    pub fn median(&self, column: u32) -> Option<u64> {
        self.medians.get(column as usize).copied().flatten()
    }

    /// The cell with the highest allocated peak, the first of several.
    pub fn highest(&self) -> Option<&GridCell> {
        let high = self.scale?.high;
        self.grid.cells.iter().find(|cell| cell.peak_allocated == Some(high))
    }

    /// Where a key leads from a spot; none for keys that do not walk. The walk stops at the edges.
    pub fn walk(&self, from: Spot, key: &str) -> Option<Spot> {
        let last_row = u32::try_from(self.grid.rows.len()).ok()?.checked_sub(1)?;
        let last_column = u32::try_from(self.grid.columns.len()).ok()?.checked_sub(1)?;
        let Spot { row, column } = from;
        let (row, column) = match key {
            "ArrowUp" => (row.saturating_sub(1), column),
            "ArrowDown" => (row + 1, column),
            "ArrowLeft" => (row, column.saturating_sub(1)),
            "ArrowRight" => (row, column + 1),
            "Home" => (row, 0),
            "End" => (row, last_column),
            "PageUp" => (row.saturating_sub(ROWS_PER_PAGE), column),
            "PageDown" => (row + ROWS_PER_PAGE, column),
            _ => return None,
        };
        Some(Spot { row: row.min(last_row), column: column.min(last_column) })
    }

    /// Where a snapshot is.
    pub fn spot_of(&self, snapshot_id: &str) -> Option<Spot> {
        let cell = self.grid.cells.iter().find(|cell| cell.snapshots.iter().any(|id| id == snapshot_id))?;
        Some(Spot { row: cell.row, column: cell.column })
    }

    /// What lies next to a snapshot, past spots that hold nothing.
    pub fn neighbors(&self, snapshot_id: &str) -> Neighbors {
        let Some(spot) = self.spot_of(snapshot_id) else { return Neighbors::default() };
        let cells = &self.grid.cells;
        let same_column = |cell: &&GridCell| cell.column == spot.column;
        let same_row = |cell: &&GridCell| cell.row == spot.row;
        let to_row = |cell: &GridCell| self.neighbor(cell, row_label(&self.grid.rows[cell.row as usize]));
        let to_column = |cell: &GridCell| self.neighbor(cell, column_phrase(&cell.label));
        Neighbors {
            rank_before: cells
                .iter()
                .filter(same_column)
                .filter(|c| c.row < spot.row)
                .max_by_key(|c| c.row)
                .and_then(to_row),
            rank_after: cells
                .iter()
                .filter(same_column)
                .filter(|c| c.row > spot.row)
                .min_by_key(|c| c.row)
                .and_then(to_row),
            step_before: cells
                .iter()
                .filter(same_row)
                .filter(|c| c.column < spot.column)
                .max_by_key(|c| c.column)
                .and_then(to_column),
            step_after: cells
                .iter()
                .filter(same_row)
                .filter(|c| c.column > spot.column)
                .min_by_key(|c| c.column)
                .and_then(to_column),
        }
    }

    fn neighbor(&self, cell: &GridCell, label: String) -> Option<Neighbor> {
        cell.snapshots.first().map(|id| Neighbor { snapshot_id: id.clone(), label })
    }
}

/// Rows that Page Up and Page Down walk.
const ROWS_PER_PAGE: u32 = 10;

/// What lies next to a snapshot on the grid of its run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Neighbors {
    /// The same step, the rank before.
    pub rank_before: Option<Neighbor>,
    /// The same step, the rank after.
    pub rank_after: Option<Neighbor>,
    /// The same rank, the step before.
    pub step_before: Option<Neighbor>,
    /// The same rank, the step after.
    pub step_after: Option<Neighbor>,
}

/// A snapshot next to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbor {
    /// Its id.
    pub snapshot_id: String,
    /// Its place as a link says it: "rank 4", "step 2–5".
    pub label: String,
}

/// A row's head: "rank 3", "actor · rank 3".
pub fn row_label(row: &GridRow) -> String {
    let rank = row.rank.map(|rank| format!("rank {rank}"));
    match (row.role.is_empty(), rank) {
        (true, rank) => rank.unwrap_or_else(|| "no rank".to_owned()),
        (false, Some(rank)) => format!("{} · {rank}", row.role),
        (false, None) => row.role.clone(),
    }
}

/// A column as it reads in a sentence: "step 5", "steps 2–5", "exit".
pub fn column_phrase(label: &str) -> String {
    if !label.starts_with(|first: char| first.is_ascii_digit()) {
        label.to_owned()
    } else if label.contains('–') {
        format!("steps {label}")
    } else {
        format!("step {label}")
    }
}

/// A state in words.
pub fn state_phrase(state: State) -> &'static str {
    match state {
        State::Received => "received and waits to be read",
        State::Reading => "being read",
        State::Ready => "ready",
        State::Failed => "failed",
    }
}

/// The rows worth building in a scrolled list, a few beyond both edges, so that a run of a thousand ranks is
/// as quick as one of ten.
pub fn rows_in_view(scroll_top: f64, height: f64, row_height: f64, n_rows: usize) -> Range<usize> {
    /// Rows built above and below the view: a flick of the wheel shows no gap.
    const BEYOND: usize = 8;
    let first = (scroll_top.max(0.0) / row_height).floor() as usize;
    let last = ((scroll_top.max(0.0) + height.max(0.0)) / row_height).ceil() as usize;
    first.saturating_sub(BEYOND).min(n_rows)..last.saturating_add(BEYOND).min(n_rows)
}

/// The median; of an even number, the lower of the middle two, so that it is one of them.
fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let middle = values.len().checked_sub(1)? / 2;
    values.get(middle).copied()
}

#[cfg(test)]
mod tests {
    use tidegauge_api::run::RunRow;
    use tidegauge_api::samples::{SampleColumn, SampleRow};

    use super::*;

    /// A grid drawn in text: a row per line, `.` for nothing, else the peak. Ids are "row-column".
    fn board(picture: &str) -> Board {
        let lines: Vec<Vec<&str>> = picture.lines().map(|line| line.split_whitespace().collect()).collect();
        let run = RunRow::default();
        let rows = (0..lines.len()).map(|i| GridRow { role: String::new(), rank: Some(i as u32) }).collect();
        let columns = (0..lines[0].len())
            .map(|i| GridColumn {
                last_step: Some(i as u64),
                reason: "step".to_owned(),
                label: i.to_string(),
            })
            .collect();
        let cells = lines.iter().enumerate().flat_map(|(row, line)| {
            line.iter().enumerate().filter(|(_, text)| **text != ".").map(move |(column, text)| GridCell {
                row: row as u32,
                column: column as u32,
                label: column.to_string(),
                snapshots: vec![format!("{row}-{column}")],
                state: State::Ready,
                problem: None,
                peak_allocated: text.parse().ok(),
                peak_reserved: None,
                n_events: None,
                n_findings: None,
            })
        });
        Board::new(Grid { run, rows, columns, cells: cells.collect(), lost: Vec::new() })
    }

    #[test]
    fn a_column_s_median_is_one_of_its_peaks() {
        let board = board("7 . x\n1 . .\n9 5 .\n8 6 .");
        assert_eq!(board.median(0), Some(7));
        assert_eq!(board.median(1), Some(5));
        assert_eq!(board.median(2), None);
        assert_eq!(board.median(99), None);
    }

    #[test]
    fn neighbors_are_found_past_empty_spots() {
        let board = board("1 2 3\n. . 4\n5 . 6");
        let neighbors = board.neighbors("2-2");
        let id = |neighbor: Option<Neighbor>| neighbor.map(|neighbor| neighbor.snapshot_id);
        assert_eq!(neighbors.step_before.as_ref().unwrap().label, "step 0");
        assert_eq!(id(neighbors.step_before), Some("2-0".to_owned()));
        assert_eq!(id(neighbors.step_after), None);
        assert_eq!(neighbors.rank_before.as_ref().unwrap().label, "rank 1");
        assert_eq!(id(neighbors.rank_before), Some("1-2".to_owned()));
        assert_eq!(id(board.neighbors("0-0").rank_after), Some("2-0".to_owned()));
        assert_eq!(board.neighbors("elsewhere"), Neighbors::default());
    }

    #[test]
    fn keys_walk_to_the_edges_and_no_further() {
        let board = board("1 2 3\n4 5 6");
        let at = |row, column| Spot { row, column };
        assert_eq!(board.walk(at(0, 0), "ArrowDown"), Some(at(1, 0)));
        assert_eq!(board.walk(at(1, 0), "ArrowDown"), Some(at(1, 0)));
        assert_eq!(board.walk(at(0, 0), "ArrowLeft"), Some(at(0, 0)));
        assert_eq!(board.walk(at(1, 0), "End"), Some(at(1, 2)));
        assert_eq!(board.walk(at(0, 1), "PageDown"), Some(at(1, 1)));
        assert_eq!(board.walk(at(0, 0), "x"), None);
    }

    #[test]
    fn the_highest_cell_is_found() {
        assert_eq!(board("1 9 3\n4 9 6").highest().unwrap().snapshots, ["0-1"]);
        assert!(board(". .\n. x").highest().is_none());
    }

    #[test]
    fn rows_and_columns_read_as_words() {
        let row = |role: &str, rank| row_label(&GridRow { role: role.to_owned(), rank });
        assert_eq!(row("", Some(3)), "rank 3");
        assert_eq!(row("actor", Some(3)), "actor · rank 3");
        assert_eq!(row("actor", None), "actor");
        assert_eq!(row("", None), "no rank");
        assert_eq!(column_phrase("2–5"), "steps 2–5");
        assert_eq!(column_phrase("7 oom"), "step 7 oom");
        assert_eq!(column_phrase("exit"), "exit");
    }

    #[test]
    fn a_row_s_fingerprint_changes_with_what_it_shows_and_with_nothing_else() {
        let prints = |picture: &str| {
            let board = board(picture);
            [board.row_fingerprint(0), board.row_fingerprint(1)]
        };
        let before = prints("1 9\n. 4");
        assert_eq!(prints("1 9\n. 4"), before);
        let after = prints("1 9\n3 4");
        assert_eq!(after[0], before[0]);
        assert_ne!(after[1], before[1]);
        // A new highest peak colors every row anew.
        assert_ne!(prints("1 9\n. 99")[0], before[0]);
    }

    /// The same with samples of rank 0 at these steps, whose allocated bytes are ten times their step.
    fn with_samples(picture: &str, steps: &[u64]) -> Board {
        let column = |step: &u64| SampleColumn { first_step: *step, last_step: *step };
        let numbers: Vec<_> = steps.iter().map(|step| Some(step * 10)).collect();
        let row = SampleRow {
            rank: Some(0),
            allocated: numbers.clone(),
            allocated_peak: numbers,
            ..SampleRow::default()
        };
        let samples = GridSamples {
            columns: steps.iter().map(column).collect(),
            rows: vec![row],
            highest_peak: steps.iter().max().map(|step| step * 10),
            ..GridSamples::default()
        };
        Board::with_samples(board(picture).grid, samples)
    }

    #[test]
    fn a_focused_cell_keeps_its_place_when_columns_come_in_before_it() {
        let at = |row, column| Spot { row, column };
        let (before, after) = (board(". 5\n. 7"), with_samples(". 5\n. 7", &[0, 1, 2]));
        assert_eq!(after.same_place(&before, at(1, 1)), at(1, 1));
        let later = with_samples("5 . .\n7 . .", &[3, 4]);
        let latest = with_samples("5 . .\n7 . .", &[3, 4, 5]);
        assert_eq!(latest.same_place(&later, at(0, 4)), at(0, 4));
        assert_eq!(before.same_place(&latest, at(0, 5)), at(0, 1));
    }

    #[test]
    fn samples_widen_the_scale_and_change_the_fingerprint_of_their_row_alone() {
        let prints = |board: &Board| [board.row_fingerprint(0), board.row_fingerprint(1)];
        let (one, other) = (with_samples("9 .\n9 .", &[0, 9]), with_samples("9 .\n9 .", &[1, 9]));
        assert_eq!(one.scale.unwrap().high, 90);
        assert_eq!(one.part_of_highest(45), 0.5);
        let (one, other) = (prints(&one), prints(&other));
        assert_ne!(one[0], other[0]);
        assert_eq!(one[1], other[1]);
    }

    #[test]
    fn only_rows_in_view_are_built() {
        assert_eq!(rows_in_view(0.0, 480.0, 24.0, 1_024), 0..28);
        assert_eq!(rows_in_view(12_000.0, 480.0, 24.0, 1_024), 492..528);
        assert_eq!(rows_in_view(0.0, 480.0, 24.0, 8), 0..8);
        assert_eq!(rows_in_view(99_999.0, 480.0, 24.0, 8), 8..8);
    }
}
