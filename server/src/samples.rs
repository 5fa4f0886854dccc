//! Samples between snapshots: what a batch may hold, and a run's samples laid out as the rows of its grid.

use std::collections::BTreeMap;

use tidegauge_api::Place;
use tidegauge_api::samples::{
    GridSamples, Lost, MAX_BATCH_LOST, MAX_BATCH_SAMPLES, MAX_GRID_COLUMNS, MAX_GRID_ROWS, Sample,
    SampleBatch, SampleColumn, SampleRow, Trouble,
};

use crate::place;

/// Batches that are kept at the same time; a further one is told to come back. They queue for one writer.
pub(crate) const MAX_BATCHES: usize = 64;

/// Longest sentence of a lost snapshot, characters.
const MAX_WHY_CHARS: usize = 200;

/// A batch whose words, numbers and lengths are in order.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) run: String,
    /// The process, without run, steps and reason.
    pub(crate) place: Place,
    pub(crate) n_dropped: u64,
    pub(crate) n_lost: u64,
    pub(crate) lost: Vec<Lost>,
    pub(crate) samples: Vec<Sample>,
}

impl Batch {
    /// Checks what came. The error is a sentence for the caller.
    pub(crate) fn new(batch: SampleBatch) -> Result<Self, String> {
        let SampleBatch { place, n_dropped, n_lost, lost, samples } = batch;
        let (run, place) = place::process(place)?;
        let samples = samples.rows().map_err(|uneven| uneven.to_string())?;
        if samples.len() > MAX_BATCH_SAMPLES {
            return Err(format!(
                "the batch holds {} samples, at most {MAX_BATCH_SAMPLES} are taken",
                samples.len()
            ));
        }
        if lost.len() > MAX_BATCH_LOST {
            return Err(format!(
                "the batch names {} lost snapshots, at most {MAX_BATCH_LOST} are taken",
                lost.len()
            ));
        }
        let steps = samples.iter().map(|sample| sample.step);
        let lost_steps = lost.iter().flat_map(|lost| [lost.first_step, lost.last_step]).flatten();
        // SQLite counts to i64::MAX.
        if let Some(step) = steps.chain(lost_steps).find(|step| i64::try_from(*step).is_err()) {
            return Err(format!("step {step} is more than can be kept"));
        }
        let why = |lost: Lost| {
            let why = place::word("reason of a lost snapshot", Some(lost.why), MAX_WHY_CHARS)?;
            Ok(Lost { why: why.unwrap_or_else(|| "lost".to_owned()), ..lost })
        };
        let lost = lost.into_iter().map(why).collect::<Result<_, String>>()?;
        Ok(Self { run, place, n_dropped, n_lost, lost, samples })
    }
}

/// Which part of a run's samples is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) first_row: u32,
    pub(crate) n_rows: u32,
    pub(crate) n_columns: u32,
    pub(crate) first_step: u64,
    pub(crate) last_step: u64,
}

impl Asked {
    /// As far as it may go, and of all steps.
    pub(crate) fn new(first_row: u32, n_rows: u32, n_columns: u32) -> Self {
        Self {
            first_row,
            n_rows: n_rows.min(MAX_GRID_ROWS),
            n_columns: n_columns.clamp(1, MAX_GRID_COLUMNS),
            first_step: 0,
            // SQLite counts to there.
            last_step: i64::MAX as u64,
        }
    }

    /// These steps only, as far as they are said.
    pub(crate) fn within(self, first_step: Option<u64>, last_step: Option<u64>) -> Self {
        let last_step = last_step.map_or(self.last_step, |last| last.min(self.last_step));
        Self { first_step: first_step.unwrap_or(self.first_step), last_step, ..self }
    }

    /// The steps it means of those that there are.
    pub(crate) fn steps(&self, summary: &Summary) -> Option<(u64, u64)> {
        let steps = (self.first_step.max(summary.first_step?), self.last_step.min(summary.last_step?));
        (steps.0 <= steps.1).then_some(steps)
    }

    /// The rows it means, of all that the grid has, in the grid's order.
    pub(crate) fn rows(&self, all: impl Iterator<Item = (String, Option<u64>)>) -> Vec<SampleRow> {
        let mut all: Vec<_> = all.map(|(role, rank)| (role, rank.is_none(), rank)).collect();
        all.sort();
        let row = |(role, _, rank): (String, bool, Option<u64>)| SampleRow {
            role,
            rank: rank.and_then(|rank| u32::try_from(rank).ok()),
            ..SampleRow::default()
        };
        all.into_iter().skip(self.first_row as usize).take(self.n_rows as usize).map(row).collect()
    }
}

/// What is known of all samples of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Summary {
    pub(crate) n_samples: u64,
    pub(crate) n_dropped: u64,
    pub(crate) stride: u64,
    pub(crate) first_step: Option<u64>,
    pub(crate) last_step: Option<u64>,
    pub(crate) sampled_at: Option<String>,
    pub(crate) lowest_peak: Option<u64>,
    pub(crate) highest_peak: Option<u64>,
}

/// A process that was sampled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    /// Processes are numbered as they appear.
    pub(crate) process: i64,
    /// Index into [`Found::rows`].
    pub(crate) row: usize,
    pub(crate) attempt: i64,
}

/// Steps of a device of a process, put together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stretch {
    pub(crate) process: i64,
    pub(crate) device: u32,
    /// With a width of w, stretch n holds the steps from (n - 1) w + 1 to n w; 0 is step 0.
    pub(crate) number: u64,
    /// One step, whatever the width: it is there twice.
    pub(crate) is_exact: bool,
    pub(crate) allocated: Option<u64>,
    pub(crate) allocated_peak: Option<u64>,
    pub(crate) reserved: Option<u64>,
    pub(crate) outside: Option<u64>,
    pub(crate) step_us: Option<u64>,
    /// So far.
    pub(crate) n_ooms: Option<u64>,
    /// So far.
    pub(crate) n_alloc_retries: Option<u64>,
}

/// What the catalog has for a question.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) summary: Summary,
    /// The first and the last step that are asked for and there.
    pub(crate) steps: Option<(u64, u64)>,
    /// Steps in a stretch.
    pub(crate) width: u64,
    /// Without their numbers.
    pub(crate) rows: Vec<SampleRow>,
    pub(crate) processes: Vec<Process>,
    /// Of these processes, by process, device and number.
    pub(crate) stretches: Vec<Stretch>,
}

/// How many steps to put together, so that there are at most `n_columns` stretches: 1, 2, 5, 10, 20, …
pub(crate) fn wanted_width(steps: Option<(u64, u64)>, n_columns: u32) -> u64 {
    let Some((first, last)) = steps else { return 1 };
    let number = |step: u64, width: u64| step.div_ceil(width);
    let fits = |width: &u64| number(last, *width) - number(first, *width) < u64::from(n_columns);
    let widths = (0..19).flat_map(|power| [1, 2, 5].map(|first| first * 10_u64.pow(power)));
    widths.into_iter().find(fits).unwrap_or(i64::MAX as u64)
}

/// Lays out what was found.
pub(crate) fn lay_out(found: Found) -> GridSamples {
    let Found { summary, steps, width, mut rows, processes, stretches } = found;
    let column_of = |stretch: &Stretch| column(stretch, width, steps);
    let mut columns: BTreeMap<SampleColumn, usize> = stretches.iter().map(|s| (column_of(s), 0)).collect();
    columns.values_mut().enumerate().for_each(|(i, index)| *index = i);
    for row in &mut rows {
        let Row { allocated, allocated_peak, reserved, outside, step_us } = Row::empty(columns.len());
        *row = SampleRow { allocated, allocated_peak, reserved, outside, step_us, ..std::mem::take(row) };
    }
    // Of several processes in a cell the one of the latest attempt counts, the latest to appear of these.
    let order: BTreeMap<i64, (i64, i64, usize)> =
        processes.iter().map(|p| (p.process, (p.attempt, p.process, p.row))).collect();
    let mut latest: BTreeMap<(usize, usize), (i64, i64)> = BTreeMap::new();
    for stretch in &stretches {
        if let Some(&(attempt, process, row)) = order.get(&stretch.process) {
            let cell = latest.entry((row, columns[&column_of(stretch)])).or_insert((attempt, process));
            *cell = (attempt, process).max(*cell);
        }
    }
    // Counts so far become counts in a stretch.
    let mut before: BTreeMap<(i64, u32), (u64, u64)> = BTreeMap::new();
    let mut troubles: BTreeMap<(usize, usize), (u64, u64)> = BTreeMap::new();
    for stretch in &stretches {
        let Some(&(attempt, process, row)) = order.get(&stretch.process) else { continue };
        let cell = (row, columns[&column_of(stretch)]);
        if !stretch.is_exact {
            let so_far = (stretch.n_ooms.unwrap_or(0), stretch.n_alloc_retries.unwrap_or(0));
            let seen = before.insert((process, stretch.device), so_far).unwrap_or_default();
            let trouble = troubles.entry(cell).or_default();
            trouble.0 += so_far.0.saturating_sub(seen.0);
            trouble.1 += so_far.1.saturating_sub(seen.1);
        }
        if latest[&cell] != (attempt, process) {
            continue;
        }
        let row = &mut rows[row];
        for (column, number) in [
            (&mut row.allocated, stretch.allocated),
            (&mut row.allocated_peak, stretch.allocated_peak),
            (&mut row.reserved, stretch.reserved),
            (&mut row.outside, stretch.outside),
            (&mut row.step_us, stretch.step_us),
        ] {
            // Of several devices the busiest.
            column[cell.1] = column[cell.1].max(number);
        }
    }
    for ((row, column), (n_ooms, n_alloc_retries)) in troubles {
        if n_ooms + n_alloc_retries > 0 {
            let column = u32::try_from(column).unwrap_or(u32::MAX);
            rows[row].troubles.push(Trouble { column, n_ooms, n_alloc_retries });
        }
    }
    GridSamples {
        n_samples: summary.n_samples,
        n_dropped: summary.n_dropped,
        first_step: summary.first_step,
        last_step: summary.last_step,
        sampled_at: summary.sampled_at,
        stride: summary.stride,
        lowest_peak: summary.lowest_peak,
        highest_peak: summary.highest_peak,
        columns: columns.into_keys().collect(),
        rows,
    }
}

/// The columns of numbers of a [`SampleRow`].
struct Row {
    allocated: Vec<Option<u64>>,
    allocated_peak: Vec<Option<u64>>,
    reserved: Vec<Option<u64>>,
    outside: Vec<Option<u64>>,
    step_us: Vec<Option<u64>>,
}

impl Row {
    fn empty(n: usize) -> Self {
        let none = || vec![None; n];
        Self { allocated: none(), allocated_peak: none(), reserved: none(), outside: none(), step_us: none() }
    }
}

/// The steps of a stretch, no further than those that are asked for and there.
fn column(stretch: &Stretch, width: u64, steps: Option<(u64, u64)>) -> SampleColumn {
    let width = if stretch.is_exact { 1 } else { width };
    let last = stretch.number.saturating_mul(width);
    let first = if stretch.number == 0 { 0 } else { last - width + 1 };
    let (least, most) = steps.unwrap_or((first, last));
    SampleColumn { first_step: first.max(least), last_step: last.min(most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(process: i64, number: u64, allocated: u64) -> Stretch {
        Stretch { process, number, allocated: Some(allocated), ..Stretch::default() }
    }

    fn found(width: u64, processes: &[(usize, i64)], stretches: Vec<Stretch>) -> Found {
        let processes =
            (1..).zip(processes).map(|(process, &(row, attempt))| Process { process, row, attempt });
        let processes: Vec<_> = processes.collect();
        let n_rows = processes.iter().map(|process| process.row + 1).max().unwrap_or(0);
        let rows = vec![SampleRow::default(); n_rows];
        Found { summary: Summary::default(), steps: Some((1, 23)), width, rows, processes, stretches }
    }

    #[test]
    fn as_many_steps_go_together_as_it_takes_to_fit() {
        let width = |first, last, n| wanted_width(Some((first, last)), n);
        assert_eq!([width(1, 100, 100), width(1, 101, 100), width(0, 100, 100)], [1, 2, 2]);
        assert_eq!([width(1, 1_000, 100), width(1, 1_001, 100), width(981, 1_000, 20)], [10, 20, 1]);
        assert_eq!(width(1, i64::MAX as u64, 1), i64::MAX as u64);
        assert_eq!(wanted_width(None, 10), 1);
    }

    #[test]
    fn columns_are_stretches_that_end_where_the_run_does() {
        let laid = lay_out(found(10, &[(0, 0)], vec![stretch(1, 1, 5), stretch(1, 2, 6), stretch(1, 3, 7)]));
        let labels: Vec<_> = laid.columns.iter().map(SampleColumn::label).collect();
        assert_eq!(labels, ["1–10", "11–20", "21–23"]);
        assert_eq!(laid.rows[0].allocated, [Some(5), Some(6), Some(7)]);
    }

    #[test]
    fn a_step_of_a_snapshot_has_a_column_of_its_own_beside_its_stretch() {
        let exact = Stretch { is_exact: true, ..stretch(1, 15, 9) };
        let laid = lay_out(found(10, &[(0, 0)], vec![stretch(1, 2, 6), exact]));
        let labels: Vec<_> = laid.columns.iter().map(SampleColumn::label).collect();
        assert_eq!(labels, ["11–20", "15"]);
        assert_eq!(laid.rows[0].allocated, [Some(6), Some(9)]);
    }

    #[test]
    fn of_several_processes_of_a_rank_the_latest_attempt_counts_and_of_several_devices_the_busiest() {
        let other_device = Stretch { device: 1, ..stretch(2, 1, 4) };
        let stretches =
            vec![stretch(1, 1, 9), stretch(1, 2, 8), stretch(2, 1, 3), other_device, stretch(3, 1, 1)];
        let laid = lay_out(found(1, &[(0, 0), (0, 1), (1, 0)], stretches));
        assert_eq!(laid.rows[0].allocated, [Some(4), Some(8)]);
        assert_eq!(laid.rows[1].allocated, [Some(1), None]);
    }

    #[test]
    fn counts_so_far_become_counts_in_a_column() {
        let trouble = |number, n_ooms, n_alloc_retries| Stretch {
            n_ooms: Some(n_ooms),
            n_alloc_retries: Some(n_alloc_retries),
            ..stretch(1, number, 0)
        };
        let laid = lay_out(found(1, &[(0, 0)], vec![trouble(1, 0, 2), trouble(2, 0, 2), trouble(3, 1, 5)]));
        let expected = [
            Trouble { column: 0, n_ooms: 0, n_alloc_retries: 2 },
            Trouble { column: 2, n_ooms: 1, n_alloc_retries: 3 },
        ];
        assert_eq!(laid.rows[0].troubles, expected);
    }

    #[test]
    fn of_the_steps_that_are_asked_for_those_count_that_there_are() {
        let summary = Summary { first_step: Some(5), last_step: Some(50), ..Summary::default() };
        let steps = |first, last| Asked::new(0, 1, 1).within(first, last).steps(&summary);
        assert_eq!(steps(None, None), Some((5, 50)));
        assert_eq!(steps(Some(1), Some(20)), Some((5, 20)));
        assert_eq!(steps(Some(30), Some(u64::MAX)), Some((30, 50)));
        assert_eq!(steps(Some(51), None), None);
        assert_eq!(Asked::new(0, 1, 1).steps(&Summary::default()), None);
    }

    #[test]
    fn rows_come_in_the_order_of_the_grid() {
        let all = [("b", Some(2)), ("b", None), ("", Some(10)), ("", Some(9)), ("b", Some(1))];
        let rows = |first, n| -> Vec<_> {
            let all = all.iter().map(|(role, rank)| ((*role).to_owned(), *rank));
            Asked::new(first, n, 1).rows(all).into_iter().map(|row| (row.role, row.rank)).collect()
        };
        let expected = [("", Some(9)), ("", Some(10)), ("b", Some(1)), ("b", Some(2)), ("b", None)];
        assert_eq!(rows(0, 100), expected.map(|(role, rank)| (role.to_owned(), rank)));
        assert_eq!(rows(3, 1), [("b".to_owned(), Some(2))]);
    }
}
