//! Stacks as a pprof profile: Protocol Buffers in gzip, for `go tool pprof` and what else reads its format.
//!
//! The values bear the names that pprof knows from Go's heap profiles, so that its `-inuse_space` and
//! `-inuse_objects` work. Frames stand innermost first, as pprof wants them.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use flate2::{Compression, write::GzEncoder};
use tidegauge_snapshot::{Snapshot, model::Frame, sites};

use crate::{
    ExportError, Moment, Part,
    held::{Path, held},
    protobuf::{Message, write_text},
};

/// Fields of `Profile`.
mod profile {
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRING_TABLE: u32 = 6;
    pub(super) const TIME_NANOS: u32 = 9;
    pub(super) const COMMENT: u32 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// Writes the allocated bytes and blocks of each stack at a moment. Samples are labeled with their device.
///
/// # Errors
/// When a device has no such moment, or nothing can be written.
pub fn write(part: &Part<'_>, moment: Moment, out: impl Write) -> Result<(), ExportError> {
    let held = held(part, moment)?;
    let mut out = GzEncoder::new(out, Compression::default());
    let mut tables = Tables::new(part.snapshot);
    for (kind, unit) in [("inuse_objects", "count"), ("inuse_space", "bytes")] {
        let kind = Message::default().int(1, tables.text(kind)).int(2, tables.text(unit));
        kind.write_as(profile::SAMPLE_TYPE, &mut out)?;
    }
    let (device_label, default) = (tables.text("device"), tables.text("inuse_space"));
    for held in &held {
        let device = Message::default().int(1, device_label).int(3, held.device.ordinal());
        for sum in &held.sums {
            let locations = tables.locations(Path::of(part.snapshot, &sum.key), &mut out)?;
            Message::default()
                .packed(1, locations)
                .packed(2, [sum.n_blocks, sum.allocated])
                .message(3, &device)
                .write_as(profile::SAMPLE, &mut out)?;
        }
    }
    let titles: Vec<i64> = held.iter().map(|held| tables.text(&held.title())).collect();
    let mut rest = Message::default().int(profile::DEFAULT_SAMPLE_TYPE, default);
    for title in titles {
        rest = rest.int(profile::COMMENT, title);
    }
    if let Some(time_us) = held.iter().filter_map(|held| held.time_us()).max() {
        rest = rest.int(profile::TIME_NANOS, time_us.saturating_mul(1000));
    }
    rest.write_bare(&mut out)?;
    for text in &tables.texts {
        write_text(profile::STRING_TABLE, text, &mut out)?;
    }
    out.finish()?.flush()?;
    Ok(())
}

/// What samples refer to by number. Functions and locations are written when they are first referred to.
struct Tables<'a> {
    snapshot: &'a Snapshot,
    /// The first is empty, as the format wants.
    texts: Vec<String>,
    seen_texts: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<(u64, u32), u64>,
}

impl<'a> Tables<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let mut tables = Self {
            snapshot,
            texts: Vec::new(),
            seen_texts: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
        };
        tables.text("");
        tables
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(number) = self.seen_texts.get(text) {
            return *number;
        }
        let number = self.texts.len() as i64;
        self.texts.push(text.to_owned());
        self.seen_texts.insert(text.to_owned(), number);
        number
    }

    fn locations(&mut self, path: Path, out: &mut impl Write) -> io::Result<Vec<u64>> {
        match path {
            Path::Reason(reason) => Ok(vec![self.location(reason, "", 0, out)?]),
            Path::Frames(frames) => frames.into_iter().map(|frame| self.location_of(frame, out)).collect(),
        }
    }

    fn location_of(&mut self, frame: Frame, out: &mut impl Write) -> io::Result<u64> {
        let place = sites::place(self.snapshot, frame);
        self.location(&place.function, &place.file, place.line.unwrap_or(0), out)
    }

    fn location(&mut self, name: &str, file: &str, line: u32, out: &mut impl Write) -> io::Result<u64> {
        let (name, file) = (self.text(name), self.text(file));
        let next = self.functions.len() as u64 + 1;
        let function = *self.functions.entry((name, file)).or_insert(next);
        if function == next {
            let message = Message::default().uint(1, function).int(2, name).int(3, name).int(4, file);
            message.write_as(profile::FUNCTION, out)?;
        }
        let next = self.locations.len() as u64 + 1;
        let location = *self.locations.entry((function, line)).or_insert(next);
        if location == next {
            let line = Message::default().uint(1, function).uint(2, line.into());
            Message::default().uint(1, location).message(4, &line).write_as(profile::LOCATION, out)?;
        }
        Ok(location)
    }
}
