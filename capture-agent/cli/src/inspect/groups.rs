//! Who holds the memory at a moment, for people.

use tidegauge_api::{
    breakdown::{Breakdown, Group},
    picture::{FrameAnswer, LevelsAnswer},
};
use tidegauge_snapshot::{
    model::Device,
    words::{count, counted, size},
};

use crate::style::Style;

/// Frames of a stack; the rest is in the JSON.
const MAX_FRAMES: usize = 12;

/// A page for each device.
pub(super) fn pages(found: &[Breakdown], style: Style) -> String {
    if found.is_empty() {
        return "no segments and no events".to_owned();
    }
    let pages: Vec<String> = found.iter().map(|breakdown| page(breakdown, style)).collect();
    pages.join("\n\n")
}

fn page(breakdown: &Breakdown, style: Style) -> String {
    let Breakdown { device, levels, groups, .. } = breakdown;
    let title = format!("{}, {}", device_name(*device), moment(levels));
    let mut lines = vec![
        style.bold(&title),
        format!(
            "  {} allocated, {} reserved; {}",
            size(levels.allocated),
            size(levels.reserved),
            counted(breakdown.n_groups, &breakdown.by)
        ),
    ];
    if let Some(filter) = &breakdown.filter {
        let total = breakdown.total();
        let blocks = counted(total.blocks, "block");
        lines.push(format!("  {} in {blocks} match {}", size(total.allocated), one_line(filter)));
    }
    let pending = levels.active.saturating_sub(levels.allocated);
    if pending > 0 {
        lines.push(format!("  {} more given back, but waiting for another stream", size(pending)));
    }
    lines.push(String::new());
    for group in groups {
        lines.push(row(group, levels.allocated));
        lines.extend(frames(&group.stack, style));
    }
    lines.extend(others(breakdown, style));
    lines.join("\n")
}

/// A line for each group, for the summary.
pub(super) fn rows(breakdown: &Breakdown, style: Style) -> Vec<String> {
    let rows = breakdown.groups.iter().map(|group| row(group, breakdown.levels.allocated));
    rows.chain(others(breakdown, style)).collect()
}

/// "device 0", "pinned host memory"
pub(super) fn device_name(ordinal: u32) -> String {
    if ordinal == Device::HOST { "pinned host memory".to_owned() } else { format!("device {ordinal}") }
}

/// "after event 1,234"
pub(super) fn moment(levels: &LevelsAnswer) -> String {
    match levels.state.checked_sub(1) {
        Some(event) => format!("after event {}", count(event.into())),
        None => "before the trace".to_owned(),
    }
}

fn row(group: &Group, whole: u64) -> String {
    let total = &group.total;
    let percent = (u128::from(total.allocated) * 100).checked_div(u128::from(whole)).unwrap_or(0);
    format!(
        "  {:>10} {percent:>3} % {:>14}  {}",
        size(total.allocated),
        counted(total.blocks, "block"),
        one_line(&group.label)
    )
}

fn others(breakdown: &Breakdown, style: Style) -> Option<String> {
    let n_others = breakdown.n_groups - breakdown.groups.len() as u64;
    let total = breakdown.others;
    (n_others > 0).then(|| {
        style.dim(&format!(
            "  {:>10}       {:>14}  in {}; --top shows more of them",
            size(total.allocated),
            counted(total.blocks, "block"),
            counted(n_others, &format!("more {}", breakdown.by))
        ))
    })
}

fn frames(stack: &[FrameAnswer], style: Style) -> Vec<String> {
    let shown = stack.iter().take(MAX_FRAMES).map(|frame| {
        let place = match (frame.filename.as_str(), frame.line) {
            ("" | "??", _) => String::new(),
            (file, None) => format!("  {file}"),
            (file, Some(line)) => format!("  {file}:{line}"),
        };
        style.dim(&one_line(&format!("{:>34}{}{place}", "", frame.name)))
    });
    let n_more = stack.len().saturating_sub(MAX_FRAMES) as u64;
    let more = (n_more > 0).then(|| style.dim(&format!("{:>34}{}", "", counted(n_more, "more frame"))));
    shown.chain(more).collect()
}

/// Names from the file, without what would move the cursor.
pub(super) fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}
