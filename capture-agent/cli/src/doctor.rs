//! `tidegauge doctor`: whether a training that starts here will be recorded and sent, before it starts.
//!
//! Settings are read as the agent reads them; each check says what it found, and where that is red, what to do.

mod checks;
mod frames;
mod interpreter;
mod cost;

use std::{collections::BTreeMap, env, path::PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tidegauge_capture_agent::settings::{InForce, NAMES, Settings};
use tidegauge_snapshot::words::count;

use self::{cost::Cost, interpreter::Interpreter};
use crate::{DONE, FAILED, print, style::Style};

/// Check whether a training that starts here will be recorded and sent
///
/// Reads the environment as the agent does; settings that the script gives to tidegauge.start() can be named, too:
/// tidegauge doctor steps=every:100 server=http://gauge:8642. Exit status: 0 all fine, 1 something is red.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Settings as given to tidegauge.start()
    #[arg(value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(&'static str, String)>,
    /// The interpreter that trains
    #[arg(long, value_name = "PATH", env = "TIDEGAUGE_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Record for a moment on the device, which makes a context on it
    #[arg(long = "try")]
    tries: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    is_fine: bool,
    settings: Vec<Setting>,
    checks: Vec<Check>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
}

#[derive(Debug, Serialize)]
struct Setting {
    name: &'static str,
    value: String,
    source: &'static str,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    what_to_do: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Fine,
    Red,
    /// It may work; no test drove it.
    Untested,
    /// Nobody looked.
    Skipped,
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<u8> {
        let report = self.report();
        match self.json {
            true => print(&serde_json::to_string_pretty(&report)?)?,
            false => print(report.text(Style::of_stdout()).trim_end())?,
        }
        Ok(if report.is_fine { DONE } else { FAILED })
    }

    fn report(&self) -> Report {
        let from_env = |name: &str| env::var(name).ok();
        let keywords: BTreeMap<_, _> =
            self.settings.iter().map(|(name, value)| (*name, value.clone())).collect();
        let (mut all, mut shown, mut cost) = (Vec::new(), Vec::new(), None);
        match Settings::new(&keywords, &from_env) {
            Err(error) => {
                let what_to_do = "change it; until then start() records nothing";
                all.push(Check::red("settings", error.to_string(), what_to_do));
                all.extend(self.of_python(None));
            }
            Ok(settings) => {
                shown = settings.in_force(&keywords, &from_env).into_iter().map(Setting::from).collect();
                let predicted = Cost::of(&settings.recording);
                all.push(checks::settings(&settings));
                all.push(frames::identity(&settings, &from_env));
                all.extend(self.of_python(Some(&settings)));
                all.push(checks::cost(&predicted, checks::available_memory()));
                all.push(checks::server(&settings));
                all.extend(checks::outbox(&settings));
                cost = Some(predicted);
            }
        }
        let is_fine = all.iter().all(|check| check.state != State::Red);
        Report { is_fine, settings: shown, checks: all, cost }
    }

    /// As far as one check lets the next one look: no torch, no backend; no backend, no recording.
    fn of_python(&self, settings: Option<&Settings>) -> Vec<Check> {
        let interpreter = match Interpreter::ask(&self.python) {
            Ok(interpreter) => interpreter,
            Err(error) => return vec![checks::no_python(&self.python, &error)],
        };
        let mut all = vec![checks::python(&interpreter)];
        all.extend(frames::frameworks(&interpreter));
        match interpreter.versions.get("torch") {
            Some(torch) => all.extend(checks::backend(&interpreter, torch)),
            None => all.push(checks::no_torch(&interpreter)),
        }
        if let (Some(backend), Some(settings)) = (interpreter.backend(), settings) {
            let try_it =
                || interpreter.try_recording(&self.python, backend, &settings.recording, settings.way);
            let tried = self.tries.then(try_it);
            all.extend(checks::mode(&interpreter, backend, settings.way, tried.as_ref()));
            all.push(checks::recording(tried));
        }
        all
    }
}

/// "steps=1,5" as a keyword and its text.
pub(crate) fn setting(text: &str) -> Result<(&'static str, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, such as steps=1,5")?;
    let known = NAMES.iter().find(|known| **known == name);
    let known =
        known.ok_or_else(|| format!("there is no setting {name:?}; there are {}", NAMES.join(", ")))?;
    Ok((known, value.to_owned()))
}

impl From<InForce> for Setting {
    fn from(InForce { name, value, source }: InForce) -> Self {
        Self { name, value, source: source.as_str() }
    }
}

impl Check {
    fn new(name: &'static str, state: State, says: String) -> Self {
        Self { name, state, says, what_to_do: None }
    }

    fn fine(name: &'static str, says: String) -> Self {
        Self::new(name, State::Fine, says)
    }

    fn red(name: &'static str, says: String, what_to_do: &str) -> Self {
        Self { what_to_do: Some(what_to_do.to_owned()), ..Self::new(name, State::Red, says) }
    }
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Red => "RED",
            Self::Untested => "untested",
            Self::Skipped => "skipped",
        }
    }
}

impl Report {
    fn text(&self, style: Style) -> String {
        let mut text = String::new();
        if !self.settings.is_empty() {
            text += &format!("{}\n", style.bold("Settings"));
        }
        for Setting { name, value, source } in &self.settings {
            let line = format!("  {name:<14} {value}");
            text += &match *source {
                "default" => format!("{}\n", style.dim(&line)),
                source => format!("{line}  ({source})\n"),
            };
        }
        text += &format!("{}\n", style.bold("Checks"));
        for Check { name, state, says, what_to_do } in &self.checks {
            let word = format!("{:<9}", state.word());
            let word = if *state == State::Fine { word } else { style.warning(&word) };
            text += &format!("  {word} {name:<12} {says}\n");
            if let Some(what_to_do) = what_to_do {
                text += &format!("{:25}→ {what_to_do}\n", "");
            }
        }
        let n_red = self.checks.iter().filter(|check| check.state == State::Red).count() as u64;
        text + &match n_red {
            0 => "Nothing is red\n".to_owned(),
            n => format!(
                "{} red\n",
                if n == 1 { "1 line is".to_owned() } else { format!("{} lines are", count(n)) }
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_red_makes_a_report_red() {
        let all = [State::Fine, State::Untested, State::Skipped]
            .map(|state| Check::new("a", state, "b".to_owned()));
        let mut report = Report { is_fine: true, settings: Vec::new(), checks: all.into(), cost: None };
        assert!(report.text(Style::plain()).ends_with("Nothing is red\n"));
        report.checks.push(Check::red("server", "it is away".to_owned(), "start it"));
        report.checks.push(Check::red("outbox", "it is full".to_owned(), "send what is in it"));
        let text = report.text(Style::plain());
        assert!(
            text.contains("  RED       server       it is away\n                         → start it\n"),
            "{text}"
        );
        assert!(text.ends_with("2 lines are red\n"), "{text}");
    }

    #[test]
    fn a_setting_is_a_known_name_and_a_text() {
        assert_eq!(setting("steps=a=b"), Ok(("steps", "a=b".to_owned())));
        assert!(
            setting("steps").is_err() && setting("stepz=1").unwrap_err().contains("no setting \"stepz\"")
        );
    }
}
