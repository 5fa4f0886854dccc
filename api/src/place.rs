//! Where a snapshot belongs: a run, an attempt, a role, a rank, a window of steps, a reason.

use serde::{Deserialize, Serialize};

/// Where a snapshot belongs in a run. What is not known is absent.
///
/// ```
/// use tidegauge_api::Place;
/// let place = Place { first_step: Some(2), last_step: Some(5), ..Place::default() };
/// assert_eq!(place.step_label(), "2–5");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// The run's name, or its id when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Restart count of the run, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// What the process does in the run: "actor", "critic"; absent when all do the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Global rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Host name of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Process id on that host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// First step of the window the snapshot covers; absent when it is `last_step` or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_step: Option<u64>,
    /// The step at whose end the snapshot was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// Why it was taken: "step" (the default), "oom", "exit", "startup" or a word of the caller's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Place {
    /// The steps as a grid's column head shows them: "1", "2–5", or the reason where there is no step.
    pub fn step_label(&self) -> String {
        let reason = self.reason.as_deref().filter(|reason| *reason != "step");
        let steps = match (self.first_step, self.last_step) {
            (Some(first), Some(last)) if first < last => Some(format!("{first}–{last}")),
            (_, Some(last)) => Some(last.to_string()),
            (Some(first), None) => Some(format!("{first}–")),
            (None, None) => None,
        };
        match (steps, reason) {
            (Some(steps), Some(reason)) => format!("{steps} {reason}"),
            (Some(steps), None) => steps,
            (None, Some(reason)) => reason.to_owned(),
            (None, None) => "no step".to_owned(),
        }
    }

    /// This place, with what it leaves open taken from `other`.
    pub fn or(self, other: Self) -> Self {
        // A step given on one side must not be joined with a first step guessed on the other.
        let (first_step, last_step) = match self.last_step {
            Some(_) => (self.first_step, self.last_step),
            None => (self.first_step.or(other.first_step), other.last_step),
        };
        Self {
            run: self.run.or(other.run),
            attempt: self.attempt.or(other.attempt),
            role: self.role.or(other.role),
            rank: self.rank.or(other.rank),
            host: self.host.or(other.host),
            pid: self.pid.or(other.pid),
            first_step,
            last_step,
            reason: self.reason.or(other.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_reads_as_a_range_and_a_reason_follows_its_step() {
        let label = |first, last, reason: Option<&str>| {
            Place {
                first_step: first,
                last_step: last,
                reason: reason.map(str::to_owned),
                ..Place::default()
            }
            .step_label()
        };
        assert_eq!(label(Some(6), Some(10), None), "6–10");
        assert_eq!(label(Some(1), Some(1), Some("step")), "1");
        assert_eq!(label(None, Some(7), Some("oom")), "7 oom");
        assert_eq!(label(None, None, Some("exit")), "exit");
        assert_eq!(label(None, None, None), "no step");
    }
}
