//! How long to wait before asking a server again.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    time::Duration,
};

/// Waits that grow: exponential, with full jitter, so that a thousand ranks that failed together do not come
/// back together.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    n_failures: u32,
}

impl Backoff {
    /// Waits of up to `first`, twice that, and so on, never more than `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, n_failures: 0 }
    }

    /// The wait after another failure. `asked` is what the server asked for; it is honored up to `longest`, and
    /// never shortened. `jitter` lies between 0 and 1: see [`jitter`].
    pub fn after_failure(&mut self, asked: Option<Duration>, jitter: f64) -> Duration {
        // 2^20 first waits are longer than any `longest`.
        let ceiling = self.first.saturating_mul(1 << self.n_failures.min(20)).min(self.longest);
        self.n_failures = self.n_failures.saturating_add(1);
        let wait = ceiling.mul_f64(jitter.clamp(0.0, 1.0));
        asked.map_or(wait, |asked| wait.max(asked.min(self.longest)))
    }

    /// Something worked: the next failure is a first one.
    pub fn succeeded(&mut self) {
        self.n_failures = 0;
    }
}

/// A number between 0 and 1, different at each call.
pub fn jitter() -> f64 {
    // The standard library seeds each hasher differently: random enough to spread retries.
    let random = RandomState::new().build_hasher().finish() >> 32;
    f64::from(u32::try_from(random).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut backoff = Backoff::new(SECOND, 60 * SECOND);
        let waits: Vec<_> = (0..8).map(|_| backoff.after_failure(None, 1.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.succeeded();
        assert_eq!(backoff.after_failure(None, 1.0), SECOND);
    }

    #[test]
    fn jitter_takes_any_part_of_the_wait() {
        let mut backoff = Backoff::new(SECOND, 60 * SECOND);
        assert_eq!(backoff.after_failure(None, 0.0), Duration::ZERO);
        assert_eq!(backoff.after_failure(None, 0.5), SECOND);
        let drawn: Vec<_> = (0..100).map(|_| jitter()).collect();
        assert!(drawn.iter().all(|jitter| (0.0..=1.0).contains(jitter)));
        assert!(drawn.iter().any(|jitter| *jitter != drawn[0]));
    }

    #[test]
    fn what_the_server_asks_for_is_honored_up_to_the_longest() {
        let mut backoff = Backoff::new(SECOND, 60 * SECOND);
        assert_eq!(backoff.after_failure(Some(7 * SECOND), 0.3), 7 * SECOND);
        assert_eq!(backoff.after_failure(Some(3600 * SECOND), 0.3), 60 * SECOND);
    }
}
