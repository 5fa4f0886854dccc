//! What a session needs of whatever keeps the memory history.

use std::{collections::BTreeMap, io};

use serde_json::Value;
use tidegauge_api::{Sidecar, samples::Sample};

use crate::{backend::Recording, beside::Pending, neighbors::Neighbors, outbox::Draft, reckoning::Seen};

/// Keeps a memory history: torch in training, a double in tests.
///
/// All calls come from the training thread, or from the one in which memory ran out. Where somebody else records,
/// or nobody, it is read without a `record`, and neither cleared nor stopped.
pub trait Recorder: Send {
    /// Begins to record.
    ///
    /// # Errors
    /// When it cannot.
    fn record(&mut self, recording: &Recording) -> Result<(), RecorderError>;

    /// Waits for work that is still to allocate, where the device needs that before a snapshot.
    ///
    /// # Errors
    /// When the device failed.
    fn settle(&mut self) -> Result<(), RecorderError>;

    /// The allocator's statistics.
    ///
    /// # Errors
    /// When they cannot be read.
    fn statistics(&mut self) -> Result<Statistics, RecorderError>;

    /// The most bytes that were allocated at once on the current device, since the program began or last reset
    /// the peak. Asked at each step where growth is watched: it must be quick.
    ///
    /// # Errors
    /// When it cannot be read.
    fn peak_bytes(&mut self) -> Result<u64, RecorderError>;

    /// What the current device's allocator counts, with `asks_device` also what the driver says of its memory; none
    /// while the program has not used the device. Step and time are the caller's. Asked at each step: it must be
    /// quick.
    ///
    /// # Errors
    /// When it cannot be read.
    fn sample(&mut self, asks_device: bool) -> Result<Option<Sample>, RecorderError> {
        let _ = asks_device;
        Ok(None)
    }

    /// Reads the history, and nothing else.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(&mut self) -> Result<Box<dyn Unwritten>, RecorderError>;

    /// Whether anybody records now, if that can be told.
    fn is_recording(&mut self) -> Option<bool> {
        None
    }

    /// What the last reading held, as far as it can be told. With `is_continued` the history was not emptied since
    /// the reading before, and events that both hold are counted.
    fn seen(&mut self, is_continued: bool) -> Seen {
        let _ = is_continued;
        Seen::default()
    }

    /// The way in which the next snapshot is to be taken; it may change from one to the next.
    fn way(&mut self) -> Way {
        Way::Python
    }

    /// Has another thread read the history, in the native way; see [`crate::beside`].
    ///
    /// # Errors
    /// When it cannot.
    fn read_beside(&mut self) -> Result<Pending, RecorderError> {
        Err(RecorderError("this recorder has no native way".to_owned()))
    }

    /// Empties the history and goes on recording in the same way.
    ///
    /// # Errors
    /// When it cannot; the history may be whole or gone then.
    fn clear(&mut self, recording: &Recording) -> Result<(), RecorderError>;

    /// Ends recording.
    ///
    /// # Errors
    /// When it cannot.
    fn stop(&mut self) -> Result<(), RecorderError>;

    /// Rank and world size, once the process has joined a group.
    fn group(&mut self) -> Option<Group>;

    /// What other packages in the process know of it.
    fn neighbors(&mut self) -> Neighbors {
        Neighbors::default()
    }

    /// What the ranks of the group call this run: rank 0 proposes a name, the others wait shortly for it. `None`
    /// where that does not work.
    fn agreed_run(&mut self, _proposed: &str, _group: Group) -> Option<String> {
        None
    }

    /// Writes into a sidecar what it is and how it records.
    fn describe(&self, recording: &Recording, sidecar: &mut Sidecar);
}

/// How a snapshot is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By Python objects, on the training thread; the history is emptied after each.
    Python,
    /// By the library's own pickle, on another thread; the history goes on.
    Native,
}

impl Way {
    /// The word in sidecars.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Native => "native",
        }
    }
}

/// A snapshot in memory.
pub trait Unwritten: Send {
    /// Writes it as a pickle, away from the training thread, and adds to its sidecar what only shows then.
    ///
    /// # Errors
    /// When it cannot be turned into bytes, or these not written.
    fn write(self: Box<Self>, draft: Draft, sidecar: &mut Sidecar) -> io::Result<Draft>;
}

/// What the allocator counts, by device ordinal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statistics {
    /// `memory_stats()`
    pub memory_stats: BTreeMap<String, Value>,
    /// `mem_get_info()`: free and total bytes.
    pub mem_get_info: BTreeMap<String, [u64; 2]>,
}

impl Statistics {
    /// Allocations and frees so far, over all devices.
    pub fn n_events(&self) -> u64 {
        let count = |stats: &Value, key| stats.get(key).and_then(Value::as_u64).unwrap_or(0);
        let counts = |stats| count(stats, "allocation.all.allocated") + count(stats, "allocation.all.freed");
        self.memory_stats.values().map(counts).sum()
    }
}

/// A process's place in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Global rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
}

/// Why a recorder could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RecorderError(pub String);
