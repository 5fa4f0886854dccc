//! The time, as something handed in.

use std::sync::Arc;

use jiff::Timestamp;

/// Tells the time. Only [`system`] reads the machine's clock; tests hand in their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The machine's clock.
pub fn system() -> Clock {
    Arc::new(Timestamp::now)
}
