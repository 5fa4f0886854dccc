//! Collapsed stacks: "outermost;…;innermost bytes", a line each, as flamegraph.pl, inferno and speedscope read.

use std::io::Write;

use tidegauge_snapshot::sites;

use crate::{
    ExportError, Moment, Part,
    held::{Path, held},
};

/// Writes the allocated bytes of each stack at a moment. Where the part has several devices, each is a root.
///
/// # Errors
/// When a device has no such moment, or nothing can be written.
pub fn write(part: &Part<'_>, moment: Moment, mut out: impl Write) -> Result<(), ExportError> {
    for held in held(part, moment)? {
        let root = match part.devices.len() {
            1 => String::new(),
            _ => format!("{};", held.device.name()),
        };
        for sum in &held.sums {
            let path = match Path::of(part.snapshot, &sum.key) {
                Path::Reason(reason) => reason.to_owned(),
                Path::Frames(frames) => {
                    let outermost_first = frames.into_iter().rev();
                    let texts: Vec<String> =
                        outermost_first.map(|frame| sites::frame(part.snapshot, frame)).collect();
                    texts.join(";")
                }
            };
            writeln!(out, "{root}{path} {}", sum.allocated)?;
        }
    }
    Ok(())
}
