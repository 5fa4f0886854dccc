//! The rows of the upload form: what a file's path tells, what a person makes of it, how far its bytes are.

use tidegauge_api::from_path::{place_from_path, run_from_path};
use tidegauge_api::{Place, paths};

use crate::link::with_query;

/// The most files the form takes at once. More is a matter for `tidegauge push`.
pub const MAX_ROWS: usize = 2_000;

/// The run of files whose path names none.
pub const DEFAULT_RUN: &str = "uploads";

/// The fields of one row, as text a person can edit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields {
    /// The run's name.
    pub run: String,
    /// What the process does in the run; empty when all do the same.
    pub role: String,
    /// Rank, or empty.
    pub rank: String,
    /// Step or window: "5", "2–5", or empty.
    pub step: String,
}

impl Fields {
    /// What a path tells. `folder` is the folder that was picked or dropped, if one was.
    pub fn from_path(path: &str, folder: Option<&str>) -> Self {
        let place = place_from_path(path).map(|told| told.place).unwrap_or_default();
        let run = place.run.clone().or_else(|| run_from_path(path)).or_else(|| folder.map(str::to_owned));
        let step = match (place.first_step, place.last_step) {
            (Some(first), Some(last)) if first < last => format!("{first}–{last}"),
            (_, Some(last)) => last.to_string(),
            (_, None) => String::new(),
        };
        Self {
            run: run.unwrap_or_else(|| DEFAULT_RUN.to_owned()),
            role: place.role.unwrap_or_default(),
            rank: place.rank.map(|rank| rank.to_string()).unwrap_or_default(),
            step,
        }
    }

    /// The place these fields spell, or a sentence that says which of them does not.
    pub fn place(&self) -> Result<Place, String> {
        let text = |value: &str| Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        let rank = match self.rank.trim() {
            "" => None,
            rank => Some(rank.parse().map_err(|_e| format!("rank is a number from 0, not “{rank}”"))?),
        };
        let (first_step, last_step) = steps(self.step.trim())?;
        let run = text(&self.run).ok_or("name the run this belongs to")?;
        Ok(Place { run: Some(run), role: text(&self.role), rank, first_step, last_step, ..Place::default() })
    }

    /// Where to send the bytes of a file: these fields and what else its path tells, as a query.
    pub fn upload_address(&self, path: &str) -> Result<String, String> {
        let place = self.place()?;
        let told = place_from_path(path).map(|told| told.place).unwrap_or_default();
        let number = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
        let file_name = path.rsplit('/').next().unwrap_or(path);
        Ok(with_query(
            paths::SNAPSHOTS,
            &[
                ("run", place.run.as_deref().unwrap_or_default()),
                ("role", place.role.as_deref().unwrap_or_default()),
                ("rank", &number(place.rank.map(u64::from))),
                ("step", &number(place.last_step)),
                ("first_step", &number(place.first_step)),
                ("reason", told.reason.as_deref().unwrap_or_default()),
                ("file_name", file_name),
            ],
        ))
    }
}

/// "5" or "2–5" (a hyphen will do) as first and last step.
fn steps(text: &str) -> Result<(Option<u64>, Option<u64>), String> {
    if text.is_empty() {
        return Ok((None, None));
    }
    let refused = || format!("step is a number like 5 or a window like 2–5, not “{text}”");
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_e| refused());
    match text.split_once(['–', '-']) {
        None => Ok((None, Some(number(text)?))),
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last { Err(refused()) } else { Ok((Some(first), Some(last))) }
        }
    }
}

/// How far a file of the form is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It waits for "Upload".
    Waiting,
    /// It waits for its turn.
    Queued,
    /// Its bytes are on their way.
    Sending {
        /// Bytes sent.
        done: u64,
    },
    /// The server has it.
    Done {
        /// Id of the snapshot.
        snapshot_id: String,
        /// Id of its run.
        run_id: String,
        /// True when the server had the same content for the same place already.
        already_here: bool,
    },
    /// It was not taken; the sentence says why.
    Failed(String),
}

impl Progress {
    /// True when "Upload" or "Try again" would send it.
    pub fn can_be_sent(&self) -> bool {
        matches!(self, Self::Waiting | Self::Failed(_))
    }
}

/// The endings of files that a snapshot may be in.
const ENDINGS: [&str; 7] = [".pickle", ".pkl", ".pickle4", ".gz", ".zst", ".zstd", ".bin"];

/// True for names that a snapshot may have. Of a whole folder only these are taken; a file that was picked by
/// itself is taken whatever its name.
pub fn may_be_snapshot(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(run: &str, rank: &str, step: &str) -> Fields {
        Fields { run: run.to_owned(), role: String::new(), rank: rank.to_owned(), step: step.to_owned() }
    }

    #[test]
    fn a_path_fills_the_fields_in() {
        let told = Fields::from_path("gpt-small/steps4-5/torch_memory_rank3_pid9.pickle", Some("gpt-small"));
        assert_eq!(told, fields("gpt-small", "3", "4–5"));
    }

    #[test]
    fn a_name_that_tells_nothing_leaves_the_fields_to_be_asked() {
        assert_eq!(Fields::from_path("memory.pickle", None), fields(DEFAULT_RUN, "", ""));
        assert_eq!(Fields::from_path("friday/memory.pickle", Some("friday")).run, "friday");
    }

    #[test]
    fn fields_become_an_address() {
        let address = fields("llama 8b", "3", "2-5").upload_address("a/b/dump.pickle").unwrap();
        assert_eq!(
            address,
            "/api/v1/snapshots?run=llama%208b&rank=3&step=5&first_step=2&file_name=dump.pickle"
        );
    }

    #[test]
    fn a_field_that_cannot_be_meant_is_said_so() {
        assert_eq!(fields("r", "three", "").place().unwrap_err(), "rank is a number from 0, not “three”");
        assert!(fields("r", "-1", "").place().is_err());
        assert!(fields("r", "", "5–2").place().is_err());
        assert!(fields("r", "", "five").place().is_err());
        assert_eq!(fields(" ", "", "").place().unwrap_err(), "name the run this belongs to");
        assert_eq!(fields("r", "", " 7 ").place().unwrap().last_step, Some(7));
    }

    #[test]
    fn of_a_folder_only_what_may_be_a_snapshot_is_taken() {
        assert!(may_be_snapshot("rank0.PICKLE"));
        assert!(may_be_snapshot("snap.pkl.zst"));
        assert!(!may_be_snapshot("train.py"));
        assert!(!may_be_snapshot(".DS_Store"));
    }
}
