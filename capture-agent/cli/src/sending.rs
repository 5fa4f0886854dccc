//! Sending parcels, and counting what became of them.

use std::{fs, thread, time::Duration};

use tidegauge_api::{Place, Sidecar, snapshot::SnapshotDetails};
use tidegauge_capture_agent::{
    backoff::{Backoff, jitter},
    parts::Bookmark,
    push::{PushError, Server},
};
use tidegauge_snapshot::words::{counted, size};

use crate::{DONE, FAILED, REFUSED, parcel::Parcel, progress::Progress};

/// How often a snapshot is tried when the server is away or busy: about ten seconds in all.
const MAX_TRIES: u32 = 5;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// What became of everything.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) n_sent: u64,
    pub(crate) n_already_here: u64,
    pub(crate) n_refused: u64,
    pub(crate) n_failed: u64,
    /// Files that a search found and that are no snapshots, nor named like any.
    pub(crate) n_passed_over: u64,
    pub(crate) bytes: u64,
}

/// Tries until it works, or will not, or has been tried often enough.
pub(crate) fn send(
    server: &Server,
    bookmark: &mut Bookmark,
    parcel: &Parcel<'_>,
    sidecar: &Sidecar,
    head: &str,
) -> Result<SnapshotDetails, PushError> {
    let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
    for n_tries in 1.. {
        match try_to_send(server, bookmark, parcel, sidecar, head) {
            Err(PushError::Later { reason, retry_after }) if n_tries < MAX_TRIES => {
                let wait = backoff.after_failure(retry_after, jitter());
                eprintln!("{}: {reason}; trying again in {:.1} s", parcel.shown, wait.as_secs_f64());
                thread::sleep(wait);
            }
            sent => return sent,
        }
    }
    unreachable!("the last try returns")
}

/// Tries once, with a line on a terminal that says how far it is.
pub(crate) fn try_to_send(
    server: &Server,
    bookmark: &mut Bookmark,
    parcel: &Parcel<'_>,
    sidecar: &Sidecar,
    head: &str,
) -> Result<SnapshotDetails, PushError> {
    let head = parcel.number.map_or_else(|| head.to_owned(), |number| format!("{head}, {number}"));
    let total = fs::metadata(parcel.file).map_or(0, |metadata| metadata.len());
    let mut progress = Progress::new(format!("{head}  {}", parcel.shown), Some(total));
    server.send_from(bookmark, parcel.file, sidecar, &mut |bytes| progress.advance(bytes))
}

pub(crate) fn is_no_snapshot(error: &PushError) -> bool {
    matches!(error, PushError::Refused(problem) if matches!(problem.status, 415 | 422))
}

/// "sent: gpt, actor, rank 3, step 2–5"
pub(crate) fn outcome(details: &SnapshotDetails) -> String {
    let role = details.place.role.as_ref().map(|role| format!(", {role}")).unwrap_or_default();
    let rank = details.place.rank.map_or("no rank".to_owned(), |rank| format!("rank {rank}"));
    let state = if details.already_here { "there already" } else { "sent" };
    format!("{state}: {}{role}, {rank}, {}", details.run_name, step_words(&details.place))
}

fn step_words(place: &Place) -> String {
    let label = place.step_label();
    if label.starts_with(|c: char| c.is_ascii_digit()) { format!("step {label}") } else { label }
}

impl Tally {
    pub(crate) fn has_any(&self) -> bool {
        self.n_sent + self.n_already_here + self.n_refused + self.n_failed > 0
    }

    pub(crate) fn add(&mut self, details: &SnapshotDetails) {
        match details.already_here {
            true => self.n_already_here += 1,
            false => self.n_sent += 1,
        }
        self.bytes += details.bytes;
    }

    /// "12 snapshots sent to http://… (1.40 GiB), 2 there already"
    pub(crate) fn summary(&self, address: &str) -> String {
        let mut parts = vec![format!(
            "{} sent to {address} ({})",
            counted(self.n_sent + self.n_already_here, "snapshot"),
            size(self.bytes)
        )];
        let more = [
            (self.n_already_here, "there already"),
            (self.n_refused, "refused as no snapshots"),
            (self.n_failed, "not sent"),
            (self.n_passed_over, "passed over as something else"),
        ];
        parts.extend(more.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
        parts.join(", ")
    }

    pub(crate) fn exit_status(&self) -> u8 {
        match (self.n_failed, self.n_refused) {
            (0, 0) => DONE,
            (0, _) => REFUSED,
            _ => FAILED,
        }
    }
}
