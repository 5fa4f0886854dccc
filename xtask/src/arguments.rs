//! The command line, taken apart word by word.

use std::{collections::VecDeque, env};

use anyhow::{Context as _, Result, ensure};

/// What is left of the command line.
pub(crate) struct Arguments(VecDeque<String>);

impl Arguments {
    /// The words after the program's name.
    pub(crate) fn from_env() -> Self {
        Self(env::args().skip(1).collect())
    }

    /// Takes the next word, whatever it is.
    pub(crate) fn word(&mut self) -> Option<String> {
        self.0.pop_front()
    }

    /// Takes `flag` out, and says whether it was there.
    pub(crate) fn flag(&mut self, flag: &str) -> bool {
        let found = self.0.iter().position(|word| word == flag);
        found.is_some_and(|at| self.0.remove(at).is_some())
    }

    /// Takes `flag` and the word after it, or `flag=word`.
    pub(crate) fn value(&mut self, flag: &str) -> Result<Option<String>> {
        let glued = |word: &String| word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='));
        if let Some(at) = self.0.iter().position(glued) {
            return Ok(self.0.remove(at).map(|word| word[flag.len() + 1..].to_owned()));
        }
        let Some(at) = self.0.iter().position(|word| word == flag) else { return Ok(None) };
        self.0.remove(at);
        self.0.remove(at).map(Some).with_context(|| format!("{flag} needs a value after it"))
    }

    /// Refuses what nobody took.
    pub(crate) fn end(self) -> Result<()> {
        let rest = Vec::from(self.0).join(" ");
        ensure!(rest.is_empty(), "don't know what to do with `{rest}`; `cargo xtask help` lists the chores");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Arguments {
        Arguments(line.split(' ').map(str::to_owned).collect())
    }

    #[test]
    fn flags_and_values_are_taken_wherever_they_stand() {
        let mut line = arguments("serve --listen 127.0.0.1:0 --demo --data=there");
        assert_eq!(line.word().as_deref(), Some("serve"));
        assert!(line.flag("--demo"));
        assert!(!line.flag("--demo"));
        assert_eq!(line.value("--data").unwrap().as_deref(), Some("there"));
        assert_eq!(line.value("--listen").unwrap().as_deref(), Some("127.0.0.1:0"));
        line.end().unwrap();
    }

    #[test]
    fn what_nobody_took_is_named() {
        let error = arguments("--demmo").end().unwrap_err().to_string();
        assert!(error.contains("`--demmo`"), "{error}");
    }

    #[test]
    fn a_flag_without_its_value_is_refused() {
        assert!(arguments("--listen").value("--listen").is_err());
    }
}
