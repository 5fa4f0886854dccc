//! When memory has grown enough for a snapshot nobody planned.
//!
//! Pure: [`Growth`] is told each step's peak and compares it with the median of the steps before it. The median,
//! because the first step, an evaluation or a checkpoint may stand out without meaning anything.

use std::collections::VecDeque;

use tidegauge_snapshot::words::size;

/// Steps whose median a peak is compared with; older ones are forgotten.
const N_RECENT: usize = 32;

/// Steps that must have been seen before anything counts as growth: the first ones always grow.
const N_LEAST: usize = 5;

/// From which factor on, and how often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrowthSettings {
    /// A peak above this many medians is growth; more than 1.
    pub factor: f64,
    /// At most one snapshot in so many steps.
    pub pause_steps: u64,
}

/// The peaks of recent steps.
#[derive(Debug)]
pub struct Growth {
    settings: GrowthSettings,
    /// Oldest first, at most [`N_RECENT`].
    recent: VecDeque<u64>,
    /// Steps since the last snapshot of growth, if there was one.
    since: Option<u64>,
}

/// A peak that is growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// This step's peak.
    pub peak_bytes: u64,
    /// The median of the steps before it.
    pub median_bytes: u64,
}

impl Growth {
    /// Before the first step.
    pub fn new(settings: GrowthSettings) -> Self {
        Self { settings, recent: VecDeque::new(), since: None }
    }

    /// A step ended, with this peak. Nothing is growth for `pause_steps` steps after [`Growth::taken`].
    pub fn end_of_step(&mut self, peak_bytes: u64) -> Option<Grown> {
        self.since = self.since.map(|since| since.saturating_add(1));
        let median_bytes = self.median();
        if self.recent.len() == N_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(peak_bytes);
        let is_paused = self.since.is_some_and(|since| since < self.settings.pause_steps);
        let median_bytes = median_bytes.filter(|_| !is_paused)?;
        // Bytes up to 2^53, eight petabytes, are exact.
        let has_grown = peak_bytes as f64 > median_bytes as f64 * self.settings.factor;
        has_grown.then_some(Grown { peak_bytes, median_bytes })
    }

    /// A snapshot of the growth that was told is taken.
    pub fn taken(&mut self) {
        self.since = Some(0);
    }

    fn median(&self) -> Option<u64> {
        let mut sorted: Vec<_> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() >= N_LEAST)
    }
}

impl std::fmt::Display for Grown {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (peak, median) = (size(self.peak_bytes), size(self.median_bytes));
        write!(out, "allocated memory reached {peak}, the median of recent steps is {median}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the steps, from 1, at which growth is told and a snapshot taken.
    fn told(factor: f64, pause_steps: u64, peaks: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let mut growth = Growth::new(GrowthSettings { factor, pause_steps });
        let steps = peaks.into_iter().enumerate();
        let mut told = Vec::new();
        for (i, peak) in steps {
            if growth.end_of_step(peak).is_some() {
                growth.taken();
                told.push(i + 1);
            }
        }
        told
    }

    #[test]
    fn growth_whose_snapshot_failed_is_told_again() {
        let mut growth = Growth::new(GrowthSettings { factor: 1.5, pause_steps: 100 });
        assert!([10; 5].iter().all(|peak| growth.end_of_step(*peak).is_none()));
        assert!(growth.end_of_step(20).is_some() && growth.end_of_step(20).is_some());
        growth.taken();
        assert_eq!(growth.end_of_step(20), None);
    }

    #[test]
    fn a_peak_above_the_factor_is_growth_and_one_at_it_is_not() {
        assert_eq!(told(1.5, 100, [10, 10, 10, 10, 10, 15]), [0usize; 0]);
        assert_eq!(told(1.5, 100, [10, 10, 10, 10, 10, 16]), [6]);
        let mut growth = Growth::new(GrowthSettings { factor: 1.5, pause_steps: 1 });
        for peak in [8, 10, 9, 11, 40] {
            assert_eq!(growth.end_of_step(peak), None);
        }
        assert_eq!(growth.end_of_step(16), Some(Grown { peak_bytes: 16, median_bytes: 10 }));
    }

    #[test]
    fn the_first_steps_grow_and_mean_nothing() {
        assert_eq!(told(1.1, 1, [1, 2, 4, 8, 16]), [0usize; 0]);
        assert_eq!(told(1.1, 1, [1, 2, 4, 8, 16, 32]), [6]);
    }

    #[test]
    fn growth_is_told_once_in_so_many_steps() {
        let rising = || (1..=30).map(|n| n * n * 100);
        assert_eq!(told(1.1, 10, rising()), [6, 16, 26]);
        assert_eq!(told(1.1, 1000, rising()), [6]);
    }

    #[test]
    fn a_level_that_stays_becomes_the_one_to_compare_with() {
        let stays = std::iter::repeat_n(10, 40).chain(std::iter::repeat_n(20, 200));
        // Half of the recent steps later the median is 20.
        assert_eq!(told(1.5, 1, stays), (41..=56).collect::<Vec<_>>());
    }

    #[test]
    fn memory_that_is_never_used_does_not_grow() {
        assert_eq!(told(1.5, 1, [0; 50]), [0usize; 0]);
    }
}
