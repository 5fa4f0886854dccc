//! What the agent says to people: single lines, each kind of trouble once.

use std::{
    collections::BTreeSet,
    fmt::Display,
    sync::{Mutex, OnceLock, PoisonError},
};

/// Says lines, prefixed so that people know who speaks and on which rank.
#[derive(Debug)]
pub struct Notices {
    write: fn(&str),
    rank: OnceLock<u32>,
    said: Mutex<BTreeSet<&'static str>>,
}

impl Notices {
    /// Lines go to `write`, without a line break.
    pub fn new(write: fn(&str)) -> Self {
        Self { write, rank: OnceLock::new(), said: Mutex::default() }
    }

    /// From now on lines name this rank. The first rank told stays.
    pub fn on_rank(&self, rank: u32) {
        self.rank.get_or_init(|| rank);
    }

    /// Says a line.
    pub fn say(&self, line: impl Display) {
        match self.rank.get() {
            Some(rank) => (self.write)(&format!("tidegauge: rank {rank}: {line}")),
            None => (self.write)(&format!("tidegauge: {line}")),
        }
    }

    /// Says a line unless one of its `kind` was said before.
    pub fn say_once(&self, kind: &'static str, line: impl Display) {
        let is_new = self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(kind);
        if is_new {
            self.say(line);
        }
    }
}
