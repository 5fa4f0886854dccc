//! A run's samples as its grid shows them: columns between those of snapshots, and what is known of each spot.

use std::collections::BTreeMap;

use tidegauge_api::run::{Grid, GridCell, GridColumn, GridLost};
use tidegauge_api::samples::{GridSamples, SampleColumn, SampleRow};

use crate::format::{bytes, count};

/// The reason of a column that is there for samples only.
pub const SAMPLE: &str = "sample";

/// The most columns of samples that a grid shows, whatever the screen; more are put together.
const MOST_COLUMNS: u32 = 200;
/// The fewest, however narrow it is: what does not fit is scrolled.
const FEWEST_COLUMNS: u32 = 24;

/// What is known of the steps of one spot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sampled {
    /// Most bytes allocated at the end of a step.
    pub allocated: Option<u64>,
    /// Peak of allocated bytes so far.
    pub allocated_peak: Option<u64>,
    /// Most bytes reserved at the end of a step.
    pub reserved: Option<u64>,
    /// Most bytes of the device that others use.
    pub outside: Option<u64>,
    /// The longest step, microseconds.
    pub step_us: Option<u64>,
    /// Times the allocator ran out of memory.
    pub n_ooms: u64,
    /// Times it gave its cache back and tried again.
    pub n_alloc_retries: u64,
}

impl Sampled {
    /// In a sentence: "1.00 GiB allocated at the step's end, peak so far 2.00 GiB".
    pub fn summary(&self) -> String {
        let size = |size: Option<u64>| size.map_or("–".to_owned(), bytes);
        let mut summary = format!(
            "sampled, {} allocated at the step's end, peak so far {}",
            size(self.allocated),
            size(self.allocated_peak)
        );
        if self.n_ooms > 0 {
            summary.push_str(&format!(", ran out of memory {}", times(self.n_ooms)));
        }
        if self.n_alloc_retries > 0 {
            summary.push_str(&format!(", tried again {}", times(self.n_alloc_retries)));
        }
        summary
    }

    /// The mark of what went wrong, the worst of it.
    pub fn mark(&self) -> Option<&'static str> {
        match (self.n_ooms, self.n_alloc_retries) {
            (0, 0) => None,
            (0, _) => Some("↻"),
            _ => Some("!"),
        }
    }
}

/// "once", "3 times"
pub fn times(n: u64) -> String {
    if n == 1 { "once".to_owned() } else { format!("{} times", count(n)) }
}

/// How many columns of samples fit beside those of snapshots, when each is as narrow as can be.
pub fn columns_that_fit(width_css: f64, head_css: f64, cell_css: f64, n_snapshot_columns: usize) -> u32 {
    let all = ((width_css - head_css) / cell_css).floor().max(0.0) as u32;
    let beside = all.saturating_sub(u32::try_from(n_snapshot_columns).unwrap_or(u32::MAX));
    beside.clamp(FEWEST_COLUMNS, MOST_COLUMNS)
}

/// A grid with the columns of some steps only.
pub fn within(grid: Grid, (first, last): (u64, u64)) -> Grid {
    let Grid { run, rows, columns, cells, lost } = grid;
    let is_within = |column: &GridColumn| column.last_step.is_some_and(|step| (first..=last).contains(&step));
    let stays: Vec<bool> = columns.iter().map(is_within).collect();
    let mut next = 0..;
    let now_at: Vec<Option<u32>> =
        stays.iter().map(|stays| if *stays { next.next() } else { None }).collect();
    let now_at = |column: u32| now_at.get(column as usize).copied().flatten();
    let cells = cells.into_iter().filter_map(|cell| Some(GridCell { column: now_at(cell.column)?, ..cell }));
    let lost = lost.into_iter().filter_map(|lost| Some(GridLost { column: now_at(lost.column)?, ..lost }));
    Grid {
        run,
        rows,
        cells: cells.collect(),
        lost: lost.collect(),
        columns: columns
            .into_iter()
            .zip(stays)
            .filter(|(_, stays)| *stays)
            .map(|(column, _)| column)
            .collect(),
    }
}

/// The steps of a column that holds several.
pub fn stretch_of(column: &GridColumn) -> Option<(u64, u64)> {
    let (first, last) = column.label.split_once('–').filter(|_| column.reason == SAMPLE)?;
    first.parse().ok().zip(last.parse().ok())
}

/// Samples beside a grid with columns for them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Beside {
    samples: GridSamples,
    /// Index into the samples' rows of rows of the grid.
    rows: BTreeMap<u32, usize>,
    /// Index into the samples' columns of each column of the grid.
    columns: Vec<Option<usize>>,
    /// Index into the troubles of a row, by row and column of the samples.
    troubles: BTreeMap<(usize, usize), usize>,
}

/// A column of the grid, of the samples, or of both.
struct Joined {
    /// Those without a step last, then by step; a stretch of samples before the snapshot it begins with.
    key: (bool, Option<u64>, bool),
    of_grid: Option<usize>,
    sampled: Option<usize>,
}

impl Beside {
    /// Adds columns for samples to a grid. A step that has a column already gets no other one.
    pub fn join(grid: Grid, samples: GridSamples) -> (Grid, Self) {
        let Grid { run, rows, columns, mut cells, mut lost } = grid;
        let is_of = |column: &GridColumn, sampled: &SampleColumn| {
            column.reason == "step"
                && sampled.first_step == sampled.last_step
                && column.last_step == Some(sampled.first_step)
        };
        let mut order = Vec::new();
        for (i, column) in columns.iter().enumerate() {
            let sampled = samples.columns.iter().position(|sampled| is_of(column, sampled));
            let key = (column.last_step.is_none(), column.last_step, true);
            order.push(Joined { key, of_grid: Some(i), sampled });
        }
        for (i, column) in samples.columns.iter().enumerate() {
            if !columns.iter().any(|of_grid| is_of(of_grid, column)) {
                let key = (false, Some(column.first_step), false);
                order.push(Joined { key, of_grid: None, sampled: Some(i) });
            }
        }
        order.sort_by_key(|joined| joined.key);
        let mut now_at = vec![0; columns.len()];
        for (now, Joined { of_grid, .. }) in (0..).zip(&order) {
            if let Some(was) = of_grid {
                now_at[*was] = now;
            }
        }
        let moved = |column: &mut u32| *column = now_at.get(*column as usize).copied().unwrap_or(*column);
        cells.iter_mut().for_each(|cell| moved(&mut cell.column));
        lost.iter_mut().for_each(|lost| moved(&mut lost.column));
        let joined = order.iter().filter_map(|joined| match joined {
            Joined { of_grid: Some(was), .. } => columns.get(*was).cloned(),
            Joined { sampled: Some(sampled), .. } => Some(sample_column(&samples.columns[*sampled])),
            Joined { .. } => None,
        });
        let joined = joined.collect();
        let of_row = |row: &SampleRow| (row.role.clone(), row.rank);
        let by_place: BTreeMap<_, usize> =
            samples.rows.iter().enumerate().map(|(i, row)| (of_row(row), i)).collect();
        let sampled_rows = (0..)
            .zip(&rows)
            .filter_map(|(i, row)| Some((i, *by_place.get(&(row.role.clone(), row.rank))?)))
            .collect();
        let troubles = samples.rows.iter().enumerate().flat_map(|(row, sampled)| {
            let columns = sampled.troubles.iter().enumerate();
            columns.map(move |(i, trouble)| ((row, trouble.column as usize), i))
        });
        let beside = Self {
            rows: sampled_rows,
            columns: order.iter().map(|joined| joined.sampled).collect(),
            troubles: troubles.collect(),
            samples,
        };
        (Grid { run, rows, columns: joined, cells, lost }, beside)
    }

    /// As the server sent them.
    pub fn samples(&self) -> &GridSamples {
        &self.samples
    }

    /// Whether all that there is of a row is here: samples are asked for row by row as they come into view.
    pub fn is_here(&self, row: u32) -> bool {
        self.samples.n_samples == 0 || self.rows.contains_key(&row)
    }

    /// What is known at a row and column of the grid.
    pub fn sampled(&self, row: u32, column: u32) -> Option<Sampled> {
        let i = *self.rows.get(&row)?;
        let row = &self.samples.rows[i];
        let column = (*self.columns.get(column as usize)?)?;
        let number = |numbers: &[Option<u64>]| numbers.get(column).copied().flatten();
        let trouble = self.troubles.get(&(i, column)).map(|trouble| row.troubles[*trouble]);
        let sampled = Sampled {
            allocated: number(&row.allocated),
            allocated_peak: number(&row.allocated_peak),
            reserved: number(&row.reserved),
            outside: number(&row.outside),
            step_us: number(&row.step_us),
            n_ooms: trouble.map_or(0, |trouble| trouble.n_ooms),
            n_alloc_retries: trouble.map_or(0, |trouble| trouble.n_alloc_retries),
        };
        (sampled != Sampled::default()).then_some(sampled)
    }
}

fn sample_column(column: &SampleColumn) -> GridColumn {
    GridColumn { last_step: Some(column.last_step), reason: SAMPLE.to_owned(), label: column.label() }
}

/// How a column's label stands in its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// There is no room for it.
    Hidden,
    /// Over its column.
    Centered,
    /// From the column's left edge: centered it would reach over the rows' heads.
    AtStart,
}

/// Which columns have room for their labels: first those that matter, from the left, then the others. Each is
/// given as its label's length and whether it matters.
pub fn labels(columns: &[(usize, bool)], cell_width_css: f64) -> Vec<Label> {
    /// Width of a digit at the grid's text size, and the gap between two labels, CSS pixels.
    const DIGIT_CSS: f64 = 8.0;
    const GAP_CSS: f64 = 6.0;
    let width = |i: usize| columns[i].0 as f64 * DIGIT_CSS + GAP_CSS;
    let centered = |i: usize| (i as f64 + 0.5) * cell_width_css - width(i) / 2.0;
    let start = |i: usize| centered(i).max(0.0);
    let mut shown = vec![Label::Hidden; columns.len()];
    for wanted in [true, false] {
        let standing = |shown: &[Label], i: usize| shown[i] != Label::Hidden;
        let mut free_from = 0.0;
        for i in 0..columns.len() {
            if standing(&shown, i) {
                free_from = start(i) + width(i);
                continue;
            }
            let next = (i + 1..columns.len()).find(|next| standing(&shown, *next));
            let is_free = start(i) >= free_from && next.is_none_or(|next| start(i) + width(i) <= start(next));
            if columns[i].1 == wanted && is_free {
                shown[i] = if centered(i) < 0.0 { Label::AtStart } else { Label::Centered };
                free_from = start(i) + width(i);
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use tidegauge_api::run::{GridRow, RunRow};
    use tidegauge_api::samples::Trouble;
    use tidegauge_api::snapshot::State;

    use super::*;

    /// A grid of ranks 0 and 1 whose rank 1 has a snapshot in each column: "5", "9 oom", "exit".
    fn grid(labels: &[&str]) -> Grid {
        let column = |label: &&str| {
            let (step, reason) = label.split_once(' ').unwrap_or((label, "step"));
            let last_step = step.parse().ok();
            let reason = if last_step.is_some() { reason } else { step };
            GridColumn { last_step, reason: reason.to_owned(), label: (*label).to_owned() }
        };
        let cell = |(column, label): (u32, &&str)| GridCell {
            row: 1,
            column,
            label: (*label).to_owned(),
            snapshots: vec![(*label).to_owned()],
            state: State::Ready,
            problem: None,
            peak_allocated: None,
            peak_reserved: None,
            n_events: None,
            n_findings: None,
        };
        Grid {
            run: RunRow::default(),
            rows: [0, 1].map(|rank| GridRow { role: String::new(), rank: Some(rank) }).to_vec(),
            columns: labels.iter().map(column).collect(),
            cells: (0..).zip(labels).map(cell).collect(),
            lost: Vec::new(),
        }
    }

    /// Samples of rank 1 whose allocated bytes are the last step of their column.
    fn samples(columns: &[(u64, u64)]) -> GridSamples {
        let column = |&(first_step, last_step): &(u64, u64)| SampleColumn { first_step, last_step };
        let row = SampleRow {
            rank: Some(1),
            allocated: columns.iter().map(|(_, last)| Some(*last)).collect(),
            troubles: vec![Trouble { column: 0, n_ooms: 2, n_alloc_retries: 1 }],
            ..SampleRow::default()
        };
        GridSamples {
            columns: columns.iter().map(column).collect(),
            rows: vec![row],
            ..GridSamples::default()
        }
    }

    fn labels(grid: &Grid) -> Vec<&str> {
        grid.columns.iter().map(|column| column.label.as_str()).collect()
    }

    #[test]
    fn samples_stand_between_snapshots_and_share_the_column_of_their_step() {
        let (grid, beside) =
            Beside::join(grid(&["5", "9 oom", "exit"]), samples(&[(4, 4), (5, 5), (9, 9), (12, 12)]));
        assert_eq!(labels(&grid), ["4", "5", "9", "9 oom", "12", "exit"]);
        let cells: Vec<_> = grid.cells.iter().map(|cell| (cell.column, cell.label.as_str())).collect();
        assert_eq!(cells, [(1, "5"), (3, "9 oom"), (5, "exit")]);
        let allocated = |column| beside.sampled(1, column).and_then(|sampled| sampled.allocated);
        assert_eq!(
            (0..6).map(allocated).collect::<Vec<_>>(),
            [Some(4), Some(5), Some(9), None, Some(12), None]
        );
        assert_eq!(beside.sampled(0, 0), None);
        assert_eq!(beside.sampled(1, 99), None);
        // The server has samples of other rows that are not in view.
        let more =
            Beside { samples: GridSamples { n_samples: 5, ..GridSamples::default() }, ..beside.clone() };
        assert_eq!([beside.is_here(0), more.is_here(1), more.is_here(0)], [true, true, false]);
    }

    #[test]
    fn a_stretch_stands_before_the_snapshot_in_it() {
        let (grid, _) = Beside::join(grid(&["15"]), samples(&[(1, 10), (11, 20), (15, 15), (21, 30)]));
        assert_eq!(labels(&grid), ["1–10", "11–20", "15", "21–30"]);
    }

    #[test]
    fn of_some_steps_only_their_columns_stay() {
        let grid = within(grid(&["5", "9 oom", "12", "exit"]), (6, 12));
        assert_eq!(labels(&grid), ["9 oom", "12"]);
        let cells: Vec<_> = grid.cells.iter().map(|cell| (cell.column, cell.label.as_str())).collect();
        assert_eq!(cells, [(0, "9 oom"), (1, "12")]);
    }

    #[test]
    fn a_column_of_several_steps_knows_them() {
        let (grid, _) = Beside::join(grid(&["2–5"]), samples(&[(1, 10), (11, 11)]));
        let stretches: Vec<_> = grid.columns.iter().map(stretch_of).collect();
        assert_eq!(stretches, [Some((1, 10)), None, None]);
    }

    #[test]
    fn what_went_wrong_has_a_mark_and_words() {
        let (_, beside) = Beside::join(grid(&[]), samples(&[(512, 512)]));
        let sampled = beside.sampled(1, 0).unwrap();
        assert_eq!(sampled.mark(), Some("!"));
        let words = "sampled, 512 B allocated at the step's end, peak so far –, ran out of memory 2 times, tried again once";
        assert_eq!(sampled.summary(), words);
        assert_eq!(Sampled { n_alloc_retries: 1, ..Sampled::default() }.mark(), Some("↻"));
        assert_eq!(Sampled { allocated: Some(1), ..Sampled::default() }.mark(), None);
    }

    #[test]
    fn as_many_columns_are_asked_for_as_fit() {
        assert_eq!(columns_that_fit(1_060.0, 120.0, 14.0, 3), 64);
        assert_eq!(columns_that_fit(300.0, 120.0, 14.0, 3), 24);
        assert_eq!(columns_that_fit(0.0, 120.0, 14.0, 900), 24);
        assert_eq!(columns_that_fit(9_000.0, 120.0, 14.0, 0), 200);
    }

    #[test]
    fn labels_that_would_touch_are_left_out_and_those_of_snapshots_come_first() {
        let shown = |columns: &[(usize, bool)], width| -> String {
            let sign = |label: &Label| match label {
                Label::Hidden => '.',
                Label::Centered => 'x',
                Label::AtStart => '<',
            };
            super::labels(columns, width).iter().map(sign).collect()
        };
        assert_eq!(shown(&[(1, true), (3, true)], 96.0), "xx");
        assert_eq!(shown(&[(3, true); 7], 14.0), "<..x..x");
        let mixed = [(1, false), (1, false), (3, true), (1, false), (1, false), (1, false)];
        assert_eq!(shown(&mixed, 14.0), "x.x.xx");
        assert_eq!(shown(&[], 14.0), "");
    }
}
