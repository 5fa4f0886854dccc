//! Turns recording off when snapshots cost training more than was agreed.

use std::time::Duration;

/// The largest part of its time that training may spend on snapshots unless another is chosen, percent.
pub const DEFAULT_MAX_PERCENT: u64 = 10;

/// Time spent on snapshots that is never too much: the first steps are short, and one snapshot of a large history
/// takes seconds.
const ALLOWANCE: Duration = Duration::from_secs(30);

/// Adds up what snapshots cost.
#[derive(Debug, Clone, Copy)]
pub struct Breaker {
    max_percent: u64,
    allowance: Duration,
    spent: Duration,
}

impl Breaker {
    /// Trips when snapshots take more than `max_percent` of the time; never with 100.
    pub fn new(max_percent: u64) -> Self {
        Self { max_percent, allowance: ALLOWANCE, spent: Duration::ZERO }
    }

    /// A snapshot kept training for `spent`, `elapsed` after recording began.
    ///
    /// # Errors
    /// A sentence when that is too much.
    pub fn spend(&mut self, spent: Duration, elapsed: Duration) -> Result<(), String> {
        self.spent += spent;
        let is_too_much = self.spent > self.allowance
            && self.max_percent < 100
            && self.spent.as_secs_f64() * 100.0 > elapsed.as_secs_f64() * self.max_percent as f64;
        match is_too_much {
            false => Ok(()),
            true => Err(format!(
                "snapshots took {:.0} s of {:.0} s, more than {} %: choose fewer steps, a smaller max_entries, or \
                 raise max_capture_percent",
                self.spent.as_secs_f64(),
                elapsed.as_secs_f64(),
                self.max_percent
            )),
        }
    }

    /// Without an allowance, for tests that have no half minute.
    #[cfg(test)]
    pub(crate) fn at_once(max_percent: u64) -> Self {
        Self { allowance: Duration::ZERO, ..Self::new(max_percent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_tenth_of_the_time_is_agreed_and_half_a_minute_is_never_too_much() {
        let mut breaker = Breaker::new(10);
        assert_eq!(breaker.spend(secs(30), secs(31)), Ok(()));
        assert_eq!(breaker.spend(secs(1), secs(310)), Ok(()));
        let error = breaker.spend(secs(1), secs(311)).unwrap_err();
        assert!(error.starts_with("snapshots took 32 s of 311 s, more than 10 %"), "{error}");
    }

    #[test]
    fn a_hundred_percent_never_trips() {
        assert_eq!(Breaker::new(100).spend(secs(100), secs(1)), Ok(()));
    }
}
