//! A run's snapshots laid out by rank and step.

use std::collections::{BTreeMap, BTreeSet};

use tidegauge_api::Place;
use tidegauge_api::run::{Grid, GridCell, GridColumn, GridLost, GridRow, RunRow};
use tidegauge_api::snapshot::State;

/// What the grid knows of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct GridSnapshot {
    pub(crate) id: String,
    pub(crate) place: Place,
    pub(crate) state: State,
    pub(crate) problem: Option<String>,
    pub(crate) peak_allocated: Option<u64>,
    pub(crate) peak_reserved: Option<u64>,
    pub(crate) n_events: Option<u64>,
    pub(crate) n_findings: Option<u64>,
}

/// A snapshot that nobody will see.
#[derive(Debug, Clone)]
pub(crate) struct LostSnapshot {
    pub(crate) place: Place,
    pub(crate) why: String,
}

/// All that a run's grid shows.
#[derive(Debug, Default)]
pub(crate) struct GridContents {
    /// In order of arrival.
    pub(crate) snapshots: Vec<GridSnapshot>,
    /// Role and rank of the processes that sent samples.
    pub(crate) sampled: Vec<(String, Option<u32>)>,
    pub(crate) lost: Vec<LostSnapshot>,
}

/// Rows sort by role, then rank; those without a rank come last.
type RowKey<'a> = (&'a str, bool, Option<u32>);
/// Columns sort by step, a step's own snapshots before those with another reason; those without a step come last.
type ColumnKey<'a> = (bool, Option<u64>, bool, &'a str);

/// Lays out a run.
pub(crate) fn grid(run: RunRow, GridContents { snapshots, sampled, lost }: &GridContents) -> Grid {
    let mut cells: BTreeMap<RowKey<'_>, BTreeMap<ColumnKey<'_>, Vec<&GridSnapshot>>> = BTreeMap::new();
    for (role, rank) in sampled {
        cells.entry((role, rank.is_none(), *rank)).or_default();
    }
    // Latest arrival first; sorting by attempt keeps that order within one.
    for snapshot in snapshots.iter().rev() {
        let row = cells.entry(row_key(&snapshot.place)).or_default();
        row.entry(column_key(&snapshot.place)).or_default().push(snapshot);
    }
    let mut labels: BTreeMap<ColumnKey<'_>, BTreeSet<String>> = BTreeMap::new();
    for (key, cell) in cells.values_mut().flatten() {
        cell.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.place.attempt));
        labels.entry(*key).or_default().insert(cell[0].place.step_label());
    }
    for LostSnapshot { place, .. } in lost {
        cells.entry(row_key(place)).or_default();
        labels.entry(column_key(place)).or_default().insert(place.step_label());
    }
    let columns: BTreeMap<ColumnKey<'_>, u32> = labels.keys().copied().zip(0..).collect();
    let rows: BTreeMap<RowKey<'_>, u32> = cells.keys().copied().zip(0..).collect();
    let mut lost: Vec<GridLost> = lost
        .iter()
        .map(|LostSnapshot { place, why }| GridLost {
            row: rows[&row_key(place)],
            column: columns[&column_key(place)],
            label: place.step_label(),
            why: why.clone(),
        })
        .collect();
    lost.sort_by_key(|lost| (lost.row, lost.column));
    Grid {
        run,
        rows: cells.keys().map(|&(role, _, rank)| GridRow { role: role.to_owned(), rank }).collect(),
        columns: labels.into_iter().map(|(key, labels)| column(key, labels)).collect(),
        cells: (0..)
            .zip(cells.values())
            .flat_map(|(row, cells)| cells.iter().map(move |(key, cell)| (row, key, cell)))
            .map(|(row, key, snapshots)| cell(row, columns[key], snapshots))
            .collect(),
        lost,
    }
}

fn row_key(Place { role, rank, .. }: &Place) -> RowKey<'_> {
    (role.as_deref().unwrap_or_default(), rank.is_none(), *rank)
}

fn column_key(Place { last_step, reason, .. }: &Place) -> ColumnKey<'_> {
    let reason = reason.as_deref().unwrap_or("step");
    (last_step.is_none(), *last_step, reason != "step", reason)
}

fn column((_, last_step, _, reason): ColumnKey<'_>, labels: BTreeSet<String>) -> GridColumn {
    let without_window =
        || Place { last_step, reason: Some(reason.to_owned()), ..Place::default() }.step_label();
    let label = match labels.len() {
        1 => labels.into_iter().next().unwrap_or_default(),
        _ => without_window(),
    };
    GridColumn { last_step, reason: reason.to_owned(), label }
}

fn cell(row: u32, column: u32, snapshots: &[&GridSnapshot]) -> GridCell {
    let shown = snapshots[0];
    GridCell {
        row,
        column,
        label: shown.place.step_label(),
        snapshots: snapshots.iter().map(|snapshot| snapshot.id.clone()).collect(),
        state: shown.state,
        problem: shown.problem.clone(),
        peak_allocated: shown.peak_allocated,
        peak_reserved: shown.peak_reserved,
        n_events: shown.n_events,
        n_findings: shown.n_findings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Snapshots written as "rank first-last reason attempt", "." for what is absent; their ids are their numbers.
    fn lay_out(story: &[&str]) -> Grid {
        let snapshots: Vec<GridSnapshot> = story
            .iter()
            .enumerate()
            .map(|(id, words)| {
                let mut words = words.split(' ');
                let mut next = || words.next().filter(|word| *word != ".");
                let rank = next().map(|rank| rank.parse().unwrap());
                let (first, last) = next().map_or((None, None), |steps| match steps.split_once('-') {
                    Some((first, last)) => (Some(first.parse().unwrap()), Some(last.parse().unwrap())),
                    None => (None, Some(steps.parse().unwrap())),
                });
                GridSnapshot {
                    id: id.to_string(),
                    place: Place {
                        rank,
                        first_step: first,
                        last_step: last,
                        reason: next().map(str::to_owned),
                        attempt: next().map(|attempt| attempt.parse().unwrap()),
                        ..Place::default()
                    },
                    state: State::Ready,
                    problem: None,
                    peak_allocated: Some(id as u64),
                    peak_reserved: None,
                    n_events: None,
                    n_findings: None,
                }
            })
            .collect();
        grid(run(), &GridContents { snapshots, ..GridContents::default() })
    }

    fn run() -> RunRow {
        RunRow {
            id: String::new(),
            name: String::new(),
            created_at: String::new(),
            updated_at: String::new(),
            latest_step: None,
            n_ranks: 0,
            n_snapshots: 0,
            n_samples: 0,
            n_lost: 0,
            n_failed: 0,
            n_pending: 0,
            peak_allocated: None,
            producer: None,
        }
    }

    fn labels(grid: &Grid) -> Vec<&str> {
        grid.columns.iter().map(|column| column.label.as_str()).collect()
    }

    #[test]
    fn ranks_and_steps_sort_as_numbers_and_what_has_none_comes_last() {
        let grid = lay_out(&[". 1", "10 10", "2 9", "2 . oom", "2 9 oom", "2 ."]);
        let ranks: Vec<_> = grid.rows.iter().map(|row| row.rank).collect();
        assert_eq!(ranks, [Some(2), Some(10), None]);
        assert_eq!(labels(&grid), ["1", "9", "9 oom", "10", "no step", "oom"]);
        let cells: Vec<_> =
            grid.cells.iter().map(|cell| (cell.row, cell.column, cell.snapshots[0].as_str())).collect();
        assert_eq!(cells, [(0, 1, "2"), (0, 2, "4"), (0, 4, "5"), (0, 5, "3"), (1, 3, "1"), (2, 0, "0")]);
    }

    #[test]
    fn a_column_shows_its_window_when_all_agree_on_it() {
        assert_eq!(labels(&lay_out(&["0 2-5", "1 2-5"])), ["2–5"]);
        let mixed = lay_out(&["0 2-5", "1 4-5"]);
        assert_eq!(labels(&mixed), ["5"]);
        assert_eq!(mixed.cells[1].label, "4–5");
    }

    #[test]
    fn of_several_in_a_cell_the_latest_attempt_and_arrival_is_shown() {
        let grid = lay_out(&["0 1 step 1", "0 1 step 0", "0 1 step 1", "0 1"]);
        assert_eq!(grid.cells.len(), 1);
        assert_eq!(grid.cells[0].snapshots, ["2", "0", "1", "3"]);
        assert_eq!(grid.cells[0].peak_allocated, Some(2));
    }

    #[test]
    fn ranks_that_only_sent_samples_have_a_row_and_lost_snapshots_a_column() {
        let place = Place { rank: Some(1), first_step: Some(6), last_step: Some(10), ..Place::default() };
        let contents = GridContents {
            sampled: vec![(String::new(), Some(3))],
            lost: vec![LostSnapshot { place, why: "the outbox is full".to_owned() }],
            ..GridContents::default()
        };
        let grid = grid(run(), &contents);
        let ranks: Vec<_> = grid.rows.iter().map(|row| row.rank).collect();
        assert_eq!((ranks, labels(&grid)), (vec![Some(1), Some(3)], vec!["6–10"]));
        assert_eq!((grid.lost[0].row, grid.lost[0].column, grid.lost[0].label.as_str()), (0, 0, "6–10"));
        assert!(grid.cells.is_empty());
    }
}
