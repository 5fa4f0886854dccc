//! What other packages in the process know of it: wandb, Ray, Megatron, an adapter, the other ranks.
//!
//! They are asked only where the program has loaded and started them; nothing is imported for it.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use serde_json::json;
use tidegauge_api::Sidecar;

/// The longest that a rank waits, once, at the end of its first step, to be told what the run is called.
pub const AGREEMENT_PATIENCE: Duration = Duration::from_secs(2);

/// Crockford's digits, as in a ULID.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// What they know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Neighbors {
    /// `wandb.run.id`
    pub wandb_run: Option<String>,
    /// Ray's job, as the name of a run.
    pub ray_job: Option<String>,
    /// What else Ray says: "job", "actor", "node".
    pub ray: BTreeMap<String, String>,
    /// The process's numbers in the dimensions of its parallelism: "tp", "pp", "dp".
    pub coordinates: BTreeMap<String, u64>,
    /// The role that an adapter told, and the adapter's name.
    pub role: Option<(String, String)>,
    /// What the ranks agreed to call the run.
    pub agreed_run: Option<String>,
}

impl Neighbors {
    /// Writes into a sidecar what the place does not hold.
    pub fn describe(&self, sidecar: &mut Sidecar) {
        if !self.ray.is_empty() {
            sidecar.more.insert("ray".to_owned(), json!(self.ray));
        }
        if !self.coordinates.is_empty() {
            sidecar.more.insert("coordinates".to_owned(), json!(self.coordinates));
        }
    }
}

/// A name for a run that nothing names: the script's, with the time in milliseconds and thirty random bits behind
/// it, written as a ULID does. Names of one script sort by time.
pub fn proposed_run(script: &str, now_us: i64) -> String {
    let millis = u64::try_from(now_us / 1000).unwrap_or_default();
    let chance = RandomState::new().hash_one(now_us);
    let digit =
        |value: u64, place: u32| DIGITS.get((value >> (5 * place) & 31) as usize).copied().unwrap_or(b'0');
    let digits =
        (0..10).rev().map(|place| digit(millis, place)).chain((0..6).map(|place| digit(chance, place)));
    format!("{script}-{}", digits.map(char::from).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposed_names_sort_by_time_and_differ_within_it() {
        let earlier = proposed_run("train", 1_800_000_000_000_000);
        let later = proposed_run("train", 1_800_000_001_000_000);
        assert!(earlier < later && earlier.len() == "train-".len() + 16, "{earlier} {later}");
        let names: std::collections::BTreeSet<_> = (0..100).map(|_| proposed_run("train", 1)).collect();
        assert!(names.len() > 95, "{} of 100 differ", names.len());
    }
}
