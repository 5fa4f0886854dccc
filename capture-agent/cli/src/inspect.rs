//! `tidegauge inspect FILE`: what a snapshot holds, without a server.

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use tidegauge_api::{
    Inspection,
    inspection::{self, DeviceInspection, Levels},
};
use tidegauge_snapshot::{
    read::{self, ReadError, archive},
    words::{count, counted, size},
};

use crate::{
    DONE, FAILED, REFUSED,
    members::{self, Members},
};

/// Show what a snapshot holds
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
}

impl Inspect {
    pub(crate) fn run(&self) -> Result<u8> {
        match inspect(&self.file, self.member.as_deref()) {
            Ok(inspection) if self.json => print(&serde_json::to_string_pretty(&inspection)?),
            Ok(inspection) => print(&table(&inspection)),
            Err(NotShown::Unreachable(error)) => return Err(error),
            Err(NotShown::Several) => return self.list(),
            Err(NotShown::Refused(error)) => return self.refuse(&error),
        }?;
        Ok(DONE)
    }

    /// An archive of several: one line for each.
    fn list(&self) -> Result<u8> {
        let (file, bytes) = open(&self.file)?;
        let members = match Members::of(file) {
            Ok(members) => members,
            Err(error) => return self.refuse(&error),
        };
        let name = members::name_of(&self.file);
        print(&match self.json {
            true => serde_json::to_string_pretty(&members.json(&name, bytes))?,
            false => members.table(&name, bytes),
        })?;
        Ok(if members.all_opened() { DONE } else { REFUSED })
    }

    fn refuse(&self, error: &ReadError) -> Result<u8> {
        eprintln!("{}: {error}", self.file.display());
        if self.json {
            print(&serde_json::to_string_pretty(&serde_json::json!({ "error": members::json_of(error) }))?)?;
        }
        // Reading can fail for reasons of the disk; that says nothing about the snapshot.
        Ok(if error.code() == ReadError::IO { FAILED } else { REFUSED })
    }
}

enum NotShown {
    Unreachable(anyhow::Error),
    /// It is an archive of several snapshots.
    Several,
    Refused(ReadError),
}

fn inspect(path: &Path, member: Option<&str>) -> Result<Inspection, NotShown> {
    let (file, bytes) = open(path).map_err(NotShown::Unreachable)?;
    let opened = match member {
        Some(member) => archive::open_member(file, member),
        None => read::open_file(file),
    };
    let snapshot = opened.map_err(|error| match error.code() {
        ReadError::ARCHIVE => NotShown::Several,
        _ => NotShown::Refused(error),
    })?;
    let name = member.map_or_else(|| members::name_of(path), str::to_owned);
    Ok(inspection::inspect(&snapshot, &name, bytes))
}

fn open(path: &Path) -> Result<(File, u64)> {
    let open = || -> Result<(File, u64)> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        anyhow::ensure!(!metadata.is_dir(), "it is a folder; name a file in it");
        Ok((file, metadata.len()))
    };
    open().with_context(|| format!("cannot open {}", path.display()))
}

/// Unlike `println!`, takes it calmly when whoever reads has seen enough.
fn print(text: &str) -> Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn table(inspection: &Inspection) -> String {
    let Inspection { file, bytes, wrapping, producer, devices, annotations, findings } = inspection;
    let mut lines = vec![format!(
        "{file}   {}   {}   {producer}",
        size(*bytes),
        wrapping.iter().rev().map(String::as_str).collect::<Vec<_>>().join(" in ")
    )];
    for device in devices {
        lines.extend(device_lines(device));
    }
    if devices.is_empty() {
        lines.extend([String::new(), "no segments and no events".to_owned()]);
    }
    if *annotations > 0 {
        lines.extend([String::new(), counted(*annotations, "annotation")]);
    }
    if !findings.is_empty() {
        lines.extend([String::new(), "findings".to_owned()]);
        lines.extend(
            findings.iter().map(|finding| format!("  {} ({} ×)", finding.message, count(finding.count))),
        );
    }
    lines.join("\n")
}

fn device_lines(device: &DeviceInspection) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!(
            "device {}   {}   {}   {}",
            device.device,
            counted(device.segments, "segment"),
            counted(device.blocks, "block"),
            counted(device.events, "event")
        ),
        format!("  {:<10} {:>12} {:>12} {:>12}", "", "before", "peak", "end"),
    ];
    let curves = [
        ("requested", &device.requested),
        ("allocated", &device.allocated),
        ("active", &device.active),
        ("reserved", &device.reserved),
    ];
    lines.extend(curves.map(|(name, Levels { head, peak, end })| {
        format!("  {name:<10} {:>12} {:>12} {:>12}", size(*head), size(*peak), size(*end))
    }));
    if let Some(event) = device.peak_event {
        lines.push(format!("  highest after event {}", count(event)));
    }
    if device.preexisting_blocks > 0 {
        lines.push(format!("  {} older than the trace", counted(device.preexisting_blocks, "block")));
    }
    lines.extend(device.actions.iter().map(|(action, n)| format!("  {action:<20} {:>12}", count(*n))));
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tidegauge_api::inspection::Finding;

    use super::*;

    #[test]
    fn a_person_sees_levels_events_and_findings() {
        let levels = |head, peak, end| Levels { head, peak, end };
        let inspection = Inspection {
            file: "rank0_step1.pickle.zst".to_owned(),
            bytes: 3 << 19,
            wrapping: vec!["zstd".to_owned(), "pickle4".to_owned()],
            producer: "torch 2.9".to_owned(),
            devices: vec![DeviceInspection {
                device: 0,
                segments: 1,
                blocks: 12,
                events: 4321,
                actions: BTreeMap::from([("alloc".to_owned(), 4000), ("free_requested".to_owned(), 321)]),
                requested: levels(0, 1000, 10),
                allocated: levels(0, 1024, 512),
                active: levels(0, 1024, 512),
                reserved: levels(2 << 20, 2 << 20, 2 << 20),
                peak_event: Some(1234),
                preexisting_blocks: 2,
            }],
            annotations: 1,
            findings: vec![Finding { code: "x".to_owned(), count: 12, message: "odd, but fine".to_owned() }],
        };
        let expected = "\
rank0_step1.pickle.zst   1.50 MiB   pickle4 in zstd   torch 2.9

device 0   1 segment   12 blocks   4,321 events
                   before         peak          end
  requested           0 B      1,000 B         10 B
  allocated           0 B     1.00 KiB        512 B
  active              0 B     1.00 KiB        512 B
  reserved       2.00 MiB     2.00 MiB     2.00 MiB
  highest after event 1,234
  2 blocks older than the trace
  alloc                       4,000
  free_requested                321

1 annotation

findings
  odd, but fine (12 ×)";
        assert_eq!(table(&inspection), expected);
    }
}
