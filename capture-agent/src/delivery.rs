//! One snapshot from an outbox to the server, and what to do with it after that.
//!
//! Whoever sends out of an outbox does it in this way: the training process, the next process of its run, and
//! `tidegauge agent`.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegauge_api::{Sidecar, snapshot::SnapshotDetails};

use crate::{
    outbox::{Folder, Item},
    push::{PushError, Server},
};

/// Ranks that begin to send in a second, after a step that all of them end together.
const RANKS_A_SECOND: u32 = 100;

/// The longest that a rank waits for its turn.
const LONGEST_TURN: Duration = Duration::from_secs(10);

/// Sends what waits.
#[derive(Debug)]
pub struct Deliveries {
    server: Server,
    /// Arrived with other content than was announced: damaged on its way, or already here. Tried once more.
    damaged: Option<PathBuf>,
}

/// What became of a snapshot.
#[derive(Debug)]
pub enum Delivered {
    /// The server has it, and the outbox does not any more.
    Sent(Box<SnapshotDetails>),
    /// The server does not want it; it is kept aside.
    Refused {
        /// Where it is now.
        kept: PathBuf,
        /// The server's sentence.
        sentence: String,
    },
    /// It was not there any more: it gave way, or somebody else sent it.
    Gone,
}

/// Why a snapshot still waits.
#[derive(Debug, thiserror::Error)]
pub enum Waits {
    /// The same may work later.
    #[error("{reason}")]
    Later {
        /// What happened.
        reason: String,
        /// When the server wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// Nothing will be different later.
    #[error("{0}")]
    ForGood(String),
}

impl Deliveries {
    /// To this server.
    pub fn to(server: Server) -> Self {
        Self { server, damaged: None }
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Tries to send a snapshot. One that was sent is removed, one that was refused is moved aside. `progress` is told
    /// how many bytes went out with each read.
    ///
    /// # Errors
    /// [`Waits`] says whether to try again.
    pub fn deliver(
        &mut self,
        folder: &Folder,
        item: &Item,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Delivered, Waits> {
        let mut sidecar = item.sidecar().unwrap_or_default();
        sidecar.place.run = sidecar.place.run.or_else(|| folder.run());
        let sent = self.server.send_from(&mut item.bookmark(), &item.snapshot, &sidecar, progress);
        match sent {
            Ok(details) => {
                item.remove().map_err(|error| stuck(&item.snapshot, &error))?;
                Ok(Delivered::Sent(Box::new(details)))
            }
            Err(PushError::Later { reason, retry_after }) => Err(Waits::Later { reason, retry_after }),
            Err(PushError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Delivered::Gone)
            }
            Err(error) if is_damaged(&error) && self.damaged.as_ref() != Some(&item.snapshot) => {
                self.damaged = Some(item.snapshot.clone());
                Err(Waits::Later { reason: error.to_string(), retry_after: None })
            }
            Err(error) if error.is_about_the_snapshot() => {
                let sentence = error.to_string();
                let kept = folder.reject(item, &sentence).map_err(|error| stuck(&item.snapshot, &error))?;
                Ok(Delivered::Refused { kept, sentence })
            }
            Err(error) => Err(Waits::ForGood(error.to_string())),
        }
    }
}

fn is_damaged(error: &PushError) -> bool {
    matches!(error, PushError::Refused(problem) if problem.kind == PushError::DIGEST_MISMATCH)
}

fn stuck(path: &Path, error: &io::Error) -> Waits {
    Waits::ForGood(format!("{}: {error}", path.display()))
}

/// How long a rank waits before it begins to send: all of them end a step together, and a server is not made for a
/// thousand beginnings at once.
pub(crate) fn turn(sidecar: &Sidecar) -> Duration {
    match (sidecar.place.rank, sidecar.world_size) {
        (Some(rank), Some(world_size)) if world_size > 1 => {
            let all = Duration::from_secs(1) * rank / RANKS_A_SECOND;
            Duration::from_nanos((all.as_nanos() % LONGEST_TURN.as_nanos()) as u64)
        }
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use tidegauge_api::Place;

    use super::*;

    #[test]
    fn ranks_take_turns_and_the_first_and_a_lone_one_wait_for_nobody() {
        let turn = |rank: Option<u32>, world_size| {
            turn(&Sidecar { place: Place { rank, ..Place::default() }, world_size, ..Sidecar::default() })
        };
        assert_eq!(turn(Some(0), Some(1024)), Duration::ZERO);
        assert_eq!(turn(Some(7), Some(1)), Duration::ZERO);
        assert_eq!(turn(Some(7), None), Duration::ZERO);
        assert_eq!(turn(Some(7), Some(1024)), Duration::from_millis(70));
        let turns: Vec<_> = (0..1024).map(|rank| turn(Some(rank), Some(1024))).collect();
        assert!(turns.iter().all(|turn| *turn < LONGEST_TURN));
        // In any second only so many begin.
        for second in 0..10 {
            let begin = turns.iter().filter(|turn| turn.as_secs() == second).count();
            assert!(begin <= 124, "{begin} in second {second}");
        }
    }
}
