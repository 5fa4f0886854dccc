//! What a person can choose, and from where: keyword, then `TIDEGAUGE_*`, then the default.

use std::{
    collections::BTreeMap, fmt::Display, num::NonZeroU64, path::PathBuf, str::FromStr, time::Duration,
};

use tidegauge_snapshot::words::size;

use crate::{
    backend::Recording,
    breaker,
    choice::{ChoiceError, RankChoice, StepChoice},
    connection::{AddressError, Connection, DEFAULT_SERVER, Token},
    growth::GrowthSettings,
    occasions::Occasions,
    outbox::{self, Room},
    plan::Window,
    proxies::Proxies,
    push::Server,
    redaction::{Paths, Redaction},
    whereabouts::Said,
};

/// The steps at whose ends snapshots are taken when none are chosen: the first, which allocates what stays,
/// one in the swing, and one later to compare with.
const DEFAULT_STEPS: &str = "1,5,10";

/// Enough for several steps of a large model, about 40 MB of pickle, and quick to take.
const DEFAULT_MAX_ENTRIES: u64 = 100_000;

/// Steps between snapshots of growth: a run of ten thousand steps that grows all the time gives a hundred.
const DEFAULT_GROWTH_PAUSE: u64 = 100;

/// The longest wait for the network at exit, seconds. What is not sent by then stays in the outbox.
const DEFAULT_FLUSH_SECS: u64 = 5;

/// Everything that can be chosen.
#[derive(Debug)]
pub struct Settings {
    /// False when `TIDEGAUGE_ENABLED` says so: nothing happens at all.
    pub enabled: bool,
    /// Run, role and rank, as far as they were said.
    pub said: Said,
    /// Where snapshots go.
    pub server: Server,
    /// How it is reached.
    pub connection: Connection,
    /// Who sends what waits in the outbox.
    pub send: SentBy,
    /// At the ends of which steps.
    pub steps: StepChoice,
    /// On which ranks.
    pub ranks: RankChoice,
    /// What a snapshot covers.
    pub window: Window,
    /// From which growth of memory on a snapshot is taken that was not planned; off without.
    pub growth: Option<GrowthSettings>,
    /// On which occasions beside steps.
    pub also: Occasions,
    /// Samples are taken at the ends of steps whose number this divides; none with 0.
    pub samples: u64,
    /// On which ranks, also those that do not record.
    pub sample_ranks: RankChoice,
    /// What is recorded.
    pub recording: Recording,
    /// What becomes of paths in stacks before they leave.
    pub redaction: Option<Redaction>,
    /// Whether a recording that somebody else began is ours to change.
    pub takeover: bool,
    /// The largest part of its time that training may spend on snapshots, percent.
    pub max_capture_percent: u64,
    /// In which way snapshots are taken.
    pub way: WayChoice,
    /// The outbox's folder.
    pub outbox: PathBuf,
    /// Its bounds.
    pub room: Room,
    /// The longest wait for the network at exit.
    pub flush: Duration,
}

/// Who sends what waits in the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SentBy {
    /// The process that took it.
    #[default]
    Itself,
    /// `tidegauge agent`, which runs beside it and outlives it.
    Sidecar,
}

/// In which way snapshots are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WayChoice {
    /// The native way once it is proved with this build of torch, the Python way until then and otherwise.
    Auto,
    /// The same, and recording begins when the proof is there.
    Native,
    /// The Python way.
    Python,
}

impl WayChoice {
    /// The word in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Python => "python",
        }
    }
}

/// A choice that makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The text is not of the kind that is needed.
    #[error("{name}: {reason}")]
    Text {
        /// The keyword or variable.
        name: String,
        /// What was expected and what was found.
        reason: String,
    },
    /// The server's address.
    #[error(transparent)]
    Address(#[from] AddressError),
}

/// A setting as it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// The keyword.
    pub name: &'static str,
    /// What it is; of a token only whether there is one.
    pub value: String,
    /// Where that comes from.
    pub source: Source,
}

/// Where a setting comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A keyword.
    Argument,
    /// A variable.
    Environment,
    /// Neither.
    Default,
}

impl Source {
    /// "argument", "environment", "default"
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Argument => "argument",
            Self::Environment => "environment",
            Self::Default => "default",
        }
    }
}

/// The name of a keyword's variable.
pub fn variable(name: &str) -> String {
    format!("TIDEGAUGE_{}", name.to_uppercase())
}

/// Names of the keywords, in the order of the documentation. Each has a variable, `TIDEGAUGE_` and its name in
/// capitals.
pub const NAMES: &[&str] = &[
    "run",
    "server",
    "token",
    "token_file",
    "steps",
    "ranks",
    "window",
    "growth",
    "growth_pause",
    "also",
    "samples",
    "sample_ranks",
    "stacks",
    "context",
    "max_entries",
    "way",
    "strip_paths",
    "paths",
    "takeover",
    "max_capture_percent",
    "role",
    "rank",
    "outbox",
    "outbox_bytes",
    "outbox_free",
    "send",
    "flush_secs",
    "rate",
    "ca",
    "client_cert",
    "client_key",
    "insecure",
    "enabled",
];

impl Settings {
    /// From keywords, by name, and the environment.
    ///
    /// # Errors
    /// [`SettingError`] at the first choice that makes no sense.
    pub fn new(
        keywords: &BTreeMap<&str, String>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        let chosen = Chosen { keywords, env };
        let connection = chosen.connection()?;
        Ok(Self {
            enabled: chosen.flag("enabled")?.unwrap_or(true),
            said: Said {
                run: chosen.text("run").map(|(_, run)| run),
                role: chosen.text("role").map(|(_, role)| role),
                rank: chosen.parsed("rank", "a number")?,
            },
            server: Server::connect(&connection)?,
            connection,
            send: match chosen.word("send", &["self", "sidecar"])?.as_deref() {
                Some("sidecar") => SentBy::Sidecar,
                _ => SentBy::Itself,
            },
            steps: chosen.choice("steps", DEFAULT_STEPS)?,
            ranks: chosen.choice("ranks", "all")?,
            window: match chosen.word("window", &["since_previous", "step"])?.as_deref() {
                Some("step") => Window::Step,
                _ => Window::SincePrevious,
            },
            growth: chosen.growth()?,
            also: chosen.also()?,
            takeover: chosen.flag("takeover")?.unwrap_or(false),
            max_capture_percent: chosen.percent("max_capture_percent", breaker::DEFAULT_MAX_PERCENT)?,
            samples: chosen.samples()?,
            sample_ranks: chosen.choice("sample_ranks", "all")?,
            recording: Recording {
                context: chosen.word("context", &["all", "alloc", "state"])?.unwrap_or("all".to_owned()),
                stacks: chosen.word("stacks", &["python", "all"])?.unwrap_or("python".to_owned()),
                max_entries: chosen
                    .parsed::<NonZeroU64>("max_entries", "a number from 1 upwards")?
                    .map_or(DEFAULT_MAX_ENTRIES, NonZeroU64::get),
            },
            redaction: chosen.redaction()?,
            way: match chosen.word("way", &["auto", "native", "python"])?.as_deref() {
                Some("native") => WayChoice::Native,
                Some("python") => WayChoice::Python,
                _ => WayChoice::Auto,
            },
            outbox: chosen.text("outbox").map_or_else(|| default_outbox(env), |(_, folder)| folder.into()),
            room: Room {
                max_bytes: chosen.parsed("outbox_bytes", "bytes")?.unwrap_or(outbox::DEFAULT_MAX_BYTES),
                min_free_bytes: chosen
                    .parsed("outbox_free", "bytes")?
                    .unwrap_or(outbox::DEFAULT_MIN_FREE_BYTES),
            },
            flush: Duration::from_secs(
                chosen.parsed("flush_secs", "whole seconds")?.unwrap_or(DEFAULT_FLUSH_SECS),
            ),
        })
    }
}

impl Settings {
    /// All settings in the order of the documentation, with their sources. Takes what [`Settings::new`] took.
    pub fn in_force(
        &self,
        keywords: &BTreeMap<&str, String>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Vec<InForce> {
        let chosen = Chosen { keywords, env };
        let in_force = |name: &&'static str| {
            let said = chosen.text(name);
            let source = match &said {
                Some((found, _)) if found == name => Source::Argument,
                Some(_) => Source::Environment,
                None => Source::Default,
            };
            InForce { name, value: self.value(name), source }
        };
        NAMES.iter().map(in_force).collect()
    }

    fn value(&self, name: &str) -> String {
        let found_at_start = |said: Option<String>| said.unwrap_or_else(|| "found at the start".to_owned());
        let bytes = |bytes| format!("{bytes} ({})", size(bytes));
        let file = |path: Option<&PathBuf>| path.map_or("none".to_owned(), |path| path.display().to_string());
        let flag = |flag| if flag { "yes" } else { "no" }.to_owned();
        let growth = |value: fn(GrowthSettings) -> String| self.growth.map_or("off".to_owned(), value);
        match name {
            "run" => found_at_start(self.said.run.clone()),
            "server" => self.server.address().to_owned(),
            "token" => match self.connection.token {
                Token::Given(_) => "given".to_owned(),
                Token::File(_) | Token::None => "none".to_owned(),
            },
            "token_file" => match &self.connection.token {
                Token::File(path) => path.display().to_string(),
                Token::Given(_) | Token::None => "none".to_owned(),
            },
            "steps" => self.steps.to_string(),
            "ranks" => self.ranks.to_string(),
            "window" => self.window.as_str().to_owned(),
            "growth" => growth(|growth| growth.factor.to_string()),
            "growth_pause" => growth(|growth| growth.pause_steps.to_string()),
            "also" => self.also.to_string(),
            "takeover" => flag(self.takeover),
            "max_capture_percent" => self.max_capture_percent.to_string(),
            "samples" => match self.samples {
                0 => "off".to_owned(),
                1 => "every step".to_owned(),
                every => format!("every {every} steps"),
            },
            "sample_ranks" => self.sample_ranks.to_string(),
            "stacks" => self.recording.stacks.clone(),
            "context" => self.recording.context.clone(),
            "max_entries" => self.recording.max_entries.to_string(),
            "strip_paths" => match &self.redaction {
                Some(redaction) if !redaction.prefixes().is_empty() => redaction.prefixes().join(", "),
                _ => "none".to_owned(),
            },
            "paths" => self.redaction.as_ref().map(Redaction::paths).unwrap_or_default().as_str().to_owned(),
            "way" => self.way.as_str().to_owned(),
            "role" => found_at_start(self.said.role.clone()),
            "rank" => found_at_start(self.said.rank.map(|rank| rank.to_string())),
            "outbox" => self.outbox.display().to_string(),
            "outbox_bytes" => bytes(self.room.max_bytes),
            "outbox_free" => bytes(self.room.min_free_bytes),
            "send" => match self.send {
                SentBy::Itself => "self".to_owned(),
                SentBy::Sidecar => "sidecar".to_owned(),
            },
            "flush_secs" => self.flush.as_secs().to_string(),
            "rate" => self.connection.rate.map_or("off".to_owned(), |rate| bytes(rate.get())),
            "ca" => file(self.connection.ca.as_ref()),
            "client_cert" => file(self.connection.client.as_ref().map(|(certificate, _)| certificate)),
            "client_key" => file(self.connection.client.as_ref().map(|(_, key)| key)),
            "insecure" => flag(self.connection.insecure),
            "enabled" => flag(self.enabled),
            _ => String::new(),
        }
    }
}

/// `~/.local/state/tidegauge/outbox`, or the system's folder for temporary files without a home.
pub fn default_outbox(env: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let set = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    state.unwrap_or_else(std::env::temp_dir).join("tidegauge/outbox")
}

struct Chosen<'a> {
    keywords: &'a BTreeMap<&'a str, String>,
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl Chosen<'_> {
    /// The text, and the name of where it comes from.
    fn text(&self, name: &str) -> Option<(String, String)> {
        let variable = variable(name);
        let keyword = self.keywords.get(name).map(|text| (name.to_owned(), text.clone()));
        keyword.or_else(|| Some((variable.clone(), (self.env)(&variable).filter(|text| !text.is_empty())?)))
    }

    fn parsed<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, SettingError> {
        let Some((name, text)) = self.text(name) else { return Ok(None) };
        match text.trim().parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(wrong(name, format!("expected {expected}, found {text:?}"))),
        }
    }

    fn choice<T: FromStr<Err = ChoiceError>>(&self, name: &str, default: &str) -> Result<T, SettingError> {
        let (name, text) = self.text(name).unwrap_or_else(|| (name.to_owned(), default.to_owned()));
        text.parse().map_err(|error| wrong(name, error))
    }

    fn connection(&self) -> Result<Connection, SettingError> {
        let path = |name| self.text(name).map(|(_, path)| PathBuf::from(path));
        let (token, token_file) = (self.text("token"), self.text("token_file"));
        let token = match (token, token_file) {
            (None, None) => Token::None,
            (Some((_, token)), None) => Token::Given(token),
            (None, Some((_, file))) => Token::File(file.into()),
            // A keyword wins over a variable, here as everywhere.
            (Some((name, token)), Some((file_name, file))) => {
                match (name == "token", file_name == "token_file") {
                    (true, false) => Token::Given(token),
                    (false, true) => Token::File(file.into()),
                    _ => return Err(wrong(file_name, format!("{name} is given, too; give one of them"))),
                }
            }
        };
        Ok(Connection {
            token,
            insecure: self.flag("insecure")?.unwrap_or(false),
            ca: path("ca"),
            client: match (path("client_cert"), path("client_key")) {
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (None, None) => None,
                _ => return Err(AddressError::HalfACertificate.into()),
            },
            proxies: Proxies::from_env(self.env),
            rate: self.parsed("rate", "bytes a second, from 1 upwards")?,
            ..Connection::to(self.text("server").as_ref().map_or(DEFAULT_SERVER, |(_, server)| server))
        })
    }

    fn growth(&self) -> Result<Option<GrowthSettings>, SettingError> {
        let pause_steps = self.parsed::<NonZeroU64>("growth_pause", "a number of steps from 1 upwards")?;
        let pause_steps = pause_steps.map_or(DEFAULT_GROWTH_PAUSE, NonZeroU64::get);
        match self.text("growth") {
            None => Ok(None),
            Some((_, text)) if text.trim() == "off" => Ok(None),
            Some((name, text)) => match text.trim().parse::<f64>() {
                Ok(factor) if factor > 1.0 && factor.is_finite() => {
                    Ok(Some(GrowthSettings { factor, pause_steps }))
                }
                _ => Err(wrong(
                    name,
                    format!(r#"expected "off" or a factor above 1, such as 1.2, found {text:?}"#),
                )),
            },
        }
    }

    fn redaction(&self) -> Result<Option<Redaction>, SettingError> {
        let strip = self.text("strip_paths").map_or_else(String::new, |(_, prefixes)| prefixes);
        let paths = self.word("paths", Paths::WORDS)?.and_then(|word| Paths::from_word(&word));
        Ok(Redaction::new(&strip, paths.unwrap_or_default()))
    }

    fn also(&self) -> Result<Occasions, SettingError> {
        let Some((name, text)) = self.text("also") else { return Ok(Occasions::default()) };
        text.parse().map_err(|error| wrong(name, error))
    }

    fn percent(&self, name: &str, default: u64) -> Result<u64, SettingError> {
        let percent = self.parsed::<u64>(name, "a number from 1 to 100")?.unwrap_or(default);
        match percent {
            1..=100 => Ok(percent),
            _ => Err(wrong(name.to_owned(), format!("expected a number from 1 to 100, found {percent}"))),
        }
    }

    fn samples(&self) -> Result<u64, SettingError> {
        match self.text("samples") {
            Some((_, text)) if text.trim() == "off" => Ok(0),
            _ => Ok(self.parsed("samples", r#""off" or a number of steps"#)?.unwrap_or(1)),
        }
    }

    fn word(&self, name: &str, words: &[&str]) -> Result<Option<String>, SettingError> {
        let Some((name, text)) = self.text(name) else { return Ok(None) };
        match words.contains(&text.as_str()) {
            true => Ok(Some(text)),
            false => Err(wrong(name, format!("expected one of {}, found {text:?}", words.join(", ")))),
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, SettingError> {
        let Some((name, text)) = self.text(name) else { return Ok(None) };
        match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(Some(true)),
            "0" | "false" | "no" | "off" => Ok(Some(false)),
            _ => Err(wrong(name, format!("expected 1 or 0, found {text:?}"))),
        }
    }
}

fn wrong(name: String, reason: impl Display) -> SettingError {
    SettingError::Text { name, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(keywords: &[(&'static str, &str)], env: &[(&str, &str)]) -> Result<Settings, String> {
        let keywords = keywords.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Settings::new(&keywords, &env).map_err(|error| error.to_string())
    }

    #[test]
    fn a_keyword_wins_over_its_variable_and_that_over_the_default() {
        let env = [("TIDEGAUGE_STEPS", "3"), ("TIDEGAUGE_RUN", "from-env"), ("HOME", "/home/me")];
        let settings = settings(&[("steps", "7,8")], &env).unwrap();
        assert_eq!(settings.steps.to_string(), "7, 8");
        assert_eq!(settings.said.run.as_deref(), Some("from-env"));
        assert!(settings.ranks.is_all());
        assert_eq!(settings.recording.max_entries, 100_000);
        assert_eq!(settings.server.address(), DEFAULT_SERVER);
        assert_eq!(settings.outbox, PathBuf::from("/home/me/.local/state/tidegauge/outbox"));
    }

    #[test]
    fn a_choice_that_makes_no_sense_is_named_with_where_it_came_from() {
        let error = |keywords, env| settings(keywords, env).unwrap_err();
        assert_eq!(
            error(&[], &[("TIDEGAUGE_STEPS", "first")]),
            r#"TIDEGAUGE_STEPS: expected "all", "none" or parts such as 1,5,10-20,every:100,first:3, found "first""#
        );
        assert_eq!(
            error(&[("window", "wide")], &[]),
            r#"window: expected one of since_previous, step, found "wide""#
        );
        assert_eq!(
            error(&[("max_entries", "-1")], &[]),
            r#"max_entries: expected a number from 1 upwards, found "-1""#
        );
        assert_eq!(
            error(&[("max_entries", "0")], &[]),
            r#"max_entries: expected a number from 1 upwards, found "0""#
        );
        assert_eq!(
            error(&[("ranks", "sample:0")], &[]),
            r#"ranks: "sample:0" chooses nothing: it needs a whole number from 1 upwards"#
        );
        assert!(error(&[("steps", "")], &[]).starts_with("steps: nothing is chosen"));
    }

    #[test]
    fn every_setting_is_listed_with_what_it_is_and_where_from() {
        let keywords = BTreeMap::from([("steps", "every:5".to_owned()), ("token", "secret".to_owned())]);
        let env = |name: &str| (name == "TIDEGAUGE_RANKS").then(|| "0".to_owned());
        let settings = Settings::new(&keywords, &env).unwrap();
        let all = settings.in_force(&keywords, &env);
        assert_eq!(all.iter().map(|setting| setting.name).collect::<Vec<_>>(), NAMES);
        let of = |name| {
            let setting = all.iter().find(|setting| setting.name == name).unwrap();
            (setting.value.as_str(), setting.source)
        };
        assert_eq!(of("steps"), ("every 5", Source::Argument));
        assert_eq!(of("ranks"), ("0", Source::Environment));
        assert_eq!(of("max_entries"), ("100000", Source::Default));
        assert_eq!(of("token"), ("given", Source::Argument));
        assert_eq!((of("growth"), of("insecure").0), (("off", Source::Default), "no"));
        // Each has words of its own.
        assert!(all.iter().all(|setting| !setting.value.is_empty()));
    }

    #[test]
    fn samples_are_on_until_they_are_switched_off() {
        let samples = |keywords: &[(&'static str, &str)]| {
            settings(keywords, &[]).map(|s| (s.samples, s.sample_ranks.to_string()))
        };
        assert_eq!(samples(&[]), Ok((1, "all".to_owned())));
        assert_eq!(samples(&[("samples", "off")]), samples(&[("samples", "0")]));
        let some = samples(&[("samples", "10"), ("sample_ranks", "0,8")]);
        assert_eq!(some, Ok((10, "0, 8".to_owned())));
        let sentence = r#"samples: expected "off" or a number of steps, found "often""#;
        assert_eq!(samples(&[("samples", "often")]), Err(sentence.to_owned()));
    }

    #[test]
    fn growth_is_off_until_a_factor_is_given() {
        let growth = |keywords: &[(&'static str, &str)]| settings(keywords, &[]).map(|s| s.growth);
        assert_eq!((growth(&[]), growth(&[("growth", "off")])), (Ok(None), Ok(None)));
        let expected = GrowthSettings { factor: 1.2, pause_steps: 100 };
        assert_eq!(growth(&[("growth", "1.2")]), Ok(Some(expected)));
        let expected = GrowthSettings { factor: 2.0, pause_steps: 7 };
        assert_eq!(growth(&[("growth", "2"), ("growth_pause", "7")]), Ok(Some(expected)));
        for wrong in ["1", "0.5", "-2", "NaN", "inf", "much"] {
            let sentence =
                format!(r#"growth: expected "off" or a factor above 1, such as 1.2, found {wrong:?}"#);
            assert_eq!(growth(&[("growth", wrong)]), Err(sentence));
        }
        assert!(growth(&[("growth_pause", "0")]).unwrap_err().starts_with("growth_pause: expected"));
    }

    #[test]
    fn paths_stay_as_they_are_until_something_else_is_said() {
        let redaction = |keywords: &[(&'static str, &str)]| settings(keywords, &[]).map(|s| s.redaction);
        assert_eq!(redaction(&[]), Ok(None));
        let stripped = redaction(&[("strip_paths", "/home/me/,/opt/")]).unwrap().unwrap();
        assert_eq!(stripped.path("/home/me/train.py"), "train.py");
        let hashed = redaction(&[("paths", "hash")]).unwrap().unwrap();
        assert!(hashed.path("/home/me/train.py").starts_with("path-"));
        assert_eq!(
            redaction(&[("paths", "secret")]).unwrap_err(),
            r#"paths: expected one of keep, hash, drop, found "secret""#
        );
    }

    #[test]
    fn nothing_is_sent_in_the_clear_unless_that_is_allowed() {
        let server = ("server", "http://gauge.example:8642");
        let error = settings(&[server], &[("TIDEGAUGE_TOKEN", "secret")]).unwrap_err();
        assert!(error.contains("unencrypted to gauge.example"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        assert_eq!(settings(&[server], &[]).unwrap_err(), error);
        assert!(settings(&[server, ("insecure", "1")], &[]).is_ok());
        assert!(settings(&[("server", "https://gauge.example")], &[]).is_ok());
        assert!(settings(&[("server", "http://127.0.0.1:1")], &[]).is_ok());
    }

    #[test]
    fn a_token_or_its_file_and_a_keyword_wins_over_the_other_ones_variable() {
        let token = |keywords: &[(&'static str, &str)], env: &[(&str, &str)]| {
            settings(keywords, env).map(|settings| settings.connection.token)
        };
        let both = [("TIDEGAUGE_TOKEN", "secret"), ("TIDEGAUGE_TOKEN_FILE", "/run/secrets/gauge")];
        let file = |path: &str| Ok(Token::File(path.into()));
        assert_eq!(token(&[], &both[1..]), file("/run/secrets/gauge"));
        assert_eq!(token(&[("token_file", "/t")], &both[..1]), file("/t"));
        assert_eq!(token(&[("token", "mine")], &both[1..]), Ok(Token::Given("mine".to_owned())));
        let error = token(&[], &both).unwrap_err();
        assert_eq!(error, "TIDEGAUGE_TOKEN_FILE: TIDEGAUGE_TOKEN is given, too; give one of them");
    }

    #[test]
    fn a_certificate_needs_its_key_and_a_rate_is_a_number() {
        let error = settings(&[("client_cert", "/c.pem")], &[]).unwrap_err();
        assert_eq!(error, "client_cert and client_key go together: give both");
        let error = settings(&[("rate", "0")], &[]).unwrap_err();
        assert_eq!(error, r#"rate: expected bytes a second, from 1 upwards, found "0""#);
        assert!(
            settings(&[("ca", "/missing.pem")], &[]).unwrap_err().starts_with("ca: cannot use /missing.pem")
        );
    }
}
