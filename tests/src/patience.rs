//! Waiting for something to happen, not for time to pass.

use std::time::{Duration, Instant};

/// How long anything may take on a machine that compiles and tests at the same time.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// How long to wait before looking again.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks again and again until there is something to see, and hands it over.
///
/// `look` says in its error what it sees instead; that is part of the message after [`PATIENCE`] is over.
pub async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(instead) if start.elapsed() > PATIENCE => {
                panic!("waited {} s for {what}, and saw: {instead}", PATIENCE.as_secs())
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
