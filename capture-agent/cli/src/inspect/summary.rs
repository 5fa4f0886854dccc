//! What is in a snapshot, on one page.

use tidegauge_api::{
    Inspection,
    breakdown::Breakdown,
    inspection::{DeviceInspection, Inspected, Levels, Since},
};
use tidegauge_snapshot::words::{count, counted, size};

use crate::style::Style;

use super::groups::{self, device_name, moment, one_line};

/// The page.
pub(super) fn page(inspected: &Inspected, style: Style) -> String {
    let Inspection { file, bytes, producer, devices, host, annotations, findings, .. } =
        &inspected.inspection;
    let wrapping = inspected.inspection.wrapped();
    let mut lines =
        vec![format!("{}   {}   {wrapping}   {producer}", style.bold(&one_line(file)), size(*bytes))];
    for device in devices {
        lines.extend(device_lines(device, style));
        let of_device = |since: &&Since| since.device == device.device;
        lines.extend(inspected.since.iter().find(of_device).map(|since| since_line(since, device.events)));
        lines.extend(
            inspected
                .top
                .iter()
                .filter(|top| top.device == device.device)
                .flat_map(|top| top_lines(top, style)),
        );
    }
    lines.extend(host.iter().flat_map(|host| device_lines(host, style)));
    if devices.is_empty() && host.is_none() {
        lines.extend([String::new(), "no segments and no events".to_owned()]);
    }
    if *annotations > 0 {
        lines.extend([String::new(), counted(*annotations, "annotation")]);
    }
    if !findings.is_empty() {
        lines.extend([String::new(), style.warning("findings")]);
        lines.extend(
            findings
                .iter()
                .map(|finding| format!("  {} ({} ×)", one_line(&finding.message), count(finding.count))),
        );
    }
    lines.join("\n")
}

fn device_lines(device: &DeviceInspection, style: Style) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!(
            "{}   {}   {}   {}",
            style.bold(&device_name(device.device)),
            counted(device.segments, "segment"),
            counted(device.blocks, "block"),
            counted(device.events, "event")
        ),
        style.dim(&format!("  {:<10} {:>12} {:>12} {:>12}", "", "before", "peak", "end")),
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

fn since_line(since: &Since, n_events: u64) -> String {
    let known = u64::from(since.known_events);
    match known {
        0 => format!(
            "  no event of it is in {}: the history was cleared in between, or it is another process",
            since.file
        ),
        _ => format!(
            "  the first {} are in {} already; {} new",
            counted(known, "event"),
            since.file,
            count(n_events - known)
        ),
    }
}

fn top_lines(top: &Breakdown, style: Style) -> Vec<String> {
    if top.groups.is_empty() {
        return Vec::new();
    }
    let title = format!("  most memory at the peak, {}", moment(&top.levels));
    [String::new(), style.dim(&title)].into_iter().chain(groups::rows(top, style)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tidegauge_api::{
        breakdown::{Group, Total},
        inspection::Finding,
        picture::LevelsAnswer,
    };

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
            host: None,
            annotations: 1,
            findings: vec![Finding { code: "x".to_owned(), count: 12, message: "odd, but fine".to_owned() }],
        };
        let total = |allocated, blocks| Total { allocated, requested: allocated, blocks };
        let top = Breakdown {
            device: 0,
            levels: LevelsAnswer {
                state: 1235,
                requested: 1000,
                allocated: 1024,
                active: 1024,
                reserved: 2 << 20,
                action: None,
                time_us: None,
            },
            by: "stack".to_owned(),
            filter: None,
            n_groups: 3,
            groups: vec![Group {
                label: "train.py:3 step".to_owned(),
                total: total(768, 1),
                stack: Vec::new(),
            }],
            others: total(256, 2),
        };
        let since = Since { file: "rank0_step0.pickle".to_owned(), device: 0, known_events: 21 };
        let inspected = Inspected { inspection, top: vec![top], since: vec![since] };
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
  the first 21 events are in rank0_step0.pickle already; 4,300 new

  most memory at the peak, after event 1,234
       768 B  75 %        1 block  train.py:3 step
       256 B             2 blocks  in 2 more stacks; --top shows more of them

1 annotation

findings
  odd, but fine (12 ×)";
        assert_eq!(page(&inspected, Style::plain()), expected);
    }
}
