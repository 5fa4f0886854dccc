//! Moments in a process's life at which a snapshot is taken although no step has ended.
//!
//! Pure: what was chosen, and how often running out of memory may cost a snapshot. Who hears of these moments is
//! the language's matter.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

/// The least time between two snapshots of running out of memory. Frameworks catch the error and try again with
/// less, many times a second; the first of them tells what there is to tell.
pub const OOM_PAUSE: Duration = Duration::from_secs(60);

/// Snapshots of running out of memory that one process takes. Whoever lives with it for longer knows it by then.
pub const MAX_OOMS: u32 = 5;

/// A moment at which nobody asks for a snapshot, and one may be worth having.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// The allocator could not give what it was asked for.
    Oom,
    /// An exception that nobody caught.
    Exception,
    /// Somebody asks the process to end.
    Sigterm,
    /// The process ends by itself.
    Exit,
}

/// All of them, in the order of a process's troubles.
const ALL: [Occasion; 4] = [Occasion::Oom, Occasion::Exception, Occasion::Sigterm, Occasion::Exit];

impl Occasion {
    /// The word in settings, and the reason of the snapshot.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Exception => "exception",
            Self::Sigterm => "sigterm",
            Self::Exit => "exit",
        }
    }
}

/// The occasions that were chosen.
///
/// Running out of memory alone by default: it costs nothing until it happens, and nobody can take that snapshot
/// later. The others come to all ranks at once, also where memory has nothing to do with it: a thousand snapshots
/// because a data set was not found, or because a scheduler takes its nodes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occasions([bool; ALL.len()]);

impl Default for Occasions {
    fn default() -> Self {
        Self(ALL.map(|occasion| occasion == Occasion::Oom))
    }
}

impl Occasions {
    /// Whether this one was chosen.
    pub fn contains(self, occasion: Occasion) -> bool {
        ALL.iter().zip(self.0).any(|(known, is_chosen)| *known == occasion && is_chosen)
    }
}

impl FromStr for Occasions {
    type Err = String;

    /// "oom,exit", or "none".
    fn from_str(text: &str) -> Result<Self, String> {
        let mut chosen = [false; ALL.len()];
        for word in text.split(',').map(str::trim).filter(|_| text.trim() != "none") {
            let place = ALL.iter().position(|occasion| occasion.as_str() == word);
            let Some(is_chosen) = place.and_then(|place| chosen.get_mut(place)) else {
                let known = ALL.map(Occasion::as_str).join(", ");
                return Err(format!(r#"expected "none" or some of {known}, found {text:?}"#));
            };
            *is_chosen = true;
        }
        Ok(Self(chosen))
    }
}

impl fmt::Display for Occasions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen: Vec<_> =
            ALL.into_iter().filter(|one| self.contains(*one)).map(Occasion::as_str).collect();
        out.write_str(&if chosen.is_empty() { "none".to_owned() } else { chosen.join(", ") })
    }
}

/// Keeps snapshots of running out of memory apart, and few.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ooms {
    last: Option<Instant>,
    n_taken: u32,
}

impl Ooms {
    /// Whether one may be taken at `now`; if not, why.
    ///
    /// # Errors
    /// A sentence.
    pub fn may_take(&self, now: Instant) -> Result<(), String> {
        if self.n_taken >= MAX_OOMS {
            return Err(format!(
                "memory ran out again, without a snapshot: this process has taken {MAX_OOMS} of these"
            ));
        }
        match self.is_recent(now) {
            false => Ok(()),
            true => Err(format!(
                "memory ran out again, without a snapshot: the one before is less than {} s old",
                OOM_PAUSE.as_secs()
            )),
        }
    }

    /// Whether one was taken so lately that an error which arrives now is most likely the same.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < OOM_PAUSE)
    }

    /// One was taken at `now`.
    pub fn taken(&mut self, now: Instant) {
        (self.last, self.n_taken) = (Some(now), self.n_taken + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occasions_are_chosen_by_their_words() {
        let chosen = |text: &str| text.parse::<Occasions>().map(|chosen| chosen.to_string());
        assert_eq!(Occasions::default().to_string(), "oom");
        assert_eq!(chosen("exit, oom"), Ok("oom, exit".to_owned()));
        assert_eq!(chosen("none"), Ok("none".to_owned()));
        let expected = r#"expected "none" or some of oom, exception, sigterm, exit, found "oom,sigint""#;
        assert_eq!(chosen("oom,sigint"), Err(expected.to_owned()));
        assert!(chosen("").is_err());
        let all: Occasions = "oom,exception,sigterm,exit".parse().unwrap();
        assert!(ALL.iter().all(|occasion| all.contains(*occasion)));
    }

    #[test]
    fn running_out_of_memory_costs_one_snapshot_a_minute_and_five_in_all() {
        let (start, mut ooms) = (Instant::now(), Ooms::default());
        let mut taken = Vec::new();
        for second in 0..1000 {
            let now = start + Duration::from_secs(second);
            if ooms.may_take(now).is_ok() {
                ooms.taken(now);
                taken.push(second);
            }
        }
        assert_eq!(taken, [0, 60, 120, 180, 240]);
        assert!(ooms.may_take(start + Duration::from_secs(1000)).unwrap_err().contains("has taken 5"));
    }
}
