//! What the agent says to people: single lines, each kind of trouble once, and how often it came at the end.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Mutex, OnceLock, PoisonError},
};

/// How a line is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// All is well.
    Info,
    /// Somebody may want to do something about it.
    Warning,
}

/// Says lines, prefixed so that people know who speaks and on which rank.
#[derive(Debug)]
pub struct Notices {
    write: Write,
    rank: OnceLock<u32>,
    /// By kind, of which the program has a few.
    said: Mutex<BTreeMap<&'static str, Said>>,
}

#[derive(Debug, Clone, Copy)]
enum Write {
    Lines(fn(&str)),
    Leveled(fn(Level, &str)),
}

#[derive(Debug)]
struct Said {
    line: String,
    n_more: u64,
}

impl Notices {
    /// Lines go to `write`, without a line break.
    pub fn new(write: fn(&str)) -> Self {
        Self { write: Write::Lines(write), rank: OnceLock::new(), said: Mutex::default() }
    }

    /// Lines go to `write` with what they are.
    pub fn with_levels(write: fn(Level, &str)) -> Self {
        Self { write: Write::Leveled(write), rank: OnceLock::new(), said: Mutex::default() }
    }

    /// From now on lines name this rank. The first rank told stays.
    pub fn on_rank(&self, rank: u32) {
        self.rank.get_or_init(|| rank);
    }

    /// Says a line.
    pub fn say(&self, line: impl Display) {
        self.write(Level::Warning, line);
    }

    /// Says a line about something that is as it should be.
    pub fn tell(&self, line: impl Display) {
        self.write(Level::Info, line);
    }

    /// Says a line unless one of its `kind` was said before; then it is counted.
    pub fn say_once(&self, kind: &'static str, line: impl Display) {
        let line = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(said) = said.get_mut(kind) {
                said.n_more += 1;
                return;
            }
            let line = line.to_string();
            said.insert(kind, Said { line: line.clone(), n_more: 0 });
            line
        };
        self.say(line);
    }

    /// Says how often each kind came since it was said.
    pub fn say_the_rest(&self) {
        let counted = |said: &mut Said| (said.line.clone(), std::mem::take(&mut said.n_more));
        let said: Vec<_> = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.values_mut().map(counted).collect()
        };
        for (line, n_more) in said.into_iter().filter(|(_, n_more)| *n_more > 0) {
            let times = if n_more == 1 { "time" } else { "times" };
            self.say(format_args!("{n_more} more {times}: {line}"));
        }
    }

    fn write(&self, level: Level, line: impl Display) {
        let line = match self.rank.get() {
            Some(rank) => format!("tidegauge: rank {rank}: {line}"),
            None => format!("tidegauge: {line}"),
        };
        match self.write {
            Write::Lines(write) => write(&line),
            Write::Leveled(write) => write(level, &line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_said_once_and_counted_at_the_end() {
        static SAID: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());
        let notices = Notices::with_levels(|level, line| SAID.lock().unwrap().push((level, line.to_owned())));
        notices.tell("recording");
        notices.on_rank(3);
        for n in 1..=4 {
            notices.say_once("away", format_args!("away: try {n}"));
        }
        notices.say_once("full", "the disk is full");
        notices.say_the_rest();
        notices.say_the_rest();
        let said = SAID.lock().unwrap().clone();
        let warning = |line: &str| (Level::Warning, format!("tidegauge: rank 3: {line}"));
        let expected = [
            (Level::Info, "tidegauge: recording".to_owned()),
            warning("away: try 1"),
            warning("the disk is full"),
            warning("3 more times: away: try 1"),
        ];
        assert_eq!(said, expected);
    }
}
