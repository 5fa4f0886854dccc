//! The end of reading: which rows belong to which device, what the top of the file holds besides, and who wrote it.

use std::ops::Range;

use super::ReadError;
use super::findings::Findings;
use super::pickle::{Heap, Kind, Object, Val};
use super::shape::{Builder, MAX_DEVICE, Row};
use crate::Snapshot;
use crate::model::{Annotation, Device, Extra, Frame, FrameId, Kept, KeptOf, Segments, Trace, Value};
use crate::window::HEAD_SIZES;

/// What `allocator_settings` and unknown fields at the top may take, bytes. Real settings take some thousand.
const TOP_BYTES: u64 = 4 << 20;

/// Values nested deeper than this are not kept.
const MAX_DEPTH: u32 = 16;

/// What an entry of a kept list or dict is counted as, besides its text, bytes.
const NODE_BYTES: u64 = 64;

#[derive(Default)]
struct Parts {
    segments: Option<Val>,
    traces: Option<Val>,
    settings: Option<Val>,
    annotations: Option<Val>,
    host_segments: Option<Val>,
    host_traces: Option<Val>,
    /// What this version does not know.
    others: Vec<(String, Val)>,
    /// The names of all, in order; empty when the segments stand alone.
    names: Vec<String>,
}

enum Rows {
    Run(u32, u32),
    Each(Vec<u32>),
}

impl Rows {
    fn len(&self) -> usize {
        match self {
            Self::Run(start, end) => (end - start) as usize,
            Self::Each(rows) => rows.len(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (run, each) = match self {
            Self::Run(start, end) => (*start..*end, &[][..]),
            Self::Each(rows) => (0..0, &rows[..]),
        };
        run.chain(each.iter().copied())
    }
}

impl Builder {
    /// Puts the tables together once the pickle has ended with `top`.
    pub(crate) fn finish(
        mut self,
        heap: Heap,
        mut findings: Findings,
        top: Val,
        wrapping: String,
        content_bytes: u64,
    ) -> Result<Snapshot, ReadError> {
        let mut parts = self.parts(&heap, top, &mut findings)?;
        let mut budget = TOP_BYTES;
        let settings = self.settings(&heap, &parts, &mut budget, &mut findings);
        let rest = self.copies(&heap, std::mem::take(&mut parts.others), &mut budget, &mut findings);
        let segment_rows = rows_of(&heap, parts.segments, Row::Segment, "segments", &mut findings);
        let host_rows = rows_of(&heap, parts.host_segments, Row::Segment, "host_segments", &mut findings);
        let mut traces = self.traces(&heap, parts.traces, &mut findings);
        let n_traces = traces.len() as u32;
        traces.push(rows_of(&heap, parts.host_traces, Row::Event, "host_traces", &mut findings));
        let annotation_rows =
            rows_of(&heap, parts.annotations, Row::Annotation, "external_annotations", &mut findings);
        let producer = self.producer(&parts, &settings);
        drop(heap);
        if self.seen.category {
            findings.count("from-the-profiler", "");
        }
        if !self.has_time {
            self.trace.time_us = Vec::new();
        }
        if self.trace.extras.is_empty() {
            self.trace.extras.push(Extra::default());
        }
        let annotation_rows: Vec<u32> = annotation_rows.iter().collect();
        let annotations: Vec<Annotation> =
            annotation_rows.iter().map(|row| self.annotations[*row as usize].clone()).collect();
        move_kept(&mut self.kept, KeptOf::Annotation, &annotation_rows);
        let (mut trace, mut event_ranges) = arrange_trace(self.trace, traces, &mut self.kept);
        let (segments, mut segment_ranges) =
            arrange_segments(self.segments, &segment_rows, &host_rows, &mut self.kept, &mut findings);
        let n_rotated: usize =
            event_ranges.iter().filter(|range| rotate(&mut trace, range, &mut self.kept)).count();
        if n_rotated > 0 {
            findings.add("rotated", "", n_rotated as u64);
        }
        let host = Device {
            ordinal: Device::HOST,
            events: event_ranges.pop().unwrap_or(0..0),
            segments: segment_ranges.pop().unwrap_or(0..0),
        };
        let n = event_ranges.len().max(segment_ranges.len());
        let devices = (0..n)
            .map(|at| Device {
                ordinal: at as u32,
                events: event_ranges.get(at).cloned().unwrap_or(0..0),
                segments: segment_ranges.get(at).cloned().unwrap_or(0..0),
            })
            .filter(|device| !device.events.is_empty() || !device.segments.is_empty())
            .collect();
        self.kept.sort_by_key(|kept| (kept.of, kept.row));
        Ok(Snapshot {
            wrapping: vec![wrapping],
            content_bytes,
            producer,
            strings: self.strings,
            stacks: self.stacks,
            streams: self.streams,
            action_names: self.action_names,
            trace,
            segments,
            blocks: self.blocks,
            devices,
            host: Some(host).filter(|host| !host.events.is_empty() || !host.segments.is_empty()),
            annotations,
            settings,
            findings: findings.into_findings(),
            keys: self.keys,
            forward: self.forward,
            kept: self.kept,
            top: parts.names,
            n_traces,
            rest,
        })
    }

    fn parts(&self, heap: &Heap, top: Val, findings: &mut Findings) -> Result<Parts, ReadError> {
        let mut parts = Parts::default();
        match top.kind() {
            // torch.cuda.memory_snapshot(): the segments alone.
            Kind::Object(object)
                if matches!(heap.objects[object as usize], Object::Run(Row::Segment, ..)) =>
            {
                parts.segments = Some(top);
                return Ok(parts);
            }
            Kind::Object(object) => {
                if let Object::Dict(entries) = &heap.objects[object as usize] {
                    for (key, val) in entries {
                        let Kind::Str(key) = key.kind() else { continue };
                        let name = self.strings.text(key).into_owned();
                        match name.as_bytes() {
                            b"segments" => parts.segments = Some(*val),
                            b"device_traces" => parts.traces = Some(*val),
                            b"allocator_settings" => parts.settings = Some(*val),
                            b"external_annotations" => parts.annotations = Some(*val),
                            b"host_segments" => parts.host_segments = Some(*val),
                            b"host_traces" => parts.host_traces = Some(*val),
                            _ => {
                                if name != HEAD_SIZES {
                                    findings.count("unknown-key", &format!("\"{name}\" at the top"));
                                }
                                parts.others.push((name.clone(), *val));
                            }
                        }
                        parts.names.push(name);
                    }
                }
            }
            _ => {}
        }
        if parts.segments.is_some() || parts.traces.is_some() {
            return Ok(parts);
        }
        let message = "the pickle is readable but holds no memory snapshot: there is neither \"segments\" nor \
                       \"device_traces\" at its top; snapshots come from torch.cuda.memory._dump_snapshot()";
        Err(ReadError::new(ReadError::NOT_A_SNAPSHOT, None, message))
    }

    fn settings(
        &self,
        heap: &Heap,
        parts: &Parts,
        budget: &mut u64,
        findings: &mut Findings,
    ) -> Vec<(String, Value)> {
        let mut odd = || {
            findings.count("odd-entry", "allocator_settings");
            &[][..]
        };
        let entries: &[(Val, Val)] = match parts.settings.map(Val::kind) {
            None | Some(Kind::None | Kind::EmptyDict(_)) => &[],
            Some(Kind::Object(object)) => match &heap.objects[object as usize] {
                Object::Dict(entries) => entries,
                _ => odd(),
            },
            Some(_) => odd(),
        };
        let mut named = Vec::new();
        for (key, val) in entries {
            match key.kind() {
                Kind::Str(key) => named.push((self.strings.text(key).into_owned(), *val)),
                _ => findings.count("odd-entry", "allocator_settings"),
            }
        }
        self.copies(heap, named, budget, findings)
    }

    /// Plain copies of named values; those too large for the budget are counted.
    fn copies(
        &self,
        heap: &Heap,
        named: Vec<(String, Val)>,
        budget: &mut u64,
        findings: &mut Findings,
    ) -> Vec<(String, Value)> {
        let mut copies = Vec::new();
        for (name, val) in named {
            match self.value(heap, val, 0, budget) {
                Some(value) => copies.push((name, value)),
                None => findings.count("not-kept", &name),
            }
        }
        copies
    }

    /// A plain copy of a small value; nothing when it is deep, takes more than the budget, or holds parts of the
    /// tables.
    pub(super) fn value(&self, heap: &Heap, val: Val, depth: u32, budget: &mut u64) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        *budget = budget.checked_sub(NODE_BYTES)?;
        let each = |items: &[Val], budget: &mut u64| -> Option<Vec<Value>> {
            items.iter().map(|item| self.value(heap, *item, depth + 1, budget)).collect()
        };
        Some(match val.kind() {
            Kind::None => Value::None,
            Kind::Bool(is_true) => Value::Bool(is_true),
            Kind::Int(number) => Value::Int(i128::from(number)),
            Kind::Big(row) => Value::Int(heap.bigs[row as usize]),
            Kind::Float(row) => Value::Float(heap.floats[row as usize]),
            Kind::Str(id) => {
                *budget = budget.checked_sub(self.strings.bytes(id).len() as u64)?;
                Value::Str(self.strings.text(id).into_owned())
            }
            Kind::EmptyList(_) => Value::List(Vec::new()),
            Kind::EmptyTuple => Value::Tuple(Vec::new()),
            Kind::EmptyDict(_) => Value::Dict(Vec::new()),
            Kind::Pair(row) => {
                let (first, second) = heap.pairs[row as usize];
                Value::Tuple(vec![Value::Int(first.into()), Value::Int(second.into())])
            }
            Kind::Object(object) => match &heap.objects[object as usize] {
                Object::List(items) => Value::List(each(items, budget)?),
                Object::Tuple(items) => Value::Tuple(each(items, budget)?),
                Object::Dict(entries) => Value::Dict(
                    entries
                        .iter()
                        .map(|(key, val)| {
                            let key = self.value(heap, *key, depth + 1, budget)?;
                            Some((key, self.value(heap, *val, depth + 1, budget)?))
                        })
                        .collect::<Option<_>>()?,
                ),
                Object::Became(val) => return self.value(heap, *val, depth + 1, budget),
                Object::Run(..) => return None,
            },
            Kind::Frame(frame) => self.frame_value(frame, budget)?,
            Kind::Stack(stack) => {
                let frames = self.stacks.frame_ids(stack).iter();
                Value::List(frames.map(|id| self.frame_value(FrameId(*id), budget)).collect::<Option<_>>()?)
            }
            Kind::Row(..) => return None,
        })
    }

    fn frame_value(&self, frame: FrameId, budget: &mut u64) -> Option<Value> {
        let Frame { name, filename, line, .. } = *self.stacks.all_frames().get(frame.0 as usize)?;
        let [name, filename] = [name, filename].map(|id| self.strings.text(id).into_owned());
        *budget = budget.checked_sub(4 * NODE_BYTES + (name.len() + filename.len()) as u64)?;
        let line = if line == Frame::UNKNOWN_LINE { u64::MAX } else { u64::from(line) };
        let entry = |key: &str, value| (Value::Str(key.to_owned()), value);
        Some(Value::Dict(vec![
            entry("name", Value::Str(name)),
            entry("filename", Value::Str(filename)),
            entry("line", Value::Int(line.into())),
        ]))
    }

    /// Rows of events, by device ordinal.
    fn traces(&self, heap: &Heap, val: Option<Val>, findings: &mut Findings) -> Vec<Rows> {
        let Some(val) = val else { return Vec::new() };
        let lists: &[Val] = match val.kind() {
            Kind::Object(object) => match &heap.objects[object as usize] {
                Object::List(items) => items,
                _ => {
                    findings.count("odd-entry", "device_traces");
                    &[]
                }
            },
            _ => &[],
        };
        if lists.len() > MAX_DEVICE as usize + 1 {
            findings.count("odd-entry", "device_traces");
        }
        let lists = lists.iter().take(MAX_DEVICE as usize + 1);
        lists.map(|list| rows_of(heap, Some(*list), Row::Event, "device_traces", findings)).collect()
    }

    /// What wrote the file, from the fields that each release added.
    fn producer(&self, parts: &Parts, settings: &[(String, Value)]) -> String {
        let has = |name: &str| settings.iter().any(|(key, _)| key == name);
        let has_events = !self.trace.is_empty();
        let name = if self.seen.category {
            // torch.cuda._memory_viz.profile_plot's conversion; no allocator writes categories.
            "torch.profiler"
        } else if self.seen.torch_npu {
            "torch_npu"
        } else if self.seen.history {
            "torch 2.0"
        } else if parts.host_traces.is_some() {
            "torch 2.14+"
        } else if has("max_cached_size") {
            "torch 2.13"
        } else if self.seen.pool {
            "torch 2.12"
        } else if self.seen.user_metadata {
            "torch 2.10+"
        } else if has("graph_capture_record_stream_reuse") {
            if has_events { "torch 2.9" } else { "torch 2.9+" }
        } else if self.seen.compile_context {
            "torch 2.8"
        } else if parts.annotations.is_some() {
            if has_events { "torch 2.5–2.7" } else { "torch 2.5–2.8" }
        } else if parts.settings.is_some() {
            "torch 2.3–2.4"
        } else if has_events && !self.has_time {
            "torch 2.1"
        } else if has_events {
            "torch 2.2"
        } else {
            "unknown"
        };
        name.to_owned()
    }
}

/// The rows of one table that a list holds.
fn rows_of(heap: &Heap, val: Option<Val>, row: Row, what: &str, findings: &mut Findings) -> Rows {
    let mut odd = || findings.count("odd-entry", what);
    match val.map(Val::kind) {
        None | Some(Kind::EmptyList(_) | Kind::EmptyTuple | Kind::None) => {}
        Some(Kind::Object(object)) => match &heap.objects[object as usize] {
            Object::Run(found, start, end) if *found == row => return Rows::Run(*start, *end),
            Object::List(items) | Object::Tuple(items) => {
                let mut rows = Vec::new();
                for item in items {
                    match item.kind() {
                        Kind::Row(found, at) if found == row => rows.push(at),
                        _ => odd(),
                    }
                }
                return Rows::Each(rows);
            }
            _ => odd(),
        },
        Some(_) => odd(),
    }
    Rows::Each(Vec::new())
}

/// Follows rows to their new places: `order` holds the old row of each new one. What belongs to a row that is gone goes
/// with it.
fn move_kept(kept: &mut Vec<Kept>, of: KeptOf, order: &[u32]) {
    if !kept.iter().any(|kept| kept.of == of) {
        return;
    }
    let mut places: Vec<(u32, u32)> = (0..).zip(order).map(|(new, old)| (*old, new)).collect();
    places.sort_unstable();
    kept.retain_mut(|kept| {
        if kept.of != of {
            return true;
        }
        let at = places.partition_point(|(old, _)| *old < kept.row);
        let place = places.get(at).filter(|(old, _)| *old == kept.row);
        if let Some((_, new)) = place {
            kept.row = *new;
        }
        place.is_some()
    });
}

/// Brings the events into device order; does nothing when they are in it, as in every real file.
fn arrange_trace(trace: Trace, traces: Vec<Rows>, kept: &mut Vec<Kept>) -> (Trace, Vec<Range<usize>>) {
    let mut ranges = Vec::with_capacity(traces.len());
    let mut next = 0;
    let mut is_in_order = true;
    for rows in &traces {
        let start = next;
        is_in_order &= match rows {
            Rows::Run(first, _) => *first as usize == start,
            Rows::Each(rows) => rows.is_empty(),
        };
        next += rows.len();
        ranges.push(start..next);
    }
    if is_in_order && next == trace.len() {
        return (trace, ranges);
    }
    let order: Vec<u32> = traces
        .into_iter()
        .flat_map(|rows| match rows {
            Rows::Run(start, end) => (start..end).collect::<Vec<_>>(),
            Rows::Each(rows) => rows,
        })
        .collect();
    move_kept(kept, KeptOf::Event, &order);
    fn gather<T: Copy>(column: &[T], order: &[u32]) -> Vec<T> {
        if column.is_empty() { Vec::new() } else { order.iter().map(|row| column[*row as usize]).collect() }
    }
    let arranged = Trace {
        action: gather(&trace.action, &order),
        address: gather(&trace.address, &order),
        size: gather(&trace.size, &order),
        stream: gather(&trace.stream, &order),
        stack: gather(&trace.stack, &order),
        time_us: gather(&trace.time_us, &order),
        extra: gather(&trace.extra, &order),
        extras: trace.extras,
    };
    (arranged, ranges)
}

/// Puts a ring that was written out from the wrong place into order; says whether it was one.
///
/// Changing `max_entries` while recording makes torch take the wrong event for the oldest. Time then goes backwards
/// once, and the last event is older than the first.
fn rotate(trace: &mut Trace, range: &Range<usize>, kept: &mut [Kept]) -> bool {
    let Some(times) = trace.time_us.get(range.clone()) else { return false };
    let mut drops = (1..times.len()).filter(|at| times[*at] < times[*at - 1]);
    let (Some(cut), None) = (drops.next(), drops.next()) else { return false };
    if times.last() > times.first() {
        return false;
    }
    trace.action[range.clone()].rotate_left(cut);
    trace.address[range.clone()].rotate_left(cut);
    trace.size[range.clone()].rotate_left(cut);
    trace.stream[range.clone()].rotate_left(cut);
    trace.stack[range.clone()].rotate_left(cut);
    trace.time_us[range.clone()].rotate_left(cut);
    trace.extra[range.clone()].rotate_left(cut);
    for kept in kept.iter_mut().filter(|kept| kept.of == KeptOf::Event) {
        let row = kept.row as usize;
        if range.contains(&row) {
            kept.row = (range.start + (row - range.start + range.len() - cut) % range.len()) as u32;
        }
    }
    true
}

/// Brings the segments into device order, pinned host memory last; does nothing when they are in it, as in every real
/// file.
fn arrange_segments(
    segments: Segments,
    rows: &Rows,
    host: &Rows,
    kept: &mut Vec<Kept>,
    findings: &mut Findings,
) -> (Segments, Vec<Range<usize>>) {
    let mut n_of: Vec<usize> = Vec::new();
    let mut is_in_order = true;
    let mut last = 0;
    for (place, row) in rows.iter().enumerate() {
        let device = segments.device[row as usize];
        is_in_order &= place == row as usize && device >= last && device != Device::HOST;
        last = device;
        if device != Device::HOST {
            n_of.resize(n_of.len().max(device as usize + 1), 0);
            n_of[device as usize] += 1;
        }
    }
    let n_all = rows.len() + host.len();
    is_in_order &= host.iter().zip(rows.len()..).all(|(row, place)| place == row as usize);
    n_of.push(host.len());
    let mut next = 0;
    let range_of = |n: &usize| {
        let start = next;
        next += n;
        start..next
    };
    let ranges: Vec<Range<usize>> = n_of.iter().map(range_of).collect();
    if is_in_order && n_all == segments.len() {
        return (segments, ranges);
    }
    let (strays, mut order): (Vec<u32>, Vec<u32>) =
        rows.iter().partition(|row| segments.device[*row as usize] == Device::HOST);
    if !strays.is_empty() {
        findings.add("odd-entry", "segments", strays.len() as u64);
    }
    order.sort_by_key(|row| segments.device[*row as usize]);
    order.extend(host.iter());
    move_kept(kept, KeptOf::Segment, &order);
    let rows = || order.iter().map(|row| *row as usize);
    let arranged = Segments {
        device: rows().map(|row| segments.device[row]).collect(),
        address: rows().map(|row| segments.address[row]).collect(),
        total_size: rows().map(|row| segments.total_size[row]).collect(),
        stream: rows().map(|row| segments.stream[row]).collect(),
        kind: rows().map(|row| segments.kind[row]).collect(),
        pool: rows().map(|row| segments.pool[row]).collect(),
        is_expandable: rows().map(|row| segments.is_expandable[row]).collect(),
        stack: rows().map(|row| segments.stack[row]).collect(),
        blocks: rows().map(|row| segments.blocks[row].clone()).collect(),
        shape: rows().map(|row| segments.shape[row]).collect(),
    };
    (arranged, ranges)
}
