//! Counts odd things while reading, and says each once.

use crate::model::Finding;

/// At most this many different findings are kept apart; a hostile file could make any number.
const MAX_KINDS: usize = 200;

/// Findings by code and subject, in order of appearance.
#[derive(Default)]
pub(crate) struct Findings {
    rows: Vec<(&'static str, String, u64)>,
}

impl Findings {
    /// Counts one more of a kind. The subject is cut to 80 characters.
    #[cold]
    pub(crate) fn count(&mut self, code: &'static str, subject: &str) {
        self.add(code, subject, 1);
    }

    /// Counts `n` more of a kind.
    pub(crate) fn add(&mut self, code: &'static str, subject: &str, n: u64) {
        let subject = subject.chars().take(80).collect::<String>();
        if let Some(row) = self.rows.iter_mut().find(|row| row.0 == code && row.1 == subject) {
            row.2 += n;
        } else if self.rows.len() < MAX_KINDS {
            self.rows.push((code, subject, n));
        }
    }

    /// All of them, as sentences.
    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.rows
            .into_iter()
            .map(|(code, subject, count)| Finding {
                code: code.to_owned(),
                count,
                message: sentence(code, &subject, count),
            })
            .collect()
    }
}

fn sentence(code: &str, subject: &str, count: u64) -> String {
    let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
    match code {
        "unknown-key" => {
            format!(
                "the file has the field {subject} ({times}), which this version keeps but does not understand"
            )
        }
        "unknown-action" => {
            format!(
                "the trace has the action {subject} ({times}), which this version does not know; totals leave it out"
            )
        }
        "unknown-state" => {
            format!(
                "a block is in the state {subject} ({times}), which this version does not know; it counts as inactive"
            )
        }
        "odd-field" => {
            format!("the field {subject} does not hold a usable value ({times}); it is shown as 0 or unknown")
        }
        "odd-entry" => {
            format!("{subject} holds something that is not an entry of it ({times}); it was left out")
        }
        "trailing-bytes" => format!("{count} bytes follow the end of the pickle; they were not read"),
        "not-kept" => {
            format!(
                "the value of {subject} is too large or too deep to be kept ({times}); exports leave it out"
            )
        }
        "segment-sums" => {
            format!(
                "the sizes that a segment states are not the sums over its blocks ({times}); the sums are shown"
            )
        }
        "rotated" => format!(
            "a trace began in the middle ({times}): max_entries was changed while recording, and torch then takes \
             the wrong event for the oldest; its events were put back into order of time"
        ),
        "from-the-profiler" => {
            "torch.profiler recorded this, and torch converted it: it knows tensors only, not all that the allocator \
             handed out; reserved is merely the span of their addresses; the last device is the CPU"
                .to_owned()
        }
        _ => format!("{code}: {subject} ({times})"),
    }
}
