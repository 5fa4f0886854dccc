//! Samples: what the allocator and the device count at a step's end, between snapshots.
//!
//! A snapshot is large and rare; a sample is a row of numbers and comes with each step, so that a run's grid has
//! no holes. Agents send them in batches, as columns. They are news, not records: a batch that is lost is not sent
//! for ever, and a server thins out old ones.

use serde::{Deserialize, Serialize};

use crate::Place;

/// The longest batch that is read, bytes of JSON; a longer one is refused as a whole.
pub const MAX_BATCH_BYTES: usize = 1 << 20;

/// The most samples in a batch; a batch with more is refused as a whole.
pub const MAX_BATCH_SAMPLES: usize = 4096;

/// The most lost snapshots that a batch names; a batch with more is refused as a whole.
pub const MAX_BATCH_LOST: usize = 256;

/// The most rows of a grid in one answer; who asks for more gets so many.
pub const MAX_GRID_ROWS: u32 = 128;

/// The most columns of steps in one answer; who asks for more gets so many.
pub const MAX_GRID_COLUMNS: u32 = 512;

/// `POST /api/v1/samples`: samples of one process. A batch that was sent before changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SampleBatch {
    /// The process. Steps and reason, if they are there, mean nothing.
    #[serde(flatten)]
    pub place: Place,
    /// Samples that this process took so far and dropped before they were sent.
    pub n_dropped: u64,
    /// Snapshots that this process took or was to take so far, and that nobody will see.
    pub n_lost: u64,
    /// Those of them that have not been told, as far as they are known one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
    /// The samples.
    pub samples: Samples,
}

/// A snapshot that nobody will see.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Lost {
    /// First step of its window, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_step: Option<u64>,
    /// The step at whose end it was or would have been taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    /// What became of it, in words: "the outbox is full".
    pub why: String,
}

/// The answer to a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplesTaken {
    /// Id of the run.
    pub run_id: String,
    /// Samples that were not here before.
    pub n_new: u64,
}

macro_rules! columns {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// One device of a process at a step's end. What is not known is absent.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Sample {
            /// The step that ended.
            pub step: u64,
            /// When: Unix epoch, microseconds.
            pub at_us: i64,
            /// The device, as the process numbers it.
            pub device: u32,
            $($(#[doc = $doc])+ pub $name: Option<u64>,)+
        }

        /// Samples as columns. Each is as long as `step`; one in which nothing is known may be empty.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Samples {
            /// The steps that ended.
            pub step: Vec<u64>,
            /// When: Unix epoch, microseconds.
            pub at_us: Vec<i64>,
            /// The devices, as the process numbers them.
            pub device: Vec<u32>,
            $(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "nothing_known")]
                pub $name: Vec<Option<u64>>,
            )+
        }

        impl Sample {
            /// Its numbers with their names, in the order of the columns.
            pub fn numbers(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }

        impl Samples {
            /// Adds a row.
            pub fn push(&mut self, sample: &Sample) {
                self.step.push(sample.step);
                self.at_us.push(sample.at_us);
                self.device.push(sample.device);
                $(self.$name.push(sample.$name);)+
            }

            /// The rows.
            ///
            /// # Errors
            /// [`UnevenColumns`] when a column has another length than `step`.
            pub fn rows(&self) -> Result<Vec<Sample>, UnevenColumns> {
                let n = self.step.len();
                let even = |name, length: usize, may_be_empty: bool| {
                    let is_even = length == n || (may_be_empty && length == 0);
                    if is_even { Ok(()) } else { Err(UnevenColumns { name, length, n }) }
                };
                even("at_us", self.at_us.len(), false)?;
                even("device", self.device.len(), false)?;
                $(even(stringify!($name), self.$name.len(), true)?;)+
                let row = |i: usize| Sample {
                    step: self.step[i],
                    at_us: self.at_us[i],
                    device: self.device[i],
                    $($name: self.$name.get(i).copied().flatten(),)+
                };
                Ok((0..n).map(row).collect())
            }
        }
    };
}

columns! {
    /// Microseconds since the end of the step before that this process told of.
    step_us,
    /// Bytes allocated now.
    allocated,
    /// The most bytes allocated at once since the program began, or since it last reset its peaks. The agent
    /// never resets them.
    allocated_peak,
    /// Bytes active now.
    active,
    /// The most bytes active at once, as far back as `allocated_peak`.
    active_peak,
    /// Bytes reserved now.
    reserved,
    /// The most bytes reserved at once, as far back as `allocated_peak`.
    reserved_peak,
    /// Bytes requested and not freed.
    requested,
    /// The most bytes requested at once, as far back as `allocated_peak`.
    requested_peak,
    /// Bytes of inactive split blocks now.
    inactive_split,
    /// Times the allocator ran out of memory since the program began.
    n_ooms,
    /// Times it gave its cache back and tried again since the program began.
    n_alloc_retries,
    /// Bytes of the device that are free, whoever holds the others. Asked at most once a second.
    device_free,
    /// Bytes of the device in all.
    device_total,
}

fn nothing_known(column: &[Option<u64>]) -> bool {
    column.iter().all(Option::is_none)
}

/// A column that has another length than the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnevenColumns {
    name: &'static str,
    length: usize,
    n: usize,
}

impl std::fmt::Display for UnevenColumns {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, length, n } = self;
        write!(out, "the column {name:?} has {length} entries and \"step\" has {n}")
    }
}

impl std::error::Error for UnevenColumns {}

/// `GET /api/v1/runs/{run id}/samples`: some rows of a run's grid, their steps put together to columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GridSamples {
    /// Samples of the run that are here.
    pub n_samples: u64,
    /// Samples that its processes dropped before they were sent.
    pub n_dropped: u64,
    /// The first step of a sample.
    pub first_step: Option<u64>,
    /// The last step of a sample.
    pub last_step: Option<u64>,
    /// When the latest sample was taken: RFC 3339, UTC.
    pub sampled_at: Option<String>,
    /// In the older half of the steps only every so manieth is still here; 1 until there were too many.
    pub stride: u64,
    /// Least of all peaks of allocated bytes in the run, in any row.
    pub lowest_peak: Option<u64>,
    /// Highest of them.
    pub highest_peak: Option<u64>,
    /// The columns: stretches of equal length by their first step, and steps of snapshots alone.
    pub columns: Vec<SampleColumn>,
    /// Rows in the order of the grid's.
    pub rows: Vec<SampleRow>,
}

/// Steps that are shown together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SampleColumn {
    /// The first.
    pub first_step: u64,
    /// The last.
    pub last_step: u64,
}

impl SampleColumn {
    /// "6", "6–10"
    pub fn label(&self) -> String {
        let Self { first_step, last_step } = self;
        if first_step == last_step { last_step.to_string() } else { format!("{first_step}–{last_step}") }
    }
}

/// The samples of one row, an entry per column; of several processes that were this rank, the latest attempt's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleRow {
    /// Empty when the run has no roles.
    pub role: String,
    /// The rank.
    pub rank: Option<u32>,
    /// Most bytes allocated at the end of a step, on the busiest device.
    pub allocated: Vec<Option<u64>>,
    /// Highest peak of allocated bytes, as it was since the program began or last reset it.
    pub allocated_peak: Vec<Option<u64>>,
    /// Most bytes reserved at the end of a step.
    pub reserved: Vec<Option<u64>>,
    /// Most bytes of the device in use beside what this process had reserved, where it was asked.
    pub outside: Vec<Option<u64>>,
    /// The longest step, microseconds.
    pub step_us: Vec<Option<u64>>,
    /// Columns in which the allocator ran out of memory or tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<Trouble>,
}

/// What went wrong in a column of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Index into [`GridSamples::columns`].
    pub column: u32,
    /// Times the allocator ran out of memory in these steps.
    pub n_ooms: u64,
    /// Times it gave its cache back and tried again.
    pub n_alloc_retries: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(step: u64) -> Sample {
        Sample { step, at_us: 7, allocated: Some(step * 512), ..Sample::default() }
    }

    #[test]
    fn rows_become_columns_and_rows_again() {
        let rows = [sample(1), sample(2), Sample { n_ooms: Some(1), device: 3, ..sample(3) }];
        let mut samples = Samples::default();
        rows.iter().for_each(|row| samples.push(row));
        assert_eq!(samples.rows().unwrap(), rows);
        let json = serde_json::to_string(&samples).unwrap();
        let expected = r#"{"step":[1,2,3],"at_us":[7,7,7],"device":[0,0,3],"allocated":[512,1024,1536],"n_ooms":[null,null,1]}"#;
        assert_eq!(json, expected);
        let back: Samples = serde_json::from_str(&json).unwrap();
        assert_eq!(back.rows().unwrap(), rows);
    }

    #[test]
    fn columns_of_different_lengths_are_told_by_name() {
        let samples = Samples { step: vec![1, 2], at_us: vec![0, 0], device: vec![0], ..Samples::default() };
        let error = samples.rows().unwrap_err().to_string();
        assert_eq!(error, r#"the column "device" has 1 entries and "step" has 2"#);
    }

    #[test]
    fn a_field_nobody_has_heard_of_is_left_out() {
        let text = r#"{"run":"gpt","rank":3,"n_dropped":2,"colour":"blue","samples":{"step":[1],"at_us":[0],"device":[0],"watts":[700]}}"#;
        let batch: SampleBatch = serde_json::from_str(text).unwrap();
        assert_eq!(
            (batch.place.rank, batch.n_dropped, batch.samples.step.as_slice()),
            (Some(3), 2, &[1][..])
        );
        assert!(!serde_json::to_string(&batch).unwrap().contains("blue"));
    }
}
