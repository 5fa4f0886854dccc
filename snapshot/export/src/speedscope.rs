//! Stacks for speedscope: for each device one profile of bytes and one of blocks.
//!
//! The file follows `https://www.speedscope.app/file-format-schema.json`: frames are shared and named by number,
//! samples list them outermost first.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use serde_json::json;
use tidegauge_snapshot::{
    Snapshot,
    model::Frame,
    sites::{self, Place},
    sums::Sum,
    words,
};

use crate::{
    ExportError, Moment, Part,
    held::{Held, Path, held},
};

/// Writes the allocated bytes and blocks of each stack at a moment.
///
/// # Errors
/// When a device has no such moment, or nothing can be written.
pub fn write(part: &Part<'_>, moment: Moment, mut out: impl Write) -> Result<(), ExportError> {
    let held = held(part, moment)?;
    let mut frames = Frames::default();
    let samples: Vec<Vec<Vec<usize>>> = held
        .iter()
        .map(|held| held.sums.iter().map(|sum| frames.sample(part.snapshot, sum)).collect())
        .collect();
    let head = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("tidegauge ", env!("CARGO_PKG_VERSION")),
        "name": "allocated memory",
        "activeProfileIndex": 0,
        "shared": {"frames": frames.list},
    })
    .to_string();
    // The profiles are the last member of the same object.
    out.write_all(head.strip_suffix('}').unwrap_or(&head).as_bytes())?;
    out.write_all(b",\"profiles\":[")?;
    for (at, (held, samples)) in held.iter().zip(&samples).enumerate() {
        if at > 0 {
            out.write_all(b",")?;
        }
        write_profile(held, samples, "bytes", |sum| sum.allocated, &mut out)?;
        out.write_all(b",")?;
        write_profile(held, samples, "none", |sum| sum.n_blocks, &mut out)?;
    }
    out.write_all(b"]}")?;
    Ok(())
}

fn write_profile(
    held: &Held<'_>,
    samples: &[Vec<usize>],
    unit: &str,
    weight: impl Fn(&Sum) -> u64,
    out: &mut impl Write,
) -> io::Result<()> {
    let weights: Vec<u64> = held.sums.iter().map(&weight).collect();
    let total = weights.iter().fold(0u64, |sum, weight| sum.saturating_add(*weight));
    let what = if unit == "bytes" { words::size(total) } else { words::counted(total, "block") };
    let profile = json!({
        "type": "sampled",
        "name": format!("{}: {what}", held.title()),
        "unit": unit,
        "startValue": 0,
        "endValue": total,
        "samples": samples,
        "weights": weights,
    });
    serde_json::to_writer(out, &profile).map_err(io::Error::from)
}

/// Frames by number.
#[derive(Default)]
struct Frames {
    list: Vec<serde_json::Value>,
    seen: HashMap<Frame, usize>,
    reasons: HashMap<&'static str, usize>,
}

impl Frames {
    fn sample(&mut self, snapshot: &Snapshot, sum: &Sum) -> Vec<usize> {
        match Path::of(snapshot, &sum.key) {
            Path::Frames(frames) => {
                frames.into_iter().rev().map(|frame| self.number(snapshot, frame)).collect()
            }
            Path::Reason(reason) => {
                let list = &mut self.list;
                let number = self.reasons.entry(reason).or_insert_with(|| {
                    list.push(json!({"name": reason}));
                    list.len() - 1
                });
                vec![*number]
            }
        }
    }

    fn number(&mut self, snapshot: &Snapshot, frame: Frame) -> usize {
        let list = &mut self.list;
        *self.seen.entry(frame).or_insert_with(|| {
            let Place { function, file, line } = sites::place(snapshot, frame);
            let mut entry = json!({"name": function});
            if !file.is_empty() {
                entry["file"] = json!(file);
            }
            if let Some(line) = line {
                entry["line"] = json!(line);
            }
            list.push(entry);
            list.len() - 1
        })
    }
}
