//! `tidegauge inspect FILE`: what a snapshot holds, without a server.
//!
//! Three questions: what is in it (the summary), who holds the memory at a moment (`--at`, `--by`, `--top`), what
//! happened (`--events`). Each is answered for people, or with `--json` for programs.

mod summary;
mod groups;
mod listing;

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser as _},
};
use serde::Serialize;
use tidegauge_api::{
    breakdown::{Breakdown, breakdown},
    inspection::{Inspected, Since, inspect_knowing},
};
use tidegauge_export::{Moment, Part};
use tidegauge_snapshot::{
    filter::Filter,
    model::Device,
    overlap::overlap,
    read::ReadError,
    replay::{Replay, replay},
    sums::By,
};

use crate::{
    DONE, REFUSED, USAGE,
    members::{self, Members},
    opened::{self, NotOpened, Opened, Which, moment},
    print,
    style::Style,
};

/// Stacks below a summary.
const TOP_IN_SUMMARY: usize = 5;
/// Groups where they are what was asked for.
const TOP: usize = 20;

/// Show what a snapshot holds
///
/// Without further options a summary, with the stacks that hold most at the peak. With --at, --by or --top: who holds
/// the memory at one moment. With --events: what happened. Exit status: 0 shown, 1 failed, 2 no snapshot.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// A memory snapshot: a pickle, JSON or a page around one, plain, in gzip or zstd, or in an archive
    file: PathBuf,
    /// Of an archive, show this snapshot
    #[arg(long, value_name = "PATH")]
    member: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only this device; host for pinned host memory
    #[arg(long, value_name = "N")]
    device: Option<Which>,
    /// Who holds the memory then: peak, end, or after this event, counted from 0 [default: peak]
    #[arg(long, value_name = "EVENT", value_parser = moment)]
    at: Option<Moment>,
    /// Sum it up by this [default: stack]
    #[arg(long, value_parser = by_names())]
    by: Option<By>,
    /// Only blocks that match, such as 'size>1MiB stack~attention -is:older'; docs/filter.md has all terms
    #[arg(long = "where", value_name = "FILTER", conflicts_with = "events")]
    only: Option<Filter>,
    /// How many groups, or how many events [default: 20 groups, all events]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// List events, all or those from FROM up to and without UNTIL
    #[arg(long, value_name = "FROM..UNTIL", num_args = 0..=1, default_missing_value = "..", conflicts_with_all = ["at", "by"])]
    events: Option<Span>,
    /// Leave out the events that this earlier snapshot of the same process holds already
    #[arg(long, value_name = "EARLIER")]
    since: Option<PathBuf>,
}

fn by_names() -> impl clap::builder::TypedValueParser<Value = By> {
    let named = |name: String| By::NAMED.into_iter().find(|(known, _)| *known == name).map(|(_, by)| by);
    PossibleValuesParser::new(By::NAMED.map(|(name, _)| name))
        .try_map(move |name| named(name).ok_or("no such grouping"))
}

/// Events from one to another, either of which may be left open: "10..20", "..20", "10..", "..".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    from: Option<u32>,
    until: Option<u32>,
}

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sentence = || "expected a range such as 100..200; the file stands before --events".to_owned();
        let (from, until) = text.split_once("..").ok_or_else(sentence)?;
        let end = |text: &str| match text {
            "" => Ok(None),
            number => number.parse().map(Some).map_err(|_not_a_number| sentence()),
        };
        Ok(Self { from: end(from)?, until: end(until)? })
    }
}

/// What is looked at: a snapshot, the devices meant, their replays, and the first event of each that counts.
struct View<'a> {
    opened: &'a Opened,
    devices: Vec<&'a Device>,
    replays: &'a [Replay],
    /// Empty unless an earlier snapshot was given.
    since: Vec<Since>,
}

impl Inspect {
    pub(crate) fn run(&self) -> Result<u8> {
        let opened = match Opened::read(&self.file, self.member.as_deref()) {
            Ok(opened) => opened,
            Err(NotOpened::Refused(_, error)) if error.code() == ReadError::ARCHIVE => {
                return self.list_members();
            }
            Err(error) => return error.report(self.json),
        };
        let devices = match self.events.is_some() || matches!(self.at, Some(Moment::After(_))) {
            true => vec![opened.one_device(self.device, "an event")?],
            false => opened.devices(self.device)?,
        };
        let since = match self.since.as_deref().map(|earlier| since(&opened, &devices, earlier)).transpose() {
            Ok(since) => since.unwrap_or_default(),
            Err(error) => return error.report(self.json),
        };
        let replays = opened.replays(&devices);
        let view = View { opened: &opened, devices, replays: &replays, since };
        if let Some(span) = self.events {
            return self.list(&view, span);
        }
        // The summary tells of devices; of pinned host memory who holds it is all there is to say.
        let is_host = self.device == Some(Which::Host);
        let is_asked = self.at.is_some() || self.by.is_some() || self.top.is_some() || self.only.is_some();
        if is_asked || is_host {
            let only = self.only.clone().unwrap_or_default();
            let found =
                view.breakdowns(self.at, self.by.unwrap_or(By::Stack), &only, self.top.unwrap_or(TOP))?;
            self.answer(&Groups { groups: &found }, || groups::pages(&found, Style::of_stdout()))?;
            return Ok(DONE);
        }
        let top = view.breakdowns(None, By::Stack, &Filter::default(), TOP_IN_SUMMARY)?;
        let inspection = view.inspection();
        let inspected = Inspected { inspection, top, since: view.since };
        self.answer(&inspected, || summary::page(&inspected, Style::of_stdout()))?;
        Ok(DONE)
    }

    /// An archive of several: one line for each.
    fn list_members(&self) -> Result<u8> {
        let (file, bytes) = opened::open(&self.file)?;
        let members = match Members::of(file) {
            Ok(members) => members,
            Err(error) => return NotOpened::Refused(self.file.clone(), error).report(self.json),
        };
        let name = members::name_of(&self.file);
        self.answer(&members.json(&name, bytes), || members.table(&name, bytes))?;
        Ok(if members.all_opened() { DONE } else { REFUSED })
    }

    fn answer(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { print(&serde_json::to_string_pretty(json)?) } else { print(&text()) }
    }

    fn list(&self, view: &View<'_>, span: Span) -> Result<u8> {
        let (Some(device), Some(part)) = (view.devices.first(), view.parts()?.pop()) else { return Ok(DONE) };
        let Range { start, end } = part.devices[0].events;
        let from = span.from.unwrap_or(start).min(end);
        let mut until = span.until.unwrap_or(end).min(end);
        if span.from.zip(span.until).is_some_and(|(from, until)| from > until) {
            eprintln!("error: --events {}..{} ends before it begins", from, span.until.unwrap_or(until));
            return Ok(USAGE);
        }
        if let Some(top) = self.top {
            until = until.min(from.saturating_add(u32::try_from(top).unwrap_or(u32::MAX)));
        }
        let listing = listing::Listing {
            origins: part.devices[0].origins,
            ordinal: device.ordinal,
            events: from..until.max(from),
        };
        listing.print(self.json, Style::of_stdout())?;
        Ok(DONE)
    }
}

/// The JSON of `--at`, `--by` and `--top`.
#[derive(Serialize)]
struct Groups<'a> {
    groups: &'a [Breakdown],
}

impl View<'_> {
    fn inspection(&self) -> tidegauge_api::Inspection {
        let Opened { snapshot, bytes, .. } = self.opened;
        let name = self.opened.name();
        let known = self.opened.known();
        // It wants the replays of all devices, in their order.
        let mut inspection = match self.devices.iter().copied().eq(&snapshot.devices) {
            true => inspect_knowing(snapshot, self.replays, &name, *bytes, &known),
            false => {
                let replays: Vec<Replay> =
                    snapshot.devices.iter().map(|device| replay(snapshot, device)).collect();
                inspect_knowing(snapshot, &replays, &name, *bytes, &known)
            }
        };
        inspection.devices.retain(|shown| self.devices.iter().any(|device| device.ordinal == shown.device));
        inspection
    }

    /// What is meant of each device.
    fn parts(&self) -> Result<Vec<Part<'_>>> {
        let mut parts = Vec::new();
        for (device, replay) in self.devices.iter().zip(self.replays) {
            let known = self.since.iter().find(|since| since.device == device.ordinal);
            let from = known.map_or(0, |since| since.known_events);
            let events = from..device.events.len() as u32;
            parts.push(Part::window(&self.opened.snapshot, device, replay, events)?);
        }
        Ok(parts)
    }

    fn breakdowns(&self, at: Option<Moment>, by: By, only: &Filter, top: usize) -> Result<Vec<Breakdown>> {
        let mut found = Vec::new();
        for part in self.parts()? {
            let device = &part.devices[0];
            let state = at.unwrap_or(Moment::Peak).state(device)?;
            found.push(breakdown(&device.origins, state, by, only, top));
        }
        Ok(found)
    }
}

/// How many events of each device an earlier snapshot holds already.
fn since(opened: &Opened, devices: &[&Device], earlier: &Path) -> Result<Vec<Since>, NotOpened> {
    let earlier = Opened::read(earlier, None)?;
    let known = |device: &Device| {
        let before = match device.is_host() {
            true => earlier.snapshot.host.as_ref(),
            false => earlier.snapshot.device(device.ordinal),
        };
        before.map_or(0, |before| overlap((&earlier.snapshot, before), (&opened.snapshot, device)))
    };
    let since = devices.iter().map(|device| Since {
        file: earlier.name(),
        device: device.ordinal,
        known_events: known(device) as u32,
    });
    Ok(since.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_may_be_open_at_either_end() {
        let span = |text: &str| text.parse::<Span>();
        assert_eq!(span(".."), Ok(Span { from: None, until: None }));
        assert_eq!(span("10..20"), Ok(Span { from: Some(10), until: Some(20) }));
        assert_eq!(span("10.."), Ok(Span { from: Some(10), until: None }));
        assert_eq!(span("..20"), Ok(Span { from: None, until: Some(20) }));
        assert!(span("a.pickle").unwrap_err().contains("100..200"));
        assert!(span("1..x").is_err());
    }
}
