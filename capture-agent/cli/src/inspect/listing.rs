//! Events, one line each; or as JSON, written while they are read.

use std::{
    collections::HashMap,
    io::{self, BufWriter, Write},
    ops::Range,
};

use anyhow::Result;
use tidegauge_api::event::event;
use tidegauge_snapshot::{
    Snapshot,
    model::{Action, StackId},
    origins::Origins,
    sites,
    words::size,
};

use crate::style::Style;

use super::groups::one_line;

/// A stretch of a trace.
pub(super) struct Listing<'a> {
    pub(super) origins: Origins<'a>,
    pub(super) ordinal: u32,
    pub(super) events: Range<u32>,
}

impl Listing<'_> {
    /// Writes it to standard output; calmly, when whoever reads has seen enough.
    pub(super) fn print(&self, json: bool, style: Style) -> Result<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = if json { self.write_json(&mut out) } else { self.write_text(style, &mut out) };
        match written.and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let head = serde_json::json!({
            "device": self.ordinal,
            "n_events": self.origins.device.events.len(),
            "from": self.events.start,
            "until": self.events.end,
        })
        .to_string();
        // The events are the last member of the same object.
        write!(out, "{},\"events\":[", head.strip_suffix('}').unwrap_or(&head))?;
        let answers = self.events.clone().filter_map(|number| event(&self.origins, number));
        for (at, event) in answers.enumerate() {
            out.write_all(if at > 0 { b",\n" } else { b"\n" })?;
            serde_json::to_writer(&mut *out, &event)?;
        }
        writeln!(out, "\n]}}")
    }

    fn write_text(&self, style: Style, out: &mut impl Write) -> io::Result<()> {
        let first_us =
            self.origins.event_before(1).and_then(|event| self.origins.snapshot.trace.time_us(event));
        let time_head = if first_us.is_some() { format!("{:>13}  ", "seconds") } else { String::new() };
        let head = format!(
            "{:>9}  {time_head}{:<18} {:>10}  {:<18} {:>10} {:>10}  site",
            "event", "action", "size", "address", "allocated", "reserved"
        );
        writeln!(out, "{}", style.bold(&head))?;
        let mut sites = Sites::default();
        for number in self.events.clone() {
            if let Some(line) = self.line(number, first_us, &mut sites) {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }

    fn line(&self, number: u32, first_us: Option<i64>, sites: &mut Sites) -> Option<String> {
        let (snapshot, state) = (self.origins.snapshot, number.checked_add(1)?);
        let row = self.origins.event_before(state)?;
        let trace = &snapshot.trace;
        let time = match (trace.time_us(row), first_us) {
            (Some(time_us), Some(first_us)) => format!("{:>13}  ", seconds(time_us.saturating_sub(first_us))),
            _ => String::new(),
        };
        let address = match trace.action[row] {
            Action::OOM => format!("{} free", size(trace.address[row])),
            _ => format!("{:#x}", trace.address[row]),
        };
        let levels = self.origins.replay.curves.at(state as usize);
        let site = sites.of(snapshot, trace.stack[row]);
        let line = format!(
            "{number:>9}  {time}{:<18} {:>10}  {address:<18} {:>10} {:>10}  {site}",
            snapshot.action_name(trace.action[row]),
            size(trace.size[row]),
            size(levels.allocated),
            size(levels.reserved),
        );
        Some(one_line(line.trim_end()))
    }
}

/// The sites of stacks seen lately, in words. Events come in crowds from the same few stacks.
#[derive(Default)]
struct Sites(HashMap<StackId, String>);

impl Sites {
    /// When so many are known they are forgotten, and found anew.
    const MOST: usize = 1 << 14;

    fn of(&mut self, snapshot: &Snapshot, stack: StackId) -> &str {
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.entry(stack).or_insert_with(|| {
            sites::site(snapshot, stack).map(|site| sites::frame(snapshot, site)).unwrap_or_default()
        })
    }
}

/// Microseconds as seconds, to the last digit: "12.345678".
fn seconds(us: i64) -> String {
    let sign = if us < 0 { "-" } else { "" };
    format!("{sign}{}.{:06}", us.unsigned_abs() / 1_000_000, us.unsigned_abs() % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_microseconds() {
        assert_eq!(seconds(12_345_678), "12.345678");
        assert_eq!(seconds(5), "0.000005");
        assert_eq!(seconds(-1_500_000), "-1.500000");
    }
}
